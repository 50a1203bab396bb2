#include "kernels/list.h"

namespace convbwd {

template <>
const KernelSet<float>& kernel_set<float>(Isa isa) {
  switch (isa) {
#define CONVBWD_CASE(name) \
  case Isa::name:          \
    return kernels_f32_##name;
    CONVBWD_ISA_LIST(CONVBWD_CASE)
#undef CONVBWD_CASE
#ifdef __x86_64__
    case Isa::avx512_bf16:
    case Isa::amx:
      return kernels_f32_avx512;
#endif
    default:
      return kernels_f32_generic;
  }
}

template <>
const KernelSet<double>& kernel_set<double>(Isa isa) {
  switch (isa) {
#define CONVBWD_CASE(name) \
  case Isa::name:          \
    return kernels_f64_##name;
    CONVBWD_ISA_LIST(CONVBWD_CASE)
#undef CONVBWD_CASE
#ifdef __x86_64__
    case Isa::avx512_bf16:
    case Isa::amx:
      return kernels_f64_avx512;
#endif
    default:
      return kernels_f64_generic;
  }
}

#ifdef __x86_64__
const MatrixKernels* matrix_kernels(Isa isa) {
  return isa == Isa::amx ? &matrix_kernels_amx : isa == Isa::avx512_bf16 ? &matrix_kernels_avx512_bf16 : nullptr;
}
#else
const MatrixKernels* matrix_kernels(Isa) { return nullptr; }
#endif

}  // namespace convbwd
