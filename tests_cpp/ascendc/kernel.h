// A kernel as CANN's page on Conv3DBackpropInput writes it, line by line, and what a kernel has around those lines: the
// walk over images, planes, rows and channels.
#pragma once

#include <algorithm>

#include "kernel_operator.h"
#include "lib/conv_backprop/conv3d_bp_input_api.h"

namespace convbwd::test {

template <typename weightType, typename gradOutputType, typename gradInputType,
          ConvCommonApi::ConvFormat gradInputFormat = ConvCommonApi::ConvFormat::NCDHW>
class GradInputKernel {
 public:
  using weightDxType =
      ConvBackpropApi::ConvType<ConvCommonApi::TPosition::GM, ConvCommonApi::ConvFormat::FRACTAL_Z_3D, weightType>;
  using inputSizeDxType =
      ConvBackpropApi::ConvType<ConvCommonApi::TPosition::GM, ConvCommonApi::ConvFormat::ND, int32_t>;
  using gradOutputDxType =
      ConvBackpropApi::ConvType<ConvCommonApi::TPosition::GM, ConvCommonApi::ConvFormat::NDC1HWC0, gradOutputType>;
  using gradInputDxType = ConvBackpropApi::ConvType<ConvCommonApi::TPosition::GM, gradInputFormat, gradInputType>;
  ConvBackpropApi::Conv3DBackpropInput<weightDxType, inputSizeDxType, gradOutputDxType, gradInputDxType> gradInput_;

  __aicore__ inline void Init(AscendC::GlobalTensor<weightType> weight,
                              AscendC::GlobalTensor<gradOutputType> gradOutput,
                              AscendC::GlobalTensor<gradInputType> gradInput,
                              const Conv3DBackpropInputTilingData* tilingData) {
    weightGm_ = weight;
    gradOutputGm_ = gradOutput;
    gradInputGm_ = gradInput;
    t_ = &tilingData->conv3DDxTiling;
    gradInput_.Init(&(tilingData->conv3DDxTiling));
  }

  // Returns how many tiles there were.
  __aicore__ inline int Process(uint8_t enAtomic = 0) {
    const uint64_t c0 = t_->c0, hw = uint64_t(t_->hi) * t_->wi;
    const uint64_t cell = (t_->cout + 15) / 16 * 16 * c0;
    int tiles = 0;
    for (uint64_t b = 0; b < t_->batch; ++b)
      for (uint32_t dinStartIdx_ = 0; dinStartIdx_ < t_->di; ++dinStartIdx_)
        for (uint64_t m = 0; m < hw; m += t_->singleCoreM)
          for (uint64_t n = 0; n < t_->cin; n += t_->singleCoreCin) {
            const uint64_t singleShapeM_ = std::min(t_->singleCoreM, hw - m);
            const uint64_t singleShapeK_ = uint64_t(t_->dk) * t_->hk * t_->wk * t_->cout1 * c0;
            const uint32_t singleShapeN_ = static_cast<uint32_t>(std::min(t_->singleCoreCin, t_->cin - n));
            const int32_t curHoStartIdx_ = static_cast<int32_t>(m / t_->wi) - static_cast<int32_t>(t_->backpropPadUp);
            const uint64_t row = (std::max(curHoStartIdx_, 0) + t_->strideH - 1) / t_->strideH;
            const uint64_t offsetA_ = (b * t_->dout * t_->cout1 * t_->ho + row) * t_->wo * c0;
            const uint64_t offsetB_ = n / c0 * t_->hk * t_->wk * cell;
            const uint64_t offsetC_ = gradInputFormat == ConvCommonApi::ConvFormat::NCDHW
                                          ? (b * t_->cin + n) * t_->di * hw + m
                                          : (b * t_->di * t_->cin1 + n / c0) * hw * c0 + m * c0;
            gradInput_.SetSingleShape(singleShapeM_, singleShapeK_, singleShapeN_);
            gradInput_.SetStartPosition(dinStartIdx_, curHoStartIdx_);
            gradInput_.SetGradOutput(gradOutputGm_[offsetA_]);
            gradInput_.SetWeight(weightGm_[offsetB_]);
            while (gradInput_.Iterate()) {
              gradInput_.GetTensorC(gradInputGm_[offsetC_], enAtomic);
              ++tiles;
            }
            gradInput_.ctx.isFirstIter_ = true;
          }
    gradInput_.End();
    return tiles;
  }

 private:
  AscendC::GlobalTensor<weightType> weightGm_;
  AscendC::GlobalTensor<gradOutputType> gradOutputGm_;
  AscendC::GlobalTensor<gradInputType> gradInputGm_;
  const TConv3DBackpropInputTiling* t_ = nullptr;
};

}  // namespace convbwd::test
