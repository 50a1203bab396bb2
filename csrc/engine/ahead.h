// Layer engine: fetching what will be read or written next while a kernel computes.
#pragma once

#include "base/problem.h"
#include "engine/axis.h"
#include "format/copy.h"

namespace convbwd {

/// How many rows of weights ahead those are fetched of which a panel takes a few columns: with weights of 2 to 19 MB
/// packing and products take 0.8 to 1 of the time, half or twice as far as long (Zen 3). Near ones are not fetched.
inline Index rows_ahead(const View& w) {
  constexpr Index kAhead = 16, kFar = 1 << 20;  // rows, bytes
  return bytes_of(w) > kFar ? kAhead : 0;
}

/// Whether images come from memory and have so many products that what is needed next arrives while they are computed.
inline bool fetched_ahead(const Problem& p, const View& source, const View& other) {
  constexpr Index kBytes = 12 << 20;
  constexpr double kProducts = 6;  // an element of both: with fewer, as of depthwise 3x3 windows, prefetchers do better
  const auto elements = static_cast<double>(p.n * p.groups * (p.ci * p.x_plane() + p.co * p.y_plane()));
  return bytes_of(source) + bytes_of(other) > kBytes && p.products() > kProducts * elements;
}

/// Fetches a few lines of a block of an image after each call of a kernel: they arrive while it computes. Fetched all
/// at once they fill the processor's list of misses, and it waits.
class Ahead {
  static constexpr Index kLine = 64;

 public:
  Ahead() = default;
  /// Of `runs` runs of so many bytes, `stride` bytes apart, while so much work is done.
  Ahead(const void* first, Index bytes, Index runs, Index stride, Index work)
      : at_(static_cast<const std::byte*>(first)),
        lines_(ceil_div(bytes, kLine) * runs),
        run_(ceil_div(bytes, kLine)),
        left_(run_),
        jump_(stride - run_ * kLine),
        share_(static_cast<double>(lines_) / static_cast<double>(std::max<Index>(1, work))) {}
  /// Of a block whose channels are runs in memory, while so much work is done; of others nothing.
  Ahead(const View& v, Index work) {
    const Index plane = v.size[3] * v.size[4];
    if (!v.plain() || v.stride[4] != 1 || v.stride[3] != v.size[4] || (v.size[2] > 1 && v.stride[2] != plane)) return;
    const auto item = static_cast<Index>(size_of(v.dtype));
    Index run = v.size[2] * plane, runs = v.size[1];
    if (v.stride[1] == run) run *= runs, runs = 1;
    *this = Ahead(v.data, run * item, runs, v.stride[1] * item, work);
  }
  bool done() const { return lines_ == 0; }
  /// After so much of it.
  void next(Index work) {
    due_ += static_cast<double>(work) * share_;
    while (const Index count = due()) {
      const std::byte* line = take(count);
      for (Index i = 0; i < count; ++i, line += kLine) __builtin_prefetch(line);
    }
  }
  /// For a kernel that does so much of it in so many steps, each of which fetches a line at most; nothing if all was.
  Meanwhile next(Index work, Index steps) {
    if (done()) return {};
    due_ += static_cast<double>(work) * share_;
    const Index step = ceil_div(std::min(due(), steps) * kLine, std::max<Index>(1, steps));
    return {take(std::min(due(), steps * step / kLine)), step};
  }

 private:
  Index due() const { return std::min({static_cast<Index>(due_), lines_, left_}); }  // of the lines of this run
  const std::byte* take(Index count) {
    const std::byte* const first = at_;
    at_ += count * kLine, lines_ -= count, left_ -= count, due_ -= static_cast<double>(count);
    if (left_ == 0) at_ += jump_, left_ = run_;
    return first;
  }

  friend class InTurn;
  const std::byte* at_ = nullptr;
  Index lines_ = 0, run_ = 0, left_ = 0, jump_ = 0;
  double share_ = 0, due_ = 0;
};

/// One block after the other, both while the work is done that either was made for.
class InTurn {
 public:
  InTurn() = default;
  InTurn(const Ahead& first, const Ahead& second) : first_(first), second_(second) {
    first_.share_ = second_.share_ = first.share_ + second.share_;
  }
  Meanwhile next(Index work, Index steps) { return (first_.done() ? second_ : first_).next(work, steps); }

 private:
  Ahead first_, second_;
};

}  // namespace convbwd
