"""Gradients of 3-D convolutions as Ascend's graph operators state them. The arguments are checked by the extension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from numpy.typing import ArrayLike, NDArray

from convbwd import _core

Ints = Sequence[SupportsIndex]


def conv3d_backprop_input(
    input_size: Ints,
    filter: ArrayLike,
    out_backprop: ArrayLike,
    strides: Ints,
    pads: Ints | None,
    dilations: Ints = (1, 1, 1, 1, 1),
    groups: SupportsIndex = 1,
    data_format: str = "NDHWC",
    *,
    filter_format: str | None = None,
    padding: str | None = None,
    enable_hf32: bool = False,
    dtype: str | None = None,
) -> NDArray[Any]:
    r"""
    Gradient of a 3-D convolution with respect to its input: Ascend's graph operator Conv3DBackpropInputV2.

    It is ``convolution_backward(out_backprop, input, filter, ...)[0]`` with the operator's names, orders of axes and
    limits. TensorFlow's operator of the same name is this one with ``filter_format="DHWCN"``.

    Parameters
    ----------
    input_size : sequence of 5 int
        Shape of the result, in the order of `data_format`; with four entries D is 1.
    filter : array_like
        Kernel, as `filter_format` says. H and W are from 1 to 511.
    out_backprop : array_like
        Gradient with respect to the output, as `data_format` says, of the dtype of `filter`.
    strides, dilations : sequence of 5 int
        In the order of `data_format`; those of N and C are 1. Strides of H and W are up to 63, of D up to 255,
        dilations up to 255.
    pads : sequence of 6 int, or None where `padding` is given
        Zeros at the front, back, top, bottom, left and right of the input, up to 255. Six times -1 is ``"SAME"``.
    groups : int, optional
        Number of groups of channels, up to 65535. It follows from the channels; another number than 1 must agree.
    data_format : {"NDHWC", "NCDHW"}, optional
        Order of the axes of images.
    filter_format : {None, "NCDHW", "NDHWC", "DHWCN"}, optional
        Order of the axes of the filter: N are output channels, C input channels of a group. None is `data_format`.
    padding : {None, "SAME", "VALID"}, optional
        TensorFlow's rule instead of `pads`.
    enable_hf32 : bool, optional
        Whether float32 operands are rounded to 11 bits of mantissa before they are multiplied.
    dtype : {None, "hifloat8", "float8_e4m3fn", "bfloat16"}, optional
        What arrays of unsigned integers hold: codes of this type.

    Returns
    -------
    ndarray
        Gradient of shape `input_size`, with all five axes, of the dtype of the operands.

    Raises
    ------
    ValueError
        If a shape, an attribute or their combination breaks a rule above; if an 8-bit filter is not in "NCDHW".
    TypeError
        If the operands differ in dtype, or have one that `convbwd.convolution_backward` does not take.

    See Also
    --------
    conv3d_backprop_filter : The gradient with respect to the filter.
    Conv3DBackpropInput : The same, tile by tile.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> filter = np.ones((1, 3, 3, 2, 4), np.float32)  # D, H, W, C, N
    >>> dy = np.ones((1, 1, 5, 5, 4), np.float32)  # N, D, H, W, C
    >>> dx = convbwd.conv3d_backprop_input(
    ...     (1, 1, 10, 10, 2), filter, dy, (1, 1, 2, 2, 1), None, filter_format="DHWCN", padding="SAME"
    ... )
    >>> dx[0, 0, :, 0, 0]
    array([4., 4., 8., 4., 8., 4., 8., 4., 8., 4.], dtype=float32)
    """
    return _core.conv3d_backprop_input(
        input_size,
        filter,
        out_backprop,
        strides,
        pads,
        dilations,
        groups,
        data_format,
        filter_format,
        padding,
        enable_hf32,
        dtype,
    )


def conv3d_backprop_filter(
    input: ArrayLike,
    filter_size: Ints,
    out_backprop: ArrayLike,
    strides: Ints,
    pads: Ints | None,
    dilations: Ints = (1, 1, 1, 1, 1),
    groups: SupportsIndex = 1,
    data_format: str = "NDHWC",
    *,
    filter_format: str | None = None,
    padding: str | None = None,
    enable_hf32: bool = False,
    dtype: str | None = None,
) -> NDArray[Any]:
    r"""
    Gradient of a 3-D convolution with respect to its filter: Ascend's graph operator Conv3DBackpropFilter.

    Parameters
    ----------
    input : array_like
        Input of the convolution, as `data_format` says, of the dtype of `out_backprop`.
    filter_size : sequence of 5 int
        Shape of the result, in the order of `filter_format`.
    out_backprop, strides, pads, dilations, groups, data_format, filter_format, padding, enable_hf32, dtype
        As in `conv3d_backprop_input`.

    Returns
    -------
    ndarray
        Gradient of shape `filter_size`, of the dtype of the operands; float32 where that has 8 bits.

    Raises
    ------
    ValueError, TypeError
        As `conv3d_backprop_input`.

    See Also
    --------
    conv3d_backprop_input : The gradient with respect to the input.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> x, dy = np.ones((1, 1, 6, 6, 2), np.float32), np.ones((1, 1, 4, 4, 1), np.float32)
    >>> dw = convbwd.conv3d_backprop_filter(x, (1, 1, 3, 3, 2), dy, (1,) * 5, (0,) * 6)
    >>> dw.shape, float(dw.min()), float(dw.max())
    ((1, 1, 3, 3, 2), 16.0, 16.0)
    """
    return _core.conv3d_backprop_filter(
        input,
        filter_size,
        out_backprop,
        strides,
        pads,
        dilations,
        groups,
        data_format,
        filter_format,
        padding,
        enable_hf32,
        dtype,
    )
