// Layer engine: float passes on a matrix unit (kernels/matrix.h). Operands are split to bfloat16 terms when they are
// brought in; kernels then add up tiles of products in float32.
//
// The unit flushes what is tiny and turns infinities into NaN. Every split tells the magnitudes that it saw: where they
// lie outside of what the unit serves, the direct pass computes the whole result again.
//
// matrix_images.h is for images (unknown x and y), matrix_pixels.cpp for small ones (unknown x), matrix_weights.cpp for
// weights (unknown w).
#pragma once

#include <atomic>
#include <bit>
#include <sstream>
#include <vector>

#include "engine/pass.h"
#include "engine/planes.h"
#include "kernels/matrix.h"

namespace convbwd::matrix {

constexpr Index kDepth = 32;  // products of a step
constexpr Index kRows = 32;   // of a call

/// Terms that hold every value of an operand.
inline int terms_of(DType t) { return (significand_bits(t) + 7) / 8; }

/// How many products of terms stand for one.
inline int products_of(int a, int b) { return a * b - (a + b > 4) - 2 * (a + b > 5); }

// Estimates of time are in nanoseconds of one core of a Sapphire Rapids: least squares over what bench/candidates
// measures of the 129 shapes of the benchmark, good to 20 %, to 50 % where operands are strided.

/// Of bringing in an element but splitting it: dense rows, every other one, and those that are read element by element.
constexpr double kDenseRow = 0.13, kHalfRow = 0.4, kStridedRow = 0.7;

/// Of an element of weights, of which a task takes short pieces of each row, where there are so many that rows come
/// from memory, each piece from another page (342 channels to 10000, 7 taps: 0.4 and 0.6).
inline double far_cost(const Problem& p) {
  constexpr double kFarWeights = 64 << 20;  // bytes: with 38 MB it did not show
  return static_cast<double>(p.groups * p.co * p.ci * p.taps()) * sizeof(float) > kFarWeights ? 0.5 : 0;
}

inline double row_cost(const std::array<AxisMap, 3>& maps) {
  return maps[2].src_step == 1 ? kDenseRow : maps[2].src_step == 2 ? kHalfRow : kStridedRow;
}

/// Of bringing in an image's plane for splitting, besides that of its elements: what is not float32 is widened to a
/// buffer first, each remainder by the strides in a call of its own.
inline double plane_cost(DType t, const Planes& planes) {
  return t == DType::float32 ? 0 : 27 * static_cast<double>(planes.parts());
}

/// Calls for so many rows or columns: those of no more than 16 take little more than half of the time.
inline double blocks_of(Index n) {
  const Index rest = n % kRows;
  return static_cast<double>(n / kRows) + (rest > 16 ? 1 : rest > 0 ? 0.6 : 0);
}

/// Pixels that lie one behind the other already, and zeros behind them.
inline FlatPlane flat(Index pixels, Index length) { return {1, pixels, pixels, 0, pixels, length}; }

/// The plane of which `part` is what exists in the image.
inline FlatPlane flat(const View& image, const Planes& planes, const Planes::Part* part) {
  const Index row = planes.row();
  if (!part) return flat(0, planes.plane());
  return {part->h.end - part->h.begin,
          part->w.end - part->w.begin,
          planes.step(1) * image.stride[3],
          part->h.begin * row + part->w.begin,
          row,
          planes.plane()};
}
/// Whether its rows are floats side by side.
inline bool dense_rows(const View& image, const Planes& planes) {
  return image.dtype == DType::float32 && image.plain() && image.stride[4] == 1 && planes.step(2) == 1;
}

/// Whether the unit serves what both operands hold. They are judged as wholes: the pieces in which tasks split them
/// follow threads and strides, which must not decide what computes the result.
class Fit {
 public:
  /// Where strict, products of the smallest elements keep all their terms, so that each result has the bound of direct
  /// sums; else those of the largest.
  explicit Fit(Precision precision) : strict_(precision == Precision::strict) {}
  void see_a(const Magnitudes& m) { see(a_, m); }
  void see_b(const Magnitudes& m) { see(b_, m); }
  /// Whether nothing that was seen so far spoils the results: else there is no need to go on.
  bool good() const { return good_.load(std::memory_order_relaxed); }
  /// Whether results are good, when all was seen.
  bool served() const { return good() && a_.served() && b_.served(); }

 private:
  // No sum of products overflows; those of two least ones lie 2^26 above what the unit flushes (2^-126).
  static constexpr auto kLeast = std::bit_cast<std::uint32_t>(0x1p-50f), kMost = std::bit_cast<std::uint32_t>(0x1p+60f);

  struct Operand {
    std::atomic<bool> tiny{false}, other{false};  // whether some piece was, and some was not; zeros are neither
    bool served() const { return other.load(std::memory_order_relaxed) || !tiny.load(std::memory_order_relaxed); }
  };
  void see(Operand& operand, const Magnitudes& m) {
    if (m.most == 0) return;
    if (m.most > kMost || (strict_ && m.least < kLeast)) good_.store(false, std::memory_order_relaxed);
    std::atomic<bool>& seen = m.most < kLeast ? operand.tiny : operand.other;
    if (!seen.load(std::memory_order_relaxed)) seen.store(true, std::memory_order_relaxed);  // lines stay shared
  }

  const bool strict_;
  std::atomic<bool> good_{true};
  Operand a_, b_;
};

}  // namespace convbwd::matrix
