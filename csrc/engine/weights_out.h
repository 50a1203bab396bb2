// Layer engine: writing the gradients of weights.
#pragma once

#include <numeric>

#include "base/problem.h"
#include "base/view.h"
#include "format/copy.h"

namespace convbwd {

constexpr int kStoreRows = 64;  // rows of a tile that are transposed at a time

/// Sums tiles[(i*taps + t)*pitch + j] for channel i < m, kernel tap first_tap + t, channel j < n on the other side.
struct WeightTile {
  Index m, n, first_tap, taps, pitch;
};

/// Stores them to `w`, a view from the first channels of both sides on; `rows_axis` is the axis of w along which i
/// runs. `lines` is scratch for kStoreRows * pitch elements, not needed where `stores_in_place`.
template <class T>
bool stores_in_place(const View& w, std::size_t rows_axis, Index taps) {
  return w.dtype == compute_dtype<T> && w.stride[rows_axis] == taps && dense_planes(w);
}

template <class T>
void store_weights(const KernelSet<T>& k, const Problem& p, const View& w, std::size_t rows_axis,
                   const WeightTile& tile, const T* tiles, T* lines) {
  const auto [m, n, first_tap, taps, pitch] = tile;
  const Index sm = w.stride[rows_axis], sn = w.stride[1 - rows_axis];
  // Whether rows lie evenly spaced in w.
  const bool rows_even = p.taps() == 1 || (dense_planes(w) && (m == 1 || (sm == p.taps() && taps == p.taps())));
  const bool in_place = stores_in_place<T>(w, rows_axis, p.taps());
  const Index step = p.taps() == 1 ? sm : 1, first = rows_even ? first_tap : 0;
  const auto transpose = k.transpose[static_cast<int>(compute_dtype<T>)];
  std::ptrdiff_t iota[kStoreRows];
  std::iota(iota, iota + kStoreRows, 0);
  for (Index r0 = 0; r0 < m * taps; r0 += kStoreRows) {
    const int rows = static_cast<int>(std::min<Index>(kStoreRows, m * taps - r0));
    if (in_place) {
      T* table[1] = {static_cast<T*>(w.data) + first + r0};
      transpose(table, 1, sn, tiles + r0 * pitch, iota, pitch, rows, rows, n);
      continue;
    }
    T* table[1] = {lines};
    transpose(table, 1, kStoreRows, tiles + r0 * pitch, iota, pitch, rows, rows, n);
    for (Index j = 0; j < n; ++j) {
      if (rows_even) {
        store_row(k, advance(w.data, w.dtype, j * sn + first + r0 * step), w.dtype, step, lines + j * kStoreRows, rows);
        continue;
      }
      for (Index r = r0; r < r0 + rows; ++r) {
        const Index c = r / taps, t = first_tap + r % taps;
        const Index at = j * sn + c * sm + t / (p.w[1] * p.w[2]) * w.stride[2] + t / p.w[2] % p.w[1] * w.stride[3] +
                         t % p.w[2] * w.stride[4];
        store_row(k, advance(w.data, w.dtype, at), w.dtype, 1, lines + j * kStoreRows + r - r0, 1);
      }
    }
  }
}

}  // namespace convbwd
