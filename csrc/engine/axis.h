// Layer engine: what one spatial axis of a convolution looks like from its destination. Integers only.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "base/view.h"

namespace convbwd {

/// How many there are of sizes whose product may not fit 64 bits.
double count_of(auto... factors) { return (static_cast<double>(factors) * ...); }

/// [begin, end) of an axis.
struct Range {
  Index begin, end;
  Index size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
/// Piece i of so many, of nearly the same size.
inline Range piece_of(Index size, Index i, Index pieces) { return {i * size / pieces, (i + 1) * size / pieces}; }

/// The destination positions first + q*dst_step, q < count, that read the source positions q*src_step + offset[t].
/// Members are such sets that share all of that and differ in where they are and which kernel taps they use (patches:
/// every phase of the stride is a member of one set); they become columns of one multiplication.
struct Phase {
  struct Member {
    Index first;
    std::vector<Index> tap;  // kernel index for each offset
  };
  /// A range of q on which the same offsets lie inside the source; or, by taps, one of them.
  struct Run {
    Index begin, end;
    Range inside;  // of the offsets, which grow
  };
  Index count = 0;
  std::vector<Index> offset;
  std::vector<Member> members;
  std::vector<Run> runs;
};

/// A convolution along one axis, destination by destination:
/// unknown y: dst o reads src o*stride + t*dilation - pad (one phase); unknown x: dst i reads every src o with
/// i + pad - t*dilation = o*stride (a phase for each remainder of i, none of them ever inserts or scatters zeros).
struct AxisMap {
  Index dst = 1, src = 1, dst_step = 1, src_step = 1;
  std::vector<Phase> phases;
  Index origin = 0;  // where the positions of pixel 0 begin; negative where some of them lie outside the destination

  /// Destination positions that pixels [q0, q1) of every phase span together.
  Range positions(Index q0, Index q1) const {
    return {std::max<Index>(0, origin + q0 * dst_step), std::min(origin + q1 * dst_step, dst)};
  }
  bool holds(Index position) const { return position >= 0 && position < dst; }
};

/// The pixels of one combination of phases, an axis each, and what all of them read.
struct PhaseSet {
  std::array<const Phase*, 3> phase;
  Index taps, members;
  Index columns(Index channels) const { return channels * members; }
};
PhaseSet phase_set(const Phase& d, const Phase& h, const Phase& w);
std::vector<PhaseSet> phase_sets(const std::array<AxisMap, 3>& maps);
/// Destination positions that a box of so many pixels a phase covers.
inline Index3 positions_of(const std::array<AxisMap, 3>& maps, const Index3& box) {
  return {box[0] * maps[0].dst_step, box[1] * maps[1].dst_step, box[2] * maps[2].dst_step};
}
/// The most pixels of any phase, an axis.
Index3 most_pixels(const std::array<AxisMap, 3>& maps);

/// Whether a pixel has one result a channel, and taps for it.
inline bool one_result(const std::vector<PhaseSet>& sets) {
  return sets.size() == 1 && sets[0].members == 1 && sets[0].taps > 0;
}

/// Whether every tap is one of a pixel's results at most.
inline bool one_member(const std::vector<PhaseSet>& sets) {
  return std::all_of(sets.begin(), sets.end(), [](const PhaseSet& s) { return s.members == 1 || s.taps == 0; });
}

/// Destination positions that read nothing.
std::vector<Index> uncovered(const AxisMap& map);

/// Whether every pixel reads the source at its own place only.
bool plain(const std::array<AxisMap, 3>& maps);

/// Pixels [q0, q1) of every phase.
struct PixelBox {
  Index3 q0, q1;
  /// How many of them a set has, an axis.
  Index3 extent(const PhaseSet& s) const {
    Index3 e;
    for (std::size_t a = 0; a < 3; ++a) e[a] = std::max<Index>(0, std::min(q1[a], s.phase[a]->count) - q0[a]);
    return e;
  }
  /// Where a member of the pixel q0[axis] + q is.
  Index position(const std::array<AxisMap, 3>& maps, std::size_t axis, Index q, const Phase::Member& m) const {
    return (q0[axis] + q) * maps[axis].dst_step + m.first;
  }
  /// Destination positions that they span together, an axis.
  std::array<Range, 3> positions(const std::array<AxisMap, 3>& maps) const {
    return {maps[0].positions(q0[0], q1[0]), maps[1].positions(q0[1], q1[1]), maps[2].positions(q0[2], q1[2])};
  }
};
/// Box `i` of [0, count) cut into boxes of `step` pixels, and their number.
PixelBox pixel_box(Index i, const Index3& count, const Index3& step);
Index pixel_boxes(const Index3& count, const Index3& step);

struct AxisSizes {
  Index x, y, kernel, stride, dilation, pad;
};

AxisMap map_forward(const AxisSizes& a);
AxisMap map_transposed(const AxisSizes& a);
/// map_transposed, but phases that read the same stay apart, unless they are those of a single window.
AxisMap map_apart(const AxisSizes& a);
/// map_transposed, but windows that lie side by side are pixels of a single phase whose members are their positions,
/// those of the first and the last pixel that lie outside the destination too, unless these are most of all.
AxisMap map_patches(const AxisSizes& a);

/// Makes a run of each offset, on which that lies inside: they overlap, and pixels that read nothing are on none.
void run_by_taps(AxisMap& map);

/// Output positions whose tap t lies inside x.
Range valid_outputs(const AxisSizes& a, Index tap);
/// Taps of an output position that lie inside x.
Range valid_taps(const AxisSizes& a, Index output);
/// Taps that lie inside x for no output.
std::vector<Index> idle_taps(const AxisSizes& a);

/// Taps, neighbours, that lie inside x for the same outputs.
struct TapClass {
  Range outputs, taps;
};
std::vector<TapClass> tap_classes(const AxisSizes& a);

inline Index floor_div(Index a, Index b) { return a >= 0 ? a / b : (a + 1) / b - 1; }
inline Index ceil_div(Index a, Index b) { return -floor_div(-a, b); }
inline Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }
/// Of the fewest parts of at most `most` each, as even as they can be.
inline Index even_part(Index size, Index most) { return ceil_div(size, ceil_div(size, std::max<Index>(1, most))); }
/// How far apart rows of `count` elements lie: an odd number of cache lines, or vectors, so that they do not fall on
/// the same cache sets.
inline Index odd_multiple(Index count, Index line) { return (ceil_div(count, line) | 1) * line; }

}  // namespace convbwd
