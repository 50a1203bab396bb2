// Layer base: the element types in memory. `decode` widens exactly, but those that are read as others (ReadAs),
// `encode` rounds once. Both work on 32-bit words W and float32 values F, scalars or vectors, so that kernels and
// scalar code share them. All functions are inlined everywhere: kernel files compiled for newer instruction sets may
// include this header.
#pragma once

#include <cstdint>

namespace convbwd {

#define CONVBWD_INLINE static constexpr inline __attribute__((always_inline))

template <class To, class From>
CONVBWD_INLINE To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}
CONVBWD_INLINE std::uint32_t bits_of(float f) { return bits_as<std::uint32_t>(f); }
CONVBWD_INLINE float float_of(std::uint32_t u) { return bits_as<float>(u); }

// Elements from where the condition holds; where both are vectors, so is the condition.
template <class M, class W>
CONVBWD_INLINE W pick(M condition, W yes, W no) {
  return condition ? yes : no;
}
// Whether a < b, both below 2^31: before AVX-512 vectors have signed comparisons only.
template <class W>
CONVBWD_INLINE auto below(W a, std::uint32_t b) {
  if constexpr (sizeof(W) == sizeof b)
    return a < b;
  else
    return bits_as<decltype(a < a)>(a) < static_cast<std::int32_t>(b);
}
template <class W>
CONVBWD_INLINE W word(std::uint32_t u) {
  return W{} + u;
}

/// Rounds the magnitude m of a float32 by `drop` bits to nearest even; a carry walks into the exponent.
template <int kDrop, class W>
CONVBWD_INLINE W round_even(W m) {
  return (m + ((1u << (kDrop - 1)) - 1) + ((m >> kDrop) & 1u)) >> kDrop;
}

/// 1 sign, 5 exponent, 10 mantissa bits: IEEE 754 binary16.
struct Half {
  typedef std::uint16_t Code;
  Code bits;

  template <class F, class W>
  CONVBWD_INLINE F decode(W code) {
    const W sign = (code & 0x8000u) << 16, m = (code & 0x7fffu) << 13;
    // Subnormal numbers get the exponent of the least normal one, 2^-14, which is then subtracted.
    const W small = bits_as<W>(bits_as<F>(m + 0x38800000u) - 0x1p-14f);
    const W large = pick(below(m, 0x0f800000u), m + 0x38000000u, m | 0x7f800000u);
    return bits_as<F>(sign | pick(below(m, 0x00800000u), small, large));
  }
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    const W u = bits_as<W>(value), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    // Below 2^-14: adding 1/2 leaves the rounded subnormal in the low bits.
    const W small = bits_as<W>(bits_as<F>(m) + 0.5f) - 0x3f000000u;
    const W large = round_even<13>(m) - (112u << 10);
    const W special = pick(below(m, 0x7f800001u), word<W>(0x7c00u), ((m >> 13) & 0x3ffu) | 0x7e00u);
    return sign | pick(below(m, 0x38800000u), small, pick(below(m, 0x477ff000u), large, special));
  }
};

/// 1 sign, 8 exponent, 7 mantissa bits: the upper half of a float32.
struct BFloat {
  typedef std::uint16_t Code;
  Code bits;

  template <class F, class W>
  CONVBWD_INLINE F decode(W code) {
    return bits_as<F>(code << 16);
  }
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    const W u = bits_as<W>(value);
    return pick(below(u & 0x7fffffffu, 0x7f800001u), round_even<16>(u), (u >> 16) | 0x40u);
  }
};

/// 1 sign, 4 exponent, 3 mantissa bits, no infinities: OCP 8-bit floating point, E4M3. What rounds to more than 448
/// becomes NaN.
struct E4M3FN {
  typedef std::uint8_t Code;
  Code bits;

  template <class F, class W>
  CONVBWD_INLINE F decode(W code) {
    const W sign = (code & 0x80u) << 24, m = (code & 0x7fu) << 20;
    const W small = bits_as<W>(bits_as<F>(m + 0x3c800000u) - 0x1p-6f);
    const W large = pick(m == 0x07f00000u, word<W>(0x7fc00000u), m + 0x3c000000u);
    return bits_as<F>(sign | pick(below(m, 0x00800000u), small, large));
  }
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    const W u = bits_as<W>(value), sign = (u >> 24) & 0x80u, m = u & 0x7fffffffu;
    const W small = bits_as<W>(bits_as<F>(m) + 0x1p14f) - 0x46800000u;  // subnormal below 2^-6, in steps of 2^-9
    const W large = pick(below(m, 0x43e80001u), round_even<20>(m) - (120u << 3), word<W>(0x7fu));  // up to 464
    return sign | pick(below(m, 0x3c800000u), small, large);
  }
};

/// HiFloat8: sign, a prefix code, D exponent bits and the mantissa in what is left. D = 4, 3, 2, 1, 0 has the prefix
/// 11, 10, 01, 001, 0001; the exponent has a sign bit and a magnitude whose leading 1 is implied. Prefix 0000 is
/// 2^(code - 23) without mantissa. One zero (0x00), one NaN (0x80), infinities 0x6f and 0xef. Rounds half away from
/// zero; from 40960 on to infinity. After Luo et al., "Ascend HiFloat8 Format for Deep Learning", arXiv:2409.16626.
struct HiFloat8 {
  typedef std::uint8_t Code;
  Code bits;

  template <class F, class W>
  CONVBWD_INLINE F decode(W code) {
    const W a = code & 0x7fu;
    // The mantissa in its place in a float32, the exponent field above it; `lead` is the implied bit of its magnitude.
    const W placed = pick(below(a, 0x40u), a << 20, pick(below(a, 0x60u), a << 21, a << 22)), field = placed >> 23;
    const W lead = pick(below(a, 0x20u), word<W>(1),
                        pick(below(a, 0x40u), word<W>(2), pick(below(a, 0x60u), word<W>(4), word<W>(8))));
    const W magnitude = (field & (lead + lead - 1u)) | lead;
    const W exponent = pick((field & lead) == 0u, 127u + magnitude, 127u - magnitude);
    const W biased = pick(below(a, 0x10u), word<W>(127), exponent);
    const W finite = pick(below(a, 8u), (a + 104u) << 23, (biased << 23) + (placed & 0x007fffffu));
    const W infinite = pick(a == 0x6fu, word<W>(0x7f800000u), finite);
    const W number = ((code & 0x80u) << 24) | infinite;
    return bits_as<F>(pick(code == 0u, W{}, pick(code == 0x80u, word<W>(0x7fc00000u), number)));
  }
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    const W u = bits_as<W>(value), a = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
    // Half a unit is added where the number has 3, 2, 1 or 0 bits of mantissa. The least number is 2^-22; from half of
    // it on everything rounds up to it.
    const W m = pick(below(a, 0x34800000u), word<W>(0x34800000u), a), source = exponent_of(m);
    const W half = pick(below(source, 8u), pick(below(source, 4u), word<W>(1u << 19), word<W>(1u << 20)),
                        pick(below(source, 16u), word<W>(1u << 21), word<W>(1u << 22)));
    const W rounded = m + half, biased = rounded >> 23, e = exponent_of(rounded);
    // Magnitude of the exponent and mantissa side by side are the lower bits of the code. A carry has left a mantissa
    // of 0, so that of more bits than the number has, none is lost.
    const W low = (e << 3) | ((rounded >> 20) & 7u), negative = pick(below(biased, 127u), word<W>(16), W{});
    const W wide = pick(below(e, 8u), (low >> 1) + negative + 0x30u, (low >> 2) + negative + 0x50u);
    const W near = pick(below(e, 2u), low + (negative >> 1) + 8u, low + negative + 0x10u);
    const W normal = pick(below(e, 4u), near, wide);
    const W code = sign | pick(below(biased, 112u), biased - 104u, normal);
    const W special = pick(below(a, 0x7f800001u), sign | 0x6fu, word<W>(0x80u));
    return pick(below(a, 0x34000000u), W{}, pick(below(a, 0x47200000u), code, special));  // 2^-23, 40960
  }

 private:
  template <class W>
  CONVBWD_INLINE W exponent_of(W magnitude) {  // its absolute value
    const W biased = magnitude >> 23;
    return pick(below(biased, 127u), 127u - biased, biased - 127u);
  }
};

/// IEEE 754 binary32, the identity.
struct Single {
  typedef std::uint32_t Code;

  template <class F, class W>
  CONVBWD_INLINE F decode(W code) {
    return bits_as<F>(code);
  }
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    return bits_as<W>(value);
  }
};

/// HFloat32: a float32 that keeps so many bits of the mantissa, rounded to nearest even. What is not finite stays as it
/// is.
template <int kMantissa>
struct HFloat32 : Single {
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    constexpr int drop = 23 - kMantissa;
    const W u = bits_as<W>(value);
    return pick((u & 0x7f800000u) == 0x7f800000u, u, round_even<drop>(u) << drop);
  }
};

/// Elements of one type in memory whose values are those of another.
template <class Storage, class Format>
struct ReadAs {
  typedef typename Storage::Code Code;
  Code bits;

  template <class F, class W>
  CONVBWD_INLINE F decode(W code) {
    return round<W>(Storage::template decode<F>(code));
  }
  template <class W, class F>
  CONVBWD_INLINE W encode(F value) {
    return Storage::template encode<W>(round<W>(value));
  }

 private:
  template <class W, class F>
  CONVBWD_INLINE F round(F value) {
    return Format::template decode<F>(Format::template encode<W>(value));
  }
};

/// Whether values are rounded when they are read, which only modes for operands other than float64 do.
template <class S>
inline constexpr bool kRounds = false;
template <class Storage, class Format>
inline constexpr bool kRounds<ReadAs<Storage, Format>> = true;

typedef ReadAs<Single, HFloat32<11>> SingleAsHf32;
typedef ReadAs<Single, HFloat32<10>> SingleAsHf32Of10;
typedef ReadAs<Single, Half> SingleAsHalf;
typedef ReadAs<BFloat, Half> BFloatAsHalf;

/// The enumerators of DType in their order, and what they have in memory.
#define CONVBWD_TYPE_LIST(X)          \
  X(float64, double)                  \
  X(float32, float)                   \
  X(float16, Half)                    \
  X(bfloat16, BFloat)                 \
  X(float8_e4m3fn, E4M3FN)            \
  X(hifloat8, HiFloat8)               \
  X(hf32, SingleAsHf32)               \
  X(hf32_10, SingleAsHf32Of10)        \
  X(float32_as_float16, SingleAsHalf) \
  X(bfloat16_as_float16, BFloatAsHalf)

#define CONVBWD_COUNT(name, type) +1
inline constexpr int kTypes = CONVBWD_TYPE_LIST(CONVBWD_COUNT);
#undef CONVBWD_COUNT

CONVBWD_INLINE double widen(double d) { return d; }
CONVBWD_INLINE float widen(float f) { return f; }
template <class S>
CONVBWD_INLINE float widen(S s) {
  return S::template decode<float>(std::uint32_t{s.bits});
}
CONVBWD_INLINE void narrow(float f, float& r) { r = f; }
template <class S>
CONVBWD_INLINE void narrow(float f, S& r) {
  r.bits = static_cast<typename S::Code>(S::template encode<std::uint32_t>(f));
}

}  // namespace convbwd
