// Layer bindings: memory formats. Arrays come as buffers of bytes, so every element type is served.
#include "convbwd/layouts.hpp"

#include "bindings/layouts.h"

namespace convbwd {

void bind_layouts(py::module_& m) {
  m.def(
      "packed_shape",
      [](const std::string& format, const Shape& shape, std::int64_t groups, std::int64_t c0) {
        return py::tuple(py::cast(packed_shape(parse_memory_format(format), shape, groups, c0)));
      },
      "The shape in memory of what has a shape in NCHW or NCDHW.", py::arg("format"), py::arg("shape"),
      py::arg("groups"), py::arg("c0"));
  m.def(
      "convert_format",
      [](const py::buffer& to, const std::string& to_format, const py::buffer& from, const std::string& from_format,
         const Shape& shape, std::int64_t groups, std::int64_t c0) {
        const py::buffer_info target = to.request(true), source = from.request();
        const MemoryFormat t = parse_memory_format(to_format), f = parse_memory_format(from_format);
        const py::gil_scoped_release release;
        convert_format(target.ptr, t, source.ptr, f, shape, static_cast<std::size_t>(source.itemsize), groups, c0);
      },
      "Copy between formats. The caller has checked both shapes.", py::arg("target"), py::arg("target_format"),
      py::arg("source"), py::arg("source_format"), py::arg("shape"), py::arg("groups"), py::arg("c0"));
}

}  // namespace convbwd
