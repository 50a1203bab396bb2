"""Precision classes, on problems where they choose differently: what each of them promises, held to."""

import math
from typing import Any

import numpy as np
import pytest

import convbwd
from cases import PRECISIONS, Array
from convbwd import _core

# Input shape, weight shape, geometry.
PROBLEMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "two dimensions": ((2, 64, 20, 20), (64, 64, 3, 3), {"padding": 1}),
    "three dimensions": ((1, 48, 6, 20, 20), (48, 48, 3, 3, 3), {"padding": 1}),
    "large window": ((4, 64, 16, 16), (64, 64, 5, 5), {"padding": 2}),
    "one dimension": ((2, 128, 2000), (128, 128, 3), {"padding": 1}),
    "transposed": ((2, 64, 24, 24), (64, 64, 3, 3), {"transposed": True, "padding": 1}),
}
FAST = {  # tiles of Winograd's algorithm that rounding allows there alone
    "two dimensions": " F(4x4, 3x3)",
    "three dimensions": " F(4x4, 3x3)",
    "large window": " FFT F(",
    "one dimension": " F(1x4, 1x3)",
    "transposed": " F(4x4, 3x3)",
}
NAMES = ("grad_input", "grad_weight", "output")
INFO = convbwd.build_info()
BLAS_SERVES = INFO["blas"] != "none" and INFO["isa"] == "generic"  # OpenBLAS, which "auto" prefers there

Operands = tuple[Array, Array, Array]


def operands(rng: np.random.Generator, name: str, dtype: str = "float32", integers: bool = False) -> Operands:
    """Return grad_output, input, weight."""
    x_shape, w_shape, geometry = PROBLEMS[name]
    draw = (lambda shape: rng.integers(-3, 4, shape)) if integers else rng.standard_normal
    x, w = draw(x_shape).astype(dtype), draw(w_shape).astype(dtype)
    return draw(convbwd.convolution(x, w, **geometry).shape).astype(dtype), x, w


def run(name: str, arrays: Operands, **how: str) -> dict[str, Array]:
    """Return the results by name."""
    geometry, (_, x, w) = PROBLEMS[name][2], arrays
    dx, dw, _ = convbwd.convolution_backward(*arrays, **geometry, **how)
    return dict(zip(NAMES, (dx, dw, convbwd.convolution(x, w, **geometry, **how)), strict=True))


def truth(name: str, arrays: Operands) -> dict[str, Array]:
    """Return the results in float64; plain loops where the operands have that type already."""
    dy, x, w = (a.astype(np.float64) for a in arrays)
    return run(name, (dy, x, w), algorithm="reference" if arrays[0].dtype == np.float64 else "direct")


def products(name: str, result: str, arrays: Operands) -> int:
    """Return how many products an element of a result has at most."""
    dy, x, w = arrays
    taps = math.prod(w.shape[2:])
    image = (x if PROBLEMS[name][2].get("transposed") else dy).shape
    return {
        "grad_input": dy.shape[1] * taps,
        "grad_weight": image[0] * math.prod(image[2:]),
        "output": x.shape[1] * taps,
    }[result]


def check_each_element(name: str, arrays: Operands, precision: str) -> None:
    """Check the bound of strict sums, and that what is not finite is where it belongs."""
    exact, magnitude = truth(name, arrays), truth(name, tuple(np.abs(a) for a in arrays))
    for result, got in run(name, arrays, precision=precision).items():
        bound = (4 + math.sqrt(products(name, result, arrays))) * np.finfo(arrays[0].dtype).eps * magnitude[result]
        finite = np.isfinite(exact[result])
        np.testing.assert_array_equal(got[~finite], exact[result][~finite], result)
        assert (np.abs(got[finite] - exact[result][finite]) <= bound[finite]).all(), result


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_each_takes_what_it_may(rng: np.random.Generator, name: str, precision: str) -> None:
    arrays = operands(rng, name, "float64")  # which no matrix unit takes
    passes = _core.Plan(*arrays, **PROBLEMS[name][2], precision=precision).passes()
    tiles = [text for p in passes if (text := p["text"].split(" (")[0]).startswith("winograd")]
    if precision == "strict" or BLAS_SERVES:
        assert not tiles
    else:
        assert tiles
        allowed = [" exact " in text or " F(2x2, 3x3)" in text for text in tiles]
        assert all(allowed) if precision == "default" else not any(allowed)
        assert precision == "default" or all(FAST[name] in text for text in tiles)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_reaches_every_function(rng: np.random.Generator, name: str) -> None:
    arrays, geometry = operands(rng, name, "float64"), PROBLEMS[name][2]

    def results(**how: str) -> list[bytes]:
        plan = convbwd.plan(*arrays, **geometry, **how)
        return [a.tobytes() for a in (*run(name, arrays, **how).values(), *plan(*arrays)[:2])]

    strict = results(precision="strict")
    if not BLAS_SERVES:
        assert strict == results(algorithm="direct")
        for other in results(), results(precision="fast"):
            assert all(a != b for a, b in zip(strict, other, strict=True))
        assert results() == results(precision="default") != results(precision="fast")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_strict_bounds_the_error_of_each_element(rng: np.random.Generator, name: str, dtype: str) -> None:
    dy, x, w = operands(rng, name, dtype)

    def uneven(a: Array) -> Array:
        """Scale pixels so that transforms mix large and small ones, but see no reason to leave them to direct sums."""
        return a * np.where(np.arange(a.shape[-1]) % 12 < 6, 1, 1e-4).astype(dtype)

    check_each_element(name, (uneven(dy), uneven(x), w), "strict")
    if dtype == "float64" and not BLAS_SERVES:
        with pytest.raises(AssertionError):  # that there is something to keep
            check_each_element(name, (uneven(dy), uneven(x), w), "fast")


@pytest.mark.parametrize("name", PROBLEMS)
def test_strict_keeps_the_footprint_of_what_is_not_finite(rng: np.random.Generator, name: str) -> None:
    dy, x, w = operands(rng, name)
    for a, value in ((dy, np.nan), (x, np.inf), (w, -np.inf)):
        a[tuple(rng.integers(0, a.shape))] = value
    check_each_element(name, (dy, x, w), "strict")


@pytest.mark.parametrize("precision", ["strict", "default"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_exact(rng: np.random.Generator, name: str, precision: str) -> None:
    arrays = operands(rng, name, integers=True)
    exact = truth(name, arrays)
    for result, got in run(name, arrays, precision=precision).items():
        np.testing.assert_array_equal(got, exact[result], result)


@pytest.mark.parametrize(("precision", "largest"), [("default", 6), ("fast", 16)])
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_error_of_a_result_as_a_whole(
    rng: np.random.Generator, name: str, rectified: bool, precision: str, largest: float
) -> None:
    dy, x, w = operands(rng, name)
    if rectified:
        dy, x = np.maximum(dy, 0), np.maximum(x, 0)
    exact = truth(name, (dy, x, w))
    for result, got in run(name, (dy, x, w), precision=precision).items():
        error = np.abs(got - exact[result]).max() / np.abs(exact[result]).max()
        assert error <= largest * np.finfo(np.float32).eps, result


@pytest.mark.parametrize("precision", ["default", "fast"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_what_must_not_be_mixed_is_left_to_strict(rng: np.random.Generator, precision: str, value: float) -> None:
    dy, x, w = operands(rng, "two dimensions")
    dy[0, 3, 7, 8] = x[1, 2, 9, 9] = value
    check_each_element("two dimensions", (dy, x, w), precision)


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
def test_other_algorithms_take_no_notice(rng: np.random.Generator, algorithm: str) -> None:
    arrays = operands(rng, "two dimensions")
    outcomes = {
        b"".join(a.tobytes() for a in run("two dimensions", arrays, algorithm=algorithm, precision=precision).values())
        for precision in PRECISIONS
    }
    assert len(outcomes) == 1
