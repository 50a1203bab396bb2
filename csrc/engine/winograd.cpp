// 3x3 windows with 2.25 times fewer multiplications: Winograd F(2x2, 3x3) on h and w, the taps of d summed directly.
//
// Images are cut into boxes of tiles (2x2 outputs each). The tiles of a box are transformed to sixteen frequencies,
// each of which is one multiplication (tiles by channels) of the gathering kernel; sums are formed a chunk at a time,
// so that they are no less accurate than straight ones. What transforms must not mix (values that are not finite, or a
// few that dwarf the others) is noticed on the way; then the direct pass computes the whole result.
#include <atomic>
#include <numeric>
#include <sstream>

#include "engine/pass.h"
#include "format/copy.h"

namespace convbwd {
namespace {

constexpr Index kFrequencies = 16;
constexpr Index kMostTiles = 128, kLeastTiles = 16;  // of a box
constexpr Index kChunk = 64;                         // products of a call's sum: 0.3 to 0.8 of a straight sum's error
constexpr Index kWeightBlock = 8;                    // source channels whose weights are brought in at a time
// Transformed tiles and results of a box. Beside shared weights they stay in L2; more of them pay for weights that are
// transformed for a box alone.
constexpr Index kSharedBytes = 9 << 18, kOwnBytes = 15 << 18;
constexpr Index kMinTasks = 8;
constexpr Index kStoreRows = 64;
constexpr Index kMostDepth = 16;
constexpr Index kLeastChannels = 32;  // transforms of fewer cost more than they save
constexpr double kWorthwhile = 0.85;  // of a direct pass's time, as far as the cost rule can tell
constexpr double kPeak = 100;         // largest magnitude over the mean one that a box may have

// Tiles [h0, h0 + h) x [w0, w0 + w) of outputs [d0, d0 + d) of images [n0, n0 + n).
struct Box {
  Index n0, n, d0, d, h0, h, w0, w;
  Index tiles() const { return n * d * h * w; }
};

// The part of an image that a box touches.
struct Window {
  Index5 at{}, size{};
  Index pixels() const { return size[0] * size[2] * size[3] * size[4]; }
};

Index even_part(Index size, Index most) { return ceil_div(size, ceil_div(size, std::clamp<Index>(most, 1, size))); }

template <class T>
class Tiled : public Pass {
 public:
  Tiled(const PassSpec& spec, const KernelSet<T>& kernels)
      : spec_(spec), kernels_(kernels), depth_(spec.problem.w[0]), lanes_(kernels.lanes) {}
  std::size_t workspace_bytes() const override {
    return std::max(static_cast<std::size_t>(shared_bytes_ + slots_ * slot_bytes_), direct_->workspace_bytes());
  }

 protected:
  // Cuts the outputs of n images into boxes of about so many tiles, source planes shared by neighbours along d.
  void cut(Index n, const Index3& out, Index tiles) {
    const Index size[4] = {n, out[0], ceil_div(out[1], 2), ceil_div(out[2], 2)};
    Index* const step[4] = {&step_.n, &step_.d, &step_.h, &step_.w};
    *step[1] = depth_ > 1 ? even_part(size[1], 4) : 1;
    Index room = tiles / *step[1];
    room /= *step[3] = even_part(size[3], room);
    room /= *step[2] = even_part(size[2], room);
    if (step_.h == size[2] && step_.w == size[3]) {
      *step[1] = even_part(size[1], room * *step[1]);
      room = tiles / (*step[1] * step_.h * step_.w);
    }
    *step[0] = step_.d == size[1] && step_.h == size[2] && step_.w == size[3] ? even_part(size[0], room) : 1;
    for (int a = 0; a < 4; ++a) size_[a] = size[a], count_[a] = ceil_div(size[a], *step[a]);
    boxes_ = count_[0] * count_[1] * count_[2] * count_[3];
    source_tiles_ = step_.n * (step_.d + depth_ - 1) * step_.h * step_.w;
  }
  Box box(Index i) const {
    Index at[4];
    const Index step[4] = {step_.n, step_.d, step_.h, step_.w};
    for (int a = 3; a >= 0; --a) at[a] = i % count_[a] * step[a], i /= count_[a];
    const auto part = [&](int a) { return std::min(step[a], size_[a] - at[a]); };
    return {at[0], part(0), at[1], part(1), at[2], part(2), at[3], part(3)};
  }
  // Pixels 2*tile + first .. + height of an image, `planes` more than the box has along d.
  static Window window(const View& v, const Box& b, const Index3& first, Index planes, Index height) {
    Window s;
    const Index lo[5] = {b.n0, 0, b.d0 + first[0], 2 * b.h0 + first[1], 2 * b.w0 + first[2]};
    const Index extent[5] = {b.n, 0, b.d + planes, 2 * b.h + height - 2, 2 * b.w + height - 2};
    for (std::size_t a = 0; a < 5; ++a) {
      s.at[a] = std::clamp<Index>(lo[a], 0, v.size[a]);
      s.size[a] = std::clamp<Index>(lo[a] + extent[a], s.at[a], v.size[a]) - s.at[a];
    }
    return s;
  }
  // Elements for one vector of channels of the largest window, and a row of zeros.
  Index window_elements(Index planes, Index height) const {
    const Index row = 2 * step_.w + height - 2;
    return (step_.n * (step_.d + planes) * (2 * step_.h + height - 2) + 1) * row * lanes_;
  }

  // Brings in channels [c, c + live) of a box and calls f(rows, first column, width, tile) for every row of its tiles.
  // Returns whether transforms may mix the values.
  template <class F>
  bool each_row(const View& image, Index c, Index live, const Box& b, const Index3& first, Index planes, Index height,
                T* pixels, F&& f) const {
    const Window s = window(image, b, first, planes, height);
    const Index row = s.size[4] * lanes_, plane = s.size[3] * row, volume = s.size[2] * plane;
    T* const zeros = pixels + s.size[0] * volume;
    std::fill(live < lanes_ ? pixels : zeros, zeros + row, T{});
    Window from = s;
    from.at[1] = c, from.size[1] = live;
    copy_in(kernels_, pixels, {volume, 1, plane, row, lanes_}, image.at(from.at, from.size));
    Index tile = 0;
    for (Index n = 0; n < b.n; ++n)
      for (Index d = b.d0 + first[0] - s.at[2]; d < b.d0 + first[0] - s.at[2] + b.d + planes; ++d)
        for (Index h = 0; h < b.h; ++h, tile += b.w) {
          const T* rows[4];
          for (Index i = 0; i < height; ++i) {
            const Index y = 2 * (b.h0 + h) + first[1] + i - s.at[3];
            const bool inside = d >= 0 && d < s.size[2] && y >= 0 && y < s.size[3];
            rows[i] = inside ? pixels + n * volume + d * plane + y * row : zeros;
          }
          f(rows, 2 * b.w0 + first[2] - s.at[4], s.size[4], tile);
        }
    return static_cast<double>(kernels_.peak(pixels, zeros - pixels)) <= kPeak;
  }

  // Stores src[r*lds + c] at element r*rs + c*cs of dst. `lines` is scratch for kStoreRows*lanes elements.
  void put(void* dst, DType dtype, Index rs, Index cs, const T* src, Index lds, Index rows, Index cols,
           T* lines) const {
    if (rows == 1 || cs == 1) {
      for (Index r = 0; r < rows; ++r) store_row(kernels_, advance(dst, dtype, r * rs), dtype, cs, src + r * lds, cols);
      return;
    }
    const auto transpose = kernels_.transpose[static_cast<int>(compute_dtype<T>)];
    const bool dense = rs == 1 && dtype == compute_dtype<T>;
    std::ptrdiff_t row[kStoreRows];
    std::iota(row, row + kStoreRows, 0);
    // A few channels at a time, which are as many pages of memory; whole cache lines where channels lie evenly.
    const Index lead = dense ? static_cast<Index>(reinterpret_cast<std::uintptr_t>(dst) / sizeof(T)) % lanes_ : 0;
    for (Index c = 0; c < cols; c += lanes_)
      for (Index r = 0, count; r < rows; r += count) {
        count = std::min(r ? kStoreRows : kStoreRows - lead, rows - r);
        const int live = static_cast<int>(count);
        const Index width = std::min(lanes_, cols - c);
        T* table[1] = {dense ? static_cast<T*>(dst) + r + c * cs : lines};
        transpose(table, 1, dense ? cs : kStoreRows, src + r * lds + c, row, lds, live, live, width);
        for (Index i = 0; i < width && !dense; ++i)
          store_row(kernels_, advance(dst, dtype, r * rs + (c + i) * cs), dtype, rs, lines + i * kStoreRows, count);
      }
  }

  const GatherKernel<T>& kernel(Index columns) const { return kernels_.gather[ceil_div(columns, lanes_) - 1]; }
  // Odd numbers of cache lines, so that frequencies do not fall on the same cache sets.
  static Index pitch(Index elements) {
    constexpr Index line = 64 / static_cast<Index>(sizeof(T));
    return (ceil_div(elements, line) | 1) * line;
  }
  // The widest panel that wastes least.
  Index panel_width(Index columns) const {
    const Index widest = kernels_.gather_count * lanes_;
    return round_up(ceil_div(columns, ceil_div(columns, widest)), lanes_);
  }
  // Time of the products, relative to a direct pass: tiles beyond the outputs, and calls so short that writing results
  // shows. Here and below: cycles of a tile and vector (direct: 18 a channel on the other side), estimated from counts
  // and adjusted by hand to one core of a Sapphire Rapids, AVX-512 float32. Too hopeful by 20 to 30 % for 7x7 images of
  // 512 channels and for 32 channels on wide images.
  double products(const Index3& out, Index call) const {
    const double covered = static_cast<double>(4 * size_[2] * size_[3]) / static_cast<double>(out[1] * out[2]);
    return covered / 2.25 * (1 + 7.0 / static_cast<double>(call));
  }
  static double share(double cycles, Index of) { return cycles / 18 / static_cast<double>(of); }

  bool fits(Index tasks, Index least) {
    tasks_ = tasks;
    const Index room = (static_cast<Index>(spec_.budget) - shared_bytes_) / slot_bytes_;
    slots_ = std::max<Index>(1, std::min({static_cast<Index>(spec_.threads), tasks, room}));
    return room >= std::min(least, tasks);
  }

  PassSpec spec_;
  const KernelSet<T>& kernels_;
  std::unique_ptr<Pass> direct_;
  const Index depth_, lanes_;
  Box step_{};
  Index size_[4]{}, count_[4]{}, boxes_ = 1, source_tiles_ = 1;
  Index tasks_ = 1, slots_ = 1, shared_bytes_ = 0, slot_bytes_ = 0;
};

// ------------------------------------------------------------------------------------------------ unknown x and y

template <class T>
class Winograd final : public Tiled<T> {
  using Base = Tiled<T>;
  using Base::spec_, Base::kernels_, Base::direct_, Base::depth_, Base::lanes_, Base::step_, Base::boxes_,
      Base::source_tiles_, Base::tasks_, Base::slots_, Base::shared_bytes_, Base::slot_bytes_, Base::pitch;

 public:
  Winograd(const PassSpec& spec, const KernelSet<T>& kernels) : Base(spec, kernels), to_x_(spec.unknown == Unknown::x) {
    const Problem& p = spec_.problem;
    cs_ = to_x_ ? p.co : p.ci;
    cd_ = to_x_ ? p.ci : p.co;
    for (std::size_t a = 0; a < 3; ++a) first_[a] = to_x_ ? p.pad_before[a] - (p.w[a] - 1) : -p.pad_before[a];
    width_ = this->panel_width(cd_);
    panels_ = ceil_div(cd_, width_);
  }

  bool plan() {
    direct_ = make_gather(spec_, kernels_);
    if (!direct_) return false;
    // Two slots where they fit, so that two threads find work; weights transformed once where several boxes share them.
    for (const Index least : {2, 1})
      for (const bool prepack : {true, false}) {
        const Index planes = depth_ > 1 ? 2 : 1;
        const Index most = (prepack ? kSharedBytes : kOwnBytes) /
                           (kFrequencies * static_cast<Index>(sizeof(T)) * (planes * cs_ + width_));
        for (Index tiles = std::clamp(most, 2 * kLeastTiles, kMostTiles); tiles >= kLeastTiles; tiles = tiles * 3 / 4)
          if (configure(tiles, prepack, least)) return true;
      }
    return false;
  }

  // Time relative to a direct pass: products, transforms of tiles and results, weights.
  double cost() const {
    return this->products(to_x_ ? spec_.problem.x : spec_.problem.y, chunk_ * depth_) + this->share(75, cd_ * depth_) +
           this->share(60, cs_ * depth_) + this->share(150, prepack_ ? boxes_ * step_.tiles() : step_.tiles());
  }

  std::string explain() const override {
    std::ostringstream s;
    s << "winograd " << (to_x_ ? "x" : "y") << " F(2x2, 3x3) (" << kernels_.name << "): boxes of " << step_.n << 'x'
      << step_.d << 'x' << step_.h << 'x' << step_.w << " tiles, chunks of " << chunk_ << " of " << cs_
      << " source channels, panels of " << width_ << " of " << cd_ << "; weights transformed "
      << (prepack_ ? "once" : "by tasks") << "; " << tasks_ << " tasks, " << this->workspace_bytes() << " bytes";
    return s.str();
  }

  void run(const Operands& o, std::byte* workspace) const override {
    Carver shared(workspace);
    const Shared all = carve_shared(shared);
    const auto slot_of = [&](int slot) {
      Carver carver(workspace + shared_bytes_ + slot * slot_bytes_);
      return carve(carver);
    };
    const int slots = static_cast<int>(slots_);
    const Index groups = spec_.problem.groups, vectors = ceil_div(cs_, lanes_), chunks = ceil_div(cs_, chunk_);
    std::atomic<bool> fit{true};
    const auto check = [&](bool good) {
      if (!good) fit.store(false, std::memory_order_relaxed);
    };
    if (prepack_)
      parallel_for(groups * panels_ * chunks, slots, [&](Index i, int slot) {
        const Index k0 = i % chunks * chunk_, panel = i / chunks % panels_, g = i / chunks / panels_;
        weights(o.w, g, panel, k0, slot_of(slot).weights,
                all.u + i / chunks * kFrequencies * ustep_ + k0 * depth_ * panel_columns(panel));
      });
    const auto transform_one = [&](Index i, Index vector, const Slot& s) {
      if (fit.load(std::memory_order_relaxed))
        check(transform(o, i / boxes_, this->box(i % boxes_), vector, s.pixels, s.v));
    };
    const auto multiply_one = [&](Index i, Index panel, const Slot& s) {
      if (fit.load(std::memory_order_relaxed)) check(multiply(o, i / boxes_, this->box(i % boxes_), panel, all.u, s));
    };
    if (together_) {
      for (Index i = 0; i < groups * boxes_; ++i) {
        const auto with_shared = [&](int slot) {
          Slot s = slot_of(slot);
          s.v = all.v;
          return s;
        };
        parallel_for(vectors, slots, [&](Index vector, int slot) { transform_one(i, vector, with_shared(slot)); });
        parallel_for(panels_, slots, [&](Index panel, int slot) { multiply_one(i, panel, with_shared(slot)); });
      }
    } else {
      parallel_for(groups * boxes_, slots, [&](Index i, int slot) {
        const Slot s = slot_of(slot);
        for (Index vector = 0; vector < vectors; ++vector) transform_one(i, vector, s);
        for (Index panel = 0; panel < panels_; ++panel) multiply_one(i, panel, s);
      });
    }
    if (!fit) direct_->run(o, workspace);
  }

 private:
  struct Shared {
    T *u, *v;
  };
  struct Slot {
    T *v, *u, *m, *pixels, *weights, *lines, *bias;
  };

  bool configure(Index tiles, bool prepack, Index least) {
    this->cut(spec_.problem.n, to_x_ ? spec_.problem.x : spec_.problem.y, tiles);
    const Index all = boxes_ * spec_.problem.groups;
    prepack_ = prepack;
    together_ = all < kMinTasks && panels_ > 1;
    if (prepack && boxes_ == 1) return false;
    const Index most = std::max(lanes_, (prepack ? 2 : 1) * kChunk / (depth_ + 1));
    chunk_ = round_up(ceil_div(cs_, ceil_div(cs_, most)), lanes_);
    ustep_ = pitch((prepack ? cs_ : chunk_) * depth_ * width_);
    vstep_ = pitch(ceil_div(cs_, chunk_) * source_tiles_ * chunk_);
    mstep_ = pitch(step_.tiles() * width_);
    Carver shared, slot;
    carve_shared(shared);
    carve(slot);
    shared_bytes_ = static_cast<Index>(shared.used());
    slot_bytes_ = static_cast<Index>(slot.used());
    return this->fits(together_ ? panels_ : all, least);
  }
  Shared carve_shared(Carver& carver) const {
    Shared s{};
    if (prepack_) s.u = carver.take<T>(spec_.problem.groups * panels_ * kFrequencies * ustep_);
    if (together_) s.v = carver.take<T>(kFrequencies * vstep_);
    return s;
  }
  Slot carve(Carver& carver) const {
    Slot s{};
    if (!together_) s.v = carver.take<T>(kFrequencies * vstep_);
    if (!prepack_) s.u = carver.take<T>(kFrequencies * ustep_);
    s.m = carver.take<T>(kFrequencies * mstep_);
    s.pixels = carver.take<T>(std::max(this->window_elements(depth_ - 1, 4), 4 * step_.tiles() * width_));
    s.weights = carver.take<T>(kWeightBlock * 9 * depth_ * width_ + lanes_);
    s.lines = carver.take<T>(kStoreRows * lanes_);
    s.bias = carver.take<T>(width_);
    return s;
  }
  Index panel_columns(Index panel) const { return round_up(std::min(width_, cd_ - panel * width_), lanes_); }

  // Transforms the weights of a panel for source channels [k0, k0 + chunk_) to u[frequency][d][source channel][column].
  void weights(const View& w, Index g, Index panel, Index k0, T* scratch, T* u) const {
    const std::size_t along_n = to_x_ ? 1 : 0, along_k = 1 - along_n;
    const Index taps = 9 * depth_, columns = panel_columns(panel), k1 = std::min(k0 + chunk_, cs_);
    for (Index k = k0; k < k1; k += kWeightBlock) {
      const Index count = std::min(kWeightBlock, k1 - k);
      Index5 at{}, size{0, 0, depth_, 3, 3}, step{0, 0, 9, 3, 1};
      at[0] = g * spec_.problem.co;
      at[along_n] += panel * width_, size[along_n] = std::min(width_, cd_ - panel * width_);
      at[along_k] += k, size[along_k] = count;
      // Runs of memory stay runs.
      const bool k_inside = w.stride[along_k] < w.stride[along_n];
      step[along_n] = k_inside ? count * taps : taps;
      step[along_k] = k_inside ? taps : columns * taps;
      if (size[along_n] < columns) std::fill(scratch, scratch + count * columns * taps, T{});
      copy_in(kernels_, scratch, step, w.at(at, size));
      std::fill_n(scratch + count * columns * taps, lanes_, T{});
      for (Index d = 0; d < depth_; ++d)
        for (Index i = 0; i < count; ++i)
          kernels_.winograd.weights(u + (d * (k1 - k0) + k - k0 + i) * columns, ustep_,
                                    scratch + i * step[along_k] + (to_x_ ? depth_ - 1 - d : d) * 9, step[along_n],
                                    static_cast<int>(columns / lanes_), to_x_);
    }
  }

  // Transforms a vector of source channels to v[frequency][chunk][tile][source channel].
  bool transform(const Operands& o, Index g, const Box& b, Index vector, T* pixels, T* v) const {
    const Index c = vector * lanes_;
    v += c / chunk_ * source_tiles_ * chunk_ + c % chunk_;
    return this->each_row(to_x_ ? o.y : o.x, g * cs_ + c, std::min(lanes_, cs_ - c), b, first_, depth_ - 1, 4, pixels,
                          [&](const T* const* rows, Index first, Index width, Index tile) {
                            kernels_.winograd.image(v + tile * chunk_, vstep_, chunk_, rows, first, width, b.w);
                          });
  }

  bool multiply(const Operands& o, Index g, const Box& b, Index panel, const T* packed, const Slot& s) const {
    const Index columns = panel_columns(panel), n = std::min(width_, cd_ - panel * width_), plane = b.h * b.w;
    const GatherKernel<T>& kernel = this->kernel(n);
    std::ptrdiff_t row[kMostTiles], crow[kMostTiles];
    const Index tiles = b.tiles(), volume = b.d * plane;
    for (Index t = 0; t < tiles; ++t) {
      row[t] = (t / volume * (depth_ - 1) * plane + t) * chunk_;
      crow[t] = t * columns;
    }
    Segment segments[kMostDepth];
    for (Index k0 = 0, k1; k0 < cs_; k0 = k1) {
      k1 = prepack_ ? cs_ : std::min(k0 + chunk_, cs_);
      const T* u = packed + (g * panels_ + panel) * kFrequencies * ustep_;
      if (!prepack_) {
        weights(o.w, g, panel, k0, s.weights, s.u);
        u = s.u;
      }
      for (Index f = 0; f < kFrequencies; ++f) {
        for (Index k = k0; k < k1; k += chunk_) {
          const Index len = std::min(chunk_, k1 - k);
          for (Index d = 0; d < depth_; ++d) segments[d] = {d * plane * chunk_, d * len * columns, len};
          for (Index t = 0; t < tiles; t += kernel.mr)
            kernel.run(static_cast<int>(std::min<Index>(kernel.mr, tiles - t)), s.v + f * vstep_ + k * source_tiles_,
                       row + t, 1, segments, depth_, u + f * ustep_ + (k - k0) * depth_ * columns, columns,
                       s.m + f * mstep_, crow + t, k > 0);
        }
      }
    }
    return store(o, g, b, panel, s);
  }

  bool store(const Operands& o, Index g, const Box& b, Index panel, const Slot& s) const {
    const View& d = to_x_ ? o.x : o.y;
    const Index columns = panel_columns(panel), n = std::min(width_, cd_ - panel * width_),
                channel = g * cd_ + panel * width_;
    Window w = this->window(d, b, {0, 0, 0}, 0, 2);
    const Index row = w.size[4] * columns, plane = w.size[3] * row;
    bool good = true;
    const T* m = s.m;
    for (Index i = 0; i < b.n * b.d; ++i)
      for (Index h = 0; h < b.h; ++h, m += b.w * columns)
        for (Index j = 0; j < columns; j += lanes_) {
          T* out = s.pixels + i * plane + 2 * h * row + j;
          T* rows[2] = {out, 2 * h + 1 < w.size[3] ? out + row : nullptr};
          good &= kernels_.winograd.output(rows, columns, w.size[4], m + j, mstep_, columns, b.w);
        }
    if (o.bias.data) {
      load_row(kernels_, s.bias, advance(o.bias.data, o.bias.dtype, channel * o.bias.stride[1]), o.bias.dtype,
               o.bias.stride[1], n);
      for (Index i = 0; i < w.pixels(); ++i)
        for (Index j = 0; j < n; ++j) s.pixels[i * columns + j] += s.bias[j];
    }
    const bool join = d.stride[3] == w.size[4] * d.stride[4];
    const Index lines = join ? 1 : w.size[3], length = w.pixels() / (w.size[0] * w.size[2] * lines);
    w.at[1] = channel;
    const T* from = s.pixels;
    for (Index i = 0; i < w.size[0]; ++i)
      for (Index j = 0; j < w.size[2]; ++j)
        for (Index h = 0; h < lines; ++h, from += length * columns)
          this->put(advance(d.data, d.dtype, d.offset(w.at) + i * d.stride[0] + j * d.stride[2] + h * d.stride[3]),
                    d.dtype, d.stride[4], d.stride[1], from, columns, length, n, s.lines);
    return good;
  }

  bool to_x_, prepack_ = false, together_ = false;
  Index cs_, cd_, width_, panels_;
  Index3 first_{};  // tap u of the transform reads source position destination + first + u
  Index chunk_ = 1, ustep_ = 0, vstep_ = 0, mstep_ = 0;
};

// ----------------------------------------------------------------------------------------------------- unknown w

template <class T>
class WinogradWeights final : public Tiled<T> {
  using Base = Tiled<T>;
  using Base::spec_, Base::kernels_, Base::direct_, Base::depth_, Base::lanes_, Base::step_, Base::boxes_,
      Base::source_tiles_, Base::tasks_, Base::slots_, Base::shared_bytes_, Base::slot_bytes_, Base::pitch;

 public:
  WinogradWeights(const PassSpec& spec, const KernelSet<T>& kernels) : Base(spec, kernels) {
    const Problem& p = spec_.problem;
    for (std::size_t a = 0; a < 3; ++a) first_[a] = -p.pad_before[a];
    width_ = this->panel_width(p.co);
  }

  bool plan() {
    const Problem& p = spec_.problem;
    direct_ = make_gather_weights(spec_, kernels_);
    if (!direct_) return false;
    // Boxes and slabs fix the order of sums: they depend on the shape alone. The larger a task's block of results, the
    // fewer tasks transform the same tiles.
    for (const Index least : {2, 1})
      for (Index tiles = kChunk; tiles >= kLeastTiles; tiles = tiles * 3 / 4) {
        this->cut(p.n, p.y, tiles);
        for (const Index block : {2 * kBlock, kBlock})
          if (configure(block, least) && (block == kBlock || tasks_ >= kMinTasks / 2)) return true;
      }
    return false;
  }

  double cost() const {
    return this->products(spec_.problem.y, step_.tiles()) + this->share(75, panels_ * width_ * depth_) +
           this->share(60, rows_ * depth_) + this->share(100, boxes_ * step_.tiles());
  }

  std::string explain() const override {
    std::ostringstream s;
    s << "winograd w F(2x2, 3x3) (" << kernels_.name << "): boxes of " << step_.n << 'x' << step_.d << 'x' << step_.h
      << 'x' << step_.w << " tiles, " << rows_ << " of " << spec_.problem.ci << " input channels by "
      << panels_ * width_ << " of " << spec_.problem.co << " output channels a task, " << boxes_ << " boxes in "
      << slabs_ << " slabs; " << tasks_ << " tasks, " << this->workspace_bytes() << " bytes";
    return s.str();
  }

  void run(const Operands& o, std::byte* workspace) const override {
    const int slots = static_cast<int>(slots_);
    const Index block = slab_elements();
    T* const shared = reinterpret_cast<T*>(workspace);
    std::atomic<bool> fit{true};
    const auto slot_of = [&](int slot) {
      Carver carver(workspace + shared_bytes_ + slot * slot_bytes_);
      return carve(carver);
    };
    const auto check = [&](bool good) {
      if (!good) fit.store(false, std::memory_order_relaxed);
    };
    parallel_for(tasks_, slots, [&](Index i, int slot) {
      const Slot s = slot_of(slot);
      T* const c = slabs_ > 1 ? shared + i * block : s.c;
      const Index slab = i % slabs_, first = slab * boxes_ / slabs_, last = (slab + 1) * boxes_ / slabs_;
      const Block b = block_of(i / slabs_);
      for (Index j = first; j < last && fit.load(std::memory_order_relaxed); ++j)
        check(add(o, b, this->box(j), s, c, j > first));
      if (slabs_ == 1 && fit.load(std::memory_order_relaxed)) check(store(o, b, c, s));
    });
    if (slabs_ > 1 && fit)
      parallel_for(tasks_ / slabs_, slots, [&](Index i, int slot) {
        T* const c = shared + i * slabs_ * block;
        for (Index slab = 1; slab < slabs_; ++slab)
          for (Index e = 0; e < block; ++e) c[e] += c[slab * block + e];
        check(store(o, block_of(i), c, slot_of(slot)));
      });
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

  bool configure(Index block, Index least) {
    const Problem& p = spec_.problem;
    rows_ = round_up(ceil_div(p.ci, ceil_div(p.ci, block)), lanes_);
    const Index all = ceil_div(p.co, width_);
    panels_ = ceil_div(all, ceil_div(all, std::max<Index>(1, block / width_)));
    vstep_ = pitch(source_tiles_ * rows_);
    bstep_ = pitch(step_.tiles() * width_);
    cstep_ = pitch(rows_ * width_);
    const Index results = p.groups * ceil_div(p.ci, rows_) * ceil_div(p.co, panels_ * width_);
    slabs_ = 1;
    if (results < kMinTasks) {
      const Index room =
          static_cast<Index>(spec_.budget) / 2 / static_cast<Index>(sizeof(T)) / (results * slab_elements());
      slabs_ = std::clamp<Index>(std::min(ceil_div(kMinTasks, results), room), 1, boxes_);
    }
    shared_bytes_ = slabs_ > 1 ? results * slabs_ * slab_elements() * static_cast<Index>(sizeof(T)) : 0;
    Carver slot;
    carve(slot);
    slot_bytes_ = static_cast<Index>(slot.used());
    return this->fits(results * slabs_, least);
  }
  Index slab_elements() const { return panels_ * depth_ * kFrequencies * cstep_; }
  Slot carve(Carver& carver) const {
    Slot s{};
    if (slabs_ == 1) s.c = carver.take<T>(slab_elements());
    s.v = carver.take<T>(kFrequencies * vstep_);
    s.b = carver.take<T>(panels_ * kFrequencies * bstep_);
    s.pixels = carver.take<T>(std::max(this->window_elements(depth_ - 1, 4), kStoreChannels * 9 * depth_ * width_));
    s.lines = carver.take<T>(kStoreRows * lanes_);
    return s;
  }
  Block block_of(Index i) const {
    const Problem& p = spec_.problem;
    const Index rows = ceil_div(p.ci, rows_), columns = ceil_div(p.co, panels_ * width_);
    Block b{i / rows / columns, i % rows * rows_, 0, i / rows % columns * panels_ * width_, 0};
    b.m = std::min(rows_, p.ci - b.m0);
    b.n = std::min(panels_ * width_, p.co - b.n0);
    return b;
  }

  // Adds the sums over the tiles of a box to c[panel][d][frequency][input channel][column].
  bool add(const Operands& o, const Block& r, const Box& b, const Slot& s, T* c, bool accumulate) const {
    const Problem& p = spec_.problem;
    const Index tiles = b.tiles(), plane = b.h * b.w, volume = b.d * plane;
    bool good = true;
    for (Index m = 0; m < r.m; m += lanes_)
      good &= this->each_row(o.x, r.g * p.ci + r.m0 + m, std::min(lanes_, r.m - m), b, first_, depth_ - 1, 4, s.pixels,
                             [&](const T* const* rows, Index first, Index width, Index tile) {
                               kernels_.winograd.image(s.v + m * source_tiles_ + tile * lanes_, vstep_, lanes_, rows,
                                                       first, width, b.w);
                             });
    for (Index n = 0; n < r.n; n += lanes_) {
      const Index columns = panel_columns(r, n / width_);
      good &= this->each_row(o.y, r.g * p.co + r.n0 + n, std::min(lanes_, r.n - n), b, {0, 0, 0}, 0, 2, s.pixels,
                             [&](const T* const* rows, Index, Index width, Index tile) {
                               kernels_.winograd.gradient(
                                   s.b + n / width_ * kFrequencies * bstep_ + tile * columns + n % width_, bstep_,
                                   columns, rows, width, b.w);
                             });
    }
    std::ptrdiff_t row[kMostRows], crow[kMostRows];
    Segment segments[kMostTiles];
    for (Index panel = 0; panel * width_ < r.n; ++panel) {
      const Index columns = panel_columns(r, panel);
      const GatherKernel<T>& kernel = this->kernel(columns);
      for (Index m = 0; m < r.m; ++m) {
        row[m] = m / lanes_ * source_tiles_ * lanes_ + m % lanes_;
        crow[m] = m * columns;
      }
      for (Index d = 0; d < depth_; ++d) {
        const Index count = depth_ > 1 ? b.n : 1, len = depth_ > 1 ? volume : tiles;
        for (Index i = 0; i < count; ++i)
          segments[i] = {(i * (volume + (depth_ - 1) * plane) + d * plane) * lanes_, i * volume * columns, len};
        for (Index f = 0; f < kFrequencies; ++f) {
          T* const to = c + ((panel * depth_ + d) * kFrequencies + f) * cstep_;
          for (Index m = 0; m < r.m; m += kernel.mr)
            kernel.run(static_cast<int>(std::min<Index>(kernel.mr, r.m - m)), s.v + f * vstep_, row + m, lanes_,
                       segments, count, s.b + (panel * kFrequencies + f) * bstep_, columns, to, crow + m, accumulate);
        }
      }
    }
    return good;
  }

  bool store(const Operands& o, const Block& r, const T* c, const Slot& s) const {
    const Index taps = 9 * depth_;
    const View& w = o.w;
    const bool taps_dense = w.stride[3] == 3 * w.stride[4] && (depth_ == 1 || w.stride[2] == 9 * w.stride[4]);
    const bool join = taps_dense && w.stride[1] == taps * w.stride[4];
    bool good = true;
    for (Index panel = 0; panel * width_ < r.n; ++panel) {
      const Index columns = panel_columns(r, panel), n = std::min(width_, r.n - panel * width_);
      for (Index m = 0; m < r.m; m += kStoreChannels) {
        const Index count = std::min(kStoreChannels, r.m - m);
        for (Index i = 0; i < count; ++i)
          for (Index d = 0; d < depth_; ++d)
            good &= kernels_.winograd.taps(s.pixels + (i * taps + d * 9) * columns, columns,
                                           c + (panel * depth_ + d) * kFrequencies * cstep_ + (m + i) * columns, cstep_,
                                           static_cast<int>(columns / lanes_));
        const Index run = join ? count * taps : taps_dense ? taps : 1;
        for (Index i = 0; i < count * taps; i += run) {
          const Index t = i % taps;
          const Index at =
              w.offset({r.g * spec_.problem.co + r.n0 + panel * width_, r.m0 + m + i / taps, t / 9, t / 3 % 3, t % 3});
          this->put(advance(w.data, w.dtype, at), w.dtype, w.stride[4], w.stride[0], s.pixels + i * columns, columns,
                    run, n, s.lines);
        }
      }
    }
    return good;
  }
  Index panel_columns(const Block& r, Index panel) const {
    return round_up(std::min(width_, r.n - panel * width_), lanes_);
  }

  static constexpr Index kStoreChannels = 7;  // 63 rows of one transposition
  static constexpr Index kBlock = 64, kMostRows = 2 * kBlock;
  Index3 first_{};
  Index width_, rows_ = 1, panels_ = 1, slabs_ = 1;
  Index vstep_ = 0, bstep_ = 0, cstep_ = 0;
};

// Stride and dilation of 1, 3x3 windows and enough channels for the transforms to be small beside the products.
bool applies(const Problem& p) {
  return p.w[1] == 3 && p.w[2] == 3 && p.stride == Index3{1, 1, 1} && p.dilation == Index3{1, 1, 1} &&
         p.w[0] <= kMostDepth && p.ci >= kLeastChannels && p.co >= kLeastChannels;
}

template <class P, class T>
std::unique_ptr<P> make(const PassSpec& spec, const KernelSet<T>& kernels) {
  auto pass = std::make_unique<P>(spec, kernels);
  if (!pass->plan()) return nullptr;
  return pass;
}

}  // namespace

template <class T>
bool winograd_pays(const PassSpec& spec, const KernelSet<T>& kernels) {
  if (!applies(spec.problem)) return false;
  const auto pays = [](const auto& pass) { return pass && pass->cost() < kWorthwhile; };
  return spec.unknown == Unknown::w ? pays(make<WinogradWeights<T>>(spec, kernels))
                                    : pays(make<Winograd<T>>(spec, kernels));
}
template bool winograd_pays(const PassSpec&, const KernelSet<float>&);
template bool winograd_pays(const PassSpec&, const KernelSet<double>&);

template <class T>
std::unique_ptr<Pass> make_winograd(const PassSpec& spec, const KernelSet<T>& kernels) {
  if (!applies(spec.problem)) return nullptr;
  if (spec.unknown == Unknown::w) return make<WinogradWeights<T>>(spec, kernels);
  return make<Winograd<T>>(spec, kernels);
}
template std::unique_ptr<Pass> make_winograd(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_winograd(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
