"""Memory formats: the published offsets, the formulas of the documents, and round trips."""

import doctest
import itertools
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convbwd import _layouts, formats

VECTORS = json.loads((Path(__file__).parent / "layout_vectors.json").read_text())
FORMATS = {
    4: ("NCHW", "NHWC", "HWCN", "NC1HWC0", "FRACTAL_Z"),
    5: ("NCDHW", "NDHWC", "DHWCN", "NDC1HWC0", "FRACTAL_Z_3D"),
}
# (Cout, Cin / groups, groups) and what E, G1, C1 and N1 are at 16 lanes.
GROUPED = {
    (32, 1, 32): (16, 2, 1, 1),
    (48, 4, 12): (4, 3, 1, 1),
    (64, 16, 4): (1, 4, 1, 1),
    (6, 16, 3): (3, 1, 3, 1),
    (96, 24, 4): (2, 2, 3, 3),
    (30, 10, 3): (3, 1, 2, 2),
    (6, 5, 2): (2, 1, 1, 1),
}


def vector_name(vector: dict[str, Any]) -> str:
    shape = vector.get("NCDHW", vector.get("weight_NCDHW"))
    return f"{vector['kind']}-{'x'.join(map(str, shape))}-g{vector.get('groups', 1)}-c{vector['c0']}"


@pytest.mark.parametrize("vector", VECTORS, ids=vector_name)
def test_published_offsets(vector: dict[str, Any]) -> None:
    shape, c0, groups = vector.get("NCDHW", vector.get("weight_NCDHW")), vector["c0"], vector.get("groups", 1)
    dims = formats.shape_of(shape, vector["kind"], groups=groups, c0=c0)
    assert list(dims) == vector["dims"]
    x = np.arange(1, math.prod(shape) + 1, dtype=np.int32).reshape(shape)
    expected = np.zeros(math.prod(dims), np.int32)
    expected[vector["offset_of_linear_index"]] = x.ravel()
    np.testing.assert_array_equal(formats.pack(x, vector["kind"], groups=groups, c0=c0).ravel(), expected)


@pytest.mark.parametrize("case", GROUPED.items(), ids=str)
@pytest.mark.parametrize("lanes", [8, 16, 32])
def test_grouped_weights_are_block_diagonal(case: Any, lanes: int) -> None:
    (n, c, groups), at_sixteen = case
    d, h, w, per_group = 2, 3, 2, n // groups
    e = min(math.lcm(math.lcm(c, lanes) // c, math.lcm(per_group, 16) // per_group), groups)
    g1, c1, n1 = -(-groups // e), -(-e * c // lanes), -(-e * per_group // 16)
    if lanes == 16:
        assert (e, g1, c1, n1) == at_sixteen
    x = np.random.default_rng(0).integers(1, 1000, (n, c, d, h, w))
    expected = np.zeros(g1 * d * c1 * h * w * n1 * 16 * lanes, x.dtype)
    for i in np.ndindex(*x.shape):
        g, co, (ci, id_, ih, iw) = i[0] // per_group, i[0] % per_group, i[1:]
        dci, dco = g % e * c + ci, g % e * per_group + co
        row = (((g // e * d + id_) * c1 + dci // lanes) * h + ih) * w + iw
        expected[row * n1 * 16 * lanes + dco * lanes + dci % lanes] = x[i]
    packed = formats.pack(x, "FRACTAL_Z_3D", groups=groups, c0=lanes)
    assert packed.shape == (g1 * d * c1 * h * w, n1, 16, lanes)
    np.testing.assert_array_equal(packed.ravel(), expected)
    flat = formats.pack(np.ascontiguousarray(x[:, :, 0]), "FRACTAL_Z", groups=groups, c0=lanes)
    rest = packed.reshape(g1, d, -1)[:, 0]
    np.testing.assert_array_equal(flat.ravel(), rest.ravel())


@pytest.mark.parametrize("name", ["NHWC", "HWCN", "NDHWC", "DHWCN"])
def test_plain_formats_are_transpositions(name: str) -> None:
    plain = "NCDHW" if "D" in name else "NCHW"
    x = np.random.default_rng(0).random((3, 5, 2, 4, 3)[: len(plain)])
    np.testing.assert_array_equal(formats.pack(x, name), x.transpose([plain.index(axis) for axis in name]))


DTYPES = [np.int8, np.float16, np.float32, np.float64, ">f4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rank", "groups"), [(4, 1), (5, 1), (4, 3), (5, 12)])
def test_any_format_to_any_other(rank: int, groups: int, dtype: Any) -> None:
    shape = (24, 5, 2, 3, 2)[:rank]
    x = np.random.default_rng(1).integers(-8, 8, shape).astype(dtype)
    packed = {name: formats.pack(x, name, groups=groups) for name in FORMATS[rank]}
    for source, target in itertools.product(FORMATS[rank], repeat=2):
        got = formats.convert(packed[source], source, target, shape, groups=groups)
        assert got.dtype == x.dtype and got.shape == packed[target].shape
        assert got.tobytes() == packed[target].tobytes(), (source, target)
    for name, array in packed.items():
        assert formats.unpack(array, name, shape, groups=groups).tobytes() == x.tobytes()


def test_lanes_without_a_channel_become_zero() -> None:
    noise = np.full(formats.shape_of((1, 3, 2, 2), "NC1HWC0"), 7, np.float32)
    again = formats.convert(noise, "NC1HWC0", "NC1HWC0", (1, 3, 2, 2))
    assert (again[..., :3] == 7).all() and (again[..., 3:] == 0).all()


def test_strided_arrays() -> None:
    x = np.arange(480.0).reshape(2, 4, 3, 4, 5)
    for view in (x[:, ::-1], x.swapaxes(1, 4), x[..., ::2], np.broadcast_to(x[:, :1], x.shape)):
        np.testing.assert_array_equal(formats.pack(view, "NDC1HWC0"), formats.pack(view.copy(), "NDC1HWC0"))


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2)])
@pytest.mark.parametrize("name", FORMATS[4])
def test_empty_arrays(name: str, shape: tuple[int, ...]) -> None:
    packed = formats.pack(np.ones(shape), name)
    assert packed.size == 0
    assert formats.unpack(packed, name, shape).shape == shape


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: formats.pack(x, "NCWH"), ValueError, "a format must be one of NCHW, .*, got 'NCWH'"),
        (lambda x: formats.pack(x, "NDC1HWC0"), ValueError, "NDC1HWC0 must have 5 axes, got 4"),
        (lambda x: formats.pack(x[0], "NC1HWC0"), ValueError, "NCHW must have 4 axes, got 3"),
        (lambda x: formats.pack(x, "NC1HWC0", c0=0), ValueError, "c0 must be at least 1, got 0"),
        (lambda x: formats.pack(x, "FRACTAL_Z", groups=3), ValueError, "groups must divide the first axis = 4, got 3"),
        (lambda x: formats.pack(x, "FRACTAL_Z", groups=0), ValueError, "groups must divide"),
        (lambda x: formats.unpack(x, "NC1HWC0", x.shape), ValueError, "the array must have shape .* in NC1HWC0"),
        (lambda x: formats.shape_of((4, -1, 2, 2), "NHWC"), ValueError, "sizes must not be negative, got -1"),
        (lambda x: formats.shape_of((2**63, 1, 1, 1), "NC1HWC0"), ValueError, r"shape\[0\] must fit in 64 bits"),
        (lambda x: formats.shape_of(x.shape, "NHWC", c0=2**64), ValueError, "c0 must fit in 64 bits, got 1844674"),
        (lambda x: formats.shape_of(x.shape, None), TypeError, "format must be a string, got NoneType"),
        (lambda x: formats.shape_of((1.5, 1, 1, 1), "NHWC"), TypeError, r"shape\[0\] must be an int, got float"),
        (lambda x: formats.shape_of((2**40, 2**40, 2, 2), "NHWC"), ValueError, ".* less than 2\\*\\*63 elements"),
        (lambda x: formats.pack(x.astype(complex), "NHWC"), TypeError, "elements must have 1, 2, 4 or 8 bytes"),
        (lambda x: formats.pack(x.astype(object), "NHWC"), TypeError, "elements must have 1, 2, 4 or 8 bytes"),
    ],
)
def test_mistakes(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^formats: {message}"):
        call(np.ones((4, 3, 2, 2)))


def test_docstring_examples_run() -> None:
    tried = doctest.testmod(_layouts)
    assert tried.attempted > 0 and tried.failed == 0
