// Layer engine: one unknown of one problem, planned and executed. The algorithms are the implementations of Pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "base/problem.h"
#include "base/thread_pool.h"
#include "base/view.h"
#include "engine/axis.h"
#include "format/copy.h"
#include "kernels/kernel.h"
#include "kernels/matrix.h"

namespace convbwd {

enum class Unknown : std::uint8_t { x, w, y };

/// The tensors of a problem; the unknown one is written. Only shapes, strides and dtypes are set while planning.
/// `bias`, of a forward pass or the result of a bias gradient, has its elements along axis 1, and no data where there
/// is none.
struct Operands {
  View x, w, y, bias;
};

/// What a pass has to do. Equal problems, dtypes and kernels give equal bits: strides and `threads` may change how
/// memory is walked and shared, never the order of a sum.
struct PassSpec {
  Problem problem;
  Unknown unknown = Unknown::x;
  Operands operands;
  int threads = 1;
  std::size_t budget = 0;  // bytes of workspace to stay within, for dense operands
  Precision precision = Precision::default_;
  Sums sums{};  // of an image, to be kept; zeros leave them to the pass
};

/// The kinds of Sums: {kind, chunk, part or transforms, chunk of the direct pass}, in the units of the pass.
enum class SumKind : std::uint8_t { any, reference, gather, rows, matrix, winograd };
inline Sums sums_of(SumKind kind, Index chunk, Index part, Index direct) {
  return {static_cast<Index>(kind), chunk, part, direct};
}

/// The operands as they would be if all were dense. Passes choose tiles and decide whether they fit for these, so that
/// formats never change the order of a sum or the shape of a BLAS call.
inline Operands densely(Operands o) {
  for (View* v : {&o.x, &o.w, &o.y}) v->make_plain(dense_strides(v->size));
  return o;
}

class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string explain() const = 0;
  /// Positions of the image of y (of x for unknown x) that are worked on at a time; zeros where it is not cut.
  virtual Index3 tile() const { return {}; }
  /// Of a pass for an image.
  virtual Sums summation() const { return {}; }
  /// `workspace` holds workspace_bytes(), aligned to 64.
  virtual void run(const Operands& operands, std::byte* workspace) const = 0;
};

/// Who does the work and in how much memory, for explain().
inline std::string effort(Index tasks, Index threads, std::size_t bytes) {
  const auto count = [](Index n, const char* what) { return std::to_string(n) + what + (n == 1 ? "" : "s"); };
  return count(tasks, " task") + " on " + count(threads, " thread") + ", " + std::to_string(bytes) + " bytes";
}

/// A pass whose tasks run in slots: memory shared by all tasks, then scratch for each task that runs at the same time.
class SlottedPass : public Pass {
 public:
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(shared_bytes_ + slots_ * slot_bytes_);
  }

 protected:
  explicit SlottedPass(const PassSpec& spec) : spec_(spec) {}

  /// As many slots as threads, tasks and the budget allow; false where the budget does not even hold `least`.
  bool share(Index tasks, Index shared_bytes, Index slot_bytes, Index least = 1) {
    tasks_ = tasks, shared_bytes_ = shared_bytes, slot_bytes_ = slot_bytes;
    const Index left = static_cast<Index>(spec_.budget) - shared_bytes;
    const Index room = slot_bytes > 0 ? left / slot_bytes : tasks;
    slots_ = std::max<Index>(1, std::min({static_cast<Index>(spec_.threads), tasks, room}));
    return left >= slot_bytes * std::min(least, tasks);
  }
  int slots() const { return static_cast<int>(slots_); }
  std::string effort() const { return convbwd::effort(tasks_, slots_, workspace_bytes()); }
  std::byte* slot(std::byte* workspace, int number) const { return workspace + shared_bytes_ + number * slot_bytes_; }

  const PassSpec spec_;
  Index tasks_ = 1;

 private:
  Index slots_ = 1, shared_bytes_ = 0, slot_bytes_ = 0;
};

/// A pass for operands of ordinary size: where it meets others, `direct_` computes the whole result again.
class GuardedPass : public SlottedPass {
 public:
  /// Of one thread, estimated.
  virtual double nanoseconds() const = 0;
  std::size_t workspace_bytes() const override {
    return std::max(SlottedPass::workspace_bytes(), direct_->workspace_bytes());
  }

 protected:
  explicit GuardedPass(const PassSpec& spec, std::shared_ptr<const Pass> direct = nullptr)
      : SlottedPass(spec), direct_(std::move(direct)) {}
  std::shared_ptr<const Pass> direct_;
};

/// Each returns null where it cannot serve the problem within the budget.
template <class T>
std::unique_ptr<Pass> make_gather(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown x, y
template <class T>
std::unique_ptr<Pass> make_gather_weights(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown w
template <class T>
std::unique_ptr<Pass> make_rows(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown x, y
template <class T>
std::unique_ptr<Pass> make_dots(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown w
std::unique_ptr<Pass> make_reference(const PassSpec& spec);                          // any
/// Any unknown, stride and dilation of 1, by the transforms that are expected to take least time (those that are a few
/// times less accurate than straight sums only where the precision is fast), or by `only` these.
template <class T>
std::unique_ptr<GuardedPass> make_winograd(const PassSpec& spec, const KernelSet<T>& kernels,
                                           const WinogradKernels<T>* only = nullptr);
/// Depthwise problems with small planes: unknown x, y, and unknown w.
template <class T>
std::unique_ptr<GuardedPass> make_lanes(const PassSpec& spec, const KernelSet<T>& kernels);
template <class T>
std::unique_ptr<GuardedPass> make_lanes_weights(const PassSpec& spec, const KernelSet<T>& kernels);
/// On a matrix unit: unknown x, y, and unknown w.
std::unique_ptr<GuardedPass> make_matrix(const PassSpec& spec, const KernelSet<float>& kernels,
                                         const MatrixKernels& unit);
std::unique_ptr<GuardedPass> make_matrix_weights(const PassSpec& spec, const KernelSet<float>& kernels,
                                                 const MatrixKernels& unit);
/// Sums of o.y along all axes but 1, to o.bias; `wide` sums in double throughout.
std::unique_ptr<Pass> make_bias_gradient(const View& y, bool wide, int threads);

/// A pass for one image as a pass for `samples`: the result of each, a weight or bias gradient, lies `step` elements
/// behind that of the one before. So many images are computed at the same time as there are slots.
std::unique_ptr<Pass> make_per_sample(std::unique_ptr<Pass> one, Index samples, Index step, int slots);

/// Hands out aligned pieces of a workspace; with no memory behind it, it only counts.
class Carver {
 public:
  explicit Carver(std::byte* p = nullptr) : base_(p) {}
  template <class E>
  E* take(Index count) {
    std::byte* p = base_ ? base_ + used_ : nullptr;
    used_ += round_up(count * static_cast<Index>(sizeof(E)), 64);
    return reinterpret_cast<E*>(p);
  }
  std::size_t used() const { return static_cast<std::size_t>(used_); }

 private:
  std::byte* base_;
  Index used_ = 0;
};

/// What a pixel of so many columns costs by the gathering kernel of v vectors, in eighths of a full vector. The weights
/// are ratios of measured speeds (6x4 : 8x3 : 8x2 : 8x1 vectors, AVX-512).
template <class T>
Index column_cost(const KernelSet<T>& k, Index columns, int v) {
  Index cost = 0;
  for (Index n = columns; n > 0; n -= v * k.lanes) {
    const Index used = std::min<Index>(v, ceil_div(n, k.lanes));
    cost += used * 8 + (used == 1 ? 3 : used == 2 ? 1 : 0);
  }
  return cost;
}

/// Vectors of the gathering kernel that serves so many columns best: wide ones load less for each product, as long as
/// few of their lanes are idle. No more than there are columns for: panels take room.
template <class T>
int widest_block(const KernelSet<T>& k, Index columns) {
  int widest = 1;
  for (int v = 2; v <= k.gather_count && (v - 1) * k.lanes < columns; ++v)
    if (column_cost(k, columns, v) <= column_cost(k, columns, widest)) widest = v;
  return widest;
}

/// Time that rows and dots take on one thread for depthwise problems, fitted like the one below. Their vectors lie
/// across cache lines, their rows have borders, and small planes are mostly overhead.
inline double depthwise_nanoseconds(const Problem& p, int lanes) {
  const double pixels = static_cast<double>(p.x_plane() + p.y_plane());
  const double row = 1 + static_cast<double>((p.w[2] - 1) * p.dilation[2]) / static_cast<double>(p.y[2] * p.stride[2]);
  const double strided = p.stride[1] * p.stride[2] > 1 ? 110 + 0.12 * pixels : 0;
  return 2000 + p.products() / lanes * 0.4 * row +
         static_cast<double>(p.n * p.groups) * (60 + 0.19 * pixels + 0.4 * static_cast<double>(p.taps()) + strided);
}

/// Time that a direct pass takes on one thread, good to 30 %: fitted to the 129 shapes of the benchmark on a Sapphire
/// Rapids, AVX-512 float32, where a vector's products take 0.18 ns.
inline double direct_nanoseconds(const PassSpec& spec, int lanes) {
  const Problem& p = spec.problem;
  if (p.depthwise()) return depthwise_nanoseconds(p, lanes);
  const double images = static_cast<double>(p.n * p.groups);
  const double x = images * static_cast<double>(p.ci * p.x_plane()),
               y = images * static_cast<double>(p.co * p.y_plane());
  const double w = static_cast<double>(p.groups * p.ci * p.co * p.taps());
  const Index columns = spec.unknown == Unknown::x ? p.ci : p.co;
  const double wasted = static_cast<double>(round_up(columns, lanes)) / static_cast<double>(columns);
  double time = p.products() / lanes * 0.18 * (columns > lanes ? wasted : 1) + 2000;
  // What is not of the compute type is copied, once for each block of channels (patches have those of all taps).
  const bool of_y = spec.unknown == Unknown::x, patches = of_y && p.stride == p.w;
  if (const DType t = (of_y ? spec.operands.y : spec.operands.x).dtype; t != DType::float32 && t != DType::float64) {
    const double planes = images * static_cast<double>(of_y ? p.co * p.y[0] : p.ci * p.x[0]);
    const Index blocks = ceil_div(columns * (patches ? p.taps() : 1), 4 * lanes);
    time += static_cast<double>(blocks) * ((spec.unknown == Unknown::w ? 8 : 15) * planes + 0.1 * (of_y ? y : x));
  }
  if (spec.unknown == Unknown::w) return time + 0.15 * (x + y) + 0.8 * w;
  const double pixels = spec.unknown == Unknown::x ? 0.35 * x + 0.1 * y : 0.1 * x + 0.35 * y;
  if (spec.unknown == Unknown::y || p.stride[2] == 1) return time + pixels + 0.4 * w;
  // Phases have fewer pixels each, and rows put together from them, if they are short, take longer than their pixels.
  const double rows =
      images * static_cast<double>(p.ci * std::min(p.x[0], p.y[0] * p.w[0]) * std::min(p.x[1], p.y[1] * p.w[1]));
  return 1.15 * (time + pixels + 0.4 * w) + rows * std::max(0.0, 20 - 0.35 * static_cast<double>(p.x[2]));
}

inline AxisSizes axis_sizes(const Problem& p, int a) {
  const auto i = static_cast<std::size_t>(a);
  return {p.x[i], p.y[i], p.w[i], p.stride[i], p.dilation[i], p.pad_before[i]};
}

}  // namespace convbwd
