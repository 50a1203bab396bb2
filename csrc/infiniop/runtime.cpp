// Face infiniop: the runtime, handles and tensor descriptors.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "base/allocations.h"
#include "base/cpu.h"
#include "infiniop.h"
#include "infiniop/objects.h"
#include "infinirt.h"

using namespace convbwd;
using namespace convbwd::infiniop;

namespace {

struct Stream {};
using Clock = std::chrono::steady_clock;
struct Event {
  bool timed = true;
  std::atomic<Clock::rep> recorded{0};  // 0: never
};

template <class T>
void need_out(T* pointer, const char* name) {
  if (pointer == nullptr) refuse(INFINI_STATUS_NULL_POINTER, name, " must not be null");
}

// False on a thread that has set a device which is not here, and perhaps did not look at what came back.
thread_local bool t_has_device = true;

void need_device() {
  if (!t_has_device)
    refuse(INFINI_STATUS_DEVICE_NOT_INITIALIZED,
           "the device that this thread has set is not here; infinirtSetDevice "
           "must be called with INFINI_DEVICE_CPU and 0");
}

void allocate(void** pointer, std::size_t size, Allocations& memory) {
  need_out(pointer, "p_ptr");
  need_device();
  void* const allocated = memory.allocate(size);
  if (allocated == nullptr) refuse(INFINI_STATUS_INTERNAL_ERROR, "cannot allocate ", size, " bytes");
  *pointer = allocated;
}

void release(void* pointer, Allocations& memory) {
  if (pointer && !memory.release(pointer))
    refuse(INFINI_STATUS_BAD_PARAM, "ptr was not allocated by the sibling of this function, or was freed before");
}

void copy(void* dst, const void* src, std::size_t size, infinirtMemcpyKind_t kind) {
  if (kind < INFINIRT_MEMCPY_H2H || kind > INFINIRT_MEMCPY_D2D)
    refuse(INFINI_STATUS_BAD_PARAM, "kind must be an infinirtMemcpyKind_t, got ", static_cast<int>(kind));
  if (size == 0) return;
  need_out(dst, "dst");
  need_out(src, "src");
  for (const void* pointer : {static_cast<const void*>(dst), src})
    for (const Allocations* memory : {&g_device_memory, &g_host_memory})
      if (const auto room = memory->room(pointer); room && size > *room)
        refuse(INFINI_STATUS_BAD_PARAM, "size must be at most ", *room, ", what is left in the memory, got ", size);
  std::memmove(dst, src, size);
}

void check_stream(infinirtStream_t stream) {
  if (stream) need<Stream>(stream, "stream", INFINI_STATUS_NULL_POINTER);
}
std::shared_ptr<Event> check_event(infinirtEvent_t event, const char* name = "event") {
  return need<Event>(event, name, INFINI_STATUS_NULL_POINTER);
}
Clock::rep time_of(infinirtEvent_t event, const char* name) {
  const auto found = check_event(event, name);
  const Clock::rep recorded = found->recorded;
  if (!found->timed) refuse(INFINI_STATUS_BAD_PARAM, name, " must have been made with timing");
  if (recorded == 0) refuse(INFINI_STATUS_BAD_PARAM, name, " must have been recorded");
  return recorded;
}

// What Linux says that programs may still take.
std::optional<std::size_t> available_memory() {
  std::ifstream facts("/proc/meminfo");
  for (std::string name; facts >> name;)
    if (std::size_t kilobytes = 0; name == "MemAvailable:" && facts >> kilobytes) return kilobytes * 1024;
  return {};
}

void check_device(infiniDevice_t device, int device_id) {
  if (device != INFINI_DEVICE_CPU)
    refuse(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device must be INFINI_DEVICE_CPU, got ", static_cast<int>(device));
  if (device_id != 0) refuse(INFINI_STATUS_DEVICE_NOT_FOUND, "device_id must be 0, got ", device_id);
}

}  // namespace

const char* infiniopGetRecentErrMsg() { return RecentMessage::take(); }

infiniStatus_t infinirtInit() { return INFINI_STATUS_SUCCESS; }

infiniStatus_t infinirtGetAllDeviceCount(int* counts) {
  return status_of("infinirtGetAllDeviceCount", [&] {
    need_out(counts, "count_array");
    for (int type = 0; type < INFINI_DEVICE_TYPE_COUNT; ++type) counts[type] = type == INFINI_DEVICE_CPU;
  });
}

infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int* count) {
  return status_of("infinirtGetDeviceCount", [&] {
    need_out(count, "count");
    if (device < 0 || device >= INFINI_DEVICE_TYPE_COUNT)
      refuse(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device must be an infiniDevice_t, got ",
             static_cast<int>(device));
    *count = device == INFINI_DEVICE_CPU;
  });
}

infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id) {
  return status_of("infinirtSetDevice", [&] {
    t_has_device = device == INFINI_DEVICE_CPU && device_id == 0;
    check_device(device, device_id);
  });
}

infiniStatus_t infinirtGetDevice(infiniDevice_t* device, int* device_id) {
  return status_of("infinirtGetDevice", [&] {
    if (device) *device = INFINI_DEVICE_CPU;
    if (device_id) *device_id = 0;
  });
}

infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t* free_bytes, size_t* total_bytes) {
  return status_of("infinirtGetMemInfo", [&] {
    check_device(device, device_id);
    need_out(free_bytes, "free_bytes");
    need_out(total_bytes, "total_bytes");
    *total_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    *free_bytes = available_memory().value_or(*total_bytes);
  });
}

infiniStatus_t infinirtDeviceSynchronize() { return INFINI_STATUS_SUCCESS; }

infiniStatus_t infinirtStreamCreate(infinirtStream_t* stream) {
  return status_of("infinirtStreamCreate", [&] {
    need_out(stream, "stream_ptr");
    need_device();
    *stream = g_table<Stream>.insert(std::make_shared<Stream>());
  });
}
infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream) {
  return status_of("infinirtStreamDestroy", [&] { destroy<Stream>(stream, "stream", INFINI_STATUS_NULL_POINTER); });
}
infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream) {
  return status_of("infinirtStreamSynchronize", [&] { check_stream(stream); });
}
infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event) {
  return status_of("infinirtStreamWaitEvent", [&] { check_stream(stream), check_event(event); });
}

static infiniStatus_t create_event(const char* function, infinirtEvent_t* event, std::uint32_t flags) {
  return status_of(function, [&] {
    need_out(event, "event_ptr");
    if ((flags & ~std::uint32_t{INFINIRT_EVENT_DISABLE_TIMING | INFINIRT_EVENT_BLOCKING_SYNC}) != 0)
      refuse(INFINI_STATUS_BAD_PARAM, "flags must be those of infinirtEventFlags_t, got ", flags);
    auto made = std::make_shared<Event>();
    made->timed = (flags & INFINIRT_EVENT_DISABLE_TIMING) == 0;
    *event = g_table<Event>.insert(std::move(made));
  });
}
infiniStatus_t infinirtEventCreate(infinirtEvent_t* event) {
  return create_event("infinirtEventCreate", event, INFINIRT_EVENT_DEFAULT);
}
infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t* event, uint32_t flags) {
  return create_event("infinirtEventCreateWithFlags", event, flags);
}
infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream) {
  return status_of("infinirtEventRecord", [&] {
    const auto found = check_event(event);
    check_stream(stream);
    found->recorded = Clock::now().time_since_epoch().count();
  });
}
infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t* status) {
  return status_of("infinirtEventQuery", [&] {
    check_event(event);
    need_out(status, "status_ptr");
    *status = INFINIRT_EVENT_COMPLETE;
  });
}
infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event) {
  return status_of("infinirtEventSynchronize", [&] { check_event(event); });
}
infiniStatus_t infinirtEventDestroy(infinirtEvent_t event) {
  return status_of("infinirtEventDestroy", [&] { destroy<Event>(event, "event", INFINI_STATUS_NULL_POINTER); });
}

infiniStatus_t infinirtEventElapsedTime(float* ms, infinirtEvent_t start, infinirtEvent_t end) {
  return status_of("infinirtEventElapsedTime", [&] {
    need_out(ms, "ms_ptr");
    const Clock::rep first = time_of(start, "start"), last = time_of(end, "end");
    *ms = std::chrono::duration<float, std::milli>(Clock::duration(last - first)).count();
  });
}

infiniStatus_t infinirtMalloc(void** pointer, size_t size) {
  return status_of("infinirtMalloc", [&] { allocate(pointer, size, g_device_memory); });
}
infiniStatus_t infinirtMallocHost(void** pointer, size_t size) {
  return status_of("infinirtMallocHost", [&] { allocate(pointer, size, g_host_memory); });
}
infiniStatus_t infinirtMallocAsync(void** pointer, size_t size, infinirtStream_t stream) {
  return status_of("infinirtMallocAsync", [&] { check_stream(stream), allocate(pointer, size, g_device_memory); });
}
infiniStatus_t infinirtFree(void* pointer) {
  return status_of("infinirtFree", [&] { release(pointer, g_device_memory); });
}
infiniStatus_t infinirtFreeHost(void* pointer) {
  return status_of("infinirtFreeHost", [&] { release(pointer, g_host_memory); });
}
infiniStatus_t infinirtFreeAsync(void* pointer, infinirtStream_t stream) {
  return status_of("infinirtFreeAsync", [&] { check_stream(stream), release(pointer, g_device_memory); });
}
infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind) {
  return status_of("infinirtMemcpy", [&] { copy(dst, src, size, kind); });
}
infiniStatus_t infinirtMemcpyAsync(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind,
                                   infinirtStream_t stream) {
  return status_of("infinirtMemcpyAsync", [&] { check_stream(stream), copy(dst, src, size, kind); });
}

infiniStatus_t infiniopSetRuntimeDevice(infiniDevice_t device, int device_id) {
  return infinirtSetDevice(device, device_id);
}

infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle) {
  return status_of("infiniopCreateHandle", [&] {
    need_out(handle, "handle_ptr");
    need_device();
    try {
      active_isa();
    } catch (const Error& error) {
      refuse(INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED, error.what());
    }
    *handle = static_cast<infiniopHandle_t>(g_table<Handle>.insert(std::make_shared<Handle>()));
  });
}

infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle) {
  return status_of("infiniopDestroyHandle", [&] { destroy<Handle>(handle, "handle", INFINI_STATUS_NULL_POINTER); });
}

infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc, size_t ndim, const size_t* shape,
                                              const ptrdiff_t* strides, infiniDtype_t dtype) {
  return status_of("infiniopCreateTensorDescriptor", [&] {
    need_out(desc, "desc_ptr");
    if (ndim > 0) need_out(shape, "shape");
    if (dtype <= INFINI_DTYPE_INVALID || dtype > INFINI_DTYPE_BF16)
      refuse(INFINI_STATUS_BAD_TENSOR_DTYPE, "dtype must be an infiniDtype_t, got ", static_cast<int>(dtype));
    TensorDescriptor t{{}, {}, dtype};
    for (size_t a = 0; a < ndim; ++a) {
      if (shape[a] > static_cast<size_t>(std::numeric_limits<std::int64_t>::max()))
        refuse(INFINI_STATUS_BAD_TENSOR_SHAPE, "shape must be less than 2**63, got ", shape[a]);
      t.shape.push_back(static_cast<std::int64_t>(shape[a]));
      if (strides) t.strides.push_back(strides[a]);
    }
    *desc = static_cast<infiniopTensorDescriptor_t>(
        g_table<TensorDescriptor>.insert(std::make_shared<TensorDescriptor>(std::move(t))));
  });
}

infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc) {
  return status_of("infiniopDestroyTensorDescriptor",
                   [&] { destroy<TensorDescriptor>(desc, "desc", INFINI_STATUS_NULL_POINTER); });
}

infiniStatus_t infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor* desc, infiniDevice_t* device) {
  return status_of("infiniopGetDescriptorDeviceType", [&] {
    need<ConvBackward>(desc, "desc_ptr", INFINI_STATUS_NULL_POINTER);
    need_out(device, "device_type");
    *device = INFINI_DEVICE_CPU;
  });
}

infiniStatus_t infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor* desc, int* device_id) {
  return status_of("infiniopGetDescriptorDeviceId", [&] {
    need<ConvBackward>(desc, "desc_ptr", INFINI_STATUS_NULL_POINTER);
    need_out(device_id, "device_id");
    *device_id = 0;
  });
}
