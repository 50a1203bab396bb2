// Panels of weights and copies of the image: see gather.h.
#include "engine/ahead.h"
#include "engine/gather.h"

namespace convbwd {

constexpr Index kWidened = 32;  // elements of a row that take no longer to widen than one of them by itself
// Rows of weights begin where no prefetcher looks: packing took a fifth longer. One row ahead is too late where they
// come from memory: dx of 256 channels 10x16, 5x5, took 1.15 times as long (Zen 5).
constexpr Index kAhead = 2;
constexpr Index kPiece = 4;            // columns that are copied at a time rather than one by one
constexpr Index kCopiedPixels = 2048;  // of a task: from 128 to all of a plane take as long (Zen 3)

// Of boxes that follow each other: their union.
template <class T>
typename Gather<T>::Part Gather<T>::part(const Box& first, const Box& last) const {
  Part p{{first.n0}, {last.n0 + last.n - first.n0}};
  for (std::size_t a = 0; a < 3; ++a) {
    const Index lo = std::max<Index>(0, first.q0[a] * maps_[a].src_step + reach_[a].begin);
    const Index hi = std::min(maps_[a].src, (last.q1[a] - 1) * maps_[a].src_step + reach_[a].end);
    p.at[a + 2] = std::min(lo, maps_[a].src);
    p.extent[a + 2] = std::max<Index>(0, hi - lo);
  }
  return p;
}

template <class T>
typename Gather<T>::Source Gather<T>::source(const Operands& o, Index g, const Box& b, Index k0, Index k, T* copy,
                                             const Part& once, const T* copies) const {
  const View& x = image(o);
  const Index channel = g * cs_ + k0;
  if (copy_ == Copy::none) return {static_cast<const T*>(x.data) + x.offset({b.n0, channel, 0, 0, 0}), x.stride, 0};
  Part p = copy_ == Copy::once ? once : part(b, b);
  const Index5& e = p.extent;
  Source s{copy, {k * e[2] * e[3] * e[4], 1, k * e[3] * e[4], k * e[4], k}, 0};
  if (copy_ == Copy::once) {
    s.data = copies + channel * p.volume() + (b.n0 - p.at[0]) * s.stride[0];
  } else {
    if (x.stride[1] != 1) s.stride = {k * copy_plane_, copy_plane_, e[3] * e[4], e[4], 1};
    p.at[1] = channel, p.extent[1] = k;
    copy_in(kernels_, copy, s.stride, x.at(p.at, p.extent));
  }
  for (std::size_t a = 2; a < 5; ++a) s.shift -= p.at[a] * s.stride[a];
  return s;
}

// A part of the image: [group][chunk][image][pixel][source channel]. Where planes lie, those of a pixel are lines far
// apart, which are read again for each block of columns.
template <class T>
void Gather<T>::copy_once(const Operands& o, const Part& part, T* copies) const {
  const View& x = image(o);
  const auto& [images, unused, planes, height, width] = part.extent;
  if (part.volume() == 0) return;
  const Index chunks = ceil_div(cs_, chunk_), rows = std::clamp<Index>(kCopiedPixels / width, 1, height);
  const Index pieces = ceil_div(height, rows), all = images * planes;
  parallel_for(spec_.problem.groups * chunks * all * pieces, slots(), [&](Index i, int) {
    const Index h = i % pieces * rows, plane = i / pieces % all, block = i / pieces / all;
    const Index k0 = block % chunks * chunk_, k = std::min(chunk_, cs_ - k0), channel = block / chunks * cs_ + k0;
    const Index5 at{part.at[0] + plane / planes, channel, part.at[2] + plane % planes, part.at[3] + h, part.at[4]};
    copy_in(kernels_, copies + channel * part.volume() + (plane * height + h) * width * k, {0, 1, 0, width * k, k},
            x.at(at, {1, k, 1, std::min(rows, height - h), width}));
  });
}

// Panels of one chunk, set after set and block after block: [tap][source channel][nr columns], zero in padding columns.
template <class T>
void Gather<T>::pack(const Operands& o, Index g, Index c0, Index channels, Index k0, Index k, const Slot& slot,
                     T* panels) const {
  if (panel_columns(channels) == 0) return;  // no tap reaches the image
  const Problem& p = spec_.problem;
  Index5 at{};
  at[0] = g * p.co;
  at[weight_n_] += c0;
  at[weight_k_] += k0;
  const View w = o.w.at(at, o.w.size);
  const Index taps = p.taps();
  const bool taps_dense = dense_planes(w);
  if (!one_member_ || !taps_dense) {
    for (const PhaseSet& s : sets_) {
      list_members(w, s, slot.member);
      each_block(s.columns(channels), [&](Index n0, Index n, const GatherKernel<T>& kernel) {
        pack_block(w, s, channels, n0, n, kernel.nr, k, slot, panels + n0 * s.taps * k);
      });
      panels += s.taps * round_up(s.columns(channels), kernels_.lanes) * k;
    }
    return;
  }
  // Every kernel tap belongs to at most one set: transpose [column][tap] or [column][source channel][tap] rows.
  const Index sn = w.stride[weight_n_], sk = w.stride[weight_k_];
  const auto transpose = kernels_.transpose[static_cast<int>(w.dtype)];
  T** table = slot.table;
  std::fill(table, table + taps, nullptr);
  each_block(channels, [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    const void* src = advance(w.data, w.dtype, n0 * sn);
    if (taps == 1 && sn == 1)
      return kernels_.pad[static_cast<int>(w.dtype)](panels + n0 * k, kernel.nr, src, sk, 1, k, 0, n, kernel.nr - n,
                                                     rows_ahead(w) * sk);
    T* base = panels;
    for (const PhaseSet& s : sets_) {
      Index i = 0;
      for (const Index td : s.phase[0]->members[0].tap)
        for (const Index th : s.phase[1]->members[0].tap)
          for (const Index tw : s.phase[2]->members[0].tap)
            table[(td * p.w[1] + th) * p.w[2] + tw] = base + n0 * s.taps * k + i++ * k * kernel.nr;
      base += s.taps * round_up(channels, kernels_.lanes) * k;
    }
    if (sk == taps)
      return transpose(table, taps, kernel.nr, src, nullptr, sn, static_cast<int>(n), kernel.nr, k * taps,
                       {kFetchAhead});
    for (Index c = 0; c < k; ++c) {
      const std::byte* from = advance(src, w.dtype, c * sk);
      transpose(table, taps, 0, from, nullptr, sn, static_cast<int>(n), kernel.nr, taps,
                {c + kAhead < k ? kAhead * sk : 0});
      for (Index t = 0; t < taps; ++t)
        if (table[t]) table[t] += kernel.nr;
    }
  });
}

// Where the weights of each tap and member are in those of a channel: member[tap][member].
template <class T>
void Gather<T>::list_members(const View& w, const PhaseSet& s, Index* member) const {
  const auto& [fd, fh, fw] = s.phase;
  for (std::size_t td = 0; td < fd->offset.size(); ++td)
    for (std::size_t th = 0; th < fh->offset.size(); ++th)
      for (std::size_t tw = 0; tw < fw->offset.size(); ++tw)
        for (const auto& md : fd->members)
          for (const auto& mh : fh->members)
            for (const auto& mw : fw->members)
              *member++ = md.tap[td] * w.stride[2] + mh.tap[th] * w.stride[3] + mw.tap[tw] * w.stride[4];
}

// One panel whose columns are members of a phase, or of weights with any strides.
template <class T>
void Gather<T>::pack_block(const View& w, const PhaseSet& s, Index channels, Index n0, Index n, Index nr, Index k,
                           const Slot& slot, T* panel) const {
  const Index sn = w.stride[weight_n_], taps = spec_.problem.taps();
  const bool rows_dense = sn == taps && dense_planes(w);
  const bool in_steps = w.run(weight_k_, 0, k) == k;
  // Channels of these columns: where all their taps lie in one row of w, it is loaded as a whole for each k.
  std::ptrdiff_t pick[kMaxColumns];
  Index piece[kMaxColumns + 1];
  const Index c0 = member_major_ ? 0 : n0 / s.members;
  const Index c1 = member_major_ ? channels : (n0 + n - 1) / s.members + 1;
  const bool widens = w.dtype != compute_dtype<T>;
  const bool in_row = rows_dense && (!widens || (c1 - c0) * taps <= kWidened * n);
  const Index first = in_row ? c0 * sn : 0;
  for (Index tap = 0; tap < s.taps; ++tap) {
    const Index* const offset = slot.member + tap * s.members;
    // Where the columns are, and where those begin that do not follow the one before.
    Index channel = member_major_ ? n0 % channels : c0, member = member_major_ ? n0 / channels : n0 % s.members;
    Index pieces = 0;
    for (Index j = 0; j < n; ++j) {
      pick[j] = w.along(weight_n_, channel) + offset[member] - first;
      if (j == 0 || pick[j] != pick[j - 1] + 1) piece[pieces++] = j;
      if (member_major_) {
        if (++channel == channels) channel = 0, ++member;
      } else if (++member == s.members) {
        member = 0, ++channel;
      }
    }
    piece[pieces] = n;
    if (in_steps && (pieces - 1) * kPiece < n) {
      for (const Index* i = piece; i < piece + pieces; ++i)
        kernels_.pad[static_cast<int>(w.dtype)](panel + i[0], nr, advance(w.data, w.dtype, first + pick[i[0]]),
                                                w.stride[weight_k_], 1, k, 0, i[1] - i[0], i[1] == n ? nr - n : 0,
                                                rows_ahead(w) * w.stride[weight_k_]);
      panel += k * nr;
      continue;
    }
    if (in_steps && w.stride[weight_k_] == 1) {  // input gradients by weights [tap][input channel][output channel]
      T* table[] = {panel};
      kernels_.transpose[static_cast<int>(w.dtype)](table, 1, nr, advance(w.data, w.dtype, first), pick, 1,
                                                    static_cast<int>(n), static_cast<int>(nr), k, {});
      panel += k * nr;
      continue;
    }
    for (Index c = 0; c < k; ++c, panel += nr) {
      const std::byte* from = advance(w.data, w.dtype, w.along(weight_k_, c) + first);
      std::fill(panel + n, panel + nr, T{});
      if (s.members == 1) {
        for (Index j = 0, run = 0; j < n; j += run) {
          run = w.run(weight_n_, n0 + j, n - j);
          load_row(kernels_, panel + j, advance(from, w.dtype, pick[j]), w.dtype, sn, run);
        }
        continue;
      }
      if (in_row) {
        if (tap == 0 && c + kAhead < k && !member_major_)
          prefetch_row(advance(from, w.dtype, kAhead * w.stride[weight_k_]), w.dtype, (c1 - c0) * taps);
        const T* row = widens ? slot.taps : reinterpret_cast<const T*>(from);
        if (widens) load_row(kernels_, slot.taps, from, w.dtype, 1, (c1 - c0) * taps);
        for (Index j = 0; j < n; ++j) panel[j] = row[pick[j]];
        continue;
      }
      for (Index j = 0; j < n; ++j) load_row(kernels_, panel + j, advance(from, w.dtype, pick[j]), w.dtype, 1, 1);
    }
  }
}

#define CONVBWD_INSTANTIATE(T)                                                                                    \
  template Gather<T>::Part Gather<T>::part(const Box&, const Box&) const;                                         \
  template void Gather<T>::copy_once(const Operands&, const Part&, T*) const;                                     \
  template Gather<T>::Source Gather<T>::source(const Operands&, Index, const Box&, Index, Index, T*, const Part&, \
                                               const T*) const;                                                   \
  template void Gather<T>::pack(const Operands&, Index, Index, Index, Index, Index, const Slot&, T*) const;
CONVBWD_INSTANTIATE(float)
CONVBWD_INSTANTIATE(double)

}  // namespace convbwd
