// Layer engine: taps that read rows of a source one below the other, of which neighbouring results share most.
#pragma once

#include <cstdlib>

#include "engine/rows_out.h"

namespace convbwd {

/// The taps of a set of a single channel, if those along h lie evenly, `step` pixels apart. Sums are formed plane by
/// plane, of blocks of rows of taps, of columns of those: each from the top of the source downwards. That is so where a
/// pixel has several results, too: how many there are depends on the size of the image, which must not change its bits.
struct Stack {
  Index step = 0, height = 0;
  bool up = false;    // the first tap along h is the lowest one
  Index blocks = 0;   // of rows; none where taps lie otherwise
  Index columns = 0;  // of a block

  Range block(Index i) const { return {i * height / blocks, (i + 1) * height / blocks}; }
  /// Blocks whose columns have one height in all of so many planes: all of them, or those of one plane.
  Index together(Index planes) const { return blocks == 1 ? planes : 1; }
  /// Whether rows of so many results a pixel are worth computing together. Sums of few pixels wait for their products:
  /// rows of 16 with 3 taps took as long as one by one, rows of 28 with 2 taps 1.07 times as long (Zen 5).
  bool serves(Index results, Index rows, Index width) const {
    constexpr Index kFewPixels = 16;
    return blocks > 0 && results == 1 && rows > step && width > (height > 2 ? kFewPixels : 2 * kFewPixels);
  }
};

/// Of a set of so many channels, where pixels are `src_step` source positions apart along h.
inline Stack stack_of(const PhaseSet& s, Index channels, Index src_step) {
  // High columns have most rows in common, but lanes, which sum in the same order, take 1.4 times as long with columns
  // of 29.
  constexpr Index kHighest = 12;
  const std::vector<Index>& offset = s.phase[1]->offset;
  const auto height = static_cast<Index>(offset.size());
  if (s.taps == 0 || channels != 1 || height < 2) return {};
  const Index step = offset[1] - offset[0];
  for (std::size_t h = 2; h < offset.size(); ++h)
    if (offset[h] - offset[h - 1] != step) return {};
  if (step % src_step != 0) return {};
  return {std::abs(step) / src_step, height, step < 0, ceil_div(height, kHighest),
          static_cast<Index>(s.phase[2]->offset.size())};
}
/// Of so many columns of a block, those that are summed straight.
inline Index straight_columns(Index columns, Index height) { return straight(columns * height) / height; }

/// Calls f(part, d, h, w) for the taps of a set by their numbers along each axis, in the order of sums over one
/// channel. Those of a part are summed straight.
template <class F>
void each_tap(const PhaseSet& s, const Stack& stack, F&& f) {
  if (s.taps == 0) return;
  const auto size = [&](std::size_t axis) { return static_cast<Index>(s.phase[axis]->offset.size()); };
  if (stack.blocks == 0) {
    const Index step = straight(s.taps);
    Index place = 0;
    for (Index d = 0; d < size(0); ++d)
      for (Index h = 0; h < size(1); ++h)
        for (Index w = 0; w < size(2); ++w) f(place++ / step, d, h, w);
    return;
  }
  Index part = 0, column = 0;
  for (Index d = 0; d < size(0); ++d)
    for (Index i = 0; i < stack.blocks; ++i) {
      const Range rows = stack.block(i);
      const Index most = straight_columns(stack.together(size(0)) * size(2), rows.size());
      for (Index w = 0; w < size(2); ++w, ++column) {
        if (column == most) ++part, column = 0;
        for (Index h = rows.begin; h < rows.end; ++h) f(part, d, stack.up ? stack.height - 1 - h : h, w);
      }
      if (stack.blocks > 1) ++part, column = 0;
    }
}

}  // namespace convbwd
