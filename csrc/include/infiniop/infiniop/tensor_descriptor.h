// What a tensor is like, without its elements.
#pragma once

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct InfiniopTensorDescriptor* infiniopTensorDescriptor_t;

/// Strides count elements; null strides mean a contiguous tensor. Operators copy what they need, so a descriptor may be
/// destroyed as soon as they are made. INFINI_STATUS_BAD_TENSOR_DTYPE for what is no infiniDtype_t.
INFINI_API infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc_ptr, size_t ndim,
                                                         const size_t* shape, const ptrdiff_t* strides,
                                                         infiniDtype_t dtype);
INFINI_API infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);

#ifdef __cplusplus
}
#endif
