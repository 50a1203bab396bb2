"""Conversions between plain arrays and the memory formats that `convbwd.formats` describes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from convbwd import _core
from convbwd._interop import ML_DTYPES, numpy_dtype

__all__ = ["Packed", "convert", "pack", "shape_of", "unpack"]

_BLOCK_BYTES = 32


def _itemsize(dtype: np.dtype[Any]) -> int:
    if dtype.hasobject or dtype.itemsize not in (1, 2, 4, 8):
        raise TypeError(f"formats: elements must have 1, 2, 4 or 8 bytes, got {dtype}")
    return dtype.itemsize


def _elements(array: ArrayLike) -> NDArray[Any]:
    """Return an array of any dtype; those of tensors that NumPy does not know are those of ml_dtypes."""
    if np.ma.isMaskedArray(array):
        raise TypeError("formats: an array must have no mask (its filled() has none)")
    if not isinstance(array, np.ndarray) and str(getattr(array, "dtype", "")).endswith(ML_DTYPES):
        return _core.as_array(array, "formats", "array")
    try:
        return np.asarray(array)
    except RuntimeError as error:  # of tensors that need gradients, for one
        raise TypeError(f"formats: array must be an array: {error}") from error


def shape_of(
    shape: Sequence[SupportsIndex],
    format: str,
    dtype: DTypeLike = np.float32,
    *,
    groups: SupportsIndex = 1,
    c0: SupportsIndex | None = None,
) -> tuple[int, ...]:
    """Return the shape that a plain array has in a format.

    Parameters
    ----------
    shape : sequence of int
        ``(N, C, H, W)`` or ``(N, C, D, H, W)``, as the format's rank demands.
    format : str
        One of the memory formats of `convbwd.formats`.
    dtype : dtype, default float32
        Element type, which decides ``c0`` where that is not given.
    groups : int, default 1
        Groups of weights; they divide N. They matter to ``FRACTAL_Z`` and ``FRACTAL_Z_3D`` only.
    c0 : int, optional
        Channels of a block, instead of 32 bytes of them.

    Returns
    -------
    tuple of int

    Raises
    ------
    ValueError
        Unknown format, wrong rank, groups that do not divide N, ``c0`` below 1, a size of 2**63 or more.
    TypeError
        Elements that do not have 1, 2, 4 or 8 bytes; a format that is no string, a size that is no int.

    Examples
    --------
    >>> shape_of((2, 17, 1, 2, 3), "NDC1HWC0", np.float16)
    (2, 1, 2, 2, 3, 16)
    >>> shape_of((48, 4, 1, 3, 3), "FRACTAL_Z_3D", np.float16, groups=12)
    (27, 1, 16, 16)
    """
    block = _BLOCK_BYTES // _itemsize(numpy_dtype(dtype)) if c0 is None else c0
    return _core.packed_shape(format, shape, groups, block)


def convert(
    array: ArrayLike,
    source: str,
    target: str,
    shape: Sequence[SupportsIndex],
    *,
    groups: SupportsIndex = 1,
    c0: SupportsIndex | None = None,
) -> NDArray[Any]:
    """Return a copy in the format `target` of an array that is in the format `source`.

    Parameters
    ----------
    array : array_like
        Of the shape that `shape_of` states for `source`, of any dtype with elements of 1, 2, 4 or 8 bytes.
    source, target : str
        Formats of the same rank.
    shape : sequence of int
        Shape of the plain array.
    groups, c0
        As for `shape_of`.

    Returns
    -------
    ndarray
        C-contiguous, of the dtype of `array`. Lanes of blocks that no element has are zero, whatever `array` has there.

    Raises
    ------
    ValueError
        As for `shape_of`, and for an array of another shape.
    TypeError
        As for `shape_of`.
    """
    x = np.ascontiguousarray(_elements(array))
    size = _itemsize(x.dtype)
    expected = shape_of(shape, source, x.dtype, groups=groups, c0=c0)
    if x.shape != expected:
        raise ValueError(f"formats: the array must have shape {expected} in {source}, got {x.shape}")
    result = np.empty(shape_of(shape, target, x.dtype, groups=groups, c0=c0), x.dtype)
    block = _BLOCK_BYTES // size if c0 is None else operator.index(c0)
    plain = [operator.index(n) for n in shape]
    raw = f"u{size}"  # the buffer protocol does not know every dtype
    _core.convert_format(result.view(raw), target, x.view(raw), source, plain, operator.index(groups), block)
    return result


def pack(array: ArrayLike, format: str, *, groups: SupportsIndex = 1, c0: SupportsIndex | None = None) -> NDArray[Any]:
    """Return a plain array in a format; `convert` documents the rest.

    Examples
    --------
    >>> pack(np.arange(1, 13).reshape(1, 3, 1, 2, 2), "NDC1HWC0", c0=4).reshape(4, 4)
    array([[ 1,  5,  9,  0],
           [ 2,  6, 10,  0],
           [ 3,  7, 11,  0],
           [ 4,  8, 12,  0]])
    """
    x = _elements(array)
    return convert(x, "NCDHW" if x.ndim == 5 else "NCHW", format, x.shape, groups=groups, c0=c0)


def unpack(
    array: ArrayLike,
    format: str,
    shape: Sequence[SupportsIndex],
    *,
    groups: SupportsIndex = 1,
    c0: SupportsIndex | None = None,
) -> NDArray[Any]:
    """Return the plain array of the given shape that is in a format; `convert` documents the rest.

    Examples
    --------
    >>> x = np.arange(60.0, dtype=np.float16).reshape(2, 5, 3, 2)
    >>> bool((unpack(pack(x, "NC1HWC0"), "NC1HWC0", x.shape) == x).all())
    True
    """
    return convert(array, format, "NCDHW" if len(shape) == 5 else "NCHW", shape, groups=groups, c0=c0)


class Packed:
    """An array in a memory format, for functions that would take the plain array.

    `convbwd.convolution`, `convbwd.convolution_backward`, its ``out`` and plans read and write the memory where it is.
    The results are those of plain arrays, bit for bit but for the sign of zero. ``numpy.asarray`` makes it one.

    Parameters
    ----------
    array : ndarray
        C-contiguous, of the shape that `shape_of` states. It is not copied.
    format : str
        One of the module's formats; ``FRACTAL_Z`` and ``FRACTAL_Z_3D`` are for weights.
    shape : sequence of int
        Shape of the plain array, always ``(N, C, H, W)`` or ``(N, C, D, H, W)``.
    groups, c0
        As for `shape_of`. Groups of weights are those of the convolution.

    Raises
    ------
    ValueError
        As for `shape_of`, and for an array of another shape or order.
    TypeError
        As for `shape_of`, and for what is no array.

    Examples
    --------
    >>> x = np.arange(60, dtype=np.float32).reshape(2, 5, 3, 2)
    >>> packed = Packed(pack(x, "NC1HWC0"), "NC1HWC0", x.shape)
    >>> packed
    Packed(NC1HWC0, shape=(2, 5, 3, 2), dtype=float32)
    >>> import convbwd
    >>> w = np.ones((4, 5, 2, 2), np.float32)
    >>> bool((convbwd.convolution(packed, w) == convbwd.convolution(x, w)).all())
    True
    """

    __slots__ = ("array", "c0", "format", "groups", "shape")

    def __init__(
        self,
        array: NDArray[Any],
        format: str,
        shape: Sequence[SupportsIndex],
        *,
        groups: SupportsIndex = 1,
        c0: SupportsIndex | None = None,
    ) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"formats: a packed array must be an ndarray, got {type(array).__name__}")
        expected = shape_of(shape, format, array.dtype, groups=groups, c0=c0)
        if array.shape != expected or not array.flags.c_contiguous:
            raise ValueError(
                f"formats: the array must be C-contiguous with shape {expected} in {format}, got shape {array.shape} "
                f"with strides {array.strides}"
            )
        self.array = array
        self.format = format
        self.shape = tuple(operator.index(n) for n in shape)
        self.groups = operator.index(groups)
        self.c0 = _BLOCK_BYTES // array.itemsize if c0 is None else operator.index(c0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.array.dtype

    @property
    def __convbwd_packing__(self) -> tuple[NDArray[Any], str, tuple[int, ...], int, int]:
        """What the extension reads."""
        return self.array, self.format, self.shape, self.c0, self.groups

    def unpack(self) -> NDArray[Any]:
        """Return the plain array, a copy."""
        return unpack(self.array, self.format, self.shape, groups=self.groups, c0=self.c0)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return `unpack` for ``numpy.asarray``."""
        if copy is False:
            raise ValueError("formats: a packed array cannot become a plain one without a copy")
        return self.unpack().astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        """Return the format, the plain shape and the dtype."""
        return f"Packed({self.format}, shape={self.shape}, dtype={self.dtype})"
