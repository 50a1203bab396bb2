// Layer bindings: what Python may do at any call into it: raise, finish, or hold text that is not Unicode.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <exception>
#include <string>

#include "convbwd/types.hpp"

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace convbwd {

namespace py = pybind11;

/// An attribute, or null where there is none. Exceptions but AttributeError are thrown: pybind11's hasattr loses them,
/// an interrupt by the user among them.
inline py::object attribute_if_any(py::handle object, const char* name) {
  auto attribute = py::reinterpret_steal<py::object>(PyObject_GetAttrString(object.ptr(), name));
  if (attribute) return attribute;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
  PyErr_Clear();
  return {};
}

/// What `form`, PyObject_Str or PyObject_Repr, gives for any object, for messages.
inline std::string text_of(PyObject* (*form)(PyObject*), py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(form(object.ptr()));
  const auto bytes = py::reinterpret_steal<py::object>(
      text ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (bytes) return PyBytes_AS_STRING(bytes.ptr());
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
  PyErr_Clear();
  return Py_TYPE(object.ptr())->tp_name;
}

/// Of a shape, as Python writes it.
inline std::string text_of(const Shape& shape) { return text_of(PyObject_Str, py::tuple(py::cast(shape))); }

/// Calls `work` while other threads may run Python. Once the interpreter finishes it ends threads that want to come
/// back, before Python 3.14: unwinding would release objects that no longer exist, so they wait for the process's end,
/// as later versions let them.
template <class F>
void without_gil(const F& work) {
  PyThreadState* const state = PyEval_SaveThread();
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
#ifdef __GLIBCXX__
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  PyEval_RestoreThread(state);
#endif
  if (failure) std::rethrow_exception(failure);
}

}  // namespace convbwd
