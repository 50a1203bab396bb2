"""Results as the arrays of other libraries, which are never imported here: who passes a tensor has its library."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_kind(result: NDArray[Any] | None, like: object) -> Any:
    """
    Return a result as an array of the library that another array comes from; None stays None.

    PyTorch's tensors are views of the result. Raises a TypeError if `like` is of no known library.
    """
    if result is None or like is None or isinstance(like, np.ndarray):
        return result
    libraries = {base.__module__.partition(".")[0] for base in type(like).__mro__}
    if "torch" in libraries:
        torch: Any = sys.modules["torch"]
        if result.dtype.name == "bfloat16":  # which NumPy and PyTorch do not exchange
            return torch.from_numpy(result.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(result)
    if libraries & {"jax", "jaxlib"}:
        return sys.modules["jax"].numpy.asarray(result)
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().asarray(result)
    raise TypeError(
        f"like must be an array of NumPy, PyTorch, JAX or the array API standard, got {type(like).__name__}"
    )
