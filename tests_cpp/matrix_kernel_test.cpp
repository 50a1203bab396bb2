// Matrix units against the plain loops of their contract (kernels/matrix.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/formats.h"
#include "kernels/matrix.h"
#include "support/guarded_buffer.h"
#include "support/isa.h"
#include "support/random.h"

namespace convbwd::test {
namespace {

class MatrixUnit : public testing::TestWithParam<Isa> {
 protected:
  static const MatrixKernels& unit() { return *matrix_kernels(GetParam()); }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MatrixUnit);
INSTANTIATE_TEST_SUITE_P(, MatrixUnit, testing::ValuesIn(matrix_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

float value_of(std::uint32_t bfloat) { return std::bit_cast<float>(bfloat << 16); }
std::uint16_t bfloat_of(float value) {
  BFloat b;
  narrow(value, b);
  return b.bits;
}

// ------------------------------------------------------------------------------------------------------- products

struct Shape {
  int terms_a, terms_b, rows;
  std::int64_t columns, steps, stretch, shifts;  // no shifts: 0
  bool accumulate;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.terms_a << 'x' << s.terms_b << " terms, rows=" << s.rows << " columns=" << s.columns << " steps=" << s.steps
       << " stretch=" << s.stretch << " shifts=" << s.shifts << " accumulate=" << s.accumulate;
}

// Terms are small integers, so that sums are exact in any order; memory between and around them is NaN.
void check_product(const MatrixKernels& unit, const Shape& s, Random& random) {
  const std::int64_t images = std::max<std::int64_t>(1, s.shifts);
  const std::ptrdiff_t a_row = 2 * (32 + random.integer(0, 1) * 32), a_tile = 16 * a_row + random.integer(0, 1) * 64;
  const std::ptrdiff_t b_row = 64 + random.integer(0, 1) * 64, b_tile = 16 * b_row;
  const std::int64_t tiles_b = (s.columns + 15) / 16, whole = tiles_b * 16;
  const std::ptrdiff_t a_step = 2 * a_tile, b_step = tiles_b * b_tile;
  // Steps lie in reverse order in A, shifts behind those of B: 4 bytes are the least that pixels are shifted by.
  const std::ptrdiff_t b_shift = 4 * random.integer(1, 3), b_term = s.steps * b_step + images * b_shift;
  const std::ptrdiff_t a_term = s.steps * a_step;
  const std::ptrdiff_t ldc = whole + random.integer(0, 2) * 16 + random.integer(0, 3), shift_c = s.rows * ldc;
  const auto c_count = static_cast<std::size_t>((images - 1) * shift_c + (s.rows - 1) * ldc + whole);

  std::vector<std::ptrdiff_t> a_at, b_at, shift;
  for (std::int64_t step = 0; step < s.steps; ++step)
    a_at.push_back((s.steps - 1 - step) * a_step), b_at.push_back(step * b_step);
  for (std::int64_t t = 0; t < s.shifts; ++t) shift.push_back((s.shifts - 1 - t) * b_shift);

  GuardedBuffer a(static_cast<std::size_t>(s.terms_a * a_term)), b(static_cast<std::size_t>(s.terms_b * b_term));
  const auto put = [&](GuardedBuffer& to, std::ptrdiff_t at) {
    to.as<std::uint16_t>()[at / 2] = bfloat_of(static_cast<float>(random.integer(-3, 3)));
  };
  const auto a_place = [&](int term, std::int64_t step, int row, int k) {
    return term * a_term + a_at[static_cast<std::size_t>(step)] + row / 16 * a_tile + row % 16 * a_row + 2 * k;
  };
  const auto b_place = [&](int term, std::int64_t step, std::int64_t column, int k, std::ptrdiff_t by) {
    return term * b_term + b_at[static_cast<std::size_t>(step)] + column / 16 * b_tile + k / 2 * b_row +
           column % 16 * 4 + k % 2 * 2 + by;
  };
  const auto by = [&](std::int64_t t) { return s.shifts ? shift[static_cast<std::size_t>(t)] : 0; };
  for (std::int64_t step = 0; step < s.steps; ++step) {
    for (int term = 0; term < s.terms_a; ++term)
      for (int row = 0; row < s.rows; ++row)
        for (int k = 0; k < 32; ++k) put(a, a_place(term, step, row, k));
    for (int term = 0; term < s.terms_b; ++term)
      for (std::int64_t column = 0; column < whole; ++column)
        for (std::int64_t t = 0; t < images; ++t)
          for (int k = 0; k < 32; ++k) put(b, b_place(term, step, column, k, by(t)));
  }

  GuardedBuffer c(c_count * sizeof(float), 4), expected(c_count * sizeof(float), 4);
  if (s.accumulate)
    for (std::size_t i = 0; i < c_count; ++i) c.as<float>()[i] = static_cast<float>(random.integer(-99, 99));
  std::memcpy(expected.data(), c.data(), c_count * sizeof(float));
  for (std::int64_t t = 0; t < images; ++t)
    for (int row = 0; row < s.rows; ++row)
      for (std::int64_t column = 0; column < whole; ++column) {
        float& to = expected.as<float>()[t * shift_c + row * ldc + column];
        if (!s.accumulate) to = 0;
        for (std::int64_t step = 0; step < s.steps; ++step)
          for (int i = 0; i < s.terms_a; ++i)
            for (int j = 0; j < s.terms_b && i + j <= 2; ++j)
              for (int k = 0; k < 32; ++k)
                to += value_of(a.as<std::uint16_t>()[a_place(i, step, row, k) / 2]) *
                      value_of(b.as<std::uint16_t>()[b_place(j, step, column, k, by(t)) / 2]);
      }

  MatrixCall call;
  call.a = {a.data(), a_row, a_tile, a_term, s.terms_a, a_at.data()};
  call.b = {b.data(), b_row, b_tile, b_term, s.terms_b, b_at.data()};
  call.steps = s.steps, call.stretch = s.stretch;
  call.rows = s.rows, call.columns = s.columns;
  call.c = c.as<float>(), call.ldc = ldc;
  call.accumulate = s.accumulate;
  if (s.shifts) call.shift = shift.data(), call.shifts = s.shifts, call.shift_c = shift_c;
  unit.multiply(call);
  for (std::size_t i = 0; i < c_count; ++i) {
    const float got = c.as<float>()[i], wanted = expected.as<float>()[i];
    ASSERT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted)))
        << "element " << i << " is " << got << ", not " << wanted << ": " << testing::PrintToString(s);
  }
}

TEST_P(MatrixUnit, IsThatOfItsInstructionSet) { EXPECT_STREQ(unit().name, name_of(GetParam())); }

TEST_P(MatrixUnit, MultipliesEveryPairOfTerms) {
  Random random(61);
  for (int terms_a = 1; terms_a <= 3; ++terms_a)
    for (int terms_b = 1; terms_b <= 3; ++terms_b)
      for (const int rows : {1, 16, 17, 32})
        for (const std::int64_t columns : {16, 32, 48})
          for (const std::int64_t shifts : {0, 2})
            for (const bool accumulate : {false, true})
              check_product(unit(), {terms_a, terms_b, rows, columns, 2, 2, shifts, accumulate}, random);
}

TEST_P(MatrixUnit, MultipliesAnyNumberOfRows) {
  Random random(62);
  for (int rows = 1; rows <= 32; ++rows)
    for (const bool accumulate : {false, true}) check_product(unit(), {2, 1, rows, 40, 3, 2, 0, accumulate}, random);
}

TEST_P(MatrixUnit, ComputesColumnsUpToWholeTiles) {
  Random random(63);
  for (std::int64_t columns = 1; columns <= 66; ++columns)
    check_product(unit(), {1, 2, 18, columns, 2, 1, 0, columns % 2 == 0}, random);
}

TEST_P(MatrixUnit, GoesThroughItsResultsEveryStretch) {
  Random random(64);
  for (const std::int64_t steps : {1, 2, 15, 16, 17, 31, 33, 50})
    for (const std::int64_t stretch : {1, 3, 16, 20, 50})
      for (const std::int64_t shifts : {0, 1, 5})
        for (const bool accumulate : {false, true})
          check_product(unit(), {1, 1, 20, 48, steps, stretch, shifts, accumulate}, random);
}

TEST(MatrixUnits, NeedDotProductsOfBfloat16) {
  for (const Isa isa : kIsas) EXPECT_TRUE(isa >= Isa::avx512_bf16 || matrix_kernels(isa) == nullptr) << name_of(isa);
}

// One even product after the other: each sum is rounded to nearest, ties to even.
TEST_P(MatrixUnit, RoundsSumsToNearestEven) {
  const std::ptrdiff_t at[] = {0};
  constexpr float kBig = 0x1p24f;
  for (const auto& [products, sum] :
       {std::pair{std::array{kBig, 1.0f, 0.0f}, kBig}, std::pair{std::array{kBig, 3.0f, 0.0f}, kBig + 4},
        std::pair{std::array{kBig, 2.0f, 1.0f}, kBig + 4}, std::pair{std::array{-kBig, -1.0f, -0.5f}, -kBig}}) {
    std::vector<std::uint16_t> a(32), b(16 * 32, bfloat_of(1));
    for (std::size_t i = 0; i < 3; ++i) a[2 * i] = bfloat_of(products[i]);
    float c[16];
    unit().multiply({{a.data(), 64, 1024, 0, 1, at}, {b.data(), 64, 1024, 0, 1, at}, 1, 1, 1, 16, c, 16, false});
    for (const float got : c) EXPECT_EQ(got, sum) << products[0] << " + " << products[1] << " + " << products[2];
  }
}

// --------------------------------------------------------------------------------------------------------- splits

// The terms of a value by definition.
std::vector<std::uint16_t> terms_of(float value, int terms) {
  std::vector<std::uint16_t> list;
  for (; terms > 0; --terms) {
    list.push_back(bfloat_of(value));
    value -= value_of(list.back());
  }
  return list;
}

std::uint32_t magnitude(float v) { return std::bit_cast<std::uint32_t>(v) & 0x7fffffffu; }

// Of any sign and magnitude that the engine lets the unit see, with all bits of the significand.
float ordinary(Random& random) {
  const double v = std::ldexp(random.real(1, 2), static_cast<int>(random.integer(-50, 59)));
  return static_cast<float>(random.integer(0, 1) ? v : -v);
}

// Of nothing seen, and with one more value.
constexpr Magnitudes kNone{0, 0};
Magnitudes with(const Magnitudes& m, float v) {
  const std::uint32_t bits = magnitude(v);
  if (bits == 0) return m;
  return {m.least == 0 ? bits : std::min(m.least, bits), std::max(m.most, bits)};
}
bool operator==(const Magnitudes& a, const Magnitudes& b) { return a.least == b.least && a.most == b.most; }

// Floats, memory of no use around them, and the magnitudes of those that were asked for.
class Source {
 public:
  Source(std::int64_t count, Random& random) : buffer_(static_cast<std::size_t>(count) * sizeof(float), 4) {
    for (std::int64_t i = 0; i < count; ++i) buffer_.as<float>()[i] = ordinary(random);
  }
  float* data() { return buffer_.as<float>(); }
  float at(std::ptrdiff_t i) {
    seen_ = with(seen_, data()[i]);
    return data()[i];
  }
  const Magnitudes& seen() const { return seen_; }

 private:
  GuardedBuffer buffer_;
  Magnitudes seen_ = kNone;
};

// What a split has written: each place is asked for once, all others must be as they were.
class Split {
 public:
  explicit Split(std::int64_t bytes)
      : count_(static_cast<std::size_t>(bytes / 2)), buffer_(count_ * 2), seen_(count_) {}
  void* data() { return buffer_.data(); }
  // Checks term r of a value at i + r*term, in 16-bit elements.
  void expect(std::ptrdiff_t i, std::ptrdiff_t term, int terms, float value) {
    const std::vector<std::uint16_t> wanted = terms_of(value, terms);
    for (const std::uint16_t w : wanted) {
      EXPECT_EQ(buffer_.as<std::uint16_t>()[i], w) << "element " << i << " of " << value;
      seen_[static_cast<std::size_t>(i)] = true;
      i += term;
    }
  }
  void expect_rest_intact() {
    for (std::size_t i = 0; i < count_; ++i) EXPECT_TRUE(seen_[i] || buffer_.as<std::uint16_t>()[i] == 0xffff) << i;
  }

 private:
  std::size_t count_;
  GuardedBuffer buffer_;
  std::vector<bool> seen_;
};

TEST_P(MatrixUnit, SplitsRows) {
  Random random(65);
  for (int terms = 1; terms <= 3; ++terms)
    for (const std::int64_t rows : {0, 1, 2, 7, 33}) {
      Source source(50 + 32, random);
      std::vector<std::ptrdiff_t> from;
      for (std::int64_t i = 0; i < rows; ++i) from.push_back(random.integer(0, 50));
      const std::ptrdiff_t term = rows * 32 + 32;
      Split split(terms * term * 2);
      const Magnitudes seen =
          unit().split_rows(static_cast<std::uint16_t*>(split.data()), term, terms, source.data(), from.data(), rows);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t k = 0; k < 32; ++k)
          split.expect(i * 32 + k, term, terms, source.at(from[static_cast<std::size_t>(i)] + k));
      split.expect_rest_intact();
      EXPECT_TRUE(seen == source.seen());
      if (HasFailure()) return;
    }
}

// Planes as they lie, with gaps, borders, nothing in them, and widths around those of vectors.
std::vector<FlatPlane> planes(Random& random) {
  std::vector<FlatPlane> all;
  for (std::int64_t n = 0; n <= 70; ++n) all.push_back({1, n, n, 0, n, n + random.integer(0, 1) * 40});
  for (const std::int64_t width : {1, 3, 7, 15, 16, 17, 31, 32, 33, 50})
    for (const std::int64_t rows : {0, 1, 2, 5}) {
      const std::int64_t pitch = width + random.integer(0, 3), first = random.integer(0, 40);
      const std::int64_t used = first + std::max<std::int64_t>(0, rows - 1) * pitch + width;
      all.push_back({rows, width, width + random.integer(0, 3), first, pitch, used + random.integer(0, 40)});
      all.push_back({rows, width, width, 0, width, rows * width});
    }
  return all;
}

std::int64_t elements(const FlatPlane& p) { return p.rows > 0 ? (p.rows - 1) * p.stride + p.width : 0; }

// Where pixel i of a flat plane comes from, or -1.
std::int64_t origin(const FlatPlane& p, std::int64_t i) {
  if (i < p.first || p.width == 0) return -1;
  const std::int64_t y = (i - p.first) / p.pitch, x = (i - p.first) % p.pitch;
  return y < p.rows && x < p.width ? y * p.stride + x : -1;
}

TEST_P(MatrixUnit, SplitsPlanes) {
  Random random(66);
  for (int terms = 1; terms <= 3; ++terms)
    for (const FlatPlane& plane : planes(random)) {
      Source source(elements(plane), random);
      Magnitudes wanted = kNone;
      const std::ptrdiff_t term = plane.length + 32;
      Split split(terms * term * 2);
      const Magnitudes seen =
          unit().split_plane(static_cast<std::uint16_t*>(split.data()), term, terms, source.data(), plane);
      for (std::int64_t i = 0; i < plane.length; ++i) {
        const std::int64_t from = origin(plane, i);
        split.expect(i, term, terms, from < 0 ? 0.0f : source.at(from));
        if (from >= 0) wanted = with(wanted, source.at(from));
      }
      split.expect_rest_intact();
      EXPECT_TRUE(seen == wanted) << plane.rows << 'x' << plane.width << " of " << plane.length;
      if (HasFailure()) return;
    }
}

TEST_P(MatrixUnit, SplitsPairsOfPlanes) {
  Random random(67);
  for (int terms = 1; terms <= 3; ++terms)
    for (const FlatPlane& plane : planes(random))
      for (const bool alone : {false, true}) {
        Source even(elements(plane), random), odd(elements(plane), random);
        Magnitudes wanted = kNone;
        const std::ptrdiff_t term = plane.length + 16;
        Split split(terms * term * 4);
        const Magnitudes seen = unit().split_pairs(static_cast<std::uint32_t*>(split.data()), term, terms, even.data(),
                                                   alone ? nullptr : odd.data(), plane);
        for (std::int64_t i = 0; i < plane.length; ++i) {
          const std::int64_t from = origin(plane, i);
          split.expect(2 * i, 2 * term, terms, from < 0 ? 0.0f : even.at(from));
          split.expect(2 * i + 1, 2 * term, terms, from < 0 || alone ? 0.0f : odd.at(from));
          if (from >= 0) wanted = with(wanted, even.at(from));
          if (from >= 0 && !alone) wanted = with(wanted, odd.at(from));
        }
        split.expect_rest_intact();
        EXPECT_TRUE(seen == wanted) << plane.rows << 'x' << plane.width << " of " << plane.length;
        if (HasFailure()) return;
      }
}

TEST_P(MatrixUnit, SplitsColumns) {
  Random random(68);
  for (int terms = 1; terms <= 3; ++terms)
    for (const int rows : {1, 2, 7, 15, 16})
      for (const std::int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 95}) {
        const std::ptrdiff_t lds = n + random.integer(0, 3);
        Source source((rows - 1) * lds + n, random);
        const std::int64_t steps = (n + 31) / 32;
        const bool shifted = random.integer(0, 1) == 1;
        const std::ptrdiff_t term = steps * 256 + 16, odd = shifted ? terms * term + 32 : 0;
        Split split((odd + terms * term) * 4);
        const Magnitudes seen = unit().split_columns(static_cast<std::uint32_t*>(split.data()), term, odd, terms,
                                                     source.data(), lds, rows, n);
        for (const std::int64_t by : {0, 1})
          for (std::int64_t i = 0; i < steps * 32 && by <= shifted; ++i)
            for (std::ptrdiff_t j = 0; j < 16; ++j)
              split.expect(2 * (by * odd + i / 2 * 16 + j) + i % 2, 2 * term, terms,
                           j < rows && i + by < n ? source.at(j * lds + i + by) : 0.0f);
        split.expect_rest_intact();
        EXPECT_TRUE(seen == source.seen()) << rows << " rows of " << n;
        if (HasFailure()) return;
      }
}

// The terms are all of a number: three of a float32, two of a float16's 11 bits, one of a bfloat16's 8.
TEST_P(MatrixUnit, SplitsWithoutLoss) {
  Random random(69);
  constexpr std::int64_t kCount = 1 << 14;
  for (int terms = 1; terms <= 3; ++terms) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::uint32_t unused = terms == 3 ? 0 : terms == 2 ? (1u << 13) - 1 : (1u << 16) - 1;
      values.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(ordinary(random)) & ~unused));
    }
    const FlatPlane whole{1, kCount, kCount, 0, kCount, kCount};
    std::vector<std::uint16_t> split(static_cast<std::size_t>(terms * kCount));
    unit().split_plane(split.data(), kCount, terms, values.data(), whole);
    for (std::size_t i = 0; i < kCount; ++i) {
      double sum = 0;
      for (int r = 0; r < terms; ++r)
        sum += static_cast<double>(value_of(split[static_cast<std::size_t>(r) * kCount + i]));
      ASSERT_EQ(sum, static_cast<double>(values[i])) << terms << " terms";
    }
  }
}

// One value among ones and zeros, wherever it lies.
TEST_P(MatrixUnit, SplitsTellMagnitudes) {
  constexpr std::int64_t kCount = 45;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kDenormal = 0x1p-149f;
  const std::vector<float> zeros(kCount, 0.0f);
  const FlatPlane whole{1, kCount, kCount, 0, kCount, kCount};
  for (const float value :
       {-0.0f, 3.5f, -1e30f, 1e-30f, -kDenormal, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
    for (const float other : {0.0f, 1.0f})
      for (std::int64_t place = 0; place < kCount; ++place) {
        std::vector<float> values(kCount, other);
        values[static_cast<std::size_t>(place)] = value;
        std::vector<std::uint32_t> to(3 * 1024);
        auto* const narrow_to = reinterpret_cast<std::uint16_t*>(to.data());
        const std::ptrdiff_t from[] = {0, kCount - 32};
        const float* v = values.data();
        const Magnitudes wanted = with(with(kNone, other), value);
        for (const Magnitudes& seen :
             {unit().split_rows(narrow_to, 1024, 3, v, from, 2), unit().split_plane(narrow_to, 1024, 3, v, whole),
              unit().split_pairs(to.data(), 1024, 3, v, zeros.data(), whole),
              unit().split_pairs(to.data(), 1024, 3, zeros.data(), v, whole),
              unit().split_columns(to.data(), 1024, 0, 3, v, kCount, 1, kCount),
              unit().split_columns(to.data(), 1024, 0, 3, v, 15, 3, 15)})
          EXPECT_TRUE(seen == wanted) << value << " at " << place << ": " << seen.least << ", " << seen.most;
      }
}

}  // namespace
}  // namespace convbwd::test
