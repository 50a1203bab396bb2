// Face cann: what stands behind its handles, and its codes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "aclnn/aclnn_base.h"
#include "base/c_face.h"
#include "base/handles.h"
#include "cann/stream.h"
#include "convbwd/convbwd.hpp"

namespace convbwd::cann {

struct TensorObject {
  Shape shape, strides;
  std::int64_t offset;
  aclDataType dtype;
  aclFormat format;
  std::optional<Shape> storage;
  void* data;
};

/// One call, planned. It has copies of everything but the elements of the tensors.
struct Executor {
  std::optional<Plan> plan;  ///< none: the input is empty, so gradWeight and gradBias are zeros
  Tensor grad_output, input, weight;
  const char* grad_output_name = "gradOutput";
  std::array<Tensor, 3> results;
  std::array<std::size_t, 3> result_elements{};  ///< in memory
  std::array<bool, 3> mask{};
  std::size_t workspace_bytes = 0;
  std::atomic<bool> repeatable = false;

  void run(void* workspace) const;
};

using IntArray = std::vector<std::int64_t>;
using BoolArray = std::vector<bool>;

inline constexpr Codes kAcl{ACL_ERROR_INVALID_PARAM, ACL_ERROR_INVALID_PARAM, ACL_ERROR_BAD_ALLOC,
                            ACL_ERROR_INTERNAL_ERROR};
inline constexpr Codes kAclnn{ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_RUNTIME_ERROR,
                              ACLNN_ERR_INNER};

/// The stream behind a handle, that which is always there for null; null where the handle is none.
std::shared_ptr<Stream> find_stream(aclrtStream stream);

}  // namespace convbwd::cann
