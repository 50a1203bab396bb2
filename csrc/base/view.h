// Layer base: a five-axis strided view of somebody's memory. Formats are views; no kernel knows a format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "convbwd/types.hpp"

namespace convbwd {

using Index = std::int64_t;
using Index3 = std::array<Index, 3>;
using Index5 = std::array<Index, 5>;

/// Axes of images: n, c, d, h, w (c counts all groups). Axes of weights: output channel of all groups, input channel of
/// one group, kd, kh, kw. Strides are in elements, of any sign; zero is for operands that are read only.
struct View {
  void* data = nullptr;
  DType dtype = DType::float32;
  Index5 size{}, stride{};

  Index offset(const Index5& i) const {
    return i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3] + i[4] * stride[4];
  }
  /// The same memory from element `i` on.
  View at(const Index5& i, const Index5& extent) const {
    View v = *this;
    v.data = static_cast<std::byte*>(data) + offset(i) * static_cast<Index>(size_of(dtype));
    v.size = extent;
    return v;
  }
};

/// Whether the last three axes lie in memory as one run.
inline bool dense_planes(const View& v) {
  return v.stride[4] == 1 && v.stride[3] == v.size[4] && v.stride[2] == v.size[3] * v.size[4];
}

/// Whether the pixels of every such box lie in memory as one run.
inline bool in_runs(const View& v, const Index3& box) {
  return dense_planes(v) && box[2] == v.size[4] && (box[0] == 1 || box[1] == v.size[3]);
}

/// Strides of a dense tensor in C order.
inline Index5 dense_strides(const Index5& size) {
  Index5 stride;
  Index dense = 1;
  for (std::size_t a = 5; a-- > 0; dense *= size[a]) stride[a] = dense;
  return stride;
}

}  // namespace convbwd
