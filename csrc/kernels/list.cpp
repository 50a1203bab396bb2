#include "kernels/list.h"

#include <tuple>

namespace convbwd {

template <class T>
const KernelSet<T>& kernel_set(Isa isa) {
  switch (isa) {
#define CONVBWD_RETURN(name) return std::get<const KernelSet<T>&>(std::tie(kernels_f32_##name, kernels_f64_##name));
#define CONVBWD_CASE(name) \
  case Isa::name:          \
    CONVBWD_RETURN(name)
    CONVBWD_ISA_LIST(CONVBWD_CASE)
#undef CONVBWD_CASE
#ifdef __x86_64__
    case Isa::avx512_bf16:
    case Isa::amx:
      CONVBWD_RETURN(avx512)
#endif
    default:
      CONVBWD_RETURN(generic)
#undef CONVBWD_RETURN
  }
}
template const KernelSet<float>& kernel_set(Isa);
template const KernelSet<double>& kernel_set(Isa);

#ifdef __x86_64__
const MatrixKernels* matrix_kernels(Isa isa) {
  return isa == Isa::amx ? &matrix_kernels_amx : isa == Isa::avx512_bf16 ? &matrix_kernels_avx512_bf16 : nullptr;
}
#else
const MatrixKernels* matrix_kernels(Isa) { return nullptr; }
#endif

}  // namespace convbwd
