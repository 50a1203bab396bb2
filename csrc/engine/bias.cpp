// The bias gradient: one sum for each channel, in an order that depends on the shape alone. Blocks of whole rows are
// summed in the compute type by 64 interleaved sums; of planes no larger than that, several are added up element by
// element first. Blocks are added in double. Where channels lie side by side, the interleaved sums of as many as a
// vector has lanes are formed together, by the kernel of depthwise convolutions: a tap is every 64th pixel.
#include "engine/pass.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr Index kBlock = 1024;              // elements of a block: short sums stay accurate
constexpr Index kSmall = 64;                // interleaved sums, and elements of a plane that is added to others
constexpr Index kPlanes = kBlock / kSmall;  // of a block
// Elements of a task's channels: of copies, and in place, where memory gives them in one go (with no more than copies
// those of 64 images take 1.7 to 2 times as long, Zen 4).
constexpr Index kCopied = 4096, kRun = 1 << 16;
constexpr Index kMostChannels = 256;  // of a task
constexpr Index kTile = 8;            // pixels at a time whose channels lie side by side, and in few pages

template <class T>
class BiasGradient final : public Pass {
 public:
  BiasGradient(const View& y, int threads) : size_(y.size), kernels_(kernel_set<T>(active_isa())) {
    width_ = std::min(kBlock, size_[4]);
    rows_ = std::max<Index>(1, kBlock / size_[4]);
    rows_ = std::min(rows_, size_[3]);
    const Index plane = size_[3] * size_[4];
    small_ = plane <= kSmall;
    lines_ = channels_last(y);
    const bool runs = (rows_ == 1 && !small_) || size_[3] == 1 || y.stride[3] == size_[4] * y.stride[4];
    in_place_ =
        y.plain() && y.dtype == compute_dtype<T> && runs && (lines_ ? size_[1] >= kernels_.lanes : y.stride[4] == 1);
    const Index elements = size_[0] * size_[1] * size_[2] * plane;
    slots_ = static_cast<int>(std::max<Index>(1, std::min<Index>(threads, elements >> 16)));
    if (lines_)
      group_ = in_place_ ? kMostChannels : kLineChannels;
    else
      group_ = std::clamp<Index>((in_place_ && !small_ ? kRun : kCopied) / plane, 1, kMostChannels);
    group_ = ceil_div(size_[1], round_up(ceil_div(size_[1], group_), slots_));
    tasks_ = ceil_div(size_[1], group_);
    const Index copied = in_place_ ? 0 : lines_ && small_ ? kPlanes * plane : rows_ * width_;  // pixels
    const Index pitch = lines_ ? round_up(group_ + kernels_.lanes, kernels_.lanes) : group_;
    slot_bytes_ = round_up((copied + (lines_ ? kSmall : 0)) * pitch * static_cast<Index>(sizeof(T)), 64);
  }

  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(slots_ * slot_bytes_); }
  std::string explain() const override {
    return "bias: sums of y " + std::string(in_place_ ? "in place" : "by tile copies") + "; " +
           effort(tasks_, std::min(tasks_, Index{slots_}), workspace_bytes());
  }

  void run(const Operands& o, std::byte* workspace) const override {
    parallel_for(tasks_, slots_, [&](Index i, int slot) {
      const Index c0 = i * group_, channels = std::min(group_, size_[1] - c0);
      T* copy = reinterpret_cast<T*>(workspace + slot * slot_bytes_);
      double total[kMostChannels] = {};
      if (lines_)
        add_lines(o.y, c0, channels, copy, total);
      else if (small_)
        add_planes(o.y, c0, channels, copy, total);
      else
        add_blocks(o.y, c0, channels, copy, total);
      store_row(kernel_set<double>(Isa::generic), advance(o.bias.data, o.bias.dtype, c0 * o.bias.stride[1]),
                o.bias.dtype, o.bias.stride[1], total, channels);
    });
  }

 private:
  // Rows of some channels, one after the other; those of the next channel are `step` elements on.
  struct Block {
    const T* data;
    Index step;
  };
  Block block(const View& y, const Index5& at, Index channels, Index rows, Index width, T* copy) const {
    if (in_place_) return {static_cast<const T*>(y.data) + y.offset(at), y.stride[1]};
    copy_in(kernels_, copy, {0, rows * width, 0, width, 1}, y.at(at, {1, channels, 1, rows, width}));
    return {copy, rows * width};
  }

  void add_blocks(const View& y, Index c0, Index channels, T* copy, double* total) const {
    // Planes of several blocks are read one behind the other where they lie so.
    const bool whole = size_[2] == 1 && rows_ == size_[3] && width_ == size_[4];
    const Index step = in_place_ && !whole ? 1 : channels;
    for (Index n = 0; n < size_[0]; ++n)
      for (Index first = 0; first < channels; first += step)
        for (Index d = 0; d < size_[2]; ++d)
          for (Index h = 0; h < size_[3]; h += rows_)
            for (Index w = 0; w < size_[4]; w += width_) {
              const Index rows = std::min(rows_, size_[3] - h), width = std::min(width_, size_[4] - w);
              const Block b = block(y, {n, c0 + first, d, h, w}, step, rows, width, copy);
              for (Index c = 0; c < step; ++c) total[first + c] += kernels_.sum(b.data + c * b.step, rows * width);
            }
  }

  void add_planes(const View& y, Index c0, Index channels, T* copy, double* total) const {
    alignas(64) T sums[kCopied];
    const Index planes = size_[0] * size_[2], plane = size_[3] * size_[4];
    for (Index i0 = 0; i0 < planes; i0 += kPlanes) {
      const Index count = std::min(kPlanes, planes - i0);
      if (count > 1) std::fill_n(sums, channels * plane, T{});
      Block all{sums, plane};
      for (Index i = i0; i < i0 + count; ++i) {
        const Block b = block(y, {i / size_[2], c0, i % size_[2], 0, 0}, channels, size_[3], size_[4], copy);
        if (count == 1)
          all = b;
        else if (b.step == plane)
          add(sums, b.data, channels * plane);
        else
          for (Index c = 0; c < channels; ++c) add(sums + c * plane, b.data + c * b.step, plane);
      }
      for (Index c = 0; c < channels; ++c) total[c] += kernels_.sum(all.data + c * all.step, plane);
    }
  }

  // The same blocks, as sums[pixel % kSmall][channel]. Where they are, whole vectors may begin before channel c0.
  void add_lines(const View& y, Index c0, Index channels, T* copy, double* total) const {
    constexpr Index kMostLanes = 16;
    const Index lanes = kernels_.lanes, before = in_place_ ? std::max<Index>(0, c0 + lanes - size_[1]) : 0;
    const Index pitch = round_up(channels + before, lanes), step = in_place_ ? y.stride[4] : pitch;
    alignas(64) T columns[kSmall * kMostLanes], ones[kMostLanes];
    T* const sums = copy;
    copy += kSmall * pitch;
    std::fill_n(ones, lanes, T{1});
    DepthwiseTap taps[kPlanes];
    const auto place = [&](const Index5& at, Index rows, Index width, T* to) -> const T* {
      if (in_place_) return static_cast<const T*>(y.data) + y.offset(at) - before;
      copy_in(kernels_, to, {0, 1, 0, width * pitch, pitch}, y.at(at, {1, channels, 1, rows, width}));
      return to;
    };
    // Runs of so many pixels, at most kSmall, which begin at the taps; the last one has `rest`.
    const auto add_runs = [&](const T* first, Index runs, Index width, Index rest) {
      std::fill(sums + width * pitch, sums + kSmall * pitch, T{});
      for (Index from = 0, to; from < width; from = to) {
        to = std::min(from + kTile, from < rest ? rest : width);
        for (Index block = 0; block < pitch; block += lanes) {
          const Index c = in_place_ ? std::clamp<Index>(channels + before - lanes, 0, block) : block;
          kernels_.depthwise(1, to - from, sums + from * pitch + c, 0, pitch, first + from * step + c, 0, step, taps,
                             from < rest ? runs : runs - 1, ones, false, {});
        }
      }
      for (Index c = 0; c < channels; c += lanes) {
        T* table[] = {columns};
        const Index count = std::min(lanes, channels - c);
        kernels_.transpose[static_cast<int>(compute_dtype<T>)](table, 1, kSmall, sums + before + c, nullptr, pitch,
                                                               kSmall, kSmall, count, {});
        for (Index j = 0; j < count; ++j) total[c + j] += kernels_.sum(columns + j * kSmall, kSmall);
      }
    };
    const Index planes = size_[0] * size_[2], plane = size_[3] * size_[4];
    for (Index i = 0; i < planes && small_; i += kPlanes) {
      const Index count = std::min(kPlanes, planes - i);
      const T* first = nullptr;
      for (Index t = 0; t < count; ++t) {
        const T* const at =
            place({(i + t) / size_[2], c0, (i + t) % size_[2], 0, 0}, size_[3], size_[4], copy + t * plane * pitch);
        if (t == 0) first = at;
        taps[t] = {at - first, 0};
      }
      add_runs(first, count, plane, plane);
    }
    for (Index t = 0; t < kPlanes; ++t) taps[t] = {static_cast<std::ptrdiff_t>(t * kSmall * step), 0};
    for (Index i = 0; i < planes && !small_; ++i)
      for (Index h = 0; h < size_[3]; h += rows_)
        for (Index w = 0; w < size_[4]; w += width_) {
          const Index rows = std::min(rows_, size_[3] - h), width = std::min(width_, size_[4] - w);
          const Index pixels = rows * width, runs = ceil_div(pixels, kSmall);
          add_runs(place({i / size_[2], c0, i % size_[2], h, w}, rows, width, copy), runs, std::min(pixels, kSmall),
                   pixels - (runs - 1) * kSmall);
        }
  }

  static void add(T* sums, const T* p, Index count) {
    for (Index i = 0; i < count; ++i) sums[i] += p[i];
  }

  Index5 size_;
  const KernelSet<T>& kernels_;
  Index width_, rows_, group_, tasks_, slot_bytes_;
  int slots_;
  bool in_place_, small_, lines_;  // lines of channels
};

}  // namespace

std::unique_ptr<Pass> make_bias_gradient(const View& y, bool wide, int threads) {
  if (wide || y.dtype == DType::float64) return std::make_unique<BiasGradient<double>>(y, threads);
  return std::make_unique<BiasGradient<float>>(y, threads);
}

}  // namespace convbwd
