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
  bool up = false;   // the first tap along h is the lowest one
  Index blocks = 0;  // of rows; none where taps lie otherwise

  Range block(Index i) const { return piece_of(height, i, blocks); }
  /// Whether rows of so many results a pixel are worth computing together. Sums of few pixels wait for their products:
  /// rows of 16 with 3 taps took as long as one by one, rows of 28 with 2 taps 1.07 times as long (Zen 5).
  bool serves(Index results, Index rows, Index width) const {
    constexpr Index kFewPixels = 16;
    return blocks > 0 && results == 1 && rows > step && width > (height > 2 ? kFewPixels : 2 * kFewPixels);
  }
};

/// Whether rows of several results a pixel are formed one by one where they belong, without columns between them that
/// are dropped and without a copy: if their sums are enough to wait for none, and whole vectors take less time than
/// those columns, `row` pixels a row with them, and the copy, which is that of so many products (20 problems, Zen 5).
inline bool row_by_row(Index results, Index width, Index row, Index products, Index lanes) {
  constexpr Index kLeastSums = 8, kCopying = 13;
  const Index vectors = ceil_div(width, lanes);
  return results * vectors >= kLeastSums && 9 * vectors * lanes * products <= 8 * row * (products + kCopying);
}

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
  return {std::abs(step) / src_step, height, step < 0, ceil_div(height, kHighest)};
}

/// Calls f(d, h, w) for the taps of a set by their numbers along each axis, in the order of sums over one channel.
template <class F>
void each_tap(const PhaseSet& s, const Stack& stack, F&& f) {
  const auto size = [&](std::size_t axis) { return s.phase[axis]->offset.size(); };
  for (std::size_t d = 0; d < size(0); ++d) {
    if (stack.blocks == 0)
      for (std::size_t h = 0; h < size(1); ++h)
        for (std::size_t w = 0; w < size(2); ++w) f(d, h, w);
    for (Index i = 0; i < stack.blocks; ++i)
      for (std::size_t w = 0; w < size(2); ++w)
        for (Index h = stack.block(i).begin; h < stack.block(i).end; ++h)
          f(d, static_cast<std::size_t>(stack.up ? stack.height - 1 - h : h), w);
  }
}

/// Calls f(first, columns, height) for the straight sums over so many source channels: columns of taps from tap `first`
/// on, in that order, channel by channel.
template <class F>
void each_straight_sum(const PhaseSet& s, const Stack& stack, Index channels, F&& f) {
  Index first = 0;
  const auto cut = [&](Index columns, Index height) {
    const Index most = straight(columns * height) / height;
    for (Index c = 0; c < columns; c += most) {
      const Index now = std::min(most, columns - c);
      f(first, now, height);
      first += now * height;
    }
  };
  const Index planes = channels * static_cast<Index>(s.phase[0]->offset.size()),
              width = static_cast<Index>(s.phase[2]->offset.size());
  if (s.taps == 0) return;
  if (stack.blocks < 2) return stack.blocks ? cut(planes * width, stack.height) : cut(channels * s.taps, 1);
  for (Index i = 0; i < planes * stack.blocks; ++i) cut(width, stack.block(i % stack.blocks).size());
}

}  // namespace convbwd
