// Unknown w: see matrix.h. Rows of a product are output channels, columns are input channels, and the sum runs over the
// pixels of y, laid out like a zero-bordered flat copy of x, with zeros between its rows. A tap moves x by some pixels:
// as the unit takes them in pairs, by whole rows of its tiles, in one of two copies that pair them differently.
#include <tuple>
#include <utility>

#include "engine/matrix.h"
#include "engine/weights_out.h"

namespace convbwd {
namespace matrix {
namespace {

constexpr Index kTileBytes = 640 << 10;  // results of a task: a third of L2
constexpr Index kPixels = 512;           // of a box and batch: fewer show in the time of adding results up
constexpr Index kStretch = 16;           // steps between passes over the results
constexpr Index kColumns = 16;           // input channels that are split at a time

class MatrixWeights final : public GuardedPass {
 public:
  MatrixWeights(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit);
  bool plan();
  double nanoseconds() const override { return nanoseconds_; }
  std::string explain() const override;
  Index3 tile() const override { return box_; }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Results of a task: channels [m0, m0 + m) of y by [n0, n0 + n) of x.
  struct Block {
    Index g, m0, m, n0, n;
  };
  struct Slot {
    std::uint32_t* x;
    std::uint16_t* y;
    float *plane, *tiles, *lines;
    Planes::Part *x_parts, *y_parts;
  };

  void set_box();
  double set_tile(Index threads);
  double estimate() const;
  bool fits(Index threads);
  Slot carve(Carver& carver) const;
  Block block(Index i) const;
  void add(const Operands& o, const Block& b, Index round, const Slot& s, float* tiles, bool accumulate,
           Fit& fit) const;
  void store(const Operands& o, const Block& b, const float* tiles, float* lines) const;

  Index pitch() const { return round_up(n_, kColumns); }
  Index tile_elements() const { return m_ * spec_.problem.taps() * pitch(); }
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
  Index batch_ = 1, m_, n_, slabs_ = 1;
  Planes x_, y_;
  Index x_pixels_ = 0, pairings_ = 1, image_steps_ = 1, boxes_ = 1, rounds_ = 1, m_blocks_ = 1, n_blocks_ = 1;
  bool plain_ = false;
  double nanoseconds_ = 0;
  std::vector<std::ptrdiff_t> x_at_, y_at_, taps_;  // in bytes
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
  for (int a = 0; a < 3; ++a) maps_[a] = map_forward(axis_sizes(spec_.problem, a));
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
  batch_ = ceil_div(p.n, ceil_div(p.n, batch_));
  const auto shrink_box = [&] {
    if (batch_ > 1)
      batch_ = ceil_div(p.n, ceil_div(p.n, batch_ - 1));
    else if (box_[1] > 1 && flat() > 2 * kDepth)
      box_[1] = ceil_div(box_[1], 2);
    else if (box_[2] > 2 * kDepth)
      box_[2] = ceil_div(box_[2], 2);
    else
      return false;
    return true;
  };
  // Boxes, which decide the order of sums, are those for two threads whatever the number is. Blocks are not in it.
  const std::pair largest{box_, batch_};
  auto best = largest;
  double least = 0;
  for (Index threads = 2; threads > 0 && least == 0; --threads) {
    std::tie(box_, batch_) = largest;
    do {
      set_box();
      const double time = set_tile(threads);
      if (time > 0 && (least == 0 || time < least)) least = time, best = {box_, batch_};
      if (least > 0 && time > 1.2 * least) break;
    } while (shrink_box());
  }
  if (least == 0) return false;
  std::tie(box_, batch_) = best;
  set_box();
  nanoseconds_ = set_tile(1);
  for (Index threads = spec_.threads; set_tile(threads) == 0; --threads) {
  }
  return true;
}

// What depends on the box.
void MatrixWeights::set_box() {
  const Problem& p = spec_.problem;
  x_ = Planes(maps_, box_);
  y_ = Planes(x_, p.y);
  image_steps_ = ceil_div((box_[1] - 1) * x_.row() + box_[2], kDepth);
  boxes_ = pixel_boxes(p.y, box_);
  rounds_ = boxes_ * ceil_div(p.n, batch_);
  // Few results are summed in slabs of rounds, which are tasks too: blocks would split the same channels several times.
  const Index bytes = 4 * p.groups * p.co * round_up(p.ci, kColumns) * p.taps();
  const Index slabs = std::min({rounds_ / 2, kMinTasks / 2, static_cast<Index>(spec_.budget) / 4 / bytes});
  slabs_ = bytes <= kTileBytes / 2 ? std::max<Index>(1, slabs) : 1;
  std::vector<Index> offsets;
  for (Index d = 0; d < p.w[0]; ++d)
    for (Index h = 0; h < p.w[1]; ++h)
      for (Index w = 0; w < p.w[2]; ++w)
        offsets.push_back(x_.offset({d * p.dilation[0] - p.pad_before[0], h * p.dilation[1] - p.pad_before[1],
                                     w * p.dilation[2] - p.pad_before[2]}));
  // The last step reaches behind the last pixel: there it finds zeros.
  const Index reach = image_steps_ * kDepth + *std::max_element(offsets.begin(), offsets.end());
  x_pixels_ = round_up(std::max(x_.channel(), reach), kDepth);
  pairings_ = std::any_of(offsets.begin(), offsets.end(), [](Index at) { return at % 2 == 1; }) ? 2 : 1;
  taps_.clear();
  for (const Index at : offsets) taps_.push_back((at % 2 * batch_ * x_image() + at / 2 * kColumns) * 4);
  x_at_.clear(), y_at_.clear();
  for (Index n = 0; n < batch_; ++n)
    for (Index s = 0; s < image_steps_; ++s) {
      x_at_.push_back((n * x_image() + s * kStep) * 4);
      y_at_.push_back((n * image_steps_ + s) * kDepth * 2);
    }
}

// Sets the blocks that take so many threads the least time, and returns it for one thread; 0 if none fit.
double MatrixWeights::set_tile(Index threads) {
  const Problem& p = spec_.problem;
  m_ = p.co, n_ = p.ci;
  const auto halve = [](Index& v, Index of) { v = round_up(ceil_div(v, 2), of); };
  const auto shrink = [&] {
    // Splitting x takes four times as long as splitting y, which every block of input channels does again.
    if (n_ > kRows && 4 * n_ >= m_)
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
  double least = 0;
  Index m = 0, n = 0;
  do {
    if (tile_elements() * 4 > kTileBytes || !fits(threads)) continue;
    // Threads without a block wait for the others.
    const double waits = static_cast<double>(round_up(tasks_, threads)) / static_cast<double>(tasks_);
    const double time = estimate() * waits;
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
  m_blocks_ = ceil_div(p.co, m_), n_blocks_ = ceil_div(p.ci, n_);
  const Index results = p.groups * m_blocks_ * n_blocks_;
  Carver slot;
  carve(slot);
  return share(results * slabs_, slabs_ > 1 ? results * slabs_ * round_up(tile_elements() * 4, 64) : 0,
               static_cast<Index>(slot.used()), threads);
}

MatrixWeights::Slot MatrixWeights::carve(Carver& carver) const {
  Slot s{};
  s.x = carver.take<std::uint32_t>(pitch() / kColumns * x_terms_ * x_term());
  s.y = carver.take<std::uint16_t>(y_terms_ * y_term());
  // 16 channels of x, or one of y.
  s.plane = carver.take<float>(std::max(kColumns * x_pixels_, y_.channel()) + y_.slack());
  if (slabs_ == 1) s.tiles = carver.take<float>(tile_elements());
  if (spec_.operands.w.dtype != DType::float32) s.lines = carver.take<float>(kStoreRows * pitch());
  s.x_parts = carver.take<Planes::Part>(x_.parts());
  s.y_parts = carver.take<Planes::Part>(y_.parts());
  return s;
}

// Time of products, of splitting both images, and of storing results.
double MatrixWeights::estimate() const {
  const Problem& p = spec_.problem;
  const auto of = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  const int products = products_of(x_terms_, y_terms_);
  const Index steps = batch_ * image_steps_, rounds = rounds_ * p.groups;
  const auto cut = [](Index all, Index part) {
    return static_cast<double>(all / part) * blocks_of(part) + blocks_of(all % part);
  };
  const double blocks = of(rounds, p.taps()) * cut(p.co, m_) * cut(p.ci, n_);
  // Strided rows of small boxes come from many pages.
  const double pages = maps_[2].src_step > 1 ? 200 : 0;
  const double x =
      of(rounds, m_blocks_, p.ci, batch_) * (of(x_pixels_) * (0.06 * pairings_ * x_terms_ + row_cost(maps_)) + pages +
                                             plane_cost(spec_.operands.x.dtype, x_));
  const double y = of(rounds, n_blocks_, p.co, batch_) *
                   (of(y_.channel()) * (0.1 * y_terms_ + kDenseRow) + plane_cost(spec_.operands.y.dtype, y_));
  const double stored = of(p.groups, p.ci, p.co, p.taps()) * (0.2 + 0.3 * static_cast<double>(slabs_ - 1));
  return blocks * (27 * unit_.product * of(steps, products) + 110) + x + y + stored + 2000;
}

MatrixWeights::Block MatrixWeights::block(Index i) const {
  const Problem& p = spec_.problem;
  Block b;
  b.n0 = i % n_blocks_ * n_, b.n = std::min(n_, p.ci - b.n0);
  i /= n_blocks_;
  b.m0 = i % m_blocks_ * m_, b.m = std::min(m_, p.co - b.m0);
  b.g = i / m_blocks_;
  return b;
}

// Adds the products of the images and pixels of a round.
void MatrixWeights::add(const Operands& o, const Block& b, Index round, const Slot& s, float* tiles, bool accumulate,
                        Fit& fit) const {
  const Problem& p = spec_.problem;
  const PixelBox pixels = pixel_box(round % boxes_, p.y, box_);
  const Index n0 = round / boxes_ * batch_, images = std::min(batch_, p.n - n0);
  x_.locate(o.x, pixels.q0, x_.size(), s.x_parts);
  y_.locate(o.y, pixels.q0, pixels.q1, s.y_parts);
  const bool in_place = plain_ && o.x.dtype == DType::float32 && in_runs(o.x, box_);
  // Of images in place, and of the flat copies; only boxes of a single image may have fewer rows than others.
  const Index live_pixels = (pixels.q1[1] - pixels.q0[1]) * box_[2];
  const Index length = (pixels.q1[1] - pixels.q0[1] - 1) * x_.row() + pixels.q1[2] - pixels.q0[2];
  const Index steps = batch_ > 1 ? image_steps_ : ceil_div(length, kDepth);
  for (Index c = 0; c < b.n; c += kColumns)
    for (Index n = 0; n < images; ++n) {
      const Index live = std::min(kColumns, b.n - c), channel = b.g * p.ci + b.n0 + c;
      const float* from = s.plane;
      Index lds = x_pixels_, count = x_pixels_;
      if (in_place)
        from = static_cast<const float*>(o.x.data) +
               o.x.offset({n0 + n, channel, pixels.q0[0], pixels.q0[1], pixels.q0[2]}),
        lds = o.x.stride[1], count = live_pixels;
      else
        for (Index j = 0; j < live; ++j) {
          x_.copy(kernels_, o.x, s.x_parts, n0 + n, channel + j, 1, s.plane + j * x_pixels_);
          std::fill(s.plane + j * x_pixels_ + x_.channel(), s.plane + (j + 1) * x_pixels_, 0.0f);
        }
      fit.see(unit_.split_columns(s.x + c / kColumns * x_terms_ * x_term() + n * x_image(), x_term(),
                                  pairings_ > 1 ? batch_ * x_image() : 0, x_terms_, from, lds, static_cast<int>(live),
                                  count));
    }
  for (Index c = 0; c < b.m; ++c)
    for (Index n = 0; n < images; ++n) {
      const Index channel = b.g * p.co + b.m0 + c, whole = steps * kDepth;
      std::uint16_t* const to = s.y + c * y_row() + n * image_steps_ * kDepth;
      const auto split = [&](const float* from, FlatPlane plane) {
        plane.length = whole;
        fit.see(unit_.split_plane(to, y_term(), y_terms_, from, plane));
      };
      if (!dense_rows(o.y, y_)) {
        y_.copy(kernels_, o.y, s.y_parts, n0 + n, channel, 1, s.plane);
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
  const Index taps = p.taps();
  for (Index m = 0; m < b.m; m += kRows) {
    MatrixCall call;
    call.a = {s.y + m * y_row(), y_row() * 2, 16 * y_row() * 2, y_term() * 2, y_terms_, y_at_.data()};
    call.b = {s.x, kColumns * 4, x_terms_ * x_term() * 4, x_term() * 4, x_terms_, x_at_.data()};
    call.steps = images * steps;
    call.stretch = kStretch;
    call.rows = static_cast<int>(std::min(kRows, b.m - m));
    call.columns = b.n;
    call.c = tiles + m * taps * pitch();
    call.ldc = taps * pitch();
    call.accumulate = accumulate;
    call.shift = taps_.data();
    call.shifts = taps;
    call.shift_c = pitch();
    unit_.multiply(call);
  }
}

void MatrixWeights::store(const Operands& o, const Block& b, const float* tiles, float* lines) const {
  const Problem& p = spec_.problem;
  store_weights(kernels_, p, o.w.at({b.g * p.co + b.m0, b.n0, 0, 0, 0}, o.w.size), 0, {b.m, b.n, 0, p.taps(), pitch()},
                tiles, lines);
}

void MatrixWeights::run(const Operands& o, std::byte* workspace) const {
  const Index results = tasks_ / slabs_, elements = round_up(tile_elements(), 16);
  auto* const shared = reinterpret_cast<float*>(workspace);
  const auto slot_of = [&](int number) {
    Carver carver(slot(workspace, number));
    return carve(carver);
  };
  Fit fit(spec_.precision == Precision::strict);
  parallel_for(tasks_, slots(), [&](Index i, int number) {
    const Slot s = slot_of(number);
    const Block b = block(i / slabs_);
    float* const tiles = slabs_ > 1 ? shared + i * elements : s.tiles;
    const Index slab = i % slabs_, first = slab * rounds_ / slabs_, last = (slab + 1) * rounds_ / slabs_;
    for (Index round = first; round < last && fit; ++round) add(o, b, round, s, tiles, round > first, fit);
    if (slabs_ == 1 && fit) store(o, b, tiles, s.lines);
  });
  if (slabs_ > 1 && fit)
    parallel_for(results, slots(), [&](Index i, int number) {
      float* const tiles = shared + i * slabs_ * elements;
      for (Index slab = 1; slab < slabs_; ++slab)
        for (Index e = 0; e < elements; ++e) tiles[e] += tiles[slab * elements + e];
      store(o, block(i), tiles, slot_of(number).lines);
    });
  if (!fit) direct_->run(o, workspace);
}

std::string MatrixWeights::explain() const {
  std::ostringstream s;
  s << "matrix w (" << unit_.name << ", " << x_terms_ << 'x' << y_terms_ << " terms): " << m_ << " of "
    << spec_.problem.co << " output and " << n_ << " of " << spec_.problem.ci << " input channels a task, boxes of "
    << batch_ << "x1x" << box_[1] << 'x' << box_[2] << " pixels in " << slabs_ << " slabs; " << effort();
  return s.str();
}

}  // namespace
}  // namespace matrix

std::unique_ptr<GuardedPass> make_matrix_weights(const PassSpec& spec, const KernelSet<float>& kernels,
                                                 const MatrixKernels& unit) {
  auto pass = std::make_unique<matrix::MatrixWeights>(spec, kernels, unit);
  if (!pass->plan()) return nullptr;
  return pass;
}

}  // namespace convbwd
