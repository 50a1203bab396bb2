// Ascend C on a processor: what kernels of convolutions use of it. Cores take turns (tikicpulib.h), global memory is
// memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "convbwd_ascendc.h"

#define __aicore__
#define __global__
#define __gm__
#define GM_ADDR uint8_t*

// A core is one for matrices, which is what kernels of convolutions run on.
#define ASCEND_IS_AIC (true)
#define ASCEND_IS_AIV (false)
#define KERNEL_TASK_TYPE(key, type)
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define TILING_KEY_IS(key) (AscendC::TilingKey() == (key))

#define REGISTER_TILING_DEFAULT(type) using ConvbwdTilingData = type
#define GET_TILING_DATA_WITH_STRUCT(type, name, address) \
  type name;                                             \
  std::memcpy(&name, address, sizeof(type))
#define GET_TILING_DATA(name, address) GET_TILING_DATA_WITH_STRUCT(ConvbwdTilingData, name, address)

namespace AscendC {

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC };

/// A number of 16 bits: rounded to nearest even, computed with as a float.
template <float (*decode)(uint16_t), uint16_t (*encode)(float)>
struct Float16 {
  uint16_t bits;

  Float16() = default;
  Float16(float value) : bits(encode(value)) {}    // NOLINT(google-explicit-constructor): numbers, as a device has them
  operator float() const { return decode(bits); }  // NOLINT(google-explicit-constructor)
};

/// Elements of global memory from an address on. The size, where it is set, is checked by what reads and writes them.
template <class T>
class GlobalTensor {
 public:
  using PrimType = T;

  void SetGlobalBuffer(T* buffer, uint64_t bufferSize) {
    begin_ = buffer;
    end_ = buffer + bufferSize;
  }
  void SetGlobalBuffer(T* buffer) {
    begin_ = buffer;
    end_ = nullptr;
  }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor rest = *this;
    if (begin_ != nullptr) rest.begin_ += offset;
    return rest;
  }
  T& operator()(uint64_t offset) const { return begin_[offset]; }
  T GetValue(uint64_t offset) const { return begin_[offset]; }
  void SetValue(uint64_t offset, T value) const { begin_[offset] = value; }
  T* GetPhyAddr(uint64_t offset = 0) const { return begin_ + offset; }
  uint64_t GetSize() const { return begin_ < end_ ? static_cast<uint64_t>(end_ - begin_) : 0; }

  ConvbwdAscendcMemory Memory() const { return {const_cast<void*>(static_cast<const void*>(begin_)), end_}; }

 private:
  T* begin_ = nullptr;
  T* end_ = nullptr;
};

/// Lets cores wait for each other.
class Cores {
 public:
  virtual void Wait(int64_t index) = 0;

 protected:
  ~Cores() = default;
};

/// The core whose turn it is.
struct Block {
  int64_t index = 0, number = 1;
  Cores* cores = nullptr;

  static Block& Current() {
    static thread_local Block block;
    return block;
  }
};
/// Which variant of a kernel the host has chosen.
inline uint64_t& TilingKey() {
  static thread_local uint64_t key = 0;
  return key;
}
inline int64_t GetBlockIdx() { return Block::Current().index; }
inline int64_t GetBlockNum() { return Block::Current().number; }

/// No core goes on before all have come here, or have ended.
template <bool isAIVOnly = true>
inline void SyncAll() {
  if (const Block& block = Block::Current(); block.cores != nullptr) block.cores->Wait(block.index);
}

/// Fills `size` elements, as kernels do with their output where the tiling has initOutputFlag. Throws
/// std::runtime_error where the tensor is known to have less.
template <class T>
inline void InitOutput(GlobalTensor<T> gmWorkspaceAddr, uint32_t size, T value = 0) {
  if (gmWorkspaceAddr.Memory().end != nullptr && size > gmWorkspaceAddr.GetSize())
    throw std::runtime_error("InitOutput: size must be at most that of the tensor");
  std::fill_n(gmWorkspaceAddr.GetPhyAddr(), size, value);
}

/// Of a workspace nothing is the system's.
inline void SetSysWorkspace(GM_ADDR) {}
inline GM_ADDR GetUserWorkspace(GM_ADDR workspace) { return workspace; }

}  // namespace AscendC

using half = AscendC::Float16<convbwdAscendcDecodeHalf, convbwdAscendcEncodeHalf>;
using bfloat16_t = AscendC::Float16<convbwdAscendcDecodeBf16, convbwdAscendcEncodeBf16>;
