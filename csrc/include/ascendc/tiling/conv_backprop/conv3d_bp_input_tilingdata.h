// The numbers that the host works out for the kernel. The names, their order and their types are those of CANN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// Sizes are in elements. c0 is 32 bytes of them, c1 the number of blocks of c0 channels. A tile of gradInput has baseM
// positions of one plane and baseN channels; baseK products of its sums fit on a device at a time. singleCoreM and
// singleCoreCin are what a core computes of a plane. backpropPad is the padding of gradOutput, spread by the stride, of
// which gradInput is a plain convolution. iterateOrder 1: tiles follow each other along M first; 0: along N.
#define CONVBWD_CONV3D_DX_TILING(FIELD) \
  FIELD(uint32_t, batch)                \
  FIELD(uint32_t, cin)                  \
  FIELD(uint32_t, cout)                 \
  FIELD(uint32_t, cout1)                \
  FIELD(uint32_t, cin1)                 \
  FIELD(uint32_t, cout1G)               \
  FIELD(uint32_t, cin1G)                \
  FIELD(uint32_t, c0)                   \
  FIELD(uint32_t, c0Bits)               \
  FIELD(uint32_t, dout)                 \
  FIELD(uint32_t, ho)                   \
  FIELD(uint32_t, wo)                   \
  FIELD(uint32_t, di)                   \
  FIELD(uint32_t, hi)                   \
  FIELD(uint32_t, wi)                   \
  FIELD(uint32_t, dk)                   \
  FIELD(uint32_t, hk)                   \
  FIELD(uint32_t, wk)                   \
  FIELD(uint32_t, group)                \
  FIELD(uint32_t, strideD)              \
  FIELD(uint32_t, strideH)              \
  FIELD(uint32_t, strideW)              \
  FIELD(uint32_t, padFront)             \
  FIELD(uint32_t, padBack)              \
  FIELD(uint32_t, padUp)                \
  FIELD(uint32_t, padDown)              \
  FIELD(uint32_t, padLeft)              \
  FIELD(uint32_t, padRight)             \
  FIELD(uint32_t, backpropPadTail)      \
  FIELD(uint32_t, backpropPadUp)        \
  FIELD(uint32_t, backpropPadDown)      \
  FIELD(uint32_t, backpropPadLeft)      \
  FIELD(uint32_t, backpropPadRight)     \
  FIELD(uint32_t, dilationD)            \
  FIELD(uint32_t, dilationH)            \
  FIELD(uint32_t, dilationW)            \
  FIELD(uint32_t, al0Pbuffer)           \
  FIELD(uint32_t, bl0Pbuffer)           \
  FIELD(uint32_t, cl0Pbuffer)           \
  FIELD(uint32_t, al1Pbuffer)           \
  FIELD(uint32_t, bl1Pbuffer)           \
  FIELD(uint32_t, singleCoreGroup)      \
  FIELD(uint32_t, singleCoreCout)       \
  FIELD(uint32_t, singleCoreCout1)      \
  FIELD(uint32_t, singleCoreCin1)       \
  FIELD(uint32_t, singleCoreDin)        \
  FIELD(uint32_t, singleCoreHo)         \
  FIELD(uint32_t, baseM)                \
  FIELD(uint32_t, baseK)                \
  FIELD(uint32_t, baseN)                \
  FIELD(uint32_t, baseD)                \
  FIELD(uint32_t, baseBatch)            \
  FIELD(uint32_t, baseGroup)            \
  FIELD(uint32_t, stepM)                \
  FIELD(uint32_t, stepN)                \
  FIELD(uint32_t, stepKa)               \
  FIELD(uint32_t, stepKb)               \
  FIELD(uint32_t, stepBatch)            \
  FIELD(uint32_t, stepGroup)            \
  FIELD(uint32_t, iterateOrder)         \
  FIELD(int32_t, hf32Flag)              \
  FIELD(uint32_t, initOutputFlag)       \
  FIELD(uint32_t, reserved)             \
  FIELD(uint64_t, singleCoreBatch)      \
  FIELD(uint64_t, singleCoreM)          \
  FIELD(uint64_t, singleCoreCin)

namespace AscendC::tiling {

struct TConv3DBackpropInputTiling {
#define CONVBWD_FIELD(type, name) type name = 0;
  CONVBWD_CONV3D_DX_TILING(CONVBWD_FIELD)
#undef CONVBWD_FIELD
};

struct Conv3DBackpropInputTilingData {
  TConv3DBackpropInputTiling conv3DDxTiling;
};

}  // namespace AscendC::tiling

namespace optiling {

/// The same with the accessors that host code uses.
struct TConv3DBackpropInputTiling : AscendC::tiling::TConv3DBackpropInputTiling {
#define CONVBWD_FIELD(type, name)          \
  type get_##name() const { return name; } \
  void set_##name(type value) { name = value; }
  CONVBWD_CONV3D_DX_TILING(CONVBWD_FIELD)
#undef CONVBWD_FIELD
};

struct Conv3DBackpropInputTilingData {
  TConv3DBackpropInputTiling conv3DDxTiling;

  size_t GetDataSize() const { return sizeof(AscendC::tiling::Conv3DBackpropInputTilingData); }
  /// Copies what the kernel reads; nothing where it does not fit.
  void SaveToBuffer(void* buffer, size_t capacity) const {
    const AscendC::tiling::TConv3DBackpropInputTiling& plain = conv3DDxTiling;
    if (buffer != nullptr && capacity >= sizeof plain) std::memcpy(buffer, &plain, sizeof plain);
  }
};

}  // namespace optiling
