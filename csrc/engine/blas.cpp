#include "engine/blas.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/blas.h"
#include "convbwd/types.hpp"

namespace convbwd {

#ifdef CONVBWD_HAVE_BLAS

namespace {

constexpr int kRows = 512;   // rows of a call: enough for a GEMM to reach its speed
constexpr int kPack = 8192;  // elements of X gathered at a time

void gemm(int m, int n, int k, const float* a, int lda, const float* b, int ldb, float* c) {
  CONVBWD_CBLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.f, a, lda, b, ldb, 1.f, c, n);
}
void gemm(int m, int n, int k, const double* a, int lda, const double* b, int ldb, double* c) {
  CONVBWD_CBLAS(cblas_dgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1., a, lda, b, ldb, 1., c, n);
}

// The kernel's contract by GEMMs on gathered blocks of X. Gathering always, even where BLAS could read in place, and
// across segments where B goes on, keeps the shape of every call, and so its bits, free of the memory layout.
template <class T>
void gather(int nr, int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* segments,
            std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow, bool accumulate) {
  constexpr int kBlock = 64;  // rows
  constexpr int kWidth = kPack / kBlock;
  T block[kBlock * 64], pack[kPack];
  for (int i0 = 0; i0 < m; i0 += kBlock) {
    const int rows = std::min(kBlock, m - i0);
    std::fill(block, block + rows * nr, T{});
    int width = 0;
    std::ptrdiff_t start = 0;  // in B, of the columns gathered so far
    const auto flush = [&] {
      if (width) gemm(rows, nr, width, pack, kWidth, b + start, static_cast<int>(bstep), block);
      width = 0;
    };
    for (const Segment* s = segments; s != segments + count; ++s)
      for (std::int64_t k0 = 0; k0 < s->len;) {
        const std::ptrdiff_t at = s->b + k0 * bstep;
        if (width == kWidth || (width && at != start + width * bstep)) flush();
        if (width == 0) start = at;
        const int k = static_cast<int>(std::min<std::int64_t>(kWidth - width, s->len - k0));
        for (int i = 0; i < rows; ++i) {
          const T* from = x + row[i0 + i] + s->x + k0 * xstep;
          for (int j = 0; j < k; ++j) pack[i * kWidth + width + j] = from[j * xstep];
        }
        width += k, k0 += k;
      }
    flush();
    for (int i = 0; i < rows; ++i) {
      T* out = c + crow[i0 + i];
      for (int j = 0; j < nr; ++j) out[j] = accumulate ? out[j] + block[i * nr + j] : block[i * nr + j];
    }
  }
}

template <class T, int NV, int kLanes>
void gather_fixed(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* segments,
                  std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
                  bool accumulate) {
  gather(NV * kLanes, m, x, row, xstep, segments, count, b, bstep, c, crow, accumulate);
}

template <class T, int kLanes>
void replace(KernelSet<T>& set) {
  set.gather[0] = {"gemm", kRows, kLanes, gather_fixed<T, 1, kLanes>};
  set.gather[1] = {"gemm", kRows, 2 * kLanes, gather_fixed<T, 2, kLanes>};
  set.gather[2] = {"gemm", kRows, 3 * kLanes, gather_fixed<T, 3, kLanes>};
  set.gather[3] = {"gemm", kRows, 4 * kLanes, gather_fixed<T, 4, kLanes>};
  for (int i = 0; i < 4; ++i) set.blocked[i] = set.gather[i];
  set.gather_count = 4;
  set.any_bstep = false;
  set.half = nullptr;
}

template <class T>
KernelSet<T> make_blas(const KernelSet<T>& base) {
  CONVBWD_CBLAS(openblas_set_num_threads)(1);
  KernelSet<T> set = base;
  switch (base.lanes) {
    case 2:
      replace<T, 2>(set);
      break;
    case 4:
      replace<T, 4>(set);
      break;
    case 8:
      replace<T, 8>(set);
      break;
    default:
      replace<T, 16>(set);
  }
  return set;
}

}  // namespace

bool have_blas() { return true; }

template <class T>
const KernelSet<T>& blas_kernels(const KernelSet<T>& base) {
  static auto& mutex = *new std::mutex;  // both outlive threads that run on at exit
  static auto& sets = *new std::map<const KernelSet<T>*, KernelSet<T>>;
  const std::lock_guard lock(mutex);
  const auto found = sets.find(&base);
  return found != sets.end() ? found->second : sets.emplace(&base, make_blas(base)).first->second;
}

#else

bool have_blas() { return false; }

template <class T>
const KernelSet<T>& blas_kernels(const KernelSet<T>&) {
  throw Error(ErrorKind::internal, "this build has no BLAS");
}

#endif

template const KernelSet<float>& blas_kernels(const KernelSet<float>&);
template const KernelSet<double>& blas_kernels(const KernelSet<double>&);

}  // namespace convbwd
