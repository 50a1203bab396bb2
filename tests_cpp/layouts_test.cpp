// Memory formats from C++. ../tests_py/test_memory_formats.py has the published offsets.
#include "convbwd/layouts.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "support/guarded_buffer.h"

namespace convbwd::test {
namespace {

std::size_t elements(const Shape& shape) {
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

TEST(MemoryFormats, SplitTheChannels) {
  const Shape shape{1, 3, 1, 2, 2};
  std::vector<float> x(12), packed(16), back(12);
  std::iota(x.begin(), x.end(), 1.0F);
  EXPECT_EQ(packed_shape(MemoryFormat::ndc1hwc0, shape, 1, 4), (Shape{1, 1, 1, 2, 2, 4}));
  convert_format(packed.data(), MemoryFormat::ndc1hwc0, x.data(), MemoryFormat::ncdhw, shape, sizeof(float), 1, 4);
  EXPECT_EQ(packed, (std::vector<float>{1, 5, 9, 0, 2, 6, 10, 0, 3, 7, 11, 0, 4, 8, 12, 0}));
  convert_format(back.data(), MemoryFormat::ncdhw, packed.data(), MemoryFormat::ndc1hwc0, shape, sizeof(float), 1, 4);
  EXPECT_EQ(back, x);
}

TEST(MemoryFormats, GoFromAnyToAnyWithinTheirMemory) {
  const Shape shape{12, 5, 2, 3, 2};
  const std::int64_t groups = 3, c0 = 8;
  constexpr MemoryFormat kFormats[] = {MemoryFormat::ncdhw, MemoryFormat::ndhwc, MemoryFormat::dhwcn,
                                       MemoryFormat::ndc1hwc0, MemoryFormat::fractal_z_3d};
  std::vector<std::uint16_t> plain(elements(shape));
  std::iota(plain.begin(), plain.end(), std::uint16_t{1});
  for (const MemoryFormat a : kFormats)
    for (const MemoryFormat b : kFormats) {
      GuardedBuffer in_a(elements(packed_shape(a, shape, groups, c0)) * 2, 1);  // unaligned
      GuardedBuffer in_b(elements(packed_shape(b, shape, groups, c0)) * 2);
      std::vector<std::uint16_t> back(plain.size());
      convert_format(in_a.data(), a, plain.data(), MemoryFormat::ncdhw, shape, 2, groups, c0);
      convert_format(in_b.data(), b, in_a.data(), a, shape, 2, groups, c0);
      convert_format(back.data(), MemoryFormat::ncdhw, in_b.data(), b, shape, 2, groups, c0);
      EXPECT_EQ(back, plain) << name_of(a) << " to " << name_of(b);
    }
}

TEST(MemoryFormats, HaveNames) {
  for (const MemoryFormat f :
       {MemoryFormat::nchw, MemoryFormat::fractal_z, MemoryFormat::ncdhw, MemoryFormat::fractal_z_3d})
    EXPECT_EQ(parse_memory_format(name_of(f)), f);
  EXPECT_THROW(parse_memory_format("nchw"), Error);
}

TEST(MemoryFormats, RefuseWhatDoesNotFit) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(packed_shape(MemoryFormat::nchw, {1, 2, 3}, 1, 8), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::nchw, {1, 2, 3, -1}, 1, 8), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::nchw, {4, 2, 3, 1}, 3, 8), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::nchw, {4, 2, 3, 1}, 0, 8), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::nc1hwc0, {4, 2, 3, 1}, 1, 0), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::nc1hwc0, {4, 2, 3, 1}, 1, kMost), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::fractal_z, {4, 2, 3, 1}, 1, kMost), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::fractal_z, {kMost, kMost, 1, 1}, 1, 8), Error);
  EXPECT_THROW(packed_shape(MemoryFormat::fractal_z, {kMost, 1, 1, 1}, kMost, 8), Error);
  EXPECT_THROW(packed_shape(static_cast<MemoryFormat>(10), {4, 2, 3, 1}, 1, 8), Error);
  std::uint32_t element = 0;
  EXPECT_THROW(convert_format(&element, MemoryFormat::nchw, &element, MemoryFormat::nchw, {1, 1, 1, 1}, 3, 1, 8),
               Error);
  convert_format(&element, MemoryFormat::nchw, &element, MemoryFormat::nhwc, {0, kMost, kMost, 2}, 4, 1, 8);  // nothing
}

}  // namespace
}  // namespace convbwd::test
