// Layer base: a five-axis strided view of somebody's memory. Formats are views; no kernel knows a format.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "convbwd/types.hpp"

namespace convbwd {

using Index = std::int64_t;
using Index3 = std::array<Index, 3>;
using Index5 = std::array<Index, 5>;

/// Whether a tensor of such a shape has no elements.
inline bool empty(const Shape& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

/// Axes of images: n, c, d, h, w (c counts all groups). Axes of weights: output channel of all groups, input channel of
/// one group, kd, kh, kw. Strides are in elements, of any sign; zero is for operands that are read only.
struct View {
  /// Axis 1 may be split: element c is number (first + c) % block of block (first + c) / block, and blocks are `step`
  /// elements apart. Not split where block is 0.
  struct Split {
    Index block = 0, step = 0, first = 0;
    bool operator==(const Split&) const = default;
  };
  /// Groups of weights, `rows` of axis 0 each, may share blocks: `together` rows do, and the next as many follow `step`
  /// elements behind. In the blocks, axis 1 of a group begins `shift` behind that of the one before. Rows is 0 else.
  struct Groups {
    Index rows = 0, together = 0, step = 0, shift = 0;
    bool operator==(const Groups&) const = default;
  };

  void* data = nullptr;  // the first element
  DType dtype = DType::float32;
  Index5 size{}, stride{};
  Split split{};
  Groups groups{};

  bool empty() const { return std::find(size.begin(), size.end(), 0) != size.end(); }
  /// Whether strides say everything.
  bool plain() const { return split.block == 0; }
  Index offset(const Index5& i) const {
    const Index rest = i[2] * stride[2] + i[3] * stride[3] + i[4] * stride[4];
    return rest + (plain() ? i[0] * stride[0] + i[1] * stride[1] : split_offset(i[0], i[1]));
  }
  /// Of element i of an axis; of axis 0 of weights within a group.
  Index along(std::size_t axis, Index i) const { return axis == 1 && !plain() ? split_offset(0, i) : i * stride[axis]; }
  /// How many of `count` elements of an axis, from i on, lie a stride apart.
  Index run(std::size_t axis, Index i, Index count) const {
    return axis == 1 && !plain() ? std::min(count, split.block - (split.first + i) % split.block) : count;
  }
  /// The same memory from element `i` on; where groups share blocks and it is not in the first, the rest of its group.
  View at(const Index5& i, const Index5& extent) const {
    View v = *this;
    v.data = static_cast<std::byte*>(data) + offset(i) * static_cast<Index>(size_of(dtype));
    v.size = extent;
    if (!plain()) {
      v.split.first = column(i[0], i[1]) % split.block;
      if (groups.rows && i[0] % groups.together != 0) v.groups = {};
    }
    return v;
  }
  void make_plain(const Index5& strides) { stride = strides, split = {}, groups = {}; }
  /// Gives axes of size one the stride that a dense tensor would have, so that what is dense shows.
  void settle_strides() {
    for (std::size_t a = 5; a-- > 0;)
      if (size[a] == 1) stride[a] = a == 4 ? 1 : size[a + 1] * stride[a + 1];
  }

 private:
  Index column(Index row, Index c) const {
    return split.first + c + (groups.rows ? row % groups.together / groups.rows * groups.shift : 0);
  }
  Index split_offset(Index row, Index c) const {
    const Index at = column(row, c), rows = groups.rows ? groups.together : row + 1;
    return row / rows * groups.step + row % rows * stride[0] + at / split.block * split.step +
           (at % split.block - split.first) * stride[1];
  }
};

/// Calls f(part, row, c) for plain views that make up a view, with the places of their first elements along axes 0, 1.
template <class F>
void for_each_plain(const View& v, F&& f) {
  if (v.plain()) return f(v, Index{0}, Index{0});
  Index5 size = v.size;
  for (Index row = 0; row < v.size[0]; row += size[0]) {
    size[0] = std::min(v.groups.rows ? v.groups.rows : v.size[0], v.size[0] - row);
    const View group = v.at({row, 0, 0, 0, 0}, size);
    for (Index c = 0; c < v.size[1]; c += size[1]) {
      size[1] = group.run(1, c, v.size[1] - c);
      View part = group.at({0, c, 0, 0, 0}, size);
      part.make_plain(part.stride);
      f(static_cast<const View&>(part), row, c);
    }
  }
}

/// Whether a view is plain and its last three axes lie in memory as one run.
inline bool dense_planes(const View& v) {
  return v.plain() && v.stride[4] == 1 && v.stride[3] == v.size[4] && v.stride[2] == v.size[3] * v.size[4];
}

/// Whether the channels of a pixel, or those of a block, lie side by side, and its pixels do not.
inline bool channels_last(const View& v) { return v.stride[1] == 1 && v.stride[4] != 1 && v.size[1] > 1; }

/// Whether rows of weights, channels and taps, lie in memory as runs.
inline bool rows_of_taps(const View& w) { return dense_planes(w) && w.stride[1] == w.size[2] * w.stride[2]; }

/// Whether the pixels of every such box lie in memory as one run.
inline bool in_runs(const View& v, const Index3& box) {
  const bool rows = box[2] == v.size[4] || (box[0] == 1 && box[1] == 1);
  return dense_planes(v) && rows && (box[0] == 1 || box[1] == v.size[3]);
}

/// Strides of a dense tensor in C order.
inline Index5 dense_strides(const Index5& size) {
  Index5 stride;
  std::uint64_t dense = 1;  // wraps where sizes are those that no plan was made for
  for (std::size_t a = 5; a-- > 0; dense *= static_cast<std::uint64_t>(size[a])) stride[a] = static_cast<Index>(dense);
  return stride;
}

}  // namespace convbwd
