// Layer engine: rows of weights, or what windows with a single position of y cover, put where they belong.
#pragma once

#include "format/copy.h"

namespace convbwd {

/// to[0, i, d, h, w] = from[i * step[1] + d * step[2] + h * step[3] + w] for every element of the view, rounded.
template <class T>
void store_taps(const KernelSet<T>& k, const View& to, const T* from, const Index5& step) {
  const Index plane = to.size[2] * to.size[3] * to.size[4];
  const bool even = (to.size[1] == 1 ? dense_planes(to) : rows_of_taps(to) && step[1] == plane) &&
                    (to.size[2] == 1 || step[2] == to.size[3] * to.size[4]) &&
                    (to.size[3] == 1 || step[3] == to.size[4]);
  if (even || (plane == 1 && step[1] == 1)) {
    for (Index i = 0, count; i < to.size[1]; i += count) {
      count = to.run(1, i, to.size[1] - i);
      store_row(k, advance(to.data, to.dtype, to.along(1, i)), to.dtype, even ? 1 : to.stride[1], from + i * plane,
                count * plane);
    }
    return;
  }
  for (Index i = 0; i < to.size[1]; ++i)
    for (Index d = 0; d < to.size[2]; ++d)
      for (Index h = 0; h < to.size[3]; ++h)
        store_row(k, advance(to.data, to.dtype, to.offset({0, i, d, h, 0})), to.dtype, to.stride[4],
                  from + i * step[1] + d * step[2] + h * step[3], to.size[4]);
}

}  // namespace convbwd
