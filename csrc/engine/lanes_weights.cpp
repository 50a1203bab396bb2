// Unknown w of depthwise problems with small planes: vectors run along channels, sums of several taps are formed side
// by side. Zeros around the image may meet what is not finite in the gradient: then some sum is not finite, and the
// direct pass computes the whole result again.
#include <algorithm>
#include <atomic>
#include <memory>
#include <sstream>
#include <string>

#include "engine/lanes.h"
#include "engine/slabs.h"

namespace convbwd {
namespace {

template <class T>
class LanesWeights final : public GuardedPass {
 public:
  LanesWeights(const PassSpec& spec, const KernelSet<T>& kernels);
  bool plan();
  std::string explain() const override;
  double nanoseconds() const override;
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  struct Slot {
    T *x, *y, *flat, **table, *sums;
    Index bytes;
  };
  Slot carve(Carver carver) const;
  void add(const T* x, const T* y, T* sums) const;
  Index blocks() const { return ceil_div(spec_.problem.groups, lanes()); }
  Index channels(Index block) const { return std::min<Index>(kernels_.lanes, spec_.problem.groups - block * lanes()); }
  Index lanes() const { return kernels_.lanes; }
  Index vector_bytes() const { return lanes() * static_cast<Index>(sizeof(T)); }

  const KernelSet<T>& kernels_;
  LanePlanes x_, y_, sums_;
  Index batch_ = 1;  // blocks of channels of a task, which takes them image by image
  Slabs slabs_;      // of images, for such blocks
};

template <class T>
LanesWeights<T>::LanesWeights(const PassSpec& spec, const KernelSet<T>& kernels)
    : GuardedPass(spec), kernels_(kernels) {
  const Problem& p = spec_.problem;
  Index3 last{};  // depth has no zeros around it
  for (std::size_t a = 1; a < 3; ++a)
    last[a] = (p.y[a] - 1) * p.stride[a] + (p.w[a] - 1) * p.dilation[a] - p.pad_before[a];
  x_ = LanePlanes(p.x, {0, -p.pad_before[1], -p.pad_before[2]}, last, lanes());
  y_ = LanePlanes(p.y, {}, {}, lanes());
  sums_ = LanePlanes(p.w, {}, {}, lanes());
}

template <class T>
typename LanesWeights<T>::Slot LanesWeights<T>::carve(Carver carver) const {
  Slot s{};
  s.x = carver.take<T>(x_.elements());
  s.y = carver.take<T>(y_.elements());
  s.flat = carver.take<T>(spec_.operands.w.dtype == compute_dtype<T> ? 0 : sums_.elements());
  s.table = carver.take<T*>(std::max(x_.extent[2], y_.extent[2]));
  if (!slabs_.several()) s.sums = carver.take<T>(batch_ * sums_.elements());
  s.bytes = carver.used();
  return s;
}

template <class T>
bool LanesWeights<T>::plan() {
  const Problem& p = spec_.problem;
  if (!p.depthwise() || p.taps() == 1) return false;  // one tap needs no planes
  if (!x_.short_axes() || !y_.short_axes() || !sums_.short_axes()) return false;
  slabs_ = {.results = blocks(), .units = p.n};
  if (carve({}).bytes > kLanesVectors * vector_bytes()) return false;
  slabs_.count = std::clamp<Index>(ceil_div(kMinTasks, slabs_.results), 1, p.n);
  while (!share(slabs_.tasks(), slabs_.bytes<T>(sums_.elements()), carve({}).bytes)) {
    if (!slabs_.several()) return false;
    slabs_.count = ceil_div(slabs_.count, 2);
  }
  // Blocks of channels follow each other in memory, or share its lines: an image at a time, as long as sums stay near.
  if (!slabs_.several() && come_from_memory(p, kernels_)) {
    constexpr Index kSums = 128 << 10;  // bytes
    const auto divide = [&](Index most) {
      batch_ = even_part(blocks(), most);
      slabs_.results = ceil_div(blocks(), batch_);
      return share(slabs_.tasks(), 0, carve({}).bytes);
    };
    const Index near = kSums / (sums_.elements() * static_cast<Index>(sizeof(T)));
    if (!divide(std::min(near, ceil_div(blocks(), spec_.threads)))) divide(1);
  }
  direct_ = make_dots(spec_, kernels_);
  return direct_ != nullptr;
}

// The products of one image.
template <class T>
void LanesWeights<T>::add(const T* x, const T* y, T* sums) const {
  const Problem& p = spec_.problem;
  for (Index t = 0; t < p.w[0]; ++t) {
    const Range valid = valid_outputs(axis_sizes(p, 0), t);
    for (Index d = valid.begin; d < valid.end; ++d) {
      const Index at = d * p.stride[0] + t * p.dilation[0] - p.pad_before[0];
      kernels_.depthwise_taps(p.w[1], p.w[2], p.y[1], p.y[2], y + y_.at({d, 0, 0}), y_.row(),
                              x + x_.at({at, -p.pad_before[1], -p.pad_before[2]}), p.stride[1] * x_.row(),
                              p.stride[2] * lanes(), p.dilation[1] * x_.row(), p.dilation[2] * lanes(),
                              sums + t * sums_.plane(), sums_.row());
    }
  }
}

template <class T>
void LanesWeights<T>::run(const Operands& o, std::byte* workspace) const {
  const Problem& p = spec_.problem;
  std::atomic<bool> finite{true};
  const bool far = come_from_memory(p, kernels_);
  const auto sum = [&](const Slabs::Task& task, int number, T* sums) -> const T* {
    const Slot s = carve(slot(workspace, number));
    const Index first = task.result * batch_, count = std::min(batch_, blocks() - first);
    if (!sums) sums = s.sums;
    std::fill(sums, sums + count * sums_.elements(), T{});
    std::fill(s.x, s.x + x_.elements(), T{});
    std::fill(s.y, s.y + y_.elements(), T{});
    const Slabs::Task after = slabs_.task(std::min(task.number + 1, tasks_ - 1));
    for (Index n = task.units.begin; n < task.units.end; ++n)
      for (Index i = 0; i < count; ++i) {
        const bool last = n + 1 == task.units.end && i + 1 == count;
        const auto copy = [&](const LanePlanes& planes, const View& v, T* to) {
          const Index next_n = last ? after.units.begin : n + (i + 1) / count,
                      next_block = last ? after.result * batch_ : first + (i + 1) % count;
          const View next = lanes_of(v, next_n, next_block * lanes(), 1);
          planes.copy(kernels_, lanes_of(v, n, (first + i) * lanes(), channels(first + i)), far ? &next : nullptr,
                      s.table, to);
        };
        copy(x_, o.x, s.x);
        copy(y_, o.y, s.y);
        add(s.x, s.y, sums + i * sums_.elements());
      }
    return sums;
  };
  slabs_.run<T>(slots(), workspace, batch_ * sums_.elements(), sum, [&](Index batch, int number, const T* sums) {
    const Index first = batch * batch_;
    for (Index i = 0; i < std::min(batch_, blocks() - first); ++i, sums += sums_.elements()) {
      if (!all_finite(sums, sums_.elements())) finite.store(false, std::memory_order_relaxed);
      each_weights(o.w, (first + i) * lanes(), channels(first + i), [&](const View& part, Index lane) {
        store_lanes(kernels_, part, sums + lane, carve(slot(workspace, number)).flat);
      });
    }
  });
  if (!finite) direct_->run(o, workspace);
}

template <class T>
double LanesWeights<T>::nanoseconds() const {
  const Problem& p = spec_.problem;
  return lanes_nanoseconds(p, blocks(), static_cast<double>(p.taps() * p.y_plane()), vector_bytes());
}

template <class T>
std::string LanesWeights<T>::explain() const {
  std::ostringstream s;
  s << "lanes w (" << kernels_.name << "): " << blocks() << " blocks of " << lanes() << " channels, " << slabs_.count
    << " slabs; " << effort();
  return s.str();
}

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_lanes_weights(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<LanesWeights<T>>(spec, kernels);
}
template std::unique_ptr<EstimatedPass> make_lanes_weights(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<EstimatedPass> make_lanes_weights(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
