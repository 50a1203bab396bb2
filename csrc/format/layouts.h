// Layer format: a format as a view whose channel axis is split.
#pragma once

#include "base/view.h"
#include "convbwd/layouts.hpp"

namespace convbwd {

inline constexpr Index kN0 = 16;  ///< output channels of a fractal

/// Dense memory of what has `shape` in NCHW or NCDHW; of weights, with groups. Throws as packed_shape does.
View packed_view(void* data, DType dtype, const Packing& packing, const Shape& shape, Index groups);

/// Elements of that memory, with the lanes that nothing is in.
Index packed_elements(DType dtype, const Packing& packing, const Shape& shape, Index groups);

}  // namespace convbwd
