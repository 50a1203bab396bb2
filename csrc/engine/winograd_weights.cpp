// Unknown w: see winograd.h.
#include <optional>

#include "engine/slabs.h"
#include "engine/winograd.h"

namespace convbwd::winograd {
namespace {

constexpr CostsByProcessor kCosts{.adding = {.scale = {0.95, 0.95, 0.95},
                                             .writing = 10,
                                             .source = {110, 450, 500},
                                             .other = {90, 350, 410},
                                             .weights = {100, 225, 200},
                                             .line = {1, 0.5, 1}},
                                  .beside = {.scale = {1.01, 1.01, 1.01},
                                             .writing = 5,
                                             .source = {119, 340, 390},
                                             .other = {65, 200, 180},
                                             .weights = {2, 24, 4},
                                             .line = {1.2, 1.2, 1}},
                                  .halving = {.scale = {1.09, 1.09, 1.09},
                                              .writing = 4,
                                              .source = {55, 230, 255},
                                              .other = {14, 56, 66},
                                              .weights = {2, 5, 4},
                                              .line = {1, 0.5, 1}}};

template <class T>
class WinogradWeights final : public Tiled<T> {
  using Base = Tiled<T>;
  using Base::spec_, Base::kernels_, Base::direct_, Base::axes_, Base::parts_, Base::lanes_, Base::step_, Base::boxes_,
      Base::source_tiles_, Base::tasks_, Base::pitch, Base::transforms_, Base::frequencies_, Base::taps_, Base::tap_;

 public:
  WinogradWeights(const PassSpec& spec, const Choice<T>& choice)
      : Base(spec, choice), store_channels_(std::max<Index>(1, kMostRows * axes_[0].window / taps_)) {}

  bool plan() {
    // Boxes and slabs fix the order of sums: they depend on the shape alone. More of the smaller blocks transform the
    // same tiles, but where the budget is tight two fit, or larger boxes do.
    std::optional<Cut> best;
    double least = 0;
    for (const Index slots : {2, 1})
      for (Cut c :
           {Cut{2 * kBlock}, Cut{kBlock}, Cut{kBlock, 2}, Cut{kBlock, 2, 2}, Cut{kBlock, 4, 2}, Cut{kBlock, 4, 4}})
        for (c.slots = slots, c.tiles = kChunk; c.tiles >= kLeastTiles; c.tiles = c.tiles * 3 / 4)
          if (configure(c) && tasks_ >= (c.block > kBlock ? kMinTasks / 2 : slots)) {
            this->estimate();
            if (!best || this->cost_ < least) best = c, least = this->cost_;
            break;
          }
    if (!best || !configure(*best)) return false;
    this->estimate();
    if (const double apart = this->speedup(); spec_.threads > apart) {
      together_ = true;
      if (!share_out(*best) ||
          !this->together_pays(boxes_ * slabs_.results, ceil_div(rows_, lanes_) + panels_ * width_ / lanes_, apart))
        together_ = false, share_out(*best);
    }
    return true;
  }

  double relative_time() const override {
    const Costs& costs = kCosts.here(this->kernels_);
    return this->of_tile(costs.scale) * (this->products(this->tiles(step_), costs.writing) +
                                         this->sources() * whole_vectors(spec_.problem.ci, lanes_) *
                                             this->relative_tiles(costs, costs.source, panels_ * width_) +
                                         this->relative_tiles(costs, costs.other, rows_) +
                                         this->relative_weights(costs.weights, boxes_ * this->tiles(step_)));
  }

  std::string explain() const override {
    std::ostringstream s;
    s << "winograd w " << this->name() << " (" << kernels_.name << "): boxes of " << step_.n << 'x' << step_.d << 'x'
      << step_.h << 'x' << step_.w << " tiles, " << rows_ << " of " << spec_.problem.ci << " input channels by "
      << panels_ * width_ << " of " << spec_.problem.co << " output channels a task, " << boxes_ << " boxes in "
      << slabs_.count << " slabs; " << (together_ ? "shared by all threads, " : "") << this->effort();
    return s.str();
  }

  void run(const Operands& o, std::byte* workspace) const override {
    std::atomic<bool> fit{true};
    const auto sum = [&](const Slabs::Task& task, int slot, T* c) {
      Slot s = carve(workspace, slot);
      if (c) s.c = c;
      const Block b = block_of(task.result);
      for (Index j = task.units.begin; j < task.units.end && fit; ++j)
        if (!add(o, b, this->box(j), s, workspace, j > task.units.begin)) fit = false;
      return s.c;
    };
    const auto store_block = [&](Index block, int slot, const T* c) {
      if (fit && !store(o, block_of(block), c, carve(workspace, slot), workspace)) fit = false;
    };
    slabs_.template run<T>(together_ ? 1 : this->slots(), workspace, slab_elements(), sum, store_block, this->slots());
    if (!fit) direct_->run(o, workspace);
  }

 private:
  struct Slot {
    T *c, *v, *b, *pixels, *lines;
  };
  // Results of a task: input channels from m0 on, output channels from n0 on.
  struct Block {
    Index g, m0, m, n0, n;
  };

  // Blocks of so many channels on both sides, in parts, for so many slots at least, and boxes of about so many tiles.
  struct Cut {
    Index block, rows = 1, columns = 1, slots = 1, tiles = 0;
  };
  bool configure(const Cut& c) {
    const Problem& p = spec_.problem;
    this->cut(p.n, p.y, c.tiles);
    const Index columns = c.block / c.columns;
    // The widest panels that waste least.
    const Index panels = ceil_div(p.co, std::min(kernels_.gather_count * lanes_, columns));
    width_ = round_up(ceil_div(p.co, panels), lanes_);
    const Index all = ceil_div(p.co, width_);
    panels_ = even_part(all, columns / width_);
    Index of_rows = std::min(ceil_div(p.ci, c.block) * c.rows, ceil_div(p.ci, lanes_));
    // Few blocks are an even number, of the same size, and so are slabs: two threads share them.
    const auto blocks = [&] { return p.groups * of_rows * ceil_div(all, panels_); };
    while (blocks() < kMinTasks && all % panels_ > 0) --panels_;
    const bool few = blocks() < kMinTasks;
    if (few && blocks() > 1) of_rows += blocks() % 2;
    rows_ = few ? ceil_div(p.ci, of_rows) : round_up(ceil_div(p.ci, of_rows), lanes_);
    vstep_ = pitch(source_tiles_ * round_up(rows_, lanes_));
    bstep_ = pitch(this->tiles(step_) * width_);
    cstep_ = pitch(rows_ * width_);
    slabs_ = {.results = p.groups * ceil_div(p.ci, rows_) * ceil_div(p.co, panels_ * width_), .units = boxes_};
    const Index wanted = c.slots == 1 ? 1 : c.rows == 1 ? kMinTasks : 2;
    if (slabs_.results < wanted) {
      const Index room =
          static_cast<Index>(spec_.budget) / 4 * 3 / static_cast<Index>(sizeof(T)) / (slabs_.results * slab_elements());
      slabs_.count =
          std::min({boxes_, round_up(ceil_div(wanted, slabs_.results), 2), std::max<Index>(1, room / 2 * 2)});
      slabs_.order([&](Index block) {
        const Block b = block_of(block);
        return b.m * b.n;
      });
    }
    return share_out(c);
  }
  // Tasks have sums and tiles of their own; or all threads work on one task after the other, and only have room of
  // their own to bring in pixels.
  bool share_out(const Cut& c) {
    Carver sums, scratch;
    Slot s;
    take_sums(sums, s), take_scratch(scratch, s);
    const Index slabs = slabs_.bytes<T>(slab_elements());
    return together_ ? this->share(panels_ * frequencies_, slabs + sums.used(), scratch.used())
                     : this->share(slabs_.tasks(), slabs, sums.used() + scratch.used(), c.slots);
  }
  Index slab_elements() const { return panels_ * parts_ * frequencies_ * cstep_; }
  void take_sums(Carver& carver, Slot& s) const {
    if (!slabs_.several()) s.c = carver.take<T>(slab_elements());
    s.v = carver.take<T>(frequencies_ * vstep_);
    s.b = carver.take<T>(panels_ * frequencies_ * bstep_);
  }
  void take_scratch(Carver& carver, Slot& s) const {
    s.pixels = carver.take<T>(std::max(this->window_elements(), store_channels_ * taps_ * width_));
    s.lines = carver.take<T>(kMostRows * lanes_);
  }
  Slot carve(std::byte* workspace, int number) const {
    Slot s{};
    Carver own = this->slot(workspace, number), shared = workspace + slabs_.bytes<T>(slab_elements());
    take_sums(together_ ? shared : own, s), take_scratch(own, s);
    return s;
  }
  // Calls f(unit, scratch of the thread) for what a task is made of.
  template <class F>
  void each(Index units, const Slot& s, std::byte* workspace, F&& f) const {
    parallel_for(units, together_ ? this->slots() : 1, [&](Index i, int number) {
      Slot own = s;
      if (Carver scratch = this->slot(workspace, number); together_) take_scratch(scratch, own);
      f(i, own);
    });
  }
  Block block_of(Index i) const {
    const Problem& p = spec_.problem;
    const Index rows = ceil_div(p.ci, rows_), columns = ceil_div(p.co, panels_ * width_);
    // Those of all columns follow each other: threads share blocks of full width and the narrow last ones.
    Block b{i / rows / columns, i / columns % rows * rows_, 0, i % columns * panels_ * width_, 0};
    b.m = std::min(rows_, p.ci - b.m0);
    b.n = std::min(panels_ * width_, p.co - b.n0);
    return b;
  }

  // Adds the sums over the tiles of a box to c[panel][part][frequency][input channel][column]. Returns whether
  // transforms may mix the values.
  bool add(const Operands& o, const Block& r, const Box& b, const Slot& task, std::byte* workspace,
           bool accumulate) const {
    const Index rows = ceil_div(r.m, lanes_), columns = ceil_div(r.n, lanes_);
    std::atomic<bool> good{true};
    each(rows + columns, task, workspace, [&](Index i, const Slot& s) {
      if (i < rows ? !transform_rows(o.x, r, b, i * lanes_, s) : !transform_columns(o.y, r, b, (i - rows) * lanes_, s))
        good = false;
    });
    const Index pieces = together_ ? this->slots() : 1;
    const Index panels = ceil_div(r.n, width_);
    each(panels * pieces, task, workspace, [&](Index i, const Slot& s) {
      multiply(r, b, i % panels, piece_of(frequencies_, i / panels, pieces), s, accumulate);
    });
    return good;
  }

  // A vector of input channels, from m on, to v[frequency][vector][tile].
  bool transform_rows(const View& x, const Block& r, const Box& b, Index m, const Slot& s) const {
    return this->each_line(x, r.g * spec_.problem.ci + r.m0 + m, std::min(lanes_, r.m - m), b, true, s.pixels,
                           [&](const T* const* rows, Index first, Index width, Index tile, Index tiles) {
                             transforms_.image(s.v + m * source_tiles_ + tile * lanes_, vstep_, lanes_, rows,
                                               this->apart(2, true) * lanes_, first, width, tiles);
                           });
  }
  // A vector of output channels, from n on, to b[panel][frequency][tile][column].
  bool transform_columns(const View& y, const Block& r, const Box& b, Index n, const Slot& s) const {
    const Index columns = panel_columns(r, n / width_);
    T* const to = s.b + n / width_ * frequencies_ * bstep_ + n % width_;
    return this->each_line(y, r.g * spec_.problem.co + r.n0 + n, std::min(lanes_, r.n - n), b, false, s.pixels,
                           [&](const T* const* rows, Index, Index width, Index tile, Index tiles) {
                             transforms_.gradient(to + tile * columns, bstep_, columns, rows,
                                                  this->apart(2, false) * lanes_, width, tiles);
                           });
  }

  // The columns of a panel, some of the frequencies.
  void multiply(const Block& r, const Box& b, Index panel, Range frequencies, const Slot& s, bool accumulate) const {
    std::ptrdiff_t row[kMostChannels], crow[kMostChannels];
    Segment segments[kMostTiles];
    const Runs runs = runs_of(b);
    const Index columns = panel_columns(r, panel);
    // Sums of more boxes are long beside these.
    const GatherKernel<T>& kernel = gathering_kernel(kernels_, columns, this->few_frequencies() && boxes_ == 1);
    for (Index m = 0; m < r.m; ++m) {
      row[m] = m / lanes_ * source_tiles_ * lanes_ + m % lanes_;
      crow[m] = m * columns;
    }
    for (Index part = 0; part < parts_; ++part) {
      const auto of_window = this->part(part);
      const Index first = this->offset(b, of_window);
      for (Index i = 0; i < runs.count; ++i) {
        const Index tile = i * runs.size;
        segments[i] = {(first + this->line_at(b, tile / b.w)) * lanes_, tile * columns, runs.size};
      }
      for (Index f = frequencies.begin; f < frequencies.end; ++f) {
        T* const to = s.c + ((panel * parts_ + part) * frequencies_ + f) * cstep_;
        if (!this->uses(of_window, f)) {
          if (!accumulate) std::fill_n(to, r.m * columns, T{});
          continue;
        }
        kernel.run(static_cast<int>(r.m), s.v + f * vstep_, row, lanes_, segments, runs.count,
                   s.b + (panel * frequencies_ + f) * bstep_, columns, to, crow, accumulate);
      }
    }
  }

  // Tiles of a box that lie side by side among the source tiles too.
  struct Runs {
    Index size, count;
  };
  Runs runs_of(const Box& b) const {
    Index size = b.w;
    if (axes_[2].more == 0) size *= this->lines(b);
    if (axes_[2].more == 0 && axes_[1].more == 0) size *= b.d;
    if (this->at(b, 1, 0, 0, 0) == b.d * this->lines(b) * b.w) size *= b.n;
    return {size, this->tiles(b) / size};
  }

  // Transforms the sums of a block back, so many channels of a panel's columns at a time. Returns whether that could
  // mix the values.
  bool store(const Operands& o, const Block& r, const T* c, const Slot& task, std::byte* workspace) const {
    const Index of_panel = ceil_div(r.m, store_channels_);
    std::atomic<bool> good{true};
    each(ceil_div(r.n, width_) * of_panel, task, workspace, [&](Index i, const Slot& s) {
      if (!store_some(o.w, r, c, i / of_panel, i % of_panel * store_channels_, s)) good = false;
    });
    return good;
  }
  // Of the input channels from m on.
  bool store_some(const View& w, const Block& r, const T* c, Index panel, Index m, const Slot& s) const {
    const Index3& window = spec_.problem.w;
    const Index plane = window[1] * window[2];
    const bool taps_dense =
        w.stride[3] == window[2] * w.stride[4] && (window[0] == 1 || w.stride[2] == plane * w.stride[4]);
    const bool join = taps_dense && w.stride[1] == taps_ * w.stride[4];
    const Index columns = panel_columns(r, panel), n = std::min(width_, r.n - panel * width_);
    const Index count = std::min(store_channels_, r.m - m);
    bool good = true;
    for (Index p = 0; p < parts_; ++p)
      for (Index i = 0; i < count; ++i)
        good &=
            transforms_.taps(s.pixels + i * taps_ * columns, columns, tap_.data() + p * axes_[1].taps * axes_[2].taps,
                             c + (panel * parts_ + p) * frequencies_ * cstep_ + (m + i) * columns, cstep_,
                             static_cast<int>(columns / lanes_));
    this->clear(s.pixels, {count, window[0], window[1], window[2]}, columns, [](std::size_t, Index t) { return t; });
    const Index run = join ? count * taps_ : taps_dense ? taps_ : 1;
    for (Index i = 0; i < count * taps_; i += run) {
      const Index t = i % taps_;
      const Index at = w.offset({r.g * spec_.problem.co + r.n0 + panel * width_, r.m0 + m + i / taps_, t / plane,
                                 t / window[2] % window[1], t % window[2]});
      this->put(advance(w.data, w.dtype, at), w.dtype, w.stride[4], w.stride[0], s.pixels + i * columns, columns, run,
                n, s.lines);
    }
    return good;
  }
  Index panel_columns(const Block& r, Index panel) const {
    return round_up(std::min(width_, r.n - panel * width_), lanes_);
  }

  static constexpr Index kBlock = 64, kMostChannels = 2 * kBlock;
  const Index store_channels_;  // whose taps are one transposition
  Index width_ = 1, rows_ = 1, panels_ = 1;
  Slabs slabs_;
  bool together_ = false;  // all threads share one task after the other
  Index vstep_ = 0, bstep_ = 0, cstep_ = 0;
};

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_weights(const PassSpec& spec, const Choice<T>& choice) {
  return make_planned<WinogradWeights<T>>(spec, choice);
}
template std::unique_ptr<EstimatedPass> make_weights(const PassSpec&, const Choice<float>&);
template std::unique_ptr<EstimatedPass> make_weights(const PassSpec&, const Choice<double>&);

}  // namespace convbwd::winograd
