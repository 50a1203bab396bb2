#include "bindings/arguments.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace convbwd {
namespace {

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

}  // namespace

bool is_sequence(py::handle value) {
  PyObject* const v = value.ptr();
  if (PyTuple_Check(v) || PyList_Check(v)) return true;
  if (!PySequence_Check(v) || PyUnicode_Check(v) || PyBytes_Check(v) || as_int(value)) return false;
  if (PySequence_Size(v) >= 0) return true;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
  PyErr_Clear();  // an array without axes
  return false;
}

py::tuple items_of(py::handle sequence) {
  auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(sequence.ptr()));
  if (!items) throw py::error_already_set();
  return items;
}

std::int64_t to_int(const Place& place, py::handle value, const char* rule) {
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

bool is_text(py::handle value, const char* text) {
  return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
}

bool to_bool(const Place& place, py::handle value) {
  if (value.ptr() == Py_True || value.ptr() == Py_False) return value.ptr() == Py_True;
  if (!is_numpy_bool(value)) place.fail_type("must be a bool", value);
  return PyObject_IsTrue(value.ptr()) == 1;
}

void to_channels_first(Shape& shape, std::size_t weight_rank) {
  const auto channels = shape.begin() + (shape.size() < weight_rank ? 0 : 1);
  if (channels < shape.end()) std::rotate(channels, shape.end() - 1, shape.end());
}
void to_channels_last(Shape& shape, std::size_t weight_rank) {
  const auto channels = shape.begin() + (shape.size() < weight_rank ? 0 : 1);
  if (channels < shape.end()) std::rotate(channels, channels + 1, shape.end());
}

void images_channels_first(Request& request) {
  if (!request.channels_last) return;
  const std::size_t rank = request.weight.shape.size();
  for (Tensor* const image : {&request.input, request.grad_output ? &*request.grad_output : nullptr}) {
    if (!image || image->packing) continue;
    to_channels_first(image->shape, rank);
    to_channels_first(image->strides, rank);
  }
}

namespace {

Shape to_int_or_ints(const Place& place, py::handle value) {
  if (is_sequence(value)) return to_ints(place, value);
  return {to_int(place, value, "must be an int or a sequence of ints")};
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
  static constexpr std::pair<const char*, Algorithm> kAlgorithms[] = {
      {"auto", Algorithm::automatic},      {"direct", Algorithm::direct}, {"blas", Algorithm::blas},
      {"reference", Algorithm::reference}, {"matrix", Algorithm::matrix}, {"winograd", Algorithm::winograd}};
  for (const auto& [name, algorithm] : kAlgorithms)
    if (is_text(value, name)) return algorithm;
  Place{request.function, "algorithm"}.fail_choice(
      "must be 'auto', 'direct', 'blas', 'reference', 'matrix' or 'winograd'", value);
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

}  // namespace

Codes read_codes(const char* function, py::handle value, const char* name) {
  if (value.is_none()) return {{}, name};
  for (const DType type : {DType::hifloat8, DType::float8_e4m3fn, DType::bfloat16})
    if (is_text(value, name_of(type))) return {type, name};
  Place{function, name}.fail_choice("must be None, 'hifloat8', 'float8_e4m3fn' or 'bfloat16'", value);
}

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
  images_channels_first(request);
}

Shape result_shape(const Request& request, const Result& result, std::size_t i) {
  Shape shape = result.shape;
  if (i == 0 && request.channels_last) to_channels_last(shape, request.weight.shape.size());
  return shape;
}
py::array new_result(const Request& request, const Result& result, std::size_t i,
                     std::initializer_list<const py::array*> inputs, Tensor& tensor, const Codes& codes) {
  py::array array = new_array(result.dtype, result_shape(request, result, i), inputs, tensor, codes);
  if (i == 0 && request.channels_last) {
    for (py::ssize_t a = 0; a < array.ndim(); ++a) tensor.strides.push_back(array.strides(a) / array.itemsize());
    to_channels_first(tensor.shape, request.weight.shape.size());
    to_channels_first(tensor.strides, request.weight.shape.size());
  }
  return array;
}

}  // namespace convbwd
