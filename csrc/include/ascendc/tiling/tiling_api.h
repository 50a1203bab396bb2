// All that hosts include to work out tilings.
#pragma once

#include "tiling/conv_backprop/conv3d_bp_input_tiling.h"
