// Layer bindings: Ascend's graph operators and the tiles of its kernels.
#pragma once

#include <pybind11/pybind11.h>

namespace convbwd {

void bind_ascend(pybind11::module_& m);

}  // namespace convbwd
