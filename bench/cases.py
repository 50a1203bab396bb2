"""The shapes that the benchmarks run over, read from JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DEFAULT_SHAPES = HERE / "shapes.json"


@dataclass(frozen=True)
class Case:
    """One convolution; sizes are spatial only, as in the JSON file."""

    family: str
    n: int
    groups: int
    in_channels: int
    out_channels: int
    input: list[int]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    source: str = ""
    name: str = ""

    @property
    def output(self) -> list[int]:
        """Sizes as the call gives them; a list of shapes may state others, for padding that differs between sides."""
        window = zip(
            self.input, self.kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True
        )
        if self.transposed:
            return [(i - 1) * s - 2 * p + d * (k - 1) + op + 1 for i, k, s, p, d, op in window]
        return [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d, op in window]

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
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
    def options(self) -> dict[str, Any]:
        """The keyword arguments of convbwd.convolution_backward."""
        names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        return {name: getattr(self, name) for name in names}

    @property
    def windows(self) -> int:
        """Positions of the window in one image."""
        return prod(self.input if self.transposed else self.output)

    @property
    def im2col_bytes(self) -> int:
        """Size of the full im2col matrix in float32."""
        channels = self.out_channels if self.transposed else self.in_channels
        return 4 * self.n * channels * prod(self.kernel) * self.windows

    @property
    def flops(self) -> int:
        """Operations of one pass (dx or dw), taps in padding included."""
        products = self.in_channels * self.out_channels // self.groups * prod(self.kernel)
        return 2 * self.n * products * self.windows

    @property
    def problem(self) -> str:
        """The problem string of csrc/conv/problem.h: three dimensions, transposed by exchanging input and output."""
        x, y, ci, co = self.input, self.output, self.in_channels // self.groups, self.out_channels // self.groups
        if self.transposed:
            x, y, ci, co = y, x, co, ci

        def sizes(values: list[int], fill: int) -> str:
            return "x".join(map(str, [fill] * (3 - len(values)) + values))

        return (
            f"n{self.n}g{self.groups}ci{ci}x{sizes(x, 1)}co{co}y{sizes(y, 1)}k{sizes(self.kernel, 1)}"
            f"s{sizes(self.stride, 1)}d{sizes(self.dilation, 1)}p{sizes(self.padding, 0)}"
        )

    def arrays(self, dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
        """grad_output, input and weight, normally distributed."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in self.shapes]


def load_cases(path: Path, families: list[str] | None = None) -> list[Case]:
    """Read the cases of a JSON file, of some families or of all."""
    names = {field.name for field in fields(Case)}
    cases = [Case(**{k: v for k, v in entry.items() if k in names}) for entry in json.loads(path.read_text())]
    return [case for case in cases if families is None or case.family in families]
