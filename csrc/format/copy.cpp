#include "format/copy.h"

#include <algorithm>
#include <utility>

namespace convbwd {
namespace {

constexpr Index kFarElements = 1 << 16;  // of an image that may come from memory, if there are more
constexpr Index kBlock = 256;            // elements scattered at a time: half a page of doubles, stays in L1

template <class E>
void scatter_elements(void* dst, Index stride, const void* src, Index count) {
  E* d = static_cast<E*>(dst);
  for (Index i = 0; i < count; ++i) d[i * stride] = static_cast<const E*>(src)[i];
}

struct Axis {
  Index size, src, dst;
};

}  // namespace

template <class T>
void load_row(const KernelSet<T>& k, T* dst, const void* src, DType dtype, Index stride, Index count) {
  k.pad[static_cast<int>(dtype)](dst, 0, src, 0, stride, 1, 0, count, 0, 0);
}

template <class T>
void store_row(const KernelSet<T>& k, void* dst, DType dtype, Index stride, const T* src, Index count) {
  const auto store = k.store[static_cast<int>(dtype)];
  if (stride == 1) return store(dst, src, count);
  if (dtype == compute_dtype<T>) {
    for (Index i = 0; i < count; ++i) static_cast<T*>(dst)[i * stride] = src[i];
    return;
  }
  alignas(64) double block[kBlock];
  for (Index i = 0; i < count; i += kBlock) {
    const Index n = std::min(kBlock, count - i);
    void* d = advance(dst, dtype, i * stride);
    store(block, src + i, n);
    switch (size_of(dtype)) {
      case 1:
        scatter_elements<std::uint8_t>(d, stride, block, n);
        break;
      case 2:
        scatter_elements<std::uint16_t>(d, stride, block, n);
        break;
      case 4:
        scatter_elements<std::uint32_t>(d, stride, block, n);
        break;
      default:
        scatter_elements<std::uint64_t>(d, stride, block, n);
    }
  }
}

template <class T>
void copy_in(const KernelSet<T>& k, T* dst, const Index5& dst_stride, const View& src, Index ahead) {
  if (!src.plain())
    return for_each_plain(src, [&](const View& part, Index row, Index c) {
      copy_in(k, dst + row * dst_stride[0] + c * dst_stride[1], dst_stride, part, ahead);
    });
  Axis axes[5] = {};
  int count = 0;
  for (int a = 0; a < 5; ++a) {
    if (src.size[a] == 0) return;
    if (src.size[a] == 1) continue;
    int at = count++;  // sorted by falling destination stride
    for (; at > 0 && axes[at - 1].dst < dst_stride[a]; --at) axes[at] = axes[at - 1];
    axes[at] = {src.size[a], src.stride[a], dst_stride[a]};
  }
  // The innermost loop runs where the destination is dense; neighbours that are dense in both become one axis.
  int last = 0;
  for (int a = 1; a < count; ++a) {
    Axis& outer = axes[last];
    if (outer.dst == axes[a].dst * axes[a].size && outer.src == axes[a].src * axes[a].size)
      outer = {outer.size * axes[a].size, axes[a].src, axes[a].dst};
    else
      axes[++last] = axes[a];
  }
  count = count ? last + 1 : 0;
  const Axis unit{1, 1, 1};
  const Axis inner = count ? axes[--count] : unit;
  // Where another axis is dense in the source (channels-last memory read as planes), transpose it with the inner one.
  const Axis* across = nullptr;
  if (inner.dst == 1 && inner.src != 1)
    for (int a = 0; a < count; ++a)
      if (axes[a].src == 1) across = &axes[a];
  const Axis cross = across ? *across : unit;
  if (across) std::copy(across + 1, static_cast<const Axis*>(axes) + count, axes + (across - axes)), --count;
  const bool rows_of_one = inner.dst != 1;
  const Axis lines = across ? unit : rows_of_one ? inner : count ? axes[--count] : unit;
  const Axis line = rows_of_one ? unit : inner;

  Index i[4] = {};
  const auto transpose = k.transpose[static_cast<int>(src.dtype)];
  const auto pad = k.pad[static_cast<int>(src.dtype)];
  for (;;) {
    Index s = 0, d = 0;
    for (int a = 0; a < count; ++a) s += i[a] * axes[a].src, d += i[a] * axes[a].dst;
    if (across) {
      const Fetch fetch{inner.src * inner.size > kFarElements ? kFetchAhead : ahead};
      for (Index r = 0; r < inner.size; r += kMostRows) {
        T* table[1] = {dst + d + r};
        const int rows = static_cast<int>(std::min<Index>(kMostRows, inner.size - r));
        transpose(table, 1, cross.dst, advance(src.data, src.dtype, s + r * inner.src), nullptr, inner.src, rows, rows,
                  cross.size, fetch);
      }
    } else {
      pad(dst + d, lines.dst, advance(src.data, src.dtype, s), lines.src, line.src, lines.size, 0, line.size, 0, 0);
    }
    int a = count - 1;
    for (; a >= 0 && ++i[a] == axes[a].size; --a) i[a] = 0;
    if (a < 0) return;
  }
}

void fill_plane(const KernelSet<double>& k, const View& plane, double value) {
  alignas(64) double row[kBlock];
  std::fill_n(row, std::min(kBlock, plane.size[4]), value);
  for (Index d = 0; d < plane.size[2]; ++d)
    for (Index h = 0; h < plane.size[3]; ++h)
      for (Index w = 0; w < plane.size[4]; w += kBlock) {
        const Index at = d * plane.stride[2] + h * plane.stride[3] + w * plane.stride[4];
        store_row(k, advance(plane.data, plane.dtype, at), plane.dtype, plane.stride[4], row,
                  std::min(kBlock, plane.size[4] - w));
      }
}

template <class T>
bool all_finite(const KernelSet<T>& k, const View& v) {
  alignas(64) T block[kBlock];
  bool finite = true;
  for_each_plain(v, [&](const View& part, Index, Index) {
    // Axes that lie in memory as a run are one.
    Index5 size = part.size;
    for (std::size_t a = 4; a > 0 && part.stride[a - 1] == part.stride[4] * size[4]; --a)
      size[4] *= std::exchange(size[a - 1], 1);
    for (Index n = 0; n < size[0]; ++n)
      for (Index c = 0; c < size[1]; ++c)
        for (Index d = 0; d < size[2]; ++d)
          for (Index h = 0; h < size[3]; ++h)
            for (Index i = 0; i < size[4] && finite; i += kBlock) {
              const Index count = std::min(kBlock, size[4] - i);
              const Index at = part.offset({n, c, d, h, i});
              load_row(k, block, advance(part.data, part.dtype, at), part.dtype, part.stride[4], count);
              finite = all_finite(block, count);
            }
  });
  return finite;
}

#define CONVBWD_INSTANTIATE(T)                                                       \
  template bool all_finite(const KernelSet<T>&, const View&);                        \
  template void copy_in(const KernelSet<T>&, T*, const Index5&, const View&, Index); \
  template void load_row(const KernelSet<T>&, T*, const void*, DType, Index, Index); \
  template void store_row(const KernelSet<T>&, void*, DType, Index, const T*, Index);
CONVBWD_INSTANTIATE(float)
CONVBWD_INSTANTIATE(double)

}  // namespace convbwd
