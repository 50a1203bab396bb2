"""A program of a user who checks types strictly. It names everything public; test_typing.py checks and runs it.

Lines that must not pass the type checker end with what it must say of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import convbwd
import convbwd.autograd
import convbwd.dask
import convbwd.jax
import convbwd.threadpoolctl
import convbwd.torch
from convbwd import formats

Floats = NDArray[np.float32]


def layer(x: Floats, w: Floats, b: Floats | None) -> tuple[Floats, Any]:
    """Return an output and a function for its gradients."""
    y: Floats = convbwd.convolution(x, w, b, stride=(2, 2), padding=[(1, 1), (0, 2)], data_format="NCHW")

    def backward(dy: Floats) -> tuple[NDArray[Any] | None, ...]:
        return convbwd.convolution_backward(
            dy, x, w, None if b is None else b.shape, (2, 2), ((1, 1), (0, 2)), output_mask=[True, True, b is not None]
        )

    return y, backward


def plans(x: Floats, w: Floats) -> str:
    """Plan from an array, a pair and a shape; run the plan where nothing is allocated."""
    shape = (x.shape[0], w.shape[0], *x.shape[2:])
    plan: convbwd.Plan = convbwd.plan(shape, x, (w.shape, np.float32), padding="same", accumulate=True)
    dx, dw, _ = out = plan.empty()
    workspace = np.empty(plan.workspace_size, np.uint8)
    for gradient in out:
        if gradient is not None:
            gradient[...] = 0  # what the call adds to
    plan(np.ones(shape, np.float32), x, w, out=out, workspace=workspace)
    assert dx is not None and dw is not None
    bound: float = plan.flops / plan.bytes_moved
    return f"{bound} {plan.explain(gflops=100, gbytes=20.0)} {dx.sum()} {dw.sum()}"


def second_order(x: Floats, w: Floats, dy: Floats) -> NDArray[Any] | None:
    """Differentiate the gradients."""
    ddy, _, _ = convbwd.convolution_double_backward(x, None, None, dy, w, x, padding=1)
    return ddy


def check(x: Floats, w: Floats) -> tuple[int, str]:
    """Check the layer above, and one that is wrong."""

    def right(x: Floats, w: Floats) -> tuple[Floats, Any]:
        y, backward = layer(x, w, None)
        return y, lambda dy: backward(dy)[:2]

    report: convbwd.GradcheckReport = convbwd.gradcheck(right, [x, w], most=8, worst=3)
    try:
        convbwd.gradcheck(lambda x: (2 * x, lambda dy: [dy]), [x], rtol=1e-3, atol=1e-3, most=8)
    except convbwd.GradcheckError as error:
        return report.failed, str(error)
    raise AssertionError("the gradient is wrong")


def number_formats(x: Floats) -> tuple[int, ...]:
    """Cast, decode, pack, convert and unpack."""
    half: NDArray[Any] = formats.cast(x, "hf32", rounding="away")
    same = formats.decode(formats.cast(half, "hifloat8", saturate=True).view(np.uint8), "hifloat8")
    packed = formats.pack(same, "NC1HWC0", c0=4)
    assert packed.shape == formats.shape_of(x.shape, "NC1HWC0", np.float32, c0=4)
    assert formats.convert(packed, "NC1HWC0", "NHWC", x.shape, c0=4).shape[-1] == x.shape[1]
    shape: tuple[int, ...] = formats.unpack(packed, "NC1HWC0", x.shape, c0=4).shape
    where_it_is = formats.Packed(packed, "NC1HWC0", x.shape, c0=4)
    assert where_it_is.shape == shape
    return shape


def graph_operators() -> tuple[int, ...]:
    """Use the operators of Ascend's graphs, and the tiles of one."""
    x, filter = np.ones((1, 2, 1, 6, 6), np.float32), np.ones((1, 2, 1, 3, 3), np.float32)
    dy = np.ones((1, 1, 1, 4, 4), np.float32)
    strides, pads, order = (1,) * 5, (0,) * 6, "NCDHW"
    dx = convbwd.conv3d_backprop_input(x.shape, filter, dy, strides, pads, data_format=order)
    dw: NDArray[Any] = convbwd.conv3d_backprop_filter(
        x, filter.shape, dy, strides, pads, data_format=order, filter_format=order
    )
    tiles = convbwd.Conv3DBackpropInput(x.shape, filter, dy, strides, pads, data_format=order, tiling={"baseM": 16})
    assert len(list(tiles.tiles())) > 1 and np.array_equal(tiles.run(), dx)
    return dw.shape


def settings() -> dict[str, str]:
    """Read and set what there is to set."""
    threads: int = convbwd.get_num_threads()
    convbwd.set_num_threads(threads)
    mode: int = convbwd.CubeMathType.USE_HF32
    assert mode == 3 and convbwd.__version__
    return convbwd.build_info()


def libraries(x: Any, w: Any) -> tuple[Any, Any]:
    """Use the modules for other libraries."""
    with convbwd.torch.enable():
        pass
    convbwd.torch.enable()
    convbwd.torch.disable()
    assert convbwd.threadpoolctl.ConvbwdController.user_api == "convbwd"
    dx, _, _ = convbwd.dask.convolution_backward(
        np.ones((2, 4, 6, 6), np.float32), x, w, output_mask=(True, False, False)
    )
    assert dx is not None and dx.shape == x.shape
    # Any array that can be written to, and a mask of NumPy.
    out: tuple[Any, None, None] = (np.zeros_like(x), None, None)
    mask = np.array([True, False, False])
    convbwd.convolution_backward(np.ones((2, 4, 6, 6), np.float32), x, w, output_mask=mask, out=out)
    return convbwd.jax.convolution(x, w, stride=2), convbwd.autograd.convolution(x, w, None, stride=2)


def mistakes(x: Floats, w: Floats) -> None:
    """Make mistakes that a type checker sees; never called."""
    convbwd.convolution(x, w, stride="2")  # type: ignore[arg-type]
    convbwd.convolution(x, w, strides=2)  # type: ignore[call-arg]
    convbwd.convolution(x, w, None, 1, 0, 1, False, 0, 1, "NCHW")  # type: ignore[call-arg]
    convbwd.convolution_backward(x, x, w)[0].sum()  # type: ignore[union-attr]
    convbwd.convolution_backward(x, x, w, out=x, like=3, algorithm=None)  # type: ignore[arg-type]
    convbwd.plan(3, x, w)  # type: ignore[arg-type]
    convbwd.set_num_threads(1.5)  # type: ignore[arg-type]
    formats.cast(x, np.float16)  # type: ignore[arg-type]
    convbwd.convolve(x, w)  # type: ignore[attr-defined]


def main() -> None:
    """Call everything."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 8, 8), np.float32)
    w = rng.standard_normal((4, 3, 3, 3), np.float32)
    assert layer(x, w, np.zeros(4, np.float32))[0].shape == (2, 4, 4, 4)
    assert "grad_weight" in plans(x, w)
    ddy = second_order(x, w, np.ones((2, 4, 8, 8), np.float32))
    assert ddy is not None and ddy.shape == (2, 4, 8, 8)
    failed, table = check(x, w)
    assert failed == 0 and "error/tolerance" in table
    assert number_formats(x) == x.shape
    assert graph_operators() == (1, 2, 1, 3, 3)
    assert "isa" in settings()
    assert all(y.shape == (2, 4, 3, 3) for y in libraries(x, w))
