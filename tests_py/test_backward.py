"""Values: against the float64 reference, finite differences and identities that need no second convolution."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import convbwd
from cases import ALGORITHMS, MASKS, Case, RandomSource, call_backward, call_forward, check, draw_case, reference
from fuzz import run_one
from strategies import cases

FLOAT64: dict[str, Any] = {"dtypes": ("float64",) * 3, "mask": (True, True, True), "data": "normal"}

EXAMPLES = {
    "dense": Case(
        input_size=(5, 4), kernel=(3, 2), stride=(1, 1), padding=((1, 1), (0, 0)), dilation=(1, 1),
        output_padding=(0, 0), batch=2, in_channels=2, out_channels=3,
    ),
    "strided, uncovered last row": Case(
        input_size=(6, 7), kernel=(3, 2), stride=(2, 3), padding=((0, 1), (2, 0)), dilation=(1, 2),
        output_padding=(0, 0), groups=2, in_channels=2, out_channels=1,
    ),
    "stride larger than kernel": Case(
        input_size=(9,), kernel=(2,), stride=(4,), padding=((0, 0),), dilation=(1,), output_padding=(0,), batch=2,
        in_channels=3, out_channels=2,
    ),
    "depthwise with multiplier": Case(
        input_size=(4, 4), kernel=(3, 3), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1),
        output_padding=(0, 0), groups=3, out_channels=2,
    ),
    "transposed, output padding": Case(
        input_size=(3, 2), kernel=(3, 2), stride=(2, 1), padding=((1, 0), (0, 1)), dilation=(1, 3),
        output_padding=(1, 2), transposed=True, batch=2, groups=2, out_channels=2,
    ),
    "three dimensions, kernel as large as the image": Case(
        input_size=(2, 3, 2), kernel=(2, 3, 2), stride=(1, 1, 1), padding=((0, 0),) * 3, dilation=(1, 1, 1),
        output_padding=(0, 0, 0), in_channels=2, out_channels=2,
    ),
    "unbatched": Case(
        input_size=(5, 5), kernel=(2, 2), stride=(2, 2), padding=((1, 0), (0, 1)), dilation=(2, 1),
        output_padding=(0, 0), batch=None, out_channels=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=cases())
def test_any_problem_matches_the_reference(case: Case, algorithm: str) -> None:
    check(case, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(24))
def test_larger_problems_match_the_reference(algorithm: str, seed: int) -> None:
    check(draw_case(RandomSource(seed), scale=8), algorithm)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_small_integers_are_exact(name: str, mask: tuple[bool, bool, bool], algorithm: str, dtype: str) -> None:
    check(dataclasses.replace(EXAMPLES[name], data="integers", mask=mask, dtypes=(dtype,) * 3), algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=cases(data="nonfinite"))
def test_nan_and_inf_reach_exactly_the_windows_that_touch_them(case: Case, algorithm: str) -> None:
    check(case, algorithm)


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
def test_positions_that_no_window_covers(algorithm: str) -> None:
    x = np.ones((1, 2, 6, 8), np.float32)
    x[:, :, 5] = x[:, :, :, 7] = np.nan  # windows of 3 at stride 2 cover rows 0 .. 4 and columns 0 .. 6
    w, dy = np.ones((4, 2, 3, 3), np.float32), np.ones((1, 4, 2, 3), np.float32)
    dx, dw, _ = convbwd.convolution_backward(dy, x, w, stride=2, algorithm=algorithm)
    assert dx is not None and dw is not None
    assert not dx[:, :, 5].any() and not dx[:, :, :, 7].any() and dx[:, :, :5, :7].all()
    assert (dw == 6).all()


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
def test_padding_never_meets_an_infinite_operand(algorithm: str) -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.inf
    y = convbwd.convolution(x, w, padding=1, algorithm=algorithm)
    assert np.isfinite(y[0, 0, 0]).all() and np.isfinite(y[0, 0, :, 0]).all() and np.isinf(y[0, 0, 1:, 1:]).all()
    dy = np.ones((1, 1, 3, 3), np.float32)
    dx = convbwd.convolution_backward(dy, x, w, padding=1, algorithm=algorithm)[0]
    assert dx is not None
    assert np.isfinite(dx[0, 0, 2]).all() and np.isfinite(dx[0, 0, :, 2]).all() and np.isinf(dx[0, 0, :2, :2]).all()
    dy[0, 0, 0, 0] = np.inf
    dw = convbwd.convolution_backward(dy, x, w, padding=1, algorithm=algorithm)[1]
    assert dw is not None
    assert np.isfinite(dw[0, 0, 0]).all() and np.isfinite(dw[0, 0, :, 0]).all() and np.isinf(dw[0, 0, 1:, 1:]).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_central_finite_differences(name: str, algorithm: str) -> None:
    case = dataclasses.replace(EXAMPLES[name], **FLOAT64)
    operands = list(case.operands())
    for slot, gradient in zip((1, 2, 3), call_backward(case, operands, algorithm), strict=True):
        assert gradient is not None
        numeric = np.empty_like(gradient)
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1, -1):  # the loss is linear in each operand: no step is too large
                moved = operands.copy()
                moved[slot] = operands[slot].copy()
                moved[slot][index] += step
                ends.append(np.sum(operands[0] * call_forward(case, moved, algorithm)))
            numeric[index] = (ends[0] - ends[1]) / 2
        np.testing.assert_allclose(gradient, numeric, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=cases(**FLOAT64))
def test_gradients_are_adjoint_to_the_forward(case: Case, algorithm: str) -> None:
    dy, x, w, b = operands = case.operands()
    y = call_forward(case, operands, algorithm) - call_forward(case, (dy, x, np.zeros_like(w), b), algorithm)
    dx, dw, db = call_backward(case, operands, algorithm)
    exact = float(np.sum(dy * y))
    scale = float(np.sum(np.abs(case.canonical(dy)) * reference(case, [np.abs(a) for a in operands])[3]))
    tolerance = 1e-13 * scale
    assert dx is not None and dw is not None and db is not None
    assert abs(np.sum(x * dx) - exact) <= tolerance
    assert abs(np.sum(w * dw) - exact) <= tolerance
    assert abs(np.sum(b * db) - np.sum(case.canonical(dy) * b.reshape(-1, *[1] * len(case.kernel)))) <= tolerance


@given(case=cases(data="integers", dtypes=("float32",) * 3))
def test_gradients_are_linear_in_grad_output(case: Case) -> None:
    operands = case.operands()
    other = dataclasses.replace(case, seed=case.seed ^ 1).operands()[0]
    one = call_backward(case, operands, "auto")
    two = call_backward(case, (other, *operands[1:]), "auto")
    both = call_backward(case, (2 * operands[0] - other, *operands[1:]), "auto")
    for a, b, c in zip(one, two, both, strict=True):
        if a is None:
            assert b is None and c is None
        else:
            np.testing.assert_array_equal(2 * a - b, c)


@settings(max_examples=40)
@given(case=cases(data="integers", dtypes=("float32",) * 3, channels_last=False))
def test_groups_are_independent_convolutions(case: Case) -> None:
    dy, x, w, _ = operands = case.operands()
    whole = call_backward(case, operands, "auto")
    one = dataclasses.replace(case, groups=1)
    parts = []
    for g in range(case.groups):
        images = [a[..., g * c : (g + 1) * c, *[slice(None)] * len(case.kernel)] for a, c in
                  ((dy, case.out_channels), (x, case.in_channels))]  # fmt: skip
        rows = len(w) // case.groups
        parts.append(call_backward(one, (*images, w[g * rows : (g + 1) * rows]), "auto"))
    for i, axis in enumerate((-1 - len(case.kernel), 0, 0)):
        gradient = whole[i]
        if gradient is not None:
            np.testing.assert_array_equal(gradient, np.concatenate([part[i] for part in parts], axis))


def test_the_eleven_arguments_of_aten_are_positional() -> None:
    x, w, dy = np.ones((2, 4, 6)), np.ones((4, 3, 3)), np.ones((2, 6, 12))
    dx, dw, db = convbwd.convolution_backward(dy, x, w, [6], [2], [2], [2], True, [1], 2, [True, False, True])
    assert dx is not None and dx.shape == x.shape and dw is None
    np.testing.assert_array_equal(db, [24.0] * 6)
    y = convbwd.convolution(x, w, np.ones(6), [2], [2], [2], True, [1], 2)
    assert y.shape == dy.shape


@pytest.mark.parametrize("size", [7, 8, 9])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_same_and_valid(size: int, kernel: int, stride: int, dilation: int) -> None:
    rng = np.random.default_rng(size)
    x, w = rng.standard_normal((1, 2, size, 5)), rng.standard_normal((3, 2, kernel, 2))
    pairs = []
    for i, k in ((size, kernel), (5, 2)):
        total = max((math.ceil(i / stride) - 1) * stride + (k - 1) * dilation + 1 - i, 0)
        pairs.append((total // 2, total - total // 2))
    for name, explicit in (("same", pairs), ("valid", 0)):
        if name == "valid" and dilation * (kernel - 1) >= size:
            continue
        y = convbwd.convolution(x, w, None, stride, name, dilation)
        np.testing.assert_array_equal(y, convbwd.convolution(x, w, None, stride, explicit, dilation))
        if name == "same":
            assert y.shape[2:] == (math.ceil(size / stride), math.ceil(5 / stride))
        got = convbwd.convolution_backward(y, x, w, None, stride, name, dilation)
        expected = convbwd.convolution_backward(y, x, w, None, stride, explicit, dilation)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("padding", "pairs"),
    [
        (1, ((1, 1), (1, 1))),
        ([1], ((1, 1), (1, 1))),
        ((1, 2), ((1, 1), (2, 2))),
        ((0, 1, 2, 3), ((0, 1), (2, 3))),  # up, down, left, right
        (((0, 1), (2, 3)), ((0, 1), (2, 3))),
        (np.array([[0, 1], [2, 3]]), ((0, 1), (2, 3))),
        (np.int64(2), ((2, 2), (2, 2))),
    ],
)
def test_spellings_of_padding(padding: Any, pairs: tuple[tuple[int, int], ...]) -> None:
    x, w = np.arange(30.0).reshape(1, 1, 5, 6), np.arange(6.0).reshape(1, 1, 2, 3)
    expected = convbwd.convolution(np.pad(x, ((0, 0), (0, 0), *pairs)), w)
    np.testing.assert_array_equal(convbwd.convolution(x, w, padding=padding), expected)
    dx, _, _ = convbwd.convolution_backward(expected, x, w, padding=padding)
    padded, _, _ = convbwd.convolution_backward(expected, np.pad(x, ((0, 0), (0, 0), *pairs)), w)
    assert padded is not None
    (up, _), (left, _) = pairs
    np.testing.assert_array_equal(dx, padded[:, :, up : up + 5, left : left + 6])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_empty_batch(algorithm: str) -> None:
    x, w, dy = np.ones((0, 4, 5, 5)), np.ones((6, 2, 3, 3)), np.ones((0, 6, 3, 3))
    dx, dw, db = convbwd.convolution_backward(dy, x, w, groups=2, algorithm=algorithm)
    assert dx is not None and dx.shape == x.shape
    np.testing.assert_array_equal(dw, np.zeros_like(w))
    np.testing.assert_array_equal(db, np.zeros(6))
    assert convbwd.convolution(x, w, groups=2, algorithm=algorithm).shape == dy.shape


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_no_input_channels(algorithm: str, transposed: bool, groups: int) -> None:
    x = np.ones((2, 0, 4, 4), np.float32)
    w = np.ones((0, 6 // groups, 1, 1) if transposed else (6, 0, 1, 1), np.float32)
    for channels, expected in ((6, 2.0 * 16), (0, 0.0)):  # PyTorch's own forward makes a result without channels
        dy = np.ones((2, channels, 4, 4), np.float32)
        dx, dw, db = convbwd.convolution_backward(
            dy, x, w, [6], transposed=transposed, groups=groups, algorithm=algorithm
        )
        assert dx is not None and dx.shape == x.shape and dw is not None and dw.shape == w.shape
        np.testing.assert_array_equal(db, np.full(6, expected, np.float32))


def test_bias_sizes_are_ignored_without_grad_bias() -> None:
    x, w, dy = np.ones((1, 1, 3)), np.ones((1, 1, 3)), np.ones((1, 1, 1))
    for sizes in ([0], None, (5, 5)):
        assert convbwd.convolution_backward(dy, x, w, sizes, output_mask=(True, True, False))[2] is None


def test_nothing_asked_nothing_done() -> None:
    x, w, dy = np.ones((1, 1, 3)), np.ones((1, 1, 3)), np.ones((1, 1, 1))
    assert convbwd.convolution_backward(dy, x, w, output_mask=[False] * 3) == (None, None, None)


def test_fuzz() -> None:
    for index in range(3000):
        run_one(1, index)
