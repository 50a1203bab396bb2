#include "engine/rows_weights.h"

#include <cstring>

#include "engine/stack.h"

namespace convbwd {
namespace {

constexpr Index kWholeBlock = 8;  // results of the highest kernels, copied as vectors

}  // namespace

template <class T>
RowsWeights<T>::RowsWeights(const PassSpec& spec, const KernelSet<T>& kernels, const std::array<AxisMap, 3>& maps,
                            const std::vector<PhaseSet>& sets)
    : Roles(spec),
      problem_(spec.problem),
      kernels_(kernels),
      sets_(sets),
      single_(plain(maps) && spec.problem.taps() == 1) {
  const Index3 k = problem_.w;
  for (const PhaseSet& s : sets_) {
    const auto& [fd, fh, fw] = s.phase;
    const Stack stack = stack_of(s, cd_, maps[1].src_step);
    auto& taps = tap_.emplace_back();
    for (const auto& md : fd->members)
      for (const auto& mh : fh->members)
        for (const auto& mw : fw->members)
          each_tap(s, stack, [&](std::size_t d, std::size_t h, std::size_t w) {
            taps.push_back((md.tap[d] * k[1] + mh.tap[h]) * k[2] + mw.tap[w]);
          });
  }
  if (cd_ == 1) list_runs();
}

template <class T>
void RowsWeights<T>::list_runs() {
  for (std::size_t set = 0; set < sets_.size(); ++set) {
    const Index taps = sets_[set].taps, members = sets_[set].members;
    for (Index m0 = 0; m0 < members && taps; m0 += kernels_.rows_mr) {
      const Index m1 = m0 + block(members, m0);
      const auto tap = [&](Index t, Index m) { return tap_[set][static_cast<std::size_t>(m * taps + t)]; };
      bool side_by_side = true;
      for (Index t = 0; t < taps; ++t)
        for (Index m = m0 + 1; m < m1; ++m) side_by_side &= tap(t, m) == tap(t, m - 1) + 1;
      const Index run = side_by_side ? m1 - m0 : 1;
      for (Index t = 0; t < taps; ++t)
        for (Index m = m0; m < m1; m += run) runs_.push_back(tap(t, m));
      of_blocks_.push_back({(m1 - m0) * taps, run});
    }
  }
}

template <class T>
Index RowsWeights<T>::elements(Index channels) const {
  Index elements = 0;
  for (const PhaseSet& s : sets_) elements += s.columns(cd_) * channels * s.taps;
  return elements;
}

template <class T>
bool RowsWeights<T>::pack(const View& w, Index g, Index from, Index count, T* weights, T* taps, T** table) const {
  if (single_) {
    pack_single(w, g, from, count, weights);
    return true;  // no pixel meets a border
  }
  if (cd_ > 1 && dense_planes(w) && one_member(sets_))
    pack_by_taps(w, g, from, count, weights, table);
  else
    pack_by_channels(w, g, from, count, weights, taps);
  return all_finite(weights, elements(count));
}

// Single taps.
template <class T>
void RowsWeights<T>::pack_single(const View& w, Index g, Index from, Index count, T* weights) const {
  for (Index m0 = 0; m0 < cd_; m0 += kernels_.rows_mr) {
    const Index results = block(cd_, m0);
    T* to = weights + m0 * count;
    if (w.dtype == compute_dtype<T> && w.plain()) {  // rows of a few elements, again for each task
      const T* row = static_cast<const T*>(w.data) + w.offset(at(g, from, m0));
      for (Index k = 0; k < count; ++k, row += w.stride[weight_k_])
        for (Index i = 0; i < results; ++i) *to++ = row[i * w.stride[weight_n_]];
      continue;
    }
    Index5 size{1, 1, 1, 1, 1}, step{};
    size[weight_k_] = count, size[weight_n_] = results;
    step[weight_k_] = results, step[weight_n_] = 1;
    copy_in(kernels_, to, step, w.at(at(g, from, m0), size));
  }
}

// Where a tap has one result a channel: results of a block, whose taps are rows of w, are transposed. One by one they
// take three times as long.
template <class T>
void RowsWeights<T>::pack_by_taps(const View& w, Index g, Index from, Index count, T* weights, T** table) const {
  const auto transpose = kernels_.transpose[static_cast<int>(w.dtype)];
  const Index all = problem_.taps();
  std::fill_n(table, all, nullptr);
  for (Index m0 = 0; m0 < cd_; m0 += kernels_.rows_mr) {
    const Index results = block(cd_, m0);
    const int rows = static_cast<int>(results);
    for (Index k = 0; k < count; ++k) {
      T* of_set = weights;
      for (std::size_t set = 0; set < sets_.size(); ++set) {
        const Index taps = sets_[set].taps;
        for (Index t = 0; t < taps; ++t)
          table[tap_[set][static_cast<std::size_t>(t)]] = of_set + (m0 * count + k * results) * taps + t * results;
        of_set += cd_ * count * taps;
      }
      transpose(table, all, 0, advance(w.data, w.dtype, w.offset(at(g, from + k, m0))), nullptr, w.stride[weight_n_],
                rows, rows, all, {});
    }
  }
}

template <class T>
void RowsWeights<T>::pack_by_channels(const View& w, Index g, Index from, Index count, T* weights, T* taps) const {
  const Index3 size = problem_.w;
  const bool dense = dense_planes(w), in_place = dense && w.dtype == compute_dtype<T>;
  for (Index k = 0; k < count; ++k)
    for (Index c = 0; c < cd_; ++c) {
      Index5 i = at(g, from + k, c);
      const T* source = in_place ? static_cast<const T*>(w.data) + w.offset(i) : taps;
      for (i[2] = 0; i[2] < (dense ? 1 : size[0]) && !in_place; ++i[2])
        for (i[3] = 0; i[3] < (dense ? 1 : size[1]); ++i[3])
          load_row(kernels_, taps + (i[2] * size[1] + i[3]) * size[2], advance(w.data, w.dtype, w.offset(i)), w.dtype,
                   w.stride[4], dense ? problem_.taps() : size[2]);
      T* of_set = weights;
      if (cd_ == 1) {
        const Index* tap = runs_.data();
        for (const auto& [elements, run] : of_blocks_) {
          T* to = of_set + k * elements;
          const T* const end = to + elements;
          if (run == kWholeBlock)
            for (; to < end; to += kWholeBlock) std::memcpy(to, source + *tap++, kWholeBlock * sizeof(T));
          else
            for (; to < end; to += run, ++tap)
              for (Index j = 0; j < run; ++j) to[j] = source[*tap + j];
          of_set += elements * count;
        }
        continue;
      }
      for (std::size_t set = 0; set < sets_.size(); ++set) {
        const PhaseSet& s = sets_[set];
        const Index m = s.columns(cd_);
        Index result = c * s.members;
        for (auto tap = tap_[set].begin(); tap != tap_[set].end(); ++result) {
          const Index m0 = result / kernels_.rows_mr * kernels_.rows_mr, results = block(m, m0);
          T* to = of_set + m0 * count * s.taps + k * s.taps * results + result - m0;
          for (Index t = 0; t < s.taps; ++t, to += results) *to = source[*tap++];
        }
        of_set += m * count * s.taps;
      }
    }
}

template class RowsWeights<float>;
template class RowsWeights<double>;

}  // namespace convbwd
