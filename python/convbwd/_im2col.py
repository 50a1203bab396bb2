"""Gradients of convolutions the usual NumPy way: im2col, one matrix product a group, and col2im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = Sequence[int]
Pairs = Sequence[tuple[int, int]]

# Images are taken so many at a time that their columns have about this size: columns that leave the caches cost more
# than products of fewer images.
CHUNK_BYTES = 16 << 20


def columns(image: Array, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints, groups: int, out: Ints) -> Array:
    """Copy every window into a column (im2col): (N, C, *I) to (groups, C / groups * prod(kernel), N * prod(out))."""
    dims = len(kernel)
    padded = np.pad(image, ((0, 0), (0, 0), *padding)) if np.any(padding) else image
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    windows = sliding_window_view(padded, reach, axis=tuple(range(2, dims + 2)))
    starts = [slice(0, (o - 1) * s + 1, s) for o, s in zip(out, stride, strict=True)]
    taps = [slice(None, None, d) for d in dilation]
    windows = windows[(slice(None), slice(None), *starts, *taps)]
    order = (1, *range(dims + 2, 2 * dims + 2), 0, *range(2, dims + 2))
    n, channels = image.shape[:2]
    return windows.transpose(order).reshape(groups, channels // groups * prod(kernel), n * prod(out))


def image(
    columns: Array, n: int, sizes: Ints, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints, out: Ints
) -> Array:
    """Add the columns up where their windows lie (col2im), the transpose of `columns`; (N, C, *sizes)."""
    taps = columns.reshape(-1, *kernel, n, *out)
    padded = np.zeros((len(taps), n, *(i + sum(p) for i, p in zip(sizes, padding, strict=True))), columns.dtype)
    for tap in np.ndindex(*kernel):
        where = zip(tap, out, stride, dilation, strict=True)
        covered = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, o, s, d in where)
        padded[(slice(None), slice(None), *covered)] += taps[(slice(None), *tap)]
    inside = tuple(slice(before, before + i) for i, (before, _) in zip(sizes, padding, strict=True))
    return padded[(slice(None), slice(None), *inside)].swapaxes(0, 1)


def matrix(weight: Array, groups: int) -> Array:
    """View a weight as (groups, rows, columns)."""
    return weight.reshape(groups, len(weight) // groups, -1)


def rows(y: Array, groups: int) -> Array:
    """Bring (N, C, *O) into (groups, C / groups, N * prod(O))."""
    return y.swapaxes(0, 1).reshape(groups, y.shape[1] // groups, -1)


def unrows(rows: Array, n: int, sizes: Ints) -> Array:
    """Undo `rows`."""
    return rows.reshape(-1, n, *sizes).swapaxes(0, 1)


def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    stride: Ints,
    padding: Pairs,
    dilation: Ints,
    transposed: bool,
    groups: int,
    mask: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of input, weight and bias; 16-bit operands are widened to float32, the results rounded back."""
    dtypes = [a.dtype for a in (input, weight, grad_output)]
    if grad_output.dtype.itemsize == 2:
        grad_output, input, weight = (a.astype(np.float32) for a in (grad_output, input, weight))
    need_dx, need_dw, need_db = mask
    # A transposed convolution is the same with input and output exchanged.
    x, y = (grad_output, input) if transposed else (input, grad_output)
    sizes, kernel, out = x.shape[2:], weight.shape[2:], y.shape[2:]
    w = matrix(weight, groups)
    dx = np.empty(input.shape, input.dtype) if need_dx else None
    dw = np.zeros(w.shape, w.dtype) if need_dw else None
    step = max(1, CHUNK_BYTES // (x.shape[1] * prod(kernel) * prod(out) * x.dtype.itemsize))
    for i in range(0, len(x), step):
        xs, ys = x[i : i + step], y[i : i + step]
        if need_dw or (need_dx and transposed):
            cols = columns(xs, kernel, stride, padding, dilation, groups, out)
            if dw is not None:
                dw += rows(ys, groups) @ cols.mT
            if dx is not None and transposed:
                dx[i : i + step] = unrows(w @ cols, len(xs), out)
        if dx is not None and not transposed:
            cols = w.mT @ rows(ys, groups)
            dx[i : i + step] = image(cols, len(xs), sizes, kernel, stride, padding, dilation, out)
    db = grad_output.sum(axis=(0, *range(2, grad_output.ndim))) if need_db else None
    results = (dx, None if dw is None else dw.reshape(weight.shape), db)
    dx, dw, db = (None if r is None else r.astype(t, copy=False) for r, t in zip(results, dtypes, strict=True))
    return dx, dw, db
