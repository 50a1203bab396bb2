// Unknown x of few pixels, where these meet many weights, or of few channels: columns of a product are pairs of a
// channel of x and a tap, as they lie in the rows of w, which are read in place instead of transposed. Rows are pixels
// of y, and the sum runs over the channels of y. What each pixel adds to the places that its window covers (im2col
// backwards) is transposed to vectors along channels and added there, or, of few channels, added in rows of the window
// to rows of the image; what falls into padding is left out.
#include <sstream>

#include "engine/ahead.h"
#include "engine/estimate.h"
#include "engine/lanes.h"

namespace convbwd {
namespace {

constexpr Index kMostPixels = 1024;         // of an image: more are worth transposing the weights
constexpr Index kMostPlaces = 32 << 10;     // of an image of x, in vectors: two megabytes
constexpr Index kMostTaps = 16 << 10;       // products of a channel and some pixels stay in L2
constexpr Index kProductBytes = 256 << 10;  // of a round: stay in L2 beside the weights
constexpr Index kMostParts = 8;             // of an image
constexpr Index kReduction = 256;  // products of a chunk, whose rows of weights may meet in a set of the caches
constexpr Index kPanelElements = 64 << 10;  // of weights that are copied, with whole channels
constexpr Index kFewPixels = 128;           // for which weights are not worth copying
constexpr Index kCutPixels = 12;            // of a round that a part cuts through: fewer rows leave the kernels waiting
constexpr double kLittle = 1 << 18;         // products of a problem that threads do not share: 5 us

template <class T>
class Columns final : public EstimatedPass {
 public:
  Columns(const PassSpec& spec, const KernelSet<T>& kernels) : EstimatedPass(spec), kernels_(kernels) {}
  bool plan();
  double nanoseconds() const override { return nanoseconds_; }
  std::string explain() const override;
  Sums summation() const override { return sums_of(SumKind::columns, chunk_, 0, 0); }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  struct Slot {
    T *products, *panel, *image, *pixel, *sums, *bias, *flat, **table;
    Index bytes;
  };
  // Pixels [first, last) of images [n0, n0 + images), and channels [c0, c0 + channels) of a group, with some taps along
  // the axis that is shared.
  struct Round {
    Index g, c0, channels, n0, images, first, last;
    Range taps;
  };
  // Positions of an image, all sums of which a task forms.
  struct Box {
    Index3 begin, size;
  };
  struct Tiling {
    Index channels = 1, images = 1, pixels = 1, parts = 1;
    double time = 0;
  };

  void lay_out(const Operands& o);
  bool configure(const Operands& operands, const Tiling& tiling);
  Tiling search(Index threads);
  double added(Index channels, bool in_rows) const;
  double estimate() const;
  Slot carve(Carver carver) const;
  void multiply(const Operands& o, const Round& r, const Slot& s) const;
  void add(const Operands& o, const Round& r, const Slot& s) const;
  void add_rows(const Round& r, const Box& own, const Slot& s) const;
  void run_rows(const Operands& o, Round r, Index part, const Slot& s) const;

  Index volume() const { return spec_.problem.y_plane(); }
  Index3 position(Index pixel) const {
    const Index3& y = spec_.problem.y;
    return {pixel / (y[1] * y[2]), pixel / y[2] % y[1], pixel % y[2]};
  }
  // Of a position of y: the taps that are in the image, those that are in a part of it, and where one lies.
  Range taps_inside(std::size_t a, Index y) const { return inside_[a][static_cast<std::size_t>(y)]; }
  Range taps_inside(const Box& own, std::size_t a, Index y) const {
    const Range all = taps_inside(a, y);
    if (a != axis_) return all;
    const Index step = spec_.problem.dilation[a], first = own.begin[a] - place(a, y, 0);
    const Index begin = std::max(all.begin, ceil_div(first, step));
    return {begin, std::max(begin, std::min(all.end, ceil_div(first + own.size[a], step)))};
  }
  Index place(std::size_t a, Index y, Index tap) const {
    const Problem& p = spec_.problem;
    return y * p.stride[a] - p.pad_before[a] + tap * p.dilation[a];
  }
  Index pitch(Index channels) const { return odd_multiple(channels * spec_.problem.taps(), kernels_.lanes); }
  Index width() const { return vectors_ * kernels_.lanes; }

  const KernelSet<T>& kernels_;
  bool in_rows_ = false;  // sums are rows of the image, else vectors along channels
  // The outermost axis along which windows move: tasks may have a part of x along it each.
  std::size_t axis_ = 0;
  Index parts_ = 1;
  bool copies_y_ = false, copies_w_ = false;
  int vectors_ = 1;                                           // of a block of columns
  Index chunk_ = 1, channels_ = 1, images_ = 1, pixels_ = 1;  // of a round: some images, or pixels of one
  Index copy_plane_ = 1, panel_row_ = 1, panel_ = 0;
  double nanoseconds_ = 0;
  std::array<std::vector<Range>, 3> inside_;  // taps_inside()
};

// What the formats of the operands allow to do in place.
template <class T>
void Columns<T>::lay_out(const Operands& o) {
  const bool rows = rows_of_taps(o.w);
  copies_y_ = o.y.dtype != compute_dtype<T> || !o.y.plain();
  // Rows that meet in the cache are read again for each tile: copied, 256 to 768 channels, patches of 2x2, one image of
  // 49 pixels, take 0.7 to 0.85 of the time (Zen 3).
  const bool meet = narrow(kernels_) && meet_in_cache(o.w.stride[0] * static_cast<Index>(sizeof(T)));
  copies_w_ = images_ * pixels_ > kFewPixels || meet || o.w.dtype != compute_dtype<T> || !rows;
  panel_ = chunk_ * (!copies_w_ ? kernels_.lanes : rows ? width() : panel_row_) + kernels_.lanes;
}

template <class T>
typename Columns<T>::Slot Columns<T>::carve(Carver carver) const {
  const Problem& p = spec_.problem;
  const Index lanes = kernels_.lanes, taps = p.taps();
  Slot s{};
  s.products = carver.take<T>(images_ * pixels_ * pitch(channels_));
  s.panel = carver.take<T>(panel_);
  if (copies_y_) s.image = carver.take<T>(images_ * chunk_ * copy_plane_);
  if (in_rows_) {
    s.sums = carver.take<T>(channels_ * ceil_div(p.x[axis_], parts_) * (p.x_plane() / p.x[axis_]));
    s.bytes = carver.used();
    return s;
  }
  s.pixel = carver.take<T>(taps * lanes);
  s.sums = carver.take<T>(p.x_plane() * lanes);
  s.bias = carver.take<T>(lanes);
  s.flat = carver.take<T>(spec_.operands.x.dtype == compute_dtype<T> ? 0 : p.x_plane() * lanes);
  s.table = carver.take<T*>(taps);
  s.bytes = carver.used();
  return s;
}

template <class T>
bool Columns<T>::configure(const Operands& operands, const Tiling& tiling) {
  const Problem& p = spec_.problem;
  channels_ = std::min(tiling.channels, p.ci);
  images_ = tiling.images;
  pixels_ = tiling.pixels;
  parts_ = tiling.parts;
  lay_out(operands);
  return share(p.groups * ceil_div(p.ci, channels_) * ceil_div(p.n, images_) * parts_, 0, carve({}).bytes);
}

// What is expected to take so many threads the least time; none where nothing fits the budget.
template <class T>
typename Columns<T>::Tiling Columns<T>::search(Index threads) {
  const Problem& p = spec_.problem;
  const Index lanes = kernels_.lanes;
  const Operands dense = densely(spec_.operands);
  Tiling best;
  const auto offer = [&](Index channels, Index images, Index pixels, Index parts = 1) {
    Tiling tiling{channels, images, pixels, parts, 0};
    const double bytes = static_cast<double>(images * pixels) * static_cast<double>(pitch(channels)) * sizeof(T);
    if (bytes > kProductBytes || !configure(dense, tiling)) return;
    const Index busy = std::min<Index>(threads, slots());
    tiling.time = estimate() * waits(busy) / static_cast<double>(busy);
    if (best.time == 0 || tiling.time < best.time) best = tiling;
  };
  if (in_rows_) {
    const auto offer_rounds = [&](Index channels, Index parts) {
      for (Index rounds = 1; rounds <= volume(); rounds *= 2) offer(channels, 1, ceil_div(volume(), rounds), parts);
    };
    offer_rounds(p.ci, 1);
    if (threads == 1 || p.n * p.groups >= kMinTasks || p.products() < kLittle) return best;
    if (p.ci % threads == 0) offer_rounds(p.ci / threads, 1);
    offer_rounds(p.ci, std::min(threads, p.x[axis_]));
    return best;
  }
  for (Index channels = std::max<Index>(1, lanes / 4); channels < p.ci + lanes && channels <= 4 * lanes;
       channels += std::min(channels, lanes)) {
    for (Index images = p.n; images > 1; images = ceil_div(images, 2)) offer(channels, images, volume());
    const Index most_parts = channels <= lanes ? std::min(kMostParts, volume()) : 1;  // sums are those of a vector
    for (Index parts = 1; parts <= most_parts; parts *= 2) offer(channels, 1, ceil_div(volume(), parts));
  }
  return best;
}

template <class T>
bool Columns<T>::plan() {
  const Problem& p = spec_.problem;
  const Index lanes = kernels_.lanes, taps = p.taps();
  if (spec_.unknown != Unknown::x || taps == 1 || p.depthwise()) return false;
  in_rows_ = p.dilation[2] == 1 && added(p.ci, true) < added(round_up(p.ci, lanes), false);
  if (!in_rows_ && (volume() > kMostPixels || p.x_plane() > kMostPlaces || taps > kMostTaps)) return false;
  while (axis_ < 2 && p.x[axis_] == 1 && p.w[axis_] == 1 && p.y[axis_] == 1) ++axis_;
  vectors_ = widest_block(kernels_, p.ci * taps);
  panel_row_ = channels_of(p, width()) * taps;
  // The chunk, which decides the order of sums, depends on the shape alone.
  const Index most = std::clamp<Index>(kPanelElements / panel_row_, 1, kReduction);
  chunk_ = spec_.sums[1] > 0 ? std::min(p.co, spec_.sums[1]) : even_part(p.co, most);
  copy_plane_ = odd_multiple(volume(), lanes);
  // Choices among passes do not depend on the number of threads, tilings do.
  const Tiling one = search(1);
  if (one.time == 0) return false;
  nanoseconds_ = one.time;
  configure(spec_.operands, spec_.threads > 1 ? search(spec_.threads) : one);
  for (std::size_t a = 0; a < 3; ++a)
    for (Index o = 0; o < p.y[a]; ++o) inside_[a].push_back(valid_taps(axis_sizes(p, a), o));
  return true;
}

// Nanoseconds of adding what a pixel has for so many channels.
template <class T>
double Columns<T>::added(Index channels, bool in_rows) const {
  const Problem& p = spec_.problem;
  const auto rows = static_cast<double>(p.w[0] * p.w[1]), columns = static_cast<double>(p.w[2]);
  return static_cast<double>(channels) *
         (in_rows ? rows * (4 + 0.25 * columns) : 0.31 * rows * columns + 20 / static_cast<double>(kernels_.lanes));
}

// Nanoseconds of one thread, in the measure of direct_nanoseconds: over 550 problems the choice of a pass for x costs
// 1.9 % on average (Zen 5, AVX-512).
template <class T>
double Columns<T>::estimate() const {
  const Problem& p = spec_.problem;
  const double products = count_of(p.n * volume(), p.co, column_cost(kernels_, channels_ * p.taps(), vectors_)) / 8 *
                          count_of(ceil_div(p.ci, channels_));
  const double weights = count_of(p.ci, p.taps(), p.co, ceil_div(p.n, images_), ceil_div(volume(), pixels_));
  const Index channels =  // that are added
      in_rows_ ? p.ci : ceil_div(p.ci, channels_) * round_up(channels_, kernels_.lanes);
  return 2200 + count_of(p.groups) *
                    (0.22 * products + 0.055 * weights + count_of(p.n * volume()) * added(channels, in_rows_) +
                     0.35 * count_of(p.n, channels, p.x_plane()));
}

template <class T>
void Columns<T>::multiply(const Operands& o, const Round& r, const Slot& s) const {
  const Problem& p = spec_.problem;
  const Index taps = p.taps(), all = r.channels * taps, pitch = this->pitch(channels_), lanes = kernels_.lanes;
  std::ptrdiff_t crow[kMaxTileRows], row[kMaxTileRows];
  for (Index i = 0, rows = r.images * (r.last - r.first); i < std::min(kMaxTileRows, rows); ++i) crow[i] = i * pitch;
  // Columns [first, last) of the taps of each channel; all of them are one run.
  const Index inner = axis_ == 0 ? taps / p.w[0] : axis_ == 1 ? p.w[2] : 1;
  const Index first = r.taps.begin * inner, last = r.taps.end * inner, run = last - first == taps ? all : taps;
  for (Index k0 = 0; k0 < p.co; k0 += chunk_) {
    const Index k = std::min(chunk_, p.co - k0);
    const View source = o.y.at({r.n0, r.g * p.co + k0, 0, 0, 0}, {r.images, k, p.y[0], p.y[1], p.y[2]});
    const T* y = static_cast<const T*>(source.data);
    Index5 stride = source.stride;
    if (copies_y_) {
      stride = {k * copy_plane_, copy_plane_, p.y[1] * p.y[2], p.y[2], 1};
      copy_in(kernels_, s.image, stride, source);
      y = s.image;
    }
    const Segment segment{0, 0, k};
    const auto block = [&](Index n0, Index n) {
      const Index c = n0 / taps, behind = (n0 + n - 1) / taps + 1;  // the block's channels
      const View w = o.w.at({r.g * p.co + k0, r.c0 + c, 0, 0, 0}, {k, behind - c, p.w[0], p.w[1], p.w[2]});
      const GatherKernel<T>& kernel = gathering_kernel(kernels_, n, chunk_ > kStraight);
      const T* b = s.panel;
      Index step = kernel.nr;
      if (!copies_w_ && n % lanes == 0) {
        b = static_cast<const T*>(w.data) + n0 % taps, step = w.stride[0];
      } else if (rows_of_taps(w)) {
        kernels_.pad[static_cast<int>(w.dtype)](s.panel, step, advance(w.data, w.dtype, n0 % taps), w.stride[0], 1, k,
                                                0, n, step - n, rows_ahead(o.w) * w.stride[0]);
      } else {
        copy_in(kernels_, s.panel, dense_strides(w.size), w);
        b += n0 % taps, step = (behind - c) * taps;
      }
      T* to = s.products + n0;
      int rows = 0;
      const auto flush = [&] {
        kernel.run(rows, y, row, stride[1], &segment, 1, b, step, to, crow, k0 > 0);
        to += rows * pitch, rows = 0;
      };
      for (Index i = 0; i < r.images; ++i)
        for (Index at = r.first; at < r.last; ++at) {
          if (rows == kMaxTileRows) flush();
          const auto [d, h, v] = position(at);
          row[rows++] = i * stride[0] + d * stride[2] + h * stride[3] + v * stride[4];
        }
      flush();
    };
    // In whole vectors, each of which is multiplied once: they may have columns of two channels.
    for (Index c = 0, n0 = 0, n = 0; c < all; c += run) {
      const Index end = run == all ? all : std::min(all, round_up(c + last, lanes));
      for (n0 = std::max(n0, (c + first) / lanes * lanes); n0 < end; n0 += n) {
        n = std::min(width(), end - n0);
        if (!copies_w_ && n > lanes) n -= n % lanes;  // the rest is copied
        block(n0, n);
      }
    }
  }
}

template <class T>
void Columns<T>::add(const Operands& o, const Round& r, const Slot& s) const {
  const Problem& p = spec_.problem;
  const Index lanes = kernels_.lanes, taps = p.taps(), pitch = this->pitch(channels_);
  const auto transpose = kernels_.transpose[static_cast<int>(compute_dtype<T>)];
  for (Index i = 0; i < taps; ++i) s.table[i] = s.pixel + i * lanes;
  for (Index c = 0; c < r.channels; c += lanes) {
    const Index count = std::min(lanes, r.channels - c), channel = r.g * p.ci + r.c0 + c;
    std::fill_n(s.bias, lanes, T{});
    if (o.bias.data) load_bias(kernels_, s.bias, o.bias, channel, count);
    const T* from = s.products + c * taps;
    for (Index i = 0; i < r.images; ++i) {
      if (r.first == 0)
        for (Index at = 0; at < p.x_plane(); ++at) std::copy_n(s.bias, lanes, s.sums + at * lanes);
      for (Index pixel = r.first; pixel < r.last; ++pixel, from += pitch) {
        transpose(s.table, taps, 0, from, nullptr, taps, static_cast<int>(count), static_cast<int>(lanes), taps, {});
        const Index3 at = position(pixel);
        const Range td = taps_inside(0, at[0]), th = taps_inside(1, at[1]), tw = taps_inside(2, at[2]);
        for (Index kd = td.begin; kd < td.end; ++kd)
          for (Index kh = th.begin; kh < th.end; ++kh) {
            T* to = s.sums +
                    ((place(0, at[0], kd) * p.x[1] + place(1, at[1], kh)) * p.x[2] + place(2, at[2], tw.begin)) * lanes;
            const T* part = s.pixel + ((kd * p.w[1] + kh) * p.w[2] + tw.begin) * lanes;
            for (Index kw = tw.begin; kw < tw.end; ++kw, to += p.dilation[2] * lanes, part += lanes)
              for (Index l = 0; l < lanes; ++l) to[l] += part[l];
          }
      }
      if (r.last == volume()) store_lanes(kernels_, lanes_of(o.x, r.n0 + i, channel, count), s.sums, s.flat);
    }
  }
}

// The same in rows of a part of the image.
template <class T>
void Columns<T>::add_rows(const Round& r, const Box& own, const Slot& s) const {
  const Problem& p = spec_.problem;
  const Index pitch = this->pitch(channels_);
  for (Index first = r.first, last; first < r.last; first = last) {  // pixels of a row of y
    const Index3 at = position(first);
    last = std::min(r.last, first + p.y[2] - at[2]);
    const Range td = taps_inside(own, 0, at[0]), th = taps_inside(own, 1, at[1]);
    for (Index c = 0; c < r.channels; ++c)
      for (Index kd = td.begin; kd < td.end; ++kd)
        for (Index kh = th.begin; kh < th.end; ++kh) {
          const Index d = place(0, at[0], kd) - own.begin[0], h = place(1, at[1], kh) - own.begin[1];
          T* const row = s.sums + ((c * own.size[0] + d) * own.size[1] + h) * own.size[2];
          const T* from = s.products + (first - r.first) * pitch + ((c * p.w[0] + kd) * p.w[1] + kh) * p.w[2];
          for (Index w = at[2]; w < at[2] + last - first; ++w, from += pitch) {
            const Range tw = taps_inside(own, 2, w);
            T* const to = row + place(2, w, tw.begin) - own.begin[2];
            for (Index k = tw.begin; k < tw.end; ++k) to[k - tw.begin] += from[k];
          }
        }
  }
}

// A part of an image, in rows. Pixels come in order, whatever parts and rounds there are.
template <class T>
void Columns<T>::run_rows(const Operands& o, Round r, Index part, const Slot& s) const {
  const Problem& p = spec_.problem;
  Box own{{}, p.x};
  const Range places = piece_of(p.x[axis_], part, parts_);
  own.begin[axis_] = places.begin, own.size[axis_] = places.size();
  const Index plane = own.size[0] * own.size[1] * own.size[2], channel = r.g * p.ci + r.c0;
  for (Index c = 0; c < r.channels; ++c) {
    T bias{};
    if (o.bias.data) load_bias(kernels_, &bias, o.bias, channel + c, 1);
    std::fill_n(s.sums + c * plane, plane, bias);
  }
  const Index slice = volume() / p.y[axis_];  // pixels of a position along the axis
  for (; r.first < volume(); r.first = r.last) {
    // Rounds have all taps of any of their pixels: where the part cuts through windows short ones lose less.
    const auto cuts = [&](Index y) { return taps_inside(own, axis_, y).size() < taps_inside(axis_, y).size(); };
    const Index y = r.first / slice;
    const bool cut = cuts(y);
    r.last = std::min(r.first + (cut ? std::min(pixels_, std::max(slice, kCutPixels)) : pixels_), volume());
    r.taps = {p.w[axis_], 0};
    for (Index i = y; i * slice < r.last; ++i) {
      if (!cut && cuts(i)) r.last = i * slice;
      if (const Range taps = taps_inside(own, axis_, i); i * slice < r.last && taps.size() > 0)
        r.taps = {std::min(r.taps.begin, taps.begin), std::max(r.taps.end, taps.end)};
    }
    if (r.taps.size() <= 0) continue;
    multiply(o, r, s);
    add_rows(r, own, s);
  }
  const T* from = s.sums;
  for (Index c = 0; c < r.channels; ++c)
    for (Index d = own.begin[0]; d < own.begin[0] + own.size[0]; ++d)
      for (Index h = own.begin[1]; h < own.begin[1] + own.size[1]; ++h, from += own.size[2]) {
        const Index at = o.x.offset({r.n0, channel + c, d, h, own.begin[2]});
        store_row(kernels_, advance(o.x.data, o.x.dtype, at), o.x.dtype, o.x.stride[4], from, own.size[2]);
      }
}

template <class T>
void Columns<T>::run(const Operands& o, std::byte* workspace) const {
  const Problem& p = spec_.problem;
  const Index blocks = ceil_div(p.ci, channels_), batches = ceil_div(p.n, images_);
  parallel_for(tasks_, slots(), [&](Index i, int number) {
    const Slot s = carve(slot(workspace, number));
    const Index all = i / parts_, c0 = all / batches % blocks * channels_, n0 = all % batches * images_;
    Round r{all / batches / blocks, c0, std::min(channels_, p.ci - c0), n0, std::min(images_, p.n - n0), 0, 0,
            {0, p.w[axis_]}};
    if (in_rows_) return run_rows(o, r, i % parts_, s);
    for (; r.first < volume(); r.first = r.last) {
      r.last = std::min(r.first + pixels_, volume());
      multiply(o, r, s);
      add(o, r, s);
    }
  });
}

template <class T>
std::string Columns<T>::explain() const {
  std::ostringstream s;
  s << "columns x (" << kernels_.name << ' ' << kernels_.gather[vectors_ - 1].name << "): " << pixels_ << " pixels of "
    << images_ << " images at a time, chunks of " << chunk_ << " of " << spec_.problem.co << " source channels, "
    << channels_ << " of " << spec_.problem.ci << " channels a task" << (in_rows_ ? ", added in rows" : "")
    << "; image " << (copies_y_ ? "copied" : "in place") << ", weights " << (copies_w_ ? "copied" : "in place") << "; "
    << effort();
  return s.str();
}

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_columns(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make_planned<Columns<T>>(spec, kernels);
}
template std::unique_ptr<EstimatedPass> make_columns(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<EstimatedPass> make_columns(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd
