// Layer engine: what the kernel of depthwise convolutions (DepthwiseFn) is called with, for unknown x and unknown y.
#pragma once

#include <vector>

#include "engine/lanes.h"
#include "engine/stack.h"

namespace convbwd {

/// The calls for a block of channels whose pixels are so many elements apart along each axis, in the source and among
/// the results. The sums are those of rows, where taps in the padding count too.
struct LaneCalls {
  /// Pixels that read the same taps, rows of one depth after the other, and those taps that are summed straight.
  struct Call {
    Index3 count;
    Index from, to;    // the first one's source and result
    bool first, last;  // of the calls for these pixels, whose sums are added in order
    std::vector<DepthwiseTap> taps;
  };

  Index3 source{}, results{};
  std::vector<Call> list;

  /// Lists them; false where they are too many. Weights are [tap][lane]. Taps that lie outside the source are left out,
  /// along rows if these have no zeros around them.
  bool make(const std::array<AxisMap, 3>& maps, const LanePlanes& weights, bool bordered);
  /// Pixels along an axis, in the source and among the results.
  static Index3 steps(const std::array<AxisMap, 3>& maps, Index AxisMap::* step, const Index3& apart) {
    return {maps[0].*step * apart[0], maps[1].*step * apart[1], maps[2].*step * apart[2]};
  }
};

}  // namespace convbwd
