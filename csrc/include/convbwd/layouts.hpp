// Memory formats of images and weights, and one converter between any two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "convbwd/types.hpp"

namespace convbwd {

/// "NCHW", "FRACTAL_Z_3D", ...; throws Error(value) for others.
CONVBWD_API MemoryFormat parse_memory_format(std::string_view name);
CONVBWD_API const char* name_of(MemoryFormat format) noexcept;

/// The shape in memory of what has `shape` in NCHW or NCDHW. `c0` is 32 bytes of elements by Ascend's rule. Throws
/// Error(value) for a wrong rank, groups that do not divide N, c0 below 1 and sizes that do not fit in 64 bits.
CONVBWD_API Shape packed_shape(MemoryFormat format, const Shape& shape, std::int64_t groups, std::int64_t c0);

/// The c0 of a packing of a type: its own, or Ascend's.
constexpr std::int64_t c0_of(const Packing& packing, DType dtype) noexcept {
  return packing.c0 != 0 ? packing.c0 : static_cast<std::int64_t>(32 / size_of(dtype));
}

/// Copies everything of `shape` (in NCHW or NCDHW) from one format to another: dense memory of elements of 1, 2, 4 or 8
/// bytes, not overlapping. Lanes of `to` that nothing is copied to become zero.
CONVBWD_API void convert_format(void* to, MemoryFormat to_format, const void* from, MemoryFormat from_format,
                                const Shape& shape, std::size_t element_bytes, std::int64_t groups, std::int64_t c0);

}  // namespace convbwd
