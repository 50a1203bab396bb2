"""Operands and results in memory formats: the bits are those of plain arrays."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convbwd
from cases import ALGORITHMS
from convbwd import formats
from convbwd.formats import Packed

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}
# input, weight, parameters
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dense": ((2, 19, 9, 8), (21, 19, 3, 3), {"padding": 1}),
    "winograd": ((1, 40, 18, 18), (48, 40, 3, 3), {"padding": 1}),
    "strided": ((2, 17, 11, 10), (9, 17, 3, 2), {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2)}),
    "patches": ((2, 3, 16, 16), (20, 3, 4, 4), {"stride": 4}),
    "pointwise": ((3, 33, 5, 4), (18, 33, 1, 1), {}),
    "grouped": ((2, 20, 7, 6), (30, 10, 3, 3), {"groups": 2, "padding": 1}),
    "shared blocks": ((1, 48, 6, 6), (60, 4, 3, 2), {"groups": 12, "stride": 2}),
    "partial blocks": ((2, 15, 5, 5), (20, 3, 2, 2), {"groups": 5}),
    "depthwise": ((2, 37, 8, 9), (37, 1, 3, 3), {"groups": 37, "padding": 1}),
    "few channels": ((1, 9, 12, 12), (9, 9, 5, 5), {"padding": 2}),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "single position": ((2, 40, 1, 1), (32, 20, 1, 1), {"groups": 2}),
    "single window": ((2, 20, 2, 3), (30, 10, 2, 3), {"groups": 2}),
    "volume": ((1, 18, 4, 5, 6), (12, 18, 2, 3, 3), {"padding": (0, 1, 1), "stride": (2, 1, 1)}),
    "grouped volume": ((2, 12, 3, 5, 4), (18, 4, 2, 2, 3), {"groups": 3, "dilation": (1, 2, 1)}),
    "transposed": ((2, 18, 5, 4), (18, 5, 3, 3), {"transposed": True, "groups": 3, "stride": 2, "output_padding": 1}),
    "transposed volume": ((1, 20, 3, 3, 3), (20, 9, 2, 2, 2), {"transposed": True, "stride": 2}),
}


def formats_of(x: np.ndarray[Any, Any], weights: bool) -> tuple[str, ...]:
    flat = x.ndim == 4
    plain = ("NCHW", "NHWC", "HWCN") if flat else ("NCDHW", "NDHWC", "DHWCN")
    blocked = ("NC1HWC0", "FRACTAL_Z") if flat else ("NDC1HWC0", "FRACTAL_Z_3D")
    return (*plain, *blocked[: 2 if weights else 1])


def operands(case: str, dtype: Any) -> tuple[list[Any], dict[str, Any]]:
    input_shape, weight_shape, parameters = CASES[case]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in (input_shape, weight_shape))
    dy = convbwd.convolution(x, w, **parameters)
    return [rng.standard_normal(dy.shape).astype(dtype), x, w], parameters


def packed(x: Any, format: str, groups: int = 1, c0: int | None = None) -> Packed:
    return Packed(formats.pack(x, format, groups=groups, c0=c0), format, x.shape, groups=groups, c0=c0)


def noise(x: Any, format: str, groups: int = 1, c0: int | None = None) -> Packed:
    """Where a gradient may go: no zeros in the lanes yet."""
    dims = formats.shape_of(x.shape, format, x.dtype, groups=groups, c0=c0)
    return Packed(np.full(dims, 7, x.dtype), format, x.shape, groups=groups, c0=c0)


def combinations(arrays: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Every format of each operand at least once."""
    dy, x, w = (formats_of(a, i == 2) for i, a in enumerate(arrays))
    yield from itertools.islice(zip(itertools.cycle(dy[::-1]), itertools.cycle(x[::-1]), w[::-1], strict=False), len(w))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_bits_are_those_of_plain_arrays(algorithm: str, dtype: str, case: str) -> None:
    arrays, parameters = operands(case, DTYPES[dtype])
    groups = parameters.get("groups", 1)
    call = {**parameters, "algorithm": algorithm}
    dy, x, w = arrays
    expected = convbwd.convolution_backward(dy, x, w, **call)
    forward = convbwd.convolution(x, w, **call)
    for of_dy, of_x, of_w in combinations(arrays):
        given = packed(dy, of_dy), packed(x, of_x), packed(w, of_w, groups)
        out = (noise(expected[0], of_x), noise(expected[1], of_w, groups), None)
        got = convbwd.convolution_backward(*given, **call, out=out)
        assert got[0] is out[0] and got[1] is out[1]
        for result, plain, format, g in zip(got[:2], expected[:2], (of_x, of_w), (1, groups), strict=True):
            assert result.array.tobytes() == packed(plain, format, g).array.tobytes(), format
        assert got[2].tobytes() == expected[2].tobytes()
        assert convbwd.convolution(given[1], given[2], **call).tobytes() == forward.tobytes()


@pytest.mark.parametrize("c0", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("case", ["dense", "shared blocks", "volume"])
def test_blocks_of_any_size(case: str, c0: int) -> None:
    arrays, parameters = operands(case, np.float32)
    dy, x, w = arrays
    groups = parameters.get("groups", 1)
    expected = convbwd.convolution_backward(dy, x, w, **parameters)
    image, weights = formats_of(x, False)[-1], formats_of(w, True)[-1]
    out = (noise(x, image, 1, c0), noise(w, weights, groups, c0), None)
    convbwd.convolution_backward(
        packed(dy, image, 1, c0), packed(x, image, 1, c0), packed(w, weights, groups, c0), **parameters, out=out
    )
    assert out[0].array.tobytes() == packed(expected[0], image, 1, c0).array.tobytes()
    assert out[1].array.tobytes() == packed(expected[1], weights, groups, c0).array.tobytes()


@pytest.mark.parametrize("case", ["winograd", "shared blocks", "transposed volume"])
@pytest.mark.parametrize("precision", ["strict", "fast"])
def test_every_precision(case: str, precision: str) -> None:
    (dy, x, w), parameters = operands(case, np.float32)
    expected = convbwd.convolution_backward(dy, x, w, **parameters, precision=precision)
    image, weights = formats_of(x, False)[-1], formats_of(w, True)[-1]
    given = packed(dy, image), packed(x, image), packed(w, weights, parameters.get("groups", 1))
    for got, plain in zip(
        convbwd.convolution_backward(*given, **parameters, precision=precision), expected, strict=True
    ):
        assert got is not None and plain is not None and got.tobytes() == plain.tobytes()


def test_sums_are_added_where_the_elements_are() -> None:
    (dy, x, w), parameters = operands("shared blocks", np.float32)
    groups = parameters["groups"]
    dx, dw, _ = convbwd.convolution_backward(dy, x, w, **parameters)
    out = (packed(x, "NC1HWC0"), packed(w, "FRACTAL_Z", groups), None)
    mask = (True, True, False)
    convbwd.convolution_backward(dy, x, w, **parameters, output_mask=mask, out=out, accumulate=True)
    assert out[0].array.tobytes() == packed(x + dx, "NC1HWC0").array.tobytes()
    assert out[1].array.tobytes() == packed(w + dw, "FRACTAL_Z", groups).array.tobytes()


def test_gradients_of_each_image() -> None:
    (dy, x, w), parameters = operands("dense", np.float32)
    expected = convbwd.convolution_backward(dy, x, w, **parameters, per_sample=True)
    given = packed(dy, "NC1HWC0"), packed(x, "NC1HWC0"), packed(w, "FRACTAL_Z")
    for got, plain in zip(convbwd.convolution_backward(*given, **parameters, per_sample=True), expected, strict=True):
        assert got is not None and plain is not None and got.tobytes() == plain.tobytes()
    with pytest.raises(ValueError, match=r"out\[1\] must have no format where per_sample is True, got FRACTAL_Z"):
        convbwd.convolution_backward(*given, **parameters, per_sample=True, out=(None, noise(w, "FRACTAL_Z"), None))


def test_plans_keep_the_formats() -> None:
    (dy, x, w), parameters = operands("grouped", np.float16)
    expected = convbwd.convolution_backward(dy, x, w, **parameters)
    given = packed(dy, "NC1HWC0"), packed(x, "NC1HWC0"), packed(w, "FRACTAL_Z", 2)
    plan = convbwd.plan(*given, **parameters)
    out = (noise(x, "NC1HWC0"), noise(w, "FRACTAL_Z", 2), np.empty_like(expected[2]))
    assert plan(*given, out=out) is out
    assert np.asarray(out[0]).tobytes() == expected[0].tobytes()
    assert np.asarray(out[1]).tobytes() == expected[1].tobytes()
    for results in (plan(*given), plan(dy, x, w)):
        assert [r.tobytes() for r in results if r is not None] == [e.tobytes() for e in expected if e is not None]
    with pytest.raises(ValueError, match="input must be as planned"):
        plan(given[0], given[1].array, given[2])  # of the same memory, but nobody knows its format


def test_channels_last_is_said_of_plain_arrays() -> None:
    (dy, x, w), parameters = operands("dense", np.float32)
    dx = convbwd.convolution_backward(dy, x, w, **parameters)[0]
    got = convbwd.convolution_backward(
        packed(dy, "NC1HWC0"), x.transpose(0, 2, 3, 1), w, **parameters, data_format="NHWC"
    )[0]
    np.testing.assert_array_equal(got.transpose(0, 3, 1, 2), dx)


def test_packed_arrays_become_plain_ones() -> None:
    x = np.arange(60, dtype=np.float16).reshape(2, 5, 3, 2)
    p = packed(x, "NC1HWC0", c0=4)
    assert (p.shape, p.dtype, p.format, p.groups, p.c0) == (x.shape, x.dtype, "NC1HWC0", 1, 4)
    np.testing.assert_array_equal(p.unpack(), x)
    np.testing.assert_array_equal(np.asarray(p), x)
    assert np.asarray(p, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="formats: a packed array cannot become a plain one without a copy"):
        np.asarray(p, copy=False)


def test_mistakes() -> None:
    (dy, x, w), parameters = operands("grouped", np.float32)
    image, weights = packed(x, "NC1HWC0"), packed(w, "FRACTAL_Z", 2)

    def refused(message: str, *given: Any, error: type[Exception] = ValueError, **more: Any) -> None:
        with pytest.raises(error, match=re.escape("convolution_backward: " + message)):
            convbwd.convolution_backward(*given, **{**parameters, **more})

    refused("weight must be packed with groups = 2, got 1", dy, x, packed(w, "FRACTAL_Z"))
    refused("input must have a format of images, got FRACTAL_Z", dy, packed(x, "FRACTAL_Z"), w)
    refused("out[0] must have a format of images", dy, x, w, out=(packed(x, "FRACTAL_Z"), None, None))
    refused("grad_output.shape must be the output shape", packed(x[:1], "NC1HWC0"), x, w)
    refused("out[0].shape must be that of the gradient", dy, x, w, out=(packed(x[:1], "NC1HWC0"), None, None))
    refused("out[2] must have no format, got NC1HWC0", dy, x, w, out=(None, None, packed(x, "NC1HWC0")))
    refused("out[0] must not share memory with input", dy, image, w, out=(image, None, None))
    refused(
        "out[1].dtype must be",
        dy,
        x,
        w,
        out=(None, packed(w.astype(np.float16), "FRACTAL_Z", 2), None),
        error=TypeError,
    )
    image.array.flags.writeable = False
    refused("out[0] must be writeable", dy, x, w, out=(image, None, None))
    weights.array.shape = (-1,)
    refused("weight must have a C-contiguous array of shape (27, 2, 16, 8)", dy, x, weights)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: Packed(x, "NC1HWC0", x.shape), ValueError, "C-contiguous with shape (2, 1, 3, 4, 8) in NC1HWC0"),
        (lambda x: Packed(x.T, "NCHW", x.T.shape), ValueError, "got shape (4, 3, 3, 2) with strides"),
        (lambda x: Packed(x.tolist(), "NCHW", x.shape), TypeError, "a packed array must be an ndarray, got list"),
        (lambda x: Packed(x, "NCHW", x.shape, groups=3), ValueError, "groups must divide the first axis = 2, got 3"),
    ],
)
def test_packed_arrays_fit_their_format(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make(np.zeros((2, 3, 3, 4), np.float32))
