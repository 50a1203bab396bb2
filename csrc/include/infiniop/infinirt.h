// The runtime of InfiniCore on its only device here, the processor.
#pragma once

#include <stdint.h>

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void* infinirtStream_t;
typedef void* infinirtEvent_t;

INFINI_API infiniStatus_t infinirtInit(void);

/// The number of devices of each type, INFINI_DEVICE_TYPE_COUNT of them, and of one type: one processor.
INFINI_API infiniStatus_t infinirtGetAllDeviceCount(int* count_array);
INFINI_API infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int* count);

/// Types other than INFINI_DEVICE_CPU give INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, ids other than 0
/// INFINI_STATUS_DEVICE_NOT_FOUND. Then the thread has no device, and until it sets one, allocations, streams and
/// handles are INFINI_STATUS_DEVICE_NOT_INITIALIZED. Without a call the device is the processor.
INFINI_API infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
INFINI_API infiniStatus_t infinirtGetDevice(infiniDevice_t* device_ptr, int* device_id_ptr);
/// Bytes of memory that are available and that there are, on the device of infinirtSetDevice's codes.
INFINI_API infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t* free_bytes,
                                             size_t* total_bytes);
/// Operators are done when they return.
INFINI_API infiniStatus_t infinirtDeviceSynchronize(void);

/// Work is done when it is given, so streams are always idle and events complete. A null stream is one that is always
/// there; others that were destroyed or never made, and such events, are INFINI_STATUS_BAD_PARAM.
INFINI_API infiniStatus_t infinirtStreamCreate(infinirtStream_t* stream_ptr);
INFINI_API infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);

typedef enum {
  INFINIRT_EVENT_COMPLETE = 0,
  INFINIRT_EVENT_NOT_READY = 1,
} infinirtEventStatus_t;

typedef enum {
  INFINIRT_EVENT_DEFAULT = 0x0,
  INFINIRT_EVENT_DISABLE_TIMING = 0x1,
  INFINIRT_EVENT_BLOCKING_SYNC = 0x2,
} infinirtEventFlags_t;

INFINI_API infiniStatus_t infinirtEventCreate(infinirtEvent_t* event_ptr);
/// Other flags than those of infinirtEventFlags_t are INFINI_STATUS_BAD_PARAM.
INFINI_API infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t* event_ptr, uint32_t flags);
INFINI_API infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t* status_ptr);
INFINI_API infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event);
INFINI_API infiniStatus_t infinirtEventDestroy(infinirtEvent_t event);
/// Milliseconds between the records of two events. One that was made without timing, or never recorded, is
/// INFINI_STATUS_BAD_PARAM.
INFINI_API infiniStatus_t infinirtEventElapsedTime(float* ms_ptr, infinirtEvent_t start, infinirtEvent_t end);

typedef enum INFINI_ENUM_BASE {
  INFINIRT_MEMCPY_H2H = 0,
  INFINIRT_MEMCPY_H2D = 1,
  INFINIRT_MEMCPY_D2H = 2,
  INFINIRT_MEMCPY_D2D = 3,
} infinirtMemcpyKind_t;

/// Memory aligned to 64 bytes, that of the host and that of the device apart from each other.
/// INFINI_STATUS_INTERNAL_ERROR where there is none; what the sibling of a function did not give, or was freed before,
/// is INFINI_STATUS_BAD_PARAM. Null is freed as free() does.
INFINI_API infiniStatus_t infinirtMalloc(void** p_ptr, size_t size);
INFINI_API infiniStatus_t infinirtMallocHost(void** p_ptr, size_t size);
INFINI_API infiniStatus_t infinirtMallocAsync(void** p_ptr, size_t size, infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtFree(void* ptr);
INFINI_API infiniStatus_t infinirtFreeHost(void* ptr);
INFINI_API infiniStatus_t infinirtFreeAsync(void* ptr, infinirtStream_t stream);
INFINI_API infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind);
INFINI_API infiniStatus_t infinirtMemcpyAsync(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind,
                                              infinirtStream_t stream);

#ifdef __cplusplus
}
#endif
