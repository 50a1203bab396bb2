"""Arrays of other libraries: in without a copy, out as they came, and the modules for each library."""

import ctypes
import doctest
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convbwd
from cases import bits
from convbwd import _core

SHAPES = ((2, 4, 6, 6), (2, 3, 6, 6), (4, 3, 3, 3))


def operands(rng: np.random.Generator, dtype: Any = np.float32) -> list[np.ndarray]:
    """Return grad_output, input and weight of a small problem."""
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]


class Interface:
    """An object with the array interface alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__


class Exporter:
    """An object with DLPack alone, of the version before read-only flags where that is asked for."""

    def __init__(self, array: np.ndarray, old: bool = False, device: int = 1) -> None:
        self.array, self.old, self.device = array, old, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("no options")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("kind", [Interface, Exporter, lambda a: Exporter(a, old=True), memoryview])
def test_any_array_comes_in(rng: np.random.Generator, kind: Any) -> None:
    arrays = operands(rng)
    expected = bits(convbwd.convolution_backward(*arrays, padding=1))
    assert bits(convbwd.convolution_backward(*map(kind, arrays), padding=1)) == expected
    assert np.shares_memory(_core.as_array(kind(arrays[0])), arrays[0])


def test_exports_are_released(rng: np.random.Generator) -> None:
    array = rng.standard_normal((2, 3)).astype(np.float32)
    before = sys.getrefcount(array)
    for _ in range(3):
        _core.as_array(Exporter(array))
    assert sys.getrefcount(array) == before


def test_strided_and_empty_exports(rng: np.random.Generator) -> None:
    array = rng.standard_normal((6, 8))[::2, ::-1]
    np.testing.assert_array_equal(_core.as_array(Exporter(array)), array)
    assert _core.as_array(Exporter(np.empty((0, 3), np.float32))).shape == (0, 3)


@pytest.mark.parametrize(
    "bad", [Exporter(np.ones(3, np.int32)), Exporter(np.ones(3), device=2), Exporter(np.ones(3, np.complex64))]
)
def test_exports_that_cannot_be_used_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^as_array: argument must be an array, got Exporter: it"):
        _core.as_array(bad)


class Capsule:
    """An object whose export is what it was made with."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule


def test_exports_are_taken_once() -> None:
    for array, max_version in ((np.ones(3), None), (np.ones(3), (1, 0))):
        export = Capsule(array.__dlpack__(max_version=max_version))
        np.testing.assert_array_equal(_core.as_array(export), array)
        with pytest.raises(TypeError, match=r"got Capsule: it exports no DLPack tensor, or one that was taken before$"):
            _core.as_array(export)
    for no_capsule in (None, "dltensor"):
        with pytest.raises(TypeError, match="it exports no DLPack tensor"):
            _core.as_array(Capsule(no_capsule))


def test_exports_of_another_version_are_refused() -> None:
    capsule = np.ones(3).__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.POINTER(ctypes.c_uint32), [ctypes.py_object, ctypes.c_char_p]
    major = pointer(capsule, b"dltensor_versioned")
    major[0] = 2
    with pytest.raises(TypeError, match=r"got Capsule: it exports DLPack 2, not 1$"):
        _core.as_array(Capsule(capsule))
    major[0] = 1
    assert _core.as_array(Capsule(capsule)).shape == (3,)  # a refused one is not used up


def test_what_may_not_be_written_to_is_refused_as_a_result(rng: np.random.Generator) -> None:
    arrays, memory = operands(rng), np.zeros(SHAPES[1], np.float32)
    with pytest.raises(ValueError, match=r"out\[0\] must be writeable, got a read-only array"):
        convbwd.convolution_backward(*arrays, padding=1, out=(Exporter(memory, old=True), None, None))
    assert not memory.any()


def test_tensors_without_memory_and_negated_ones_are_refused(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    dy, x, w = (torch.from_numpy(a) for a in operands(rng))
    for bad, why in (
        (torch._efficientzerotensor(SHAPES[1]), "it has elements, but no memory"),
        (torch.complex(x, x).conj().imag, r"its negative bit is set, which resolve_neg\(\) ends"),
    ):
        with pytest.raises(TypeError, match=f"input must be an array, got Tensor: {why}"):
            convbwd.convolution_backward(dy, bad, w, padding=1)


class Unwilling:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("ask politely")


def test_what_an_export_says_is_passed_on() -> None:
    with pytest.raises(TypeError, match=r"^as_array: argument must be an array, got Unwilling: ask politely$"):
        _core.as_array(Unwilling())


@pytest.mark.parametrize("kind", [Exporter, Interface])
def test_results_go_to_exported_memory(rng: np.random.Generator, kind: Any) -> None:
    arrays = operands(rng)
    memory = np.zeros(SHAPES[1], np.float32)
    out = (kind(memory), None, None)
    assert convbwd.convolution_backward(*arrays, padding=1, out=out)[0] is out[0]
    assert bits([memory]) == bits(convbwd.convolution_backward(*arrays, padding=1)[:1])
    memory.flags.writeable = False
    with pytest.raises((ValueError, TypeError), match=r"out\[0\] must be"):
        convbwd.convolution_backward(*arrays, padding=1, out=(kind(memory), None, None))


def test_like_what_it_does_not_know() -> None:
    x, w, dy = np.ones((1, 1, 4)), np.ones((1, 1, 3)), np.ones((1, 1, 2))
    out = (np.full_like(x, 7), None, None)
    rule = "like must be an array of NumPy, PyTorch, JAX or the array API standard, got str"
    with pytest.raises(TypeError, match=f"^convolution: {rule}"):
        convbwd.convolution(x, w, like="torch")
    with pytest.raises(TypeError, match=f"^convolution_backward: {rule}"):
        convbwd.convolution_backward(dy, x, w, out=out, like="torch")
    assert (out[0] == 7).all()
    torch = pytest.importorskip("torch")
    for kind in (torch.Tensor, torch.float32):
        with pytest.raises(TypeError, match="like must be an array of NumPy"):
            convbwd.convolution(x, w, like=kind)


def test_like_with_out_in_an_array(rng: np.random.Generator) -> None:
    arrays = operands(rng)
    out = np.empty(3, object)
    out[:] = [np.empty_like(arrays[1]), None, None]
    got = convbwd.convolution_backward(*arrays, padding=1, out=out, like=Other())
    assert got[0] is out[0] and got[1][0] == "wrapped"


class Space:
    @staticmethod
    def asarray(array: np.ndarray) -> Any:
        return ("wrapped", array)


class Other:
    def __array_namespace__(self) -> Any:
        return Space


def test_like_the_array_api() -> None:
    x = np.ones((1, 1, 4))
    assert convbwd.convolution(x, x[..., :3], like=Other())[0] == "wrapped"


def test_nothing_is_imported_that_the_user_has_not() -> None:
    code = (
        "import sys, convbwd, numpy as np; x = np.ones((1, 1, 4));"
        "convbwd.convolution_backward(x[..., :2], x, x[..., :3], like=x);"
        "assert not {'torch', 'jax', 'autograd', 'threadpoolctl', 'ml_dtypes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("name", ["autograd", "jax", "threadpoolctl", "torch"])
def test_examples_of_optional_modules_run(name: str) -> None:
    pytest.importorskip(name)
    tried = doctest.testmod(getattr(convbwd, name))
    assert tried.attempted > 0 and tried.failed == 0


def test_optional_modules_are_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = convbwd.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_pytorch_tensors(rng: np.random.Generator, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    numpy_dtype = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    arrays = operands(rng, numpy_dtype)
    tensors = [torch.from_numpy(a.astype(np.float64)).to(getattr(torch, dtype)) for a in arrays]
    assert _core.as_array(tensors[1]).ctypes.data == tensors[1].data_ptr()
    expected = convbwd.convolution_backward(*arrays, padding=1)
    got = convbwd.convolution_backward(*tensors, padding=1, like=tensors[0])
    for g, e in zip(got, expected, strict=True):
        assert isinstance(g, torch.Tensor) and g.dtype == getattr(torch, e.dtype.name)
        assert bits([_core.as_array(g)]) == bits([e])
    out = tuple(torch.zeros_like(g) for g in got)
    assert convbwd.convolution_backward(*tensors, padding=1, out=out, like=tensors[0])[2] is out[2]
    assert bits(map(_core.as_array, out)) == bits(expected)
    plan = convbwd.plan(*tensors, padding=1)
    assert bits(plan(*tensors)) == bits(expected)
    with pytest.raises(TypeError, match="input must be an array"):
        convbwd.convolution(tensors[1].requires_grad_(), tensors[2])


def test_pytorch_codes(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, w = (rng.integers(0, 64, shape).astype(np.uint8) for shape in ((2, 3, 9), (4, 3, 3)))
    y = convbwd.convolution(torch.from_numpy(x), torch.from_numpy(w), dtype="hifloat8", like=torch.zeros(1))
    assert y.dtype == torch.uint8
    np.testing.assert_array_equal(y.numpy(), convbwd.convolution(x, w, dtype="hifloat8"))
    assert convbwd.formats.decode(y, "hifloat8").shape == (2, 4, 7)
    with pytest.raises(TypeError, match=r"input.dtype must be .* got uint8"):
        convbwd.convolution(torch.from_numpy(x), w)


def test_pytorch_trains_on_it() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, stride=2, groups=4),
        torch.nn.ConvTranspose2d(8, 4, 3, stride=2),
    )  # fmt: skip
    start = {name: value.clone() for name, value in model.state_dict().items()}
    images, targets = torch.randn(4, 3, 11, 11), torch.randn(4, 4, 11, 11)
    calls = 0

    def train() -> list[float]:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(images), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    original = convbwd.torch.convolution_backward

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **options)

    native = train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convbwd.torch, "convolution_backward", counted)
        with convbwd.torch.enable():
            ours = train()
        assert calls == 20 * 3
        train()
    assert calls == 20 * 3
    np.testing.assert_allclose(ours, native, rtol=1e-4)
    assert native[-1] < native[0]


def test_pytorch_keeps_what_this_library_does_not_compute() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 2, 5, dtype=torch.complex64, requires_grad=True)
    with convbwd.torch.enable(), convbwd.torch.enable():
        (dx,) = torch.autograd.grad(
            torch.nn.functional.conv1d(x, torch.ones(1, 2, 3, dtype=torch.complex64)).abs().sum(), x
        )
    assert dx.dtype == torch.complex64
    with pytest.raises(RuntimeError, match="not enabled"):
        convbwd.torch.disable()


def test_pytorch_keeps_what_is_empty() -> None:
    torch = pytest.importorskip("torch")
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch's other kernels refuse outputs without pixels")
    w = torch.ones(2, 3, 2, requires_grad=True)
    for shape, options in (((2, 2, 1), {"padding": 1}), ((0, 2, 4), {})):  # no pixels, no images
        x = torch.ones(shape, requires_grad=True)
        with convbwd.torch.enable():
            y = torch.nn.functional.conv_transpose1d(x, w, **options)
            dx, dw = torch.autograd.grad(y.sum(), (x, w))
        assert y.numel() == 0 and dx.shape == x.shape and not dx.any() and dw.shape == w.shape and not dw.any()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pytorch_gradients_have_its_strides(dims: int, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    last = [None, torch.channels_last, torch.channels_last_3d][dims - 1]
    formats = (torch.contiguous_format, last or torch.contiguous_format)

    def tensor(memory_format: Any, *shape: int) -> Any:
        one = torch.randn(shape).to(getattr(torch, dtype))
        return one.contiguous(memory_format=memory_format)

    for of_input, of_weight, of_output in itertools.product(formats, repeat=3):
        x, w = tensor(of_input, 2, 4, *(6,) * dims), tensor(of_weight, 6, 2, *(3,) * dims)
        dy = tensor(of_output, 2, 6, *(4,) * dims)
        call = (dy, x, w, [6], [1], [0], [1], False, [0], 2)
        for mask in ((True, True, True), (False, True, False)):
            theirs = torch.ops.aten.convolution_backward(*call, mask)
            with convbwd.torch.enable():
                ours = torch.ops.aten.convolution_backward(*call, mask)
            for a, b in zip(ours, theirs, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    assert a.stride() == b.stride()
                    torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of what PyTorch calls itself
def test_compiled_pytorch_trains_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not shutil.which("g++"):
        pytest.skip("PyTorch compiles with g++")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3, stride=2))
    compiled = torch.compile(model)
    images = torch.randn(2, 3, 9, 9)
    calls = []
    original = convbwd.torch.convolution_backward
    monkeypatch.setattr(convbwd.torch, "convolution_backward", lambda *a, **o: calls.append(1) or original(*a, **o))
    with convbwd.torch.enable():
        got = torch.autograd.grad(compiled(images).square().sum(), list(model.parameters()))
    assert len(calls) == 2
    for a, b in zip(got, torch.autograd.grad(model(images).square().sum(), list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_jax_arrays(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax")
    for dtype in (np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        arrays = operands(rng, dtype)
        inputs = [jax.numpy.asarray(a) for a in arrays]
        assert _core.as_array(inputs[0]).ctypes.data == inputs[0].unsafe_buffer_pointer()
        got = convbwd.convolution_backward(*inputs, padding=1, like=inputs[0])
        assert all(isinstance(g, jax.Array) for g in got)
        assert bits([np.asarray(g) for g in got]) == bits(convbwd.convolution_backward(*arrays, padding=1))


@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": 2, "transposed": True, "output_padding": [1, 0]}])
def test_jax_functions(rng: np.random.Generator, options: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax")
    transposed = "transposed" in options
    x = jax.numpy.asarray(rng.standard_normal((2, 3, 6, 6)), np.float32)
    w = jax.numpy.asarray(rng.standard_normal((3, 4, 3, 3) if transposed else (4, 3, 3, 3)), np.float32)
    b = jax.numpy.asarray(rng.standard_normal(4), np.float32)

    def ours(x: Any, w: Any, b: Any) -> Any:
        return jax.numpy.sin(convbwd.jax.convolution(x, w, b, **options)).sum()

    def theirs(x: Any, w: Any, b: Any) -> Any:
        if transposed:
            y = jax.lax.conv_general_dilated(
                x, jax.numpy.flip(w, (2, 3)).swapaxes(0, 1), (1, 1), [(2, 3), (2, 2)], lhs_dilation=(2, 2)
            )
        else:
            y = jax.lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)])
        return jax.numpy.sin(y + b[:, None, None]).sum()

    def of_gradient(function: Any) -> Any:
        return jax.grad(lambda *a: sum((g**2).sum() for g in jax.grad(function, (0, 1, 2))(*a)), (0, 1, 2))

    with jax.default_matmul_precision("highest"):
        for make in (lambda f: jax.jit(jax.grad(f, (0, 1, 2))), of_gradient):
            for g, e in zip(make(ours)(x, w, b), make(theirs)(x, w, b), strict=True):
                np.testing.assert_allclose(g, e, rtol=2e-3, atol=2e-3 * float(np.abs(e).max()))
    each = jax.jit(jax.vmap(jax.grad(lambda b, one: ours(one, w, b)), (None, 0)))(b, x)  # images without a batch
    np.testing.assert_allclose(each.sum(0), jax.grad(ours, 2)(x, w, b), rtol=1e-4, atol=1e-3)
    stacked = jax.vmap(lambda one: convbwd.jax.convolution(one, w, **options))(x[:, None])
    np.testing.assert_allclose(stacked[:, 0], convbwd.jax.convolution(x, w, **options), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("data_format", [None, "NHWC"])
def test_autograd_functions(rng: np.random.Generator, data_format: str | None, batched: bool) -> None:
    autograd = pytest.importorskip("autograd")
    from autograd.test_util import check_grads

    axes = (0, 2, 3, 1) if data_format else (0, 1, 2, 3)
    x, w, b = (
        rng.standard_normal((2, 4, 5, 5)).transpose(axes),
        rng.standard_normal((4, 2, 3, 3)),
        rng.standard_normal(4),
    )
    x = x if batched else x[0]

    def function(x: Any, w: Any, b: Any) -> Any:
        return autograd.numpy.sin(
            convbwd.autograd.convolution(x, w, b, stride=2, padding=1, groups=2, data_format=data_format)
        )

    check_grads(function, modes=["rev"], order=2)(x, w, b)


def test_threadpoolctl_sees_and_limits_the_pool() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    import convbwd.threadpoolctl

    def ours() -> list[Any]:
        return [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "convbwd"]

    before = convbwd.get_num_threads()
    try:
        convbwd.set_num_threads(3)
        (info,) = ours()
        assert info["num_threads"] == 3 and info["version"] == convbwd.__version__
        assert Path(info["filepath"]).samefile(_core.__file__)
        with threadpoolctl.threadpool_limits(2, user_api="convbwd"):
            assert convbwd.get_num_threads() == 2
        assert convbwd.get_num_threads() == 3
    finally:
        convbwd.set_num_threads(before)


@pytest.mark.parametrize(
    "options",
    [{"precision": "strict"}, {"cube_math_type": 3, "soc": "950"}, {"algorithm": "reference", "stride": [2, 1]}],
)
def test_jax_takes_every_way_of_computing(rng: np.random.Generator, options: dict[str, Any]) -> None:
    pytest.importorskip("jax")
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 6, 6), (4, 3, 3, 3)))
    expected = convbwd.convolution(x, w, **options)
    np.testing.assert_array_equal(convbwd.jax.convolution(x, w, **options), expected)


@pytest.mark.parametrize("name", ["strid", "like", "dtype"])
def test_jax_refuses_other_options(name: str) -> None:
    pytest.importorskip("jax")
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        convbwd.jax.convolution(np.ones((1, 1, 4)), np.ones((1, 1, 3)), **{name: 2})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_jax_refuses_lists(place: int) -> None:
    pytest.importorskip("jax")
    operands: list[Any] = [np.ones((1, 1, 4)), np.ones((1, 1, 3)), np.ones(1)]
    name, operands[place] = ("input", "weight", "bias")[place], operands[place].tolist()
    with pytest.raises(TypeError, match=f"^convolution: {name} must be an array, got list"):
        convbwd.jax.convolution(*operands)


@pytest.mark.parametrize("name", ["autograd", "jax"])
def test_a_bias_does_not_decide_the_dtype(rng: np.random.Generator, name: str) -> None:
    library = pytest.importorskip(name)
    if name == "jax":
        library.config.update("jax_enable_x64", True)
    try:
        _, x, w = operands(rng, np.float16)
        b = rng.standard_normal(4)
        expected = convbwd.convolution(x, w, b)  # rounded once
        convolution = getattr(convbwd, name).convolution
        arrays = [library.numpy.asarray(a) for a in (x, w, b)] if name == "jax" else [x, w, b]
        got = np.asarray(convolution(*arrays))
        assert got.dtype == np.float16 and bits([got]) == bits([expected])
        for i, array in enumerate(arrays):
            of = library.grad(lambda a, i=i: (convolution(*arrays[:i], a, *arrays[i + 1 :]) ** 2).sum())
            assert of(array).dtype == array.dtype
        with pytest.raises(TypeError, match=r"bias.dtype must be float64"):
            convolution(x, w, np.ones(4, np.int32))
    finally:
        if name == "jax":
            library.config.update("jax_enable_x64", False)


def test_autograd_refuses_like() -> None:
    pytest.importorskip("autograd")
    with pytest.raises(TypeError, match="unexpected keyword argument 'like'"):
        convbwd.autograd.convolution(np.ones((1, 1, 4)), np.ones((1, 1, 3)), like=np.ones(1))


@pytest.mark.parametrize("data_format", ["NCL", "NLC"])
@pytest.mark.parametrize("name", ["autograd", "jax"])
def test_a_bias_of_another_shape_is_refused(name: str, data_format: str) -> None:
    pytest.importorskip(name)
    x, w = np.ones((1, 4, 4), np.float32), np.ones((2, 4, 3), np.float32)
    convolution = getattr(convbwd, name).convolution
    assert convolution(x, w, np.ones(2, np.float32), padding=1, data_format=data_format).size == 8
    for shape in ((1,), (2, 2), (), (1, 2, 1), (4,)):
        with pytest.raises(ValueError, match=r"^convolution: bias.shape must be \(C_out,\) = \(2,\), got \("):
            convolution(x, w, np.ones(shape, np.float32), padding=1, data_format=data_format)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"algorithm": "foo"}, ValueError, "algorithm must be 'auto'"),
        ({"precision": 3}, TypeError, "precision must be 'default'"),
        ({"cube_math_type": 7}, ValueError, "cube_math_type must be 0, 1, 2 or 3"),
        ({"stride": 0}, ValueError, "stride must be at least 1"),
        ({"padding": {1: 2}}, TypeError, "padding must be an int"),
    ],
)
def test_jax_refuses_what_options_must_not_be(options: Any, kind: type[Exception], message: str) -> None:
    jax = pytest.importorskip("jax")
    for function in (convbwd.jax.convolution, jax.jit(lambda x, w: convbwd.jax.convolution(x, w, **options))):
        arguments = options if function is convbwd.jax.convolution else {}
        with pytest.raises(kind, match=f"^convolution: {message}"):
            function(np.ones((1, 1, 4)), np.ones((1, 1, 3)), **arguments)


@pytest.mark.parametrize("stride", [np.int64(2), np.array(2), np.array([2]), [np.array(2)]])
def test_jax_takes_numbers_of_every_kind(stride: Any) -> None:
    pytest.importorskip("jax")
    assert convbwd.jax.convolution(np.ones((1, 1, 5)), np.ones((1, 1, 3)), stride=stride).shape == (1, 1, 2)


def test_like_a_tensor_of_a_class_of_ones_own() -> None:
    torch = pytest.importorskip("torch")

    class Own(torch.Tensor):
        pass

    x = np.ones((1, 1, 4))
    assert isinstance(convbwd.convolution(x, x[..., :3], like=torch.ones(2).as_subclass(Own)), torch.Tensor)


def test_formats_pack_tensors_of_types_that_numpy_does_not_know(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn"):
        tensor = torch.from_numpy(rng.standard_normal((2, 3, 4, 5), np.float32)).to(getattr(torch, name))
        packed = convbwd.formats.pack(tensor, "NC1HWC0")
        assert packed.dtype == getattr(ml_dtypes, name)
        values = convbwd.formats.unpack(packed, "NC1HWC0", (2, 3, 4, 5)).astype(np.float32)
        np.testing.assert_array_equal(values, tensor.float().numpy())
    integers = convbwd.formats.pack(torch.arange(120).reshape(2, 3, 4, 5), "NC1HWC0")
    assert integers.dtype == np.int64


def test_plan_says_which_tensor_needs_ml_dtypes() -> None:
    pytest.importorskip("torch")
    code = (
        "import sys; sys.modules['ml_dtypes'] = None; import torch, convbwd; "
        "convbwd.plan((1, 1, 6), torch.ones(1, 1, 8, dtype=torch.bfloat16), (1, 1, 3))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("TypeError: plan: input must be an array, a shape or (shape, dtype), got Tensor: ")
    assert "ml_dtypes" in last
