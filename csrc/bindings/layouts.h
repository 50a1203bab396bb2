// Layer bindings: memory formats.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/numpy_view.h"

namespace convbwd {

/// read_array for what may also be a convbwd.formats.Packed, whose array is returned.
py::array read_tensor(const char* function, const char* name, py::handle argument, Tensor& tensor, const Codes& codes,
                      bool written = false);

/// read_array for what may not: where the order of axes is another matter.
py::array read_plain(const char* function, const char* name, py::handle argument, Tensor& tensor, const Codes& codes);

void bind_layouts(py::module_& m);

}  // namespace convbwd
