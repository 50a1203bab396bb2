"""Memory layouts of the operands and data formats: what they say must not change what comes out."""

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


@pytest.mark.parametrize(("alias", "name"), [("NCW", "NCL"), ("NWC", "NLC")])
def test_aliases(alias: str, name: str) -> None:
    x, w = np.arange(12.0).reshape(1, 3, 4), np.ones((2, 3 if alias == "NCW" else 4, 1))
    y = convbwd.convolution(x, w, data_format=name)
    np.testing.assert_array_equal(convbwd.convolution(x, w, data_format=alias), y)
