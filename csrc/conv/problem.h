// Layer conv: a user's request, checked once and brought into the canonical form.
// Errors of a request are raised by check(); nothing below it knows a user's argument.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string>

#include "base/problem.h"
#include "convbwd/convbwd.hpp"

namespace convbwd {

/// "n2g1ci16x1x14x14co32y1x14x14k1x3x3s1x1x1d1x1x1p0x1x1": the name of a problem in tests, benchmarks and messages.
std::string to_string(const Problem& problem);
Problem parse_problem(const std::string& text);  // throws Error(value)

/// The operands and the results of convolution_backward.
inline constexpr const char* kOperands[] = {"grad_output", "input", "weight"};
inline constexpr const char* kGradients[] = {"grad_input", "grad_weight", "grad_bias"};

/// A shape as Python writes it.
struct Tuple {
  const Shape& values;
};
std::ostream& operator<<(std::ostream& out, const Tuple& tuple);

/// A checked call. For a transposed one the canonical x is the user's output and the canonical y the user's input.
struct Checked {
  Problem problem;
  bool transposed = false;
  bool unbatched = false;
  Shape output_shape;               // of the forward result, channels-first, without N if unbatched
  std::array<DType, 3> operands{};  // how grad_output, input and weight are read: a rounding is part of the type
  std::array<Result, 3> results;    // see Plan::results
};

Checked check(const Request& request);

}  // namespace convbwd
