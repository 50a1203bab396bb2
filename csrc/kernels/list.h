// Layer kernels: the kernels of each instruction set.
#pragma once

#include "base/cpu.h"
#include "kernels/kernel.h"
#include "kernels/matrix.h"

namespace convbwd {

/// The kernels of an instruction set for compute type float or double.
template <class T>
const KernelSet<T>& kernel_set(Isa isa);

/// Those of its matrix unit; null where it has none.
const MatrixKernels* matrix_kernels(Isa isa);

}  // namespace convbwd
