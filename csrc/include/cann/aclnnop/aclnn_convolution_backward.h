// aclnnConvolutionBackward and aclnnConvTbcBackward: the gradients of a convolution, as CANN's operators of these names
// compute them.
#pragma once

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Checks a call, plans it and reads no data.
///
/// gradOutput (N, Cout, *), input (N, Cin, *) and weight (Cout, Cin / groups, *), transposed (Cin, Cout / groups, *),
/// have rank 3 (format ND or NCL), 4 (ND or NCHW) or 5 (ND or NCDHW), any strides, and FLOAT, FLOAT16 or BF16 elements,
/// also mixed, or all of them HIFLOAT8 or FLOAT8_E4M3FN elements. Images may also have format NC1HWC0 or NDC1HWC0 and
/// weights FRACTAL_Z or FRACTAL_Z_3D, packed with `groups` (of 8-bit types by the same rule as others): then viewDims
/// are those of NCHW or NCDHW, strides null or what belongs to them, and storageDims the axes in memory, of which the
/// last is C0. Lanes without an element become zero in outputs. biasSizes is read only where input is empty: N = 0, or
/// C = 0 where not transposed. stride, padding, dilation and outputPadding have an entry for each spatial dimension;
/// padding of rank 4 may be [up, down, left, right]; outputPadding is less than stride, and 0 where not transposed.
/// outputMask says which of gradInput, gradWeight and gradBias (Cout) are computed; others may be null and are not
/// touched. Outputs are contiguous, of any of the types of 16 bits and more; of 8-bit operands gradInput has the
/// operands' type, gradWeight that or FLOAT.
///
/// cubeMathType says how FLOAT and BF16 operands are rounded before they are multiplied, as on Atlas A2 and A3:
/// 0 KEEP_DTYPE not at all; 1 ALLOW_FP32_DOWN_PRECISION and 3 USE_HF32 FLOAT to 11 bits of the mantissa; 2 USE_FP16
/// both to FLOAT16. It acts where the operands promote to FLOAT or BF16. gradBias sums gradOutput as it is.
///
/// ACLNN_ERR_PARAM_NULLPTR for a null argument that is needed, ACLNN_ERR_INNER_NULLPTR for a gradBias of 8 bits,
/// ACLNN_ERR_PARAM_INVALID for what else breaks a rule; aclGetRecentErrMsg() says which. Sums are taken in float32 and
/// rounded once.
ACL_FUNC_VISIBILITY aclnnStatus aclnnConvolutionBackwardGetWorkspaceSize(
    const aclTensor* gradOutput, const aclTensor* input, const aclTensor* weight, const aclIntArray* biasSizes,
    const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool transposed,
    const aclIntArray* outputPadding, int groups, const aclBoolArray* outputMask, int8_t cubeMathType,
    aclTensor* gradInput, aclTensor* gradWeight, aclTensor* gradBias, uint64_t* workspaceSize,
    aclOpExecutor** executor);

/// Gives the work to a stream. The workspace may be null where its size is 0, and so may elements that no gradient
/// asked for reads; tensors' elements and the workspace are used until the stream is synchronised. Every mistake gives
/// a code and leaves the executor as it was: null executor, workspace or elements ACLNN_ERR_PARAM_NULLPTR; a workspace
/// too small, an executor that has run, an unknown stream ACLNN_ERR_PARAM_INVALID.
ACL_FUNC_VISIBILITY aclnnStatus aclnnConvolutionBackward(void* workspace, uint64_t workspaceSize,
                                                         aclOpExecutor* executor, aclrtStream stream);

/// The gradients of a convolution along the time: self (T + 2 pad + 1 - K, B, Cout), the gradient of its output, input
/// (T, B, Cin), weight (K, Cin, Cout) and bias (Cout) give gradInput, gradWeight and gradBias, of the shapes of input,
/// weight and bias. All are needed; of bias no element is read. FLOAT, FLOAT16 or BF16 elements, also mixed, in format
/// ND, those of rank 3 also NCL; self is not empty, T and K are at least 1; strides, cubeMathType and codes are as
/// above.
ACL_FUNC_VISIBILITY aclnnStatus aclnnConvTbcBackwardGetWorkspaceSize(const aclTensor* self, const aclTensor* input,
                                                                     const aclTensor* weight, const aclTensor* bias,
                                                                     int64_t pad, int8_t cubeMathType,
                                                                     aclTensor* gradInput, aclTensor* gradWeight,
                                                                     aclTensor* gradBias, uint64_t* workspaceSize,
                                                                     aclOpExecutor** executor);

/// As aclnnConvolutionBackward.
ACL_FUNC_VISIBILITY aclnnStatus aclnnConvTbcBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                     aclrtStream stream);

#ifdef __cplusplus
}
#endif
