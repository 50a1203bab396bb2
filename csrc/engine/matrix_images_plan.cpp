// Planning: see matrix_images.h.
#include "engine/matrix_images.h"

namespace convbwd::matrix {
namespace {

constexpr Index kSourceBytes = 1 << 20;  // split source of a task: half of L2
constexpr Index kPanelBytes = 64 << 10;  // weights that are packed at a time
constexpr Index kResultBytes = 512 << 10;
constexpr Index kLeastPixels = 96;  // of a box: below, fewer source channels at a time are better

}  // namespace

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
  if (steps_.empty()) return false;
  panel_channels_ = ceil_div(cd_, ceil_div(cd_ * members, kRows));
  panels_ = ceil_div(cd_, panel_channels_);
  for (Steps& steps : steps_) steps.rows *= panel_channels_;
  direct_ = make_gather(spec_, kernels_);
  if (!direct_) return false;
  chunk_ = spec_.sums[1], part_ = spec_.sums[2];
  Layout best;
  Index least = 2;
  double least_time = search_modes(least, best);
  if (least_time == 0) least_time = search_modes(least = 1, best);
  if (least_time == 0) return false;
  configure(best, least);
  nanoseconds_ = estimate();
  // More threads may have other boxes, shared another way, but no other chunks.
  chunk_ = layout_.chunk, part_ = layout_.part;
  if (sharers() > 2) {
    const auto by_threads = [&] {
      const double read = layout_.mode == Mode::shared ? moved() * (1 - 1.0 / slots()) : 0;  // that others split
      return estimate() / speedup() + read;
    };
    least_time = by_threads();
    for (Index wanted = sharers(); wanted > 2; wanted /= 2)
      for (const Mode mode : kModes)
        if (search(mode, wanted))
          if (const double time = by_threads(); time < least_time) least_time = time, best = layout_, least = wanted;
  }
  copied_ = channels_last(image(spec_.operands)) ? kDepth : 2;
  if (!configure(best, least)) copied_ = 2, configure(best, least);
  list_steps();
  return true;
}

// The layout of least time with room for so many slots, and that time; 0 where none fits.
double Matrix::search_modes(Index slots, Layout& best) {
  double least = 0;
  for (const Mode mode : kModes)
    if (search(mode, slots)) {
      const double cost = estimate() + (mode == Mode::shared ? moved() : 0);
      if (least == 0 || cost < least) best = layout_, least = cost;
    }
  return least;
}

// Large boxes make most of the weights; they shrink until source and results stay in L2 and within the budget.
bool Matrix::search(Mode mode, Index least) {
  const Problem& p = spec_.problem;
  Layout l{mode, count_, p.n, blocks_, 1, panels_};
  const bool fixed = chunk_ > 0;
  const Index wanted = kMinTasks / 2 * std::max<Index>(2, least);
  if (fixed) {
    l.chunk = std::min(blocks_, chunk_), l.part = std::clamp<Index>(part_, 1, l.chunk);
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
  while (l.chunk * block_bytes * l.batch * flat() > kSourceBytes || (mode != Mode::shared && count() < wanted))
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
      while (l.panels > 1 && count() * ceil_div(panels_, l.panels) < wanted) halve(l.panels);
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
double Matrix::estimate() const {
  const Problem& p = spec_.problem;
  const int products = products_of(image_terms_, weight_terms_);
  double calls = 0, blocks = 0;
  const PixelBox box = pixel_box(0, count_, layout_.box);
  for (const PhaseSet& s : sets_) {
    if (s.taps == 0) continue;
    const Index3 e = box.extent(s);
    const Index rows = panel_channels_ * s.members, columns = (e[1] - 1) * planes_.row() + e[2];
    calls += count_of(panels_, ceil_div(rows, kRows), e[0], ceil_div(layout_.chunk, layout_.part),
                      ceil_div(blocks_, layout_.chunk));
    blocks += count_of(panels_, e[0], blocks_, s.taps) * blocks_of(rows) * blocks_of(columns);
  }
  const double images = count_of(p.n, p.groups, boxes_);
  const double copies = layout_.mode == Mode::shared ? 1 : static_cast<double>(ceil_div(panels_, layout_.panels));
  const double plane = count_of(planes_.channel()) * (0.08 * image_terms_ + row_cost(maps_)) +
                       plane_cost(image(spec_.operands).dtype, planes_);
  const double source = count_of(cs_) * plane * copies;
  const double weights = count_of(panels_, blocks_, panel_block(), p.groups) * (0.1 + 0.25 / weight_terms_);
  const double repeats = layout_.mode == Mode::packed ? 1 : count_of(boxes_, batches_);
  // In place, in rows, most of them zeros that are written all at once, or put together from phases.
  const bool sparse = std::any_of(sets_.begin(), sets_.end(), [](const PhaseSet& s) { return s.taps == 0; });
  const double stored = count_of(p.n, p.groups, cd_) * count_of(to_x_ ? p.x_plane() : p.y_plane()) *
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

}  // namespace convbwd::matrix
