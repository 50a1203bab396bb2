// Layer base: the canonical convolution, the one thing that everything below the faces speaks of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace convbwd {

/// One grouped convolution, always with three spatial dimensions (1-D and 2-D get leading unit ones):
///   y[n,g,co,o] = sum over ci,t of x[n,g,ci, o*stride + t*dilation - pad_before] * w[g,co,ci,t]
/// A transposed convolution is the same problem with x and y exchanged. Sizes of x, w and y are all stored,
/// so output_padding and trailing padding have no place here.
struct Problem {
  std::int64_t n = 0, groups = 1, ci = 0, co = 0;  // ci, co: channels of one group
  std::array<std::int64_t, 3> x{1, 1, 1}, w{1, 1, 1}, y{1, 1, 1};
  std::array<std::int64_t, 3> stride{1, 1, 1}, dilation{1, 1, 1}, pad_before{0, 0, 0};

  std::int64_t taps() const { return w[0] * w[1] * w[2]; }
  bool depthwise() const { return ci == 1 && co == 1; }
  /// Whether every position of y reads its own one of x and no other.
  bool pointwise() const {
    constexpr std::array<std::int64_t, 3> ones{1, 1, 1}, zeros{};
    return taps() == 1 && x == y && stride == ones && pad_before == zeros;
  }
  /// The first axis along which images or windows are longer than 1, else the last one.
  std::size_t first_axis() const {
    std::size_t a = 0;
    while (a < 2 && x[a] == 1 && w[a] == 1) ++a;
    return a;
  }
  std::int64_t x_plane() const { return x[0] * x[1] * x[2]; }
  std::int64_t y_plane() const { return y[0] * y[1] * y[2]; }
  /// Multiplications of one pass, those with padding included; they may exceed an integer.
  double products() const {
    return static_cast<double>(n * groups) * static_cast<double>(ci * co) * static_cast<double>(taps()) *
           static_cast<double>(y_plane());
  }
  bool operator==(const Problem&) const = default;
};

}  // namespace convbwd
