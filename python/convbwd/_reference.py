"""The mathematics of convbwd in NumPy: slow, short, plainly correct. Executable documentation and the tests' oracle.

Every operation is one equation between three tensors, solved for y (forward), x or w (gradients)::

    y[n, g, co, o] = sum over ci, t of x[n, g, ci, o * stride + t * dilation - before] * w[g, co, ci, t]

A transposed convolution is the same equation with the image and its result exchanged. A tap that falls into the
padding is left out, not multiplied by zero. Given absolute values, the functions return the sums that error bounds
need. Images are (N, C, *spatial); stride and dilation have an entry, padding a (before, after) pair for each spatial
dimension. Sums are taken in float64, or in long double where an operand has that type.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]
_Ints = Sequence[int]
_Pairs = Sequence[tuple[int, int]]


def _solve(
    unknown: str, x: _Array, w: _Array, y: _Array, stride: _Ints, padding: _Pairs, dilation: _Ints, groups: int
) -> None:
    """Add to the unknown tensor, "x", "w" or "y", what the other two make of it."""
    xg, yg = (a.reshape(len(a), groups, a.shape[1] // groups, *a.shape[2:]) for a in (x, y))
    wg = w.reshape(groups, len(w) // groups, *w.shape[1:])
    axes = "abc"[: x.ndim - 2]
    for tap in np.ndindex(*w.shape[2:]):
        xs: list[Any] = [Ellipsis]
        ys: list[Any] = [Ellipsis]
        for i, o, t, s, (before, _), d in zip(x.shape[2:], y.shape[2:], tap, stride, padding, dilation, strict=True):
            first = t * d - before  # where in x output 0 reads; outputs low .. high - 1 read inside x
            low = max(0, -(first // s))
            high = max(low, min(o, (i - 1 - first) // s + 1))
            xs.append(slice(low * s + first, high * s + first, s))
            ys.append(slice(low, high))
        xt, wt, yt = xg[tuple(xs)], wg[(..., *tap)], yg[tuple(ys)]
        if unknown == "y":
            yt += np.einsum(f"ngi{axes},goi->ngo{axes}", xt, wt)
        elif unknown == "x":
            xt += np.einsum(f"ngo{axes},goi->ngi{axes}", yt, wt)
        else:
            wt += np.einsum(f"ngi{axes},ngo{axes}->goi", xt, yt)


def convolution(
    input: _Array,
    weight: _Array,
    bias: _Array | None,
    stride: _Ints,
    padding: _Pairs,
    dilation: _Ints,
    transposed: bool,
    output_padding: _Ints,
    groups: int,
) -> _Array:
    """Return the (transposed) convolution of input with weight, plus bias."""
    reach = [d * (k - 1) + 1 - sum(p) for k, p, d in zip(weight.shape[2:], padding, dilation, strict=True)]
    sizes = zip(input.shape[2:], reach, stride, output_padding, strict=True)
    size = [(i - 1) * s + r + extra if transposed else (i - r) // s + 1 for i, r, s, extra in sizes]
    channels = weight.shape[1] * groups if transposed else len(weight)
    output = np.zeros((len(input), channels, *size), np.result_type(input, weight, np.float64))
    unknown, x, y = ("x", output, input) if transposed else ("y", input, output)
    _solve(unknown, x, weight, y, stride, padding, dilation, groups)
    return output if bias is None else output + np.reshape(bias, (-1, *[1] * len(size)))


def convolution_backward(
    grad_output: _Array,
    input: _Array,
    weight: _Array,
    stride: _Ints,
    padding: _Pairs,
    dilation: _Ints,
    transposed: bool,
    groups: int,
) -> tuple[_Array, _Array, _Array]:
    """Return the gradients of input, weight and bias."""
    dtype = np.result_type(grad_output, input, weight, np.float64)
    dx, dw = np.zeros(input.shape, dtype), np.zeros(weight.shape, dtype)
    unknown, x, y = ("y", grad_output, dx) if transposed else ("x", dx, grad_output)
    _solve(unknown, x, weight, y, stride, padding, dilation, groups)
    x, y = (grad_output, input) if transposed else (input, grad_output)
    _solve("w", x, dw, y, stride, padding, dilation, groups)
    return dx, dw, grad_output.sum(axis=(0, *range(2, input.ndim)), dtype=dtype)
