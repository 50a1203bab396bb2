#include "format/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "support/guarded_buffer.h"
#include "support/isa.h"
#include "support/plain_kernels.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {
namespace {

class Copy : public testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  // Calls f(kernels, zero of the compute type) for those that run here, if they read the type, and for a set with odd
  // vectors.
  template <class F>
  static void with_sets(F&& f) {
    if (std::get<1>(GetParam())) {
      if (reads<double>(std::get<0>(GetParam()))) f(kernel_set<double>(active_isa()), double{});
      f(plain::set<double, 3, 1>("odd"), double{});
    } else {
      f(kernel_set<float>(active_isa()), float{});
      f(plain::set<float, 3, 1>("odd"), float{});
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, Copy, testing::Combine(testing::ValuesIn(kDTypeList), testing::Bool()),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) ? "_to_f64" : "_to_f32");
                         });

// Source strides of every kind and sign, destinations with their axes in any order and gaps between them.
TEST_P(Copy, CopyInPutsEveryElementInItsPlace) {
  const DType dtype = std::get<0>(GetParam());
  with_sets([&](const auto& kernels, auto zero) {
    using T = decltype(zero);
    Random random(11);
    for (int round = 0; round < 400; ++round) {
      Index5 size, stride;
      for (Index& s : size) s = random.integer(0, 9) == 0 ? 1 : random.integer(1, 5);
      size[static_cast<std::size_t>(random.integer(0, 4))] = random.integer(1, 90);
      if (size_of(dtype) > sizeof(T)) size = {1, size[1], 1, 1, 1};  // a bias
      TestTensor src(size, dtype, static_cast<Layout>(random.integer(0, kLayouts - 1)));
      src.fill_integers(random, -99, 99);
      std::array<std::size_t, 5> order{0, 1, 2, 3, 4};
      if (random.integer(0, 1))
        for (std::size_t a = 4; a > 0; --a)
          std::swap(order[a], order[static_cast<std::size_t>(random.integer(0, static_cast<Index>(a)))]);
      Index elements = random.integer(0, 3) == 0 ? 2 : 1;  // an innermost stride above one now and then
      for (std::size_t i = 5; i-- > 0;) {
        stride[order[i]] = elements;
        elements *= size[order[i]] + (random.integer(0, 2) == 0 ? 1 : 0);
      }
      GuardedBuffer buffer(static_cast<std::size_t>(elements) * sizeof(T), sizeof(T));
      T* dst = buffer.template as<T>();
      copy_in(kernels, dst, stride, src.view());
      Index written = 0;
      for_each_index(size, [&](const Index5& i) {
        Index at = 0;
        for (std::size_t a = 0; a < 5; ++a) at += i[a] * stride[a];
        EXPECT_EQ(static_cast<double>(dst[at]), get(src.view().data, dtype, src.view().offset(i)));
        ++written;
      });
      ASSERT_EQ(elements - std::count_if(dst, dst + elements, [](T v) { return std::isnan(v); }), written);
      ASSERT_FALSE(HasFailure()) << kernels.name << " round " << round;
    }
  });
}

TEST_P(Copy, CopyInOfNothingTouchesNothing) {
  with_sets([&](const auto& kernels, auto zero) {
    using T = decltype(zero);
    T untouched{7};
    copy_in(kernels, &untouched, {1, 1, 1, 1, 1},
            View{nullptr, std::get<0>(GetParam()), {3, 0, 2, 1, 4}, {1, 1, 1, 1, 1}});
    EXPECT_EQ(untouched, T{7});
  });
}

TEST_P(Copy, RowsKeepTheirStride) {
  const DType dtype = std::get<0>(GetParam());
  with_sets([&](const auto& kernels, auto zero) {
    using T = decltype(zero);
    Random random(12);
    for (const Index stride : {1, 2, 5, 0, -1, -3})
      for (const Index count : {0, 1, 7, 64, 255, 256, 257, 600}) {
        const Index step = stride < 0 ? -stride : stride, span = count ? (count - 1) * step + 1 : 0;
        const Index first = stride < 0 ? std::max<Index>(span - 1, 0) : 0;
        GuardedBuffer memory(static_cast<std::size_t>(span) * size_of(dtype), size_of(dtype));
        for (Index i = 0; i < count; ++i)
          set(memory.data(), dtype, first + i * stride, static_cast<double>(random.integer(-99, 99)));
        GuardedBuffer row(static_cast<std::size_t>(count) * sizeof(T), sizeof(T));
        load_row(kernels, row.template as<T>(), advance(memory.data(), dtype, first), dtype, stride, count);
        for (Index i = 0; i < count; ++i)
          ASSERT_EQ(static_cast<double>(row.template as<T>()[i]), get(memory.data(), dtype, first + i * stride));
        if (stride == 0) continue;
        const auto bytes = static_cast<std::size_t>(span) * size_of(dtype);
        GuardedBuffer back(bytes, size_of(dtype));
        store_row(kernels, advance(back.data(), dtype, first), dtype, stride, row.template as<T>(), count);
        ASSERT_EQ(std::memcmp(back.data(), memory.data(), bytes), 0) << "stride " << stride << " count " << count;
      }
  });
}

}  // namespace
}  // namespace convbwd::test
