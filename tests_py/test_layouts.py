"""Memory layouts of the operands and data formats: what they say must not change what comes out."""

from collections.abc import Iterator

import numpy as np
import pytest

import convbwd
from cases import DTYPES, FORMATS, LAYOUTS, arrange

SHAPES = {"input": (2, 4, 9, 8), "weight": (6, 2, 3, 2), "grad_output": (2, 6, 5, 4)}
GEOMETRY = {"stride": 2, "padding": ((1, 1), (0, 1)), "groups": 2}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("operand", SHAPES)
@pytest.mark.parametrize("layout", sorted({*LAYOUTS} - {"contiguous", "broadcast"}))
def test_layout_keeps_the_bits(rng: np.random.Generator, layout: str, operand: str, dtype: np.dtype) -> None:
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}
    plain = convbwd.convolution_backward(**arrays, **GEOMETRY)
    arrays[operand] = arrange(rng, arrays[operand], dtype, layout)
    for a, b in zip(plain, convbwd.convolution_backward(**arrays, **GEOMETRY), strict=True):
        assert a is not None and b is not None and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("operand", SHAPES)
def test_zero_strides(rng: np.random.Generator, operand: str) -> None:
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    for axes in ((0,), (1,), (2, 3), (0, 1, 2, 3)):
        once = arrays[operand][tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
        arrays[operand] = np.broadcast_to(once, SHAPES[operand])
        expanded = convbwd.convolution_backward(**arrays, **GEOMETRY)
        arrays[operand] = np.ascontiguousarray(arrays[operand])
        for a, b in zip(expanded, convbwd.convolution_backward(**arrays, **GEOMETRY), strict=True):
            assert a is not None and b is not None and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("size_one_axis", range(4))
def test_strides_of_axes_of_size_one_are_meaningless(size_one_axis: int) -> None:
    shapes = {
        name: tuple(1 if axis == size_one_axis else 3 for axis in range(4)) for name in ("input", "grad_output")
    } | {"weight": (1 if size_one_axis == 1 else 3,) * 2 + (1, 1)}
    strange = {}
    for name, shape in shapes.items():
        plain = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        strides = [1 << 40 if size == 1 else stride for size, stride in zip(shape, plain.strides, strict=True)]
        strange[name] = (plain, np.lib.stride_tricks.as_strided(plain, shape, strides))
    expected = convbwd.convolution_backward(**{name: pair[0] for name, pair in strange.items()})
    for a, b in zip(expected, convbwd.convolution_backward(**{n: p[1] for n, p in strange.items()}), strict=True):
        np.testing.assert_array_equal(a, b)


def test_operands_may_be_the_same_memory() -> None:
    a = np.arange(16.0).reshape(1, 1, 4, 4)
    expected = convbwd.convolution_backward(a.copy(), a.copy(), a[:, :, :1, :1].copy())
    for got, want in zip(convbwd.convolution_backward(a, a, a[:, :, :1, :1]), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("data_format", ["NLC", "NWC", "NHWC", "NDHWC"])
def test_channels_last(
    rng: np.random.Generator, data_format: str, transposed: bool, batched: bool, dtype: np.dtype
) -> None:
    n = len(data_format) - 2
    size, kernel = (6, 5, 4)[:n], (3, 2, 2)[:n]
    args = {"stride": 2, "transposed": transposed, "groups": 2}
    w = rng.integers(-3, 4, ((4, 3) if transposed else (6, 2)) + kernel).astype(dtype)
    x = rng.integers(-3, 4, (2, 4, *size)[not batched :]).astype(dtype)
    y = convbwd.convolution(x, w, data_format=FORMATS[n][0], **args)
    first = convbwd.convolution_backward(y, x, w, **args)

    def last(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(a, -n - 1, -1))

    got = convbwd.convolution(last(x), w, data_format=data_format, **args)
    np.testing.assert_array_equal(got, last(y))
    dx, dw, db = convbwd.convolution_backward(last(y), last(x), w, data_format=data_format, **args)
    for result, expected in ((dx, last(first[0])), (dw, first[1]), (db, first[2])):
        assert result is not None and result.flags.c_contiguous
        np.testing.assert_array_equal(result, expected)


# Input, weight and options of problems that are brought in and stored in all ways.
LAST = {
    "depthwise": ((2, 21, 14, 13), (21, 1, 3, 3), {"padding": 1, "groups": 21}),
    "depthwise, several sums": ((1, 32, 17, 15), (32, 1, 8, 8), {"padding": 3, "groups": 32}),
    "depthwise, steps": ((2, 40, 15, 18), (40, 1, 3, 2), {"stride": 2, "groups": 40}),
    "depthwise, wide windows": ((2, 48, 9, 8), (48, 1, 7, 7), {"padding": 3, "groups": 48}),
    "depthwise, few channels": ((1, 6, 30, 40), (6, 1, 5, 5), {"padding": 2, "groups": 6}),
    "depthwise, two results": ((2, 9, 12, 11), (18, 1, 3, 3), {"groups": 9}),
    "depthwise, large planes": ((1, 17, 130, 120), (17, 1, 3, 3), {"padding": 1, "groups": 17}),
    "depthwise, one row of taps": ((1, 51, 14, 21), (51, 1, 1, 5), {"padding": ((0, 2), (2, 2)), "groups": 51}),
    "depthwise, signals": ((2, 33, 400), (33, 1, 5), {"padding": 2, "groups": 33}),
    "depthwise, volumes": ((1, 18, 5, 7, 9), (18, 1, 3, 3, 3), {"padding": 1, "groups": 18}),
    "depthwise, transposed": ((2, 20, 9, 8), (20, 1, 4, 4), {"stride": 2, "groups": 20, "transposed": True}),
    "groups": ((2, 24, 20, 21), (30, 4, 3, 3), {"padding": 1, "groups": 6}),
    "few channels": ((1, 3, 40, 41), (16, 3, 3, 3), {"stride": 2}),
    "one channel": ((2, 1, 30, 31), (8, 1, 3, 3), {"padding": 1}),
    "one result": ((2, 8, 30, 31), (1, 8, 5, 5), {}),
    "patches": ((2, 3, 33, 35), (20, 3, 4, 4), {"stride": 4, "padding": ((1, 2), (2, 3))}),
    "patches of many channels": ((1, 37, 8, 8), (20, 37, 2, 2), {"stride": 2, "padding": ((1, 1), (0, 0))}),
    "holes": ((2, 20, 13, 13), (24, 20, 1, 1), {"stride": (2, 3)}),
    "holes, depthwise": ((1, 20, 23, 23), (20, 1, 2, 2), {"stride": 7, "groups": 20}),
    "pointwise": ((2, 24, 17, 17), (40, 24, 1, 1), {}),
    "pointwise, sums in parts": ((1, 22, 25, 37), (284, 22, 1, 1), {}),
    "dense": ((2, 20, 12, 12), (24, 20, 3, 3), {"padding": 1}),
}


def last_with_gaps(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an array with channels last and NaN between the channels of its pixels, and the memory of both."""
    memory = np.full((a.shape[0], *a.shape[2:], a.shape[1] + 3), np.nan, a.dtype)
    view = np.moveaxis(memory[..., :-3], -1, 1)
    view[...] = a
    return view, memory


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = convbwd.get_num_threads()
    convbwd.set_num_threads(request.param)
    yield
    convbwd.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("problem", LAST.values(), ids=LAST)
def test_channels_last_keep_the_bits(
    rng: np.random.Generator, problem: tuple[tuple[int, ...], tuple[int, ...], dict], dtype: type
) -> None:
    size, kernel, args = problem
    x, w = rng.standard_normal(size).astype(dtype), rng.standard_normal(kernel).astype(dtype)
    bias = rng.standard_normal(w.shape[1] * args["groups"] if args.get("transposed") else w.shape[0]).astype(dtype)
    y = convbwd.convolution(x, w, bias, **args)
    dy = rng.standard_normal(y.shape).astype(dtype)
    expected = convbwd.convolution_backward(dy, x, w, **args)
    dy_last, x_last = last_with_gaps(dy)[0], last_with_gaps(x)[0]
    assert np.ascontiguousarray(convbwd.convolution(x_last, w, bias, **args)).tobytes() == y.tobytes()
    for operands in ((dy_last, x_last), (dy, x_last), (dy_last, x)):
        dx, memory = last_with_gaps(np.zeros_like(x))
        results = convbwd.convolution_backward(*operands, w, out=(dx, None, None), **args)
        for result, want in zip(results, expected, strict=True):
            assert result is not None and want is not None
            assert np.ascontiguousarray(result).tobytes() == want.tobytes()
        assert np.isnan(memory[..., -3:]).all()
    images = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (dy, x))
    last, *others = convbwd.convolution_backward(*images, w, data_format=FORMATS[x.ndim - 2][1], **args)
    assert last is not None
    for result, want in zip((np.moveaxis(last, -1, 1), *others), expected, strict=True):
        assert result is not None and want is not None
        assert np.ascontiguousarray(result).tobytes() == want.tobytes()


@pytest.mark.parametrize("width", [496, 1008])
@pytest.mark.parametrize("taps", [7, 13])
def test_what_is_not_finite_in_one_group_changes_no_other(rng: np.random.Generator, taps: int, width: int) -> None:
    x, w = rng.standard_normal((1, 16, width)).astype(np.float32), np.ones((16, 1, taps), np.float32)
    dy = rng.standard_normal((1, 16, width - taps + 1)).astype(np.float32)
    x[:, 1, 0] = np.inf
    first = convbwd.convolution_backward(dy, x, w, groups=16)[1]
    images = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (dy, x))
    last = convbwd.convolution_backward(*images, w, groups=16, data_format="NLC")[1]
    assert first is not None and last is not None
    np.testing.assert_array_equal(first, last)
    np.testing.assert_array_equal(np.isfinite(first).all(axis=(1, 2)), np.arange(16) != 1)


@pytest.mark.parametrize(("alias", "name"), [("NCW", "NCL"), ("NWC", "NLC")])
def test_aliases(alias: str, name: str) -> None:
    x, w = np.arange(12.0).reshape(1, 3, 4), np.ones((2, 3 if alias == "NCW" else 4, 1))
    y = convbwd.convolution(x, w, data_format=name)
    np.testing.assert_array_equal(convbwd.convolution(x, w, data_format=alias), y)
