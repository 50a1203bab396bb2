"""Gradients of 1-, 2- and 3-D convolutions for NumPy, with the semantics of ``aten::convolution_backward``."""

import importlib
from typing import TYPE_CHECKING, Any

from convbwd import formats
from convbwd._api import (
    CubeMathType,
    build_info,
    convolution,
    convolution_backward,
    get_num_threads,
    set_num_threads,
)
from convbwd._ascend import conv3d_backprop_filter, conv3d_backprop_input
from convbwd._core import __version__
from convbwd._double import convolution_double_backward
from convbwd._gradcheck import GradcheckError, GradcheckReport, gradcheck
from convbwd._plan import Plan, plan
from convbwd._tiles import Conv3DBackpropInput

__all__ = [
    "Conv3DBackpropInput",
    "CubeMathType",
    "GradcheckError",
    "GradcheckReport",
    "Plan",
    "__version__",
    "build_info",
    "conv3d_backprop_filter",
    "conv3d_backprop_input",
    "convolution",
    "convolution_backward",
    "convolution_double_backward",
    "formats",
    "get_num_threads",
    "gradcheck",
    "plan",
    "set_num_threads",
]

_OPTIONAL = ("autograd", "dask", "jax", "threadpoolctl", "torch")  # modules for those who have the library of that name

if TYPE_CHECKING:
    from convbwd import autograd, dask, jax, threadpoolctl, torch  # noqa: F401
else:

    def __getattr__(name: str) -> Any:
        """Import an optional module when it is first asked for."""
        missing = f"module {__name__!r} has no attribute {name!r}"
        if name in _OPTIONAL:
            try:
                return importlib.import_module(f"convbwd.{name}")
            except ModuleNotFoundError as error:  # so that hasattr and help work without the library
                raise AttributeError(f"{missing}: {error} (pip install 'convbwd[{name}]')") from error
        raise AttributeError(missing)

    def __dir__() -> list[str]:
        """List what the package offers, of the optional modules those that are imported."""
        return sorted({*__all__, *(name for name in _OPTIONAL if name in globals())})
