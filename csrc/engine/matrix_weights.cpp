// Unknown w: see matrix.h. Rows of a product are output channels, columns are input channels, and the sum runs over the
// pixels of y, laid out like a zero-bordered flat copy of x, with zeros between its rows. A tap moves x by some pixels:
// as the unit takes them in pairs, by whole rows of its tiles, in one of two copies that pair them differently. Where
// there are many results of few pixels each, columns are pairs of a channel and a tap instead, in the order of w: more
// is split, but results are rows of w and need not be transposed.
#include <tuple>
#include <utility>

#include "engine/matrix.h"
#include "engine/slabs.h"
#include "engine/weights_out.h"

namespace convbwd {
namespace matrix {
namespace {

constexpr Index kTileBytes = 640 << 10;  // results of a task: a third of L2
constexpr Index kPixels = 512;           // of a box and batch: fewer show in the time of adding results up
constexpr Index kStretch = 16;           // steps between passes over the results
constexpr Index kColumns = 16;           // columns that are split at a time
constexpr Index kPanel = 128;            // columns of a panel of channels and taps: their results stay in L1

class MatrixWeights final : public GuardedPass {
 public:
  MatrixWeights(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit);
  bool plan();
  double nanoseconds() const override { return nanoseconds_; }
  std::string explain() const override;
  Index3 tile() const override { return box_; }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Results of a task: channels [m0, m0 + m) of y by columns [n0, n0 + n).
  struct Block {
    Index g, m0, m, n0, n;
  };
  struct Slot {
    std::uint32_t* x;
    std::uint16_t* y;
    float *plane, *columns, *tiles, *lines;
    Planes::Part *x_parts, *y_parts;
    Index bytes;
  };

  void set_box();
  void set_columns(bool folded);
  void list_steps();
  double set_tile(Index threads, bool folded);
  double estimate() const;
  bool fits(Index threads);
  Slot carve(Carver carver) const;
  Block block(Index i) const;
  void copy_channel(const Operands& o, Index n, Index channel, const Slot& s, float* to) const {
    x_.copy(kernels_, o.x, s.x_parts, n, channel, 1, to, false, o.x.stride[1]);
    std::fill(to + x_.channel(), to + flat_pixels_, 0.0f);
  }
  // Of image n of a round, and 16 columns from c on: rows of `count` floats, `lds` apart.
  void split_columns(Index n, Index c, Index live, const float* from, Index lds, Index count, const Slot& s,
                     Fit& fit) const {
    fit.see_b(unit_.split_columns(s.x + c / kColumns * x_terms_ * x_term() + n * x_image(), x_term(),
                                  pairings_ > 1 ? batch_ * x_image() : 0, x_terms_, from, lds, static_cast<int>(live),
                                  count));
  }
  void split_channels(const Operands& o, const Block& b, Index n0, Index images, const PixelBox& pixels, const Slot& s,
                      Fit& fit) const;
  void split_taps(const Operands& o, const Block& b, Index n0, Index images, const Slot& s, Fit& fit) const;
  void split_y(const Operands& o, const Block& b, Index n0, Index images, Index steps, const Slot& s, Fit& fit) const;
  void add(const Operands& o, const Block& b, Index round, const Slot& s, float* tiles, bool accumulate,
           Fit& fit) const;
  void store(const Operands& o, const Block& b, const float* tiles, float* lines) const;
  Index place(const View& w, const Block& b, Index m, Index j) const;
  void store_pairs(const View& w, const Block& b, Index m, Index rows, const float* tiles) const;

  // Results of a task, or of a call.
  Index panel() const { return folded_ ? std::min(n_, kPanel) : n_; }
  Index pitch() const { return round_up(panel(), kColumns); }
  Index tile_elements() const { return (folded_ ? kRows : m_ * spec_.problem.taps()) * pitch(); }
  // The pair of column q, and whether those of consecutive columns are consecutive elements of w.
  struct Pair {
    Index channel, tap;
  };
  Pair pair(const View& w, Index q) const {
    const Problem& p = spec_.problem;
    return taps_first(w) ? Pair{q / p.taps(), q % p.taps()} : Pair{q % p.ci, q / p.ci};
  }
  static bool taps_first(const View& w) { return w.stride[1] != 1; }
  bool pairs_are_dense(const View& w) const {
    const Problem& p = spec_.problem;
    if (taps_first(w)) return dense_planes(w) && w.stride[1] == p.taps();
    return w.plain() && w.stride[4] == p.ci && w.stride[3] == p.w[2] * p.ci && w.stride[2] == p.w[1] * p.w[2] * p.ci;
  }
  // In elements: both pairings of an image for 16 columns, and one term of them; a row of y, and one term of it. An odd
  // number of cache lines lies between rows.
  Index x_image() const { return x_pixels_ / 2 * kColumns; }
  Index x_term() const { return pairings_ * batch_ * x_image(); }
  Index y_row() const { return (batch_ * image_steps_ | 1) * kDepth; }
  Index y_term() const { return m_ * y_row(); }

  static constexpr Index kStep = kColumns * kDepth / 2;  // words of a step of 16 columns
  const KernelSet<float>& kernels_;
  const MatrixKernels& unit_;
  std::array<AxisMap, 3> maps_;
  int x_terms_, y_terms_;
  Index3 box_;
  Index batch_ = 1, m_, n_;
  Slabs slabs_;  // of rounds
  Planes x_, y_;
  bool folded_ = false;    // columns are pairs of a channel and a tap
  Index columns_ = 1;      // of a group
  Index flat_pixels_ = 0;  // of a zero-bordered channel
  Index x_pixels_ = 0, pairings_ = 1, image_steps_ = 1, boxes_ = 1, m_blocks_ = 1, n_blocks_ = 1;
  bool plain_ = false;
  double nanoseconds_ = 0;
  std::vector<Index> offsets_;                        // of taps, in a flat copy
  std::vector<std::ptrdiff_t> x_at_, y_at_, shifts_;  // in bytes
};

MatrixWeights::MatrixWeights(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit)
    : GuardedPass(spec),
      kernels_(kernels),
      unit_(unit),
      x_terms_(terms_of(spec.operands.x.dtype)),
      y_terms_(terms_of(spec.operands.y.dtype)),
      box_(spec.problem.y),
      m_(spec.problem.co),
      n_(spec.problem.ci) {
  maps_ = axis_maps(spec_.problem, map_forward);
  plain_ = plain(maps_);
}

bool MatrixWeights::plan() {
  const Problem& p = spec_.problem;
  if (p.depthwise()) return false;
  direct_ = make_gather_weights(spec_, kernels_);
  if (!direct_) return false;
  box_[0] = 1;
  const auto flat = [&] { return Planes(maps_, box_).row() * box_[1]; };
  while (flat() > kPixels && (box_[1] > 1 || box_[2] > kPixels)) {
    Index& longest = box_[1] > 1 ? box_[1] : box_[2];
    longest = ceil_div(longest, 2);
  }
  if (box_[1] == p.y[1] && box_[2] == p.y[2]) batch_ = std::clamp<Index>(kPixels / flat(), 1, p.n);
  batch_ = even_part(p.n, batch_);
  const auto shrink_box = [&] {
    if (batch_ > 1)
      batch_ = even_part(p.n, batch_ - 1);
    else if (box_[1] > 1 && flat() > 2 * kDepth)
      box_[1] = ceil_div(box_[1], 2);
    else if (box_[2] > 2 * kDepth)
      box_[2] = ceil_div(box_[2], 2);
    else
      return false;
    return true;
  };
  // Boxes, which decide the order of sums, and what columns are, which decides what is split and so judged, are those
  // that serve one and two threads best, whatever the number is. Blocks are not in it.
  const std::pair largest{box_, batch_};
  std::tuple best{box_, batch_, false};
  double least = 0;
  for (Index threads = 2; threads > 0 && least == 0; --threads) {
    std::tie(box_, batch_) = largest;
    do {
      set_box();
      double of_box = 0;
      for (const bool folded : {false, true}) {
        double time = set_tile(threads, folded);
        if (time > 0 && threads > 1) time += set_tile(1, folded);
        if (time > 0 && (of_box == 0 || time < of_box)) of_box = time;
        if (time > 0 && (least == 0 || time < least)) least = time, best = {box_, batch_, folded};
      }
      if (least > 0 && of_box > 1.2 * least) break;
    } while (shrink_box());
  }
  if (least == 0) return false;
  bool folded;
  std::tie(box_, batch_, folded) = best;
  set_box();
  nanoseconds_ = set_tile(1, folded);
  for (Index threads = spec_.threads; set_tile(threads, folded) == 0; --threads) {
  }
  list_steps();
  return true;
}

// What depends on the box.
void MatrixWeights::set_box() {
  const Problem& p = spec_.problem;
  x_ = Planes(maps_, box_);
  y_ = Planes(p.y, {}, x_.extent());
  image_steps_ = ceil_div((box_[1] - 1) * x_.row() + box_[2], kDepth);
  boxes_ = pixel_boxes(p.y, box_);
  slabs_ = {.units = boxes_ * ceil_div(p.n, batch_)};
  // Few results are summed in slabs of rounds, which are tasks too: blocks would split the same channels several times.
  const Index bytes = 4 * p.groups * p.co * round_up(p.ci, kColumns) * p.taps();
  const Index slabs = std::min({slabs_.units / 2, kMinTasks / 2, static_cast<Index>(spec_.budget) / 4 / bytes});
  if (bytes <= kTileBytes / 2) slabs_.count = std::max<Index>(1, slabs);
  offsets_.clear();
  for (Index d = 0; d < p.w[0]; ++d)
    for (Index h = 0; h < p.w[1]; ++h)
      for (Index w = 0; w < p.w[2]; ++w)
        offsets_.push_back(x_.offset({d * p.dilation[0] - p.pad_before[0], h * p.dilation[1] - p.pad_before[1],
                                      w * p.dilation[2] - p.pad_before[2]}));
  // The last step reaches behind the last pixel: there it finds zeros.
  const Index reach = image_steps_ * kDepth + *std::max_element(offsets_.begin(), offsets_.end());
  flat_pixels_ = round_up(std::max(x_.channel(), reach), kDepth);
}

// What depends on what columns are.
void MatrixWeights::set_columns(bool folded) {
  folded_ = folded;
  columns_ = spec_.problem.ci * (folded ? spec_.problem.taps() : 1);
  x_pixels_ = folded ? image_steps_ * kDepth : flat_pixels_;
  const auto odd = [](Index at) { return at % 2 == 1; };
  pairings_ = !folded && std::any_of(offsets_.begin(), offsets_.end(), odd) ? 2 : 1;
}

// What calls read, once the plan is made.
void MatrixWeights::list_steps() {
  if (folded_) shifts_.push_back(0);
  for (std::size_t t = 0; t < offsets_.size() && !folded_; ++t)
    shifts_.push_back((offsets_[t] % 2 * batch_ * x_image() + offsets_[t] / 2 * kColumns) * 4);
  for (Index n = 0; n < batch_; ++n)
    for (Index s = 0; s < image_steps_; ++s) {
      x_at_.push_back((n * x_image() + s * kStep) * 4);
      y_at_.push_back((n * image_steps_ + s) * kDepth * 2);
    }
}

// Sets the blocks of such columns that take so many threads the least time, and returns it for one thread; 0 if none
// fit.
double MatrixWeights::set_tile(Index threads, bool folded) {
  const Problem& p = spec_.problem;
  const auto halve = [](Index& v, Index of) { v = round_up(ceil_div(v, 2), of); };
  const auto shrink = [&] {
    // Splitting x takes four times as long as splitting y, which every block of columns does again.
    if (folded_ ? m_ <= kRows && n_ > kPanel : n_ > kRows && 4 * n_ >= m_)
      halve(n_, kRows);
    else if (m_ > kRows)
      halve(m_, kRows / 2);
    else if (n_ > kRows)
      halve(n_, kRows);
    else if (m_ > 8)
      halve(m_, 8);
    else
      return false;
    return true;
  };
  if (folded && (slabs_.units > 1 || p.taps() == 1)) return 0;
  set_columns(folded);
  m_ = p.co, n_ = columns_;
  double least = 0;
  Index m = 0, n = 0;
  do {
    if ((!folded && tile_elements() * 4 > kTileBytes) || !fits(threads)) continue;
    const double time = estimate() * waits(threads);
    if (least == 0 || time < least) least = time, m = m_, n = n_;
    if (time > 1.2 * least) break;
  } while (shrink());
  if (least == 0) return 0;
  m_ = m, n_ = n;
  fits(threads);
  return least;
}

bool MatrixWeights::fits(Index threads) {
  const Problem& p = spec_.problem;
  m_blocks_ = ceil_div(p.co, m_), n_blocks_ = ceil_div(columns_, n_);
  slabs_.results = p.groups * m_blocks_ * n_blocks_;
  return share(slabs_.tasks(), slabs_.bytes<float>(tile_elements()), carve({}).bytes, threads);
}

MatrixWeights::Slot MatrixWeights::carve(Carver carver) const {
  Slot s{};
  s.x = carver.take<std::uint32_t>(pitch() / kColumns * x_terms_ * x_term());
  s.y = carver.take<std::uint16_t>(y_terms_ * y_term());
  // 16 channels of x or, of pairs, one, and 16 pairs; a channel of y.
  s.plane = carver.take<float>(std::max(folded_ ? flat_pixels_ : kColumns * x_pixels_, y_.channel()) + y_.slack());
  s.columns = carver.take<float>(folded_ ? kColumns * x_pixels_ : 0);
  if (!slabs_.several()) s.tiles = carver.take<float>(tile_elements());
  if (!folded_ && spec_.operands.w.dtype != DType::float32) s.lines = carver.take<float>(kMostRows * pitch());
  s.x_parts = carver.take<Planes::Part>(x_.parts());
  s.y_parts = carver.take<Planes::Part>(y_.parts());
  s.bytes = carver.used();
  return s;
}

// Time of products, of splitting both images, and of storing results.
double MatrixWeights::estimate() const {
  const Problem& p = spec_.problem;
  const int products = products_of(x_terms_, y_terms_);
  const Index steps = batch_ * image_steps_, rounds = slabs_.units * p.groups;
  const auto cut = [](Index all, Index part) {
    return static_cast<double>(all / part) * blocks_of(part) + blocks_of(all % part);
  };
  const double blocks = count_of(rounds, folded_ ? 1 : p.taps()) * cut(p.co, m_) * cut(columns_, n_);
  // Strided rows of small boxes come from many pages.
  const double pages = maps_[2].src_step > 1 ? 200 : 0;
  const double x = count_of(rounds, m_blocks_, p.ci, batch_) *
                       (count_of(flat_pixels_) * row_cost(maps_) + pages + plane_cost(spec_.operands.x.dtype, x_)) +
                   count_of(rounds, m_blocks_, columns_, batch_, x_pixels_) *
                       (0.06 * pairings_ * x_terms_ + (folded_ ? kDenseRow : 0));
  const double y = count_of(rounds, n_blocks_, p.co, batch_) *
                   (count_of(y_.channel()) * (0.1 * y_terms_ + kDenseRow) + plane_cost(spec_.operands.y.dtype, y_));
  const double stored = count_of(p.groups, p.ci, p.co, p.taps()) *
                        (0.2 + (folded_ ? far_cost(p) : 0) + 0.3 * static_cast<double>(slabs_.count - 1));
  return blocks * (27 * unit_.product * count_of(steps, products) + 110) + x + y + stored + 2000;
}

MatrixWeights::Block MatrixWeights::block(Index i) const {
  const Problem& p = spec_.problem;
  Block b;
  b.n0 = i % n_blocks_ * n_, b.n = std::min(n_, columns_ - b.n0);
  i /= n_blocks_;
  b.m0 = i % m_blocks_ * m_, b.m = std::min(m_, p.co - b.m0);
  b.g = i / m_blocks_;
  return b;
}

// Splits columns of a block, channels of x, for some images and a box of pixels.
void MatrixWeights::split_channels(const Operands& o, const Block& b, Index n0, Index images, const PixelBox& pixels,
                                   const Slot& s, Fit& fit) const {
  const bool in_place = plain_ && o.x.dtype == DType::float32 && in_runs(o.x, box_);
  for (Index c = 0; c < b.n; c += kColumns)
    for (Index n = 0; n < images; ++n) {
      const Index live = std::min(kColumns, b.n - c), channel = b.g * spec_.problem.ci + b.n0 + c;
      const float* from = s.plane;
      Index lds = x_pixels_, count = x_pixels_;
      if (in_place) {
        from = static_cast<const float*>(o.x.data) +
               o.x.offset({n0 + n, channel, pixels.q0[0], pixels.q0[1], pixels.q0[2]});
        // Only boxes of a single image may have fewer rows, or columns, than others.
        lds = o.x.stride[1], count = (pixels.q1[1] - pixels.q0[1] - 1) * box_[2] + pixels.q1[2] - pixels.q0[2];
      } else {
        for (Index j = 0; j < live; ++j) copy_channel(o, n0 + n, channel + j, s, s.plane + j * x_pixels_);
      }
      split_columns(n, c, live, from, lds, count, s, fit);
    }
}

// Splits columns of a block, pairs of a channel and a tap: the pixels that the tap reads.
void MatrixWeights::split_taps(const Operands& o, const Block& b, Index n0, Index images, const Slot& s,
                               Fit& fit) const {
  for (Index c = 0; c < b.n; c += kColumns)
    for (Index n = 0; n < images; ++n) {
      const Index live = std::min(kColumns, b.n - c);
      for (Index j = 0, last = -1; j < live; ++j) {
        const auto [channel, tap] = pair(o.w, b.n0 + c + j);
        if (channel != last) copy_channel(o, n0 + n, b.g * spec_.problem.ci + channel, s, s.plane);
        last = channel;
        std::copy_n(s.plane + offsets_[static_cast<std::size_t>(tap)], x_pixels_, s.columns + j * x_pixels_);
      }
      split_columns(n, c, live, s.columns, x_pixels_, x_pixels_, s, fit);
    }
}

void MatrixWeights::split_y(const Operands& o, const Block& b, Index n0, Index images, Index steps, const Slot& s,
                            Fit& fit) const {
  const Index whole = steps * kDepth;
  for (Index c = 0; c < b.m; ++c)
    for (Index n = 0; n < images; ++n) {
      const Index channel = b.g * spec_.problem.co + b.m0 + c;
      std::uint16_t* const to = s.y + c * y_row() + n * image_steps_ * kDepth;
      const auto split = [&](const float* from, FlatPlane plane) {
        plane.length = whole;
        fit.see_a(unit_.split_plane(to, y_term(), y_terms_, from, plane));
      };
      if (!dense_rows(o.y, y_)) {
        y_.copy(kernels_, o.y, s.y_parts, n0 + n, channel, 1, s.plane, false, o.y.stride[1]);
        const Index copied = std::min(y_.channel(), whole);
        split(s.plane, flat(copied, copied));
        continue;
      }
      y_.each_plane(o.y, s.y_parts, n0 + n, channel, [&](Index place, Index origin, const Planes::Part* part) {
        if (place > 0) return;
        FlatPlane source = flat(o.y, y_, part);
        source.ahead = o.y.stride[1];
        split(static_cast<const float*>(o.y.data) + origin, source);
      });
    }
}

// Adds the products of the images and pixels of a round; stores those of pairs.
void MatrixWeights::add(const Operands& o, const Block& b, Index round, const Slot& s, float* tiles, bool accumulate,
                        Fit& fit) const {
  const Problem& p = spec_.problem;
  const PixelBox pixels = pixel_box(round % boxes_, p.y, box_);
  const Index n0 = round / boxes_ * batch_, images = std::min(batch_, p.n - n0);
  x_.locate(o.x, pixels.q0, x_.end(), s.x_parts);
  y_.locate(o.y, pixels.q0, pixels.q1, s.y_parts);
  // Only boxes of a single image may have fewer rows than others.
  const Index length = (pixels.q1[1] - pixels.q0[1] - 1) * x_.row() + pixels.q1[2] - pixels.q0[2];
  const Index steps = batch_ > 1 ? image_steps_ : ceil_div(length, kDepth);
  split_y(o, b, n0, images, steps, s, fit);
  MatrixCall call;
  call.b = {s.x, kColumns * 4, x_terms_ * x_term() * 4, x_term() * 4, x_terms_, x_at_.data()};
  call.steps = images * steps;
  call.stretch = kStretch;
  call.accumulate = accumulate;
  call.shift = shifts_.data();
  call.shifts = static_cast<std::int64_t>(shifts_.size());
  call.shift_c = pitch();
  for (Index first = 0; first < b.n; first += panel()) {
    Block part = b;
    part.n0 += first, part.n = std::min(panel(), b.n - first);
    folded_ ? split_taps(o, part, n0, images, s, fit) : split_channels(o, part, n0, images, pixels, s, fit);
    const bool in_place = folded_ && o.w.dtype == DType::float32 && part.n % kColumns == 0 && pairs_are_dense(o.w);
    call.ldc = in_place ? o.w.stride[0] : static_cast<std::ptrdiff_t>(shifts_.size()) * pitch();
    for (Index m = 0; m < b.m; m += kRows) {
      call.a = {s.y + m * y_row(), y_row() * 2, 16 * y_row() * 2, y_term() * 2, y_terms_, y_at_.data()};
      call.rows = static_cast<int>(std::min(kRows, b.m - m));
      call.columns = part.n;
      call.c = in_place ? static_cast<float*>(o.w.data) + place(o.w, part, m, 0) : tiles + (folded_ ? 0 : m * call.ldc);
      unit_.multiply(call);
      if (folded_ && !in_place) store_pairs(o.w, part, m, call.rows, tiles);
    }
  }
}

void MatrixWeights::store(const Operands& o, const Block& b, const float* tiles, float* lines) const {
  const Problem& p = spec_.problem;
  store_weights(kernels_, p, o.w.at({b.g * p.co + b.m0, b.n0, 0, 0, 0}, o.w.size), 0, {b.m, b.n, 0, p.taps(), pitch()},
                tiles, lines);
}

// Offset in w of the results of row m and pair j of a block.
Index MatrixWeights::place(const View& w, const Block& b, Index m, Index j) const {
  const Problem& p = spec_.problem;
  const auto [channel, tap] = pair(w, b.n0 + j);
  const Index3 at = tap_at(p, tap);
  return w.offset({b.g * p.co + b.m0 + m, channel, at[0], at[1], at[2]});
}

// Results of rows [m, m + rows) of a block.
void MatrixWeights::store_pairs(const View& w, const Block& b, Index m, Index rows, const float* tiles) const {
  for (Index i = m; i < m + rows; ++i, tiles += pitch())
    for (Index j = 0, count = pairs_are_dense(w) ? b.n : 1; j < b.n; j += count)
      store_row(kernels_, advance(w.data, w.dtype, place(w, b, i, j)), w.dtype, 1, tiles + j, count);
}

void MatrixWeights::run(const Operands& o, std::byte* workspace) const {
  Fit fit(spec_.precision);
  const auto sum = [&](const Slabs::Task& task, int number, float* tiles) -> const float* {
    const Slot s = carve(slot(workspace, number));
    const Block b = block(task.result);
    if (!tiles) tiles = s.tiles;
    for (Index round = task.units.begin; round < task.units.end && fit.good(); ++round)
      add(o, b, round, s, tiles, round > task.units.begin, fit);
    return folded_ ? nullptr : tiles;
  };
  slabs_.run<float>(slots(), workspace, tile_elements(), sum, [&](Index result, int number, const float* tiles) {
    if (fit.good()) store(o, block(result), tiles, carve(slot(workspace, number)).lines);
  });
  if (!fit.served()) direct_->run(o, workspace);
}

std::string MatrixWeights::explain() const {
  std::ostringstream s;
  s << "matrix w (" << unit_.name << ", " << x_terms_ << 'x' << y_terms_ << " terms): " << m_ << " of "
    << spec_.problem.co << " output and " << n_ << " of " << columns_ << " input channels"
    << (folded_ ? " and taps" : "") << " a task, boxes of " << batch_ << "x1x" << box_[1] << 'x' << box_[2]
    << " pixels in " << slabs_.count << " slabs; " << effort();
  return s.str();
}

}  // namespace
}  // namespace matrix

std::unique_ptr<EstimatedPass> make_matrix_weights(const PassSpec& spec, const KernelSet<float>& kernels,
                                                   const MatrixKernels& unit) {
  return make_planned<matrix::MatrixWeights>(spec, kernels, unit);
}

}  // namespace convbwd
