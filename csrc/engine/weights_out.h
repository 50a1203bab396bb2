// Layer engine: writing the gradients of weights.
#pragma once

#include "base/problem.h"
#include "base/view.h"
#include "format/copy.h"

namespace convbwd {

/// Where a kernel tap is, an axis.
inline Index3 tap_at(const Problem& p, Index tap) {
  return {tap / (p.w[1] * p.w[2]), tap / p.w[2] % p.w[1], tap % p.w[2]};
}

/// Sums tiles[(i*taps + t)*pitch + j] for channel i < m, kernel tap first_tap + t, channel j < n on the other side.
struct WeightTile {
  Index m, n, first_tap, taps, pitch;
};

/// Stores them to `w`, a view from the first channels of both sides on; `rows_axis` is the axis of w along which i
/// runs. `lines` is scratch for kMostRows * pitch elements, not needed where w has the type of the sums.
template <class T>
void store_weights(const KernelSet<T>& k, const Problem& p, const View& w, std::size_t rows_axis,
                   const WeightTile& tile, const T* tiles, T* lines) {
  const auto [m, n, first_tap, taps, pitch] = tile;
  const Index sm = w.stride[rows_axis], sn = w.stride[1 - rows_axis], all = p.taps();
  // Rows that lie evenly spaced in w: all of them, those of a channel, or single ones.
  const bool dense = all > 1 && dense_planes(w);
  const bool even = (all == 1 && w.plain()) || (dense && taps == all && (m == 1 || sm == all));
  const Index run = even ? m * taps : dense ? taps : 1, step = all == 1 ? sm : 1;
  const bool across = step == 1 && sn != 1 && run > 1;  // a column is dense in w, a row is not
  const auto transpose = k.transpose[static_cast<int>(compute_dtype<T>)];
  for (Index first = 0; first < m * taps; first += run)
    for (Index r = first; r < first + run; r += kMostRows) {
      const int rows = static_cast<int>(std::min<Index>(kMostRows, first + run - r));
      const Index3 tap = tap_at(p, first_tap + r % taps);
      const Index at =
          w.along(rows_axis, r / taps) + tap[0] * w.stride[2] + tap[1] * w.stride[3] + tap[2] * w.stride[4];
      const T* from = tiles + r * pitch;
      if (!across) {
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0, count = 0; j < n; j += count) {
            count = w.run(1 - rows_axis, j, n - j);
            const Index to = at + i * step + w.along(1 - rows_axis, j);
            store_row(k, advance(w.data, w.dtype, to), w.dtype, sn, from + i * pitch + j, count);
          }
      } else if (w.dtype == compute_dtype<T>) {
        T* table[1] = {static_cast<T*>(w.data) + at};
        transpose(table, 1, sn, from, nullptr, pitch, rows, rows, n, {});
      } else {
        T* table[1] = {lines};
        transpose(table, 1, rows, from, nullptr, pitch, rows, rows, n, {});
        const Index together = sn == rows ? n : 1;  // columns that lie one behind the other
        for (Index j = 0; j < n; j += together)
          store_row(k, advance(w.data, w.dtype, at + j * sn), w.dtype, 1, lines + j * rows, together * rows);
      }
    }
}

}  // namespace convbwd
