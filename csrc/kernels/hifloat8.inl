// HiFloat8 by tables made from its definition (base/formats.h), in far fewer instructions than its prefix code takes:
// part of convert.inl.

#if VECTOR_BYTES == 32

struct HiFloat8Values {
  std::uint32_t bits[256];
};
constexpr HiFloat8Values hifloat8_values() {
  HiFloat8Values t{};
  for (std::uint32_t code = 0; code < 256; ++code) t.bits[code] = bits_of(HiFloat8::decode<float>(code));
  return t;
}
constexpr HiFloat8Values kHiFloat8 = hifloat8_values();

typedef __m256i Register;

INLINE Register decode_hifloat8(Register codes) {
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(kHiFloat8.bits), codes, 4);
}

#elif VECTOR_BYTES == 64

typedef __m512i Register;

// Tables of 16-bit words, which a permutation looks up in both halves of 32-bit ones: what is wanted in one half has
// index and entry 0 in the other.
struct HiFloat8Tables {
  alignas(64) std::uint16_t value[128];  // upper half of a code's float32, which is all of it
  // By exponent, from 2^-24 (all that becomes 0) to 2^16 (infinity): the upper half of half a unit of the last place,
  // and the power's code beside how far a float32's mantissa is to be shifted.
  alignas(64) std::uint16_t half[64], power[64];
};
constexpr std::uint32_t kLeastPower = 0x33800000, kMostPower = 0x47800000;

constexpr HiFloat8Tables hifloat8_tables() {
  HiFloat8Tables t{};
  for (std::uint32_t code = 0; code < 128; ++code)
    t.value[code] = static_cast<std::uint16_t>(bits_of(HiFloat8::decode<float>(code)) >> 16);
  for (int i = 1; i <= 40; ++i) {
    const int exponent = i - 24, distance = exponent < 0 ? -exponent : exponent;
    const int mantissa = exponent < -15 || exponent > 15 ? 0 : distance < 4 ? 3 : distance < 8 ? 2 : 1;
    // All of 2^-23 to 2^-22 goes up, all beyond the largest power stays.
    if (exponent > -23 && exponent < 16) t.half[i] = static_cast<std::uint16_t>(1 << (6 - mantissa));
    const float power = float_of(kLeastPower + (static_cast<std::uint32_t>(i) << 23));
    const std::uint32_t code = HiFloat8::encode<std::uint32_t>(power), shift = mantissa ? 23u - mantissa : 31u;
    t.power[i] = static_cast<std::uint16_t>(code | shift << 8);
  }
  return t;
}
constexpr HiFloat8Tables kHiFloat8 = hifloat8_tables();

INLINE __m512i look_up(const std::uint16_t* table, __m512i index) {
  return _mm512_permutex2var_epi16(_mm512_load_si512(table), index, _mm512_load_si512(table + 32));
}

INLINE __m512i decode_hifloat8(__m512i codes) {
  const __m512i at = _mm512_slli_epi32(codes, 16), nan = _mm512_set1_epi32(0x00800000);
  const __m512i low = look_up(kHiFloat8.value, at), high = look_up(kHiFloat8.value + 64, at);
  const __m512i magnitude = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(at, _mm512_set1_epi16(0x40)), high);
  const __m512i number = _mm512_or_si512(magnitude, _mm512_slli_epi32(_mm512_and_si512(at, nan), 8));
  return _mm512_mask_mov_epi32(number, _mm512_cmpeq_epi32_mask(at, nan), _mm512_set1_epi32(0x7fc00000));
}

INLINE __m512i encode_hifloat8(__m512i bits) {
  const __m512i all = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i least = _mm512_set1_epi32(kLeastPower), most = _mm512_set1_epi32(kMostPower);
  const __m512i magnitude = _mm512_min_epu32(_mm512_max_epu32(all, least), most);
  const __m512i exponent = _mm512_srli_epi32(_mm512_sub_epi32(magnitude, least), 23);
  const __m512i rounded = _mm512_add_epi32(magnitude, look_up(kHiFloat8.half, _mm512_slli_epi32(exponent, 16)));
  const __m512i power = look_up(kHiFloat8.power, _mm512_srli_epi32(_mm512_sub_epi32(rounded, least), 23));
  const __m512i mantissa =
      _mm512_srlv_epi32(_mm512_and_si512(rounded, _mm512_set1_epi32(0x007fffff)), _mm512_srli_epi32(power, 8));
  const __m512i code = _mm512_add_epi32(_mm512_and_si512(power, _mm512_set1_epi32(0xff)), mantissa);
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  const __mmask16 live = _mm512_cmpge_epu32_mask(all, _mm512_set1_epi32(kLeastPower + (1 << 23)));
  const __mmask16 nan = _mm512_cmpgt_epu32_mask(all, _mm512_set1_epi32(0x7f800000));
  return _mm512_mask_mov_epi32(_mm512_maskz_or_epi32(live, code, sign), nan, _mm512_set1_epi32(0x80));
}

#endif
