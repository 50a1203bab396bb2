"""
PyTorch trains on convbwd: the CPU kernel of ``aten::convolution_backward``, for models as they are.

>>> import convbwd
>>> with convbwd.torch.enable():  # doctest: +SKIP
...     loss.backward()
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch

from convbwd._api import convolution_backward

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NATIVE = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
_OPERATOR = torch.ops.aten.convolution_backward.default

_lock = threading.Lock()
_library: torch.library.Library | None = None  # what is registered
_depth = 0  # how many have enabled it


def _convolution_backward(
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *parameters: Any
) -> Any:
    """Compute what PyTorch asks for, or hand it to PyTorch's own kernel where this library has no answer."""
    tensors = (grad_output, input, weight)
    ours = all(t.dtype == input.dtype and t.layout == torch.strided for t in tensors)
    if not ours or input.dtype not in _DTYPES or any(t.is_conj() or t.is_neg() for t in tensors):
        return _OPERATOR.redispatch(_NATIVE, *tensors, *parameters)
    return convolution_backward(*(t.detach() for t in tensors), *parameters, like=input)


class _Enabled:
    """Leaves everything as `enable` made it; as a context manager, until the block ends."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        disable()


def enable() -> _Enabled:
    """
    Let PyTorch compute the gradients of its convolutions on the CPU with convbwd, in the whole process.

    Dtypes other than float64, float32, float16 and bfloat16 stay with PyTorch. May be called more than once; each call
    is ended by one of `disable`, or by the end of the block where it is used as a context manager.

    Returns
    -------
    context manager
        Its end calls `disable`.
    """
    global _library, _depth
    with _lock:
        if _library is None:
            library = torch.library.Library("aten", "IMPL")
            library.impl("convolution_backward", _convolution_backward, "CPU")
            _library = library
        _depth += 1
    return _Enabled()


def disable() -> None:
    """
    End one `enable`; after the last one PyTorch computes with its own kernels again.

    Raises
    ------
    RuntimeError
        If it is not enabled.
    """
    global _library, _depth
    with _lock:
        if _depth == 0:
            raise RuntimeError("convbwd.torch.disable: it is not enabled")
        _depth -= 1
        if _depth == 0 and _library is not None:
            _library._destroy()
            _library = None
