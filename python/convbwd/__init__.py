"""Gradients of 1-, 2- and 3-D convolutions for NumPy, with the semantics of ``aten::convolution_backward``."""

from convbwd import formats
from convbwd._api import (
    CubeMathType,
    build_info,
    convolution,
    convolution_backward,
    get_num_threads,
    set_num_threads,
)
from convbwd._core import __version__

__all__ = [
    "CubeMathType",
    "__version__",
    "build_info",
    "convolution",
    "convolution_backward",
    "formats",
    "get_num_threads",
    "set_num_threads",
]
