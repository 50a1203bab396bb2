// Face cann: acl.h. The device is this processor, its memory is the heap.
#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "acl/acl.h"
#include "base/allocations.h"
#include "base/formats.h"
#include "cann/objects.h"

namespace convbwd::cann {
namespace {

struct Context {};

struct Runtime {
  bool initialised = false;
  int devices_set = 0;
};
Runtime& runtime() {
  static constinit Runtime state;
  return state;
}

void set_device(std::int32_t device) {
  if (device != 0) refuse(ACL_ERROR_RT_INVALID_DEVICEID, "deviceId must be 0, the only device, got ", device);
  Runtime& r = runtime();
  const std::lock_guard lock(g_tables_mutex);
  if (!r.initialised) refuse(ACL_ERROR_UNINITIALIZE, "aclInit must be called first");
  ++r.devices_set;
}

void need_device() {
  Runtime& r = runtime();
  const std::lock_guard lock(g_tables_mutex);
  if (r.devices_set == 0) refuse(ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice must be called first");
}

template <class T>
void need(T* pointer, const char* name) {
  if (pointer == nullptr) refuse(ACL_ERROR_INVALID_PARAM, name, " must not be null");
}

void allocate(void** pointer, std::size_t size, Allocations& memory, const char* name) {
  need(pointer, name);
  if (size == 0) refuse(ACL_ERROR_INVALID_PARAM, "size must be at least 1, got 0");
  need_device();
  void* const allocated = memory.allocate(size);
  if (allocated == nullptr) refuse(ACL_ERROR_BAD_ALLOC, "cannot allocate ", size, " bytes");
  *pointer = allocated;
}

void release(void* pointer, Allocations& memory, const char* name) {
  need(pointer, name);
  if (!memory.release(pointer))
    refuse(ACL_ERROR_INVALID_PARAM, name, " was not allocated by the sibling of this function, or was freed before");
}

// Memory that was allocated here must have `count` bytes from `pointer` on.
void check_extent(const void* pointer, std::size_t count, const char* name) {
  for (const Allocations* memory : {&g_device_memory, &g_host_memory})
    if (const auto room = memory->room(pointer); room && count > *room)
      refuse(ACL_ERROR_RT_PARAM_INVALID, name, " must have ", count, " bytes, got ", *room, " in its allocation");
}

void check_set(const void* pointer, std::size_t most, std::size_t count) {
  need(pointer, "devPtr");
  if (count > most) refuse(ACL_ERROR_RT_PARAM_INVALID, "count must be at most maxCount = ", most, ", got ", count);
  check_extent(pointer, count, "devPtr");
}

void check_copy(void* dst, std::size_t most, const void* src, std::size_t count, aclrtMemcpyKind kind) {
  need(dst, "dst");
  need(src, "src");
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_DEVICE_TO_DEVICE)
    refuse(ACL_ERROR_RT_PARAM_INVALID, "kind must be an aclrtMemcpyKind, got ", static_cast<int>(kind));
  if (count > most) refuse(ACL_ERROR_RT_PARAM_INVALID, "count must be at most destMax = ", most, ", got ", count);
  check_extent(dst, count, "dst");
  check_extent(src, count, "src");
}

std::shared_ptr<Event> need_event(aclrtEvent handle) {
  auto event = g_table<Event>.find(handle);
  if (!event) refuse(ACL_ERROR_INVALID_PARAM, "event must be one of aclrtCreateEvent, not destroyed");
  return event;
}

std::shared_ptr<Stream> need_stream(aclrtStream handle) {
  auto stream = find_stream(handle);
  if (!stream) refuse(ACL_ERROR_INVALID_PARAM, "stream must be null or one of aclrtCreateStream, not destroyed");
  return stream;
}

void synchronize(Stream& stream) {
  if (const auto error = stream.synchronize()) std::rethrow_exception(error);
}

// Waits for the stream that is always there and for others, and throws the first error.
void synchronize_all(const std::vector<std::shared_ptr<Stream>>& streams) {
  std::exception_ptr first = find_stream(nullptr)->synchronize();
  for (const auto& stream : streams)
    if (const auto error = stream->synchronize(); error && !first) first = error;
  if (first) std::rethrow_exception(first);
}

}  // namespace

std::shared_ptr<Stream> find_stream(aclrtStream handle) {
  static const auto& always = *new std::shared_ptr<Stream>(std::make_shared<Stream>());
  return handle ? g_table<Stream>.find(handle) : always;
}

}  // namespace convbwd::cann

using namespace convbwd;
using namespace convbwd::cann;

const char* aclGetRecentErrMsg() { return RecentMessage::take(); }

float aclFloat16ToFloat(aclFloat16 value) { return widen(Half{value}); }
aclFloat16 aclFloatToFloat16(float value) {
  Half half;
  narrow(value, half);
  return half.bits;
}

size_t aclDataTypeSize(aclDataType type) {
  switch (type) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
      return 4;
    case ACL_DOUBLE:
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_COMPLEX64:
      return 8;
    case ACL_COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

aclError aclInit(const char*) {
  return guarded("aclInit", kAcl, [] {
    Runtime& r = runtime();
    const std::lock_guard lock(g_tables_mutex);
    if (r.initialised) refuse(ACL_ERROR_REPEAT_INITIALIZE, "must be called once");
    r.initialised = true;
  });
}

aclError aclFinalize() {
  return guarded("aclFinalize", kAcl, [] {
    Runtime& r = runtime();
    {
      const std::lock_guard lock(g_tables_mutex);
      if (!r.initialised) refuse(ACL_ERROR_UNINITIALIZE, "aclInit must be called first");
      r.initialised = false;
      r.devices_set = 0;
    }
    g_table<Context>.clear();
    const auto streams = g_table<Stream>.all();
    g_table<Stream>.clear();
    synchronize_all(streams);
  });
}

aclError aclrtSetDevice(int32_t device) {
  return guarded("aclrtSetDevice", kAcl, [&] { set_device(device); });
}

aclError aclrtResetDevice(int32_t device) {
  return guarded("aclrtResetDevice", kAcl, [&] {
    if (device != 0) refuse(ACL_ERROR_RT_INVALID_DEVICEID, "deviceId must be 0, the only device, got ", device);
    Runtime& r = runtime();
    {
      const std::lock_guard lock(g_tables_mutex);
      if (r.devices_set == 0) refuse(ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice must be called first");
      --r.devices_set;
    }
    synchronize_all(g_table<Stream>.all());
  });
}

aclError aclrtGetDevice(int32_t* device) {
  return guarded("aclrtGetDevice", kAcl, [&] {
    need(device, "deviceId");
    need_device();
    *device = 0;
  });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return guarded("aclrtGetDeviceCount", kAcl, [&] {
    need(count, "count");
    *count = 1;
  });
}

aclError aclrtCreateContext(aclrtContext* context, int32_t device) {
  return guarded("aclrtCreateContext", kAcl, [&] {
    need(context, "context");
    set_device(device);
    *context = g_table<Context>.insert(std::make_shared<Context>());
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return guarded("aclrtSetCurrentContext", kAcl, [&] {
    if (!g_table<Context>.find(context))
      refuse(ACL_ERROR_RT_CONTEXT_NULL, "context must be one of aclrtCreateContext, not destroyed");
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return guarded("aclrtDestroyContext", kAcl, [&] {
    if (!g_table<Context>.remove(context))
      refuse(ACL_ERROR_INVALID_PARAM, "context must be one of aclrtCreateContext, not destroyed");
    Runtime& r = runtime();
    const std::lock_guard lock(g_tables_mutex);
    if (r.devices_set > 0) --r.devices_set;
  });
}

aclError aclrtCreateStream(aclrtStream* stream) {
  return guarded("aclrtCreateStream", kAcl, [&] {
    need(stream, "stream");
    need_device();
    *stream = g_table<Stream>.insert(std::make_shared<Stream>());
  });
}

aclError aclrtDestroyStream(aclrtStream handle) {
  return guarded("aclrtDestroyStream", kAcl, [&] {
    need(handle, "stream");
    const auto stream = need_stream(handle);
    g_table<Stream>.remove(handle);
    synchronize(*stream);
  });
}

aclError aclrtSynchronizeStream(aclrtStream handle) {
  return guarded("aclrtSynchronizeStream", kAcl, [&] { synchronize(*need_stream(handle)); });
}

aclError aclrtSynchronizeDevice() {
  return guarded("aclrtSynchronizeDevice", kAcl, [] { synchronize_all(g_table<Stream>.all()); });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return guarded("aclrtStreamWaitEvent", kAcl, [&] {
    const auto queue = need_stream(stream);
    const auto awaited = need_event(event);
    queue->push([awaited, number = awaited->recorded()] { awaited->wait(number); });
  });
}

aclError aclrtCreateEvent(aclrtEvent* event) {
  return guarded("aclrtCreateEvent", kAcl, [&] {
    need(event, "event");
    need_device();
    *event = g_table<Event>.insert(std::make_shared<Event>());
  });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return guarded("aclrtDestroyEvent", kAcl, [&] {
    need_event(event);
    g_table<Event>.remove(event);
  });
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream) {
  return guarded("aclrtRecordEvent", kAcl, [&] {
    const auto event = need_event(handle);
    event->record(*need_stream(stream));
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  return guarded("aclrtSynchronizeEvent", kAcl, [&] {
    const auto event = need_event(handle);
    event->wait(event->recorded());
  });
}

aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  return guarded("aclrtQueryEventStatus", kAcl, [&] {
    const auto event = need_event(handle);
    need(status, "status");
    *status = event->complete() ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  return guarded("aclrtEventElapsedTime", kAcl, [&] {
    need(ms, "ms");
    const auto start = need_event(startEvent)->time(), end = need_event(endEvent)->time();
    if (!start || !end)
      refuse(ACL_ERROR_INVALID_PARAM, start ? "endEvent" : "startEvent",
             " must be recorded, and its stream's work done");
    *ms = std::chrono::duration<float, std::milli>(*end - *start).count();
  });
}

aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) {
  return guarded("aclrtMalloc", kAcl, [&] { allocate(pointer, size, g_device_memory, "devPtr"); });
}
aclError aclrtFree(void* pointer) {
  return guarded("aclrtFree", kAcl, [&] { release(pointer, g_device_memory, "devPtr"); });
}
aclError aclrtMallocHost(void** pointer, size_t size) {
  return guarded("aclrtMallocHost", kAcl, [&] { allocate(pointer, size, g_host_memory, "hostPtr"); });
}
aclError aclrtFreeHost(void* pointer) {
  return guarded("aclrtFreeHost", kAcl, [&] { release(pointer, g_host_memory, "hostPtr"); });
}

aclError aclrtMemcpy(void* dst, size_t most, const void* src, size_t count, aclrtMemcpyKind kind) {
  return guarded("aclrtMemcpy", kAcl, [&] {
    check_copy(dst, most, src, count, kind);
    std::memmove(dst, src, count);
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t most, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return guarded("aclrtMemcpyAsync", kAcl, [&] {
    check_copy(dst, most, src, count, kind);
    need_stream(stream)->push([=] { std::memmove(dst, src, count); });
  });
}

aclError aclrtMemset(void* pointer, size_t most, int32_t value, size_t count) {
  return guarded("aclrtMemset", kAcl, [&] {
    check_set(pointer, most, count);
    std::memset(pointer, value, count);
  });
}

aclError aclrtMemsetAsync(void* pointer, size_t most, int32_t value, size_t count, aclrtStream stream) {
  return guarded("aclrtMemsetAsync", kAcl, [&] {
    check_set(pointer, most, count);
    need_stream(stream)->push([=] { std::memset(pointer, value, count); });
  });
}
