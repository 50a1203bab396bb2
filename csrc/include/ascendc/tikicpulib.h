// Runs a kernel for each of its cores, one after the other.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "kernel_operator.h"

enum class KernelMode { MIX_MODE, AIC_MODE, AIV_MODE, MIX_AIC_1_1 };

namespace AscendC {

/// Of no effect: the cores are those for matrices.
inline void SetKernelMode(KernelMode) {}

inline void* GmAlloc(size_t size) { return std::calloc(size == 0 ? 1 : size, 1); }
inline void GmFree(void* memory) { std::free(memory); }

template <class Kernel, class... Arguments>
void RunKernel(int64_t blocks, const Kernel& kernel, Arguments... arguments) {
  struct Restore {
    Block saved = Block::Current();
    ~Restore() { Block::Current() = saved; }
  } const restore;
  for (int64_t i = 0; i < blocks; ++i) {
    Block::Current() = {i, blocks};
    kernel(arguments...);
  }
}

}  // namespace AscendC

#define ICPU_SET_TILING_KEY(key) (AscendC::TilingKey() = (key))
#define ICPU_RUN_KF(kernel, blocks, ...) AscendC::RunKernel(blocks, kernel, __VA_ARGS__)
