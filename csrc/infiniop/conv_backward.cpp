// Face infiniop: ConvBackward. The descriptor is the plan.
#include "infiniop/ops/conv_backward.h"

#include <algorithm>

#include "base/arena.h"
#include "base/view.h"
#include "infiniop/objects.h"

namespace convbwd::infiniop {
namespace {

DType dtype_of(const TensorDescriptor& t, const char* name) {
  switch (t.dtype) {
    case INFINI_DTYPE_F16:
      return DType::float16;
    case INFINI_DTYPE_F32:
      return DType::float32;
    case INFINI_DTYPE_BF16:
      return DType::bfloat16;
    default:
      refuse(INFINI_STATUS_BAD_TENSOR_DTYPE, name, " must be F16, F32 or BF16, got infiniDtype_t ",
             static_cast<int>(t.dtype));
  }
}

// For shapes whose bytes fit in 64 bits.
void check_contiguous(const TensorDescriptor& t, const char* name) {
  std::int64_t dense = 1;
  for (std::size_t a = t.strides.size(); a-- > 0; dense *= t.shape[a])
    if (t.shape[a] > 1 && t.strides[a] != dense && !empty(t.shape))
      refuse(INFINI_STATUS_BAD_TENSOR_STRIDES, name, " must be contiguous, got stride ", t.strides[a], " of axis ", a,
             " instead of ", dense);
}

// An array of C ints, or what stands for it where there is none.
Shape parameters(const void* values, std::size_t count, int least, const char* name) {
  if (values == nullptr) return {least};
  const int* const ints = static_cast<const int*>(values);
  for (std::size_t i = 0; i < count; ++i)
    if (ints[i] < least)
      refuse(INFINI_STATUS_BAD_PARAM, name, " must be at least ", least, ", got ", ints[i], " in entry ", i);
  return {ints, ints + count};
}

}  // namespace
}  // namespace convbwd::infiniop

using namespace convbwd;
using namespace convbwd::infiniop;

infiniStatus_t infiniopCreateConvBackwardDescriptor(infiniopHandle_t handle, infiniopConvBackwardDescriptor_t* desc_ptr,
                                                    infiniopTensorDescriptor_t grad_output_desc,
                                                    infiniopTensorDescriptor_t input_desc,
                                                    infiniopTensorDescriptor_t weight_desc,
                                                    infiniopTensorDescriptor_t bias_desc, void* pads, void* strides,
                                                    void* dilations, size_t n) {
  constexpr const char* kFunction = "infiniopCreateConvBackwardDescriptor";
  return status_of(kFunction, [&] {
    constexpr infiniStatus_t kNull = INFINI_STATUS_BAD_PARAM;
    need<Handle>(handle, "handle", kNull);
    if (desc_ptr == nullptr) refuse(kNull, "desc_ptr must not be null");
    const auto dy = need<TensorDescriptor>(grad_output_desc, "grad_output_desc", kNull);
    const auto x = need<TensorDescriptor>(input_desc, "input_desc", kNull);
    const auto w = need<TensorDescriptor>(weight_desc, "weight_desc", kNull);
    const auto b = bias_desc ? need<TensorDescriptor>(bias_desc, "bias_desc", kNull) : nullptr;

    const DType dtype = dtype_of(*dy, "grad_output");
    for (const auto& [t, name] : {std::pair{&x, "input"}, {&w, "weight"}, {&b, "bias"}})
      if (*t && dtype_of(**t, name) != dtype)
        refuse(INFINI_STATUS_BAD_TENSOR_DTYPE, name, " must be of the type of grad_output, ", name_of(dtype), ", got ",
               name_of(dtype_of(**t, name)));
    const std::size_t rank = w->shape.size();
    if (rank < 3 || rank > 5 || x->shape.size() != rank || dy->shape.size() != rank)
      refuse(INFINI_STATUS_BAD_TENSOR_SHAPE, "grad_output, input and weight must have one rank of 3, 4 or 5, got ",
             dy->shape.size(), ", ", x->shape.size(), " and ", rank);
    if (b && b->shape != Shape{w->shape[0]})
      refuse(INFINI_STATUS_BAD_TENSOR_SHAPE, "bias must have shape (", w->shape[0], ")");
    if (n == 0 || n > 0x7fffffff) refuse(INFINI_STATUS_BAD_PARAM, "n must be from 1 to 2**31 - 1, got ", n);

    Request r;
    r.function = kFunction;
    r.grad_output = Tensor{nullptr, dtype, dy->shape, {}};
    r.input = {nullptr, dtype, x->shape, {}};
    r.weight = {nullptr, dtype, w->shape, {}};
    r.padding = parameters(pads, rank - 2, 0, "pads");
    r.stride = parameters(strides, rank - 2, 1, "strides");
    r.dilation = parameters(dilations, rank - 2, 1, "dilations");
    r.groups = static_cast<std::int64_t>(n);
    const auto plan = [&r](std::size_t result) {
      r.output_mask = {result == 0, result == 1, result == 2};
      return Plan::make(r);
    };
    auto op = std::make_shared<ConvBackward>(
        ConvBackward{{plan(0), plan(1), plan(2)}, {empty(dy->shape), empty(x->shape), empty(w->shape)}, 0});
    check_contiguous(*dy, "grad_output");
    check_contiguous(*x, "input");
    check_contiguous(*w, "weight");
    for (const Plan& p : op->plans) op->workspace_bytes = std::max(op->workspace_bytes, to_bring(p.workspace_bytes()));
    *desc_ptr = static_cast<infiniopConvBackwardDescriptor_t>(g_table<ConvBackward>.insert(std::move(op)));
  });
}

infiniStatus_t infiniopGetConvBackwardWorkspaceSize(infiniopConvBackwardDescriptor_t desc, size_t* size) {
  return status_of("infiniopGetConvBackwardWorkspaceSize", [&] {
    const auto op = need<ConvBackward>(desc, "desc", INFINI_STATUS_BAD_PARAM);
    if (size == nullptr) refuse(INFINI_STATUS_BAD_PARAM, "size must not be null");
    *size = op->workspace_bytes;
  });
}

infiniStatus_t infiniopConvBackward(infiniopConvBackwardDescriptor_t desc, void* workspace, size_t workspace_size,
                                    void* grad_input, void* grad_weight, void* grad_bias, const void* grad_output,
                                    const void* input, const void* weight, void*) {
  return status_of("infiniopConvBackward", [&] {
    const auto op = need<ConvBackward>(desc, "desc", INFINI_STATUS_BAD_PARAM);
    const std::array operands{grad_output, input, weight};
    static constexpr const char* kNames[] = {"grad_output", "input", "weight"};
    for (std::size_t i = 0; i < 3; ++i)
      if (operands[i] == nullptr && !op->empty[i]) refuse(INFINI_STATUS_BAD_PARAM, kNames[i], " must not be null");
    if (workspace_size < op->workspace_bytes)
      refuse(INFINI_STATUS_INSUFFICIENT_WORKSPACE, "workspace_size must be at least ", op->workspace_bytes, ", got ",
             workspace_size);
    if (workspace == nullptr && op->workspace_bytes > 0) refuse(INFINI_STATUS_BAD_PARAM, "workspace must not be null");
    const std::array results{grad_input, grad_weight, grad_bias};
    for (std::size_t i = 0; i < 3; ++i) {
      const Plan& plan = op->plans[i];
      if (results[i]) plan.backward(operands, results, aligned(workspace, plan.workspace_bytes()));
    }
  });
}

infiniStatus_t infiniopDestroyConvBackwardDescriptor(infiniopConvBackwardDescriptor_t desc) {
  return status_of("infiniopDestroyConvBackwardDescriptor",
                   [&] { destroy<ConvBackward>(desc, "desc", INFINI_STATUS_BAD_PARAM); });
}
