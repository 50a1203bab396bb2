// An operator for Ascend: host code that works out the tiling, and the kernel that computes the gradient of a 3-D
// convolution's input on each core. Built for a processor by convbwd::ascendc, it runs without a device; there, the
// kernel and the tiling are compiled by CANN as they are.
//
//   ascendc_conv_backprop_input   prints the tiling and compares the gradient with the definition
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernel_operator.h"
#include "lib/conv_backprop/conv3d_bp_input_api.h"
#include "tikicpulib.h"
#include "tiling/tiling_api.h"

// The kernel. Each core takes every GetBlockNum()-th share of the work: some rows of a plane of an image.
template <typename T>
class GradInput {
 public:
  __aicore__ inline void Init(GM_ADDR weight, GM_ADDR gradOutput, GM_ADDR gradInput,
                              const Conv3DBackpropInputTilingData* tiling) {
    t_ = &tiling->conv3DDxTiling;
    weightGm_.SetGlobalBuffer((__gm__ T*)weight);
    gradOutputGm_.SetGlobalBuffer((__gm__ T*)gradOutput);
    gradInputGm_.SetGlobalBuffer((__gm__ T*)gradInput);
    gradInput_.Init(t_);
  }

  __aicore__ inline void Process() {
    const uint64_t rowsOfShare = t_->singleCoreM / t_->wi, shares = (t_->hi + rowsOfShare - 1) / rowsOfShare;
    const uint64_t all = uint64_t(t_->batch) * t_->di * shares;
    for (uint64_t i = AscendC::GetBlockIdx(); i < all; i += AscendC::GetBlockNum())
      Share(i / (t_->di * shares), i / shares % t_->di, i % shares * rowsOfShare);
    gradInput_.End();
  }

 private:
  __aicore__ inline void Share(uint64_t image, uint32_t plane, uint64_t firstRow) {
    const uint64_t c0 = t_->c0, positions = uint64_t(t_->hi) * t_->wi, first = firstRow * t_->wi;
    const int32_t ho = int32_t(firstRow) - int32_t(t_->backpropPadUp);
    const uint64_t rowOfGradOutput = ho <= 0 ? 0 : (ho + t_->strideH - 1) / t_->strideH;
    const uint64_t m = first + t_->singleCoreM > positions ? positions - first : t_->singleCoreM;
    const uint64_t k = uint64_t(t_->dk) * t_->hk * t_->wk * t_->cout1 * c0;
    const uint64_t weightsOfBlock = uint64_t(t_->hk) * t_->wk * t_->cout1 * 256;
    for (uint64_t n = 0; n < t_->cin; n += t_->singleCoreCin) {
      gradInput_.SetSingleShape(m, k, n + t_->singleCoreCin > t_->cin ? t_->cin - n : t_->singleCoreCin);
      gradInput_.SetStartPosition(plane, ho);
      gradInput_.SetGradOutput(gradOutputGm_[(image * t_->dout * t_->cout1 * t_->ho + rowOfGradOutput) * t_->wo * c0]);
      gradInput_.SetWeight(weightGm_[n / c0 * weightsOfBlock]);
      const uint64_t output = ((image * t_->di * t_->cin1 + n / c0) * positions + first) * c0;
      while (gradInput_.Iterate()) gradInput_.GetTensorC(gradInputGm_[output]);
      gradInput_.ctx.isFirstIter_ = true;
    }
  }

  using Format = ConvCommonApi::ConvFormat;
  template <Format format, typename Element>
  using Type = ConvBackpropApi::ConvType<ConvCommonApi::TPosition::GM, format, Element>;

  ConvBackpropApi::Conv3DBackpropInput<Type<Format::FRACTAL_Z_3D, T>, Type<Format::ND, int32_t>,
                                       Type<Format::NDC1HWC0, T>, Type<Format::NDC1HWC0, T>>
      gradInput_;
  AscendC::GlobalTensor<T> weightGm_, gradOutputGm_, gradInputGm_;
  const TConv3DBackpropInputTiling* t_ = nullptr;
};

extern "C" __global__ __aicore__ void conv3d_backprop_input(GM_ADDR weight, GM_ADDR gradOutput, GM_ADDR gradInput,
                                                            GM_ADDR tiling) {
  REGISTER_TILING_DEFAULT(Conv3DBackpropInputTilingData);
  GET_TILING_DATA(tilingData, tiling);
  GradInput<half> op;
  op.Init(weight, gradOutput, gradInput, &tilingData);
  op.Process();
}

// One image of 3 planes, 20 channels made of 24: windows of 2x3x3 that move by 1, 2 and 2.
constexpr int kCin = 20, kDi = 3, kHi = 12, kWi = 10, kCout = 24, kDk = 2, kHk = 3, kWk = 3, kStride = 2, kPad = 1;
constexpr int kDo = kDi - kDk + 1, kHo = (kHi + 2 * kPad - kHk) / kStride + 1,
              kWo = (kWi + 2 * kPad - kWk) / kStride + 1;
constexpr int kC0 = 16, kCin1 = (kCin + kC0 - 1) / kC0, kCout1 = (kCout + kC0 - 1) / kC0;

// What stands at a place: small integers, whose sums are exact.
int gradOutputAt(int c, int d, int h, int w) { return (c * 7 + d * 5 + h * 3 + w) % 5 - 2; }
int weightAt(int n, int c, int d, int h, int w) { return (n * 3 + c * 5 + d * 2 + h * 7 + w) % 5 - 2; }

// Where it stands in NDC1HWC0 and in FRACTAL_Z_3D.
int blocked(int c1s, int height, int width, int c, int d, int h, int w) {
  return (((d * c1s + c / kC0) * height + h) * width + w) * kC0 + c % kC0;
}
int fractal(int n, int c, int d, int h, int w) {
  return (((d * kCin1 + c / kC0) * kHk + h) * kWk + w) * kCout1 * 256 + n * kC0 + c % kC0;
}

int definition(int c, int d, int h, int w) {
  int sum = 0;
  for (int n = 0; n < kCout; ++n)
    for (int kd = 0; kd < kDk; ++kd)
      for (int kh = 0; kh < kHk; ++kh)
        for (int kw = 0; kw < kWk; ++kw) {
          const int od = d - kd, oh = h + kPad - kh, ow = w + kPad - kw;
          if (od < 0 || od >= kDo || oh < 0 || oh % kStride || oh / kStride >= kHo || ow < 0 || ow % kStride ||
              ow / kStride >= kWo)
            continue;
          sum += gradOutputAt(n, od, oh / kStride, ow / kStride) * weightAt(n, c, kd, kh, kw);
        }
  return sum;
}

int main() {
  constexpr uint32_t kCores = 4;
  using namespace ConvCommonApi;
  ConvBackpropApi::Conv3DBpInputTiling host{platform_ascendc::PlatformAscendC(kCores)};
  host.SetWeightType(TPosition::GM, ConvFormat::FRACTAL_Z_3D, ConvDtype::FLOAT16);
  host.SetGradOutputType(TPosition::GM, ConvFormat::NDC1HWC0, ConvDtype::FLOAT16);
  host.SetInputType(TPosition::GM, ConvFormat::NDC1HWC0, ConvDtype::FLOAT16);
  host.SetWeightShape(kCout, kCin, kDk, kHk, kWk);
  host.SetInputShape(1, kCin, kDi, kHi, kWi);
  host.SetGradOutputShape(1, kCout, kDo, kHo, kWo);
  host.SetPadding(0, 0, kPad, kPad, kPad, kPad);
  host.SetStride(1, kStride, kStride);
  host.SetDilation(1, 1, 1);
  Conv3DBackpropInputTilingData tiling;
  if (host.GetTiling(tiling) != 0) {
    std::printf("%s\n", host.Message().c_str());
    return 1;
  }
  const TConv3DBackpropInputTiling& t = tiling.conv3DDxTiling;
  std::printf("tiles of %u positions x %u channels, %u products at a time; a core has %u positions\n", t.baseM, t.baseN,
              t.baseK, static_cast<unsigned>(t.singleCoreM));

  const size_t weights = kDk * kCin1 * kHk * kWk * kCout1 * 256;
  auto* const weight = static_cast<half*>(AscendC::GmAlloc(weights * sizeof(half)));
  auto* const gradOutput = static_cast<half*>(AscendC::GmAlloc(kDo * kCout1 * kHo * kWo * kC0 * sizeof(half)));
  auto* const gradInput = static_cast<half*>(AscendC::GmAlloc(kDi * kCin1 * kHi * kWi * kC0 * sizeof(half)));
  for (int n = 0; n < kCout; ++n) {
    for (int c = 0; c < kCin; ++c)
      for (int d = 0; d < kDk; ++d)
        for (int h = 0; h < kHk; ++h)
          for (int w = 0; w < kWk; ++w) weight[fractal(n, c, d, h, w)] = float(weightAt(n, c, d, h, w));
    for (int d = 0; d < kDo; ++d)
      for (int h = 0; h < kHo; ++h)
        for (int w = 0; w < kWo; ++w)
          gradOutput[blocked(kCout1, kHo, kWo, n, d, h, w)] = float(gradOutputAt(n, d, h, w));
  }

  ICPU_RUN_KF(conv3d_backprop_input, kCores, (uint8_t*)weight, (uint8_t*)gradOutput, (uint8_t*)gradInput,
              (uint8_t*)&tiling);

  int wrong = 0;
  for (int c = 0; c < kCin; ++c)
    for (int d = 0; d < kDi; ++d)
      for (int h = 0; h < kHi; ++h)
        for (int w = 0; w < kWi; ++w)
          wrong += float(gradInput[blocked(kCin1, kHi, kWi, c, d, h, w)]) != float(definition(c, d, h, w));
  std::printf("%d of %d values are wrong\n", wrong, kCin * kDi * kHi * kWi);
  AscendC::GmFree(weight);
  AscendC::GmFree(gradOutput);
  AscendC::GmFree(gradInput);
  return wrong == 0 ? 0 : 1;
}
