"""The convolutions that are measured: from a JSON list of shapes or from problem strings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from convbwd import _core

GATE_SHAPES = Path(__file__).with_name("shapes.json")
SYNTAX = "[transposed:][n2][g1]ci16x14x14co32[y14x14]k3x3[s1x1][d1x1][p1x1]"

Array: TypeAlias = NDArray[Any]
Operands: TypeAlias = tuple[Array, Array, Array]  # grad_output, input, weight
Mask: TypeAlias = tuple[bool, bool, bool]  # of dx, dw, db
Ints: TypeAlias = tuple[int, ...]

_SIZES = r"\d+(?:x\d+)*"
_PROBLEM = re.compile(
    rf"(?P<transposed>transposed:)?(?:n(?P<n>\d+))?(?:g(?P<g>\d+))?ci(?P<ci>\d+)x(?P<x>{_SIZES})co(?P<co>\d+)"
    rf"(?:y(?P<y>{_SIZES}))?k(?P<k>{_SIZES})(?:s(?P<s>{_SIZES}))?(?:d(?P<d>{_SIZES}))?(?:p(?P<p>{_SIZES}))?"
)


@dataclass(frozen=True)
class Case:
    """One convolution as the user of `convbwd.convolution_backward` sees it; sizes are the spatial ones."""

    n: int
    groups: int
    in_channels: int
    out_channels: int
    input: Ints
    kernel: Ints
    stride: Ints
    padding: tuple[tuple[int, int], ...]  # before and after
    dilation: Ints
    transposed: bool = False
    output_padding: Ints = ()
    family: str = "given"
    source: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no size."""
        sizes = (self.n, self.groups, self.in_channels, self.out_channels, *self.input, *self.kernel)
        if wrong := [size for size in sizes if not 1 <= size < 2**31]:
            raise ValueError(f"all sizes must be at least 1 and less than 2**31, got {wrong[0]}")

    @property
    def output(self) -> Ints:
        """Sizes of the output."""
        extra = self.output_padding or (0,) * len(self.input)
        window = zip(self.input, self.kernel, self.stride, self.padding, self.dilation, extra, strict=True)
        if self.transposed:
            return tuple((i - 1) * s - sum(p) + d * (k - 1) + op + 1 for i, k, s, p, d, op in window)
        return tuple((i + sum(p) - d * (k - 1) - 1) // s + 1 for i, k, s, p, d, _ in window)

    @property
    def shapes(self) -> tuple[Ints, Ints, Ints]:
        """Shapes of grad_output, input and weight."""
        rows, columns = self.out_channels, self.in_channels
        if self.transposed:
            rows, columns = columns, rows
        return (
            (self.n, self.out_channels, *self.output),
            (self.n, self.in_channels, *self.input),
            (rows, columns // self.groups, *self.kernel),
        )

    @property
    def symmetric(self) -> bool:
        """Whether there is as much padding after as before, in every dimension."""
        return all(before == after for before, after in self.padding)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `convbwd.convolution_backward` that describe the convolution."""
        names = ("stride", "dilation", "transposed", "output_padding", "groups")
        options = {name: getattr(self, name) for name in names}
        options["output_padding"] = self.output_padding or 0
        options["padding"] = tuple(before for before, _ in self.padding) if self.symmetric else self.padding
        return options

    @property
    def geometry(self) -> dict[str, Any]:
        """The same for the functions of `convbwd._im2col` and `convbwd._reference`."""
        names = ("stride", "padding", "dilation", "transposed", "groups")
        return {name: getattr(self, name) for name in names}

    @property
    def _windows(self) -> tuple[Ints, Ints]:
        """Sizes of the image that the windows lie on, and their numbers: exchanged where it is transposed."""
        return (self.output, self.input) if self.transposed else (self.input, self.output)

    @cached_property
    def products(self) -> int:
        """Products of one pass (dx or dw), those with padding left out."""
        images, windows = self._windows
        taps = 1
        for x, y, k, s, d, (p, _) in zip(
            images, windows, self.kernel, self.stride, self.dilation, self.padding, strict=True
        ):
            position = np.arange(y)[:, None] * s + np.arange(k) * d - p
            taps *= int(np.count_nonzero((position >= 0) & (position < x)))
        return self.n * self.in_channels * self.out_channels // self.groups * taps

    def flops(self, mask: Mask = (True, True, True)) -> int:
        """Operations of the gradients asked for: two a product; the sums of the bias gradient are not counted."""
        return 2 * self.products * (mask[0] + mask[1])

    def nbytes(self, itemsize: int, mask: Mask = (True, True, True)) -> int:
        """Bytes that must be moved at least: each operand read once, each result written once."""
        grad_output, x, weight = (prod(shape) for shape in self.shapes)
        dx, dw, db = mask
        count = grad_output + (weight + x if dx else 0) + (x + weight if dw else 0) + (self.out_channels if db else 0)
        return itemsize * count

    @property
    def im2col_bytes(self) -> int:
        """Size of the full im2col matrix in float32."""
        channels = self.out_channels if self.transposed else self.in_channels
        return 4 * self.n * channels * prod(self.kernel) * prod(self._windows[1])

    @property
    def problem(self) -> str:
        """The problem string in full: three dimensions; transposed, that of the convolution whose transpose it is."""
        x, y = self._windows
        ci, co = self.in_channels // self.groups, self.out_channels // self.groups
        if self.transposed:
            ci, co = co, ci

        def sizes(values: Ints, fill: int) -> str:
            return "x".join(map(str, (fill,) * (3 - len(values)) + values))

        return (
            f"{'transposed:' if self.transposed else ''}n{self.n}g{self.groups}ci{ci}x{sizes(x, 1)}co{co}"
            f"y{sizes(y, 1)}k{sizes(self.kernel, 1)}s{sizes(self.stride, 1)}d{sizes(self.dilation, 1)}"
            f"p{sizes(tuple(before for before, _ in self.padding), 0)}"
        )

    def with_batch(self, n: int) -> Case:
        """Return the same convolution of n images."""
        return replace(self, n=n)

    def arrays(self, dtype: Any = np.float32) -> Operands:
        """grad_output, input and weight, normally distributed."""
        rng = np.random.default_rng(0)
        dy, x, w = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in self.shapes)
        return dy, x, w

    def stand_ins(self, dtype: np.dtype[Any]) -> Operands:
        """grad_output, input and weight without memory, to plan with."""
        dy, x, w = (_core.stand_in(dtype, shape) for shape in self.shapes)
        return dy, x, w


def parse_problem(text: str) -> Case:
    """
    Read a problem string, such as the library's own C++ tests and benchmarks use.

    Parameters
    ----------
    text : str
        ``n2g1ci16x14x14co32y14x14k3x3s1x1d1x1p1x1``: images, groups, channels **of a group** and sizes of the input,
        channels of a group and sizes of the output, kernel, stride, dilation, zeros before the first element; the
        spatial sizes of 1, 2 or 3 dimensions. n, g, y, s, d and p may be left out, and a single number stands for all
        dimensions. What is said of the end of the padding, or of output_padding, is the y: as much padding as before,
        if y can be had with that. Behind ``transposed:`` it is the transpose of the convolution, whose input
        has the sizes y and whose output has the sizes x. Leading dimensions in which nothing happens are dropped.

    Raises
    ------
    ValueError
        If the text is not of this form, or there is no such convolution.
    """
    match = _PROBLEM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a problem string must be like {SYNTAX}, got {text!r}")
    x = tuple(map(int, match["x"].split("x")))
    dims = len(x)

    def sizes(field: str, least: int) -> Ints:
        given = tuple(map(int, (match[field] or str(least)).split("x")))
        given *= dims if len(given) == 1 else 1
        if len(given) != dims:
            raise ValueError(f"{field} must have 1 or {dims} numbers as the sizes of x, got {match[field]} ({text})")
        if min(given) < least:
            raise ValueError(f"{field} must be at least {least}, got {match[field]} ({text})")
        return given

    if dims > 3:
        raise ValueError(f"x must have 1, 2 or 3 sizes, got {dims} ({text})")
    kernel, stride, dilation, before = sizes("k", 1), sizes("s", 1), sizes("d", 1), sizes("p", 0)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    natural = tuple((i + 2 * p - r) // s + 1 for i, p, r, s in zip(x, before, reach, stride, strict=True))
    y = sizes("y", 1) if match["y"] else natural
    n, g, ci, co = (int(match[field] or 1) for field in ("n", "g", "ci", "co"))
    if min(n, g, ci, co, *x, *y) < 1:
        raise ValueError(f"all sizes must be at least 1, got x {x}, y {y}, n {n}, g {g}, ci {ci}, co {co} ({text})")

    transposed = match["transposed"] is not None
    after, extra = [], []
    for i, o, natural_o, r, s, d, p in zip(x, y, natural, reach, stride, dilation, before, strict=True):
        covered = (o - 1) * s + r - p  # from the first element on
        end = p if o == natural_o else max(covered - i, 0)
        rest = i + end - covered  # elements behind the last window
        if rest >= (max(s, d) if transposed else s):
            raise ValueError(f"y must be at least {(i + p - r) // s + 1} for an x of {i}, got {o} ({text})")
        after.append(end)
        extra.append(rest if transposed else 0)

    while dims > 1 and (x[0], y[0], kernel[0], stride[0], dilation[0], before[0], after[0]) == (1, 1, 1, 1, 1, 0, 0):
        x, y, kernel, stride, dilation, before = (v[1:] for v in (x, y, kernel, stride, dilation, before))
        after, extra, dims = after[1:], extra[1:], dims - 1
    channels, sizes_of_input = ((co, ci), y) if transposed else ((ci, co), x)
    return Case(
        n=n, groups=g, in_channels=g * channels[0], out_channels=g * channels[1], input=sizes_of_input, kernel=kernel,
        stride=stride, padding=tuple(zip(before, after, strict=True)), dilation=dilation, transposed=transposed,
        output_padding=tuple(extra) if transposed else (),
    )  # fmt: skip


def load_cases(path: Path = GATE_SHAPES, families: Sequence[str] | None = None) -> list[Case]:
    """Read the cases of a JSON list of shapes, of some families or of all, in the order of the families' names."""
    try:
        entries = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} must hold JSON: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path} must hold a list of shapes, got {entries!r}")
    cases = []
    for i, entry in enumerate(entries):
        try:
            cases.append(_from_json(entry))
        except ValueError as error:
            raise ValueError(f"{path}: shape {i}: {error}") from error
    known = sorted({case.family for case in cases})
    for family in families or ():
        if family not in known:
            raise ValueError(f"{path} has no family {family}; it has {', '.join(known)}")
    return sorted((case for case in cases if families is None or case.family in families), key=lambda c: c.family)


def _from_json(entry: Any) -> Case:
    kinds = {
        **dict.fromkeys(("n", "groups", "in_channels", "out_channels"), int),
        **dict.fromkeys(("input", "kernel", "stride", "padding", "dilation", "output_padding"), list),
        **{"transposed": bool, "family": str, "source": str, "name": str},
    }
    if not isinstance(entry, dict):
        raise ValueError(f"it must be an object, got {entry!r}")
    if missing := [name for name in kinds if name not in entry]:
        raise ValueError(f"it must have {', '.join(missing)}")
    arguments = {name: entry[name] for name in kinds}
    for name, value in arguments.items():
        of_ints = type(value) is not list or all(type(one) is int for one in value)
        if type(value) is not kinds[name] or not of_ints:
            kind = "a list of int" if kinds[name] is list else f"of type {kinds[name].__name__}"
            raise ValueError(f"{name} must be {kind}, got {value!r}")
        if type(value) is list:
            arguments[name] = tuple(value)
            if len(value) != len(entry["input"]) and (name != "output_padding" or value):
                raise ValueError(f"{name} must have as many numbers as input, got {value}")
    arguments["padding"] = tuple((p, p) for p in entry["padding"])
    case = Case(**arguments)
    _, x, w = case.stand_ins(np.dtype(np.float32))
    _core.output(x, w, **case.options, algorithm="reference")  # raises what is wrong with the convolution
    return case
