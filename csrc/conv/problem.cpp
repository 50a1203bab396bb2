// Layer conv: the rules of a call, which raise every error of a request; a valid one builds no text.
#include "conv/problem.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <ostream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "format/layouts.h"

namespace convbwd {

std::ostream& operator<<(std::ostream& out, const Tuple& tuple) {
  out << '(';
  for (std::size_t i = 0; i < tuple.values.size(); ++i) out << (i ? ", " : "") << tuple.values[i];
  return out << (tuple.values.size() == 1 ? ",)" : ")");
}

namespace {

// The name of a problem: the tag of each field, then its numbers with 'x' between them.
template <typename P, typename F>
void for_each_field(P& p, const F& visit) {
  visit("n", &p.n, 1);
  visit("g", &p.groups, 1);
  visit("ci", &p.ci, 1);
  visit("x", p.x.data(), 3);
  visit("co", &p.co, 1);
  visit("y", p.y.data(), 3);
  visit("k", p.w.data(), 3);
  visit("s", p.stride.data(), 3);
  visit("d", p.dilation.data(), 3);
  visit("p", p.pad_before.data(), 3);
}

// A parameter as Python writes it: a single entry, which stands for all dimensions, as an int.
struct PerDimension {
  const Shape& values;
};
std::ostream& operator<<(std::ostream& out, const PerDimension& p) {
  return p.values.size() == 1 ? out << p.values[0] : out << Tuple{p.values};
}

template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail_with(ErrorKind kind, const Request& r, const Parts&... parts) {
  std::ostringstream text;
  text << r.function << ": ";
  (text << ... << parts);
  throw Error(kind, text.str());
}
template <typename... Parts>
[[noreturn]] void fail(const Request& r, const Parts&... parts) {
  fail_with(ErrorKind::value, r, parts...);
}
template <typename... Parts>
[[noreturn]] void fail_type(const Request& r, const Parts&... parts) {
  fail_with(ErrorKind::type, r, parts...);
}

// The shape of an image with its axes in the user's order.
Shape image(const Request& r, Shape shape) {
  const auto channels = shape.begin() + (shape.size() < r.weight.shape.size() ? 0 : 1);
  if (r.channels_last && channels < shape.end()) std::rotate(channels, channels + 1, shape.end());
  return shape;
}

// "input.shape=...", and where its axes are not those of the library, their order.
std::string input_shape(const Request& r) {
  static constexpr const char* kChannelsLast[] = {"NLC", "NHWC", "NDHWC"};
  std::ostringstream text;
  text << "input.shape=" << Tuple{image(r, r.input.shape)};
  if (r.channels_last) text << ", data_format='" << kChannelsLast[r.weight.shape.size() - 3] << '\'';
  return text.str();
}

// "input.shape=..., weight.shape=..., stride=...": the context of every message about a derived size.
std::string geometry(const Request& r) {
  std::ostringstream text;
  text << input_shape(r) << ", weight.shape=" << Tuple{r.weight.shape} << ", stride=" << PerDimension{r.stride}
       << ", padding=";
  if (r.padding_mode == PaddingMode::explicit_)
    text << PerDimension{r.padding};
  else
    text << (r.padding_mode == PaddingMode::same ? "'same'" : "'valid'");
  text << ", dilation=" << PerDimension{r.dilation};
  if (r.transposed) text << ", transposed=True, output_padding=" << PerDimension{r.output_padding};
  text << ", groups=" << r.groups;
  return text.str();
}

// An integer that remembers that it, or one it was made of, did not fit in 64 bits.
struct Sum {
  Index value;
  bool overflow = false;
  Sum(Index v) : value(v) {}  // NOLINT(google-explicit-constructor): plain sizes take part in the arithmetic
};
Sum operator+(Sum a, Sum b) {
  a.overflow |= b.overflow || __builtin_add_overflow(a.value, b.value, &a.value);
  return a;
}
Sum operator-(Sum a, Sum b) {
  a.overflow |= b.overflow || __builtin_sub_overflow(a.value, b.value, &a.value);
  return a;
}
Sum operator*(Sum a, Sum b) {
  a.overflow |= b.overflow || __builtin_mul_overflow(a.value, b.value, &a.value);
  return a;
}

// The bytes of a tensor must fit in 64 bits; so must, where it is empty, the product of its other axes.
void check_bytes(const Request& r, const char* name, const Shape& shape, DType dtype) {
  Sum bytes = static_cast<Index>(size_of(dtype));
  for (const Index size : shape) bytes = bytes * std::max<Index>(size, 1);
  if (bytes.overflow)
    fail(r, name, " must take less than 2**63 bytes, got more of ", name_of(dtype), " (", geometry(r), ")");
}

// So must the distance of its first element and its last.
void check_reach(const Request& r, const char* name, const Shape& shape, const Shape& strides, DType dtype) {
  Sum bytes = 0;
  for (std::size_t a = 0; a < strides.size(); ++a) {
    const Sum backwards = Sum(0) - strides[a];
    bytes.overflow |= backwards.overflow;
    bytes = bytes + Sum(std::max(strides[a], backwards.value)) * std::max<Index>(shape[a] - 1, 0);
  }
  if ((bytes * static_cast<Index>(size_of(dtype))).overflow)
    fail(r, name, ".strides must reach less than 2**63 bytes, got ", Tuple{strides}, " (", name,
         ".shape=", Tuple{shape}, ")");
}

// What a C++ caller can get wrong in a tensor and a NumPy array cannot.
void check_tensor(const Request& r, const char* name, const Tensor& tensor) {
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size())
    fail(r, name, ".strides must be empty or have one entry for each axis, got ", Tuple{tensor.strides}, " (", name,
         ".shape=", Tuple{tensor.shape}, ")");
  for (const Index size : tensor.shape)
    if (size < 0) fail(r, name, ".shape must not be negative, got ", Tuple{tensor.shape});
  check_bytes(r, name, tensor.shape, tensor.dtype);
  check_reach(r, name, tensor.shape, tensor.strides, tensor.dtype);
}

// Whether no two elements lie at the same place, by a rule that holds for every permuted, sliced or reversed array.
bool apart(const Shape& shape, const Shape& strides) {
  std::vector<std::pair<Index, Index>> axes;  // |stride|, size
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] == 0) return true;
    if (shape[a] > 1) axes.emplace_back(std::abs(strides[a]), shape[a]);
  }
  std::sort(axes.begin(), axes.end());
  Sum reach = 0;  // of the axes so far
  for (const auto& [stride, size] : axes) {
    if (reach.overflow || stride <= reach.value) return false;
    reach = reach + Sum(stride) * (size - 1);
  }
  return true;
}

// Where a result shall be written.
void check_strides(const Request& r, const char* name, bool is_image, const Result& result, const Shape& strides) {
  const Shape& shape = result.shape;
  if (strides.empty()) return;
  if (strides.size() != shape.size())
    fail(r, name, " must have one stride for each axis, got ", Tuple{strides}, " (", name, ".shape=", Tuple{shape},
         ")");
  check_reach(r, name, shape, strides, result.dtype);
  if (apart(shape, strides)) return;
  const auto as_given = [&](const Shape& axes) { return is_image ? image(r, axes) : axes; };
  fail(r, name, " must have elements that do not overlap each other, got strides of ", Tuple{as_given(strides)},
       " elements (", name, ".shape=", Tuple{as_given(shape)}, ")");
}

// What a C++ caller can get wrong in an enumeration and no other caller can.
template <typename E>
void check_choice(const Request& r, const char* name, E value, E last) {
  if (value > last)
    fail(r, name, " must be one of its enumerators, up to ", static_cast<int>(last), ", got ", static_cast<int>(value));
}

// A format must be one for such tensors and sizes. An image has no groups.
void check_packing(const Request& r, const char* name, const Shape& shape, DType dtype,
                   const std::optional<Packing>& packing, const Shape& strides, std::optional<Index> groups = {}) {
  if (!packing) return;
  const MemoryFormat format = packing->format;
  check_choice(r, (std::string(name) + ".packing.format").c_str(), format, MemoryFormat::fractal_z_3d);
  if (!groups && (format == MemoryFormat::fractal_z || format == MemoryFormat::fractal_z_3d))
    fail(r, name, " must have a format of images, got ", name_of(format));
  if (groups && packing->groups != 0 && packing->groups != *groups)
    fail(r, name, " must be packed with groups = ", *groups, ", got ", packing->groups);
  if (!strides.empty()) fail(r, name, ".strides must be empty where it has a format, got ", Tuple{strides});
  Sum bytes = static_cast<Index>(size_of(dtype));
  try {
    bytes = bytes * packed_elements(dtype, *packing, shape, groups.value_or(1));
  } catch (const Error& error) {
    fail(r, name, " must fit its format, got ", name_of(format), ": ", error.what());
  }
  if (bytes.overflow)
    fail(r, name, " must take less than 2**63 bytes, got more in ", name_of(format), " (", geometry(r), ")");
}

// One value for each canonical dimension; `least` is also what the leading dimensions get that the user does not have.
Index3 per_dimension(const Request& r, const char* name, const Shape& values, std::size_t dims, Index least) {
  static constexpr const char* kLengths[] = {"1", "1 or 2", "1 or 3"};
  if (values.size() != 1 && values.size() != dims)
    fail(r, name, " must be an int or have length ", kLengths[dims - 1], ", got length ", values.size(), " (", name,
         "=", Tuple{values}, ")");
  Index3 result{least, least, least};
  for (std::size_t i = 0; i < dims; ++i) {
    const Index value = values[values.size() == 1 ? 0 : i];
    if (value < least)
      fail(r, name, " must be at least ", least, ", got ", value, " (", name, "=", PerDimension{values}, ")");
    result[3 - dims + i] = value;
  }
  return result;
}

// Members of a request that say nothing of such a call would be lost without a word.
void check_members(const Request& r) {
  check_choice(r, "algorithm", r.algorithm, Algorithm::winograd);
  check_choice(r, "precision", r.precision, Precision::fast);
  check_choice(r, "padding_mode", r.padding_mode, PaddingMode::same);
  check_choice(r, "soc", r.soc, Soc::ascend910);
  if (r.grad_output) check_choice(r, "grad_output.dtype", r.grad_output->dtype, DType::bfloat16_as_float16);
  check_choice(r, "input.dtype", r.input.dtype, DType::bfloat16_as_float16);
  check_choice(r, "weight.dtype", r.weight.dtype, DType::bfloat16_as_float16);
  if (r.bias) check_choice(r, "bias.dtype", r.bias->dtype, DType::bfloat16_as_float16);
  if (r.grad_output ? r.bias.has_value() : r.bias_sizes.has_value())
    fail(r, r.grad_output ? "bias must be absent where grad_output is given"
                          : "bias_sizes must be absent where grad_output is");
  if (!r.grad_output && (r.accumulate || r.per_sample))
    fail(r, r.accumulate ? "accumulate" : "per_sample", " must be false where grad_output is absent, got true");
}

// fp16 and bf16 meet in float32; else the wider of the two.
DType promote(DType a, DType b) { return a == b ? a : std::min({a, b, DType::float32}); }

bool has_eight_bits(DType t) { return size_of(t) == 1; }

// How an operand is read where all operands together promote to `all`: the table of CubeMathType.
DType read_as(DType t, DType all, CubeMathType mode, Soc soc) {
  if (mode == CubeMathType::keep_dtype || (all != DType::float32 && all != DType::bfloat16)) return t;
  const bool half =
      mode == CubeMathType::use_fp16 || (mode == CubeMathType::allow_fp32_down_precision && soc == Soc::ascend910);
  if (half)
    return t == DType::float32 ? DType::float32_as_float16 : t == DType::bfloat16 ? DType::bfloat16_as_float16 : t;
  return t != DType::float32 ? t : soc == Soc::ascend950 ? DType::hf32_10 : DType::hf32;
}

// The dtypes of operands and results, and the modes that they allow.
void check_dtypes(const Request& r, Checked& result) {
  struct Named {
    const char* name;
    DType dtype;
  };
  const bool backward = r.grad_output.has_value();
  const DType weight = r.weight.dtype, first = backward ? r.grad_output->dtype : weight;
  const std::array<Named, 3> operands{{{"grad_output", first}, {"input", r.input.dtype}, {"weight", weight}}};
  const std::array<Named, 3> given{operands[backward ? 0 : 1], operands[1], operands[2]};
  const int mode = static_cast<int>(r.cube_math_type);
  if (r.cube_math_type < CubeMathType::keep_dtype || r.cube_math_type > CubeMathType::use_hf32)
    fail(r, "cube_math_type must be 0, 1, 2 or 3, got ", static_cast<Index>(r.cube_math_type));
  const auto eight = std::find_if(given.begin(), given.end(), [](const Named& o) { return has_eight_bits(o.dtype); });
  for (const Named& o : given) {
    if (storage_of(o.dtype) != o.dtype)
      fail_type(r, o.name, ".dtype must be a type of tensors, got ", name_of(o.dtype));
    if (eight != given.end() && o.dtype != eight->dtype)
      fail_type(r, o.name, ".dtype must be ", name_of(eight->dtype), " as ", eight->name,
                ".dtype is, because 8-bit types do not mix with others, got ", name_of(o.dtype));
    if (r.soc == Soc::ascend910 && o.dtype != DType::float32 && o.dtype != DType::float16)
      fail_type(r, o.name, ".dtype must be float32 or float16 where soc is '910', got ", name_of(o.dtype));
    if (mode != 0 && o.dtype == DType::float64)
      fail_type(r, o.name, ".dtype must not be float64 where cube_math_type is not KEEP_DTYPE = 0, got float64 (",
                "cube_math_type=", mode, ")");
  }
  const DType all = promote(promote(first, r.input.dtype), weight);
  if (r.soc == Soc::ascend910 && all == DType::float32 &&
      (r.cube_math_type == CubeMathType::keep_dtype || r.cube_math_type == CubeMathType::use_hf32))
    fail(r, "cube_math_type must be 1 or 2 for float32 where soc is '910', got ", mode);
  for (std::size_t i = 0; i < 3; ++i) result.operands[i] = read_as(operands[i].dtype, all, r.cube_math_type, r.soc);

  const bool narrow = eight != given.end();
  std::array<Named, 3> results{{{"grad_input", promote(r.input.dtype, first)},
                                {"grad_weight", narrow ? DType::float32 : promote(weight, first)},
                                {"grad_bias", narrow ? DType::float32 : first}}};
  if (!backward) results[0] = {"output", promote(r.input.dtype, weight)};
  for (std::size_t i = 0; i < (backward ? 3 : 1); ++i) {
    const DType t = r.result_dtypes[i].value_or(results[i].dtype);
    const char* const name = results[i].name;
    check_choice(r, (std::string(name) + ".dtype").c_str(), t, DType::bfloat16_as_float16);
    if (storage_of(t) != t) fail_type(r, name, ".dtype must be a type of tensors, got ", name_of(t));
    if (i == 2 ? has_eight_bits(t) : has_eight_bits(t) && t != first)
      fail_type(r, name, ".dtype must ",
                i == 2 ? "have at least 16 bits" : "not have 8 bits unless all operands have it", ", got ", name_of(t));
    if (narrow && i == 0 && t != first)
      fail_type(r, name, ".dtype must be ", name_of(first), " as that of the operands, got ", name_of(t));
    if (narrow && i == 1 && t != first && t != DType::float32)
      fail_type(r, name, ".dtype must be float32 or ", name_of(first), ", got ", name_of(t));
    if (t == DType::float64 && (narrow || mode != 0))
      fail_type(r, name, ".dtype must not be float64 where ",
                narrow ? "operands have 8 bits" : "cube_math_type is not 0", ", got float64");
    result.results[i].dtype = t;
  }
  if (r.bias && (has_eight_bits(r.bias->dtype) || storage_of(r.bias->dtype) != r.bias->dtype))
    fail_type(r, "bias.dtype must have at least 16 bits, got ", name_of(r.bias->dtype));
}

}  // namespace

std::string to_string(const Problem& problem) {
  std::string text;
  for_each_field(problem, [&](const char* tag, const Index* values, int count) {
    for (int i = 0; i < count; ++i) text += (i == 0 ? tag : "x") + std::to_string(values[i]);
  });
  return text;
}

Problem parse_problem(const std::string& text) {
  Problem problem;
  std::string_view rest = text;
  bool valid = true;
  for_each_field(problem, [&](std::string_view tag, Index* values, int count) {
    for (int i = 0; i < count && valid; ++i, tag = "x") {
      valid = rest.starts_with(tag);
      if (!valid) return;
      rest.remove_prefix(tag.size());
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), values[i]);
      valid = error == std::errc{} && values[i] >= 0;
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    }
  });
  if (!valid || to_string(problem) != text)
    throw Error(ErrorKind::value, "parse_problem: text must be like " + to_string(Problem{}) + ", got " + text);
  return problem;
}

Checked check(const Request& r) {
  Checked result;
  check_members(r);
  check_dtypes(r, result);
  const Shape& input = r.input.shape;
  const Shape& weight = r.weight.shape;
  const std::size_t rank = weight.size();
  if (rank < 3 || rank > 5)
    fail(r, "weight must have rank 3, 4 or 5, got rank ", rank, " (weight.shape=", Tuple{weight}, ")");
  if (input.size() != rank && input.size() != rank - 1)
    fail(r, "input must have rank ", rank, " as weight has, or ", rank - 1, " without the batch axis, got rank ",
         input.size(), " (", input_shape(r), ", weight.shape=", Tuple{weight}, ")");
  check_tensor(r, "input", r.input);
  check_tensor(r, "weight", r.weight);

  const std::size_t dims = rank - 2;
  const bool unbatched = input.size() < rank;
  const Index in_channels = input[unbatched ? 0 : 1];

  if (r.groups < 1) fail(r, "groups must be at least 1, got ", r.groups);
  if (in_channels % r.groups != 0)
    fail(r, "input channels must be divisible by groups = ", r.groups, ", got ", in_channels, " (", input_shape(r),
         ")");
  const std::size_t in_axis = r.transposed ? 0 : 1, out_axis = 1 - in_axis;
  if (const Index expected = r.transposed ? in_channels : in_channels / r.groups; weight[in_axis] != expected)
    fail(r, "weight.shape[", in_axis, "] must be input channels", r.transposed ? "" : " / groups", " = ", expected,
         ", got ", weight[in_axis], " (", input_shape(r), r.transposed ? ", transposed=True" : "",
         ", groups=", r.groups, ")");
  if (weight[out_axis] < 1)
    fail(r, "weight.shape[", out_axis, "] must be at least 1, got 0 (weight.shape=", Tuple{weight}, ")");
  if (!r.transposed && weight[0] % r.groups != 0)
    fail(r, "weight.shape[0] must be divisible by groups = ", r.groups, ", got ", weight[0],
         " (weight.shape=", Tuple{weight}, ")");
  const Sum out_channels = r.transposed ? Sum(weight[1]) * r.groups : weight[0];
  if (out_channels.overflow)
    fail(r, "output channels must fit in 64 bits, got ", weight[1], " * ", r.groups, " (", geometry(r), ")");

  result.transposed = r.transposed;
  result.unbatched = unbatched;
  Problem& p = result.problem;
  p.n = unbatched ? 1 : input[0];
  p.groups = r.groups;
  p.ci = (r.transposed ? out_channels.value : in_channels) / r.groups;
  p.co = (r.transposed ? in_channels : out_channels.value) / r.groups;
  p.stride = per_dimension(r, "stride", r.stride, dims, 1);
  p.dilation = per_dimension(r, "dilation", r.dilation, dims, 1);
  const Index3 output_padding = per_dimension(r, "output_padding", r.output_padding, dims, 0);

  const Shape& padding = r.padding;
  const bool pairs = padding.size() == 2 * dims;
  if (r.padding_mode == PaddingMode::same && r.transposed)
    fail(r, "padding must be explicit or 'valid' where transposed is True, got 'same'");
  if (r.padding_mode == PaddingMode::explicit_) {
    static constexpr const char* kLengths[] = {"1 or 2", "1, 2 or 4", "1, 3 or 6"};
    if (padding.size() != 1 && padding.size() != dims && !pairs)
      fail(r, "padding must be an int or have length ", kLengths[dims - 1], ", got length ", padding.size(),
           " (padding=", Tuple{padding}, ")");
    for (const Index value : padding)
      if (value < 0) fail(r, "padding must be at least 0, got ", value, " (padding=", PerDimension{padding}, ")");
  }

  result.output_shape = input;
  result.output_shape[unbatched ? 0 : 1] = out_channels.value;
  for (std::size_t i = 0, c = 3 - dims; i < dims; ++i, ++c) {
    const std::size_t axis = i + (unbatched ? 1 : 2);
    const Index size = input[axis], kernel = weight[i + 2], stride = p.stride[c], extra = output_padding[c];
    if (kernel < 1) fail(r, "kernel sizes must be at least 1, got 0 (weight.shape=", Tuple{weight}, ")");
    if (size < 1) fail(r, "spatial sizes of input must be at least 1, got 0 (", input_shape(r), ")");
    if (!r.transposed && extra != 0)
      fail(r, "output_padding must be 0 unless transposed, got ", extra,
           " (output_padding=", PerDimension{r.output_padding}, ")");
    if (r.transposed && extra >= std::max(stride, p.dilation[c]))
      fail(r, "output_padding must be less than max(stride, dilation) = ", std::max(stride, p.dilation[c]), ", got ",
           extra, " (output_padding=", PerDimension{r.output_padding}, ", stride=", PerDimension{r.stride},
           ", dilation=", PerDimension{r.dilation}, ")");

    const Sum reach = Sum(p.dilation[c]) * (kernel - 1) + 1;  // of the dilated kernel
    Index before = 0, after = 0;
    if (r.padding_mode == PaddingMode::explicit_) {
      before = padding[padding.size() == 1 ? 0 : pairs ? 2 * i : i];
      after = pairs ? padding[2 * i + 1] : before;
    } else if (r.padding_mode == PaddingMode::same) {
      const Index last = (size - 1) / stride * stride;  // where the last of ceil(size / stride) windows begins
      const Index total = std::max<Index>((reach + last - size).value, 0);
      before = total / 2;
      after = total - before;
    }
    const Sum image_size = r.transposed ? Sum(size - 1) * stride + reach + extra : Sum(size) + before + after;
    if (image_size.overflow || reach.overflow)
      fail(r, "padded sizes must fit in 64 bits, got an overflow (", geometry(r), ")");

    Index out = 0;
    if (r.transposed) {
      const Sum cropped = image_size - before - after;  // overflows only downwards
      out = cropped.overflow ? std::numeric_limits<Index>::min() : cropped.value;
      if (out < 1)
        fail(r, "output sizes must be at least 1, got ", out, " along spatial axis ", i, " (", geometry(r), ")");
    } else {
      if (reach.value > image_size.value)
        fail(r, "the dilated kernel must fit the padded input = ", image_size.value, ", got ", reach.value,
             " along spatial axis ", i, " (", geometry(r), ")");
      out = (image_size.value - reach.value) / stride + 1;
    }
    result.output_shape[axis] = out;
    p.x[c] = r.transposed ? out : size;
    p.y[c] = r.transposed ? size : out;
    p.w[c] = kernel;
    p.pad_before[c] = before;
    // What moves nothing becomes no longer than the image, so that its products with strides of memory fit.
    if (out == 1 || (r.transposed && size == 1))
      p.stride[c] = std::min(p.stride[c], std::max(image_size.value, reach.value));
    if (kernel == 1) p.dilation[c] = std::min(p.dilation[c], image_size.value);
  }

  check_packing(r, "input", input, r.input.dtype, r.input.packing, r.input.strides);
  check_packing(r, "weight", weight, r.weight.dtype, r.weight.packing, r.weight.strides, r.groups);

  const Shape per_channel{out_channels.value};
  if (!r.grad_output) {
    if (r.bias && r.bias->shape != per_channel)
      fail(r, "bias.shape must be (C_out,) = ", Tuple{per_channel}, ", got ", Tuple{r.bias->shape}, " (", geometry(r),
           ")");
    if (r.bias) check_tensor(r, "bias", *r.bias);
    if (r.bias && r.bias->packing) fail(r, "bias must have no format, got ", name_of(r.bias->packing->format));
    result.results[0].shape = result.output_shape;
    check_bytes(r, "output", result.output_shape, result.results[0].dtype);
    check_strides(r, "output", true, result.results[0], r.result_strides[0]);
    check_packing(r, "output", result.output_shape, result.results[0].dtype, r.result_packings[0], r.result_strides[0]);
    return result;
  }

  const Tensor& grad_output = *r.grad_output;
  if (grad_output.shape != result.output_shape) {
    Shape no_channels = result.output_shape;  // what PyTorch's forward makes of an input without channels
    if (in_channels == 0) no_channels[unbatched ? 0 : 1] = 0;
    if (grad_output.shape != no_channels)
      fail(r, "grad_output.shape must be the output shape = ", Tuple{image(r, result.output_shape)}, ", got ",
           Tuple{image(r, grad_output.shape)}, " (", geometry(r), ")");
  }
  check_tensor(r, "grad_output", grad_output);
  check_packing(r, "grad_output", grad_output.shape, grad_output.dtype, grad_output.packing, grad_output.strides);
  if (r.output_mask[2] && r.bias_sizes && *r.bias_sizes != per_channel)
    fail(r, "bias_sizes must be None or (C_out,) = ", Tuple{per_channel}, ", got ", Tuple{*r.bias_sizes}, " (",
         geometry(r), ")");
  if (r.per_sample && unbatched)
    fail(r, "per_sample needs images with a batch axis, got one without (", geometry(r), ")");
  Shape per_weight = weight, per_bias = per_channel;
  if (r.per_sample)
    for (Shape* shape : {&per_weight, &per_bias}) shape->insert(shape->begin(), p.n);
  result.results[0].shape = input;
  result.results[1].shape = per_weight;
  result.results[2].shape = per_bias;
  for (std::size_t i = 0; i < 3; ++i) {
    check_bytes(r, kGradients[i], result.results[i].shape, result.results[i].dtype);
    if (!r.output_mask[i]) continue;
    const Result& to = result.results[i];
    check_strides(r, r.result_names[i], i == 0, to, r.result_strides[i]);
    if (r.result_packings[i] && (i == 2 || (i == 1 && r.per_sample)))
      fail(r, r.result_names[i], " must have no format", i == 1 ? " where per_sample is True" : "", ", got ",
           name_of(r.result_packings[i]->format));
    check_packing(r, r.result_names[i], to.shape, to.dtype, r.result_packings[i], r.result_strides[i],
                  i == 1 ? std::optional(r.groups) : std::nullopt);
  }
  return result;
}

}  // namespace convbwd
