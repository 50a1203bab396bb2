// Face infiniop: the runtime, handles and tensor descriptors.
#include <cstring>
#include <limits>

#include "base/allocations.h"
#include "infiniop.h"
#include "infiniop/objects.h"
#include "infinirt.h"

using namespace convbwd;
using namespace convbwd::infiniop;

namespace {

Allocations& memory() {
  static auto& allocations = *new Allocations;
  return allocations;
}

template <class T>
void need_out(T* pointer, const char* name) {
  if (pointer == nullptr) refuse(INFINI_STATUS_NULL_POINTER, name, " must not be null");
}

}  // namespace

const char* infiniopGetRecentErrMsg() { return RecentMessage::take(); }

infiniStatus_t infinirtInit() { return INFINI_STATUS_SUCCESS; }

infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id) {
  return status_of("infinirtSetDevice", [&] {
    if (device != INFINI_DEVICE_CPU)
      refuse(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device must be INFINI_DEVICE_CPU, got ",
             static_cast<int>(device));
    if (device_id != 0) refuse(INFINI_STATUS_DEVICE_NOT_FOUND, "device_id must be 0, got ", device_id);
  });
}

infiniStatus_t infinirtGetDevice(infiniDevice_t* device, int* device_id) {
  return status_of("infinirtGetDevice", [&] {
    if (device) *device = INFINI_DEVICE_CPU;
    if (device_id) *device_id = 0;
  });
}

infiniStatus_t infinirtDeviceSynchronize() { return INFINI_STATUS_SUCCESS; }

infiniStatus_t infinirtMalloc(void** pointer, size_t size) {
  return status_of("infinirtMalloc", [&] {
    need_out(pointer, "p_ptr");
    void* const allocated = memory().allocate(size);
    if (allocated == nullptr) refuse(INFINI_STATUS_INTERNAL_ERROR, "cannot allocate ", size, " bytes");
    *pointer = allocated;
  });
}

infiniStatus_t infinirtFree(void* pointer) {
  return status_of("infinirtFree", [&] {
    if (pointer && !memory().release(pointer))
      refuse(INFINI_STATUS_BAD_PARAM, "ptr was not allocated by infinirtMalloc, or was freed before");
  });
}

infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind) {
  return status_of("infinirtMemcpy", [&] {
    if (kind < INFINIRT_MEMCPY_H2H || kind > INFINIRT_MEMCPY_D2D)
      refuse(INFINI_STATUS_BAD_PARAM, "kind must be an infinirtMemcpyKind_t, got ", static_cast<int>(kind));
    if (size == 0) return;
    need_out(dst, "dst");
    need_out(src, "src");
    for (const void* pointer : {static_cast<const void*>(dst), src})
      if (const auto room = memory().room(pointer); room && size > *room)
        refuse(INFINI_STATUS_BAD_PARAM, "size must be at most ", *room, ", what is left in the memory, got ", size);
    std::memmove(dst, src, size);
  });
}

infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle) {
  return status_of("infiniopCreateHandle", [&] {
    need_out(handle, "handle_ptr");
    *handle = static_cast<infiniopHandle_t>(table<Handle>().insert(std::make_shared<Handle>()));
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
        table<TensorDescriptor>().insert(std::make_shared<TensorDescriptor>(std::move(t))));
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
