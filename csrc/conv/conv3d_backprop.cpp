// Layer conv: Ascend's graph operators as requests. Their limits are checked here, under their names.
#include "convbwd/conv3d_backprop.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>

#include "conv/problem.h"

namespace convbwd {
namespace {

constexpr std::string_view kAxes = "NCDHW";
constexpr std::int64_t kMostSize = 0x7fffffff, kMostKernel = 511, kMostPad = 255, kMostDilation = 255, kMostStride = 63,
                       kMostDepthStride = 255, kMostGroups = 65535;

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const char* function, const Parts&... parts) {
  std::ostringstream text;
  text << function << ": ";
  (text << ... << parts);
  throw Error(kind, text.str());
}

// Entries in the order of a format, brought to N, C, D, H, W; and back.
Shape from_format(const Shape& shape, MemoryFormat format) {
  Shape result;
  for (const char axis : kAxes) result.push_back(shape[std::string_view(name_of(format)).find(axis)]);
  return result;
}
Shape to_format(const Shape& shape, MemoryFormat format) {
  Shape result;
  for (const char axis : std::string_view(name_of(format))) result.push_back(shape[kAxes.find(axis)]);
  return result;
}
Tensor from_format(const Tensor& t, MemoryFormat format) {
  Shape strides = t.strides;
  if (strides.empty()) {
    strides.resize(5);
    for (std::size_t a = 5, dense = 1; a-- > 0; dense *= static_cast<std::size_t>(t.shape[a]))
      strides[a] = static_cast<std::int64_t>(dense);
  }
  return {t.data, t.dtype, from_format(t.shape, format), from_format(strides, format)};
}

struct Named {
  const char* name;
  const Tensor& tensor;
};

void check_memory(const char* function, Named t) {
  if (t.tensor.data == nullptr && !empty(t.tensor.shape))
    fail(ErrorKind::value, function, t.name, " must have memory, got null");
}

void check_place(const char* function, Named t) {
  if (t.tensor.packing)
    fail(ErrorKind::value, function, t.name, " must have no packing, got ", name_of(t.tensor.packing->format));
  if (!t.tensor.strides.empty() && t.tensor.strides.size() != 5)
    fail(ErrorKind::value, function, t.name, ".strides must be empty or have 5 entries, got ", Tuple{t.tensor.strides});
}

// What both operators demand.
class Checker {
 public:
  explicit Checker(const Conv3DBackprop& op)
      : function_(op.function), op_(op), filter_format_(op.filter_format.value_or(op.data_format)) {
    if (op.data_format != MemoryFormat::ndhwc && op.data_format != MemoryFormat::ncdhw)
      value("data_format must be NDHWC or NCDHW, got ", name_of(op.data_format));
    if (filter_format_ != MemoryFormat::ncdhw && filter_format_ != MemoryFormat::ndhwc &&
        filter_format_ != MemoryFormat::dhwcn)
      value("filter_format must be NCDHW, NDHWC or DHWCN, got ", name_of(filter_format_));
    if (op.padding && *op.padding != PaddingMode::valid && *op.padding != PaddingMode::same)
      value("padding must be valid or same where it is set, got number ", static_cast<int>(*op.padding));
  }

  Request request(const char* x_name, const Shape& x_size, const char* w_name, const Shape& w_size, Named operand,
                  const Tensor& out_backprop) const {
    check_dtypes(operand, out_backprop);
    const Shape x = sizes(x_name, x_size, op_.data_format), w = sizes(w_name, w_size, filter_format_),
                y = sizes("out_backprop.shape", out_backprop.shape, op_.data_format);
    check_place(function_, operand);
    check_place(function_, {"out_backprop", out_backprop});
    Request r;
    r.function = function_;
    r.grad_output = from_format(out_backprop, op_.data_format);
    r.input = {nullptr, out_backprop.dtype, x, {}};
    r.weight = {nullptr, out_backprop.dtype, w, {}};
    const Shape strides = attribute("strides", op_.strides), dilations = attribute("dilations", op_.dilations);
    for (std::size_t a = 2; a < 5; ++a) {
      in_range("strides", kAxes[a], strides[a], a == 2 ? kMostDepthStride : kMostStride);
      in_range("dilations", kAxes[a], dilations[a], kMostDilation);
      in_range(w_name, kAxes[a], w[a], a == 2 ? kMostSize : kMostKernel);
    }
    r.stride.assign(strides.begin() + 2, strides.end());
    r.dilation.assign(dilations.begin() + 2, dilations.end());
    r.groups = groups(x[1], w, x_name, w_name);
    Shape expected{x[0], w[0], 0, 0, 0};
    r.padding.clear();
    for (std::size_t a = 2; a < 5; ++a) {
      const std::int64_t reach = (w[a] - 1) * dilations[a] + 1;
      const auto [before, after] = padding(a - 2, x[a], reach, strides[a]);
      const std::int64_t room = x[a] + before + after;
      if (x[a] < 1) value(x_name, " of ", kAxes[a], " must be at least 1, got ", x[a]);
      if (reach > room)
        value("the dilated filter must fit the padded input = ", room, " along ", kAxes[a], ", got ", reach);
      expected[a] = (room - reach) / strides[a] + 1;
      r.padding.insert(r.padding.end(), {before, after});
    }
    if (y != expected)
      value("out_backprop.shape must be ", Tuple{to_format(expected, op_.data_format)}, ", got ",
            Tuple{out_backprop.shape}, " (", x_name, "=", Tuple{x_size}, ", ", w_name, "=", Tuple{w_size},
            ", pads=", Tuple{r.padding}, ", strides=", Tuple{op_.strides}, ", dilations=", Tuple{op_.dilations}, ")");
    if (op_.enable_hf32) r.cube_math_type = CubeMathType::use_hf32;
    return r;
  }

  MemoryFormat filter_format() const { return filter_format_; }

 private:
  template <class... Parts>
  [[noreturn]] void value(const Parts&... parts) const {
    fail(ErrorKind::value, function_, parts...);
  }

  void check_dtypes(Named operand, const Tensor& out_backprop) const {
    const DType t = out_backprop.dtype;
    if (operand.tensor.dtype != t)
      fail(ErrorKind::type, function_, operand.name, ".dtype must be that of out_backprop = ", name_of(t), ", got ",
           name_of(operand.tensor.dtype));
    if (t > DType::hifloat8)
      fail(ErrorKind::type, function_, "out_backprop.dtype must be a type of tensors, got ", name_of(t));
    if (size_of(t) == 1 && filter_format_ != MemoryFormat::ncdhw)
      value("filter_format must be NCDHW for ", name_of(t), ", got ", name_of(filter_format_));
    if (op_.enable_hf32 && t == DType::float64)
      fail(ErrorKind::type, function_, "enable_hf32 must be false for float64");
  }

  Shape sizes(const char* name, const Shape& given, MemoryFormat format) const {
    if (given.size() != 5) value(name, " must have 5 entries, got ", given.size());
    for (const auto size : given)
      if (size < 0 || size > kMostSize) value(name, " must be from 0 to ", kMostSize, ", got ", Tuple{given});
    return from_format(given, format);
  }

  Shape attribute(const char* name, const Shape& given) const {
    if (given.size() != 5) value(name, " must have 5 entries, got ", given.size());
    const Shape result = from_format(given, op_.data_format);
    for (std::size_t a = 0; a < 2; ++a)
      if (result[a] != 1)
        value(name, " of ", kAxes[a], " must be 1, got ", result[a], " (", name, "=", Tuple{given}, ")");
    return result;
  }

  void in_range(const char* name, char axis, std::int64_t size, std::int64_t most) const {
    if (size < 1 || size > most) value(name, " of ", axis, " must be from 1 to ", most, ", got ", size);
  }

  std::int64_t groups(std::int64_t channels, const Shape& w, const char* x_name, const char* w_name) const {
    if (op_.groups < 1 || op_.groups > kMostGroups)
      value("groups must be from 1 to ", kMostGroups, ", got ", op_.groups);
    if (w[1] < 1 || channels % w[1] != 0 || channels < 1)
      value(x_name, " of C must be a multiple of ", w_name, " of C = ", w[1], ", got ", channels);
    const std::int64_t derived = channels / w[1];
    if (op_.groups != 1 && op_.groups != derived)
      value("groups must be ", derived, " as the channels say, got ", op_.groups, " (", x_name, " of C ", channels,
            ", ", w_name, " of C ", w[1], ")");
    if (derived > kMostGroups || w[0] % derived != 0 || w[0] < 1)
      value(w_name, " of N must be divisible by groups = ", derived, ", up to ", kMostGroups, ", got ", w[0]);
    return derived;
  }

  std::pair<std::int64_t, std::int64_t> padding(std::size_t a, std::int64_t in, std::int64_t reach,
                                                std::int64_t stride) const {
    if (op_.padding == PaddingMode::same || (!op_.padding && op_.pads == Shape(6, -1))) {
      const std::int64_t total = std::max<std::int64_t>(((in + stride - 1) / stride - 1) * stride + reach - in, 0);
      return {total / 2, total - total / 2};
    }
    if (op_.padding == PaddingMode::valid) return {0, 0};
    if (op_.pads.size() != 6) value("pads must have 6 entries, got ", op_.pads.size());
    for (const auto pad : op_.pads)
      if (pad < 0 || pad > kMostPad) value("pads must be from 0 to ", kMostPad, ", got ", Tuple{op_.pads});
    return {op_.pads[2 * a], op_.pads[2 * a + 1]};
  }

  const char* function_;
  const Conv3DBackprop& op_;
  MemoryFormat filter_format_;
};

// Result i, made of two operands, goes to y.
void run(Request r, std::size_t i, Named operand, const Tensor& out_backprop, const Tensor& y, MemoryFormat format) {
  const char* const function = r.function;
  const Shape expected = to_format(i == 0 ? r.input.shape : r.weight.shape, format);
  if (y.shape != expected)
    fail(ErrorKind::value, function, "y.shape must be ", Tuple{expected}, ", got ", Tuple{y.shape});
  check_place(function, {"y", y});
  for (const Named& t : {operand, {"out_backprop", out_backprop}, {"y", y}}) check_memory(function, t);
  const Tensor result = from_format(y, format);
  r.result_strides[i] = result.strides;
  r.result_dtypes[i] = y.dtype;
  const Plan plan = Plan::make(r);
  std::array<void*, 3> results{};
  results[i] = y.data;
  plan.backward({r.grad_output->data, r.input.data, r.weight.data}, results);
}

}  // namespace

Request conv3d_backprop_input_request(const Conv3DBackprop& op, const Shape& input_size, const Tensor& filter,
                                      const Tensor& out_backprop) {
  const Checker checker(op);
  Shape size = input_size;
  if (size.size() == 4) size.insert(size.begin() + (op.data_format == MemoryFormat::ndhwc ? 1 : 2), 1);
  Request r = checker.request("input_size", size, "filter.shape", filter.shape, {"filter", filter}, out_backprop);
  r.weight = from_format(filter, checker.filter_format());
  r.output_mask = {true, false, false};
  return r;
}

Request conv3d_backprop_filter_request(const Conv3DBackprop& op, const Tensor& input, const Shape& filter_size,
                                       const Tensor& out_backprop) {
  const Checker checker(op);
  Request r = checker.request("input.shape", input.shape, "filter_size", filter_size, {"input", input}, out_backprop);
  r.input = from_format(input, op.data_format);
  r.output_mask = {false, true, false};
  return r;
}

void conv3d_backprop_input(const Conv3DBackprop& op, const Shape& input_size, const Tensor& filter,
                           const Tensor& out_backprop, const Tensor& y) {
  run(conv3d_backprop_input_request(op, input_size, filter, out_backprop), 0, {"filter", filter}, out_backprop, y,
      op.data_format);
}

void conv3d_backprop_filter(const Conv3DBackprop& op, const Tensor& input, const Shape& filter_size,
                            const Tensor& out_backprop, const Tensor& y) {
  run(conv3d_backprop_filter_request(op, input, filter_size, out_backprop), 1, {"input", input}, out_backprop, y,
      op.filter_format.value_or(op.data_format));
}

}  // namespace convbwd
