// Layer bindings: what memory arrays occupy. Arrays as planned are recognised without a look at Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "bindings/numpy_view.h"

namespace convbwd {

/// The bytes between the first and the last element of an array.
struct Extent {
  std::uintptr_t begin = 0, end = 0;
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

/// dtype, shape and strides of an array, for quick comparison.
class Layout {
 public:
  Layout() = default;
  explicit Layout(const py::array& array) : dtype_(array.dtype()), rank_(static_cast<int>(array.ndim())) {
    for (int a = 0; a < rank_; ++a) {
      size_[a] = array.shape(a);
      stride_[a] = array.strides(a);
      empty_ |= size_[a] == 0;
      (stride_[a] < 0 ? first_ : last_) += (size_[a] - 1) * stride_[a];
    }
    last_ += static_cast<std::ptrdiff_t>(array.itemsize());
    if (empty_) first_ = last_ = 0;
  }

  /// Whether an object is an aligned array of just this kind, which can be written to where it must be.
  bool fits(py::handle object, bool writeable) const {
    const auto& numpy = py::detail::npy_api::get();
    if (Py_TYPE(object.ptr()) != numpy.PyArray_Type_) return false;
    const auto* const array = py::detail::array_proxy(object.ptr());
    const int flags = py::detail::npy_api::NPY_ARRAY_ALIGNED_ |
                      (writeable ? static_cast<int>(py::detail::npy_api::NPY_ARRAY_WRITEABLE_) : 0);
    if (array->descr != dtype_.ptr() || array->nd != rank_ || (array->flags & flags) != flags) return false;
    for (int a = 0; a < rank_; ++a)
      if (array->dimensions[a] != size_[a] || (array->strides[a] != stride_[a] && size_[a] > 1 && !empty_))
        return false;
    return true;
  }
  Extent extent(const void* data) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return {address + static_cast<std::uintptr_t>(first_), address + static_cast<std::uintptr_t>(last_)};
  }
  const py::dtype& dtype() const { return dtype_; }

 private:
  py::dtype dtype_{py::dtype::num_of<float>()};
  int rank_ = 0;
  bool empty_ = false;
  py::ssize_t size_[6] = {}, stride_[6] = {};  // a per-sample gradient of 3-D weights has six axes
  std::ptrdiff_t first_ = 0, last_ = 0;        // bytes from the data pointer on
};

inline void* data_of(py::handle array) { return py::detail::array_proxy(array.ptr())->data; }

/// Throws Error(value) if two arrays have an element in common, or if that cannot be told with reasonable effort.
inline void refuse_overlap(const char* function, const py::array& a, const char* a_name, const py::array& b,
                           const char* b_name) {
  if (!Layout(a).extent(a.data()).meets(Layout(b).extent(b.data()))) return;
  constexpr int kEffort = 10000;
  bool shared = true;
  try {
    shared = py::module_::import("numpy").attr("shares_memory")(a, b, py::arg("max_work") = kEffort).cast<bool>();
  } catch (py::error_already_set& error) {  // TooHardError
    if (!error.matches(PyExc_RuntimeError)) throw;
  }
  if (shared)
    throw Error(ErrorKind::value, std::string(function) + ": " + a_name + " must not share memory with " + b_name +
                                      ", got arrays that do");
}

/// Throws Error(value) if a workspace reaches into the memory of an array.
inline void refuse_overlap(const char* function, std::span<std::byte> workspace, const Extent& array) {
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (array.meets({begin, begin + workspace.size()}))
    throw Error(ErrorKind::value,
                std::string(function) + ": workspace must not share memory with an array, got one that does");
}

/// The writable bytes of an argument, which keeps them until this goes: the run of another Python thread cannot free
/// those of a bytearray meanwhile.
class WritableBytes {
 public:
  WritableBytes() = default;
  WritableBytes(const WritableBytes&) = delete;
  WritableBytes& operator=(const WritableBytes&) = delete;
  ~WritableBytes() { PyBuffer_Release(&buffer_); }  // which does nothing where none is held

  std::span<std::byte> of(const char* function, const char* name, py::handle argument) {
    if (py::isinstance<py::array>(argument)) {  // without the copy of its shape that the buffer protocol makes
      auto array = py::reinterpret_borrow<py::array>(argument);
      constexpr std::uint64_t kReferences = 1;  // NPY_ITEM_REFCOUNT: to Python objects
      if (static_cast<std::uint64_t>(array.dtype().flags()) & kReferences)
        throw Error(ErrorKind::type, std::string(function) + ": " + name +
                                         " must not hold Python objects, got an array of dtype " +
                                         text_of(PyObject_Str, array.dtype()));
      if ((array.flags() & py::array::c_style) && array.writeable())
        return {static_cast<std::byte*>(array.mutable_data()), static_cast<std::size_t>(array.nbytes())};
    }
    if (PyObject_GetBuffer(argument.ptr(), &buffer_, PyBUF_WRITABLE) != 0) {
      PyErr_Clear();
      throw Error(ErrorKind::type, std::string(function) + ": " + name +
                                       " must be None or a writable, contiguous array or buffer, got " +
                                       Py_TYPE(argument.ptr())->tp_name);
    }
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

}  // namespace convbwd
