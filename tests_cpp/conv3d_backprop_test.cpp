// Ascend's graph operators in C++: what Python's arrays cannot get wrong. Values and limits are tested in ../tests_py.
#include "convbwd/conv3d_backprop.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace convbwd::test {
namespace {

// y = x * w for x of 1x2x3x2 positions and 2 channels, a kernel of 1x2x1 and 1 channel: NDHWC and DHWCN.
struct Call {
  Conv3DBackprop op;
  std::vector<float> x = std::vector<float>(12, 1), w{1, 10, 2, 20}, y = std::vector<float>(4, 1),
                     dx = std::vector<float>(12, -1), dw = std::vector<float>(4, -1);
  Tensor input{x.data(), DType::float32, {1, 1, 3, 2, 2}, {}}, filter{w.data(), DType::float32, {1, 2, 1, 2, 1}, {}},
      out_backprop{y.data(), DType::float32, {1, 1, 2, 2, 1}, {}};

  Call() {
    op.strides = {1, 1, 1, 1, 1};
    op.pads = {0, 0, 0, 0, 0, 0};
    op.filter_format = MemoryFormat::dhwcn;
  }
};

template <class F>
void refused(F&& call, ErrorKind kind, const std::string& text) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(std::string(error.what()), text);
    return;
  }
  ADD_FAILURE() << "not refused: " << text;
}

TEST(Conv3DBackprop, WritesTheGradientInItsFormat) {
  Call c;
  conv3d_backprop_input(c.op, c.input.shape, c.filter, c.out_backprop,
                        {c.dx.data(), DType::float32, c.input.shape, {}});
  EXPECT_EQ(c.dx, (std::vector<float>{1, 10, 1, 10, 3, 30, 3, 30, 2, 20, 2, 20}));
  conv3d_backprop_filter(c.op, c.input, c.filter.shape, c.out_backprop,
                         {c.dw.data(), DType::float32, c.filter.shape, {}});
  EXPECT_EQ(c.dw, (std::vector<float>{4, 4, 4, 4}));
}

TEST(Conv3DBackprop, WritesToAnyStridesAndType) {
  Call c;
  std::vector<double> dx(24, -1);
  conv3d_backprop_input(c.op, c.input.shape, c.filter, c.out_backprop,
                        {dx.data(), DType::float64, c.input.shape, {24, 24, 8, 4, 2}});
  EXPECT_EQ(dx[2], 10);
  EXPECT_EQ(dx[8], 3);
  EXPECT_EQ(dx[1], -1);
}

TEST(Conv3DBackprop, RefusesTensorsThatDoNotFit) {
  Call c;
  c.op.function = "op";
  const auto run = [&](const Shape& shape, const Shape& strides) {
    conv3d_backprop_input(c.op, c.input.shape, c.filter, c.out_backprop, {c.dx.data(), DType::float32, shape, strides});
  };
  refused([&] { run({1, 1, 2, 3, 2}, {}); }, ErrorKind::value,
          "op: y.shape must be (1, 1, 3, 2, 2), got (1, 1, 2, 3, 2)");
  refused([&] { run(c.input.shape, {1, 2}); }, ErrorKind::value,
          "op: y.strides must be empty or have 5 entries, got (1, 2)");
  c.filter.strides = {1};
  refused([&] { run(c.input.shape, {}); }, ErrorKind::value,
          "op: filter.strides must be empty or have 5 entries, got (1,)");
  c.filter.strides = {};
  c.filter.packing = Packing{MemoryFormat::fractal_z_3d};
  refused([&] { run(c.input.shape, {}); }, ErrorKind::value, "op: filter must have no packing, got FRACTAL_Z_3D");
  c.filter.packing.reset();
  c.out_backprop.shape.pop_back();
  refused([&] { run(c.input.shape, {}); }, ErrorKind::value, "op: out_backprop.shape must have 5 entries, got 4");
  c.op.data_format = MemoryFormat::ndc1hwc0;
  refused([&] { run(c.input.shape, {}); }, ErrorKind::value, "op: data_format must be NDHWC or NCDHW, got NDC1HWC0");
  c.op.data_format = MemoryFormat::ndhwc;
  c.op.filter_format = MemoryFormat::fractal_z_3d;
  refused([&] { run(c.input.shape, {}); }, ErrorKind::value,
          "op: filter_format must be NCDHW, NDHWC or DHWCN, got FRACTAL_Z_3D");
  c.op.filter_format = MemoryFormat::dhwcn;
  c.op.padding = PaddingMode::explicit_;
  refused([&] { run(c.input.shape, {}); }, ErrorKind::value,
          "op: padding must be valid or same where it is set, got number 0");
  EXPECT_EQ(c.dx, std::vector<float>(12, -1));
}

TEST(Conv3DBackprop, RefusesNullMemory) {
  for (const int null : {0, 1, 2}) {
    Call c;
    c.op.function = "op";
    Tensor y{c.dx.data(), DType::float32, c.input.shape, {}};
    const std::pair<const char*, Tensor*> named[] = {
        {"filter", &c.filter}, {"out_backprop", &c.out_backprop}, {"y", &y}};
    const auto& [name, tensor] = named[null];
    tensor->data = nullptr;
    refused([&] { conv3d_backprop_input(c.op, c.input.shape, c.filter, c.out_backprop, y); }, ErrorKind::value,
            std::string("op: ") + name + " must have memory, got null");
  }
}

}  // namespace
}  // namespace convbwd::test
