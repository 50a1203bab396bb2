// Conv3DBackpropInput of Ascend C: the gradient of a convolution's input, or a transposed convolution, tile by tile.
//
// Misuse throws std::runtime_error: a step that is missing, null or too short memory, shapes that do not fit the
// tiling.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "kernel_operator.h"
#include "lib/conv_backprop/conv3d_bp_input_types.h"

using AscendC::tiling::Conv3DBackpropInputTilingData;  // as kernels name it
using AscendC::tiling::TConv3DBackpropInputTiling;

namespace ConvBackpropApi {

using ConvCommonApi::ConvFormat;
using ConvCommonApi::TPosition;

template <TPosition POSITION, ConvFormat FORMAT, typename T>
struct ConvType {
  constexpr static TPosition pos = POSITION;
  constexpr static ConvFormat format = FORMAT;
  using Type = T;
};

enum class B2Condition : uint8_t { BASEK_LT_HKWK = 0, BASEK_GE_HKWK, HKWK_EQ_ONE };
/// How a device loads weights; here of no effect.
struct Conv3dConfig {
  B2Condition loadB2Condition = B2Condition::BASEK_LT_HKWK;
  bool enableKernelSplit = false;
};
inline constexpr Conv3dConfig CONV3D_CFG_DEFAULT{B2Condition::BASEK_GE_HKWK};

template <class WEIGHT_TYPE, class INPUT_TYPE, class GRAD_OUTPUT_TYPE, class GRAD_INPUT_TYPE>
struct ConvBpContext {
  using WeightType = WEIGHT_TYPE;
  using GradInputType = GRAD_INPUT_TYPE;
  using SrcT = typename GRAD_OUTPUT_TYPE::Type;
  using DstT = typename GRAD_INPUT_TYPE::Type;
  static_assert(WEIGHT_TYPE::format == ConvFormat::FRACTAL_Z_3D, "weight must be in FRACTAL_Z_3D");
  static_assert(INPUT_TYPE::format == ConvFormat::ND, "the size of the input must be ND");
  static_assert(GRAD_OUTPUT_TYPE::format == ConvFormat::NDC1HWC0, "gradOutput must be in NDC1HWC0");
  static_assert(GRAD_INPUT_TYPE::format == ConvFormat::NDC1HWC0 || GRAD_INPUT_TYPE::format == ConvFormat::NCDHW,
                "gradInput must be in NDC1HWC0 or NCDHW");
  static_assert(std::is_same_v<typename WEIGHT_TYPE::Type, SrcT>, "weight and gradOutput must have the same type");
};

template <class WEIGHT_TYPE, class INPUT_TYPE, class GRAD_OUTPUT_TYPE, class GRAD_INPUT_TYPE,
          const Conv3dConfig& CONV3D_CONFIG = CONV3D_CFG_DEFAULT>
struct Conv3DBpInputCfg : public ConvBpContext<WEIGHT_TYPE, INPUT_TYPE, GRAD_OUTPUT_TYPE, GRAD_INPUT_TYPE> {
  constexpr static Conv3dConfig conv3dConfig_ = CONV3D_CONFIG;
};

template <class T>
constexpr int32_t TypeNumber() {
  static_assert(std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t> || std::is_same_v<T, float>,
                "elements must be half, bfloat16_t or float");
  return std::is_same_v<T, half> ? CONVBWD_FLOAT16 : std::is_same_v<T, float> ? CONVBWD_FLOAT32 : CONVBWD_BF16;
}

/// What an object remembers between its calls.
template <class Intf, class Config>
struct Conv3DBpInputImpl {
  struct ContextData {
    bool isFirstIter_ = true;  ///< to be set before the tiles of another SingleShape
  };
};

template <class Config_, template <typename, class> class Impl>
struct Conv3DBpInputIntf {
  using Config = Config_;
  using SrcT = typename Config::SrcT;
  using DstT = typename Config::DstT;
  using ContextData = typename Impl<Conv3DBpInputIntf, Config>::ContextData;

  ContextData ctx;

  Conv3DBpInputIntf() = default;
  Conv3DBpInputIntf(const Conv3DBpInputIntf&) = delete;
  Conv3DBpInputIntf& operator=(const Conv3DBpInputIntf&) = delete;
  ~Conv3DBpInputIntf() { convbwdAscendcEnd(&walk_); }

  /// Once before everything else. The tiling is copied.
  __aicore__ inline void Init(const TConv3DBackpropInputTiling* __restrict tiling) {
    constexpr bool channelsFirst = Config::GradInputType::format == ConvFormat::NCDHW;
    Check(convbwdAscendcInit(&walk_, tiling, TypeNumber<SrcT>(), TypeNumber<DstT>(), channelsFirst));
    ctx.isFirstIter_ = true;
  }
  /// What the next tiles are of: M positions of a plane in whole rows, K = Cout1 * C0 * Dk * Hk * Wk, N input channels.
  __aicore__ inline void SetSingleShape(uint64_t singleShapeM, uint64_t singleShapeK, uint32_t singleShapeN) {
    Check(convbwdAscendcSetSingleShape(walk_, singleShapeM, singleShapeK, singleShapeN));
  }
  /// The plane, and its first row less backpropPadUp.
  __aicore__ inline void SetStartPosition(uint32_t curDinStartIdx, int32_t curHoStartIdx) {
    Check(convbwdAscendcSetStartPosition(walk_, curDinStartIdx, curHoStartIdx));
  }
  /// The image, from row max(0, ceil(curHoStartIdx / strideH)) of its first plane on.
  __aicore__ inline void SetGradOutput(const AscendC::GlobalTensor<SrcT>& gradOutput) {
    Check(convbwdAscendcSetGradOutput(walk_, gradOutput.Memory()));
  }
  /// The weights from the first of the N channels on.
  __aicore__ inline void SetWeight(const AscendC::GlobalTensor<SrcT>& weight) {
    Check(convbwdAscendcSetWeight(walk_, weight.Memory()));
  }
  /// Computes the next tile of baseM x baseN, in float. False: there is none left.
  template <bool sync = true>
  __aicore__ inline bool Iterate(bool enPartialSum = false) {
    bool more = false;
    Check(convbwdAscendcIterate(walk_, enPartialSum, &ctx.isFirstIter_, &more));
    return more;
  }
  /// Writes the tile, rounded once, or adds it (enAtomic 1), to its place in a gradient of which `output` is row and
  /// channel where the SingleShape begins, in plane 0. Nothing, where no tap of the depth reaches the plane: a gradient
  /// must be zero before where the tiling has initOutputFlag.
  template <bool sync = true>
  __aicore__ inline void GetTensorC(const AscendC::GlobalTensor<DstT>& output, uint8_t enAtomic = 0,
                                    bool enSequentialWrite = false) {
    Check(convbwdAscendcGetTensorC(walk_, output.Memory(), enAtomic, enSequentialWrite));
  }
  /// The object may be used again from Init on.
  __aicore__ inline void End() { Check(convbwdAscendcEnd(&walk_)); }

 private:
  static void Check(int code) {
    if (code != 0) throw std::runtime_error(convbwdAscendcMessage());
  }

  ConvbwdAscendcWalk* walk_ = nullptr;
};

template <class WEIGHT_TYPE, class INPUT_TYPE, class GRAD_OUTPUT_TYPE, class GRAD_INPUT_TYPE,
          const Conv3dConfig& CONV3D_CONFIG = CONV3D_CFG_DEFAULT>
using Conv3DBackpropInput =
    Conv3DBpInputIntf<Conv3DBpInputCfg<WEIGHT_TYPE, INPUT_TYPE, GRAD_OUTPUT_TYPE, GRAD_INPUT_TYPE, CONV3D_CONFIG>,
                      Conv3DBpInputImpl>;

}  // namespace ConvBackpropApi
