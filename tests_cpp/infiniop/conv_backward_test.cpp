// infiniop's ConvBackward: values, every status that it returns, descriptors used wrongly and by many threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "convbwd/convbwd.hpp"
#include "infiniop.h"
#include "infinirt.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {
namespace {

using Sizes = std::vector<std::size_t>;
using Strides = std::vector<std::ptrdiff_t>;
using Ints = std::vector<int>;

struct Described {
  Sizes shape{};
  infiniDtype_t dtype = INFINI_DTYPE_F32;
  Strides strides{};  // empty: null

  infiniopTensorDescriptor_t make() const {
    infiniopTensorDescriptor_t desc = nullptr;
    EXPECT_EQ(infiniopCreateTensorDescriptor(&desc, shape.size(), shape.data(),
                                             strides.empty() ? nullptr : strides.data(), dtype),
              INFINI_STATUS_SUCCESS);
    return desc;
  }
  std::size_t elements() const {
    std::size_t count = 1;
    for (const std::size_t n : shape) count *= n;
    return count;
  }
};

struct Operator {
  Described grad_output{}, input{}, weight{};
  std::optional<Described> bias{};
  std::optional<Ints> pads{}, strides{}, dilations{};  // none: null
  std::size_t groups = 1;
  std::string null{};  // names the argument that is null
  infiniopConvBackwardDescriptor_t desc = nullptr;

  /// What it takes is destroyed before it returns.
  infiniStatus_t create() {
    infiniopHandle_t handle = nullptr;
    EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_SUCCESS);
    const infiniopTensorDescriptor_t dy = grad_output.make(), x = input.make(), w = weight.make();
    const infiniopTensorDescriptor_t b = bias ? bias->make() : nullptr;
    const auto pass = [&](const char* name, auto pointer) { return null == name ? nullptr : pointer; };
    const auto ints = [](std::optional<Ints>& values) { return values ? values->data() : nullptr; };
    const infiniStatus_t status = infiniopCreateConvBackwardDescriptor(
        pass("handle", handle), pass("desc_ptr", &desc), pass("grad_output", dy), pass("input", x), pass("weight", w),
        b, ints(pads), ints(strides), ints(dilations), groups);
    for (const auto t : {dy, x, w}) EXPECT_EQ(infiniopDestroyTensorDescriptor(t), INFINI_STATUS_SUCCESS);
    if (b) {
      EXPECT_EQ(infiniopDestroyTensorDescriptor(b), INFINI_STATUS_SUCCESS);
    }
    EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
    return status;
  }
};

std::ptrdiff_t size_of(infiniDtype_t dtype) { return dtype == INFINI_DTYPE_F32 ? 4 : 2; }
DType dtype_of(infiniDtype_t dtype) {
  return dtype == INFINI_DTYPE_F16 ? DType::float16 : dtype == INFINI_DTYPE_BF16 ? DType::bfloat16 : DType::float32;
}

// Elements of an execution; small integers where the call reads.
struct Elements {
  explicit Elements(const Operator& op, std::uint64_t seed = 1) : dtype(dtype_of(op.input.dtype)) {
    Random random(seed);
    for (const Described* t : {&op.grad_output, &op.input, &op.weight, &op.input, &op.weight}) {
      buffers.emplace_back(t->elements() * static_cast<std::size_t>(size_of(t->dtype)));
      for (std::size_t i = 0; buffers.size() <= 3 && i < t->elements(); ++i)
        set(buffers.back().data(), dtype, static_cast<Index>(i), static_cast<double>(random.integer(-3, 3)));
    }
    buffers.emplace_back(op.weight.shape[0] * static_cast<std::size_t>(size_of(op.weight.dtype)));
  }
  infiniStatus_t run(infiniopConvBackwardDescriptor_t desc) {
    std::size_t size = 0;
    EXPECT_EQ(infiniopGetConvBackwardWorkspaceSize(desc, &size), INFINI_STATUS_SUCCESS);
    std::vector<std::byte> workspace(size);
    return infiniopConvBackward(desc, workspace.data(), size, buffers[3].data(), buffers[4].data(), buffers[5].data(),
                                buffers[0].data(), buffers[1].data(), buffers[2].data(), nullptr);
  }

  DType dtype;
  std::vector<std::vector<std::byte>> buffers;  // grad_output, input, weight; grad_input, grad_weight, grad_bias
};

Shape shape_of(const Sizes& sizes) { return {sizes.begin(), sizes.end()}; }
Shape parameters(const std::optional<Ints>& values, int otherwise) {
  return values ? Shape(values->begin(), values->end()) : Shape{otherwise};
}

// The problems of the operator's own tests, each with what its output is.
std::vector<Operator> operators() {
  return {
      {{{2, 8, 12}}, {{2, 4, 16}}, {{8, 4, 5}}, {{{8}}}, {{0}}, {{1}}, {{1}}, 1},
      {{{2, 8, 16}}, {{2, 4, 32}}, {{8, 4, 3}}, {}, {{1}}, {{2}}, {{1}}, 1},
      {{{1, 4, 21}}, {{1, 2, 64}}, {{4, 2, 7}}, {}, {{2}}, {{3}}, {{1}}, 1},
      {{{2, 6, 6, 4}}, {{2, 3, 10, 10}}, {{6, 3, 3, 3}}, {}, {{0, 1}}, {{1, 2}}, {{2, 2}}, 1},
      {{{1, 4, 9, 8}}, {{1, 2, 28, 14}}, {{4, 2, 5, 3}}, {}, {{1, 2}}, {{3, 2}}, {{1, 1}}, 1},
      {{{1, 4, 4, 6, 6}}, {{1, 2, 5, 5, 5}}, {{4, 2, 2, 2, 2}}, {}, {{0, 1, 1}}, {{1, 1, 1}}, {{1, 1, 1}}, 1},
      {{{2, 4, 16}}, {{2, 4, 16}}, {{4, 2, 3}}, {}, {{1}}, {{1}}, {{1}}, 2},
      {{{2, 8, 12, 12}}, {{2, 4, 14, 14}}, {{8, 4, 3, 3}}, {}, {}, {}, {}, 1},
  };
}
Operator small() { return operators()[3]; }
// Enough work to need a workspace.
Operator large() { return {{{2, 90, 12, 12}}, {{2, 70, 12, 12}}, {{90, 70, 3, 3}}, {}, {{1, 1}}, {}, {}, 1}; }

TEST(ConvBackward, AgreesWithTheLibrary) {
  std::vector<Operator> all = operators();
  all.push_back(large());
  for (Operator& op : all)
    for (const infiniDtype_t dtype : {INFINI_DTYPE_F32, INFINI_DTYPE_F16, INFINI_DTYPE_BF16}) {
      for (Described* t : {&op.grad_output, &op.input, &op.weight, op.bias ? &*op.bias : &op.weight}) t->dtype = dtype;
      ASSERT_EQ(op.create(), INFINI_STATUS_SUCCESS) << infiniopGetRecentErrMsg();
      Elements actual(op), expected(op);
      for (int repeat = 0; repeat < 2; ++repeat) ASSERT_EQ(actual.run(op.desc), INFINI_STATUS_SUCCESS);
      EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);

      Request r;
      r.grad_output = Tensor{expected.buffers[0].data(), expected.dtype, shape_of(op.grad_output.shape), {}};
      r.input = {expected.buffers[1].data(), expected.dtype, shape_of(op.input.shape), {}};
      r.weight = {expected.buffers[2].data(), expected.dtype, shape_of(op.weight.shape), {}};
      r.padding = parameters(op.pads, 0);
      r.stride = parameters(op.strides, 1);
      r.dilation = parameters(op.dilations, 1);
      r.groups = static_cast<std::int64_t>(op.groups);
      r.algorithm = Algorithm::reference;
      const Plan plan = Plan::make(r);
      std::array<Tensor, 3> results;
      for (std::size_t i = 0; i < 3; ++i)
        results[i] = {expected.buffers[3 + i].data(), expected.dtype, plan.results()[i].shape, {}};
      plan.backward(*r.grad_output, r.input, r.weight, results);
      EXPECT_EQ(actual.buffers, expected.buffers);
    }
}

TEST(ConvBackward, SkipsGradientsThatAreNull) {
  Operator op = small();
  ASSERT_EQ(op.create(), INFINI_STATUS_SUCCESS);
  Elements all(op);
  ASSERT_EQ(all.run(op.desc), INFINI_STATUS_SUCCESS);
  for (unsigned bits = 0; bits < 8; ++bits) {
    Elements some(op);
    void* results[3] = {};
    for (std::size_t i = 0; i < 3; ++i)
      if (bits >> i & 1) results[i] = some.buffers[3 + i].data();
    std::vector<std::byte> workspace(1 << 20);
    EXPECT_EQ(infiniopConvBackward(op.desc, workspace.data(), workspace.size(), results[0], results[1], results[2],
                                   some.buffers[0].data(), some.buffers[1].data(), some.buffers[2].data(), nullptr),
              INFINI_STATUS_SUCCESS);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(some.buffers[3 + i] == all.buffers[3 + i], (bits >> i & 1) == 1);
  }
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
}

TEST(ConvBackward, RefusesToBeMade) {
  struct Refused {
    infiniStatus_t status;
    const char* message;
    std::function<void(Operator&)> change;
  };
  const auto null = [](const char* name) { return [name](Operator& op) { op.null = name; }; };
  const std::vector<Refused> cases{
      {INFINI_STATUS_BAD_PARAM, "handle must not be null", null("handle")},
      {INFINI_STATUS_BAD_PARAM, "desc_ptr must not be null", null("desc_ptr")},
      {INFINI_STATUS_BAD_PARAM, "grad_output_desc must not be null", null("grad_output")},
      {INFINI_STATUS_BAD_PARAM, "input_desc must not be null", null("input")},
      {INFINI_STATUS_BAD_PARAM, "weight_desc must not be null", null("weight")},
      {INFINI_STATUS_BAD_PARAM, "n must be from 1", [](Operator& op) { op.groups = 0; }},
      {INFINI_STATUS_BAD_PARAM, "n must be from 1", [](Operator& op) { op.groups = SIZE_MAX; }},
      {INFINI_STATUS_BAD_PARAM, "pads must be at least 0, got -1 in entry 1", [](Operator& op) { op.pads = {0, -1}; }},
      {INFINI_STATUS_BAD_PARAM, "strides must be at least 1", [](Operator& op) { op.strides = {0, 2}; }},
      {INFINI_STATUS_BAD_PARAM, "dilations must be at least 1", [](Operator& op) { op.dilations = {2, 0}; }},
      {INFINI_STATUS_BAD_TENSOR_DTYPE, "grad_output must be F16, F32 or BF16, got infiniDtype_t 14",
       [](Operator& op) { op.grad_output.dtype = op.input.dtype = op.weight.dtype = INFINI_DTYPE_F64; }},
      {INFINI_STATUS_BAD_TENSOR_DTYPE, "input must be F16, F32 or BF16",
       [](Operator& op) { op.input.dtype = INFINI_DTYPE_I32; }},
      {INFINI_STATUS_BAD_TENSOR_DTYPE, "weight must be of the type of grad_output",
       [](Operator& op) { op.weight.dtype = INFINI_DTYPE_F16; }},
      {INFINI_STATUS_BAD_TENSOR_DTYPE, "bias must be of the type of grad_output",
       [](Operator& op) { op.bias = {{6}, INFINI_DTYPE_BF16}; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "one rank of 3, 4 or 5", [](Operator& op) { op.input.shape = {3, 10, 10}; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "one rank of 3, 4 or 5",
       [](Operator& op) { op.input.shape = op.weight.shape = op.grad_output.shape = {3, 10}; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "bias must have shape (6)", [](Operator& op) { op.bias = {{5}}; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "grad_output.shape must be", [](Operator& op) { op.grad_output.shape[0] = 1; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "grad_output.shape must be", [](Operator& op) { op.grad_output.shape[1] = 5; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "grad_output.shape must be", [](Operator& op) { op.grad_output.shape[3] = 5; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "weight.shape[1] must be", [](Operator& op) { op.weight.shape[1] = 2; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "divisible by groups = 2", [](Operator& op) { op.groups = 2; }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "weight.shape[0] must be divisible",
       [](Operator& op) {
         op.groups = 3;
         op.weight.shape = {5, 1, 3, 3};
         op.grad_output.shape[1] = 5;
       }},
      {INFINI_STATUS_BAD_TENSOR_SHAPE, "less than 2**63 bytes",
       [](Operator& op) { op.input.shape[0] = std::size_t{1} << 62; }},
      {INFINI_STATUS_BAD_TENSOR_STRIDES, "input must be contiguous, got stride 2 of axis 3 instead of 1",
       [](Operator& op) { op.input.strides = {300, 100, 10, 2}; }},
      {INFINI_STATUS_BAD_TENSOR_STRIDES, "weight must be contiguous",
       [](Operator& op) { op.weight.strides = {27, 1, 9, 3}; }},
      {INFINI_STATUS_BAD_TENSOR_STRIDES, "grad_output must be contiguous",
       [](Operator& op) { op.grad_output.strides = {0, 24, 4, 1}; }},
  };
  for (const Refused& refused : cases) {
    SCOPED_TRACE(refused.message);
    Operator op = small();
    refused.change(op);
    EXPECT_EQ(op.create(), refused.status);
    const std::string message = infiniopGetRecentErrMsg();
    EXPECT_EQ(message.rfind("infiniopCreateConvBackwardDescriptor: ", 0), 0u) << message;
    EXPECT_NE(message.find(refused.message), std::string::npos) << message;
    EXPECT_EQ(op.desc, nullptr);
  }
  Operator op = small();
  op.input.strides = {300, 100, 10, 1};
  op.grad_output.strides = {144, 24, 4, 1};
  EXPECT_EQ(op.create(), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
  op = {{{1, 2, 1, 3}}, {{1, 2, 1, 3}}, {{2, 2, 1, 1}}};
  op.input.strides = {-5, 3, 77, 1};  // strides of axes of size one say nothing
  EXPECT_EQ(op.create(), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
}

TEST(ConvBackward, RefusesToRun) {
  Operator op = large();
  ASSERT_EQ(op.create(), INFINI_STATUS_SUCCESS);
  std::size_t size = 0;
  ASSERT_EQ(infiniopGetConvBackwardWorkspaceSize(op.desc, &size), INFINI_STATUS_SUCCESS);
  ASSERT_GT(size, 0u);
  Elements e(op);
  const Elements before = e;
  std::vector<std::byte> workspace(size + 1);
  const auto run = [&](infiniopConvBackwardDescriptor_t desc, void* memory, std::size_t bytes, const void* dy,
                       const void* x, const void* w) {
    return infiniopConvBackward(desc, memory, bytes, e.buffers[3].data(), e.buffers[4].data(), e.buffers[5].data(), dy,
                                x, w, nullptr);
  };
  void *const dy = e.buffers[0].data(), *const x = e.buffers[1].data(), *const w = e.buffers[2].data();
  EXPECT_EQ(run(nullptr, workspace.data(), size, dy, x, w), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(run(op.desc, workspace.data(), size, nullptr, x, w), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(run(op.desc, workspace.data(), size, dy, nullptr, w), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(run(op.desc, workspace.data(), size, dy, x, nullptr), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(run(op.desc, nullptr, size, dy, x, w), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(run(op.desc, workspace.data(), size - 1, dy, x, w), INFINI_STATUS_INSUFFICIENT_WORKSPACE);
  EXPECT_EQ(std::string(infiniopGetRecentErrMsg()).rfind("infiniopConvBackward: workspace_size must be at least", 0),
            0u);
  EXPECT_EQ(e.buffers, before.buffers);
  EXPECT_EQ(run(op.desc, workspace.data() + 1, size, dy, x, w), INFINI_STATUS_SUCCESS);  // unaligned

  EXPECT_EQ(infiniopGetConvBackwardWorkspaceSize(op.desc, nullptr), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infiniopGetConvBackwardWorkspaceSize(nullptr, &size), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(nullptr), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infiniopGetConvBackwardWorkspaceSize(op.desc, &size), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(run(op.desc, workspace.data(), size, dy, x, w), INFINI_STATUS_BAD_PARAM);
}

TEST(ConvBackward, EmptyTensorsNeedNoElements) {
  Operator op{{{0, 3, 5}}, {{0, 2, 7}}, {{3, 2, 3}}};
  ASSERT_EQ(op.create(), INFINI_STATUS_SUCCESS) << infiniopGetRecentErrMsg();
  std::vector<float> grad_weight(18, 7), grad_bias(3, 7), weight(18, 1);
  EXPECT_EQ(infiniopConvBackward(op.desc, nullptr, 0, nullptr, grad_weight.data(), grad_bias.data(), nullptr, nullptr,
                                 weight.data(), nullptr),
            INFINI_STATUS_SUCCESS);
  EXPECT_EQ(grad_weight, std::vector<float>(18));
  EXPECT_EQ(grad_bias, std::vector<float>(3));
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
}

TEST(ConvBackward, OneDescriptorServesManyThreads) {
  Operator op = large();
  ASSERT_EQ(op.create(), INFINI_STATUS_SUCCESS);
  Elements expected(op);
  ASSERT_EQ(expected.run(op.desc), INFINI_STATUS_SUCCESS);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        Elements e(op);
        EXPECT_EQ(e.run(op.desc), INFINI_STATUS_SUCCESS);
        EXPECT_EQ(e.buffers, expected.buffers);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
}

TEST(Runtime, DeviceAndMemory) {
  infiniDevice_t device = INFINI_DEVICE_NVIDIA;
  int id = -1;
  EXPECT_EQ(infinirtInit(), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_ASCEND, 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_EQ(infinirtSetDevice(static_cast<infiniDevice_t>(-3), 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 1), INFINI_STATUS_DEVICE_NOT_FOUND);
  EXPECT_STREQ(infiniopGetRecentErrMsg(), "infinirtSetDevice: device_id must be 0, got 1");
  EXPECT_STREQ(infiniopGetRecentErrMsg(), "");
  EXPECT_EQ(infinirtGetDevice(&device, &id), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtGetDevice(nullptr, nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(device, INFINI_DEVICE_CPU);
  EXPECT_EQ(id, 0);
  EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtDeviceSynchronize(), INFINI_STATUS_SUCCESS);

  void* memory = nullptr;
  char host[16] = "infiniop";
  EXPECT_EQ(infinirtMalloc(nullptr, 8), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtMalloc(&memory, SIZE_MAX / 2), INFINI_STATUS_INTERNAL_ERROR);
  ASSERT_EQ(infinirtMalloc(&memory, 16), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtMemcpy(memory, host, 16, INFINIRT_MEMCPY_H2D), INFINI_STATUS_SUCCESS);
  EXPECT_STREQ(static_cast<char*>(memory), "infiniop");
  EXPECT_EQ(infinirtMemcpy(memory, host, 17, INFINIRT_MEMCPY_H2D), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtMemcpy(host, static_cast<char*>(memory) + 8, 9, INFINIRT_MEMCPY_D2H), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtMemcpy(memory, host, 8, static_cast<infinirtMemcpyKind_t>(7)), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtMemcpy(nullptr, host, 8, INFINIRT_MEMCPY_H2D), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtMemcpy(memory, nullptr, 8, INFINIRT_MEMCPY_H2D), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtFree(memory), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtFree(memory), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtFree(host), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtFree(nullptr), INFINI_STATUS_SUCCESS);
}

TEST(Runtime, ADeviceThatIsNotHereCannotBeUsed) {
  infiniopHandle_t handle = nullptr;
  infinirtStream_t stream = nullptr;
  void* memory = nullptr;
  EXPECT_EQ(infiniopSetRuntimeDevice(INFINI_DEVICE_NVIDIA, 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_DEVICE_NOT_INITIALIZED);
  EXPECT_NE(std::string(infiniopGetRecentErrMsg()).find("must be called with INFINI_DEVICE_CPU"), std::string::npos);
  EXPECT_EQ(infinirtMalloc(&memory, 8), INFINI_STATUS_DEVICE_NOT_INITIALIZED);
  EXPECT_EQ(infinirtStreamCreate(&stream), INFINI_STATUS_DEVICE_NOT_INITIALIZED);
  std::thread([] {  // another thread has the processor
    infiniopHandle_t other = nullptr;
    EXPECT_EQ(infiniopCreateHandle(&other), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infiniopDestroyHandle(other), INFINI_STATUS_SUCCESS);
  })
      .join();
  EXPECT_EQ(infiniopSetRuntimeDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
  EXPECT_TRUE(memory == nullptr && stream == nullptr);
}

// Runs in a process of its own, which has not chosen its instructions yet.
TEST(RuntimeDeathTest, InstructionsThatTheProcessorLacks) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("CONVBWD_ISA", "none", 1);
        infiniopHandle_t handle = nullptr;
        const infiniStatus_t status = infiniopCreateHandle(&handle);
        std::fputs(infiniopGetRecentErrMsg(), stderr);
        std::_Exit(status);
      },
      testing::ExitedWithCode(INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED),
      "infiniopCreateHandle: CONVBWD_ISA must name an instruction set of this machine");
}

extern "C" infiniStatus_t infiniopCreateConvDescriptor(void*, void**);
extern "C" infiniStatus_t infiniopLayerNorm(void*);
TEST(Runtime, OtherOperatorsAreNotImplemented) {
  void* desc = nullptr;
  EXPECT_EQ(infiniopCreateConvDescriptor(nullptr, &desc), INFINI_STATUS_NOT_IMPLEMENTED);
  EXPECT_STREQ(infiniopGetRecentErrMsg(), "infiniopCreateConvDescriptor: ConvBackward is the only operator here");
  EXPECT_EQ(infiniopLayerNorm(nullptr), INFINI_STATUS_NOT_IMPLEMENTED);
  EXPECT_EQ(desc, nullptr);
}

TEST(Runtime, EventsMeasureTime) {
  infinirtEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  float ms = -1;
  ASSERT_EQ(infinirtEventCreate(&start), INFINI_STATUS_SUCCESS);
  ASSERT_EQ(infinirtEventCreateWithFlags(&end, INFINIRT_EVENT_BLOCKING_SYNC), INFINI_STATUS_SUCCESS);
  ASSERT_EQ(infinirtEventCreateWithFlags(&untimed, INFINIRT_EVENT_DISABLE_TIMING), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventCreateWithFlags(&untimed, 4), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtEventRecord(start, nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, start, end), INFINI_STATUS_BAD_PARAM);
  EXPECT_STREQ(infiniopGetRecentErrMsg(), "infinirtEventElapsedTime: end must have been recorded");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (infinirtEvent_t event : {end, untimed}) EXPECT_EQ(infinirtEventRecord(event, nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, start, untimed), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtEventElapsedTime(nullptr, start, end), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(ms, -1);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, start, end), INFINI_STATUS_SUCCESS);
  EXPECT_GE(ms, 2);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, end, start), INFINI_STATUS_SUCCESS);
  EXPECT_LE(ms, -2);
  for (infinirtEvent_t event : {start, end, untimed}) EXPECT_EQ(infinirtEventDestroy(event), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, start, end), INFINI_STATUS_BAD_PARAM);
}

TEST(Runtime, MemInfo) {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(infinirtGetMemInfo(INFINI_DEVICE_CPU, 0, &free, &total), INFINI_STATUS_SUCCESS);
  EXPECT_LT(0U, free);
  EXPECT_LE(free, total);
  EXPECT_EQ(infinirtGetMemInfo(INFINI_DEVICE_NVIDIA, 0, &free, &total), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_EQ(infinirtGetMemInfo(INFINI_DEVICE_CPU, 1, &free, &total), INFINI_STATUS_DEVICE_NOT_FOUND);
  EXPECT_EQ(infinirtGetMemInfo(INFINI_DEVICE_CPU, 0, nullptr, &total), INFINI_STATUS_NULL_POINTER);
}

TEST(Runtime, StreamsAndEvents) {
  infinirtStream_t stream = nullptr;
  infinirtEvent_t event = nullptr;
  infinirtEventStatus_t status = INFINIRT_EVENT_NOT_READY;
  EXPECT_EQ(infinirtStreamCreate(nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtEventCreate(nullptr), INFINI_STATUS_NULL_POINTER);
  ASSERT_EQ(infinirtStreamCreate(&stream), INFINI_STATUS_SUCCESS);
  ASSERT_EQ(infinirtEventCreate(&event), INFINI_STATUS_SUCCESS);
  for (const infinirtStream_t s : {stream, infinirtStream_t{}}) {
    EXPECT_EQ(infinirtEventRecord(event, s), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtStreamWaitEvent(s, event), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtStreamSynchronize(s), INFINI_STATUS_SUCCESS);
  }
  EXPECT_EQ(infinirtEventQuery(event, &status), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(status, INFINIRT_EVENT_COMPLETE);
  EXPECT_EQ(infinirtEventQuery(event, nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtEventSynchronize(event), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventRecord(stream, stream), INFINI_STATUS_BAD_PARAM);  // no event
  EXPECT_EQ(infinirtStreamWaitEvent(event, event), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtEventDestroy(event), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventDestroy(event), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtEventSynchronize(nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtStreamDestroy(stream), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtStreamDestroy(stream), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtStreamDestroy(nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtStreamSynchronize(stream), INFINI_STATUS_BAD_PARAM);

  void *host = nullptr, *device = nullptr;
  ASSERT_EQ(infinirtMallocHost(&host, 16), INFINI_STATUS_SUCCESS);
  ASSERT_EQ(infinirtMallocAsync(&device, 16, nullptr), INFINI_STATUS_SUCCESS);
  std::fill_n(static_cast<char*>(host), 16, 'x');
  EXPECT_EQ(infinirtMemcpyAsync(device, host, 16, INFINIRT_MEMCPY_H2D, nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(static_cast<char*>(device)[15], 'x');
  EXPECT_EQ(infinirtMemcpyAsync(device, host, 16, INFINIRT_MEMCPY_H2D, stream), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtMemcpy(device, static_cast<char*>(host) + 1, 16, INFINIRT_MEMCPY_H2D), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtFree(host), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtFreeHost(device), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtFreeHost(host), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtFreeAsync(device, stream), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinirtFreeAsync(device, nullptr), INFINI_STATUS_SUCCESS);
}

TEST(Runtime, CountsDevices) {
  int counts[INFINI_DEVICE_TYPE_COUNT], count = -1;
  ASSERT_EQ(infinirtGetAllDeviceCount(counts), INFINI_STATUS_SUCCESS);
  for (int type = 0; type < INFINI_DEVICE_TYPE_COUNT; ++type) {
    EXPECT_EQ(counts[type], type == INFINI_DEVICE_CPU);
    EXPECT_EQ(infinirtGetDeviceCount(static_cast<infiniDevice_t>(type), &count), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(count, counts[type]);
  }
  EXPECT_EQ(infinirtGetDeviceCount(INFINI_DEVICE_TYPE_COUNT, &count), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_EQ(infinirtGetDeviceCount(INFINI_DEVICE_CPU, nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinirtGetAllDeviceCount(nullptr), INFINI_STATUS_NULL_POINTER);
}

TEST(Runtime, HandlesAndDescriptors) {
  infiniopHandle_t handle = nullptr;
  EXPECT_EQ(infiniopCreateHandle(nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infiniopDestroyHandle(nullptr), INFINI_STATUS_NULL_POINTER);
  ASSERT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_BAD_PARAM);

  infiniopTensorDescriptor_t tensor = nullptr;
  const std::size_t shape[] = {2, 3}, huge[] = {SIZE_MAX};
  EXPECT_EQ(infiniopCreateTensorDescriptor(nullptr, 2, shape, nullptr, INFINI_DTYPE_F32), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infiniopCreateTensorDescriptor(&tensor, 2, nullptr, nullptr, INFINI_DTYPE_F32), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infiniopCreateTensorDescriptor(&tensor, 1, huge, nullptr, INFINI_DTYPE_F32),
            INFINI_STATUS_BAD_TENSOR_SHAPE);
  for (const int dtype : {0, 20, -1})
    EXPECT_EQ(infiniopCreateTensorDescriptor(&tensor, 2, shape, nullptr, static_cast<infiniDtype_t>(dtype)),
              INFINI_STATUS_BAD_TENSOR_DTYPE);
  EXPECT_EQ(tensor, nullptr);
  EXPECT_EQ(infiniopDestroyTensorDescriptor(nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infiniopDestroyTensorDescriptor(reinterpret_cast<infiniopTensorDescriptor_t>(handle)),
            INFINI_STATUS_BAD_PARAM);

  Operator op = small();
  infiniDevice_t device = INFINI_DEVICE_NVIDIA;
  int id = -1;
  ASSERT_EQ(op.create(), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopGetDescriptorDeviceType(op.desc, &device), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopGetDescriptorDeviceId(op.desc, &id), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(device, INFINI_DEVICE_CPU);
  EXPECT_EQ(id, 0);
  EXPECT_EQ(infiniopGetDescriptorDeviceType(op.desc, nullptr), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infiniopGetDescriptorDeviceId(nullptr, &id), INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infiniopDestroyConvBackwardDescriptor(op.desc), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopGetDescriptorDeviceType(op.desc, &device), INFINI_STATUS_BAD_PARAM);
}

}  // namespace
}  // namespace convbwd::test
