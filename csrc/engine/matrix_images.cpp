#include "engine/matrix_images.h"

namespace convbwd {
namespace matrix {

static constexpr Index kColumns = 16;  // that are written at a time

Matrix::Slot Matrix::carve(Carver carver) const {
  Slot s{};
  const bool together = layout_.chunk == blocks_;  // results are stored panel by panel
  if (layout_.mode != Mode::shared) s.pairs = carver.take<std::uint32_t>(layout_.batch * image_pairs());
  if (layout_.mode != Mode::packed) s.panel = carver.take<std::uint16_t>(layout_.part * panel_block());
  s.plane = carver.take<float>(copied_ * planes_.channel() + planes_.slack());
  s.weights = carver.take<float>(panel_channels_ * spec_.problem.taps() * kDepth);
  s.results = carver.take<float>(layout_.batch * image_results((together ? 1 : layout_.panels) * panel_channels_));
  s.line = carver.take<float>(maps_[2].positions(0, layout_.box[2]).end);
  s.streams = carver.take<Stream<float>>(streams_);
  s.parts = carver.take<Planes::Part>(planes_.parts());
  s.bytes = carver.used();
  return s;
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
  planes_.locate(image, work.box.q0, planes_.end(), s.parts);
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
          fit.see_b(unit_.split_pairs(to + place, term, image_terms_, even,
                                      live == 2 ? even + image.stride[1] : nullptr, source));
        });
      } else {
        const Index number = 2 * i % copied_;  // of those that are copied together
        if (number == 0)
          planes_.copy(kernels_, image, s.parts, n, c, std::min(copied_, cs_ - pair), s.plane, false, image.stride[1]);
        const float* const even = s.plane + number * plane;
        fit.see_b(
            unit_.split_pairs(to, term, image_terms_, even, live == 2 ? even + plane : nullptr, flat(plane, plane)));
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
        fit.see_a(unit_.split_rows(to, steps.rows * kDepth, weight_terms_, scratch, from, steps.rows));
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
  const FlatResults flat{&sets_, &maps_, work.box, channels, planes_.row(), plane_, pitch_, 1, 0};
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
  Fit fit(spec_.precision);
  if (layout_.mode == Mode::packed)
    parallel_for(spec_.problem.groups * panels_, slots(), [&](Index i, int number) {
      pack(o.w, i / panels_, i % panels_, {0, blocks_}, carve(slot(workspace, number)).weights,
           packed + i * blocks_ * panel_block(), fit);
    });
  const auto channels_of = [&](Index first, Index last) {
    return std::min(last * panel_channels_, cd_) - first * panel_channels_;
  };
  if (layout_.mode == Mode::shared) {
    for (Index i = 0; i < rounds() && fit.good(); ++i) {
      const Work work = this->work(i);
      parallel_for(work.images * blocks_, slots(), [&](Index part, int number) {
        const Index n = part / blocks_, block = part % blocks_;
        split(image, work, work.n + n, {block, 1}, carve(slot(workspace, number)),
              shared + n * image_pairs() + block * pair_block(), fit);
      });
      parallel_for(panels_, slots(), [&](Index panel, int number) {
        const Slot s = carve(slot(workspace, number));
        if (fit.good()) add(o, work, panel, panel, panel_live(panel), {0, blocks_}, shared, nullptr, s, fit);
        if (fit.good()) store(o, work, panel, panel_live(panel), s);
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
          for (Index panel = first; panel < first + step && fit.good(); ++panel)
            add(o, work, panel, first, channels, chunk, s.pairs, packed, s, fit);
        }
        if (fit.good()) store(o, work, first, channels, s);
      }
    });
  }
  if (!fit.served()) direct_->run(o, workspace);
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

}  // namespace matrix

std::unique_ptr<EstimatedPass> make_matrix(const PassSpec& spec, const KernelSet<float>& kernels,
                                           const MatrixKernels& unit) {
  return make_planned<matrix::Matrix>(spec, kernels, unit);
}

}  // namespace convbwd
