"""Gradients of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convbwd import _core
from convbwd._api import Gradients, IntOrInts, Padding, convolution, convolution_backward
from convbwd._interop import as_kind

_NAME = "convolution_double_backward"


def convolution_double_backward(
    grad_grad_input: ArrayLike | None,
    grad_grad_weight: ArrayLike | None,
    grad_grad_bias: ArrayLike | None,
    grad_output: ArrayLike,
    weight: ArrayLike,
    input: ArrayLike,
    stride: IntOrInts = 1,
    padding: Padding = 0,
    dilation: IntOrInts = 1,
    transposed: bool = False,
    output_padding: IntOrInts = 0,
    groups: SupportsIndex = 1,
    output_mask: Sequence[bool] = (True, True, True),
    *,
    data_format: str | None = None,
    algorithm: str = "auto",
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
    like: object = None,
) -> Gradients:
    r"""
    Gradients of `convolution_backward` with respect to its arrays.

    The arguments, their order and the results are those of PyTorch's ``aten::_convolution_double_backward``. With
    ``(dx, dw, db) = convolution_backward(grad_output, input, weight, ...)`` and the gradients of some scalar with
    respect to dx, dw and db, it returns those with respect to ``grad_output``, ``input`` and ``weight``.

    Parameters
    ----------
    grad_grad_input : None or array_like, of the shape of ``input``
        Gradient with respect to dx. None stands for zeros, here and below, and costs nothing.
    grad_grad_weight : None or array_like, of the shape of ``weight``
        Gradient with respect to dw.
    grad_grad_bias : None or array_like, shape (C_out,)
        Gradient with respect to db.
    grad_output, weight, input : array_like
        What `convolution_backward` was given; mind the order, which is ATen's.
    stride, padding, dilation, transposed, output_padding, groups, data_format
        As in `convolution_backward`.
    algorithm, precision, cube_math_type, soc, dtype, like
        As in `convolution_backward`.
    output_mask : sequence of 3 bool, optional
        Which results to compute. The others are None.

    Returns
    -------
    grad_output_gradient : ndarray or None
        ``convolution(grad_grad_input, weight) + convolution(input, grad_grad_weight) + grad_grad_bias``, of the shape
        of ``grad_output``; None where all three are.
    input_gradient : ndarray or None
        Of the shape of ``input``; None where ``grad_grad_weight`` is.
    weight_gradient : ndarray or None
        Of the shape of ``weight``; None where ``grad_grad_input`` is.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As `convolution_backward`; and if a gradient has not the shape of what it belongs to.

    Notes
    -----
    The gradients are bilinear in their operands, so each result is a convolution, an input gradient or a weight
    gradient of the same geometry. Dtypes follow the rules of those functions; the two convolutions of the first result
    are rounded each, then their sum.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> x, w, dy = np.ones((1, 1, 4)), np.ones((1, 1, 3)), np.ones((1, 1, 2))
    >>> ddy, dx, dw = convbwd.convolution_double_backward(2 * x, None, None, dy, w, x)
    >>> ddy, dx, dw
    (array([[[6., 6.]]]), None, array([[[4., 4., 4.]]]))
    """
    geometry: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": output_padding,
        "groups": groups,
        "data_format": data_format,
        "algorithm": algorithm,
        "precision": precision,
        "cube_math_type": cube_math_type,
        "soc": soc,
        "dtype": dtype,
    }
    if len(output_mask) != 3:
        raise ValueError(f"{_NAME}: output_mask must be a sequence of 3 bools, got {output_mask!r}")
    of_output, of_input, of_weight = output_mask
    nothing = np.zeros((), np.float32)
    image, kernel = (np.broadcast_to(nothing, np.shape(array)) for array in (input, weight))
    places = ("stride", "padding", "dilation", "transposed", "output_padding", "groups", "data_format")
    shape, _ = _core.output(image, kernel, **{name: geometry[name] for name in places}, function=_NAME)
    last = data_format is not None and data_format.endswith("C")
    for name, array, of, expected in (
        ("grad_grad_input", grad_grad_input, "input", image.shape),
        ("grad_grad_weight", grad_grad_weight, "weight", kernel.shape),
        ("grad_grad_bias", grad_grad_bias, "bias", (shape[-1 if last else 1 - kernel.ndim],)),
        ("grad_output", grad_output, "output", shape),
    ):
        got = expected if array is None else tuple(np.shape(array))
        if got != expected and 0 not in got:  # without input channels, `convolution_backward` takes less of grad_output
            raise ValueError(f"{_NAME}: {name}.shape must be that of the {of} = {expected}, got {got}")
    ddy: NDArray[Any] | None = None
    if of_output and grad_grad_input is not None:
        ddy = convolution(grad_grad_input, weight, grad_grad_bias, **geometry)
    if of_output and grad_grad_weight is not None:
        other = convolution(input, grad_grad_weight, grad_grad_bias if ddy is None else None, **geometry)
        ddy = other if ddy is None else np.add(ddy, other, out=ddy if ddy.dtype == other.dtype else None)
    if of_output and ddy is None and grad_grad_bias is not None:
        dy, bias = _core.as_array(grad_output), _core.as_array(grad_grad_bias)
        channels = bias if last else bias.reshape(-1, *[1] * (kernel.ndim - 2))
        ddy = np.broadcast_to(channels, dy.shape).astype(dy.dtype)
    dx, dw = None, None
    if of_input and grad_grad_weight is not None:
        dx = convolution_backward(
            grad_output, input, grad_grad_weight, None, output_mask=(True, False, False), **geometry
        )[0]
    if of_weight and grad_grad_input is not None:
        dw = convolution_backward(
            grad_output, grad_grad_input, weight, None, output_mask=(False, True, False), **geometry
        )[1]
    return as_kind(ddy, like), as_kind(dx, like), as_kind(dw, like)
