// aclnnConvolutionBackward: values, what it refuses and with which code, executors used wrongly.
#include <gtest/gtest.h>

#include <functional>

#include "cann/call.h"
#include "convbwd/convbwd.hpp"
#include "convbwd/layouts.hpp"
#include "support/random.h"

namespace convbwd::test {
namespace {

void fill(Argument& t, Random& random) {
  aclDestroyTensor(t.make());
  const std::int64_t count = product(t.storage.value_or(t.shape));
  for (std::int64_t i = 0; i < count; ++i)
    set(t.memory.data(), dtype_of(t.dtype), i, static_cast<double>(random.integer(-3, 3)));
}

void expect_all(const Argument& t, double value, const char* name) {
  for (std::int64_t i = 0; i < product(t.shape); ++i) ASSERT_EQ(t[i], value) << name << '[' << i << ']';
}

// What the library gives for the same call in float64 arithmetic, written densely.
void expect_as_library(Call& c) {
  Request r;
  const auto tensor = [](Argument& t) {
    const DType dtype = dtype_of(t.dtype);
    auto* const data =
        reinterpret_cast<std::byte*>(t.memory.data()) + t.offset * static_cast<std::int64_t>(size_of(dtype));
    return Tensor{data, dtype, t.shape, t.strides};
  };
  r.grad_output = tensor(c.grad_output);
  r.input = tensor(c.input);
  r.weight = tensor(c.weight);
  r.stride = *c.stride;
  r.padding = *c.padding;
  r.dilation = *c.dilation;
  r.output_padding = *c.output_padding;
  r.transposed = c.transposed;
  r.groups = c.groups;
  r.algorithm = Algorithm::reference;
  const Plan plan = Plan::make(r);
  std::array<Argument, 3> expected;
  std::array<Tensor, 3> results;
  for (std::size_t i = 0; i < 3; ++i) {
    const Result& result = plan.results()[i];
    expected[i] = {result.shape, result.dtype == DType::float16    ? ACL_FLOAT16
                                 : result.dtype == DType::bfloat16 ? ACL_BF16
                                                                   : ACL_FLOAT};
    aclDestroyTensor(expected[i].make());
    results[i] = tensor(expected[i]);
  }
  plan.backward(*r.grad_output, r.input, r.weight, results);
  const Argument* const actual[] = {&c.grad_input, &c.grad_weight, &c.grad_bias};
  static constexpr const char* kNames[] = {"gradInput", "gradWeight", "gradBias"};
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(actual[i]->shape, expected[i].shape);
    for (std::int64_t e = 0; e < product(expected[i].shape); ++e)
      ASSERT_EQ((*actual[i])[e], expected[i][e]) << kNames[i] << '[' << e << ']';
  }
}

Call one_dimensional() { return Call::of({{4, 2, 3}}, {{4, 2, 9}}, {{2, 2, 3}}, {3}, {0}, {1}); }
Call two_dimensional() { return Call::of({{2, 2, 7, 7}}, {{2, 2, 7, 7}}, {{2, 2, 1, 1}}, {1, 1}, {0, 0}, {1, 1}); }
Call three_dimensional() {
  return Call::of({{2, 2, 7, 7, 7}}, {{2, 2, 7, 7, 7}}, {{2, 2, 1, 1, 1}}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1});
}
Call transposed() {
  Call c = Call::of({{2, 6, 8, 9}}, {{2, 4, 4, 4}}, {{4, 3, 3, 3}}, {2, 2}, {1, 1}, {1, 1});
  c.transposed = true;
  c.output_padding = {1, 0};
  c.grad_output.shape = {2, 6, 8, 7};
  c.groups = 2;
  c.grad_bias.shape = c.bias_sizes.emplace(Ints{6});
  return c;
}
// Ninety channels of three by three: enough work to need a workspace.
Call larger() { return Call::of({{2, 90, 12, 12}}, {{2, 70, 12, 12}}, {{90, 70, 3, 3}}, {1, 1}, {1, 1}, {1, 1}); }

TEST(ConvolutionBackward, KnownAnswers) {
  struct Case {
    Call call;
    double input, weight, bias;
  };
  for (const int cube_math_type : {0, 1, 2, 3})
    for (Case c : {Case{one_dimensional(), 2, 12, 12}, Case{two_dimensional(), 2, 98, 98},
                   Case{three_dimensional(), 2, 686, 686}}) {
      c.call.cube_math_type = cube_math_type;
      c.call.run();
      expect_all(c.call.grad_input, c.input, "gradInput");
      expect_all(c.call.grad_weight, c.weight, "gradWeight");
      expect_all(c.call.grad_bias, c.bias, "gradBias");
    }
}

TEST(ConvolutionBackward, AgreesWithTheLibrary) {
  Call grouped = Call::of({{1, 12, 6, 1}}, {{1, 12, 16, 21}}, {{12, 3, 5, 5}}, {1, 1}, {3, 4}, {4, 7});
  grouped.groups = 4;
  Call four_paddings = Call::of({{2, 4, 8, 5}}, {{2, 3, 7, 8}}, {{4, 3, 3, 2}}, {1, 2}, {0, 3, 2, 1}, {1, 1});
  std::vector<Call> calls{one_dimensional(), two_dimensional(), three_dimensional(), transposed(),
                          larger(),          grouped,           four_paddings};
  Random random(1);
  for (const aclDataType dtype : {ACL_FLOAT, ACL_FLOAT16, ACL_BF16})
    for (Call c : calls) {
      for (Argument* t : {&c.grad_output, &c.input, &c.weight, &c.grad_input, &c.grad_weight, &c.grad_bias})
        t->dtype = dtype;
      for (Argument* t : {&c.grad_output, &c.input, &c.weight}) fill(*t, random);
      c.run();
      expect_as_library(c);
    }
}

TEST(ConvolutionBackward, TakesStridedInputs) {
  Random random(2);
  Call c = Call::of({{2, 4, 5, 6}}, {{2, 3, 5, 6}}, {{4, 3, 3, 3}}, {1, 1}, {1, 1}, {1, 1});
  c.input.strides = {90, 1, 18, 3};  // channels last
  c.weight.strides = {1, 4, 36, 12};
  c.grad_output.strides = {240, 60, 12, 2};  // every other element, after an offset
  c.grad_output.offset = 1;
  c.grad_output.storage = {2 * 240};
  for (Argument* t : {&c.grad_output, &c.input, &c.weight}) fill(*t, random);
  c.run();
  expect_as_library(c);
}

// An argument in a format in which it has such an extent in memory; its elements are those of the plain one.
Argument packed(Argument plain, aclFormat format, MemoryFormat memory, int groups, std::int64_t c0) {
  Argument t = plain;
  t.format = format;
  t.storage = packed_shape(memory, plain.shape, groups, c0);
  t.memory.clear();
  aclDestroyTensor(t.make());
  if (plain.memory.empty()) return t;
  convert_format(t.memory.data(), memory, plain.memory.data(),
                 plain.shape.size() == 4 ? MemoryFormat::nchw : MemoryFormat::ncdhw, plain.shape,
                 size_of(dtype_of(plain.dtype)), groups, c0);
  return t;
}

TEST(ConvolutionBackward, ReadsAndWritesBlocksOfChannels) {
  Random random(4);
  Call flat = Call::of({{2, 12, 6, 5}}, {{2, 9, 8, 7}}, {{12, 3, 3, 3}}, {1, 1}, {0, 0}, {1, 1});
  flat.groups = 3;
  Call deep = Call::of({{1, 18, 3, 4, 4}}, {{1, 17, 3, 4, 4}}, {{18, 17, 1, 1, 1}}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1});
  for (const aclDataType dtype : {ACL_FLOAT, ACL_BF16})
    for (const std::int64_t c0 : {4, 16})
      for (Call plain : {flat, deep}) {
        const bool two = plain.input.shape.size() == 4;
        const auto image = [&](const Argument& t) {
          return packed(t, two ? ACL_FORMAT_NC1HWC0 : ACL_FORMAT_NDC1HWC0,
                        two ? MemoryFormat::nc1hwc0 : MemoryFormat::ndc1hwc0, 1, c0);
        };
        const auto weights = [&](const Argument& t) {
          return packed(t, two ? ACL_FORMAT_FRACTAL_Z : ACL_FRACTAL_Z_3D,
                        two ? MemoryFormat::fractal_z : MemoryFormat::fractal_z_3d, plain.groups, c0);
        };
        for (Argument* t : {&plain.grad_output, &plain.input, &plain.weight, &plain.grad_input, &plain.grad_weight})
          t->dtype = dtype;
        for (Argument* t : {&plain.grad_output, &plain.input, &plain.weight}) fill(*t, random);
        Call c = plain;
        c.grad_output = image(plain.grad_output), c.input = image(plain.input), c.weight = weights(plain.weight);
        c.grad_input = image(plain.grad_input), c.grad_weight = weights(plain.grad_weight);
        c.run();
        plain.run();
        EXPECT_EQ(c.grad_input.memory, image(plain.grad_input).memory);
        EXPECT_EQ(c.grad_weight.memory, weights(plain.grad_weight).memory);
        EXPECT_EQ(c.grad_bias.memory, plain.grad_bias.memory);
      }
  Call none = Call::of({{0, 3, 5, 5}}, {{0, 2, 5, 5}}, {{3, 2, 1, 1}}, {1, 1}, {0, 0}, {1, 1});
  none.grad_weight = packed(none.grad_weight, ACL_FORMAT_FRACTAL_Z, MemoryFormat::fractal_z, 1, 8);
  none.run();
  for (std::int64_t i = 0; i < product(*none.grad_weight.storage); ++i) EXPECT_EQ(none.grad_weight[i], 0);
}

TEST(ConvolutionBackward, RoundsToWhatTheOutputsAre) {
  Random random(3);
  Call c = Call::of({{1, 2, 3}}, {{1, 2, 5}}, {{2, 2, 3}}, {1}, {0}, {1});
  c.grad_input.dtype = ACL_FLOAT16;
  c.grad_weight.dtype = ACL_BF16;
  c.grad_bias.dtype = ACL_BF16;
  c.grad_output.value = 1 + 0x1p-11;  // exact in float32 alone
  c.run();
  EXPECT_EQ(c.grad_weight[0], 3);  // 3 + 3 * 2^-11
  EXPECT_EQ(c.grad_bias[0], 3);
  EXPECT_EQ(c.grad_input[0], 2);  // 2 + 2^-10, a tie
  Call mixed = Call::of({{1, 2, 3}, ACL_BF16}, {{1, 2, 5}, ACL_FLOAT16}, {{2, 2, 3}}, {1}, {0}, {1});
  mixed.run();
  expect_all(mixed.grad_bias, 3, "gradBias");
}

TEST(ConvolutionBackward, RoundsOperandsAsCubeMathTypeSays) {
  // HF32 keeps 2^-11 beside 1, float16 2^-10; 2^-26 is too small for float16.
  for (const auto& [value, expected] :
       {std::pair{1 + 0x1p-12, std::array{3 + 3 * 0x1p-12, 3.0, 3.0, 3.0}},
        {1 + 0x1p-10, std::array{3 + 3 * 0x1p-10, 3 + 3 * 0x1p-10, 3 + 3 * 0x1p-10, 3 + 3 * 0x1p-10}},
        {1 + 0x1p-11, std::array{3 + 3 * 0x1p-11, 3 + 3 * 0x1p-11, 3.0, 3 + 3 * 0x1p-11}},
        {0x1p-26, std::array{3 * 0x1p-26, 3 * 0x1p-26, 0.0, 3 * 0x1p-26}}})
    for (int mode = 0; mode < 4; ++mode) {
      Call c = Call::of({{1, 2, 3}}, {{1, 2, 5}}, {{2, 2, 3}}, {1}, {0}, {1});
      c.grad_output.value = value;
      c.cube_math_type = mode;
      c.run();
      EXPECT_EQ(c.grad_weight[0], expected[static_cast<std::size_t>(mode)]) << value << " in mode " << mode;
      EXPECT_EQ(c.grad_bias[0], 3 * value);  // of what gradOutput is
    }
}

TEST(ConvolutionBackward, EightBits) {
  for (const aclDataType dtype : {ACL_HIFLOAT8, ACL_FLOAT8_E4M3FN})
    for (const aclDataType weight : {ACL_FLOAT, dtype}) {
      Call c = one_dimensional();
      for (Argument* t : {&c.grad_output, &c.input, &c.weight, &c.grad_input}) t->dtype = dtype;
      c.grad_weight.dtype = weight;
      c.run();
      expect_all(c.grad_input, 2, "gradInput");
      expect_all(c.grad_weight, 12, "gradWeight");
      expect_all(c.grad_bias, 12, "gradBias");
      c.grad_bias.dtype = dtype;
      EXPECT_EQ(c.plan(), 561103);
      c.grad_bias.dtype = ACL_FLOAT;
      c.weight.dtype = ACL_FLOAT16;  // mixed
      EXPECT_EQ(c.plan(), 161002);
    }
}

TEST(ConvolutionBackward, LeavesMaskedOutputsAlone) {
  for (unsigned bits = 0; bits < 8; ++bits) {
    Call c = two_dimensional();
    c.mask = {{static_cast<std::uint8_t>(bits & 1), static_cast<std::uint8_t>(bits >> 1 & 1),
               static_cast<std::uint8_t>(bits >> 2)}};
    if (!(bits & 2)) c.grad_weight = {{3, 1}, ACL_INT8, ACL_FORMAT_NHWC};  // nobody looks
    if (bits == 0) c.null = "gradInput";
    c.run();
    if (bits != 0) expect_all(c.grad_input, bits & 1 ? 2 : -7, "gradInput");
    if (bits & 2) expect_all(c.grad_weight, 98, "gradWeight");
    expect_all(c.grad_bias, bits & 4 ? 98 : -7, "gradBias");
  }
}

TEST(ConvolutionBackward, DoesNotCompareBiasSizes) {
  Call c = two_dimensional();
  c.bias_sizes = {1};
  c.run();
  c.bias_sizes.reset();
  c.run();
}

struct Refused {
  const char* name;
  aclnnStatus code;
  const char* message;
  std::function<void(Call&)> change;
};

TEST(ConvolutionBackward, RefusesInPhaseOne) {
  const auto null = [](const char* name) { return [name](Call& c) { c.null = name; }; };
  const std::vector<Refused> cases{
      {"gradOutput null", 161001, "gradOutput must not be null", null("gradOutput")},
      {"input null", 161001, "input must not be null", null("input")},
      {"weight null", 161001, "weight must not be null", null("weight")},
      {"stride null", 161001, "stride must not be null", [](Call& c) { c.stride.reset(); }},
      {"padding null", 161001, "padding must not be null", [](Call& c) { c.padding.reset(); }},
      {"dilation null", 161001, "dilation must not be null", [](Call& c) { c.dilation.reset(); }},
      {"outputPadding null", 161001, "outputPadding must not be null", [](Call& c) { c.output_padding.reset(); }},
      {"outputMask null", 161001, "outputMask must not be null", [](Call& c) { c.mask.reset(); }},
      {"outputMask size", 161001, "outputMask must have 3 entries, got 2", [](Call& c) { c.mask = {{1, 1}}; }},
      {"gradInput null", 161001, "gradInput must not be null", null("gradInput")},
      {"gradWeight null", 161001, "gradWeight must not be null", null("gradWeight")},
      {"gradBias null", 161001, "gradBias must not be null", null("gradBias")},
      {"workspaceSize null", 161001, "workspaceSize must not be null", null("workspaceSize")},
      {"executor null", 161001, "executor must not be null", null("executor")},
      {"null before dtype", 161001, "weight must not be null",
       [](Call& c) { c.null = "weight", c.input.dtype = ACL_INT8; }},
      {"int8", 161002, "input must be FLOAT", [](Call& c) { c.input.dtype = ACL_INT8; }},
      {"double", 161002, "weight must be FLOAT", [](Call& c) { c.weight.dtype = ACL_DOUBLE; }},
      {"undefined dtype", 161002, "gradOutput must be FLOAT", [](Call& c) { c.grad_output.dtype = ACL_DT_UNDEFINED; }},
      {"int32 output", 161002, "gradWeight must be FLOAT", [](Call& c) { c.grad_weight.dtype = ACL_INT32; }},
      {"8-bit bias", 561103, "gradBias must be FLOAT", [](Call& c) { c.grad_bias.dtype = ACL_HIFLOAT8; }},
      {"NHWC", 161002, "input of rank 4 must have format ND, NCHW or NC1HWC0, got aclFormat 1",
       [](Call& c) { c.input.format = ACL_FORMAT_NHWC; }},
      {"format of another rank", 161002, "weight of rank 4 must have format ND, NCHW or FRACTAL_Z, got aclFormat 30",
       [](Call& c) { c.weight.format = ACL_FORMAT_NCDHW; }},
      {"blocks of weights", 161002, "input of rank 4 must have format ND, NCHW or NC1HWC0, got aclFormat 4",
       [](Call& c) { c.input.format = ACL_FORMAT_FRACTAL_Z; }},
      {"blocks of images", 161002, "weight of rank 4 must have format ND, NCHW or FRACTAL_Z, got aclFormat 3",
       [](Call& c) { c.weight.format = ACL_FORMAT_NC1HWC0; }},
      {"storage of blocks", 161002, "input must have storage [2, 2, 7, 7, 1], got [2, 2, 7, 7, 1, 1]",
       [](Call& c) { c.input.format = ACL_FORMAT_NC1HWC0, c.input.storage = {2, 2, 7, 7, 1, 1}; }},
      {"storage without C0", 161002, "gradInput must have storage [2, 1, 7, 7, 7], got [2, 2, 7, 7]",
       [](Call& c) { c.grad_input.format = ACL_FORMAT_NC1HWC0; }},
      {"groups of blocks", 161002, "weight must fit its format, got [2, 2, 1, 1]: formats: groups must divide",
       [](Call& c) { c.weight.format = ACL_FORMAT_FRACTAL_Z, c.groups = 3; }},
      {"offset of blocks", 161002, "weight must have no offset and the strides of [2, 2, 1, 1]",
       [](Call& c) { c.weight.format = ACL_FORMAT_FRACTAL_Z, c.weight.storage = {1, 1, 16, 8}, c.weight.offset = 1; }},
      {"strides of blocks", 161002, "gradOutput must have no offset and the strides of",
       [](Call& c) {
         c.grad_output.format = ACL_FORMAT_NC1HWC0, c.grad_output.storage = {2, 1, 7, 7, 8};
         c.grad_output.strides = {98, 1, 14, 2};
       }},
      {"output format", 161002, "gradInput of rank 4", [](Call& c) { c.grad_input.format = ACL_FORMAT_NHWC; }},
      {"bias format", 161002, "gradBias must have format ND", [](Call& c) { c.grad_bias.format = ACL_FORMAT_NCHW; }},
      {"stride 0", 161002, "stride must be at least 1", [](Call& c) { c.stride = {1, 0}; }},
      {"padding -1", 161002, "padding must be at least 0", [](Call& c) { c.padding = {-1, 0}; }},
      {"dilation 0", 161002, "dilation must be at least 1", [](Call& c) { c.dilation = {0, 1}; }},
      {"groups 0", 161002, "groups must be at least 1", [](Call& c) { c.groups = 0; }},
      {"groups -1", 161002, "groups must be at least 1", [](Call& c) { c.groups = -1; }},
      {"outputPadding", 161002, "output_padding must be 0", [](Call& c) { c.output_padding = {0, 1}; }},
      {"cubeMathType 4", 161002, "cubeMathType must be 0, 1, 2 or 3, got 4", [](Call& c) { c.cube_math_type = 4; }},
      {"cubeMathType -1", 161002, "cubeMathType", [](Call& c) { c.cube_math_type = -1; }},
      {"rank 2", 161002, "input must have rank 3, 4 or 5, got 2", [](Call& c) { c.input.shape = {2, 2}; }},
      {"rank 6", 161002, "weight must have rank 3, 4 or 5", [](Call& c) { c.weight.shape = {2, 2, 1, 1, 1, 1}; }},
      {"ranks differ", 161002, "must have the same rank, got 4, 3 and 4", [](Call& c) { c.input.shape = {2, 7, 7}; }},
      {"stride length", 161002, "stride must have length 2, got 1", [](Call& c) { c.stride = {1}; }},
      {"padding length", 161002, "padding must have length 2 or 4, got 3", [](Call& c) { c.padding = {0, 0, 0}; }},
      {"dilation length", 161002, "dilation must have length 2, got 3", [](Call& c) { c.dilation = {1, 1, 1}; }},
      {"outputPadding length", 161002, "outputPadding must have length 2", [](Call& c) { c.output_padding = {0}; }},
      {"gradInput shape", 161002, "gradInput must have shape [2, 2, 7, 7], got [2, 2, 7, 6]",
       [](Call& c) { c.grad_input.shape = {2, 2, 7, 6}; }},
      {"gradWeight shape", 161002, "gradWeight must have shape", [](Call& c) { c.grad_weight.shape = {2, 2, 1, 2}; }},
      {"gradBias shape", 161002, "gradBias must have shape [2]", [](Call& c) { c.grad_bias.shape = {1, 2}; }},
      {"gradInput strides", 161002, "gradInput must be contiguous",
       [](Call& c) { c.grad_input.strides = {98, 1, 14, 2}; }},
      {"batches differ", 161002, "grad_output.shape must be", [](Call& c) { c.grad_output.shape[0] = 3; }},
      {"gradOutput channels", 161002, "grad_output.shape must be", [](Call& c) { c.grad_output.shape[1] = 3; }},
      {"input channels", 161002, "weight.shape[1] must be", [](Call& c) { c.input.shape[1] = 3; }},
      {"Cout 17 in two groups", 161002, "weight.shape[0] must be divisible by groups",
       [](Call& c) {
         c.weight.shape = {17, 1, 1, 1};
         c.grad_output.shape = {2, 17, 7, 7};
         c.groups = 2;
       }},
      {"kernel too large", 161002, "the dilated kernel must fit", [](Call& c) { c.weight.shape = {2, 2, 8, 1}; }},
      {"gradOutput size", 161002, "grad_output.shape must be", [](Call& c) { c.grad_output.shape[3] = 6; }},
      {"gradOutput empty", 161002, "grad_output.shape must be", [](Call& c) { c.grad_output.shape[0] = 0; }},
      {"weight empty", 161002, "kernel sizes must be at least 1", [](Call& c) { c.weight.shape[2] = 0; }},
      {"input empty in H", 161002, "an empty input must have N = 0", [](Call& c) { c.input.shape = {16, 16, 0, 16}; }},
      {"outside the storage", 161002, "input must lie in its storage [2, 2, 7, 6]",
       [](Call& c) { c.input.storage = {2, 2, 7, 6}; }},
      {"before the storage", 161002, "weight must lie in its storage", [](Call& c) { c.weight.offset = -1; }},
      {"strides outside the storage", 161002, "input must lie in its storage",
       [](Call& c) { c.input.strides = {std::int64_t{1} << 62, 1, 1, 1}; }},
  };
  for (const Refused& refused : cases) {
    SCOPED_TRACE(refused.name);
    Call c = two_dimensional();
    refused.change(c);
    EXPECT_EQ(c.plan(), refused.code);
    EXPECT_EQ(c.message.rfind("aclnnConvolutionBackwardGetWorkspaceSize: ", 0), 0u) << c.message;
    EXPECT_NE(c.message.find(refused.message), std::string::npos) << c.message;
    EXPECT_EQ(c.workspace_size, 12345u);
    EXPECT_EQ(c.executor, nullptr);
    EXPECT_STREQ(aclGetRecentErrMsg(), "");
  }
}

TEST(ConvolutionBackward, RefusesByRank) {
  Call c = one_dimensional();
  c.input.format = ACL_FORMAT_NCHW;
  EXPECT_EQ(c.plan(), 161002);
  c = one_dimensional();
  c.padding = {0, 0};
  EXPECT_EQ(c.plan(), 161002);
  c = three_dimensional();
  c.input.format = ACL_FORMAT_NDHWC;
  EXPECT_EQ(c.plan(), 161002);
  c = three_dimensional();
  c.padding = Ints(6);
  EXPECT_EQ(c.plan(), 161002);
  for (Call large :
       {Call::of({{2, 2, 10}}, {{2, 2, 9}}, {{2, 2, 1}}, {1}, {0}, {2}), two_dimensional(), three_dimensional()}) {
    large.transposed = true;
    large.output_padding->front() = 1;
    large.dilation->front() = 2;
    large.grad_output.shape[2] = large.input.shape[2] + 1;
    EXPECT_EQ(large.plan(), 161002);
    EXPECT_NE(large.message.find("outputPadding must be less than stride"), std::string::npos) << large.message;
  }
  for (Call accepted : {one_dimensional(), two_dimensional(), three_dimensional()}) {
    const aclFormat formats[] = {ACL_FORMAT_NCL, ACL_FORMAT_NCHW, ACL_FORMAT_NCDHW};
    accepted.input.format = formats[accepted.input.shape.size() - 3];
    EXPECT_EQ(accepted.plan(), ACL_SUCCESS) << accepted.message;
    EXPECT_EQ(aclDestroyAclOpExecutor(accepted.executor), ACL_SUCCESS);
  }
}

TEST(ConvolutionBackward, RefusesInEveryDimensionAndTransposed) {
  const auto refused = [](Call c, const char* message, const std::function<void(Call&)>& change) {
    SCOPED_TRACE(message);
    change(c);
    EXPECT_EQ(c.plan(), 161002);
    EXPECT_NE(c.message.find(message), std::string::npos) << c.message;
  };
  for (const Call& c : {one_dimensional(), two_dimensional(), three_dimensional()}) {
    refused(c, "the dilated kernel must fit", [](Call& d) { d.dilation->back() = 20, d.weight.shape.back() = 3; });
    refused(c, "grad_output.shape must be", [](Call& d) { ++d.grad_output.shape.back(); });
    refused(c, "stride must be at least 1", [](Call& d) { d.stride->back() = -1; });
    refused(c, "padding must be at least 0", [](Call& d) { d.padding->back() = -1; });
    refused(c, "dilation must be at least 1", [](Call& d) { d.dilation->back() = 0; });
    refused(c, "output_padding must be 0 unless transposed", [](Call& d) { d.output_padding->back() = 1; });
    refused(c, "gradBias must have shape [2], got [3]", [](Call& d) { d.grad_bias.shape = {3}; });
  }
  refused(transposed(), "output_padding must be at least 0", [](Call& d) { d.output_padding = {-1, 0}; });
  refused(transposed(), "outputPadding must be less than stride", [](Call& d) { d.output_padding = {2, 0}; });
  refused(transposed(), "weight.shape[0] must be input channels", [](Call& d) { d.weight.shape[0] = 6; });
  refused(transposed(), "input channels must be divisible by groups", [](Call& d) { d.groups = 3; });
  refused(transposed(), "grad_output.shape must be", [](Call& d) { d.grad_output.shape[1] = 3; });
  refused(transposed(), "gradBias must have shape [6]", [](Call& d) { d.grad_bias.shape = {4}; });
  // As many groups as input channels: each has at least one output channel.
  refused(two_dimensional(), "weight.shape[0] must be divisible by groups = 2, got 1", [](Call& d) {
    d.groups = 2;
    d.weight.shape = {1, 1, 1, 1};
    d.grad_output.shape[1] = 1;
  });
}

TEST(ConvolutionBackward, EmptyInputs) {
  Call batch = Call::of({{0, 3, 5}}, {{0, 2, 7}}, {{3, 2, 3}}, {1}, {0}, {1});
  Call channels = Call::of({{2, 3, 5}}, {{2, 0, 7}}, {{3, 0, 3}}, {1}, {0}, {1});
  Call spatial = Call::of({{0, 3, 2}}, {{0, 2, 0}}, {{3, 2, 1}}, {1}, {1}, {1});
  Call none = Call::of({{0, 3, 5, 1}}, {{0, 0, 0, 0}}, {{3, 0, 1, 2}}, {1, 1}, {2, 3, 2, 0}, {1, 1});
  Call transposed = Call::of({{0, 1, 1}}, {{0, 1, 1}}, {{1, 1, 1}}, {1}, {0}, {1});
  Call from_none = Call::of({{0, 1, 4}}, {{0, 1, 0}}, {{1, 1, 8}}, {2}, {1}, {1});  // (0 - 1) * 2 - 2 * 1 + 7 + 1
  transposed.transposed = from_none.transposed = true;
  for (Call c : {batch, channels, spatial, none, transposed, from_none}) {
    c.run();
    EXPECT_EQ(c.workspace_size, 0u);
    expect_all(c.grad_weight, 0, "gradWeight");
    expect_all(c.grad_bias, 0, "gradBias");
  }

  const auto refused = [](Call c, const char* message) {
    EXPECT_EQ(c.plan(), 161002);
    EXPECT_NE(c.message.find(message), std::string::npos) << c.message;
  };
  Call c = batch;
  c.bias_sizes.reset();
  refused(c, "biasSizes must be [3]");
  c.mask = {{1, 1, 0}};
  c.run();  // nobody asks for it
  c = batch;
  c.bias_sizes = {4};
  refused(c, "biasSizes must be [3]");
  c = batch;
  c.weight.shape = {3, 2, 8};
  refused(c, "the dilated kernel must fit");
  c = batch;
  c.grad_output.shape = {1, 3, 5};
  refused(c, "grad_output.shape must be");
  c = batch;
  c.weight.shape = {3, 1, 3};
  refused(c, "weight.shape[1] must be input channels");
  c = batch;
  c.weight.shape = {0, 2, 3};
  refused(c, "weight.shape[0] must be at least 1");
  c = batch;
  c.groups = 0;
  refused(c, "groups must be at least 1");
  c = batch;
  c.stride = {0};
  refused(c, "stride must be at least 1");
  c = batch;
  c.padding = {std::numeric_limits<std::int64_t>::max() - 4};
  c.dilation = {std::numeric_limits<std::int64_t>::max()};
  refused(c, "padded sizes must fit in 64 bits");
  c = batch;
  c.weight.shape = c.grad_weight.shape = {3, 2, std::int64_t{1} << 61};
  c.padding = {std::int64_t{1} << 61};
  c.mask = {{0, 1, 0}};
  refused(c, "weight must take less than 2**63 bytes");
  c = channels;
  c.transposed = true;
  refused(c, "an empty input must have N = 0");
  c = channels;
  c.grad_output.shape[1] = 0;
  refused(c, "gradOutput must have channels");
  c = spatial;
  c.padding = {0};
  refused(c, "the dilated kernel must fit");
  c = spatial;
  c.grad_output.shape = {0, 3, 0};
  refused(c, "grad_output.shape must be");
  // What a call with elements must keep to as well.
  c = batch;
  c.output_padding = {1};
  refused(c, "output_padding must be 0 unless transposed");
  c.output_padding = {-1};
  refused(c, "output_padding must be at least 0");
  c = transposed;
  c.output_padding = {-1};
  refused(c, "output_padding must be at least 0");
  c = batch;
  c.grad_output.shape = {0, 3, 4};
  refused(c, "grad_output.shape must be");
  c = batch;
  c.grad_output.dtype = ACL_HIFLOAT8;
  refused(c, "8-bit types do not mix");
  c = batch;
  c.grad_input.dtype = ACL_HIFLOAT8;
  refused(c, "grad_input.dtype must not have 8 bits");
  c = batch;
  for (Argument* t : {&c.grad_output, &c.input, &c.weight, &c.grad_input}) t->dtype = ACL_HIFLOAT8;
  c.grad_weight.dtype = ACL_FLOAT8_E4M3FN;
  refused(c, "grad_weight.dtype must");
  for (const std::int64_t pad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    c = from_none;  // which turns it into another padding
    c.padding = {pad};
    refused(c, "padding must be at least 0, got [-");
    c = spatial;
    c.padding = {pad};
    refused(c, "padding must be at least 0, got [-");
  }
  c = from_none;
  c.weight.shape = c.grad_weight.shape = {1, 1, 4};
  refused(c, "output sizes must be at least 1");
}

TEST(ConvolutionBackward, WorkspaceIsTrueAndEnforced) {
  Call c = larger();
  ASSERT_EQ(c.plan(), ACL_SUCCESS) << c.message;
  ASSERT_GT(c.workspace_size, 0u);
  std::vector<std::byte> workspace(c.workspace_size + 1);
  EXPECT_EQ(aclnnConvolutionBackward(workspace.data(), c.workspace_size - 1, c.executor, nullptr), 161002);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("workspaceSize must be at least"), std::string::npos);
  EXPECT_EQ(aclnnConvolutionBackward(nullptr, c.workspace_size, c.executor, nullptr), 161001);
  // Unaligned, and the sanitizer sees whatever is written behind it.
  EXPECT_EQ(aclnnConvolutionBackward(workspace.data() + 1, c.workspace_size, c.executor, nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_all(c.grad_bias, 288, "gradBias");
}

TEST(ConvolutionBackward, ExecutorRunsOnce) {
  Call c = two_dimensional();
  c.run();
  EXPECT_EQ(c.execute(), 161002);
  EXPECT_EQ(std::string(aclGetRecentErrMsg()),
            "aclnnConvolutionBackward: executor was never made, is used up or destroyed");
  EXPECT_EQ(aclDestroyAclOpExecutor(c.executor), 161002);
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(c.executor), 161002);

  ASSERT_EQ(c.plan(), ACL_SUCCESS);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(c.executor), ACL_SUCCESS);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.execute(), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyAclOpExecutor(c.executor), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_all(c.grad_weight, 98, "gradWeight");
}

TEST(ConvolutionBackward, RefusesInPhaseTwo) {
  EXPECT_EQ(aclnnConvolutionBackward(nullptr, 0, nullptr, nullptr), 161001);
  Call c = two_dimensional();
  EXPECT_EQ(aclnnConvolutionBackward(nullptr, 0, reinterpret_cast<aclOpExecutor*>(&c), nullptr), 161002);
  c.null = "weight";
  EXPECT_EQ(c.plan(), 161001);
  EXPECT_EQ(c.execute(), 161001);  // what a failed phase one left
  c.null.clear();
  for (Argument* t : {&c.grad_output, &c.input, &c.weight, &c.grad_input, &c.grad_weight, &c.grad_bias}) {
    t->null_elements = true;
    ASSERT_EQ(c.plan(), ACL_SUCCESS);
    EXPECT_EQ(c.execute(), 161001);
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find("must have elements"), std::string::npos);
    t->null_elements = false;
  }
  ASSERT_EQ(c.plan(), ACL_SUCCESS);
  EXPECT_EQ(c.execute(reinterpret_cast<aclrtStream>(c.executor)), 161002);  // no stream
  EXPECT_EQ(c.execute(), ACL_SUCCESS);                                      // and still good
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
}

TEST(ConvolutionBackward, ElementsThatAreNotReadMayBeNull) {
  const std::vector<std::uint8_t> masks[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {1, 0, 1}};
  for (const auto& mask : masks) {
    Call whole = two_dimensional();
    whole.mask = mask;
    whole.run();
    Call c = two_dimensional();
    c.mask = mask;
    c.grad_output.null_elements = !mask[0] && !mask[1] && !mask[2];
    c.input.null_elements = !mask[1];
    c.weight.null_elements = !mask[0];
    c.run();
    EXPECT_EQ(c.grad_input.memory, whole.grad_input.memory);
    EXPECT_EQ(c.grad_weight.memory, whole.grad_weight.memory);
    EXPECT_EQ(c.grad_bias.memory, whole.grad_bias.memory);
  }
}

TEST(ConvolutionBackward, EmptyResultsHaveAnyStrides) {
  Call c = Call::of({{2, 2, 4, 4}}, {{2, 0, 4, 4}}, {{2, 0, 3, 3}}, {1, 1}, {1, 1}, {1, 1});
  c.grad_input.strides = {16, 16, 4, 1};  // PyTorch's
  c.grad_weight.strides = {0, 0, 0, 0};   // NumPy's
  c.run();
  expect_all(c.grad_bias, 0, "gradBias");
}

TEST(ConvolutionBackward, RefusesDestroyedAndForeignObjects) {
  Call c = two_dimensional();
  aclTensor* const tensor = c.input.make();
  const bool flags[3] = {};
  aclBoolArray* const mask = aclCreateBoolArray(flags, 3);
  aclIntArray* const ints = aclCreateIntArray(c.stride->data(), 2);
  std::uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto plan = [&](const aclTensor* dy, const aclIntArray* stride) {
    return aclnnConvolutionBackwardGetWorkspaceSize(dy, tensor, tensor, nullptr, stride, ints, ints, false, ints, 1,
                                                    mask, 0, nullptr, nullptr, nullptr, &size, &executor);
  };
  EXPECT_EQ(plan(reinterpret_cast<aclTensor*>(ints), ints), 161002);
  EXPECT_EQ(plan(tensor, reinterpret_cast<aclIntArray*>(tensor)), 161002);
  EXPECT_EQ(aclDestroyTensor(tensor), ACL_SUCCESS);
  EXPECT_EQ(plan(tensor, ints), 161002);
  EXPECT_EQ(aclDestroyTensor(tensor), 161002);
  EXPECT_EQ(aclDestroyTensor(nullptr), 161001);
  EXPECT_EQ(aclDestroyIntArray(nullptr), 161001);
  EXPECT_EQ(aclDestroyBoolArray(nullptr), 161001);
  EXPECT_EQ(aclDestroyAclOpExecutor(nullptr), 161001);
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(nullptr), 161001);
  EXPECT_EQ(aclDestroyIntArray(ints), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyBoolArray(mask), ACL_SUCCESS);

  EXPECT_EQ(aclCreateTensor(nullptr, 3, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr), nullptr);
  EXPECT_STREQ(aclGetRecentErrMsg(), "aclCreateTensor: viewDims must not be null");
  const std::int64_t negative[] = {2, -1, 3};
  EXPECT_EQ(aclCreateTensor(negative, 3, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr), nullptr);
  EXPECT_EQ(aclCreateIntArray(nullptr, 2), nullptr);
  EXPECT_EQ(aclCreateBoolArray(nullptr, 2), nullptr);
}

TEST(ConvolutionBackward, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        Call c = larger();
        c.run();
        expect_all(c.grad_bias, 288, "gradBias");
        EXPECT_EQ(aclDestroyTensor(reinterpret_cast<aclTensor*>(&c)), 161002);
        EXPECT_NE(std::string(aclGetRecentErrMsg()), "");
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace convbwd::test
