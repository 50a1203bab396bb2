// Memory formats of images and weights, and one converter between any two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "convbwd/types.hpp"

namespace convbwd {

/// A conversion is between formats of the same rank. The letters are axes, from the slowest to the fastest; of weights
/// N counts output channels and C the input channels of a group.
///
/// In the formats with C0 the channel axis is split: channel c is number c % c0 of block c / c0, and lanes that no
/// channel has are zero. FRACTAL_Z is for weights: (C1 * H * W, N1, 16, C0) with N1 = ceil(N / 16), FRACTAL_Z_3D has
/// D * C1 * H * W. With groups, E = min(lcm(lcm(C, c0) / C, lcm(N / groups, 16) / (N / groups)), groups) of them share
/// blocks, each in a part of its own of both channel axes: C1 = ceil(E * C / c0), N1 = ceil(E * N / groups / 16), and
/// there are ceil(groups / E) such blocks, the slowest axis. (The TransData formats of Ascend's operators.)
enum class MemoryFormat : std::uint8_t {
  nchw,
  nhwc,
  hwcn,
  nc1hwc0,
  fractal_z,
  ncdhw,
  ndhwc,
  dhwcn,
  ndc1hwc0,
  fractal_z_3d,
};

/// "NCHW", "FRACTAL_Z_3D", ...; throws Error(value) for others.
MemoryFormat parse_memory_format(std::string_view name);
const char* name_of(MemoryFormat format) noexcept;

/// The shape in memory of what has `shape` in NCHW or NCDHW. `c0` is 32 bytes of elements by Ascend's rule. Throws
/// Error(value) for a wrong rank, groups that do not divide N, c0 below 1 and sizes that do not fit in 64 bits.
Shape packed_shape(MemoryFormat format, const Shape& shape, std::int64_t groups, std::int64_t c0);

/// Copies everything of `shape` (in NCHW or NCDHW) from one format to another: dense memory of elements of 1, 2, 4 or 8
/// bytes, not overlapping. Lanes of `to` that nothing is copied to become zero.
void convert_format(void* to, MemoryFormat to_format, const void* from, MemoryFormat from_format, const Shape& shape,
                    std::size_t element_bytes, std::int64_t groups, std::int64_t c0);

}  // namespace convbwd
