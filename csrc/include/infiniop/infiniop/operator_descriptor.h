// What all operators' descriptors have.
#pragma once

#include "infiniop/handle.h"
#include "infiniop/tensor_descriptor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct InfiniopDescriptor;

INFINI_API infiniStatus_t infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor* desc_ptr,
                                                          infiniDevice_t* device_type);
INFINI_API infiniStatus_t infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor* desc_ptr, int* device_id);

#ifdef __cplusplus
}
#endif
