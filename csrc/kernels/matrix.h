// Layer kernels: the contract of matrix units, which multiply small tiles of bfloat16 and add up in float32.
//
// Floats are written as sums of bfloat16 terms, each the rounding of what the ones before it leave: three terms hold
// the 24 bits of a float32, two the 11 of a float16, one a bfloat16. A product of two such sums leaves out what lies
// below 2^-25 of it (term i of one operand with term j of the other is formed where i + j <= 4, counted from one), so
// float32 results are as accurate as sums of float32 products, at 6 products of bfloat16 each. After G. Henry, P. T. P.
// Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype for Higher-Precision Computations",
// ARITH 2019.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convbwd {

/// Tiles of one operand of a matrix product, in bytes: tile t of term r at step s begins at
/// data + at[s] + r*term + t*tile, its rows lie `row` apart.
struct MatrixOperand {
  const void* data;
  std::ptrdiff_t row, tile, term;
  int terms;
  const std::ptrdiff_t* at;
};

/// C[i*ldc + j] (+)= sum over steps s, k < 32 of A[i][k] * B[k][j] for i < rows <= 32 and j < columns, where tiles of A
/// have 16 rows of 32 elements, and tiles of B 16 rows of 16 pairs: elements 2k and 2k+1 of column j side by side.
/// Columns are computed, and C is written, up to a multiple of 16. With `shift` (not null) that for B moved by shift[t]
/// bytes and C by t*shift_c elements, t < shifts. Results are gone through every `stretch` steps: what these read
/// should stay in the nearest cache. Values that are not finite, or so small that their products are, spoil results.
struct MatrixCall {
  MatrixOperand a, b;
  std::int64_t steps, stretch;
  int rows;
  std::int64_t columns;
  float* c;
  std::ptrdiff_t ldc;
  bool accumulate;
  const std::ptrdiff_t* shift = nullptr;
  std::int64_t shifts = 1;
  std::ptrdiff_t shift_c = 0;
};

/// The smallest magnitude but zero, and the largest, as the bits of floats: 0 and 0 where all are zero, above those of
/// infinity where there is a NaN.
struct Magnitudes {
  std::uint32_t least, most;
};

/// A plane of an image, and where its pixels go: `rows` rows of `width` pixels, `stride` elements apart, to a flat
/// plane of `length` pixels, the first behind `first` zeros, each `pitch` behind the one before; zeros elsewhere. What
/// lies `ahead` elements behind a pixel is split next: the splits fetch it.
struct FlatPlane {
  std::int64_t rows, width;
  std::ptrdiff_t stride;
  std::int64_t first, pitch, length;
  std::ptrdiff_t ahead = 0;
};

/// The splits return what magnitudes they saw, those of zeros that they add apart.
struct MatrixKernels {
  const char* name;
  double product;  // time that products take, in that of AMX beside the direct passes of its processors
  void (*multiply)(const MatrixCall& call);
  /// Rows of A: dst[r*term + 32*i + k] = term r of src[from[i] + k], i < rows, k < 32.
  Magnitudes (*split_rows)(std::uint16_t* dst, std::ptrdiff_t term, int terms, const float* src,
                           const std::ptrdiff_t* from, std::int64_t rows);
  /// A row of A: dst[r*term + i] = term r of pixel i < plane.length.
  Magnitudes (*split_plane)(std::uint16_t* dst, std::ptrdiff_t term, int terms, const float* src,
                            const FlatPlane& plane);
  /// Rows of B from two planes: dst[r*term + i] = term r of the pixels (even i, odd i); zeros where `odd` is null.
  Magnitudes (*split_pairs)(std::uint32_t* dst, std::ptrdiff_t term, int terms, const float* even, const float* odd,
                            const FlatPlane& plane);
  /// Tiles of B from rows of n floats, its columns: dst[r*term + 16*k + j] = term r of the pair (src[j*lds + 2*k],
  /// src[j*lds + 2*k + 1]), for 2*k < n up to a multiple of 32, zeros where j >= rows and behind n. Where `odd` is not
  /// zero, the pairs (src[j*lds + 2*k + 1], src[j*lds + 2*k + 2]) too, at dst[odd + r*term + 16*k + j].
  Magnitudes (*split_columns)(std::uint32_t* dst, std::ptrdiff_t term, std::ptrdiff_t odd, int terms, const float* src,
                              std::ptrdiff_t lds, int rows, std::int64_t n);
};

#ifdef __x86_64__
extern const MatrixKernels matrix_kernels_avx512_bf16, matrix_kernels_amx;  // with the same splits
void multiply_amx(const MatrixCall& call);
#endif

}  // namespace convbwd
