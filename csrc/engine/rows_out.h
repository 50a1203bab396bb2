// Layer engine: writing results. Rows that were computed phase by phase are put together here and stored once.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/view.h"
#include "engine/axis.h"
#include "format/copy.h"

namespace convbwd {

/// Of so many products, those that are summed straight.
inline Index straight(Index products) { return even_part(products, kStraight); }

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
  const Range depth = maps[0].positions(box.q0[0], box.q1[0]);
  for (Index n = 0; n < images && sparse; ++n)
    for (Index c = 0; c < channels; ++c)
      std::memset(advance(d.data, d.dtype, n * d.stride[0] + c * d.stride[1] + depth.begin * d.stride[2]), 0,
                  static_cast<std::size_t>(depth.size() * d.stride[2]) * size_of(d.dtype));
  return sparse;
}

/// Whether two streams take turns.
template <class T>
bool in_pairs(const Stream<T>* streams, Index count, Index step) {
  return count == 2 && step == 2 && streams[0].data && streams[1].data && streams[0].first < streams[1].first;
}

/// `count` rows of a destination, `next` elements apart, and the positions of each, `stride` apart.
struct RowsOut {
  std::byte* data;
  DType dtype;
  Index count, next, stride;
  Range positions;
};

/// Interleaves streams, adds `bias` to all positions and stores each row once; where `cleared`, only the streams. Those
/// of a row lie `pitch` elements behind those of the row before. `line` is scratch for a row.
template <class T>
void store_streams(const KernelSet<T>& k, const Stream<T>* streams, Index count, Index step, Index pitch, bool cleared,
                   T bias, T* line, RowsOut to) {
  const DType dtype = to.dtype;
  const bool in_place = dtype == compute_dtype<T> && to.stride == 1 && bias == T{};
  const bool whole = count == 1 && step == 1 && streams[0].data && bias == T{};
  const bool pairs = in_pairs(streams, count, step);
  Index length = to.positions.size();
  const auto put_together = [&](T* row, Index next, Index at, Index rows) {
    const T* const sources[] = {streams[0].data + at, streams[1].data + at};
    k.interleave(row, next, sources, 1, pitch, rows, length);
  };
  if (whole && to.stride == 1 && pitch == length && to.next == length) length *= to.count, to.count = 1;
  if (in_place && whole)
    return k.pad[static_cast<int>(dtype)](reinterpret_cast<T*>(to.data), to.next, streams[0].data, pitch, 1, to.count,
                                          0, length, 0, 0);
  if (in_place && pairs) return put_together(reinterpret_cast<T*>(to.data), to.next, 0, to.count);
  for (Index r = 0, at = 0; r < to.count; ++r, at += pitch, to.data = advance(to.data, dtype, to.next)) {
    if (cleared && !whole) {
      for (const Stream<T>* s = streams; s != streams + count; ++s)
        if (s->data)
          store_row(k, advance(to.data, dtype, (s->first - to.positions.begin) * to.stride), dtype, step * to.stride,
                    s->data + at, s->count);
      continue;
    }
    T* const together = in_place ? reinterpret_cast<T*>(to.data) : line;
    const T* row = together;
    if (whole) {
      row = streams[0].data + at;
    } else if (pairs) {
      put_together(together, 0, at, 1);
    } else {
      std::fill(together, together + length, T{});
      for (const Stream<T>* s = streams; s != streams + count; ++s)
        if (s->data)
          for (Index q = 0; q < s->count; ++q) together[s->first - to.positions.begin + q * step] = s->data[at + q];
    }
    if (bias != T{})
      for (Index i = 0; i < length; ++i) together[i] += bias;
    if (!in_place) store_row(k, to.data, dtype, to.stride, row, length);
  }
}

/// Results of a box of pixels on a flat copy of their source (Planes): row `row` elements from the last one, plane
/// `plane`. Those of set s, channel c, member m begin at [set][c * members + m][0], `pitch` elements each; sets without
/// taps have none. Those of several groups, of so many channels each, are `group_pitch` elements apart.
struct FlatResults {
  const std::vector<PhaseSet>* sets;
  const std::array<AxisMap, 3>* maps;
  PixelBox box;
  Index channels, row, plane, pitch;
  Index groups, group_pitch;
};

/// Stores the results of `count` sets, those of a phase along d, where the rows of the destination take turns, and the
/// elements of each: so every line of it is written at once. False where they do not.
template <class T>
bool store_turns(const KernelSet<T>& k, const FlatResults& f, const PhaseSet* sets, std::size_t count, const T* results,
                 const View& d) {
  const auto& maps = *f.maps;
  if (maps[1].dst_step != 2 || maps[2].dst_step != 2 || d.stride[4] != 1 || d.dtype != compute_dtype<T>) return false;
  const std::vector<Phase::Member>& deep = sets->phase[0]->members;
  struct Turn {
    const T* data;
    Index next;  // elements from one member along d to the next, then from a channel to the next
  };
  std::array<Turn, 4> turns{};
  for (const PhaseSet* s = sets; s != sets + count; ++s) {
    if (s->taps == 0) return false;
    const T* data = results;
    for (const auto& mh : s->phase[1]->members)
      for (const auto& mw : s->phase[2]->members) {
        turns[static_cast<std::size_t>(2 * mh.first + mw.first)] = {
            data, s->members / static_cast<Index>(deep.size()) * f.pitch};
        data += f.pitch;
      }
    results += s->columns(f.channels) * f.pitch;
  }
  if (std::any_of(turns.begin(), turns.end(), [](const Turn& t) { return !t.data; })) return false;
  const auto positions = f.box.positions(maps);
  const Index depth = f.box.extent(*sets)[0];
  Index block = 0;
  for (Index c = 0; c < f.channels; ++c)
    for (const auto& md : deep) {
      for (Index q = 0; q < depth; ++q) {
        std::array<const T*, 4> sources;
        for (std::size_t i = 0; i < 4; ++i) sources[i] = turns[i].data + block * turns[i].next + q * f.plane;
        const Index at = d.offset(
            {0, c, positions[0].begin + q * maps[0].dst_step + md.first, positions[1].begin, positions[2].begin});
        k.interleave(static_cast<T*>(d.data) + at, d.stride[3], sources.data(), 2, f.row, positions[1].size(),
                     positions[2].size());
      }
      ++block;
    }
  return true;
}

/// Stores them to `d`, whose channels lie side by side: they are transposed. The rest is as for store_flat, below.
template <class T>
void store_across(const KernelSet<T>& k, const FlatResults& f, const T* results, const View& d, const View& bias) {
  constexpr Index kChannels = 64, kPixels = 16;  // of a block that is converted, or gets its bias
  alignas(64) T block[kPixels * kChannels], start[kChannels];
  const auto& maps = *f.maps;
  const auto positions = f.box.positions(maps);
  const auto transpose = k.transpose[static_cast<int>(compute_dtype<T>)];
  const auto store = k.store[static_cast<int>(d.dtype)];
  const Index step = maps[2].dst_step * d.stride[4], all = f.groups * f.channels;
  const bool direct = d.dtype == compute_dtype<T> && !bias.data;
  for (Index c0 = 0, run; c0 < all; c0 += run) {
    run = d.run(1, c0, std::min(kChannels, all - c0));
    std::fill_n(start, run, T{});
    if (bias.data) load_bias(k, start, bias, c0, run);
    const T* base = results;
    for (const PhaseSet& s : *f.sets) {
      const auto& [fd, fh, fw] = s.phase;
      const Index3 e = f.box.extent(s);
      std::ptrdiff_t row[kChannels];
      for (Index c = 0; c < run; ++c)
        row[c] = (c0 + c) / f.channels * f.group_pitch + (c0 + c) % f.channels * s.members * f.pitch;
      const auto store_row_of = [&](const T* from, Index at) {
        if (direct && s.taps) {
          T* table[] = {static_cast<T*>(d.data) + at};
          return transpose(table, 1, step, from, row, 1, static_cast<int>(run), static_cast<int>(run), e[2], {});
        }
        for (Index q = 0; q < e[2]; q += kPixels) {
          const Index count = std::min(kPixels, e[2] - q);
          T* table[] = {block};
          if (s.taps)
            transpose(table, 1, run, from + q, row, 1, static_cast<int>(run), static_cast<int>(run), count, {});
          for (Index i = 0; i < count; ++i, at += step) {
            T* const pixel = s.taps ? block + i * run : start;
            for (Index c = 0; c < run && s.taps && bias.data; ++c) pixel[c] += start[c];
            store(advance(d.data, d.dtype, at), pixel, run);
          }
        }
      };
      const T* member = base;
      for (const auto& md : fd->members)
        for (const auto& mh : fh->members)
          for (const auto& mw : fw->members) {
            for (Index qd = 0; qd < e[0]; ++qd)
              for (Index qh = 0; qh < e[1]; ++qh)
                store_row_of(
                    member + qd * f.plane + qh * f.row,
                    d.offset({0, c0, positions[0].begin + qd * maps[0].dst_step + md.first,
                              positions[1].begin + qh * maps[1].dst_step + mh.first, positions[2].begin + mw.first}));
            member += f.pitch;
          }
      if (s.taps) base += f.channels * s.members * f.pitch;
    }
  }
}

/// Stores them to `d`, a view of one image from their first channel on. `bias` has an element for each channel, or no
/// data. `streams` is scratch for the members of all phases along w, `line` for a row of the destination.
template <class T>
void store_flat(const KernelSet<T>& k, const FlatResults& f, const T* results, const View& d, const View& bias,
                Stream<T>* streams, T* line) {
  if (f.groups * f.channels > 1 && channels_last(d)) return store_across(k, f, results, d, bias);
  if (f.groups > 1) {
    FlatResults one = f;
    one.groups = 1;
    for (Index g = 0; g < f.groups; ++g) {
      const Index5 channel{0, g * f.channels, 0, 0, 0};
      store_flat(k, one, results + g * f.group_pitch, d.at(channel, d.size),
                 bias.data ? bias.at(channel, bias.size) : View{}, streams, line);
    }
    return;
  }
  const auto& maps = *f.maps;
  const auto positions = f.box.positions(maps);
  const Index begin = positions[2].begin;
  const std::size_t per_row = maps[2].phases.size();
  const std::size_t per_plane = per_row * maps[1].phases.size();
  const bool cleared = !bias.data && clear_sparse(d, 1, f.channels, *f.sets, maps, f.box);
  for (std::size_t first = 0, taken = per_row; first < f.sets->size(); first += taken) {
    const PhaseSet* const sets = f.sets->data() + first;
    const bool stored = first % per_plane == 0 && !bias.data && store_turns(k, f, sets, per_plane, results, d);
    taken = stored ? per_plane : per_row;
    if (cleared && no_taps(sets, per_row)) continue;
    const auto& [fd, fh, unused] = sets->phase;
    const Index3 e = f.box.extent(*sets);
    for (Index c = 0; c < f.channels && !stored; ++c) {
      T start{};
      if (bias.data) load_bias(k, &start, bias, c, 1);
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
          for (Index qd = 0; qd < e[0]; ++qd) {
            const Index at = d.offset(
                {0, c, positions[0].begin + qd * maps[0].dst_step + md.first, positions[1].begin + mh.first, begin});
            store_streams(k, streams, count, maps[2].dst_step, f.row, cleared, start, line,
                          {advance(d.data, d.dtype, at), d.dtype, e[1], maps[1].dst_step * d.stride[3], d.stride[4],
                           positions[2]});
            for (Stream<T>* s = streams; s != streams + count; ++s)
              if (s->data) s->data += f.plane;
          }
        }
    }
    for (const PhaseSet* s = sets; s != sets + taken; ++s)
      if (s->taps) results += s->columns(f.channels) * f.pitch;
  }
}

}  // namespace convbwd
