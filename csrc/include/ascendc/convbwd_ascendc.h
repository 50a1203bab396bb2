// What the headers of this folder call: C functions, so that the compiler of a kernel need not be that of the library.
#pragma once

#include <cstdint>

#include "tiling/conv_backprop/conv3d_bp_input_tilingdata.h"

#pragma GCC visibility push(default)
extern "C" {

/// Element types, with the numbers of ConvDtype.
enum ConvbwdAscendcType : int32_t { CONVBWD_FLOAT16 = 0, CONVBWD_FLOAT32 = 1, CONVBWD_BF16 = 2 };

/// What Conv3DBpInputTiling was told: axes in the order d, h, w, padding as (before, after) of each. The device is by
/// default one core of an Atlas A2.
struct ConvbwdAscendcProblem {
  int64_t batch = 0, cin = 0, cout = 0;
  int64_t input[3] = {}, grad_output[3] = {}, kernel[3] = {};
  int64_t stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1}, output_padding[3] = {};
  int64_t padding[6] = {};
  int64_t group = 1;
  int32_t type = CONVBWD_FLOAT16;
  int32_t transpose = 0;  // the size of the input is not given but follows
  int32_t hf32 = 0;
  int64_t cores = 1;
  int64_t l1_bytes = 524288, l0_bytes = 65536, l0c_bytes = 131072;  // buffers L1, L0A and L0B each, L0C
};

/// Elements of somebody's memory; `end`, where it is known, is behind the last of them.
struct ConvbwdAscendcMemory {
  void* begin;
  const void* end;
};

struct ConvbwdAscendcWalk;

// All return 0, or another number where they failed; convbwdAscendcMessage then says why, until this thread's next
// call.
const char* convbwdAscendcMessage();

int convbwdAscendcTiling(const ConvbwdAscendcProblem* problem, AscendC::tiling::TConv3DBackpropInputTiling* tiling);

// Conv3DBackpropInput. `channels_first`: the output is NCDHW instead of NDC1HWC0.
int convbwdAscendcInit(ConvbwdAscendcWalk** walk, const AscendC::tiling::TConv3DBackpropInputTiling* tiling,
                       int32_t type, int32_t output_type, int32_t channels_first);
int convbwdAscendcSetSingleShape(ConvbwdAscendcWalk* walk, uint64_t m, uint64_t k, uint32_t n);
int convbwdAscendcSetStartPosition(ConvbwdAscendcWalk* walk, uint32_t din, int32_t ho);
int convbwdAscendcSetGradOutput(ConvbwdAscendcWalk* walk, ConvbwdAscendcMemory memory);
int convbwdAscendcSetWeight(ConvbwdAscendcWalk* walk, ConvbwdAscendcMemory memory);
int convbwdAscendcIterate(ConvbwdAscendcWalk* walk, bool partial_sum, bool* first, bool* more);
int convbwdAscendcGetTensorC(const ConvbwdAscendcWalk* walk, ConvbwdAscendcMemory output, uint8_t atomic,
                             bool sequential);
int convbwdAscendcEnd(ConvbwdAscendcWalk** walk);

float convbwdAscendcDecodeHalf(uint16_t bits);
uint16_t convbwdAscendcEncodeHalf(float value);
float convbwdAscendcDecodeBf16(uint16_t bits);
uint16_t convbwdAscendcEncodeBf16(float value);

}  // extern "C"
#pragma GCC visibility pop
