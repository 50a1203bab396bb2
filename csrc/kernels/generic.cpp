// Kernels for the baseline of the architecture: SSE2 on x86-64, NEON on aarch64.
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define VECTOR_REGISTERS 32
#else
#define VECTOR_REGISTERS 16
#endif
#define ISA_NAME "generic"
#define KERNELS_NAME(type) kernels_##type##_generic
#include "kernels/kernels.inl"
