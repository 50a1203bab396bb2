"""
Formats of arrays: how numbers are coded (`cast`, `decode`), where elements lie (`pack`, `unpack`, `Packed`).

The memory formats are those of images and weights in Ascend's operators. A plain array has the axes ``(N, C, H, W)``
or ``(N, C, D, H, W)``; of weights N is the output channel and C the input channel within its group. The formats are

========================  ===========================================================================================
``"NCHW"``, ``"NCDHW"``   the plain array itself
``"NHWC"``, ``"NDHWC"``   the axes in this order, likewise ``"HWCN"`` and ``"DHWCN"``
``"NC1HWC0"``             ``(N, C1, H, W, C0)``: channel ``c`` is lane ``c % C0`` of block ``c // C0``
``"NDC1HWC0"``            ``(N, D, C1, H, W, C0)``
``"FRACTAL_Z"``           weights, ``(G1 * C1 * H * W, N1, 16, C0)``
``"FRACTAL_Z_3D"``        weights, ``(G1 * D * C1 * H * W, N1, 16, C0)``
========================  ===========================================================================================

Lanes that no channel has are zero. C0 is 32 bytes unless stated: 8 float32, 16 float16 or bfloat16, 32 8-bit elements.
Grouped weights are packed block-diagonally: ``E = min(lcm(lcm(C, C0) / C, lcm(N / groups, 16) / (N / groups)),
groups)`` groups share blocks, so that ``C1 = ceil(E * C / C0)``, ``N1 = ceil(E * N / groups / 16)`` and
``G1 = ceil(groups / E)``.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convbwd import _core
from convbwd._layouts import Packed, convert, pack, shape_of, unpack

__all__ = ["Packed", "cast", "convert", "decode", "pack", "shape_of", "unpack"]

_PACKAGES = {"bfloat16": "ml_dtypes", "float8_e4m3fn": "ml_dtypes", "hifloat8": "en_dtypes"}


def cast(
    array: ArrayLike, format: str, *, source: str | None = None, saturate: bool = False, rounding: str | None = None
) -> NDArray[Any]:
    """
    Round the elements of an array to a number format.

    Parameters
    ----------
    array : array_like
        Elements of any dtype that `convbwd.convolution` takes.
    format : str
        One of

        - "float64", "float32", "float16"
        - "bfloat16" and "float8_e4m3fn", as ml_dtypes has them: beyond 464 the latter is NaN
        - "hifloat8", Ascend's tapered 8-bit type: half away from zero; from 40960 on infinity; one zero, one NaN
        - "hf32" and "hf32_10": float32 with 11 and with 10 bits of the mantissa, as the devices multiply them
    source : {None, "hifloat8", "float8_e4m3fn", "bfloat16"}, optional
        What an array of unsigned integers holds: codes of this type.
    saturate : bool, optional
        Of the 8-bit types: whether what is beyond the largest number becomes that, and NaN 0.
    rounding : {None, "even", "away"}, optional
        Of "hf32" and "hf32_10": what happens half-way between two numbers. The hardware's default is "even".

    Returns
    -------
    ndarray
        Of the same shape. float32 for "hf32" and "hf32_10"; unsigned integers with the codes of a type whose package,
        ml_dtypes or en_dtypes, is not installed. Each element is rounded once, to nearest, ties to even if not said
        otherwise above.

    Raises
    ------
    TypeError
        If the dtype of ``array`` is none of those.
    ValueError
        If another argument is none of those, or belongs to another format.

    See Also
    --------
    decode : The inverse.

    Examples
    --------
    >>> import numpy as np
    >>> from convbwd import formats
    >>> formats.cast(np.float32([1 / 3, 1e6]), "hifloat8").view(np.uint8)
    array([ 51, 111], dtype=uint8)
    >>> formats.decode(formats.cast([1 / 3, 1e6], "hifloat8", saturate=True), "hifloat8")
    array([3.4375e-01, 3.2768e+04], dtype=float32)
    """
    if rounding not in (None, "even", "away"):
        raise ValueError(f"cast: rounding must be None, 'even' or 'away', got {rounding!r}")
    if rounding is not None and format not in ("hf32", "hf32_10"):
        raise ValueError(f"cast: rounding must be None unless format is 'hf32' or 'hf32_10', got {rounding!r}")
    if rounding == "away":
        single = _core.cast(array, "float32", source, saturate)
        exact = _core.cast(array, "float64", source, saturate)
        bits = single.view(np.uint32)
        with np.errstate(invalid="ignore"):  # of signalling NaN
            # Rounded to odd, what float32 does not have stays on its side of what is half-way below.
            odd = bits - (np.abs(single) > np.abs(exact)) | (single != exact)
        # Adding half of the last bit that is kept to the magnitude and dropping what is below rounds half away.
        half = np.uint32(1 << (11 if format == "hf32" else 12))
        rounded = (odd + half) & ~(2 * half - np.uint32(1))
        return np.where(np.isfinite(single), rounded, bits).view(np.float32)
    result = _core.cast(array, format, source, saturate)
    try:
        package = importlib.import_module(_PACKAGES[format])
    except (KeyError, ModuleNotFoundError):
        return result
    return result.view(getattr(package, format))


def decode(array: ArrayLike, format: str | None = None) -> NDArray[Any]:
    """
    Return the exact values of an array's elements.

    Parameters
    ----------
    array : array_like
        Elements of any dtype that `convbwd.convolution` takes, or codes in unsigned integers.
    format : {None, "hifloat8", "float8_e4m3fn", "bfloat16"}, optional
        The type of the codes, where they are in unsigned integers.

    Returns
    -------
    ndarray
        Of the same shape; float64 where ``array`` is, else float32.

    Raises
    ------
    TypeError
        If the dtype of ``array`` is none of those.
    ValueError
        If ``format`` is none of those.

    See Also
    --------
    cast : The inverse.

    Examples
    --------
    >>> import numpy as np
    >>> from convbwd import formats
    >>> formats.decode(np.array([0x08, 0x6E, 0x6F, 0x80], np.uint8), "hifloat8")
    array([1.0000e+00, 3.2768e+04,        inf,        nan], dtype=float32)
    """
    return _core.decode(array, format)
