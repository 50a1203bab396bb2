#!/usr/bin/env python3
"""Measure the errors of every algorithm over the shapes of the benchmark, beside PyTorch's. See bench/README.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

import convbwd
from convbwd import _accuracy, _im2col, formats
from convbwd._bench import command, sides
from convbwd._bench.problem import Array, Case, load_cases
from convbwd._bench.report import Output

DTYPES = ("float32", "float16", "bfloat16")
RESULTS = ("grad_input", "grad_weight")
# Errors, in epsilons, below which PyTorch's are chance: those of sums of a dozen products.
FLOOR = 1.0, 0.25


class Choice(NamedTuple):
    """A way of computing: what is asked for, the pass that must serve, and what its errors must keep."""

    keywords: dict[str, str]
    serves: str  # a word that the plan must say of the result; "" where any will do
    most: float  # times PyTorch's errors, the largest and the root mean square
    elements: bool  # whether the bound of each element holds


CHOICES = {
    "direct": Choice({"algorithm": "direct"}, "", 1.5, True),
    "strict": Choice({"precision": "strict"}, "", 1.5, True),
    "default": Choice({}, "", 1.5, False),
    "fast": Choice({"precision": "fast"}, "", 5, False),
    "matrix": Choice({"algorithm": "matrix"}, "matrix", 1.5, False),
    "matrix, strict": Choice({"algorithm": "matrix", "precision": "strict"}, "matrix", 1.5, True),
    "winograd": Choice({"algorithm": "winograd"}, "winograd", 1.5, False),
    "winograd, fast": Choice({"algorithm": "winograd", "precision": "fast"}, "winograd", 5, False),
}


class Error(NamedTuple):
    """Errors of a result relative to its largest true value, and the largest part of its bound that an element has."""

    largest: float
    rms: float
    of_bound: float


class Row(NamedTuple):
    """The errors of one choice beside PyTorch's."""

    case: Case
    dtype: str
    result: str
    choice: str
    ours: Error
    torch: Error

    @property
    def eps(self) -> float:
        """The epsilon of the dtype."""
        return 2.0 ** -_accuracy.DTYPES[self.dtype][0]

    @property
    def ratio(self) -> float:
        """How many times PyTorch's the errors are, whichever is worse."""
        largest, rms = max(self.torch.largest, FLOOR[0] * self.eps), max(self.torch.rms, FLOOR[1] * self.eps)
        return max(self.ours.largest / largest, self.ours.rms / rms)

    @property
    def kept(self) -> bool:
        """Whether the choice keeps what it must; the rounding of a 16-bit result hides all but the bound."""
        choice = CHOICES[self.choice]
        if self.dtype != "float32" or choice.elements:
            return self.ours.of_bound <= 1
        return self.ratio <= choice.most


def error_of(got: Array, exact: Array, bound: Array) -> Error:
    """Compare a result with the truth."""
    error = np.abs(got.astype(np.float64) - exact)
    largest = float(np.abs(exact).max())
    share = float((error / np.where(bound > 0, bound, np.where(error > 0, 1e-300, 1))).max())
    return Error(float(error.max()) / largest, sqrt(float(np.mean(error**2))) / largest, share)


def measure(case: Case, dtype: str, rectified: bool = False) -> Iterator[Row]:
    """Yield the errors of each choice that serves a gradient, for normal (or rectified) operands."""
    dy, x, w = (formats.cast(a, dtype) for a in case.arrays())
    if rectified:
        dy, x = np.maximum(dy, 0), np.maximum(x, 0)
    values = [a.astype(np.float64) for a in (dy, x, w)]
    exact = _im2col.convolution_backward(*values, **case.geometry, mask=(True, True, False))
    scale = _im2col.convolution_backward(*map(np.abs, values), **case.geometry, mask=(True, True, False))
    (n, channels, *_), sizes = case.shapes[0], case.input if case.transposed else case.output
    lengths = channels // case.groups * prod(case.kernel), n * prod(sizes)
    bounds = []
    for e, s, length in zip(exact, scale, lengths, strict=False):
        assert e is not None and s is not None
        bound = (4 + sqrt(length)) * 2.0**-23 * s
        bounds.append(bound if dtype == "float32" else bound + _accuracy.half_step(np.abs(e) + bound, dtype))
    theirs = sides.to_numpy(sides.torch(1)(case, (dy, x, w)).call((True, True, False)))
    torch = [error_of(*triple) for triple in zip(theirs, exact, bounds, strict=False)]
    for name, choice in CHOICES.items():
        keywords: dict[str, Any] = {**case.options, **choice.keywords, "output_mask": (True, True, False)}
        plan = convbwd.plan(dy, x, w, **keywords).explain()
        serving = [f"{r}: {choice.serves}" in plan for r in RESULTS]
        if any(serving):
            results = convbwd.convolution_backward(dy, x, w, **keywords)
            for i in np.flatnonzero(serving):
                yield Row(case, dtype, RESULTS[i], name, error_of(results[i], exact[i], bounds[i]), torch[i])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    command.add_shapes(parser)
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES, help="(default: all three)")
    parser.add_argument("--rectified", action="store_true", help="images without negative values")
    options = parser.parse_args()
    rows = []
    with command.refusals(parser):
        for case, dtype in product(load_cases(options.shapes, options.family), options.dtype):
            for row in measure(case, dtype, options.rectified):
                rows.append(row)
                if not row.kept:
                    print(
                        f"{row.choice} {row.dtype} {row.result} of {case.problem}: {row.ratio:.2f} times PyTorch's "
                        f"error, {row.ours.of_bound:.2f} of the bound",
                        flush=True,
                    )
    table = []
    for key in dict.fromkeys((r.dtype, r.result, r.choice) for r in rows):
        mine = [r for r in rows if (r.dtype, r.result, r.choice) == key]
        worst = [max(r.ours.largest for r in mine), max(r.ours.rms for r in mine), max(r.torch.largest for r in mine)]
        table.append(
            [*key, str(len(mine)), *(f"{v / mine[0].eps:.2f}" for v in worst), f"{max(r.ratio for r in mine):.2f}",
             f"{max(r.ours.of_bound for r in mine):.2f}", f"{max(r.torch.of_bound for r in mine):.2f}"]
        )  # fmt: skip
    columns = ["dtype", "result", "choice", "shapes", "largest", "rms", "PyTorch's largest", "times PyTorch's",
               "of bound", "PyTorch's of bound"]  # fmt: skip
    Output().table("Errors relative to the largest true value, in epsilons; the worst of all shapes", columns, table)
    if any(not r.kept for r in rows):
        sys.exit("not every choice kept what it must")


if __name__ == "__main__":
    main()
