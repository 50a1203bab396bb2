// Tensors of a test: any element type, any memory layout, NaN wherever there is no element.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/formats.h"
#include "base/view.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace convbwd::test {

#define CONVBWD_NAME(name, type) DType::name,
inline constexpr DType kDTypeList[] = {CONVBWD_TYPE_LIST(CONVBWD_NAME)};  // operands as they are read
#undef CONVBWD_NAME
inline constexpr int kResultDTypes = 6;  // of them, what tensors may have

/// Whether passes in T bring in rows of a type: in double no operand is rounded.
template <class T>
constexpr bool reads(DType t) {
  return sizeof(T) == 4 || storage_of(t) == t;
}
/// Whether they transpose it: in float only the bias may be float64.
template <class T>
constexpr bool transposes(DType t) {
  return reads<T>(t) && size_of(t) <= sizeof(T);
}

/// apart has rows of adjacent elements, blocked axis 1 in blocks of four. broadcast and expanded have zero strides,
/// which only operands may have; the last result layout is kResultLayouts - 1.
enum class Layout : std::uint8_t {
  dense,
  channels_last,
  reversed,
  gaps,
  apart,
  permuted,
  blocked,
  broadcast,
  expanded
};
inline constexpr int kLayouts = 9, kResultLayouts = 7;

/// Calls f(element type{}) for a dtype.
template <class F>
decltype(auto) with_type(DType t, F&& f) {
  switch (t) {
#define CONVBWD_CASE(name, type) \
  case DType::name:              \
    return f(type{});
    CONVBWD_TYPE_LIST(CONVBWD_CASE)
#undef CONVBWD_CASE
  }
  __builtin_unreachable();
}

template <class E>
double get(const E* p, Index i) {
  if constexpr (sizeof(E) == 8)
    return static_cast<double>(p[i]);
  else
    return static_cast<double>(widen(p[i]));
}
inline double get(const void* p, DType t, Index i) {
  return with_type(t, [&](auto e) { return get(static_cast<const decltype(e)*>(p), i); });
}
/// Exact for the small integers that tests are made of.
inline void set(void* p, DType t, Index i, double value) {
  with_type(t, [&](auto e) {
    auto* q = static_cast<decltype(e)*>(p) + i;
    if constexpr (sizeof(e) == 8)
      *q = value;
    else
      narrow(static_cast<float>(value), *q);
  });
}

/// Calls f for every index of a size, the last axis running fastest.
template <class F>
void for_each_index(const Index5& size, F&& f) {
  Index5 i;
  for (i[0] = 0; i[0] < size[0]; ++i[0])
    for (i[1] = 0; i[1] < size[1]; ++i[1])
      for (i[2] = 0; i[2] < size[2]; ++i[2])
        for (i[3] = 0; i[3] < size[3]; ++i[3])
          for (i[4] = 0; i[4] < size[4]; ++i[4]) f(static_cast<const Index5&>(i));
}

class TestTensor {
 public:
  TestTensor(const Index5& size, DType dtype, Layout layout = Layout::dense)
      : view_{nullptr, dtype, size, strides(size, layout), split(size, layout)},
        first_(first()),
        buffer_(span() * size_of(dtype), 8) {
    view_.data = buffer_.as<std::byte>() + first_ * static_cast<Index>(size_of(dtype));
  }

  const View& view() const { return view_; }
  std::size_t bytes() const { return span() * size_of(view_.dtype); }
  const void* memory() { return buffer_.data(); }

  void fill_integers(Random& random, Index low, Index high) {
    for_each_index(view_.size, [&](const Index5& i) {
      set(view_.data, view_.dtype, view_.offset(i), static_cast<double>(random.integer(low, high)));
    });
  }
  void fill_reals(Random& random) {
    for_each_index(view_.size,
                   [&](const Index5& i) { set(view_.data, view_.dtype, view_.offset(i), random.real(-1, 1)); });
  }
  /// Elements in index order.
  std::vector<double> values() const {
    std::vector<double> v;
    v.reserve(count());
    with_type(view_.dtype, [&](auto e) {
      const auto* p = static_cast<const decltype(e)*>(view_.data);
      for_each_index(view_.size, [&](const Index5& i) { v.push_back(get(p, view_.offset(i))); });
    });
    return v;
  }
  /// Whether memory between the elements is as it was.
  bool gaps_intact() {
    if (span() == count()) return true;
    std::vector<bool> element(span());
    for_each_index(view_.size,
                   [&](const Index5& i) { element[static_cast<std::size_t>(first_ + view_.offset(i))] = true; });
    const std::size_t item = size_of(view_.dtype);
    const std::byte* p = buffer_.as<std::byte>();
    for (std::size_t i = 0; i < element.size(); ++i)
      if (!element[i] &&
          !std::all_of(p + i * item, p + (i + 1) * item, [](std::byte b) { return b == std::byte{0xFF}; }))
        return false;
    return true;
  }

 private:
  static constexpr Index kBlock = 4;
  static View::Split split(const Index5& size, Layout layout) {
    if (layout != Layout::blocked) return {};
    return {kBlock, size[3] * size[4] * kBlock, 0};
  }
  static Index5 strides(const Index5& size, Layout layout) {
    std::array<std::size_t, 5> order{4, 3, 2, 1, 0};  // the fastest first
    if (layout == Layout::channels_last) order = {1, 4, 3, 2, 0};
    if (layout == Layout::permuted) order = {0, 3, 1, 4, 2};
    Index5 stride;
    Index step = layout == Layout::gaps ? 2 : 1;
    const Index gap = layout == Layout::gaps || layout == Layout::apart ? 1 : 0;
    for (const std::size_t a : order) {
      stride[a] = layout == Layout::reversed ? -step : step;
      step *= size[a] + gap;
    }
    if (layout == Layout::blocked) {
      const Index plane = size[3] * size[4] * kBlock, depth = (size[1] + kBlock - 1) / kBlock * plane;
      stride = {size[2] * depth, 1, depth, size[4] * kBlock, kBlock};
    }
    if (layout == Layout::broadcast) stride[0] = stride[3] = 0;
    if (layout == Layout::expanded) stride = {0, 0, 0, 0, 0};
    return stride;
  }
  Index first() const {
    Index low = 0;
    for (std::size_t a = 0; a < 5; ++a)
      if (view_.stride[a] < 0) low -= (view_.size[a] - 1) * view_.stride[a];
    return low;
  }
  std::size_t count() const {
    Index n = 1;
    for (const Index size : view_.size) n *= size;
    return static_cast<std::size_t>(n);
  }
  std::size_t span() const {
    if (!view_.plain()) return static_cast<std::size_t>(view_.size[0] * view_.stride[0]);
    Index n = 1;
    for (std::size_t a = 0; a < 5; ++a)
      n += (view_.size[a] - 1) * (view_.stride[a] < 0 ? -view_.stride[a] : view_.stride[a]);
    return static_cast<std::size_t>(n);
  }

  View view_;
  Index first_;
  GuardedBuffer buffer_;
};

}  // namespace convbwd::test
