// Unknown x and y: see matrix.h. Rows of a product are destination channels (times the members of a phase), columns
// the pixels of a zero-bordered flat copy of the source, as in rows.cpp; the sum runs over taps and source channels.
#include "engine/matrix.h"

#include "engine/rows_out.h"

namespace convbwd {
namespace matrix {
namespace {

constexpr Index kSourceBytes = 1 << 20;  // split source of a task: half of L2
constexpr Index kPanelBytes = 64 << 10;  // weights that are packed at a time
constexpr Index kResultBytes = 512 << 10;
constexpr Index kColumns = 16;      // that are written at a time
constexpr Index kLeastPixels = 96;  // of a box: below, fewer source channels at a time are better

class Matrix final : public GuardedPass, Roles {
 public:
  Matrix(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit);
  bool plan();
  double nanoseconds() const override;
  std::string explain() const override;
  Index3 tile() const override {
    return {layout_.box[0] * maps_[0].dst_step, layout_.box[1] * maps_[1].dst_step, layout_.box[2] * maps_[2].dst_step};
  }
  Sums summation() const override {
    return sums_of(SumKind::matrix, layout_.chunk, layout_.part, direct_->summation()[3]);
  }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Who brings in what. Tasks may each split the source of their own box, and find the weights packed once for all of
  // them (packed) or pack them too (own). Or all tasks work on one box after the other, whose source is split once,
  // and each packs the weights of its own channels (shared).
  enum class Mode { packed, own, shared };
  struct Layout {
    Mode mode = Mode::own;
    Index3 box{1, 1, 1};
    Index batch = 1;            // images of a box
    Index chunk = 1, part = 1;  // blocks of source channels that are split, and whose weights are packed, at a time
    Index panels = 1;           // of a task
  };
  // How the rows and steps of a phase set find their weights and pixels.
  struct Steps {
    Index taps, rows;                  // rows of weights at a tap: channels of a panel times members
    Index results;                     // rows of results before those of this set, a channel
    std::vector<std::ptrdiff_t> a, b;  // [block of source channels][tap]
  };
  struct Slot {
    std::uint32_t* pairs;
    std::uint16_t* panel;
    float *plane, *weights, *results, *line;
    Stream<float>* streams;
    Planes::Part* parts;
    Index bytes;
  };
  // Images [n, n + images) of a group at the pixels of a box.
  struct Work {
    PixelBox box;
    Index g, n, images;
  };
  // Blocks of source channels.
  struct Blocks {
    Index first, count;
  };

  bool search(Mode mode, Index least);
  bool configure(const Layout& layout, Index least);
  double moved() const;
  void list_steps();
  Slot carve(Carver carver) const;
  Work work(Index i) const;
  void split(const View& image, const Work& work, Index n, const Blocks& blocks, const Slot& s, std::uint32_t* pairs,
             Fit& fit) const;
  void pack(const View& w, Index g, Index panel, const Blocks& blocks, float* scratch, std::uint16_t* to,
            Fit& fit) const;
  void add(const Operands& o, const Work& work, Index panel, Index first_panel, Index channels, const Blocks& chunk,
           const std::uint32_t* pairs, const std::uint16_t* packed, const Slot& s, Fit& fit) const;
  void multiply(const PixelBox& box, const Blocks& part, const std::uint16_t* panel, const std::uint32_t* pairs,
                Index channel, Index live, Index channels, float* results, const View* in_place) const;
  View target(const Operands& o, const Work& work, Index n, Index first_panel) const;
  bool in_place(const Operands& o) const;
  void store(const Operands& o, const Work& work, Index first_panel, Index channels, const Slot& s) const;

  Index panel_live(Index panel) const { return std::min(panel_channels_, cd_ - panel * panel_channels_); }
  // In elements: a block of a panel, a block of source channels, and an image (the last columns of a call reach beyond
  // the last row).
  Index panel_block() const { return weight_terms_ * panel_channels_ * panel_taps_ * kDepth; }
  Index pair_block() const { return image_terms_ * pair_term(); }
  Index pair_term() const { return kDepth / 2 * planes_.channel(); }
  Index image_pairs() const { return layout_.chunk * pair_block() + 2 * planes_.slack(); }
  Index image_results(Index channels) const { return channels * rows_ * pitch_; }
  Index rounds() const { return spec_.problem.groups * boxes_ * batches_; }

  const KernelSet<float>& kernels_;
  const MatrixKernels& unit_;
  std::array<AxisMap, 3> maps_;
  std::vector<PhaseSet> sets_;
  std::vector<Steps> steps_;          // of each set with taps
  std::vector<std::ptrdiff_t> from_;  // where the split finds weights: [set][tap][channel][member]
  Index blocks_;                      // of source channels
  int image_terms_, weight_terms_;
  bool plain_ = true;             // every pixel reads the source at its own place only
  Index rows_ = 0, streams_ = 0;  // results of a channel; phases along w
  Index panel_channels_ = 1, panels_ = 1, panel_taps_ = 0;
  Index3 count_;
  Layout layout_;
  Planes planes_;
  Index plane_ = 0, pitch_ = 0;  // of results
  Index boxes_ = 1, batches_ = 1;
};

Matrix::Matrix(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit)
    : GuardedPass(spec), Roles(spec), kernels_(kernels), unit_(unit) {
  const Problem& p = spec_.problem;
  blocks_ = ceil_div(cs_, kDepth);
  image_terms_ = terms_of(image(spec_.operands).dtype);
  weight_terms_ = terms_of(spec_.operands.w.dtype);
  maps_ = axis_maps(p, to_x_ ? map_transposed : map_forward);
  sets_ = phase_sets(maps_);
  count_ = most_pixels(maps_);
  plain_ = plain(maps_);
  for (const Phase& f : maps_[2].phases) streams_ += static_cast<Index>(f.members.size());
}

bool Matrix::plan() {
  if (spec_.problem.depthwise()) return false;  // one source channel of the 32 of a step
  Index members = 1;
  for (const PhaseSet& s : sets_) {
    if (s.taps == 0) continue;
    members = std::max(members, s.members);
    steps_.push_back({s.taps, s.members, rows_, {}, {}});
    rows_ += s.members;
    panel_taps_ += s.taps * s.members;
  }
  if (steps_.empty() || (members > 1 && steps_.size() > 1)) return false;
  panel_channels_ = ceil_div(cd_, ceil_div(cd_ * members, kRows));
  panels_ = ceil_div(cd_, panel_channels_);
  for (Steps& steps : steps_) steps.rows *= panel_channels_;
  direct_ = make_gather(spec_, kernels_);
  if (!direct_) return false;
  for (const Index least : {2, 1}) {
    Layout best;
    double least_cost = 0;
    for (const Mode mode : {Mode::packed, Mode::shared, Mode::own})
      if (search(mode, least)) {
        const double cost = nanoseconds() + (mode == Mode::shared ? moved() : 0);
        if (least_cost == 0 || cost < least_cost) best = layout_, least_cost = cost;
      }
    if (least_cost == 0) continue;
    configure(best, least);
    list_steps();
    return true;
  }
  return false;
}

// Large boxes make most of the weights; they shrink until source and results stay in L2 and within the budget.
bool Matrix::search(Mode mode, Index least) {
  const Problem& p = spec_.problem;
  Layout l{mode, count_, p.n, blocks_, 1, panels_};
  const bool fixed = spec_.sums[1] > 0;
  if (fixed) {
    l.chunk = std::min(blocks_, spec_.sums[1]), l.part = std::clamp<Index>(spec_.sums[2], 1, l.chunk);
    if ((mode == Mode::packed && l.part < l.chunk) || (mode == Mode::shared && l.chunk < blocks_)) return false;
  }
  const auto halve = [](Index& v) { v = ceil_div(v, 2); };
  const auto flat = [&] { return Planes(maps_, l.box).channel(); };
  const auto shrink_box = [&](Index least_pixels) {
    if (l.batch > 1)
      l.batch = even_part(p.n, l.batch - 1);
    else if (l.box[0] > 1)
      halve(l.box[0]);
    else if (l.box[1] > 1 && flat() > least_pixels)
      halve(l.box[1]);
    else if (l.box[2] > 64)
      halve(l.box[2]);
    else
      return false;
    return true;
  };
  const auto count = [&] { return pixel_boxes(count_, l.box) * ceil_div(p.n, l.batch) * p.groups; };
  const Index block_bytes = image_terms_ * 2 * kDepth;  // of a pixel and block
  if (mode == Mode::shared) {
    if (panels_ == 1) return false;
    l.panels = 1;
    if (!fixed) l.part = std::clamp<Index>(kPanelBytes / (2 * panel_block()), 1, blocks_);
  }
  while (l.chunk * block_bytes * l.batch * flat() > kSourceBytes || (mode != Mode::shared && count() < kMinTasks))
    if (!shrink_box(4 * kLeastPixels)) break;
  for (;;) {
    if (mode != Mode::shared) {
      while (!fixed && l.chunk > 1 && l.chunk * block_bytes * l.batch * flat() > kSourceBytes) halve(l.chunk);
      if (!fixed)
        l.part = mode == Mode::packed ? l.chunk : std::clamp<Index>(kPanelBytes / (2 * panel_block()), 1, l.chunk);
      l.panels = panels_;
      if (l.chunk < blocks_)
        while (l.panels > 1 && l.panels * panel_channels_ * rows_ * l.batch * flat() * 4 > kResultBytes)
          halve(l.panels);
      while (l.panels > 1 && count() * ceil_div(panels_, l.panels) < kMinTasks) halve(l.panels);
    }
    if (configure(l, least)) return true;
    if (shrink_box(kLeastPixels)) continue;
    if (fixed || mode == Mode::shared || l.chunk == 1) return false;
    halve(l.chunk);
  }
}

bool Matrix::configure(const Layout& layout, Index least) {
  const Problem& p = spec_.problem;
  layout_ = layout;
  planes_ = Planes(maps_, layout_.box);
  plane_ = round_up(planes_.plane(), 16);
  pitch_ = plane_ * layout_.box[0];
  boxes_ = pixel_boxes(count_, layout_.box);
  batches_ = ceil_div(p.n, layout_.batch);
  if (layout_.mode == Mode::packed && boxes_ * batches_ == 1) return false;
  Carver shared;
  if (layout_.mode == Mode::packed) shared.take<std::uint16_t>(p.groups * panels_ * blocks_ * panel_block());
  if (layout_.mode == Mode::shared) shared.take<std::uint32_t>(layout_.batch * image_pairs());
  const Index tasks = layout_.mode == Mode::shared ? panels_ : rounds() * ceil_div(panels_, layout_.panels);
  return share(tasks, shared.used(), carve({}).bytes, least);
}

Matrix::Slot Matrix::carve(Carver carver) const {
  Slot s{};
  const bool together = layout_.chunk == blocks_;  // results are stored panel by panel
  if (layout_.mode != Mode::shared) s.pairs = carver.take<std::uint32_t>(layout_.batch * image_pairs());
  if (layout_.mode != Mode::packed) s.panel = carver.take<std::uint16_t>(layout_.part * panel_block());
  s.plane = carver.take<float>(2 * planes_.channel() + planes_.slack());
  s.weights = carver.take<float>(panel_channels_ * spec_.problem.taps() * kDepth);
  s.results = carver.take<float>(layout_.batch * image_results((together ? 1 : layout_.panels) * panel_channels_));
  s.line = carver.take<float>(maps_[2].positions(0, layout_.box[2]).end);
  s.streams = carver.take<Stream<float>>(streams_);
  s.parts = carver.take<Planes::Part>(planes_.parts());
  s.bytes = carver.used();
  return s;
}

void Matrix::list_steps() {
  const Problem& p = spec_.problem;
  std::size_t number = 0;
  Index at = 0;  // of a tap's weights in a block, in elements
  for (const PhaseSet& s : sets_) {
    if (s.taps == 0) continue;
    const auto& [fd, fh, fw] = s.phase;
    Steps& steps = steps_[number++];
    for (std::size_t d = 0; d < fd->offset.size(); ++d)
      for (std::size_t h = 0; h < fh->offset.size(); ++h)
        for (std::size_t w = 0; w < fw->offset.size(); ++w, at += weight_terms_ * steps.rows * kDepth) {
          steps.a.push_back(at * 2);
          steps.b.push_back(planes_.offset({fd->offset[d], fh->offset[h], fw->offset[w]}) * 4);
          for (Index c = 0; c < panel_channels_; ++c)
            for (const auto& md : fd->members)
              for (const auto& mh : fh->members)
                for (const auto& mw : fw->members)
                  from_.push_back((c * p.taps() + (md.tap[d] * p.w[1] + mh.tap[h]) * p.w[2] + mw.tap[w]) * kDepth);
        }
    for (Index i = s.taps; i < s.taps * layout_.part; ++i) {
      steps.a.push_back(steps.a[static_cast<std::size_t>(i - s.taps)] + panel_block() * 2);
      steps.b.push_back(steps.b[static_cast<std::size_t>(i - s.taps)] + pair_block() * 4);
    }
  }
}

// Time of products, of splitting source and weights, and of storing results.
double Matrix::nanoseconds() const {
  const Problem& p = spec_.problem;
  const auto of = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  const int products = products_of(image_terms_, weight_terms_);
  double calls = 0, blocks = 0;
  const PixelBox box = pixel_box(0, count_, layout_.box);
  for (const PhaseSet& s : sets_) {
    if (s.taps == 0) continue;
    const Index3 e = box.extent(s);
    const Index rows = panel_channels_ * s.members, columns = (e[1] - 1) * planes_.row() + e[2];
    calls += of(panels_, ceil_div(rows, kRows), e[0], ceil_div(layout_.chunk, layout_.part),
                ceil_div(blocks_, layout_.chunk));
    blocks += of(panels_, e[0], blocks_, s.taps) * blocks_of(rows) * blocks_of(columns);
  }
  const double images = of(p.n, p.groups, boxes_);
  const double copies = layout_.mode == Mode::shared ? 1 : static_cast<double>(ceil_div(panels_, layout_.panels));
  const double plane = of(planes_.channel()) * (0.08 * image_terms_ + row_cost(maps_)) +
                       plane_cost(image(spec_.operands).dtype, planes_);
  const double source = of(cs_) * plane * copies;
  const double weights = of(panels_, blocks_, panel_block(), p.groups) * (0.1 + 0.25 / weight_terms_);
  const double repeats = layout_.mode == Mode::packed ? 1 : of(boxes_, batches_);
  // In place, in rows, most of them zeros that are written all at once, or put together from phases.
  const bool sparse = std::any_of(sets_.begin(), sets_.end(), [](const PhaseSet& s) { return s.taps == 0; });
  const double stored = of(p.n, p.groups, cd_) * of(to_x_ ? p.x_plane() : p.y_plane()) *
                        (plain_                   ? 0.07
                         : maps_[2].dst_step == 1 ? 0.34
                         : sparse                 ? 0.55
                                                  : 0.45);
  return images * (32 * unit_.product * blocks * products + 220 * calls + source) + weights * repeats + stored + 2000;
}

// Time that a shared source takes to come from the cache of the core that split it, for one of two threads: 12 ns a
// line (Sapphire Rapids), of which each thread needs the half that is not its own.
double Matrix::moved() const {
  return static_cast<double>(rounds()) * static_cast<double>(layout_.batch * image_pairs() * 4 / 64) * 12;
}

Matrix::Work Matrix::work(Index i) const {
  const Problem& p = spec_.problem;
  const PixelBox b = pixel_box(i % boxes_, count_, layout_.box);
  i /= boxes_;
  const Index n = i % batches_ * layout_.batch;
  return {b, i / batches_, n, std::min(layout_.batch, p.n - n)};
}

// Splits one image of a box to pairs[block][term][pair of source channels][pixel].
void Matrix::split(const View& image, const Work& work, Index n, const Blocks& blocks, const Slot& s,
                   std::uint32_t* pairs, Fit& fit) const {
  const Index plane = planes_.channel(), term = pair_term();
  const bool dense = dense_rows(image, planes_);
  planes_.locate(image, work.box.q0, planes_.size(), s.parts);
  for (Index block = blocks.first; block < blocks.first + blocks.count; ++block, pairs += pair_block())
    for (Index i = 0; i < kDepth / 2; ++i) {
      const Index pair = block * kDepth + 2 * i, live = std::clamp<Index>(cs_ - pair, 0, 2), c = work.g * cs_ + pair;
      std::uint32_t* const to = pairs + i * plane;
      if (live == 0) {
        for (int t = 0; t < image_terms_; ++t) std::fill_n(to + t * term, plane, 0u);
      } else if (dense) {
        planes_.each_plane(image, s.parts, n, c, [&](Index place, Index origin, const Planes::Part* part) {
          const float* const even = static_cast<const float*>(image.data) + origin;
          FlatPlane source = flat(image, planes_, part);
          source.ahead = 2 * image.stride[1];
          fit.see(unit_.split_pairs(to + place, term, image_terms_, even, live == 2 ? even + image.stride[1] : nullptr,
                                    source));
        });
      } else {
        planes_.copy(kernels_, image, s.parts, n, c, live, s.plane, false, image.stride[1]);
        fit.see(unit_.split_pairs(to, term, image_terms_, s.plane, live == 2 ? s.plane + plane : nullptr,
                                  flat(plane, plane)));
      }
    }
}

// Splits the weights of a panel to to[block][set][tap][term][channel][member][source channel].
void Matrix::pack(const View& w, Index g, Index panel, const Blocks& blocks, float* scratch, std::uint16_t* to,
                  Fit& fit) const {
  const Problem& p = spec_.problem;
  const Index channels = panel_live(panel);
  Index5 step{0, 0, p.w[1] * p.w[2] * kDepth, p.w[2] * kDepth, kDepth};
  step[weight_n_] = p.taps() * kDepth, step[weight_k_] = 1;
  for (Index block = blocks.first; block < blocks.first + blocks.count; ++block) {
    Index5 at{}, size = w.size;
    at[0] = g * p.co;
    at[weight_n_] += panel * panel_channels_, size[weight_n_] = channels;
    at[weight_k_] += block * kDepth, size[weight_k_] = std::min(kDepth, cs_ - block * kDepth);
    if (channels < panel_channels_ || size[weight_k_] < kDepth)
      std::fill_n(scratch, panel_channels_ * p.taps() * kDepth, 0.0f);
    copy_in(kernels_, scratch, step, w.at(at, size));
    const std::ptrdiff_t* from = from_.data();
    for (const Steps& steps : steps_)
      for (Index i = 0; i < steps.taps; ++i, from += steps.rows, to += weight_terms_ * steps.rows * kDepth)
        fit.see(unit_.split_rows(to, steps.rows * kDepth, weight_terms_, scratch, from, steps.rows));
  }
}

// Adds the products of one panel and chunk; the results hold `channels` channels from `first_panel` on.
void Matrix::add(const Operands& o, const Work& work, Index panel, Index first_panel, Index channels,
                 const Blocks& chunk, const std::uint32_t* pairs, const std::uint16_t* packed, const Slot& s,
                 Fit& fit) const {
  const Index channel = (panel - first_panel) * panel_channels_;
  for (Index first = 0; first < chunk.count; first += layout_.part) {
    const Blocks part{chunk.first + first, std::min(layout_.part, chunk.count - first)};
    const std::uint16_t* weights = s.panel;
    if (layout_.mode == Mode::packed)
      weights = packed + ((work.g * panels_ + panel) * blocks_ + part.first) * panel_block();
    else
      pack(o.w, work.g, panel, part, s.weights, s.panel, fit);
    for (Index n = 0; n < work.images; ++n) {
      const View to = target(o, work, n, first_panel);
      multiply(work.box, part, weights, pairs + n * image_pairs() + first * pair_block(), channel, panel_live(panel),
               channels, s.results + n * image_results(channels), in_place(o) ? &to : nullptr);
    }
  }
}

void Matrix::multiply(const PixelBox& box, const Blocks& part, const std::uint16_t* panel, const std::uint32_t* pairs,
                      Index channel, Index live, Index channels, float* results, const View* in_place) const {
  std::size_t number = 0;
  for (const PhaseSet& s : sets_) {
    if (s.taps == 0) continue;
    const Steps& steps = steps_[number++];
    const Index3 e = box.extent(s);
    if (e[0] == 0 || e[1] == 0 || e[2] == 0) continue;
    for (Index row = 0; row < live * s.members; row += kRows)
      for (Index d = 0; d < e[0]; ++d) {
        MatrixCall call;
        constexpr Index kRow = kDepth * 2;
        call.a = {panel + row * kDepth, kRow, 16 * kRow, steps.rows * kRow, weight_terms_, steps.a.data()};
        call.b = {
            pairs + d * planes_.plane(), planes_.channel() * 4, 64, pair_term() * 4, image_terms_, steps.b.data()};
        call.steps = call.stretch = part.count * s.taps;
        call.rows = static_cast<int>(std::min(kRows, live * s.members - row));
        call.columns = (e[1] - 1) * planes_.row() + e[2];
        call.c = results + (channels * steps.results + channel * s.members + row) * pitch_ + d * plane_;
        call.ldc = pitch_;
        call.accumulate = part.first > 0;
        if (const Index whole = call.columns / kColumns * kColumns; in_place && whole) {
          MatrixCall direct = call;
          direct.columns = whole;
          direct.c = static_cast<float*>(in_place->data) +
                     in_place->offset({0, channel + row, box.q0[0] + d, box.q0[1], box.q0[2]});
          direct.ldc = in_place->stride[1];
          unit_.multiply(direct);
          call.b.data = static_cast<const std::uint32_t*>(call.b.data) + whole;
          call.c += whole;
          call.columns -= whole;
        }
        if (call.columns) unit_.multiply(call);
      }
  }
}

// Where the results of an image and box go.
View Matrix::target(const Operands& o, const Work& work, Index n, Index first_panel) const {
  const View& d = destination(o);
  return d.at({work.n + n, work.g * cd_ + first_panel * panel_channels_, 0, 0, 0}, d.size);
}

// Whether sums may be formed right there: all but the last columns of a call, which are fewer than are written.
bool Matrix::in_place(const Operands& o) const {
  const View& d = destination(o);
  return plain_ && !o.bias.data && d.dtype == DType::float32 && in_runs(d, layout_.box);
}

void Matrix::store(const Operands& o, const Work& work, Index first_panel, Index channels, const Slot& s) const {
  const Index c = work.g * cd_ + first_panel * panel_channels_;
  const FlatResults flat{&sets_, &maps_, work.box, channels, planes_.row(), plane_, pitch_};
  const Index3 e = work.box.extent(sets_[0]);
  const Index length = e[1] * e[2], whole = length / kColumns * kColumns;
  for (Index n = 0; n < work.images; ++n) {
    const View to = target(o, work, n, first_panel);
    const float* results = s.results + n * image_results(channels);
    if (!in_place(o)) {
      store_flat(kernels_, flat, results, to, o.bias.data ? o.bias.at({0, c, 0, 0, 0}, o.bias.size) : View{}, s.streams,
                 s.line);
      continue;
    }
    for (Index i = 0; i < channels; ++i)
      for (Index d = 0; d < e[0]; ++d)
        std::copy_n(results + i * pitch_ + d * plane_ + whole, length - whole,
                    static_cast<float*>(to.data) +
                        to.offset({0, i, work.box.q0[0] + d, work.box.q0[1], work.box.q0[2]}) + whole);
  }
}

void Matrix::run(const Operands& o, std::byte* workspace) const {
  const View& image = this->image(o);
  auto* const packed = reinterpret_cast<std::uint16_t*>(workspace);
  auto* const shared = reinterpret_cast<std::uint32_t*>(workspace);
  Fit fit(spec_.precision == Precision::strict);
  if (layout_.mode == Mode::packed)
    parallel_for(spec_.problem.groups * panels_, slots(), [&](Index i, int number) {
      pack(o.w, i / panels_, i % panels_, {0, blocks_}, carve(slot(workspace, number)).weights,
           packed + i * blocks_ * panel_block(), fit);
    });
  const auto channels_of = [&](Index first, Index last) {
    return std::min(last * panel_channels_, cd_) - first * panel_channels_;
  };
  if (layout_.mode == Mode::shared) {
    for (Index i = 0; i < rounds() && fit; ++i) {
      const Work work = this->work(i);
      parallel_for(work.images * blocks_, slots(), [&](Index part, int number) {
        const Index n = part / blocks_, block = part % blocks_;
        split(image, work, work.n + n, {block, 1}, carve(slot(workspace, number)),
              shared + n * image_pairs() + block * pair_block(), fit);
      });
      parallel_for(panels_, slots(), [&](Index panel, int number) {
        const Slot s = carve(slot(workspace, number));
        if (fit) add(o, work, panel, panel, panel_live(panel), {0, blocks_}, shared, nullptr, s, fit);
        if (fit) store(o, work, panel, panel_live(panel), s);
      });
    }
  } else {
    const Index parts = ceil_div(panels_, layout_.panels);
    parallel_for(tasks_, slots(), [&](Index i, int number) {
      const Slot s = carve(slot(workspace, number));
      const Work work = this->work(i / parts);
      const Index begin = i % parts * layout_.panels, end = std::min(begin + layout_.panels, panels_);
      // With one chunk the results of each panel are stored at once, else those of all panels when all is added.
      const Index step = layout_.chunk < blocks_ ? end - begin : 1;
      for (Index first = begin; first < end; first += step) {
        const Index channels = channels_of(first, first + step);
        for (Index block = 0; block < blocks_; block += layout_.chunk) {
          const Blocks chunk{block, std::min(layout_.chunk, blocks_ - block)};
          if (first == begin)
            for (Index n = 0; n < work.images; ++n)
              split(image, work, work.n + n, chunk, s, s.pairs + n * image_pairs(), fit);
          for (Index panel = first; panel < first + step && fit; ++panel)
            add(o, work, panel, first, channels, chunk, s.pairs, packed, s, fit);
        }
        if (fit) store(o, work, first, channels, s);
      }
    });
  }
  if (!fit) direct_->run(o, workspace);
}

std::string Matrix::explain() const {
  constexpr const char* packs[] = {"once", "by tasks", "by tasks that share their source"};
  std::ostringstream s;
  s << "matrix " << (to_x_ ? "x" : "y") << " (" << unit_.name << ", " << weight_terms_ << 'x' << image_terms_
    << " terms): boxes of " << layout_.batch << 'x' << layout_.box[0] << 'x' << layout_.box[1] << 'x' << layout_.box[2]
    << " pixels, chunks of " << std::min(cs_, layout_.chunk * kDepth) << " of " << cs_ << " source channels, panels of "
    << panel_channels_ << " of " << cd_ << " channels, packed " << packs[static_cast<int>(layout_.mode)] << "; "
    << effort();
  return s.str();
}

}  // namespace
}  // namespace matrix

std::unique_ptr<GuardedPass> make_matrix(const PassSpec& spec, const KernelSet<float>& kernels,
                                         const MatrixKernels& unit) {
  return make_planned<matrix::Matrix>(spec, kernels, unit);
}

}  // namespace convbwd
