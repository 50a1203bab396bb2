// Every algorithm of the engine, forced, on every kernel set, with every plan that a shrinking budget leads to, against
// the definition of the problem. Operands are small integers, so that results are equal and not merely close.
#include "engine/pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "conv/problem.h"
#include "engine/blas.h"
#include "kernels/list.h"
#include "support/call.h"
#include "support/guarded_buffer.h"
#include "support/isa.h"
#include "support/plain_kernels.h"
#include "support/problems.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd {

static void PrintTo(const Problem& p, std::ostream* out) { *out << to_string(p); }

namespace test {
namespace {

// The kernel sets that run here: those of the list, BLAS, and some with odd tiles.
template <class T>
std::vector<const KernelSet<T>*> kernel_sets() {
  std::vector<const KernelSet<T>*> sets{&plain::set<T, 3, 7, 1>("odd 3"), &plain::set<T, 5, 1, 3, 7>("odd 5")};
  for (const Isa isa : supported_isas()) sets.push_back(&kernel_set<T>(isa));
  return sets;
}

template <class T, auto make>
std::unique_ptr<Pass> plain_pass(const PassSpec& spec, const KernelSet<T>& kernels) {
  return make(spec, kernels);
}

template <class T>
struct Maker {
  const char* name;
  std::unique_ptr<Pass> (*make)(const PassSpec&, const KernelSet<T>&);
  std::vector<const KernelSet<T>*> sets;
  bool any = true;  // serves every problem
};
template <class T>
std::vector<Maker<T>> makers(Unknown unknown) {
  std::vector<const KernelSet<T>*> gathering = kernel_sets<T>();
  if (have_blas()) gathering.push_back(&blas_kernels(kernel_set<T>(Isa::generic)));
  const auto reference = [](const PassSpec& spec, const KernelSet<T>&) { return make_reference(spec); };
  const std::vector<const KernelSet<T>*> any{&kernel_set<T>(Isa::generic)};
  if (unknown == Unknown::w)
    return {{"gather_weights", make_gather_weights, gathering},
            {"dots", make_dots, kernel_sets<T>()},
            {"outer", make_outer, kernel_sets<T>(), false},
            {"lanes", plain_pass<T, make_lanes_weights<T>>, kernel_sets<T>(), false},
            {"reference", reference, any}};
  const auto rows = [](const PassSpec& spec, const KernelSet<T>& kernels) {  // whose sums are the same
    auto pass = make_lanes_in_place(spec, kernels);
    return pass ? std::move(pass) : make_rows(spec, kernels);
  };
  const auto by_taps = [](const PassSpec& spec, const KernelSet<T>& kernels) -> std::unique_ptr<Pass> {
    PassSpec kept = spec;
    kept.sums = GatherSums{3, true, true}.sums();
    return make_gather(kept, kernels);
  };
  return {{"gather", make_gather, gathering},
          {"gather by taps", by_taps, kernel_sets<T>()},
          {"rows", make_rows, kernel_sets<T>()},
          {"rows or lanes in place", rows, kernel_sets<T>()},
          {"lanes", plain_pass<T, make_lanes<T>>, kernel_sets<T>(), false},
          {"columns", plain_pass<T, make_columns<T>>, kernel_sets<T>(), false},
          {"matvec", plain_pass<T, make_matvec<T>>, kernel_sets<T>(), false},
          {"reference", reference, any}};
}

// Every plan that smaller and smaller budgets lead to.
template <class T>
void check_all(const Call& call, Unknown unknown) {
  const std::vector<double> expected = call.defined();
  for (const Maker<T>& maker : makers<T>(unknown))
    for (const KernelSet<T>* set : maker.sets) {
      SCOPED_TRACE(std::string(maker.name) + " on " + set->name + " " + set->gather[0].name);
      ASSERT_TRUE(!maker.any || maker.make(call.spec(kNoLimit), *set));
      for_each_plan(
          call, 2, [&](std::size_t budget) { return maker.make(call.spec(budget), *set); },
          [&](const Pass& pass, std::size_t) { call.check(pass, expected); });
      if (testing::Test::HasFailure()) return;
    }
}

template <class T>
DType random_dtype(Random& random, bool result) {
  constexpr bool wide = sizeof(T) == 8;
  return kDTypeList[random.integer(wide ? 0 : 1, (wide || result ? kResultDTypes : kTypes) - 1)];
}

template <class T>
Call random_call(const Problem& p, Unknown unknown, Random& random) {
  const std::size_t result = unknown == Unknown::x ? 0 : unknown == Unknown::w ? 1 : 2;
  Types types;
  Layouts layouts;
  for (std::size_t i = 0; i < 3; ++i) {
    types[i] = random_dtype<T>(random, i == result);
    layouts[i] = static_cast<Layout>(random.integer(0, (i == result ? kResultLayouts : kLayouts) - 1));
  }
  const bool biased = random.integer(0, 1) == 1;
  return {p, unknown, types, layouts, biased, random.integer(0, 1) ? Layout::gaps : Layout::expanded};
}

// With small integers as operands.
template <class T>
void check_call(Call& call, Unknown unknown, Random& random) {
  std::ostringstream text;
  text << call;
  SCOPED_TRACE(text.str());
  call.fill_integers(random);
  check_all<T>(call, unknown);
}

template <class T>
void check_problem(const Problem& p, Random& random) {
  constexpr DType t = compute_dtype<T>;
  constexpr Layouts kOther{Layout::channels_last, Layout::permuted, Layout::channels_last};
  constexpr Layouts kBlocked{Layout::blocked, Layout::blocked, Layout::blocked};
  for (const Unknown unknown : kUnknowns) {
    const Layouts& layouts = random.integer(0, 1) ? kOther : kBlocked;
    Call calls[] = {Call(p, unknown, {t, t, t}), Call(p, unknown, {t, t, t}, layouts, true),
                    random_call<T>(p, unknown, random)};
    for (Call& call : calls) {
      check_call<T>(call, unknown, random);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------- tests

class HardProblem : public testing::TestWithParam<Problem> {
 protected:
  void SetUp() override { set_num_threads(kThreads); }
};

TEST_P(HardProblem, InFloat32) {
  Random random(21);
  check_problem<float>(GetParam(), random);
}
TEST_P(HardProblem, InFloat64) {
  Random random(22);
  check_problem<double>(GetParam(), random);
}

// A product that does not exist must not turn what is not finite into NaN elsewhere.
TEST_P(HardProblem, WithNonFiniteOperands) {
  Random random(23);
  for (const Unknown unknown : kUnknowns)
    for (const double value : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      Call call(GetParam(), unknown, {DType::float32, DType::float32, DType::float32});
      call.fill_integers(random);
      for (const std::size_t operand : {0, 1, 2}) call.put_anywhere(operand, random, value);
      check_all<float>(call, unknown);
      if (HasFailure()) return;
    }
}

// The order of a sum depends on the problem, the types and the kernels: threads and strides leave every bit as it is,
// also where something is not finite.
TEST_P(HardProblem, HasTheSameBitsForAllThreadsAndLayouts) {
  const Problem& p = GetParam();
  for (const Unknown unknown : kUnknowns)
    for (const Maker<float>& maker : makers<float>(unknown))
      for (const KernelSet<float>* set : {maker.sets.front(), maker.sets.back()})
        for (const auto& [budget, finite] :
             {std::pair{kNoLimit, true}, {kNoLimit, false}, {std::size_t{64} << 10, true}}) {
          if (kSanitized && (set == maker.sets.front()) != (budget != kNoLimit)) continue;
          std::vector<double> expected;
          for (const auto& [threads, layout] : {std::pair{1, Layout::dense},
                                                {2, Layout::channels_last},
                                                {3, Layout::blocked},
                                                {7, Layout::dense},
                                                {7, Layout::reversed}}) {
            Random random(24);  // the same numbers in every layout
            set_num_threads(threads);
            Call call(p, unknown, {DType::float32, finite ? DType::bfloat16 : DType::float32, DType::float32},
                      {layout, layout, layout});
            call.fill_reals(random);
            for (const std::size_t operand : {0, 1, 2})
              if (!finite) call.put_anywhere(operand, random, std::numeric_limits<double>::infinity());
            const auto pass = maker.make(call.spec(budget, threads), *set);
            if (!pass) continue;
            const std::vector<double> got = call.run(*pass);
            if (expected.empty()) expected = got;
            ASSERT_TRUE(same_bits(got, expected))
                << maker.name << " on " << set->name << ", " << threads << " threads, layout "
                << static_cast<int>(layout) << ", unknown " << "xwy"[static_cast<int>(unknown)]
                << (finite ? "" : ", not finite") << '\n'
                << pass->explain();
          }
        }
}

INSTANTIATE_TEST_SUITE_P(, HardProblem, testing::ValuesIn(hard_problems()),
                         [](const auto& test) { return to_string(test.param); });

TEST(RandomProblems, ComputeWhatTheDefinitionSays) {
  set_num_threads(kThreads);
  Random random(25);
  for (int i = 0; i < 150; ++i) {
    const Problem p = random_problem(random);
    SCOPED_TRACE(to_string(p));
    const Unknown unknown = kUnknowns[random.integer(0, 2)];
    const auto check = [&](auto zero) {
      using T = decltype(zero);
      Call call = random_call<T>(p, unknown, random);
      check_call<T>(call, unknown, random);
    };
    if (i % 3 == 0)
      check(double{});
    else
      check(float{});
    if (HasFailure()) return;
  }
}

// Formats that keep results from being formed where they belong leave every bit as it is.
TEST(Pointwise, SumsAsOtherLayoutsDo) {
  for (const KernelSet<float>* set : {&kernel_set<float>(Isa::generic), &kernel_set<float>(active_isa())})
    for (const Unknown unknown : {Unknown::x, Unknown::y})
      // Sources in place, packed, and packed from far away; many weights, of which vectors of 32 bytes have a copy.
      for (const auto& [n, groups, from, to, side] : {std::array<Index, 5>{2, 2, 64, 60, 10},
                                                      {1, 1, 1600, 400, 10},
                                                      {1, 1, 1312, 96, 20},
                                                      {1, 1, 137, 500, 26}}) {
        const Problem p = unknown == Unknown::x ? problem(n, groups, to, from, {1, side, side}, {1, 1, 1})
                                                : problem(n, groups, from, to, {1, side, side}, {1, 1, 1});
        std::vector<double> expected;
        for (const auto& [layout, of_w] : {std::pair{Layout::channels_last, Layout::dense},
                                           {Layout::dense, Layout::dense},
                                           {Layout::dense, Layout::gaps}})
          for (const int threads : {1, 2, 3}) {
            Random random(29);
            set_num_threads(threads);
            const DType t = DType::float32;
            Call call(p, unknown, {t, t, t}, {layout, of_w, layout}, true);
            call.fill_reals(random);
            const auto pass = make_gather(call.spec(kNoLimit, threads), *set);
            EXPECT_EQ(pass->explain().starts_with("pointwise"), layout == Layout::dense) << pass->explain();
            const std::vector<double> got = call.run(*pass);
            if (expected.empty()) expected = got;
            ASSERT_TRUE(same_bits(got, expected)) << to_string(p) << '\n' << pass->explain();
          }
      }
}

TEST(Pointwise, CopiesWeightsOfSectionsInTurns) {
  constexpr DType t = DType::float32;
  const Problem p = problem(1, 2, 600, 450, {1, 24, 24}, {1, 1, 1});
  set_num_threads(kThreads);
  for (const KernelSet<float>* set : {&kernel_set<float>(Isa::generic), &kernel_set<float>(active_isa())}) {
    std::vector<double> expected;
    for (const std::size_t budget : {kNoLimit, std::size_t{1800} << 10, std::size_t{1000} << 10})
      for (const Layout layout : {Layout::dense, Layout::channels_last}) {
        Random random(31);
        Call call(p, Unknown::x, {t, t, t}, {layout, Layout::dense, layout});
        call.fill_reals(random);
        const auto pass = make_gather(call.spec(budget), *set);
        const auto says = [&](const char* what) { return pass->explain().find(what) != std::string::npos; };
        if (layout == Layout::dense) {
          EXPECT_EQ(says("weights copied"), narrow(*set)) << pass->explain();
          EXPECT_EQ(says(" turns"), narrow(*set) && budget != kNoLimit) << pass->explain();
        }
        const std::vector<double> got = call.run(*pass);
        if (expected.empty()) expected = got;
        EXPECT_TRUE(same_bits(got, expected)) << set->name << ": " << pass->explain();
      }
  }
}

// Vectors of 32 bytes read copies of images whose planes meet; where the budget does not hold all, images take turns.
TEST(Gather, CopiesTheImageOnce) {
  constexpr DType t = DType::float32;
  for (const KernelSet<float>* set : {&kernel_set<float>(Isa::generic), &kernel_set<float>(active_isa())})
    for (const auto& [unknown, p, limit] : std::vector<std::tuple<Unknown, Problem, std::size_t>>{
             {Unknown::x, problem(5, 1, 32, 20, {1, 32, 32}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}), 400 << 10},
             {Unknown::y, problem(8, 1, 12, 40, {2, 16, 32}, {1, 3, 5}, {1, 1, 1}, {1, 1, 2}, {0, 1, 3}, {0, 1, 2}),
              400 << 10},
             // Parts of an image: of planes, of each plane, and of a row.
             {Unknown::y, problem(2, 1, 16, 300, {1, 64, 64}, {1, 2, 2}, {1, 2, 2}), 250 << 10},
             {Unknown::x, problem(1, 2, 40, 12, {4, 64, 64}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}), 600 << 10},
             {Unknown::y, problem(1, 1, 16, 100, {1, 1, 4096}, {1, 1, 5}, {1, 1, 1}, {1, 1, 2}), 200 << 10},
         }) {
      std::vector<double> expected;
      for (const std::size_t budget : {kNoLimit, limit})
        for (const Layout layout : {Layout::dense, Layout::channels_last, Layout::gaps})
          for (const int threads : {1, 3}) {
            Random random(32);
            set_num_threads(threads);
            Call call(p, unknown, {t, t, t}, {layout, Layout::dense, layout}, true);
            call.fill_reals(random);
            const auto pass = make_gather(call.spec(budget, threads), *set);
            const auto says = [&](const char* what) { return pass->explain().find(what) != std::string::npos; };
            const bool copies = narrow(*set) && layout != Layout::channels_last;
            EXPECT_EQ(says("image copied once"), copies) << pass->explain();
            EXPECT_EQ(says(" boxes at a time"), copies && budget != kNoLimit) << pass->explain();
            const std::vector<double> got = call.run(*pass);
            if (expected.empty()) expected = got;
            ASSERT_TRUE(same_bits(got, expected)) << to_string(p) << '\n' << pass->explain();
          }
    }
}

TEST(GatherWeights, SumsAsOtherLayoutsDo) {
  std::vector<const KernelSet<float>*> sets{&kernel_set<float>(active_isa())};
  if (have_blas()) sets.push_back(&blas_kernels(kernel_set<float>(Isa::generic)));
  for (const Problem& p :
       {problem(2, 1, 64, 300, {1, 30, 30}, {1, 1, 1}), problem(1, 2, 40, 200, {1, 12, 11}, {1, 1, 1}),
        problem(3, 1, 130, 90, {1, 7, 7}, {1, 1, 1})})
    for (const KernelSet<float>* set : sets)
      for (const std::size_t budget : {kNoLimit, std::size_t{64} << 10}) {
        std::vector<double> expected;
        for (const Layout layout : {Layout::gaps, Layout::apart, Layout::permuted, Layout::dense}) {
          Random random(30);
          const DType t = DType::float32;
          Call call(p, Unknown::w, {t, t, t}, {Layout::dense, layout, Layout::dense});
          call.fill_reals(random);
          const auto pass = make_gather_weights(call.spec(budget), *set);
          const std::vector<double> got = call.run(*pass);
          if (expected.empty()) expected = got;
          ASSERT_TRUE(same_bits(got, expected)) << to_string(p) << '\n' << pass->explain();
        }
      }
}

// Chunks that slabs do not divide evenly, of two blocks of rows and of two blocks of columns.
TEST(GatherWeights, SumsUnevenSlabs) {
  set_num_threads(kThreads);
  for (const Problem& p :
       {problem(1, 1, 192, 6, {1, 33, 33}, {1, 1, 1}), problem(1, 1, 40, 72, {1, 59, 60}, {1, 1, 1})})
    for (const KernelSet<float>* set : kernel_sets<float>()) {
      Random random(33);
      Call call(p, Unknown::w, {DType::float32, DType::float32, DType::float32});
      call.fill_integers(random);
      const auto pass = make_gather_weights(call.spec(kNoLimit), *set);
      ASSERT_NE(pass, nullptr);
      call.check(*pass, call.defined());
    }
}

// Parts of an image have a few taps less than all of a window, of two channels side by side and in chunks of sources.
TEST(Columns, AddPartsOfWindows) {
  constexpr DType t = DType::float32;
  set_num_threads(kThreads);
  for (Index size = 120; size < 136; ++size)
    for (const KernelSet<float>* set : kernel_sets<float>()) {
      Random random(34);
      Call call(problem(1, 1, 2, 1100, {1, 1, size}, {1, 1, 30}), Unknown::x, {t, t, t});
      call.fill_integers(random);
      const std::vector<double> expected = call.run(*make_columns(call.spec(kNoLimit, 1), *set));
      const auto pass = make_columns(call.spec(kNoLimit), *set);
      ASSERT_NE(pass->explain().find("3 tasks on 3 threads"), std::string::npos) << pass->explain();
      ASSERT_TRUE(same_bits(call.run(*pass), expected)) << size << ' ' << set->name << '\n' << pass->explain();
    }
}

// Boxes and blocks may follow the number of threads that share much work; sums must not.
TEST(MuchWork, IsSummedAlikeByAnyNumberOfThreads) {
  struct Case {
    std::unique_ptr<Pass> (*make)(const PassSpec&, const KernelSet<float>&);
    Unknown unknown;
    Problem problem;
    std::size_t budget;
  };
  const KernelSet<float>& set = kernel_set<float>(active_isa());
  const Problem large = problem(1, 1, 2, 3, {1, 300, 310}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  for (const auto& [make, unknown, p, budget] :
       std::vector<Case>{{make_rows, Unknown::x, large, 128 << 10},
                         {make_rows, Unknown::y, large, 128 << 10},
                         {make_rows, Unknown::x, problem(1, 1, 1, 6, {1, 300, 310}, {1, 3, 3}), 128 << 10},
                         {make_gather_weights, Unknown::w, problem(1, 1, 64, 48, {1, 22, 22}, {1, 3, 3}), 200 << 10}}) {
    const Call call = [&] {
      Call c(p, unknown, {DType::float32, DType::float32, DType::float32});
      Random random(31);
      c.fill_reals(random);
      return c;
    }();
    set_num_threads(2);
    const auto alone = make(call.spec(budget, 1), set), shared = make(call.spec(budget, 2), set);
    const auto tiling = [](const Pass& pass) { return pass.explain().substr(0, pass.explain().rfind(';')); };
    EXPECT_NE(tiling(*alone), tiling(*shared));
    const std::vector<double> got = call.run(*shared), expected = call.run(*alone);
    EXPECT_TRUE(same_bits(got, expected)) << shared->explain();
  }
}

// Boxes of high windows share most of their borders, and none once threads cut them.
TEST(MuchWork, IsPlannedForAnyNumberOfThreads) {
  constexpr DType f = DType::float32;
  const Call call(problem(1, 1, 2, 512, {4, 9, 34}, {1, 15, 5}, {1, 1, 1}, {1, 1, 1}, {0, 7, 2}), Unknown::x,
                  {f, f, f});
  for (const int threads : {1, 2, 4})
    EXPECT_NE(make_rows(call.spec(183600, threads), kernel_set<float>(active_isa())), nullptr) << threads;
}

// A part of an image may take rows where the whole takes lanes.
TEST(Lanes, SumAsRowsDo) {
  for (const KernelSet<float>* set : kernel_sets<float>())
    for (const Unknown unknown : {Unknown::x, Unknown::y})
      for (const Problem& p : {problem(2, 20, 1, 1, {1, 11, 10}, {1, 7, 5}, {1, 1, 1}, {1, 1, 1}, {0, 3, 4}),
                               problem(2, 20, 1, 1, {1, 11, 10}, {1, 7, 5}, {1, 2, 2}, {1, 1, 1}, {0, 3, 4}),
                               problem(2, 20, 1, 1, {1, 9, 9}, {1, 7, 7}, {1, 1, 1}, {1, 1, 1}, {0, 3, 3}),
                               problem(5, 20, 1, 1, {1, 5, 6}, {1, 11, 13}, {1, 1, 1}, {1, 1, 1}, {0, 5, 6}),
                               problem(2, 20, 1, 1, {1, 9, 8}, {1, 15, 17}, {1, 2, 1}, {1, 1, 1}, {0, 7, 8}),
                               problem(1, 20, 1, 1, {4, 5, 6}, {5, 5, 5}, {1, 1, 1}, {1, 1, 1}, {2, 2, 2}),
                               // rows long enough to share rows of the source
                               problem(1, 20, 1, 1, {1, 30, 40}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),
                               problem(1, 20, 1, 1, {1, 30, 40}, {1, 25, 4}, {1, 1, 1}, {1, 1, 1}, {0, 12, 2}),
                               problem(1, 20, 1, 1, {1, 23, 20}, {1, 4, 3}, {1, 1, 1}, {1, 2, 2}, {0, 3, 2}),
                               problem(1, 20, 1, 1, {1, 41, 83}, {1, 5, 4}, {1, 2, 2}, {1, 1, 1}, {0, 2, 1}),
                               problem(1, 20, 1, 1, {3, 12, 40}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}),
                               // short planes from memory, fetched ahead
                               problem(330, 83, 1, 1, {1, 13, 11}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1})}) {
        Call call(p, unknown, {DType::float32, DType::float32, DType::float32});
        Random random(28);
        call.fill_reals(random);
        const auto lanes = make_lanes(call.spec(kNoLimit), *set);
        const auto rows = make_rows(call.spec(kNoLimit), *set);
        EXPECT_EQ(lanes->summation(), rows->summation());
        const std::vector<double> got = call.run(*lanes), expected = call.run(*rows);
        ASSERT_TRUE(same_bits(got, expected)) << lanes->explain();
      }
}

// That the problems and budgets above reach what they are there for, on tiles that are the same on every machine.
TEST(Plans, TakeEveryWay) {
  struct Way {
    const char* text;  // of explain()
    Unknown unknown;
    std::unique_ptr<Pass> (*make)(const PassSpec&, const KernelSet<float>&);
    Problem problem;
    DType dtype = DType::float32;
    std::size_t budget = kNoLimit;
  };
  const Problem wide = problem(1, 1, 16, 32, {1, 40, 40}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  const Problem pointwise = problem(1, 1, 32, 64, {1, 6, 6}, {1, 1, 1});
  const Problem deep = problem(1, 1, 400, 33, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  const Problem patches = problem(2, 1, 32, 70, {1, 7, 6}, {1, 3, 2}, {1, 3, 2});
  const Problem depthwise = problem(1, 2, 1, 1, {1, 190, 200}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  const Problem small = problem(40, 10, 1, 1, {1, 9, 9}, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 2, 2});
  const Problem side = problem(1, 1, 256, 8, {1, 60, 60}, {1, 1, 1});  // results of one block
  // Planes 4096 bytes apart: a copy pays, but has no room; and its borders are most of it.
  const Problem meeting = problem(1, 1, 16, 16, {1, 32, 32}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  const Problem apart = problem(1, 1, 19, 5, {1, 1, 4096}, {1, 1, 4}, {1, 1, 1}, {1, 1, 1263});
  const Problem few = problem(2, 1, 35, 150, {1, 5, 6}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1});
  const Problem many = problem(20, 1, 20, 40, {1, 16, 16}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  constexpr auto lanes = plain_pass<float, make_lanes<float>>;
  constexpr auto columns = plain_pass<float, make_columns<float>>;
  constexpr auto matvec = plain_pass<float, make_matvec<float>>;
  for (const Way& way : std::vector<Way>{
           {"weights packed once", Unknown::y, make_gather, wide},
           {"weights packed once", Unknown::x, make_gather, wide},
           {"weights packed by tasks", Unknown::y, make_gather, problem(1, 1, 32, 11, {1, 6, 6}, {1, 1, 1})},
           {"pointwise y", Unknown::y, make_gather, pointwise},
           {"weights in place", Unknown::x, make_gather, problem(2, 1, 32, 48, {1, 2, 2}, {1, 1, 1})},
           {"weights packed by tasks", Unknown::x, make_gather, wide, DType::float32, 24 << 10},
           {"image in place", Unknown::x, make_gather, wide},
           {"image copied", Unknown::x, make_gather, wide, DType::bfloat16},
           {"image copied", Unknown::x, make_gather, meeting},
           {"image in place", Unknown::x, make_gather, meeting, DType::float32, 24 << 10},
           {"image in place", Unknown::y, make_gather, apart},
           {"chunks of 67 of 200", Unknown::y, make_gather, problem(1, 1, 200, 33, {1, 16, 16}, {1, 3, 3})},
           {"chunks of 200 of 400 source channels, taps along w one by one", Unknown::y, make_gather, deep},
           {"4 phase sets", Unknown::x, make_gather, problem(1, 1, 4, 7, {1, 40, 40}, {1, 3, 3}, {1, 2, 2})},
           {"16 source channels, taps along w one by one", Unknown::x, make_gather,
            problem(1, 1, 16, 16, {1, 16, 16}, {1, 7, 7})},
           {"9 phase sets", Unknown::x, make_gather, problem(4, 1, 24, 8, {1, 24, 24}, {1, 5, 5}, {1, 3, 3})},
           {"4 phase sets", Unknown::x, make_gather, problem(1, 1, 1, 80, {1, 24, 24}, {1, 5, 5}, {1, 3, 3})},
           {"boxes of 40x1x3x3", Unknown::x, make_gather, problem(40, 1, 5, 6, {1, 3, 3}, {1, 2, 2})},
           {"4 chunks of 400 pixels in 2 slabs", Unknown::w, make_gather_weights, wide},
           {"in 1 slabs", Unknown::w, make_gather_weights, wide, DType::float32, 48 << 10},
           {"in 4 slabs", Unknown::w, make_gather_weights, side, DType::float32, 72 << 10},
           {"86 of 256 input channels a task", Unknown::w, make_gather_weights, side, DType::float32, 24 << 10},
           {"128 of 256 input channels a task, 3 chunks of 420 pixels in 3 slabs; image in place; 6 tasks", Unknown::w,
            make_gather_weights, problem(1, 1, 256, 8, {1, 35, 35}, {1, 1, 1})},
           {"output channels a task", Unknown::w, make_gather_weights, problem(1, 1, 17, 40, {1, 9, 9}, {1, 1, 1})},
           {"3 of 3 output channels a task", Unknown::w, make_gather_weights,
            problem(2, 1, 64, 3, {1, 9, 9}, {1, 3, 3})},
           {"64 of 64 input channels a task", Unknown::w, make_gather_weights,
            problem(2, 1, 64, 3, {1, 9, 9}, {1, 3, 3}, {1, 1, 2})},
           {"input channels a task", Unknown::w, make_gather_weights, wide},
           {"image copied", Unknown::w, make_gather_weights, wide, DType::float16},
           {"windows unrolled", Unknown::w, make_gather_weights, patches},
           {"weights in place", Unknown::x, make_gather, patches},
           {"windows unrolled", Unknown::w, make_gather_weights, few},
           {"image in place, weights in place", Unknown::x, columns, few},
           {"image copied", Unknown::x, columns, few, DType::bfloat16},
           {"289 pixels of 2 images at a time", Unknown::x, columns, many},
           {"weights copied", Unknown::x, columns, many},
           {"8 of 240 rows of weights in place at a time, 63 of 500 input channels", Unknown::x, matvec,
            problem(3, 1, 500, 240, {1, 3, 3}, {1, 3, 3})},
           {"1 of 2 input channels in parts a task; 4 tasks", Unknown::x, matvec,
            problem(1, 1, 2, 3, {2, 200, 200}, {2, 200, 200})},
           {"73 pixels of 1 images at a time", Unknown::x, columns, many, DType::float32, 40 << 10},
           {"1 of 3 channels a task, added in rows; image in place, weights copied; 3 tasks", Unknown::x, columns,
            problem(1, 1, 3, 20, {1, 30, 34}, {1, 11, 28})},
           {"2 of 2 channels a task, added in rows; image in place, weights in place; 3 tasks", Unknown::x, columns,
            problem(1, 1, 2, 20, {1, 30, 34}, {1, 11, 28})},
           {"1 of 1 channels a task, added in rows; image in place, weights copied; 9 tasks", Unknown::x, columns,
            problem(9, 1, 1, 20, {1, 30, 34}, {1, 11, 28})},
           {"boxes of 1x95x200", Unknown::y, make_rows, depthwise},
           {"chunks of 5 of 40", Unknown::y, make_rows, problem(1, 1, 40, 2, {1, 20, 30}, {1, 3, 3}), DType::float32,
            16 << 10},
           {"boxes of 1x95x200 pixels, 2 tiles", Unknown::w, make_dots, depthwise},
           {"2 results a task", Unknown::w, make_dots, problem(3, 33, 1, 1, {1, 9, 9}, {1, 3, 3})},
           {"3 blocks of 4 channels, 5 sets of rows, 7 images a task", Unknown::y, lanes, small},
           {"3 blocks of 4 channels", Unknown::x, lanes, small},
           {"167 of 500 input channels by 3 output channels a task; 3 tasks", Unknown::w, make_outer,
            problem(2, 1, 500, 3, {1, 3, 3}, {1, 3, 3})},
           {"8 tasks", Unknown::w, make_outer, problem(2, 1, 640, 1000, {1, 1, 1}, {1, 1, 1})},
           {"3 slabs", Unknown::w, plain_pass<float, make_lanes_weights<float>>, small},
       }) {
    const Call call(way.problem, way.unknown, {way.dtype, DType::float32, way.dtype});
    const auto pass = way.make(call.spec(way.budget), plain::set<float, 4, 8, 6>("odd"));
    ASSERT_NE(pass, nullptr) << way.text;
    EXPECT_NE(pass->explain().find(way.text), std::string::npos) << "wanted: " << way.text << "\n" << pass->explain();
  }
}

// A budget that leaves two threads room for wide blocks leaves more of them room for others.
TEST(Plans, CutTasksForManyThreads) {
  struct Case {
    Unknown unknown;
    std::unique_ptr<Pass> (*make)(const PassSpec&, const KernelSet<float>&);
    Problem problem;
  };
  const Problem pointwise = problem(4, 1, 96, 128, {1, 28, 28}, {1, 1, 1});
  const Problem window = problem(1, 1, 64, 96, {1, 28, 28}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  for (const Case& c :
       {Case{Unknown::x, make_gather, pointwise}, Case{Unknown::x, make_gather, window},
        Case{Unknown::w, make_gather_weights, pointwise}, Case{Unknown::w, make_gather_weights, window}}) {
    const Call call(c.problem, c.unknown, {DType::float32, DType::float32, DType::float32});
    const auto quarter = static_cast<std::size_t>(c.problem.products()) / static_cast<std::size_t>(c.problem.co);
    for (const int threads : {2, 4, 8}) {
      const auto pass = c.make(call.spec(quarter, threads), plain::set<float, 4, 8, 6>("odd"));
      ASSERT_NE(pass, nullptr);
      EXPECT_NE(pass->explain().find("on " + std::to_string(threads) + " threads"), std::string::npos)
          << pass->explain();
      EXPECT_LE(pass->workspace_bytes(), quarter);
    }
  }
}

TEST(Dots, MaskPaddingForFewChannels) {
  const Index3 one{1, 1, 1}, pad{0, 1, 1};
  const std::string of_x = "masked copies of x", of_y = "masked copies of y", none;
  for (const KernelSet<float>* set : kernel_sets<float>())
    for (const auto& [p, wanted] : {std::pair{problem(1, 1, 20, 1, {1, 70, 100}, {1, 3, 3}, one, one, pad), of_y},
                                    {problem(3, 2, 9, 2, {1, 7, 5}, {1, 3, 3}, one, one, pad), of_y},
                                    {problem(1, 1, 12, 4, {1, 1, 50}, {1, 1, 4}), of_y},
                                    {problem(2, 1, 6, 2, {5, 6, 7}, {3, 1, 1}, one, one, one), of_y},
                                    {problem(1, 1, 1, 20, {1, 70, 100}, {1, 3, 3}), of_x},
                                    {problem(2, 1, 1, 6, {5, 6, 7}, {3, 1, 1}, one, one, one), of_x},
                                    {problem(2, 2, 1, 20, {1, 7, 5}, {1, 3, 3}), none},
                                    {problem(1, 1, 8, 3, {1, 1, 50}, {1, 1, 4}), none},
                                    {problem(1, 1, 20, 3, {1, 7, 5}, {1, 3, 3}, one, one, pad), none},
                                    {problem(1, 1, 20, 1, {7, 7, 5}, {3, 3, 3}, one, one, one), none},
                                    {problem(1, 1, 20, 1, {1, 7, 5}, {1, 3, 3}), none},
                                    {problem(1, 1, 2, 1, {1, 7, 5}, {1, 3, 3}, one, one, pad), none}}) {
      const DType t = DType::float32;
      const bool one_axis = p.taps() == std::max({p.w[0], p.w[1], p.w[2]});
      const std::string text = make_dots(Call(p, Unknown::w, {t, t, t}).spec(kNoLimit), *set)->explain();
      const bool masked = !wanted.empty() && (one_axis || set->dots_mr >= 3);
      EXPECT_EQ(text.find(masked ? wanted : "masked") != std::string::npos, masked) << to_string(p) << '\n' << text;
    }
}

TEST(BiasGradient, SumsEveryChannel) {
  set_num_threads(kThreads);
  Random random(27);
  for (const Index5& size : std::vector<Index5>{{1, 1, 1, 1, 1},
                                                {2, 3, 1, 5, 7},
                                                {1, 20, 2, 3, 600},
                                                {1, 40, 1, 2, 3},
                                                {9, 300, 2, 3, 4},  // planes added to others, more than once
                                                {3, 17, 1, 300, 4},
                                                {1, 5, 1, 1, 1030},
                                                {2, 33, 4, 40, 20}})
    for (int layout = 0; layout < kLayouts; ++layout)
      for (const DType dtype : std::span(kDTypeList).first(kResultDTypes))  // as it is in memory
        for (const bool wide : {false, true}) {
          TestTensor y(size, dtype, static_cast<Layout>(layout));
          y.fill_integers(random, -3, 3);
          // Sums may be beyond 8-bit types.
          const DType sums = size_of(dtype) == 1 ? DType::float32 : dtype;
          TestTensor bias({1, size[1], 1, 1, 1}, sums, layout % 2 ? Layout::gaps : Layout::reversed);
          std::vector<double> expected(static_cast<std::size_t>(size[1]));
          for_each_index(size, [&](const Index5& i) {
            expected[static_cast<std::size_t>(i[1])] += get(y.view().data, dtype, y.view().offset(i));
          });
          for (double& e : expected) {
            std::array<std::byte, 8> rounded;
            set(rounded.data(), sums, 0, e);
            e = get(rounded.data(), sums, 0);
          }
          const auto pass = make_bias_gradient(y.view(), wide, kThreads);
          GuardedBuffer workspace(pass->workspace_bytes());
          pass->run({{}, {}, y.view(), bias.view()}, workspace.as<std::byte>());
          ASSERT_EQ(bias.values(), expected) << pass->explain() << " of " << name_of(dtype) << " layout " << layout;
          ASSERT_TRUE(bias.gaps_intact());
        }
}

// Channels in blocks of one, whose place the stride does not say.
TEST(BiasGradient, SumsBlocksOfOneChannel) {
  Random random(29);
  for (const Index5& size : {Index5{2, 3, 1, 5, 7}, {1, 3, 2, 30, 40}}) {
    TestTensor dense(size, DType::float32), bias({1, size[1], 1, 1, 1}, DType::float32);
    dense.fill_integers(random, -3, 3);
    View y = dense.view();
    std::vector<double> sums;
    for (const bool blocked : {false, true}) {
      if (blocked) y.split = {1, std::exchange(y.stride[1], 1), 0};
      const auto pass = make_bias_gradient(y, false, kThreads);
      GuardedBuffer workspace(pass->workspace_bytes());
      pass->run({{}, {}, y, bias.view()}, workspace.as<std::byte>());
      if (!blocked) sums = bias.values();
      EXPECT_EQ(bias.values(), sums) << pass->explain();
    }
  }
}

// In the same order of summation on every instruction set, too.
TEST(BiasGradient, HasTheSameBitsEverywhere) {
  for (const Index5& size : {Index5{2, 40, 3, 40, 30}, {23, 300, 2, 7, 5}}) {
    std::vector<double> expected;
    for (const Isa isa : supported_isas()) {
      const ScopedIsa scoped(isa);
      for (const int threads : {1, 2, 3, 7})
        for (int layout = 0; layout < kResultLayouts; ++layout) {
          Random random(28);
          set_num_threads(threads);
          TestTensor y(size, DType::float32, static_cast<Layout>(layout)), bias({1, size[1], 1, 1, 1}, DType::float32);
          y.fill_reals(random);
          const auto pass = make_bias_gradient(y.view(), false, threads);
          GuardedBuffer workspace(pass->workspace_bytes());
          pass->run({{}, {}, y.view(), bias.view()}, workspace.as<std::byte>());
          if (expected.empty()) expected = bias.values();
          ASSERT_EQ(bias.values(), expected) << name_of(isa) << " " << threads << " threads, layout " << layout;
        }
    }
  }
}

}  // namespace
}  // namespace test
}  // namespace convbwd
