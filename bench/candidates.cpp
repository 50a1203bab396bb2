// What the planner expects of each algorithm that could serve, and what it takes: one line of JSON for each.
// bench/fit.py makes sense of them.
//   candidates [--dtype=float32|float64|float16|bfloat16] [--precision=strict|default|fast] problem...
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/cpu.h"
#include "conv/choose.h"
#include "conv/problem.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr double kSeconds = 0.04;  // of each candidate
constexpr int kLeastRuns = 4;

struct Data {
  Data(DType t, const Index5& size) : view{nullptr, t, size, dense_strides(size)} {
    memory.resize(static_cast<std::size_t>(size[0] * view.stride[0]) * size_of(t) + 64);
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    view.data = memory.data() + (64 - at % 64) % 64;
    // Values of ordinary size that differ, or passes with a guard take their second way.
    for (Index i = 0; i < size[0] * view.stride[0]; ++i) {
      const double value = std::sin(static_cast<double>(i));
      store_row(kernel_set<double>(Isa::generic), advance(view.data, t, i), t, 1, &value, 1);
    }
  }
  std::vector<std::byte> memory;
  View view;
};

double seconds(const Pass& pass, const Operands& operands) {
  using Clock = std::chrono::steady_clock;
  Arena arena(pass.workspace_bytes());
  const auto start = Clock::now();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kLeastRuns || std::chrono::duration<double>(Clock::now() - start).count() < kSeconds; ++i) {
    const auto begin = Clock::now();
    pass.run(operands, arena.data());
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

void measure(const std::string& text, DType dtype, Precision precision) {
  const Problem p = parse_problem(text);
  const Data x(dtype, {p.n, p.groups * p.ci, p.x[0], p.x[1], p.x[2]});
  const Data w(dtype, {p.groups * p.co, p.ci, p.w[0], p.w[1], p.w[2]});
  const Data y(dtype, {p.n, p.groups * p.co, p.y[0], p.y[1], p.y[2]});
  const Operands operands{x.view, w.view, y.view, {}};
  for (const auto& [unknown, name] : {std::pair{Unknown::x, "x"}, {Unknown::w, "w"}, {Unknown::y, "y"}})
    for (const Candidate& c : candidates({p, unknown, operands, 1, 0, precision}, Algorithm::automatic))
      std::cout << "{\"problem\": \"" << text << "\", \"unknown\": \"" << name << "\", \"name\": \"" << c.name()
                << "\", \"expected\": " << c.nanoseconds << ", \"measured\": " << seconds(*c.pass, operands) * 1e9
                << "}" << std::endl;
}

}  // namespace
}  // namespace convbwd

int main(int argc, char** argv) {
  using namespace convbwd;
  DType dtype = DType::float32;
  Precision precision = Precision::default_;
  try {
    for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc)) {
      const std::string value = argument.substr(argument.find('=') + 1);
      if (argument.starts_with("--dtype="))
        dtype = value == "float64"    ? DType::float64
                : value == "float16"  ? DType::float16
                : value == "bfloat16" ? DType::bfloat16
                                      : DType::float32;
      else if (argument.starts_with("--precision="))
        precision = value == "strict" ? Precision::strict : value == "fast" ? Precision::fast : Precision::default_;
      else
        measure(argument, dtype, precision);
    }
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
