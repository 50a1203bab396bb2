#include "format/add.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr Index kBlock = 512;             // elements widened at a time: at home in L1
constexpr Index kTaskElements = 1 << 15;  // elements worth a task of their own

// The axes of a view from the one with the longest stride to the one with the shortest.
std::array<std::size_t, 5> outermost_first(const View& v) {
  std::array<std::size_t, 5> order;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Index sa = std::abs(v.stride[a]), sb = std::abs(v.stride[b]);
    return sa != sb ? sa > sb : a < b;
  });
  return order;
}

View reordered(const View& v, const std::array<std::size_t, 5>& order) {
  View r = v;
  for (std::size_t a = 0; a < 5; ++a) r.size[a] = v.size[order[a]], r.stride[a] = v.stride[order[a]];
  return r;
}

template <class T>
void add_rows(const View& dst, const View& src, int threads) {
  const KernelSet<T>& k = kernel_set<T>(active_isa());
  const Index length = dst.size[4], rows = dst.size[0] * dst.size[1] * dst.size[2] * dst.size[3];
  const Index batch = std::max<Index>(1, kTaskElements / length), cuts = (length + kTaskElements - 1) / kTaskElements;
  const Index tasks = (rows + batch - 1) / batch * cuts;  // of some rows, or of a piece of one
  parallel_for(tasks, static_cast<int>(std::min<Index>(threads, tasks)), [&](Index task, int) {
    alignas(64) T sum[kBlock], summand[kBlock];
    const Index first = task / cuts * batch, begin = task % cuts * kTaskElements;
    for (Index row = first; row < std::min(first + batch, rows); ++row) {
      Index5 at{};
      for (Index rest = row, a = 3; a >= 0; --a) {
        const auto axis = static_cast<std::size_t>(a);
        at[axis] = rest % dst.size[axis];
        rest /= dst.size[axis];
      }
      const Index end = std::min(begin + kTaskElements, length);
      for (at[4] = begin; at[4] < end; at[4] += kBlock) {
        const Index n = std::min(kBlock, end - at[4]);
        std::byte* const to = advance(dst.data, dst.dtype, dst.offset(at));
        load_row(k, sum, to, dst.dtype, dst.stride[4], n);
        load_row(k, summand, advance(src.data, src.dtype, src.offset(at)), src.dtype, src.stride[4], n);
        for (Index i = 0; i < n; ++i) sum[i] += summand[i];
        store_row(k, to, dst.dtype, dst.stride[4], sum, n);
      }
    }
  });
}

}  // namespace

Index5 packed_strides(const View& v) {
  const auto order = outermost_first(v);
  Index5 stride;
  Index dense = 1;
  for (std::size_t a = 5; a-- > 0; dense *= v.size[order[a]]) stride[order[a]] = dense;
  return stride;
}

void add(const View& dst, const View& src, int threads) {
  if (dst.empty()) return;
  if (!dst.plain())
    return for_each_plain(
        dst, [&](const View& part, Index row, Index c) { add(part, src.at({row, c, 0, 0, 0}, part.size), threads); });
  const auto order = outermost_first(dst);
  View d = reordered(dst, order), s = reordered(src, order);
  // Axes that are dense in both views become one long row.
  for (std::size_t a = 4; a-- > 0;) {
    if (d.stride[a] != d.stride[4] * d.size[4] || s.stride[a] != s.stride[4] * s.size[4]) break;
    d.size[4] *= d.size[a], s.size[4] *= s.size[a];
    d.size[a] = s.size[a] = 1;
  }
  if (d.dtype == DType::float64)
    add_rows<double>(d, s, threads);
  else
    add_rows<float>(d, s, threads);
}

}  // namespace convbwd
