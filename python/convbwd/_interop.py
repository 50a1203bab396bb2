"""Results as the arrays of other libraries, which are never imported here: who passes a tensor has its library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _to_torch(result: NDArray[Any]) -> Any:
    torch: Any = sys.modules["torch"]
    if result.dtype.name == "bfloat16":  # which NumPy and PyTorch do not exchange
        return torch.from_numpy(result.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def converter(function: str, like: object) -> Callable[[Any], Any]:
    """
    Return what makes results arrays of the library that another array comes from; it leaves None as it is.

    PyTorch's tensors are views of the result. Raises a TypeError that names the function if `like` is of no known
    library.
    """
    if like is None or isinstance(like, np.ndarray):
        return lambda result: result
    libraries = {base.__module__.partition(".")[0] for base in type(like).__mro__}
    convert: Callable[[Any], Any]
    if "torch" in libraries:
        convert = _to_torch
    elif libraries & {"jax", "jaxlib"}:
        convert = sys.modules["jax"].numpy.asarray
    elif hasattr(like, "__array_namespace__"):
        convert = like.__array_namespace__().asarray
    else:
        raise TypeError(
            f"{function}: like must be an array of NumPy, PyTorch, JAX or the array API standard, "
            f"got {type(like).__name__}"
        )
    return lambda result: None if result is None else convert(result)


def add_bias(space: Any, output: Any, bias: Any, rank: int, data_format: str | None) -> Any:
    """Add a bias to the output of a convolution whose weight has a rank, by the functions of a module like NumPy."""
    axis = -1 if str(data_format).endswith("C") else 1 - rank
    expected, got = (output.shape[axis],), space.shape(bias)
    if got != expected:
        raise ValueError(f"convolution: bias.shape must be (C_out,) = {expected}, got {got}")
    return output + space.reshape(bias, (-1, *[1] * (-1 - axis)))
