// Google Benchmark over whole operations, without Python: each argument that is not an option is a problem string.
//   convbench $(python bench/compare.py --list --family stem)
// A problem string has no direction, so every problem is timed as a plain convolution; what "dx" computes for it is the
// forward pass of the transposed one. CONVBWD_NUM_THREADS and CONVBWD_ISA are obeyed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
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

struct Operands {
  explicit Operands(const convbwd::Problem& p)
      : x({p.n, p.groups * p.ci, p.x[0], p.x[1], p.x[2]}),
        w({p.groups * p.co, p.ci, p.w[0], p.w[1], p.w[2]}),
        y({p.n, p.groups * p.co, p.y[0], p.y[1], p.y[2]}) {
    request.input = x.tensor();
    request.weight = w.tensor();
    request.stride.assign(p.stride.begin(), p.stride.end());
    request.dilation.assign(p.dilation.begin(), p.dilation.end());
    request.groups = p.groups;
    request.padding.clear();
    for (int d = 0; d < 3; ++d) {
      const auto covered = (p.y[d] - 1) * p.stride[d] + (p.w[d] - 1) * p.dilation[d] + 1;
      request.padding.push_back(p.pad_before[d]);
      request.padding.push_back(std::max<std::int64_t>(covered - p.x[d] - p.pad_before[d], 0));
    }
  }

  Data x, w, y;
  convbwd::Request request;
};

void report(benchmark::State& state, const convbwd::Problem& p, const convbwd::Plan& plan, int passes) {
  const auto flops = 2 * p.n * p.groups * p.ci * p.co * p.taps() * p.y_plane() * passes;
  state.counters["FLOPS"] =
      benchmark::Counter(static_cast<double>(flops), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["workspace"] = benchmark::Counter(static_cast<double>(plan.workspace_bytes()));
}

void backward(benchmark::State& state, const std::string& text, std::array<bool, 3> mask) {
  const auto problem = convbwd::parse_problem(text);
  Operands operands(problem);
  operands.request.grad_output = operands.y.tensor();
  operands.request.output_mask = mask;
  const auto plan = convbwd::Plan::make(operands.request);
  Data dx(operands.x.shape), dw(operands.w.shape), db({problem.groups * problem.co});
  const std::array results{dx.tensor(), dw.tensor(), db.tensor()};
  for ([[maybe_unused]] auto _ : state) {
    plan.backward(operands.y.tensor(), operands.x.tensor(), operands.w.tensor(), results);
    benchmark::ClobberMemory();
  }
  report(state, problem, plan, mask[0] + mask[1]);
}

void forward(benchmark::State& state, const std::string& text) {
  const auto problem = convbwd::parse_problem(text);
  Operands operands(problem);
  operands.request.function = "convolution";
  const auto plan = convbwd::Plan::make(operands.request);
  for ([[maybe_unused]] auto _ : state) {
    plan.forward(operands.x.tensor(), operands.w.tensor(), nullptr, operands.y.tensor());
    benchmark::ClobberMemory();
  }
  report(state, problem, plan, 1);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes its own options out of argv
  std::vector<std::string> problems(argv + 1, argv + argc);
  if (problems.empty()) problems = kDefaultProblems;
  try {
    for (const auto& text : problems) {
      convbwd::parse_problem(text);
      using Mask = std::array<bool, 3>;
      benchmark::RegisterBenchmark((text + "/all").c_str(), backward, text, Mask{true, true, true})->UseRealTime();
      benchmark::RegisterBenchmark((text + "/dx").c_str(), backward, text, Mask{true, false, false})->UseRealTime();
      benchmark::RegisterBenchmark((text + "/dw").c_str(), backward, text, Mask{false, true, false})->UseRealTime();
      benchmark::RegisterBenchmark((text + "/y").c_str(), forward, text)->UseRealTime();
    }
    for (const auto& [name, value] : convbwd::build_info()) benchmark::AddCustomContext(name, value);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const convbwd::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
