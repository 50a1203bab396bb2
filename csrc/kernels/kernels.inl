// The kernels, written once with GCC/Clang vector extensions and compiled by one file for each instruction set, which
// defines VECTOR_BYTES, VECTOR_REGISTERS, ISA_NAME and KERNELS_NAME(type). All names are in an unnamed namespace: an
// inline function compiled for AVX-512 must never be the copy that an older CPU runs.
#include "base/formats.h"
#include "kernels/kernel.h"

#if VECTOR_BYTES >= 32
#include <immintrin.h>
#endif

namespace convbwd {
namespace {

#define UNROLL _Pragma("GCC unroll 32")
#define INLINE inline __attribute__((always_inline))

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

// ---------------------------------------------------------------------------------------------------- conversions

#include "kernels/convert.inl"

// --------------------------------------------------------------------------------------------------- transposition

// The values of a square, column by column. Parts of 16 bytes trade places before elements do within them, which
// processors do sooner than with elements of any place: 0.78 of the time of the latter (Zen 5).
template <class T, int kHalf = Vec<T>::lanes / 2>
INLINE void transpose_square(V<T>* r) {
  constexpr int L = Vec<T>::lanes, kPart = 16 / sizeof(T);
  V<T> s[L];
  UNROLL for (int i = 0; i < L / 2; ++i) {
    if constexpr (kHalf >= kPart) {
      const int first = i / kHalf * 2 * kHalf, j = i % kHalf / kPart * 2 * kPart + i % kPart;
      s[first + i % kHalf] = halves<T, kHalf, false>(r[first + j], r[first + j + kPart]);
      s[first + i % kHalf + kHalf] = halves<T, kHalf, true>(r[first + j], r[first + j + kPart]);
    } else {
      const int part = i / (kPart / 2) * kPart, j = i % (kPart / 2);
      s[part + 2 * j] = zip<T, kPart, false>(r[part + j], r[part + j + kPart / 2]);
      s[part + 2 * j + 1] = zip<T, kPart, true>(r[part + j], r[part + j + kPart / 2]);
    }
  }
  UNROLL for (int i = 0; i < L; ++i) r[i] = s[i];
  if constexpr (kHalf > 1) transpose_square<T, kHalf / 2>(r);
}

// One square of `live` rows, with zeros up to `out`, by `width` columns, at most W; `tap` and `outer` say where the
// first column goes and move on with it.
template <class T, class S, int W>
INLINE void transpose_block(T* const* dst, std::int64_t period, std::ptrdiff_t ldd, const S* s,
                            const std::ptrdiff_t* row, std::ptrdiff_t lds, int live, int out, int width,
                            std::int64_t& tap, std::ptrdiff_t& outer) {
  constexpr int L = Vec<T>::lanes;
  V<T> v[L];
  if (W == L && live >= L && width == L) {
    UNROLL for (int i = 0; i < L; ++i) v[i] = load_vector<T, S>(s + row[i] * lds);
  } else {
    UNROLL for (int i = 0; i < L; ++i) v[i] = i < live ? load_vector_part<T, S>(s + row[i] * lds, width) : V<T>{};
    UNROLL for (int i = 0; i < L; ++i) KEEP(v[i]);  // or else there is a copy of what follows for each number of rows
  }
  transpose_square<T>(v);
  if (W == L && width == L && period == 1 && dst[0]) {
    T* d = dst[0] + outer;
    outer += L * ldd;
    if (out >= L)
      UNROLL for (int k = 0; k < L; ++k) storeu(d + k * ldd, v[k]);
    else
      UNROLL for (int k = 0; k < L; ++k) store_part(d + k * ldd, v[k], out);
    return;
  }
  UNROLL for (int k = 0; k < W; ++k) {
    if (k >= width) return;
    if (dst[tap]) {
      if (out >= L)
        storeu(dst[tap] + outer, v[k]);
      else
        store_part(dst[tap] + outer, v[k], out);
    }
    if (++tap == period) tap = 0, outer += ldd;
  }
}

constexpr struct EachRow {
  constexpr EachRow() {
    for (int r = 0; r < kMostRows; ++r) row[r] = r;
  }
  std::ptrdiff_t row[kMostRows]{};
} kEachRow;

// Columns of one run of elements, which are picked from as many vectors: weights of a few taps take 0.25 of the time of
// squares, gradients of small planes 0.83 to 0.97 (Zen 4).
constexpr int kRunColumns = 5;

// Every kCount-th element, from kFirst on, of kCount vectors.
template <class T, int kCount, int kFirst, int kNext = 1>
INLINE V<T> pick_every(V<T> picked, const V<T>* v) {
  constexpr int L = Vec<T>::lanes;
  if constexpr (kNext == kCount) {
    return picked;
  } else {
    picked = pick<L, [](int i) {
      const int from = i * kCount + kFirst;
      return from / L == kNext ? L + from % L : kNext == 1 && from < L ? from : i;
    }>(picked, v[kNext]);
    return pick_every<T, kCount, kFirst, kNext + 1>(picked, v);
  }
}

// A few columns of whole vectors of rows that lie one behind the other.
template <class T, int kColumns, int kColumn = 0>
INLINE void store_columns(T* const* dst, int r, const V<T>* v) {
  if constexpr (kColumn < kColumns) {
    if (dst[kColumn]) storeu(dst[kColumn] + r, pick_every<T, kColumns, kColumn>(v[0], v));
    store_columns<T, kColumns, kColumn + 1>(dst, r, v);
  }
}
template <class T, int kColumns>
INLINE void transpose_run(T* const* dst, const T* s, int rows) {
  constexpr int L = Vec<T>::lanes;
  for (int r = 0; r < rows; r += L, s += kColumns * L) {
    V<T> v[kColumns];
    UNROLL for (int i = 0; i < kColumns; ++i) v[i] = loadu(s + i * L);
    store_columns<T, kColumns>(dst, r, v);
  }
}

template <class T, class S>
void transpose(T* const* dst, std::int64_t period, std::ptrdiff_t ldd, const void* src, const std::ptrdiff_t* row,
               std::ptrdiff_t lds, int rows, int rows_out, std::int64_t cols, Fetch fetch) {
  constexpr int L = Vec<T>::lanes;
  if (rows_out <= 0 || cols <= 0) return;
  const S* s = static_cast<const S*>(src);
  int r0 = 0;
  if constexpr (__is_same(S, T) && VECTOR_BYTES >= 32)
    if (!row && cols > 1 && cols <= kRunColumns && cols == period && cols == lds) {
      if (fetch.ahead)
        for (std::int64_t i = 0; i < rows * cols; i += 64 / sizeof(T)) __builtin_prefetch(s + fetch.ahead + i);
      r0 = rows / L * L;
      cols == 2   ? transpose_run<T, 2>(dst, s, r0)
      : cols == 3 ? transpose_run<T, 3>(dst, s, r0)
      : cols == 4 ? transpose_run<T, 4>(dst, s, r0)
                  : transpose_run<T, kRunColumns>(dst, s, r0);
    }
  if (!row) row = kEachRow.row;
  const bool far = period == 1 && ldd > lds;  // write along one page after the other
  std::int64_t k0 = 0, tap = 0;
  std::ptrdiff_t outer = 0;
  while (r0 < rows_out && k0 < cols) {  // one place that holds the squares: they are large
    if (far || k0 == 0) outer = k0 * ldd + r0, tap = 0;
    const int width = cols - k0 < L ? static_cast<int>(cols - k0) : L;
    if (fetch.ahead) {
      const std::int64_t k = k0 + fetch.ahead;
      const S* const next = s + k + (k < cols ? 0 : fetch.turn);
      for (int r = r0; r < rows && r < r0 + L; ++r) __builtin_prefetch(next + row[r] * lds);
    }
    const auto block = [&]<int W>() __attribute__((always_inline)) {
      transpose_block<T, S, W>(dst, period, ldd, s + k0, row + r0, lds, rows - r0, rows_out - r0, width, tap, outer);
    };
    if (!__is_same(S, T) || width > L * 3 / 4)  // weights of a few taps; not worth its size for other types
      block.template operator()<L>();
    else if (width > L / 2)
      block.template operator()<L * 3 / 4>();
    else if (width > L / 4)
      block.template operator()<L / 2>();
    else
      block.template operator()<L / 4>();
    if (far) {
      if ((r0 += L) >= rows_out) r0 = 0, k0 += L;
    } else {
      if ((k0 += L) >= cols) k0 = 0, r0 += L;
    }
  }
}

template <class T>
void interleave(T* dst, std::ptrdiff_t ldd, const T* const* sources, std::int64_t turns, std::ptrdiff_t lds,
                std::int64_t rows, std::int64_t n) {
  constexpr int L = Vec<T>::lanes;
  constexpr int kAhead = 512;  // input gradients of volumes with steps of two take 0.9 of the time (Zen 5)
  std::int64_t turn = 0;
  std::ptrdiff_t at = 0;
  for (; rows > 0; --rows, dst += ldd) {
    const T *even = sources[2 * turn] + at, *odd = sources[2 * turn + 1] + at;
    if (++turn == turns) turn = 0, at += lds;
    std::int64_t i = 0;
    for (; i + 2 * L <= n; i += 2 * L) {
      const V<T> a = loadu(even + i / 2), b = loadu(odd + i / 2);
      __builtin_prefetch(dst + i + kAhead, 1);
      __builtin_prefetch(dst + i + L + kAhead, 1);
      storeu(dst + i, zip<T, L, false>(a, b));
      storeu(dst + i + L, zip<T, L, true>(a, b));
    }
    if (i == n) continue;
    const int left = static_cast<int>(n - i);
    const V<T> a = load_part(even + i / 2, (left + 1) / 2), b = load_part(odd + i / 2, left / 2);
    store_part(dst + i, zip<T, L, false>(a, b), left < L ? left : L);
    if (left > L) store_part(dst + i + L, zip<T, L, true>(a, b), left - L);
  }
}

// ---------------------------------------------------------------------------------------------------------- gather

// Products of a blocked kernel's short sum, at most. Blocks of 49 had up to 1.7 times PyTorch's error, of 36 1.5 times
// (4 images of 27 pixels), 40 products of Winograd's in one 1.15 times that of straight sums; 16 and 32 have the same
// error in sums of 512 and more.
constexpr std::int64_t kBlock = 35;

// Blocked sums are formed of those of `block` products, which are summed in registers, and in (first-level cache)
// memory then. Blocks go on from segment to segment: how many segments pixels make depends on the layout, the order of
// sums must not. With kPairs rows are equally far apart two by two, and each two share a pointer.
template <class T, int M, int NV, bool kBlocked, bool kPairs = false>
void gather_tile(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* seg,
                 std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
                 bool accumulate, std::int64_t block) {
  constexpr int L = Vec<T>::lanes;
  V<T> acc[M][NV], sum[M][NV];
  const auto clear = [](V<T>(&v)[M][NV]) __attribute__((always_inline)) {
    UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) v[i][j] = V<T>{};
  };
  clear(acc);
  if constexpr (kBlocked) clear(sum);
  // Results that come from memory are there when the sum is.
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) __builtin_prefetch(c + crow[i] + j * L, 1);
  std::int64_t room = block;
  constexpr int kShared = kPairs ? 2 : 1;
  std::ptrdiff_t apart[M / kShared];
  UNROLL for (int i = 0; i < M / kShared; ++i) apart[i] = row[i * kShared] - row[0];
  const std::ptrdiff_t gap = kPairs ? row[1] - row[0] : 0;
  // What the next tile reads; worth up to 15 % where the image operand is read in place. Rows that lie one behind the
  // other are followed by those of the next tile, others by their next line. Short rows that share nothing, of channels
  // or of taps of patches, are few lines of many pages: there those of the next tile are fetched one by one.
  std::ptrdiff_t side = 0;
  if constexpr (M > 1 && !kPairs) side = row[1] - row[0];
  const std::ptrdiff_t length = count ? seg->len * xstep : 0;
  const bool patches = NV > 2 && xstep > 1 && xstep < M && row[xstep] != row[0] + xstep && length >= L;
  const bool dense = side == length, brief = (side > length || patches) && length < 2 * L;
  const std::ptrdiff_t fetch_step = dense ? M * xstep : xstep;
  const std::ptrdiff_t ahead = dense ? M * side : apart[M / kShared - 1] + gap + L;
  const std::ptrdiff_t* const last = row + (brief && m < 2 * M ? m : 2 * M);
  for (const Segment* end = seg + count; seg != end; ++seg) {
    const T *p = x + row[0] + seg->x, *q = b + seg->b, *fetch = p + ahead;
    if (brief)
      for (const std::ptrdiff_t* r = row + M; r < last; ++r) __builtin_prefetch(x + *r + seg->x);
    const auto step = [&]() __attribute__((always_inline)) {
      V<T> v[NV];
      UNROLL for (int j = 0; j < NV; ++j) {
        v[j] = loadu(q + j * L);
        KEEP(v[j]);
      }
      __builtin_prefetch(kPairs ? p + ahead : fetch);
      UNROLL for (int i = 0; i < M; ++i) {
        const T* at = p + apart[i / kShared];
        if constexpr (kPairs) HIDE(at);  // or else each row gets a register
        const V<T> s = splat(at[i % kShared * gap]);
        UNROLL for (int j = 0; j < NV; ++j) acc[i][j] += s * v[j];
      }
      p += xstep, q += bstep;
      HIDE(p);
      HIDE(q);
      if constexpr (!kPairs) {
        fetch += fetch_step;
        HIDE(fetch);
      }
    };
    for (std::int64_t left = seg->len, part; left > 0; left -= part) {
      part = kBlocked && room < left ? room : left;
      std::int64_t k = part;
      // 5 to 8 % faster where the panel comes from L2; small tiles only grow. GCC 12 leaves the vectors of 7 by 2 in
      // memory without it, which takes twice as long.
      if constexpr (kBlocked && M * NV >= 14)
        for (; k > 1; k -= 2) step(), step();
      for (; k > 0; --k) step();
      if constexpr (kBlocked) {
        if ((room -= part) > 0) continue;
        room = block;
        UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) sum[i][j] += acc[i][j];
        clear(acc);
      }
    }
  }
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) {
    T* out = c + crow[i] + j * L;
    V<T> s = acc[i][j];
    if constexpr (kBlocked) s += sum[i][j];
    storeu(out, accumulate ? loadu(out) + s : s);
  }
}

template <class T, int M, int NV, bool kBlocked>
void gather_rows(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* seg,
                 std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
                 bool accumulate, std::int64_t block) {
  if constexpr (M > 1) {
    if (m < M)
      return gather_rows<T, M - 1, NV, kBlocked>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
  }
  gather_tile<T, M, NV, kBlocked>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
}

// Tiles of MR rows. Where that is more than there are registers for addresses, rows must be pairs: pixels of rows of
// even length, rows below each other, channels and images are. Others make smaller tiles.
template <class T, int MR, int NV, bool kBlocked = false>
void gather(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* seg, std::int64_t count,
            const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow, bool accumulate) {
  constexpr int kRows = MR > kPointers ? kPointers : MR;
  std::int64_t block = 0;
  if constexpr (kBlocked) {  // as many in each: 64 in two blocks of 32 have a smaller error than in 35 and 29
    for (const Segment* end = seg + count; end-- != seg;) block += end->len;
    const std::int64_t blocks = block > kBlock ? (block + kBlock - 1) / kBlock : 1;
    block = (block + blocks - 1) / blocks;
  }
  for (int rows; m > 0; m -= rows, row += rows, crow += rows) {
    if constexpr (MR > kPointers) {
      const auto pairs = [&] {
        int r = 2;
        while (r < MR && row[r + 1] - row[r] == row[1] - row[0]) r += 2;
        return r == MR;
      };
      if (m >= MR && pairs()) {
        rows = MR;
        gather_tile<T, MR, NV, kBlocked, true>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
        continue;
      }
    }
    rows = m < kRows ? m : kRows;
    gather_rows<T, kRows, NV, kBlocked>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
  }
}

// ------------------------------------------------------------------------------------------------------------ rows

#include "kernels/rows.inl"

// ------------------------------------------------------------------------------------------------------------ dots

constexpr int kDotsMr = VECTOR_REGISTERS >= 32 ? 4 : 3, kDotsNt = VECTOR_REGISTERS >= 32 ? 6 : 3;

template <class T, int kHalf = Vec<T>::lanes / 2>
INLINE T sum_lanes(V<T> v) {
  v += pick<Vec<T>::lanes, [](int i) { return (i + kHalf) % Vec<T>::lanes; }>(v, v);
  if constexpr (kHalf > 1)
    return sum_lanes<T, kHalf / 2>(v);
  else
    return v[0];
}

// sum_lanes of each of so many vectors as there are lanes.
template <class T, int kCount>
INLINE V<T> sum_lanes_of(const V<T>* v) {
  if constexpr (kCount == 1) {
    return *v;
  } else {
    constexpr int L = Vec<T>::lanes;
    const V<T> a = sum_lanes_of<T, kCount / 2>(v), b = sum_lanes_of<T, kCount / 2>(v + kCount / 2);
    return halves<T, L / kCount, false>(a, b) + halves<T, L / kCount, true>(a, b);
  }
}

template <class T, int M, int N>
void dots_tile(std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset, T* out,
               std::ptrdiff_t ldo) {
  constexpr int L = Vec<T>::lanes;
  // Columns may lie in memory that no prefetcher has foreseen: with them fetched, 32 channels 372x372, 3x3, take 0.7 of
  // the time, and those in a cache as long as without (Zen 5).
  constexpr int kAhead = 1024;
  const T* p[N];
  UNROLL for (int j = 0; j < N; ++j) p[j] = x + offset[j];
  V<T> acc[M][N];
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < N; ++j) acc[i][j] = V<T>{};
  const auto add = [&](std::int64_t k, const auto& load) __attribute__((always_inline)) {
    V<T> f[M];
    UNROLL for (int i = 0; i < M; ++i) {
      f[i] = load(a + i * lda + k);
      KEEP(f[i]);
    }
    UNROLL for (int j = 0; j < N; ++j) {
      V<T> v = load(p[j] + k);
      if constexpr (M > 1) KEEP(v);
      UNROLL for (int i = 0; i < M; ++i) acc[i][j] += f[i] * v;
    }
  };
  std::int64_t k = 0;
  for (; k + L <= len; k += L) {
    __builtin_prefetch(p[0] + k + kAhead);
    add(k, [](const T* c) __attribute__((always_inline)) { return loadu(c); });
  }
  if (const int rest = static_cast<int>(len - k); rest > 0)
    add(k, [=](const T* c) __attribute__((always_inline)) { return load_part(c, rest); });
  constexpr int kSums = M * N;
  UNROLL for (int s = 0; s + L <= kSums; s += L) {
    const V<T> sums = sum_lanes_of<T, L>(&acc[0][0] + s);
    UNROLL for (int l = 0; l < L; ++l) out[(s + l) / N * ldo + (s + l) % N] += sums[l];
  }
  UNROLL for (int s = kSums / L * L; s < kSums; ++s) out[s / N * ldo + s % N] += sum_lanes<T>((&acc[0][0])[s]);
}

template <class T, int M, int N = kDotsNt>
void dots_row(int nt, std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset,
              T* out, std::ptrdiff_t ldo) {
  if constexpr (N > 1) {
    if (nt < N) return dots_row<T, M, N - 1>(nt, len, a, lda, x, offset, out, ldo);
  }
  dots_tile<T, M, N>(len, a, lda, x, offset, out, ldo);
}

template <class T, int M = kDotsMr>
void dots(int m, int nt, std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset,
          T* out, std::ptrdiff_t ldo) {
  if constexpr (M > 1) {
    if (m < M) return dots<T, M - 1>(m, nt, len, a, lda, x, offset, out, ldo);
  }
  dots_row<T, M>(nt, len, a, lda, x, offset, out, ldo);
}

// ------------------------------------------------------------------------------------------------------------- sum

// 64 running sums whatever the vector length, added in the order of a tree: the same on every instruction set.
template <class T>
double sum(const T* p, std::int64_t n) {
  constexpr int L = Vec<T>::lanes, N = 64 / L;
  V<T> acc[N];
  UNROLL for (int j = 0; j < N; ++j) acc[j] = V<T>{};
  // The processor follows lines up to the end of a page: the first ones of what comes a page later. With all lines sums
  // from memory take 1.1 to 1.8 times as long (Zen 4), with none 1.25 times (Zen 5).
  constexpr int kAhead = 4096 / sizeof(T), kLine = 64 / sizeof(T);
  UNROLL for (int j = 0; j < 4 * kLine; j += kLine) __builtin_prefetch(p + kAhead + j);
  for (; n >= 64; n -= 64, p += 64) {
    UNROLL for (int j = 0; j < N; ++j) acc[j] += loadu(p + j * L);
  }
  UNROLL for (int j = 0; j < N; ++j) {
    const std::int64_t left = n - j * L;
    if (left >= L)
      acc[j] += loadu(p + j * L);
    else if (left > 0)
      acc[j] += load_part(p + j * L, static_cast<int>(left));
  }
  UNROLL for (int j = 0; j < N / 2; ++j) acc[j] += acc[j + N / 2];
  UNROLL for (int j = 0; j < N / 4; ++j) acc[j] += acc[j + N / 4];
  alignas(VECTOR_BYTES) T t[16];
  UNROLL for (int j = 0; j < N / 4; ++j) storeu(t + j * L, acc[j]);
  double total[8];
  UNROLL for (int j = 0; j < 8; ++j) total[j] = static_cast<double>(t[j]) + static_cast<double>(t[j + 8]);
  for (int half = 4; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) total[j] += total[j + half];
  return total[0];
}

// ------------------------------------------------------------------------------------------------------- depthwise

#include "kernels/depthwise.inl"

// -------------------------------------------------------------------------------------------------------- winograd

#include "kernels/winograd.inl"

// ------------------------------------------------------------------------------------------------------------ list

// What no call reaches is left out.
template <class T, class S>
constexpr bool kPads = sizeof(T) == 4 || !kRounds<S>;
template <class T, class S>
constexpr bool kTransposes = kPads<T, S> && sizeof(S) <= sizeof(T);

// Register tiles mr x (nv vectors): mr*nv accumulators, nv vectors of B and a broadcast fit the registers. Rows above
// kPointers are for pairs.
template <class T>
constexpr KernelSet<T> make_set(const char* name) {
  constexpr int L = Vec<T>::lanes;
  return {
      name,
      L,
#if VECTOR_REGISTERS >= 32
      {{"gather 16x1v", 16, L, gather<T, 16, 1>},
       {"gather 12x2v", 12, 2 * L, gather<T, 12, 2>},
       {"gather 8x3v", 8, 3 * L, gather<T, 8, 3>},
       {"gather 6x4v", 6, 4 * L, gather<T, 6, 4>}},
      {{"gather 16x1v", 16, L, gather<T, 16, 1, true>},
       {"gather 12x2v", 12, 2 * L, gather<T, 12, 2, true>},
       {"gather 8x3v", 8, 3 * L, gather<T, 8, 3, true>},
       {"gather 6x4v", 6, 4 * L, gather<T, 6, 4, true>}},
      4,
#else
      {{"gather 12x1v", 12, L, gather<T, 12, 1>}, {"gather 6x2v", 6, 2 * L, gather<T, 6, 2>}, {}, {}},
      {{"gather 12x1v", 12, L, gather<T, 12, 1, true>}, {"gather 6x2v", 6, 2 * L, gather<T, 6, 2, true>}, {}, {}},
      2,
#endif
      true,
      rows<T>,
      kRowsMr,
      stacked_rows<T>,
      dots<T>,
      kDotsMr,
      kDotsNt,
      depthwise<T>,
      depthwise_taps<T>,
#define EACH(name, type) kTransposes<T, type> ? transpose<T, type> : nullptr,
      {CONVBWD_TYPE_LIST(EACH)},
#undef EACH
#define EACH(name, type) kPads<T, type> ? pad_rows<T, type> : nullptr,
      {CONVBWD_TYPE_LIST(EACH)},
#undef EACH
#define EACH(name, type) store_row<T, type>,
      {CONVBWD_TYPE_LIST(EACH)},
#undef EACH
      interleave<T>,
      sum<T>,
      peak<T>,
      {Winograd<T, 2, 2, 3, 3>::kernels,        Winograd<T, 4, 4, 3, 3, false>::kernels,
       Winograd<T, 3, 3, 4, 4, false>::kernels, Winograd<T, 1, 4, 1, 3, false>::kernels,
       Winograd<T, 1, 3, 1, 2>::kernels,        Winograd<T, 2, 2, 2, 2>::kernels,
       Winograd<T, 3, 3, 2, 2>::kernels,        Winograd<T, 4, 4, 3, 3>::kernels,
       Winograd<T, 3, 3, 4, 4>::kernels,        Winograd<T, 1, 4, 1, 3>::kernels,
       Winograd<T, 1, 3, 1, 4>::kernels,        Winograd<T, 4, 1, 3, 1>::kernels,
       Winograd<T, 3, 1, 4, 1>::kernels,        Winograd<T, 6, 6, 5, 5>::kernels,
       Winograd<T, 14, 14, 5, 5>::kernels,      Winograd<T, 12, 12, 7, 7>::kernels,
       Winograd<T, 10, 10, 9, 9>::kernels,      Winograd<T, 1, 14, 1, 5>::kernels,
       Winograd<T, 1, 12, 1, 7>::kernels,       Winograd<T, 1, 18, 1, 17>::kernels},
  };
}

}  // namespace

extern const KernelSet<float> KERNELS_NAME(f32);
extern const KernelSet<double> KERNELS_NAME(f64);
constinit const KernelSet<float> KERNELS_NAME(f32) = make_set<float>(ISA_NAME);
constinit const KernelSet<double> KERNELS_NAME(f64) = make_set<double>(ISA_NAME);

}  // namespace convbwd
