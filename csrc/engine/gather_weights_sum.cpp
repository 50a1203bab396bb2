// Panels, products and results: see gather_weights.h.
#include "engine/gather_weights.h"
#include "format/copy.h"

namespace convbwd {

template <class T>
void GatherWeights<T>::pack_patches(const View& x, const Block& b, const Index4& begin, const Index4& extent,
                                    const Index5& step, T* panel) const {
  const Problem& p = spec_.problem;
  Index5 at{}, size{1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto axis = static_cast<std::size_t>(order_[i] == 0 ? 0 : order_[i] + 1);
    at[axis] = begin[i] * (axis == 0 ? 1 : p.stride[axis - 2]), size[axis] = extent[i];
  }
  const auto pad = kernels_.pad[static_cast<int>(x.dtype)];
  const Index apart = p.stride[2] * x.stride[4];
  for (Index column = b.n0, count = 0; column < b.n0 + b.n; column += count) {
    const Index3 tap = tap_at(p, column % p.taps());
    count = std::min(p.w[2] - tap[2], b.n0 + b.n - column);
    const View pieces =
        x.at({at[0], b.g * p.ci + column / p.taps(), at[2] + tap[0], at[3] + tap[1], at[4] + tap[2]}, size);
    for (Index n = 0; n < size[0]; ++n)
      for (Index d = 0; d < size[2]; ++d)
        for (Index h = 0; h < size[3]; ++h) {
          T* const to = panel + column - b.n0 + n * step[0] + d * step[2] + h * step[3];
          const Index from = pieces.offset({n, 0, d * p.stride[0], h * p.stride[1], 0});
          pad(to, step[4], advance(pieces.data, x.dtype, from), apart, x.stride[4], size[4], 0, count, 0, 0);
        }
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
    pack_patches(packed, b, begin, extent, step, s.panel);
  else
    copy_in(kernels_, s.panel, step, packed.at(at, size));
  for (Index c = 0; c < b.m; c += copy_rows_) {
    Block part = b;
    part.m0 += c, part.m = std::min(copy_rows_, b.m - c);
    multiply(o, part, begin, extent, s, tiles + c * b.taps * b.pitch, accumulate);
  }
}

template <class T>
void GatherWeights<T>::multiply(const Operands& o, const Block& b, const Index4& begin, const Index4& extent,
                                const Slot& s, T* tiles, bool accumulate) const {
  const Problem& p = problem_;
  const auto [g, n0, n, m0, m, t0, taps, pitch] = b;
  const GatherKernel<T>& kernel = this->kernel(n);
  const View& image = swap_ ? o.y : o.x;
  const T* x;
  Index5 stride = image.stride;
  Index shift = 0;  // offset of image number and position 0
  if (copy_) {
    Index5 from{0, g * cm_ + m0, 0, 0, 0}, region{0, m, 1, 1, 1};
    for (std::size_t i = 0; i < 4; ++i) {
      const auto axis = static_cast<std::size_t>(order_[i]);
      if (axis == 0) {
        from[0] = begin[i], region[0] = extent[i];
        continue;
      }
      const AxisSizes a = axis_sizes(p, static_cast<int>(axis) - 1);
      const Index lo = std::clamp<Index>(begin[i] * a.stride - a.pad, 0, a.x);
      const Index hi =
          std::clamp<Index>((begin[i] + extent[i] - 1) * a.stride - a.pad + (a.kernel - 1) * a.dilation + 1, lo, a.x);
      from[axis + 1] = lo, region[axis + 1] = hi - lo;
    }
    stride = {m * copy_plane_, copy_plane_, region[3] * region[4], region[4], 1};
    for (std::size_t i = 0; i < 5; ++i) shift -= i == 1 ? 0 : from[i] * stride[i];
    copy_in(kernels_, s.copy, stride, image.at(from, region));
    x = s.copy;
  } else {
    x = static_cast<const T*>(image.data) + (g * cm_ + m0) * stride[1];
  }

  // Along axis i of the nest the image moves by move[i] elements an output, from origin on.
  Index4 move;
  Index origin = shift;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto axis = static_cast<std::size_t>(order_[i]);
    move[i] = axis == 0 ? stride[0] : stride[axis + 1] * p.stride[axis - 1];
    if (axis > 0) origin -= p.pad_before[axis - 1] * stride[axis + 1];
  }
  std::ptrdiff_t row[kMaxTileRows], crow[kMaxTileRows];
  for (const TapClass& cd : classes_[0])
    for (const TapClass& ch : classes_[1])
      for (const TapClass& cw : classes_[2]) {
        Index4 lo, hi;
        bool empty = false;
        for (std::size_t i = 0; i < 4; ++i) {
          lo[i] = begin[i], hi[i] = begin[i] + extent[i];
          if (order_[i] > 0) {
            const TapClass& c = order_[i] == 1 ? cd : order_[i] == 2 ? ch : cw;
            lo[i] = std::max(lo[i], c.outputs.begin), hi[i] = std::min(hi[i], c.outputs.end);
          }
          empty |= lo[i] >= hi[i];
        }
        if (empty && accumulate) continue;
        Index count = 0;
        if (!empty)
          for (Index i0 = lo[0]; i0 < hi[0]; ++i0)
            for (Index i1 = lo[1]; i1 < hi[1]; ++i1)
              for (Index i2 = lo[2]; i2 < hi[2]; ++i2) {
                const Index place =
                    (((i0 - begin[0]) * extent[1] + i1 - begin[1]) * extent[2] + i2 - begin[2]) * extent[3] + lo[3] -
                    begin[3];
                const Segment next{origin + i0 * move[0] + i1 * move[1] + i2 * move[2] + lo[3] * move[3],
                                   place * kernel.nr, hi[3] - lo[3]};
                if (count > 0) {
                  Segment& last = s.segments[count - 1];
                  if (last.b + last.len * kernel.nr == next.b && last.x + last.len * move[3] == next.x) {
                    last.len += next.len;
                    continue;
                  }
                }
                s.segments[count++] = next;
              }
        int rows = 0;
        const auto flush = [&] {
          if (rows) kernel.run(rows, x, row, move[3], s.segments, count, s.panel, kernel.nr, tiles, crow, accumulate);
          rows = 0;
        };
        for (Index c = 0; c < m; ++c)
          for (Index td = cd.taps.begin; td < cd.taps.end; ++td)
            for (Index th = ch.taps.begin; th < ch.taps.end; ++th)
              for (Index tw = cw.taps.begin; tw < cw.taps.end; ++tw) {
                const Index tap = (td * p.w[1] + th) * p.w[2] + tw, t = (swap_ ? p.taps() - 1 - tap : tap) - t0;
                if (t < 0 || t >= taps) continue;
                row[rows] = c * stride[1] + td * p.dilation[0] * stride[2] + th * p.dilation[1] * stride[3] +
                            tw * p.dilation[2] * stride[4];
                crow[rows] = (c * taps + t) * pitch;
                if (++rows == kMaxTileRows) flush();
              }
        flush();
      }
}

template <class T>
void GatherWeights<T>::sum(const Operands& o, const Block& b, Index slab, const Slot& s, T* tiles) const {
  const Index first = slab * chunk_count_ / slabs_, last = (slab + 1) * chunk_count_ / slabs_;
  for (Index i = first; i < last; ++i) chunk(o, b, i, s, tiles, i > first);
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

#define CONVBWD_INSTANTIATE(T)                                                                      \
  template void GatherWeights<T>::sum(const Operands&, const Block&, Index, const Slot&, T*) const; \
  template void GatherWeights<T>::store(const Operands&, const Block&, const T*, T*) const;
CONVBWD_INSTANTIATE(float)
CONVBWD_INSTANTIATE(double)

}  // namespace convbwd
