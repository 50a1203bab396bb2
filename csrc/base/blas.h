// Layer base: OpenBLAS, where the build found one. CONVBWD_CBLAS(cblas_sgemm) is the name in either library:
// the system's has plain names, those of the scipy-openblas32 wheel begin with scipy_.
#pragma once

#ifdef CONVBWD_HAVE_BLAS

#include <cblas.h>

#define CONVBWD_PASTE_EXPANDED(a, b) a##b
#define CONVBWD_PASTE(a, b) CONVBWD_PASTE_EXPANDED(a, b)
#define CONVBWD_CBLAS(name) CONVBWD_PASTE(CONVBWD_BLAS_PREFIX, name)

#endif
