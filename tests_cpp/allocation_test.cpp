// What carrying out a plan takes from the heap: nothing, if it is given its workspace. What is said where it is full.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/c_face.h"
#include "convbwd/convbwd.hpp"

namespace {
std::atomic<int> g_allocations{0};
std::atomic<bool> g_full{false};
}  // namespace

// Not inlined: GCC would take the memory for malloc's and warn that delete gives it back.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++g_allocations;
  if (g_full) throw std::bad_alloc();
  if (void* const p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What the library's own workspaces are of.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  ++g_allocations;
  void* p = nullptr;
  return posix_memalign(&p, alignment, bytes) == 0 ? p : nullptr;
}
#endif
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace convbwd::test {
namespace {

struct Layer {
  const char* name;
  Shape grad_output, input, weight;
  std::int64_t stride, groups;
  bool accumulate;
};
void PrintTo(const Layer& layer, std::ostream* out) { *out << layer.name; }

std::vector<float> buffer(const Shape& shape) {
  std::size_t n = 1;
  for (const std::int64_t size : shape) n *= static_cast<std::size_t>(size);
  return std::vector<float>(n);
}

Tensor tensor(const Shape& shape, std::vector<float>& memory) { return {memory.data(), DType::float32, shape, {}}; }

// Of a layer as the test names it, with memory for all that it has.
class Allocations : public testing::TestWithParam<Layer> {
 protected:
  Allocations() {
    request_.input = tensor(layer_.input, x_);
    request_.weight = tensor(layer_.weight, w_);
    request_.stride = {layer_.stride};
    request_.padding = {1};
    request_.groups = layer_.groups;
  }

  // `run` carries the plan out, with a workspace or, given none, with one of the library's own.
  void expect_none(const Plan& plan, const std::function<void(std::span<std::byte>)>& run) {
    std::vector<std::byte> memory(plan.workspace_bytes() + 63);
    const std::size_t skip = -reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    const std::span<std::byte> workspace = std::span(memory).subspan(skip, plan.workspace_bytes());
    run(workspace);  // tables and threads that are made once
    int before = g_allocations;
    run(workspace);
    EXPECT_EQ(g_allocations, before);
    std::thread([&] {  // has no workspace yet
      before = g_allocations;
      run(workspace);
      EXPECT_EQ(g_allocations, before);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
      run({});
      EXPECT_GT(g_allocations, before);
      before = g_allocations;
      run({});  // which it keeps
      EXPECT_EQ(g_allocations, before);
#endif
    })
        .join();
    EXPECT_THROW(run(workspace.first(workspace.size() - 1)), Error);
    EXPECT_THROW(run(std::span(memory).subspan(skip + 1)), Error);
  }

  Layer layer_ = GetParam();
  std::vector<float> x_ = buffer(layer_.input), w_ = buffer(layer_.weight), y_ = buffer(layer_.grad_output);
  Request request_;
};

TEST_P(Allocations, OfGradientsNoneWithAWorkspace) {
  request_.grad_output = tensor(layer_.grad_output, y_);
  request_.accumulate = layer_.accumulate;
  const Plan plan = Plan::make(request_, 3);
  std::vector<float> dx = x_, dw = w_, db(static_cast<std::size_t>(layer_.weight[0]));
  expect_none(plan, [&](std::span<std::byte> workspace) {
    plan.backward({y_.data(), x_.data(), w_.data()}, {dx.data(), dw.data(), db.data()}, workspace);
  });
}

TEST_P(Allocations, OfOutputsNoneWithAWorkspace) {
  request_.function = "convolution";
  const Plan plan = Plan::make(request_, 3);
  const Tensor y = tensor(layer_.grad_output, y_);
  expect_none(plan, [&](std::span<std::byte> workspace) {
    plan.forward(request_.input, request_.weight, nullptr, y, workspace);
  });
}

INSTANTIATE_TEST_SUITE_P(
    , Allocations,
    testing::Values(Layer{"FewChannels", {1, 8, 8, 8}, {1, 3, 8, 8}, {8, 3, 3, 3}, 1, 1, false},
                    Layer{"Wide", {2, 40, 14, 14}, {2, 24, 14, 14}, {40, 24, 3, 3}, 1, 1, false},
                    Layer{"Winograd", {2, 64, 28, 28}, {2, 64, 28, 28}, {64, 64, 3, 3}, 1, 1, false},
                    Layer{"Strided", {2, 40, 7, 7}, {2, 24, 14, 14}, {40, 24, 3, 3}, 2, 1, true},
                    Layer{"Depthwise", {2, 24, 7, 7}, {2, 24, 14, 14}, {24, 1, 3, 3}, 2, 24, true}),
    testing::PrintToStringParamName());

TEST(CFaces, ReportThatMemoryIsFull) {
  constexpr Codes kCodes{1, 2, 3, 4};
  const auto status = [&](auto&& f, const char* message) {
    const int code = guarded("a function whose name is no short string", kCodes, [&] {
      g_full = true;
      f();
    });
    g_full = false;
    EXPECT_STREQ(RecentMessage::take(), message);
    return code;
  };
  const Error error(ErrorKind::type, "an argument of a type that is not supported");
  const std::runtime_error other("something else that must not happen");
  EXPECT_EQ(status([] { throw std::bad_alloc(); }, "a function whose name is no short string: out of memory"), 3);
  EXPECT_EQ(status([&] { throw error; }, error.what()), 2);
  EXPECT_EQ(
      status([&] { throw other; }, "a function whose name is no short string: something else that must not happen"), 4);
}

}  // namespace
}  // namespace convbwd::test
