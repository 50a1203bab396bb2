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
    default:
      return kernels_f64_generic;
  }
}

}  // namespace convbwd
