// Unknown x by pixels, where strides are 1 and planes small: see matrix.h. Rows of a product are pixels of y, columns
// pairs of a channel of x and a tap as they lie in w, and the sum runs over the channels of y: weights, which are most
// of what is read, are split where they are instead of transposed. What each pixel adds to the places that its window
// covers is then summed place by place: products are transposed to flat planes, one for each tap, with zeros between
// rows and images, and a place reads each of them at the offset of its tap.
#include "engine/matrix.h"
#include "engine/rows_out.h"

namespace convbwd {
namespace matrix {
namespace {

constexpr Index kMostPixels = 3072;        // of a plane: larger ones need more products of each weight than splits
constexpr Index kMostPlaces = 32 << 10;    // of a flat plane: dilated windows may be longer than any image
constexpr Index kMostChunk = 4;            // steps of a chunk: 32 rows and columns of both operands stay in L1
constexpr Index kMostColumns = 512;        // of a task
constexpr Index kResultBytes = 640 << 10;  // products of a task: a third of L2
constexpr Index kFarBytes = 2 << 20;       // of L2
constexpr Index kPlanesBytes = 16 << 10;   // flat planes that are transposed at a time
constexpr Index kRound = 16;               // columns are computed up to a multiple of this

class MatrixPixels final : public GuardedPass {
 public:
  MatrixPixels(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit);
  bool plan();
  double nanoseconds() const override { return nanoseconds_; }
  std::string explain() const override;
  Sums summation() const override { return sums_of(SumKind::pixels, chunk_, 0, direct_->summation()[3]); }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Images [n0, n0 + images) of a group.
  struct Round {
    Index g, n0, images;
  };
  struct Slot {
    std::uint16_t* y;
    std::uint32_t* w;
    float *pixels, *weights, *products, *planes, *sums, *line;
    Index bytes;
  };

  double search(Index threads);
  void set_batch(Index batch);
  bool configure(Index channels, Index chunk, bool shared, Index threads);
  double estimate() const;
  Slot carve(Carver carver) const;
  void split_y(const Operands& o, const Round& round, Index step, float* pixels, std::uint16_t* to, Fit& fit) const;
  void split_w(const Operands& o, Index g, Index c0, Index channels, Index first, Index steps, const Slot& s,
               Fit& fit) const;
  void add(const Operands& o, const Round& round, Index c0, Index channels, const std::uint16_t* all, const Slot& s,
           Fit& fit) const;
  void store(const Operands& o, const Round& round, Index c0, Index channels, const Slot& s) const;

  // Whether channels of x and taps lie in w one behind the other.
  bool in_place(const View& w) const {
    return w.dtype == DType::float32 && dense_planes(w) && w.stride[1] == spec_.problem.taps();
  }
  Index volume() const { return spec_.problem.y_plane(); }
  Index rounds() const { return spec_.problem.groups * ceil_div(spec_.problem.n, batch_); }
  // In elements: a term of a step of y, and of a step of w.
  Index y_term() const { return rows_ * kDepth; }
  Index w_term() const { return kDepth / 2 * pitch_; }

  const KernelSet<float>& kernels_;
  const MatrixKernels& unit_;
  int y_terms_, w_terms_;
  Index steps_;                                 // of all channels of y
  Index3 extent_;                               // of the places that windows cover, and of x
  Index front_ = 0;                             // the largest offset of a tap in them
  Index batch_ = 1, channels_ = 1, chunk_ = 1;  // images of a round, channels of x of a task, steps of a chunk
  bool shared_ = false;                         // y is split once for all tasks
  bool copies_;                                 // rows of w are brought to floats first
  Index rows_ = 1, flat_ = 1, plane_ = 1;       // pixels of a round; places; elements of a flat plane
  Index pitch_ = kRound, together_ = 1;         // of products; channels that are transposed at a time
  std::vector<std::ptrdiff_t> y_at_, w_at_, rows_of_, offsets_;
  std::vector<float> ones_;
  double nanoseconds_ = 0;
};

MatrixPixels::MatrixPixels(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit)
    : GuardedPass(spec),
      kernels_(kernels),
      unit_(unit),
      y_terms_(terms_of(spec.operands.y.dtype)),
      w_terms_(terms_of(spec.operands.w.dtype)),
      steps_(ceil_div(spec.problem.co, kDepth)),
      copies_(spec.operands.w.dtype != DType::float32) {}

bool MatrixPixels::plan() {
  const Problem& p = spec_.problem;
  if (spec_.unknown != Unknown::x || p.depthwise() || p.taps() == 1 || p.stride != Index3{1, 1, 1}) return false;
  if (volume() > kMostPixels && spec_.sums[1] == 0) return false;
  direct_ = make_gather(spec_, kernels_);
  if (!direct_) return false;
  for (std::size_t a = 0; a < 3; ++a)
    extent_[a] = std::max(p.y[a] + (p.w[a] - 1) * p.dilation[a], p.pad_before[a] + p.x[a]);
  if (extent_[0] * extent_[1] * extent_[2] > kMostPlaces) return false;
  const auto place = [&](Index d, Index h, Index w) { return (d * extent_[1] + h) * extent_[2] + w; };
  front_ = place((p.w[0] - 1) * p.dilation[0], (p.w[1] - 1) * p.dilation[1], (p.w[2] - 1) * p.dilation[2]);
  ones_.assign(static_cast<std::size_t>(p.taps()), 1.0f);
  // The chunk, which decides the order of sums, is that for two threads whatever the number is, and for dense operands.
  chunk_ = std::min(steps_, spec_.sums[1]);
  for (Index threads = 2; chunk_ == 0 && threads > 0; --threads) search(threads);
  if (chunk_ == 0) return false;
  nanoseconds_ = search(1);
  if (nanoseconds_ == 0) return false;
  for (Index threads = spec_.threads; search(threads) == 0; --threads) {
  }
  copies_ = !in_place(spec_.operands.w);
  configure(channels_, chunk_, shared_, 1);
  for (Index i = 0; i < chunk_; ++i) {
    w_at_.push_back(i * w_terms_ * w_term() * 4);
    y_at_.push_back(i * y_terms_ * y_term() * 2);
  }
  for (Index d = 0, t = 0; d < p.w[0]; ++d)
    for (Index h = 0; h < p.w[1]; ++h)
      for (Index w = 0; w < p.w[2]; ++w, ++t)
        offsets_.push_back(t * plane_ - place(d * p.dilation[0], h * p.dilation[1], w * p.dilation[2]));
  // Which row of products a place of a flat plane has: behind them is one of zeros.
  rows_of_.assign(static_cast<std::size_t>(plane_), rows_);
  for (Index n = 0, row = 0; n < batch_; ++n)
    for (Index d = 0; d < p.y[0]; ++d)
      for (Index h = 0; h < p.y[1]; ++h)
        for (Index w = 0; w < p.y[2]; ++w, ++row)
          rows_of_[static_cast<std::size_t>(front_ + place(n * extent_[0] + d, h, w))] = row;
  return true;
}

// Sets what takes so many threads the least time, and returns it for one thread; 0 if nothing fits. A chunk that is set
// already stays.
double MatrixPixels::search(Index threads) {
  const Problem& p = spec_.problem;
  double least = 0;
  struct {
    Index batch, channels, chunk;
    bool shared;
  } best{};
  const Index kept = chunk_;
  for (Index batch = p.n; batch > 0; batch = batch > 1 ? ceil_div(batch, 2) : 0) {
    set_batch(batch);
    for (Index columns = kMostColumns; columns >= 2 * kRound; columns /= 2)
      for (Index chunk = kept > 0 ? kept : std::min(kMostChunk, steps_); chunk > 0; chunk = kept > 0 ? 0 : chunk / 2)
        for (const bool shared : {true, false}) {
          if (!configure(std::clamp<Index>(columns / p.taps(), 1, p.ci), chunk, shared, threads)) continue;
          if ((rows_ + 1) * pitch_ * 4 > kResultBytes && columns > 2 * kRound) continue;
          const double time = estimate() * waits(threads);
          if (least == 0 || time < least) least = time, best = {batch, channels_, chunk, shared};
        }
  }
  chunk_ = kept;
  if (least == 0) return 0;
  set_batch(best.batch);
  configure(best.channels, best.chunk, best.shared, threads);
  return least;
}

void MatrixPixels::set_batch(Index batch) {
  const Problem& p = spec_.problem;
  batch_ = even_part(p.n, batch);
  rows_ = round_up(batch_ * volume(), kRound);
  flat_ = batch_ * extent_[0] * extent_[1] * extent_[2];
  plane_ = odd_multiple(front_ + flat_ + kRound, kRound);
}

bool MatrixPixels::configure(Index channels, Index chunk, bool shared, Index threads) {
  const Problem& p = spec_.problem;
  channels_ = even_part(p.ci, channels);
  chunk_ = chunk;
  shared_ = shared;
  pitch_ = odd_multiple(channels_ * p.taps(), kRound);
  together_ = std::clamp<Index>(kPlanesBytes / (4 * p.taps() * plane_), 1, channels_);
  Carver all;
  if (shared_) all.take<std::uint16_t>(steps_ * y_terms_ * y_term());
  return share(ceil_div(p.ci, channels_), all.used(), carve({}).bytes, threads);
}

MatrixPixels::Slot MatrixPixels::carve(Carver carver) const {
  const Problem& p = spec_.problem;
  Slot s{};
  if (!shared_) s.y = carver.take<std::uint16_t>(chunk_ * y_terms_ * y_term());
  s.products = carver.take<float>((rows_ + 1) * pitch_);
  s.weights = carver.take<float>(copies_ ? kDepth * channels_ * p.taps() : 0);
  s.line = carver.take<float>(p.x[2]);
  // Pixels on their way to y, then w, and planes and their sums in the end: one at a time.
  const Index w = chunk_ * w_terms_ * w_term(), pixels = rows_ * kDepth, planes = together_ * p.taps() * plane_;
  s.planes = carver.take<float>(std::max({w, pixels, planes + round_up(flat_, kRound)}));
  s.sums = s.planes + planes;
  s.pixels = s.planes;
  s.w = reinterpret_cast<std::uint32_t*>(s.planes);
  s.bytes = carver.used();
  return s;
}

// Time of splitting, of products, and of adding them up.
double MatrixPixels::estimate() const {
  const Problem& p = spec_.problem;
  const Index pixels = batch_ * volume(), chunks = ceil_div(steps_, chunk_);
  const double y = count_of(pixels, steps_, kDepth) * (0.15 + 0.09 * y_terms_) * (shared_ ? 1 : count_of(tasks_));
  const double w = count_of(p.co, p.ci, p.taps()) * (0.04 + 0.09 * w_terms_ + far_cost(p));
  const double calls = count_of(tasks_, chunks, ceil_div(pixels, kRows));
  const double blocks = count_of(tasks_) * blocks_of(pixels) * blocks_of(channels_ * p.taps());
  const double products = 32 * unit_.product * count_of(steps_, products_of(y_terms_, w_terms_));
  const double added = count_of(p.ci, p.taps(), plane_) * 0.14 + count_of(p.ci, batch_) * (50 + 10 * count_of(p.x[0]));
  // Every task reads all of y again, where it does not stay in L2 from the cache behind.
  const Index bytes = steps_ * y_terms_ * y_term() * 2;
  const double far = shared_ && bytes > kFarBytes ? 0.02 * count_of(bytes, tasks_) : 0;
  return count_of(rounds()) * (y + w + far + 212 * calls + blocks * (products + 54 * count_of(chunks)) + added) + 2000;
}

// Splits 32 channels of y: a row for each pixel.
void MatrixPixels::split_y(const Operands& o, const Round& round, Index step, float* pixels, std::uint16_t* to,
                           Fit& fit) const {
  const Problem& p = spec_.problem;
  const Index first = step * kDepth, live = std::min(kDepth, p.co - first), elements = round.images * volume() * kDepth;
  if (live < kDepth) std::fill_n(pixels, elements, 0.0f);
  copy_in(kernels_, pixels, {volume() * kDepth, 1, p.y[1] * p.y[2] * kDepth, p.y[2] * kDepth, kDepth},
          o.y.at({round.n0, round.g * p.co + first, 0, 0, 0}, {round.images, live, p.y[0], p.y[1], p.y[2]}));
  fit.see_a(unit_.split_plane(to, y_term(), y_terms_, pixels, flat(elements, elements)));
}

// Splits rows of w, two channels of y side by side.
void MatrixPixels::split_w(const Operands& o, Index g, Index c0, Index channels, Index first, Index steps,
                           const Slot& s, Fit& fit) const {
  const Problem& p = spec_.problem;
  const Index columns = channels * p.taps();
  FlatPlane plane = flat(columns, round_up(columns, kRound));
  for (Index step = 0; step < steps; ++step) {
    const Index k0 = (first + step) * kDepth, live = std::min(kDepth, p.co - k0);
    const View part = o.w.at({g * p.co + k0, c0, 0, 0, 0}, {live, channels, p.w[0], p.w[1], p.w[2]});
    const float* rows = static_cast<const float*>(part.data);
    Index next = part.stride[0];
    if (copies_) {
      copy_in(kernels_, s.weights, dense_strides(part.size), part);
      rows = s.weights, next = columns;
    }
    plane.ahead = 2 * next;
    std::uint32_t* to = s.w + step * w_terms_ * w_term();
    for (Index i = 0; i < kDepth; i += 2, to += pitch_) {
      if (i >= live)
        for (int t = 0; t < w_terms_; ++t) std::fill_n(to + t * w_term(), plane.length, 0u);
      else
        fit.see_b(unit_.split_pairs(to, w_term(), w_terms_, rows + i * next,
                                    i + 1 < live ? rows + (i + 1) * next : nullptr, plane));
    }
  }
}

// Products of all pixels with the weights of some channels; `all` is y where it was split for all tasks.
void MatrixPixels::add(const Operands& o, const Round& round, Index c0, Index channels, const std::uint16_t* all,
                       const Slot& s, Fit& fit) const {
  const Index rows = round.images * volume();
  for (Index first = 0; first < steps_; first += chunk_) {
    const Index steps = std::min(chunk_, steps_ - first);
    const std::uint16_t* y = s.y;
    if (shared_)
      y = all + first * y_terms_ * y_term();
    else
      for (Index i = 0; i < steps; ++i) split_y(o, round, first + i, s.pixels, s.y + i * y_terms_ * y_term(), fit);
    split_w(o, round.g, c0, channels, first, steps, s, fit);
    MatrixCall call;
    call.b = {s.w, pitch_ * 4, kRound * 4, w_term() * 4, w_terms_, w_at_.data()};
    call.steps = call.stretch = steps;
    call.columns = channels * spec_.problem.taps();
    call.ldc = pitch_;
    call.accumulate = first > 0;
    for (Index m = 0; m < rows; m += kRows) {
      call.a = {y + m * kDepth, kDepth * 2, 16 * kDepth * 2, y_term() * 2, y_terms_, y_at_.data()};
      call.rows = static_cast<int>(std::min(kRows, rows - m));
      call.c = s.products + m * pitch_;
      unit_.multiply(call);
    }
  }
}

void MatrixPixels::store(const Operands& o, const Round& round, Index c0, Index channels, const Slot& s) const {
  const Problem& p = spec_.problem;
  const Index taps = p.taps();
  const auto transpose = kernels_.transpose[static_cast<int>(DType::float32)];
  std::fill_n(s.products + rows_ * pitch_, pitch_, 0.0f);
  for (Index c = 0; c < channels; ++c) {
    if (c % together_ == 0) {
      float* table[1] = {s.planes};
      transpose(table, 1, plane_, s.products + c * taps, rows_of_.data(), pitch_, static_cast<int>(plane_),
                static_cast<int>(plane_), std::min(together_, channels - c) * taps, {});
    }
    // Planes are added up by the kernel for few channels: a tap each, with weights of one.
    kernels_.rows(1, flat_, s.planes + c % together_ * taps * plane_ + front_, offsets_.data(), taps, ones_.data(),
                  s.sums, 0, false);
    const Index channel = round.g * p.ci + c0 + c;
    float bias = 0;
    if (o.bias.data) load_bias(kernels_, &bias, o.bias, channel, 1);
    for (Index n = 0; n < round.images; ++n)
      for (Index d = 0; d < p.x[0]; ++d) {
        const Index from = ((n * extent_[0] + p.pad_before[0] + d) * extent_[1] + p.pad_before[1]) * extent_[2];
        const Stream<float> stream{s.sums + from + p.pad_before[2], 0, p.x[2]};
        std::byte* const to = advance(o.x.data, o.x.dtype, o.x.offset({round.n0 + n, channel, d, 0, 0}));
        store_streams(kernels_, &stream, 1, 1, extent_[2], false, bias, s.line,
                      {to, o.x.dtype, p.x[1], o.x.stride[3], o.x.stride[4], {0, p.x[2]}});
      }
  }
}

void MatrixPixels::run(const Operands& o, std::byte* workspace) const {
  const Problem& p = spec_.problem;
  auto* const all = reinterpret_cast<std::uint16_t*>(workspace);
  Fit fit(spec_.precision);
  for (Index i = 0; i < rounds() && fit.good(); ++i) {
    const Index batches = ceil_div(p.n, batch_), n0 = i % batches * batch_;
    const Round round{i / batches, n0, std::min(batch_, p.n - n0)};
    if (shared_)
      parallel_for(steps_, slots(), [&](Index step, int number) {
        split_y(o, round, step, carve(slot(workspace, number)).pixels, all + step * y_terms_ * y_term(), fit);
      });
    parallel_for(tasks_, slots(), [&](Index task, int number) {
      const Slot s = carve(slot(workspace, number));
      const Index c0 = task * channels_, channels = std::min(channels_, p.ci - c0);
      if (fit.good()) add(o, round, c0, channels, all, s, fit);
      if (fit.good()) store(o, round, c0, channels, s);
    });
  }
  if (!fit.served()) direct_->run(o, workspace);
}

std::string MatrixPixels::explain() const {
  std::ostringstream s;
  s << "matrix x by pixels (" << unit_.name << ", " << y_terms_ << 'x' << w_terms_ << " terms): " << batch_
    << " images at a time, chunks of " << std::min(chunk_ * kDepth, spec_.problem.co) << " of " << spec_.problem.co
    << " source channels, split " << (shared_ ? "once" : "by tasks") << ", " << channels_ << " of " << spec_.problem.ci
    << " channels a task; " << effort();
  return s.str();
}

}  // namespace
}  // namespace matrix

std::unique_ptr<EstimatedPass> make_matrix_pixels(const PassSpec& spec, const KernelSet<float>& kernels,
                                                  const MatrixKernels& unit) {
  return make_planned<matrix::MatrixPixels>(spec, kernels, unit);
}

}  // namespace convbwd
