#define VECTOR_BYTES 64
#define VECTOR_REGISTERS 32
#define ISA_NAME "avx512"
#define KERNELS_NAME(type) kernels_##type##_avx512
#define HALF_NAME(type) kernels_##type##_avx2
#include "kernels/kernels.inl"
