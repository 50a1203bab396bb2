// Layer format: the one converter. Copies between a strided view of any element type and memory of the compute type.
#pragma once

#include <cmath>
#include <limits>

#include "base/view.h"
#include "kernels/kernel.h"

namespace convbwd {

/// Images of so many bytes come from memory. What stays in a cache takes up to 1.1 times as long if it is fetched.
constexpr Index kFromMemory = 16 << 20;
/// Whether lines so many bytes apart meet in one set of the first-level cache.
constexpr bool meet_in_cache(Index bytes) { return bytes % 4096 == 0; }
inline Index bytes_of(const View& images) {
  return images.size[0] * images.stride[0] * static_cast<Index>(size_of(images.dtype));
}
inline bool from_memory(const View& images) { return bytes_of(images) > kFromMemory; }
/// Elements of a row that are fetched ahead of those that are transposed: with 64 to 192 images from memory take 0.8 to
/// 0.95 of the time, with 256 more than without (Zen 5).
constexpr Index kFetchAhead = 128;
/// Where channels lie side by side (channels_last): those that are copied together, a line of floats, and how many
/// pixels ahead they are fetched (40 take as long; Zen 4).
constexpr Index kLineChannels = 16, kPixelsAhead = 16;

template <class T>
inline constexpr DType compute_dtype = sizeof(T) == 8 ? DType::float64 : DType::float32;

/// dst[sum of i[a]*dst_stride[a]] = src[i] for every i < src.size, widened. While it transposes, it fetches
/// what follows in the rows of large blocks, and of small ones what lies `ahead` elements behind, unless that is 0.
template <class T>
void copy_in(const KernelSet<T>& k, T* dst, const Index5& dst_stride, const View& src, Index ahead = 0);

/// Converts `count` elements between a dense row of the compute type and one with a stride (in elements).
template <class T>
void load_row(const KernelSet<T>& k, T* dst, const void* src, DType dtype, Index stride, Index count);
template <class T>
void store_row(const KernelSet<T>& k, void* dst, DType dtype, Index stride, const T* src, Index count);

/// A value for every element of a channel of an image, the view of which begins there.
void fill_plane(const KernelSet<double>& k, const View& plane, double value);

/// Whether all elements are finite. Comparisons, unlike sums, run side by side.
template <class T>
bool all_finite(const T* p, Index count) {
  int strange = 0;
  for (Index i = 0; i < count; ++i) strange |= !(std::abs(p[i]) <= std::numeric_limits<T>::max());
  return strange == 0;
}

/// The same of a view.
template <class T>
bool all_finite(const KernelSet<T>& k, const View& v);

inline const std::byte* advance(const void* p, DType t, Index n) {
  return static_cast<const std::byte*>(p) + n * static_cast<Index>(size_of(t));
}
inline std::byte* advance(void* p, DType t, Index n) {
  return static_cast<std::byte*>(p) + n * static_cast<Index>(size_of(t));
}

/// Of `count` channels from one on, which lie along axis 1.
template <class T>
void load_bias(const KernelSet<T>& k, T* dst, const View& bias, Index channel, Index count) {
  load_row(k, dst, advance(bias.data, bias.dtype, channel * bias.stride[1]), bias.dtype, bias.stride[1], count);
}

/// Brings a row of so many elements closer.
inline void prefetch_row(const void* src, DType dtype, Index width) {
  const Index line = 64 / static_cast<Index>(size_of(dtype));  // elements of a cache line
  for (Index i = 0; i < width; i += line) __builtin_prefetch(advance(src, dtype, i));
}

}  // namespace convbwd
