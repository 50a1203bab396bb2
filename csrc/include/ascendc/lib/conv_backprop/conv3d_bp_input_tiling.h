// The other place where hosts look for it.
#pragma once

#include "tiling/conv_backprop/conv3d_bp_input_tiling.h"
