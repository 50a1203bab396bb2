// Winograd passes, forced to each of their transforms, on every instruction set and with every plan that a shrinking
// budget leads to.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "conv/choose.h"
#include "conv/problem.h"
#include "engine/pass.h"
#include "kernels/list.h"
#include "support/call.h"
#include "support/isa.h"
#include "support/problems.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd {

static void PrintTo(const Problem& p, std::ostream* out) { *out << to_string(p); }

namespace test {
namespace {

constexpr Index3 kOne{1, 1, 1};
constexpr std::size_t kQuarters = 2;  // of what a plan took are the budget of the next

std::vector<Problem> problems() {
  return {
      problem(2, 1, 32, 40, {1, 13, 18}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),
      problem(1, 1, 75, 33, {1, 9, 7}, {1, 3, 3}),                                    // parts of vectors
      problem(3, 1, 32, 32, {1, 1, 2}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),             // windows mostly in padding
      problem(1, 1, 32, 32, {1, 5, 6}, {1, 3, 3}, kOne, kOne, {0, 5, 4}, {0, 3, 2}),  // tiles in padding only
      problem(1, 1, 40, 48, {1, 8, 150}, {1, 3, 3}, kOne, kOne, {0, 1, 0}),           // boxes along rows
      problem(4, 1, 96, 48, {1, 6, 6}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),             // boxes of images
      problem(2, 2, 33, 34, {1, 8, 11}, {1, 3, 3}, kOne, kOne, {0, 2, 1}),
      problem(2, 1, 32, 36, {5, 8, 9}, {3, 3, 3}, kOne, kOne, {1, 1, 1}),
      problem(1, 1, 34, 32, {2, 4, 4}, {4, 3, 3}, kOne, kOne, {3, 1, 0}),
      problem(1, 1, 70, 140, {1, 10, 10}, {1, 3, 3}, kOne, kOne, {0, 1, 1}),  // several blocks of results
      problem(2, 1, 40, 36, {1, 11, 14}, {1, 5, 5}, kOne, kOne, {0, 2, 1}),
      problem(1, 2, 32, 33, {3, 7, 6}, {2, 5, 5}, kOne, kOne, {1, 2, 0}),
      problem(1, 1, 33, 36, {1, 15, 17}, {1, 7, 6}, kOne, kOne, {0, 3, 2}),   // windows in parts
      problem(1, 1, 16, 17, {1, 19, 25}, {1, 5, 7}, kOne, kOne, {0, 2, 3}),   // several of the largest tiles
      problem(2, 1, 32, 33, {1, 12, 10}, {1, 9, 10}, kOne, kOne, {0, 4, 5}),  // some of which share tiles
      problem(1, 1, 32, 34, {3, 9, 11}, {2, 4, 3}, kOne, kOne, {1, 2, 1}),
      problem(3, 1, 70, 40, {1, 1, 61}, {1, 1, 3}, kOne, kOne, {0, 0, 1}),  // one axis
      problem(2, 1, 36, 32, {1, 2, 90}, {1, 2, 25}, kOne, kOne, {0, 1, 12}),
      problem(1, 1, 33, 48, {1, 12, 15}, {1, 7, 3}, kOne, kOne, {0, 3, 1}),       // other taps directly
      problem(2, 1, 33, 40, {1, 9, 10}, {1, 2, 2}, kOne, kOne, {0, 1, 0}),        // no tap at the last place
      problem(1, 2, 16, 17, {4, 6, 7}, {3, 5, 5}, kOne, kOne, {1, 2, 2}),         // few channels
      problem(2, 1, 33, 40, {1, 13, 18}, {1, 3, 3}, kOne, {1, 2, 2}, {0, 2, 2}),  // sets of rows and columns
      problem(3, 1, 32, 36, {1, 5, 9}, {1, 3, 2}, kOne, {1, 3, 4}, {0, 2, 5}),    // some with fewer, or none
      problem(1, 1, 32, 33, {1, 5, 6}, {1, 3, 3}, kOne, {1, 7, 9}, {0, 7, 9}),    // windows mostly in padding
      problem(1, 2, 33, 32, {6, 7, 8}, {3, 3, 3}, kOne, {2, 2, 3}, {3, 1, 2}),
      problem(1, 1, 36, 34, {1, 19, 23}, {1, 5, 6}, kOne, {1, 2, 3}, {0, 4, 7}),
      problem(2, 1, 40, 33, {1, 4, 120}, {1, 2, 7}, kOne, {1, 2, 5}, {0, 1, 15}),
      problem(2, 1, 33, 40, {1, 13, 18}, {1, 4, 4}, {1, 2, 2}, kOne, {0, 1, 1}),  // a stride: taps by remainder
      problem(9, 1, 32, 36, {1, 15, 16}, {1, 3, 3}, {1, 2, 2}, kOne, {0, 1, 0}),
      problem(1, 2, 17, 33, {1, 17, 20}, {1, 5, 6}, {1, 2, 2}, kOne, {0, 2, 2}),
      problem(1, 1, 34, 32, {1, 22, 25}, {1, 7, 8}, {1, 3, 2}, kOne, {0, 3, 4}, {0, 2, 0}),
      problem(2, 1, 36, 33, {1, 9, 50}, {1, 2, 5}, {1, 1, 3}, kOne, {0, 1, 0}),
      problem(1, 1, 32, 34, {4, 9, 11}, {3, 4, 3}, {1, 2, 2}, kOne, {1, 1, 0}),
      problem(2, 1, 40, 32, {1, 3, 70}, {1, 3, 4}, {1, 2, 4}, kOne, {0, 1, 1}),
      problem(2, 1, 34, 40, {1, 41, 2}, {1, 7, 1}, kOne, kOne, {0, 3, 0}),  // one axis, which is not the last
      problem(1, 2, 32, 33, {3, 40, 3}, {2, 9, 1}, {1, 2, 1}, kOne, {1, 4, 0}),
      problem(1, 1, 33, 34, {1, 33, 35}, {1, 4, 4}, {1, 2, 2}),              // pixels that no window covers
      problem(1, 1, 32, 33, {1, 8, 9}, {1, 16, 12}, kOne, kOne, {0, 7, 4}),  // taps that meet padding alone
  };
}

// The transforms of a KernelSet, and their error in times that of straight sums of 120 products and more.
struct {
  const char* name;
  double error;
} constexpr kTransforms[] = {
    {" F(2x2, 3x3)", 1},      {" F(4x4, 3x3)", 2.5},       {" F(3x3, 4x4)", 4},       {" F(1x4, 1x3)", 2.5},
    {" F(1x3, 1x2)", 1},      {" F(2x2, 2x2)", 1},         {" F(3x3, 2x2)", 1},       {"exact F(4x4, 3x3)", 1},
    {"exact F(3x3, 4x4)", 1}, {"exact F(1x4, 1x3)", 1.02}, {"exact F(1x3, 1x4)", 1},  {"exact F(4x1, 3x1)", 1},
    {"exact F(3x1, 4x1)", 1}, {"FFT F(6x6, 5x5)", 1},      {"FFT F(14x14, 5x5)", 1},  {"FFT F(12x12, 7x7)", 1},
    {"FFT F(10x10, 9x9)", 1}, {"FFT F(1x14, 1x5)", 1.2},   {"FFT F(1x12, 1x7)", 1.2}, {"FFT F(1x18, 1x17)", 1.2}};
static_assert(std::size(kTransforms) == std::size(KernelSet<float>{}.winograd));

// The numbers of those that suit a problem: Fourier transforms four taps and more, those along w alone windows of one
// column, too.
std::vector<std::size_t> transforms_of(const Problem& p) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < std::size(kTransforms); ++i) {
    const WinogradKernels<float>& transforms = kernel_set<float>(Isa::generic).winograd[i];
    const bool turned = p.w[2] == 1 && transforms.window[0] == 1;
    const auto suits = [&](std::size_t axis) {
      const std::size_t a = turned ? 2 - axis : 1 + axis;
      const Index short_ones = transforms.fourier(static_cast<int>(axis)) ? 3 * p.stride[a] : 1;
      return transforms.window[axis] == 1 || p.w[a] > short_ones;
    };
    if (suits(0) && suits(1)) numbers.push_back(i);
  }
  return numbers;
}

template <class T>
std::unique_ptr<EstimatedPass> make(std::size_t number, PassSpec spec, const KernelSet<T>& kernels) {
  const WinogradKernels<T>& transforms = kernels.winograd[number];
  spec.precision = transforms.exact ? Precision::default_ : Precision::fast;
  auto pass = make_winograd(spec, kernels, &transforms);
  EXPECT_TRUE(!pass || pass->explain().find(kTransforms[number].name) != std::string::npos) << pass->explain();
  return pass;
}

// Every plan that smaller and smaller budgets lead to, on every instruction set (of the turn). Exact transforms keep
// integers so; errors of the others must be small beside the largest result: 40 eps, or what its rounding may add.
template <class T>
void check_all(const Call& call, std::size_t number, const std::vector<double>& expected) {
  const double rounding = call.rounds() ? 0x1p-7 : 40 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const double most = kernel_set<T>(Isa::generic).winograd[number].exact ? 0 : rounding;
  double largest = 0;
  for (const double e : expected) largest = std::max(largest, std::abs(e));
  for (const Isa isa : isas_of_turn(number)) {
    const KernelSet<T>& kernels = kernel_set<T>(isa);
    ASSERT_NE(make(number, call.spec(kNoLimit), kernels), nullptr);
    for_each_plan(
        call, kQuarters, [&](std::size_t budget) { return make(number, call.spec(budget), kernels); },
        [&](const Pass& pass, std::size_t) {
          const std::vector<double> got = call.run(pass);
          const auto same = [&](double a, double b) {
            return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= most * largest;
          };
          const auto wrong = std::mismatch(got.begin(), got.end(), expected.begin(), same);
          ASSERT_TRUE(wrong.first == got.end()) << "element " << wrong.first - got.begin() << " of " << got.size()
                                                << " is " << *wrong.first << ", not " << *wrong.second;
        });
    if (testing::Test::HasFailure()) return;
  }
}

// Each transform with other types and layouts for each unknown; problems begin with different ones.
template <class T>
void check_integers(const Problem& p) {
  constexpr DType t = compute_dtype<T>;
  const Layouts dense{}, other{Layout::channels_last, Layout::permuted, Layout::blocked};
  Random random(41);
  for (const Unknown unknown : kUnknowns) {
    Call calls[] = {Call(p, unknown, {t, t, t}, dense), Call(p, unknown, {t, t, t}, other, true),
                    Call(p, unknown, {DType::float16, t, DType::bfloat16}, dense)};
    std::vector<double> expected[std::size(calls)];
    for (std::size_t i = 0; i < std::size(calls); ++i)
      calls[i].fill_integers(random), expected[i] = calls[i].expected();
    for (const std::size_t number : transforms_of(p)) {
      const std::size_t i =
          (number + static_cast<std::size_t>(p.ci) + static_cast<std::size_t>(unknown)) % std::size(calls);
      check_all<T>(calls[i], number, expected[i]);
      if (testing::Test::HasFailure()) return;
    }
  }
}

class Winograd : public testing::TestWithParam<Problem> {
 protected:
  void SetUp() override { set_num_threads(kThreads); }
};

TEST_P(Winograd, MatchesTheReferenceInFloat32) { check_integers<float>(GetParam()); }
TEST_P(Winograd, MatchesTheReferenceInFloat64) { check_integers<double>(GetParam()); }

// What is not finite shows exactly where a window touches it.
TEST_P(Winograd, HasTheFootprintOfDirectSums) {
  Random random(42);
  for (const Unknown unknown : kUnknowns)
    for (const double value : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
      for (const std::size_t operand : {0, 1, 2}) {
        Call call(GetParam(), unknown, {DType::float32, DType::float32, DType::float32}, {}, false);
        if (operand == call.result()) continue;
        call.fill_integers(random);
        const Index5 size = operand == 0 ? x_size(GetParam()) : operand == 1 ? w_size(GetParam()) : y_size(GetParam());
        Index5 at;
        for (std::size_t a = 0; a < 5; ++a) at[a] = random.integer(0, size[a] - 1);
        call.put(operand, at, value);
        const std::vector<double> expected = call.expected();
        for (const std::size_t number : transforms_of(GetParam())) check_all<float>(call, number, expected);
        if (HasFailure()) return;
      }
}

// Of positive values none but sums of nothing are zero. Tiles would bring them rounding errors of their neighbours.
TEST_P(Winograd, LeavesSumsOfNothingAtZero) {
  constexpr DType f = DType::float32;
  for (const Unknown unknown : kUnknowns) {
    Call call(GetParam(), unknown, {f, f, f}, {}, false);
    Random random(46);
    call.fill([&] { return random.real(0.5, 1); });
    const std::vector<double> expected = call.expected();
    for (const std::size_t number : transforms_of(GetParam())) {
      const auto pass = make(number, call.spec(kNoLimit), kernel_set<float>(active_isa()));
      ASSERT_NE(pass, nullptr);
      const std::vector<double> got = call.run(*pass);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i] == 0, expected[i] == 0) << "element " << i << " is " << got[i] << '\n' << pass->explain();
    }
  }
}

TEST_P(Winograd, HasTheSameBitsForAllThreadsAndLayouts) {
  const KernelSet<float>& kernels = kernel_set<float>(active_isa());
  for (const Unknown unknown : kUnknowns)
    for (const std::size_t number : transforms_of(GetParam()))
      for (const std::size_t budget : {kNoLimit, std::size_t{3} << 19}) {
        if (kSanitized && (number % 2 == 0) != (budget == kNoLimit)) continue;
        std::vector<double> expected;
        for (const auto& [threads, layout] :
             {std::pair{1, Layout::dense}, {2, Layout::channels_last}, {3, Layout::blocked}, {7, Layout::dense}}) {
          Random random(43);  // the same numbers in every layout
          set_num_threads(threads);
          Call call(GetParam(), unknown, {DType::float32, DType::bfloat16, DType::float32}, {layout, layout, layout},
                    true);
          call.fill([&] { return random.real(-1, 1); });
          const auto pass = make(number, call.spec(budget, threads), kernels);
          if (!pass) continue;
          const std::vector<double> got = call.run(*pass);
          if (expected.empty()) expected = got;
          ASSERT_TRUE(same_bits(got, expected)) << threads << " threads, layout " << static_cast<int>(layout) << '\n'
                                                << pass->explain();
        }
      }
}

INSTANTIATE_TEST_SUITE_P(, Winograd, testing::ValuesIn(problems()),
                         [](const auto& test) { return to_string(test.param); });

// The largest error of results, and the root of their sum of squares.
std::array<double, 2> errors(const std::vector<double>& got, const std::vector<double>& truth) {
  std::array<double, 2> e{};
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(got[i] - truth[i]);
    e[0] = std::max(e[0], d);
    e[1] += d * d;
  }
  e[1] = std::sqrt(e[1]);
  return e;
}

TEST(WinogradError, IsBelowThatOfStraightSumsOrAFewTimesIt) {
  set_num_threads(kThreads);
  constexpr DType f = DType::float32;
  const Problem image = problem(2, 1, 96, 80, {1, 15, 14}, {1, 3, 3}, kOne, kOne, {0, 1, 1});
  const Problem volume = problem(1, 1, 40, 48, {5, 12, 12}, {3, 3, 3}, kOne, kOne, {1, 1, 1});
  const Problem large = problem(2, 1, 64, 40, {1, 15, 14}, {1, 5, 5}, kOne, kOne, {0, 2, 2});
  const Problem larger = problem(1, 1, 32, 24, {1, 19, 20}, {1, 9, 9}, kOne, kOne, {0, 4, 4});
  const Problem line = problem(2, 1, 64, 40, {1, 1, 300}, {1, 1, 3}, kOne, kOne, {0, 0, 1});
  const Problem long_taps = problem(1, 1, 40, 36, {1, 1, 200}, {1, 1, 40}, kOne, kOne, {0, 0, 20});
  for (const Problem& p : {image, volume, large, larger, line, long_taps})
    for (const Unknown unknown : kUnknowns)
      for (const bool rectified : {false, true}) {
        Call call(p, unknown, {f, f, f}, {}, false);
        Random random(44);
        call.fill([&] {
          double sum = 0;
          for (int i = 0; i < 6; ++i) sum += random.real(-1, 1);  // about normal
          return rectified ? std::max(sum, 0.0) : sum;
        });
        const std::vector<double> truth = call.expected();
        const auto straight = errors(call.straight(), truth);
        for (const std::size_t number : transforms_of(p)) {
          const double times = kTransforms[number].error;
          const auto pass = make(number, call.spec(kNoLimit), kernel_set<float>(active_isa()));
          ASSERT_NE(pass, nullptr);
          const auto ours = errors(call.run(*pass), truth);
          EXPECT_LE(ours[0], times * straight[0]) << pass->explain();
          EXPECT_LE(ours[1], times * straight[1]) << pass->explain();
        }
      }
}

// A few values that dwarf the others would lose what small ones contribute: the result is the direct one.
TEST(WinogradGuard, LeavesSpikesToDirectSums) {
  set_num_threads(kThreads);
  constexpr DType f = DType::float32;
  const Problem p = problem(2, 1, 32, 32, {1, 20, 20}, {1, 5, 5}, kOne, kOne, {0, 2, 2});
  const KernelSet<float>& kernels = kernel_set<float>(active_isa());
  for (const std::size_t number : transforms_of(p))
    for (const Unknown unknown : kUnknowns) {
      Call call(p, unknown, {f, f, f}, {}, false);
      Random random(45);
      call.fill([&] { return random.real(-1, 1); });
      const auto direct = unknown == Unknown::w ? make_gather_weights(call.spec(kNoLimit), kernels)
                                                : make_gather(call.spec(kNoLimit), kernels);
      const auto pass = make(number, call.spec(kNoLimit), kernels);
      ASSERT_NE(pass, nullptr);
      EXPECT_NE(call.run(*pass), call.run(*direct));
      call.put(unknown == Unknown::x ? 2 : 0, {1, 20, 0, 7, 8}, 1e4);
      EXPECT_EQ(call.run(*pass), call.run(*direct));
    }
}

TEST(WinogradGuard, NoticesSumsThatAreNotFinite) {
  const std::vector<float> large(1 << 13, 0x1p116f);
  for (const Isa isa : kIsas) {
    const bool noticed = !supported(isa) || std::isnan(kernel_set<float>(isa).peak(large.data(), 1 << 13, 1));
    EXPECT_TRUE(noticed) << name_of(isa);
  }
}

TEST(WinogradPlan, TakesLargeTilesOnlyWhereCheaperAndInexactOnesOnlyWhereFast) {
  constexpr DType f = DType::float32;
  for (const Unknown unknown : kUnknowns) {
    const auto transform_of = [&](const Problem& p, Precision precision) {
      PassSpec spec = Call(p, unknown, {f, f, f}, {}, false).spec(kNoLimit);
      spec.precision = precision;
      const std::string text = make_winograd(spec, kernel_set<float>(active_isa()))->explain();
      constexpr std::size_t kUnknown = std::string_view("winograd x ").size();
      return text.substr(kUnknown, text.find(',') - kUnknown);
    };
    const Problem wide = problem(1, 1, 64, 64, {1, 80, 128}, {1, 3, 3}, kOne, kOne, {0, 1, 1});
    const Problem large = problem(2, 1, 64, 64, {1, 66, 66}, {1, 7, 7});
    const Problem small = problem(56, 1, 64, 64, {1, 2, 6}, {1, 3, 3}, kOne, kOne, {0, 1, 1});
    EXPECT_EQ(transform_of(wide, Precision::default_), "exact F(4x4");
    EXPECT_EQ(transform_of(wide, Precision::fast), "F(4x4");
    EXPECT_EQ(transform_of(large, Precision::default_), "exact F(3x3");
    EXPECT_EQ(transform_of(large, Precision::fast).substr(0, 5), "FFT F");
    EXPECT_EQ(transform_of(small, Precision::default_), "F(2x2");
    EXPECT_EQ(transform_of(small, Precision::fast), "F(2x2");
  }
}

// What threads share in the plans of an instruction set, if anything, whether weights are transformed once, and whether
// there are several panels, sets of results, or slabs: all that check_all runs.
std::set<std::string> ways_to_share(Isa isa) {
  std::set<std::string> ways;
  for (const Problem& p : problems())
    for (const Unknown unknown : kUnknowns)
      for (const std::size_t number : transforms_of(p)) {
        const Call call(p, unknown, {DType::float32, DType::float32, DType::float32}, {}, false);
        const auto add = [&](const Pass& pass, std::size_t) {
          const std::string text = pass.explain();
          const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
          std::string way = unknown == Unknown::w           ? "w"
                            : says("panels of a box")       ? "panels"
                            : says("source for each panel") ? "streams"
                            : says("frequencies of a box")  ? "together"
                            : says("of a chunk of a box")   ? "chunks together"
                                                            : "boxes";
          if (says("shared by all threads")) way += ", together";
          if (says(" on 1 thread")) way += ", alone";
          if (unknown == Unknown::w && !says(" 1 slabs")) way += ", slabs";
          if (says("transformed once")) way += ", once";
          if (const std::size_t at = text.find("panels of "); unknown != Unknown::w)
            if (std::stol(text.substr(at + 10)) < (unknown == Unknown::x ? p.ci : p.co)) way += ", panels";
          if (unknown == Unknown::x && p.stride != kOne) way += ", sets";
          ways.insert(way);
        };
        for_each_plan(
            call, kQuarters,
            [&](std::size_t budget) { return make(number, call.spec(budget), kernel_set<float>(isa)); }, add);
      }
  return ways;
}

TEST(WinogradPlan, SharesWorkInEveryWay) {
  set_num_threads(kThreads);
  const auto includes = [](const std::set<std::string>& all, const std::set<std::string>& some) {
    return std::includes(all.begin(), all.end(), some.begin(), some.end());
  };
  const std::set<std::string> generic = ways_to_share(Isa::generic);
  EXPECT_TRUE(includes(generic, {"boxes, alone, panels", "boxes, alone, panels, sets", "boxes, once, panels",
                                 "boxes, panels, sets", "streams, alone, panels", "streams, panels",
                                 "streams, panels, sets", "w", "w, alone", "w, slabs", "w, together"}));
  for (const std::string way : {"together", "chunks together"})  // of all source channels, or some at a time
    EXPECT_TRUE(std::ranges::any_of(generic, [&](const std::string& one) { return one.starts_with(way); })) << way;
  if (!supported(Isa::avx512)) return;  // whose panels hold all columns
  EXPECT_TRUE(includes(ways_to_share(Isa::avx512),
                       {"boxes, alone, once, sets", "boxes, once, sets", "boxes, sets", "panels, once, panels, sets",
                        "panels, panels", "streams, alone, sets", "streams, once", "streams, panels, sets"}));
}

// What more workspace alone would do is told from what takes another precision, too.
TEST(WinogradPlan, TellsWhatForbidsIt) {
  if (!supported(Isa::avx2)) return;
  const Isa before = active_isa();
  set_isa(Isa::avx2);
  constexpr DType f = DType::float32;
  const Problem p = problem(4, 1, 64, 64, {1, 56, 56}, {1, 3, 3}, kOne, kOne, {0, 1, 1});
  PassSpec spec = Call(p, Unknown::w, {f, f, f}, {}, false).spec(32 << 10);
  const std::string limit = "the limit of the workspace refuses winograd w";
  spec.precision = Precision::fast;
  const std::string fast = reason(spec, Algorithm::automatic);
  EXPECT_NE(fast.find("; " + limit), std::string::npos) << fast;
  spec.precision = Precision::strict;
  const std::string strict = reason(spec, Algorithm::automatic);
  EXPECT_NE(strict.find("; precision 'strict' with " + limit), std::string::npos) << strict;
  EXPECT_EQ(strict.find("; " + limit), std::string::npos) << strict;
  set_isa(before);
}

TEST(WinogradPlan, RefusesWhatItCannotServe) {
  constexpr Index kTooMany = 129, kTooFar = 65;  // parts of a window, columns from tap to tap
  const Problem good = problem(1, 1, 64, 64, {1, 20, 20}, {1, 3, 3});
  std::vector<Problem> bad(6, good);
  bad.push_back(problem(9, 1, 64, 64, {1, 1, 1}, {1, 3, 3}, kOne, kOne, {0, 1, 1}));  // more products than direct sums
  bad[0].stride[2] = 4, bad[1].dilation[2] = kTooFar, bad[2].w[0] = kTooMany, bad[3].ci = 15, bad[4].co = 15,
  bad[5].w[1] = bad[5].w[2] = 1;
  for (const Unknown unknown : kUnknowns) {
    const auto make = [&](const Problem& p, std::size_t budget) {
      constexpr DType f = DType::float32;
      return make_winograd(Call(p, unknown, {f, f, f}, {}, false).spec(budget), kernel_set<float>(active_isa()));
    };
    EXPECT_NE(make(good, kNoLimit), nullptr);
    EXPECT_EQ(make(good, 4 << 10), nullptr);
    for (const Problem& p : bad) EXPECT_EQ(make(p, kNoLimit), nullptr) << to_string(p);
  }
}

}  // namespace
}  // namespace test
}  // namespace convbwd
