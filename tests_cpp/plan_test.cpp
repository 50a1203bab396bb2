// Plans: what they say without data, what they refuse, and whole calls against the plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "conv/problem.h"
#include "convbwd/convbwd.hpp"
#include "engine/blas.h"
#include "kernels/list.h"
#include "support/isa.h"
#include "support/problems.h"
#include "support/random.h"
#include "support/tensor.h"

namespace convbwd::test {
namespace {

Tensor tensor(Shape shape, DType dtype = DType::float32) { return {nullptr, dtype, std::move(shape), {}}; }

Shape shape_of(const Index5& size) { return {size.begin(), size.end()}; }

// The call whose canonical form is `p`, as a three-dimensional one.
Request backward(const Problem& p, DType dtype = DType::float32) {
  Request r;
  r.grad_output = tensor(shape_of(y_size(p)), dtype);
  r.input = tensor(shape_of(x_size(p)), dtype);
  r.weight = tensor(shape_of(w_size(p)), dtype);
  r.stride.assign(p.stride.begin(), p.stride.end());
  r.dilation.assign(p.dilation.begin(), p.dilation.end());
  r.groups = p.groups;
  r.padding.clear();
  for (std::size_t a = 0; a < 3; ++a) {
    const Index covered = (p.y[a] - 1) * p.stride[a] + (p.w[a] - 1) * p.dilation[a] + 1;
    r.padding.push_back(p.pad_before[a]);
    r.padding.push_back(std::max<Index>(covered - p.x[a] - p.pad_before[a], 0));
  }
  return r;
}
Request forward(const Problem& p, DType dtype = DType::float32) {
  Request r = backward(p, dtype);
  r.function = "convolution";
  r.grad_output.reset();
  r.bias = tensor({p.groups * p.co});
  return r;
}
// The transposed call with the same canonical form: what it reads is y, what it computes is x.
Request transposed(const Problem& p) {
  Request r = backward(p);
  std::swap(r.input, *r.grad_output);
  r.transposed = true;
  r.output_padding.clear();
  for (std::size_t a = 0; a < 3; ++a) {
    const Index covered = (p.y[a] - 1) * p.stride[a] + (p.w[a] - 1) * p.dilation[a] + 1;
    r.output_padding.push_back(std::max<Index>(p.x[a] + p.pad_before[a] - covered, 0));
  }
  return r;
}

const Problem kDense = problem(2, 1, 24, 40, {1, 14, 14}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});

// The tensors of one call, filled.
class Data {
 public:
  Data(const Request& r, const Plan& plan, std::uint64_t seed = 1) : request_(r) {
    Random random(seed);
    for (const Tensor* t : {r.grad_output ? &*r.grad_output : nullptr, &r.input, &r.weight})
      operands_.push_back(t ? own(t->shape, t->dtype) : Tensor{});
    for (std::size_t i = 0; i < operands_.size(); ++i)
      for (Index e = 0; operands_[i].data && e < elements(operands_[i]); ++e)
        set(operands_[i].data, operands_[i].dtype, e, static_cast<double>(random.integer(-3, 3)));
    for (std::size_t i = 0; i < 3; ++i) {
      const Result& result = plan.results()[i];
      if (r.grad_output ? r.output_mask[i] : i == 0) results_[i] = own(result.shape, result.dtype);
    }
    if (r.bias) {
      bias_ = own(r.bias->shape, r.bias->dtype);
      for (Index e = 0; e < bias_.shape[0]; ++e)
        set(bias_.data, bias_.dtype, e, static_cast<double>(random.integer(-9, 9)));
    }
  }
  void run(const Plan& plan) {
    if (request_.grad_output)
      plan.backward(operands_[0], operands_[1], operands_[2], results_);
    else
      plan.forward(operands_[1], operands_[2], request_.bias ? &bias_ : nullptr, results_[0]);
  }
  std::vector<double> values() const {
    std::vector<double> v;
    for (const Tensor& t : results_)
      for (Index i = 0; t.data && i < elements(t); ++i) v.push_back(get(t.data, t.dtype, i));
    return v;
  }
  Tensor& grad_output() { return operands_[0]; }
  Tensor& input() { return operands_[1]; }
  Tensor& weight() { return operands_[2]; }
  Tensor& bias() { return bias_; }
  std::array<Tensor, 3>& results() { return results_; }

 private:
  static Index elements(const Tensor& t) {
    Index n = 1;
    for (const Index s : t.shape) n *= s;
    return n;
  }
  Tensor own(const Shape& shape, DType dtype) {
    Tensor t{nullptr, dtype, shape, {}};
    buffers_.push_back(std::make_unique<GuardedBuffer>(static_cast<std::size_t>(elements(t)) * size_of(dtype)));
    t.data = buffers_.back()->data();
    return t;
  }

  Request request_;
  std::vector<std::unique_ptr<GuardedBuffer>> buffers_;
  std::vector<Tensor> operands_;
  std::array<Tensor, 3> results_;
  Tensor bias_;
};

std::vector<double> results_of(const Request& r) {
  const Plan plan = Plan::make(r);
  Data data(r, plan);
  data.run(plan);
  return data.values();
}
std::vector<double> expected_of(Request r) {
  r.algorithm = Algorithm::reference;
  return results_of(r);
}

class PlanTest : public testing::Test {
 protected:
  void TearDown() override {
    set_isa(std::nullopt);
    set_num_threads(2);
  }
};

// ------------------------------------------------------------------------------------------------------ without data

TEST_F(PlanTest, TellsResultsAndWorkspaceBeforehand) {
  Request r = backward(kDense, DType::bfloat16);
  r.weight.dtype = DType::float32;
  const Plan plan = Plan::make(r);
  EXPECT_EQ(plan.results()[0].shape, r.input.shape);
  EXPECT_EQ(plan.results()[0].dtype, DType::bfloat16);
  EXPECT_EQ(plan.results()[1].shape, r.weight.shape);
  EXPECT_EQ(plan.results()[1].dtype, DType::float32);
  EXPECT_EQ(plan.results()[2].shape, Shape{40});
  EXPECT_GT(plan.workspace_bytes(), 0u);
  EXPECT_EQ(plan.explain().substr(0, plan.explain().find('\n')), to_string(kDense));
}

// What differs in a mode, a device or a dtype of results alone has a plan of its own, whichever comes first.
TEST_F(PlanTest, ModesAndResultTypesMakeDifferentPlans) {
  Request r = backward(kDense);
  const std::string plain = Plan::make(r).explain();
  r.cube_math_type = CubeMathType::use_hf32;
  const std::string hf32 = Plan::make(r).explain();
  r.soc = Soc::ascend950;
  const std::string shorter = Plan::make(r).explain();
  EXPECT_EQ(plain.find("read as"), std::string::npos);
  EXPECT_NE(hf32.find("weight: read as hf32\n"), std::string::npos) << hf32;
  EXPECT_NE(shorter.find("weight: read as hf32_10\n"), std::string::npos) << shorter;
  r.result_dtypes = {DType::bfloat16, DType::float16, DType::bfloat16};
  const Plan plan = Plan::make(r);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(plan.results()[i].dtype, r.result_dtypes[i]);
  for (const auto& result : Plan::make(backward(kDense)).results()) EXPECT_EQ(result.dtype, DType::float32);
}

// Small integers are the same in every type; that of a gradient may be another one than the operands'.
TEST_F(PlanTest, ComputesInEveryModeAndEightBitType) {
  const Problem p = problem(1, 1, 5, 6, {1, 6, 7}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  for (const CubeMathType mode :
       {CubeMathType::allow_fp32_down_precision, CubeMathType::use_fp16, CubeMathType::use_hf32})
    for (Request r : {backward(p), forward(p), backward(p, DType::bfloat16)}) {
      const std::vector<double> expected = expected_of(r);
      r.cube_math_type = mode;
      EXPECT_EQ(results_of(r), expected) << static_cast<int>(mode);
    }
  for (const DType t : {DType::float8_e4m3fn, DType::hifloat8})
    for (const Request& r : {backward(p, t), forward(p, t)})
      for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::direct}) {
        Request other = r;
        other.algorithm = algorithm;
        EXPECT_EQ(results_of(other), expected_of(r)) << name_of(t);
      }
}

TEST_F(PlanTest, HasAPassForEachResultThatIsWanted) {
  for (int mask = 0; mask < 8; ++mask) {
    Request r = backward(kDense);
    r.output_mask = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    const std::string text = Plan::make(r).explain();
    EXPECT_EQ(text.find("grad_input: ") != std::string::npos, r.output_mask[0]);
    EXPECT_EQ(text.find("grad_weight: ") != std::string::npos, r.output_mask[1]);
    EXPECT_EQ(text.find("grad_bias: ") != std::string::npos, r.output_mask[2]);
    EXPECT_EQ(text.find("\noutput: "), std::string::npos);
  }
  EXPECT_NE(Plan::make(forward(kDense)).explain().find("\noutput: "), std::string::npos);
}

std::string line_of(const std::string& text, const std::string& result) {
  const std::size_t begin = text.find('\n' + result) + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Each gradient says who computes it; and what would take less time, where something forbids it.
TEST_F(PlanTest, ExplainsThreadsAndRefusals) {
  const Problem p = problem(4, 1, 64, 64, {1, 56, 56}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  Request r = backward(p);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const std::string text = Plan::make(r).explain();
    set_num_threads(5);
    EXPECT_EQ(Plan::make(r, threads).explain(), text);
    for (const char* result : {"grad_input: ", "grad_weight: ", "grad_bias: "}) {
      const std::string line = line_of(text, result);
      EXPECT_NE(line.find(threads == 1 ? " on 1 thread, " : " on 2 threads, "), std::string::npos) << line;
    }
  }
  if (!supported(Isa::avx2)) return;
  set_isa(Isa::avx2);  // where Winograd's algorithm takes least time
  EXPECT_NE(Plan::make(r).explain().find("; precision 'default' refuses winograd x F(4x4, 3x3)"), std::string::npos);
  r.precision = Precision::strict;
  const std::string text = Plan::make(r).explain();
  EXPECT_NE(text.find("; precision 'strict' refuses winograd x"), std::string::npos) << text;
  EXPECT_NE(text.find("; precision 'strict' refuses winograd w"), std::string::npos) << text;
}

// One image of few channels: rows are cut where it is a single box, and the budget holds two slots.
TEST_F(PlanTest, SharesSingleImages) {
  if (!supported(Isa::avx512)) GTEST_SKIP() << "others choose other passes";
  set_isa(Isa::avx512);
  set_num_threads(2);
  for (const Problem& p :
       {problem(1, 1, 1, 16, {1, 123, 123}, {1, 3, 3}), problem(1, 1, 1, 96, {1, 98, 28}, {1, 19, 28}),
        problem(1, 1, 16, 16, {1, 112, 112}, {1, 1, 1}), problem(1, 1, 240, 40, {1, 14, 14}, {1, 1, 1})}) {
    const std::string text = Plan::make(backward(p)).explain();
    for (const char* result : {"grad_input: ", "grad_weight: "}) {
      const std::string line = line_of(text, result);
      EXPECT_NE(line.find(" on 2 threads, "), std::string::npos) << line;
    }
  }
}

TEST_F(PlanTest, TakesRowsForImagesThatSharePackedWeights) {
  if (!supported(Isa::avx512)) GTEST_SKIP() << "others choose other passes";
  set_isa(Isa::avx512);
  const Problem p = problem(16, 55, 8, 8, {1, 14, 14}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1});
  EXPECT_NE(Plan::make(backward(p)).explain().find("grad_input: rows x"), std::string::npos);
}

struct Choice {
  const char* name;
  Problem problem;
  const char *output, *grad_input, *grad_weight;
};
void PrintTo(const Choice& c, std::ostream* out) { *out << c.name; }

#ifdef __x86_64__
constexpr bool kX86 = true;
#else
constexpr bool kX86 = false;
#endif

class Choices : public testing::TestWithParam<Choice> {};

// Among direct passes: what else there is depends on the machine.
TEST_P(Choices, FitTheProblem) {
  const Choice& c = GetParam();
  std::string text;
  for (Request r : {forward(c.problem), backward(c.problem)}) {
    r.algorithm = Algorithm::direct;
    text += Plan::make(r).explain();
  }
  for (const std::string& line : {std::string("\noutput: ") + c.output, std::string("\ngrad_input: ") + c.grad_input,
                                  std::string("\ngrad_weight: ") + c.grad_weight})
    EXPECT_NE(text.find(line), std::string::npos) << "wanted" << line << " in\n" << text;
}

INSTANTIATE_TEST_SUITE_P(
    , Choices,
    testing::Values(
        Choice{"Tiny", problem(1, 1, 2, 3, {1, 4, 4}, {1, 3, 3}), "rows y", "rows x", "gather w"},
        Choice{"FewChannels", problem(1, 1, 2, 2, {1, 12, 12}, {1, 3, 3}), "rows y", "rows x", "dots w"},
        Choice{"Dense", kDense, "gather y", "gather x", "gather w"},
        Choice{"Strided", problem(1, 1, 32, 64, {1, 28, 28}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}), "gather y",
               "gather x", "gather w"},
        Choice{"Pointwise", problem(1, 1, 96, 96, {1, 28, 28}, {1, 1, 1}), "pointwise y", "pointwise x", "gather w"},
        Choice{"PointwiseOfFewChannels", problem(1, 1, 3, 64, {1, 48, 48}, {1, 1, 1}), "pointwise y", "rows x",
               "dots w"},
        Choice{"Depthwise", problem(1, 32, 1, 1, {1, 199, 199}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}), "rows y",
               "rows x", "dots w"},
        Choice{"DepthwiseSmall", problem(1, 64, 1, 1, {1, 7, 7}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}), "lanes y",
               "lanes x", "lanes w"},
        Choice{"Patches", problem(1, 1, 3, 64, {1, 160, 160}, {1, 16, 16}, {1, 16, 16}), "gather y", "gather x",
               "gather w"},
        Choice{"FirstLayer", problem(1, 1, 3, 32, {1, 48, 48}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}), "rows y",
               "rows x", "gather w"},
        Choice{"LastLayer", problem(1, 1, 64, 3, {1, 48, 48}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}), "rows y",
               "rows x", kX86 && active_isa() < Isa::avx512 ? "dots w" : "gather w"},
        Choice{"Classes", problem(1, 1, 200, 3, {1, 112, 112}, {1, 1, 1}), "rows y", "rows x", "dots w"},
        Choice{"FewPixels", problem(1, 1, 64, 64, {1, 8, 8}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}), "gather y",
               "columns x", "gather w"},
        Choice{"LongWindows", problem(1, 1, 2, 32, {1, 30, 34}, {1, 11, 28}), "gather y", "columns x", "gather w"},
        Choice{"Classifier", problem(2, 1, 640, 100, {1, 1, 1}, {1, 1, 1}), "gather y", "matvec x", "outer w"}),
    [](const auto& test) { return test.param.name; });

TEST_F(PlanTest, TakesTheAlgorithmThatIsAskedFor) {
  Request r = backward(kDense);
  r.algorithm = Algorithm::reference;
  EXPECT_NE(Plan::make(r).explain().find("grad_input: reference"), std::string::npos);
  EXPECT_EQ(Plan::make(r).explain().find("gather"), std::string::npos);
  r.algorithm = Algorithm::blas;
  if (have_blas()) {
    EXPECT_NE(Plan::make(r).explain().find("gemm"), std::string::npos);
    r.algorithm = Algorithm::direct;
    EXPECT_EQ(Plan::make(r).explain().find("gemm"), std::string::npos);
  } else {
    EXPECT_THROW(Plan::make(r), Error);
  }
}

// Even where neither is worth it; where they cannot serve, direct passes do.
TEST_F(PlanTest, TakesMatrixUnitsAndWinogradWhereverTheyCanServe) {
  const Problem p = problem(1, 1, 32, 32, {1, 28, 28}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  const auto text = [](const Problem& of, Algorithm algorithm, Precision precision) {
    Request r = backward(of);
    r.algorithm = algorithm;
    r.precision = precision;
    return Plan::make(r).explain();
  };
  for (const Precision precision : {Precision::strict, Precision::default_, Precision::fast}) {
    const std::string unit = text(p, Algorithm::matrix, precision), tiles = text(p, Algorithm::winograd, precision);
    EXPECT_EQ(unit.find("matrix") != std::string::npos, matrix_kernels(active_isa()) != nullptr) << unit;
    EXPECT_EQ(unit.find("winograd"), std::string::npos) << unit;
    EXPECT_EQ(tiles.find("matrix"), std::string::npos) << tiles;
    EXPECT_NE(tiles.find("winograd x"), std::string::npos) << tiles;
    EXPECT_NE(tiles.find("winograd w"), std::string::npos) << tiles;
  }
  const Problem strided = problem(1, 1, 32, 32, {1, 28, 28}, {1, 3, 3}, {1, 4, 4}, {1, 1, 1}, {0, 1, 1});
  EXPECT_NE(text(strided, Algorithm::winograd, Precision::fast).find("gather"), std::string::npos);
  // Of all direct passes, not gather alone: lanes for many groups, columns or matvec for a single window.
  for (const Problem& q : {problem(2, 128, 1, 1, {1, 14, 14}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),
                           problem(1, 1, 6, 600, {1, 9, 9}, {1, 9, 9})}) {
    const auto passes = [&](Algorithm algorithm) {
      Request r = backward(q);
      r.algorithm = algorithm;
      std::string names;
      for (const PassInfo& pass : Plan::make(r).passes()) names += pass.text.substr(0, pass.text.find(' ')) + ' ';
      return names;
    };
    const std::string direct = passes(Algorithm::direct);
    EXPECT_EQ(direct.find("gather"), std::string::npos) << direct;
    EXPECT_EQ(passes(Algorithm::winograd), direct);
    if (q.depthwise()) {
      EXPECT_EQ(passes(Algorithm::matrix), direct);
    }
  }
}

TEST_F(PlanTest, StrictSumsProductsAndNothingElse) {
  const Problem p = problem(2, 1, 64, 64, {1, 28, 28}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
  for (const Isa isa : supported_isas()) {
    set_isa(isa);
    for (Request r : {forward(p), backward(p)}) {
      const bool blas = have_blas() && isa == Isa::generic;
      EXPECT_NE(Plan::make(r).explain().find(blas ? "gemm" : "winograd"), std::string::npos);
      r.precision = Precision::strict;
      const std::string text = Plan::make(r).explain();
      EXPECT_NE(text.find("gather"), std::string::npos) << text;
      EXPECT_EQ(text.find(blas ? "gemm" : ": winograd"), std::string::npos) << text;
    }
  }
}

TEST_F(PlanTest, NamesTheInstructionSetInUse) {
  Request r = backward(kDense);
  r.algorithm = Algorithm::direct;
  for (const Isa isa : supported_isas()) {
    set_isa(isa);
    EXPECT_NE(Plan::make(r).explain().find(name_of(isa)), std::string::npos);
  }
}

// A quarter of what im2col would take, for each pass; but 64 KiB are always allowed.
TEST_F(PlanTest, WorkspaceIsSmall) {
  constexpr std::size_t kLeast = 64 << 10;
  set_num_threads(16);
  for (const Problem& p : {kDense, problem(1, 1, 64, 64, {1, 56, 56}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}),
                           problem(1, 1, 32, 64, {1, 28, 28}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}),
                           problem(1, 96, 1, 1, {1, 56, 56}, {1, 7, 7}, {1, 1, 1}, {1, 1, 1}, {0, 3, 3}),
                           problem(1, 1, 32, 32, {8, 14, 14}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1})}) {
    const auto columns = static_cast<std::size_t>(p.n * p.groups * p.ci * p.taps() * p.y_plane()) * sizeof(float);
    EXPECT_LE(Plan::make(backward(p)).workspace_bytes(), std::max(columns / 4, kLeast)) << to_string(p);
    EXPECT_LE(Plan::make(forward(p)).workspace_bytes(), std::max(columns / 4, kLeast)) << to_string(p);
  }
}

TEST_F(PlanTest, RefusesWhatCheckRefuses) {
  Request r = backward(kDense);
  for (const int threads : {0, 2}) {
    try {
      Plan::make(r, threads);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value);
    }
    r.groups = 5;
  }
}

// A huge problem is planned without touching memory; only carrying it out would need some.
TEST_F(PlanTest, HugeProblemsArePlannedAtOnce) {
  const Plan plan =
      Plan::make(backward(problem(1 << 20, 1, 64, 64, {1, 512, 512}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1})));
  EXPECT_LT(plan.workspace_bytes(), std::size_t{1} << 28);
}

// Copies of images with such borders would have more bytes than 64 bits count.
TEST_F(PlanTest, FarPaddingNeedsNoWorkspace) {
  for (const Isa isa : supported_isas()) {
    set_isa(isa);
    for (const Problem& p :
         {problem(1, 1, 64, 64, {5, 5, 5}, {3, 3, 3}, {1, 1, 1}, {131072, 131072, 131072}, {131072, 131072, 131072}),
          problem(1, 1, 16, 16, {1, 5, 5}, {1, 3, 3}, {1, 1, 1}, {1, 400000000, 400000000}, {0, 400000000, 400000000}),
          problem(3, 1, 3, 64, {1, 1, 5}, {3, 2, 2}, {1682574062, 1, 71161}, {67108863, 536870910, 1},
                  {67108864, 268435455, 0}, {67108864, 268435455, 0})})
      for (const Algorithm algorithm :
           {Algorithm::automatic, Algorithm::direct, Algorithm::matrix, Algorithm::winograd})
        for (const int threads : {1, 2}) {
          Request r = backward(p);
          r.algorithm = algorithm;
          const Plan plan = Plan::make(r, threads);
          EXPECT_LT(plan.workspace_bytes(), std::size_t{1} << 20) << to_string(p) << '\n' << plan.explain();
        }
  }
}

// --------------------------------------------------------------------------------------------------------- execution

std::string name_of_algorithm(const testing::TestParamInfo<Algorithm>& test) {
  constexpr const char* kNames[] = {"automatic", "direct", "blas", "reference"};
  return kNames[static_cast<int>(test.param)];
}

class WholeCalls : public testing::TestWithParam<Algorithm> {
 protected:
  void SetUp() override {
    if (GetParam() == Algorithm::blas && !have_blas()) GTEST_SKIP() << "this build has no BLAS";
    set_num_threads(3);
  }
};

INSTANTIATE_TEST_SUITE_P(, WholeCalls, testing::Values(Algorithm::automatic, Algorithm::direct, Algorithm::blas),
                         name_of_algorithm);

TEST_P(WholeCalls, AgreeWithThePlainLoops) {
  for (const Problem& p : hard_problems()) {
    for (Request r : {backward(p), forward(p), backward(p, DType::float64), forward(p, DType::float16)}) {
      r.algorithm = GetParam();
      ASSERT_EQ(results_of(r), expected_of(r)) << to_string(p);
    }
    // Only with paddings that a transposed call can state.
    if (p.pad_before != Index3{0, 0, 0} || p.dilation != Index3{1, 1, 1}) continue;
    const Request t = transposed(p);
    bool fits = true;
    for (std::size_t a = 0; a < 3; ++a) fits &= t.output_padding[a] < std::max(p.stride[a], p.dilation[a]);
    if (!fits) continue;
    Request f = t;
    f.function = "convolution";
    f.grad_output.reset();
    for (Request r : {t, f}) {
      r.algorithm = GetParam();
      ASSERT_EQ(results_of(r), expected_of(r)) << to_string(p) << " transposed";
    }
  }
}

TEST_P(WholeCalls, OneAndTwoDimensionsWithoutBatch) {
  Request one;
  one.input = tensor({12, 40});
  one.weight = tensor({18, 12, 5});
  one.grad_output = tensor({18, 36});
  Request two;
  two.input = tensor({12, 10, 9});
  two.weight = tensor({12, 10, 3, 3});
  two.grad_output = tensor({10, 21, 19});
  two.transposed = true;
  two.stride = {2};
  for (Request r : {one, two}) {
    r.algorithm = GetParam();
    ASSERT_EQ(results_of(r), expected_of(r));
  }
}

TEST_P(WholeCalls, EveryMaskLeavesTheOtherResultsAlone) {
  for (int mask = 0; mask < 8; ++mask) {
    Request r = backward(kDense);
    r.algorithm = GetParam();
    r.output_mask = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    ASSERT_EQ(results_of(r), expected_of(r));  // the others have no memory at all
  }
}

TEST_P(WholeCalls, ResultsGoWhereTheirStridesSay) {
  Request r = backward(kDense);
  r.algorithm = GetParam();
  const std::vector<double> expected = expected_of(r);
  TestTensor dx(x_size(kDense), DType::float32, Layout::channels_last),
      dw(w_size(kDense), DType::float32, Layout::gaps);
  TestTensor db({1, 40, 1, 1, 1}, DType::float32, Layout::reversed);
  r.result_strides = {shape_of(dx.view().stride), shape_of(dw.view().stride), Shape{-1}};
  const Plan plan = Plan::make(r);
  Data data(r, plan);
  plan.backward(data.grad_output(), data.input(), data.weight(),
                {Tensor{dx.view().data, DType::float32, r.input.shape, r.result_strides[0]},
                 Tensor{dw.view().data, DType::float32, r.weight.shape, r.result_strides[1]},
                 Tensor{db.view().data, DType::float32, {40}, r.result_strides[2]}});
  std::vector<double> got = dx.values();
  for (const double v : dw.values()) got.push_back(v);
  for (const double v : db.values()) got.push_back(v);
  EXPECT_EQ(got, expected);
  EXPECT_TRUE(dx.gaps_intact() && dw.gaps_intact() && db.gaps_intact());
}

TEST_P(WholeCalls, NothingToSumGivesZerosAndBias) {
  Request no_images = backward({0, 1, 3, 4, {1, 5, 5}, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}});
  no_images.algorithm = GetParam();
  for (const double v : results_of(no_images)) EXPECT_EQ(v, 0);
  const Problem p{2, 1, 0, 4, {1, 5, 5}, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
  Request no_channels = forward(p);
  no_channels.algorithm = GetParam();
  const Plan plan = Plan::make(no_channels);
  Data data(no_channels, plan);
  data.run(plan);
  const std::vector<double> got = data.values();
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], get(data.bias().data, DType::float32, static_cast<Index>(i) / 9 % 4));
}

TEST_P(WholeCalls, OnePlanServesManyThreadsAtOnce) {
  for (const Request& base : {backward(kDense), backward(problem(2, 8, 1, 1, {1, 30, 30}, {1, 3, 3}))}) {
    Request r = base;
    r.algorithm = GetParam();
    const Plan plan = Plan::make(r);
    const std::vector<double> expected = expected_of(r);
    std::vector<std::unique_ptr<Data>> data;
    for (int i = 0; i < 4; ++i) data.push_back(std::make_unique<Data>(r, plan));
    std::vector<std::thread> threads;
    for (const auto& d : data)
      threads.emplace_back([&plan, &d] {
        for (int i = 0; i < 3; ++i) d->run(plan);
      });
    for (std::thread& t : threads) t.join();
    for (const auto& d : data) EXPECT_EQ(d->values(), expected);
  }
}

// --------------------------------------------------------------------------------------------- tensors unlike planned

struct Change {
  const char* name;
  std::function<void(Data&)> make;
};
void PrintTo(const Change& c, std::ostream* out) { *out << c.name; }

class Refuses : public testing::TestWithParam<Change> {
 protected:
  static void expect_refusal(const Plan& plan, Data& data) {
    data.run(plan);
    GetParam().make(data);
    try {
      data.run(plan);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value);
      EXPECT_NE(std::string(error.what()).find(", got "), std::string::npos) << error.what();
    }
  }
};

class BackwardRefuses : public Refuses {};
TEST_P(BackwardRefuses, TensorsOtherThanPlanned) {
  const Request r = backward(kDense);
  const Plan plan = Plan::make(r);
  Data data(r, plan);
  expect_refusal(plan, data);
}
INSTANTIATE_TEST_SUITE_P(, BackwardRefuses,
                         testing::ValuesIn(std::vector<Change>{
                             {"GradOutputType", [](Data& d) { d.grad_output().dtype = DType::float16; }},
                             {"InputShape", [](Data& d) { --d.input().shape[3]; }},
                             {"InputStrides", [](Data& d) { d.input().strides = {0, 0, 0, 0, 0}; }},
                             {"InputFormat", [](Data& d) { d.input().packing = Packing{MemoryFormat::nchw}; }},
                             {"InputRank", [](Data& d) { d.input().shape.insert(d.input().shape.begin() + 1, 7); }},
                             {"WeightShape", [](Data& d) { std::swap(d.weight().shape[0], d.weight().shape[1]); }},
                             {"GradInputType", [](Data& d) { d.results()[0].dtype = DType::float64; }},
                             {"GradInputStrides", [](Data& d) { d.results()[0].strides = {1, 1, 1, 1, 1}; }},
                             {"GradWeightShape", [](Data& d) { d.results()[1].shape = {40, 24}; }},
                             {"GradBiasShape", [](Data& d) { d.results()[2].shape = {39}; }},
                             {"GradOutputMemory", [](Data& d) { d.grad_output().data = nullptr; }},
                             {"InputMemory", [](Data& d) { d.input().data = nullptr; }},
                             {"WeightMemory", [](Data& d) { d.weight().data = nullptr; }},
                             {"GradInputMemory", [](Data& d) { d.results()[0].data = nullptr; }},
                             {"GradBiasMemory", [](Data& d) { d.results()[2].data = nullptr; }},
                             {"HugeShape", [](Data& d) { d.grad_output().shape = Shape(5, INT64_MAX); }},
                             {"GradBiasType", [](Data& d) { d.results()[2].dtype = DType::float64; }},
                         }),
                         testing::PrintToStringParamName());

class ForwardRefuses : public Refuses {};
TEST_P(ForwardRefuses, TensorsOtherThanPlanned) {
  const Request r = forward(kDense);
  const Plan plan = Plan::make(r);
  Data data(r, plan);
  expect_refusal(plan, data);
}
INSTANTIATE_TEST_SUITE_P(, ForwardRefuses,
                         testing::ValuesIn(std::vector<Change>{
                             {"InputType", [](Data& d) { d.input().dtype = DType::bfloat16; }},
                             {"WeightStrides", [](Data& d) { d.weight().strides = {1, 40, 960, 960, 2880}; }},
                             {"OutputShape", [](Data& d) { ++d.results()[0].shape[2]; }},
                             {"InputMemory", [](Data& d) { d.input().data = nullptr; }},
                             {"OutputMemory", [](Data& d) { d.results()[0].data = nullptr; }},
                             {"BiasMemory", [](Data& d) { d.bias().data = nullptr; }},
                             {"BiasShape", [](Data& d) { d.bias().shape = {41}; }},
                             {"BiasType", [](Data& d) { d.bias().dtype = DType::float64; }},
                             {"BiasStrides", [](Data& d) { d.bias().strides = {0}; }},
                             {"BiasFormat", [](Data& d) { d.bias().packing = Packing{}; }},
                         }),
                         testing::PrintToStringParamName());

TEST_F(PlanTest, OfOneFunctionRefusesTheOther) {
  const Request b = backward(kDense), f = forward(kDense);
  const Plan of_backward = Plan::make(b), of_forward = Plan::make(f);
  Data data(b, of_backward), image(f, of_forward);
  EXPECT_THROW(of_forward.backward(data.grad_output(), data.input(), data.weight(), data.results()), Error);
  EXPECT_THROW(of_backward.forward(image.input(), image.weight(), nullptr, image.results()[0]), Error);
  EXPECT_THROW(of_backward.forward(data.input(), data.weight(), nullptr, data.results()[0]), Error);
}

TEST_F(PlanTest, OfABiasNeedsItAndOthersRefuseIt) {
  Request r = forward(kDense);
  const Plan with = Plan::make(r);
  Data data(r, with);
  const Tensor bias = data.bias();
  EXPECT_THROW(with.forward(data.input(), data.weight(), nullptr, data.results()[0]), Error);
  r.bias.reset();
  EXPECT_THROW(Plan::make(r).forward(data.input(), data.weight(), &bias, data.results()[0]), Error);
}

TEST_F(PlanTest, WhatIsNotReadNeedsNoMemory) {
  for (const std::array<bool, 3> mask : {std::array{true, false, false}, {false, true, false}, {false, false, true}}) {
    Request r = backward(kDense);
    r.output_mask = mask;
    const Plan plan = Plan::make(r);
    Data all(r, plan), some(r, plan);
    all.run(plan);
    if (!mask[1]) some.input().data = nullptr;
    if (!mask[0]) some.weight().data = nullptr;
    some.run(plan);
    EXPECT_EQ(all.values(), some.values());
  }
}

TEST_F(PlanTest, OfPackedGroupsRefusesOtherGroups) {
  const Problem p = problem(1, 2, 3, 4, {1, 5, 5}, {1, 1, 1});
  Request r = backward(p);
  r.output_mask = {true, false, false};
  r.weight.packing = Packing{MemoryFormat::fractal_z_3d, 0, 2};
  const Plan plan = Plan::make(r);
  const std::vector<std::int64_t> room(1 << 12);
  std::vector<std::int64_t> result(1 << 12);
  void* const data = const_cast<std::int64_t*>(room.data());
  r.grad_output->data = r.input.data = r.weight.data = data;
  const Tensor dx{result.data(), DType::float32, r.input.shape, {}};
  plan.backward(*r.grad_output, r.input, r.weight, {dx, {}, {}});
  r.weight.packing->groups = 1;
  EXPECT_THROW(plan.backward(*r.grad_output, r.input, r.weight, {dx, {}, {}}), Error);
}

// The strides of one block of channels are those of a plain tensor, but the lanes that no channel has are written, too.
TEST_F(PlanTest, OfAFormatRefusesAPlainTensorOfTheSameStrides) {
  Request plain = backward(problem(2, 1, 3, 4, {1, 8, 8}, {1, 1, 1}));
  plain.output_mask = {true, false, false};
  Request packed = plain;
  plain.result_strides[0] = {1024, 1, 1024, 128, 16};
  packed.result_packings[0] = Packing{MemoryFormat::ndc1hwc0, 16};
  const Plan of_plain = Plan::make(plain), of_packed = Plan::make(packed);
  Data data(plain, of_plain);
  data.results()[0].strides = plain.result_strides[0];
  EXPECT_THROW(data.run(of_packed), Error);
  data.results()[0].strides.clear();
  data.results()[0].packing = packed.result_packings[0];
  EXPECT_THROW(data.run(of_plain), Error);
}

// Rows 16 to 27 of a gradient, from the rows of dy that they read.
TEST_F(PlanTest, APartWithTheSumsOfTheWholeHasItsBits) {
  constexpr Index kFirst = 16, kRows = 12, kBorder = 1;
  for (const Isa isa : kIsas) {
    if (!supported(isa)) continue;
    const ScopedIsa scoped(isa);
    for (const auto& [ci, co, width] :
         {std::array<Index, 3>{2, 2, 3}, {20, 20, 3}, {64, 64, 3}, {2, 32, 33}, {16, 16, 33}})
      for (const DType dtype : {DType::float32, DType::float64}) {
        const Problem p = problem(2, 1, ci, co, {1, 40, 40}, {1, 3, width}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1});
        Problem part = p;
        part.x[1] = kRows, part.y[1] = kRows + 2 * kBorder, part.pad_before[1] = p.pad_before[1] + kBorder;
        Request of_whole = backward(p, dtype), of_part = backward(part, dtype);
        of_whole.output_mask = of_part.output_mask = {true, false, false};
        // OpenBLAS does not tell its order.
        if (have_blas() && isa == Isa::generic) of_whole.algorithm = of_part.algorithm = Algorithm::direct;
        const Plan whole_plan = Plan::make(of_whole);
        of_part.sums = whole_plan.passes()[0].sums;
        const Plan part_plan = Plan::make(of_part);
        EXPECT_EQ(part_plan.passes()[0].sums, of_part.sums) << whole_plan.explain() << part_plan.explain();

        Data whole(of_whole, whole_plan), cut(of_part, part_plan);
        Random random(7);
        for (Index i = 0; i < co * ci * p.taps(); ++i) {
          const double value = random.real(-1, 1);
          set(whole.weight().data, dtype, i, value), set(cut.weight().data, dtype, i, value);
        }
        for (Index plane = 0; plane < 2 * co; ++plane)
          for (Index i = 0; i < p.y_plane(); ++i) {
            const Index row = i / p.y[2] - (kFirst - kBorder);
            const double value = random.real(-1, 1);
            set(whole.grad_output().data, dtype, plane * p.y_plane() + i, value);
            if (row >= 0 && row < part.y[1])
              set(cut.grad_output().data, dtype, (plane * part.y[1] + row) * p.y[2] + i % p.y[2], value);
          }
        whole.run(whole_plan);
        cut.run(part_plan);
        const std::vector<double> all = whole.values(), rows = cut.values();
        for (Index plane = 0; plane < 2 * ci; ++plane)
          for (Index i = 0; i < kRows * 40; ++i)
            ASSERT_EQ(rows[static_cast<std::size_t>(plane * kRows * 40 + i)],
                      all[static_cast<std::size_t>((plane * 40 + kFirst) * 40 + i)])
                << whole_plan.explain() << part_plan.explain();
      }
  }
}

TEST_F(PlanTest, RoundsResultsToTheDtypesThatTheRequestNames) {
  Request r = backward(kDense);
  const std::vector<double> exact = results_of(r);  // integers that float16 holds
  const Plan plain = Plan::make(r);
  for (const auto dtypes : {std::array{DType::float16, DType::float64, DType::float32},
                            std::array{DType::float32, DType::float16, DType::float64},
                            std::array{DType::float64, DType::float32, DType::float16}}) {
    r.result_dtypes = {dtypes[0], dtypes[1], dtypes[2]};
    const Plan plan = Plan::make(r);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(plan.results()[i].dtype, dtypes[i]);
    EXPECT_EQ(results_of(r), exact);
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(plain.results()[i].dtype, DType::float32);
}

}  // namespace
}  // namespace convbwd::test
