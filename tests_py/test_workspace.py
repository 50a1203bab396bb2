"""The scratch memory that plans state, over the shapes of the benchmark."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convbwd
from convbwd import _core

SHAPES = json.loads((Path(convbwd.__file__).parent / "_bench" / "shapes.json").read_text())

# What every problem may take, however small its im2col; more where operands are widened.
LEAST = {"float32": 64 << 10, "float16": 256 << 10}


def plan(shape: dict[str, Any], mask: tuple[bool, bool, bool], dtype: str = "float32") -> _core.Plan:
    """Plan a shape; the memory of the arrays is never touched."""
    a, b = shape["in_channels"], shape["out_channels"]
    weight = (a, b // shape["groups"]) if shape["transposed"] else (b, a // shape["groups"])
    arrays = [
        np.empty(size, dtype)
        for size in (
            (shape["n"], b, *shape["output"]),
            (shape["n"], a, *shape["input"]),
            (*weight, *shape["kernel"]),
        )
    ]
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return _core.Plan(*arrays, **{name: shape[name] for name in names}, output_mask=mask)


@pytest.mark.parametrize("dtype", LEAST)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_quarter_of_im2col_is_enough(threads: int, dtype: str) -> None:
    before = convbwd.get_num_threads()
    convbwd.set_num_threads(threads)
    try:
        for shape in SHAPES:
            if dtype == "float16" and shape["name"] == "p32":
                continue  # a tile has 1024 taps: no algorithm can work with so little
            channels, pixels = (
                (shape["out_channels"], shape["input"])
                if shape["transposed"]
                else (shape["in_channels"], shape["output"])
            )
            im2col = shape["n"] * channels * math.prod(shape["kernel"]) * math.prod(pixels) * 4
            for mask in ((True, False, False), (False, True, False), (False, False, True), (True, True, True)):
                stated = plan(shape, mask, dtype)
                assert stated.workspace_bytes <= max(im2col / 4, LEAST[dtype]), (shape["name"], mask, stated.explain())
    finally:
        convbwd.set_num_threads(before)
