// Layer bindings: NumPy arrays as tensors, and back.
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
#include <utility>

#include "bindings/python.h"
#include "convbwd/types.hpp"

namespace convbwd {

inline constexpr int kNumpyHalf = 23;          // NPY_HALF, which pybind11 does not name
inline constexpr int kNumpyUserDefined = 256;  // NPY_USERDEF: the first number of a registered type

/// Types that other packages register. Their numbers depend on the order of registration, so the name decides; the
/// number is then remembered, because it stays the same for the life of the process.
inline std::optional<DType> registered_type(const py::dtype& dtype) {
  struct Known {
    DType type;
    const char* module;
    std::atomic<int> number{0};
  };
  static Known known[] = {
      {DType::bfloat16, "ml_dtypes"}, {DType::float8_e4m3fn, "ml_dtypes"}, {DType::hifloat8, "en_dtypes"}};
  const int number = dtype.num();
  if (number >= kNumpyUserDefined)
    for (const Known& k : known)
      if (number == k.number.load(std::memory_order_relaxed)) return k.type;
  for (Known& k : known) {
    if (py::str(dtype.attr("name")).cast<std::string_view>() != name_of(k.type) ||
        py::str(dtype.attr("type").attr("__module__")).cast<std::string_view>() != k.module)
      continue;
    if (number >= kNumpyUserDefined) k.number.store(number, std::memory_order_relaxed);
    return k.type;
  }
  return {};
}

inline bool is_numpy_bool(py::handle value) {
  constexpr int kNumpyBool = 0;
  return py::isinstance(value, py::dtype(kNumpyBool).attr("type"));
}

/// Whether an array has a mask, which convolutions would take no notice of.
inline bool is_masked(py::handle array) {
  return py::isinstance(array, py::module_::import("numpy.ma").attr("MaskedArray"));
}

/// What unsigned integers of a call hold: codes of this type, as this argument of the call says.
struct Codes {
  std::optional<DType> type;
  const char* argument = "dtype";
};

/// Throws Error(type) unless the elements are of a type that the library computes with. Unsigned integers are taken for
/// `codes` where they have its size.
inline DType element_type(const char* function, const char* name, const py::dtype& dtype, const Codes& codes) {
  const auto fail = [&](const char* rule, const std::string& context) {
    throw Error(ErrorKind::type, std::string(function) + ": " + name + ".dtype must " + rule + ", got " +
                                     text_of(PyObject_Str, dtype) + context);
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
    case py::dtype::num_of<std::uint8_t>():
    case py::dtype::num_of<std::uint16_t>():
      if (codes.type && static_cast<std::size_t>(dtype.itemsize()) == size_of(*codes.type)) type = codes.type;
      break;
    default:
      type = registered_type(dtype);
  }
  if (!type)
    fail("be float64, float32, float16, bfloat16 or float8_e4m3fn (of ml_dtypes) or hifloat8 (of en_dtypes)",
         dtype.kind() == 'u' ? std::string(" (codes in unsigned integers need ") + codes.argument +
                                   "='hifloat8', 'float8_e4m3fn' or 'bfloat16')"
                             : "");
  if (dtype.byteorder() != '=' && dtype.byteorder() != '|')
    fail("have native byte order",
         std::string(" (convert with ") + name + ".astype(" + name + ".dtype.newbyteorder('=')))");
  return *type;
}

/// A plain array of the same elements, C-contiguous and aligned: a copy where another is not that. No code of a
/// subclass of ndarray has a say.
inline py::array aligned_and_contiguous(py::handle array) {
  using Api = py::detail::npy_api;
  constexpr int kFlags = Api::NPY_ARRAY_ENSUREARRAY_ | Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
  auto made =
      py::reinterpret_steal<py::array>(Api::get().PyArray_FromAny_(array.ptr(), nullptr, 0, 0, kFlags, nullptr));
  if (!made) throw py::error_already_set();
  return made;
}

/// An array of the memory of an object that has __dlpack__. Throws what that does, and a TypeError.
py::array from_dlpack(py::handle object);

/// Reads an argument as np.asarray does, or by DLPack, and lets `tensor` view it. The tensor lives as long as the array
/// returned: the argument itself where its memory serves as it is, else an aligned copy. One that will be written to
/// must serve.
inline py::array read_array(const char* function, const char* name, py::handle argument, Tensor& tensor,
                            const Codes& codes = {}, bool written = false) {
  const auto fail = [&](ErrorKind kind, const char* rule) {
    throw Error(kind, std::string(function) + ": " + name + " must be " + rule);
  };
  const bool is_array = py::isinstance<py::array>(argument),
             is_tensor = !is_array && attribute_if_any(argument, "__dlpack__");
  const auto not_an_array = [&] {
    return std::string(function) + ": " + name + " must be an array, got " + Py_TYPE(argument.ptr())->tp_name;
  };
  if (written && !is_array && !is_tensor && !attribute_if_any(argument, "__array_interface__"))
    throw Error(ErrorKind::type, not_an_array());
  if (is_array && Py_TYPE(argument.ptr()) != py::detail::npy_api::get().PyArray_Type_ && is_masked(argument))
    fail(ErrorKind::type, "an array without a mask, got a masked one (its filled() has none)");
  py::array array = [&] {
    try {
      return is_tensor ? from_dlpack(argument) : py::array(py::reinterpret_borrow<py::object>(argument));
    } catch (const py::type_error& error) {  // of from_dlpack
      throw Error(ErrorKind::type, not_an_array() + ": " + error.what());
    } catch (const py::cast_error&) {  // the same, of what an object says of itself
      throw Error(ErrorKind::type, not_an_array());
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
      py::raise_from(error, PyExc_TypeError, (not_an_array() + ": " + text_of(PyObject_Str, error.value())).c_str());
      throw py::error_already_set();
    }
  }();
  const char kind = array.dtype().kind();
  const bool is_list = PyList_Check(argument.ptr()) || PyTuple_Check(argument.ptr());
  if (!is_array && !is_tensor && !is_list && (kind == 'O' || kind == 'U' || kind == 'S'))  // NumPy takes anything
    throw Error(ErrorKind::type, not_an_array());
  tensor.dtype = element_type(function, name, array.dtype(), codes);

  const auto size = static_cast<py::ssize_t>(size_of(tensor.dtype));
  bool aligned = reinterpret_cast<std::uintptr_t>(array.data()) % size_of(tensor.dtype) == 0;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) aligned &= array.shape(i) <= 1 || array.strides(i) % size == 0;
  if (written && !array.writeable()) fail(ErrorKind::value, "writeable, got a read-only array");
  if (written && !aligned) fail(ErrorKind::value, "aligned to its elements, got an array that is not");
  if (!aligned) array = aligned_and_contiguous(array);

  tensor.data = const_cast<void*>(array.data());
  tensor.shape.assign(array.shape(), array.shape() + array.ndim());
  tensor.strides.resize(tensor.shape.size());
  std::transform(array.strides(), array.strides() + array.ndim(), tensor.strides.begin(),
                 [size](py::ssize_t bytes) { return bytes / size; });
  return array;
}

/// The NumPy type of an element type. One that NumPy does not have is taken from one of the inputs, of which at least
/// one has it where a result does.
inline py::dtype numpy_dtype(DType type, std::initializer_list<const py::array*> inputs, const Codes& codes) {
  switch (type) {
    case DType::float64:
      return py::dtype(py::dtype::num_of<double>());
    case DType::float32:
      return py::dtype(py::dtype::num_of<float>());
    case DType::float16:
      return py::dtype(kNumpyHalf);
    default:
      return (*std::find_if(inputs.begin(), inputs.end(),
                            [&](const py::array* a) { return element_type("", "", a->dtype(), codes) == type; }))
          ->dtype();
  }
}

/// A new C-contiguous array for a result. Large ones begin with a line of the cache, because vectors
/// that span two take twice as long to store: NumPy aligns to 16 bytes, with which gradients of 512x512 weights of 6
/// taps took 1.13 times as long (Zen 5).
inline py::array new_array(py::dtype dtype, const Shape& shape) {
  constexpr py::ssize_t kLine = 64, kLarge = 64 << 10;  // bytes
  const py::ssize_t size = dtype.itemsize();
  py::ssize_t count = 1;
  for (const auto extent : shape) count *= extent;
  if (count * size < kLarge) {  // as py::array does, without its copies of the shape
    const auto& numpy = py::detail::npy_api::get();
    auto made = py::reinterpret_steal<py::array>(
        numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, dtype.release().ptr(), static_cast<int>(shape.size()),
                                    shape.data(), nullptr, nullptr, 0, nullptr));
    if (!made) throw py::error_already_set();
    return made;
  }
  const py::array memory(dtype, count + kLine / size - 1);
  const auto skip = -reinterpret_cast<std::uintptr_t>(memory.data()) % kLine;
  return py::array(dtype, shape, {}, static_cast<const std::byte*>(memory.data()) + skip, memory);
}

/// The same for a type that one of the inputs has; `tensor` views it.
inline py::array new_array(DType type, Shape shape, std::initializer_list<const py::array*> inputs, Tensor& tensor,
                           const Codes& codes) {
  py::array array = new_array(numpy_dtype(type, inputs, codes), shape);
  tensor = {array.mutable_data(), type, std::move(shape), {}};
  return array;
}

}  // namespace convbwd
