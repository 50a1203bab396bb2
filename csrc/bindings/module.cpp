// Layer bindings: the extension convbwd._core. Arguments come as any Python objects and leave as a Request; its rules
// are those of conv/problem.cpp, so only the kinds of the arguments are checked here.
#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/layouts.h"
#include "bindings/numpy_view.h"
#include "convbwd/convbwd.hpp"

namespace convbwd {
namespace {

// Where a value stands in a call: "stride", "stride[1]", "padding[1][0]".
struct Place {
  const char* function;
  const char* name;
  py::ssize_t outer = -1, inner = -1;

  [[noreturn]] void fail(ErrorKind kind, std::string_view rule, std::string_view got) const {
    std::string text = std::string(function) + ": " + name;
    for (const py::ssize_t i : {outer, inner})
      if (i >= 0) text += "[" + std::to_string(i) + "]";
    throw Error(kind, text.append(" ").append(rule).append(", got ").append(got));
  }
  [[noreturn]] void fail_type(std::string_view rule, py::handle value) const {
    fail(ErrorKind::type, rule, Py_TYPE(value.ptr())->tp_name);
  }
  [[noreturn]] void fail_value(std::string_view rule, py::handle value) const {
    fail(ErrorKind::value, rule, py::repr(value).cast<std::string>());
  }
  [[noreturn]] void fail_choice(std::string_view rule, py::handle value) const {
    if (!PyUnicode_Check(value.ptr())) fail_type(rule, value);
    fail_value(rule, value);
  }
};

// The int that a value is, or null where it is none. Booleans are none, though Python counts them among the integers.
py::object as_int(py::handle value) {
  if (PyLong_CheckExact(value.ptr())) return py::reinterpret_borrow<py::object>(value);
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) return {};
  auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();
  }
  return number;
}

bool is_sequence(py::handle value) {
  PyObject* const v = value.ptr();
  if (PyTuple_Check(v) || PyList_Check(v)) return true;
  return PySequence_Check(v) && !PyUnicode_Check(v) && !PyBytes_Check(v) && !as_int(value);
}

// A tuple of a sequence's items: what a conversion of one of them runs cannot change it.
py::tuple items_of(py::handle sequence) {
  auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(sequence.ptr()));
  if (!items) throw py::error_already_set();
  return items;
}

std::int64_t to_int(const Place& place, py::handle value, const char* rule = "must be an int") {
  const py::object number = as_int(value);
  if (!number) place.fail_type(rule, value);
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow) place.fail_value("must fit in 64 bits", number);
  return result;
}

Shape to_ints(Place place, py::handle sequence) {
  const py::tuple items = items_of(sequence);
  py::ssize_t& index = place.outer < 0 ? place.outer : place.inner;
  Shape result(items.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    index = static_cast<py::ssize_t>(i);
    result[i] = to_int(place, items[i]);
  }
  return result;
}

Shape to_int_or_ints(const Place& place, py::handle value) {
  if (is_sequence(value)) return to_ints(place, value);
  return {to_int(place, value, "must be an int or a sequence of ints")};
}

bool to_bool(const Place& place, py::handle value) {
  if (value.ptr() == Py_True || value.ptr() == Py_False) return value.ptr() == Py_True;
  if (!is_numpy_bool(value)) place.fail_type("must be a bool", value);
  return PyObject_IsTrue(value.ptr()) == 1;
}

bool is_text(py::handle value, const char* text) {
  return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
}

// A shape with its channel axis moved between the second place (the first in an image without batch axis) and the last.
void to_channels_first(Shape& shape, std::size_t weight_rank) {
  const auto channels = shape.begin() + (shape.size() < weight_rank ? 0 : 1);
  if (channels < shape.end()) std::rotate(channels, shape.end() - 1, shape.end());
}
void to_channels_last(Shape& shape, std::size_t weight_rank) {
  const auto channels = shape.begin() + (shape.size() < weight_rank ? 0 : 1);
  if (channels < shape.end()) std::rotate(channels, channels + 1, shape.end());
}

void read_padding(Request& request, py::handle value) {
  const Place place{request.function, "padding"};
  if (PyUnicode_Check(value.ptr())) {
    const bool same = is_text(value, "same");
    if (!same && !is_text(value, "valid")) place.fail_value("must be 'valid' or 'same' where it is a string", value);
    request.padding_mode = same ? PaddingMode::same : PaddingMode::valid;
    return;
  }
  const py::tuple items = is_sequence(value) ? items_of(value) : py::tuple();
  if (items.empty() || !is_sequence(items[0])) {
    request.padding = to_int_or_ints(place, value);
    return;
  }
  // Pairs are counted here, because two numbers for two dimensions would pass for one number each below.
  const std::size_t dims = request.weight.shape.size() - 2;
  if (items.size() != dims)
    place.fail_value("must hold " + std::to_string(dims) + " (before, after) pairs, one for each dimension", value);
  request.padding.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Place pair{request.function, "padding", static_cast<py::ssize_t>(i)};
    if (!is_sequence(items[i])) pair.fail_type("must be a (before, after) pair", items[i]);
    const Shape ends = to_ints(pair, items[i]);
    if (ends.size() != 2) pair.fail_value("must be a (before, after) pair", items[i]);
    request.padding.insert(request.padding.end(), ends.begin(), ends.end());
  }
}

// Whether a data format says that channels are last.
bool read_data_format(const Request& request, py::handle value) {
  struct Format {
    const char* name;
    std::size_t weight_rank;
    bool channels_last;
  };
  static constexpr Format kFormats[] = {{"NCL", 3, false},  {"NCW", 3, false}, {"NLC", 3, true},    {"NWC", 3, true},
                                        {"NCHW", 4, false}, {"NHWC", 4, true}, {"NCDHW", 5, false}, {"NDHWC", 5, true}};
  if (value.is_none()) return false;
  const std::size_t rank = request.weight.shape.size();
  for (const Format& format : kFormats)
    if (format.weight_rank == rank && is_text(value, format.name)) return format.channels_last;
  const char* const rule = rank == 3   ? "must be None, 'NCL', 'NCW', 'NLC' or 'NWC' for 1 spatial dimension"
                           : rank == 4 ? "must be None, 'NCHW' or 'NHWC' for 2 spatial dimensions"
                                       : "must be None, 'NCDHW' or 'NDHWC' for 3 spatial dimensions";
  Place{request.function, "data_format"}.fail_choice(rule, value);
}

Algorithm read_algorithm(const Request& request, py::handle value) {
  static constexpr std::pair<const char*, Algorithm> kAlgorithms[] = {{"auto", Algorithm::automatic},
                                                                      {"direct", Algorithm::direct},
                                                                      {"blas", Algorithm::blas},
                                                                      {"reference", Algorithm::reference}};
  for (const auto& [name, algorithm] : kAlgorithms)
    if (is_text(value, name)) return algorithm;
  Place{request.function, "algorithm"}.fail_choice("must be 'auto', 'direct', 'blas' or 'reference'", value);
}

Precision read_precision(const Request& request, py::handle value) {
  static constexpr std::pair<const char*, Precision> kPrecisions[] = {
      {"default", Precision::default_}, {"strict", Precision::strict}, {"fast", Precision::fast}};
  for (const auto& [name, precision] : kPrecisions)
    if (is_text(value, name)) return precision;
  Place{request.function, "precision"}.fail_choice("must be 'default', 'strict' or 'fast'", value);
}

Soc read_soc(const Request& request, py::handle value) {
  static constexpr std::pair<const char*, Soc> kSocs[] = {
      {"a2", Soc::a2}, {"950", Soc::ascend950}, {"910", Soc::ascend910}};
  for (const auto& [name, soc] : kSocs)
    if (is_text(value, name)) return soc;
  Place{request.function, "soc"}.fail_choice("must be 'a2', '950' or '910'", value);
}

// The type whose codes unsigned integers hold, as a call says.
std::optional<DType> read_codes(const char* function, py::handle value, const char* name = "dtype") {
  if (value.is_none()) return {};
  for (const DType type : {DType::hifloat8, DType::float8_e4m3fn, DType::bfloat16})
    if (is_text(value, name_of(type))) return type;
  Place{function, name}.fail_choice("must be None, 'hifloat8', 'float8_e4m3fn' or 'bfloat16'", value);
}

// The parameters that both functions have, as Python gave them.
struct Parameters {
  py::handle stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
      cube_math_type, soc;
};

// To be called when the tensors of the request have been read.
void read_parameters(Request& request, const Parameters& p) {
  const char* const function = request.function;
  const std::size_t rank = request.weight.shape.size();
  if (rank < 3 || rank > 5) return;  // nothing below has a meaning, and the rank is what Plan::make refuses first
  request.stride = to_int_or_ints({function, "stride"}, p.stride);
  read_padding(request, p.padding);
  request.dilation = to_int_or_ints({function, "dilation"}, p.dilation);
  request.transposed = to_bool({function, "transposed"}, p.transposed);
  request.output_padding = to_int_or_ints({function, "output_padding"}, p.output_padding);
  request.groups = to_int({function, "groups"}, p.groups);
  request.channels_last = read_data_format(request, p.data_format);
  request.algorithm = read_algorithm(request, p.algorithm);
  request.precision = read_precision(request, p.precision);
  request.cube_math_type = static_cast<CubeMathType>(to_int({function, "cube_math_type"}, p.cube_math_type));
  request.soc = read_soc(request, p.soc);
  if (!request.channels_last) return;
  for (Tensor* const image : {&request.input, request.grad_output ? &*request.grad_output : nullptr}) {
    if (!image) continue;
    to_channels_first(image->shape, rank);
    to_channels_first(image->strides, rank);
  }
}

// A new array for an image in the data format of the request.
py::array new_image(const Request& request, const Result& result, std::initializer_list<const py::array*> inputs,
                    Tensor& tensor, std::optional<DType> codes) {
  const std::size_t rank = request.weight.shape.size();
  if (!request.channels_last) return new_array(result.dtype, result.shape, inputs, tensor, codes);
  Shape shape = result.shape;
  to_channels_last(shape, rank);
  py::array array = new_array(result.dtype, shape, inputs, tensor, codes);
  to_channels_first(tensor.shape, rank);
  to_channels_first(tensor.strides, rank);
  return array;
}

// The arguments of a convolution_backward: a request, and the arrays that its tensors view.
struct Backward {
  Request request;
  std::optional<DType> codes;
  py::array grad_output, input, weight;

  Backward(py::handle grad_output_, py::handle input_, py::handle weight_, py::handle bias_sizes,
           py::handle output_mask, py::handle dtype, const Parameters& parameters)
      : codes(read_codes(request.function, dtype)),
        grad_output(read_array(request.function, "grad_output", grad_output_, request.grad_output.emplace(), codes)),
        input(read_array(request.function, "input", input_, request.input, codes)),
        weight(read_array(request.function, "weight", weight_, request.weight, codes)) {
    read_parameters(request, parameters);
    const Place mask{request.function, "output_mask"};
    if (!is_sequence(output_mask)) mask.fail_type("must be a sequence of 3 bools", output_mask);
    const py::tuple flags = items_of(output_mask);
    if (flags.size() != 3) mask.fail_value("must be a sequence of 3 bools", output_mask);
    for (std::size_t i = 0; i < 3; ++i)
      request.output_mask[i] = to_bool({request.function, "output_mask", static_cast<py::ssize_t>(i)}, flags[i]);
    if (!request.output_mask[2] || bias_sizes.is_none()) return;
    const Place sizes{request.function, "bias_sizes"};
    if (!is_sequence(bias_sizes)) sizes.fail_type("must be None or a sequence of ints", bias_sizes);
    request.bias_sizes = to_ints(sizes, bias_sizes);
  }
};

py::object run_backward(const Backward& call) {
  const Request& request = call.request;
  const Plan plan = Plan::make(request);
  std::array<py::object, 3> gradients{py::none(), py::none(), py::none()};
  std::array<Tensor, 3> tensors;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!request.output_mask[i]) continue;
    const Result& result = plan.results()[i];
    const auto inputs = {&call.grad_output, &call.input, &call.weight};
    gradients[i] = i == 0 ? new_image(request, result, inputs, tensors[i], call.codes)
                          : new_array(result.dtype, result.shape, inputs, tensors[i], call.codes);
  }
  {
    const py::gil_scoped_release release;
    plan.backward(*request.grad_output, request.input, request.weight, tensors);
  }
  return py::make_tuple(gradients[0], gradients[1], gradients[2]);
}

py::object describe_backward(const Backward& call) {
  const Plan plan = Plan::make(call.request);
  py::dict facts;
  facts["workspace_bytes"] = plan.workspace_bytes();
  facts["explain"] = plan.explain();
  return facts;
}

template <py::object (*run)(const Backward&)>
py::object backward(py::handle grad_output, py::handle input, py::handle weight, py::handle bias_sizes,
                    py::handle stride, py::handle padding, py::handle dilation, py::handle transposed,
                    py::handle output_padding, py::handle groups, py::handle output_mask, py::handle data_format,
                    py::handle algorithm, py::handle precision, py::handle cube_math_type, py::handle soc,
                    py::handle dtype) {
  return run(Backward(grad_output, input, weight, bias_sizes, output_mask, dtype,
                      {stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
                       cube_math_type, soc}));
}

py::object forward(py::handle input, py::handle weight, py::handle bias, py::handle stride, py::handle padding,
                   py::handle dilation, py::handle transposed, py::handle output_padding, py::handle groups,
                   py::handle data_format, py::handle algorithm, py::handle precision, py::handle cube_math_type,
                   py::handle soc, py::handle dtype) {
  Request request;
  request.function = "convolution";
  const std::optional<DType> codes = read_codes(request.function, dtype);
  const py::array input_array = read_array(request.function, "input", input, request.input, codes);
  const py::array weight_array = read_array(request.function, "weight", weight, request.weight, codes);
  const py::object bias_array =
      bias.is_none() ? py::none()
                     : py::object(read_array(request.function, "bias", bias, request.bias.emplace(), codes));
  read_parameters(request, {stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm,
                            precision, cube_math_type, soc});
  const Plan plan = Plan::make(request);
  Tensor tensor;
  py::array output = new_image(request, plan.results()[0], {&input_array, &weight_array}, tensor, codes);
  {
    const py::gil_scoped_release release;
    plan.forward(request.input, request.weight, request.bias ? &*request.bias : nullptr, tensor);
  }
  return output;
}

// Elements of an array in another type, as they are in memory: codes of what NumPy does not have are unsigned integers.
py::array cast(py::handle array, py::handle format, py::handle source, py::handle saturate) {
  const char* const function = "cast";
  static constexpr DType kTypes[] = {DType::float64,       DType::float32,  DType::float16, DType::bfloat16,
                                     DType::float8_e4m3fn, DType::hifloat8, DType::hf32,    DType::hf32_10};
  const auto to =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType t) { return is_text(format, name_of(t)); });
  if (to == std::end(kTypes))
    Place{function, "format"}.fail_choice(
        "must be 'float64', 'float32', 'float16', 'bfloat16', 'float8_e4m3fn', 'hifloat8', 'hf32' or 'hf32_10'",
        format);
  Tensor tensor;
  py::array from = read_array(function, "array", array, tensor, read_codes(function, source, "source"));
  if (!(from.flags() & py::array::c_style)) from = py::array(from.attr("copy")());
  const bool eight = size_of(*to) == 1, saturated = to_bool({function, "saturate"}, saturate);
  if (saturated && !eight)
    Place{function, "saturate"}.fail_value("must be False unless format is 'float8_e4m3fn' or 'hifloat8'", saturate);
  const py::dtype memory = eight                    ? py::dtype::of<std::uint8_t>()
                           : *to == DType::bfloat16 ? py::dtype::of<std::uint16_t>()
                           : *to == DType::float16  ? py::dtype(kNumpyHalf)
                           : *to == DType::float64  ? py::dtype::of<double>()
                                                    : py::dtype::of<float>();
  py::array result(memory, tensor.shape);
  {
    const py::gil_scoped_release release;
    convert(result.mutable_data(), *to, from.data(), tensor.dtype, result.size(), saturated);
  }
  return result;
}

void translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    PyObject* const kinds[] = {PyExc_ValueError, PyExc_TypeError, PyExc_MemoryError, PyExc_RuntimeError};
    py::set_error(kinds[static_cast<int>(error.kind())], error.what());
  } catch (const std::bad_alloc&) {
    py::set_error(PyExc_MemoryError, "convbwd: out of memory");
  }
}

}  // namespace
}  // namespace convbwd

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  using namespace convbwd;
  m.doc() = "The compiled part of convbwd.";
  for (const auto& [name, value] : build_info())
    if (name == "version") m.attr("__version__") = value;
  py::register_local_exception_translator(translate);

  const py::tuple all = py::make_tuple(true, true, true);
  const auto define_backward = [&](const char* name, auto function, const char* doc) {
    m.def(name, function, doc, py::arg("grad_output"), py::arg("input"), py::arg("weight"),
          py::arg("bias_sizes") = py::none(), py::arg("stride") = 1, py::arg("padding") = 0, py::arg("dilation") = 1,
          py::arg("transposed") = false, py::arg("output_padding") = 0, py::arg("groups") = 1,
          py::arg("output_mask") = all, py::arg("data_format") = py::none(), py::arg("algorithm") = "auto",
          py::arg("precision") = "default", py::arg("cube_math_type") = 0, py::arg("soc") = "a2",
          py::arg("dtype") = py::none());
  };
  define_backward("convolution_backward", &backward<run_backward>, "See convbwd.convolution_backward.");
  define_backward(
      "plan", &backward<describe_backward>,
      "How convolution_backward would carry out a call: its workspace_bytes, and explain, a line each pass.");
  m.def("convolution", &forward, "See convbwd.convolution.", py::arg("input"), py::arg("weight"),
        py::arg("bias") = py::none(), py::arg("stride") = 1, py::arg("padding") = 0, py::arg("dilation") = 1,
        py::arg("transposed") = false, py::arg("output_padding") = 0, py::arg("groups") = 1,
        py::arg("data_format") = py::none(), py::arg("algorithm") = "auto", py::arg("precision") = "default",
        py::arg("cube_math_type") = 0, py::arg("soc") = "a2", py::arg("dtype") = py::none());
  m.def("cast", &cast, "See convbwd.formats.cast.", py::arg("array"), py::arg("format"), py::arg("source") = py::none(),
        py::arg("saturate") = false);

  bind_layouts(m);
  m.def(
      "set_num_threads",
      [](py::handle n) {
        const Place place{"set_num_threads", "n"};
        const std::int64_t threads = to_int(place, n);
        if (threads < 1 || threads > INT_MAX) place.fail_value("must be from 1 to " + std::to_string(INT_MAX), n);
        set_num_threads(static_cast<int>(threads));
      },
      "See convbwd.set_num_threads.", py::arg("n"));
  m.def("get_num_threads", &get_num_threads, "See convbwd.get_num_threads.");
  m.def(
      "build_info",
      [] {
        py::dict facts;
        for (const auto& [name, value] : build_info()) facts[py::str(name)] = value;
        return facts;
      },
      "See convbwd.build_info.");
}
