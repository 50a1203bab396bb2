// Google Benchmark over whole operations, without Python: each argument that is not an option is a problem string.
//   convbench $(python bench/compare.py --list --family stem)
// Behind "transposed:" it is the transpose of the convolution. CONVBWD_NUM_THREADS and CONVBWD_ISA are obeyed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv/problem.h"
#include "convbwd/convbwd.hpp"

namespace {

using convbwd::Shape;

// One problem of each kind: dense, pointwise, strided, depthwise, patch, 1-D, 3-D.
const std::vector<std::string> kDefaultProblems = {
    "n1g1ci64x1x56x56co64y1x56x56k1x3x3s1x1x1d1x1x1p0x1x1",
    "n1g1ci256x1x14x14co1024y1x14x14k1x1x1s1x1x1d1x1x1p0x0x0",
    "n1g1ci128x1x56x56co128y1x28x28k1x3x3s1x2x2d1x1x1p0x1x1",
    "n1g96ci1x1x56x56co1y1x56x56k1x7x7s1x1x1d1x1x1p0x3x3",
    "n1g1ci3x1x224x224co768y1x14x14k1x16x16s1x16x16d1x1x1p0x0x0",
    "n4g1ci64x1x1x512co64y1x1x512k1x1x9s1x1x1d1x1x1p0x0x4",
    "n1g1ci32x16x28x28co32y16x28x28k3x3x3s1x1x1d1x1x1p1x1x1",
};

struct Data {
  explicit Data(Shape dimensions) : shape(std::move(dimensions)) {
    values.resize(std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 8;
  }
  convbwd::Tensor tensor() { return {values.data(), convbwd::DType::float32, shape, {}}; }

  Shape shape;
  std::vector<float> values;
};

constexpr std::string_view kTransposed = "transposed:";

/// What a text names: a problem, and whether its transpose is meant.
struct Named {
  explicit Named(std::string_view text)
      : transposed(text.starts_with(kTransposed)),
        problem(convbwd::parse_problem(std::string(text.substr(transposed ? kTransposed.size() : 0)))) {}

  /// Two operations a product; those with padding are left out.
  double flops() const {
    double products = static_cast<double>(problem.n * problem.groups * problem.ci * problem.co);
    for (int d = 0; d < 3; ++d) {
      std::int64_t inside = 0;
      for (std::int64_t o = 0; o < problem.y[d]; ++o)
        for (std::int64_t t = 0; t < problem.w[d]; ++t) {
          const auto i = o * problem.stride[d] + t * problem.dilation[d] - problem.pad_before[d];
          inside += i >= 0 && i < problem.x[d];
        }
      products *= static_cast<double>(inside);
    }
    return 2 * products;
  }

  bool transposed;
  convbwd::Problem problem;
};

struct Operands {
  explicit Operands(const Named& named)
      : Operands(named.problem, named.transposed, {named.problem.n, named.problem.groups * named.problem.ci},
                 {named.problem.n, named.problem.groups * named.problem.co}) {}

  Data input, weight, output;
  convbwd::Request request;

 private:
  Operands(const convbwd::Problem& p, bool transposed, Shape x, Shape y)
      : input(image(transposed ? y : x, transposed ? p.y : p.x)),
        weight({p.groups * p.co, p.ci, p.w[0], p.w[1], p.w[2]}),
        output(image(transposed ? x : y, transposed ? p.x : p.y)) {
    request.input = input.tensor();
    request.weight = weight.tensor();
    request.stride.assign(p.stride.begin(), p.stride.end());
    request.dilation.assign(p.dilation.begin(), p.dilation.end());
    request.groups = p.groups;
    request.transposed = transposed;
    request.padding.clear();
    request.output_padding.clear();
    for (int d = 0; d < 3; ++d) {
      const auto covered = (p.y[d] - 1) * p.stride[d] + (p.w[d] - 1) * p.dilation[d] + 1;
      const auto behind = p.x[d] + p.pad_before[d] - covered;
      request.padding.push_back(p.pad_before[d]);
      request.padding.push_back(std::max<std::int64_t>(-behind, 0));
      request.output_padding.push_back(transposed ? std::max<std::int64_t>(behind, 0) : 0);
    }
  }

  static Shape image(Shape shape, const std::array<std::int64_t, 3>& sizes) {
    shape.insert(shape.end(), sizes.begin(), sizes.end());
    return shape;
  }
};

void report(benchmark::State& state, const Named& named, const convbwd::Plan& plan, int passes) {
  state.counters["FLOPS"] = benchmark::Counter(named.flops() * passes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["workspace"] = benchmark::Counter(static_cast<double>(plan.workspace_bytes()));
}

void backward(benchmark::State& state, const Named& named, std::array<bool, 3> mask) {
  Operands operands(named);
  operands.request.grad_output = operands.output.tensor();
  operands.request.output_mask = mask;
  const auto plan = convbwd::Plan::make(operands.request);
  Data dx(operands.input.shape), dw(operands.weight.shape), db({operands.output.shape[1]});
  const std::array results{dx.tensor(), dw.tensor(), db.tensor()};
  for ([[maybe_unused]] auto _ : state) {
    plan.backward(operands.output.tensor(), operands.input.tensor(), operands.weight.tensor(), results);
    benchmark::ClobberMemory();
  }
  report(state, named, plan, mask[0] + mask[1]);
}

void forward(benchmark::State& state, const Named& named) {
  Operands operands(named);
  operands.request.function = "convolution";
  const auto plan = convbwd::Plan::make(operands.request);
  for ([[maybe_unused]] auto _ : state) {
    plan.forward(operands.input.tensor(), operands.weight.tensor(), nullptr, operands.output.tensor());
    benchmark::ClobberMemory();
  }
  report(state, named, plan, 1);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes its own options out of argv
  std::vector<std::string> problems(argv + 1, argv + argc);
  if (problems.empty()) problems = kDefaultProblems;
  try {
    for (const auto& text : problems) {
      const Named named(text);
      const auto add = [&](const char* what, auto&& function, auto... arguments) {
        benchmark::RegisterBenchmark((text + what).c_str(), function, named, arguments...)->UseRealTime();
      };
      using Mask = std::array<bool, 3>;
      add("/all", backward, Mask{true, true, true});
      add("/dx", backward, Mask{true, false, false});
      add("/dw", backward, Mask{false, true, false});
      add("/db", backward, Mask{false, false, true});
      add("/y", forward);
    }
    for (const auto& [name, value] : convbwd::build_info()) benchmark::AddCustomContext(name, value);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const convbwd::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
