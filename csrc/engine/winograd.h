// Windows with fewer multiplications: Winograd's F(2x2, 3x3) and F(3x3, 2x2) (2.25 times fewer), F(2x2, 2x2) (1.8
// times), F(4x4, 3x3) and F(3x3, 4x4) (4 times, exact ones 3.1 times) and Fourier transforms (6 to 17 times) on h and
// w, or F(1x3, 1x2) (1.5 times), F(1x4, 1x3) (2 times) and Fourier transforms (2.8 to 6 times) on w alone and exact
// F(1x4, 1x3) and F(1x3, 1x4) (1.7 times) on either; taps along other axes summed directly.
//
// Images are cut into boxes of tiles (2x2 outputs each, say). The tiles of a box are transformed to frequencies, 4 to
// 478, each of which is one multiplication (tiles by channels) of the gathering kernel; sums are formed a chunk at a
// time, so that exact transforms are no less accurate than straight sums. What transforms must not mix (values that are
// not finite, or a few that dwarf the others) is noticed on the way; then the direct pass computes the whole result.
//
// Larger windows are cut into parts of as many taps as the transform has, whose products are summed as frequencies: a
// part reads the tiles that lie as far away as it does itself. Dilated windows are dense ones over every second, say,
// pixel: a tile has outputs as far apart as the taps. Boxes hold tiles of every such set of columns, and of one set of
// rows. A stride makes parts of the taps with the same remainder, which read, or form, every second pixel.
//
// winograd.cpp chooses transforms, winograd_images.cpp computes images (unknown x and y), winograd_weights.cpp weights
// (unknown w).
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <vector>

#include "base/cpu.h"
#include "engine/estimate.h"
#include "engine/pass.h"
#include "engine/winograd_axis.h"
#include "format/copy.h"

namespace convbwd::winograd {

constexpr Index kMostTiles = 128, kLeastTiles = 16;  // of a box
constexpr Index kChunk = 64;                         // products of a call's sum: 0.3 to 0.8 of a straight sum's error
constexpr Index kWeightBlock = 4;                    // source channels whose weights are brought in at a time
// Transformed tiles and results of a box. They stay in L2, with shared weights where these are few (64 channels both
// ways take 0.89 to 0.95 of the time); more of them pay for weights that come from further away, or are transformed for
// a box alone.
constexpr Index kBesideWeights = 6 << 18, kSharedBytes = 9 << 18, kOwnBytes = 15 << 18;
// A plan of so many products (0.05 ms) that runs one task at a time counts for so much more: the geometric mean of what
// it costs one thread and two, as for an odd number of few tasks. One whose threads read what others wrote counts for
// so much more a column (Zen 4: two threads take 0.55 of one's time with 64 columns, 0.85 with 16).
constexpr double kMuchWork = 1 << 22, kAlone = 1.4, kPanelsShared = 3.2;
// What threads that share a box's channels and frequencies do of what they would do apart: they wait for each other and
// read what others wrote. Two take 0.74 of one's time for weights, 0.61 for images (Zen 4, 24 and 20 problems), which
// is 0.68 and 0.82; more of them read more of what others wrote.
constexpr double kTogether = 0.55;
// Bringing in tiles of rows that run across those of memory takes so many times as long.
constexpr double kTurned = 3;
constexpr Index kFourierTaps = 4;     // of fewer Fourier transforms save no more products than others
constexpr Index kMostParts = 128;     // of a window
constexpr Index kMostSets = 64;       // sets of columns, which are tiles of a box
constexpr Index kLeastChannels = 16;  // transforms of fewer cost more than they save
constexpr int kPeak = 100;            // largest magnitude over the mean one that a box may have

// Tiles [h0, h0 + h) x [w0, w0 + w) of outputs [d0, d0 + d) of images [n0, n0 + n), of one set of rows and all
// sets of columns.
struct Box {
  Index n0, n, d0, d, h0, h, w0, w, set;
};

// The part of an image that a box touches.
struct Window {
  Index5 at{}, size{};
  Index pixels() const { return size[0] * size[2] * size[3] * size[4]; }
};

using Axes = std::array<Axis, 3>;

template <class T>
Axes axes_of(const Problem& p, const WinogradKernels<T>& transforms, bool to_x) {
  const auto transformed = [&](std::size_t a) {
    return Axis(transforms.tile[a], transforms.window[a], transforms.real[a], transforms.complex[a],
                axis_sizes(p, 1 + a), to_x);
  };
  return {Axis(1, 1, 1, 0, axis_sizes(p, 0), to_x), transformed(0), transformed(1)};
}

// The remainders along h and w that a frequency is made of.
struct Frequency {
  Index h, w;
};
// In the order of the kernels.
inline std::vector<Frequency> frequencies_of(const Axis& h, const Axis& w) {
  std::vector<Frequency> all;
  for (Index i = 0; i < h.remainders(); ++i)
    for (Index j = 0; j < w.remainders(); ++j)
      all.insert(all.end(), h.is_complex(i) ? (w.is_complex(j) ? 6 : 3) : (w.is_complex(j) ? 3 : 1), Frequency{i, j});
  return all;
}
// Products of a tile and a pair of channels, of all parts.
inline Index count_products(const Axes& axes) {
  Index count = 0;
  for (const Frequency& f : frequencies_of(axes[1], axes[2])) {
    const auto parts = [](const Axis& a, Index remainder) {
      return std::count_if(a.parts.begin(), a.parts.end(),
                           [&](const Axis::Part& part) { return a.uses(part, remainder); });
    };
    count += parts(axes[1], f.h) * parts(axes[2], f.w);
  }
  return count * axes[0].part_count();
}

// Tiles that cover so many outputs, of each set.
inline Index tiles_of(const Axis& axis, Index outputs) { return ceil_div(outputs, axis.out * axis.tile); }

/// A number for F(2x2, 3x3), one for F(4x4, 3x3), and one for exact F(4x4, 3x3).
struct Cycles {
  double small, large, complex;
};
/// What the time of a pass is estimated from, relative to a direct one.
struct Costs {
  Cycles scale;                   // of all of it, no cycles
  double writing;                 // of a result, in products
  Cycles source, other, weights;  // of a tile and vector, for transforms on both sides and of weights
  Cycles line;                    // of tiles that are transformed along one axis, times those of two
  // Of x and y alone: products with panels of one vector, which wait for their sums; waiting of few tiles for shared
  // weights; for y, weights of a source channel, which do not follow each other.
  double narrow = 1, waiting = 0, scattered = 1;
};
/// Those of a class of passes, for AVX-512 float32.
struct CostsByProcessor {
  /// Where multipliers add: estimated from counts and adjusted by hand to one core of a Sapphire Rapids. Too hopeful by
  /// 20 to 30 % for F(2x2), 7x7 images of 512 channels and 32 channels on wide images, within 15 % of seventeen shapes
  /// for F(4x4), of eleven for the exact one; what weights cost is less since then, by what their kernel gained on a
  /// Zen 4.
  Costs adding;
  /// Where others do: fitted to one core of a Zen 5, 860 results for 360 problems of 16 to 512 channels, most of them
  /// small; good to 15 %, exact transforms to 8 %. Scales are 6 % (x and y) and 2 % (w) lower since, by what 15
  /// problems of two taps or with strides, and 64 along one axis, showed.
  Costs beside;
  /// And vectors are halved, so that products take twice as long and transforms do not: fitted to one core of a Zen 4.
  /// Of w: 491 results of all transforms for 37 problems, good to 8 %. Of x and y: 696 for 14 problems of 3x3 windows,
  /// boxes, panels and chunks of all sizes, good to 5 %, then adjusted by hand to 5,340 for problems of other windows
  /// that were measured beside other work.
  Costs halving;

  template <class T>
  const Costs& here(const KernelSet<T>& kernels) const {
    return !adds_beside_products() ? adding : halves_vectors() && !narrow(kernels) ? halving : beside;
  }
};

/// What a pass is made with.
template <class T>
struct Choice {
  const KernelSet<T>& kernels;
  const WinogradKernels<T>& transforms;
  std::shared_ptr<const Pass> direct;
  std::array<std::vector<Index>, 3> idle;  // results that no product enters: positions, or taps, an axis
};

template <class T>
class Tiled : public GuardedPass {
 public:
  Tiled(const PassSpec& spec, const Choice<T>& choice)
      : GuardedPass(spec, choice.direct),
        kernels_(choice.kernels),
        transforms_(choice.transforms),
        axes_(axes_of(spec.problem, transforms_, spec.unknown == Unknown::x)),
        parts_(axes_[0].part_count() * axes_[1].part_count() * axes_[2].part_count()),
        taps_(axes_[0].window * axes_[1].window * axes_[2].window),
        remainders_(frequencies_of(axes_[1], axes_[2])),
        frequencies_(transforms_.frequencies()),
        products_(count_products(axes_)),
        lanes_(kernels_.lanes),
        idle_(choice.idle),
        tap_(list_taps()) {}
  double nanoseconds() const override { return nanoseconds_; }
  double cost() const override { return cost_; }
  Index3 tile() const override {
    return {step_.d, axes_[1].out * axes_[1].tile * step_.h, axes_[2].out * axes_[2].tile * step_.w};
  }

 protected:
  // To that of a direct pass.
  virtual double relative_time() const = 0;
  // How much more it counts as threads wait for each other.
  virtual double of_shared_panels() const { return 1; }
  // Whether threads that share products so many times, one after the other, and in between so many vectors to
  // transform, are faster than those that share tasks.
  bool together_pays(Index times, Index vectors, double apart) const {
    constexpr double kTransforms = 0.25;  // of the work
    const double sharers = this->sharers(spec_.problem.products() / static_cast<double>(times));
    const double threads = std::min<double>(this->slots(), sharers);
    const double transforming = std::min(threads, static_cast<double>(vectors));
    return threads > 1 && kTogether / ((1 - kTransforms) / threads + kTransforms / transforming) > apart;
  }
  // Estimates the tasks as they are cut now.
  void estimate() {
    constexpr double kPass = 3000;  // fitted with `Costs` to a Zen 5
    const double uneven = !this->serves_two() ? kAlone : this->tasks_ < kMinTasks ? std::sqrt(this->waits(2)) : 1;
    nanoseconds_ = kPass + relative_time() * direct_nanoseconds(spec_, kernels_, false) + apart_nanoseconds();
    cost_ = nanoseconds_ * of_shared_panels() * (spec_.problem.products() < kMuchWork ? 1 : uneven);
  }
  // Short rows of one set among several, beyond L2: of the lines that come with them few are read or written. Fitted to
  // 13 problems of 16 to 512 channels on planes of 14x14 to 28x28, every second row (Zen 5).
  double apart_nanoseconds() const {
    constexpr double kRow = 30;
    constexpr Index kShort = 128, kFar = 8 << 20;  // bytes
    if (row_sets_ == 1) return 0;
    const auto apart = [](const View& v) {
      const Index rows = v.size[0] * v.size[1] * v.size[2] * v.size[3];
      const Index bytes = v.size[4] * static_cast<Index>(size_of(v.dtype));
      return bytes <= kShort && rows * bytes > kFar ? kRow * static_cast<double>(rows) : 0;
    };
    return apart(spec_.operands.x) + apart(spec_.operands.y);
  }
  // Cuts the outputs of n images into boxes of about so many tiles; neighbours along d share source planes.
  void cut(Index n, const Index3& out, Index tiles) {
    const Index size[4] = {n, out[0], tiles_of(axes_[1], out[1]), tiles_of(axes_[2], out[2])};
    Index* const step[4] = {&step_.n, &step_.d, &step_.h, &step_.w};
    tiles /= axes_[2].sets;
    *step[1] = axes_[0].part_count() > 1 ? even_part(size[1], std::min<Index>(4, tiles)) : 1;
    Index room = tiles / *step[1];
    room /= *step[3] = even_part(size[3], room);
    room /= *step[2] = even_part(size[2], room);
    if (step_.h == size[2] && step_.w == size[3]) {
      *step[1] = even_part(size[1], room * *step[1]);
      room = tiles / (*step[1] * step_.h * step_.w);
    }
    *step[0] = step_.d == size[1] && step_.h == size[2] && step_.w == size[3] ? even_part(size[0], room) : 1;
    for (int a = 0; a < 4; ++a) size_[a] = size[a], count_[a] = ceil_div(size[a], *step[a]);
    row_sets_ = std::min(axes_[1].sets, out[1]);
    boxes_ = count_[0] * count_[1] * count_[2] * count_[3] * row_sets_;
    grid_tiles_ = at(step_, step_.n, 0, 0, 0);
    source_tiles_ = axes_[1].grid_count() * axes_[2].grid_count() * grid_tiles_;
  }
  // Lines of tiles side by side: a row of tiles has one for each set of columns.
  Index lines(const Box& b) const { return b.h * axes_[2].sets; }
  Index tiles(const Box& b) const { return b.n * b.d * lines(b) * b.w; }
  // The number of a tile of a box in a grid of source tiles.
  Index at(const Box& b, Index n, Index d, Index line, Index w) const {
    return ((n * (b.d + axes_[0].more) + d) * (b.h + axes_[1].more) * axes_[2].sets + line) * (b.w + axes_[2].more) + w;
  }
  // The same of the first tile of a line of the box, counted over all planes of outputs.
  Index line_at(const Box& b, Index line) const {
    const Index plane = line / lines(b);
    return at(b, plane / b.d, plane % b.d, line % lines(b), 0);
  }
  struct Part {
    const Axis::Part &d, &h, &w;
  };
  Part part(Index i) const {
    const Index h = axes_[1].part_count(), w = axes_[2].part_count();
    return {axes_[0].part(i / w / h), axes_[1].part(i / w % h), axes_[2].part(i % w)};
  }
  // Whether a frequency of a part has products.
  bool uses(const Part& part, Index frequency) const {
    const Frequency f = remainders_[static_cast<std::size_t>(frequency)];
    return axes_[1].uses(part.h, f.h) && axes_[2].uses(part.w, f.w);
  }
  // The numbers, in the window, of the taps of all parts; -1 for taps of the transform that another part has, or none.
  std::vector<int> list_taps() const {
    std::vector<int> taps;
    for (Index p = 0; p < parts_; ++p) {
      const Part part = this->part(p);
      for (Index i = 0; i < axes_[1].taps; ++i)
        for (Index j = 0; j < axes_[2].taps; ++j) {
          const Index d = Axis::tap(part.d, 0), h = Axis::tap(part.h, i), w = Axis::tap(part.w, j);
          taps.push_back(h < 0 || w < 0 ? -1 : static_cast<int>((d * axes_[1].window + h) * axes_[2].window + w));
        }
    }
    return taps;
  }
  // How far the source tiles of a part lie from those of the first.
  Index offset(const Box& b, const Part& part) const {
    return (part.h.grid * axes_[2].grid_count() + part.w.grid) * grid_tiles_ +
           at(b, 0, part.d.move, part.h.move * axes_[2].sets, part.w.move);
  }
  Box box(Index i) const {
    Index at[4];
    const Index set = i % row_sets_;
    i /= row_sets_;
    const Index step[4] = {step_.n, step_.d, step_.h, step_.w};
    for (int a = 3; a >= 0; --a) at[a] = i % count_[a] * step[a], i /= count_[a];
    const auto part = [&](int a) { return std::min(step[a], size_[a] - at[a]); };
    return {at[0], part(0), at[1], part(1), at[2], part(2), at[3], part(3), set};
  }
  // The rows of an image that a box reads or writes, and where number 0 of a grid is among them, and in a row.
  struct Rows {
    View image;
    Index3 first;
  };
  Rows rows_of(const View& image, const Box& b, bool source) const {
    const Index sets = axes_[1].sets, at = b.set + (source ? axes_[1].origin : 0), first = floor_div(at, sets);
    const Index row = at - first * sets;
    Rows r{image, {0, first, source ? axes_[2].origin : 0}};
    r.image.data = advance(image.data, image.dtype, row * image.stride[3]);
    r.image.size[3] = std::max<Index>(0, ceil_div(image.size[3] - row, sets));
    r.image.stride[3] *= sets;
    return r;
  }
  // From number to number of a grid, or from output to output, among these rows, or in a plane along the other axes.
  Index apart(std::size_t a, bool source) const {
    return (source ? axes_[a].in : axes_[a].out) / (a == 1 ? axes_[1].sets : 1);
  }
  // The pixels that the tiles of a box read of a source image, or their outputs.
  Window window(const Rows& r, const Box& b, bool source) const {
    Window s;
    const Index5& size = r.image.size;
    const Index begin[3] = {b.d0, b.h0, b.w0}, count[3] = {b.d, b.h, b.w};
    Index5 lo{b.n0}, extent{b.n};
    for (std::size_t a = 0; a < 3; ++a) {
      lo[2 + a] = apart(a, source) * (axes_[a].tile * begin[a] + (source ? axes_[a].low : 0)) + r.first[a];
      extent[2 + a] = apart(a, source) * axes_[a].numbers(count[a], source);
    }
    for (std::size_t a = 0; a < 5; ++a) {
      s.at[a] = std::clamp<Index>(lo[a], 0, size[a]);
      s.size[a] = std::clamp<Index>(lo[a] + extent[a], s.at[a], size[a]) - s.at[a];
    }
    return s;
  }
  // Elements for one vector of channels of the largest window, and a row of zeros.
  Index window_elements() const {
    const auto pixels = [&](std::size_t a, Index tiles) { return apart(a, true) * axes_[a].numbers(tiles, true); };
    return (step_.n * pixels(0, step_.d) * pixels(1, step_.h) + 1) * pixels(2, step_.w) * lanes_;
  }

  // Brings in channels [c, c + live) of a box and calls f(rows, first column, width, tile, tiles) for every line of its
  // tiles, in all grids if they are source tiles. Returns whether transforms may mix the values.
  template <class F>
  bool each_line(const View& image, Index c, Index live, const Box& b, bool source, T* pixels, F&& f) const {
    const Rows of_set = rows_of(image, b, source);
    const Window s = window(of_set, b, source);
    const auto grids = [&](std::size_t a) { return source ? axes_[a].grid_count() : 1; };
    const auto grid_of = [&](std::size_t a, Index i) {
      return source ? axes_[a].grids[static_cast<std::size_t>(i)] : Axis::Grid{};
    };
    const auto tiles = [&](std::size_t a, Index count) { return count + (source ? axes_[a].more : 0); };
    const Index3& first = of_set.first;
    const Index sets = axes_[2].sets, down = apart(1, source), across = apart(2, source);
    const Index height = axes_[1].tile + (source ? axes_[1].taps - 1 : 0);
    const Index row = s.size[4] * lanes_, plane = s.size[3] * row, volume = s.size[2] * plane;
    T* const zeros = pixels + s.size[0] * volume;
    std::fill(live < lanes_ ? pixels : zeros, zeros + row, T{});
    Window from = s;
    from.at[1] = c, from.size[1] = live;
    // From memory the next channels of the box come while these are transposed.
    copy_in(kernels_, pixels, {volume, 1, plane, row, lanes_}, of_set.image.at(from.at, from.size),
            from_memory(image) ? live * image.stride[1] : 0);
    for (Index grid = 0; grid < grids(1) * grids(2); ++grid) {
      const Axis::Grid gh = grid_of(1, grid / grids(2)), gw = grid_of(2, grid % grids(2));
      const Index top = gh.set + first[1] - s.at[3];
      const Index left = across * axes_[2].tile * b.w0 + gw.set + first[2] - s.at[4];
      Index tile = grid * grid_tiles_;
      for (Index n = 0; n < b.n; ++n)
        for (Index i = 0; i < tiles(0, b.d); ++i)
          for (Index line = 0; line < tiles(1, b.h) * sets; ++line, tile += tiles(2, b.w)) {
            const T* rows[kMostTileRows];
            const Index d = b.d0 + (source ? axes_[0].low : 0) + i - s.at[2], h = line / sets;
            const Index at = left + line % sets, column = at - floor_div(at, across) * across;
            for (Index j = 0; j < height; ++j) {
              const Index y = down * (axes_[1].tile * (b.h0 + h) + gh.start + j) + top;
              const bool inside = d >= 0 && d < s.size[2] && y >= 0 && y < s.size[3];
              rows[j] = (inside ? pixels + n * volume + d * plane + y * row : zeros) + column * lanes_;
            }
            f(rows, floor_div(at, across) + gw.start, ceil_div(s.size[4] - column, across), tile, tiles(2, b.w));
          }
    }
    return kernels_.peak(pixels, zeros - pixels, kPeak) <= kPeak;
  }

  // Makes sums of nothing zero: transforms leave the rounding errors of their neighbours there. Results have such sizes
  // and `columns` elements each; along an axis, result i is number place(axis, i) of them.
  template <class F>
  void clear(T* results, const std::array<Index, 4>& size, Index columns, F&& place) const {
    for (std::size_t a = 0; a < 3; ++a)
      for (const Index i : idle_[a]) {
        const Index at = place(a, i);
        if (at < 0 || at >= size[a + 1]) continue;
        Index outer = 1, inner = columns;
        for (std::size_t b = 0; b < 4; ++b) (b <= a ? outer : inner) *= b == a + 1 ? 1 : size[b];
        for (Index o = 0; o < outer; ++o) std::fill_n(results + (o * size[a + 1] + at) * inner, inner, T{});
      }
  }

  // Stores src[r*lds + c] at element r*rs + c*cs of dst. `lines` is scratch for kMostRows*lanes elements.
  void put(void* dst, DType dtype, Index rs, Index cs, const T* src, Index lds, Index rows, Index cols,
           T* lines) const {
    if (rows == 1 || cs == 1) {
      for (Index r = 0; r < rows; ++r) store_row(kernels_, advance(dst, dtype, r * rs), dtype, cs, src + r * lds, cols);
      return;
    }
    const auto transpose = kernels_.transpose[static_cast<int>(compute_dtype<T>)];
    const bool dense = rs == 1 && dtype == compute_dtype<T>;
    // A few channels at a time, which are as many pages of memory; whole cache lines where channels lie evenly.
    const Index lead = dense ? static_cast<Index>(reinterpret_cast<std::uintptr_t>(dst) / sizeof(T)) % lanes_ : 0;
    for (Index c = 0; c < cols; c += lanes_)
      for (Index r = 0, count; r < rows; r += count) {
        count = std::min(r ? kMostRows : kMostRows - lead, rows - r);
        const int live = static_cast<int>(count);
        const Index width = std::min(lanes_, cols - c);
        T* table[1] = {dense ? static_cast<T*>(dst) + r + c * cs : lines};
        transpose(table, 1, dense ? cs : kMostRows, src + r * lds + c, nullptr, lds, live, live, width, {});
        for (Index i = 0; i < width && !dense; ++i)
          store_row(kernels_, advance(dst, dtype, r * rs + (c + i) * cs), dtype, rs, lines + i * kMostRows, count);
      }
  }

  std::string name() const {
    std::ostringstream s;
    s << (!has_complex()      ? "F("
          : transforms_.exact ? "exact F("
                              : "FFT F(")
      << axes_[1].tile << 'x' << axes_[2].tile << ", " << axes_[1].taps << 'x' << axes_[2].taps << ')';
    if (parts_ > 1)
      s << " in " << axes_[0].part_count() << 'x' << axes_[1].part_count() << 'x' << axes_[2].part_count() << " parts";
    return s.str();
  }
  static Index pitch(Index elements) { return odd_multiple(elements, 64 / static_cast<Index>(sizeof(T))); }
  bool mixes_more() const { return !transforms_.exact; }
  // A sum has few products then beside those of the transforms, whose errors show.
  bool few_frequencies() const { return frequencies_ < 16; }
  // Of a direct pass, for each tile and pair of channels.
  double tile_products() const {
    return products_inside(spec_.problem) /
           static_cast<double>(size_[1] * row_sets_ * size_[2] * size_[3] * axes_[2].sets);
  }
  bool has_complex() const { return transforms_.complex[0] + transforms_.complex[1] > 0; }
  double of_tile(Cycles c) const { return has_complex() ? c.complex : mixes_more() ? c.large : c.small; }
  // Time of the products, relative to a direct pass: tiles beyond the outputs, and calls so short that writing results
  // shows (`writing`, in products).
  double products(Index call, double writing) const {
    return static_cast<double>(products_) / tile_products() * (1 + writing / static_cast<double>(call));
  }
  // Cycles of a tile and vector, relative to a direct pass, which has two products a cycle for each channel on the
  // other side.
  double relative(Cycles cycles, Index of) const {
    const double share = static_cast<double>(frequencies_) / of_tile({16, 36, 46});
    return of_tile(cycles) * share * 2 / (tile_products() * static_cast<double>(of));
  }
  // The same of tiles. Exact transforms of six pixels cost as much along one axis as along two.
  double relative_tiles(const Costs& costs, Cycles cycles, Index of) const {
    const bool line = !axes_[1].transforms() && (mixes_more() || !has_complex());
    return relative(cycles, of) * (line ? of_tile(costs.line) : 1) * (spec_.turned ? kTurned : 1);
  }
  // The same of weights, half of it for their transposition, which parts share.
  double relative_weights(Cycles cycles, Index of) const {
    const double window = static_cast<double>(axes_[1].taps * axes_[2].taps);
    return 0.5 * (static_cast<double>(taps_) / window + static_cast<double>(parts_)) * relative(cycles, of);
  }
  // Source tiles that are transformed for each tile of the outputs.
  double sources() const { return static_cast<double>(source_tiles_) / static_cast<double>(tiles(step_)); }

  const KernelSet<T>& kernels_;
  const WinogradKernels<T>& transforms_;
  const Axes axes_;
  const Index parts_, taps_;
  const std::vector<Frequency> remainders_;  // of each frequency
  const Index frequencies_;
  const Index products_;  // of a tile and a pair of channels, all frequencies and parts
  const Index lanes_;
  const std::array<std::vector<Index>, 3> idle_;
  const std::vector<int> tap_;
  Box step_{};
  double nanoseconds_ = 0, cost_ = 0;
  Index size_[4]{}, count_[4]{}, row_sets_ = 1, boxes_ = 1, grid_tiles_ = 1, source_tiles_ = 1;
};

template <class T>
std::unique_ptr<EstimatedPass> make_images(const PassSpec& spec, const Choice<T>& choice);
template <class T>
std::unique_ptr<EstimatedPass> make_weights(const PassSpec& spec, const Choice<T>& choice);

}  // namespace convbwd::winograd
