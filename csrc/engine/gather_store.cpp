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
  const auto in_instructions = [&]<Index... N>() {  // a few each
    return ((length == N && (copy_pieces_of<N>(to, step, from, nr, place, count), true)) || ...);
  };
  if (in_instructions.template operator()<2, 3, 4, 8, 16, 32, 64>()) return;
  for (Index i = 0; i < count; ++i, to += step) std::copy_n(from + place[i] * nr, length, to);
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
      store_pieces(d, channels, set, b, tiles, pos, s);
    } else if (i % per_row == 0) {
      store_phases(d, channels, i, b, tiles, pos, cleared, s);
    }
    tiles += pixels * round_up(set.columns(channels), kernels_.lanes);
    pos += pixels;
  }
}

// Columns that lie side by side in the destination are pieces of it: of a channel along w, or channels of one position
// or, where nothing lies between them, of several. What lies outside is left out.
template <class T>
void Gather<T>::store_pieces(const View& d, Index channels, const PhaseSet& s, const Box& b, const T* tiles,
                             const std::ptrdiff_t* pos, const Slot& slot) const {
  const Index3 e = b.extent(s);
  const Index pixels = set_pixels(s, b), step = maps_[2].dst_step, length = maps_[2].dst;
  const auto& [fd, fh, fw] = s.phase;
  const auto height = static_cast<Index>(fh->members.size()), width = static_cast<Index>(fw->members.size());
  const auto first = [](const Phase* f, Index member) { return f->members[static_cast<std::size_t>(member)].first; };
  const bool joins = member_major_ && d.plain() && d.stride[4] == channels;
  // Some columns. Of pixels [from, to) all lie inside, of the one before those from `lead` up to `lead_end`, of the one
  // behind those up to `end`.
  struct Piece {
    Index column, count, d, h, offset, from, to, lead, lead_end, end;
  };
  each_block(s.columns(channels), [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    Piece pieces[kMaxColumns];
    Index last = 0;
    for (Index column = n0; column < n0 + n; column += pieces[last++].count) {
      const Index left = n0 + n - column;
      const Index c = member_major_ ? column % channels : column / s.members;
      const Index member = member_major_ ? column / channels : column % s.members, j = member % width;
      Index unit = 1, positions = 1;
      if (!member_major_) {
        positions = std::min(width - j, left);
      } else if (joins && c == 0 && left >= channels) {
        unit = channels;
        while (j + positions < width && (positions + 1) * unit <= left &&
               first(fw, j + positions) == first(fw, j) + positions)
          ++positions;
      } else {
        unit = d.run(1, c, std::min(channels - c, left));
      }
      const Index w = b.q0[2] * step + first(fw, j);
      Piece& p = pieces[last];
      p.column = column - n0, p.count = positions * unit;
      p.d = first(fd, member / width / height), p.h = first(fh, member / width % height);
      p.offset = d.along(1, c) + w * d.stride[4];
      p.from = std::min(e[2], ceil_div(std::max<Index>(0, -w), step));
      p.to = std::clamp(floor_div(length - positions - w, step) + 1, p.from, e[2]);
      p.lead = std::min(p.count, -(w + (p.from - 1) * step) * unit);
      p.lead_end = std::clamp<Index>((length - w - (p.from - 1) * step) * unit, 0, p.count);
      p.end = std::clamp<Index>((length - w - p.to * step) * unit, 0, p.count);
      if (!pixels)
        for (Index i = 0; i < p.count; ++i) slot.line[p.column + i] = slot.bias[c + i % unit];
    }
    const Index apart = member_major_ ? 1 : d.stride[4];  // elements of a piece
    const bool in_place = d.dtype == compute_dtype<T> && apart == 1;
    const Index nr = pixels ? kernel.nr : 0;
    const std::ptrdiff_t* place = pos;
    for (Index i = 0; i < b.n; ++i)
      for (Index qd = b.q0[0]; qd < b.q0[0] + e[0]; ++qd)
        for (Index qh = b.q0[1]; qh < b.q0[1] + e[1]; ++qh, place += nr ? e[2] : 0)
          for (const Piece* p = pieces; p != pieces + last; ++p) {
            const Index at_d = qd * maps_[0].dst_step + p->d, at_h = qh * maps_[1].dst_step + p->h;
            if (!maps_[0].holds(at_d) || !maps_[1].holds(at_h)) continue;
            const Index row = p->offset + d.offset({i, 0, at_d, at_h, 0}), next = step * d.stride[4];
            const T* const source = nr ? tiles + pixels * n0 + p->column : slot.line + p->column;
            const auto put = [&](Index q, Index begin, Index end) {
              const T* const piece = source + (nr ? place[q] * nr : 0);
              const Index at = row + q * next + begin * apart;
              if (in_place)
                for (Index k = begin; k < end; ++k) static_cast<T*>(d.data)[at + k - begin] = piece[k];
              else if (begin < end)
                store_row(kernels_, advance(d.data, d.dtype, at), d.dtype, apart, piece + begin, end - begin);
            };
            if (p->from > 0) put(p->from - 1, p->lead, p->lead_end);
            const bool together = !member_major_ && p->count == step;
            if (nr && (in_place || together)) {
              T* const to = in_place ? static_cast<T*>(d.data) + row + p->from * next : slot.line;
              copy_pieces(to, in_place ? next : step, source, nr, place + p->from, p->to - p->from, p->count);
              if (!in_place)  // rounded, or put apart, together
                store_row(kernels_, advance(d.data, d.dtype, row + p->from * next), d.dtype, apart, to,
                          (p->to - p->from) * step);
            } else {
              for (Index q = p->from; q < p->to; ++q) put(q, 0, p->count);
            }
            if (p->to < e[2]) put(p->to, 0, p->end);
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
