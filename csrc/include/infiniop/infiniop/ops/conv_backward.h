// ConvBackward: the gradients of a convolution.
#pragma once

#include "infiniop/operator_descriptor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct InfiniopDescriptor* infiniopConvBackwardDescriptor_t;

/// Checks a problem and plans it. grad_output is (N, Cout, *), input (N, Cin, *) and weight (Cout, Cin / n, *), with
/// one to three spatial dimensions, contiguous, all of F16, F32 or BF16. bias_desc (Cout) may be null. pads, strides
/// and dilations are null (0, 1 and 1) or arrays of int with an entry for each spatial dimension; n is the number of
/// groups.
///
/// INFINI_STATUS_BAD_PARAM for null handles and descriptors, n = 0, negative pads, strides and dilations below 1;
/// INFINI_STATUS_BAD_TENSOR_DTYPE, _SHAPE and _STRIDES for tensors that do not fit. *desc_ptr is written on success.
INFINI_API infiniStatus_t infiniopCreateConvBackwardDescriptor(
    infiniopHandle_t handle, infiniopConvBackwardDescriptor_t* desc_ptr, infiniopTensorDescriptor_t grad_output_desc,
    infiniopTensorDescriptor_t input_desc, infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc,
    void* pads, void* strides, void* dilations, size_t n);

/// The bytes that one execution needs.
INFINI_API infiniStatus_t infiniopGetConvBackwardWorkspaceSize(infiniopConvBackwardDescriptor_t desc, size_t* size);

/// Computes the gradients whose pointers are not null, in the element type of the problem; they are contiguous, and
/// overlap neither each other nor an operand.
/// Sums are taken in float and rounded once. A descriptor may be executed as often as one likes, by many threads at
/// once if each has its own workspace and gradients. The stream is not used: the work is done on return.
///
/// INFINI_STATUS_BAD_PARAM where grad_output, input, weight or a workspace that is needed is null,
/// INFINI_STATUS_INSUFFICIENT_WORKSPACE where it is too small.
INFINI_API infiniStatus_t infiniopConvBackward(infiniopConvBackwardDescriptor_t desc, void* workspace,
                                               size_t workspace_size, void* grad_input, void* grad_weight,
                                               void* grad_bias, const void* grad_output, const void* input,
                                               const void* weight, void* stream);

INFINI_API infiniStatus_t infiniopDestroyConvBackwardDescriptor(infiniopConvBackwardDescriptor_t desc);

#ifdef __cplusplus
}
#endif
