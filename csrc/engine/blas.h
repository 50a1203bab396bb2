// Layer engine: OpenBLAS as a second provider of the gathering kernel.
#pragma once

#include "kernels/kernel.h"

namespace convbwd {

/// Whether the build found OpenBLAS.
bool have_blas();

/// `base` with its gathering kernels replaced by GEMM calls; the same object for every call.
/// The first use sets OpenBLAS to one thread: the library's own pool deals out the work.
template <class T>
const KernelSet<T>& blas_kernels(const KernelSet<T>& base);

}  // namespace convbwd
