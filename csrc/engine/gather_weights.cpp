// Unknown w by the gathering kernel: a reduction over output pixels. Rows of a tile are (input channel, tap) pairs
// whose taps lie inside the image for the same outputs, so that one list of segments serves the tile and padding is
// never multiplied; columns are output channels, y being packed to [pixel][column]. Steps of one leave x and y free to
// exchange these roles, which fills the columns where there are few output channels. Long reductions run in chunks
// whose sums are added in order, and where there are few results in slabs that separate tasks sum and one adds up.
#include <sstream>

#include "engine/estimate.h"
#include "engine/pass.h"
#include "engine/weights_out.h"
#include "format/copy.h"

namespace convbwd {
namespace {

// Products of a chunk: the panel stays in L2. Long ones are up to 8 % faster, and take 0.6 of the time where the rows
// of many channels come from memory; but they leave fewer chunks to share.
constexpr Index kChunkPixels = 512, kLongestChunkPixels = 2048;
constexpr Index kTileBytes = 256 << 10;  // results of a task: stay in L2 beside the panel
constexpr Index kLeastPixels = 32;       // of a chunk: below, narrower columns are better
constexpr Index kCopyBytes = 32 << 10;   // of the image that are copied at a time: stay in L1 beside the panel's rows
constexpr Index kStraight = 48;          // products that are not summed in blocks
// Short sums over images of a few pixels are formed image by image: 64 products in blocks of 32 had 1.6 times the error
// of PyTorch, which does so.
constexpr Index kShort = 128, kFewPixels = 24;
constexpr double kLittle = 1 << 16;  // products of a problem: more would take noticeably longer
constexpr Index kMinTasks = 8;
constexpr double kShared = 1 << 21;  // products that two tasks share where slabs do not fit: 20 us
// Of images whose short rows are summed across: those of 64 images of 64 channels 4x4 (262 KB) take 1.26 times as long,
// of 3x3 (147 KB) 0.92 times, of 1x1 0.8 times wherever they are (Zen 5).
constexpr Index kNearBytes = 160 << 10;
// Each task packs its panel: as many rows of so few pixels are quicker without slabs.
constexpr Index kManyRows = 192, kMostPacked = 2048;

// The same sums with x for y and y for x, both of which step by one: taps go backwards.
Problem exchanged(const Problem& p) {
  Problem e = p;
  std::swap(e.ci, e.co);
  std::swap(e.x, e.y);
  for (std::size_t a = 0; a < 3; ++a) e.pad_before[a] = (p.w[a] - 1) * p.dilation[a] - p.pad_before[a];
  return e;
}

template <class T>
class GatherWeights final : public SlottedPass {
 public:
  GatherWeights(const PassSpec& spec, const KernelSet<T>& kernels);
  bool plan();
  std::string explain() const override;
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Taps of one axis that lie inside the image for the same outputs.
  struct TapClass {
    Range outputs;
    std::vector<Index> taps;
  };
  struct Slot {
    T *tiles, *panel, *copy, *lines;
    Segment* segments;
  };
  using Index4 = std::array<Index, 4>;  // in the order of order_

  bool search();
  bool fit();
  Index most_rows(int vectors) const;
  bool configure(int vectors, Index rows, Index taps);
  Slot carve(Carver& carver) const;
  // Results of a task: columns from n0 on, rows of channels from m0 on, taps from t0 on; rows of them lie `pitch`
  // apart.
  struct Block {
    Index g, n0, n, m0, m, t0, taps, pitch;
  };
  Block block_of(Index number) const;
  // Whether results are formed where they belong, which rows of whole vectors that are rows of w can be. Tasks have
  // more rows then: the shapes of GEMMs would depend on the layout.
  bool in_place() const {
    const View& w = spec_.operands.w;
    return kernels_.any_bstep && swap_ && problem_.pointwise() && slabs_ == 1 && w.dtype == compute_dtype<T> &&
           w.plain() && w.stride[1] == 1;
  }
  bool in_place(const Block& b) const { return in_place() && b.n % kernels_.lanes == 0; }
  View weights(const Operands& o, const Block& b) const {
    return o.w.at({b.g * spec_.problem.co + (swap_ ? b.m0 : b.n0), swap_ ? b.n0 : b.m0, 0, 0, 0}, o.w.size);
  }
  void sum(const Operands& o, const Block& b, Index slab, const Slot& s, T* tiles) const;
  void chunk(const Operands& o, const Block& b, Index number, const Slot& s, T* tiles, bool accumulate) const;
  // Adds the products of some rows of channels with the packed panel of a chunk.
  void multiply(const Operands& o, const Block& b, const Index4& begin, const Index4& extent, const Slot& s, T* tiles,
                bool accumulate) const;
  void store(const Operands& o, const Block& b, const T* tiles, T* lines) const;
  // A straight sum over a chunk has up to 3 times PyTorch's error, a blocked one takes 3 % longer (Sapphire Rapids).
  const GatherKernel<T>& kernel(Index columns) const {
    return gathering_kernel(kernels_, columns, chunk_pixels_ > kStraight);
  }
  Index width() const { return vectors_ * kernels_.lanes; }

  const KernelSet<T>& kernels_;
  const bool swap_;        // x and y have exchanged their roles
  const Problem problem_;  // with these roles: y is packed, x the image
  const Index cm_, cn_;
  bool copy_ = false;  // image operand through a tile copy
  std::array<std::vector<TapClass>, 3> classes_;
  // Nest of the reduction, axes 0 (n) and 1 to 3 (d, h, w) of an image; the innermost is the one with long rows.
  Index4 order_{0, 1, 2, 3}, size_, chunk_, chunks_;
  Index chunk_pixels_ = 1, chunk_count_ = 1, slabs_ = 1;
  Index copy_plane_ = 0, copy_images_ = 1, copy_rows_ = 1;  // rows of channels that are multiplied at a time
  int vectors_ = 1;
  Index rows_ = 1, row_blocks_ = 1, column_blocks_ = 1;
  Index taps_ = 1, tap_blocks_ = 1;  // all taps, unless those of a single channel are too many for a task
  Index tile_elements_ = 0, least_slots_ = 1;
  // Of blocks that may be tried.
  int widest_ = 1;
  bool halves_rows_ = false;  // a column block, whose rows two tasks share unless slabs do
};

template <class T>
GatherWeights<T>::GatherWeights(const PassSpec& spec, const KernelSet<T>& kernels)
    : SlottedPass(spec),
      kernels_(kernels),
      swap_(exchanges_roles(spec.problem, kernels)),
      problem_(swap_ ? exchanged(spec.problem) : spec.problem),
      cm_(problem_.ci),
      cn_(problem_.co) {
  const Problem& p = problem_;
  copy_ = (swap_ ? spec_.operands.y : spec_.operands.x).dtype != compute_dtype<T>;
  for (int a = 0; a < 3; ++a) {
    const AxisSizes sizes = axis_sizes(p, a);
    for (Index t = 0; t < sizes.kernel; ++t) {
      const Range outputs = valid_outputs(sizes, t);
      const auto same =
          std::find_if(classes_[a].begin(), classes_[a].end(), [&](const TapClass& c) { return c.outputs == outputs; });
      if (same != classes_[a].end())
        same->taps.push_back(t);
      else
        classes_[a].push_back({outputs, {t}});
    }
  }
  const Index4 natural{p.n, p.y[0], p.y[1], p.y[2]};
  const auto longest = std::max_element(natural.rbegin(), natural.rend());
  // Outputs that follow each other in x.
  const Index run = p.pointwise() ? p.y_plane() : std::min(p.x[2], p.y[2]);
  const Index x_elements = p.n * p.groups * spec_.problem.ci * spec_.problem.x_plane();
  const bool near = x_elements * static_cast<Index>(sizeof(T)) <= kNearBytes;
  if (run < (near ? 8 : 3) && *longest > 2 * run) {
    const auto axis = static_cast<std::size_t>(natural.rend() - longest - 1);
    std::rotate(order_.begin() + static_cast<std::ptrdiff_t>(axis),
                order_.begin() + static_cast<std::ptrdiff_t>(axis) + 1, order_.end());
  }
  for (std::size_t i = 0; i < 4; ++i) size_[i] = natural[static_cast<std::size_t>(order_[i])];
}

template <class T>
typename GatherWeights<T>::Slot GatherWeights<T>::carve(Carver& carver) const {
  Slot s{};
  if (slabs_ == 1) s.tiles = carver.take<T>(tile_elements_);
  s.panel = carver.take<T>(chunk_pixels_ * width());
  if (copy_) s.copy = carver.take<T>(copy_images_ * copy_plane_ * copy_rows_);
  s.segments = carver.take<Segment>(chunk_pixels_ / chunk_[3]);
  if (spec_.operands.w.dtype != compute_dtype<T>) s.lines = carver.take<T>(kStoreRows * width());
  return s;
}

template <class T>
bool GatherWeights<T>::configure(int vectors, Index rows, Index taps) {
  const Problem& p = problem_;
  vectors_ = vectors;
  taps_ = taps;
  tap_blocks_ = ceil_div(p.taps(), taps_);
  rows_ = copy_rows_ = std::min(rows, cm_);
  row_blocks_ = ceil_div(cm_, rows_);
  column_blocks_ = ceil_div(cn_, width());
  const Index last = cn_ % width(), columns = in_place() ? (last % kernels_.lanes ? last : 0) : std::min(width(), cn_);
  tile_elements_ = rows_ * taps_ * round_up(columns, kernels_.lanes);
  if (copy_) {
    Index4 reach{1, 1, 1, 1};
    for (std::size_t i = 0; i < 4; ++i) {
      const auto axis = static_cast<std::size_t>(order_[i]);
      if (axis == 0)
        reach[0] = chunk_[i];
      else
        reach[axis] = std::min(p.x[axis - 1],
                               (chunk_[i] - 1) * p.stride[axis - 1] + (p.w[axis - 1] - 1) * p.dilation[axis - 1] + 1);
    }
    copy_plane_ = (ceil_div(reach[1] * reach[2] * reach[3], kernels_.lanes) | 1) * kernels_.lanes;
    copy_images_ = reach[0];
  }
  const Index tasks = p.groups * row_blocks_ * tap_blocks_ * column_blocks_ * slabs_;
  const Index tiles = slabs_ > 1 ? tasks * round_up(tile_elements_ * static_cast<Index>(sizeof(T)), 64) : 0;
  const Index least = ceil_div(kernels_.gather[vectors - 1].mr, taps_);  // rows that fill the kernel's tile
  for (const Index bytes : {kCopyBytes, Index{0}}) {
    if (copy_) {
      const Index fit = bytes / (copy_images_ * copy_plane_ * static_cast<Index>(sizeof(T)));
      copy_rows_ = std::min(rows_, std::max<Index>(1, fit / least) * least);
    }
    Carver slot;
    carve(slot);
    if (share(tasks, tiles, static_cast<Index>(slot.used()), least_slots_)) return true;
  }
  return false;
}

template <class T>
bool GatherWeights<T>::plan() {
  // Two slots where they fit, whatever the number of threads is: slabs must not depend on it, nor the shapes of GEMMs.
  for (least_slots_ = 2; !search(); --least_slots_)
    if (least_slots_ == 1) return false;
  if (spec_.threads == 1 && slabs_ == 1 && kernels_.any_bstep) {  // blocks may: larger ones pack less
    least_slots_ = 1, halves_rows_ = false;
    fit();
  }
  if (!(swap_ ? spec_.operands.y : spec_.operands.x).plain()) {
    copy_ = true;
    configure(vectors_, rows_, taps_);
  }
  return true;
}

template <class T>
bool GatherWeights<T>::search() {
  const Problem& p = problem_;
  const Index lanes = kernels_.lanes, item = static_cast<Index>(sizeof(T)), budget = static_cast<Index>(spec_.budget);
  int widest = widest_block(kernels_, cn_);
  // Chunks and slabs fix the order of sums: they depend on the shape alone. Panels may take a third of the budget.
  const auto affordable = [&](int v) { return budget / 3 / (v * lanes * item); };
  const Index volume = p.n * p.y_plane();
  while (widest > 1 && affordable(widest) < std::min(kLeastPixels, volume)) --widest;
  const bool by_image = volume > kStraight && volume <= kShort && p.y_plane() <= kFewPixels && p.products() <= kLittle;
  const Index results = p.groups * ceil_div(cn_, widest * lanes);
  const Index full_tile = cm_ * p.taps() * std::min(widest * lanes, round_up(cn_, lanes)) * item;
  const Index parts = std::max<Index>(1, full_tile / kTileBytes);
  Index longest = kLongestChunkPixels;
  if (results * parts < kMinTasks)
    while (longest > kChunkPixels && results * parts * volume < 2 * kMinTasks * longest) longest /= 2;
  Index pixels = std::min(by_image ? p.y_plane() : longest, affordable(widest));
  if (pixels < 1) return false;
  for (int i = 3; i >= 0; --i) {
    const auto a = static_cast<std::size_t>(i);
    chunk_[a] = std::min(size_[a], pixels);
    chunk_[a] = ceil_div(size_[a], ceil_div(size_[a], chunk_[a]));
    chunks_[a] = ceil_div(size_[a], chunk_[a]);
    pixels = chunk_[a] == size_[a] ? pixels / chunk_[a] : 1;
    if (pixels == 0) pixels = 1;
  }
  chunk_pixels_ = chunk_[0] * chunk_[1] * chunk_[2] * chunk_[3];
  chunk_count_ = chunks_[0] * chunks_[1] * chunks_[2] * chunks_[3];
  widest_ = widest;
  halves_rows_ = results < kMinTasks && results % 2 == 1 && p.products() >= kShared;
  slabs_ = 1;
  const bool whole = swap_ && cm_ >= kManyRows && volume <= kMostPacked;
  if (results * parts < kMinTasks && chunk_count_ > 1 && !whole) {  // an even number, or as many as there are chunks
    const Index room = budget / 2 / std::max<Index>(1, results * full_tile) / 2 * 2;
    slabs_ = std::min({chunk_count_, round_up(ceil_div(kMinTasks, results * parts), 2), std::max<Index>(1, room)});
    while (slabs_ > 1 && !configure(widest, most_rows(widest), p.taps()))
      slabs_ = std::max<Index>(1, (slabs_ - 1) / 2 * 2);
  }
  return fit();
}

// Rows of channels of a task, where the budget does not matter.
template <class T>
Index GatherWeights<T>::most_rows(int vectors) const {
  const Index row_bytes = problem_.taps() * vectors * kernels_.lanes * static_cast<Index>(sizeof(T));
  const Index limit = slabs_ == 1 && halves_rows_ ? ceil_div(cm_, Index{2}) : cm_;
  return ceil_div(cm_, ceil_div(cm_, std::clamp<Index>(kTileBytes / row_bytes, 1, limit)));
}

// The largest blocks of rows that fit, of the widest columns.
template <class T>
bool GatherWeights<T>::fit() {
  const Problem& p = problem_;
  for (int v = widest_; v >= 1; --v) {
    const int mr = kernels_.gather[v - 1].mr;
    for (Index rows = most_rows(v); rows >= 1; rows = rows > mr ? std::max<Index>(mr, rows / 2 / mr * mr) : rows / 2) {
      // Each task packs its panel: slabs do not pay for tasks of single rows.
      if (slabs_ > 1 && rows * p.taps() < std::min<Index>(mr, cm_ * p.taps())) slabs_ = 1, rows = most_rows(v);
      if (configure(v, rows, p.taps())) return true;
    }
    for (Index taps = p.taps() / 2; taps >= mr; taps /= 2)
      if (configure(v, 1, taps)) return true;
  }
  return false;
}

// Adds one chunk of the reduction to the tiles, laid out as [input channel][tap][nr].
template <class T>
void GatherWeights<T>::chunk(const Operands& o, const Block& b, Index number, const Slot& s, T* tiles,
                             bool accumulate) const {
  const Index nr = kernel(b.n).nr;
  Index4 begin, extent;
  for (std::size_t i = 4; i-- > 0; number /= chunks_[i]) {
    begin[i] = number % chunks_[i] * chunk_[i];
    extent[i] = std::min(chunk_[i], size_[i] - begin[i]);
  }
  const View& packed = swap_ ? o.x : o.y;
  Index5 at{0, b.g * cn_ + b.n0, 0, 0, 0}, size{0, b.n, 0, 0, 0}, step{0, 1, 0, 0, 0};
  Index panel_step = nr;
  for (std::size_t i = 4; i-- > 0; panel_step *= extent[i]) {
    const auto axis = static_cast<std::size_t>(order_[i] == 0 ? 0 : order_[i] + 1);
    at[axis] = begin[i], size[axis] = extent[i], step[axis] = panel_step;
  }
  if (b.n < nr) std::fill(s.panel, s.panel + panel_step, T{});
  copy_in(kernels_, s.panel, step, packed.at(at, size));
  for (Index c = 0; c < b.m; c += copy_rows_) {
    Block part = b;
    part.m0 += c, part.m = std::min(copy_rows_, b.m - c);
    multiply(o, part, begin, extent, s, tiles + c * b.taps * b.pitch, accumulate);
  }
}

template <class T>
void GatherWeights<T>::multiply(const Operands& o, const Block& b, const Index4& begin, const Index4& extent,
                                const Slot& s, T* tiles, bool accumulate) const {
  const Problem& p = problem_;
  const auto [g, n0, n, m0, m, t0, taps, pitch] = b;
  const GatherKernel<T>& kernel = this->kernel(n);
  const View& image = swap_ ? o.y : o.x;
  const T* x;
  Index5 stride = image.stride;
  Index shift = 0;  // offset of image number and position 0
  if (copy_) {
    Index5 from{0, g * cm_ + m0, 0, 0, 0}, region{0, m, 1, 1, 1};
    for (std::size_t i = 0; i < 4; ++i) {
      const auto axis = static_cast<std::size_t>(order_[i]);
      if (axis == 0) {
        from[0] = begin[i], region[0] = extent[i];
        continue;
      }
      const AxisSizes a = axis_sizes(p, static_cast<int>(axis) - 1);
      const Index lo = std::clamp<Index>(begin[i] * a.stride - a.pad, 0, a.x);
      const Index hi =
          std::clamp<Index>((begin[i] + extent[i] - 1) * a.stride - a.pad + (a.kernel - 1) * a.dilation + 1, lo, a.x);
      from[axis + 1] = lo, region[axis + 1] = hi - lo;
    }
    stride = {m * copy_plane_, copy_plane_, region[3] * region[4], region[4], 1};
    for (std::size_t i = 0; i < 5; ++i) shift -= i == 1 ? 0 : from[i] * stride[i];
    copy_in(kernels_, s.copy, stride, image.at(from, region));
    x = s.copy;
  } else {
    x = static_cast<const T*>(image.data) + (g * cm_ + m0) * stride[1];
  }

  // Along axis i of the nest the image moves by move[i] elements an output, from origin on.
  Index4 move;
  Index origin = shift;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto axis = static_cast<std::size_t>(order_[i]);
    move[i] = axis == 0 ? stride[0] : stride[axis + 1] * p.stride[axis - 1];
    if (axis > 0) origin -= p.pad_before[axis - 1] * stride[axis + 1];
  }
  std::ptrdiff_t row[kMaxTileRows], crow[kMaxTileRows];
  for (const TapClass& cd : classes_[0])
    for (const TapClass& ch : classes_[1])
      for (const TapClass& cw : classes_[2]) {
        Index4 lo, hi;
        bool empty = false;
        for (std::size_t i = 0; i < 4; ++i) {
          lo[i] = begin[i], hi[i] = begin[i] + extent[i];
          if (order_[i] > 0) {
            const TapClass& c = order_[i] == 1 ? cd : order_[i] == 2 ? ch : cw;
            lo[i] = std::max(lo[i], c.outputs.begin), hi[i] = std::min(hi[i], c.outputs.end);
          }
          empty |= lo[i] >= hi[i];
        }
        if (empty && accumulate) continue;
        Index count = 0;
        if (!empty)
          for (Index i0 = lo[0]; i0 < hi[0]; ++i0)
            for (Index i1 = lo[1]; i1 < hi[1]; ++i1)
              for (Index i2 = lo[2]; i2 < hi[2]; ++i2) {
                const Index place =
                    (((i0 - begin[0]) * extent[1] + i1 - begin[1]) * extent[2] + i2 - begin[2]) * extent[3] + lo[3] -
                    begin[3];
                const Segment next{origin + i0 * move[0] + i1 * move[1] + i2 * move[2] + lo[3] * move[3],
                                   place * kernel.nr, hi[3] - lo[3]};
                if (count > 0) {
                  Segment& last = s.segments[count - 1];
                  if (last.b + last.len * kernel.nr == next.b && last.x + last.len * move[3] == next.x) {
                    last.len += next.len;
                    continue;
                  }
                }
                s.segments[count++] = next;
              }
        int rows = 0;
        const auto flush = [&] {
          if (rows) kernel.run(rows, x, row, move[3], s.segments, count, s.panel, kernel.nr, tiles, crow, accumulate);
          rows = 0;
        };
        for (Index c = 0; c < m; ++c)
          for (const Index td : cd.taps)
            for (const Index th : ch.taps)
              for (const Index tw : cw.taps) {
                const Index tap = (td * p.w[1] + th) * p.w[2] + tw, t = (swap_ ? p.taps() - 1 - tap : tap) - t0;
                if (t < 0 || t >= taps) continue;
                row[rows] = c * stride[1] + td * p.dilation[0] * stride[2] + th * p.dilation[1] * stride[3] +
                            tw * p.dilation[2] * stride[4];
                crow[rows] = (c * taps + t) * pitch;
                if (++rows == kMaxTileRows) flush();
              }
        flush();
      }
}

template <class T>
void GatherWeights<T>::sum(const Operands& o, const Block& b, Index slab, const Slot& s, T* tiles) const {
  const Index first = slab * chunk_count_ / slabs_, last = (slab + 1) * chunk_count_ / slabs_;
  for (Index i = first; i < last; ++i) chunk(o, b, i, s, tiles, i > first);
}

template <class T>
void GatherWeights<T>::store(const Operands& o, const Block& b, const T* tiles, T* lines) const {
  store_weights(kernels_, spec_.problem, weights(o, b), swap_ ? 0 : 1, {b.m, b.n, b.t0, b.taps, b.pitch}, tiles, lines);
}

template <class T>
void GatherWeights<T>::run(const Operands& o, std::byte* workspace) const {
  const Index results = tasks_ / slabs_;
  const Index pitch = round_up(tile_elements_ * static_cast<Index>(sizeof(T)), 64) / static_cast<Index>(sizeof(T));
  T* shared = reinterpret_cast<T*>(workspace);
  parallel_for(tasks_, slots(), [&](Index i, int number) {
    Block b = block_of(i / slabs_);
    Carver carver(slot(workspace, number));
    const Slot s = carve(carver);
    if (in_place(b)) {
      const View w = weights(o, b);
      b.pitch = w.stride[0];
      return sum(o, b, 0, s, static_cast<T*>(w.data));
    }
    sum(o, b, i % slabs_, s, slabs_ > 1 ? shared + i * pitch : s.tiles);
    if (slabs_ == 1) store(o, b, s.tiles, s.lines);
  });
  if (slabs_ == 1) return;
  parallel_for(results, slots(), [&](Index i, int number) {
    Carver carver(slot(workspace, number));
    const Slot s = carve(carver);
    T* tiles = shared + i * slabs_ * pitch;
    for (Index slab = 1; slab < slabs_; ++slab)
      for (Index e = 0; e < tile_elements_; ++e) tiles[e] += tiles[slab * pitch + e];
    store(o, block_of(i), tiles, s.lines);
  });
}

template <class T>
typename GatherWeights<T>::Block GatherWeights<T>::block_of(Index number) const {
  Block b;
  b.t0 = number % tap_blocks_ * taps_;
  b.taps = std::min(taps_, problem_.taps() - b.t0);
  b.m0 = number / tap_blocks_ % row_blocks_ * rows_;
  b.m = std::min(rows_, cm_ - b.m0);
  b.n0 = number / tap_blocks_ / row_blocks_ % column_blocks_ * width();
  b.n = std::min(width(), cn_ - b.n0);
  b.g = number / tap_blocks_ / row_blocks_ / column_blocks_;
  b.pitch = kernel(b.n).nr;
  return b;
}

template <class T>
std::string GatherWeights<T>::explain() const {
  std::ostringstream s;
  s << "gather w (" << kernels_.name << ' ' << kernels_.gather[vectors_ - 1].name << "): " << rows_ << " of " << cm_
    << (swap_ ? " output" : " input") << " channels a task, " << chunk_count_ << " chunks of " << chunk_pixels_
    << " pixels in " << slabs_ << " slabs; image " << (copy_ ? "copied" : "in place") << "; " << effort();
  return s.str();
}

}  // namespace

template <class T>
std::unique_ptr<Pass> make_gather_weights(const PassSpec& spec, const KernelSet<T>& kernels) {
  auto pass = std::make_unique<GatherWeights<T>>(spec, kernels);
  if (!pass->plan()) return nullptr;
  return pass;
}
template std::unique_ptr<Pass> make_gather_weights(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_gather_weights(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
