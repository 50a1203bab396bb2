"""Right before fast: results compared with im2col in float64."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

import numpy as np

import convbwd
from convbwd import _im2col
from convbwd._bench.problem import Case, Operands

# What keeps the bound of each element, as convolution_backward documents; other choices keep it for a result as a
# whole, that is for the root of the sum of squares.
ELEMENTWISE = ({"algorithm": "direct"}, {"algorithm": "reference"}, {"precision": "strict"})


def verify(case: Case, arrays: Operands, keywords: Mapping[str, Any]) -> list[str]:
    """
    Compare all three gradients with those of im2col in float64.

    The bound of an element is (4 + sqrt(K)) * eps times the convolution of the absolute values, K products being
    summed; 16-bit results may also round once.

    Returns
    -------
    list of str
        What is off, a sentence each.
    """
    dy, x, w = (a.astype(np.float64) for a in arrays)
    exact = _im2col.convolution_backward(dy, x, w, **case.geometry)
    scale = _im2col.convolution_backward(abs(dy), abs(x), abs(w), **case.geometry)
    results = convbwd.convolution_backward(*arrays, **{**case.options, **keywords})
    (n, channels, *out), sizes = case.shapes[0], case.input if case.transposed else case.output
    lengths = channels // case.groups * prod(case.kernel), n * prod(sizes), n * prod(out)
    dtype = arrays[0].dtype
    eps = float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps)
    elementwise = any(keywords.get(k) == v for choice in ELEMENTWISE for k, v in choice.items())
    failures = []
    for name, result, e, s, length in zip(("dx", "dw", "db"), results, exact, scale, lengths, strict=True):
        assert result is not None and e is not None and s is not None
        bound = (4 + sqrt(length)) * eps * s
        if dtype == np.float64:
            bound *= 2  # im2col's own error
        elif dtype.itemsize == 2:
            bound += np.abs(e) * (2.0**-11 if dtype == np.float16 else 2.0**-8) * 1.01 + 6e-8
        error = np.abs(result.astype(np.float64) - e)
        excess = np.max(error - bound) if elementwise else np.linalg.norm(error) - np.linalg.norm(bound)
        if not excess <= 0:
            whole = "" if elementwise else " as a whole"
            failures.append(f"{name} of {case.problem}{whole} is off by {excess:.3g} more than its bound")
    return failures
