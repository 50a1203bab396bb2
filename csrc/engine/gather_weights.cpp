// Planning and walking: see gather_weights.h.
#include "engine/gather_weights.h"

#include <sstream>

namespace convbwd {
namespace {

// Products of a chunk: the panel stays in L2. Long ones are up to 8 % faster, and take 0.6 of the time where the rows
// of many channels come from memory; but they leave fewer chunks to share.
constexpr Index kChunkPixels = 512, kLongestChunkPixels = 2048;
constexpr Index kTileBytes = 256 << 10;  // results of a task: stay in L2 beside the panel
constexpr Index kLeastPixels = 32;       // of a chunk: below, narrower columns are better
constexpr Index kCopyBytes = 32 << 10;   // of the image that are copied at a time: stay in L1 beside the panel's rows
// Short sums over images of a few pixels are formed image by image: 64 products in blocks of 32 had 1.6 times the error
// of PyTorch, which does so.
constexpr Index kShort = 128, kFewPixels = 24;
constexpr double kLittle = 1 << 16;  // products of a problem: more would take noticeably longer
constexpr double kShared = 1 << 20;  // products that two tasks share where slabs do not fit: 15 us
// Of images whose short rows are summed across: those of 64 images of 64 channels 4x4 (262 KB) take 1.26 times as long,
// of 3x3 (147 KB) 0.92 times, of 1x1 0.8 times wherever they are (Zen 5).
constexpr Index kNearBytes = 160 << 10;
// Each task packs its panel: as many rows of so few pixels are quicker without slabs. Halves of so many rows take 1.03
// times as long on one thread, and 0.77 times on two of three chunks, the last of which one thread would sum (Zen 4).
constexpr Index kManyRows = 192, kMostPacked = 2048;
// Packing a vector takes as long as products with so many rows, 0.66 for a lane (0.35 against 0.53 of
// `gathered_weights`), reading a row again for other columns as long as one with a quarter of a vector: 1v tiles took
// 1.35, 2v 1.2 and 4v 1.15 times as long as whole blocks on one thread (Zen 4).
constexpr double kPacking = 0.66, kReading = 0.25;

bool reaches_padding(const Problem& p) {
  bool reaches = false;
  for (std::size_t a = 0; a < 3; ++a)
    reaches |= p.pad_before[a] > 0 || (p.y[a] - 1) * p.stride[a] + (p.w[a] - 1) * p.dilation[a] >= p.x[a];
  return reaches;
}

// Every tap of a channel as a channel of its own.
Problem unrolled(const Problem& p) {
  constexpr Index3 ones{1, 1, 1};
  return {p.n, p.groups, p.ci * p.taps(), p.co, p.y, ones, p.y, ones, ones, {}};
}

}  // namespace

template <class T>
GatherWeights<T>::GatherWeights(const PassSpec& spec, const KernelSet<T>& kernels, bool may_unroll)
    : SlottedPass(spec),
      kernels_(kernels),
      unrolls_(may_unroll && unrolls_windows(spec.problem, kernels)),
      padded_(unrolls_ && reaches_padding(spec.problem)),
      swap_(unrolls_ || exchanges_roles(spec.problem, kernels)),
      problem_(unrolls_ ? exchanged(unrolled(spec.problem))
               : swap_  ? exchanged(spec.problem)
                        : spec.problem),
      cm_(problem_.ci),
      cn_(problem_.co) {
  const Problem& p = problem_;
  copy_ = (swap_ ? spec_.operands.y : spec_.operands.x).dtype != compute_dtype<T>;
  for (std::size_t a = 0; a < 3; ++a) classes_[a] = tap_classes(axis_sizes(p, a));
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
typename GatherWeights<T>::Slot GatherWeights<T>::carve(Carver carver) const {
  Slot s{};
  if (!slabs_.several()) s.tiles = carver.take<T>(tile_elements_);
  s.panel = carver.take<T>(chunk_pixels_ * width());
  if (copy_) s.copy = carver.take<T>(copy_images_ * copy_plane_ * copy_rows_);
  if (padded_) {
    Index4 chunk;
    for (std::size_t i = 0; i < 4; ++i) chunk[static_cast<std::size_t>(order_[i])] = chunk_[i];
    const Index3 plane = covered({chunk[1], chunk[2], chunk[3]});
    s.windows = carver.take<T>(chunk[0] * channels_of(spec_.problem, width()) * plane[0] * plane[1] * plane[2]);
  }
  s.segments = carver.take<Segment>(chunk_pixels_ / chunk_[3]);
  s.taps = carver.take<Tap>(taps_);
  if (spec_.operands.w.dtype != compute_dtype<T>) s.lines = carver.take<T>(kMostRows * width());
  s.bytes = carver.used();
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
    copy_plane_ = odd_multiple(reach[1] * reach[2] * reach[3], kernels_.lanes);
    copy_images_ = reach[0];
  }
  slabs_.results = p.groups * row_blocks_ * tap_blocks_ * column_blocks_;
  const Index least = ceil_div(kernels_.gather[vectors - 1].mr, taps_);  // rows that fill the kernel's tile
  for (const Index bytes : {kCopyBytes, Index{0}}) {
    if (copy_) {
      const Index fit = bytes / (copy_images_ * copy_plane_ * static_cast<Index>(sizeof(T)));
      copy_rows_ = std::min(rows_, std::max<Index>(1, fit / least) * least);
    }
    if (share(slabs_.tasks(), slabs_.bytes<T>(tile_elements_), carve({}).bytes, least_slots_)) return true;
  }
  return false;
}

template <class T>
bool GatherWeights<T>::plan() {
  if (padded_) {
    careful_ = make_planned<GatherWeights>(spec_, kernels_, false);
    if (!careful_) return false;
  }
  // Two slots where they fit, whatever the number of threads is: slabs must not depend on it, nor the shapes of GEMMs.
  for (least_slots_ = 2; !search(); --least_slots_)
    if (least_slots_ == 1) return false;
  if (spec_.threads == 1 && !slabs_.several() && kernels_.any_bstep) {  // blocks may: larger ones pack less
    least_slots_ = 1, divides_rows_ = false;
    fit();
  }
  if (sharers() > 2 && kernels_.any_bstep) divide_among(sharers());
  if (!(swap_ ? spec_.operands.y : spec_.operands.x).plain()) {
    copy_ = true;
    configure(vectors_, rows_, taps_);
  }
  slabs_.order([&](Index result) {
    const Block b = block_of(result);
    return b.m * b.n * b.taps;
  });
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
    chunk_[a] = even_part(size_[a], pixels);
    chunks_[a] = ceil_div(size_[a], chunk_[a]);
    pixels = chunk_[a] == size_[a] ? pixels / chunk_[a] : 1;
    if (pixels == 0) pixels = 1;
  }
  chunk_pixels_ = chunk_[0] * chunk_[1] * chunk_[2] * chunk_[3];
  widest_ = widest;
  const bool uneven = results % 2 == 1 || cn_ % (widest * lanes) > 0;
  divides_rows_ = results < kMinTasks && uneven && p.products() >= kShared;
  slabs_ = {.units = chunks_[0] * chunks_[1] * chunks_[2] * chunks_[3]};
  const bool whole = swap_ && cm_ >= kManyRows && volume <= kMostPacked;
  if (results * parts < kMinTasks && slabs_.units > 1 && !whole) {  // an even number, or as many as there are chunks
    const Index room = budget / 2 / std::max<Index>(1, results * full_tile) / 2 * 2;
    slabs_.count =
        std::min({slabs_.units, round_up(ceil_div(kMinTasks, results * parts), 2), std::max<Index>(1, room)});
    while (slabs_.several() && !configure(widest, most_rows(widest), p.taps()))
      slabs_.count = std::max<Index>(1, (slabs_.count - 1) / 2 * 2);
  }
  return fit();
}

// Rows of channels of a task, where the budget does not matter.
template <class T>
Index GatherWeights<T>::most_rows(int vectors) const {
  const Index row_bytes = problem_.taps() * vectors * kernels_.lanes * static_cast<Index>(sizeof(T));
  Index blocks = ceil_div(cm_, std::clamp<Index>(kTileBytes / row_bytes, 1, cm_));
  const Index results = problem_.groups * ceil_div(cn_, vectors * kernels_.lanes);
  const bool odd = results * blocks % 2 == 1 || (blocks == 1 && !slabs_.several());
  const bool divides = divides_rows_ && (!slabs_.several() || (slabs_.units == 3 && cm_ >= kManyRows));
  if (divides && odd && results * blocks < kMinTasks) ++blocks;
  return ceil_div(cm_, std::min(blocks, cm_));
}

// The largest blocks of rows that fit, of the widest columns.
template <class T>
bool GatherWeights<T>::fit() {
  const Problem& p = problem_;
  for (int v = widest_; v >= 1; --v) {
    const int mr = kernels_.gather[v - 1].mr;
    for (Index rows = most_rows(v); rows >= 1; rows = rows > mr ? std::max<Index>(mr, rows / 2 / mr * mr) : rows / 2) {
      // Each task packs its panel: slabs do not pay for tasks of single rows.
      if (slabs_.several() && rows * p.taps() < std::min<Index>(mr, cm_ * p.taps()))
        slabs_.count = 1, rows = most_rows(v);
      if (configure(v, rows, p.taps())) return true;
    }
    for (Index taps = p.taps() / 2; taps >= mr; taps /= 2)
      if (configure(v, 1, taps)) return true;
  }
  return false;
}

// For more than two threads: fewer rows a task, and narrower columns, of which the budget holds more panels.
template <class T>
void GatherWeights<T>::divide_among(Index threads) {
  struct {
    double time = 0;
    int vectors;
    Index rows;
  } best{0, vectors_, rows_};
  const Index taps = taps_, least = row_blocks_;
  const Index most = std::min(cm_, 2 * threads);
  const auto offer = [&](int v, Index row_blocks) {
    if (!configure(v, ceil_div(cm_, row_blocks), taps)) return;
    const double vectors = static_cast<double>(column_cost(kernels_, cn_, v)) / 8, lanes = kernels_.lanes;
    const auto blocks = static_cast<double>(row_blocks_ * tap_blocks_);
    const auto rows = blocks * static_cast<double>(round_up(rows_ * taps_, kernels_.gather[v - 1].mr));
    const double work = vectors * (rows + blocks * kPacking * lanes) + kReading * rows * column_blocks_;
    const double time = work * waits(slots()) / slots();
    if (best.time == 0 || time < best.time) best = {time, v, rows_};
  };
  for (int v = vectors_; v >= 1; --v)
    for (Index blocks = least; blocks <= std::max(least, most); ++blocks) offer(v, blocks);
  configure(best.vectors, best.rows, taps);
}

template <class T>
void GatherWeights<T>::run(const Operands& o, std::byte* workspace) const {
  // Zeros in the padding are harmless while y is finite.
  if (padded_ && !all_finite(kernels_, o.y)) return careful_->run(o, workspace);
  const auto sum_slab = [&](const Slabs::Task& task, int number, T* tiles) -> const T* {
    Block b = block_of(task.result);
    const Slot s = carve(slot(workspace, number));
    if (in_place(b)) {
      const View w = weights(o, b);
      b.pitch = w.stride[0];
      sum(o, b, task.units, s, static_cast<T*>(w.data));
      return nullptr;
    }
    if (!tiles) tiles = s.tiles;
    sum(o, b, task.units, s, tiles);
    return tiles;
  };
  slabs_.run<T>(slots(), workspace, tile_elements_, sum_slab, [&](Index result, int number, const T* tiles) {
    store(o, block_of(result), tiles, carve(slot(workspace, number)).lines);
  });
}

template <class T>
typename GatherWeights<T>::Block GatherWeights<T>::block_of(Index number) const {
  Block b;
  b.t0 = number % tap_blocks_ * taps_;
  b.taps = std::min(taps_, problem_.taps() - b.t0);
  b.n0 = number / tap_blocks_ % column_blocks_ * width();
  b.n = std::min(width(), cn_ - b.n0);
  b.m0 = number / tap_blocks_ / column_blocks_ % row_blocks_ * rows_;
  b.m = std::min(rows_, cm_ - b.m0);
  b.g = number / tap_blocks_ / column_blocks_ / row_blocks_;
  b.pitch = kernel(b.n).nr;
  return b;
}

template <class T>
std::string GatherWeights<T>::explain() const {
  std::ostringstream s;
  s << "gather w (" << kernels_.name << ' ' << kernels_.gather[vectors_ - 1].name << "): " << rows_ << " of " << cm_
    << (swap_ ? " output" : " input") << " channels a task, "
    << (unrolls_ && spec_.problem.taps() > 1 ? "windows unrolled, " : "") << slabs_.units << " chunks of "
    << chunk_pixels_ << " pixels in " << slabs_.count << " slabs; image " << (copy_ ? "copied" : "in place") << "; "
    << effort();
  return s.str();
}

template <class T>
std::unique_ptr<Pass> make_gather_weights(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<GatherWeights<T>>(spec, filled_kernels(kernels, columns_of_weights(spec.problem, kernels)));
}
template std::unique_ptr<Pass> make_gather_weights(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_gather_weights(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
