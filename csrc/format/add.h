// Layer format: sums of results with what is there already.
#pragma once

#include "base/view.h"

namespace convbwd {

/// The strides of a dense tensor whose axes lie in memory in the order of a view's.
Index5 packed_strides(const View& v);

/// dst += src for views of the same sizes and dtype, src a plain one: each sum is rounded once, to nearest even.
void add(const View& dst, const View& src, int threads);

}  // namespace convbwd
