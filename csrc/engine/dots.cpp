// Unknown w with few output channels in a group, depthwise above all: dot products along the pixels of zero-bordered
// flat copies of both images, or of the images where they are such already. With a single output channel the rows of a
// tile are one image shifted by a tap each, so that every vector is loaded once for several taps; with others they are
// output channels, and the columns those taps of several input channels that fill the tile. Several input channels of
// few output channels need no border: columns are the channels, rows the taps along the first axis, and y has a copy
// for each tap along the others, which lies where the pixels of x do, with zeros where that tap meets padding. A zero
// may meet what is not finite in the other image: a box whose sums are not finite is summed again, product by product.
#include <cmath>
#include <sstream>
#include <utility>

#include "engine/ahead.h"
#include "engine/dots_layout.h"
#include "engine/estimate.h"
#include "engine/pass.h"
#include "engine/slabs.h"
#include "engine/taps.h"
#include "engine/weights_out.h"

namespace convbwd {
namespace {

constexpr Index kTaskProducts = 1 << 16;  // products worth a task of its own
// Of an image that are read in a run: sums of several channels are formed side by side where there are many images. One
// channel each of 128 images (56x56, 88 channels) takes 3 times as long (Zen 5).
constexpr Index kRunBytes = 128 << 10;
constexpr Index kMostColumns = 64;  // of a tile, and results
// Of a box whose tiles hold several input channels: these stay in the nearest cache for all output channels.
constexpr Index kTilePixels = 1024;
// The same where y has masked copies, which channels share: 2048 take 1.1 times as long, 8192 1.2 (Zen 5, 3x3 windows,
// 32 and 64 channels 64x64 to 256x256).
constexpr Index kMaskedPixels = 4096;
// Products of a task that makes masked copies of its own: with 1/8 of them 32 channels 32x32 to one take 1.15 times as
// long (Zen 5).
constexpr Index kMaskedProducts = 1 << 19;
// Of a channel in memory that prefetchers follow: shorter ones are fetched by those who copy them.
constexpr Index kLongRun = 4 << 10;
// Of x, in bytes, during whose sums the next one is fetched: shorter ones fetch it while they are made.
constexpr Index kLargeCopy = 8 << 10;
constexpr Index kStraightVectors = 256;  // of a sum: 406 had 1.9 times PyTorch's error, adding lanes up costs time

// With x and y in each other's roles; w is what it was.
Operands exchanged(Operands o) {
  std::swap(o.x, o.y);
  return o;
}

PassSpec exchanged(PassSpec spec) {
  spec.problem = exchanged(spec.problem);
  spec.operands = exchanged(spec.operands);
  return spec;
}

template <class T>
class Dots final : public SlottedPass {
 public:
  Dots(const PassSpec& spec, const KernelSet<T>& kernels);
  bool plan();
  std::string explain() const override;
  Index3 tile() const override { return box_q_; }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  struct Slot {
    T *x, *y, *part, *sums, *some;  // sums: all, and those of some units
    Planes::Part *x_parts, *y_parts;
    bool x_stays = false, y_stays = false;  // where they are
    Index bytes;
  };
  struct OfEach {
    Index x = 0, y = 0;
  };

  static bool may_stay(const View& v) {
    const Index plane = v.size[2] * v.size[3] * v.size[4] * static_cast<Index>(sizeof(T));
    return v.dtype == compute_dtype<T> && (plane >= kLongRun || v.size[0] * v.size[1] * plane <= kFromMemory);
  }
  // Whether every box of an image without a border is read where it is.
  bool stays(const View& v) const {
    const bool row = box_q_[0] * box_q_[1] == 1 && v.plain() && v.stride[4] == 1;
    return may_stay(v) && (row || in_runs(v, box_q_));
  }
  // Of x at a time: without a border only those of a tile, or of some.
  Index copied_channels() const { return masked_ ? tiles_ * layout_.together : together_ * channels_; }
  Index y_elements(Index groups) const {
    return (groups - 1) * spec_.problem.co * layout_.y_channel() + layout_.y_size();
  }
  Slot carve(Carver carver) const;
  void measure(const Operands& o);
  void plan_together();
  PixelBox box(Index i) const { return pixel_box(i, pixels_, box_q_); }
  void locate(const Operands& o, const PixelBox& b, Slot& s) const;
  void copy_x(const Operands& o, Index n, Index channel, Index channels, const Slot& s, OfEach& bordered,
              Index next) const;
  void copy_y(const Operands& o, Index n, Index group, Index groups, const Slot& s, OfEach& bordered, Index next) const;
  /// Pixels of all calls of the kernel for a tile of so many.
  Index pixels_of_calls(Index length) const {
    Index calls = 0;
    for (const DotsLayout::Call& call : layout_.calls)
      calls += call.m == 0 ? ceil_div(spec_.problem.co, kernels_.dots_mr) : spec_.problem.co;
    return calls * length;
  }
  InTurn fetched(const Operands& o, const Slot& s, Index result, const PixelBox& b, Index next_unit, Index next_result,
                 bool new_unit) const;
  Index begin_of(const View& v, const Planes& planes, Index unit, Index channel) const;
  /// Elements from what is copied to what is copied next.
  OfEach next_copies(const Operands& o, Index unit, Index result, Index next_unit, Index next_result) const;
  void sum_box(const Operands& o, Index n, Index g, Index c0, Index channels, const PixelBox& b, const Slot& s,
               const OfEach& next, InTurn& ahead) const;
  void sum_carefully(const PixelBox& b, const T* x, const T* y, Index y_channel, T* part, Index row) const;
  void store(const Operands& o, Index g, Index c0, const T* sums) const;
  Index sum_count() const { return spec_.problem.co * channels_ * spec_.problem.taps(); }
  Index units_of_slab() const { return ceil_div(slabs_.units, slabs_.count); }
  // Those whose sums are added up before they are added to the others of a slab: with the square root of their number
  // in each the error grows no faster than it, even where all roundings go one way. Of few units all.
  Index units_together() const {
    const Index units = units_of_slab(), root = static_cast<Index>(std::sqrt(static_cast<double>(units)));
    return std::min(units, std::max<Index>(kStraight, root));
  }

  const KernelSet<T>& kernels_;
  bool exchanged_;  // x and y are in each other's roles, taps count from the last one
  bool masked_;     // y has copies with zeros for padding, and x no border
  Index3 pixels_;   // that boxes divide: of x where y is masked, else of y
  Index3 box_q_;
  DotsLayout layout_;
  bool copies_x_ = true, copies_y_ = true;
  Index channels_ = 1, channel_blocks_ = 1, boxes_ = 1, batch_ = 1;
  Index together_ = 1, tiles_ = 1;  // groups, and tiles without a border, that are copied together
  Slabs slabs_;                     // of boxes of images
  Index slot_bytes_ = 0;
};

template <class T>
Dots<T>::Dots(const PassSpec& spec, const KernelSet<T>& kernels)
    : SlottedPass(dots_exchange_roles(spec.problem, kernels) ? exchanged(spec) : spec),
      kernels_(kernels),
      exchanged_(dots_exchange_roles(spec.problem, kernels)),
      masked_(masks_padding(spec_.problem, kernels)),
      pixels_(masked_ ? spec_.problem.x : spec_.problem.y),
      box_q_(pixels_),
      channels_(spec_.problem.ci) {}

template <class T>
typename Dots<T>::Slot Dots<T>::carve(Carver carver) const {
  Slot s{};
  if (copies_x_) s.x = carver.take<T>(copied_channels() * layout_.x.channel() + layout_.x.slack() + layout_.lead);
  if (copies_y_) s.y = carver.take<T>(layout_.lead + y_elements(together_) + layout_.lead);
  s.part = carver.take<T>(spec_.problem.co * layout_.together * spec_.problem.taps());
  s.x_parts = carver.take<Planes::Part>(layout_.x.parts());
  s.y_parts = carver.take<Planes::Part>(static_cast<Index>(layout_.y.size()));
  if (!slabs_.several()) s.sums = carver.take<T>(batch_ * sum_count());
  if (units_together() < units_of_slab()) s.some = carver.take<T>(batch_ * sum_count());
  s.bytes = carver.used();
  return s;
}

template <class T>
void Dots<T>::measure(const Operands& o) {
  const Problem& p = spec_.problem;
  layout_ = DotsLayout(p, masked_, box_q_, kernels_.dots_mr, kernels_.dots_nt, together_ > 1);
  const bool pointwise = p.pointwise();
  copies_x_ = !((pointwise || masked_) && stays(o.x)), copies_y_ = !(pointwise && stays(o.y));
  slot_bytes_ = carve({}).bytes;
  boxes_ = pixel_boxes(pixels_, box_q_);
}

template <class T>
bool Dots<T>::plan() {
  const Problem& p = spec_.problem;
  const Operands dense = densely(spec_.operands);
  const Index budget = static_cast<Index>(spec_.budget),
              limit = std::min(masked_ ? budget / 2 : budget, kBoxBytes);  // two slots
  measure(dense);
  if (layout_.together > 1) {
    const Index pixels = masked_ ? kMaskedPixels : kTilePixels * (p.co > kernels_.dots_mr ? 1 : 2);
    Index inner = 1;
    for (std::size_t a = 3; a-- > 0; inner *= pixels_[a]) box_q_[a] = even_part(pixels_[a], pixels / inner);
  }
  const auto fewer = [&] {  // channels, which fill tiles
    const Index half = ceil_div(channels_, 2);
    return half > layout_.together ? round_up(half, layout_.together) : half;
  };
  // With the copy of x that layouts need which are not dense.
  const auto whole = [&] {
    return slot_bytes_ +
           (masked_ && !copies_x_ ? copied_channels() * layout_.x.channel() * static_cast<Index>(sizeof(T)) : 0);
  };
  for (measure(dense); slot_bytes_ > limit || whole() > budget; measure(dense)) {
    if (!masked_ && channels_ > 1 && channels_ * layout_.x.channel() > layout_.y_size())
      channels_ = fewer();
    else if (box_q_[0] > 1)
      box_q_[0] = ceil_div(box_q_[0], 2);
    else if (box_q_[1] > 8)
      box_q_[1] = ceil_div(box_q_[1], 2);
    else if (box_q_[2] > 512)
      box_q_[2] = ceil_div(box_q_[2], 2);
    else if (whole() <= budget)
      break;
    else if (channels_ > 1)
      channels_ = fewer();
    else if (box_q_[1] > 1)
      box_q_[1] = ceil_div(box_q_[1], 2);
    else if (box_q_[2] > kernels_.lanes)
      box_q_[2] = ceil_div(box_q_[2], 2);
    else
      return false;
  }
  if (masked_)  // channels to share where there are few boxes
    while (channels_ > layout_.together && p.groups * ceil_div(p.ci, channels_) * p.n * boxes_ < kMinTasks &&
           p.y_plane() * p.taps() * fewer() * p.co > boxes_ * kMaskedProducts)
      channels_ = fewer();
  channel_blocks_ = ceil_div(p.ci, channels_);
  const Index results = p.groups * channel_blocks_, units = p.n * boxes_;
  const Index sum_bytes = round_up(sum_count() * static_cast<Index>(sizeof(T)), 64);
  slabs_ = {.results = results, .units = units};
  if (results < kMinTasks)
    slabs_.count =
        std::clamp<Index>(std::min(ceil_div(kMinTasks, results), budget / 2 / (results * sum_bytes)), 1, units);
  measure(dense);
  if (!slabs_.several()) {
    const Index products = std::max<Index>(1, p.y_plane() * p.n * p.taps() * channels_ * p.co);
    const Index channel_bytes = std::max<Index>(1, p.x_plane() * channels_) * static_cast<Index>(sizeof(T));
    const Index wanted =  // those of a group share the copy of y
        std::max({kTaskProducts / products, p.n > 1 ? kRunBytes / channel_bytes : 1, channel_blocks_});
    batch_ = std::clamp<Index>(wanted, 1, std::max<Index>(1, results / std::max<Index>(kMinTasks, 4 * spec_.threads)));
    for (measure(dense); slot_bytes_ > budget && batch_ > 1; measure(dense)) batch_ = ceil_div(batch_, 2);
    slabs_.results = ceil_div(results, batch_);
  }
  const auto fits = [&] { return share(slabs_.tasks(), slabs_.bytes<T>(sum_count()), slot_bytes_); };
  if (!fits()) return false;
  measure(spec_.operands);
  plan_together();
  fits();
  return true;
}

// Where channels lie side by side those of a line are copied at a time: of several groups, of which every thread gets
// some, or of several tiles.
template <class T>
void Dots<T>::plan_together() {
  const Problem& p = spec_.problem;
  const Operands& o = spec_.operands;
  const bool across = (copies_x_ && channels_last(o.x)) || (copies_y_ && channels_last(o.y));
  if (across && masked_ && copies_x_) {
    tiles_ = ceil_div(kLineChannels, layout_.together);
    measure(o);
    if (share(slabs_.tasks(), slabs_.bytes<T>(sum_count()), slot_bytes_)) return;
    tiles_ = 1;
    return measure(o);
  }
  if (!across || masked_ || slabs_.several() || channel_blocks_ > 1) return;
  const Index batch = batch_;
  const auto fits = [&](Index together) {
    together_ = together, batch_ = round_up(batch, together);
    slabs_.results = ceil_div(p.groups, batch_);
    measure(o);
    return slot_bytes_ <= kTogetherBytes && share(slabs_.tasks(), 0, slot_bytes_);
  };
  Index together = std::min<Index>(groups_of_line(p), ceil_div(p.groups, spec_.threads));
  while (!fits(together) && together > 1) together = ceil_div(together, 2);
}

// Where a box of an image lies.
template <class T>
Index Dots<T>::begin_of(const View& v, const Planes& planes, Index unit, Index channel) const {
  const Index3 q0 = boxes_ > 1 ? box(unit / spec_.problem.n).q0 : Index3{};
  return v.offset(
      {unit % spec_.problem.n, channel, q0[0] * planes.step(0), q0[1] * planes.step(1), q0[2] * planes.step(2)});
}

// From a result's part of a unit to what is copied next.
template <class T>
typename Dots<T>::OfEach Dots<T>::next_copies(const Operands& o, Index unit, Index result, Index next_unit,
                                              Index next_result) const {
  const Problem& p = spec_.problem;
  const auto distance = [&](const View& v, const Planes& planes, Index channel, Index next) {
    if (!Planes::far(v)) return Index{0};
    return begin_of(v, planes, next_unit, next) - begin_of(v, planes, unit, channel);
  };
  const auto first = [&](Index r) { return r / channel_blocks_ * p.ci + r % channel_blocks_ * channels_; };
  const auto group = [&](Index r) { return r / channel_blocks_ * p.co; };
  return {distance(o.x, layout_.x, first(result), first(next_result)),
          distance(o.y, layout_.y[0], group(result), group(next_result))};
}

// While the products of a box are summed: the next one's part of x, and of y unless it is that of the same group.
template <class T>
InTurn Dots<T>::fetched(const Operands& o, const Slot& s, Index result, const PixelBox& b, Index next_unit,
                        Index next_result, bool new_unit) const {
  const Problem& p = spec_.problem;
  const PixelBox next = box(next_unit / p.n);
  const Index n = next_unit % p.n, group = next_result / channel_blocks_,
              c0 = next_result % channel_blocks_ * channels_;
  View x, y;
  if (!s.x_stays) x = layout_.x.source(o.x, n, group * p.ci + c0, std::min(channels_, p.ci - c0), next);
  if (!s.y_stays && (new_unit || result / channel_blocks_ != group))
    y = layout_.y[0].source(o.y, n, group * p.co, p.co, next);
  const Index work = ceil_div(channels_, layout_.together) * pixels_of_calls(layout_.length(b.q0, b.q1));
  return {Ahead(x, work), Ahead(y, work)};
}

template <class T>
void Dots<T>::locate(const Operands& o, const PixelBox& b, Slot& s) const {
  layout_.x.locate(o.x, b.q0, masked_ ? b.q1 : layout_.x.end(), s.x_parts);
  Planes::Part* parts = s.y_parts;
  for (const Planes& y : layout_.y) y.locate(o.y, b.q0, masked_ ? y.end() : b.q1, parts++);
  s.x_stays =
      !copies_x_ || (layout_.exact && may_stay(o.x) && s.x_parts->run >= layout_.length(b.q0, b.q1) + layout_.reach);
  s.y_stays =
      !copies_y_ || (layout_.lead == 0 && !masked_ && may_stay(o.y) && s.y_parts->run >= layout_.length(b.q0, b.q1));
}

template <class T>
void Dots<T>::copy_x(const Operands& o, Index n, Index channel, Index channels, const Slot& s, OfEach& bordered,
                     Index next) const {
  if (s.x_stays || masked_) return;  // masked, a tile's channels are copied at a time
  std::fill_n(s.x + channels * layout_.x.channel() + layout_.x.slack(), layout_.lead, T{});
  layout_.x.copy(kernels_, o.x, s.x_parts, n, channel, channels, s.x, channels == bordered.x, next);
  bordered.x = channels;
}

template <class T>
void Dots<T>::copy_y(const Operands& o, Index n, Index group, Index groups, const Slot& s, OfEach& bordered,
                     Index next) const {
  if (s.y_stays) return;
  const Index co = spec_.problem.co;
  T* to = s.y + layout_.lead;
  const Planes::Part* parts = s.y_parts;
  for (const Planes& y : layout_.y) {
    y.copy(kernels_, o.y, parts++, n, group * co, groups * co, to, groups * co == bordered.y, next);
    to += co * layout_.y_channel();
  }
  bordered.y = groups * co;
}

// Adds the products of one box and image to sums[output channel][input channel][tap].
template <class T>
void Dots<T>::sum_box(const Operands& o, Index n, Index g, Index c0, Index channels, const PixelBox& b, const Slot& s,
                      const OfEach& next, InTurn& ahead) const {
  const Problem& p = spec_.problem;
  const Index taps = p.taps();
  const auto place = [](const View& v, const Planes::Part* parts, Index n_, Index c) {
    return static_cast<const T*>(v.data) + v.offset({n_, c, 0, 0, 0}) + parts->at;
  };
  const Index x_channel = s.x_stays ? o.x.stride[1] : layout_.x.channel(),
              y_channel = s.y_stays ? o.y.stride[1] : layout_.y_channel();
  const T* const y = s.y_stays ? place(o.y, s.y_parts, n, g * p.co) : s.y + layout_.lead;
  const T* x = s.x_stays ? place(o.x, s.x_parts, n, g * p.ci + c0) : s.x;
  const bool by_tiles = masked_ && !s.x_stays;  // x is copied
  const Index length = layout_.length(b.q0, b.q1);
  T tile[kMostColumns];
  const auto dots = [&](Index m, Index nt, Index count, const T* rows, Index lda, const T* columns,
                        const std::ptrdiff_t* offset, T* out, Index ldo) {
    const Index step = round_up(even_part(count, kStraightVectors * kernels_.lanes), kernels_.lanes);
    for (Index i = 0, now; i < count; i += now) {
      now = std::min(step, count - i);
      kernels_.dots(static_cast<int>(m), static_cast<int>(nt), now, rows + i, lda, columns + i, offset, out, ldo,
                    ahead.next(now, now / kernels_.lanes));
    }
  };
  for (Index c = 0, now = 0; c < channels; c += now, x += now * x_channel) {
    now = std::min(layout_.together, channels - c);
    if (by_tiles && c % copied_channels() == 0) {
      const Index count = std::min(copied_channels(), channels - c);
      layout_.x.copy(kernels_, o.x, s.x_parts, n, g * p.ci + c0 + c, count, s.x, false, count * o.x.stride[1]);
      x = s.x;
    }
    const Index results = now * taps;
    if (masked_ && s.x_stays && from_memory(o.x) && length * static_cast<Index>(sizeof(T)) > kLongRun) {
      const Index left = channels - c - now;  // of this box, then the first of the next one
      const T* const first = left > 0 ? x + now * x_channel : place(o.x, s.x_parts, n, g * p.ci + c0) + next.x;
      const Index runs = std::min(layout_.together, left > 0 ? left : channels), item = static_cast<Index>(sizeof(T));
      ahead = {Ahead(first, length * item, runs, x_channel * item, pixels_of_calls(length)), {}};
    }
    for (const DotsLayout::Call& call : layout_.calls) {
      const Index nt = static_cast<Index>(call.taps.size()), columns = now * nt;
      std::array<std::ptrdiff_t, kMostColumns> offset;
      std::ptrdiff_t* of_column = offset.data();
      for (Index i = 0; i < now; ++i)
        for (const Index at : call.offset) *of_column++ = i * x_channel + at;
      if (call.m == 0) {
        for (Index m0 = 0; m0 < p.co; m0 += kernels_.dots_mr) {
          const Index m = std::min<Index>(kernels_.dots_mr, p.co - m0);
          T* part = s.part + m0 * results + call.taps[0];
          for (Index i = 0; i < m; ++i) std::fill_n(part + i * results, columns, T{});
          dots(m, columns, length, y + m0 * y_channel, y_channel, x, offset.data(), part, results);
        }
        continue;
      }
      for (Index m = 0; m < p.co; ++m) {
        std::fill(tile, tile + call.m * columns, T{});
        dots(call.m, columns, length + (masked_ ? 0 : (call.m - 1) * -call.lda), y + m * y_channel + call.y, call.lda,
             x, offset.data(), tile, columns);
        const T* from = tile;
        for (Index i = 0; i < call.m; ++i)
          for (T* to = s.part + m * results; to < s.part + (m + 1) * results; to += taps)
            for (const Index first : call.taps) {
              const Index t = first + i * call.row_tap;
              if (call.last == 0 || t < call.last) to[t] = *from;
              ++from;
            }
      }
    }
    const auto finite = [&](Index i) {
      bool all = true;
      for (Index m = 0; m < p.co; ++m) all &= all_finite(s.part + m * results + i * taps, taps);
      return all;
    };
    for (Index i = 0; i < now; ++i)
      if (!finite(i)) sum_carefully(b, x + i * x_channel, y, y_channel, s.part + i * taps, results);
    for (Index m = 0; m < p.co; ++m)
      for (Index i = 0; i < now; ++i)
        for (Index t = 0; t < taps; ++t)
          s.sums[(m * channels_ + c + i) * taps + (exchanged_ ? taps - 1 - t : t)] +=
              s.part[m * results + i * taps + t];
  }
}

// part[output channel][tap] of one input channel, rows of so many elements, from products of pairs that exist.
template <class T>
void Dots<T>::sum_carefully(const PixelBox& b, const T* x, const T* y, Index y_channel, T* part, Index row) const {
  const Problem& p = spec_.problem;
  for (Index t = 0; t < p.taps(); ++t) {
    const Index3 tap = tap_at(p, t);
    const DotsLayout::Place place = layout_.place(t);
    Index3 from, to;
    for (std::size_t a = 0; a < 3; ++a) {
      const Range valid = valid_outputs(axis_sizes(p, a), tap[a]);
      from[a] = std::max<Index>(valid.begin + place.pixel[a] - b.q0[a], 0);
      to[a] = std::min(valid.end + place.pixel[a], b.q1[a]) - b.q0[a];
    }
    for (Index m = 0; m < p.co; ++m) {
      T sum{};
      for (Index i = from[0]; i < to[0]; ++i)
        for (Index j = from[1]; j < to[1]; ++j)
          for (Index k = from[2]; k < to[2]; ++k) {
            const Index at = i * layout_.x.plane() + j * layout_.x.row() + k;
            sum += y[place.y + m * y_channel + at] * x[place.x + at];
          }
      part[m * row + t] = sum;
    }
  }
}

template <class T>
void Dots<T>::store(const Operands& o, Index g, Index c0, const T* sums) const {
  const Problem& p = spec_.problem;
  const Index channels = std::min(channels_, p.ci - c0), step = exchanged_ ? 1 : channels;
  for (Index m = 0; m < p.co; ++m)
    for (Index c = 0; c < channels; c += step) {
      Index row = g * p.co + m, column = c0 + c;
      if (exchanged_) std::swap(row, column);
      store_taps(kernels_, o.w.at({row, column, 0, 0, 0}, {1, step, p.w[0], p.w[1], p.w[2]}),
                 sums + (m * channels_ + c) * p.taps(), {0, p.taps(), p.w[1] * p.w[2], p.w[2], 1});
    }
}

template <class T>
void Dots<T>::run(const Operands& operands, std::byte* workspace) const {
  const Operands o = exchanged_ ? exchanged(operands) : operands;
  const Problem& p = spec_.problem;
  const Index results = p.groups * channel_blocks_;
  const Index copied = copied_channels() * layout_.x.channel() * static_cast<Index>(sizeof(T));
  const bool far = !masked_ && copied > kLargeCopy && fetched_ahead(p, o.x, o.y);
  const auto results_of = [&](Index batch) { return Range{batch * batch_, std::min((batch + 1) * batch_, results)}; };
  const auto sum = [&](const Slabs::Task& task, int number, T* sums) -> const T* {
    Slot s = carve(slot(workspace, number));
    if (layout_.lead > 0) {
      std::fill(s.y, s.y + layout_.lead, T{});
      T* behind_y = s.y + layout_.lead + y_elements(together_);
      std::fill(behind_y, behind_y + layout_.lead, T{});
    }
    const Range part = results_of(task.result);
    const Index first = part.begin, last = part.end;
    if (!sums) sums = s.sums;
    const Index elements = (last - first) * sum_count(), together = units_together();
    T* const some = s.some ? s.some : sums;
    std::fill_n(sums, elements, T{});
    if (s.some) std::fill_n(some, elements, T{});
    Index located = -1;
    OfEach bordered;  // channels whose copies have the zeros around them already
    for (Index u = task.units.begin; u < task.units.end; ++u) {
      const PixelBox b = box(u / p.n);
      if (located != u / p.n) {
        located = u / p.n, bordered = {};
        locate(o, b, s);
      }
      for (Index r = first; r < last; ++r) {
        const auto [next_unit, next_result] = [&]() -> std::pair<Index, Index> {
          if (r + 1 < last) return {u, r + 1};
          if (u + 1 < slabs_.units) return {u + 1, first};
          return {0, last % results};
        }();
        const OfEach next =
            far || (s.x_stays && s.y_stays && !masked_) ? OfEach{} : next_copies(o, u, r, next_unit, next_result);
        const Index group = r / channel_blocks_, c0 = r % channel_blocks_ * channels_,
                    channels = std::min(channels_, p.ci - c0), member = (r - first) % together_;
        if (member == 0) {
          const Index groups = std::min(together_, last - r);
          if (r == first || (r - 1) / channel_blocks_ != group) copy_y(o, u % p.n, group, groups, s, bordered, next.y);
          copy_x(o, u % p.n, group * p.ci + c0, groups * channels, s, bordered, next.x);
        }
        InTurn ahead;
        if (far) ahead = fetched(o, s, r, b, next_unit, next_result, next_result == first);
        Slot of_group = s;
        if (!s.x_stays) of_group.x += member * channels * layout_.x.channel();
        if (!s.y_stays) of_group.y += member * p.co * layout_.y_channel();
        of_group.sums = some + (r - first) * sum_count();
        sum_box(o, u % p.n, group, c0, channels, b, of_group, next, ahead);
      }
      if (s.some && ((u + 1 - task.units.begin) % together == 0 || u + 1 == task.units.end))
        for (Index i = 0; i < elements; ++i) sums[i] += std::exchange(some[i], T{});
    }
    return sums;
  };
  slabs_.run<T>(slots(), workspace, sum_count(), sum, [&](Index batch, int, const T* sums) {
    const Range part = results_of(batch);
    for (Index r = part.begin; r < part.end; ++r, sums += sum_count())
      store(o, r / channel_blocks_, r % channel_blocks_ * channels_, sums);
  });
}

template <class T>
std::string Dots<T>::explain() const {
  std::ostringstream s;
  s << "dots w (" << kernels_.name << "): boxes of " << box_q_[0] << 'x' << box_q_[1] << 'x' << box_q_[2]
    << " pixels, ";
  if (masked_) s << layout_.y.size() << " masked copies of " << (exchanged_ ? "x, " : "y, ");
  s << layout_.calls.size() << " tiles for each of " << channels_ << (exchanged_ ? " output" : " input")
    << " channels, " << batch_ << " results a task, " << slabs_.count << " slabs; " << effort();
  return s.str();
}

}  // namespace

template <class T>
std::unique_ptr<Pass> make_dots(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<Dots<T>>(spec, kernels);
}
template std::unique_ptr<Pass> make_dots(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_dots(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
