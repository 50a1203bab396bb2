// Face infiniop: the other operators of InfiniCore, by name. Programs that look up all of them before they use one, as
// its own tests do, find them; each answers that it is not here.
#include "infiniop/objects.h"

using namespace convbwd::infiniop;

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

CONVBWD_OPERATOR(Add)
CONVBWD_OPERATOR(Attention)
CONVBWD_OPERATOR(AvgPool)
CONVBWD_OPERATOR(AvgPoolBackward)
CONVBWD_OPERATOR(CausalSoftmax)
CONVBWD_OPERATOR(Clip)
CONVBWD_OPERATOR(Conv)
CONVBWD_OPERATOR(CrossEntropyLoss)
CONVBWD_OPERATOR(Dequantize)
CONVBWD_OPERATOR(Gemm)
CONVBWD_OPERATOR(InterpolateNearest)
CONVBWD_OPERATOR(MaxPool)
CONVBWD_OPERATOR(MaxPoolBackward)
CONVBWD_OPERATOR(Mul)
CONVBWD_OPERATOR(RMSNorm)
CONVBWD_OPERATOR(RandomSample)
CONVBWD_OPERATOR(Rearrange)
CONVBWD_OPERATOR(Relu)
CONVBWD_OPERATOR(RoPE)
CONVBWD_OPERATOR(RoPEv2)
CONVBWD_OPERATOR(Softplus)
CONVBWD_OPERATOR(Sub)
CONVBWD_OPERATOR(SwiGLU)
CONVBWD_OPERATOR(Topkrouter)
