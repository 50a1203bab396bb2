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

TEST(Check, EightBitOperandsHaveWideGradientsOfWeightAndBias) {
  for (const DType t : {DType::float8_e4m3fn, DType::hifloat8}) {
    Request r = backward({1, 1, 5}, {1, 1, 7}, {1, 1, 3});
    for (Tensor* o : {&*r.grad_output, &r.input, &r.weight}) o->dtype = t;
    const auto dtypes = [&] {
      const Checked c = check(r);
      return std::array{c.results[0].dtype, c.results[1].dtype, c.results[2].dtype};
    };
    EXPECT_EQ(dtypes(), (std::array{t, DType::float32, DType::float32}));
    r.result_dtypes = {t, t, DType::bfloat16};
    EXPECT_EQ(dtypes(), (std::array{t, t, DType::bfloat16}));
  }
}

TEST(Check, ModesSayHowOperandsAreRead) {
  using enum DType;
  using enum CubeMathType;
  using Types = std::array<DType, 3>;
  const auto read = [](Types given, CubeMathType mode, Soc soc) {
    Request r = backward({1, 1, 5}, {1, 1, 7}, {1, 1, 3});
    r.grad_output->dtype = given[0], r.input.dtype = given[1], r.weight.dtype = given[2];
    r.cube_math_type = mode, r.soc = soc;
    return check(r).operands;
  };
  const Types single{float32, float32, float32}, brain{bfloat16, bfloat16, bfloat16}, half{float16, float16, float16};
  EXPECT_EQ(read(single, keep_dtype, Soc::a2), single);
  for (const CubeMathType mode : {allow_fp32_down_precision, use_hf32}) {
    EXPECT_EQ(read(single, mode, Soc::a2), (Types{hf32, hf32, hf32}));
    EXPECT_EQ(read(single, mode, Soc::ascend950), (Types{hf32_10, hf32_10, hf32_10}));
    EXPECT_EQ(read(brain, mode, Soc::a2), brain);
    EXPECT_EQ(read({float16, bfloat16, float32}, mode, Soc::a2), (Types{float16, bfloat16, hf32}));
  }
  const Types halved{float32_as_float16, float32_as_float16, float32_as_float16};
  EXPECT_EQ(read(single, use_fp16, Soc::ascend950), halved);
  EXPECT_EQ(read(single, allow_fp32_down_precision, Soc::ascend910), halved);
  EXPECT_EQ(read(brain, use_fp16, Soc::a2), (Types{bfloat16_as_float16, bfloat16_as_float16, bfloat16_as_float16}));
  EXPECT_EQ(read({float16, bfloat16, float16}, use_fp16, Soc::a2), (Types{float16, bfloat16_as_float16, float16}));
  EXPECT_EQ(read(half, use_hf32, Soc::ascend910), half);
  const Types eight{hifloat8, hifloat8, hifloat8};
  EXPECT_EQ(read(eight, use_fp16, Soc::ascend950), eight);
}

// A legal call, what is changed in it, and how the message must begin behind the function's name.
struct Mistake {
  const char* name;
  std::function<void(Request&)> make;
  std::string message;
  ErrorKind kind = ErrorKind::value;
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
    EXPECT_EQ(error.kind(), GetParam().kind);
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
        {"NoAlgorithm", [](Request& r) { r.algorithm = static_cast<Algorithm>(6); },
         "algorithm must be one of its enumerators, up to 5, got 6"},
        {"NoPrecision", [](Request& r) { r.precision = static_cast<Precision>(3); },
         "precision must be one of its enumerators, up to 2, got 3"},
        {"NoPaddingMode", [](Request& r) { r.padding_mode = static_cast<PaddingMode>(3); },
         "padding_mode must be one of its enumerators, up to 2, got 3"},
        {"NoSoc", [](Request& r) { r.soc = static_cast<Soc>(3); },
         "soc must be one of its enumerators, up to 2, got 3"},
        {"NoType", [](Request& r) { r.input.dtype = static_cast<DType>(99); },
         "input.dtype must be one of its enumerators, up to 9, got 99"},
        {"NoResultType", [](Request& r) { r.result_dtypes[1] = static_cast<DType>(10); },
         "grad_weight.dtype must be one of its enumerators, up to 9, got 10"},
        {"NoFormat", [](Request& r) { r.input.packing = Packing{static_cast<MemoryFormat>(10)}; },
         "input.packing.format must be one of its enumerators, up to 9, got 10"},
        {"BiasOfGradients", [](Request& r) { r.bias = Tensor{nullptr, DType::float32, {4}, {}}; },
         "bias must be absent where grad_output is given"},
        {"BiasSizesForward", [](Request& r) { r.grad_output.reset(), r.bias_sizes = Shape{4}; },
         "bias_sizes must be absent where grad_output is"},
        {"AccumulateForward", [](Request& r) { r.grad_output.reset(), r.accumulate = true; },
         "accumulate must be false where grad_output is absent, got true"},
        {"PerSampleForward", [](Request& r) { r.grad_output.reset(), r.per_sample = true; },
         "per_sample must be false where grad_output is absent, got true"},
        {"CubeMathType", [](Request& r) { r.cube_math_type = static_cast<CubeMathType>(300); },
         "cube_math_type must be 0, 1, 2 or 3, got 300"},
        {"ModeOfFloat64",
         [](Request& r) {
           r.weight.dtype = DType::float64;
           r.cube_math_type = CubeMathType::use_fp16;
         },
         "weight.dtype must not be float64 where cube_math_type is not KEEP_DTYPE = 0, got float64 (cube_math_type=2)",
         ErrorKind::type},
        {"ModeOfSoc", [](Request& r) { r.soc = Soc::ascend910; },
         "cube_math_type must be 1 or 2 for float32 where soc is '910', got 0"},
        {"TypeOfSoc",
         [](Request& r) {
           r.input.dtype = DType::bfloat16;
           r.soc = Soc::ascend910;
         },
         "input.dtype must be float32 or float16 where soc is '910', got bfloat16", ErrorKind::type},
        {"MixedEightBits", [](Request& r) { r.input.dtype = DType::hifloat8; },
         "grad_output.dtype must be hifloat8 as input.dtype is, because 8-bit types do not mix with others, got "
         "float32",
         ErrorKind::type},
        {"RoundedOperand", [](Request& r) { r.weight.dtype = DType::hf32; },
         "weight.dtype must be a type of tensors, got hf32", ErrorKind::type},
        {"RoundedResult", [](Request& r) { r.result_dtypes[0] = DType::float32_as_float16; },
         "grad_input.dtype must be a type of tensors, got float32_as_float16", ErrorKind::type},
        {"NarrowResult", [](Request& r) { r.result_dtypes[1] = DType::float8_e4m3fn; },
         "grad_weight.dtype must not have 8 bits unless all operands have it, got float8_e4m3fn", ErrorKind::type},
        {"NarrowBias", [](Request& r) { r.result_dtypes[2] = DType::hifloat8; },
         "grad_bias.dtype must have at least 16 bits, got hifloat8", ErrorKind::type},
        {"WideResultOfMode",
         [](Request& r) {
           r.result_dtypes[0] = DType::float64;
           r.cube_math_type = CubeMathType::use_hf32;
         },
         "grad_input.dtype must not be float64 where cube_math_type is not 0, got float64", ErrorKind::type},
        {"WideGradInputOfEightBits",
         [](Request& r) {
           for (Tensor* o : {&*r.grad_output, &r.input, &r.weight}) o->dtype = DType::hifloat8;
           r.result_dtypes[0] = DType::float32;
         },
         "grad_input.dtype must be hifloat8 as that of the operands, got float32", ErrorKind::type},
        {"HalfGradWeightOfEightBits",
         [](Request& r) {
           for (Tensor* o : {&*r.grad_output, &r.input, &r.weight}) o->dtype = DType::hifloat8;
           r.result_dtypes[1] = DType::float16;
         },
         "grad_weight.dtype must be float32 or hifloat8, got float16", ErrorKind::type},
        {"FormatOfOtherRank", [](Request& r) { r.input.packing = Packing{MemoryFormat::ndc1hwc0}; },
         "input must fit its format, got NDC1HWC0: formats: NDC1HWC0 must have 5 axes, got 4"},
        {"FormatOfWeights", [](Request& r) { r.grad_output->packing = Packing{MemoryFormat::fractal_z}; },
         "grad_output must have a format of images, got FRACTAL_Z"},
        {"FormatAndStrides",
         [](Request& r) {
           r.weight.packing = Packing{MemoryFormat::fractal_z};
           r.weight.strides = {27, 9, 3, 1};
         },
         "weight.strides must be empty where it has a format, got (27, 9, 3, 1)"},
        {"FormatOfOtherGroups", [](Request& r) { r.weight.packing = Packing{MemoryFormat::fractal_z, 8, 1}; },
         "weight must be packed with groups = 2, got 1"},
        {"FormatTooLarge", [](Request& r) { r.input.packing = Packing{MemoryFormat::nc1hwc0, std::int64_t{1} << 55}; },
         "input must take less than 2**63 bytes, got more in NC1HWC0"},
        {"OperandReach", [](Request& r) { r.input.strides = {1, 1, std::int64_t{1} << 60, 1}; },
         "input.strides must reach less than 2**63 bytes, got (1, 1, 1152921504606846976, 1)"},
        {"OperandReachBackwards", [](Request& r) { r.weight.strides = {INT64_MIN, 9, 3, 1}; },
         "weight.strides must reach less than 2**63 bytes, got (-9223372036854775808, 9, 3, 1)"},
        {"ResultReach", [](Request& r) { r.result_strides[1] = {INT64_MIN, 9, 3, 1}; },
         "grad_weight.strides must reach less than 2**63 bytes, got (-9223372036854775808, 9, 3, 1)"},
        {"FormatOfBias", [](Request& r) { r.result_packings[2] = Packing{}; },
         "grad_bias must have no format, got NCHW"},
        {"FormatOfResult", [](Request& r) { r.result_packings[1] = Packing{MemoryFormat::fractal_z, -1}; },
         "grad_weight must fit its format, got FRACTAL_Z: formats: c0 must be at least 1, got -1"},
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
  r.bias->packing = Packing{};
  EXPECT_THROW(check(r), Error);
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
