// How matrix units with AVX512-BF16 split floats to terms (kernels/matrix.h): part of avx512_bf16.cpp.

// The next term of 32 floats, and what it leaves of them.
inline __m512i next_term(__m512& low, __m512& high, bool leave) {
  const auto term = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  if (leave) {
    low = low - _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(term)), 16));
    high = high - _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(term, 1)), 16));
  }
  return term;
}

class Seen {
 public:
  void see(__m512 v) {
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    most_ = _mm512_max_epu32(most_, bits);
    least_ = _mm512_min_epu32(least_, _mm512_sub_epi32(bits, _mm512_set1_epi32(1)));  // zero becomes the largest
  }
  Magnitudes all() const { return {_mm512_reduce_min_epu32(least_) + 1, _mm512_reduce_max_epu32(most_)}; }

 private:
  __m512i most_ = _mm512_setzero_si512(), least_ = _mm512_set1_epi32(-1);
};

// Bits [0, n) of W.
template <int W>
inline std::uint64_t below(std::int64_t n) {
  constexpr std::uint64_t kAll = W == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << W) - 1;
  return n >= W ? kAll : n > 0 ? kAll >> (W - n) : 0;
}

inline __m512 load_some(const float* src, std::int64_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(below<16>(n)), src);
}

Magnitudes split_rows(std::uint16_t* dst, std::ptrdiff_t term, int terms, const float* src, const std::ptrdiff_t* from,
                      std::int64_t rows) {
  Seen seen;
  for (std::int64_t i = 0; i < rows; ++i, dst += 32) {
    __m512 low = _mm512_loadu_ps(src + from[i]), high = _mm512_loadu_ps(src + from[i] + 16);
    seen.see(low), seen.see(high);
    for (int r = 0; r < terms; ++r) _mm512_storeu_si512(dst + r * term, next_term(low, high, r + 1 < terms));
  }
  return seen.all();
}

// Calls f(place, count, source, live) for pieces of at most W pixels of a flat plane, in order: pixel i of a piece is
// source[i] where bit i of `live` is set, and zero elsewhere.
template <int W, class F>
inline void each_piece(const FlatPlane& plane, F&& f) {
  FlatPlane p = plane;
  if (p.rows > 1 && p.stride == p.width && p.pitch == p.width) p.width *= p.rows, p.rows = 1;
  std::int64_t begin = 0;
  for (std::int64_t y = 0; y < p.rows || y == 0; ++y) {
    const std::int64_t at = p.first + y * p.pitch, last = p.rows > 0 ? at + p.width : 0;
    const std::int64_t end = y + 1 < p.rows ? at + p.pitch : p.length;
    for (std::int64_t i = begin; i < end; i += W)
      f(i, end - i, y * p.stride + i - at, below<W>(last - i) & ~below<W>(at - i));
    begin = end;
  }
}

Magnitudes split_plane(std::uint16_t* dst, std::ptrdiff_t term, int terms, const float* src, const FlatPlane& plane) {
  Seen seen;
  each_piece<32>(plane, [&](std::int64_t i, std::int64_t count, std::ptrdiff_t from, std::uint64_t live) {
    __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(live), src + from);
    __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(live >> 16), src + from + 16);
    _mm_prefetch(src + from + plane.ahead, _MM_HINT_T0);
    _mm_prefetch(src + from + plane.ahead + 16, _MM_HINT_T0);
    seen.see(low), seen.see(high);
    const auto out = static_cast<__mmask32>(below<32>(count));
    for (int r = 0; r < terms; ++r)
      _mm512_mask_storeu_epi16(dst + r * term + i, out, next_term(low, high, r + 1 < terms));
  });
  return seen.all();
}

// The next term of pairs, even ones in the lower halves, and what it leaves of them.
inline __m512i next_pairs(__m512& even, __m512& odd, bool leave) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i pairs = _mm512_permutexvar_epi16(interleave, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even)));
  if (leave) {
    even = even - _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = odd - _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  return pairs;
}

Magnitudes split_pairs(std::uint32_t* dst, std::ptrdiff_t term, int terms, const float* even, const float* odd,
                       const FlatPlane& plane) {
  Seen seen;
  each_piece<16>(plane, [&](std::int64_t i, std::int64_t count, std::ptrdiff_t from, std::uint64_t live) {
    const auto mask = static_cast<__mmask16>(live);
    __m512 e = _mm512_maskz_loadu_ps(mask, even + from);
    __m512 o = odd ? _mm512_maskz_loadu_ps(mask, odd + from) : _mm512_setzero_ps();
    _mm_prefetch(even + from + plane.ahead, _MM_HINT_T0);
    if (odd) _mm_prefetch(odd + from + plane.ahead, _MM_HINT_T0);
    seen.see(e), seen.see(o);
    const auto out = static_cast<__mmask16>(below<16>(count));
    for (int r = 0; r < terms; ++r) _mm512_mask_storeu_epi32(dst + r * term + i, out, next_pairs(e, o, r + 1 < terms));
  });
  return seen.all();
}

// Transposes 16 rows of 16 words.
inline void transpose_words(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// The second half of each pair with the first half of the one behind it.
inline __m512i paired_next(__m512i pairs, __m512i behind) {
  return _mm512_or_si512(_mm512_srli_epi32(pairs, 16), _mm512_slli_epi32(behind, 16));
}

Magnitudes split_columns(std::uint32_t* dst, std::ptrdiff_t term, std::ptrdiff_t odd, int terms, const float* src,
                         std::ptrdiff_t lds, int rows, std::int64_t n) {
  Seen seen;
  __m512i last[3];  // pairs that wait for the next one
  for (std::int64_t done = 0; done < n; done += 32, src += 32, dst += 256) {
    __m512i words[3][16];
#pragma GCC unroll 4
    for (int j = 0; j < 16; ++j) {
      const std::int64_t live = j < rows ? n - done : 0;
      __m512 low = load_some(src + j * lds, live), high = load_some(src + j * lds + 16, live - 16);
      if (j < rows) {  // the next rows are those behind
        _mm_prefetch(src + (j + rows) * lds, _MM_HINT_T0);
        _mm_prefetch(src + (j + rows) * lds + 16, _MM_HINT_T0);
      }
      seen.see(low), seen.see(high);
      for (int r = 0; r < terms; ++r) words[r][j] = next_term(low, high, r + 1 < terms);
    }
    for (int r = 0; r < terms; ++r) {
      transpose_words(words[r]);
      std::uint32_t* const to = dst + r * term;
#pragma GCC unroll 4
      for (int k = 0; k < 16; ++k) _mm512_storeu_si512(to + 16 * k, words[r][k]);
      if (odd == 0) continue;
      if (done > 0) _mm512_storeu_si512(to + odd - 16, paired_next(last[r], words[r][0]));
#pragma GCC unroll 4
      for (int k = 0; k < 15; ++k) _mm512_storeu_si512(to + odd + 16 * k, paired_next(words[r][k], words[r][k + 1]));
      last[r] = words[r][15];
      if (done + 32 >= n) _mm512_storeu_si512(to + odd + 16 * 15, _mm512_srli_epi32(last[r], 16));
    }
  }
  return seen.all();
}
