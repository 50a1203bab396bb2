// Panels of weights: see gather.h.
#include <numeric>

#include "engine/gather.h"

namespace convbwd {

constexpr int kMaxColumns = 64;  // of a kernel

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
      each_block(s, channels, [&](Index n0, Index n, const GatherKernel<T>& kernel) {
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
  std::ptrdiff_t row[kMaxColumns];
  std::iota(row, row + kMaxColumns, 0);
  each_block(sets_[0], channels, [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    const void* src = advance(w.data, w.dtype, n0 * sn);
    const auto point = [&](Index shift) {
      T* base = panels + shift;
      for (const PhaseSet& s : sets_) {
        Index i = 0;
        for (const Index td : s.phase[0]->members[0].tap)
          for (const Index th : s.phase[1]->members[0].tap)
            for (const Index tw : s.phase[2]->members[0].tap)
              table[(td * p.w[1] + th) * p.w[2] + tw] = base + n0 * s.taps * k + i++ * k * kernel.nr;
        base += s.taps * round_up(channels, kernels_.lanes) * k;
      }
    };
    if (sk == taps) {
      point(0);
      transpose(table, taps, kernel.nr, src, row, sn, static_cast<int>(n), kernel.nr, k * taps);
      return;
    }
    for (Index c = 0; c < k; ++c) {
      point(c * kernel.nr);
      const void* from = advance(src, w.dtype, c * sk);
      if (taps == 1 && sn == 1) {
        load_row(kernels_, table[0], from, w.dtype, 1, n);
        std::fill(table[0] + n, table[0] + kernel.nr, T{});
      } else {
        transpose(table, taps, 0, from, row, sn, static_cast<int>(n), kernel.nr, taps);
      }
    }
  });
}

// One panel whose columns are members of a phase, or of weights with any strides.
template <class T>
void Gather<T>::pack_block(const View& w, const PhaseSet& s, Index channels, Index n0, Index n, Index nr, Index k,
                           const Slot& slot, T* panel) const {
  const Problem& p = spec_.problem;
  const Index sn = w.stride[weight_n_], taps = p.taps();
  const auto& [fd, fh, fw] = s.phase;
  const bool rows_dense = sn == taps && dense_planes(w);
  // Channels of these columns: where all their taps lie in one row of w, it is loaded as a whole for each k.
  Index pick[kMaxColumns];
  const Index c0 = member_major_ ? 0 : n0 / s.members;
  const Index c1 = member_major_ ? channels : (n0 + n - 1) / s.members + 1;
  for (std::size_t td = 0; td < fd->offset.size(); ++td)
    for (std::size_t th = 0; th < fh->offset.size(); ++th)
      for (std::size_t tw = 0; tw < fw->offset.size(); ++tw) {
        Index m = 0;
        bool dense = !member_major_ && w.stride[4] == 1 && sn == s.members;  // columns follow each other in w
        for (const auto& md : fd->members)
          for (const auto& mh : fh->members)
            for (const auto& mw : fw->members) {
              slot.member[m] = md.tap[td] * w.stride[2] + mh.tap[th] * w.stride[3] + mw.tap[tw] * w.stride[4];
              dense &= m == 0 || slot.member[m] == slot.member[m - 1] + 1;
              ++m;
            }
        // Where the columns are: in w, or in the row of their channels.
        Index channel = member_major_ ? n0 % channels : c0, member = member_major_ ? n0 / channels : n0 % s.members;
        for (Index j = 0; j < n; ++j) {
          pick[j] = (rows_dense ? (channel - c0) * taps : w.along(weight_n_, channel)) + slot.member[member];
          if (member_major_) {
            if (++channel == channels) channel = 0, ++member;
          } else if (++member == s.members) {
            member = 0, ++channel;
          }
        }
        for (Index c = 0; c < k; ++c, panel += nr) {
          const void* from = advance(w.data, w.dtype, w.along(weight_k_, c));
          std::fill(panel + n, panel + nr, T{});
          if (dense) {
            load_row(kernels_, panel, advance(from, w.dtype, n0 + slot.member[0]), w.dtype, 1, n);
            continue;
          }
          if (s.members == 1) {
            for (Index j = 0, run = 0; j < n; j += run) {
              run = w.run(weight_n_, n0 + j, n - j);
              const Index at = w.along(weight_n_, n0 + j) + slot.member[0];
              load_row(kernels_, panel + j, advance(from, w.dtype, at), w.dtype, sn, run);
            }
            continue;
          }
          if (rows_dense) {
            const void* rows = advance(from, w.dtype, c0 * sn);
            const T* row = w.dtype == compute_dtype<T> ? static_cast<const T*>(rows) : slot.taps;
            if (row == slot.taps) load_row(kernels_, slot.taps, rows, w.dtype, 1, (c1 - c0) * taps);
            for (Index j = 0; j < n; ++j) panel[j] = row[pick[j]];
            continue;
          }
          for (Index j = 0; j < n; ++j) load_row(kernels_, panel + j, advance(from, w.dtype, pick[j]), w.dtype, 1, 1);
        }
      }
}

#define CONVBWD_INSTANTIATE(T) \
  template void Gather<T>::pack(const Operands&, Index, Index, Index, Index, Index, const Slot&, T*) const;
CONVBWD_INSTANTIATE(float)
CONVBWD_INSTANTIATE(double)

}  // namespace convbwd
