// Positions, formats and element types of the operands of a convolution, as kernels and their hosts name them.
#pragma once

#include <cstdint>

#include "kernel_operator.h"

namespace ConvCommonApi {

using AscendC::TPosition;

enum class ConvFormat : uint32_t {
  ND = 0,
  NCHW,
  NHWC,
  HWCN,
  DHWNC,
  DHWCN,
  NDHWC,
  NCDHW,
  NC1HWC0,
  NDC1HWC0,
  FRACTAL_Z_3D,
};

enum class ConvDtype : uint32_t { FLOAT16 = 0, FLOAT32, BF16, INT4, INT8, UINT8, INT32, INT64, UINT64 };

}  // namespace ConvCommonApi
