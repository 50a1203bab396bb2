"""Element types: which result has which, where sums are rounded, and the values at the edges of each type."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import convbwd
from cases import ALGORITHMS, DTYPES

BF16 = np.dtype(ml_dtypes.bfloat16)
HALVES = [DTYPES["float16"], DTYPES["bfloat16"]]

# The wider of two types, from semantics.md: float16 and bfloat16 meet in float32.
ORDER = ("bfloat16", "float16", "float32", "float64")
WIDER = {pair: max(pair, key=ORDER.index) for pair in itertools.product(ORDER, repeat=2)} | {
    ("float16", "bfloat16"): "float32",
    ("bfloat16", "float16"): "float32",
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("weight", DTYPES)
@pytest.mark.parametrize("input", DTYPES)
@pytest.mark.parametrize("grad_output", DTYPES)
def test_mixed_dtypes(grad_output: str, input: str, weight: str, algorithm: str) -> None:
    dy = np.full((1, 2, 4), 3, DTYPES[grad_output])
    x, w = np.full((1, 2, 5), 2, DTYPES[input]), np.full((2, 2, 2), 5, DTYPES[weight])
    dx, dw, db = convbwd.convolution_backward(dy, x, w, algorithm=algorithm)
    y = convbwd.convolution(x, w, algorithm=algorithm)
    names = (WIDER[input, grad_output], WIDER[weight, grad_output], grad_output, WIDER[input, weight])
    for result, name in zip((dx, dw, db, y), names, strict=True):
        assert result is not None and result.dtype == DTYPES[name]
    assert dx is not None and dw is not None and db is not None
    np.testing.assert_array_equal(dx[0, 0].astype(float), [30, 60, 60, 60, 30])
    assert (dw == 24).all() and (db == 12).all() and (y == 40).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sums_are_not_kept_in_sixteen_bits(dtype: np.dtype, algorithm: str) -> None:
    # Adding ones, float16 would stop at 2048 and bfloat16 at 256.
    x, w = np.ones((1, 1, 64, 64), dtype), np.ones((1, 1, 1, 1), dtype)
    _, dw, db = convbwd.convolution_backward(x, x, w, algorithm=algorithm)
    assert dw is not None and db is not None
    assert float(dw[0, 0, 0, 0]) == 4096 and float(db[0]) == 4096
    deep = np.ones((1, 4096, 1, 1), dtype)
    assert float(convbwd.convolution(deep, deep, algorithm=algorithm)[0, 0, 0, 0]) == 4096


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_results_are_rounded_to_nearest_even_once(dtype: np.dtype, algorithm: str) -> None:
    step = float(ml_dtypes.finfo(dtype).eps)
    # 1 + step / 2 is a tie and goes down to even, 1 + 3 * step / 2 a tie that goes up to even.
    parts = np.array([[1, step / 2, 0], [1, step, step / 2], [1, step / 2, step / 64], [-1, -step, -step / 2]], dtype)
    exact = [1, 1 + 2 * step, 1 + step, -1 - 2 * step]
    ones = np.ones((1, 3, 1), dtype)
    y = convbwd.convolution(parts[:, :, None], ones, algorithm=algorithm)
    np.testing.assert_array_equal(y[:, 0, 0].astype(float), exact)
    dy = np.ascontiguousarray(parts.T[:, :, None])  # three images of four channels: the sums run over the images
    db = convbwd.convolution_backward(dy, np.ones((3, 1, 1), dtype), np.ones((4, 1, 1), dtype), algorithm=algorithm)[2]
    assert db is not None
    np.testing.assert_array_equal(db.astype(float), exact)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_float16_overflows_to_infinity_only_at_the_end(algorithm: str) -> None:
    x = np.array([[[60000.0], [60000.0], [-60000.0]], [[60000.0], [60000.0], [0.0]]], np.float16)
    y = convbwd.convolution(x, np.ones((1, 3, 1), np.float16), algorithm=algorithm)
    np.testing.assert_array_equal(y[:, 0, 0], np.array([60000.0, np.inf], np.float16))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_subnormal_numbers_are_kept(dtype: np.dtype, algorithm: str) -> None:
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    x = (np.arange(1, 6) * tiny).astype(dtype).reshape(1, 1, 5)
    one = np.ones((1, 1, 1), dtype)
    dx, _, db = convbwd.convolution_backward(x, x, one, algorithm=algorithm)
    np.testing.assert_array_equal(dx, x)
    np.testing.assert_array_equal(db, np.array([15 * tiny]).astype(dtype))
    np.testing.assert_array_equal(convbwd.convolution(x, one, algorithm=algorithm), x)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_nan_stays_nan_in_sixteen_bits(dtype: np.dtype, algorithm: str) -> None:
    # Payloads that a careless rounding carries into the exponent, or drops so that infinity is left.
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    dy, x = np.ones((1, 4, 1), dtype), np.ones((1, 4, 1), dtype)
    dx = convbwd.convolution_backward(dy, x, nans.reshape(4, 1, 1), groups=4, algorithm=algorithm)[0]
    assert dx is not None and dx.dtype == dtype and np.isnan(dx).all()


def test_every_sixteen_bit_value_passes_through() -> None:
    for dtype in HALVES:
        bits = np.arange(1 << 16, dtype=np.uint16)
        y = convbwd.convolution(bits.view(dtype).reshape(1, 1, -1), np.ones((1, 1, 1), dtype)).reshape(-1)
        sign, exponents = np.uint16(0x8000), ~np.uint16(0x8000) & np.array(np.inf, dtype).view(np.uint16)
        nan = (bits & ~sign) > exponents
        assert np.isnan(y[nan]).all()
        zero = (bits & ~sign) == 0  # a sum that starts from 0 loses the sign of -0
        assert (y[zero] == 0).all()
        np.testing.assert_array_equal(y.view(np.uint16)[~nan & ~zero], bits[~nan & ~zero])


def test_float64_is_summed_in_float64() -> None:
    x = np.array([1.0, 2.0**-50]).reshape(1, 2, 1)
    assert convbwd.convolution(x, np.ones((1, 2, 1)))[0, 0, 0] == 1 + 2.0**-50
    # A float64 result of float32 operands is summed in float64 as well.
    narrow = np.array([1, 2**-30], np.float32).reshape(1, 2, 1)
    dx = convbwd.convolution_backward(
        narrow, np.zeros((1, 1, 1)), np.ones((2, 1, 1), np.float32), output_mask=(True, False, False)
    )[0]
    assert dx is not None and dx.dtype == np.float64 and dx[0, 0, 0] == 1 + 2.0**-30
