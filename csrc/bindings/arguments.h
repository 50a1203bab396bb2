// Layer bindings: arguments come as any Python objects and leave as a Request. Its rules are those of conv/problem.cpp,
// so only the kinds of the arguments are checked here.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/numpy_view.h"
#include "convbwd/convbwd.hpp"

namespace convbwd {

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
    fail(ErrorKind::value, rule, text_of(PyObject_Repr, value));
  }
  [[noreturn]] void fail_choice(std::string_view rule, py::handle value) const {
    if (!PyUnicode_Check(value.ptr())) fail_type(rule, value);
    fail_value(rule, value);
  }
};

bool is_sequence(py::handle value);
bool is_text(py::handle value, const char* text);
/// A tuple of a sequence's items: what a conversion of one of them runs cannot change it.
py::tuple items_of(py::handle sequence);
std::int64_t to_int(const Place& place, py::handle value, const char* rule = "must be an int");
Shape to_ints(Place place, py::handle sequence);
bool to_bool(const Place& place, py::handle value);

/// What unsigned integers hold, as the argument `name` of a call says.
Codes read_codes(const char* function, py::handle value, const char* name = "dtype");

/// A shape with its channel axis moved between the second place (the first in an image without batch axis) and the
/// last.
void to_channels_first(Shape& shape, std::size_t weight_rank);
void to_channels_last(Shape& shape, std::size_t weight_rank);

/// Brings the axes of images, read in the order of the request's data format, into that of the library.
void images_channels_first(Request& request);

/// The parameters that all functions have, as Python gave them.
struct Parameters {
  py::handle stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
      cube_math_type, soc;
};
/// To be called when the tensors of the request have been read.
void read_parameters(Request& request, const Parameters& p);

/// Lets the engine work without the GIL. It lacks nothing then but memory, and says so without the function's name.
template <class F>
void compute(const char* function, const F& work) {
  try {
    without_gil(work);
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(function) + ": " + error.what());
  }
}

/// The shape of result i, and a new array for it, in the data format of the request.
Shape result_shape(const Request& request, const Result& result, std::size_t i);
py::array new_result(const Request& request, const Result& result, std::size_t i,
                     std::initializer_list<const py::array*> inputs, Tensor& tensor, const Codes& codes);

}  // namespace convbwd
