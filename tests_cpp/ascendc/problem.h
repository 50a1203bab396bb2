// A convolution as a test of Conv3DBackpropInput states it, and its gradient by the library.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <ostream>
#include <type_traits>
#include <vector>

#include "convbwd/convbwd.hpp"
#include "convbwd/layouts.hpp"
#include "kernel_operator.h"
#include "support/random.h"
#include "tiling/tiling_api.h"

namespace convbwd::test {

struct InputProblem {
  std::int64_t batch, cin;
  std::array<std::int64_t, 3> input;
  std::int64_t cout;
  std::array<std::int64_t, 3> kernel, stride;
  std::array<std::int64_t, 6> pads;
  std::array<std::int64_t, 3> dilation;
  std::uint32_t base_m = 0, base_n = 0, single_m = 0;  // of the tiling, where they are not zero

  std::int64_t output(std::size_t a) const {
    return (input[a] + pads[2 * a] + pads[2 * a + 1] - (kernel[a] - 1) * dilation[a] - 1) / stride[a] + 1;
  }
  Shape x_shape() const { return {batch, cin, input[0], input[1], input[2]}; }
  Shape w_shape() const { return {cout, cin, kernel[0], kernel[1], kernel[2]}; }
  Shape y_shape() const { return {batch, cout, output(0), output(1), output(2)}; }
};

inline std::ostream& operator<<(std::ostream& out, const InputProblem& p) {
  out << p.batch << "x" << p.cin << " to " << p.cout << " channels, input";
  for (const auto n : p.input) out << ' ' << n;
  out << ", kernel";
  for (const auto n : p.kernel) out << ' ' << n;
  return out;
}

inline std::int64_t elements(const Shape& shape) {
  std::int64_t n = 1;
  for (const auto size : shape) n *= size;
  return n;
}

/// The setters, in an order that is not that of CANN's page.
inline void state(ConvBackpropApi::Conv3DBpInputTiling& tiling, const InputProblem& p, ConvCommonApi::ConvDtype type) {
  using namespace ConvCommonApi;
  tiling.SetPadding(p.pads[0], p.pads[1], p.pads[2], p.pads[3], p.pads[4], p.pads[5]);
  tiling.SetStride(p.stride[0], p.stride[1], p.stride[2]);
  EXPECT_TRUE(tiling.SetGradOutputShape(p.batch, p.cout, p.output(0), p.output(1), p.output(2)));
  EXPECT_TRUE(tiling.SetInputShape(p.batch, p.cin, p.input[0], p.input[1], p.input[2]));
  EXPECT_TRUE(tiling.SetWeightShape(p.cout, p.cin, p.kernel[0], p.kernel[1], p.kernel[2]));
  tiling.SetDilation(p.dilation[0], p.dilation[1], p.dilation[2]);
  tiling.SetWeightType(TPosition::GM, ConvFormat::FRACTAL_Z_3D, type);
  tiling.SetGradOutputType(TPosition::GM, ConvFormat::NDC1HWC0, type);
  tiling.SetInputType(TPosition::CO1, ConvFormat::NDC1HWC0, type);
}

template <class T>
constexpr ConvCommonApi::ConvDtype conv_dtype() {
  using ConvCommonApi::ConvDtype;
  return std::is_same_v<T, half> ? ConvDtype::FLOAT16 : std::is_same_v<T, float> ? ConvDtype::FLOAT32 : ConvDtype::BF16;
}

/// Operands with small integers, packed as the kernel reads them, and the gradient by Plan, exactly.
template <class T>
struct InputData {
  static constexpr std::int64_t kC0 = 32 / sizeof(T);
  std::vector<T> grad_output, weight;  // NDC1HWC0, FRACTAL_Z_3D
  std::vector<float> gradient;         // NCDHW

  explicit InputData(const InputProblem& p) {
    Random random(1);
    const auto draw = [&random](const Shape& shape) {
      std::vector<float> values(static_cast<std::size_t>(elements(shape)));
      for (float& v : values) v = static_cast<float>(random.integer(-3, 3));
      return values;
    };
    std::vector<float> dy = draw(p.y_shape()), w = draw(p.w_shape());
    grad_output = packed(dy, p.y_shape(), MemoryFormat::ndc1hwc0);
    weight = packed(w, p.w_shape(), MemoryFormat::fractal_z_3d);
    gradient.resize(static_cast<std::size_t>(elements(p.x_shape())));
    Request r;
    r.grad_output = Tensor{dy.data(), DType::float32, p.y_shape(), {}};
    r.input = {nullptr, DType::float32, p.x_shape(), {}};
    r.weight = {w.data(), DType::float32, p.w_shape(), {}};
    r.stride.assign(p.stride.begin(), p.stride.end());
    r.dilation.assign(p.dilation.begin(), p.dilation.end());
    r.padding.assign(p.pads.begin(), p.pads.end());
    r.output_mask = {true, false, false};
    r.algorithm = Algorithm::reference;
    Plan::make(r).backward({dy.data(), nullptr, w.data()}, {gradient.data(), nullptr, nullptr});
  }

  static std::vector<T> packed(const std::vector<float>& values, const Shape& shape, MemoryFormat format) {
    const std::vector<T> plain(values.begin(), values.end());
    std::vector<T> result(static_cast<std::size_t>(elements(packed_shape(format, shape, 1, kC0))));
    convert_format(result.data(), format, plain.data(), MemoryFormat::ncdhw, shape, sizeof(T), 1, kC0);
    return result;
  }
};

}  // namespace convbwd::test
