// Face cann: aclnnConvolutionBackward and aclnnConvTbcBackward. Phase one is making a Plan, phase two executing it.
// What is checked here is what the operators demand beyond the library, whose own rules `Plan::make` checks.
#include <algorithm>
#include <cstring>
#include <limits>

#include "aclnnop/aclnn_convolution_backward.h"
#include "base/arena.h"
#include "base/view.h"
#include "cann/objects.h"
#include "convbwd/layouts.hpp"

namespace convbwd::cann {
namespace {

constexpr const char* kFunction = "aclnnConvolutionBackwardGetWorkspaceSize";
constexpr const char* kTbcFunction = "aclnnConvTbcBackwardGetWorkspaceSize";
constexpr const char* kResults[] = {"gradInput", "gradWeight", "gradBias"};

template <class Object>
std::shared_ptr<Object> need(const void* handle, const char* name) {
  if (handle == nullptr) refuse(ACLNN_ERR_PARAM_NULLPTR, name, " must not be null");
  auto object = g_table<Object>.find(handle);
  if (!object) refuse(ACLNN_ERR_PARAM_INVALID, name, " was never made, is used up or destroyed");
  return object;
}

struct Tuple {
  const Shape& values;
};
std::ostream& operator<<(std::ostream& out, const Tuple& tuple) {
  out << '[';
  for (std::size_t i = 0; i < tuple.values.size(); ++i) out << (i ? ", " : "") << tuple.values[i];
  return out << ']';
}

bool eight_bits(aclDataType type) { return type == ACL_HIFLOAT8 || type == ACL_FLOAT8_E4M3FN; }

DType dtype_of(const TensorObject& t, const char* name) {
  switch (t.dtype) {
    case ACL_FLOAT:
      return DType::float32;
    case ACL_FLOAT16:
      return DType::float16;
    case ACL_BF16:
      return DType::bfloat16;
    case ACL_HIFLOAT8:
      return DType::hifloat8;
    case ACL_FLOAT8_E4M3FN:
      return DType::float8_e4m3fn;
    default:
      refuse(ACLNN_ERR_PARAM_INVALID, name,
             " must be FLOAT, FLOAT16, BF16, HIFLOAT8 or FLOAT8_E4M3FN, got aclDataType ", static_cast<int>(t.dtype));
  }
}

using Wide = __int128;  // holds sums and products that a caller's numbers may make too large
constexpr Wide kMost = std::numeric_limits<std::int64_t>::max();

Wide elements(const Shape& shape) {
  Wide count = 1;
  for (const std::int64_t size : shape) count = std::min(count * size, kMost);
  return count;
}

// Tensors of N, C and spatial axes, which may be in blocks of channels.
void check_format(const TensorObject& t, const char* name, bool weights) {
  struct Row {
    aclFormat plain, image, weight;
    const char *names, *weight_names;
  };
  static constexpr Row kOfRank[] = {
      {ACL_FORMAT_NCL, ACL_FORMAT_NCL, ACL_FORMAT_NCL, "ND or NCL", "ND or NCL"},
      {ACL_FORMAT_NCHW, ACL_FORMAT_NC1HWC0, ACL_FORMAT_FRACTAL_Z, "ND, NCHW or NC1HWC0", "ND, NCHW or FRACTAL_Z"},
      {ACL_FORMAT_NCDHW, ACL_FORMAT_NDC1HWC0, ACL_FRACTAL_Z_3D, "ND, NCDHW or NDC1HWC0", "ND, NCDHW or FRACTAL_Z_3D"}};
  const std::size_t rank = t.shape.size();
  if (rank < 3 || rank > 5) refuse(ACLNN_ERR_PARAM_INVALID, name, " must have rank 3, 4 or 5, got ", rank);
  const Row& row = kOfRank[rank - 3];
  if (t.format != ACL_FORMAT_ND && t.format != row.plain && t.format != (weights ? row.weight : row.image))
    refuse(ACLNN_ERR_PARAM_INVALID, name, " of rank ", rank, " must have format ",
           weights ? row.weight_names : row.names, ", got aclFormat ", static_cast<int>(t.format));
}

// C0 is what the storage has it to be.
std::optional<Packing> packing(const TensorObject& t) {
  const std::int64_t c0 = t.storage && !t.storage->empty() ? t.storage->back() : 0;
  switch (t.format) {
    case ACL_FORMAT_NC1HWC0:
      return Packing{MemoryFormat::nc1hwc0, c0};
    case ACL_FORMAT_FRACTAL_Z:
      return Packing{MemoryFormat::fractal_z, c0};
    case ACL_FORMAT_NDC1HWC0:
      return Packing{MemoryFormat::ndc1hwc0, c0};
    case ACL_FRACTAL_Z_3D:
      return Packing{MemoryFormat::fractal_z_3d, c0};
    default:
      return {};
  }
}

// The axes in memory of a tensor in blocks.
Shape memory_dims(const TensorObject& t, DType dtype, const char* name, int groups) {
  const Packing p = *packing(t);
  try {
    return packed_shape(p.format, t.shape, groups, c0_of(p, dtype));
  } catch (const Error& error) {
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must fit its format, got ", Tuple{t.shape}, ": ", error.what());
  }
}

// The elements must lie in the storage, as far as its size was given.
void check_storage(const TensorObject& t, const char* name) {
  if (!t.storage || empty(t.shape) || packing(t)) return;
  Wide low = t.offset, high = t.offset;
  if (t.strides.empty()) high += elements(t.shape) - 1;
  for (std::size_t a = 0; a < t.strides.size(); ++a) {
    const Wide reach = Wide{t.shape[a] - 1} * t.strides[a];
    (reach < 0 ? low : high) += reach;
  }
  if (low < 0 || high >= elements(*t.storage))
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must lie in its storage ", Tuple{*t.storage}, ", got the view ",
           Tuple{t.shape}, " with strides ", Tuple{t.strides}, " and offset ", t.offset);
}

bool contiguous(const TensorObject& t) {
  if (empty(t.shape)) return true;
  Wide dense = 1;
  for (std::size_t a = t.shape.size(); a-- > 0; dense = std::min(dense * t.shape[a], kMost))
    if (!t.strides.empty() && t.shape[a] > 1 && t.strides[a] != dense) return false;
  return true;
}

Tensor tensor(const TensorObject& t, DType dtype) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  const auto bytes = static_cast<std::uintptr_t>(t.offset) * size_of(dtype);
  void* const data = t.data ? reinterpret_cast<void*>(address + bytes) : nullptr;
  const std::optional<Packing> packed = packing(t);
  return {data, dtype, t.shape, packed ? Shape{} : t.strides, packed};
}

// Blocks of channels have no other order and no gaps. An image has one group.
void check_blocks(const TensorObject& t, DType dtype, const char* name, int groups = 1) {
  if (!packing(t)) return;
  if (t.offset != 0 || !contiguous(t))
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must have no offset and the strides of ", Tuple{t.shape},
           " where its channels are in blocks, got strides ", Tuple{t.strides}, " and offset ", t.offset);
  const Shape dims = memory_dims(t, dtype, name, groups);
  if (t.storage && *t.storage != dims)
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must have storage ", Tuple{dims}, ", got ", Tuple{*t.storage});
}

Tensor operand(const TensorObject& t, DType dtype, const char* name) {
  check_storage(t, name);
  return tensor(t, dtype);
}

Tensor result(const TensorObject& t, DType dtype, const Shape& shape, const char* name) {
  if (t.shape != shape)
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must have shape ", Tuple{shape}, ", got ", Tuple{t.shape});
  if (!contiguous(t))
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must be contiguous, got strides ", Tuple{t.strides}, " for shape ",
           Tuple{t.shape});
  check_storage(t, name);
  Tensor dense = tensor(t, dtype);
  dense.strides.clear();
  return dense;
}

void check_length(const IntArray& values, std::size_t dims, const char* name, bool pairs) {
  if (values.size() != dims && !(pairs && values.size() == 2 * dims))
    refuse(ACLNN_ERR_PARAM_INVALID, name, " must have length ", dims, pairs ? " or 4" : "", ", got ", values.size());
}

// The same elements with their axes in another order.
Tensor permuted(Tensor t, const std::array<std::size_t, 3>& order) {
  Tensor result = t;
  if (t.strides.empty())  // sizes that no memory has may wrap: Plan::make refuses them
    t.strides = {
        static_cast<std::int64_t>(static_cast<std::uint64_t>(t.shape[1]) * static_cast<std::uint64_t>(t.shape[2])),
        t.shape[2], 1};
  result.strides.resize(3);
  for (std::size_t a = 0; a < 3; ++a) {
    result.shape[a] = t.shape[order[a]];
    result.strides[a] = t.strides[order[a]];
  }
  return result;
}
// (T, B, C) and (K, Cin, Cout) as the library has them: (B, C, T) and (Cout, Cin, K).
constexpr std::array<std::size_t, 3> kImageOfTbc{1, 2, 0}, kWeightOfTbc{2, 1, 0};

void need_results(const uint64_t* workspace_size, aclOpExecutor* const* executor) {
  if (workspace_size == nullptr) refuse(ACLNN_ERR_PARAM_NULLPTR, "workspaceSize must not be null");
  if (executor == nullptr) refuse(ACLNN_ERR_PARAM_NULLPTR, "executor must not be null");
}

void check_mode(int8_t mode) {
  if (mode < 0 || mode > 3)
    refuse(ACLNN_ERR_PARAM_INVALID, "cubeMathType must be 0, 1, 2 or 3, got ", static_cast<int>(mode));
}

void hand_over(std::shared_ptr<Executor> call, uint64_t* workspace_size, aclOpExecutor** executor) {
  if (call->plan) call->workspace_bytes = to_bring(call->plan->workspace_bytes());
  *workspace_size = call->workspace_bytes;
  *executor = static_cast<aclOpExecutor*>(static_cast<void*>(g_table<Executor>.insert(std::move(call))));
}

// Phase two. Elements that no gradient asked for reads may be null.
aclnnStatus execute(const char* function, void* workspace, uint64_t workspace_size, aclOpExecutor* executor,
                    aclrtStream stream) {
  return guarded(function, kAclnn, [&] {
    const auto call = need<Executor>(executor, "executor");
    if (workspace_size < call->workspace_bytes)
      refuse(ACLNN_ERR_PARAM_INVALID, "workspaceSize must be at least ", call->workspace_bytes, ", got ",
             workspace_size);
    if (workspace == nullptr && call->workspace_bytes > 0)
      refuse(ACLNN_ERR_PARAM_NULLPTR, "workspace must not be null where its size is not 0");
    const auto need_elements = [](const Tensor& t, const char* name) {
      if (t.data == nullptr && !empty(t.shape)) refuse(ACLNN_ERR_PARAM_NULLPTR, name, " must have elements, got null");
    };
    const auto& [dx, dw, db] = call->mask;
    if (call->plan) {
      if (dx || dw || db) need_elements(call->grad_output, call->grad_output_name);
      if (dw) need_elements(call->input, "input");
      if (dx) need_elements(call->weight, "weight");
    }
    for (std::size_t i = 0; i < 3; ++i)
      if (call->mask[i]) need_elements(call->results[i], kResults[i]);
    const auto queue = find_stream(stream);
    if (!queue) refuse(ACLNN_ERR_PARAM_INVALID, "stream must be null or one of aclrtCreateStream, not destroyed");
    if (!call->repeatable && !g_table<Executor>.remove(executor)) refuse(ACLNN_ERR_PARAM_INVALID, "executor has run");
    queue->push([call, workspace] { call->run(workspace); });
  });
}

// An input without elements has no batch, or no channels. The library refuses axes without positions: such an axis
// becomes one position with padding that gives the same output size.
void check_empty(Request& r) {
  Shape& input = r.input.shape;
  if (r.transposed ? input[0] != 0 || input[1] == 0 : input[0] != 0 && input[1] != 0)
    refuse(ACLNN_ERR_PARAM_INVALID, "an empty input must have N = 0", r.transposed ? " and C > 0" : " or C = 0",
           ", got ", Tuple{input});
  if (r.grad_output->shape[1] == 0)
    refuse(ACLNN_ERR_PARAM_INVALID, "gradOutput must have channels, got ", Tuple{r.grad_output->shape});
  for (const std::int64_t pad : r.padding)
    if (pad < 0) refuse(ACLNN_ERR_PARAM_INVALID, "padding must be at least 0, got ", Tuple{r.padding});
  const bool pairs = r.padding.size() != r.stride.size();
  Shape padding;
  for (std::size_t a = 0; a < r.stride.size(); ++a) {
    std::int64_t before = r.padding[pairs ? 2 * a : a], after = pairs ? r.padding[2 * a + 1] : before;
    if (input[a + 2] == 0) {
      if (!r.transposed && before == 0 && after == 0)
        refuse(ACLNN_ERR_PARAM_INVALID, "the dilated kernel must fit the padded input = 0, got input ", Tuple{input});
      std::int64_t& changed = after > 0 ? after : before;
      changed = r.transposed ? static_cast<std::int64_t>(std::min(Wide{changed} + r.stride[a], kMost)) : changed - 1;
      input[a + 2] = 1;
    }
    padding.insert(padding.end(), {before, after});
  }
  r.padding = padding;
}

}  // namespace

void Executor::run(void* workspace) const {
  if (!plan) {
    for (const std::size_t i : {1, 2})
      if (mask[i] && result_elements[i] > 0)
        std::memset(results[i].data, 0, result_elements[i] * size_of(results[i].dtype));
    return;
  }
  plan->backward(grad_output, input, weight, results, aligned(workspace, plan->workspace_bytes()));
}

}  // namespace convbwd::cann

using namespace convbwd;
using namespace convbwd::cann;

aclnnStatus aclnnConvolutionBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* input,
                                                     const aclTensor* weight, const aclIntArray* biasSizes,
                                                     const aclIntArray* stride, const aclIntArray* padding,
                                                     const aclIntArray* dilation, bool transposed,
                                                     const aclIntArray* outputPadding, int groups,
                                                     const aclBoolArray* outputMask, int8_t cubeMathType,
                                                     aclTensor* gradInput, aclTensor* gradWeight, aclTensor* gradBias,
                                                     uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kFunction, kAclnn, [&] {
    // Null pointers.
    const auto dy = need<TensorObject>(gradOutput, "gradOutput");
    const auto x = need<TensorObject>(input, "input");
    const auto w = need<TensorObject>(weight, "weight");
    const auto strides = need<IntArray>(stride, "stride");
    const auto pads = need<IntArray>(padding, "padding");
    const auto dilations = need<IntArray>(dilation, "dilation");
    const auto output_padding = need<IntArray>(outputPadding, "outputPadding");
    const auto mask = need<BoolArray>(outputMask, "outputMask");
    if (mask->size() != 3) refuse(ACLNN_ERR_PARAM_NULLPTR, "outputMask must have 3 entries, got ", mask->size());
    std::array<std::shared_ptr<TensorObject>, 3> outputs;
    for (std::size_t i = 0; i < 3; ++i)
      if ((*mask)[i]) outputs[i] = need<TensorObject>(std::array{gradInput, gradWeight, gradBias}[i], kResults[i]);
    need_results(workspaceSize, executor);
    const auto bias_sizes = biasSizes ? need<IntArray>(biasSizes, "biasSizes") : nullptr;

    // Element types, formats.
    auto call = std::make_shared<Executor>();
    Request r;
    r.function = kFunction;
    call->grad_output = operand(*dy, dtype_of(*dy, "gradOutput"), "gradOutput");
    call->input = operand(*x, dtype_of(*x, "input"), "input");
    call->weight = operand(*w, dtype_of(*w, "weight"), "weight");
    for (std::size_t i = 0; i < 3; ++i) {
      if (!outputs[i]) continue;
      if (i == 2 && eight_bits(outputs[i]->dtype))
        refuse(ACLNN_ERR_INNER_NULLPTR, "gradBias must be FLOAT, FLOAT16 or BF16, got 8 bits");
      r.result_dtypes[i] = dtype_of(*outputs[i], kResults[i]);
    }
    check_format(*dy, "gradOutput", false);
    check_format(*x, "input", false);
    check_format(*w, "weight", true);
    for (std::size_t i = 0; i < 2; ++i) {
      if (!outputs[i]) continue;
      check_format(*outputs[i], kResults[i], i == 1);
      r.result_packings[i] = packing(*outputs[i]);
    }
    if (outputs[2] && outputs[2]->format != ACL_FORMAT_ND)
      refuse(ACLNN_ERR_PARAM_INVALID, "gradBias must have format ND, got aclFormat ",
             static_cast<int>(outputs[2]->format));
    check_mode(cubeMathType);

    // Ranks and lengths; the library knows some more.
    const std::size_t rank = w->shape.size(), dims = rank - 2;
    if (x->shape.size() != rank || dy->shape.size() != rank)
      refuse(ACLNN_ERR_PARAM_INVALID, "gradOutput, input and weight must have the same rank, got ", dy->shape.size(),
             ", ", x->shape.size(), " and ", rank);
    check_length(*strides, dims, "stride", false);
    check_length(*pads, dims, "padding", rank == 4);
    check_length(*dilations, dims, "dilation", false);
    check_length(*output_padding, dims, "outputPadding", false);
    for (std::size_t i = 0; transposed && i < dims; ++i)
      if ((*output_padding)[i] >= std::max<std::int64_t>((*strides)[i], 1))
        refuse(ACLNN_ERR_PARAM_INVALID, "outputPadding must be less than stride, got ", Tuple{*output_padding},
               " with stride ", Tuple{*strides});

    check_blocks(*dy, call->grad_output.dtype, "gradOutput");
    check_blocks(*x, call->input.dtype, "input");
    check_blocks(*w, call->weight.dtype, "weight", groups);
    r.grad_output = call->grad_output;
    r.input = call->input;
    r.weight = call->weight;
    r.stride = *strides;
    r.padding = *pads;  // [up, down, left, right] are pairs already
    r.dilation = *dilations;
    r.transposed = transposed;
    r.output_padding = *output_padding;
    r.groups = groups;
    r.cube_math_type = static_cast<CubeMathType>(cubeMathType);
    for (std::size_t i = 0; i < 3; ++i) r.output_mask[i] = call->mask[i] = (*mask)[i];

    const bool no_input = empty(x->shape);
    if (no_input) check_empty(r);
    const Plan plan = Plan::make(r);
    const Shape& channels = plan.results()[2].shape;
    if (no_input && (*mask)[2] && (!bias_sizes || *bias_sizes != channels))
      refuse(ACLNN_ERR_PARAM_INVALID, "biasSizes must be ", Tuple{channels},
             " where input is empty and gradBias is computed");
    if (!no_input) call->plan = plan;
    const std::array<const Shape*, 3> shapes{&x->shape, &w->shape, &channels};
    for (std::size_t i = 0; i < 3; ++i) {
      if (!outputs[i]) continue;
      const TensorObject& t = *outputs[i];
      const DType dtype = *r.result_dtypes[i];
      call->results[i] = result(t, dtype, *shapes[i], kResults[i]);
      check_blocks(t, dtype, kResults[i], i == 1 ? groups : 1);
      call->result_elements[i] = static_cast<std::size_t>(
          elements(packing(t) ? memory_dims(t, dtype, kResults[i], i == 1 ? groups : 1) : t.shape));
    }

    hand_over(std::move(call), workspaceSize, executor);
  });
}

aclnnStatus aclnnConvolutionBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                     aclrtStream stream) {
  return execute("aclnnConvolutionBackward", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnConvTbcBackwardGetWorkspaceSize(const aclTensor* self, const aclTensor* input, const aclTensor* weight,
                                                 const aclTensor* bias, int64_t pad, int8_t cubeMathType,
                                                 aclTensor* gradInput, aclTensor* gradWeight, aclTensor* gradBias,
                                                 uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kTbcFunction, kAclnn, [&] {
    struct Given {
      const char* name;
      std::shared_ptr<TensorObject> tensor;
      bool of_bias = false;
      DType dtype{};
    };
    std::array<Given, 7> given{{{"self", need<TensorObject>(self, "self")},
                                {"input", need<TensorObject>(input, "input")},
                                {"weight", need<TensorObject>(weight, "weight")},
                                {"bias", need<TensorObject>(bias, "bias"), true},
                                {kResults[0], need<TensorObject>(gradInput, kResults[0])},
                                {kResults[1], need<TensorObject>(gradWeight, kResults[1])},
                                {kResults[2], need<TensorObject>(gradBias, kResults[2]), true}}};
    need_results(workspaceSize, executor);
    for (Given& g : given) {
      if (const aclDataType t = g.tensor->dtype; t != ACL_FLOAT && t != ACL_FLOAT16 && t != ACL_BF16)
        refuse(ACLNN_ERR_PARAM_INVALID, g.name, " must be FLOAT, FLOAT16 or BF16, got aclDataType ",
               static_cast<int>(t));
      g.dtype = dtype_of(*g.tensor, g.name);
    }
    for (const auto& [name, t, of_bias, dtype] : given) {
      if (t->format != ACL_FORMAT_ND && (of_bias || t->format != ACL_FORMAT_NCL))
        refuse(ACLNN_ERR_PARAM_INVALID, name, " must have format ND", of_bias ? "" : " or NCL", ", got aclFormat ",
               static_cast<int>(t->format));
      if (const std::size_t rank = of_bias ? 1 : 3; t->shape.size() != rank)
        refuse(ACLNN_ERR_PARAM_INVALID, name, " must have rank ", rank, ", got ", t->shape.size());
    }
    const Shape &x = given[1].tensor->shape, &w = given[2].tensor->shape;
    if (empty(given[0].tensor->shape))
      refuse(ACLNN_ERR_PARAM_INVALID, "self must not be empty, got ", Tuple{given[0].tensor->shape});
    for (const std::size_t i : {1, 2})
      if (given[i].tensor->shape[0] == 0)
        refuse(ACLNN_ERR_PARAM_INVALID, given[i].name, " must have at least 1 as its first size, got ",
               Tuple{given[i].tensor->shape});
    if (x[2] != w[1])
      refuse(ACLNN_ERR_PARAM_INVALID, "input must have the channels of weight = ", w[1], ", got ", Tuple{x});
    if (given[3].tensor->shape[0] != w[2])
      refuse(ACLNN_ERR_PARAM_INVALID, "bias must have shape [", w[2], "], got ", Tuple{given[3].tensor->shape});
    if (pad < 0) refuse(ACLNN_ERR_PARAM_INVALID, "pad must be at least 0, got ", pad);
    const Wide steps = Wide{x[0]} + 2 * Wide{pad} + 1 - w[0];
    const Shape output{static_cast<std::int64_t>(std::clamp(steps, Wide{0}, kMost)), x[1], w[2]};
    if (given[0].tensor->shape != output)
      refuse(ACLNN_ERR_PARAM_INVALID, "self must have shape ", Tuple{output}, ", got ", Tuple{given[0].tensor->shape});
    check_mode(cubeMathType);

    auto call = std::make_shared<Executor>();
    call->grad_output_name = "self";
    call->mask = {true, true, true};
    const auto operand_of = [&](std::size_t i, const std::array<std::size_t, 3>& order) {
      return permuted(operand(*given[i].tensor, given[i].dtype, given[i].name), order);
    };
    Request r;
    r.function = kTbcFunction;
    r.grad_output = call->grad_output = operand_of(0, kImageOfTbc);
    r.input = call->input = operand_of(1, kImageOfTbc);
    r.weight = call->weight = operand_of(2, kWeightOfTbc);
    r.padding = {pad};
    r.cube_math_type = static_cast<CubeMathType>(cubeMathType);
    for (std::size_t i = 0; i < 3; ++i) {
      const Given& g = given[4 + i];
      Tensor t = result(*g.tensor, g.dtype, given[1 + i].tensor->shape, g.name);
      call->results[i] = i == 2 ? t : permuted(t, i == 0 ? kImageOfTbc : kWeightOfTbc);
      r.result_dtypes[i] = g.dtype;
      r.result_strides[i] = call->results[i].strides;
    }
    call->plan = Plan::make(r);
    hand_over(std::move(call), workspaceSize, executor);
  });
}

aclnnStatus aclnnConvTbcBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return execute("aclnnConvTbcBackward", workspace, workspaceSize, executor, stream);
}
