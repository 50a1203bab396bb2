// Panels, products and results: see gather_weights.h.
#include <utility>

#include "engine/gather_weights.h"
#include "format/copy.h"

namespace convbwd {
namespace {

// Elements of rows that are fetched ahead of those that become columns, from memory: images of 512 channels 28x28,
// every second row, take 0.8 of the time; with half and twice as many as long (Zen 5).
constexpr Index kRowsAhead = 64;

}  // namespace

// The columns of a panel: what the windows of positions [at, at + size) of y read of some channels. `step` is that of
// the panel along each axis.
template <class T>
void GatherWeights<T>::pack_windows(const View& x, const Block& b, const Index5& at, const Index5& size,
                                    const Index5& step, const Slot& s) const {
  const Problem& p = spec_.problem;
  const Index c0 = b.n0 / p.taps(), channels = (b.n0 + b.n - 1) / p.taps() + 1 - c0;
  const Index3 covered = this->covered({size[2], size[3], size[4]});
  Index5 first{at[0], b.g * p.ci + c0}, extent{size[0], channels, covered[0], covered[1], covered[2]};
  for (std::size_t a = 0; a < 3; ++a) first[a + 2] = at[a + 2] * p.stride[a] - p.pad_before[a];
  View image;
  if (padded_) {
    image.data = s.windows, image.dtype = compute_dtype<T>, image.size = extent, image.stride = dense_strides(extent);
    std::fill_n(s.windows, extent[0] * image.stride[0], T{});
    T* to = s.windows;
    for (std::size_t a = 2; a < 5; ++a) {
      const Index begin = std::clamp<Index>(first[a], 0, x.size[a]);
      const Index end = std::clamp<Index>(first[a] + extent[a], begin, x.size[a]);
      to += (begin - first[a]) * image.stride[a];
      first[a] = begin, extent[a] = end - begin;
    }
    copy_in(kernels_, to, image.stride, x.at(first, extent));
  } else {
    image = x.at(first, extent);
  }
  if (p.taps() == 1 && image.stride[4] != 1) {  // of channels that lie side by side, say
    for (std::size_t a = 0; a < 3; ++a) image.size[a + 2] = size[a + 2], image.stride[a + 2] *= p.stride[a];
    return copy_in(kernels_, s.panel, step, image);
  }
  // Where the columns are; channels and taps follow each other.
  std::ptrdiff_t row[kMaxColumns];
  Index3 tap = tap_at(p, b.n0 % p.taps());
  for (Index j = 0, c = 0; j < b.n; ++j) {
    row[j] = image.offset({0, c, tap[0] * p.dilation[0], tap[1] * p.dilation[1], tap[2] * p.dilation[2]});
    for (std::size_t a = 3; a-- > 0 && ++tap[a] == p.w[a];) {
      tap[a] = 0;
      if (a == 0) ++c;
    }
  }
  const auto type = static_cast<int>(image.dtype);
  Index5 move = image.stride;  // from a position of y to the next
  for (std::size_t a = 0; a < 3; ++a) move[a + 2] *= p.stride[a];
  if (packs_pieces(p) || image.stride[4] != 1) {
    // Axes of positions, the one along which pieces are copied together last.
    std::array<std::size_t, 4> axis{0, 2, 3, 4};
    std::swap(*std::max_element(axis.begin(), axis.end(), [&](auto i, auto j) { return size[i] < size[j]; }), axis[3]);
    for (Index column = b.n0, count = 0; column < b.n0 + b.n; column += count) {
      count = std::min(p.w[2] - column % p.w[2], b.n0 + b.n - column);
      const Index from = row[column - b.n0];
      for (Index i = 0; i < size[axis[0]]; ++i)
        for (Index j = 0; j < size[axis[1]]; ++j)
          for (Index k = 0; k < size[axis[2]]; ++k)
            kernels_.pad[type](
                s.panel + column - b.n0 + i * step[axis[0]] + j * step[axis[1]] + k * step[axis[2]], step[axis[3]],
                advance(image.data, image.dtype, from + i * move[axis[0]] + j * move[axis[1]] + k * move[axis[2]]),
                move[axis[3]], image.stride[4] * p.dilation[2], size[axis[3]], 0, count, 0, 0);
    }
    return;
  }
  const Index length = (size[4] - 1) * p.stride[2] + 1;
  const Fetch fetch{from_memory(x) && !padded_ ? ceil_div(kRowsAhead, length) * move[3] : 0};
  std::array<T*, kMostStride> table{};  // positions between those of y are left out
  for (Index n = 0; n < size[0]; ++n)
    for (Index d = 0; d < size[2]; ++d)
      for (Index h = 0; h < size[3]; ++h) {
        table[0] = s.panel + n * step[0] + d * step[2] + h * step[3];
        kernels_.transpose[type](table.data(), p.stride[2], step[4],
                                 advance(image.data, image.dtype, n * move[0] + d * move[2] + h * move[3]), row, 1,
                                 static_cast<int>(b.n), static_cast<int>(b.n), length, fetch);
      }
}

// Adds one chunk of the reduction to the tiles, laid out as [input channel][tap][nr].
template <class T>
void GatherWeights<T>::chunk(const Operands& o, const Block& b, Index number, const Slot& s, T* tiles,
                             bool accumulate) const {
  const Index nr = kernel(b.n).nr;
  Index4 begin, extent;
  for (std::size_t i = 4; i-- > 0; number /= chunks_[i]) {
    begin[i] = number % chunks_[i] * chunk_[i];
    extent[i] = std::min(chunk_[i], size_[i] - begin[i]);
  }
  const View& packed = swap_ ? o.x : o.y;
  Index5 at{0, b.g * cn_ + b.n0, 0, 0, 0}, size{0, b.n, 0, 0, 0}, step{0, 1, 0, 0, 0};
  Index panel_step = nr;
  for (std::size_t i = 4; i-- > 0; panel_step *= extent[i]) {
    const auto axis = static_cast<std::size_t>(order_[i] == 0 ? 0 : order_[i] + 1);
    at[axis] = begin[i], size[axis] = extent[i], step[axis] = panel_step;
  }
  if (b.n < nr) std::fill(s.panel, s.panel + panel_step, T{});
  if (unrolls_)
    pack_windows(packed, b, at, size, step, s);
  else
    copy_in(kernels_, s.panel, step, packed.at(at, size));
  for (Index c = 0; c < b.m; c += copy_rows_) {
    Block part = b;
    part.m0 += c, part.m = std::min(copy_rows_, b.m - c);
    multiply(o, part, begin, extent, s, tiles + c * b.taps * b.pitch, accumulate);
  }
}

// The part of an image that a chunk reads, copied or where it is.
template <class T>
typename GatherWeights<T>::Source GatherWeights<T>::source(const View& image, const Block& b, const Index4& begin,
                                                           const Index4& extent, const Slot& s) const {
  const Problem& p = problem_;
  Source x{static_cast<const T*>(image.data) + (b.g * cm_ + b.m0) * image.stride[1], image.stride, {}, 0};
  if (copy_) {
    Index5 from{0, b.g * cm_ + b.m0, 0, 0, 0}, region{0, b.m, 1, 1, 1};
    for (std::size_t i = 0; i < 4; ++i) {
      const auto axis = static_cast<std::size_t>(order_[i]);
      if (axis == 0) {
        from[0] = begin[i], region[0] = extent[i];
        continue;
      }
      const AxisSizes a = axis_sizes(p, axis - 1);
      const Index lo = std::clamp<Index>(begin[i] * a.stride - a.pad, 0, a.x);
      const Index hi =
          std::clamp<Index>((begin[i] + extent[i] - 1) * a.stride - a.pad + (a.kernel - 1) * a.dilation + 1, lo, a.x);
      from[axis + 1] = lo, region[axis + 1] = hi - lo;
    }
    x.stride = {b.m * copy_plane_, copy_plane_, region[3] * region[4], region[4], 1};
    for (std::size_t i = 0; i < 5; ++i) x.origin -= i == 1 ? 0 : from[i] * x.stride[i];
    copy_in(kernels_, s.copy, x.stride, image.at(from, region));
    x.data = s.copy;
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto axis = static_cast<std::size_t>(order_[i]);
    x.move[i] = axis == 0 ? x.stride[0] : x.stride[axis + 1] * p.stride[axis - 1];
    if (axis > 0) x.origin -= p.pad_before[axis - 1] * x.stride[axis + 1];
  }
  return x;
}

// Runs of the chunk's outputs that read the taps of a class; none where it has no such output.
template <class T>
Index GatherWeights<T>::list_segments(const Source& x, const Class& c, const Index4& begin, const Index4& extent,
                                      Index nr, Segment* segments) const {
  Index4 lo = begin, hi;
  for (std::size_t i = 0; i < 4; ++i) {
    hi[i] = begin[i] + extent[i];
    if (order_[i] > 0) {
      const Range& outputs = c[static_cast<std::size_t>(order_[i] - 1)]->outputs;
      lo[i] = std::max(lo[i], outputs.begin), hi[i] = std::min(hi[i], outputs.end);
    }
    if (lo[i] >= hi[i]) return 0;
  }
  // Axes from `joined` on lie in the panel and in the image as one run.
  std::size_t joined = 3;
  Index length = hi[3] - lo[3];
  for (Index whole = extent[3]; joined > 0 && length == whole && x.move[joined - 1] == whole * x.move[3];) {
    --joined;
    length = whole * (hi[joined] - lo[joined]);
    whole *= extent[joined];
  }
  Index4 runs{1, 1, 1, 1}, pitch;
  Segment first{x.origin, 0, length};
  for (std::size_t i = 4; i-- > 0;) {
    pitch[i] = i == 3 ? nr : pitch[i + 1] * extent[i + 1];
    first.x += lo[i] * x.move[i], first.b += (lo[i] - begin[i]) * pitch[i];
    if (i < joined) runs[i] = hi[i] - lo[i];
  }
  Index count = 0;
  for (Index i = 0; i < runs[0]; ++i)
    for (Index j = 0; j < runs[1]; ++j)
      for (Index k = 0; k < runs[2]; ++k)
        segments[count++] = {first.x + i * x.move[0] + j * x.move[1] + k * x.move[2],
                             first.b + i * pitch[0] + j * pitch[1] + k * pitch[2], length};
  return count;
}

// The taps of a class that are among those of a task.
template <class T>
Index GatherWeights<T>::list_taps(const Source& x, const Class& c, const Block& b, Tap* taps) const {
  const Problem& p = problem_;
  Index listed = 0;
  for (Index d = c[0]->taps.begin; d < c[0]->taps.end; ++d)
    for (Index h = c[1]->taps.begin; h < c[1]->taps.end; ++h)
      for (Index w = c[2]->taps.begin; w < c[2]->taps.end; ++w) {
        const Index tap = (d * p.w[1] + h) * p.w[2] + w, t = (swap_ ? p.taps() - 1 - tap : tap) - b.t0;
        if (t < 0 || t >= b.taps) continue;
        taps[listed++] = {
            d * p.dilation[0] * x.stride[2] + h * p.dilation[1] * x.stride[3] + w * p.dilation[2] * x.stride[4],
            t * b.pitch};
      }
  return listed;
}

template <class T>
void GatherWeights<T>::multiply(const Operands& o, const Block& b, const Index4& begin, const Index4& extent,
                                const Slot& s, T* tiles, bool accumulate) const {
  const GatherKernel<T>& kernel = this->kernel(b.n);
  const Source x = source(swap_ ? o.y : o.x, b, begin, extent, s);
  const Index channel = x.stride[1], results = b.taps * b.pitch;
  const bool tall = kernel.mr > kPointers;
  const bool meet = tall && meet_in_cache(channel * static_cast<Index>(sizeof(T)));
  const Index together = tall ? 2 : 1;  // channels, whose rows are pairs for the kernel
  std::ptrdiff_t row[kMaxTileRows], crow[kMaxTileRows];
  for (const TapClass& cd : classes_[0])
    for (const TapClass& ch : classes_[1])
      for (const TapClass& cw : classes_[2]) {
        const Class of_axes{&cd, &ch, &cw};
        const Index count = list_segments(x, of_axes, begin, extent, kernel.nr, s.segments);
        if (count == 0 && accumulate) continue;
        const Index listed = list_taps(x, of_axes, b, s.taps);
        const auto run = [&](Index rows, Index c) {
          kernel.run(static_cast<int>(rows), x.data + c * channel, row, x.move[3], s.segments, count, s.panel,
                     kernel.nr, tiles + c * results, crow, accumulate);
        };
        if (listed == 1) {  // rows of the next channels are as far apart as these
          // Lines of more channels whose planes meet push each other out of the cache (16 channels 32x32: 1.4 times as
          // long).
          const Index most = std::min<Index>(b.m, meet ? kPointers : kMaxTileRows);
          for (Index i = 0; i < most; ++i) row[i] = s.taps->row + i * channel, crow[i] = s.taps->place + i * results;
          for (Index c = 0; c < b.m; c += most) run(std::min(most, b.m - c), c);
          continue;
        }
        Index rows = 0;
        for (Index c0 = 0; c0 < b.m; c0 += together)
          for (const Tap* tap = s.taps; tap < s.taps + listed; ++tap)
            for (Index c = c0; c < std::min(c0 + together, b.m); ++c) {
              row[rows] = c * channel + tap->row;
              crow[rows] = c * results + tap->place;
              if (++rows == kMaxTileRows) run(std::exchange(rows, 0), 0);
            }
        if (rows > 0) run(rows, 0);
      }
}

template <class T>
void GatherWeights<T>::sum(const Operands& o, const Block& b, const Range& chunks, const Slot& s, T* tiles) const {
  for (Index i = chunks.begin; i < chunks.end; ++i) chunk(o, b, i, s, tiles, i > chunks.begin);
}

template <class T>
void GatherWeights<T>::store(const Operands& o, const Block& b, const T* tiles, T* lines) const {
  if (!unrolls_ || rows_of_taps(o.w))
    return store_weights(kernels_, unrolls_ ? problem_ : spec_.problem, weights(o, b), swap_ ? 0 : 1,
                         {b.m, b.n, b.t0, b.taps, b.pitch}, tiles, lines);
  const Problem& p = spec_.problem;
  const View w = o.w.at({b.g * p.co + b.m0, 0, 0, 0, 0}, o.w.size);
  std::array<Index, kMaxColumns> place;  // of each column in a row
  for (Index j = b.n0; j < b.n0 + b.n; ++j) {
    const Index3 tap = tap_at(p, j % p.taps());
    place[static_cast<std::size_t>(j - b.n0)] = w.offset({0, j / p.taps(), tap[0], tap[1], tap[2]});
  }
  for (Index i = 0; i < b.m; ++i)
    for (Index j = 0; j < b.n; ++j) {
      const Index at = i * w.stride[0] + place[static_cast<std::size_t>(j)];
      if (w.dtype == compute_dtype<T>)
        static_cast<T*>(w.data)[at] = tiles[i * b.pitch + j];
      else
        store_row(kernels_, advance(w.data, w.dtype, at), w.dtype, 1, tiles + i * b.pitch + j, 1);
    }
}

#define CONVBWD_INSTANTIATE(T)                                                                             \
  template void GatherWeights<T>::sum(const Operands&, const Block&, const Range&, const Slot&, T*) const; \
  template void GatherWeights<T>::store(const Operands&, const Block&, const T*, T*) const;
CONVBWD_INSTANTIATE(float)
CONVBWD_INSTANTIATE(double)

}  // namespace convbwd
