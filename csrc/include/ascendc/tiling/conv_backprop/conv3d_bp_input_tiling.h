// The host's part of Conv3DBackpropInput: how a gradient is cut into tiles. The numbers are those of CANN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "convbwd_ascendc.h"
#include "lib/conv_backprop/conv3d_bp_input_types.h"
#include "tiling/platform/platform_ascendc.h"

namespace Convolution3DBackprop = ConvCommonApi;  // CANN's pages use either name

namespace ConvBackpropApi {

/// Buffers of a device in bytes; L1, L0A, L0B and L0C decide.
struct PlatformInfo {
  platform_ascendc::SocVersion socVersion = platform_ascendc::SocVersion::ASCEND910B;
  uint64_t l1Size = 0, l0CSize = 0, ubSize = 0, l0ASize = 0, l0BSize = 0, btSize = 0, fbSize = 0;
};

/// The setters may be called in any order. Without SetInputShape the problem is a Conv3DTranspose, whose result has the
/// size that follows from the others.
class Conv3DBpInputTiling {
 public:
  using TPosition = ConvCommonApi::TPosition;
  using ConvFormat = ConvCommonApi::ConvFormat;
  using ConvDtype = ConvCommonApi::ConvDtype;

  Conv3DBpInputTiling() = default;
  explicit Conv3DBpInputTiling(const platform_ascendc::PlatformAscendC& platform) {
    problem_.cores = platform.GetCoreNumAic();
  }
  explicit Conv3DBpInputTiling(const PlatformInfo& platform) {
    problem_.l1_bytes = static_cast<int64_t>(platform.l1Size);
    problem_.l0_bytes = static_cast<int64_t>(std::min(platform.l0ASize, platform.l0BSize));
    problem_.l0c_bytes = static_cast<int64_t>(platform.l0CSize);
  }

  void SetWeightType(TPosition, ConvFormat format, ConvDtype type) { weight_ = {format, type}; }
  void SetInputType(TPosition, ConvFormat format, ConvDtype type) { input_ = {format, type}; }
  void SetGradOutputType(TPosition, ConvFormat format, ConvDtype type) { gradOutput_ = {format, type}; }

  /// False, and nothing is set, where the batch or the channels are not those of another shape.
  bool SetWeightShape(int64_t cout, int64_t cin, int64_t d, int64_t h, int64_t w) {
    if ((hasGradOutput_ && cout != gradOutputChannels_) || (hasInput_ && cin != inputChannels_)) return false;
    hasWeight_ = true;
    Set(problem_.kernel, d, h, w);
    problem_.cout = cout;
    problem_.cin = cin;
    return true;
  }
  bool SetInputShape(int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) {
    if ((hasGradOutput_ && n != problem_.batch) || (hasWeight_ && c != problem_.cin)) return false;
    hasInput_ = true;
    Set(problem_.input, d, h, w);
    inputChannels_ = c;
    problem_.batch = n;
    return true;
  }
  bool SetGradOutputShape(int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) {
    if ((hasInput_ && n != problem_.batch) || (hasWeight_ && c != problem_.cout)) return false;
    hasGradOutput_ = true;
    Set(problem_.grad_output, d, h, w);
    gradOutputChannels_ = c;
    problem_.batch = n;
    return true;
  }

  void SetPadding(int64_t front, int64_t back, int64_t up, int64_t down, int64_t left, int64_t right) {
    const int64_t pads[] = {front, back, up, down, left, right};
    for (int i = 0; i < 6; ++i) problem_.padding[i] = pads[i];
  }
  void SetStride(int64_t d, int64_t h, int64_t w) { Set(problem_.stride, d, h, w); }
  void SetDilation(int64_t d, int64_t h, int64_t w) { Set(problem_.dilation, d, h, w); }
  /// Of a Conv3DTranspose; false after SetInputShape.
  bool SetOutputPadding(int64_t d, int64_t h, int64_t w) {
    if (hasInput_) return false;
    Set(problem_.output_padding, d, h, w);
    return true;
  }
  /// Of no effect: they follow from the padding, the kernel and the dilation.
  void SetBackpropPadding(int64_t, int64_t, int64_t, int64_t) {}
  void SetGroup(int64_t group) { problem_.group = group; }
  void SetHF32(bool enable) { problem_.hf32 = enable; }

  /// 0, or -1 and nothing is filled in where the device could not do it; then Message() says why.
  int64_t GetTiling(AscendC::tiling::Conv3DBackpropInputTilingData& tiling) { return Fill(tiling.conv3DDxTiling); }
  int64_t GetTiling(optiling::Conv3DBackpropInputTilingData& tiling) { return Fill(tiling.conv3DDxTiling); }
  const std::string& Message() const { return message_; }

 private:
  struct Type {
    ConvFormat format;
    ConvDtype type = ConvDtype::FLOAT16;
  };

  static void Set(int64_t (&to)[3], int64_t d, int64_t h, int64_t w) {
    to[0] = d;
    to[1] = h;
    to[2] = w;
  }
  int64_t Fill(AscendC::tiling::TConv3DBackpropInputTiling& tiling) {
    message_.clear();
    if (weight_.format != ConvFormat::FRACTAL_Z_3D || gradOutput_.format != ConvFormat::NDC1HWC0 ||
        (input_.format != ConvFormat::NDC1HWC0 && input_.format != ConvFormat::NCDHW))
      message_ = "GetTiling: weight must be FRACTAL_Z_3D, gradOutput NDC1HWC0, the input NDC1HWC0 or NCDHW";
    else if (weight_.type != gradOutput_.type || weight_.type != input_.type || weight_.type > ConvDtype::BF16)
      message_ = "GetTiling: weight, gradOutput and the input must have one type of FLOAT16, BF16 and FLOAT32";
    if (!message_.empty()) return -1;
    problem_.type = static_cast<int32_t>(weight_.type);
    problem_.transpose = !hasInput_;
    if (convbwdAscendcTiling(&problem_, &tiling) == 0) return 0;
    message_ = convbwdAscendcMessage();
    return -1;
  }

  ConvbwdAscendcProblem problem_;
  Type weight_{ConvFormat::FRACTAL_Z_3D}, input_{ConvFormat::NDC1HWC0}, gradOutput_{ConvFormat::NDC1HWC0};
  bool hasWeight_ = false, hasInput_ = false, hasGradOutput_ = false;
  int64_t inputChannels_ = 0, gradOutputChannels_ = 0;
  std::string message_;
};

}  // namespace ConvBackpropApi
