// Layer conv: how Conv3DBackpropInput of Ascend C cuts the gradient of an input into tiles.
#pragma once

#include "convbwd/types.hpp"
#include "convbwd_ascendc.h"

namespace convbwd {

using InputTiling = AscendC::tiling::TConv3DBackpropInputTiling;

/// The numbers that CANN's host tiling works out. Throws Error(value) for problems that its devices refuse.
CONVBWD_API InputTiling make_input_tiling(const ConvbwdAscendcProblem& problem);

}  // namespace convbwd
