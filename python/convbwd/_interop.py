"""The dtypes and arrays of other libraries, which are not imported here, but ml_dtypes: who passes a tensor has its."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

ML_DTYPES = ("bfloat16", "float8_e4m3fn")  # types of other libraries that NumPy knows by ml_dtypes alone


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a NumPy dtype, also for the dtypes of other libraries, which print as "torch.bfloat16" and the like."""
    name = str(dtype).rpartition(".")[2]
    if name in ML_DTYPES:
        import ml_dtypes

        dtype = getattr(ml_dtypes, name)
    elif type(dtype).__module__ == "torch":
        dtype = name
    result: np.dtype[Any] = np.dtype(dtype)
    return result


def _to_torch(result: NDArray[Any]) -> Any:
    torch: Any = sys.modules["torch"]
    if result.dtype.name in ML_DTYPES:  # which NumPy and PyTorch do not exchange
        codes = result.view(f"u{result.itemsize}")
        return torch.from_numpy(codes).view(getattr(torch, result.dtype.name))
    return torch.from_numpy(result)


def converter(function: str, like: object) -> Callable[[Any], Any]:
    """
    Return what makes results arrays of the library that another array comes from; it leaves None as it is.

    PyTorch's tensors are views of the result. Raises a TypeError that names the function if `like` is of no known
    library.
    """
    if like is None or isinstance(like, np.ndarray):
        return lambda result: result
    is_array = not isinstance(like, type) and (hasattr(like, "shape") or hasattr(like, "__array_namespace__"))
    libraries = {base.__module__.partition(".")[0] for base in type(like).__mro__} if is_array else set()
    convert: Callable[[Any], Any]
    if "torch" in libraries:
        convert = _to_torch
    elif libraries & {"jax", "jaxlib"}:
        convert = sys.modules["jax"].numpy.asarray
    elif is_array and hasattr(like, "__array_namespace__"):
        convert = like.__array_namespace__().asarray
    else:
        raise TypeError(
            f"{function}: like must be an array of NumPy, PyTorch, JAX or the array API standard, "
            f"got {type(like).__name__}"
        )
    return lambda result: None if result is None else convert(result)


def frozen(option: Any) -> Any:
    """Return an option as nobody can change it later, and equal ones compare: sequences and arrays as tuples."""
    if hasattr(option, "__array__"):
        option = np.asarray(option).tolist()
    return tuple(frozen(item) for item in option) if isinstance(option, (list, tuple)) else option


def bias_gradient(space: Any, dy: Any, dtype: Any, rank: int, data_format: str | None) -> Any:
    """Sum the gradient of an output whose weight has a rank over all but channels, by functions of a NumPy."""
    channel = dy.ndim - 1 if str(data_format).endswith("C") else dy.ndim + 1 - rank
    wide = dy.astype(np.promote_types(dy.dtype, np.float32))
    return space.sum(wide, axis=tuple(a for a in range(dy.ndim) if a != channel)).astype(dtype)
