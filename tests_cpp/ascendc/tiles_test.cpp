// Conv3DBackpropInput of Ascend C: its tiles together are the gradient, and misuse is an error.
#include <cmath>
#include <limits>
#include <string>

#include "ascendc/kernel.h"
#include "ascendc/problem.h"
#include "tikicpulib.h"

namespace convbwd::test {
namespace {

using ConvCommonApi::ConvFormat;

template <class T>
AscendC::GlobalTensor<T> global(std::vector<T>& memory) {
  AscendC::GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(memory.data(), memory.size());
  return tensor;
}

Conv3DBackpropInputTilingData tiling_of(const InputProblem& p, ConvCommonApi::ConvDtype type) {
  ConvBackpropApi::Conv3DBpInputTiling host(*platform_ascendc::PlatformAscendCManager::GetInstance());
  state(host, p, type);
  Conv3DBackpropInputTilingData data;
  EXPECT_EQ(host.GetTiling(data), 0) << host.Message();
  TConv3DBackpropInputTiling& t = data.conv3DDxTiling;
  if (p.base_m != 0) t.baseM = p.base_m;
  if (p.base_n != 0) t.singleCoreCin = t.baseN = p.base_n, t.singleCoreCin1 = p.base_n / t.c0;
  if (p.single_m != 0) t.singleCoreM = p.single_m;
  return data;
}

// Runs all tiles; the result unpacked to NCDHW.
template <class T, class Out, ConvFormat format>
std::vector<Out> run(const InputProblem& p, InputData<T>& data, const Conv3DBackpropInputTilingData& tiling, Out before,
                     uint8_t atomic = 0, int* tiles = nullptr) {
  const bool packed = format == ConvFormat::NDC1HWC0;
  const Shape shape = packed ? packed_shape(MemoryFormat::ndc1hwc0, p.x_shape(), 1, InputData<T>::kC0) : p.x_shape();
  std::vector<Out> memory(static_cast<std::size_t>(elements(shape)), before), result(data.gradient.size());
  GradInputKernel<T, T, Out, format> kernel;
  kernel.Init(global(data.weight), global(data.grad_output), global(memory), &tiling);
  const int count = kernel.Process(atomic);
  if (tiles != nullptr) *tiles = count;
  if (!packed) return memory;
  convert_format(result.data(), MemoryFormat::ncdhw, memory.data(), MemoryFormat::ndc1hwc0, p.x_shape(), sizeof(Out), 1,
                 InputData<T>::kC0);
  return result;
}

template <class T>
void expect_the_gradient(const InputProblem& p) {
  InputData<T> data(p);
  Conv3DBackpropInputTilingData tiling = tiling_of(p, conv_dtype<T>());
  // What no tile writes would show, were it not allowed to stay as it was.
  const T before = tiling.conv3DDxTiling.initOutputFlag != 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  for (const uint32_t order : {0u, 1u}) {
    tiling.conv3DDxTiling.iterateOrder = order;
    const auto blocked = run<T, T, ConvFormat::NDC1HWC0>(p, data, tiling, before);
    const auto plain = run<T, T, ConvFormat::NCDHW>(p, data, tiling, before);
    const auto wide = run<T, float, ConvFormat::NCDHW>(p, data, tiling, before);
    for (std::size_t i = 0; i < data.gradient.size(); ++i) {
      const float expected = T(data.gradient[i]);  // rounded once
      ASSERT_EQ(static_cast<float>(blocked[i]), expected) << p << " at " << i;
      ASSERT_EQ(static_cast<float>(plain[i]), expected) << p << " at " << i;
      ASSERT_EQ(wide[i], data.gradient[i]) << p << " at " << i;
    }
  }
}

const InputProblem kProblems[] = {
    // Those of the specification, some with tiles smaller than the device's.
    {2, 5, {4, 6, 7}, 9, {2, 3, 2}, {1, 1, 1}, {1, 0, 1, 1, 0, 1}, {1, 1, 1}},
    {1, 18, {5, 9, 8}, 20, {3, 3, 3}, {2, 2, 2}, {1, 1, 1, 1, 1, 1}, {1, 1, 1}},
    {1, 33, {3, 8, 6}, 5, {1, 3, 2}, {1, 2, 1}, {0, 0, 2, 1, 1, 0}, {1, 2, 3}},
    {1, 40, {2, 8, 6}, 17, {1, 2, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}, 16, 16, 24},
    {1, 34, {3, 8, 6}, 17, {2, 3, 2}, {1, 3, 2}, {1, 0, 1, 2, 0, 1}, {1, 1, 1}, 16, 32, 12},
    // A stride that passes over taps; rows and planes that no window covers; tiles that begin and end within rows.
    {1, 3, {4, 11, 10}, 4, {1, 1, 1}, {1, 3, 4}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}, 7, 16, 50},
    {1, 17, {9, 7, 9}, 33, {2, 2, 3}, {2, 3, 2}, {0, 1, 1, 0, 2, 0}, {3, 2, 1}, 16, 16, 27},
    {2, 1, {1, 1, 100}, 1, {1, 1, 5}, {1, 1, 2}, {0, 0, 0, 0, 4, 2}, {1, 1, 3}, 48, 16, 100},
    {1, 16, {2, 5, 5}, 16, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}, 1, 16, 5},
};

class Tiles : public testing::TestWithParam<InputProblem> {};

TEST_P(Tiles, OfHalf) { expect_the_gradient<half>(GetParam()); }
TEST_P(Tiles, OfBfloat16) { expect_the_gradient<bfloat16_t>(GetParam()); }
TEST_P(Tiles, OfFloat) {
  InputProblem p = GetParam();
  p.base_n /= 2;  // blocks of 8 channels
  expect_the_gradient<float>(p);
}
INSTANTIATE_TEST_SUITE_P(Problems, Tiles, testing::ValuesIn(kProblems));

TEST(Tiles, AtomicAddsWhatIsRounded) {
  const InputProblem& p = kProblems[1];
  InputData<half> data(p);
  const auto tiling = tiling_of(p, ConvCommonApi::ConvDtype::FLOAT16);
  const auto blocked = run<half, half, ConvFormat::NDC1HWC0>(p, data, tiling, half(5.0f), 1);
  const auto plain = run<half, half, ConvFormat::NCDHW>(p, data, tiling, half(5.0f), 1);
  for (std::size_t i = 0; i < data.gradient.size(); ++i) {
    const float expected = half(half(data.gradient[i]) + 5.0f);
    ASSERT_EQ(static_cast<float>(blocked[i]), expected) << i;
    ASSERT_EQ(static_cast<float>(plain[i]), expected) << i;
  }
}

TEST(Tiles, OfAConv3DTransposeAreTheGradientOfItsSize) {
  const InputProblem p{1, 6, {5, 8, 7}, 7, {3, 3, 2}, {2, 2, 2}, {1, 1, 1, 0, 0, 1}, {1, 1, 1}};
  ConvBackpropApi::Conv3DBpInputTiling host;
  EXPECT_TRUE(host.SetWeightShape(p.cout, p.cin, 3, 3, 2));
  EXPECT_TRUE(host.SetGradOutputShape(p.batch, p.cout, p.output(0), p.output(1), p.output(2)));
  host.SetStride(2, 2, 2);
  host.SetPadding(1, 1, 1, 0, 0, 1);
  std::int64_t extra[3];
  for (std::size_t a = 0; a < 3; ++a)
    extra[a] = p.input[a] - ((p.output(a) - 1) * p.stride[a] - p.pads[2 * a] - p.pads[2 * a + 1] + p.kernel[a]);
  EXPECT_TRUE(host.SetOutputPadding(extra[0], extra[1], extra[2]));
  Conv3DBackpropInputTilingData tiling;
  ASSERT_EQ(host.GetTiling(tiling), 0) << host.Message();
  EXPECT_EQ(tiling.conv3DDxTiling.di, 5u);
  EXPECT_EQ(tiling.conv3DDxTiling.hi, 8u);
  EXPECT_EQ(tiling.conv3DDxTiling.wi, 7u);
  InputData<half> data(p);
  const auto result = run<half, half, ConvFormat::NCDHW>(p, data, tiling, half(0.0f));
  for (std::size_t i = 0; i < result.size(); ++i) ASSERT_EQ(static_cast<float>(result[i]), data.gradient[i]) << i;
}

TEST(Tiles, WithHf32RoundOperands) {
  const InputProblem p{1, 1, {1, 1, 1}, 1, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}};
  InputData<float> data(p);
  data.grad_output[0] = 1 + 0x1p-20f;
  data.weight[0] = 1 + 0x1p-11f;
  auto tiling = tiling_of(p, ConvCommonApi::ConvDtype::FLOAT32);
  EXPECT_GT((run<float, float, ConvFormat::NCDHW>(p, data, tiling, 0.0f)[0]), 1 + 0x1p-11f);
  tiling.conv3DDxTiling.hf32Flag = 1;
  EXPECT_EQ((run<float, float, ConvFormat::NCDHW>(p, data, tiling, 0.0f)[0]), 1 + 0x1p-11f);
}

// A walk over one SingleShape; what is set may be set again.
struct Walk {
  Walk(const InputProblem& p, uint64_t m, uint64_t k)
      : data(p), tiling(tiling_of(p, ConvCommonApi::ConvDtype::FLOAT16)) {
    op.Init(&tiling.conv3DDxTiling);
    op.SetSingleShape(m, k, 16);
    op.SetStartPosition(0, 0);
    op.SetGradOutput(global(data.grad_output));
    op.SetWeight(global(data.weight));
  }
  InputData<half> data;
  Conv3DBackpropInputTilingData tiling;
  GradInputKernel<half, half, half> kernel;
  decltype(kernel.gradInput_)& op = kernel.gradInput_;
};

// Rows of gradOutput before the one that SetGradOutput is given need not be there.
TEST(Tiles, ReadFromTheGivenRowOn) {
  const InputProblem p{1, 16, {1, 11, 10}, 4, {1, 1, 1}, {1, 3, 4}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}};
  Walk walk(p, 60, 16);
  auto& op = walk.op;
  const auto& data = walk.data;
  op.SetStartPosition(0, 5);  // rows 5 to 10, of which 6 and 9 have windows: rows 2 and 3 of gradOutput
  std::vector<half> rows(data.grad_output.begin() + 2 * 3 * 16, data.grad_output.end()), out(160 * 11, half(0.0f));
  op.SetGradOutput(global(rows));
  ASSERT_TRUE(op.Iterate());
  op.GetTensorC(global(out)[50]);
  for (std::size_t c = 0; c < 16; ++c)
    for (std::size_t i = 50; i < 110; ++i)
      ASSERT_EQ(static_cast<float>(out[c * 110 + i]), data.gradient[c * 110 + i]) << c << ' ' << i;
}

// The room of a block for channels that the input does not have is another image's in NCDHW.
TEST(Tiles, LeaveWhatIsNoChannelAlone) {
  const InputProblem p{1, 5, {1, 4, 6}, 4, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}};
  Walk walk(p, 24, 16);
  auto& op = walk.op;
  const auto& data = walk.data;
  std::vector<half> out(16 * 24, half(7.0f));
  while (op.Iterate()) op.GetTensorC(global(out));
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(static_cast<float>(out[i]), i < 5 * 24 ? data.gradient[i] : 7.0f) << i;
}

// A walk has the start that was set before its first tile.
TEST(Tiles, StayInTheirPlane) {
  const InputProblem p{1, 16, {2, 4, 6}, 16, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}, 12, 16, 24};
  Walk walk(p, 24, 16);
  auto& op = walk.op;
  const auto& data = walk.data;
  std::vector<half> out(data.gradient.size(), half(0.0f));
  for (int plane = 0; plane < 2; ++plane) {
    for (int tile = 0; tile < 2; ++tile) {
      ASSERT_TRUE(op.Iterate());
      if (plane == 0) op.SetStartPosition(1, 0);  // for the next walk
      op.GetTensorC(global(out));
    }
    ASSERT_FALSE(op.Iterate());
    op.ctx.isFirstIter_ = true;
  }
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(static_cast<float>(out[i]), data.gradient[i]) << i;
}

TEST(Tiles, HaveBaseMTimesBaseN) {
  const InputProblem p{1, 40, {1, 6, 6}, 3, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}, 10, 16, 18};
  InputData<half> data(p);
  int tiles = 0;
  run<half, half, ConvFormat::NCDHW>(p, data, tiling_of(p, ConvCommonApi::ConvDtype::FLOAT16), half(0.0f), 0, &tiles);
  EXPECT_EQ(tiles, 2 * 2 * 3);  // halves of the plane, ceil(18 / 10) tiles of each, ceil(40 / 16) blocks of channels
}

// A core takes the images whose number is its own, more by the number of cores.
void __global__ __aicore__ every_core(GM_ADDR places, GM_ADDR tiling) {
  REGISTER_TILING_DEFAULT(Conv3DBackpropInputTilingData);
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_1);
  GET_TILING_DATA(data, tiling);
  if ASCEND_IS_AIV
    return;
  if (!TILING_KEY_IS(10)) return;
  for (int64_t i = AscendC::GetBlockIdx(); i < data.conv3DDxTiling.batch; i += AscendC::GetBlockNum())
    places[i] += static_cast<uint8_t>(1 + AscendC::GetBlockIdx());
}

TEST(Kernel, RunsOnEachCore) {
  Conv3DBackpropInputTilingData data;
  data.conv3DDxTiling.batch = 7;
  auto* const places = static_cast<uint8_t*>(AscendC::GmAlloc(7));
  AscendC::SetKernelMode(KernelMode::AIC_MODE);
  ICPU_RUN_KF(every_core, 3, places, reinterpret_cast<uint8_t*>(&data));
  EXPECT_EQ(places[0], 0);  // not the variant that was chosen
  ICPU_SET_TILING_KEY(10);
  ICPU_RUN_KF(every_core, 3, places, reinterpret_cast<uint8_t*>(&data));
  ICPU_SET_TILING_KEY(0);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(places[i], 1 + i % 3);
  EXPECT_EQ(AscendC::GetBlockIdx(), 0);
  EXPECT_EQ(AscendC::GetBlockNum(), 1);
  AscendC::GmFree(places);
}

// The first core clears what all of them add to; then each sees what all have added.
void __global__ __aicore__ synchronised(GM_ADDR sums, GM_ADDR seen, GM_ADDR workspace) {
  AscendC::SetSysWorkspace(workspace);
  AscendC::GlobalTensor<uint8_t> output;
  output.SetGlobalBuffer(sums, 2);
  const auto core = static_cast<uint8_t>(AscendC::GetBlockIdx());
  if (core == 3) return;  // one that has nothing to do
  if (core == 2) AscendC::InitOutput(output, 2);
  AscendC::SyncAll();
  sums[0] = static_cast<uint8_t>(sums[0] + core + 1);
  AscendC::SyncAll();
  seen[core] = sums[0];
  AscendC::GetUserWorkspace(workspace)[core] = static_cast<uint8_t>(AscendC::TilingKey());
  if (core == 4) throw std::runtime_error("of the fifth");
}

TEST(Kernel, CoresWaitForEachOther) {
  uint8_t sums[2] = {200, 200}, seen[5] = {}, workspace[5] = {};
  ICPU_SET_TILING_KEY(7);
  try {
    ICPU_RUN_KF(synchronised, 5, sums, seen, workspace);
    FAIL() << "the failure of a core was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "of the fifth");
  }
  ICPU_SET_TILING_KEY(0);
  EXPECT_EQ(sums[0], 1 + 2 + 3 + 5);
  EXPECT_EQ(sums[1], 0);
  for (const int core : {0, 1, 2, 4}) {
    EXPECT_EQ(seen[core], 11) << core;
    EXPECT_EQ(workspace[core], 7) << core;
  }
  EXPECT_EQ(AscendC::GetBlockNum(), 1);
}

void __global__ __aicore__ failing(GM_ADDR begun) {
  ++begun[AscendC::GetBlockIdx()];
  if (AscendC::GetBlockIdx() == 1) throw std::runtime_error("of the second");
  if (begun[3] != 0) AscendC::SyncAll();
  ++begun[AscendC::GetBlockIdx()];
}

TEST(Kernel, CoresDoNotBeginAfterAFailure) {
  for (const bool waits : {false, true}) {  // the first core, for the others
    uint8_t begun[4] = {0, 0, 0, waits};
    EXPECT_THROW(ICPU_RUN_KF(failing, 3, begun), std::runtime_error);
    EXPECT_EQ(begun[0], 2);
    EXPECT_EQ(begun[1], 1);
    EXPECT_EQ(begun[2], 0);
  }
  ICPU_RUN_KF(failing, -1, nullptr);
}

TEST(Kernel, OutputsAreClearedWithinTheirMemory) {
  half values[3] = {half(1.0f), half(2.0f), half(3.0f)};
  AscendC::GlobalTensor<half> output;
  output.SetGlobalBuffer(values, 2);
  AscendC::InitOutput<half>(output, 2, 0);
  EXPECT_EQ(static_cast<float>(values[1]), 0);
  EXPECT_EQ(static_cast<float>(values[2]), 3);
  EXPECT_THROW(AscendC::InitOutput<half>(output, 3), std::runtime_error);
  AscendC::SyncAll();  // of one core
}

TEST(Kernel, NumbersOf16BitsAreRoundedOnce) {
  EXPECT_EQ(half(1 + 0x1p-11f).bits, 0x3c00);  // ties to even
  EXPECT_EQ(half(1 + 0x1.8p-10f).bits, 0x3c02);
  EXPECT_EQ(half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(bfloat16_t(1 + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(static_cast<float>(bfloat16_t(3.0f)), 3.0f);
  EXPECT_EQ(static_cast<float>(half(-0x1p-24f)), -0x1p-24f);
}

// One plane of 4x6 positions and 20 channels, computed from 5.
class Misuse : public testing::Test {
 protected:
  using Kernel = GradInputKernel<half, half, half, ConvFormat::NDC1HWC0>;

  template <class F>
  static void refused(F&& call, const std::string& text) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      return;
    }
    ADD_FAILURE() << "not refused: " << text;
  }
  void init() { op_.Init(&tiling_.conv3DDxTiling); }
  void set() {
    op_.SetSingleShape(24, 9 * 16, 20);
    op_.SetStartPosition(0, -1);
    op_.SetGradOutput(global(data_.grad_output));
    op_.SetWeight(global(data_.weight));
  }

  const InputProblem p_{1, 20, {1, 4, 6}, 5, {1, 3, 3}, {1, 1, 1}, {0, 0, 1, 1, 1, 1}, {1, 1, 1}};
  InputData<half> data_{p_};
  Conv3DBackpropInputTilingData tiling_ = tiling_of(p_, ConvCommonApi::ConvDtype::FLOAT16);
  std::vector<half> out_ = std::vector<half>(24 * 32, half(0.0f));
  ConvBackpropApi::Conv3DBackpropInput<Kernel::weightDxType, Kernel::inputSizeDxType, Kernel::gradOutputDxType,
                                       Kernel::gradInputDxType>
      op_;
};

TEST_F(Misuse, OfTheOrderOfCalls) {
  refused([&] { op_.SetSingleShape(24, 9 * 16, 20); }, "SetSingleShape: Init must come first");
  refused([&] { op_.SetStartPosition(0, -1); }, "Init must come first");
  refused([&] { op_.SetGradOutput(global(data_.grad_output)); }, "Init must come first");
  refused([&] { op_.SetWeight(global(data_.weight)); }, "Init must come first");
  refused([&] { op_.Iterate(); }, "Iterate: Init must come first");
  refused([&] { op_.GetTensorC(global(out_)); }, "GetTensorC: Init must come first");
  op_.End();
  init();
  refused([&] { init(); }, "Init: must be called once");
  refused([&] { op_.GetTensorC(global(out_)); }, "Iterate must have returned true before");
  refused([&] { op_.Iterate(); }, "SetSingleShape must come first");
  op_.SetSingleShape(24, 9 * 16, 20);
  refused([&] { op_.Iterate(); }, "SetStartPosition must come first");
  op_.SetStartPosition(0, -1);
  refused([&] { op_.Iterate(); }, "SetGradOutput must come first");
  op_.SetGradOutput(global(data_.grad_output));
  refused([&] { op_.Iterate(); }, "SetWeight must come first");
  op_.SetWeight(global(data_.weight));
  EXPECT_TRUE(op_.Iterate());
  op_.GetTensorC(global(out_));
  EXPECT_FALSE(op_.Iterate());
  EXPECT_FALSE(op_.Iterate());
  refused([&] { op_.GetTensorC(global(out_)); }, "Iterate must have returned true before");
  op_.ctx.isFirstIter_ = true;
  EXPECT_TRUE(op_.Iterate());
  op_.End();
  op_.End();
  refused([&] { op_.Iterate(); }, "Iterate: Init must come first");
  init();
  set();
  EXPECT_TRUE(op_.Iterate());
}

TEST_F(Misuse, OfShapesThatAreNotTheTilings) {
  init();
  refused([&] { op_.SetSingleShape(0, 9 * 16, 20); }, "M must be from 1");
  refused([&] { op_.SetSingleShape(25, 9 * 16, 20); }, "positions of a plane = 24, got 25");
  refused([&] { op_.SetSingleShape(24, 9 * 16 + 1, 20); }, "K must be Dk * Hk * Wk * C0 = 144 times 1 to 1");
  refused([&] { op_.SetSingleShape(24, 0, 20); }, "K must be");
  refused([&] { op_.SetSingleShape(24, 2 * 9 * 16, 20); }, "K must be");
  refused([&] { op_.SetSingleShape(24, 9 * 16, 0); }, "N must be from 1");
  refused([&] { op_.SetSingleShape(24, 9 * 16, 33); }, "whole blocks = 32, got 33");
  refused([&] { op_.SetStartPosition(1, -1); }, "the plane must be below di = 1, got 1");
  refused([&] { op_.SetStartPosition(0, -2); }, "from 0 to 3, got -1");
  refused([&] { op_.SetStartPosition(0, 3); }, "from 0 to 3, got 4");
  set();
  op_.SetStartPosition(0, 0);  // row 1
  refused([&] { op_.Iterate(); }, "from row 1 on must end in the plane of 24");
}

TEST_F(Misuse, OfMemory) {
  init();
  set();
  const AscendC::GlobalTensor<half> null;
  refused([&] { op_.SetGradOutput(null); }, "gradOutput must not be null");
  refused([&] { op_.SetWeight(null[8]); }, "the weight must not be null");
  op_.SetGradOutput(global(data_.grad_output)[1]);
  refused([&] { op_.Iterate(); }, "gradOutput must reach at least");
  op_.SetGradOutput(global(data_.grad_output));
  op_.SetWeight(global(data_.weight)[data_.weight.size() + 5]);
  refused([&] { op_.Iterate(); }, "the weight must reach at least");
  op_.SetWeight(global(data_.weight));
  ASSERT_TRUE(op_.Iterate());  // the tile that could not be computed
  refused([&] { op_.GetTensorC(null); }, "the output must not be null");
  refused([&] { op_.GetTensorC(global(out_)[1]); }, "the output must reach at least");
  refused([&] { op_.GetTensorC(global(out_), 2); }, "enAtomic must be 0 or 1, got 2");
  refused([&] { op_.GetTensorC(global(out_), 0, true); }, "enSequentialWrite is reserved");
  for (const half& v : out_) ASSERT_EQ(static_cast<float>(v), 0.0f);
  refused([&] { op_.Iterate(true); }, "enPartialSum is reserved");
}

TEST_F(Misuse, LeavesTheTileBefore) {
  tiling_.conv3DDxTiling.baseM = 12;
  init();
  set();
  ASSERT_TRUE(op_.Iterate());
  op_.GetTensorC(global(out_));
  auto again = std::vector<half>(out_.size(), half(0.0f));
  op_.SetWeight(global(data_.weight)[data_.weight.size() + 5]);
  refused([&] { op_.Iterate(); }, "the weight must reach at least");
  op_.GetTensorC(global(again));
  for (std::size_t i = 0; i < out_.size(); ++i) ASSERT_EQ(static_cast<float>(again[i]), static_cast<float>(out_[i]));
  op_.SetWeight(global(data_.weight));
  EXPECT_TRUE(op_.Iterate());  // the second
  EXPECT_FALSE(op_.Iterate());
}

TEST_F(Misuse, OfTheTiling) {
  refused([&] { op_.Init(nullptr); }, "the tiling must not be null");
  const TConv3DBackpropInputTiling good = tiling_.conv3DDxTiling;
  const auto with = [&](auto TConv3DBackpropInputTiling::* field, auto value, const char* text) {
    TConv3DBackpropInputTiling t = good;
    t.*field = value;
    refused([&] { op_.Init(&t); }, text);
  };
  using T = TConv3DBackpropInputTiling;
  with(&T::wi, 0u, "got wi = 0");
  with(&T::c0, 8u, "c0 = 16, got c0 = 8");
  with(&T::group, 2u, "one group, got 2");
  with(&T::iterateOrder, 2u, "iterateOrder must be 0 or 1");
  with(&T::baseN, 24u, "whole blocks of c0");
  with(&T::ho, 5u, "must belong together along the height");
  with(&T::backpropPadLeft, 0u, "must belong together along the width");
  with(&T::dilationD, 0u, "got dilationD = 0");
  TConv3DBackpropInputTiling large = good;
  large.cin = large.cout = 0xfffffff0u;
  large.cin1 = large.cout1 = 0x0fffffffu;
  large.batch = 0xffffffffu;
  refused([&] { op_.Init(&large); }, "less than 2**60 elements");
}

}  // namespace
}  // namespace convbwd::test
