// Layer engine: weights as the kernels of rows (engine/rows.cpp) read them.
#pragma once

#include <vector>

#include "engine/pass.h"

namespace convbwd {

/// Packs weights for blocks of at most rows_mr results: [set][block of results][source channel][tap][result].
template <class T>
class RowsWeights : Roles {
 public:
  /// `sets`, of these maps, must stay.
  RowsWeights(const PassSpec& spec, const KernelSet<T>& kernels, const std::array<AxisMap, 3>& maps,
              const std::vector<PhaseSet>& sets);

  /// Of so many source channels.
  Index elements(Index channels) const;
  /// Those of a group, `count` source channels from `from` on. `taps` and `table` are scratch of a size for each tap.
  /// Returns false where a zero border may spoil products because not all are finite.
  bool pack(const View& w, Index g, Index from, Index count, T* weights, T* taps, T** table) const;

 private:
  void list_runs();
  void pack_single(const View& w, Index g, Index from, Index count, T* weights) const;
  void pack_by_taps(const View& w, Index g, Index from, Index count, T* weights, T** table) const;
  void pack_by_channels(const View& w, Index g, Index from, Index count, T* weights, T* taps) const;
  Index5 at(Index g, Index k, Index n) const {
    Index5 i{g * problem_.co, 0, 0, 0, 0};
    i[weight_k_] += k, i[weight_n_] += n;
    return i;
  }
  Index block(Index results, Index first) const { return std::min<Index>(kernels_.rows_mr, results - first); }

  /// Weights of a block of results from a source channel, `run` of which lie one behind the other in w.
  struct OfBlock {
    Index size, run;
  };

  const Problem problem_;
  const KernelSet<T>& kernels_;
  const std::vector<PhaseSet>& sets_;
  const bool single_;                    // a tap for every pixel, at its own place
  std::vector<std::vector<Index>> tap_;  // of each set: [member][tap], its index among the taps of w
  // Where a source has one channel of results: the taps with which the runs begin, and the blocks that they make up.
  std::vector<Index> runs_;
  std::vector<OfBlock> of_blocks_;
};

}  // namespace convbwd
