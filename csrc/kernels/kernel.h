// Layer kernels: the contracts. A kernel is a plain function on raw pointers; it knows no tensor, format or thread.
// Kernel translation units include this header, base/formats.h and intrinsics only and must emit no weak symbols.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/formats.h"

namespace convbwd {

/// Products that are summed straight at most, those of 7x7 windows or pixels: longer sums are formed of shorter
/// ones. Of straight sums of rows, 54 products had 2.2 times PyTorch's error, 480 3.2 times; of gather, 64 1.6
/// times.
constexpr std::int64_t kStraight = 49;

/// A stretch of the reduction: `len` steps that start at X + x and B + b (in elements).
struct Segment {
  std::ptrdiff_t x, b;
  std::int64_t len;
};

/// The one multiplication kernel, for i < m and j < nr; tiles have mr rows:
///   C[crow[i] + j] (+)= sum over segments s, k < s.len of X[row[i] + s.x + k*xstep] * B[s.b + k*bstep + j]
/// The image operand X is gathered by address, B is a packed panel. The sum of a call is formed on its own and added
/// to C once when `accumulate` is set, overwrites C otherwise (zeros when there is no segment).
template <class T>
using GatherFn = void (*)(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* segments,
                          std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
                          bool accumulate);

template <class T>
struct GatherKernel {
  const char* name;
  int mr, nr;
  GatherFn<T> run;
};

/// Rows of a tile that have a pointer each in a general register. Tiles of more take rows that are equally far apart
/// two by two: row[1] - row[0] == row[3] - row[2] and so on.
constexpr int kPointers = 8;

/// Vectors along pixels, broadcast weights, for i < m <= rows_mr and p < len:
///   C[i*ldc + p] (+)= sum over t < taps of W[t*m + i] * S[offset[t] + p]
/// S must be readable up to `len` rounded up to whole vectors.
template <class T>
using RowsFn = void (*)(int m, std::int64_t len, const T* s, const std::ptrdiff_t* offset, std::int64_t taps,
                        const T* w, T* c, std::ptrdiff_t ldc, bool accumulate);

/// Vectors of pixels that it sums at a time for so many results: accumulators, vectors and a weight fill the registers,
/// of which there are four for each of the `rows_mr` results that it takes at most.
constexpr int rows_vectors(int rows_mr, int results) {
  const int most = (4 * rows_mr - 2) / (results + 1);
  return most > 8 ? 8 : most;
}

/// Two or more rows of one channel's results, of which each reads `height` >= 2 rows of the source, for r < rows and
/// p < len:
///   C[r*crow + p] (+)= sum over g < groups, h < height of W[g*height + h] * S[(r + h)*row + offset[g*height] + p]
/// S is read up to `len` rounded up to whole vectors. The order of a sum is that of RowsFn given the same products.
/// Rows are taken by stacked_height(), or as many as leave none alone.
template <class T>
using StackedRowsFn = void (*)(std::int64_t rows, std::int64_t len, const T* s, std::ptrdiff_t row,
                               const std::ptrdiff_t* offset, std::int64_t groups, std::int64_t height, const T* w, T* c,
                               std::ptrdiff_t crow, bool accumulate);

/// Rows that it takes at a time: four of short rows, of two vectors at most, or too few sums wait for their products.
[[gnu::always_inline]] constexpr int stacked_height(std::int64_t len, std::int64_t height, int lanes) {
  return len <= 2 * lanes && height > 2 ? 4 : 3;
}

/// What a kernel fetches for later while it computes: the line at `at`, then those `step` bytes behind the last one.
struct Meanwhile {
  const void* at = nullptr;
  std::ptrdiff_t step = 0;
};

/// Dot products along pixels, for i < m <= dots_mr, j < nt <= dots_nt:
///   out[i*ldo + j] += sum over p < len of A[i*lda + p] * X[offset[j] + p]
/// Neither is read further. With each vector of pixels something is fetched: of the first column what is read soon,
/// unless there is something else.
template <class T>
using DotsFn = void (*)(int m, int nt, std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x,
                        const std::ptrdiff_t* offset, T* out, std::ptrdiff_t ldo, Meanwhile fetch);

/// Where a tap reads a source and its weights, in elements.
struct DepthwiseTap {
  std::ptrdiff_t s, w;
};

/// Vectors along channels, a channel's results from the same channel, for r < rows, p < cols and l < lanes:
///   out[r*orow + p*ostep + l] (+)= sum over t < taps of S[r*srow + p*sstep + tap[t].s + l] * W[tap[t].w + l]
/// A line is fetched with each pixel, where there is something to fetch.
template <class T>
using DepthwiseFn = void (*)(std::int64_t rows, std::int64_t cols, T* out, std::ptrdiff_t orow, std::ptrdiff_t ostep,
                             const T* s, std::ptrdiff_t srow, std::ptrdiff_t sstep, const DepthwiseTap* tap,
                             std::int64_t taps, const T* w, bool accumulate, Meanwhile fetch);

/// The gradient of the weights, for i < h, j < w and l < lanes:
///   out[i*oh + j*lanes + l] += sum over r < rows, p < cols of
///                              Y[r*yrow + p*lanes + l] * X[r*xrow + p*xstep + i*xh + j*xw + l]
/// The sum of a call is formed of sums of at most 32 products.
template <class T>
using DepthwiseTapsFn = void (*)(std::int64_t h, std::int64_t w, std::int64_t rows, std::int64_t cols, const T* y,
                                 std::ptrdiff_t yrow, const T* x, std::ptrdiff_t xrow, std::ptrdiff_t xstep,
                                 std::ptrdiff_t xh, std::ptrdiff_t xw, T* out, std::ptrdiff_t oh);

/// What a transposition fetches for later while it reads, a line for each that it reads: a processor's list of misses
/// is short, and what does not fit in it is not fetched. It lies `ahead` elements from what is read, `turn` more where
/// that is behind the last column; nothing where `ahead` is 0.
struct Fetch {
  std::ptrdiff_t ahead = 0, turn = 0;
};

constexpr int kMostRows = 64;  // of a transposition without a table of them

/// Transposition with conversion from a tensor's type, for column k < cols and row r < rows_out:
///   dst[k % period][(k / period) * ldd + r] = r < rows ? src[row[r]*lds + k] : 0
/// where dst is a table of `period` destinations; a null one is left out. Where `row` is null, row[r] is r, and there
/// are no more than kMostRows.
template <class T>
using TransposeFn = void (*)(T* const* dst, std::int64_t period, std::ptrdiff_t ldd, const void* src,
                             const std::ptrdiff_t* row, std::ptrdiff_t lds, int rows, int rows_out, std::int64_t cols,
                             Fetch fetch);

/// Copies rows with conversion and puts zeros on both sides:
///   dst[r*ldd + 0..left+width+right) = left zeros, src[r*lds + i*step] for i < width, right zeros
/// What lies `ahead` elements behind is fetched for later, unless that is 0.
template <class T>
using PadFn = void (*)(T* dst, std::ptrdiff_t ldd, const void* src, std::ptrdiff_t lds, std::ptrdiff_t step,
                       std::int64_t rows, std::int64_t left, std::int64_t width, std::int64_t right,
                       std::ptrdiff_t ahead);

constexpr int kMostTileRows = 18;

/// Transforms of Winograd F(tile, window), of at most so many rows of pixels. An axis has remainders: all real ones but
/// the last, then complex ones, then the last. Two of them, one along each axis, are frequencies, which are multiplied:
/// one for real ones, three for a real and a complex one, six for complex ones; all those of a remainder along h follow
/// each other. A frequency of a tile is a vector along channels; frequencies lie `fstep` elements apart, tiles `tstep`.
/// Rows of pixels are dense arrays of such vectors, columns outside [0, width) are zeros. output and taps return
/// whether all that they computed is finite.
template <class T>
struct WinogradKernels {
  int tile[2], window[2], real[2], complex[2];  // along h and w: outputs, taps, remainders
  bool exact;                                   // sums, with powers of two as factors
  constexpr int frequencies() const {
    return real[0] * real[1] + 3 * (real[0] * complex[1] + complex[0] * real[1]) + 6 * complex[0] * complex[1];
  }
  /// Whether an axis has more roots of 1 than such sums reach.
  constexpr bool fourier(int axis) const { return !exact && complex[axis] > 0; }
  /// Tiles of tile[0] + window[0] - 1 rows, the first from column `first` on, each tile[1] columns after the last one.
  /// Columns are `apart` elements apart.
  void (*image)(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::ptrdiff_t apart,
                std::int64_t first, std::int64_t width, std::int64_t tiles);
  /// Tiles of tile[0] rows of the gradient of outputs.
  void (*gradient)(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::ptrdiff_t apart,
                   std::int64_t width, std::int64_t tiles);
  /// The parts, `pstep` elements apart, of windows w[channel*ldw + tap], read in whole vectors from the first tap on. A
  /// part takes window[0] * window[1] taps by their numbers, zeros where they are negative. What lies `ahead` elements
  /// behind them is fetched for a later call. `scratch` is room for the taps of a vector of channels, in whole vectors.
  void (*weights)(T* u, std::ptrdiff_t pstep, std::ptrdiff_t fstep, const T* w, std::ptrdiff_t ldw,
                  std::ptrdiff_t ahead, int taps, const int* tap, int parts, int vectors, T* scratch);
  /// Tiles of tile[0] rows of outputs, pixels `ldo` elements apart; a null row is left out.
  bool (*output)(T* const* row, std::ptrdiff_t ldo, std::int64_t width, const T* m, std::ptrdiff_t fstep,
                 std::ptrdiff_t tstep, std::int64_t tiles);
  /// The gradient of a part's taps, to w[tap*ldw + channel]; those with a negative number are left out.
  bool (*taps)(T* w, std::ptrdiff_t ldw, const int* tap, const T* c, std::ptrdiff_t fstep, int vectors);
};

/// Everything an instruction set offers for one compute type. Conversion tables are indexed by DType: they
/// widen exactly (types that are read as others round), store rounds once. Double has no rounded operands, and of
/// float64 float has only the bias, which is never transposed: what would bring them in is null.
template <class T>
struct KernelSet {
  const char* name;
  int lanes;
  GatherKernel<T> gather[4];   // by nr / lanes - 1; unused entries are null
  GatherKernel<T> blocked[4];  // the same, but a call's sum is formed of shorter sums
  int gather_count;
  bool any_bstep;  // false where bstep must be nr: weights cannot be read in place
  RowsFn<T> rows;
  int rows_mr;
  StackedRowsFn<T> stacked_rows;
  DotsFn<T> dots;
  int dots_mr, dots_nt;
  DepthwiseFn<T> depthwise;
  DepthwiseTapsFn<T> depthwise_taps;
  TransposeFn<T> transpose[kTypes];
  PadFn<T> pad[kTypes];
  void (*store[kTypes])(void* dst, const T* src, std::int64_t n);
  /// dst[r*ldd + i] = sources[r % turns * 2 + i % 2][r / turns * lds + i / 2] for r < rows, i < n
  void (*interleave)(T* dst, std::ptrdiff_t ldd, const T* const* sources, std::int64_t turns, std::ptrdiff_t lds,
                     std::int64_t rows, std::int64_t n);
  double (*sum)(const T* p, std::int64_t n);  // in 64 interleaved sums
  /// The largest magnitude over the mean of those that are not zero, or over that of all where this gives no more than
  /// `enough`; NaN where something, or their sum, is not finite. Whole vectors.
  T (*peak)(const T* p, std::int64_t n, T enough);
  WinogradKernels<T> winograd[20];
  const KernelSet* half;  // those of vectors half as long, if there are any
};

/// The list of instruction sets: declaration, choice and tests are generated from it.
/// A new one: a file beside this one, its flags in CMakeLists.txt, a line here, its detection in base/cpu.cpp.
#if defined(__x86_64__)
#define CONVBWD_ISA_LIST(X) X(generic) X(avx2) X(avx512)
#else
#define CONVBWD_ISA_LIST(X) X(generic)
#endif

#define CONVBWD_DECLARE(isa)                       \
  extern const KernelSet<float> kernels_f32_##isa; \
  extern const KernelSet<double> kernels_f64_##isa;
CONVBWD_ISA_LIST(CONVBWD_DECLARE)
#undef CONVBWD_DECLARE

}  // namespace convbwd
