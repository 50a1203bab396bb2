#define VECTOR_BYTES 32
#define VECTOR_REGISTERS 16
#define ISA_NAME "avx2"
#define KERNELS_NAME(type) kernels_##type##_avx2
#include "kernels/kernels.inl"
