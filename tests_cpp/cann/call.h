// A call of aclnnConvolutionBackward as a test states it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_convolution_backward.h"
#include "support/guarded_buffer.h"
#include "support/tensor.h"

namespace convbwd::test {

using Ints = std::vector<std::int64_t>;

inline std::int64_t product(const Ints& shape) {
  double count = 1;  // may be more than memory has
  for (const auto n : shape) count *= static_cast<double>(n);
  return static_cast<std::int64_t>(std::min(count, 0x1p62));
}

inline DType dtype_of(aclDataType type) {
  switch (type) {
    case ACL_FLOAT16:
      return DType::float16;
    case ACL_BF16:
      return DType::bfloat16;
    case ACL_HIFLOAT8:
      return DType::hifloat8;
    case ACL_FLOAT8_E4M3FN:
      return DType::float8_e4m3fn;
    default:
      return DType::float32;
  }
}

/// A tensor with elements of its own, which begin as `value`; the storage is as large as the shape unless stated.
struct Argument {
  Ints shape{};
  aclDataType dtype = ACL_FLOAT;
  aclFormat format = ACL_FORMAT_ND;
  double value = 1;
  Ints strides{};  // empty: null
  std::int64_t offset = 0;
  std::optional<Ints> storage{};
  bool null_elements = false;
  std::vector<std::uint64_t> memory{};

  aclTensor* make() {
    const std::int64_t count = std::max<std::int64_t>(product(storage.value_or(shape)), 0);
    if (memory.empty() && count < 1 << 24) {
      memory.resize(static_cast<std::size_t>(count) + 1);
      for (std::int64_t i = 0; i < count; ++i) set(memory.data(), dtype_of(dtype), i, value);
    }
    const Ints& held = storage ? *storage : shape;
    return aclCreateTensor(shape.data(), shape.size(), dtype, strides.empty() ? nullptr : strides.data(), offset,
                           format, held.data(), held.size(), null_elements ? nullptr : memory.data());
  }
  double operator[](std::int64_t i) const { return get(memory.data(), dtype_of(dtype), i); }
};

struct Call {
  Argument grad_output{}, input{}, weight{};
  std::optional<Ints> bias_sizes{}, stride{}, padding{}, dilation{};  // none: null
  bool transposed = false;
  std::optional<Ints> output_padding{};
  int groups = 1;
  std::optional<std::vector<std::uint8_t>> mask{{1, 1, 1}};
  int cube_math_type = 0;
  Argument grad_input{}, grad_weight{}, grad_bias{};
  std::string null{};  // names the tensor or out-parameter that is null

  /// With parameters and results that fit.
  static Call of(Argument grad_output, Argument input, Argument weight, Ints stride, Ints padding, Ints dilation) {
    Call c{std::move(grad_output), std::move(input), std::move(weight)};
    c.stride = std::move(stride);
    c.padding = std::move(padding);
    c.dilation = std::move(dilation);
    c.output_padding = Ints(c.stride->size());
    c.grad_input = {c.input.shape, c.input.dtype, ACL_FORMAT_ND, -7};
    c.grad_weight = {c.weight.shape, c.weight.dtype, ACL_FORMAT_ND, -7};
    c.grad_bias = {{c.weight.shape[0]}, c.grad_output.dtype, ACL_FORMAT_ND, -7};
    c.bias_sizes = c.grad_bias.shape;
    return c;
  }

  std::uint64_t workspace_size = 12345;
  aclOpExecutor* executor = nullptr;
  std::string message{};  ///< of phase one
  std::vector<std::byte> workspace{};

  /// Phase one. What it takes is destroyed before it returns.
  aclnnStatus plan() {
    std::vector<aclTensor*> tensors;
    const auto tensor = [&](const char* name, Argument& t) {
      tensors.push_back(null == name ? nullptr : t.make());
      return tensors.back();
    };
    std::vector<aclIntArray*> arrays;
    const auto array = [&](const std::optional<Ints>& values) {
      arrays.push_back(values ? aclCreateIntArray(values->data(), values->size()) : nullptr);
      return arrays.back();
    };
    bool flags[8] = {};
    for (std::size_t i = 0; mask && i < mask->size(); ++i) flags[i] = (*mask)[i] != 0;
    aclBoolArray* const bools = mask ? aclCreateBoolArray(flags, mask->size()) : nullptr;
    auto* const dy = tensor("gradOutput", grad_output);
    auto* const x = tensor("input", input);
    auto* const w = tensor("weight", weight);
    auto* const bias = array(bias_sizes);
    auto* const strides = array(stride);
    auto* const pads = array(padding);
    auto* const dilations = array(dilation);
    auto* const output_pads = array(output_padding);
    auto* const dx = tensor("gradInput", grad_input);
    auto* const dw = tensor("gradWeight", grad_weight);
    auto* const db = tensor("gradBias", grad_bias);
    const aclnnStatus status = aclnnConvolutionBackwardGetWorkspaceSize(
        dy, x, w, bias, strides, pads, dilations, transposed, output_pads, groups, bools,
        static_cast<std::int8_t>(cube_math_type), dx, dw, db, null == "workspaceSize" ? nullptr : &workspace_size,
        null == "executor" ? nullptr : &executor);
    message = aclGetRecentErrMsg();
    for (auto* t : tensors) {
      if (t) {
        EXPECT_EQ(aclDestroyTensor(t), ACL_SUCCESS);
      }
    }
    for (auto* a : arrays) {
      if (a) {
        EXPECT_EQ(aclDestroyIntArray(a), ACL_SUCCESS);
      }
    }
    if (bools) {
      EXPECT_EQ(aclDestroyBoolArray(bools), ACL_SUCCESS);
    }
    return status;
  }
  /// Phase two in a workspace of exactly the stated size.
  aclnnStatus execute(aclrtStream stream = nullptr) {
    workspace.resize(workspace_size);
    return aclnnConvolutionBackward(workspace.data(), workspace_size, executor, stream);
  }

  void run() {
    ASSERT_EQ(plan(), ACL_SUCCESS) << message;
    ASSERT_EQ(execute(), ACL_SUCCESS) << aclGetRecentErrMsg();
    ASSERT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS) << aclGetRecentErrMsg();
  }
};

}  // namespace convbwd::test
