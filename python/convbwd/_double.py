"""Gradients of gradients."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convbwd import _core, formats
from convbwd._api import Gradients, IntOrInts, Mask, Padding, convolution, convolution_backward
from convbwd._interop import converter
from convbwd._layouts import Packed

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
    output_mask: Mask = (True, True, True),
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
        Gradient with respect to dw. Of 8 bits where ``weight`` has 8.
    grad_grad_bias : None or array_like, shape (C_out,)
        Gradient with respect to db, of 16 bits or more.
    grad_output, weight, input : array_like
        What `convolution_backward` was given; mind the order, which is ATen's.
    stride, padding, dilation, transposed, output_padding, groups, data_format
        As in `convolution_backward`.
    algorithm, precision, cube_math_type, soc, dtype, like
        As in `convolution_backward`.
    output_mask : sequence or array of 3 bool, optional
        Which results to compute. The others are None.

    Returns
    -------
    grad_output_gradient : array or None
        ``convolution(grad_grad_input, weight) + convolution(input, grad_grad_weight) + grad_grad_bias``, of the shape
        of ``grad_output``; None where all three are.
    input_gradient : array or None
        Of the shape of ``input``; None where ``grad_grad_weight`` is.
    weight_gradient : array or None
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
    convert = converter(_NAME, like)
    parameters: dict[str, Any] = {
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

    def read(name: str, array: Any) -> Any:
        return array if isinstance(array, Packed) else _core.as_array(array, _NAME, name, dtype)

    dy, w, x = read("grad_output", grad_output), read("weight", weight), read("input", input)
    # What these three and the parameters have in common with those of `convolution_backward` is checked as there.
    _core.Plan(dy, x, w, output_mask=output_mask, function=_NAME, **parameters)
    of_output, of_input, of_weight = output_mask
    last = data_format is not None and data_format.endswith("C")
    axis = -1 if last else 1 - len(w.shape)  # of the channels

    def image_shape(array: Any) -> tuple[int, ...]:
        """Return the shape in the order of `data_format`, in which that of what is packed never is."""
        shape = list(array.shape)
        if last and isinstance(array, Packed):
            shape.append(shape.pop(1 - len(w.shape)))
        return tuple(shape)

    channels = w.shape[1] * operator.index(groups) if transposed else w.shape[0]
    gradients = []
    for name, array, of, expected in (
        ("grad_grad_input", grad_grad_input, "input", image_shape(x)),
        ("grad_grad_weight", grad_grad_weight, "weight", tuple(w.shape)),
        ("grad_grad_bias", grad_grad_bias, "bias", (channels,)),
    ):
        gradient = None if array is None else read(name, array)
        gradients.append(gradient)
        if gradient is None:
            continue
        got = image_shape(gradient) if of == "input" else tuple(gradient.shape)
        if got != expected:
            raise ValueError(f"{_NAME}: {name}.shape must be that of the {of} = {expected}, got {got}")
        if of != "bias":
            operands = {"grad_output": dy, "input": x, "weight": w, of: gradient}
            _core.Plan(**operands, output_mask=(False,) * 3, function=f"{_NAME}: {name} as {of}", **parameters)
        elif gradient.dtype.itemsize == 1:
            raise TypeError(f"{_NAME}: {name}.dtype must have at least 16 bits, got {gradient.dtype}")
    ddx, ddw, ddb = gradients

    def values(array: NDArray[Any]) -> NDArray[Any]:
        """Return what codes stand for, and other arrays as they are."""
        return formats.decode(array, dtype) if array.dtype.kind == "u" else array

    def rounded(array: NDArray[Any], to: np.dtype[Any]) -> NDArray[Any]:
        """Round values to a dtype, that of codes to such."""
        return formats.cast(array, str(dtype)).view(to) if to.kind == "u" else array.astype(to, copy=False)

    ddy: NDArray[Any] | None = None
    if of_output and ddx is not None:
        ddy = convolution(ddx, w, ddb, **parameters)
    if of_output and ddw is not None:
        other = convolution(x, ddw, ddb if ddy is None else None, **parameters)
        if ddy is None:
            ddy = other
        else:
            total = np.add(values(ddy), values(other))
            ddy = rounded(total, ddy.dtype if ddy.dtype == other.dtype else total.dtype)
    if of_output and ddy is None and ddb is not None:
        shape = list(image_shape(dy))
        shape[axis] = channels
        bias = values(ddb).reshape(-1, *[1] * (-1 - axis))
        ddy = rounded(np.array(np.broadcast_to(bias, shape), order="C"), dy.dtype)
    if ddy is not None:  # without channels of the input, `convolution_backward` takes a grad_output without any
        ddy = ddy[tuple(map(slice, image_shape(dy)))]
    dx, dw = None, None
    if of_input and ddw is not None:
        dx = convolution_backward(dy, x, ddw, output_mask=(True, False, False), **parameters)[0]
    if of_weight and ddx is not None:
        dw = convolution_backward(dy, ddx, w, output_mask=(False, True, False), **parameters)[1]
    return convert(ddy), convert(dx), convert(dw)
