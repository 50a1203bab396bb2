"""Long sums, windows about as large as images, and memory around operands."""

import math
from typing import Any

import numpy as np
import pytest

import convbwd
from cases import ALGORITHMS, bits

ONE_WAY = np.float32(1.9603929), np.float32(1.8348817)  # sums of whose products are mostly rounded the same way


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups"),
    [
        ((1000, 8, 1), (8, 1, 1), 8),
        ((20000, 8, 1), (8, 1, 1), 8),
        ((20000, 4, 1, 1), (4, 4, 1, 1), 1),
        ((20000, 4, 2), (4, 1, 1), 4),
        ((3000, 2, 5, 5), (3, 2, 3, 3), 1),
        ((1, 1, 100000), (2, 1, 1), 1),
        ((1, 2, 50000), (2, 1, 3), 2),
    ],
)
def test_long_sums_of_constants(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], groups: int, algorithm: str
) -> None:
    a, b = ONE_WAY
    x, w = np.full(x_shape, a), np.ones(w_shape, np.float32)
    dy = np.full_like(convbwd.convolution(x, w, groups=groups), b)
    dw = convbwd.convolution_backward(dy, x, w, groups=groups, algorithm=algorithm, precision="strict")[1]
    products = dy.size // dy.shape[1]
    exact = products * float(a) * float(b)
    assert np.abs(dw - exact).max() <= (4 + math.sqrt(products)) * np.finfo(np.float32).eps * exact


LARGE_WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 1, 30, 30), (1, 1, 29, 29), {}),
    ((1, 3, 30, 31), (3, 1, 28, 31), {"groups": 3}),
    ((1, 1, 20, 20), (1, 1, 21, 21), {"padding": 1}),
    ((1, 2, 12, 13, 12), (3, 2, 11, 9, 12), {}),
    ((2, 4, 40, 20), (24, 4, 33, 13), {}),
    ((1, 3, 25, 40), (5, 3, 11, 20), {"stride": (2, 3), "padding": (4, 0)}),
    ((1, 1, 500), (1, 1, 499), {}),
    ((2, 4, 300), (40, 4, 100), {"dilation": 2}),
    ((1, 2, 4, 5), (2, 3, 30, 31), {"transposed": True}),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("x_shape", "w_shape", "options"), LARGE_WINDOWS)
@pytest.mark.parametrize("finite", [True, False])
def test_windows_about_as_large_as_images(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], options: dict[str, Any], finite: bool, algorithm: str
) -> None:
    random = np.random.default_rng(1)
    # Small integers, whose sums are exact.
    x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in (x_shape, w_shape))
    dy = random.integers(-3, 4, convbwd.convolution(x, w, **options).shape).astype(np.float32)
    if not finite:
        w[(0, 0, *(n // 2 for n in w_shape[2:]))] = np.inf
    results = convbwd.convolution_backward(dy, x, w, algorithm=algorithm, **options)
    expected = convbwd.convolution_backward(dy, x, w, algorithm="reference", **options)
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, reference)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("around", [np.nan, 1e-30])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options"),
    [
        ((5, 48, 186), (32, 48, 1), {}),
        ((2, 40, 3, 700), (24, 40, 1, 1), {}),
        ((3, 32, 14, 14), (48, 32, 3, 3), {"padding": 1}),
        ((2, 16, 30, 30), (16, 1, 5, 5), {"groups": 16, "padding": 2}),
        ((2, 8, 33), (8, 8, 5), {"stride": 2}),
    ],
)
def test_memory_around_operands_has_no_say(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], options: dict[str, Any], around: float, algorithm: str
) -> None:
    random = np.random.default_rng(2)

    def surrounded(a: np.ndarray) -> np.ndarray:
        memory = np.full(a.size + 4096, around, np.float32)
        memory[2048 : 2048 + a.size] = a.ravel()
        return memory[2048 : 2048 + a.size].reshape(a.shape)

    x, w = (random.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    dy = random.standard_normal(convbwd.convolution(x, w, **options).shape, np.float32)
    for precision in ("strict", "default"):
        plain, amid = (
            convbwd.convolution_backward(*operands, algorithm=algorithm, precision=precision, **options)
            for operands in ((dy, x, w), (surrounded(dy), surrounded(x), surrounded(w)))
        )
        for one, other in zip(plain, amid, strict=True):
            np.testing.assert_array_equal(bits(one), bits(other))


def test_windows_dilated_beyond_the_image_are_explained() -> None:
    x, w = np.ones((1, 16, 8, 8), np.float32), np.ones((16, 16, 3, 3), np.float32)
    far = 20000  # a plane of so many squared would not fit in memory
    plan = convbwd.plan(x, x, w, padding=far, dilation=far)
    assert "grad_input" in plan.explain()
    np.testing.assert_array_equal(plan(x, x, w)[1][0, 0], [[0, 0, 0], [0, 64, 0], [0, 0, 0]])


def test_flipped_images_from_memory(rng: np.random.Generator) -> None:
    shape = (4, 112, 112, 64)  # beyond the caches together with the result
    dy, x = (rng.integers(-3, 4, shape).astype(np.float32) for _ in range(2))
    w = rng.integers(-3, 4, (64, 1, 3, 3)).astype(np.float32)
    options: dict[str, Any] = {"padding": 1, "groups": 64, "output_mask": (True, False, False), "data_format": "NHWC"}
    flipped = dy[:, :, ::-1]
    expected = convbwd.convolution_backward(flipped.copy(), x, w, **options)[0]
    assert bits(convbwd.convolution_backward(flipped, x, w, **options)[0]) == bits(expected)
    out = np.empty(shape, np.float32)[:, :, ::-1]
    convbwd.convolution_backward(dy[:, :, ::-1], x, w, **options, out=(out, None, None))
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options"),
    [
        ((1, 1, 3), (1, 1, 2), {"dilation": 2**63 - 2, "padding": [(2**63 - 4, 0)]}),
        ((1, 1, 4), (1, 1, 1), {"dilation": 2**62, "padding": 1}),
        ((1, 16, 4, 4), (16, 1, 2, 2), {"stride": 2**62, "groups": 16}),
        ((1, 16, 4, 4), (16, 1, 1, 3), {"dilation": (2**62, 1), "groups": 16}),
        ((1, 3, 4, 4), (2, 3, 2, 2), {"stride": 2**62}),
        ((1, 3, 1, 1), (3, 2, 2, 2), {"stride": 2**62, "transposed": True}),
    ],
)
def test_steps_beyond_the_image(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], options: dict[str, Any], algorithm: str
) -> None:
    x, w = (np.arange(1.0, 1 + math.prod(shape)).reshape(shape) for shape in (x_shape, w_shape))
    y = convbwd.convolution(x, w, algorithm=algorithm, **options)
    dx, dw, _ = convbwd.convolution_backward(np.ones_like(y), x, w, algorithm=algorithm, **options)
    assert dx is not None and dw is not None
    np.testing.assert_allclose([np.vdot(dx, x), np.vdot(dw, w)], y.sum(), rtol=1e-12)  # y is linear in each
    if "padding" in options and w.size == 2:
        np.testing.assert_array_equal(dx, [[[0, 0, 2]]])
