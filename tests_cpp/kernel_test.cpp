// Every kernel of the list against the plain loops of its contract. Operands are small integers, so that sums are exact
// in any order; results are compared bit by bit together with the memory around them.
#include "kernels/kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "format/copy.h"
#include "support/guarded_buffer.h"
#include "support/isa.h"
#include "support/plain_kernels.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {
namespace {

template <class T>
std::vector<T> integers(Random& random, std::int64_t count) {
  std::vector<T> v(static_cast<std::size_t>(count));
  for (T& e : v) e = static_cast<T>(random.integer(-4, 4));
  return v;
}

void set_value(GuardedBuffer& buffer, DType dtype, Index i, Random& random) {
  set(buffer.data(), dtype, i, static_cast<double>(random.integer(-4, 4)));
}

// Elements of one type, misaligned; two of them begin with the same contents.
template <class T>
class Memory {
 public:
  explicit Memory(std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(T)), buffer_(bytes_, sizeof(T)) {}
  T* data() { return buffer_.template as<T>(); }
  void fill(Random& random) {
    for (std::size_t i = 0; i < bytes_ / sizeof(T); ++i) data()[i] = static_cast<T>(random.integer(-4, 4));
  }
  void copy(Memory& other) { std::memcpy(buffer_.data(), other.buffer_.data(), bytes_); }
  bool operator==(Memory& other) { return std::memcmp(buffer_.data(), other.buffer_.data(), bytes_) == 0; }

 private:
  std::size_t bytes_;
  GuardedBuffer buffer_;
};

// ---------------------------------------------------------------------------------------------------------- gather

struct GatherCase {
  Isa isa;
  bool wide;
  int number;
};

template <class T>
void list_gathers(std::vector<GatherCase>& cases) {
  for (const Isa isa : compiled_isas())
    for (int i = 0; i < kernel_set<T>(isa).gather_count; ++i) cases.push_back({isa, sizeof(T) == 8, i});
}
std::vector<GatherCase> gather_cases() {
  std::vector<GatherCase> cases;
  list_gathers<float>(cases);
  list_gathers<double>(cases);
  return cases;
}
std::string name_of_gather(const testing::TestParamInfo<GatherCase>& info) {
  const GatherCase& c = info.param;
  std::string name =
      c.wide ? kernel_set<double>(c.isa).gather[c.number].name : kernel_set<float>(c.isa).gather[c.number].name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return std::string(name_of(c.isa)) + (c.wide ? "_f64_" : "_f32_") + name;
}
void PrintTo(const GatherCase& c, std::ostream* out) { *out << name_of(c.isa) << " number " << c.number; }

class Gather : public testing::TestWithParam<GatherCase> {
 protected:
  void SetUp() override {
    if (!supported(GetParam().isa)) GTEST_SKIP() << "needs " << name_of(GetParam().isa);
  }
};

template <class T>
void check_gather(const GatherKernel<T>& kernel) {
  Random random(kernel.nr);
  constexpr std::int64_t kImage = 900;
  const std::vector<T> image = integers<T>(random, kImage);
  const T* x = image.data() + kImage / 2;
  const std::vector<std::vector<std::int64_t>> lengths = {{}, {1}, {0}, {7}, {3, 0, 5}, {1, 1, 1, 1}, {16, 9}, {33, 2}};
  for (const std::ptrdiff_t xstep : {1, 7, -1, -5, 0})
    for (const std::ptrdiff_t bstep : {kernel.nr, kernel.nr + 3})
      for (const auto& segment_lengths : lengths)
        for (int m = 1; m <= kernel.mr + 5; ++m)
          for (const bool accumulate : {false, true}) {
            // Rows that lie anywhere, equally far apart two by two, or side by side.
            const int together = std::array{1, 2, 17}[static_cast<std::size_t>(m % 3)];
            const std::ptrdiff_t apart = together == 2 ? random.integer(-9, 9) : 1;
            std::vector<Segment> segments;
            std::int64_t panel = 1;  // begins misaligned
            for (const std::int64_t len : segment_lengths) {
              segments.push_back({random.integer(-40, 40), panel, len});
              panel += len * bstep + 2;
            }
            const std::vector<T> b = integers<T>(random, panel + bstep);
            std::vector<std::ptrdiff_t> row, crow;
            std::int64_t elements = 0;
            for (int i = 0; i < m; ++i) {
              row.push_back(i % together > 0 ? row.back() + apart : random.integer(-99, 99));
              crow.push_back(elements + random.integer(0, 2));
              elements = crow.back() + kernel.nr;
            }
            std::reverse(crow.begin(), crow.end());
            Memory<T> c(elements), expected(elements);
            if (accumulate) c.fill(random);
            expected.copy(c);
            const auto count = static_cast<std::int64_t>(segments.size());
            plain::gather(kernel.nr, m, x, row.data(), xstep, segments.data(), count, b.data(), bstep, expected.data(),
                          crow.data(), accumulate);
            kernel.run(m, x, row.data(), xstep, segments.data(), count, b.data(), bstep, c.data(), crow.data(),
                       accumulate);
            ASSERT_TRUE(c == expected) << "m=" << m << " segments=" << count << " xstep=" << xstep << " bstep=" << bstep
                                       << " accumulate=" << accumulate;
          }
}

TEST_P(Gather, MultipliesGatheredRowsByAPanel) {
  const auto [isa, wide, number] = GetParam();
  const auto check = [i = number](const auto& set) {
    check_gather(set.gather[i]);
    check_gather(set.blocked[i]);
  };
  if (wide)
    check(kernel_set<double>(isa));
  else
    check(kernel_set<float>(isa));
}

// 1 added to a large number is lost, the sum of a block of ones is not.
TEST_P(Gather, BlocksAreSummedOnTheirOwn) {
  const auto check = [i = GetParam().number](const auto& set, auto zero) {
    using T = decltype(zero);
    const GatherKernel<T>& kernel = set.blocked[i];
    std::vector<T> x(64, T{1}), b(static_cast<std::size_t>(kernel.nr), T{1}), c(b.size());
    x[0] = 2 / std::numeric_limits<T>::epsilon();
    const std::ptrdiff_t row = 0, crow = 0;
    const Segment segment{0, 0, 64};
    kernel.run(1, x.data(), &row, 1, &segment, 1, b.data(), 0, c.data(), &crow, false);
    for (const T sum : c) EXPECT_EQ(sum, x[0] + 32);
  };
  if (GetParam().wide)
    check(kernel_set<double>(GetParam().isa), double{});
  else
    check(kernel_set<float>(GetParam().isa), float{});
}

// Padding is never multiplied, so what is not finite goes where the definition says and nowhere else.
TEST_P(Gather, NanStaysInItsRow) {
  const auto [isa, wide, number] = GetParam();
  const auto check = [](const auto& kernel, auto zero) {
    using T = decltype(zero);
    std::vector<T> x(static_cast<std::size_t>(kernel.mr), T{1}), b(static_cast<std::size_t>(kernel.nr), T{2});
    std::vector<T> c(static_cast<std::size_t>(kernel.mr * kernel.nr));
    std::vector<std::ptrdiff_t> row, crow;
    for (int i = 0; i < kernel.mr; ++i) row.push_back(i), crow.push_back(i * kernel.nr);
    x.back() = std::numeric_limits<T>::quiet_NaN();
    const Segment segment{0, 0, 1};
    kernel.run(kernel.mr, x.data(), row.data(), 1, &segment, 1, b.data(), kernel.nr, c.data(), crow.data(), false);
    for (int i = 0; i < kernel.mr * kernel.nr; ++i)
      EXPECT_EQ(std::isnan(c[static_cast<std::size_t>(i)]), i / kernel.nr == kernel.mr - 1) << i;
  };
  if (wide)
    check(kernel_set<double>(isa).gather[number], double{});
  else
    check(kernel_set<float>(isa).gather[number], float{});
}

INSTANTIATE_TEST_SUITE_P(, Gather, testing::ValuesIn(gather_cases()), name_of_gather);

// ------------------------------------------------------------------------------------------------- the other kernels

class Kernels : public testing::TestWithParam<std::tuple<Isa, bool>> {
 protected:
  void SetUp() override {
    if (!supported(std::get<0>(GetParam()))) GTEST_SKIP() << "needs " << name_of(std::get<0>(GetParam()));
  }
  // Calls f(kernel set, zero of the compute type).
  template <class F>
  static void with_set(F&& f) {
    const auto [isa, wide] = GetParam();
    if (wide)
      f(kernel_set<double>(isa), double{});
    else
      f(kernel_set<float>(isa), float{});
  }
};

INSTANTIATE_TEST_SUITE_P(, Kernels, testing::Combine(testing::ValuesIn(compiled_isas()), testing::Bool()),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) ? "_f64" : "_f32");
                         });

TEST_P(Kernels, TilesAreConsistent) {
  with_set([](const auto& set, auto) {
    ASSERT_GE(set.gather_count, 1);
    for (int i = 0; i < set.gather_count; ++i) {
      EXPECT_EQ(set.gather[i].nr, (i + 1) * set.lanes);
      EXPECT_GE(set.gather[i].mr, 1);
      EXPECT_EQ(set.blocked[i].nr, set.gather[i].nr);
      EXPECT_EQ(set.blocked[i].mr, set.gather[i].mr);
    }
    EXPECT_STREQ(set.name, name_of(std::get<0>(GetParam())));
  });
}

TEST_P(Kernels, RowsMultipliesShiftedRowsByWeights) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(1);
    const std::vector<T> s = integers<T>(random, 900);
    for (const std::int64_t len : {1, 3, 16, 17, 33, 64, 100, 129, 300}) {
      for (const std::int64_t taps : {0, 1, 5})
        for (int m = 1; m <= set.rows_mr; ++m)
          for (const bool accumulate : {false, true}) {
            const std::vector<T> w = integers<T>(random, taps * m + 1);
            std::vector<std::ptrdiff_t> offset;
            for (std::int64_t t = 0; t < taps; ++t) offset.push_back(random.integer(-200, 250));
            const std::ptrdiff_t ldc = len + random.integer(0, 5);
            Memory<T> c((m - 1) * ldc + len), expected((m - 1) * ldc + len);
            if (accumulate) c.fill(random);
            expected.copy(c);
            plain::rows(m, len, s.data() + 250, offset.data(), taps, w.data(), expected.data(), ldc, accumulate);
            set.rows(m, len, s.data() + 250, offset.data(), taps, w.data(), c.data(), ldc, accumulate);
            ASSERT_TRUE(c == expected) << "m=" << m << " len=" << len << " taps=" << taps
                                       << " accumulate=" << accumulate;
          }
    }
  });
}

TEST_P(Kernels, StackedRowsMultipliesRowsBelowEachOther) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(12);
    for (const std::int64_t len : {1, 15, 16, 17, 40, 113, 150, 300})
      for (const std::int64_t height : {2, 3, 5})
        for (const std::int64_t groups : {0, 1, 4})
          for (std::int64_t rows = 2; rows < 9; ++rows)
            for (const bool accumulate : {false, true}) {
              const std::ptrdiff_t row = len + random.integer(0, 20);
              const std::int64_t reach = (rows + height) * row + set.lanes + 64;
              const std::vector<T> s = integers<T>(random, reach), w = integers<T>(random, groups * height + 1);
              std::vector<std::ptrdiff_t> offset;  // only the first one of a group counts
              for (std::int64_t i = 0; i < groups * height; ++i)
                offset.push_back(i % height == 0 ? random.integer(-30, 30) : 1 << 30);
              const std::ptrdiff_t crow = len + random.integer(0, 20);
              const std::int64_t size = (rows - 1) * crow + len;
              Memory<T> c(size), expected(size);
              c.fill(random);
              expected.copy(c);
              plain::stacked_rows(rows, len, s.data() + 30, row, offset.data(), groups, height, w.data(),
                                  expected.data(), crow, accumulate);
              set.stacked_rows(rows, len, s.data() + 30, row, offset.data(), groups, height, w.data(), c.data(), crow,
                               accumulate);
              ASSERT_TRUE(c == expected) << "len=" << len << " height=" << height << " groups=" << groups
                                         << " rows=" << rows << " accumulate=" << accumulate;
            }
  });
}

// One plan computes rows with either kernel, as their number and width suggest: the bits must be the same.
TEST_P(Kernels, StackedRowsSumsInTheOrderOfRows) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(13);
    constexpr std::int64_t kRow = 96, kHeight = 7, kGroups = 5;
    std::vector<std::ptrdiff_t> offset;
    for (std::int64_t g = 0; g < kGroups; ++g)
      for (std::int64_t h = 0; h < kHeight; ++h) offset.push_back(g + h * kRow);
    for (const std::int64_t len : {20, 80})
      for (std::int64_t rows = 2; rows < 10; ++rows) {
        std::vector<T> s(static_cast<std::size_t>((rows + kHeight) * kRow + 64)), w(kGroups * kHeight);
        for (T& value : s) value = static_cast<T>(random.real(-1, 1));
        for (T& value : w) value = static_cast<T>(random.real(-1, 1));
        std::vector<T> one(static_cast<std::size_t>(rows * kRow)), together(one.size());
        for (std::int64_t r = 0; r < rows; ++r)
          set.rows(1, len, s.data() + r * kRow, offset.data(), kGroups * kHeight, w.data(), one.data() + r * kRow, 0,
                   false);
        set.stacked_rows(rows, len, s.data(), kRow, offset.data(), kGroups, kHeight, w.data(), together.data(), kRow,
                         false);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t p = 0; p < len; ++p) {
            const auto at = static_cast<std::size_t>(r * kRow + p);
            ASSERT_EQ(one[at], together[at]) << "len=" << len << " rows=" << rows;
          }
      }
  });
}

TEST_P(Kernels, DotsAddsProductsOfRows) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(2);
    const std::vector<T> image = integers<T>(random, 900);
    for (const std::int64_t len : {0, 1, 7, 16, 31, 200})
      for (int m = 1; m <= set.dots_mr; ++m)
        for (int nt = 1; nt <= set.dots_nt; ++nt)
          for (const bool falling : {false, true}) {
            const std::int64_t whole = (len + set.lanes - 1) / set.lanes * set.lanes;
            std::vector<T> a(static_cast<std::size_t>(m * (whole + 3)));
            for (int i = 0; i < m; ++i)
              for (std::int64_t p = 0; p < len; ++p)
                a[static_cast<std::size_t>(i * (whole + 3) + p)] = static_cast<T>(random.integer(-4, 4));
            std::vector<std::ptrdiff_t> offset;
            for (int j = 0; j < nt; ++j) offset.push_back(random.integer(-300, 300));
            std::vector<T> x = image;
            const auto end = x.begin() + 300 + *std::max_element(offset.begin(), offset.end()) + len;
            std::fill(end, x.end(), std::numeric_limits<T>::quiet_NaN());  // behind a column: must not be read
            const std::ptrdiff_t lda = falling ? -whole - 3 : whole + 3, ldo = nt + 2;
            const T* first = falling ? a.data() + (m - 1) * (whole + 3) : a.data();
            Memory<T> out(m * ldo), expected(m * ldo);
            out.fill(random);
            expected.copy(out);
            plain::dots(m, nt, len, first, lda, x.data() + 300, offset.data(), expected.data(), ldo, {});
            set.dots(m, nt, len, first, lda, x.data() + 300, offset.data(), out.data(), ldo,
                     falling ? Meanwhile{} : Meanwhile{x.data(), 24});
            ASSERT_TRUE(out == expected) << "m=" << m << " nt=" << nt << " len=" << len;
          }
  });
}

TEST_P(Kernels, DepthwiseMultipliesPixelsByTaps) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(7);
    const std::ptrdiff_t lanes = set.lanes;
    for (const std::int64_t cols : {0, 1, 2, 5, 8, 12, 13, 14, 15, 28, 31})
      for (const std::int64_t taps : {0, 1, 9})
        for (const std::ptrdiff_t step : {1, 2})
          for (const std::ptrdiff_t gap : {1, 3}) {
            const bool accumulate = random.integer(0, 1) == 1;
            constexpr std::int64_t kRows = 3;
            const std::ptrdiff_t sstep = step * lanes, srow = 40 * sstep + 1, ostep = gap * lanes,
                                 orow = cols * ostep + 2;
            const std::vector<T> s = integers<T>(random, (kRows + 1) * srow), w = integers<T>(random, 12 * lanes);
            std::vector<DepthwiseTap> tap;
            for (std::int64_t t = 0; t < taps; ++t)
              tap.push_back({random.integer(0, 8 * lanes), random.integer(0, 11 * lanes)});
            Memory<T> got(kRows * orow + 1), expected(kRows * orow + 1);
            got.fill(random);
            expected.copy(got);
            plain::depthwise(set.lanes, kRows, cols, expected.data(), orow, ostep, s.data(), srow, sstep, tap.data(),
                             taps, w.data(), accumulate);
            set.depthwise(kRows, cols, got.data(), orow, ostep, s.data(), srow, sstep, tap.data(), taps, w.data(),
                          accumulate, {s.data(), 24});
            ASSERT_TRUE(got == expected) << cols << " columns, " << taps << " taps, steps " << sstep << ' ' << ostep;
          }
  });
}

TEST_P(Kernels, DepthwiseTapsAddsProductsOfPixels) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(8);
    const std::ptrdiff_t lanes = set.lanes;
    for (const std::int64_t h : {1, 2, 3, 4, 5, 7, 11})
      for (const std::int64_t w : {1, 2, 3, 4, 5, 6, 9})
        for (const std::int64_t cols : {0, 1, 4})
          for (const std::ptrdiff_t step : {1, 2}) {
            constexpr std::int64_t kRows = 3;
            const std::ptrdiff_t xstep = step * lanes, xw = lanes * 3, xrow = (cols * step + 3 * w) * lanes + 1,
                                 xh = xrow * 2, yrow = cols * lanes + 1, oh = w * lanes + 1;
            const std::vector<T> y = integers<T>(random, kRows * yrow + 1),
                                 x = integers<T>(random, (kRows + 2 * h) * xrow);
            Memory<T> got(h * oh), expected(h * oh);
            got.fill(random);
            expected.copy(got);
            plain::depthwise_taps(set.lanes, h, w, kRows, cols, y.data(), yrow, x.data(), xrow, xstep, xh, xw,
                                  expected.data(), oh);
            set.depthwise_taps(h, w, kRows, cols, y.data(), yrow, x.data(), xrow, xstep, xh, xw, got.data(), oh);
            ASSERT_TRUE(got == expected) << h << 'x' << w << " taps, " << cols << " columns, step " << xstep;
          }
  });
}

TEST_P(Kernels, TransposeConvertsAndSpreadsColumnsOverDestinations) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    const KernelSet<T>& oracle = plain::set<T, 1, 1>("plain");
    Random random(3);
    for (const DType dtype : kDTypeList) {
      const int t = static_cast<int>(dtype);
      ASSERT_EQ(set.transpose[t] != nullptr, transposes<T>(dtype)) << name_of(dtype);
      if (!transposes<T>(dtype)) continue;
      for (const int rows : {0, 1, 5, 16, 17, 33})
        for (const int more : {0, 1, 7})
          for (const std::int64_t cols : {0, 1, 2, 3, 4, 5, 6, 7, 9, 14, 16, 18, 35})
            for (const std::int64_t period : {std::int64_t{1}, std::int64_t{3}, std::int64_t{9}, cols}) {
              if (period == 0) continue;
              const bool natural = period == cols || random.integer(0, 1);
              const std::ptrdiff_t lds = cols + (period == cols ? random.integer(0, 1) : random.integer(0, 3));
              std::vector<std::ptrdiff_t> reversed(static_cast<std::size_t>(rows));
              std::iota(reversed.rbegin(), reversed.rend(), 0);
              const std::ptrdiff_t* row = natural ? nullptr : reversed.data();
              GuardedBuffer src(static_cast<std::size_t>(rows * lds) * size_of(dtype), size_of(dtype));
              for (std::int64_t i = 0; i < rows * lds; ++i) set_value(src, dtype, i, random);
              const std::ptrdiff_t rows_out = rows + more, ldd = rows_out + random.integer(0, 2);
              const std::int64_t lines = (cols + period - 1) / period, block = lines * ldd;
              Memory<T> got(period * block), expected(period * block);
              std::vector<T*> to, to_expected;
              for (std::int64_t p = 0; p < period; ++p) {
                const bool left_out = p % 4 == 1;
                to.push_back(left_out ? nullptr : got.data() + p * block);
                to_expected.push_back(left_out ? nullptr : expected.data() + p * block);
              }
              oracle.transpose[t](to_expected.data(), period, ldd, src.data(), row, lds, rows, rows + more, cols, {});
              // What is fetched need not exist.
              const Fetch fetch = rows % 2 ? Fetch{20, -100} : Fetch{};
              set.transpose[t](to.data(), period, ldd, src.data(), row, lds, rows, rows + more, cols, fetch);
              ASSERT_TRUE(got == expected)
                  << name_of(dtype) << " rows=" << rows << "+" << more << " cols=" << cols << " period=" << period;
            }
    }
  });
}

TEST_P(Kernels, PadConvertsRowsBetweenZeros) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    const KernelSet<T>& oracle = plain::set<T, 1, 1>("plain");
    Random random(4);
    for (const DType dtype : kDTypeList) {
      const int t = static_cast<int>(dtype);
      ASSERT_EQ(set.pad[t] != nullptr, reads<T>(dtype)) << name_of(dtype);
      if (!reads<T>(dtype)) continue;
      for (const std::int64_t rows : {0, 1, 3})
        for (const std::ptrdiff_t step : {1, 2, -1, 0})
          for (const std::int64_t left : {0, 5})
            for (const std::int64_t width : {0, 1, 7, 16, 23, 40})
              for (const std::int64_t right : {0, 2, 17})
                for (const bool falling : {false, true}) {
                  const std::ptrdiff_t span = width * 2 + 2, ldd = left + width + right + random.integer(0, 2);
                  GuardedBuffer src(static_cast<std::size_t>(rows * span) * size_of(dtype), size_of(dtype));
                  for (std::int64_t i = 0; i < rows * span; ++i) set_value(src, dtype, i, random);
                  const std::ptrdiff_t first = (falling ? (rows - 1) * span : 0) + (step < 0 ? width : 0);
                  const void* from = src.template as<std::byte>() + first * static_cast<std::ptrdiff_t>(size_of(dtype));
                  const std::ptrdiff_t lds = falling ? -span : span;
                  Memory<T> expected(rows * ldd);
                  oracle.pad[t](expected.data(), ldd, from, lds, step, rows, left, width, right, 0);
                  for (const std::ptrdiff_t ahead : {0, 100}) {
                    Memory<T> got(rows * ldd);
                    set.pad[t](got.data(), ldd, from, lds, step, rows, left, width, right, ahead);
                    ASSERT_TRUE(got == expected)
                        << name_of(dtype) << " rows=" << rows << " step=" << step << " width=" << left << "+" << width
                        << "+" << right << " ahead=" << ahead;
                  }
                }
    }
  });
}

// It would fetch all that lies between elements, which need not exist.
TEST_P(Kernels, PadFetchesWhatItReads) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    const float element = 3;
    Memory<T> got(1);
    set.pad[static_cast<int>(DType::float32)](got.data(), 1, &element, 0, std::ptrdiff_t{1} << 60, 1, 0, 1, 0, 100);
    EXPECT_EQ(got.data()[0], 3);
  });
}

TEST_P(Kernels, InterleaveAlternates) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(5);
    for (std::int64_t n = 0; n < 140; ++n)
      for (const std::int64_t rows : {1, 3})
        for (const std::int64_t turns : {1, 2}) {
          const std::int64_t lds = (n + 1) / 2 + 2, ldd = n + 1;
          std::vector<std::vector<T>> data;
          std::vector<const T*> sources;
          for (std::int64_t i = 0; i < 2 * turns; ++i)
            sources.push_back(data.emplace_back(integers<T>(random, rows * lds)).data());
          Memory<T> got(rows * ldd), expected(rows * ldd);
          plain::interleave(expected.data(), ldd, sources.data(), turns, lds, rows, n);
          set.interleave(got.data(), ldd, sources.data(), turns, lds, rows, n);
          ASSERT_TRUE(got == expected) << rows << " rows of " << n << " in " << turns << " turns";
        }
  });
}

// In the same order on every instruction set: equal bits for numbers whose sum depends on the order.
TEST_P(Kernels, SumIsTheSameEverywhere) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(6);
    for (std::int64_t n = 0; n < 200; ++n) {
      std::vector<T> v;
      for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<T>(random.real(-1, 1)));
      ASSERT_EQ(set.sum(v.data(), n), plain::sum(v.data(), n)) << n;
    }
  });
}

// Zeros count, unless they are what makes it more than `enough`.
TEST_P(Kernels, PeakIsTheLargestMagnitudeOverTheMean) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(7);
    for (std::int64_t n = set.lanes; n < 9 * set.lanes; n += set.lanes) {
      std::vector<T> v(static_cast<std::size_t>(n));
      EXPECT_EQ(set.peak(v.data(), n, T(1)), 0);
      for (T& a : v)
        if (random.integer(0, 2) > 0) a = static_cast<T>(random.integer(-3, 3));
      v[static_cast<std::size_t>(random.integer(0, n - 1))] = 0;
      v[static_cast<std::size_t>(random.integer(0, n - 1))] = -8;
      T total = 0;
      int values = 0;
      for (const T a : v) total += std::abs(a), values += a != 0;
      const auto expect = [&](T enough, T of) {
        EXPECT_NEAR(set.peak(v.data(), n, enough), 8 * of / total, 1e-5 * 8 * of / total) << n;
      };
      expect(T(1000), static_cast<T>(n));
      expect(T(1), static_cast<T>(values));
      for (const T bad : {std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
        std::vector<T> w = v;
        w[static_cast<std::size_t>(random.integer(0, n - 1))] = bad;
        EXPECT_TRUE(std::isnan(set.peak(w.data(), n, T(1000))));
      }
    }
  });
}

// ------------------------------------------------------------------------------------------------------ conversions

struct Format {
  DType dtype;
  int mantissa, least_exponent;
};
constexpr Format kFormats[] = {{DType::float16, 10, -14}, {DType::bfloat16, 7, -126}};

// The value of a 16-bit code, from the definition of the format.
double decode(const Format& f, std::uint32_t code) {
  const int exponent_bits = 15 - f.mantissa;
  const std::uint32_t fraction = code & ((1u << f.mantissa) - 1),
                      exponent = code >> f.mantissa & ((1u << exponent_bits) - 1);
  double value = 0;
  if (exponent == (1u << exponent_bits) - 1) {
    value = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else {
    const double significand = fraction + (exponent ? std::ldexp(1., f.mantissa) : 0);
    value = std::ldexp(significand, (exponent ? static_cast<int>(exponent) - 1 : 0) + f.least_exponent - f.mantissa);
  }
  return code & 0x8000u ? -value : value;
}

// The code nearest to a number, ties to even.
std::uint32_t encode(const Format& f, double value) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000u : 0, infinity = (0x7fffu >> f.mantissa) << f.mantissa;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | infinity | 1u << (f.mantissa - 1);
  if (std::isinf(value)) return sign | infinity;
  const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : f.least_exponent, f.least_exponent);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent)));
  const std::uint32_t code = units + (static_cast<std::uint32_t>(exponent - f.least_exponent) << f.mantissa);
  return sign | std::min(code, infinity);
}

TEST_P(Kernels, LoadWidensEveryCodeExactly) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    std::vector<std::uint16_t> codes(1u << 16);
    std::iota(codes.begin(), codes.end(), std::uint16_t{0});
    for (const Format& f : kFormats) {
      Memory<T> got(1 << 16);
      load_row(set, got.data(), codes.data(), f.dtype, 1, 1 << 16);
      for (std::uint32_t c = 0; c < 1u << 16; ++c) {
        const double expected = decode(f, c), value = static_cast<double>(got.data()[c]);
        if (std::isnan(expected))
          ASSERT_TRUE(std::isnan(value)) << c;
        else
          ASSERT_EQ(std::bit_cast<std::uint64_t>(value), std::bit_cast<std::uint64_t>(expected)) << c;
      }
    }
  });
}

// Around every representable number and every tie between two of them; doubles a hair beside a tie are where rounding
// to float32 first would go wrong.
TEST_P(Kernels, StoreRoundsOnceToNearestEven) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    for (const Format& f : kFormats) {
      const std::uint32_t infinity = (0x7fffu >> f.mantissa) << f.mantissa;
      std::vector<T> values{kInfinity,
                            -kInfinity,
                            std::numeric_limits<T>::max(),
                            std::numeric_limits<T>::lowest(),
                            std::numeric_limits<T>::min(),
                            std::numeric_limits<T>::denorm_min(),
                            -std::numeric_limits<T>::denorm_min(),
                            T{0},
                            -T{0},
                            std::numeric_limits<T>::quiet_NaN()};
      for (std::uint32_t c = 0; c < infinity; ++c) {
        const double low = decode(f, c);
        const double high = c + 1 < infinity ? decode(f, c + 1) : 2 * low - decode(f, c - 1);
        const T number = static_cast<T>(low), tie = static_cast<T>((low + high) / 2);
        for (const T v : {number, tie})
          for (const T near : {v, std::nextafter(v, kInfinity), std::nextafter(v, -kInfinity)}) {
            values.push_back(near);
            values.push_back(-near);
          }
      }
      const auto n = static_cast<std::int64_t>(values.size());
      Memory<std::uint16_t> got(n);
      set.store[static_cast<int>(f.dtype)](got.data(), values.data(), n);
      for (std::int64_t i = 0; i < n; ++i) {
        const T value = values[static_cast<std::size_t>(i)];
        const std::uint32_t code = got.data()[i];
        if (std::isnan(value))
          ASSERT_TRUE(std::isnan(decode(f, code)));
        else
          ASSERT_EQ(code, encode(f, static_cast<double>(value))) << name_of(f.dtype) << " " << value;
      }
    }
  });
}

TEST_P(Kernels, EveryNanStaysNan) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    for (const Format& f : kFormats) {
      std::vector<T> nans;
      for (std::uint32_t bit = 0; bit < 23; ++bit)
        for (const std::uint32_t sign : {0u, 1u << 31})
          nans.push_back(static_cast<T>(float_of(sign | 0x7f800000u | 1u << bit)));
      std::vector<std::uint16_t> codes(nans.size());
      set.store[static_cast<int>(f.dtype)](codes.data(), nans.data(), static_cast<std::int64_t>(nans.size()));
      for (const std::uint16_t c : codes) EXPECT_TRUE(std::isnan(decode(f, c))) << c;
    }
  });
}

TEST_P(Kernels, LoadAndStoreServeEveryLength) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(7);
    for (const DType dtype : kDTypeList)
      for (std::int64_t n = 0; n < 70; ++n) {
        const auto bytes = static_cast<std::size_t>(n) * size_of(dtype);
        GuardedBuffer src(bytes, size_of(dtype)), back(bytes, size_of(dtype));
        for (std::int64_t i = 0; i < n; ++i) set_value(src, dtype, i, random);
        Memory<T> wide(n);
        load_row(reads<T>(dtype) ? set : plain::set<T, 1, 1>("plain"), wide.data(), src.data(), dtype, 1, n);
        for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(static_cast<double>(wide.data()[i]), get(src.data(), dtype, i));
        set.store[static_cast<int>(dtype)](back.data(), wide.data(), n);
        ASSERT_EQ(std::memcmp(src.data(), back.data(), bytes), 0) << name_of(dtype) << " " << n;
      }
  });
}

TEST_P(Kernels, Float64ToFloat32RoundsOnce) {
  with_set([](const auto& set, auto zero) {
    using T = decltype(zero);
    Random random(8);
    std::vector<T> values{std::numeric_limits<T>::max(), std::numeric_limits<T>::infinity(), -T{0}};
    for (int i = 0; i < 1000; ++i) values.push_back(static_cast<T>(random.real(-1, 1)));
    std::vector<float> got(values.size());
    set.store[static_cast<int>(DType::float32)](got.data(), values.data(), static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(got[i], static_cast<float>(values[i]));
  });
}

}  // namespace
}  // namespace convbwd::test
