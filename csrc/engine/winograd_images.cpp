// Unknown x and y: see winograd.h.
#include <optional>

#include "engine/winograd.h"

namespace convbwd::winograd {
namespace {

constexpr CostsByProcessor kCosts{.adding = {.scale = {1.05, 1.05, 1.05},
                                             .writing = 7,
                                             .source = {75, 520, 390},
                                             .other = {60, 400, 310},
                                             .weights = {105, 240, 225},
                                             .line = {1, 0.5, 1},
                                             .narrow = 1.35,
                                             .waiting = 1,
                                             .scattered = 1.5},
                                  .beside = {.scale = {0.97, 0.97, 0.97},
                                             .writing = 9.5,
                                             .source = {113, 370, 330},
                                             .other = {2, 28, 14},
                                             .weights = {86, 250, 190},
                                             .line = {1.5, 1.7, 3},
                                             .scattered = 1.2},
                                  .halving = {.scale = {1.06, 1.25, 1.1},
                                              .writing = 5,
                                              .source = {65, 140, 170},
                                              .other = {3, 15, 30},
                                              .weights = {65, 60, 110},
                                              .line = {1, 0.5, 1},
                                              .scattered = 1.5}};

template <class T>
class WinogradImages final : public Tiled<T>, Roles {
  using Base = Tiled<T>;
  using Base::spec_, Base::kernels_, Base::direct_, Base::axes_, Base::parts_, Base::lanes_, Base::step_, Base::boxes_,
      Base::source_tiles_, Base::pitch, Base::transforms_, Base::frequencies_, Base::products_, Base::taps_, Base::tap_;

 public:
  WinogradImages(const PassSpec& spec, const Choice<T>& choice)
      : Base(spec, choice), Roles(spec), vectors_(ceil_div(cd_, lanes_)) {}

  bool plan() {
    // Two tasks should fit, so that two threads find work (`cost`). Weights are transformed once where several boxes
    // share them. Narrower panels and shorter chunks take less room.
    std::optional<Cut> best;
    double least = 0;
    cut_into(kMostTiles);
    const double sources = this->sources();  // of smaller boxes they are more
    for (const Order order : {Order::boxes, Order::panels, Order::streams}) {
      const Index longest = order == Order::streams ? kChunk : 2 * kChunk;
      const Index shortest = order == Order::streams ? kChunk / 4 : kChunk;
      for (const Index slots : {2, 1})
        for (const bool prepack : {true, false})
          for (Index panels = fewest_panels(); panels <= std::min(vectors_, 4 * fewest_panels()); panels *= 2)
            for (Index chunk = longest; chunk >= shortest; chunk /= 2)
              for (Cut c{most_tiles(order, prepack, panels, chunk, sources), chunk, panels, slots, prepack, order};
                   c.tiles >= kLeastTiles; c.tiles = c.tiles * 3 / 4)
                if (configure(c)) {
                  this->estimate();
                  if (!best || this->cost_ < least) best = c, least = this->cost_;
                  break;
                }
    }
    if (!best || !configure(*best)) return false;
    this->estimate();
    if (const double apart = this->speedup(); spec_.threads > apart) {
      for (const Order order : {Order::together, Order::together_in_chunks})
        for (const bool prepack : {true, false})
          for (at_once_ = fewest_panels(); at_once_ >= 1; at_once_ /= 2)
            if (configure({best->tiles, best->chunk, fewest_panels(), 1, prepack, order}) &&
                this->together_pays(boxes_ * spec_.problem.groups * calls_together(), vectors_, apart))
              return true;
      return configure(*best);
    }
    return true;
  }

  // Time relative to a direct pass: products, transforms of tiles and results, weights. Few tiles may wait for weights
  // that all boxes share.
  double relative_time() const override {
    const Costs& costs = kCosts.here(this->kernels_);
    const Index tiles = this->tiles(step_);
    const double waiting = prepack_ ? costs.waiting * std::max(0.0, 16 / static_cast<double>(tiles) - 0.5) : 0;
    const double narrow = width_ == lanes_ ? costs.narrow : 1;
    const double scattered = to_x_ ? 1 : costs.scattered;
    return this->of_tile(costs.scale) *
           ((1 + waiting) * narrow * this->products(chunk_ * products_ / frequencies_ / results(), costs.writing) +
            this->sources() * whole_vectors(cs_, lanes_) *
                this->relative_tiles(costs, costs.source, streamed() ? width_ : cd_) +
            static_cast<double>(results()) * this->relative_tiles(costs, costs.other, cs_) +
            scattered * this->relative_weights(costs.weights, prepack_ ? boxes_ * tiles : tiles));
  }

  double of_shared_panels() const override {
    return order_ == Order::panels ? 1 + kPanelsShared / static_cast<double>(width_) : 1;
  }

  std::string explain() const override {
    std::ostringstream s;
    s << "winograd " << (to_x_ ? "x" : "y") << " " << this->name() << " (" << kernels_.name << "): boxes of " << step_.n
      << 'x' << step_.d << 'x' << step_.h << 'x' << step_.w << " tiles, chunks of " << chunk_ << " of " << cs_
      << " source channels, panels of " << width_ << " of " << cd_ << "; weights transformed "
      << (prepack_ ? "once" : "for each box")
      << (order_ == Order::boxes      ? ""
          : order_ == Order::panels   ? ", panels of a box shared"
          : order_ == Order::streams  ? ", the source for each panel"
          : order_ == Order::together ? ", channels and frequencies of a box shared"
                                      : ", channels and frequencies of a chunk of a box shared")
      << "; " << this->effort();
    return s.str();
  }

  Sums summation() const override {
    return sums_of(SumKind::winograd, chunk_, &transforms_ - kernels_.winograd, direct_->summation()[3],
                   transforms_.tile[0], transforms_.tile[1]);
  }

  void run(const Operands& o, std::byte* workspace) const override {
    const Shared all = carve_shared(workspace);
    const auto slot_of = [&](int slot) { return carve(this->slot(workspace, slot), all); };
    const int slots = this->slots();
    const Index groups = spec_.problem.groups, chunks = ceil_div(cs_, chunk_);
    std::atomic<bool> fit{true};
    if (prepack_)
      parallel_for(groups * panels_ * chunks, slots, [&](Index i, int slot) {
        const Index k0 = i % chunks * chunk_, panel = i / chunks % panels_, g = i / chunks / panels_;
        weights(o.w, g, panel, chunk_from(k0), chunk_from(k0), slot_of(slot), chunk_of_weights(all.u, g, panel, k0));
      });
    const auto transform_one = [&](Index i, Index c, const Slot& s) {
      if (fit.load(std::memory_order_relaxed) && !transform(o, i / boxes_, this->box(i % boxes_), c, s))
        fit.store(false, std::memory_order_relaxed);
    };
    const auto multiply_one = [&](Index i, Index panel, const Slot& s) {
      if (fit.load(std::memory_order_relaxed) && !multiply(o, i / boxes_, this->box(i % boxes_), panel, s))
        fit.store(false, std::memory_order_relaxed);
    };
    const Index boxes = groups * boxes_;
    switch (order_) {
      case Order::boxes:
        parallel_for(boxes, slots, [&](Index i, int slot) {
          const Slot s = slot_of(slot);
          for (Index c = 0; c < cs_; c += lanes_) transform_one(i, c, s);
          for (Index panel = 0; panel < panels_; ++panel) multiply_one(i, panel, s);
        });
        break;
      case Order::panels:
        for (Index i = 0; i < boxes; ++i) {
          parallel_for(ceil_div(cs_, lanes_), slots,
                       [&](Index vector, int slot) { transform_one(i, vector * lanes_, slot_of(slot)); });
          parallel_for(panels_, slots, [&](Index panel, int slot) { multiply_one(i, panel, slot_of(slot)); });
        }
        break;
      case Order::streams:
        parallel_for(boxes * panels_, slots,
                     [&](Index i, int slot) { multiply_one(i / panels_, i % panels_, slot_of(slot)); });
        break;
      case Order::together:
      case Order::together_in_chunks:
        for (Index i = 0; i < boxes && fit; ++i)
          if (!run_together(o, i / boxes_, this->box(i % boxes_), all, slot_of)) fit = false;
    }
    if (!fit) direct_->run(o, workspace);
  }

 private:
  // What threads share: boxes; the panels of one box after the other, whose tiles they transform together; or panels of
  // all boxes, each of which transforms the tiles itself, a chunk at a time, and needs room for no more; or, where more
  // threads than these have room wait, channels and frequencies of one box after the other, of all source channels or a
  // chunk at a time.
  enum class Order { boxes, panels, streams, together, together_in_chunks };
  bool together_in_box() const { return order_ == Order::together || order_ == Order::together_in_chunks; }
  bool streamed() const { return order_ == Order::streams || order_ == Order::together_in_chunks; }

  // Boxes of about so many tiles, sums of about so many products at a time, and for how many tasks the budget has room
  // at least.
  struct Cut {
    Index tiles, chunk, panels, slots;
    bool prepack;
    Order order;
  };

  struct Shared {
    T *u, *v, *m;
    Index bytes;
  };
  struct Slot {
    T *v, *u, *m, *pixels, *weights, *taps, *lines, *bias;
    Index bytes;
  };

  void cut_into(Index tiles) { this->cut(spec_.problem.n, to_x_ ? spec_.problem.x : spec_.problem.y, tiles); }

  // As many as stay in the second-level cache; none where the way of sharing cannot be.
  Index most_tiles(Order order, bool prepack, Index panels, Index chunk, double sources) const {
    const Index of_frequency = frequencies_ * static_cast<Index>(sizeof(T)), packed = of_frequency * parts_ * cs_ * cd_;
    const bool few = packed < kBesideWeights * 2 / 3;
    if (order == Order::streams && prepack && !few) return 0;
    const Index channels = order == Order::streams ? std::min(cs_, chunk) : cs_;
    const double bytes = static_cast<double>(of_frequency) *
                         (sources * static_cast<double>(channels) + static_cast<double>(width(panels)));
    const Index room = !prepack ? kOwnBytes : few ? kBesideWeights - packed : kSharedBytes;
    return std::clamp(static_cast<Index>(static_cast<double>(room) / bytes), 2 * kLeastTiles, kMostTiles);
  }

  bool configure(const Cut& c) {
    cut_into(c.tiles);
    prepack_ = c.prepack, order_ = c.order, panels_ = c.panels;
    const Index boxes = boxes_ * spec_.problem.groups;
    const Index tasks = together_in_box()         ? at_once_ * frequencies_
                        : order_ == Order::boxes  ? boxes
                        : order_ == Order::panels ? panels_
                                                  : boxes * panels_;
    if (prepack_ && boxes_ == 1) return false;
    // Two threads share an even number of a few.
    if (c.slots > 1 && (tasks == 1 || (tasks < kMinTasks && tasks % 2 > 0))) return false;
    width_ = width(panels_);
    // A set of results sums about so many of the parts.
    const Index most = std::max(lanes_, c.chunk / (ceil_div(parts_, results()) + 1));
    chunk_ = round_up(spec_.sums[1] > 0 ? std::min(cs_, spec_.sums[1]) : even_part(cs_, most), lanes_);
    ustep_ = pitch((prepack_ ? cs_ : chunk_) * parts_ * width_);
    vstep_ = pitch((streamed() ? 1 : ceil_div(cs_, chunk_)) * source_tiles_ * chunk_);
    mstep_ = pitch(this->tiles(step_) * width_);
    const Shared shared = carve_shared({});
    return this->share(tasks, shared.bytes, carve({}, shared).bytes, c.slots);
  }
  Shared carve_shared(Carver carver) const {
    Shared s{};
    if (prepack_) s.u = carver.take<T>(spec_.problem.groups * panels_ * frequencies_ * ustep_);
    if (order_ == Order::panels || together_in_box()) s.v = carver.take<T>(frequencies_ * vstep_);
    if (together_in_box()) {
      if (!prepack_) s.u = carver.take<T>(at_once_ * frequencies_ * ustep_);
      s.m = carver.take<T>(at_once_ * results() * frequencies_ * mstep_);
    }
    s.bytes = carver.used();
    return s;
  }
  Slot carve(Carver carver, const Shared& shared) const {
    Slot s{};
    const bool together = together_in_box();
    s.v = order_ == Order::panels || together ? shared.v : carver.take<T>(frequencies_ * vstep_);
    s.u = prepack_ || together ? shared.u : carver.take<T>(frequencies_ * ustep_);
    s.m = together ? shared.m : carver.take<T>(results_at_a_time() * frequencies_ * mstep_);
    s.pixels = carver.take<T>(std::max(this->window_elements(), axes_[1].tile * axes_[2].tile * results() *
                                                                    this->tiles(step_) * (together ? lanes_ : width_)));
    s.weights = carver.take<T>(kWeightBlock * taps_ * width_ + lanes_);
    s.taps = carver.take<T>(round_up(taps_, lanes_) * lanes_);
    s.lines = carver.take<T>(kMostRows * lanes_);
    s.bias = carver.take<T>(width_);
    s.bytes = carver.used();
    return s;
  }
  // Where weights are transformed for each box, or tiles for each panel, once for all results.
  Index results_at_a_time() const { return prepack_ && !streamed() ? 1 : results(); }
  // Parts are so many that the shortest chunks sum more products than others do.
  bool long_sums() const { return chunk_ * ceil_div(parts_, results()) > 2 * kChunk; }
  // Sets of results that are formed from the same tiles.
  Index results() const { return axes_[1].results * axes_[2].results; }

  // Source channels whose tiles and weights are there together.
  Index sources_at_a_time() const { return prepack_ && !streamed() ? cs_ : chunk_; }
  // Of `multiply_together` a box, each with its products.
  Index calls_together() const { return ceil_div(panels_, at_once_) * ceil_div(cs_, sources_at_a_time()); }
  Index fewest_panels() const { return ceil_div(vectors_, kernels_.gather_count); }
  Index width(Index panels) const { return ceil_div(vectors_, panels) * lanes_; }
  Index panel_begin(Index panel) const { return panel * vectors_ / panels_ * lanes_; }
  Index panel_columns(Index panel) const { return panel_begin(panel + 1) - panel_begin(panel); }  // whole vectors
  Index panel_size(Index panel) const { return std::min(panel_columns(panel), cd_ - panel_begin(panel)); }

  // Weights of a panel from source channel k0 on, the first one of a chunk, where all are.
  T* chunk_of_weights(T* u, Index g, Index panel, Index k0) const {
    return u + (g * panels_ + panel) * frequencies_ * ustep_ + k0 * parts_ * panel_columns(panel);
  }
  Range chunk_from(Index k) const { return {k, std::min(k + chunk_, cs_)}; }
  // Transforms the weights of a panel for some source channels of a chunk to
  // u[frequency][part][source channel][column].
  void weights(const View& w, Index g, Index panel, Range chunk, Range sources, const Slot& s, T* u) const {
    const Index3& window = spec_.problem.w;
    const Index all = panel_columns(panel);
    // Where source channels lie side by side, as many of them as a line has, of fewer columns.
    const bool across = w.plain() && w.stride[weight_k_] == 1 && all > lanes_;
    const Index columns = across ? lanes_ : all, most = kWeightBlock * all / columns;
    for (Index k = sources.begin; k < sources.end; k += most)
      for (Index n = 0; n < all; n += columns) {
        const Index count = std::min(most, sources.end - k), elements = count * columns * taps_;
        Index5 at{}, size{0, 0, window[0], window[1], window[2]}, step{0, 0, window[1] * window[2], window[2], 1};
        at[0] = g * spec_.problem.co;
        at[weight_n_] += panel_begin(panel) + n, size[weight_n_] = std::min(columns, panel_size(panel) - n);
        at[weight_k_] += k, size[weight_k_] = count;
        const T* from = s.weights;
        Index ahead = 0;
        if (const View part = w.at(at, size); size[weight_n_] == columns && in_place(w, at, size)) {
          from = static_cast<const T*>(part.data);
          step = w.stride;
          ahead =
              std::max(step[weight_k_], kWeightBlock * taps_);  // the next channel; of those side by side a later block
        } else {
          // Runs of memory stay runs.
          const bool k_inside = w.stride[weight_k_] < w.stride[weight_n_];
          step[weight_n_] = k_inside ? count * taps_ : taps_;
          step[weight_k_] = k_inside ? taps_ : columns * taps_;
          if (size[weight_n_] < columns) std::fill_n(s.weights, elements, T{});
          copy_in(kernels_, s.weights, step, part);
          std::fill_n(s.weights + elements, lanes_, T{});
        }
        for (Index i = 0; i < count; ++i)
          transforms_.weights(u + n + (k - chunk.begin + i) * all, chunk.size() * all, ustep_,
                              from + i * step[weight_k_], step[weight_n_], ahead, static_cast<int>(taps_), tap_.data(),
                              static_cast<int>(parts_), static_cast<int>(columns / lanes_), s.taps);
      }
  }
  // Whether the kernel can read such a part of the weights where it is: taps side by side, in whole vectors that do not
  // reach behind the last weight.
  bool in_place(const View& w, const Index5& at, const Index5& size) const {
    if (w.dtype != compute_dtype<T> || !dense_planes(w) || w.stride[0] < 0 || w.stride[1] < 0) return false;
    const auto behind = [&](const Index5& from, const Index5& extent) {
      return w.offset(from) + (extent[0] - 1) * w.stride[0] + (extent[1] - 1) * w.stride[1];
    };
    return behind(at, size) + round_up(taps_, lanes_) <= behind({}, w.size) + taps_;
  }

  // Transforms a vector of source channels, from c on, to v[frequency][chunk][tile][source channel].
  bool transform(const Operands& o, Index g, const Box& b, Index c, const Slot& s) const {
    T* const v = s.v + (streamed() ? 0 : c / chunk_ * source_tiles_ * chunk_) + c % chunk_;
    return this->each_line(image(o), g * cs_ + c, std::min(lanes_, cs_ - c), b, true, s.pixels,
                           [&](const T* const* rows, Index first, Index width, Index tile, Index tiles) {
                             transforms_.image(v + tile * chunk_, vstep_, chunk_, rows, this->apart(2, true) * lanes_,
                                               first, width, tiles);
                           });
  }

  const GatherKernel<T>& kernel(Index panel) const {
    return gathering_kernel(kernels_, panel_size(panel), this->mixes_more() || this->few_frequencies() || long_sums());
  }

  // A panel of the results of a box. Returns whether transforms may mix the values.
  bool multiply(const Operands& o, Index g, const Box& b, Index panel, const Slot& s) const {
    const Range columns{0, panel_columns(panel)};
    const auto to = this->rows_of(destination(o), b, false);
    const Window w = this->window(to, b, false);
    bool good = true;
    for (Index first = 0, last; first < results(); first = last) {
      last = first + results_at_a_time();
      for (Index k0 = 0, k1; k0 < cs_; k0 = k1) {
        k1 = std::min(k0 + sources_at_a_time(), cs_);
        for (Index c = k0; c < k1 && streamed(); c += lanes_) good &= transform(o, g, b, c, s);
        if (!prepack_) weights(o.w, g, panel, {k0, k1}, {k0, k1}, s, s.u);
        for (Index result = first; result < last; ++result)
          multiply_tiles(b, result, {k0, k1}, {0, frequencies_}, panel, s.v + (streamed() ? 0 : k0 * source_tiles_),
                         prepack_ ? chunk_of_weights(s.u, g, panel, k0) : s.u,
                         s.m + (result - first) * frequencies_ * mstep_);
      }
      for (Index result = first; result < last; ++result)
        good &= form(w, b, result, s.m + (result - first) * frequencies_ * mstep_, panel, columns, s.pixels);
    }
    store(o, to.image, w, g, b, panel, columns, s);
    return good;
  }

  // A box whose source channels and weights, frequencies and results threads share, one after the other.
  template <class SlotOf>
  bool run_together(const Operands& o, Index g, const Box& b, const Shared& all, const SlotOf& slot_of) const {
    std::atomic<bool> good{true};
    if (!streamed())
      parallel_for(ceil_div(cs_, lanes_), this->slots(), [&](Index vector, int slot) {
        if (!transform(o, g, b, vector * lanes_, slot_of(slot))) good = false;
      });
    for (Index panel = 0; panel < panels_ && good; panel += at_once_)
      if (!multiply_together(o, g, b, {panel, std::min(panel + at_once_, panels_)}, all, slot_of)) good = false;
    return good;
  }
  template <class SlotOf>
  bool multiply_together(const Operands& o, Index g, const Box& b, Range panels, const Shared& all,
                         const SlotOf& slot_of) const {
    const int slots = this->slots();
    std::atomic<bool> good{true};
    const auto results_of = [&](Index panel) {
      return all.m + (panel - panels.begin) * results() * frequencies_ * mstep_;
    };
    for (Index k0 = 0, k1; k0 < cs_; k0 = k1) {
      k1 = std::min(k0 + sources_at_a_time(), cs_);
      const auto u = [&](Index panel) {
        return prepack_ ? chunk_of_weights(all.u, g, panel, k0)
                        : all.u + (panel - panels.begin) * frequencies_ * ustep_;
      };
      const Index vectors = ceil_div(k1 - k0, lanes_), sources = streamed() ? vectors : 0;
      parallel_for(sources + (prepack_ ? 0 : panels.size() * vectors), slots, [&](Index i, int slot) {
        const Slot s = slot_of(slot);
        if (i < sources) {
          if (!transform(o, g, b, k0 + i * lanes_, s)) good = false;
          return;
        }
        const Index panel = panels.begin + (i - sources) / vectors, k = k0 + (i - sources) % vectors * lanes_;
        weights(o.w, g, panel, {k0, k1}, {k, std::min(k + lanes_, k1)}, s, u(panel));
      });
      parallel_for(panels.size() * slots, slots, [&](Index i, int) {  // a thread reads its frequencies for all panels
        const Index panel = panels.begin + i % panels.size();
        for (Index result = 0; result < results(); ++result)
          multiply_tiles(b, result, {k0, k1}, piece_of(frequencies_, i / panels.size(), slots), panel,
                         all.v + (streamed() ? 0 : k0 * source_tiles_), u(panel),
                         results_of(panel) + result * frequencies_ * mstep_);
      });
    }
    const auto to = this->rows_of(destination(o), b, false);
    const Window w = this->window(to, b, false);
    const Index vectors = width_ / lanes_;
    parallel_for(panels.size() * vectors, slots, [&](Index i, int slot) {
      const Index panel = panels.begin + i / vectors, first = i % vectors * lanes_;
      if (first >= panel_columns(panel)) return;
      const Slot s = slot_of(slot);
      for (Index result = 0; result < results(); ++result)
        if (!form(w, b, result, results_of(panel) + result * frequencies_ * mstep_, panel, {first, first + lanes_},
                  s.pixels))
          good = false;
      store(o, to.image, w, g, b, panel, {first, first + lanes_}, s);
    });
    return good;
  }

  // The tiles of a box, of a set of results, some of the frequencies: m = v * u, or m += v * u.
  void multiply_tiles(const Box& b, Index result, Range sources, Range frequencies, Index panel, const T* v, const T* u,
                      T* m) const {
    const GatherKernel<T>& kernel = this->kernel(panel);
    const Index columns = panel_columns(panel);
    std::ptrdiff_t row[kMostTiles], crow[kMostTiles];
    const Index tiles = this->tiles(b);
    for (Index t = 0; t < tiles; ++t) {
      row[t] = (this->line_at(b, t / b.w) + t % b.w) * chunk_;
      crow[t] = t * columns;
    }
    Segment segments[kMostParts];
    for (Index f = frequencies.begin; f < frequencies.end; ++f)
      for (Index k = sources.begin; k < sources.end; k += chunk_) {
        const Index len = std::min(chunk_, sources.end - k);
        Index count = 0;
        for (Index p = 0; p < parts_; ++p)
          if (const auto part = this->part(p);
              part.h.result * axes_[2].results + part.w.result == result && this->uses(part, f))
            segments[count++] = {this->offset(b, part) * chunk_, p * len * columns, len};
        kernel.run(static_cast<int>(tiles), v + f * vstep_ + (k - sources.begin) * source_tiles_, row, 1, segments,
                   count, u + f * ustep_ + (k - sources.begin) * parts_ * columns, columns, m + f * mstep_, crow,
                   k > 0);
      }
  }

  // Transforms the frequencies of a set of results, some columns of a panel, to pixels.
  bool form(const Window& w, const Box& b, Index result, const T* m, Index panel, Range columns, T* pixels) const {
    const Index sets = axes_[2].sets, down = this->apart(1, false), across = this->apart(2, false);
    const Index all = panel_columns(panel), row = w.size[4] * columns.size(), plane = w.size[3] * row;
    const Index top = result / axes_[2].results, left = result % axes_[2].results;
    bool good = true;
    for (Index i = 0; i < b.n * b.d; ++i)
      for (Index line = 0; line < this->lines(b); ++line, m += b.w * all)
        for (Index j = 0; j < columns.size(); j += lanes_) {
          T* rows[kMostTileRows];
          const Index column = left + line % sets;
          for (Index r = 0; r < axes_[1].tile; ++r) {
            const Index y = down * (axes_[1].tile * (line / sets) + r) + top;
            rows[r] = y < w.size[3] ? pixels + i * plane + y * row + column * columns.size() + j : nullptr;
          }
          good &= transforms_.output(rows, across * columns.size(), ceil_div(w.size[4] - column, across),
                                     m + columns.begin + j, mstep_, all, b.w);
        }
    return good;
  }

  // Pixels, of some columns of a panel, to their place among the rows `d` of the result.
  void store(const Operands& o, const View& d, Window w, Index g, const Box& b, Index panel, Range of_panel,
             const Slot& s) const {
    const Index columns = of_panel.size(), n = std::min(of_panel.end, panel_size(panel)) - of_panel.begin;
    const Index channel = g * cd_ + panel_begin(panel) + of_panel.begin;
    this->clear(s.pixels, {w.size[0], w.size[2], w.size[3], w.size[4]}, columns, [&](std::size_t a, Index position) {
      const Index sets = a == 1 ? axes_[1].sets : 1, at = position - (a == 1 ? b.set : 0);
      return at % sets == 0 ? at / sets - w.at[2 + a] : -1;
    });
    if (w.pixels() == 0) return;  // one row less than other sets have
    if (o.bias.data) {
      load_bias(kernels_, s.bias, o.bias, channel, n);
      for (Index i = 0; i < w.pixels(); ++i)
        for (Index j = 0; j < n; ++j) s.pixels[i * columns + j] += s.bias[j];
    }
    const bool join = d.stride[3] == w.size[4] * d.stride[4];
    const Index lines = join ? 1 : w.size[3], length = w.pixels() / (w.size[0] * w.size[2] * lines);
    w.at[1] = channel;
    const View to = d.at(w.at, w.size);
    const T* from = s.pixels;
    for (Index i = 0; i < w.size[0]; ++i)
      for (Index j = 0; j < w.size[2]; ++j)
        for (Index h = 0; h < lines; ++h, from += length * columns)
          for (Index c = 0, run = 0; c < n; c += run) {
            run = to.run(1, c, n - c);
            const Index at = to.along(1, c) + i * d.stride[0] + j * d.stride[2] + h * d.stride[3];
            this->put(advance(to.data, d.dtype, at), d.dtype, d.stride[4], d.stride[1], from + c, columns, length, run,
                      s.lines);
          }
  }

  bool prepack_ = false;
  Order order_ = Order::boxes;
  const Index vectors_;
  Index panels_ = 1, width_ = 1, at_once_ = 1;  // panels, of so many columns, and how many threads share at a time
  Index chunk_ = 1, ustep_ = 0, vstep_ = 0, mstep_ = 0;
};

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_images(const PassSpec& spec, const Choice<T>& choice) {
  return make_planned<WinogradImages<T>>(spec, choice);
}
template std::unique_ptr<EstimatedPass> make_images(const PassSpec&, const Choice<float>&);
template std::unique_ptr<EstimatedPass> make_images(const PassSpec&, const Choice<double>&);

}  // namespace convbwd::winograd
