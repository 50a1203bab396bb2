// Face infiniop: the other operators of InfiniCore, by name. Programs that look up all of them before they use one, as
// its own tests do, find them; each answers that it is not here.
#include "infiniop/objects.h"

using namespace convbwd::infiniop;

#define CONVBWD_OPERATORS(X)                                                                                     \
  X(Add)                                                                                                         \
  X(Attention)                                                                                                   \
  X(AvgPool) X(AvgPoolBackward) X(CausalSoftmax) X(Clip) X(Conv) X(CrossEntropyLoss) X(Dequantize) X(Gemm)       \
      X(InterpolateNearest) X(MaxPool) X(MaxPoolBackward) X(Mul) X(RMSNorm) X(RandomSample) X(Rearrange) X(Relu) \
          X(RoPE) X(RoPEv2) X(Softplus) X(Sub) X(SwiGLU) X(Topkrouter)

#define CONVBWD_FUNCTION(name)                                                                                    \
  extern "C" INFINI_API infiniStatus_t name() {                                                                   \
    return status_of(                                                                                             \
        #name, [] { convbwd::refuse(INFINI_STATUS_NOT_IMPLEMENTED, "ConvBackward is the only operator here"); }); \
  }
#define CONVBWD_OPERATOR(name)                       \
  CONVBWD_FUNCTION(infiniopCreate##name##Descriptor) \
  CONVBWD_FUNCTION(infiniopGet##name##WorkspaceSize) \
  CONVBWD_FUNCTION(infiniop##name)                   \
  CONVBWD_FUNCTION(infiniopDestroy##name##Descriptor)

CONVBWD_OPERATORS(CONVBWD_OPERATOR)
