// Layer bindings: memory formats.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace convbwd {

namespace py = pybind11;

void bind_layouts(py::module_& m);

}  // namespace convbwd
