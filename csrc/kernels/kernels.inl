// The kernels, written once with GCC/Clang vector extensions and compiled by one file for each instruction set, which
// defines VECTOR_BYTES, VECTOR_REGISTERS, ISA_NAME and KERNELS_NAME(type). All names are in an unnamed namespace: an
// inline function compiled for AVX-512 must never be the copy that an older CPU runs.
#include "base/formats.h"
#include "kernels/kernel.h"

#if VECTOR_BYTES >= 32
#include <immintrin.h>
#endif

namespace convbwd {
namespace {

// clang-format off: in an order in which each finds what it uses
#include "kernels/vectors.inl"
#include "kernels/convert.inl"
#include "kernels/transpose.inl"
#include "kernels/gather.inl"
#include "kernels/rows.inl"
#include "kernels/sums.inl"
#include "kernels/depthwise.inl"
#include "kernels/winograd.inl"
// clang-format on

// What no call reaches is left out.
template <class T, class S>
constexpr bool kPads = sizeof(T) == 4 || !kRounds<S>;
template <class T, class S>
constexpr bool kTransposes = kPads<T, S> && sizeof(S) <= sizeof(T);

// Register tiles mr x (nv vectors): mr*nv accumulators, nv vectors of B and a broadcast fit the registers. Rows above
// kPointers are for pairs.
template <class T>
constexpr KernelSet<T> make_set(const char* name, const KernelSet<T>* half) {
  constexpr int L = Vec<T>::lanes;
  return {
      name,
      L,
#if VECTOR_REGISTERS >= 32
      {{"gather 16x1v", 16, L, gather<T, 16, 1>},
       {"gather 12x2v", 12, 2 * L, gather<T, 12, 2>},
       {"gather 8x3v", 8, 3 * L, gather<T, 8, 3>},
       {"gather 6x4v", 6, 4 * L, gather<T, 6, 4>}},
      {{"gather 16x1v", 16, L, gather<T, 16, 1, true>},
       {"gather 12x2v", 12, 2 * L, gather<T, 12, 2, true>},
       {"gather 8x3v", 8, 3 * L, gather<T, 8, 3, true>},
       {"gather 6x4v", 6, 4 * L, gather<T, 6, 4, true>}},
      4,
#else
      {{"gather 12x1v", 12, L, gather<T, 12, 1>}, {"gather 6x2v", 6, 2 * L, gather<T, 6, 2>}, {}, {}},
      {{"gather 12x1v", 12, L, gather<T, 12, 1, true>}, {"gather 6x2v", 6, 2 * L, gather<T, 6, 2, true>}, {}, {}},
      2,
#endif
      true,
      rows<T>,
      kRowsMr,
      stacked_rows<T>,
      dots<T>,
      kDotsMr,
      kDotsNt,
      depthwise<T>,
      depthwise_taps<T>,
#define EACH(name, type) kTransposes<T, type> ? transpose<T, type> : nullptr,
      {CONVBWD_TYPE_LIST(EACH)},
#undef EACH
#define EACH(name, type) kPads<T, type> ? pad_rows<T, type> : nullptr,
      {CONVBWD_TYPE_LIST(EACH)},
#undef EACH
#define EACH(name, type) store_row<T, type>,
      {CONVBWD_TYPE_LIST(EACH)},
#undef EACH
      interleave<T>,
      sum<T>,
      peak<T>,
      {Winograd<T, 2, 2, 3, 3>::kernels,        Winograd<T, 4, 4, 3, 3, false>::kernels,
       Winograd<T, 3, 3, 4, 4, false>::kernels, Winograd<T, 1, 4, 1, 3, false>::kernels,
       Winograd<T, 1, 3, 1, 2>::kernels,        Winograd<T, 2, 2, 2, 2>::kernels,
       Winograd<T, 3, 3, 2, 2>::kernels,        Winograd<T, 4, 4, 3, 3>::kernels,
       Winograd<T, 3, 3, 4, 4>::kernels,        Winograd<T, 1, 4, 1, 3>::kernels,
       Winograd<T, 1, 3, 1, 4>::kernels,        Winograd<T, 4, 1, 3, 1>::kernels,
       Winograd<T, 3, 1, 4, 1>::kernels,        Winograd<T, 6, 6, 5, 5>::kernels,
       Winograd<T, 14, 14, 5, 5>::kernels,      Winograd<T, 12, 12, 7, 7>::kernels,
       Winograd<T, 10, 10, 9, 9>::kernels,      Winograd<T, 1, 14, 1, 5>::kernels,
       Winograd<T, 1, 12, 1, 7>::kernels,       Winograd<T, 1, 18, 1, 17>::kernels},
      half,
  };
}

}  // namespace

extern const KernelSet<float> KERNELS_NAME(f32);
extern const KernelSet<double> KERNELS_NAME(f64);
#ifdef HALF_NAME
constinit const KernelSet<float> KERNELS_NAME(f32) = make_set(ISA_NAME, &HALF_NAME(f32));
constinit const KernelSet<double> KERNELS_NAME(f64) = make_set(ISA_NAME, &HALF_NAME(f64));
#else
constinit const KernelSet<float> KERNELS_NAME(f32) = make_set<float>(ISA_NAME, nullptr);
constinit const KernelSet<double> KERNELS_NAME(f64) = make_set<double>(ISA_NAME, nullptr);
#endif

}  // namespace convbwd
