// infiniop: the operators that this library has, and what they need.
#pragma once

#include "infiniop/handle.h"
#include "infiniop/operator_descriptor.h"
#include "infiniop/ops/conv_backward.h"
#include "infiniop/tensor_descriptor.h"
