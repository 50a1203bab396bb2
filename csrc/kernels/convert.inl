// The conversions between memory and vectors of the compute type: part of kernels.inl, which includes it.

// Vectors of N elements of one type, for any number of bytes.
template <class E, int N>
struct Elements {
  typedef E type __attribute__((vector_size(N * sizeof(E))));
};
template <class E, int N>
using ElementsOf = typename Elements<E, N>::type;
// What a type has in memory: itself, or a code.
template <class S>
struct InMemory {
  typedef typename S::Code type;
};
template <>
struct InMemory<float> {
  typedef float type;
};
template <>
struct InMemory<double> {
  typedef double type;
};
template <class S, class T>
using Codes = ElementsOf<typename InMemory<S>::type, Vec<T>::lanes>;

#include "kernels/hifloat8.inl"

// Codes as words, and back. GCC converts element by element where the sizes differ by more than a factor of two.
template <class W, class C>
INLINE W to_words(C codes) {
  constexpr int N = sizeof(W) / 4;
  typedef ElementsOf<std::uint16_t, N> Half16;
#if VECTOR_BYTES == 64
  if constexpr (sizeof(C) == 16 && N == 16) return bits_as<W>(_mm512_cvtepu8_epi32(bits_as<__m128i>(codes)));
  if constexpr (sizeof(C) == 32 && N == 16) return bits_as<W>(_mm512_cvtepu16_epi32(bits_as<__m256i>(codes)));
#endif
#if VECTOR_BYTES >= 32
  if constexpr (sizeof(C) == 8 && N == 8)
    return bits_as<W>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits_as<long long>(codes))));
  if constexpr (sizeof(C) == 16 && N == 8) return bits_as<W>(_mm256_cvtepu16_epi32(bits_as<__m128i>(codes)));
#endif
  if constexpr (sizeof(C) == N)
    return __builtin_convertvector(__builtin_convertvector(codes, Half16), W);
  else
    return __builtin_convertvector(codes, W);
}
template <class C, class W>
INLINE C to_codes(W words) {
  constexpr int N = sizeof(W) / 4;
  typedef ElementsOf<std::uint16_t, N> Half16;
#if VECTOR_BYTES == 64
  if constexpr (sizeof(C) == 16 && N == 16) return bits_as<C>(_mm512_cvtepi32_epi8(bits_as<__m512i>(words)));
  if constexpr (sizeof(C) == 32 && N == 16) return bits_as<C>(_mm512_cvtepi32_epi16(bits_as<__m512i>(words)));
#endif
#if VECTOR_BYTES == 32
  if constexpr (sizeof(C) <= 16 && N == 8) {
    const __m256i w = bits_as<__m256i>(words);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    if constexpr (sizeof(C) == 16)
      return bits_as<C>(halves);
    else
      return bits_as<C>(_mm_cvtsi128_si64(_mm_packus_epi16(halves, halves)));
  }
#endif
  if constexpr (sizeof(C) == N)
    return __builtin_convertvector(__builtin_convertvector(words, Half16), C);
  else
    return __builtin_convertvector(words, C);
}

// Types that are read as float16: the processor's own conversions round there and back.
template <class S>
struct AsHalf {
  typedef void storage;
};
template <class Storage>
struct AsHalf<ReadAs<Storage, Half>> {
  typedef Storage storage;
};

template <class T, class S>
INLINE Codes<S, T> encode(V<T> v);

template <class T, class S>
INLINE V<T> decode(Codes<S, T> codes) {
  constexpr int N = Vec<T>::lanes;
  typedef ElementsOf<float, N> F;
  if constexpr (__is_same(S, float) || __is_same(S, double)) {
    return __builtin_convertvector(codes, V<T>);
  } else {
#if defined(__F16C__) && VECTOR_BYTES == 64
    if constexpr (__is_same(S, Half) && N == 16) return bits_as<V<T>>(_mm512_cvtph_ps(bits_as<__m256i>(codes)));
#elif defined(__F16C__) && VECTOR_BYTES == 32
    if constexpr (__is_same(S, Half) && N == 8) return bits_as<V<T>>(_mm256_cvtph_ps(bits_as<__m128i>(codes)));
#endif
    typedef ElementsOf<std::uint32_t, N> W;
#if VECTOR_BYTES >= 32
    if constexpr (__is_same(S, HiFloat8) && N == VECTOR_BYTES / 4)
      return bits_as<V<T>>(decode_hifloat8(bits_as<Register>(to_words<W>(codes))));
#endif
#if defined(__F16C__)
    typedef typename AsHalf<S>::storage Storage;
    if constexpr (!__is_same(Storage, void) && N == VECTOR_BYTES / 4)
      return decode<T, Half>(encode<T, Half>(decode<T, Storage>(codes)));
#endif
    return __builtin_convertvector(S::template decode<F>(to_words<W>(codes)), V<T>);
  }
}

// float64 -> float32 with rounding to odd, so that a second rounding gives what one rounding would.
template <int N>
INLINE ElementsOf<float, N> to_odd(ElementsOf<double, N> d) {
  typedef ElementsOf<std::int64_t, N> Wide;
  typedef ElementsOf<std::uint32_t, N> W;
  typedef ElementsOf<float, N> F;
  const F f = __builtin_convertvector(d, F);
  const ElementsOf<double, N> back = __builtin_convertvector(f, ElementsOf<double, N>);
  const Wide magnitude = bits_as<Wide>(d) & INT64_MAX, got = bits_as<Wide>(back) & INT64_MAX;
  const W above = __builtin_convertvector(got > magnitude, W), inexact = __builtin_convertvector(back != d, W);
  return bits_as<F>((bits_as<W>(f) + above) | (inexact & 1u));
}

template <class T, class S>
INLINE Codes<S, T> encode(V<T> v) {
  constexpr int N = Vec<T>::lanes;
  typedef ElementsOf<std::uint32_t, N> W;
  if constexpr (__is_same(S, float) || __is_same(S, double)) {
    return __builtin_convertvector(v, Codes<S, T>);
  } else if constexpr (sizeof(T) == 8) {
    return to_codes<Codes<S, T>>(S::template encode<W>(to_odd<N>(v)));
  } else {
#if defined(__F16C__) && VECTOR_BYTES == 64
    if constexpr (__is_same(S, Half)) return bits_as<Codes<S, T>>(_mm512_cvtps_ph(bits_as<__m512>(v), 0));
    if constexpr (__is_same(S, HiFloat8))
      return to_codes<Codes<S, T>>(bits_as<W>(encode_hifloat8(bits_as<Register>(v))));
#elif defined(__F16C__) && VECTOR_BYTES == 32
    if constexpr (__is_same(S, Half)) return bits_as<Codes<S, T>>(_mm256_cvtps_ph(bits_as<__m256>(v), 0));
#endif
    return to_codes<Codes<S, T>>(S::template encode<W>(v));
  }
}

template <class T, class S>
INLINE V<T> load_vector(const S* p) {
  Codes<S, T> codes;
  __builtin_memcpy(&codes, p, sizeof codes);
  return decode<T, S>(codes);
}

#if VECTOR_BYTES == 64
// Elements where the mask has bits; the others are zero and need not exist.
template <class S>
INLINE V<float> load_masked(const S* p, std::uint32_t bits) {
  const auto mask = static_cast<__mmask16>(bits);
  if constexpr (sizeof(S) == 1)
    return decode<float, S>(bits_as<Codes<S, float>>(_mm_maskz_loadu_epi8(mask, p)));
  else if constexpr (sizeof(S) == 2)
    return decode<float, S>(bits_as<Codes<S, float>>(_mm256_maskz_loadu_epi16(mask, p)));
  else
    return decode<float, S>(bits_as<Codes<S, float>>(_mm512_maskz_loadu_epi32(mask, p)));
}
#endif

// The first n of a vector's elements, `step` apart; the others are zero.
template <class T, class S>
INLINE V<T> load_vector_part(const S* p, int n, std::ptrdiff_t step = 1) {
  if constexpr (__is_same(T, S)) {
    if (step == 1) return load_part(p, n);
  }
#if VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4 && sizeof(S) <= 4) {
    if (step == 1) return load_masked(p, (1u << n) - 1);
  }
#endif
  typedef typename InMemory<S>::type Code;
  const Code* q = reinterpret_cast<const Code*>(p);
  Codes<S, T> codes{};
  for (int i = 0; i < n; ++i) codes[i] = q[i * step];
  return decode<T, S>(codes);
}

// The even elements of a, then those of b.
template <int L, class X>
INLINE X every_other(X a, X b) {
  return pick<L, [](int i) { return 2 * i; }>(a, b);
}

template <class T, class S>
INLINE void copy_row(T* __restrict dst, const S* s, std::int64_t n, std::ptrdiff_t step = 1) {
  constexpr int L = Vec<T>::lanes;
  std::int64_t i = 0;
  if (step == 1) {
    for (; i + L <= n; i += L) storeu(dst + i, load_vector<T, S>(s + i));
  } else {
    if (step == 2) {  // what lies behind the last element that is read need not exist
      for (; i + L < n; i += L)
        storeu(dst + i, every_other<L>(load_vector<T, S>(s + 2 * i), load_vector<T, S>(s + 2 * i + L)));
      if constexpr (__is_same(T, S) || (VECTOR_BYTES == 64 && sizeof(T) == 4 && sizeof(S) <= 4)) {
        const int rest = static_cast<int>(n - i), last = 2 * rest - 1;
        if (rest == 0) return;
        const V<T> low = load_vector_part<T, S>(s + 2 * i, last < L ? last : L);
        const V<T> high = last > L ? load_vector_part<T, S>(s + 2 * i + L, last - L) : V<T>{};
        return store_part(dst + i, every_other<L>(low, high), rest);
      }
    }
    for (; i + L <= n; i += L) storeu(dst + i, load_vector_part<T, S>(s + i * step, L, step));
  }
  if (i < n)
    store_part(dst + i, load_vector_part<T, S>(s + i * step, static_cast<int>(n - i), step), static_cast<int>(n - i));
}

template <class T, class S>
void pad_rows(T* dst, std::ptrdiff_t ldd, const void* src, std::ptrdiff_t lds, std::ptrdiff_t step, std::int64_t rows,
              std::int64_t left, std::int64_t width, std::int64_t right, std::ptrdiff_t ahead) {
  const S* s = static_cast<const S*>(src);
  constexpr int L = Vec<T>::lanes;
  // By itself: the other loops take a tenth longer with a condition in them.
  for (; ahead && rows > 0; --rows, dst += ldd, s += lds) {
    T* d = dst;
    while (d < dst + left) *d++ = T{};
    std::int64_t i = 0;
    if (step == 1) {
      for (; i + L <= width; i += L) {
        fetch_later(s + i + ahead);
        storeu(d + i, load_vector<T, S>(s + i));
      }
      fetch_later(s + i + ahead);
      const int rest = static_cast<int>(width - i);
      if (rest > 0) store_part(d + i, load_vector_part<T, S>(s + i, rest), rest);
    } else {
      constexpr std::ptrdiff_t kLine = 64 / sizeof(S);
      const std::ptrdiff_t next = step < kLine ? kLine : step;
      for (; i < width * step; i += next) fetch_later(s + i + ahead);
      copy_row<T, S>(d, s, width, step);
    }
    for (d += width; d < dst + left + width + right;) *d++ = T{};
  }
#if VECTOR_BYTES == 64
  if constexpr (__is_same(T, S) || (sizeof(T) == 4 && sizeof(S) <= 4)) {  // short rows in one piece
    const std::int64_t total = left + width + right;
    if (step == 1 && total <= Vec<T>::lanes) {
      const auto inside = ((1u << width) - 1) << left, all = (1u << total) - 1;
      for (; rows > 0; --rows, dst += ldd, s += lds) {
        if constexpr (__is_same(T, S))
          store_lanes(dst, load_lanes(s - left, inside), all);
        else
          store_lanes(dst, load_masked(s - left, inside), all);
      }
      return;
    }
  }
#endif
  for (; rows > 0; --rows, dst += ldd, s += lds) {
    T* d = dst;
    while (d < dst + left) *d++ = T{};
    copy_row<T, S>(d, s, width, step);
    for (d += width; d < dst + left + width + right;) *d++ = T{};
  }
}

template <class T, class S>
void store_row(void* dst, const T* src, std::int64_t n) {
  if constexpr (__is_same(T, S)) return copy_row<T, S>(static_cast<T*>(dst), src, n);
  constexpr int L = Vec<T>::lanes;
  typedef typename InMemory<S>::type Code;
  Code* d = static_cast<Code*>(dst);
  std::int64_t i = 0;
  for (; i + L <= n; i += L) {
    const Codes<S, T> codes = encode<T, S>(loadu(src + i));
    __builtin_memcpy(d + i, &codes, sizeof codes);
  }
  if (i == n) return;
  const Codes<S, T> codes = encode<T, S>(load_part(src + i, static_cast<int>(n - i)));
#if VECTOR_BYTES == 64
  if constexpr (L == 16 && sizeof(Code) <= 4) {
    const auto mask = static_cast<__mmask16>((1u << (n - i)) - 1);
    if constexpr (sizeof(Code) == 1)
      _mm_mask_storeu_epi8(d + i, mask, bits_as<__m128i>(codes));
    else if constexpr (sizeof(Code) == 2)
      _mm256_mask_storeu_epi16(d + i, mask, bits_as<__m256i>(codes));
    else
      _mm512_mask_storeu_epi32(d + i, mask, bits_as<__m512i>(codes));
    return;
  }
#endif
  for (int j = 0; i + j < n; ++j) d[i + j] = codes[j];
}
