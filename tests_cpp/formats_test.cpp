// The element types of base/formats.h: 8-bit codes and roundings of float32 against their definitions, and the
// conversions of every instruction set against the scalar ones, bit by bit.
#include "base/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "convbwd/convbwd.hpp"
#include "format/copy.h"
#include "support/isa.h"
#include "support/plain_kernels.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The value of a code, from the definition of E4M3FN.
double e4m3fn(unsigned code) {
  const unsigned magnitude = code & 0x7f, exponent = magnitude >> 3, fraction = magnitude & 7;
  double value = exponent ? std::ldexp(8 + fraction, static_cast<int>(exponent) - 10) : std::ldexp(fraction, -9);
  if (magnitude == 0x7f) value = kNan;
  return code & 0x80 ? -value : value;
}

// The value of a code, from the definition of HiFloat8: bit by bit, from the prefix down.
double hifloat8(unsigned code) {
  if (code == 0) return 0;
  if (code == 0x80) return kNan;
  const double sign = code & 0x80 ? -1 : 1;
  if ((code & 0x7f) == 0x6f) return sign * kInfinity;
  int bit = 6;
  const auto take = [&] { return static_cast<int>(code >> bit-- & 1); };
  int exponent_bits = -1;  // none: a power of two below all others
  if (take())
    exponent_bits = take() ? 4 : 3;
  else if (take())
    exponent_bits = 2;
  else if (take())
    exponent_bits = 1;
  else if (take())
    exponent_bits = 0;
  if (exponent_bits < 0) return sign * std::ldexp(1., static_cast<int>(code & 7) - 23);
  int exponent = 0;
  if (exponent_bits > 0) {
    const bool negative = take();
    exponent = 1;
    for (int i = 1; i < exponent_bits; ++i) exponent = 2 * exponent + take();
    if (negative) exponent = -exponent;
  }
  const int mantissa_bits = bit + 1;
  const double fraction = static_cast<double>(code & ((1u << mantissa_bits) - 1));
  return sign * std::ldexp(1 + std::ldexp(fraction, -mantissa_bits), exponent);
}

struct Format {
  DType dtype;
  double (*decode)(unsigned code);
  bool half_away;   // else to even
  double overflow;  // what is beyond the largest number rounds to
  double beyond;    // where the next number would be
};
constexpr Format kEightBits[] = {{DType::float8_e4m3fn, e4m3fn, false, kNan, 480},
                                 {DType::hifloat8, hifloat8, true, kInfinity, 49152}};

struct Neighbour {
  double value;
  unsigned code;
};
// The numbers that are not negative, in rising order.
std::vector<Neighbour> numbers(const Format& f) {
  std::vector<Neighbour> list;
  for (unsigned code = 0; code < 0x80; ++code)
    if (std::isfinite(f.decode(code))) list.push_back({f.decode(code), code});
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  return list;
}

template <class T>
std::vector<T> around(double value) {
  const T v = static_cast<T>(value), more = std::numeric_limits<T>::infinity();
  return {v, std::nextafter(v, more), std::nextafter(v, -more)};
}

class Formats : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!supported(GetParam())) GTEST_SKIP() << "needs " << name_of(GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(, Formats, testing::ValuesIn(compiled_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

template <class T>
void check_codes(const Format& f) {
  const KernelSet<T>& set = kernel_set<T>(Formats::GetParam());
  const int t = static_cast<int>(f.dtype);
  std::vector<std::uint8_t> codes(256);
  std::vector<T> values(256);
  for (unsigned c = 0; c < 256; ++c) codes[c] = static_cast<std::uint8_t>(c);
  load_row(set, values.data(), codes.data(), f.dtype, 1, 256);
  for (unsigned c = 0; c < 256; ++c) {
    if (std::isnan(f.decode(c)))
      ASSERT_TRUE(std::isnan(values[c])) << c;
    else
      ASSERT_EQ(std::bit_cast<std::uint64_t>(static_cast<double>(values[c])), std::bit_cast<std::uint64_t>(f.decode(c)))
          << name_of(f.dtype) << " " << c;
  }
  std::vector<std::uint8_t> back(256);
  set.store[t](back.data(), values.data(), 256);
  for (unsigned c = 0; c < 256; ++c)
    if (f.dtype == DType::hifloat8 || !std::isnan(values[c])) {
      ASSERT_EQ(back[c], c) << name_of(f.dtype);
    }
}
TEST_P(Formats, EveryCodeIsDecodedAndComesBack) {
  for (const Format& f : kEightBits) {
    check_codes<float>(f);
    check_codes<double>(f);
  }
}

// On and beside every number and every midpoint; of doubles, also where rounding to float32 first would go wrong.
template <class T>
void check_rounding(const Format& f) {
  const KernelSet<T>& set = kernel_set<T>(Formats::GetParam());
  const std::vector<Neighbour> list = numbers(f);
  std::vector<T> values;
  std::vector<double> expected;
  const auto expect = [&](T value, double result) {
    for (const double sign : {1., -1.}) {
      values.push_back(static_cast<T>(sign) * value);
      expected.push_back(sign * result);
    }
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool last = i + 1 == list.size();
    const double low = list[i].value, high = last ? f.beyond : list[i + 1].value, above = last ? f.overflow : high;
    const double middle = (low + high) / 2;
    for (const double at : {low, middle, 0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high})
      for (const T v : around<T>(at)) {
        if (static_cast<double>(v) < low) continue;
        const bool up = static_cast<double>(v) > middle ||
                        (static_cast<double>(v) == middle && (f.half_away || list[i].code % 2 == 1));
        expect(v, up ? above : low);
      }
  }
  for (const double v : {kInfinity, 1e30, static_cast<double>(std::numeric_limits<T>::max())})
    expect(static_cast<T>(v), f.overflow);
  expect(static_cast<T>(kNan), kNan);
  expect(std::numeric_limits<T>::denorm_min(), 0);
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<std::uint8_t> got(values.size());
  set.store[static_cast<int>(f.dtype)](got.data(), values.data(), n);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double result = f.decode(got[i]);
    ASSERT_TRUE(result == expected[i] || (std::isnan(result) && std::isnan(expected[i])))
        << name_of(f.dtype) << ": " << values[i] << " becomes " << result << ", not " << expected[i];
    // HiFloat8 has one zero and one NaN.
    const bool unsigned_ = f.dtype == DType::hifloat8 && (result == 0 || std::isnan(result));
    ASSERT_EQ(got[i] >> 7, unsigned_ ? std::isnan(result) : std::signbit(values[i])) << values[i];
  }
}
TEST_P(Formats, EightBitsRoundAsDefined) {
  for (const Format& f : kEightBits) {
    check_rounding<float>(f);
    check_rounding<double>(f);
  }
}

TEST_P(Formats, HFloat32KeepsBitsOfTheMantissa) {
  const KernelSet<float>& set = kernel_set<float>(GetParam());
  Random random(1);
  std::vector<float> values{
      0.f, -0.f, 0x1.001p0f, 0x1.003p0f, 0x1.002p0f, 0x1.006p0f, std::numeric_limits<float>::max()};
  for (int i = 0; i < 5000; ++i) {
    const float v = float_of(static_cast<std::uint32_t>(random.bits()));
    if (std::isfinite(v) && std::fabs(v) >= std::numeric_limits<float>::min()) values.push_back(v);
  }
  for (const DType dtype : {DType::hf32, DType::hf32_10}) {
    const int bits = significand_bits(dtype);
    std::vector<float> got(values.size());
    load_row(set, got.data(), values.data(), dtype, 1, static_cast<Index>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      int exponent = 0;
      const double fraction = std::frexp(static_cast<double>(values[i]), &exponent);
      const double expected = std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
      ASSERT_EQ(got[i], static_cast<float>(expected)) << values[i];
    }
  }
  // What is not finite stays as it is, whatever its payload; subnormal numbers round in the same place.
  const std::uint32_t as_is[] = {0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff, 0xffffffff, 0x00001000, 0x00002000};
  std::uint32_t got[7];
  for (const DType dtype : {DType::hf32, DType::hf32_10}) {
    load_row(set, reinterpret_cast<float*>(got), as_is, dtype, 1, 7);
    for (int i = 0; i < 7; ++i) EXPECT_EQ(got[i], dtype == DType::hf32_10 && i == 5 ? 0 : as_is[i]) << i;
  }
}

// Random bits, with every exponent equally likely, and codes of all kinds.
template <class T>
void check_against_scalars(Isa isa) {
  const KernelSet<T>&set = kernel_set<T>(isa), &scalar = plain::set<T, 1, 1>("plain");
  Random random(2);
  constexpr std::int64_t n = 1 << 16;
  std::vector<std::uint64_t> bits(n);
  for (auto& b : bits) b = random.bits();
  std::vector<T> values(n), expected(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = static_cast<T>(i % 4 ? static_cast<T>(float_of(static_cast<std::uint32_t>(bits[i])))
                                     : static_cast<T>(random.real(-600, 600)));
  const auto same = [](T a, T b) { return (a == b && std::signbit(a) == std::signbit(b)) || (a != a && b != b); };
  for (const DType dtype : kDTypeList) {
    if (dtype == DType::float64) continue;  // random bits would be values that no float32 has
    const int t = static_cast<int>(dtype);
    std::vector<T> got(n);
    load_row(scalar, expected.data(), bits.data(), dtype, 1, n);
    load_row(reads<T>(dtype) ? set : scalar, got.data(), bits.data(), dtype, 1, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(same(got[i], expected[i])) << name_of(dtype) << " element " << i;
    std::vector<std::uint64_t> stored(n), expected_codes(n);
    scalar.store[t](expected_codes.data(), values.data(), n);
    set.store[t](stored.data(), values.data(), n);
    load_row(scalar, expected.data(), expected_codes.data(), dtype, 1, n);
    load_row(scalar, got.data(), stored.data(), dtype, 1, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(same(got[i], expected[i])) << name_of(dtype) << " of " << values[i];
  }
}
TEST_P(Formats, VectorsAndScalarsAgree) {
  check_against_scalars<float>(GetParam());
  check_against_scalars<double>(GetParam());
}

TEST(Convert, RoundsOnceAndSaturatesOnRequest) {
  const std::vector<double> values{1 + 0x1p-4 + 0x1p-40, 1e9, -1e9, kNan, -kInfinity, 3};
  std::vector<std::uint8_t> codes(values.size());
  const auto n = static_cast<std::int64_t>(values.size());
  const auto to = [&](DType t, bool saturate) {
    convert(codes.data(), t, values.data(), DType::float64, n, saturate);
    return codes;
  };
  using Codes = std::vector<std::uint8_t>;
  EXPECT_EQ(to(DType::hifloat8, false), (Codes{0x09, 0x6f, 0xef, 0x80, 0xef, 0x14}));
  EXPECT_EQ(to(DType::hifloat8, true), (Codes{0x09, 0x6e, 0xee, 0x00, 0xee, 0x14}));
  EXPECT_EQ(to(DType::float8_e4m3fn, true), (Codes{0x39, 0x7e, 0xfe, 0x00, 0xfe, 0x44}));
  EXPECT_THROW(to(DType::float16, true), Error);
  EXPECT_THROW(to(static_cast<DType>(10), false), Error);
  EXPECT_THROW(convert(codes.data(), DType::float16, values.data(), static_cast<DType>(99), 1), Error);
  EXPECT_THROW(convert(codes.data(), DType::float16, values.data(), DType::float64, -1), Error);
  EXPECT_STREQ(name_of(static_cast<DType>(10)), "no type");
  // Blocks of all lengths.
  std::vector<float> many(3000), back(3000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i % 17);
  std::vector<std::uint8_t> coded(many.size());
  for (const std::int64_t count : {0, 1, 1023, 1024, 1025, 3000}) {
    std::fill(back.begin(), back.end(), -1.f);
    convert(coded.data(), DType::float8_e4m3fn, many.data(), DType::float32, count);
    convert(back.data(), DType::float32, coded.data(), DType::float8_e4m3fn, count);
    for (std::size_t i = 0; i < back.size(); ++i)
      ASSERT_EQ(back[i], static_cast<std::int64_t>(i) < count ? many[i] : -1.f) << i << " of " << count;
  }
}

TEST(Convert, WidensExactly) {
  Random random(3);
  std::vector<std::uint64_t> bits(3000);
  for (auto& b : bits) b = random.bits();
  std::vector<double> got(bits.size());
  for (const DType dtype : kDTypeList) {
    convert(got.data(), DType::float64, bits.data(), dtype, static_cast<std::int64_t>(bits.size()));
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const double expected = get(bits.data(), dtype, static_cast<Index>(i));
      ASSERT_TRUE(got[i] == expected || (std::isnan(got[i]) && std::isnan(expected))) << name_of(dtype) << " " << i;
    }
  }
}

TEST(Types, AreDescribedConsistently) {
  ASSERT_EQ(std::size(kDTypeList), static_cast<std::size_t>(kTypes));
  for (int i = 0; i < kTypes; ++i) {
    const DType t = kDTypeList[i];
    EXPECT_EQ(static_cast<int>(t), i);
    EXPECT_EQ(size_of(t), size_of(storage_of(t))) << name_of(t);
    EXPECT_EQ(with_type(t, [](auto e) { return sizeof e; }), size_of(t)) << name_of(t);
    EXPECT_EQ(storage_of(t) == t, i < kResultDTypes) << name_of(t);
    // 1 + 2^(1 - bits) is the first number above 1.
    const int bits = significand_bits(t);
    if (t == DType::bfloat16_as_float16) continue;  // has the bits of bfloat16 to begin with
    std::array<std::byte, 8> e;
    set(e.data(), t, 0, 1 + std::ldexp(1., 1 - bits));
    EXPECT_EQ(get(e.data(), t, 0), 1 + std::ldexp(1., 1 - bits)) << name_of(t);
    if (bits > 23) continue;
    set(e.data(), t, 0, 1 + std::ldexp(0.99, -bits));
    EXPECT_EQ(get(e.data(), t, 0), 1) << name_of(t);
  }
}

}  // namespace
}  // namespace convbwd::test
