"""PyTorch: random problems against its float64 results, and its own operator samples run on this library."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

import convbwd
from cases import Case, call_backward, call_forward, compare, reference
from strategies import cases

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # what PyTorch's operator samples import

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")

OPS = {
    op.name.removeprefix("nn.functional."): op
    for op in op_db
    if op.name in {f"nn.functional.conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)}
}


def to_numpy(tensor: Any) -> Any:
    """View a tensor as an array; bfloat16 has no NumPy type of PyTorch's."""
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def to_torch(array: np.ndarray | None) -> Any:
    """View an array as a tensor."""
    if array is not None and array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return None if array is None else torch.from_numpy(array)


def torch_forward(case: Case, x: Any, w: Any, b: Any) -> Any:
    """Compute a case with PyTorch, which has no asymmetric padding, on a padded image or by cropping the result."""
    flat = [end for pair in reversed(case.padding) for end in pair]
    if case.batch is None:
        return torch_forward(dataclasses.replace(case, batch=1), x[None], w, b)[0]
    zeros = [0] * len(case.kernel)
    args = (case.stride, zeros, case.dilation, case.transposed, case.output_padding, case.groups)
    if not case.transposed:
        return torch.convolution(torch.nn.functional.pad(x, flat), w, b, *args)
    return torch.nn.functional.pad(torch.convolution(x, w, b, *args), [-end for end in flat])


FLOAT64 = {"dtypes": ("float64",) * 3, "mask": (True,) * 3, "channels_last": False, "data": "normal"}


@given(case=cases(**FLOAT64).filter(lambda case: case.batch != 0))
def test_random_problems(case: Case) -> None:
    operands = case.operands()
    dy, x, w, b = (torch.from_numpy(a.copy()).requires_grad_() for a in operands)
    y = torch_forward(case, x, w, b)
    expected = [*torch.autograd.grad(y, (x, w, b), dy), y]
    got = [*call_backward(case, operands, "auto"), call_forward(case, operands, "auto")]
    magnitude = reference(case, [np.abs(a) for a in operands])
    names = ("grad_input", "grad_weight", "grad_bias", "output")
    for name, ours, theirs, m in zip(names, got, expected, magnitude, strict=True):
        exact = theirs.detach().numpy()
        if name in ("grad_input", "output"):
            ours, exact = case.canonical(ours), case.canonical(exact)
        compare(
            name, case, "auto", ours, "float64", exact, m, terms=1000
        )  # PyTorch rounds too: a generous number of terms


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mock]:
    """Let PyTorch compute the gradients of its convolutions with this library, for one test, and count the calls."""
    counted = Mock(wraps=convbwd.convolution_backward)
    monkeypatch.setattr(convbwd.torch, "convolution_backward", counted)
    with convbwd.torch.enable():
        yield counted
    before = counted.call_count
    x = torch.ones(1, 1, 3, requires_grad=True)
    torch.nn.functional.conv1d(x, torch.ones(1, 1, 3)).sum().backward()
    assert counted.call_count == before


def samples(name: str, dtype: Any) -> list[Any]:
    """Return PyTorch's samples for an operator, the same ones each time."""
    torch.manual_seed(0)
    return list(OPS[name].sample_inputs("cpu", dtype, requires_grad=True))


def gradients(name: str, sample: Any) -> list[Any]:
    """Run a sample forward and backward; return the gradients of its tensors."""
    function, tensors = call(name, sample)
    y = function(*tensors)
    # All of one sign: the bias gradients do not cancel.
    return list(torch.autograd.grad(y, tensors, torch.linspace(0.5, 1.5, y.numel()).to(y.dtype).reshape(y.shape)))


def call(name: str, sample: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a sample as a function of its tensors, and those tensors."""
    args = (sample.input, *sample.args)
    tensors = tuple(t for t in args if isinstance(t, torch.Tensor))

    def function(*given: Any) -> Any:
        rest = iter(given)
        moved = [next(rest) if isinstance(t, torch.Tensor) else t for t in args]
        return OPS[name](*moved, **sample.kwargs)

    return function, tensors


DTYPES = ["float64", "float32", "bfloat16", "float16"]


def test_there_are_samples() -> None:
    assert len(OPS) == 6
    assert all(len(samples(name, torch.float64)) >= 10 for name in OPS)


@pytest.fixture(scope="module")
def unreplaced() -> dict[tuple[str, str], list[list[Any]]]:
    """PyTorch's own gradients of all samples, computed in float64 from the values of each dtype."""
    results = {}
    for name, dtype in itertools.product(OPS, DTYPES):
        results[name, dtype] = drawn = []
        for sample in samples(name, getattr(torch, dtype)):
            sample.input, *sample.args = (
                t.detach().double().requires_grad_() if torch.is_tensor(t) else t for t in (sample.input, *sample.args)
            )
            drawn.append(gradients(name, sample))
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_operator_samples(unreplaced: Any, replaced: Mock, name: str, dtype: str) -> None:
    drawn = samples(name, getattr(torch, dtype))
    eps = torch.finfo(getattr(torch, dtype)).eps
    for sample, expected in zip(drawn, unreplaced[name, dtype], strict=True):
        tensors = call(name, sample)[1]
        largest = max(float(tensor.detach().abs().max()) for tensor in tensors)
        for got, want, tensor in zip(gradients(name, sample), expected, tensors, strict=True):
            assert got.dtype == tensor.dtype and got.shape == tensor.shape
            atol = 16 * eps * max(largest, float(want.abs().max()))
            torch.testing.assert_close(got.double(), want, rtol=0, atol=atol)
    assert replaced.call_count == len(drawn)


@pytest.mark.parametrize("name", OPS)
def test_gradcheck(replaced: Mock, name: str) -> None:
    for sample in samples(name, torch.float64):
        function, tensors = call(name, sample)
        assert gradcheck(function, tensors, fast_mode=bool(OPS[name].gradcheck_fast_mode))
    assert replaced.call_count > 0


@pytest.mark.parametrize("name", OPS)
def test_gradgradcheck(replaced: Mock, name: str) -> None:
    for sample in samples(name, torch.float64):
        function, tensors = call(name, sample)
        assert gradgradcheck(function, tensors, fast_mode=True)
    assert replaced.call_count > 0


@pytest.mark.parametrize("name", OPS)
def test_modules_reach_it_without_bias(replaced: Mock, name: str) -> None:
    # Without a bias autograd passes bias_sizes=[0] and masks the third result; sum() expands the gradient.
    sample = next(s for s in samples(name, torch.float64) if s.args[1] is None)
    function, tensors = call(name, sample)
    x, w = tensors
    expanded = torch.autograd.grad(function(x, w).sum(), tensors)
    y = function(x, w)
    written_out = torch.autograd.grad(y, tensors, torch.ones_like(y))
    assert replaced.call_count == 2
    torch.testing.assert_close(expanded, written_out, rtol=0, atol=0)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("over", ["images", "weights", "both"])
def test_vmap_of_grad(replaced: Mock, transposed: bool, over: str) -> None:
    torch.manual_seed(0)
    images = torch.randn(5, 2, 4, 7, 6, dtype=torch.float64)
    weights = torch.randn(5, 4, 2, 3, 3, dtype=torch.float64) if transposed else torch.randn(5, 6, 2, 3, 3).double()
    function = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d

    def loss(image: Any, weight: Any) -> Any:
        return function(image, weight, stride=2, padding=1, groups=2).sin().sum()

    axes = (0 if over != "weights" else None, 0 if over != "images" else None)
    operands = (images if axes[0] == 0 else images[0], weights if axes[1] == 0 else weights[0])
    grad = torch.func.grad(loss, argnums=(0, 1))
    got = torch.func.vmap(grad, in_dims=axes)(*operands)
    assert replaced.call_count > 0
    for i in range(5):
        one = grad(*(a if axis is None else a[i] for a, axis in zip(operands, axes, strict=True)))
        for a, b in zip(got, one, strict=True):
            torch.testing.assert_close(a[i], b)


def test_channels_last_tensors(replaced: Mock) -> None:
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(4, 6, 3, stride=2, groups=2).double()
    x = torch.randn(2, 4, 9, 9, dtype=torch.float64)
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        image = x.clone().to(memory_format=memory_format).requires_grad_()
        convolution = convolution.to(memory_format=memory_format)
        y = convolution(image)
        results.append(torch.autograd.grad(y.square().sum(), (image, *convolution.parameters())))
    assert replaced.call_count == 2
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
