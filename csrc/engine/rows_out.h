// Layer engine: writing results. Rows that were computed phase by phase are put together here and stored once.
#pragma once

#include <algorithm>

#include "base/view.h"
#include "format/copy.h"

namespace convbwd {

/// Values for the destination positions first + q*step, q < count, of one row; none where data is null.
template <class T>
struct Stream {
  const T* data;
  Index first, count;
};

/// Interleaves the streams of positions [begin, end), adds `bias` to all of them and stores the row once.
/// `line` is scratch for end - begin elements.
template <class T>
void store_streams(const KernelSet<T>& k, const Stream<T>* streams, Index count, Index step, Index begin, Index end,
                   T bias, T* line, void* dst, DType dtype, Index stride) {
  if (dtype == compute_dtype<T> && stride == 1 && bias == T{}) line = static_cast<T*>(dst);  // put together in place
  const T* row = line;
  if (count == 1 && step == 1 && streams[0].data && bias == T{}) {
    row = streams[0].data;
  } else if (count == 2 && step == 2 && streams[0].data && streams[1].data && streams[0].first == begin &&
             streams[1].first == begin + 1) {
    k.interleave(line, streams[0].data, streams[1].data, streams[1].count);
    if (streams[0].count > streams[1].count) line[end - begin - 1] = streams[0].data[streams[1].count];
  } else {
    std::fill(line, line + (end - begin), T{});
    for (const Stream<T>* s = streams; s != streams + count; ++s)
      if (s->data)
        for (Index q = 0; q < s->count; ++q) line[s->first - begin + q * step] = s->data[q];
  }
  if (bias != T{})
    for (Index i = 0; i < end - begin; ++i) line[i] += bias;
  if (row != dst) store_row(k, dst, dtype, stride, row, end - begin);
}

}  // namespace convbwd
