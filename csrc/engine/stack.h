// Layer engine: taps that read rows of a source one below the other, of which neighbouring results share most.
#pragma once

#include <cstdlib>

#include "engine/rows_out.h"

namespace convbwd {

/// The taps along h of a set whose pixels have a single result, each `step` pixels below the last one (above it, where
/// negative). A height of 1 where they lie otherwise, or their products are too many for one straight sum.
struct Stack {
  Index height = 1, step = 0;

  /// Of so many products, those that are summed straight: whole columns of taps.
  Index straight(Index products) const { return convbwd::straight(products) / height * height; }
  /// Whether results are worth computing together. Sums of few pixels wait for their products: rows of 28 took 1.1
  /// times as long as one by one (Zen 5).
  bool serves(Index rows, Index width) const {
    constexpr Index kFewPixels = 32;
    return height > 1 && rows > std::abs(step) && width > kFewPixels;
  }
};

/// Of a set of so many channels, where pixels are `src_step` source positions apart along h.
inline Stack stack_of(const PhaseSet& s, Index channels, Index src_step) {
  const std::vector<Index>& offset = s.phase[1]->offset;
  const auto height = static_cast<Index>(offset.size());
  if (s.columns(channels) != 1 || height < 2 || height > kStraight) return {};
  const Index step = offset[1] - offset[0];
  for (std::size_t h = 2; h < offset.size(); ++h)
    if (offset[h] - offset[h - 1] != step) return {};
  return step % src_step == 0 ? Stack{height, step / src_step} : Stack{};
}

/// Calls f(place, d, h, w) for taps by their numbers along each axis, those of `depths` and `heights` along d and h, in
/// the order in which rows and lanes sum them; `place` counts those of the whole set.
template <class F>
void each_tap(const PhaseSet& s, const Stack& stack, const std::vector<int>& depths, const std::vector<int>& heights,
              F&& f) {
  const std::size_t height = s.phase[1]->offset.size(), width = s.phase[2]->offset.size();
  for (const int depth : depths) {
    const auto d = static_cast<std::size_t>(depth);
    if (stack.height == 1) {
      for (const int row : heights)
        for (std::size_t w = 0, h = static_cast<std::size_t>(row); w < width; ++w)
          f((d * height + h) * width + w, d, h, w);
      continue;
    }
    const bool down = stack.step > 0;
    for (std::size_t w = 0; w < width; ++w)
      for (std::size_t i = 0; i < heights.size(); ++i) {
        const auto h = static_cast<std::size_t>(heights[down ? i : heights.size() - 1 - i]);
        f((d * width + w) * height + (down ? h : height - 1 - h), d, h, w);
      }
  }
}

}  // namespace convbwd
