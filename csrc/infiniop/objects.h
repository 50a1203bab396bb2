// Face infiniop: what stands behind its handles, and its codes.
#pragma once

#include <array>
#include <cstddef>

#include "base/c_face.h"
#include "base/handles.h"
#include "convbwd/convbwd.hpp"
#include "infiniop/operator_descriptor.h"

namespace convbwd::infiniop {

struct Handle {};

struct TensorDescriptor {
  Shape shape, strides;
  infiniDtype_t dtype;
};

/// One problem, planned: a plan for each gradient, so that each can be left out.
struct ConvBackward {
  std::array<Plan, 3> plans;
  std::array<bool, 3> empty;    // grad_output, input, weight
  std::size_t workspace_bytes;  // that a caller brings
};

// What a value of a request breaks, once the parameters are checked, is a rule of shapes.
inline constexpr Codes kCodes{INFINI_STATUS_BAD_TENSOR_SHAPE, INFINI_STATUS_BAD_TENSOR_DTYPE,
                              INFINI_STATUS_INTERNAL_ERROR, INFINI_STATUS_INTERNAL_ERROR};

template <class F>
infiniStatus_t status_of(const char* function, F&& f) noexcept {
  return static_cast<infiniStatus_t>(guarded(function, kCodes, std::forward<F>(f)));
}

/// The object behind a handle; `null` is the code where that is null.
template <class Object>
std::shared_ptr<Object> need(const void* handle, const char* name, infiniStatus_t null) {
  if (handle == nullptr) refuse(null, name, " must not be null");
  auto object = g_table<Object>.find(handle);
  if (!object) refuse(INFINI_STATUS_BAD_PARAM, name, " was never made, or is destroyed");
  return object;
}

template <class Object>
void destroy(const void* handle, const char* name, infiniStatus_t null) {
  need<Object>(handle, name, null);
  g_table<Object>.remove(handle);
}

}  // namespace convbwd::infiniop
