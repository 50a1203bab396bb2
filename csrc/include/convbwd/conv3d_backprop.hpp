// The gradients of a 3-D convolution as Ascend's graph operators Conv3DBackpropInputV2 and Conv3DBackpropFilter state
// them: sizes instead of the tensor whose gradient is wanted, attributes in the order of a data format.
#pragma once

#include <cstdint>
#include <optional>

#include "convbwd/convbwd.hpp"
#include "convbwd/layouts.hpp"

namespace convbwd {

/// The attributes. Strides and dilations have an entry for each axis of images, in the order of data_format.
struct Conv3DBackprop {
  const char* function = "conv3d_backprop";  ///< begins every message
  Shape strides;                             ///< of N and C 1, of D from 1 to 255, of H and W from 1 to 63
  /// Front, back, top, bottom, left, right, from 0 to 255; six times -1 is `same`. Not read where `padding` is set.
  Shape pads;
  Shape dilations{1, 1, 1, 1, 1};                  ///< of N and C 1, else from 1 to 255
  std::int64_t groups = 1;                         ///< up to 65535; 1 stands for what the channels say
  MemoryFormat data_format = MemoryFormat::ndhwc;  ///< of images: or ncdhw
  std::optional<MemoryFormat> filter_format;       ///< ncdhw, ndhwc or dhwcn; as data_format where it is not set
  std::optional<PaddingMode> padding;              ///< valid, or same: TensorFlow's rule
  bool enable_hf32 = false;  ///< float32 is rounded to 11 bits of mantissa before it is multiplied
};

/// The request behind a call, with the gradient's shape as input.shape or weight.shape. Tensors and sizes have their
/// axes in the order of their format; those of the request have the library's, and explicit padding.
///
/// filter and out_backprop, or input and out_backprop, have one dtype; 8-bit types need a filter in ncdhw. Kernels are
/// from 1 to 511 high and wide. Four entries of input_size are those without D, which is 1. Throws Error.
CONVBWD_API Request conv3d_backprop_input_request(const Conv3DBackprop& op, const Shape& input_size,
                                                  const Tensor& filter, const Tensor& out_backprop);
CONVBWD_API Request conv3d_backprop_filter_request(const Conv3DBackprop& op, const Tensor& input,
                                                   const Shape& filter_size, const Tensor& out_backprop);

/// Computes it. `y` has the gradient's shape in the order of its format; its dtype may be any that Plan rounds to.
CONVBWD_API void conv3d_backprop_input(const Conv3DBackprop& op, const Shape& input_size, const Tensor& filter,
                                       const Tensor& out_backprop, const Tensor& y);
CONVBWD_API void conv3d_backprop_filter(const Conv3DBackprop& op, const Tensor& input, const Shape& filter_size,
                                        const Tensor& out_backprop, const Tensor& y);

}  // namespace convbwd
