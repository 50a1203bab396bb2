// The handle of a device.
#pragma once

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct InfiniopHandle* infiniopHandle_t;

/// The same as infinirtSetDevice.
INFINI_API infiniStatus_t infiniopSetRuntimeDevice(infiniDevice_t device, int device_id);

/// INFINI_STATUS_DEVICE_NOT_INITIALIZED where the thread has set a device that is not here,
/// INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED where CONVBWD_ISA names instructions that the processor lacks. Null
/// pointers here and in the other files are INFINI_STATUS_NULL_POINTER, what was destroyed or never made
/// INFINI_STATUS_BAD_PARAM, unless they say otherwise.
INFINI_API infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle_ptr);
INFINI_API infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

/// Why the latest call of this thread failed, and forgets it; "" where none did. Valid until this thread's next call.
/// InfiniCore has no such function.
INFINI_API const char* infiniopGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif
