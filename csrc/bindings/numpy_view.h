// Layer bindings: NumPy arrays as tensors, and back. The only file that knows py::array.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "convbwd/types.hpp"

namespace convbwd {

namespace py = pybind11;

inline constexpr int kNumpyHalf = 23;          // NPY_HALF, which pybind11 does not name
inline constexpr int kNumpyUserDefined = 256;  // NPY_USERDEF: the first number of a registered type

/// bfloat16 belongs to ml_dtypes. Its number depends on the order of registration, so the name decides; the number is
/// then remembered, because it stays the same for the life of the process.
inline bool is_bfloat16(const py::dtype& dtype) {
  static std::atomic<int> known{0};
  const int number = dtype.num();
  if (number >= kNumpyUserDefined && number == known.load(std::memory_order_relaxed)) return true;
  const bool found = py::str(dtype.attr("name")).cast<std::string_view>() == "bfloat16" &&
                     py::str(dtype.attr("type").attr("__module__")).cast<std::string_view>() == "ml_dtypes";
  if (found && number >= kNumpyUserDefined) known.store(number, std::memory_order_relaxed);
  return found;
}

inline bool is_numpy_bool(py::handle value) {
  constexpr int kNumpyBool = 0;
  return py::isinstance(value, py::dtype(kNumpyBool).attr("type"));
}

/// Throws Error(type) unless the elements are of a type that the library computes with.
inline DType element_type(const char* function, const char* name, const py::dtype& dtype) {
  const auto fail = [&](const char* rule, const std::string& context) {
    throw Error(ErrorKind::type, std::string(function) + ": " + name + ".dtype must " + rule + ", got " +
                                     py::str(dtype).cast<std::string>() + context);
  };
  std::optional<DType> type;
  switch (dtype.num()) {
    case py::dtype::num_of<double>():
      type = DType::float64;
      break;
    case py::dtype::num_of<float>():
      type = DType::float32;
      break;
    case kNumpyHalf:
      type = DType::float16;
      break;
    default:
      if (is_bfloat16(dtype)) type = DType::bfloat16;
  }
  if (!type) fail("be float64, float32, float16 or bfloat16 (of ml_dtypes)", "");
  if (dtype.byteorder() != '=')
    fail("have native byte order",
         std::string(" (convert with ") + name + ".astype(" + name + ".dtype.newbyteorder('=')))");
  return *type;
}

/// Reads an argument as np.asarray does and lets `tensor` view it. The tensor lives as long as the array returned:
/// the argument itself where its memory serves as it is, else an aligned copy.
inline py::array read_array(const char* function, const char* name, py::handle argument, Tensor& tensor) {
  py::array array = [&] {
    try {
      return py::array(py::reinterpret_borrow<py::object>(argument));
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
      py::raise_from(
          error, PyExc_TypeError,
          (std::string(function) + ": " + name + " must be an array, got " + Py_TYPE(argument.ptr())->tp_name).c_str());
      throw py::error_already_set();
    }
  }();
  tensor.dtype = element_type(function, name, array.dtype());

  const auto size = static_cast<py::ssize_t>(size_of(tensor.dtype));
  bool aligned = reinterpret_cast<std::uintptr_t>(array.data()) % size_of(tensor.dtype) == 0;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) aligned &= array.shape(i) <= 1 || array.strides(i) % size == 0;
  if (!aligned) array = py::array(array.attr("copy")());

  tensor.data = const_cast<void*>(array.data());
  tensor.shape.assign(array.shape(), array.shape() + array.ndim());
  tensor.strides.resize(tensor.shape.size());
  std::transform(array.strides(), array.strides() + array.ndim(), tensor.strides.begin(),
                 [size](py::ssize_t bytes) { return bytes / size; });
  return array;
}

/// A new C-contiguous array for a result; `tensor` views it. bfloat16 has no constructor here: it is taken from one of
/// the inputs, of which at least one has it where a result does.
inline py::array new_array(DType type, const Shape& shape, std::initializer_list<const py::array*> inputs,
                           Tensor& tensor) {
  const py::dtype dtype = [&] {
    switch (type) {
      case DType::float64:
        return py::dtype(py::dtype::num_of<double>());
      case DType::float32:
        return py::dtype(py::dtype::num_of<float>());
      case DType::float16:
        return py::dtype(kNumpyHalf);
      case DType::bfloat16:
        break;
    }
    return (*std::find_if(inputs.begin(), inputs.end(), [](const py::array* a) { return is_bfloat16(a->dtype()); }))
        ->dtype();
  }();
  py::array array(dtype, shape);
  const auto size = static_cast<py::ssize_t>(size_of(type));
  tensor = {array.mutable_data(), type, shape, Shape(array.strides(), array.strides() + array.ndim())};
  for (auto& stride : tensor.strides) stride /= size;
  return array;
}

}  // namespace convbwd
