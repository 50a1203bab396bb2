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
# What is registered, once and for all: another thread may be in it when the last one disables it.
_library: torch.library.Library | None = None
_depth = 0  # how many have enabled it


def _new_gradients(
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias_sizes: Any, geometry: Any, mask: Any
) -> list[torch.Tensor | None]:
    """
    Return tensors for the gradients that the mask asks for.

    Those of the input and the weight have the strides that PyTorch's own kernel gives them: compilers rely on it.
    """
    backend = torch._C._select_conv_backend(input, weight, None, *geometry, bias_sizes)
    one_row = weight.ndim == 3  # PyTorch computes 1-D convolutions as 2-D ones
    if one_row:
        input, weight = input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    memory_format = torch._C._conv_determine_backend_memory_format(input, weight, backend)
    new: list[torch.Tensor | None] = [None, None, None]
    for i, like in enumerate((input, weight)):
        if mask[i]:
            gradient = torch.empty_like(like, memory_format=memory_format)
            new[i] = gradient.squeeze(2) if one_row else gradient
    if mask[2]:
        new[2] = grad_output.new_empty(grad_output.shape[1])
    return new


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the array of a tensor's memory: of codes where NumPy has no such dtype."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _convolution_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    *geometry_and_mask: Any,
) -> Any:
    """Compute what PyTorch asks for, or hand it to PyTorch's own kernel where this library has no answer."""
    tensors = (grad_output.detach(), input.detach(), weight.detach())
    dtype = input.dtype
    ours = all(t.dtype == dtype and t.layout == torch.strided and t.numel() > 0 for t in tensors)
    if not _depth or not ours or dtype not in _DTYPES or any(t.is_conj() or t.is_neg() for t in tensors):
        return _OPERATOR.redispatch(_NATIVE, grad_output, input, weight, bias_sizes, *geometry_and_mask)
    *geometry, mask = geometry_and_mask
    new = _new_gradients(*tensors, bias_sizes, geometry, mask)
    parameters = (bias_sizes, *geometry_and_mask)
    convolution_backward(
        *(_as_array(t) for t in tensors),
        *parameters,
        out=[None if t is None else _as_array(t) for t in new],
        dtype="bfloat16" if dtype == torch.bfloat16 else None,
    )
    return tuple(new)


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

    Dtypes other than float64, float32, float16 and bfloat16, and empty tensors, stay with PyTorch. Gradients have the
    memory format that PyTorch gives them, so that compiled models work too. Threads are this library's
    (`convbwd.set_num_threads`), not those of ``torch.set_num_threads``. May be called more than once; each call is
    ended by one of `disable`, or by the end of the block where it is used as a context manager.

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
    End one `enable`; after the last one PyTorch computes with its own kernels again, some microseconds later a call.

    Raises
    ------
    RuntimeError
        If it is not enabled.
    """
    global _depth
    with _lock:
        if _depth == 0:
            raise RuntimeError("convbwd.torch.disable: it is not enabled")
        _depth -= 1
