// The gradients of y = x * w for x = (1, 2, 3), w = (1, 10) and dy = (1, 1): what a user of the installed package
// writes.
#include <array>
#include <convbwd/convbwd.hpp>
#include <cstdio>

int main() {
  std::array<float, 3> x{1, 2, 3}, dx{};
  std::array<float, 2> w{1, 10}, dy{1, 1}, dw{};
  convbwd::Request request;
  request.grad_output = {dy.data(), convbwd::DType::float32, {1, 1, 2}, {}};
  request.input = {x.data(), convbwd::DType::float32, {1, 1, 3}, {}};
  request.weight = {w.data(), convbwd::DType::float32, {1, 1, 2}, {}};
  request.output_mask = {true, true, false};

  const auto plan = convbwd::Plan::make(request);
  const convbwd::Tensor grad_input{dx.data(), convbwd::DType::float32, {1, 1, 3}, {}};
  const convbwd::Tensor grad_weight{dw.data(), convbwd::DType::float32, {1, 1, 2}, {}};
  plan.backward(*request.grad_output, request.input, request.weight, {grad_input, grad_weight, {}});

  std::printf("dx = %g %g %g, dw = %g %g\n", dx[0], dx[1], dx[2], dw[0], dw[1]);
  return dx == std::array<float, 3>{1, 11, 10} && dw == std::array<float, 2>{3, 5} ? 0 : 1;
}
