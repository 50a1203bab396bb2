// The runtime of InfiniCore on its only device here, the processor.
#pragma once

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum INFINI_ENUM_BASE {
  INFINIRT_MEMCPY_H2H = 0,
  INFINIRT_MEMCPY_H2D = 1,
  INFINIRT_MEMCPY_D2H = 2,
  INFINIRT_MEMCPY_D2D = 3,
} infinirtMemcpyKind_t;

INFINI_API infiniStatus_t infinirtInit(void);

/// Types other than INFINI_DEVICE_CPU give INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, ids other than 0
/// INFINI_STATUS_DEVICE_NOT_FOUND.
INFINI_API infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
INFINI_API infiniStatus_t infinirtGetDevice(infiniDevice_t* device_ptr, int* device_id_ptr);
/// Operators are done when they return.
INFINI_API infiniStatus_t infinirtDeviceSynchronize(void);

/// Memory aligned to 64 bytes. INFINI_STATUS_INTERNAL_ERROR where there is none; what infinirtMalloc did not give, or
/// was freed before, is INFINI_STATUS_BAD_PARAM. Null is freed as free() does.
INFINI_API infiniStatus_t infinirtMalloc(void** p_ptr, size_t size);
INFINI_API infiniStatus_t infinirtFree(void* ptr);
INFINI_API infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind);

#ifdef __cplusplus
}
#endif
