// Passes on a matrix unit, forced, with every plan that a shrinking budget leads to.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "conv/problem.h"
#include "engine/pass.h"
#include "kernels/list.h"
#include "support/call.h"
#include "support/isa.h"
#include "support/problems.h"
#include "support/random.h"

namespace convbwd {

static void PrintTo(const Problem& p, std::ostream* out) { *out << to_string(p); }

namespace test {
namespace {

constexpr Index3 kOne{1, 1, 1};
constexpr DType kFloat = DType::float32, kHalf = DType::float16, kBFloat = DType::bfloat16;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

std::vector<Problem> problems() {
  return {
      problem(2, 1, 40, 36, {1, 11, 13}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),
      problem(1, 1, 32, 20, {1, 45, 50}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),  // many boxes, the last ones cut
      problem(1, 1, 16, 20, {1, 1, 1500}, {1, 1, 9}, kOne, kOne, {0, 0, 4}),
      problem(1, 1, 33, 70, {1, 1, 90}, {1, 1, 5}, kOne, {1, 1, 2}, {0, 0, 4}),
      problem(1, 1, 34, 31, {5, 6, 7}, {3, 2, 3}, kOne, kOne, {1, 0, 1}),
      problem(2, 1, 17, 50, {1, 14, 15}, {1, 3, 3}, {1, 2, 2}, kOne, {0, 1, 1}),
      problem(1, 1, 32, 20, {3, 16, 17}, {2, 3, 3}, {1, 2, 2}, {2, 2, 1}, {1, 2, 1}, {0, 0, 3}),
      problem(2, 3, 19, 21, {1, 8, 9}, {1, 3, 3}, kOne, kOne, {0, 2, 0}, {0, 0, 1}),
      problem(2, 1, 3, 40, {1, 16, 24}, {1, 8, 8}, {1, 8, 8}),   // patches
      problem(1, 1, 5, 33, {4, 9, 8}, {2, 4, 4}, {2, 5, 4}),     // patches with gaps
      problem(1, 1, 34, 36, {1, 12, 17}, {1, 2, 2}, {1, 2, 2}),  // two sets of two results a pixel
      problem(1, 1, 32, 32, {1, 9, 9}, {1, 5, 5}, {1, 4, 4}),    // sets of one to four
      problem(3, 1, 64, 96, {1, 7, 8}, {1, 1, 1}),               // images may stay in place
      problem(1, 1, 700, 40, {1, 10, 21}, {1, 1, 1}),            // chunks of channels for several panels
      problem(40, 1, 35, 33, {1, 3, 3}, {1, 2, 2}),              // boxes of images
      problem(3, 1, 35, 18, {1, 7, 6}, {1, 7, 6}),               // a single window
      problem(2, 1, 33, 16, {1, 9, 10}, {1, 1, 2}, {1, 4, 3}),   // pixels that no window covers
      problem(1, 1, 500, 40, {1, 5, 5}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),
      problem(1, 1, 64, 300, {1, 6, 6}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),
      problem(2, 1, 32, 120, {1, 4, 5}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),       // columns of channels and taps
      problem(1, 2, 21, 160, {1, 7, 9}, {1, 3, 3}, {1, 2, 2}, kOne, {0, 1, 1}),  // the last of them no whole tile
      problem(1, 1, 33, 34, {1, 4, 5}, {1, 5, 6}, kOne, kOne, {0, 3, 3}),        // kernels above the image
      problem(1, 1, 32, 33, {1, 2, 1}, {1, 5, 3}, kOne, {1, 3, 2}, {0, 8, 3}),   // taps in padding only
      problem(2, 1, 1, 2, {1, 9, 9}, {1, 3, 3}),
  };
}

// The passes for an unknown: x has one for small planes too.
struct Way {
  Unknown unknown;
  bool pixels;
};
constexpr Way kWays[] = {{Unknown::x, false}, {Unknown::x, true}, {Unknown::w, false}, {Unknown::y, false}};

std::unique_ptr<EstimatedPass> make(Isa isa, const PassSpec& spec, bool pixels = false) {
  const KernelSet<float>& kernels = kernel_set<float>(isa);
  if (pixels) return make_matrix_pixels(spec, kernels, *matrix_kernels(isa));
  return spec.unknown == Unknown::w ? make_matrix_weights(spec, kernels, *matrix_kernels(isa))
                                    : make_matrix(spec, kernels, *matrix_kernels(isa));
}
std::unique_ptr<Pass> make_direct(Isa isa, const PassSpec& spec) {
  const KernelSet<float>& kernels = kernel_set<float>(isa);
  return spec.unknown == Unknown::w ? make_gather_weights(spec, kernels) : make_gather(spec, kernels);
}

// Of the error of an element, as a part of its sum of magnitudes: what float32 sums in any sensible order have.
double bound(const Problem& p, Unknown unknown) {
  const Index terms = unknown == Unknown::x   ? p.co * p.taps()
                      : unknown == Unknown::y ? p.ci * p.taps()
                                              : p.n * p.y_plane();
  return (4 + std::sqrt(static_cast<double>(terms))) * std::numeric_limits<float>::epsilon();
}

class Matrix : public testing::TestWithParam<std::tuple<Isa, Problem>> {
 protected:
  void SetUp() override { set_num_threads(kThreads); }
  static Isa isa() { return std::get<0>(GetParam()); }
  static const Problem& p() { return std::get<1>(GetParam()); }
  // Calls f(pass, budget) for every plan.
  template <class F>
  static void for_each(const Call& call, bool pixels, F&& f) {
    if (pixels && (p().taps() == 1 || p().stride != kOne)) return;
    std::ostringstream text;
    text << call;
    SCOPED_TRACE(text.str());
    ASSERT_NE(make(isa(), call.spec(kNoLimit), pixels), nullptr);
    for_each_plan(call, 3, [&](std::size_t budget) { return make(isa(), call.spec(budget), pixels); }, f);
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Matrix);
INSTANTIATE_TEST_SUITE_P(, Matrix, testing::Combine(testing::ValuesIn(matrix_isas()), testing::ValuesIn(problems())),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  to_string(std::get<1>(test.param));
                         });

TEST_P(Matrix, KeepsIntegersExact) {
  Random random(51);
  const Layouts other{Layout::channels_last, Layout::permuted, Layout::gaps};
  const Layouts more{Layout::reversed, Layout::blocked, Layout::permuted};
  for (const auto& [unknown, pixels] : kWays)
    for (const auto& [types, layouts] :
         {std::pair{Types{kFloat, kFloat, kFloat}, Layouts{}}, std::pair{Types{kFloat, kFloat, kFloat}, other},
          std::pair{Types{kHalf, kHalf, kHalf}, Layouts{}}, std::pair{Types{kBFloat, kBFloat, kBFloat}, more},
          std::pair{Types{kFloat, kHalf, kBFloat}, Layouts{}},
          std::pair{Types{DType::float8_e4m3fn, DType::hifloat8, kHalf}, more},
          std::pair{Types{kBFloat, kFloat, kHalf}, other}}) {
      Call call(p(), unknown, types, layouts, layouts != Layouts{});
      call.fill_integers(random);
      const std::vector<double> expected = call.expected();
      for_each(call, pixels, [&](const Pass& pass, std::size_t) { call.check(pass, expected); });
      if (HasFailure()) return;
    }
}

TEST_P(Matrix, IsWithinTheBoundOfDirectSums) {
  Random random(52);
  for (const auto& [unknown, pixels] : kWays)
    for (Types types : {Types{kFloat, kFloat, kFloat}, Types{kHalf, kHalf, kHalf}, Types{kBFloat, kBFloat, kBFloat},
                        Types{kFloat, kHalf, kBFloat}, Types{DType::hf32, DType::float32_as_float16, kFloat}}) {
      types[unknown == Unknown::x ? 0 : unknown == Unknown::w ? 1 : 2] = kFloat;
      Call call(p(), unknown, types);
      call.fill_reals(random);
      const std::vector<double> expected = call.expected(), magnitudes = call.magnitudes();
      for_each(call, pixels, [&](const Pass& pass, std::size_t) {
        const std::vector<double> got = call.run(pass);
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_LE(std::abs(got[i] - expected[i]), bound(p(), unknown) * magnitudes[i])
              << "element " << i << " of " << got.size();
      });
      if (HasFailure()) return;
    }
}

TEST_P(Matrix, HasTheSameBitsForAllThreadsAndLayouts) {
  for (const auto& [unknown, pixels] : kWays)
    for (const Types& types : {Types{kFloat, kFloat, kFloat}, Types{kFloat, kBFloat, kHalf}})
      for (const std::size_t budget : {kNoLimit, std::size_t{3} << 18}) {
        std::vector<double> expected;
        for (const auto& [threads, layout] : {std::pair{1, Layout::dense},
                                              {1, Layout::reversed},
                                              {2, Layout::channels_last},
                                              {3, Layout::permuted},
                                              {7, Layout::blocked},
                                              {7, Layout::dense}}) {
          Random random(53);  // the same numbers in every layout
          set_num_threads(threads);
          Call call(p(), unknown, types, {layout, layout, layout}, true);
          call.fill_reals(random);
          const auto pass = make(isa(), call.spec(budget, threads), pixels);
          if (!pass) continue;
          const std::vector<double> got = call.run(*pass);
          if (expected.empty()) expected = got;
          ASSERT_TRUE(same_bits(got, expected)) << threads << " threads, layout " << static_cast<int>(layout) << '\n'
                                                << pass->explain();
        }
      }
}

// What is not finite shows exactly where a window touches it.
TEST_P(Matrix, HasTheFootprintOfDirectSums) {
  Random random(54);
  for (const auto& [unknown, pixels] : kWays)
    for (const auto& [type, value] : {std::pair{kFloat, kNan}, std::pair{kFloat, -kInfinity},
                                      std::pair{kHalf, kInfinity}, std::pair{kBFloat, kNan}})
      for (const std::size_t operand : {0, 1, 2}) {
        Call call(p(), unknown, {type, type, type});
        if (operand == call.result()) continue;
        call.fill_integers(random);
        call.put_anywhere(operand, random, value);
        const std::vector<double> expected = call.expected();
        for_each(call, pixels, [&](const Pass& pass, std::size_t) { call.check(pass, expected); });
        if (HasFailure()) return;
      }
}

// A place of an operand that some product reads.
Index5 place_of_product(const Problem& p, std::size_t operand, Random& random) {
  Index5 place{};
  Index left = random.integer(1, 1 << 16);
  for_each_product(p, [&](const Index5& x, const Index5& w, const Index5& y) {
    if (left-- > 0) place = operand == 0 ? x : operand == 1 ? w : y;
  });
  return place;
}

// What the unit would flush or overflow is computed as the direct pass does, bit for bit.
TEST_P(Matrix, LeavesHugeAndTinyValuesToTheDirectPass) {
  for (const auto& [unknown, pixels] : kWays)
    for (const DType type : {kFloat, kBFloat})
      for (const std::size_t operand : {0, 1, 2})
        for (const bool huge : {false, true}) {
          Call call(p(), unknown, {type, type, type});
          if (operand == call.result()) continue;
          Random random(55);
          call.fill_reals(random);
          if (huge)
            call.put(operand, place_of_product(p(), operand, random), -1e30);
          else
            call.fill(operand, [&] { return random.real(-1e-30, 1e-30); });
          for_each(call, pixels, [&](const Pass& pass, std::size_t budget) {
            EXPECT_EQ(call.run(pass), call.run(*make_direct(isa(), call.spec(budget))));
          });
          if (HasFailure()) return;
        }
}

class MatrixPass : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { set_num_threads(kThreads); }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MatrixPass);
INSTANTIATE_TEST_SUITE_P(, MatrixPass, testing::ValuesIn(matrix_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// The largest error of results, and their sum of squares.
std::array<double, 2> errors(const std::vector<double>& got, const std::vector<double>& truth) {
  std::array<double, 2> e{};
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(got[i] - truth[i]);
    e[0] = std::max(e[0], d);
    e[1] += d * d;
  }
  return e;
}

// At both ends of the magnitudes that the unit serves, too.
TEST_P(MatrixPass, HasLessErrorThanStraightSums) {
  const Problem image = problem(2, 1, 96, 80, {1, 15, 14}, {1, 3, 3}, kOne, kOne, {0, 1, 1});
  const Problem volume = problem(1, 1, 40, 48, {5, 12, 12}, {3, 3, 3}, kOne, kOne, {1, 1, 1});
  for (const Problem& p : {image, volume})
    for (const auto& [unknown, pixels] : kWays)
      for (const auto& [scale, rectified] :
           {std::pair{1.0, false}, std::pair{1.0, true}, std::pair{0x1p-47, false}, std::pair{0x1p47, true}}) {
        Call call(p, unknown, {kFloat, kFloat, kFloat});
        Random random(56);
        call.fill([&] {
          double sum = 0;
          for (int i = 0; i < 6; ++i) sum += random.real(-scale, scale);  // about normal
          return rectified ? std::max(sum, 0.0) : sum;
        });
        const auto pass = make(GetParam(), call.spec(kNoLimit), pixels);
        ASSERT_NE(pass, nullptr);
        const std::vector<double> truth = call.expected(), got = call.run(*pass);
        const auto ours = errors(got, truth), straight = errors(call.straight(), truth);
        EXPECT_LE(ours[0], straight[0]) << scale << ' ' << pass->explain();
        EXPECT_LE(ours[1], straight[1]) << scale << ' ' << pass->explain();
        EXPECT_NE(got, call.run(*make_direct(GetParam(), call.spec(kNoLimit)))) << scale << ' ' << pass->explain();
      }
}

// With strict precision elements keep their bound however much others differ: a tiny one is not flushed.
TEST_P(MatrixPass, IsWithinTheBoundOfEachElementWhereStrict) {
  const Problem p = problem(2, 1, 40, 36, {1, 11, 13}, {1, 3, 3}, kOne, kOne, {0, 1, 1});
  for (const auto& [unknown, pixels] : kWays) {
    Call call(p, unknown, {kFloat, kFloat, kFloat});
    Random random(57);
    call.fill([&] { return std::ldexp(random.real(0.5, 1), static_cast<int>(random.integer(-49, 50))); });
    PassSpec spec = call.spec(kNoLimit);
    const auto flushing = make(GetParam(), spec, pixels);
    spec.precision = Precision::strict;
    const auto pass = make(GetParam(), spec, pixels);
    ASSERT_NE(pass, nullptr);
    const auto direct = make_direct(GetParam(), spec);
    const std::vector<double> got = call.run(*pass), expected = call.expected(), magnitudes = call.magnitudes();
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LE(std::abs(got[i] - expected[i]), bound(p, unknown) * magnitudes[i]) << i;
    EXPECT_NE(got, call.run(*direct));
    call.put(unknown == Unknown::x ? 2 : 0, {1, 3, 0, 4, 5}, 0x1p-51);
    EXPECT_EQ(call.run(*pass), call.run(*direct));
    EXPECT_NE(call.run(*flushing), call.run(*direct));
  }
}

// That the problems and budgets above reach what they are there for.
TEST_P(MatrixPass, TakesEveryWay) {
  std::string all;
  for (const Problem& p : problems())
    for (const auto& [unknown, pixels] : kWays) {
      const Call call(p, unknown, {kFloat, kFloat, kFloat});
      for_each_plan(
          call, 3, [&](std::size_t budget) { return make(GetParam(), call.spec(budget), pixels); },
          [&](const Pass& pass, std::size_t) { all += pass.explain() + '\n'; });
    }
  for (const char* way : {
           "boxes of 1x1x3x50 pixels, chunks of 32 of 32 source channels, panels of 20 of 20 channels, packed once",
           "boxes of 1x1x11x13 pixels, chunks of 36 of 36 source channels, panels of 20 of 40 channels, packed by "
           "tasks that share their source",
           "chunks of 128 of 500 source channels, panels of 20 of 40 channels, packed by tasks;",
           "of 700 source channels, panels of 20 of 40 channels, packed once",
           "panels of 1 of 1 channels, packed once",
           "panels of 1 of 3 channels",
           "boxes of 10x1x2x2 pixels in 2 slabs",
           "boxes of 1x1x3x50 pixels in 4 slabs",
           "of 40 output and 32 of 500 input channels a task",
           "2 images at a time, chunks of 36 of 36 source channels, split once, 14 of 40 channels a task; 3 tasks",
           "1 images at a time, chunks of 32 of 300 source channels, split by tasks, 7 of 64 channels a task",
           "chunks of 64 of 120 source channels, split once, 11 of 32 channels a task",
           "of 120 output and 32 of 288 input channels and taps a task, boxes of 2x1x4x5 pixels",
           "of 160 output and 189 of 189 input channels and taps a task, boxes of 1x1x4x5 pixels",
       })
    EXPECT_NE(all.find(way), std::string::npos) << way;
}

// Tiny pieces do not leave an operand to the direct pass: boxes follow threads, planes and columns follow strides, and
// none of them may decide.
TEST_P(MatrixPass, JudgesOperandsAsWholes) {
  for (const auto& [p, period] :
       {std::pair{problem(2, 1, 64, 64, {1, 40, 40}, {1, 1, 1}), 1600},                           // rows are tiny,
        std::pair{problem(1, 1, 34, 40, {4, 10, 12}, {3, 3, 3}, kOne, kOne, {1, 1, 1}), 480},     // planes,
        std::pair{problem(1, 1, 21, 160, {1, 7, 9}, {1, 3, 3}, kOne, kOne, {0, 1, 1}), 21 * 63},  // channels,
        std::pair{problem(4, 1, 40, 36, {1, 11, 13}, {1, 3, 3}, kOne, kOne, {0, 1, 1}), 4 * 40 * 143}})  // images
    for (const auto& [unknown, pixels] : kWays) {
      if (pixels && p.taps() == 1) continue;
      std::vector<double> expected;
      for (const auto& [threads, layout] : {std::pair{1, Layout::dense},
                                            {2, Layout::channels_last},
                                            {8, Layout::dense},
                                            {3, Layout::permuted},
                                            {8, Layout::blocked}}) {
        set_num_threads(threads);
        Call call(p, unknown, {kFloat, kFloat, kFloat}, {layout, layout, layout});
        Random random(57);
        for (const std::size_t operand : {0, 1, 2}) {
          int element = 0;
          call.fill(operand, [&] { return random.real(-1, 1) * (element++ % period < period / 4 ? 1e-20 : 1); });
        }
        const PassSpec spec = call.spec(std::size_t{1} << 20, threads);
        const auto pass = make(GetParam(), spec, pixels);
        ASSERT_NE(pass, nullptr);
        const std::vector<double> got = call.run(*pass);
        if (expected.empty()) expected = got;
        ASSERT_TRUE(same_bits(got, expected)) << threads << " threads, layout " << static_cast<int>(layout) << '\n'
                                              << pass->explain();
        ASSERT_NE(got, call.run(*make_direct(GetParam(), spec))) << pass->explain();
      }
    }
  set_num_threads(kThreads);
}

// What no window reads decides nothing, though the boxes of some numbers of threads end behind it.
TEST_P(MatrixPass, JudgesNothingThatNoWindowReads) {
  struct Unread {
    Problem p;
    Unknown unknown;
    std::size_t operand;
    Index5 at;  // one position of many that nothing reads
  };
  const Problem padded = problem(1, 1, 64, 64, {1, 34, 34}, {1, 1, 1}, kOne, kOne, {0, 1, 1});
  for (const Unread& u :
       {Unread{padded, Unknown::x, 2, {0, 3, 0, 35, 20}},
        Unread{problem(2, 1, 64, 64, {1, 101, 101}, {1, 3, 3}, {1, 3, 3}), Unknown::y, 0, {1, 5, 0, 100, 50}},
        Unread{problem(1, 1, 256, 64, {1, 20, 20}, {1, 3, 3}, {1, 2, 2}), Unknown::w, 0, {0, 200, 0, 19, 19}}}) {
    std::vector<double> expected;
    for (const int threads : {1, 2, 3, 4, 6, 8}) {
      set_num_threads(threads);
      Call call(u.p, u.unknown, {kFloat, kFloat, kFloat});
      Random random(58);
      call.fill_reals(random);
      call.put(u.operand, u.at, 1e30);
      const PassSpec spec = call.spec(std::size_t{1} << 21, threads);
      const auto pass = make(GetParam(), spec);
      ASSERT_NE(pass, nullptr);
      const std::vector<double> got = call.run(*pass);
      if (expected.empty()) expected = got;
      ASSERT_TRUE(same_bits(got, expected)) << threads << " threads\n" << pass->explain();
      ASSERT_NE(got, call.run(*make_direct(GetParam(), spec))) << pass->explain();
    }
  }
  set_num_threads(kThreads);
}

// Six products of terms stand for one of floats; sums of a few must not have six times as many rounding errors.
TEST_P(MatrixPass, AddsTheSmallTermsOfShortSumsFirst) {
  Random random(56);
  const Problem p = problem(1, 1, 64, 64, {1, 30, 30}, {1, 1, 1});
  for (const Unknown unknown : {Unknown::x, Unknown::y}) {
    Call call(p, unknown, {kFloat, kFloat, kFloat});
    call.fill_reals(random);
    const std::vector<double> expected = call.expected();
    const auto error = [&](const Pass& pass) {
      const std::vector<double> got = call.run(pass);
      double sum = 0;
      for (std::size_t i = 0; i < got.size(); ++i) sum += (got[i] - expected[i]) * (got[i] - expected[i]);
      return std::sqrt(sum);
    };
    EXPECT_LT(error(*make(GetParam(), call.spec(kNoLimit))),
              1.6 * error(*make_direct(GetParam(), call.spec(kNoLimit))));
  }
}

TEST_P(MatrixPass, RefusesWhatItCannotServe) {
  const auto make_for = [](const Problem& p, Unknown unknown, bool pixels = false, std::size_t budget = kNoLimit) {
    return make(GetParam(), Call(p, unknown, {kFloat, kFloat, kFloat}).spec(budget), pixels);
  };
  const Problem good = problem(1, 1, 64, 64, {1, 20, 20}, {1, 3, 3});
  for (const auto& [unknown, pixels] : kWays) {
    EXPECT_NE(make_for(good, unknown, pixels), nullptr);
    EXPECT_EQ(make_for(good, unknown, pixels, 16 << 10), nullptr);
    EXPECT_EQ(make_for(problem(1, 64, 1, 1, {1, 20, 20}, {1, 3, 3}), unknown, pixels), nullptr);  // depthwise
  }
  EXPECT_EQ(make_for(problem(1, 1, 32, 32, {1, 9, 9}, {1, 3, 3}, {1, 2, 2}), Unknown::x, true), nullptr);
  EXPECT_EQ(make_for(problem(1, 1, 32, 32, {1, 9, 9}, {1, 1, 1}), Unknown::x, true), nullptr);
  EXPECT_EQ(make_for(problem(1, 1, 32, 32, {1, 70, 70}, {1, 3, 3}), Unknown::x, true), nullptr);
  // No pixel that a window covers.
  EXPECT_EQ(make_for(problem(1, 1, 32, 32, {1, 1, 1}, {1, 1, 1}, {1, 2, 2}, kOne, {0, 1, 1}), Unknown::x), nullptr);
}

}  // namespace
}  // namespace test
}  // namespace convbwd
