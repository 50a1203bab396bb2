// Unknown x and unknown y with few channels to compute, depthwise above all: vectors run along the pixels of a
// zero-bordered flat copy of the source, weights are broadcast. The columns between two rows are computed and dropped,
// or results are formed row by row where they belong (stack.h).
// Products with the zero border are harmless while weights are finite; with others the same sums are taken tap by tap.
// Where no pixel reads another's place and images lie in dense runs, there is no copy: sums are formed in place.
#include <limits>
#include <optional>
#include <sstream>

#include "engine/ahead.h"
#include "engine/estimate.h"
#include "engine/planes.h"
#include "engine/rows_weights.h"
#include "engine/stack.h"

namespace convbwd {
namespace {

constexpr double kShared = 1 << 20;    // products of a pass that two threads share, if their boxes fit: 15 to 25 us
constexpr double kStored = 8;          // products that take as long as storing a result of few (Zen 4)
constexpr double kMuchWork = 1 << 24;  // products of a pass whose rows are cut for kMinTasks: 0.15 ms
constexpr Index kInPlacePixels = 96,
                kInPlaceBytes = 24 << 10;  // several widths of the kernels, half of a first-level cache

template <class T>
class Rows final : public SlottedPass, Roles {
 public:
  Rows(const PassSpec& spec, const KernelSet<T>& kernels);
  bool plan();
  std::string explain() const override;
  Index3 tile() const override { return positions_of(maps_, box_q_); }
  Sums summation() const override { return sums_of(SumKind::rows, chunk_, 0, 0); }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  struct Slot {
    T *source, *results, *weights, *taps, *line, **table;
    Stream<T>* streams;
    Planes::Part* parts;
    std::ptrdiff_t* offsets;
    Index bytes;
  };

  Slot carve(Carver carver) const;
  Index measure();  // returns the bytes of a slot
  void list_taps(const PhaseSet& s);
  /// Where the results of a box go: rows, planes and results of a pixel so many elements apart.
  struct Results {
    T* data;
    Index row, plane, pitch;
    bool direct;  // in the image
  };
  /// Fetched while results are computed: the source of the next ones, and their own place.
  struct Fetches {
    Ahead source, results;
    void next(Index products) { source.next(products), results.next(products); }
  };
  Index group_blocks() const { return ceil_div(spec_.problem.groups, together_); }
  Index images() const { return spec_.problem.n * group_blocks(); }  // of a block of groups each
  /// With the first group of the block.
  std::pair<Index, Index> image_and_group(Index i) const {
    const Index n = spec_.problem.n, blocks = group_blocks();
    return batch_.image_by_image ? std::pair{i / blocks, i % blocks * together_} : std::pair{i % n, i / n * together_};
  }
  Index results_elements() const {  // of a group
    Index results = 0;
    for (const PhaseSet& set : sets_) results += set.taps ? set.columns(cd_) * pitch_ : 0;
    return results;
  }
  Index products(const PixelBox& b, Index channels) const;
  std::array<Range, 3> reading(const std::array<Range, 3>& reach, const PixelBox& b, const Index3& extent) const;
  View source_after(const View& image, Index task, Index image_number, Index k0) const;
  bool stores_directly(const View& destination, const PixelBox& b) const;
  void multiply(std::size_t set, const PixelBox& b, Index k0, Index k, const T* weights, bool finite, const Slot& slot,
                const Results& to, Fetches* fetches) const;
  void multiply_sets(const PixelBox& b, Index k0, Index k, bool finite, const Slot& slot, Results to,
                     Fetches* fetches) const;
  void sum_carefully(std::size_t set, const PixelBox& b, Index k0, Index k, const T* weights, int block,
                     const T* source, T* results, const Results& to) const;
  void multiply_in_place(const View& image, const View& destination, const PixelBox& b, Index n, Index g, Index k0,
                         Index k, const Slot& slot) const;

  const KernelSet<T>& kernels_;
  const std::array<AxisMap, 3> maps_;
  const std::vector<PhaseSet> sets_;
  std::vector<std::vector<Index3>> reach_;           // of each set: what its taps read, source positions from a pixel
  std::vector<std::vector<std::ptrdiff_t>> offset_;  // of each set: [source channel of a chunk][tap]
  std::vector<Stack> stack_;
  // What the taps of each straight sum read, the same: of each set, of sums over a chunk and over the last one.
  std::vector<std::array<std::vector<std::array<Range, 3>>, 2>> sums_reach_;
  const RowsWeights<T> weights_;
  const bool plain_;
  Index max_streams_ = 0;
  Index3 count_{1, 1, 1}, box_q_{1, 1, 1};
  Planes planes_;
  Index pitch_ = 0;  // of a row of results
  Index chunk_ = 1, boxes_ = 1;
  Index together_ = 1;  // groups that are brought in and stored together
  bool whole_ = false;  // with all their source channels, not only a chunk
  RowsBatch batch_{1, false};
};

template <class T>
Rows<T>::Rows(const PassSpec& spec, const KernelSet<T>& kernels)
    : SlottedPass(spec),
      Roles(spec),
      kernels_(kernels),
      maps_(axis_maps(spec.problem, to_x_ ? map_transposed : map_forward)),
      sets_(phase_sets(maps_)),
      weights_(spec, kernels, maps_, sets_),
      plain_(plain(maps_)),
      count_(most_pixels(maps_)) {
  for (const Phase& f : maps_[2].phases) max_streams_ += static_cast<Index>(f.members.size());
}

template <class T>
typename Rows<T>::Slot Rows<T>::carve(Carver carver) const {
  Slot s{};
  s.source = carver.take<T>(together_ * (whole_ ? cs_ : chunk_) * planes_.channel() + planes_.slack());
  s.results = carver.take<T>(together_ * results_elements());
  s.weights = carver.take<T>(weights_.elements(chunk_));
  s.taps = carver.take<T>(spec_.problem.taps());
  s.table = carver.take<T*>(spec_.problem.taps());
  s.line = carver.take<T>(maps_[2].positions(0, box_q_[2]).end);
  s.streams = carver.take<Stream<T>>(max_streams_);
  s.parts = carver.take<Planes::Part>(planes_.parts());
  s.offsets = carver.take<std::ptrdiff_t>(plain_ ? chunk_ : 0);
  s.bytes = carver.used();
  return s;
}

template <class T>
Index Rows<T>::measure() {
  planes_ = Planes(maps_, box_q_, Planes::Borders::shared);
  pitch_ = round_up(planes_.plane() * box_q_[0], kernels_.lanes);
  boxes_ = pixel_boxes(count_, box_q_);
  return carve({}).bytes;
}

template <class T>
bool Rows<T>::plan() {
  const Problem& p = spec_.problem;
  const Index budget = static_cast<Index>(spec_.budget);
  bool fixed = spec_.sums[1] > 0;
  chunk_ = fixed ? std::min(cs_, spec_.sums[1]) : cs_;
  Index bytes = 0;
  const Index least = least_rows_chunk(p);
  const auto fits = [&](Index limit) {
    box_q_ = count_;
    while ((bytes = measure()) > limit) {
      // Boxes have borders, and rows shorter than a few vectors are mostly border: fewer source channels at a time
      // before that, as long as they make a straight sum. Without borders fewer rows take less: 0.8 of the time of
      // chunks of 8 for 16 channels 112x112 (Emerald Rapids).
      if (box_q_[0] > 1)
        box_q_[0] = ceil_div(box_q_[0], 2);
      else if (plain_ && box_q_[1] > 1 && box_q_[1] * box_q_[2] > 4 * kInPlacePixels)
        box_q_[1] = ceil_div(box_q_[1], 2);
      else if (chunk_ > least && !fixed)
        chunk_ = std::max(least, ceil_div(chunk_, 2));
      else if (box_q_[1] > 8)
        box_q_[1] = ceil_div(box_q_[1], 2);
      else if (box_q_[2] > 512)
        box_q_[2] = ceil_div(box_q_[2], 2);
      else if (chunk_ > 8 && !fixed)
        chunk_ = ceil_div(chunk_, 2);
      else if (bytes <= budget)
        break;
      else if (box_q_[1] > 1)
        box_q_[1] = ceil_div(box_q_[1], 2);
      else if (box_q_[2] > 4 * kernels_.lanes && box_q_[2] >= 2 * (planes_.row() - box_q_[2]))  // mostly pixels
        box_q_[2] = ceil_div(box_q_[2], 2);
      else if (chunk_ > 1 && !fixed)
        chunk_ = ceil_div(chunk_, 2);
      else if (box_q_[2] > kernels_.lanes)
        box_q_[2] = ceil_div(box_q_[2], 2);
      else
        return false;
    }
    return true;
  };
  // Chunks order sums, which must not depend on the number of threads. Boxes may.
  const double products =
      p.products() + (plain_ ? kStored * static_cast<double>(p.n * p.groups * cd_ * p.y_plane()) : 0);
  const bool shared = products >= kShared;
  if (!fits(std::min(shared ? budget / 2 : budget, kBoxBytes))) return false;
  if (shared && spec_.threads == 1) {  // larger boxes; what fits twice does once
    fixed = true;
    fits(std::min(budget, kBoxBytes));
  }
  const bool across = channels_last(image(spec_.operands)) || channels_last(destination(spec_.operands));
  const Index line = groups_of_line(p);
  if (across && cs_ <= 2 * kLineChannels && (line > 1 || chunk_ < std::min(cs_, kLineChannels))) {
    const Index3 box = box_q_;
    fixed = true, together_ = line, whole_ = true;
    if (!fits(std::min(budget / (shared ? 2 : 1), kTogetherBytes))) {
      together_ = 1, whole_ = false, box_q_ = box;
      bytes = measure();
    }
  }
  const Index shares = std::min<Index>(spec_.threads, static_cast<Index>(2 * products / kShared));
  const Index wanted = products >= kMuchWork ? kMinTasks : shares;
  while (images() * boxes_ < wanted && box_q_[1] > 8) {
    box_q_[1] = ceil_div(box_q_[1], 2);
    bytes = measure();
  }
  for (const PhaseSet& s : sets_) list_taps(s);
  batch_ = rows_batch(p, kernels_.lanes, boxes_, chunk_ == cs_);
  if (together_ > 1) batch_ = {ceil_div(batch_.images, together_), true};
  return share(ceil_div(images(), batch_.images) * boxes_, 0, bytes);
}

template <class T>
void Rows<T>::list_taps(const PhaseSet& s) {
  const auto& [fd, fh, fw] = s.phase;
  auto& reach = reach_.emplace_back();
  each_tap(s, stack_.emplace_back(stack_of(s, cd_, maps_[1].src_step)),
           [&](std::size_t d, std::size_t h, std::size_t w) {
             reach.push_back({fd->offset[d], fh->offset[h], fw->offset[w]});
           });
  auto& offsets = offset_.emplace_back();
  for (Index c = 0; c < chunk_; ++c)
    for (const Index3& r : reach)
      offsets.push_back(static_cast<std::ptrdiff_t>(c * planes_.channel() + planes_.offset(r)));
  auto& sums = sums_reach_.emplace_back();
  for (std::size_t last = 0; last < (cs_ % chunk_ ? 2 : 1); ++last)
    each_straight_sum(s, stack_.back(), last ? cs_ % chunk_ : chunk_, [&](Index t, Index columns, Index height) {
      std::array<Range, 3>& range = sums[last].emplace_back();
      range.fill({std::numeric_limits<Index>::max(), std::numeric_limits<Index>::min()});
      for (const Index end = t + std::min(columns * height, s.taps); t < end; ++t)
        for (std::size_t a = 0; a < 3; ++a) {
          const Index at = reach[static_cast<std::size_t>(t % s.taps)][a];
          range[a] = {std::min(range[a].begin, at), std::max(range[a].end, at + 1)};
        }
    });
}

// Of a box's pixels those, an axis, for which any of some products lies in the image: windows nearly as large as the
// image are mostly padding.
template <class T>
std::array<Range, 3> Rows<T>::reading(const std::array<Range, 3>& reach, const PixelBox& b,
                                      const Index3& extent) const {
  std::array<Range, 3> pixels;
  for (std::size_t a = 0; a < 3; ++a) {
    const Index step = maps_[a].src_step;
    pixels[a].begin = std::clamp<Index>(ceil_div(1 - reach[a].end, step) - b.q0[a], 0, extent[a]);
    pixels[a].end = std::clamp(ceil_div(maps_[a].src - reach[a].begin, step) - b.q0[a], pixels[a].begin, extent[a]);
  }
  return pixels;
}

template <class T>
void Rows<T>::multiply(std::size_t set, const PixelBox& b, Index k0, Index k, const T* weights, bool finite,
                       const Slot& slot, const Results& to, Fetches* fetches) const {
  const PhaseSet& s = sets_[set];
  const Stack& stack = stack_[set];
  const Index m = s.columns(cd_), row = planes_.row(), plane = planes_.plane();
  const Index3 e = b.extent(s);
  // What a kernel sums at a time, after which a few lines are fetched; several of it, if that is little.
  const auto block_of_pixels = [&](Index pixels, int results) {
    constexpr Index kLeast = 336;  // sums
    const Index vectors = ceil_div(pixels, kernels_.lanes), most = rows_vectors(kernels_.rows_mr, results);
    const Index block = even_part(vectors, most) * kernels_.lanes;
    return block * ceil_div(kLeast, block * results);
  };
  const auto block_of_rows = [&](Index rows, Index height) {
    const Index most = stacked_height(e[2], height, kernels_.lanes);
    return rows <= most + 1 ? rows : most;  // none is left alone
  };
  for (Index m0 = 0; m0 < m; m0 += kernels_.rows_mr) {
    const int block = static_cast<int>(std::min<Index>(kernels_.rows_mr, m - m0));
    const T* w = weights + m0 * k * s.taps;
    if (!finite) {
      sum_carefully(set, b, k0, k, w, block, slot.source, to.data + m0 * to.pitch, to);
      continue;
    }
    const std::array<Range, 3>* of_sum = sums_reach_[set][k < chunk_].data();
    each_straight_sum(s, stack, k, [&](Index t, Index columns, Index height) {
      const std::array<Range, 3>& reach = *of_sum++;
      const std::ptrdiff_t* const offset = offset_[set].data() + t;
      const bool accumulate = k0 + t > 0;
      const auto sum = [&](Index pixels, const T* source, T* results) {
        const Index most = fetches ? block_of_pixels(pixels, block) : pixels;
        for (Index q = 0; q < pixels; q += most) {
          const Index now = std::min(most, pixels - q);
          kernels_.rows(block, now, source + q, offset, columns * height, w + t * block, results + m0 * to.pitch + q,
                        to.pitch, accumulate);
          if (fetches) fetches->next(now * block * columns * height);
        }
      };
      const bool stacked = stack.serves(m, e[1], e[2]);
      const auto [ds, hs, ws] =
          accumulate ? reading(reach, b, e) : std::array<Range, 3>{Range{0, e[0]}, {0, e[1]}, {0, e[2]}};
      if (ds.size() * hs.size() * ws.size() == 0) return;
      if (!stacked && !to.direct) {
        const bool rows = ds.size() * hs.size() > 1, planes = ds.size() > 1 && hs.size() == e[1];
        for (Index d = ds.begin; d < ds.end; d = planes ? ds.end : d + 1) {
          const Index at = d * plane + hs.begin * row + (rows ? 0 : ws.begin);
          sum((planes ? ds.size() - 1 : 0) * plane + (hs.size() - 1) * row + (rows ? e[2] : ws.size()),
              slot.source + at, to.data + at);
        }
        return;
      }
      const Index step = stacked ? stack.step : 1;
      for (Index d = ds.begin; d < ds.end; ++d)
        for (Index h = 0; h < step; ++h)
          for (Index r = hs.begin + h, rows = 1; r < hs.end; r += rows * step) {
            const T* const source = slot.source + d * plane + r * row;
            T* const results = to.data + d * to.plane + r * to.row;
            if (stacked) rows = ceil_div(hs.end - r, step);
            if (fetches && stacked) rows = block_of_rows(rows, height);
            if (rows == 1) {
              sum(e[2], source, results);
              continue;
            }
            kernels_.stacked_rows(rows, e[2], source, step * row, offset, columns, height, w + t, results,
                                  step * to.row, accumulate);
            if (fetches) fetches->next(rows * e[2] * columns * height);
          }
    });
  }
}

template <class T>
void Rows<T>::multiply_sets(const PixelBox& b, Index k0, Index k, bool finite, const Slot& slot, Results to,
                            Fetches* fetches) const {
  const T* weights = slot.weights;
  for (std::size_t set = 0; set < sets_.size(); ++set) {
    const PhaseSet& s = sets_[set];
    if (s.taps == 0) continue;
    const Index3 e = b.extent(s);
    if (e[0] && e[1] && e[2]) multiply(set, b, k0, k, weights, finite, slot, to, fetches);
    to.data += cd_ * s.members * pitch_;
    weights += cd_ * s.members * k * s.taps;
  }
}

// The same of a block of results, from products of pairs that exist.
template <class T>
void Rows<T>::sum_carefully(std::size_t set, const PixelBox& b, Index k0, Index k, const T* weights, int block,
                            const T* source, T* results, const Results& to) const {
  const auto inside = [&](std::size_t a, Index q, Index offset) {
    const Index at = (b.q0[a] + q) * maps_[a].src_step + offset;
    return at >= 0 && at < maps_[a].src;
  };
  const Index3 e = b.extent(sets_[set]);
  for (int i = 0; i < block; ++i)
    for (Index qd = 0; qd < e[0]; ++qd)
      for (Index qh = 0; qh < e[1]; ++qh)
        for (Index qw = 0; qw < e[2]; ++qw) {
          const T* const pixel = source + qd * planes_.plane() + qh * planes_.row() + qw;
          T sum{};
          std::size_t t = 0;
          for (Index c = 0; c < k; ++c)
            for (const auto& [d, h, v] : reach_[set]) {
              if (inside(0, qd, d) && inside(1, qh, h) && inside(2, qw, v))
                sum += weights[static_cast<Index>(t) * block + i] * pixel[offset_[set][t]];
              ++t;
            }
          T& result = results[i * to.pitch + qd * to.plane + qh * to.row + qw];
          result = k0 > 0 ? result + sum : sum;
        }
}

// Whether results of a box are formed in the image, row by row.
template <class T>
bool Rows<T>::stores_directly(const View& destination, const PixelBox& b) const {
  if (!one_result(sets_) || !destination.plain() || destination.dtype != compute_dtype<T> || destination.stride[4] != 1)
    return false;
  const Index3 e = b.extent(sets_[0]);
  return stack_[0].serves(cd_, e[1], e[2]) || row_by_row(std::min<Index>(cd_, kernels_.rows_mr), e[2], planes_.row(),
                                                         chunk_ * sets_[0].taps, kernels_.lanes);
}

// All but the last pixels, fewer than a vector, which are copied: vectors would reach behind the images.
template <class T>
void Rows<T>::multiply_in_place(const View& image, const View& destination, const PixelBox& b, Index n, Index g,
                                Index k0, Index k, const Slot& slot) const {
  const Index lanes = kernels_.lanes, from = image.stride[1], to = destination.stride[1];
  const Index length = (b.q1[0] - b.q0[0]) * (b.q1[1] - b.q0[1]) * (b.q1[2] - b.q0[2]);
  const Index whole = length / lanes * lanes, rest = length - whole;
  const T* x = static_cast<const T*>(image.data) + image.offset({n, g * cs_ + k0, b.q0[0], b.q0[1], b.q0[2]});
  T* y = static_cast<T*>(destination.data) + destination.offset({n, g * cd_, b.q0[0], b.q0[1], b.q0[2]});
  std::ptrdiff_t* const offset = slot.offsets;
  // So many pixels of the source stay in the nearest cache for all results.
  const Index most =
      std::max(kInPlacePixels, kInPlaceBytes / static_cast<Index>(sizeof(T)) / k / kInPlacePixels * kInPlacePixels);
  const auto add = [&](Index pixels, const T* source, Index step, T* results, Index pitch) {
    for (Index c = 0; c < k; ++c) offset[c] = c * step;
    for (Index q = 0; q < pixels; q += most)
      for (Index m0 = 0; m0 < cd_; m0 += kernels_.rows_mr) {
        const Index block = std::min<Index>(kernels_.rows_mr, cd_ - m0);
        for (Index c = 0; c < k; c += straight(k))
          kernels_.rows(static_cast<int>(block), std::min(most, pixels - q), source + q, offset + c,
                        std::min(straight(k), k - c), slot.weights + m0 * k + c * block, results + m0 * pitch + q,
                        pitch, k0 + c > 0);
      }
  };
  if (whole) add(whole, x, from, y, to);
  if (rest == 0) return;
  for (Index c = 0; c < k; ++c) {
    T* const copy = slot.source + c * lanes;
    std::fill(std::copy_n(x + c * from + whole, rest, copy), copy + lanes, T{});
  }
  if (k0 > 0)
    for (Index c = 0; c < cd_; ++c) std::copy_n(y + c * to + whole, rest, slot.results + c * lanes);
  add(rest, slot.source, lanes, slot.results, lanes);
  for (Index c = 0; c < cd_; ++c) std::copy_n(slot.results + c * lanes, rest, y + c * to + whole);
}

template <class T>
Index Rows<T>::products(const PixelBox& b, Index channels) const {
  Index products = 0;
  for (const PhaseSet& s : sets_) {
    const Index3 e = b.extent(s);
    products += s.members * s.taps * e[0] * e[1] * e[2];
  }
  return products * cd_ * channels;
}

// What is read after a chunk of an image: the next one, the first one of the next image, or that of the next task.
template <class T>
View Rows<T>::source_after(const View& image, Index task, Index image_number, Index k0) const {
  k0 += chunk_;
  if (k0 >= cs_) {
    k0 = 0;
    if (++image_number == std::min((task / boxes_ + 1) * batch_.images, images())) {
      task = std::min(task + 1, tasks_ - 1);
      image_number = task / boxes_ * batch_.images;
    }
  }
  const auto [n, g] = image_and_group(image_number);
  const PixelBox b = pixel_box(task % boxes_, count_, box_q_);
  return planes_.source(image, n, g * cs_ + k0, std::min(chunk_, cs_ - k0), b);
}

template <class T>
void Rows<T>::run(const Operands& o, std::byte* workspace) const {
  const View &image = this->image(o), &destination = this->destination(o);
  const auto in_place = [&](const View& v) { return v.dtype == compute_dtype<T> && in_runs(v, box_q_); };
  const bool far = fetched_ahead(spec_.problem, image, destination);
  const bool copied = !plain_ || o.bias.data || !in_place(image) || !in_place(destination);
  parallel_for(tasks_, slots(), [&](Index i, int number) {
    const PixelBox b = pixel_box(i % boxes_, count_, box_q_);
    const Index begin = i / boxes_ * batch_.images, end = std::min(begin + batch_.images, images());
    const Slot slot = carve(this->slot(workspace, number));
    planes_.locate(image, b.q0, planes_.end(), slot.parts);
    const bool direct = !o.bias.data && stores_directly(destination, b);
    Index packed = -1;
    Index bordered = 0;  // source channels
    bool finite = true;
    for (Index image_number = begin; image_number < end; ++image_number) {
      const auto [n, g] = image_and_group(image_number);
      const Index groups = std::min(together_, spec_.problem.groups - g);
      std::optional<Fetches> fetches;
      // Of results that are formed in place only what is copied next, if that comes from memory.
      if (far && copied && (!direct || Planes::far(image))) {
        const auto at = b.positions(maps_);
        fetches.emplace();
        if (!direct)
          fetches->results = Ahead(destination.at({n, g * cd_, at[0].begin, at[1].begin, at[2].begin},
                                                  {1, cd_, at[0].size(), at[1].size(), at[2].size()}),
                                   products(b, cs_));
      }
      const auto bring_in = [&](Index k0, Index channels) {
        planes_.copy(kernels_, image, slot.parts, n, g * cs_ + k0, channels, slot.source, channels == bordered,
                     fetches ? 0 : image.stride[1]);
        bordered = channels;
      };
      if (whole_) bring_in(0, groups * cs_);
      for (Index j = 0; j < groups; ++j)
        for (Index k0 = 0; k0 < cs_; k0 += chunk_) {
          const Index k = std::min(chunk_, cs_ - k0);
          if (fetches) fetches->source = Ahead(source_after(image, i, image_number, k0), products(b, k));
          if (g + j != packed || chunk_ < cs_)
            finite = weights_.pack(o.w, packed = g + j, k0, k, slot.weights, slot.taps, slot.table);
          if (!copied) {
            multiply_in_place(image, destination, b, n, g, k0, k, slot);
            continue;
          }
          if (!whole_) bring_in(k0, k);
          Slot part = slot;
          if (whole_) part.source += (j * cs_ + k0) * planes_.channel();
          Results results{slot.results + j * results_elements(), planes_.row(), planes_.plane(), pitch_, direct};
          if (direct)
            results = {
                static_cast<T*>(destination.data) + destination.offset({n, (g + j) * cd_, b.q0[0], b.q0[1], b.q0[2]}),
                destination.stride[3], destination.stride[2], destination.stride[1], true};
          multiply_sets(b, k0, k, finite, part, results, fetches ? &*fetches : nullptr);
        }
      if (!copied || direct) continue;
      const Index5 at{n, g * cd_, 0, 0, 0}, channel{0, g * cd_, 0, 0, 0};
      store_flat(kernels_, {&sets_, &maps_, b, cd_, planes_.row(), planes_.plane(), pitch_, groups, results_elements()},
                 slot.results, destination.at(at, destination.size),
                 o.bias.data ? o.bias.at(channel, o.bias.size) : View{}, slot.streams, slot.line);
    }
  });
}

template <class T>
std::string Rows<T>::explain() const {
  std::ostringstream s;
  s << "rows " << (to_x_ ? "x" : "y") << " (" << kernels_.name << "): " << sets_.size() << " phase sets, boxes of "
    << box_q_[0] << 'x' << box_q_[1] << 'x' << box_q_[2] << " pixels, " << cd_ << " channels of a group, chunks of "
    << chunk_ << " of " << cs_ << " source channels, " << batch_.images << " images a task; " << effort();
  return s.str();
}

}  // namespace

template <class T>
std::unique_ptr<Pass> make_rows(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<Rows<T>>(spec, kernels);
}
template std::unique_ptr<Pass> make_rows(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_rows(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
