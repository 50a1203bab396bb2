// A pass's operands with their data, and what its results are by definition.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/pass.h"
#include "support/guarded_buffer.h"
#include "support/problems.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {

inline constexpr std::size_t kNoLimit = std::size_t{1} << 40;
inline constexpr int kThreads = 3;
inline constexpr Unknown kUnknowns[] = {Unknown::x, Unknown::w, Unknown::y};
/// Of x, w, y.
using Types = std::array<DType, 3>;
using Layouts = std::array<Layout, 3>;

/// Whether results are the same bits, which == does not say of zeros and of what is no number.
inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// Results are fresh ones for each run.
class Call {
 public:
  Call(const Problem& p, Unknown unknown, const Types& types, const Layouts& layouts = {}, bool biased = false,
       Layout bias = Layout::gaps)
      : problem_(p), unknown_(unknown), types_(types), layouts_(layouts), sizes_{x_size(p), w_size(p), y_size(p)} {
    for (std::size_t i = 0; i < 3; ++i) tensors_[i] = std::make_unique<TestTensor>(sizes_[i], types[i], layouts[i]);
    if (!biased || unknown == Unknown::w) return;
    bias_ = std::make_unique<TestTensor>(Index5{1, sizes_[result()][1], 1, 1, 1}, storage_of(types[1]), bias);
    Random random(1);
    bias_->fill_integers(random, -9, 9);
  }
  std::size_t result() const { return unknown_ == Unknown::x ? 0 : unknown_ == Unknown::w ? 1 : 2; }

  bool dense() const { return layouts_ == Layouts{}; }
  bool rounds() const { return size_of(types_[result()]) == 2; }

  // Sets every element of an operand, or of all of them, to f(); a result stays as it is.
  template <class F>
  void fill(std::size_t operand, F&& f) {
    const View& v = tensors_[operand]->view();
    if (operand != result()) for_each_index(v.size, [&](const Index5& at) { set(v.data, v.dtype, v.offset(at), f()); });
  }
  template <class F>
  void fill(F&& f) {
    for (std::size_t i = 0; i < 3; ++i) fill(i, f);
  }
  void fill_integers(Random& random) {
    fill([&] { return static_cast<double>(random.integer(-3, 3)); });
  }
  void fill_reals(Random& random) {
    fill([&] { return random.real(-1, 1); });
  }
  void put(std::size_t operand, const Index5& at, double value) {
    const View& v = tensors_[operand]->view();
    set(v.data, v.dtype, v.offset(at), value);
  }
  // Puts a value anywhere into an operand; a result stays as it is.
  void put_anywhere(std::size_t operand, Random& random, double value) {
    if (operand == result()) return;
    Index5 at;
    for (std::size_t a = 0; a < 5; ++a) at[a] = random.integer(0, sizes_[operand][a] - 1);
    put(operand, at, value);
  }

  PassSpec spec(std::size_t budget, int threads = kThreads) const {
    return {problem_, unknown_, operands(nullptr), threads, budget};
  }
  // What a pass computes; checks that it writes elements of the result only, and its workspace only.
  std::vector<double> run(const Pass& pass) const {
    TestTensor to(sizes_[result()], types_[result()], layouts_[result()]);
    GuardedBuffer workspace(pass.workspace_bytes());
    pass.run(operands(&to), workspace.as<std::byte>());
    EXPECT_TRUE(to.gaps_intact()) << "written between the elements of the result";
    return to.values();
  }
  void check(const Pass& pass, const std::vector<double>& expected) const {
    const std::vector<double> got = run(pass);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    const auto wrong = std::mismatch(got.begin(), got.end(), expected.begin(), same);
    EXPECT_TRUE(wrong.first == got.end()) << "element " << wrong.first - got.begin() << " of " << got.size() << " is "
                                          << *wrong.first << ", not " << *wrong.second;
  }

  // Results of plain loops.
  std::vector<double> expected() const { return run(*make_reference(spec(0))); }
  // Results by the definition, summed in double and rounded to the result's type.
  std::vector<double> defined() const {
    std::vector<double> sums = definition<double>();
    for (double& e : sums) {
      std::array<std::byte, 8> rounded;
      const DType t = types_[result()];
      set(rounded.data(), t, 0, e);
      e = get(rounded.data(), t, 0);
    }
    return sums;
  }
  // Results summed in float32, product after product.
  std::vector<double> straight() const {
    const std::vector<float> sums = definition<float>();
    return {sums.begin(), sums.end()};
  }
  // Sums of the magnitudes of products, and of the bias, in double.
  std::vector<double> magnitudes() const {
    return definition<double>([](double v) { return std::abs(v); });
  }

 private:
  template <class T, class F>
  std::vector<T> definition(F&& of) const {
    std::array<std::vector<T>, 3> v;
    for (std::size_t i = 0; i < 3; ++i)
      if (i != result())
        for (const double e : tensors_[i]->values()) v[i].push_back(of(static_cast<T>(e)));
    const Index5& size = sizes_[result()];
    const auto place = [](const Index5& s, const Index5& i) {
      return static_cast<std::size_t>((((i[0] * s[1] + i[1]) * s[2] + i[2]) * s[3] + i[3]) * s[4] + i[4]);
    };
    std::vector<T> sums(static_cast<std::size_t>(size[0] * size[1] * size[2] * size[3] * size[4]));
    if (bias_)
      for_each_index(size, [&](const Index5& i) {
        const View& b = bias_->view();
        sums[place(size, i)] = of(static_cast<T>(get(b.data, b.dtype, i[1] * b.stride[1])));
      });
    for_each_product(problem_, [&](const Index5& x, const Index5& w, const Index5& y) {
      const std::array<std::size_t, 3> at{place(sizes_[0], x), place(sizes_[1], w), place(sizes_[2], y)};
      const std::size_t r = result(), a = r == 0 ? 2 : 0, b = r == 1 ? 2 : 1;
      sums[at[r]] += v[a][at[a]] * v[b][at[b]];
    });
    return sums;
  }
  template <class T>
  std::vector<T> definition() const {
    return definition<T>([](T v) { return v; });
  }
  Operands operands(const TestTensor* to) const {
    std::array<View, 3> v;
    for (std::size_t i = 0; i < 3; ++i) v[i] = tensors_[i]->view();
    if (to) v[result()] = to->view();
    return {v[0], v[1], v[2], bias_ ? bias_->view() : View{}};
  }
  friend std::ostream& operator<<(std::ostream& out, const Call& c) {
    out << "unknown " << "xwy"[c.result()] << (c.bias_ ? " with bias" : "");
    for (std::size_t i = 0; i < 3; ++i)
      out << ", " << "xwy"[i] << ' ' << name_of(c.types_[i]) << " layout " << static_cast<int>(c.layouts_[i]);
    return out;
  }

  Problem problem_;
  Unknown unknown_;
  Types types_;
  Layouts layouts_;
  std::array<Index5, 3> sizes_;
  std::array<std::unique_ptr<TestTensor>, 3> tensors_;
  std::unique_ptr<TestTensor> bias_;
};

/// Calls f(pass, budget) for every plan that smaller and smaller budgets lead to, each so many quarters of what the
/// plan before took; make(budget) is null where none is left.
template <class Make, class F>
void for_each_plan(const Call& call, std::size_t quarters, Make&& make, F&& f) {
  std::string last;
  std::size_t budget = kNoLimit;
  for (auto pass = make(budget); pass && !testing::Test::HasFailure(); pass = make(budget)) {
    EXPECT_TRUE(!call.dense() || pass->workspace_bytes() <= budget) << budget << " bytes allowed: " << pass->explain();
    if (pass->explain() != last) {
      last = pass->explain();
      SCOPED_TRACE(last);
      f(*pass, budget);
    }
    if (budget == 0) break;
    budget = std::min(budget, pass->workspace_bytes()) / 4 * quarters;
  }
}

}  // namespace convbwd::test
