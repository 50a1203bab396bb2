#include "conv/problem.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace convbwd {
namespace {

constexpr std::int64_t kHuge = INT64_MAX / 2;

Tensor tensor(Shape shape, DType dtype = DType::float32) { return {nullptr, dtype, std::move(shape), {}}; }

Request forward(Shape input, Shape weight) {
  Request r;
  r.function = "convolution";
  r.input = tensor(std::move(input));
  r.weight = tensor(std::move(weight));
  return r;
}

Request backward(Shape grad_output, Shape input, Shape weight) {
  Request r = forward(std::move(input), std::move(weight));
  r.function = "convolution_backward";
  r.grad_output = tensor(std::move(grad_output));
  return r;
}

using Dims = std::array<std::int64_t, 3>;

TEST(Problem, NameRoundTrips) {
  Problem p{2, 3, 4, 5, {6, 7, 8}, {1, 2, 3}, {9, 10, 11}, {1, 2, 1}, {3, 1, 2}, {0, 1, 2}};
  EXPECT_EQ(to_string(p), "n2g3ci4x6x7x8co5y9x10x11k1x2x3s1x2x1d3x1x2p0x1x2");
  EXPECT_EQ(parse_problem(to_string(p)), p);
}

TEST(Problem, MalformedNamesThrow) {
  const std::string good = to_string(Problem{});
  for (const std::string& bad :
       {std::string(), good + "x", good.substr(1), good.substr(0, good.size() - 1), "n-1" + good.substr(2),
        "n01" + good.substr(2), "n99999999999999999999" + good.substr(2)}) {
    EXPECT_THROW(parse_problem(bad), Error) << bad;
  }
}

TEST(Check, TwoDimensions) {
  Request r = forward({2, 6, 9, 8}, {4, 3, 3, 2});
  r.stride = {2, 1};
  r.padding = {1, 0, 2, 3};  // rows before and after, columns before and after
  r.dilation = {2};
  r.groups = 2;
  const Checked c = check(r);
  EXPECT_EQ(c.spatial_dims, 2);
  EXPECT_FALSE(c.unbatched);
  EXPECT_EQ(c.output_shape, (Shape{2, 4, 3, 11}));
  EXPECT_EQ(c.problem, (Problem{2, 2, 3, 2, {1, 9, 8}, {1, 3, 2}, {1, 3, 11}, {1, 2, 1}, {1, 2, 2}, {0, 1, 2}}));
}

TEST(Check, OneAndThreeDimensions) {
  EXPECT_EQ(check(forward({1, 2, 7}, {5, 2, 3})).problem, (Problem{1, 1, 2, 5, {1, 1, 7}, {1, 1, 3}, {1, 1, 5}}));
  EXPECT_EQ(check(forward({1, 2, 7, 6, 5}, {5, 2, 3, 2, 1})).problem,
            (Problem{1, 1, 2, 5, {7, 6, 5}, {3, 2, 1}, {5, 5, 5}}));
}

TEST(Check, TransposedSwapsTheRolesOfImages) {
  Request r = forward({2, 4, 5}, {4, 3, 3});
  r.transposed = true;
  r.groups = 2;
  r.stride = {2};
  r.padding = {1};
  r.output_padding = {1};
  const Checked c = check(r);
  EXPECT_TRUE(c.transposed);
  EXPECT_EQ(c.output_shape, (Shape{2, 6, 10}));
  EXPECT_EQ(c.problem, (Problem{2, 2, 3, 2, {1, 1, 10}, {1, 1, 3}, {1, 1, 5}, {1, 1, 2}, {1, 1, 1}, {0, 0, 1}}));
}

TEST(Check, SamePaddingHasTheLargerHalfBehind) {
  Request r = forward({1, 1, 7}, {1, 1, 4});
  r.padding_mode = PaddingMode::same;
  r.stride = {2};
  const Checked c = check(r);
  EXPECT_EQ(c.output_shape, (Shape{1, 1, 4}));
  EXPECT_EQ(c.problem.pad_before, (Dims{0, 0, 1}));
}

TEST(Check, ImagesWithoutBatchAxis) {
  const Checked c = check(backward({4, 5}, {2, 7}, {4, 2, 3}));
  EXPECT_TRUE(c.unbatched);
  EXPECT_EQ(c.problem.n, 1);
  EXPECT_EQ(c.results[0].shape, (Shape{2, 7}));
  EXPECT_EQ(c.results[1].shape, (Shape{4, 2, 3}));
  EXPECT_EQ(c.results[2].shape, (Shape{4}));
}

TEST(Check, EmptyBatchesAndChannelsAreLegal) {
  EXPECT_EQ(check(backward({0, 4, 5}, {0, 2, 7}, {4, 2, 3})).problem.n, 0);
  EXPECT_EQ(check(backward({1, 4, 5}, {1, 0, 7}, {4, 0, 3})).problem.ci, 0);
}

TEST(Check, ResultsHaveThePromotedTypes) {
  Request r = backward({1, 1, 5}, {1, 1, 7}, {1, 1, 3});
  r.grad_output->dtype = DType::bfloat16;
  r.input.dtype = DType::float16;
  r.weight.dtype = DType::bfloat16;
  const Checked c = check(r);
  EXPECT_EQ(c.results[0].dtype, DType::float32);  // float16 with bfloat16
  EXPECT_EQ(c.results[1].dtype, DType::bfloat16);
  EXPECT_EQ(c.results[2].dtype, DType::bfloat16);
}

// A legal call, what is changed in it, and how the message must begin behind the function's name.
struct Mistake {
  const char* name;
  std::function<void(Request&)> make;
  std::string message;
};
std::ostream& operator<<(std::ostream& out, const Mistake& mistake) { return out << mistake.name; }

class CheckRejects : public testing::TestWithParam<Mistake> {};

TEST_P(CheckRejects, WithAMessageThatNamesArgumentRuleAndValue) {
  Request r = backward({2, 4, 5, 4}, {2, 6, 7, 6}, {4, 3, 3, 3});
  r.groups = 2;
  check(r);
  GetParam().make(r);
  try {
    check(r);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::value);
    const std::string message = error.what(), expected = std::string(r.function) + ": " + GetParam().message;
    EXPECT_EQ(message.substr(0, expected.size()), expected);
  }
}

void transpose(Request& r) {
  r.transposed = true;
  r.weight.shape = {6, 2, 3, 3};
  r.grad_output->shape = {2, 4, 9, 8};
}

INSTANTIATE_TEST_SUITE_P(
    , CheckRejects,
    testing::ValuesIn(std::vector<Mistake>{
        {"WeightRank", [](Request& r) { r.weight.shape = {4, 3}; }, "weight must have rank 3, 4 or 5, got rank 2"},
        {"InputRank", [](Request& r) { r.input.shape = {6, 7}; }, "input must have rank 4 as weight has, or 3"},
        {"Groups", [](Request& r) { r.groups = 0; }, "groups must be at least 1, got 0"},
        {"GroupsOfInput", [](Request& r) { r.groups = 4; }, "input channels must be divisible by groups = 4, got 6"},
        {"GroupsOfWeight", [](Request& r) { r.weight.shape[0] = 5; },
         "weight.shape[0] must be divisible by groups = 2, got 5"},
        {"WeightChannels", [](Request& r) { r.weight.shape[1] = 4; },
         "weight.shape[1] must be input channels / groups = 3, got 4"},
        {"NoOutputChannels", [](Request& r) { r.weight.shape[0] = 0; }, "weight.shape[0] must be at least 1, got 0"},
        {"TransposedChannels", [](Request& r) { transpose(r), r.weight.shape[0] = 5; },
         "weight.shape[0] must be input channels = 6, got 5"},
        {"Stride", [](Request& r) { r.stride = {1, 0}; }, "stride must be at least 1, got 0 (stride=(1, 0))"},
        {"StrideLength", [](Request& r) { r.stride = {1, 1, 1}; },
         "stride must be an int or have length 1 or 2, got length 3"},
        {"NoStride", [](Request& r) { r.stride = {}; }, "stride must be an int or have length 1 or 2, got length 0"},
        {"Dilation", [](Request& r) { r.dilation = {-1}; }, "dilation must be at least 1, got -1 (dilation=-1)"},
        {"Padding", [](Request& r) { r.padding = {0, -2}; }, "padding must be at least 0, got -2 (padding=(0, -2))"},
        {"PaddingLength", [](Request& r) { r.padding = {0, 0, 0}; },
         "padding must be an int or have length 1, 2 or 4, got length 3"},
        {"OutputPadding", [](Request& r) { r.output_padding = {1}; },
         "output_padding must be 0 unless transposed, got 1"},
        {"LargeOutputPadding", [](Request& r) { transpose(r), r.output_padding = {1}; },
         "output_padding must be less than max(stride, dilation) = 1, got 1"},
        {"SameTransposed", [](Request& r) { transpose(r), r.padding_mode = PaddingMode::same; },
         "padding must be explicit or 'valid' where transposed is True, got 'same'"},
        {"KernelTooLarge", [](Request& r) { r.dilation = {4}; },
         "the dilated kernel must fit the padded input = 7, got 9"},
        {"NoKernel", [](Request& r) { r.weight.shape[2] = 0; }, "kernel sizes must be at least 1, got 0"},
        {"NoPixels", [](Request& r) { r.input.shape[3] = 0; }, "spatial sizes of input must be at least 1, got 0"},
        {"NoOutputPixels", [](Request& r) { transpose(r), r.padding = {8}; },
         "output sizes must be at least 1, got -7"},
        {"GradOutput", [](Request& r) { r.grad_output->shape[3] = 5; },
         "grad_output.shape must be the output shape = (2, 4, 5, 4), got (2, 4, 5, 5)"},
        {"BiasSizes", [](Request& r) { r.bias_sizes = Shape{5}; },
         "bias_sizes must be None or (C_out,) = (4,), got (5,)"},
        {"Strides", [](Request& r) { r.input.strides = {1, 1}; },
         "input.strides must be empty or have one entry for each axis, got (1, 1)"},
        {"NegativeSize", [](Request& r) { r.input.shape[0] = -2; },
         "input.shape must not be negative, got (-2, 6, 7, 6)"},
        {"HugeInput", [](Request& r) { r.input.shape[0] = kHuge; }, "input must take less than 2**63 bytes, got more"},
        {"HugePadding", [](Request& r) { r.padding = {INT64_MAX}; },
         "padded sizes must fit in 64 bits, got an overflow"},
        {"HugeDilation", [](Request& r) { r.dilation = {INT64_MAX}; },
         "padded sizes must fit in 64 bits, got an overflow"},
        {"ChannelsLastMessage",
         [](Request& r) {
           r.channels_last = true;
           r.grad_output->shape[3] = 5;
         },
         "grad_output.shape must be the output shape = (2, 5, 4, 4), got (2, 5, 5, 4)"},
    }),
    testing::PrintToStringParamName());

TEST(Check, BiasOfAForwardCall) {
  Request r = forward({1, 2, 7}, {5, 2, 3});
  r.bias = tensor({5});
  EXPECT_EQ(check(r).output_shape, (Shape{1, 5, 5}));
  r.bias = tensor({4});
  EXPECT_THROW(check(r), Error);
}

TEST(Check, UnwantedBiasSizesAreIgnored) {
  Request r = backward({1, 5, 5}, {1, 2, 7}, {5, 2, 3});
  r.bias_sizes = Shape{99};
  r.output_mask[2] = false;
  EXPECT_EQ(check(r).problem.co, 5);
}

}  // namespace
}  // namespace convbwd
