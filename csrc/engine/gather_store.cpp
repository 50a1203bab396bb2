// Writing results: see gather.h.
#include "engine/gather.h"

namespace convbwd {
namespace {

// `count` pieces of N elements, `step` apart, from the rows `place` of a tile.
template <Index N, class T>
void copy_pieces_of(T* to, Index step, const T* from, Index nr, const std::ptrdiff_t* place, Index count) {
  for (Index i = 0; i < count; ++i, to += step) std::memcpy(to, from + place[i] * nr, N * sizeof(T));
}

template <class T>
void copy_pieces(T* to, Index step, const T* from, Index nr, const std::ptrdiff_t* place, Index count, Index length) {
  switch (length) {  // one instruction or two each
    case 2:
      return copy_pieces_of<2>(to, step, from, nr, place, count);
    case 3:
      return copy_pieces_of<3>(to, step, from, nr, place, count);
    case 4:
      return copy_pieces_of<4>(to, step, from, nr, place, count);
    case 8:
      return copy_pieces_of<8>(to, step, from, nr, place, count);
    default:
      for (Index i = 0; i < count; ++i, to += step) std::copy_n(from + place[i] * nr, length, to);
  }
}

}  // namespace

template <class T>
void Gather<T>::store(const Operands& o, Index g, Index c0, Index channels, const Box& b, const Slot& s) const {
  const View& all = destination(o);
  const View d = all.at({b.n0, g * cd_ + c0, 0, 0, 0}, all.size);
  std::fill(s.bias, s.bias + channels, T{});
  const bool biased = o.bias.data != nullptr;
  if (biased) load_bias(kernels_, s.bias, o.bias, g * cd_ + c0, channels);
  const auto add_bias = [&](T* tiles, Index pixels, Index members) {
    if (biased)
      each_block(channels * members, [&](Index n0, Index n, const GatherKernel<T>& kernel) {
        T* tile = tiles + pixels * n0;
        for (Index m = 0; m < pixels; ++m)
          for (Index j = 0; j < n; ++j)
            tile[m * kernel.nr + j] += s.bias[member_major_ ? (n0 + j) % channels : (n0 + j) / members];
      });
  };
  T* tiles = s.tiles;
  if (direct_) {
    add_bias(tiles, b.pixels, 1);
    return store_direct(d, channels, b, s);
  }
  const std::ptrdiff_t* pos = s.pos;
  const std::size_t per_row = maps_[2].phases.size();
  const bool cleared = !member_major_ && !patches_ && !biased && clear_sparse(d, b.n, channels, sets_, maps_, b);
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const PhaseSet& set = sets_[i];
    const Index pixels = set_pixels(set, b);
    if (member_major_ || patches_) {
      add_bias(tiles, pixels, set.members);
      if (patches_)
        store_patches(d, channels, set, b, tiles, pos, s);
      else
        store_channels(d, channels, set, b, tiles, pos, s);
    } else if (i % per_row == 0) {
      store_phases(d, channels, i, b, tiles, pos, cleared, s);
    }
    tiles += pixels * round_up(set.columns(channels), kernels_.lanes);
    pos += pixels;
  }
}

// Columns of a member lie side by side in the destination: channels-last results.
template <class T>
void Gather<T>::store_channels(const View& d, Index channels, const PhaseSet& s, const Box& b, const T* tiles,
                               const std::ptrdiff_t* pos, const Slot& slot) const {
  const Index3 e = b.extent(s);
  const Index pixels = set_pixels(s, b), columns = s.columns(channels), step = vectors_ * kernels_.lanes;
  const auto& [fd, fh, fw] = s.phase;
  const auto put = [&](Index at, Index column, Index count, Index place, Index channel) {
    if (!pixels) {
      for (Index j = 0; j < count; ++j)
        store_row(kernels_, advance(d.data, d.dtype, at + j), d.dtype, 1, slot.bias + channel + j, 1);
      return;
    }
    while (count > 0) {
      const Index n0 = column / step * step, nr = kernel(std::min(step, columns - n0)).nr;
      const Index n = std::min(count, n0 + step - column);
      store_row(kernels_, advance(d.data, d.dtype, at), d.dtype, 1, tiles + pixels * n0 + place * nr + column - n0, n);
      at += n, column += n, count -= n;
    }
  };
  Index natural = 0;
  for (Index n = 0; n < b.n; ++n)
    for (Index qd = 0; qd < e[0]; ++qd)
      for (Index qh = 0; qh < e[1]; ++qh)
        for (Index qw = 0; qw < e[2]; ++qw, ++natural) {
          const Index place = pixels ? pos[natural] : 0;
          Index column = -channels;
          for (const auto& md : fd->members)
            for (const auto& mh : fh->members)
              for (const auto& mw : fw->members) {
                column += channels;
                const Index3 at{b.position(maps_, 0, qd, md), b.position(maps_, 1, qh, mh),
                                b.position(maps_, 2, qw, mw)};
                if (!maps_[0].holds(at[0]) || !maps_[1].holds(at[1]) || !maps_[2].holds(at[2])) continue;
                for (Index c = 0, run = 0; c < channels; c += run) {
                  run = d.run(1, c, channels - c);
                  put(d.offset({n, 0, at[0], at[1], at[2]}) + d.along(1, c), column + c, run, place, c);
                }
              }
        }
}

// Columns of a channel are pieces of rows of the destination. What lies outside it is left out.
template <class T>
void Gather<T>::store_patches(const View& d, Index channels, const PhaseSet& s, const Box& b, const T* tiles,
                              const std::ptrdiff_t* pos, const Slot& slot) const {
  const Index3 e = b.extent(s);
  const Index pixels = set_pixels(s, b), step = maps_[2].dst_step, length = maps_[2].dst;
  const auto& [fd, fh, fw] = s.phase;
  const auto height = static_cast<Index>(fh->members.size()), width = static_cast<Index>(fw->members.size());
  // Some columns of one member. Of pixels [from, to) all lie inside, of the one before those from `lead` on, of the one
  // behind those up to `end`.
  struct Piece {
    Index column, count, d, h, w, offset, from, to, lead, end;
  };
  each_block(s.columns(channels), [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    Piece pieces[kMaxColumns];
    Index last = 0;
    for (Index column = n0; column < n0 + n; column += pieces[last++].count) {
      const Index c = column / s.members, member = column % s.members / width, j = column % width;
      Piece& p = pieces[last];
      p.column = column - n0, p.count = std::min(width - j, n0 + n - column);
      p.d = fd->members[static_cast<std::size_t>(member / height)].first;
      p.h = fh->members[static_cast<std::size_t>(member % height)].first;
      p.w = b.q0[2] * step + fw->members[static_cast<std::size_t>(j)].first;
      p.offset = d.along(1, c) + p.w * d.stride[4];
      p.from = p.w < 0, p.lead = std::min(-p.w, p.count);
      p.end = std::clamp<Index>(length - p.w - (e[2] - 1) * step, 0, p.count);
      p.to = std::max(p.from, p.end < p.count ? e[2] - 1 : e[2]);
      if (!pixels) std::fill_n(slot.line + p.column, p.count, slot.bias[c]);
    }
    const bool in_place = d.dtype == compute_dtype<T> && d.stride[4] == 1;
    const Index nr = pixels ? kernel.nr : 0;
    const std::ptrdiff_t* place = pos;
    for (Index i = 0; i < b.n; ++i)
      for (Index qd = b.q0[0]; qd < b.q0[0] + e[0]; ++qd)
        for (Index qh = b.q0[1]; qh < b.q0[1] + e[1]; ++qh, place += nr ? e[2] : 0)
          for (const Piece* p = pieces; p != pieces + last; ++p) {
            const Index at_d = qd * maps_[0].dst_step + p->d, at_h = qh * maps_[1].dst_step + p->h;
            if (!maps_[0].holds(at_d) || !maps_[1].holds(at_h)) continue;
            const Index row = p->offset + d.offset({i, 0, at_d, at_h, 0});
            const T* const source = nr ? tiles + pixels * n0 + p->column : slot.line + p->column;
            const auto put = [&](Index q, Index begin, Index end) {
              const T* const piece = source + (nr ? place[q] * nr : 0);
              const Index at = row + q * step * d.stride[4];
              if (in_place)
                for (Index j = begin; j < end; ++j) static_cast<T*>(d.data)[at + j] = piece[j];
              else if (begin < end)
                store_row(kernels_, advance(d.data, d.dtype, at + begin * d.stride[4]), d.dtype, d.stride[4],
                          piece + begin, end - begin);
            };
            if (p->from) put(0, p->lead, e[2] > 1 ? p->count : p->end);
            if (nr && (in_place || p->count == step)) {
              T* const to = in_place ? static_cast<T*>(d.data) + row + p->from * step : slot.line;
              copy_pieces(to, step, source, nr, place + p->from, p->to - p->from, p->count);
              if (!in_place)  // rounded, or put apart, together
                store_row(kernels_, advance(d.data, d.dtype, row + p->from * step * d.stride[4]), d.dtype, d.stride[4],
                          to, (p->to - p->from) * step);
            } else {
              for (Index q = p->from; q < p->to; ++q) put(q, 0, p->count);
            }
            if (p->to < e[2]) put(e[2] - 1, 0, p->end);
          }
  });
}

// Positions are dense in the destination: one transposition, over whole planes where rows join.
template <class T>
void Gather<T>::store_direct(const View& d, Index channels, const Box& b, const Slot& slot) const {
  const auto positions = b.positions(maps_);
  const Index3 e{positions[0].size(), positions[1].size(), positions[2].size()};
  const bool join_h = d.stride[3] == e[2], join_d = join_h && d.stride[2] == e[1] * e[2];
  const Index lines_h = join_h ? 1 : e[1], lines_d = join_d ? 1 : e[0];
  const int length = static_cast<int>(e[2] * (join_h ? e[1] : 1) * (join_d ? e[0] : 1));
  const Index origin = d.offset({0, 0, positions[0].begin, positions[1].begin, positions[2].begin});
  const auto transpose = kernels_.transpose[static_cast<int>(compute_dtype<T>)];
  each_block(channels, [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    const std::ptrdiff_t* natural = slot.pos;
    const T* tiles = slot.tiles + b.pixels * n0;
    for (Index i = 0; i < b.n; ++i)
      for (Index id = 0; id < lines_d; ++id)
        for (Index ih = 0; ih < lines_h; ++ih, natural += length) {
          const Index at = origin + i * d.stride[0] + n0 * d.stride[1] + id * d.stride[2] + ih * d.stride[3];
          if (converts_) {
            const Index pitch = line();
            T* lines[1] = {slot.rows};
            for (Index j = 0; j < n; j += kernels_.lanes)
              for (Index q = 0; q < length; q += pitch) {
                const Index count = std::min<Index>(kernels_.lanes, n - j), width = std::min(pitch, length - q);
                transpose(lines, 1, pitch, tiles + j, natural + q, kernel.nr, static_cast<int>(width),
                          static_cast<int>(width), count, {});
                for (Index c = 0; c < count; ++c)
                  store_row(kernels_, advance(d.data, d.dtype, at + (j + c) * d.stride[1] + q), d.dtype, 1,
                            slot.rows + c * pitch, width);
              }
            continue;
          }
          T* to = static_cast<T*>(d.data) + at;
          // Whole vectors (with AVX-512 they are cache lines), if the first line of each channel begins at the same
          // place of one.
          const auto misplaced = static_cast<Index>(reinterpret_cast<std::uintptr_t>(to) / sizeof(T)) % kernels_.lanes;
          const int lead = static_cast<int>(misplaced ? std::min<Index>(kernels_.lanes - misplaced, length) : 0);
          if (lead) transpose(&to, 1, d.stride[1], tiles, natural, kernel.nr, lead, lead, n, {});
          if (lead == length) continue;
          to += lead;
          transpose(&to, 1, d.stride[1], tiles, natural + lead, kernel.nr, length - lead, length - lead, n, {});
        }
  });
}

// Rows put together from the phases along w, `first` being the set of the first of them.
template <class T>
void Gather<T>::store_phases(const View& d, Index channels, std::size_t first, const Box& b, const T* tiles,
                             const std::ptrdiff_t* pos, bool cleared, const Slot& slot) const {
  const std::size_t per_row = maps_[2].phases.size();
  const auto* const sets = sets_.data() + first;
  if (cleared && no_taps(sets, per_row)) return;
  const auto& [fd, fh, unused] = sets_[first].phase;
  const Index3 e = b.extent(sets_[first]);
  const auto positions = b.positions(maps_);
  const Index step = vectors_ * kernels_.lanes, begin = positions[2].begin;
  const Index line = round_up(box_q_[2], kernels_.lanes);
  const bool even = std::all_of(sets, sets + per_row,
                                [&](const PhaseSet& s) { return !s.taps || s.members == sets_[first].members; });
  const auto transpose = kernels_.transpose[static_cast<int>(compute_dtype<T>)];
  for (Index n = 0; n < b.n; ++n)
    for (Index qd = 0; qd < e[0]; ++qd)
      for (Index qh = 0; qh < e[1]; ++qh)
        for (Index cb = 0; cb < channels; cb += kernels_.lanes) {
          const Index count = std::min<Index>(kernels_.lanes, channels - cb);
          const T* tile = tiles;
          const std::ptrdiff_t* place = pos;
          T* rows = slot.rows;
          for (std::size_t f = 0; f < per_row; ++f) {
            const PhaseSet& s = sets_[first + f];
            const Index pixels = set_pixels(s, b), width = b.extent(s)[2], columns = s.columns(channels);
            if (!pixels) continue;
            const std::ptrdiff_t* natural = place + ((n * e[0] + qd) * e[1] + qh) * width;
            for (Index j = cb * s.members; j < (cb + count) * s.members;) {
              const Index n0 = j / step * step, nr = kernel(std::min(step, columns - n0)).nr;
              const Index cols = std::min((cb + count) * s.members, n0 + step) - j;
              T* table[1] = {rows};
              transpose(table, 1, line, tile + pixels * n0 + j - n0, natural, nr, static_cast<int>(width),
                        static_cast<int>(width), cols, {});
              rows += cols * line;
              j += cols;
            }
            tile += pixels * round_up(columns, kernels_.lanes);
            place += pixels;
          }
          for (Index c = 0, run = 1; c < count; c += run, run = 1) {
            // Channels that are stored together: their rows are evenly spaced, and their biases the same.
            const Index most = even ? d.run(1, cb + c, count - c) : 1;
            while (run < most && slot.bias[cb + c + run] == slot.bias[cb + c]) ++run;
            Index member = 0;
            for (const auto& md : fd->members)
              for (const auto& mh : fh->members) {
                Index streams = 0, pitch = 0;
                const T* base = slot.rows;
                for (std::size_t f = 0; f < per_row; ++f) {
                  const PhaseSet& s = sets_[first + f];
                  const Phase& fw = *s.phase[2];
                  const Index width = static_cast<Index>(fw.members.size());
                  const bool live = set_pixels(s, b) > 0;
                  for (Index m = 0; m < width; ++m)
                    slot.streams[streams++] = {live ? base + (c * s.members + member * width + m) * line : nullptr,
                                               fw.members[static_cast<std::size_t>(m)].first + begin, b.extent(s)[2]};
                  if (live) base += count * s.members * line, pitch = s.members * line;
                }
                ++member;
                const Index at_d = b.position(maps_, 0, qd, md), at_h = b.position(maps_, 1, qh, mh);
                if (!maps_[0].holds(at_d) || !maps_[1].holds(at_h)) continue;
                const Index at = d.offset({n, cb + c, at_d, at_h, begin});
                store_streams(kernels_, slot.streams, streams, maps_[2].dst_step, pitch, cleared, slot.bias[cb + c],
                              slot.line,
                              {advance(d.data, d.dtype, at), d.dtype, run, d.stride[1], d.stride[4], positions[2]});
              }
          }
        }
}

template void Gather<float>::store(const Operands&, Index, Index, Index, const Box&, const Slot&) const;
template void Gather<double>::store(const Operands&, Index, Index, Index, const Box&, const Slot&) const;

}  // namespace convbwd
