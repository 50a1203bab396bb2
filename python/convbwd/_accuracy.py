"""Measure the errors of gradients against float64, side by side with PyTorch's where it is installed."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convbwd import _core, _reference, formats
from convbwd._api import build_info, convolution_backward

# Bits of the mantissa (epsilon, the distance from 1 to the next number, is 2**-bits) and the least exponent that has
# them all; HiFloat8 loses bits away from 1.
DTYPES = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "float16": (10, -14),
    "bfloat16": (7, -126),
    "float8_e4m3fn": (3, -6),
    "hifloat8": (3, -22),
}
Operands = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
LENGTHS = (36, 288, 1152, 4608)  # products in a sum, multiples of 9 taps
CHANNELS = 32  # of the other side: enough for every algorithm that "auto" knows
SIZE = 18  # of an image


@dataclasses.dataclass(frozen=True)
class Row:
    """The error of one gradient, relative to its largest true value, in epsilons of its dtype."""

    result: str
    dtype: str
    length: int
    algorithm: str
    taken: str  # the pass that computed it
    largest: float
    rms: float
    of_bound: float  # the largest share that an element's error has of what the tests of "direct" allow it


def problem(result: str, length: int, rng: np.random.Generator) -> Operands:
    """Return grad_output, input, weight of a 3x3 convolution whose gradient sums so many products for an element."""
    if result == "grad_input":
        images, outputs, inputs, size = 1, length // 9, CHANNELS, SIZE
    else:
        size = min(SIZE, math.isqrt(length))
        images, outputs, inputs = length // size**2, CHANNELS, CHANNELS
    shapes = ((images, outputs, size, size), (images, inputs, size, size), (outputs, inputs, 3, 3))
    grad_output, input, weight = (rng.standard_normal(shape) for shape in shapes)
    return grad_output, input, weight


def exactly(operands: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Return the gradients of operands in wide arithmetic."""
    grad_output, input, weight = operands
    return _reference.convolution_backward(
        grad_output, input, weight, (1, 1), ((1, 1), (1, 1)), (1, 1), transposed=False, groups=1
    )


def half_step(magnitude: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return half the distance between neighbours of a dtype: what rounding to it changes at most."""
    bits, least = DTYPES[dtype]
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, least)
    distance = np.abs(exponent)
    kept = bits - (distance >= 4) - (distance >= 8) - (distance >= 16) if dtype == "hifloat8" else bits
    half: NDArray[Any] = np.ldexp(0.5, exponent - kept)
    return half


def measure(dtypes: Sequence[str] = tuple(DTYPES), lengths: Sequence[int] = LENGTHS) -> Iterator[Row]:
    """Yield a row for each gradient, dtype, length and algorithm; PyTorch is one where it is installed."""
    rng = np.random.default_rng(0)
    for result in ("grad_input", "grad_weight"):
        index = ("grad_input", "grad_weight").index(result)
        for dtype in dtypes:
            for length in lengths:
                grad_output, input, weight = (formats.cast(a, dtype) for a in problem(result, length, rng))
                operands = grad_output, input, weight
                codes = dtype if operands[0].dtype.kind == "u" else None
                wide = np.longdouble if dtype == "float64" else np.float64
                values = [formats.decode(a, codes).astype(wide) for a in operands]
                exact, magnitude = (exactly(v)[index] for v in (values, [np.abs(v) for v in values]))
                of = "float32" if index and dtype in ("float8_e4m3fn", "hifloat8") else dtype
                unit = 2.0 ** -DTYPES[of][0] * float(np.abs(exact).max())
                bound = (4 + math.sqrt(length)) * 2.0 ** (-52 if dtype == "float64" else -23) * magnitude
                if of not in ("float64", "float32"):
                    bound = bound + half_step((np.abs(exact) + bound).astype(np.float64), of)
                for algorithm, run in algorithms(operands, dtype, codes).items():
                    got = formats.decode(run()[index], of if codes and of == dtype else None)
                    error = np.abs(got - exact).astype(np.float64)
                    taken = pass_of(operands, result, algorithm, codes)
                    rms = math.sqrt(float(np.mean(error**2)))
                    share = float((error / np.where(bound > 0, bound, 1)).max())
                    yield Row(result, dtype, length, algorithm, taken, float(error.max()) / unit, rms / unit, share)


def algorithms(operands: Operands, dtype: str, codes: str | None) -> dict[str, Callable[[], Any]]:
    """Return what computes the gradients of these operands, by name."""
    names = ["auto", "direct", "reference", *(["blas"] if build_info()["blas"] != "none" else [])]

    def ours(name: str) -> Callable[[], Any]:
        mask = (True, True, False)
        return lambda: convolution_backward(*operands, padding=1, output_mask=mask, algorithm=name, dtype=codes)

    found = {name: ours(name) for name in names}
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return found
    if dtype in ("float64", "float32", "float16", "bfloat16"):
        tensors = [torch.from_numpy(formats.decode(a, codes)).to(getattr(torch, dtype)) for a in operands]
        arguments = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])

        def theirs() -> list[Any]:
            gradients = torch.ops.aten.convolution_backward(*tensors, *arguments)
            return [g.to(torch.float64).numpy() for g in gradients[:2]]

        found["torch"] = theirs
    return found


def pass_of(operands: Operands, result: str, algorithm: str, codes: str | None) -> str:
    """Return the name of the pass that computes a gradient."""
    if algorithm == "torch":
        return ""
    explained = _core.Plan(*operands, padding=1, algorithm=algorithm, dtype=codes).explain()
    line = next(line for line in explained.splitlines() if line.startswith(f"{result}: "))
    return line.removeprefix(f"{result}: ").partition(" ")[0].rstrip(":")


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    header = ("result", "dtype", "products", "algorithm", "pass", "max", "rms", "of bound")
    cells = [
        (r.result, r.dtype, str(r.length), r.algorithm, r.taken, *(f"{v:.3g}" for v in (r.largest, r.rms, r.of_bound)))
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    print(
        "errors relative to the largest true value, in epsilons of the result's dtype; of bound: see docs/accuracy.md"
    )
    for line in (header, *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def plot(rows: Sequence[Row], file: str) -> None:
    """Draw the largest errors over the number of products, a panel for each gradient and dtype."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dtypes, results = list(dict.fromkeys(r.dtype for r in rows)), list(dict.fromkeys(r.result for r in rows))
    figure = Figure(figsize=(3.2 * len(dtypes), 3 * len(results)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(results), len(dtypes), squeeze=False, sharex=True, sharey=True)
    for panel, (result, dtype) in zip(panels.flat, ((r, d) for r in results for d in dtypes), strict=True):
        mine = [r for r in rows if (r.result, r.dtype) == (result, dtype)]
        for name in dict.fromkeys(r.algorithm for r in mine):
            line = [r for r in mine if r.algorithm == name]
            style = "--" if name == "torch" else "-"
            panel.loglog([r.length for r in line], [r.largest for r in line], style, marker=".", label=name)
        panel.set_title(f"{result}, {dtype}", fontsize="small")
    for panel in panels[-1]:
        panel.set_xlabel("products in a sum")
    for panel in panels[:, 0]:
        panel.set_ylabel("largest error / epsilon")
    panels[0, 0].legend(fontsize="x-small")
    figure.savefig(file, dpi=120)


def main(file: str | None) -> None:
    """Measure, print the table and draw the plot if a file for it is named."""
    rows = list(measure())
    show(rows)
    if file is not None:
        plot(rows, file)
