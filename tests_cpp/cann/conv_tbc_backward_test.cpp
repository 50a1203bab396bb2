// aclnnConvTbcBackward: values, and what it refuses with which code.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cann/call.h"
#include "convbwd/convbwd.hpp"
#include "support/random.h"

namespace convbwd::test {
namespace {

struct TbcCall {
  Argument self{{5, 2, 6}}, input{{5, 2, 4}}, weight{{3, 4, 6}}, bias{{6}};
  std::int64_t pad = 1;
  int cube_math_type = 0;
  Argument grad_input{{5, 2, 4}, ACL_FLOAT, ACL_FORMAT_ND, -7}, grad_weight{{3, 4, 6}, ACL_FLOAT, ACL_FORMAT_ND, -7},
      grad_bias{{6}, ACL_FLOAT, ACL_FORMAT_ND, -7};
  std::string null{};
  std::uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  std::string message{};

  aclnnStatus plan() {
    const std::pair<const char*, Argument*> named[] = {
        {"self", &self},         {"input", &input},          {"weight", &weight},
        {"bias", &bias},         {"gradInput", &grad_input}, {"gradWeight", &grad_weight},
        {"gradBias", &grad_bias}};
    aclTensor* t[7];
    for (std::size_t i = 0; i < 7; ++i) t[i] = null == named[i].first ? nullptr : named[i].second->make();
    const aclnnStatus status = aclnnConvTbcBackwardGetWorkspaceSize(
        t[0], t[1], t[2], t[3], pad, static_cast<std::int8_t>(cube_math_type), t[4], t[5], t[6],
        null == "workspaceSize" ? nullptr : &workspace_size, null == "executor" ? nullptr : &executor);
    message = aclGetRecentErrMsg();
    for (aclTensor* tensor : t)
      if (tensor) aclDestroyTensor(tensor);
    return status;
  }
  aclnnStatus execute() {
    std::vector<std::byte> workspace(workspace_size);
    const aclnnStatus status = aclnnConvTbcBackward(workspace.data(), workspace_size, executor, nullptr);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
    return status;
  }
};

// What the definition gives: y[t, b, o] = bias[o] + sum over k, c of x[t + k - pad, b, c] w[k, c, o].
void expect_gradients(const TbcCall& c) {
  const Ints &y = c.self.shape, &x = c.input.shape, &w = c.weight.shape;
  std::vector<double> dx(static_cast<std::size_t>(product(x))), dw(static_cast<std::size_t>(product(w))),
      db(static_cast<std::size_t>(w[2]));
  for (std::int64_t t = 0; t < y[0]; ++t)
    for (std::int64_t b = 0; b < y[1]; ++b)
      for (std::int64_t o = 0; o < y[2]; ++o) {
        const double dy = c.self[(t * y[1] + b) * y[2] + o];
        db[static_cast<std::size_t>(o)] += dy;
        for (std::int64_t k = 0; k < w[0]; ++k)
          for (std::int64_t i = 0; i < w[1]; ++i) {
            const std::int64_t from = t + k - c.pad;
            if (from < 0 || from >= x[0]) continue;
            const std::int64_t at = (from * x[1] + b) * x[2] + i, tap = (k * w[1] + i) * w[2] + o;
            dx[static_cast<std::size_t>(at)] += dy * c.weight[tap];
            dw[static_cast<std::size_t>(tap)] += dy * c.input[at];
          }
      }
  for (const auto& [expected, got] : {std::pair{&dx, &c.grad_input}, {&dw, &c.grad_weight}, {&db, &c.grad_bias}})
    for (std::size_t i = 0; i < expected->size(); ++i)
      ASSERT_EQ((*got)[static_cast<std::int64_t>(i)], (*expected)[i]) << i;  // small integers: exact
}

void fill(Argument& t, Random& random) {
  aclDestroyTensor(t.make());
  for (std::int64_t i = 0; i < product(t.shape); ++i)
    set(t.memory.data(), dtype_of(t.dtype), i, static_cast<double>(random.integer(-3, 3)));
}

TEST(ConvTbcBackward, Values) {
  Random random(1);
  for (const aclDataType dtype : {ACL_FLOAT, ACL_FLOAT16, ACL_BF16})
    for (const std::int64_t pad : {0, 1, 3}) {
      TbcCall c;
      c.pad = pad;
      c.self.shape[0] = 5 + 2 * pad + 1 - 3;
      c.self.dtype = c.input.dtype = c.grad_input.dtype = dtype;
      for (Argument* t : {&c.self, &c.input, &c.weight}) fill(*t, random);
      ASSERT_EQ(c.plan(), ACL_SUCCESS) << c.message;
      ASSERT_EQ(c.execute(), ACL_SUCCESS);
      expect_gradients(c);
      EXPECT_EQ(c.execute(), 161002);  // an executor runs once
    }
}

TEST(ConvTbcBackward, TakesStridedOperands) {
  Random random(2);
  TbcCall dense;
  for (Argument* t : {&dense.self, &dense.input, &dense.weight}) fill(*t, random);
  TbcCall c = dense;
  c.input.strides = {1, 20, 5};  // (B, C, T) in memory
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 4; ++i)
        set(c.input.memory.data(), DType::float32, b * 20 + i * 5 + t, dense.input[(t * 2 + b) * 4 + i]);
  for (TbcCall* call : {&dense, &c}) {
    ASSERT_EQ(call->plan(), ACL_SUCCESS) << call->message;
    ASSERT_EQ(call->execute(), ACL_SUCCESS);
  }
  EXPECT_EQ(c.grad_input.memory, dense.grad_input.memory);
  EXPECT_EQ(c.grad_weight.memory, dense.grad_weight.memory);
}

TEST(ConvTbcBackward, RefusesInPhaseOne) {
  for (const char* name :
       {"self", "input", "weight", "bias", "gradInput", "gradWeight", "gradBias", "workspaceSize", "executor"}) {
    TbcCall c;
    c.null = name;
    EXPECT_EQ(c.plan(), 161001) << name;
    EXPECT_NE(c.message.find(std::string(name) + " must not be null"), std::string::npos) << c.message;
  }
  struct Row {
    const char* message;
    std::function<void(TbcCall&)> change;
  };
  for (const Row& row : {
           Row{"self must be FLOAT, FLOAT16 or BF16", [](TbcCall& c) { c.self.dtype = ACL_HIFLOAT8; }},
           {"gradBias must be FLOAT, FLOAT16 or BF16", [](TbcCall& c) { c.grad_bias.dtype = ACL_HIFLOAT8; }},
           {"input must be FLOAT, FLOAT16 or BF16, got aclDataType 3", [](TbcCall& c) { c.input.dtype = ACL_INT32; }},
           {"input must have at least 1 as its first size, got [0, 2, 4]", [](TbcCall& c) { c.input.shape[0] = 0; }},
           {"weight must have at least 1 as its first size", [](TbcCall& c) { c.weight.shape[0] = 0; }},
           {"weight must have format ND or NCL", [](TbcCall& c) { c.weight.format = ACL_FORMAT_NCHW; }},
           {"bias must have format ND, got", [](TbcCall& c) { c.bias.format = ACL_FORMAT_NCL; }},
           {"weight must have rank 3, got 4", [](TbcCall& c) { c.weight.shape = {3, 4, 6, 1}; }},
           {"gradBias must have rank 1, got 2", [](TbcCall& c) { c.grad_bias.shape = {6, 1}; }},
           {"self must not be empty", [](TbcCall& c) { c.self.shape[1] = 0; }},
           {"input must have the channels of weight = 4", [](TbcCall& c) { c.input.shape[2] = 5; }},
           {"bias must have shape [6], got [5]", [](TbcCall& c) { c.bias.shape = {5}; }},
           {"pad must be at least 0, got -1", [](TbcCall& c) { c.pad = -1; }},
           {"self must have shape [7, 2, 6], got [5, 2, 6]", [](TbcCall& c) { c.pad = 2; }},
           {"self must have shape [9223372036854775807", [](TbcCall& c) { c.pad = 1LL << 62; }},
           {"self must have shape [5, 3, 6]", [](TbcCall& c) { c.input.shape[1] = 3; }},
           {"self must have shape [0, 2, 6]", [](TbcCall& c) { c.weight.shape[0] = 9; }},
           {"gradInput must have shape [5, 2, 4]", [](TbcCall& c) { c.grad_input.shape[0] = 6; }},
           {"gradWeight must be contiguous", [](TbcCall& c) { c.grad_weight.strides = {1, 3, 12}; }},
           {"gradBias must have shape [6]", [](TbcCall& c) { c.grad_bias.shape = {7}; }},
           {"cubeMathType must be 0, 1, 2 or 3", [](TbcCall& c) { c.cube_math_type = 4; }},
       }) {
    TbcCall c;
    row.change(c);
    EXPECT_EQ(c.plan(), 161002) << row.message;
    EXPECT_NE(c.message.find(row.message), std::string::npos) << row.message << ": " << c.message;
  }
}

TEST(ConvTbcBackward, RefusesInPhaseTwo) {
  EXPECT_EQ(aclnnConvTbcBackward(nullptr, 0, nullptr, nullptr), 161001);
  TbcCall c;
  c.self.null_elements = true;
  ASSERT_EQ(c.plan(), ACL_SUCCESS);
  EXPECT_EQ(c.execute(), 161001);
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclnnConvTbcBackward: self must have elements, got null");
  c.self.null_elements = false;
  c.bias.null_elements = true;  // is not read
  ASSERT_EQ(c.plan(), ACL_SUCCESS);
  if (c.workspace_size > 0) {
    EXPECT_EQ(aclnnConvTbcBackward(nullptr, c.workspace_size, c.executor, nullptr), 161001);
    EXPECT_EQ(aclnnConvTbcBackward(nullptr, c.workspace_size - 1, c.executor, nullptr), 161002);
  }
  EXPECT_EQ(c.execute(), ACL_SUCCESS);
  c.grad_weight.null_elements = true;
  ASSERT_EQ(c.plan(), ACL_SUCCESS);
  EXPECT_EQ(c.execute(), 161001);
}

TEST(ConvTbcBackward, WithoutInputChannels) {
  TbcCall c;
  c.input.shape[2] = c.grad_input.shape[2] = c.weight.shape[1] = c.grad_weight.shape[1] = 0;
  ASSERT_EQ(c.plan(), ACL_SUCCESS) << c.message;
  ASSERT_EQ(c.execute(), ACL_SUCCESS);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(c.grad_bias[i], 10);
}

}  // namespace
}  // namespace convbwd::test
