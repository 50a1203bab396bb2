// Unknown x and unknown y of depthwise problems whose channels lie side by side: vectors along them are read and
// written where they are, whatever the size of the planes. Taps that lie outside the image are left out; the sums are
// those of lanes and of rows, bit for bit (but for the sign of a zero from products that underflow). All channels of
// some pixels are computed before the next ones: pixels are lines far apart, which have few sets of a cache and a page
// every few of them.
#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>

#include "engine/ahead.h"
#include "engine/lane_calls.h"

namespace convbwd {
namespace {

constexpr Index kTile = 12;              // pixels of a row, the accumulators of a call of the kernel
constexpr Index kLeastRows = 4;          // of a task
constexpr Index kNearBytes = 768 << 10;  // of both images of a sample
constexpr double kCopying = 12;          // products that take as long as a copy of a pixel and its result

template <class T>
class LanesInPlace final : public SlottedPass, Roles {
 public:
  LanesInPlace(const PassSpec& spec, const KernelSet<T>& kernels) : SlottedPass(spec), Roles(spec), kernels_(kernels) {}

  bool plan() {
    const Problem& p = spec_.problem;
    const View &image = this->image(spec_.operands), &result = destination(spec_.operands);
    const auto stays = [](const View& v) { return v.plain() && channels_last(v) && v.dtype == compute_dtype<T>; };
    if (!p.depthwise() || !stays(image) || !stays(result) || p.groups < kernels_.lanes) return false;
    maps_ = axis_maps(p, to_x_ ? map_transposed : map_forward);
    weights_ = LanePlanes(p.w, {}, {}, kernels_.lanes);
    for (std::size_t a = 0; a < 3; ++a)
      calls_.source[a] = image.stride[a + 2], calls_.results[a] = result.stride[a + 2];
    if (!calls_.make(maps_, weights_, false) || !pays()) return false;
    direct_ = make_rows(spec_, kernels_);
    Index rows = 0;
    for (const LaneCalls::Call& c : calls_.list) rows = std::max(rows, c.count[axis_]);
    bands_ = std::clamp<Index>(rows / kLeastRows, 1, ceil_div(kMinTasks, p.n));
    return direct_ && share(p.n * bands_, blocks() * block_bytes(), 0);
  }

  Sums summation() const override { return direct_->summation(); }
  std::size_t workspace_bytes() const override {
    return std::max(SlottedPass::workspace_bytes(), direct_->workspace_bytes());
  }
  std::string explain() const override {
    std::ostringstream s;
    s << "lanes " << (to_x_ ? "x" : "y") << " (" << kernels_.name << "): " << blocks() << " blocks of "
      << kernels_.lanes << " channels in place, " << calls_.list.size() << " sets of rows; " << effort();
    return s.str();
  }

  void run(const Operands& o, std::byte* workspace) const override {
    const Index lanes = kernels_.lanes;
    std::atomic<bool> finite{true};
    parallel_for(blocks(), slots(), [&](Index i, int) {
      T* const weights = block(workspace, i);
      const Index channel = this->channel(i);
      if (!load_weights(kernels_, o.w, channel, lanes, weights_, weights))
        finite.store(false, std::memory_order_relaxed);
      T* const bias = weights + weights_.elements();
      std::fill_n(bias, lanes, T{});
      if (o.bias.data) load_bias(kernels_, bias, o.bias, channel, lanes);
    });
    if (!finite) return direct_->run(o, workspace);
    parallel_for(tasks_, slots(), [&](Index i, int) {
      const Index5 image{i / bands_, 0, 0, 0, 0};
      const View from = this->image(o).at(image, this->image(o).size),
                 to = destination(o).at(image, destination(o).size);
      for (const LaneCalls::Call& c : calls_.list)
        compute(c, i % bands_, static_cast<const T*>(from.data), static_cast<T*>(to.data), workspace, o.bias.data);
    });
  }

 private:
  Index blocks() const { return ceil_div(spec_.problem.groups, kernels_.lanes); }
  /// The last block is whole, too: it begins among the channels of the one before, which it computes again.
  Index channel(Index block) const { return std::min(block * kernels_.lanes, spec_.problem.groups - kernels_.lanes); }
  Index block_bytes() const {  // weights and bias
    return odd_multiple(weights_.elements() + kernels_.lanes, kernels_.lanes) * static_cast<Index>(sizeof(T));
  }
  T* block(std::byte* workspace, Index i) const { return reinterpret_cast<T*>(workspace + i * block_bytes()); }

  /// Whether the lines that a tile reads share a first-level cache, and borders are few enough.
  bool pays() {
    constexpr Index kLine = 64, kSets = 64, kWays = 8, kLatency = 4;
    const Problem& p = spec_.problem;
    const View& image = this->image(spec_.operands);
    double waiting = 0, copying = 0;
    for (const LaneCalls::Call& c : calls_.list) {
      if (c.count[1] > 1) axis_ = 1;
      if (!(c.first && c.last) && p.groups % kernels_.lanes != 0) return false;  // blocks would be added twice
      const Index waits = std::max(c.count[2] % kTile, std::min(c.count[2], kLatency));
      const auto rows = static_cast<double>(c.count[0] * c.count[1]), taps = static_cast<double>(c.taps.size() + 1);
      copying += rows * static_cast<double>(c.count[2]) * (taps + kCopying);
      waiting += rows * static_cast<double>(c.count[2] / kTile * kTile + waits) * taps;
    }
    const Index apart = std::max<Index>(1, std::abs(image.stride[4]) * static_cast<Index>(sizeof(T)) / kLine);
    const Index room = kWays * kSets / std::gcd(apart, kSets);
    const Index lines = p.w[0] * p.w[1] * std::min(image.size[4], kTile * maps_[2].src_step + p.w[2]);
    const Index bytes = p.groups * (p.x_plane() + p.y_plane()) * static_cast<Index>(sizeof(T));
    near_ = 2 * lines <= room && bytes <= kNearBytes;
    far_ = p.n * bytes > kFromMemory && image.stride[4] > 0 && destination(spec_.operands).stride[4] > 0;
    return waiting <= copying && 2 * lines <= 3 * room;
  }

  void compute(const LaneCalls::Call& c, Index band, const T* source, T* results, std::byte* workspace,
               bool biased) const {
    const Index3 in = LaneCalls::steps(maps_, &AxisMap::src_step, calls_.source),
                 out = LaneCalls::steps(maps_, &AxisMap::dst_step, calls_.results);
    Index3 begin{}, end = c.count;
    const Range positions = piece_of(c.count[axis_], band, bands_);
    begin[axis_] = positions.begin, end[axis_] = positions.end;
    const Index rows = near_ ? end[1] - begin[1] : 1;
    std::ptrdiff_t last = 0;
    for (const DepthwiseTap& t : c.taps) last = std::max(last, t.s);
    for (Index d = begin[0]; d < end[0]; ++d)
      for (Index h = begin[1]; h < end[1]; h += rows)
        for (Index w = begin[2], pixels; w < end[2]; w += pixels) {
          pixels = near_ ? end[2] - w : even_part(end[2] - w, kTile);
          const T* const from = source + c.from + d * in[0] + h * in[1] + w * in[2];
          T* const to = results + c.to + d * out[0] + h * out[1] + w * out[2];
          Ahead sources, stores;
          constexpr Index item = sizeof(T);
          if (far_ && h + 1 < c.count[1]) sources = Ahead(from + last + in[1], pixels * in[2] * item, 1, 0, blocks());
          if (far_ && w + pixels < end[2]) stores = Ahead(to + pixels * out[2], pixels * out[2] * item, 1, 0, blocks());
          for (Index i = 0; i < blocks(); ++i) {
            const T* const weights = block(workspace, i);
            const Index channel = this->channel(i);
            kernels_.depthwise(rows, pixels, to + channel, out[1], out[2], from + channel, in[1], in[2], c.taps.data(),
                               static_cast<Index>(c.taps.size()), weights, !c.first, {});
            sources.next(1), stores.next(1);
            for (Index q = 0; q < rows * pixels && biased && c.last; ++q)
              for (Index l = 0; l < kernels_.lanes; ++l)
                to[q / pixels * out[1] + q % pixels * out[2] + channel + l] += weights[weights_.elements() + l];
          }
        }
  }

  const KernelSet<T>& kernels_;
  std::array<AxisMap, 3> maps_;
  LanePlanes weights_;
  LaneCalls calls_;
  std::unique_ptr<Pass> direct_;  // for weights that are not finite, which rows sum in another order
  std::size_t axis_ = 2;          // along which tasks share an image
  Index bands_ = 1;
  bool near_ = false, far_ = false;  // images stay in a second-level cache, or come from beyond it
};

}  // namespace

template <class T>
std::unique_ptr<Pass> make_lanes_in_place(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<LanesInPlace<T>>(spec, kernels);
}
template std::unique_ptr<Pass> make_lanes_in_place(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_lanes_in_place(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
