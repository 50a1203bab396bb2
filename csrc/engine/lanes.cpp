// Unknown x and unknown y of depthwise problems with small planes: vectors run along channels. Only columns have zeros
// around them; taps that lie outside the image along another axis are left out. A weight that is not finite must not
// meet such a zero: then the direct pass computes the whole result again.
#include <algorithm>
#include <atomic>
#include <memory>
#include <sstream>
#include <string>

#include "engine/ahead.h"
#include "engine/lane_calls.h"

namespace convbwd {
namespace {

constexpr Index kTaskVectors = 1 << 15;  // vectors of products worth a task of its own
constexpr Index kLeastTasks = 16;
// Results from memory are fetched while they are computed: those of short planes, which are no streams that the
// processor foresees (7x7 and 14x14 take 0.8 of the time, Emerald Rapids), and those of so many products each, of a
// block that a second-level cache holds besides others (Zen 4; of 56x56 and 112x112 with 3x3 and steps of 2, 1.3
// times).
constexpr Index kShortPlane = 2 << 10, kProducts = 7, kMostBytes = 256 << 10;
constexpr Index kPacking = 256;  // pixels that a transposed weight is to meet: more images share a task until then

template <class T>
class Lanes final : public GuardedPass, Roles {
 public:
  Lanes(const PassSpec& spec, const KernelSet<T>& kernels);
  bool plan();
  std::string explain() const override;
  double nanoseconds() const override;
  Sums summation() const override { return direct_->summation(); }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  struct Slot {
    T *source, *results, *weights, *bias, *flat, **table;
    Index bytes;
  };
  Slot carve(Carver carver) const;
  void compute(const Slot& slot, Ahead ahead) const;
  View after(const View& image, Index task, Index n) const;
  View block(const View& v, Index n, Index task) const {
    const Index c = task % blocks_ * kernels_.lanes;
    return lanes_of(v, n, c, std::min<Index>(kernels_.lanes, spec_.problem.groups - c));
  }
  Index vector_bytes() const { return kernels_.lanes * static_cast<Index>(sizeof(T)); }

  const KernelSet<T>& kernels_;
  std::array<AxisMap, 3> maps_;
  LanePlanes source_, results_, weights_;
  LaneCalls calls_;
  Index blocks_ = 1, batch_ = 1;
  Index pixels_ = 0;                    // of all calls
  bool far_ = false, fetches_ = false;  // images come from memory; results are fetched while they are computed
};

template <class T>
Lanes<T>::Lanes(const PassSpec& spec, const KernelSet<T>& kernels) : GuardedPass(spec), Roles(spec), kernels_(kernels) {
  const Problem& p = spec_.problem;
  maps_ = axis_maps(p, to_x_ ? map_transposed : map_forward);
  const Index3 source{maps_[0].src, maps_[1].src, maps_[2].src}, size{maps_[0].dst, maps_[1].dst, maps_[2].dst};
  Index first = 0, last = 0;
  for (const Phase& f : maps_[2].phases)
    for (const Index o : f.offset) {
      first = std::min(first, o);
      last = std::max(last, o + (f.count - 1) * maps_[2].src_step);
    }
  source_ = LanePlanes(source, {0, 0, first}, {0, 0, last}, kernels_.lanes);
  results_ = LanePlanes(size, {}, {}, kernels_.lanes);
  weights_ = LanePlanes(p.w, {}, {}, kernels_.lanes);
  far_ = come_from_memory(p, kernels_);
  const Index plane = to_x_ ? p.x_plane() : p.y_plane();
  const bool brief = std::max(p.x_plane(), p.y_plane()) * static_cast<Index>(sizeof(T)) < kShortPlane;
  fetches_ = far_ && (brief || (p.taps() * p.y_plane() >= kProducts * plane && plane * vector_bytes() <= kMostBytes));
}

template <class T>
typename Lanes<T>::Slot Lanes<T>::carve(Carver carver) const {
  Slot s{};
  s.source = carver.take<T>(source_.elements());
  s.results = carver.take<T>(results_.elements());
  s.weights = carver.take<T>(weights_.elements());
  s.bias = carver.take<T>(kernels_.lanes);
  const DType result = destination(spec_.operands).dtype;
  s.flat = carver.take<T>(result == compute_dtype<T> ? 0 : results_.elements());
  s.table = carver.take<T*>(source_.extent[2]);
  s.bytes = carver.used();
  return s;
}

template <class T>
bool Lanes<T>::plan() {
  const Problem& p = spec_.problem;
  if (!p.depthwise() || p.taps() == 1) return false;  // one tap needs no planes
  if (p.taps() > kLanesVectors || !source_.short_axes() || !results_.short_axes()) return false;
  const Index bytes = carve({}).bytes;
  if (bytes > kLanesVectors * vector_bytes()) return false;
  blocks_ = ceil_div(p.groups, kernels_.lanes);
  const Index vectors = std::max<Index>(1, p.taps() * p.y_plane());
  const Index wanted = std::max(kTaskVectors / vectors, kPacking / std::max<Index>(1, p.y_plane()));
  batch_ = std::clamp<Index>(wanted, 1, std::max<Index>(1, p.n * blocks_ / kLeastTasks));
  batch_ = std::min(batch_, p.n);
  if (!share(blocks_ * ceil_div(p.n, batch_), 0, bytes)) return false;
  direct_ = make_rows(spec_, kernels_);
  calls_.source = source_.steps(), calls_.results = results_.steps();
  if (!direct_ || !calls_.make(maps_, weights_, true)) return false;
  for (const LaneCalls::Call& c : calls_.list) pixels_ += c.count[0] * c.count[1] * c.count[2];
  return true;
}

template <class T>
void Lanes<T>::compute(const Slot& s, Ahead ahead) const {
  const Index3 in = LaneCalls::steps(maps_, &AxisMap::src_step, calls_.source),
               out = LaneCalls::steps(maps_, &AxisMap::dst_step, calls_.results);
  const T* const source = s.source + source_.at({});
  for (const LaneCalls::Call& c : calls_.list)
    for (Index d = 0; d < c.count[0]; ++d) {
      const Index pixels = c.count[1] * c.count[2];
      kernels_.depthwise(c.count[1], c.count[2], s.results + c.to + d * out[0], out[1], out[2],
                         source + c.from + d * in[0], in[1], in[2], c.taps.data(), static_cast<Index>(c.taps.size()),
                         s.weights, !c.first, ahead.next(pixels, pixels));
    }
}

// The block that is copied after image n of a task: of the next image, or of the first one of the next task.
template <class T>
View Lanes<T>::after(const View& image, Index task, Index n) const {
  if (n + 1 < std::min((task / blocks_ + 1) * batch_, spec_.problem.n)) return block(image, n + 1, task);
  task = std::min(task + 1, tasks_ - 1);
  return block(image, task / blocks_ * batch_, task);
}

template <class T>
void Lanes<T>::run(const Operands& o, std::byte* workspace) const {
  const Problem& p = spec_.problem;
  const View &image = this->image(o), &destination = this->destination(o);
  const Index lanes = kernels_.lanes;
  std::atomic<bool> finite{true};
  parallel_for(tasks_, slots(), [&](Index i, int number) {
    const Slot s = carve(slot(workspace, number));
    const Index c0 = i % blocks_ * lanes, channels = std::min(lanes, p.groups - c0), n0 = i / blocks_ * batch_;
    if (!load_weights(kernels_, o.w, c0, channels, weights_, s.weights)) {
      finite.store(false, std::memory_order_relaxed);
      return;
    }
    std::fill(s.bias, s.bias + lanes, T{});
    if (o.bias.data) load_bias(kernels_, s.bias, o.bias, c0, channels);
    std::fill(s.source, s.source + source_.elements(), T{});
    for (Index n = n0; n < std::min(n0 + batch_, p.n); ++n) {
      const View next = after(image, i, n);
      source_.copy(kernels_, block(image, n, i), far_ ? &next : nullptr, s.table, s.source);
      compute(s, fetches_ ? Ahead(block(destination, n, i), pixels_) : Ahead());
      if (o.bias.data)
        for (T* r = s.results; r != s.results + results_.elements(); r += lanes)
          for (Index l = 0; l < lanes; ++l) r[l] += s.bias[l];
      store_lanes(kernels_, block(destination, n, i), s.results, s.flat);
    }
  });
  if (!finite) direct_->run(o, workspace);
}

template <class T>
double Lanes<T>::nanoseconds() const {
  const Problem& p = spec_.problem;
  double products = 0;
  for (const LaneCalls::Call& c : calls_.list)
    products += static_cast<double>(c.count[0] * c.count[1] * c.count[2]) * static_cast<double>(c.taps.size() + 1);
  // Results of all lanes that go to few sets of the cache: 256 channels 32x32 take 1.4 times as long as 31x31 (Zen 5).
  constexpr double kResult = 2.7;
  const Index plane = to_x_ ? p.x_plane() : p.y_plane();
  const bool meet = meet_in_cache(plane * static_cast<Index>(sizeof(T)));
  return lanes_nanoseconds(p, blocks_, products, vector_bytes()) +
         (meet ? kResult * static_cast<double>(p.n * blocks_ * plane) : 0);
}

template <class T>
std::string Lanes<T>::explain() const {
  std::ostringstream s;
  s << "lanes " << (to_x_ ? "x" : "y") << " (" << kernels_.name << "): " << blocks_ << " blocks of " << kernels_.lanes
    << " channels, " << calls_.list.size() << " sets of rows, " << batch_ << " images a task; " << effort();
  return s.str();
}

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_lanes(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<Lanes<T>>(spec, kernels);
}
template std::unique_ptr<EstimatedPass> make_lanes(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<EstimatedPass> make_lanes(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
