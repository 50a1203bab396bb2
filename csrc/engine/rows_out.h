// Layer engine: writing results. Rows that were computed phase by phase are put together here and stored once.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/view.h"
#include "engine/axis.h"
#include "format/copy.h"

namespace convbwd {

/// Values for the destination positions first + q*step, q < count, of one row; none where data is null.
template <class T>
struct Stream {
  const T* data;
  Index first, count;
};

inline bool no_taps(const PhaseSet* sets, std::size_t count) {
  return std::all_of(sets, sets + count, [](const PhaseSet& s) { return s.taps == 0; });
}

/// Writes the zeros of a box all at once, where many of its positions have no taps, and tells whether it did. `d` is a
/// view of the images of the box from their first channel on.
inline bool clear_sparse(const View& d, Index images, Index channels, const std::vector<PhaseSet>& sets,
                         const std::array<AxisMap, 3>& maps, const PixelBox& box) {
  const Index3 whole = most_pixels(maps);
  const bool sparse = dense_planes(d) && box.q1[1] - box.q0[1] == whole[1] && box.q1[2] - box.q0[2] == whole[2] &&
                      std::any_of(sets.begin(), sets.end(), [](const PhaseSet& s) { return s.taps == 0; });
  const Index begin = box.q0[0] * maps[0].dst_step, end = std::min(box.q1[0] * maps[0].dst_step, maps[0].dst);
  for (Index n = 0; n < images && sparse; ++n)
    for (Index c = 0; c < channels; ++c)
      std::memset(advance(d.data, d.dtype, n * d.stride[0] + c * d.stride[1] + begin * d.stride[2]), 0,
                  static_cast<std::size_t>((end - begin) * d.stride[2]) * size_of(d.dtype));
  return sparse;
}

/// Whether two streams take turns.
template <class T>
bool in_pairs(const Stream<T>* streams, Index count, Index step) {
  return count == 2 && step == 2 && streams[0].data && streams[1].data && streams[0].first < streams[1].first;
}

/// Interleaves the streams of positions [begin, end), adds `bias` to all of them and stores the row once; where
/// `cleared`, only the streams. `line` is scratch for end - begin elements.
template <class T>
void store_streams(const KernelSet<T>& k, const Stream<T>* streams, Index count, Index step, Index begin, Index end,
                   bool cleared, T bias, T* line, void* dst, DType dtype, Index stride) {
  if (cleared) {
    for (const Stream<T>* s = streams; s != streams + count; ++s)
      if (s->data)
        store_row(k, advance(dst, dtype, (s->first - begin) * stride), dtype, step * stride, s->data, s->count);
    return;
  }
  if (dtype == compute_dtype<T> && stride == 1 && bias == T{}) line = static_cast<T*>(dst);  // put together in place
  const T* row = line;
  if (count == 1 && step == 1 && streams[0].data && bias == T{}) {
    row = streams[0].data;
  } else if (in_pairs(streams, count, step)) {
    k.interleave(line, 0, streams[0].data, streams[1].data, 0, 1, end - begin);
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

/// Results of a box of pixels on a flat copy of their source (Planes): row `row` elements from the last one, plane
/// `plane`. Those of set s, channel c, member m begin at [set][c * members + m][0], `pitch` elements each; sets without
/// taps have none.
struct FlatResults {
  const std::vector<PhaseSet>* sets;
  const std::array<AxisMap, 3>* maps;
  PixelBox box;
  Index channels, row, plane, pitch;
};

/// Stores them to `d`, a view of one image from their first channel on. `bias` has an element for each channel, or no
/// data. `streams` is scratch for the members of all phases along w, `line` for a row of the destination.
template <class T>
void store_flat(const KernelSet<T>& k, const FlatResults& f, const T* results, const View& d, const View& bias,
                Stream<T>* streams, T* line) {
  const auto& [md0, mh0, mw0] = *f.maps;
  const Index dst_step = mw0.dst_step, begin = f.box.q0[2] * dst_step, end = std::min(f.box.q1[2] * dst_step, mw0.dst);
  const std::size_t per_row = mw0.phases.size();
  const bool cleared = !bias.data && clear_sparse(d, 1, f.channels, *f.sets, *f.maps, f.box);
  for (std::size_t first = 0; first < f.sets->size(); first += per_row) {
    const PhaseSet* const sets = f.sets->data() + first;
    if (cleared && no_taps(sets, per_row)) continue;
    const auto& [fd, fh, unused] = sets->phase;
    const Index3 e = f.box.extent(*sets);
    for (Index c = 0; c < f.channels; ++c) {
      T start{};
      if (bias.data) load_row(k, &start, advance(bias.data, bias.dtype, c * bias.stride[1]), bias.dtype, 1, 1);
      Index member = 0;
      for (const auto& md : fd->members)
        for (const auto& mh : fh->members) {
          Index count = 0;
          const T* base = results;
          for (const PhaseSet* s = sets; s != sets + per_row; ++s) {
            const Phase& fw = *s->phase[2];
            const auto width = static_cast<Index>(fw.members.size());
            for (Index m = 0; m < width; ++m)
              streams[count++] = {s->taps ? base + (c * s->members + member * width + m) * f.pitch : nullptr,
                                  fw.members[static_cast<std::size_t>(m)].first + begin, f.box.extent(*s)[2]};
            if (s->taps) base += f.channels * s->members * f.pitch;
          }
          ++member;
          const bool dense = count == 1 && dst_step == 1 && streams[0].data && start == T{} && d.stride[4] == 1;
          const bool one_run = dense && f.row == e[2] && mh0.dst_step * d.stride[3] == e[2];
          for (Index qd = 0; qd < e[0]; ++qd) {
            Index at = d.offset(
                {0, c, md.first + (f.box.q0[0] + qd) * md0.dst_step, mh.first + f.box.q0[1] * mh0.dst_step, begin});
            const Index next = mh0.dst_step * d.stride[3];
            if (dense) {
              const T* rows = streams[0].data + qd * f.plane;
              if (d.dtype == compute_dtype<T>)
                k.pad[static_cast<int>(d.dtype)](static_cast<T*>(d.data) + at, next, rows, f.row, 1, one_run ? 1 : e[1],
                                                 0, one_run ? e[1] * e[2] : e[2], 0);
              else if (one_run)
                store_row(k, advance(d.data, d.dtype, at), d.dtype, 1, rows, e[1] * e[2]);
              else
                for (Index qh = 0; qh < e[1]; ++qh)
                  store_row(k, advance(d.data, d.dtype, at + qh * next), d.dtype, 1, rows + qh * f.row, e[2]);
              continue;
            }
            if (d.dtype == compute_dtype<T> && d.stride[4] == 1 && start == T{} && !cleared &&
                in_pairs(streams, count, dst_step)) {
              const Index plane = qd * f.plane;
              k.interleave(static_cast<T*>(d.data) + at, next, streams[0].data + plane, streams[1].data + plane, f.row,
                           e[1], end - begin);
              continue;
            }
            for (Index qh = 0; qh < e[1]; ++qh, at += next) {
              store_streams(k, streams, count, dst_step, begin, end, cleared, start, line, advance(d.data, d.dtype, at),
                            d.dtype, d.stride[4]);
              const Index further = qh + 1 < e[1] ? f.row : f.plane - (e[1] - 1) * f.row;
              for (Stream<T>* s = streams; s != streams + count; ++s)
                if (s->data) s->data += further;
            }
          }
        }
    }
    for (const PhaseSet* s = sets; s != sets + per_row; ++s)
      if (s->taps) results += f.channels * s->members * f.pitch;
  }
}

}  // namespace convbwd
