"""Gradients of gradients, and the check against finite differences that users have."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import convbwd
from cases import Case, bits
from convbwd import formats
from strategies import cases

FLOAT64 = {"dtypes": ("float64",) * 3, "data": "normal", "mask": (True,) * 3}


@given(case=cases(**FLOAT64))
def test_it_is_the_gradient_of_the_gradients(case: Case) -> None:
    # <ggI, dx> + <ggW, dw> + <ggb, db> is linear in each operand: its gradients are checked by inner products.
    dy, x, w, b = case.operands()
    rng = np.random.default_rng(case.seed)
    ggi, ggw, ggb, ddy, dx, dw = (rng.standard_normal(a.shape) for a in (x, w, b, dy, x, w))
    options = case.arguments()

    def scalar(dy: Any, x: Any, w: Any) -> float:
        results = convbwd.convolution_backward(dy, x, w, **options)
        return float(sum(np.sum(r * g) for r, g in zip(results, (ggi, ggw, ggb), strict=True) if r is not None))

    got = convbwd.convolution_double_backward(ggi, ggw, ggb, dy, w, x, **options)
    for name, place, gradient, direction, operand in (
        ("grad_output", 0, got[0], ddy, dy),
        ("input", 1, got[1], dx, x),
        ("weight", 2, got[2], dw, w),
    ):
        operands = [dy, x, w]
        operands[place] = operand + direction
        up = scalar(*operands)
        operands[place] = operand - direction
        assert gradient is not None and gradient.shape == operand.shape, name
        expected = (up - scalar(*operands)) / 2
        scale = 1 + float(np.sum(np.abs(gradient * direction)))
        assert abs(expected - float(np.sum(gradient * direction))) <= 1e-11 * max(scale, abs(up)), name


def test_zeros_and_masks_cost_nothing(rng: np.random.Generator) -> None:
    dy, x, w = rng.standard_normal((2, 4, 5, 5)), rng.standard_normal((2, 3, 5, 5)), rng.standard_normal((4, 3, 3, 3))
    full = convbwd.convolution_double_backward(x, w, np.ones(4), dy, w, x, padding=1)
    for mask in ((True, False, False), (False, True, False), (False, False, True)):
        got = convbwd.convolution_double_backward(x, w, np.ones(4), dy, w, x, padding=1, output_mask=mask)
        for g, f, m in zip(got, full, mask, strict=True):
            assert (g is not None) == m
            assert g is None or np.array_equal(g, f)
    assert convbwd.convolution_double_backward(None, None, None, dy, w, x, padding=1) == (None, None, None)
    only_bias = convbwd.convolution_double_backward(None, None, np.arange(4.0), dy, w, x, padding=1)
    assert only_bias[1:] == (None, None)
    np.testing.assert_array_equal(only_bias[0], np.broadcast_to(np.arange(4.0)[:, None, None], dy.shape))
    last = convbwd.convolution_double_backward(
        None, None, np.arange(4.0), dy.transpose(0, 2, 3, 1), w, x.transpose(0, 2, 3, 1), data_format="NHWC", padding=1
    )
    np.testing.assert_array_equal(last[0], np.broadcast_to(np.arange(4.0), (2, 5, 5, 4)))


@given(case=cases(**FLOAT64, channels_last=False).filter(lambda case: case.batch not in (0, None)))
def test_it_agrees_with_pytorch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    if any(before != after for before, after in case.padding):
        return  # PyTorch has no asymmetric padding
    dy, x, w, b = (a.copy() for a in case.operands())
    rng = np.random.default_rng(case.seed)
    arrays = [rng.standard_normal(a.shape) for a in (x, w, b)] + [dy, w, x]
    padding = [before for before, _ in case.padding]
    geometry = (case.stride, padding, case.dilation, case.transposed, case.output_padding, case.groups)
    expected = torch.ops.aten._convolution_double_backward(
        *(torch.from_numpy(a) for a in arrays), *geometry, [True, True, True]
    )
    got = convbwd.convolution_double_backward(*arrays, *geometry)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e.numpy(), rtol=1e-10, atol=1e-10)


def square(x: Any, w: Any) -> Any:
    """Return (x * w)**2 and its gradient."""
    y = x * w
    return y**2, lambda dy: (2 * dy * y * w, 2 * dy * y * x)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "strict"},
        {"precision": "fast"},
        {"algorithm": "direct"},
        {"cube_math_type": 3},
        {"cube_math_type": 3, "soc": "950"},
        {"cube_math_type": 2},
    ],
    ids=str,
)
def test_options_reach_every_part(rng: np.random.Generator, options: dict[str, Any]) -> None:
    x, w = rng.standard_normal((2, 64, 20, 20), np.float32), rng.standard_normal((64, 64, 3, 3), np.float32)
    dy, ddx, ddw, ddb = (rng.standard_normal(s, np.float32) for s in (x.shape, x.shape, w.shape, (64,)))
    how = {"padding": 1, **options}
    got = convbwd.convolution_double_backward(ddx, ddw, ddb, dy, w, x, **how)
    expected = (
        convbwd.convolution(ddx, w, ddb, **how) + convbwd.convolution(x, ddw, **how),
        convbwd.convolution_backward(dy, x, ddw, output_mask=(True, False, False), **how)[0],
        convbwd.convolution_backward(dy, ddx, w, output_mask=(False, True, False), **how)[1],
    )
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_array_equal(g, e)


def test_gradcheck_accepts_what_is_right(rng: np.random.Generator) -> None:
    report = convbwd.gradcheck(square, [rng.standard_normal((4, 5)), rng.standard_normal((4, 5))])
    assert report.checked == 40 and report.failed == 0 and len(report.worst) == 10
    assert convbwd.gradcheck(square, [np.ones(30), np.ones(30)], most=7, worst=3).checked == 14


def test_gradcheck_shows_what_is_wrong(rng: np.random.Generator) -> None:
    def wrong(x: Any, w: Any) -> Any:
        y, backward = square(x, w)

        def spoiled(dy: Any) -> Any:
            dx, dw = backward(dy)
            dw[2, 3] = dw[2, 3] + 1
            return dx, dw

        return y, spoiled

    inputs = [rng.uniform(1, 2, (4, 5)) for _ in range(2)]
    with pytest.raises(convbwd.GradcheckError, match=r"1 of 40 elements beyond their tolerance") as failure:
        convbwd.gradcheck(wrong, inputs)
    assert str(failure.value).splitlines()[2].split()[:3] == ["1", "(2,", "3)"]

    def nothing(x: Any) -> Any:
        return x, lambda dy: (np.full_like(dy, np.nan),)

    with pytest.raises(convbwd.GradcheckError, match="inf"):
        convbwd.gradcheck(nothing, [np.ones(3)])


def test_gradcheck_without_an_absolute_tolerance() -> None:
    def constant(x: Any) -> Any:
        return np.zeros_like(x), lambda dy: (np.zeros_like(dy),)

    report = convbwd.gradcheck(constant, [np.ones(3)], atol=0)
    assert report.failed == 0 and report.worst[0].excess == 0
    with pytest.raises(convbwd.GradcheckError, match=r"(?s)3 of 3 elements .* inf"):
        convbwd.gradcheck(lambda x: (np.zeros_like(x), lambda dy: (dy,)), [np.ones(3)], atol=0)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_shapes_are_those_of_what_gradients_belong_to(transposed: bool, data_format: str) -> None:
    x, w, dy = np.ones((2, 4, 5, 5)), np.ones((4, 6, 3, 3) if transposed else (6, 4, 3, 3)), np.ones((2, 6, 5, 5))
    if data_format == "NHWC":
        x, dy = x.transpose(0, 2, 3, 1), dy.transpose(0, 2, 3, 1)
    right = {"grad_grad_input": x, "grad_grad_weight": w, "grad_grad_bias": np.ones(6), "grad_output": dy}
    rest = {"weight": w, "input": x, "padding": 1, "transposed": transposed, "data_format": data_format}
    assert all(g is not None for g in convbwd.convolution_double_backward(**right, **rest))
    for name, array in right.items():
        for wrong in (np.concatenate([array, array]), array[:0]):
            with pytest.raises(ValueError, match=rf"^convolution_double_backward: {name}.shape must be"):
                convbwd.convolution_double_backward(**{**right, name: wrong}, **rest)
    for only in ({"grad_grad_bias": np.ones(6)}, {}):
        given = {**dict.fromkeys(right), **only, "grad_output": dy[:1]}
        with pytest.raises(ValueError, match=r"grad_output.shape must be the output shape"):
            convbwd.convolution_double_backward(**given, **rest)
    with pytest.raises(ValueError, match=r"output_mask must be a sequence of 3 bools, got \(True,\)"):
        convbwd.convolution_double_backward(**right, **rest, output_mask=(True,))
    with pytest.raises(ValueError, match=r"^convolution_double_backward: dilation must be at least 1, got 0"):
        convbwd.convolution_double_backward(**right, **rest, dilation=0)


@pytest.mark.parametrize("channels", [0, 4])
def test_without_input_channels_grad_output_may_have_none(channels: int) -> None:
    x, w, dy = np.ones((2, 0, 5)), np.ones((4, 0, 3)), np.ones((2, channels, 3))
    for gradients in ((None, None, np.ones(4)), (x, None, np.ones(4)), (None, w, np.ones(4)), (x, w, np.ones(4))):
        got = convbwd.convolution_double_backward(*gradients, dy, w, x)
        np.testing.assert_array_equal(got[0], dy)
        assert [None if g is None else g.shape for g in got[1:]] == [
            None if gradients[1] is None else x.shape,
            None if gradients[0] is None else w.shape,
        ]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "hifloat8"])
def test_codes_are_added_as_the_values_that_they_stand_for(rng: np.random.Generator, name: str) -> None:
    def coded(values: np.ndarray) -> Any:
        return formats.cast(values, name).view(np.uint16 if name == "bfloat16" else np.uint8)

    x, w, dy = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((1, 2, 6), (1, 2, 3), (1, 1, 4)))
    bias = np.ones(1, np.float32)
    expected = convbwd.convolution_double_backward(x, w, bias, dy, w, x)
    given_bias = coded(bias) if name == "bfloat16" else bias
    arrays = [coded(a) for a in (dy, w, x)]
    got = convbwd.convolution_double_backward(arrays[2], arrays[1], given_bias, *arrays, dtype=name)
    assert got[0] is not None and got[0].dtype == arrays[0].dtype
    for g, e in zip(got, expected, strict=True):
        assert g is not None and e is not None
        np.testing.assert_array_equal(formats.decode(g, name) if g.dtype.kind == "u" else g, e)
    (only_bias, *_) = convbwd.convolution_double_backward(None, None, given_bias, *arrays, dtype=name)
    np.testing.assert_array_equal(only_bias, coded(np.ones((1, 1, 4), np.float32)))


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_packed_operands(rng: np.random.Generator, data_format: str) -> None:
    x, w, dy = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 5, 5)))
    axes = (0, 2, 3, 1) if data_format == "NHWC" else (0, 1, 2, 3)
    images = [a.transpose(axes) for a in (x, dy)]
    options = {"padding": 1, "data_format": data_format}
    expected = convbwd.convolution_double_backward(images[0], w, np.ones(4), images[1], w, images[0], **options)
    x, w, dy = (
        formats.Packed(formats.pack(a, f), f, a.shape)
        for a, f in zip((x, w, dy), ("NC1HWC0", "FRACTAL_Z", "NC1HWC0"), strict=True)
    )
    assert bits(convbwd.convolution_double_backward(x, w, np.ones(4), dy, w, x, **options)) == bits(expected)


ONES = np.ones((1, 1, 3))


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"grad_grad_input": np.ones((1, 1, 3), int)}, TypeError, "grad_grad_input.dtype must be float64"),
        ({"grad_grad_input": np.ones((1, 1, 3), np.uint8)}, TypeError, r"grad_grad_input.dtype must .* need dtype="),
        ({"grad_grad_weight": np.ones((1, 1, 1), np.uint8), "dtype": "float8_e4m3fn"}, TypeError,
         "grad_grad_weight as weight: grad_output.dtype must be float8_e4m3fn as weight.dtype is"),
        ({"grad_grad_bias": np.ones(1, np.uint8), "dtype": "hifloat8"}, TypeError,
         "grad_grad_bias.dtype must have at least 16 bits, got uint8"),
        ({"input": [[[1], [1, 2]]]}, TypeError, "input must be an array, got list"),
        ({"grad_output": None}, TypeError, "grad_output must be an array, got NoneType"),
        ({"output_mask": 3}, TypeError, "output_mask must be a sequence of 3 bools, got int"),
        ({"output_mask": ("a", 0, 0)}, TypeError, r"output_mask\[0\] must be a bool, got str"),
        ({"algorithm": "foo"}, ValueError, "algorithm must be 'auto'"),
        ({"data_format": 5}, TypeError, "data_format must be None, 'NCL'"),
        ({"like": "torch"}, TypeError, "like must be an array of"),
    ],
)  # fmt: skip
def test_it_names_what_is_wrong(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    arguments = {
        **dict.fromkeys(("grad_grad_input", "grad_grad_weight", "grad_grad_bias")),
        **{"grad_output": ONES, "weight": np.ones((1, 1, 1)), "input": ONES, **changes},
    }
    with pytest.raises(kind, match=f"^convolution_double_backward: {message}"):
        convbwd.convolution_double_backward(**arguments)


@pytest.mark.parametrize(
    ("fn", "inputs", "options", "kind", "message"),
    [
        (lambda x: x, [np.ones(3)], {}, TypeError, "fn must return its output and a function for its gradients"),
        (lambda x: (x, x), [np.ones(3)], {}, TypeError, "fn must return its output and a function for its gradients"),
        (lambda x: (x, lambda dy: [dy]), [np.ones(3)], {"eps": 0}, ValueError, "eps must be finite and more"),
        (lambda x: (x, lambda dy: [dy]), [np.ones(3)], {"eps": np.inf}, ValueError, "eps must be finite and more"),
        (lambda x: (x, lambda dy: None), [np.ones(3)], {}, TypeError, "gradients must be a sequence, got NoneType"),
        (lambda x: (x, lambda dy: [dy]), np.ones(3), {}, TypeError, "inputs must be a sequence of arrays, got ndarray"),
        (lambda x: (x * 1j, lambda dy: [dy]), [np.ones(3)], {}, TypeError, "the output must be a real array"),
        (lambda x: (None, lambda dy: [dy]), [np.ones(3)], {}, TypeError, "the output must be a real array, got None"),
        (lambda x: (x, lambda dy: [dy]), [np.ones(3) * 1j], {}, TypeError, "inputs must be real"),
        (lambda x: (x, lambda dy: [dy * 1j]), [np.ones(3)], {}, TypeError, "gradients must be real"),
        (lambda x: (x, lambda dy: [dy]), [np.ones(3)], {"most": 0}, ValueError, "most must be at least 1, got 0"),
        (lambda x: (x, lambda dy: [dy]), [np.ones(3)], {"rtol": -1}, ValueError, "rtol must be at least 0, got -1"),
        (
            lambda x: (x, lambda dy: [dy]),
            [np.ones(3)],
            {"atol": np.nan},
            ValueError,
            "atol must be at least 0, got nan",
        ),
        (lambda x: (x, lambda dy: [dy]), [np.ones(3)], {"worst": -1}, ValueError, "worst must be at least 0, got -1"),
        (lambda x: (x, lambda dy: [None]), [np.ones(3)], {}, ValueError, "fn must return a gradient that has elements"),
    ],
)
def test_gradcheck_refuses(fn: Any, inputs: Any, options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^gradcheck: {message}"):
        convbwd.gradcheck(fn, inputs, **options)


def test_gradcheck_of_a_layer_that_reuses_its_memory() -> None:
    output, gradient = np.zeros(3), np.zeros(3)

    def scale(a: NDArray[Any]) -> tuple[NDArray[Any], Any]:
        np.multiply(a, 2, out=output)
        return output, lambda dy: [np.multiply(dy, 2, out=gradient)]

    assert convbwd.gradcheck(scale, iter([np.ones(3)])).checked == 3


def test_the_bias_alone_gives_an_array_of_its_own() -> None:
    bias, dy = np.arange(4.0), np.ones((2, 4, 3))
    ddy, _, _ = convbwd.convolution_double_backward(None, None, bias, dy, np.ones((4, 1, 1)), np.ones((2, 1, 3)))
    assert ddy is not None and ddy.flags.c_contiguous and ddy.flags.writeable and not np.shares_memory(ddy, bias)
    np.testing.assert_array_equal(ddy, np.broadcast_to(bias[:, None], dy.shape))


@pytest.mark.parametrize(("gradients", "message"), [((), "each of 1 inputs, got 0"), ((np.ones(2),), "shape")])
def test_gradcheck_refuses_other_gradients(gradients: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convbwd.gradcheck(lambda x: (x, lambda dy: gradients), [np.ones(3)])
