// Vectors of VECTOR_BYTES: loads and stores, whole or in part, and shuffles. Included by kernels.inl.

#define UNROLL _Pragma("GCC unroll 32")
#define INLINE inline __attribute__((always_inline))

// The size of the next of the fewest parts of at most `most` into which `count` is cut evenly.
INLINE int even_part(std::int64_t count, int most) {
  const std::int64_t parts = (count + most - 1) / most;
  return static_cast<int>((count + parts - 1) / parts);
}

template <class T>
struct Vec {
  typedef T type __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int lanes = VECTOR_BYTES / sizeof(T);
};
template <class T>
using V = typename Vec<T>::type;

template <class T>
INLINE V<T> loadu(const T* p) {
  V<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
INLINE void storeu(T* p, V<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}
template <class T>
INLINE V<T> splat(T s) {
  return s - V<T>{};
}
// Fetches a line into the second-level cache: in the first one it would wait with the misses of what is read now
// (transpositions, dots and copies from memory take 0.55 to 1 of the time, Zen 4).
INLINE void fetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }
// The first n elements of a vector, 0 <= n <= lanes; loaded, the others are zero. Memory behind them is not touched.
#if VECTOR_BYTES == 64
INLINE V<float> load_lanes(const float* p, unsigned mask) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
}
INLINE V<double> load_lanes(const double* p, unsigned mask) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p);
}
INLINE void store_lanes(float* p, V<float> v, unsigned mask) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(mask), v);
}
INLINE void store_lanes(double* p, V<double> v, unsigned mask) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), v);
}
template <class T>
INLINE V<T> load_part(const T* p, int n) {
  return load_lanes(p, (1u << n) - 1);
}
template <class T>
INLINE void store_part(T* p, V<T> v, int n) {
  store_lanes(p, v, (1u << n) - 1);
}
#elif VECTOR_BYTES == 32
alignas(32) constexpr std::int64_t kMask64[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
alignas(32) constexpr std::int32_t kMask32[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
template <class M>
INLINE __m256i mask_of(const M* last) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(last));
}
INLINE V<float> load_part(const float* p, int n) { return _mm256_maskload_ps(p, mask_of(kMask32 + 8 - n)); }
INLINE V<double> load_part(const double* p, int n) { return _mm256_maskload_pd(p, mask_of(kMask64 + 4 - n)); }
// By pieces: one store with a mask is 42 micro-operations on AMD's processors up to Zen 3. Out of line for its size.
[[gnu::noinline]] void store_part(float* p, V<float> v, int n) {
  if (n == 8) return storeu(p, v);
  __m128 part = _mm256_castps256_ps128(v);
  if (n & 4) _mm_storeu_ps(p, part), part = _mm256_extractf128_ps(v, 1);
  if (n & 2) _mm_storel_pi(reinterpret_cast<__m64*>(p + (n & 4)), part), part = _mm_movehl_ps(part, part);
  if (n & 1) _mm_store_ss(p + (n & 6), part);
}
[[gnu::noinline]] void store_part(double* p, V<double> v, int n) {
  if (n == 4) return storeu(p, v);
  __m128d part = _mm256_castpd256_pd128(v);
  if (n & 2) _mm_storeu_pd(p, part), part = _mm256_extractf128_pd(v, 1);
  if (n & 1) _mm_store_sd(p + (n & 2), part);
}
#else
template <class T>
INLINE V<T> load_part(const T* p, int n) {
  V<T> v{};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
template <class T>
INLINE void store_part(T* p, V<T> v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}
#endif
// Keeps a loaded vector in its register: GCC otherwise folds the load into every multiplication that uses it, which
// costs up to half the speed where the load is unaligned.
#if defined(__x86_64__)
#define KEEP(v) asm("" : "+v"(v))
#elif defined(__aarch64__)
#define KEEP(v) asm("" : "+w"(v))
#else
#define KEEP(v)
#endif
// Keeps a pointer in its register: GCC otherwise makes one of each expression of it and moves all of them.
#define HIDE(p) asm("" : "+r"(p))

// --------------------------------------------------------------------------------------------------------- shuffles

template <int N, int... I>
struct Picked : Picked<N - 1, N - 1, I...> {};
template <int... I>
struct Picked<0, I...> {
  template <auto kFrom, class X>
  static INLINE X of(X a, X b) {
    return __builtin_shufflevector(a, b, kFrom(I)...);
  }
};
// Of L elements: element i is that at kFrom(i) of a, then b.
template <int L, auto kFrom, class X>
INLINE X pick(X a, X b) {
  return Picked<L>::template of<kFrom>(a, b);
}

// The lower or upper halves of all runs of 2 * kHalf lanes, those of a, then those of b.
template <class T, int kHalf, bool kUpper>
INLINE V<T> halves(V<T> a, V<T> b) {
  return pick<Vec<T>::lanes, [](int i) { return i / kHalf * 2 * kHalf + i % kHalf + (kUpper ? kHalf : 0); }>(a, b);
}

// In each run of kRun lanes those of its lower or upper half, of a and b in turns.
template <class T, int kRun, bool kUpper>
INLINE V<T> zip(V<T> a, V<T> b) {
  constexpr int L = Vec<T>::lanes;
  return pick<L, [](int i) { return i / kRun * kRun + (kUpper ? kRun / 2 : 0) + i % kRun / 2 + i % 2 * L; }>(a, b);
}
