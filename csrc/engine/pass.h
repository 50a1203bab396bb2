// Layer engine: one unknown of one problem, planned and executed. The algorithms are the implementations of Pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/problem.h"
#include "base/thread_pool.h"
#include "base/view.h"
#include "engine/axis.h"
#include "format/copy.h"
#include "kernels/kernel.h"
#include "kernels/matrix.h"

namespace convbwd {

enum class Unknown : std::uint8_t { x, w, y };

/// Tasks that work worth sharing is cut into at least: four for each of two threads, which then end at nearly the same
/// time. Where sums depend on it, it must not be the number of threads.
constexpr Index kMinTasks = 8;

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
  Sums sums{};          // of an image, to be kept; zeros leave them to the pass
  bool turned = false;  // h and w are exchanged: rows run across those of memory
};

/// The kinds of Sums: {kind, chunk, part or transforms, chunk of the direct pass}, in the units of the pass, and a
/// tile.
enum class SumKind : std::uint8_t { any, reference, gather, rows, matrix, winograd, pixels, columns, matvec };
inline Sums sums_of(SumKind kind, Index chunk, Index part, Index direct, Index height = 1, Index width = 1) {
  return {static_cast<Index>(kind), chunk, part, direct, height, width};
}
/// Those of Gather, whose chunk counts channels.
struct GatherSums {
  Index chunk;
  bool blocked, by_taps;
  Sums sums() const { return sums_of(SumKind::gather, 0, 0, 4 * chunk + 2 * by_taps + blocked); }
  /// None where they are not given: a chunk of 0.
  static GatherSums of(const Sums& s) { return {s[3] / 4, s[3] % 2 == 1, s[3] / 2 % 2 == 1}; }
};

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

/// Whether vectors have 32 bytes or fewer: they need a line of weights for half as many products as others.
template <class T>
bool narrow(const KernelSet<T>& kernels) {
  return kernels.lanes * sizeof(T) <= 32;
}

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
    room_ = std::min(tasks, slot_bytes > 0 ? left / slot_bytes : tasks);
    slots_ = std::max<Index>(1, std::min(static_cast<Index>(spec_.threads), room_));
    return left >= slot_bytes * std::min(least, tasks);
  }
  /// How many times as long so many threads take as if they shared the tasks evenly: those without one wait.
  double waits(Index threads) const {
    return static_cast<double>(round_up(tasks_, threads)) / static_cast<double>(tasks_);
  }
  /// Threads that find enough to do: 5 us of products, several times what they take to begin.
  int sharers(double products) const {
    constexpr double kShare = 1 << 19;
    return static_cast<int>(std::min<double>(spec_.threads, products / kShare));
  }
  int sharers() const { return sharers(spec_.problem.products()); }
  int slots() const { return static_cast<int>(slots_); }
  /// How many times as fast as one thread the slots are, if nothing else limits them.
  double speedup() const { return static_cast<double>(slots_) / waits(slots_); }
  /// Whether a second thread would find work.
  bool serves_two() const { return room_ > 1; }
  std::string effort() const { return convbwd::effort(tasks_, slots_, workspace_bytes()); }
  std::byte* slot(std::byte* workspace, int number) const { return workspace + shared_bytes_ + number * slot_bytes_; }

  const PassSpec spec_;
  Index tasks_ = 1;

 private:
  Index slots_ = 1, room_ = 1, shared_bytes_ = 0, slot_bytes_ = 0;
};

/// What operands are to a pass whose unknown is an image.
class Roles {
 protected:
  explicit Roles(const PassSpec& spec)
      : to_x_(spec.unknown == Unknown::x),
        cs_(to_x_ ? spec.problem.co : spec.problem.ci),
        cd_(to_x_ ? spec.problem.ci : spec.problem.co),
        weight_n_(to_x_ ? 1 : 0),
        weight_k_(1 - weight_n_) {}
  const View& image(const Operands& o) const { return to_x_ ? o.y : o.x; }
  const View& destination(const Operands& o) const { return to_x_ ? o.x : o.y; }

  const bool to_x_;
  const Index cs_, cd_;                    // channels of a group: of the source, which is read, and the destination
  const std::size_t weight_n_, weight_k_;  // axes of w along results and along their sums
};

/// A pass that says how long it will take.
class EstimatedPass : public SlottedPass {
 public:
  /// Of one thread.
  virtual double nanoseconds() const = 0;
  /// The same, as it counts beside others.
  virtual double cost() const { return nanoseconds(); }

 protected:
  using SlottedPass::SlottedPass;
};

/// A pass for operands of ordinary size: where it meets others, `direct_` computes the whole result again.
class GuardedPass : public EstimatedPass {
 public:
  std::size_t workspace_bytes() const override {
    return std::max(SlottedPass::workspace_bytes(), direct_->workspace_bytes());
  }

 protected:
  explicit GuardedPass(const PassSpec& spec, std::shared_ptr<const Pass> direct = nullptr)
      : EstimatedPass(spec), direct_(std::move(direct)) {}
  std::shared_ptr<const Pass> direct_;
};

/// Of class P; null where it does not fit the budget.
template <class P, class... Arguments>
std::unique_ptr<P> make_planned(const Arguments&... arguments) {
  auto pass = std::make_unique<P>(arguments...);
  return pass->plan() ? std::move(pass) : nullptr;
}

/// Each returns null where it cannot serve the problem within the budget.
template <class T>
std::unique_ptr<Pass> make_gather(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown x, y
template <class T>
std::unique_ptr<Pass> make_gather_weights(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown w
template <class T>
std::unique_ptr<Pass> make_rows(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown x, y
template <class T>
std::unique_ptr<Pass> make_dots(const PassSpec& spec, const KernelSet<T>& kernels);  // unknown w
/// Unknown w of a few images with a single position of y each.
template <class T>
std::unique_ptr<Pass> make_outer(const PassSpec& spec, const KernelSet<T>& kernels);
/// Unknown x of few pixels and many channels, or of few channels.
template <class T>
std::unique_ptr<EstimatedPass> make_columns(const PassSpec& spec, const KernelSet<T>& kernels);
/// Unknown x of images that the window of a single position of y covers.
template <class T>
std::unique_ptr<EstimatedPass> make_matvec(const PassSpec& spec, const KernelSet<T>& kernels);
std::unique_ptr<Pass> make_reference(const PassSpec& spec);  // any
/// Any unknown, with a stride or a dilation, by the transforms that are expected to take least time (those that are a
/// few times less accurate than straight sums only where the precision is fast), or by `only` these.
template <class T>
std::unique_ptr<EstimatedPass> make_winograd(const PassSpec& spec, const KernelSet<T>& kernels,
                                             const WinogradKernels<T>* only = nullptr);
/// Depthwise problems with small planes: unknown x, y, and unknown w.
template <class T>
std::unique_ptr<EstimatedPass> make_lanes(const PassSpec& spec, const KernelSet<T>& kernels);
/// The same sums of x and y where channels lie side by side.
template <class T>
std::unique_ptr<Pass> make_lanes_in_place(const PassSpec& spec, const KernelSet<T>& kernels);
template <class T>
std::unique_ptr<EstimatedPass> make_lanes_weights(const PassSpec& spec, const KernelSet<T>& kernels);
/// On a matrix unit: unknown x, y, unknown x of small planes, and unknown w.
std::unique_ptr<EstimatedPass> make_matrix(const PassSpec& spec, const KernelSet<float>& kernels,
                                           const MatrixKernels& unit);
std::unique_ptr<EstimatedPass> make_matrix_pixels(const PassSpec& spec, const KernelSet<float>& kernels,
                                                  const MatrixKernels& unit);
std::unique_ptr<EstimatedPass> make_matrix_weights(const PassSpec& spec, const KernelSet<float>& kernels,
                                                   const MatrixKernels& unit);
/// Sums of o.y along all axes but 1, to o.bias; `wide` sums in double throughout.
std::unique_ptr<Pass> make_bias_gradient(const View& y, bool wide, int threads);

/// A pass for one image as a pass for `samples`: the result of each, a weight or bias gradient, lies `step` elements
/// behind that of the one before. So many images are computed at the same time as there are slots.
std::unique_ptr<Pass> make_per_sample(std::unique_ptr<Pass> one, Index samples, Index step, int slots);

/// Hands out aligned pieces of a workspace; with no memory behind it, it only counts.
class Carver {
 public:
  Carver(std::byte* p = nullptr) : base_(p) {}
  template <class E>
  E* take(Index count) {
    std::byte* p = base_ ? base_ + used_ : nullptr;
    used_ += round_up(count * static_cast<Index>(sizeof(E)), 64);
    return reinterpret_cast<E*>(p);
  }
  Index used() const { return used_; }

 private:
  std::byte* base_;
  Index used_ = 0;
};

inline AxisSizes axis_sizes(const Problem& p, std::size_t a) {
  return {p.x[a], p.y[a], p.w[a], p.stride[a], p.dilation[a], p.pad_before[a]};
}

inline std::array<AxisMap, 3> axis_maps(const Problem& p, AxisMap (*map)(const AxisSizes&)) {
  return {map(axis_sizes(p, 0)), map(axis_sizes(p, 1)), map(axis_sizes(p, 2))};
}

}  // namespace convbwd
