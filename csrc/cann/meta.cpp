// Face cann: acl_meta.h.
#include "aclnn/acl_meta.h"
#include "cann/objects.h"

namespace convbwd::cann {
namespace {

template <class T>
void need_values(const T* values, std::uint64_t count, const char* name) {
  if (values == nullptr && count > 0) refuse(ACLNN_ERR_PARAM_NULLPTR, name, " must not be null");
}

Shape read_dims(const std::int64_t* dims, std::uint64_t count, const char* name) {
  need_values(dims, count, name);
  const Shape shape(dims, dims + count);
  for (const std::int64_t size : shape)
    if (size < 0) refuse(ACLNN_ERR_PARAM_INVALID, name, " must not be negative, got ", size);
  return shape;
}

template <class Handle, class Object>
Handle* give(Object object) {
  return static_cast<Handle*>(g_table<Object>.insert(std::make_shared<Object>(std::move(object))));
}

template <class Object>
aclnnStatus destroy(const char* function, const void* handle) {
  return guarded(function, kAclnn, [&] {
    if (handle == nullptr) refuse(ACLNN_ERR_PARAM_NULLPTR, "the argument must not be null");
    if (!g_table<Object>.remove(handle))
      refuse(ACLNN_ERR_PARAM_INVALID, "the argument was never made, or is destroyed");
  });
}

}  // namespace
}  // namespace convbwd::cann

using namespace convbwd;
using namespace convbwd::cann;

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData) {
  aclTensor* tensor = nullptr;
  guarded("aclCreateTensor", kAclnn, [&] {
    TensorObject t{read_dims(viewDims, viewDimsNum, "viewDims"), {}, offset, dataType, format, {}, tensorData};
    if (stride != nullptr) t.strides.assign(stride, stride + viewDimsNum);
    if (storageDims != nullptr) t.storage = read_dims(storageDims, storageDimsNum, "storageDims");
    tensor = give<aclTensor>(std::move(t));
  });
  return tensor;
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  aclIntArray* array = nullptr;
  guarded("aclCreateIntArray", kAclnn, [&] {
    need_values(value, size, "value");
    array = give<aclIntArray>(IntArray(value, value + size));
  });
  return array;
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  aclBoolArray* array = nullptr;
  guarded("aclCreateBoolArray", kAclnn, [&] {
    need_values(value, size, "value");
    array = give<aclBoolArray>(BoolArray(value, value + size));
  });
  return array;
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) { return destroy<TensorObject>("aclDestroyTensor", tensor); }
aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return destroy<IntArray>("aclDestroyIntArray", array); }
aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return destroy<BoolArray>("aclDestroyBoolArray", array); }
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return destroy<Executor>("aclDestroyAclOpExecutor", executor);
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* handle) {
  return guarded("aclSetAclOpExecutorRepeatable", kAclnn, [&] {
    if (handle == nullptr) refuse(ACLNN_ERR_PARAM_NULLPTR, "executor must not be null");
    const auto executor = g_table<Executor>.find(handle);
    if (!executor) refuse(ACLNN_ERR_PARAM_INVALID, "executor has run, or was never made");
    executor->repeatable = true;
  });
}
