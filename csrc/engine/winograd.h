// Windows with fewer multiplications: Winograd's F(2x2, 3x3) (2.25 times fewer), F(4x4, 3x3) (4 times) and F(2x2, 5x5)
// (2.8 times) on h and w, or F(1x4, 1x3) (2 times) on w alone; the taps of d summed directly.
//
// Images are cut into boxes of tiles (2x2 outputs each, say). The tiles of a box are transformed to 16, 36 or 6
// frequencies, each of which is one multiplication (tiles by channels) of the gathering kernel; sums are formed a chunk
// at a time, so that F(2x2, 3x3) is no less accurate than straight sums. What transforms must not mix (values that are
// not finite, or a few that dwarf the others) is noticed on the way; then the direct pass computes the whole result.
//
// winograd.cpp computes images (unknown x and y), winograd_weights.cpp weights (unknown w).
#pragma once

#include <atomic>
#include <cstdint>
#include <numeric>
#include <sstream>

#include "engine/estimate.h"
#include "engine/pass.h"
#include "format/copy.h"

namespace convbwd::winograd {

constexpr Index kMostTiles = 128, kLeastTiles = 16;  // of a box
constexpr Index kChunk = 64;                         // products of a call's sum: 0.3 to 0.8 of a straight sum's error
constexpr Index kWeightBlock = 8;                    // source channels whose weights are brought in at a time
// Transformed tiles and results of a box. Beside shared weights they stay in L2; more of them pay for weights that are
// transformed for a box alone.
constexpr Index kSharedBytes = 9 << 18, kOwnBytes = 15 << 18;
constexpr Index kMinTasks = 8;
constexpr Index kStoreRows = 64;
constexpr Index kMostRows = 6;  // that a tile reads
constexpr Index kMostDepth = 16;
constexpr Index kLeastChannels = 32;  // transforms of fewer cost more than they save
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

inline Index even_part(Index size, Index most) {
  return ceil_div(size, ceil_div(size, std::clamp<Index>(most, 1, size)));
}

/// The axes of a problem that its transforms see as d, h and w.
using Order = std::array<std::size_t, 3>;

inline Operands in_order(Operands o, const Order& order) {
  for (View* v : {&o.x, &o.w, &o.y}) {
    const View from = *v;
    for (std::size_t a = 0; a < 3; ++a)
      v->size[2 + a] = from.size[2 + order[a]], v->stride[2 + a] = from.stride[2 + order[a]];
  }
  return o;
}
inline PassSpec in_order(PassSpec spec, const Order& order) {
  spec.operands = in_order(spec.operands, order);
  Problem& p = spec.problem;
  for (Index3* sizes : {&p.x, &p.w, &p.y, &p.stride, &p.dilation, &p.pad_before}) {
    const Index3 from = *sizes;
    for (std::size_t a = 0; a < 3; ++a) (*sizes)[a] = from[order[a]];
  }
  return spec;
}

/// What a pass is made with; `direct` takes the axes as they are.
template <class T>
struct Choice {
  const KernelSet<T>& kernels;
  const WinogradKernels<T>& transforms;
  Order order;
  std::shared_ptr<const Pass> direct;
};

template <class T>
class Tiled : public GuardedPass {
 public:
  Tiled(const PassSpec& spec, const Choice<T>& choice)
      : GuardedPass(in_order(spec, choice.order), choice.direct),
        kernels_(choice.kernels),
        transforms_(choice.transforms),
        order_(choice.order),
        tile_{transforms_.tile[0], transforms_.tile[1]},
        border_{transforms_.window[0] - 1, transforms_.window[1] - 1},
        frequencies_((tile_[0] + border_[0]) * (tile_[1] + border_[1])),
        depth_(spec_.problem.w[0]),
        taps_(spec_.problem.w[1] * spec_.problem.w[2]),
        lanes_(kernels_.lanes) {}
  // Measured against it, estimates were a tenth too hopeful on average.
  double nanoseconds() const override { return 1.1 * relative_time() * direct_nanoseconds(spec_, kernels_.lanes); }
  Index3 tile() const override { return {step_.d, 2 * step_.h, 2 * step_.w}; }

 protected:
  // To that of a direct pass.
  virtual double relative_time() const = 0;
  // Cuts the outputs of n images into boxes of about so many tiles, source planes shared by neighbours along d.
  void cut(Index n, const Index3& out, Index tiles) {
    const Index size[4] = {n, out[0], ceil_div(out[1], tile_[0]), ceil_div(out[2], tile_[1])};
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
  // The pixels that the tiles of a box read of a source image, or their outputs.
  Window window(const View& v, const Box& b, bool source) const {
    Window s;
    const Index3 first = source ? first_ : Index3{};
    const Index lo[5] = {b.n0, 0, b.d0 + first[0], tile_[0] * b.h0 + first[1], tile_[1] * b.w0 + first[2]};
    const Index extent[5] = {b.n, 0, b.d + source * (depth_ - 1), tile_[0] * b.h + source * border_[0],
                             tile_[1] * b.w + source * border_[1]};
    for (std::size_t a = 0; a < 5; ++a) {
      s.at[a] = std::clamp<Index>(lo[a], 0, v.size[a]);
      s.size[a] = std::clamp<Index>(lo[a] + extent[a], s.at[a], v.size[a]) - s.at[a];
    }
    return s;
  }
  // Elements for one vector of channels of the largest window, and a row of zeros.
  Index window_elements() const {
    const Index row = tile_[1] * step_.w + border_[1];
    return (step_.n * (step_.d + depth_ - 1) * (tile_[0] * step_.h + border_[0]) + 1) * row * lanes_;
  }

  // Brings in channels [c, c + live) of a box and calls f(rows, first column, width, tile) for every row of its tiles.
  // Returns whether transforms may mix the values.
  template <class F>
  bool each_row(const View& image, Index c, Index live, const Box& b, bool source, T* pixels, F&& f) const {
    const Window s = window(image, b, source);
    const Index3 first = source ? first_ : Index3{};
    const Index height = tile_[0] + source * border_[0], planes = b.d + source * (depth_ - 1);
    const Index row = s.size[4] * lanes_, plane = s.size[3] * row, volume = s.size[2] * plane;
    T* const zeros = pixels + s.size[0] * volume;
    std::fill(live < lanes_ ? pixels : zeros, zeros + row, T{});
    Window from = s;
    from.at[1] = c, from.size[1] = live;
    copy_in(kernels_, pixels, {volume, 1, plane, row, lanes_}, image.at(from.at, from.size));
    Index tile = 0;
    for (Index n = 0; n < b.n; ++n)
      for (Index d = b.d0 + first[0] - s.at[2]; d < b.d0 + first[0] - s.at[2] + planes; ++d)
        for (Index h = 0; h < b.h; ++h, tile += b.w) {
          const T* rows[kMostRows];
          for (Index i = 0; i < height; ++i) {
            const Index y = tile_[0] * (b.h0 + h) + first[1] + i - s.at[3];
            const bool inside = d >= 0 && d < s.size[2] && y >= 0 && y < s.size[3];
            rows[i] = inside ? pixels + n * volume + d * plane + y * row : zeros;
          }
          f(rows, tile_[1] * b.w0 + first[2] - s.at[4], s.size[4], tile);
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

  std::string name() const {
    std::ostringstream s;
    s << "F(" << tile_[0] << 'x' << tile_[1] << ", " << border_[0] + 1 << 'x' << border_[1] + 1 << ')';
    return s.str();
  }
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
  // Six points along an axis, not four.
  bool mixes_more() const { return tile_[1] + border_[1] > 4; }
  // A number for F(2x2, 3x3), and one for F(4x4, 3x3).
  struct Cycles {
    double small, large;
  };
  double of_tile(Cycles c) const { return mixes_more() ? c.large : c.small; }
  // Time of the products, relative to a direct pass: tiles beyond the outputs, and calls so short that writing results
  // shows (`writing`, in products). Here and below: estimated from counts and adjusted by hand to one core of a
  // Sapphire Rapids, AVX-512 float32. Too hopeful by 20 to 30 % for F(2x2), 7x7 images of 512 channels and 32 channels
  // on wide images; within 15 % of seventeen shapes for F(4x4).
  double products(const Index3& out, Index call, Cycles writing) const {
    const double all = static_cast<double>(frequencies_ * size_[2] * size_[3]);
    return all / static_cast<double>(out[1] * out[2] * taps_) * (1 + of_tile(writing) / static_cast<double>(call));
  }
  // Cycles of a tile and vector, relative to a direct pass, which has two products a cycle for each channel on the
  // other side.
  double relative(Cycles cycles, Index of) const {
    const double part = mixes_more() ? static_cast<double>(frequencies_) / 36 : 1;
    return of_tile(cycles) * part * 2 / static_cast<double>(tile_[0] * tile_[1] * taps_ * of);
  }

  const KernelSet<T>& kernels_;
  const WinogradKernels<T>& transforms_;
  const Order order_;
  const std::array<Index, 2> tile_, border_;  // along h and w: outputs of a tile, pixels more that it reads
  const Index frequencies_, depth_, taps_, lanes_;
  Index3 first_{};  // tap u of the transform reads source position destination + first + u
  Box step_{};
  Index size_[4]{}, count_[4]{}, boxes_ = 1, source_tiles_ = 1;
};

/// Of class P; null where it does not fit the budget.
template <class P, class T>
std::unique_ptr<GuardedPass> make_planned(const PassSpec& spec, const Choice<T>& choice) {
  auto pass = std::make_unique<P>(spec, choice);
  if (!pass->plan()) return nullptr;
  return pass;
}
template <class T>
std::unique_ptr<GuardedPass> make_weights(const PassSpec& spec, const Choice<T>& choice);

}  // namespace convbwd::winograd
