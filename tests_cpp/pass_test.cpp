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
#include <sstream>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "engine/blas.h"
#include "kernels/list.h"
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

constexpr std::size_t kNoLimit = std::size_t{1} << 40;
constexpr int kThreads = 3;

// The kernel sets that run here: those of the list, BLAS, and some with odd tiles.
template <class T>
std::vector<const KernelSet<T>*> kernel_sets() {
  std::vector<const KernelSet<T>*> sets{&plain::set<T, 3, 7, 1>("odd 3"), &plain::set<T, 5, 1, 3, 7>("odd 5")};
  for (const Isa isa : compiled_isas())
    if (supported(isa)) sets.push_back(&kernel_set<T>(isa));
  return sets;
}

template <class T>
struct Maker {
  const char* name;
  std::unique_ptr<Pass> (*make)(const PassSpec&, const KernelSet<T>&);
  std::vector<const KernelSet<T>*> sets;
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
            {"reference", reference, any}};
  return {{"gather", make_gather, gathering}, {"rows", make_rows, kernel_sets<T>()}, {"reference", reference, any}};
}

// ------------------------------------------------------------------------------------------------------------ a call

struct CallSetup {
  Problem problem;
  Unknown unknown;
  std::array<DType, 3> dtypes;  // of x, w, y
  std::array<Layout, 3> layouts;
  bool biased = false;
};

// Operands with their data, and a fresh result for each run.
class Call {
 public:
  Call(const CallSetup& setup, Random& random)
      : setup_(setup), sizes_{x_size(setup.problem), w_size(setup.problem), y_size(setup.problem)} {
    for (std::size_t i = 0; i < 3; ++i)
      tensors_[i] = std::make_unique<TestTensor>(sizes_[i], setup.dtypes[i], setup.layouts[i]);
    if (setup.biased) {
      bias_ = std::make_unique<TestTensor>(Index5{1, sizes_[result()][1], 1, 1, 1}, setup.dtypes[1],
                                           random.integer(0, 1) ? Layout::gaps : Layout::expanded);
      bias_->fill_integers(random, -9, 9);
    }
  }
  std::size_t result() const { return setup_.unknown == Unknown::x ? 0 : setup_.unknown == Unknown::w ? 1 : 2; }

  bool dense() const { return setup_.layouts == std::array<Layout, 3>{}; }

  void fill_integers(Random& random) {
    for (std::size_t i = 0; i < 3; ++i)
      if (i != result()) tensors_[i]->fill_integers(random, -3, 3);
  }
  void fill_reals(Random& random) {
    for (std::size_t i = 0; i < 3; ++i)
      if (i != result()) tensors_[i]->fill_reals(random);
  }
  // Puts a value into one element of each operand.
  void put_everywhere(Random& random, double value) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (i == result()) continue;
      const View& v = tensors_[i]->view();
      Index5 at;
      for (std::size_t a = 0; a < 5; ++a) at[a] = random.integer(0, v.size[a] - 1);
      set(v.data, v.dtype, v.offset(at), value);
    }
  }

  PassSpec spec(std::size_t budget, int threads = kThreads) const {
    return {setup_.problem, setup_.unknown, operands(nullptr), threads, budget};
  }

  // Results by the definition, rounded to the result's type.
  const std::vector<double>& expected() {
    if (!expected_.empty()) return expected_;
    std::array<std::vector<double>, 3> v;
    for (std::size_t i = 0; i < 3; ++i)
      if (i != result()) v[i] = tensors_[i]->values();
    const Index5& size = sizes_[result()];
    const auto place = [](const Index5& s, const Index5& i) {
      return static_cast<std::size_t>((((i[0] * s[1] + i[1]) * s[2] + i[2]) * s[3] + i[3]) * s[4] + i[4]);
    };
    if (bias_) {
      const View& b = bias_->view();
      for_each_index(size, [&](const Index5& i) { expected_.push_back(get(b.data, b.dtype, i[1] * b.stride[1])); });
    } else {
      expected_.resize(static_cast<std::size_t>(size[0] * size[1] * size[2] * size[3] * size[4]));
    }
    for_each_product(setup_.problem, [&](const Index5& x, const Index5& w, const Index5& y) {
      const std::array<std::size_t, 3> at{place(sizes_[0], x), place(sizes_[1], w), place(sizes_[2], y)};
      const std::size_t r = result(), a = r == 0 ? 2 : 0, b = r == 1 ? 2 : 1;
      expected_[at[r]] += v[a][at[a]] * v[b][at[b]];
    });
    for (double& e : expected_) {
      std::array<std::byte, 8> rounded;
      const DType t = setup_.dtypes[result()];
      set(rounded.data(), t, 0, e);
      e = get(rounded.data(), t, 0);
    }
    return expected_;
  }

  // What a pass computes; checks that it writes elements of the result only, and its workspace only.
  std::vector<double> run(const Pass& pass) {
    TestTensor to(sizes_[result()], setup_.dtypes[result()], setup_.layouts[result()]);
    GuardedBuffer workspace(pass.workspace_bytes());
    pass.run(operands(&to), workspace.as<std::byte>());
    EXPECT_TRUE(to.gaps_intact()) << "written between the elements of the result";
    return to.values();
  }
  void check(const Pass& pass) {
    const std::vector<double> got = run(pass);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    const auto wrong = std::mismatch(got.begin(), got.end(), expected().begin(), same);
    EXPECT_TRUE(wrong.first == got.end()) << "element " << wrong.first - got.begin() << " of " << got.size() << " is "
                                          << *wrong.first << ", not " << *wrong.second;
  }

 private:
  Operands operands(const TestTensor* to) const {
    std::array<View, 3> v;
    for (std::size_t i = 0; i < 3; ++i) v[i] = tensors_[i]->view();
    if (to) v[result()] = to->view();
    return {v[0], v[1], v[2], bias_ ? bias_->view() : View{}};
  }

  CallSetup setup_;
  std::array<Index5, 3> sizes_;
  std::array<std::unique_ptr<TestTensor>, 3> tensors_;
  std::unique_ptr<TestTensor> bias_;
  std::vector<double> expected_;
};

std::ostream& operator<<(std::ostream& out, const CallSetup& s) {
  out << "unknown " << "xwy"[static_cast<int>(s.unknown)] << (s.biased ? " with bias" : "");
  for (std::size_t i = 0; i < 3; ++i)
    out << ", " << "xwy"[i] << ' ' << name_of(s.dtypes[i]) << " layout " << static_cast<int>(s.layouts[i]);
  return out;
}

// Every plan that smaller and smaller budgets lead to.
template <class T>
void check_all(Call& call, Unknown unknown) {
  for (const Maker<T>& maker : makers<T>(unknown))
    for (const KernelSet<T>* set : maker.sets) {
      SCOPED_TRACE(std::string(maker.name) + " on " + set->name + " " + set->gather[0].name);
      std::string last;
      auto pass = maker.make(call.spec(kNoLimit), *set);
      ASSERT_NE(pass, nullptr);
      for (std::size_t budget = kNoLimit; pass; pass = maker.make(call.spec(budget), *set)) {
        EXPECT_TRUE(!call.dense() || pass->workspace_bytes() <= budget)
            << budget << " bytes allowed: " << pass->explain();
        if (pass->explain() != last) {
          last = pass->explain();
          SCOPED_TRACE(last);
          call.check(*pass);
          if (testing::Test::HasFailure()) return;
        }
        if (budget == 0) break;
        budget = std::min(budget, pass->workspace_bytes()) / 2;
      }
    }
}

template <class T>
DType random_dtype(Random& random, bool result) {
  return kDTypeList[random.integer(sizeof(T) == 8 ? 0 : 1, (result ? kResultDTypes : kTypes) - 1)];
}

template <class T>
CallSetup random_setup(const Problem& p, Unknown unknown, Random& random) {
  CallSetup s{p, unknown, {}, {}, unknown != Unknown::w && random.integer(0, 1) == 1};
  const std::size_t result = unknown == Unknown::x ? 0 : unknown == Unknown::w ? 1 : 2;
  for (std::size_t i = 0; i < 3; ++i) {
    s.dtypes[i] = random_dtype<T>(random, i == result);
    s.layouts[i] = static_cast<Layout>(random.integer(0, (i == result ? kResultLayouts : kLayouts) - 1));
  }
  return s;
}

constexpr Unknown kUnknowns[] = {Unknown::x, Unknown::w, Unknown::y};

template <class T>
void check_problem(const Problem& p, Random& random) {
  for (const Unknown unknown : kUnknowns) {
    constexpr DType t = compute_dtype<T>;
    std::vector<CallSetup> setups{{p, unknown, {t, t, t}, {}}};
    setups.push_back({p,
                      unknown,
                      {t, t, t},
                      {Layout::channels_last, Layout::permuted, Layout::channels_last},
                      unknown != Unknown::w});
    setups.push_back(random_setup<T>(p, unknown, random));
    for (const CallSetup& setup : setups) {
      std::ostringstream text;
      text << setup;
      SCOPED_TRACE(text.str());
      Call call(setup, random);
      call.fill_integers(random);
      check_all<T>(call, unknown);
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
      Call call({GetParam(), unknown, {DType::float32, DType::float32, DType::float32}, {}}, random);
      call.fill_integers(random);
      call.put_everywhere(random, value);
      check_all<float>(call, unknown);
      if (HasFailure()) return;
    }
}

// The order of a sum depends on the problem, the types and the kernels: threads and strides leave every bit as it is.
TEST_P(HardProblem, HasTheSameBitsForAllThreadsAndLayouts) {
  const Problem& p = GetParam();
  for (const Unknown unknown : kUnknowns)
    for (const Maker<float>& maker : makers<float>(unknown))
      for (const KernelSet<float>* set : {maker.sets.front(), maker.sets.back()})
        for (const std::size_t budget : {kNoLimit, std::size_t{64} << 10}) {
          std::vector<double> expected;
          for (const int threads : {1, 2, 3, 7})
            for (const Layout layout : {Layout::dense, Layout::channels_last, Layout::reversed}) {
              Random random(24);  // the same numbers in every layout
              set_num_threads(threads);
              Call call({p, unknown, {DType::float32, DType::bfloat16, DType::float32}, {layout, layout, layout}},
                        random);
              call.fill_reals(random);
              const auto pass = maker.make(call.spec(budget, threads), *set);
              if (!pass) continue;
              const std::vector<double> got = call.run(*pass);
              if (expected.empty()) expected = got;
              ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(double)), 0)
                  << maker.name << " on " << set->name << ", " << threads << " threads, layout "
                  << static_cast<int>(layout) << ", unknown " << "xwy"[static_cast<int>(unknown)] << '\n'
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
      const CallSetup setup = random_setup<T>(p, unknown, random);
      std::ostringstream text;
      text << setup;
      SCOPED_TRACE(text.str());
      Call call(setup, random);
      call.fill_integers(random);
      check_all<T>(call, unknown);
    };
    if (i % 3 == 0)
      check(double{});
    else
      check(float{});
    if (HasFailure()) return;
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
  const Problem deep = problem(1, 1, 200, 33, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  const Problem depthwise = problem(1, 2, 1, 1, {1, 190, 200}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  for (const Way& way : std::vector<Way>{
           {"weights packed once", Unknown::y, make_gather, wide},
           {"weights packed once", Unknown::x, make_gather, wide},
           {"weights packed by tasks", Unknown::y, make_gather, pointwise},
           {"weights in place", Unknown::x, make_gather, problem(2, 1, 32, 48, {1, 2, 2}, {1, 1, 1})},
           {"weights packed by tasks", Unknown::x, make_gather, wide, DType::float32, 24 << 10},
           {"image in place", Unknown::x, make_gather, wide},
           {"image copied", Unknown::x, make_gather, wide, DType::bfloat16},
           {"chunks of 67 of 200", Unknown::y, make_gather, deep},
           {"4 phase sets", Unknown::x, make_gather, problem(1, 1, 4, 7, {1, 40, 40}, {1, 3, 3}, {1, 2, 2})},
           {"boxes of 40x1x3x3", Unknown::x, make_gather, problem(40, 1, 5, 6, {1, 3, 3}, {1, 2, 2})},
           {"4 chunks of 400 pixels in 2 slabs", Unknown::w, make_gather_weights, wide},
           {"in 1 slabs", Unknown::w, make_gather_weights, wide, DType::float32, 48 << 10},
           {"output channels a task", Unknown::w, make_gather_weights, problem(1, 1, 17, 40, {1, 9, 9}, {1, 1, 1})},
           {"input channels a task", Unknown::w, make_gather_weights, wide},
           {"image copied", Unknown::w, make_gather_weights, wide, DType::float16},
           {"boxes of 1x48x200", Unknown::y, make_rows, depthwise},
           {"chunks of 10 of 40", Unknown::y, make_rows, problem(1, 1, 40, 2, {1, 20, 30}, {1, 3, 3}), DType::float32,
            16 << 10},
           {"in", Unknown::w, make_dots, depthwise},
       }) {
    Random random(26);
    Call call({way.problem, way.unknown, {way.dtype, DType::float32, way.dtype}, {}}, random);
    const auto pass = way.make(call.spec(way.budget), plain::set<float, 4, 8, 6>("odd"));
    ASSERT_NE(pass, nullptr) << way.text;
    EXPECT_NE(pass->explain().find(way.text), std::string::npos) << "wanted: " << way.text << "\n" << pass->explain();
  }
}

TEST(BiasGradient, SumsEveryChannel) {
  set_num_threads(kThreads);
  Random random(27);
  for (const Index5& size : std::vector<Index5>{{1, 1, 1, 1, 1},
                                                {2, 3, 1, 5, 7},
                                                {1, 20, 2, 3, 600},
                                                {3, 17, 1, 300, 4},
                                                {1, 5, 1, 1, 1030},
                                                {2, 33, 4, 40, 20}})
    for (int layout = 0; layout < kLayouts; ++layout)
      for (const DType dtype : kDTypeList)
        for (const bool wide : {false, true}) {
          TestTensor y(size, dtype, static_cast<Layout>(layout));
          y.fill_integers(random, -3, 3);
          // Sums may be beyond 8-bit types.
          const DType sums = size_of(dtype) == 1 || storage_of(dtype) != dtype ? DType::float32 : dtype;
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

// In the same order of summation on every instruction set, too.
TEST(BiasGradient, HasTheSameBitsEverywhere) {
  const Index5 size{2, 40, 3, 40, 30};
  std::vector<double> expected;
  for (const Isa isa : compiled_isas()) {
    if (!supported(isa)) continue;
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

}  // namespace
}  // namespace test
}  // namespace convbwd
