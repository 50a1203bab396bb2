// The host tiling of Conv3DBackpropInput. Its numbers on random problems are compared in ../../tests_py/test_tiles.py.
#include <cstring>
#include <string>

#include "ascendc/problem.h"
#include "lib/conv_backprop/conv3d_bp_input_tiling.h"

namespace convbwd::test {
namespace {

using AscendC::tiling::Conv3DBackpropInputTilingData;
using ConvBackpropApi::Conv3DBpInputTiling;
using namespace ConvCommonApi;

struct Published {
  InputProblem problem;
  std::uint32_t base_m, base_k, base_n, single_m, step_ka, step_kb, al1, bl1;
};

// Layers of networks with the numbers that CANN's own tests expect of them.
TEST(Tiling, IsThatOfCann) {
  const Published cases[] = {
      {{1, 512, {5, 32, 32}, 512, {1, 1, 1}, {1, 1, 1}, {}, {1, 1, 1}}, 256, 64, 128, 1024, 4, 8, 2, 1},
      {{16, 64, {22, 130, 130}, 3, {3, 3, 3}, {1, 1, 1}, {}, {1, 1, 1}}, 336, 48, 64, 16900, 3, 3, 2, 2},
      {{16, 64, {20, 128, 128}, 64, {1, 1, 1}, {1, 1, 1}, {}, {1, 1, 1}}, 256, 64, 64, 16384, 1, 1, 2, 1},
      {{1, 128, {11, 128, 128}, 256, {3, 3, 3}, {1, 1, 1}, {0, 0, 1, 1, 1, 1}, {1, 1, 1}},
       256,
       48,
       128,
       16384,
       21,
       3,
       2,
       2},
  };
  for (const Published& c : cases) {
    Conv3DBpInputTiling host;
    state(host, c.problem, ConvDtype::FLOAT16);
    optiling::Conv3DBackpropInputTilingData data;
    ASSERT_EQ(host.GetTiling(data), 0) << c.problem << host.Message();
    const auto& t = data.conv3DDxTiling;
    EXPECT_EQ(t.get_baseM(), c.base_m) << c.problem;
    EXPECT_EQ(t.get_baseK(), c.base_k) << c.problem;
    EXPECT_EQ(t.get_baseN(), c.base_n) << c.problem;
    EXPECT_EQ(t.get_singleCoreM(), c.single_m) << c.problem;
    EXPECT_EQ(t.get_stepKa(), c.step_ka) << c.problem;
    EXPECT_EQ(t.get_stepKb(), c.step_kb) << c.problem;
    EXPECT_EQ(t.get_al1Pbuffer(), c.al1) << c.problem;
    EXPECT_EQ(t.get_bl1Pbuffer(), c.bl1) << c.problem;
    EXPECT_EQ(t.get_iterateOrder(), 1u);
  }
}

const InputProblem kSmall{2, 5, {4, 6, 7}, 9, {2, 3, 2}, {1, 1, 1}, {1, 0, 1, 1, 0, 1}, {1, 1, 1}};

TEST(Tiling, IsSavedForTheKernel) {
  Conv3DBpInputTiling host;
  state(host, kSmall, ConvDtype::BF16);
  optiling::Conv3DBackpropInputTilingData data;
  ASSERT_EQ(host.GetTiling(data), 0);
  data.conv3DDxTiling.set_reserved(7);
  AscendC::tiling::Conv3DBackpropInputTilingData read;
  std::vector<char> buffer(data.GetDataSize(), 1), small(data.GetDataSize() - 1, 1);
  data.SaveToBuffer(buffer.data(), buffer.size());
  std::memcpy(&read, buffer.data(), buffer.size());
  EXPECT_EQ(read.conv3DDxTiling.hi, 6u);
  EXPECT_EQ(read.conv3DDxTiling.reserved, 7u);
  EXPECT_EQ(read.conv3DDxTiling.singleCoreCin, data.conv3DDxTiling.get_singleCoreCin());
  data.SaveToBuffer(small.data(), small.size());
  EXPECT_EQ(small, std::vector<char>(small.size(), 1));
}

TEST(Tiling, OfMoreCoresHasSmallerShares) {
  const InputProblem p{1, 16, {1, 256, 16}, 16, {1, 1, 1}, {1, 1, 1}, {}, {1, 1, 1}};
  std::uint64_t m[2];
  for (std::uint32_t i = 0; i < 2; ++i) {
    Conv3DBpInputTiling host(platform_ascendc::PlatformAscendC(i == 0 ? 1 : 20));
    state(host, p, ConvDtype::FLOAT16);
    Conv3DBackpropInputTilingData data;
    ASSERT_EQ(host.GetTiling(data), 0);
    m[i] = data.conv3DDxTiling.singleCoreM;
  }
  EXPECT_EQ(m[0], 4096u);
  EXPECT_LT(m[1], m[0]);
}

TEST(Tiling, OfSmallerBuffersHasSmallerTiles) {
  using platform_ascendc::CoreMemType;
  const auto* const device = platform_ascendc::PlatformAscendCManager::GetInstance("Ascend910B1");
  ConvBackpropApi::PlatformInfo platform;
  platform.socVersion = device->GetSocVersion();
  device->GetCoreMemSize(CoreMemType::L1, platform.l1Size);
  device->GetCoreMemSize(CoreMemType::L0_C, platform.l0CSize);
  device->GetCoreMemSize(CoreMemType::L0_A, platform.l0ASize);
  EXPECT_EQ(platform.l1Size, 524288u);
  EXPECT_EQ(platform.l0CSize, 131072u);
  platform.l0ASize = platform.l0BSize = platform.l0ASize / 4;
  Conv3DBpInputTiling large, small(platform), none{ConvBackpropApi::PlatformInfo()};
  Conv3DBackpropInputTilingData data[2];
  state(large, kSmall, ConvDtype::FLOAT16);
  state(small, kSmall, ConvDtype::FLOAT16);
  ASSERT_EQ(large.GetTiling(data[0]), 0);
  ASSERT_EQ(small.GetTiling(data[1]), 0);
  EXPECT_LT(data[1].conv3DDxTiling.baseK, data[0].conv3DDxTiling.baseK);
  state(none, kSmall, ConvDtype::FLOAT16);
  EXPECT_EQ(none.GetTiling(data[1]), -1);
}

TEST(Tiling, OfLargerBuffersIsThere) {
  ConvBackpropApi::PlatformInfo platform;
  platform.l1Size = 524288, platform.l0CSize = 131072, platform.l0ASize = platform.l0BSize = std::uint64_t{8} << 20;
  Conv3DBpInputTiling host(platform);
  state(host, {1, 16, {4, 6, 6}, 8192, {2, 3, 3}, {1, 1, 1}, {}, {1, 1, 1}}, ConvDtype::FLOAT16);
  Conv3DBackpropInputTilingData data;
  ASSERT_EQ(host.GetTiling(data), 0) << host.Message();
  EXPECT_GT(data.conv3DDxTiling.stepKa, 0u);
}

TEST(Tiling, ShapesMustBelongTogether) {
  Conv3DBpInputTiling host;
  EXPECT_TRUE(host.SetGradOutputShape(2, 9, 4, 6, 7));
  EXPECT_TRUE(host.SetOutputPadding(0, 0, 0));
  EXPECT_FALSE(host.SetInputShape(3, 5, 4, 6, 7));
  EXPECT_FALSE(host.SetWeightShape(8, 5, 2, 3, 2));
  EXPECT_TRUE(host.SetInputShape(2, 5, 4, 6, 7));
  EXPECT_FALSE(host.SetWeightShape(9, 6, 2, 3, 2));
  EXPECT_TRUE(host.SetWeightShape(9, 5, 2, 3, 2));
  EXPECT_FALSE(host.SetGradOutputShape(2, 10, 4, 6, 7));
  EXPECT_FALSE(host.SetGradOutputShape(1, 9, 4, 6, 7));
  EXPECT_FALSE(host.SetInputShape(2, 6, 4, 6, 7));
  EXPECT_FALSE(host.SetOutputPadding(1, 0, 0));
}

// Each refusal of the device, with its message; nothing is filled in.
TEST(Tiling, RefusesWhatDevicesRefuse) {
  const auto refused = [](auto&& change, const std::string& text) {
    Conv3DBpInputTiling host;
    state(host, kSmall, ConvDtype::FLOAT16);
    change(host);
    Conv3DBackpropInputTilingData data;
    data.conv3DDxTiling.baseM = 77;
    EXPECT_EQ(host.GetTiling(data), -1) << text;
    EXPECT_EQ(data.conv3DDxTiling.baseM, 77u);
    EXPECT_NE(host.Message().find(text), std::string::npos) << host.Message();
  };
  using Host = Conv3DBpInputTiling;
  refused([](Host& h) { h.SetGroup(2); }, "group must be 1, got 2");
  refused([](Host& h) { h.SetStride(0, 1, 1); }, "the stride of the depth must be from 1 to 255, got 0");
  refused([](Host& h) { h.SetStride(1, 64, 1); }, "the stride of the height must be from 1 to 63, got 64");
  refused([](Host& h) { h.SetDilation(1, 1, 0); }, "the dilation of the width");
  refused([](Host& h) { h.SetPadding(1, 0, -1, 1, 0, 1); }, "the padding of the height must be from 0 to 2, got -1");
  refused([](Host& h) { h.SetPadding(1, 0, 3, 1, 0, 1); }, "the padding of the height must be from 0 to 2, got 3");
  refused([](Host& h) { h.SetWeightShape(9, 5, 2, 3, 0); }, "the kernel of the width");
  refused([](Host& h) { h.SetWeightShape(9, 5, 2, 3, 3); }, "gradOutput of the width must be 6, got 7");
  refused([](Host& h) { h.SetInputShape(2, 5, 4, 0, 7); }, "the input of the height");
  refused([](Host& h) { h.SetInputShape(2, 5, 4, 1 << 20, 1 << 20); }, "gradOutput of the height must be");
  refused([](Host& h) { h.SetInputType(TPosition::GM, ConvFormat::ND, ConvDtype::FLOAT16); }, "FRACTAL_Z_3D");
  refused([](Host& h) { h.SetWeightType(TPosition::GM, ConvFormat::FRACTAL_Z_3D, ConvDtype::BF16); }, "have one type");
  refused([](Host& h) { h.SetGradOutputShape(2, 9, 4, 6, 0); }, "gradOutput of the width must be from 1");

  const auto alone = [](const InputProblem& p, const std::string& text) {
    Conv3DBpInputTiling host;
    state(host, p, ConvDtype::FLOAT16);
    Conv3DBackpropInputTilingData data;
    EXPECT_EQ(host.GetTiling(data), -1) << text;
    EXPECT_NE(host.Message().find(text), std::string::npos) << host.Message();
  };
  alone({1, 1, {4, 4, 4}, 1, {1, 1, 1}, {2, 1, 1}, {}, {1, 1, 1}},
        "the stride of the depth must be at most the kernel");
  alone({1, 1, {1, 600, 4}, 1, {1, 2, 1}, {1, 1, 1}, {}, {1, 300, 1}},
        "(kernel - 1) * dilation - padding of the height");
  alone({1, 1, {1, 70000, 70000}, 1, {1, 1, 1}, {1, 1, 1}, {}, {1, 1, 1}}, "less than 2**32 positions");
  const int most = std::numeric_limits<int>::max();
  alone({most, most, {1, 1, 1}, 1, {1, 1, 1}, {1, 1, 1}, {}, {1, 1, 1}},
        "the input must have less than 2**60 elements");
  alone({1, 1, {1, 4000, 4000}, 1, {1, 255, 255}, {1, 63, 63}, {}, {1, 1, 1}}, "no tile fits in the buffer L1");

  Conv3DBpInputTiling transpose;
  EXPECT_TRUE(transpose.SetWeightShape(1, 1, 1, 2, 2));
  EXPECT_TRUE(transpose.SetGradOutputShape(1, 1, 1, 4, 4));
  transpose.SetStride(1, 2, 2);
  EXPECT_TRUE(transpose.SetOutputPadding(0, 2, 0));
  Conv3DBackpropInputTilingData data;
  EXPECT_EQ(transpose.GetTiling(data), -1);
  EXPECT_NE(transpose.Message().find("the output padding of the height must be from 0 to 1"), std::string::npos);
}

// CANN's page as it stands, with the arguments that the header demands.
TEST(Tiling, IsMadeAsThePageSays) {
  const int64_t orgN = 1, orgCi = 16, orgDi = 2, orgHi = 8, orgWi = 8, orgCo = 16, orgKd = 1, orgKh = 3, orgKw = 3;
  optiling::Conv3DBackpropInputTilingData tilingData;
  auto ascendcPlatform = platform_ascendc::PlatformAscendCManager::GetInstance();
  ConvBackpropApi::Conv3DBpInputTiling conv3DBpDxTiling(*ascendcPlatform);
  conv3DBpDxTiling.SetWeightType(Convolution3DBackprop::TPosition::GM, Convolution3DBackprop::ConvFormat::FRACTAL_Z_3D,
                                 Convolution3DBackprop::ConvDtype::FLOAT16);
  conv3DBpDxTiling.SetGradOutputType(Convolution3DBackprop::TPosition::GM, Convolution3DBackprop::ConvFormat::NDC1HWC0,
                                     Convolution3DBackprop::ConvDtype::FLOAT16);
  conv3DBpDxTiling.SetInputType(Convolution3DBackprop::TPosition::CO1, Convolution3DBackprop::ConvFormat::NDC1HWC0,
                                Convolution3DBackprop::ConvDtype::FLOAT16);
  conv3DBpDxTiling.SetInputShape(orgN, orgCi, orgDi, orgHi, orgWi);
  conv3DBpDxTiling.SetGradOutputShape(orgN, orgCo, orgDi, orgHi, orgWi);
  conv3DBpDxTiling.SetWeightShape(orgCo, orgCi, orgKd, orgKh, orgKw);
  conv3DBpDxTiling.SetPadding(0, 0, 1, 1, 1, 1);
  conv3DBpDxTiling.SetStride(1, 1, 1);
  conv3DBpDxTiling.SetDilation(1, 1, 1);
  int ret = conv3DBpDxTiling.GetTiling(tilingData);
  EXPECT_EQ(ret, 0);
  EXPECT_EQ(tilingData.conv3DDxTiling.get_backpropPadUp(), 1u);
}

}  // namespace
}  // namespace convbwd::test
