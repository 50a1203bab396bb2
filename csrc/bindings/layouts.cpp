// Layer bindings: memory formats. Arrays come as buffers of bytes, so every element type is served.
#include "bindings/layouts.h"

#include <string>

#include "bindings/arguments.h"
#include "convbwd/layouts.hpp"

namespace convbwd {

// The attribute by which an object says that it is an array in a memory format.
static constexpr const char* kPacking = "__convbwd_packing__";

py::array read_plain(const char* function, const char* name, py::handle argument, Tensor& tensor, const Codes& codes) {
  if (!py::isinstance<py::array>(argument) && attribute_if_any(argument, kPacking))
    throw Error(ErrorKind::type, std::string(function) + ": " + name + " must be a plain array, got " +
                                     Py_TYPE(argument.ptr())->tp_name + ", which unpack() makes one in NCDHW");
  return read_array(function, name, argument, tensor, codes);
}

py::array read_tensor(const char* function, const char* name, py::handle argument, Tensor& tensor, const Codes& codes,
                      bool written) {
  tensor.packing.reset();
  const py::object packed = py::isinstance<py::array>(argument) ? py::object() : attribute_if_any(argument, kPacking);
  if (!packed) return read_array(function, name, argument, tensor, codes, written);
  const auto [source, format, shape, c0, groups] = [&] {
    try {
      return packed.cast<std::tuple<py::array, std::string, Shape, std::int64_t, std::int64_t>>();
    } catch (const py::cast_error&) {
      throw Error(ErrorKind::type, std::string(function) + ": " + name +
                                       " must have an array, a format, a shape, c0 and groups, got others");
    }
  }();
  py::array array = read_array(function, name, source, tensor, codes, written);
  const Packing packing{parse_memory_format(format), c0, groups};
  const Shape dims = packed_shape(packing.format, shape, groups, c0);
  if (tensor.shape != dims || !(array.flags() & py::array::c_style))
    throw Error(ErrorKind::value, std::string(function) + ": " + name + " must have a C-contiguous array of shape " +
                                      text_of(dims) + ", got shape " + text_of(tensor.shape));
  tensor.shape = shape;
  tensor.strides.clear();
  tensor.packing = packing;
  return array;
}

void bind_layouts(py::module_& m) {
  m.def(
      "packed_shape",
      [](py::handle format, py::handle shape, py::handle groups, py::handle c0) {
        if (!PyUnicode_Check(format.ptr())) Place{"formats", "format"}.fail_type("must be a string", format);
        if (!is_sequence(shape)) Place{"formats", "shape"}.fail_type("must be a sequence of ints", shape);
        return py::tuple(
            py::cast(packed_shape(parse_memory_format(format.cast<std::string>()), to_ints({"formats", "shape"}, shape),
                                  to_int({"formats", "groups"}, groups), to_int({"formats", "c0"}, c0))));
      },
      "The shape in memory of what has a shape in NCHW or NCDHW.", py::arg("format"), py::arg("shape"),
      py::arg("groups"), py::arg("c0"));
  m.def(
      "convert_format",
      [](const py::buffer& to, const std::string& to_format, const py::buffer& from, const std::string& from_format,
         const Shape& shape, std::int64_t groups, std::int64_t c0) {
        const py::buffer_info target = to.request(true), source = from.request();
        const MemoryFormat t = parse_memory_format(to_format), f = parse_memory_format(from_format);
        without_gil([&] {
          convert_format(target.ptr, t, source.ptr, f, shape, static_cast<std::size_t>(source.itemsize), groups, c0);
        });
      },
      "Copy between formats. The caller has checked both shapes.", py::arg("target"), py::arg("target_format"),
      py::arg("source"), py::arg("source_format"), py::arg("shape"), py::arg("groups"), py::arg("c0"));
}

}  // namespace convbwd
