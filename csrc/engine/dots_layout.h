// Layer engine: where dots (engine/dots.cpp) find what a tap multiplies, and what shares a tile of their kernel.
#pragma once

#include <vector>

#include "base/problem.h"
#include "engine/planes.h"

namespace convbwd {

/// For boxes of one size. Pixels of a box lie `d*x.plane() + h*x.row() + w` elements from its first one, in the copies
/// of both images and in images that are read where they are.
class DotsLayout {
 public:
  /// One call of the kernel for every `together` input channels: rows i < m of the tile are taps, shifted by lda each,
  /// or output channels where m is 0; columns j < nt are the taps in `taps`, of each of the channels.
  struct Call {
    Index m, lda;
    Index y;  // where its first row lies, from the first pixel of the box
    std::vector<Index> taps;
    std::vector<std::ptrdiff_t> offset;
    Index row_tap;  // what row i adds to the tap index
    Index last;     // one past the largest tap index that exists along the shifted axis, counted like row_tap
  };
  /// Where a tap's products begin in copies whose box begins at pixel 0: output 0 is pixel `pixel`.
  struct Place {
    Index x, y;
    Index3 pixel;
  };

  DotsLayout() = default;
  /// Tiles have at most so many rows and columns. `masked`: boxes are of x, without a border, and y has a copy for each
  /// tap along the axes but the first, with zeros where it meets padding; otherwise they are of y, and x has a border.
  /// `apart`: each channel of both has the zeros that shifted rows reach: those of other groups follow.
  DotsLayout(const Problem& p, bool masked, const Index3& box, Index rows, Index columns, bool apart);

  /// Elements from the first pixel of q0 <= q < q1 to behind the last one.
  Index length(const Index3& q0, const Index3& q1) const {
    return (q1[0] - q0[0] - 1) * x.plane() + (q1[1] - q0[1] - 1) * x.row() + q1[2] - q0[2];
  }
  Index y_channel() const { return y[0].channel(); }
  /// Of all copies of the output channels of a group.
  Index y_size() const { return problem_.co * y_channel() * static_cast<Index>(y.size()) + y[0].slack(); }
  Place place(Index tap) const;

  Planes x;
  std::vector<Planes> y;  // of which only where they begin in y differs
  std::vector<Call> calls;
  Index together = 1;
  bool exact = true;  // no row is a tap that the window does not have
  Index reach = 0;    // of the last tap, where x is not split by remainder
  Index lead = 0;     // zeros before the first and behind the last pixel of y, for shifted rows

 private:
  Index copies() const;
  Index shift() const;
  Index y_of_tap(Index tap) const;
  void list_masked(Index rows, Index columns);
  void list_bordered(Index rows, Index columns);

  Problem problem_;
  bool masked_ = false;
};

}  // namespace convbwd
