"""The public functions: their signatures and documentation. Arguments are checked by the extension, in one place."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convbwd import _core
from convbwd._interop import converter

IntOrInts: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Padding: TypeAlias = str | IntOrInts | Sequence[Sequence[SupportsIndex]]
Mask: TypeAlias = Sequence[bool] | NDArray[np.bool_]
Out: TypeAlias = Sequence[Any] | None
Gradients: TypeAlias = tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]


class CubeMathType(enum.IntEnum):
    """
    How operands are rounded before they are multiplied: the cubeMathType of Ascend's operators.

    What a mode does depends on the dtype that the operands promote to together; it is the table below for ``soc="a2"``.
    HF32 is float32 with 11 bits of the mantissa instead of 23, rounded to nearest even; with 10 bits for ``soc="950"``.
    float16 rounds to nearest even, beyond 65504 to infinity. float16 and 8-bit operands are never rounded. Products are
    accumulated in float32 and results rounded once, whatever the mode.

    ========  ===========  =============================  ==========  ==========
    dtype     KEEP_DTYPE   ALLOW_FP32_DOWN_PRECISION      USE_FP16    USE_HF32
    ========  ===========  =============================  ==========  ==========
    float32   as it is     HF32                           float16     HF32
    bfloat16  as it is     as it is                       float16     as it is
    float64   as it is     TypeError                      TypeError   TypeError
    ========  ===========  =============================  ==========  ==========

    ``soc="910"`` computes float16 only: there float32 becomes float16 with ALLOW_FP32_DOWN_PRECISION and USE_FP16 and
    is a ValueError with the other two, and all other dtypes but float16 are a TypeError.
    """

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3


def convolution_backward(
    grad_output: ArrayLike,
    input: ArrayLike,
    weight: ArrayLike,
    bias_sizes: Sequence[SupportsIndex] | None = None,
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
    out: Out = None,
    accumulate: bool = False,
    per_sample: bool = False,
    like: object = None,
) -> Gradients:
    r"""
    Gradients of a 1-, 2- or 3-D convolution with respect to its input, weight and bias.

    The arguments, their order and the results are those of PyTorch's operator ``aten::convolution_backward``. With n
    spatial dimensions (1, 2 or 3), batch size N, kernel sizes ``*k`` and spatial sizes ``*I`` and ``*O``:

    Parameters
    ----------
    grad_output : array_like, shape (N, C_out, \*O)
        Gradient with respect to the output of ``convolution(input, weight, ...)``, whose shape it has. Where C_in is 0,
        it may have 0 channels.
    input : array_like, shape (N, C_in, \*I)
        Input of the convolution. Without the batch axis (then in ``grad_output`` too) it is one image, and
        ``grad_input`` has no batch axis either.
    weight : array_like, shape (C_out, C_in / groups, \*k); if transposed (C_in, C_out / groups, \*k)
        Kernel of the convolution; its rank, n + 2, determines n.
    bias_sizes : None or sequence of int, optional
        Shape of the bias, ``(C_out,)``, which is checked where ``output_mask`` wants its gradient; None is not.
    stride, dilation : int or sequence of int, optional
        At least 1; one for all dimensions or one for each.
    padding : int, sequence of int, sequence of (before, after), "valid" or "same", optional
        Zeros around the input: a number for all dimensions, one for each, or two for each, as n pairs or flat (in two
        dimensions ``(up, down, left, right)``). "valid" is 0. "same" gives O = ceil(I / stride), the odd zero at the
        end: TensorFlow's rule, which at stride 1 is PyTorch's; not for transposed convolutions.
    transposed : bool, optional
        Whether the convolution is a transposed one.
    output_padding : int or sequence of int, optional
        Additional size of the output of a transposed convolution, less than max(stride, dilation); else 0.
    groups : int, optional
        Number of groups of channels; divides C_in and C_out.
    output_mask : sequence or array of 3 bool, optional
        Which gradients to compute. The others are None and cost nothing.
    data_format : str, optional
        Order of the axes of ``grad_output``, ``input`` and ``grad_input``: "NCL" (or "NCW"), "NCHW", "NCDHW" (the
        default), or "NLC" (or "NWC"), "NHWC", "NDHWC". The axes of ``weight`` and ``grad_weight`` are always as above.
    algorithm : {"auto", "direct", "blas", "reference", "matrix", "winograd"}, optional
        How to compute: chosen by cost, from what ``precision`` allows; by the library's own kernels, which sum
        products and nothing else; by OpenBLAS where the build has it; or by plain loops that accumulate in double
        precision (slow; to check the others with). "matrix" takes the processor's matrix unit and "winograd" the tiles
        that ``precision`` allows wherever they can serve, even where that takes longer, and "direct" elsewhere.
    precision : {"default", "strict", "fast"}, optional
        What ``algorithm="auto"`` may choose from. "direct", "blas" and "reference" take no notice of it; "matrix"
        leaves results with tiny operands to the direct kernels where it is "strict". See Notes.
    cube_math_type : CubeMathType or int, optional
        How operands are rounded before they are multiplied, as Ascend devices do it; ``grad_bias`` is the sum of
        ``grad_output`` as it is. Other modes than KEEP_DTYPE make "default" the same as "strict".
    soc : {"a2", "950", "910"}, optional
        The generation of devices whose modes those are: Atlas A2 and A3, Ascend 950, Ascend 910.
    dtype : {None, "hifloat8", "float8_e4m3fn", "bfloat16"}, optional
        What arrays of unsigned integers of that size hold: codes of this type. For callers without the packages that
        bring it to NumPy; results of the type come back as such integers.
    out : None or sequence of 3 arrays or None, optional
        Where to write the gradients: writeable arrays of their shapes and dtypes, with any strides, which share no
        memory with each other or with an operand. None stands for a new array, or for a gradient that ``output_mask``
        leaves out.
    accumulate : bool, optional
        Whether to add the gradients to ``out`` instead: what is there becomes the sum of itself and the gradient of
        its dtype, rounded once more, as PyTorch accumulates gradients. Then ``out`` has an array for every gradient
        that is computed.
    per_sample : bool, optional
        Whether ``grad_weight`` and ``grad_bias`` are to be those of each image for itself, with a leading axis of
        size N. Their sums over that axis are the usual ones. Images must have the batch axis.
    like : array of any library, optional
        New results come as arrays of its library, in the memory of the CPU: NumPy, PyTorch, JAX (which makes float64
        float32 unless it is told to enable 64 bits), or one that follows the array API standard.

    Returns
    -------
    grad_input : array or None
        Gradient with respect to ``input``, of its shape; its dtype is the wider of those of ``input`` and
        ``grad_output``.
    grad_weight : array or None
        Gradient with respect to ``weight``, of its shape; its dtype is the wider of those of ``weight`` and
        ``grad_output``.
    grad_bias : array or None
        Gradient with respect to the bias, of shape (C_out,): the sum of ``grad_output`` over all other axes, in its
        dtype. Of 8-bit operands it has float32, and so has ``grad_weight``.

        What ``out`` holds is returned as it was given. New results are C-contiguous ndarrays, or what ``like`` asks
        for; unsigned integers where ``dtype`` says that operands are.

    Raises
    ------
    ValueError
        If a shape or a parameter breaks a rule; the message names the argument, the rule and the value.
    TypeError
        If an argument is of a wrong type, or an array's dtype is not float64, float32, float16, bfloat16 or
        float8_e4m3fn (of ml_dtypes) or hifloat8 (of en_dtypes) in native byte order; if 8-bit types are mixed with
        others; if ``cube_math_type`` or ``soc`` does not allow a dtype.
    MemoryError
        If the results or the working memory cannot be allocated.

    See Also
    --------
    convolution : The function whose gradients these are.

    Notes
    -----
    In one group, with :math:`p` the zeros before the first element, the convolution is

    .. math:: y_{n,co,o} = b_{co} + \sum_{ci,t} x_{n,ci,\; o s + t d - p} \, w_{co,ci,t}

    and its gradients follow by the chain rule [Dumoulin2016]_. Dtypes may be mixed: float16 and bfloat16 together give
    float32. 16- and 8-bit types are accumulated in float32 and rounded once. Arrays may have any strides and are never
    written to. An array in a memory format of Ascend's operators, as a `convbwd.formats.Packed`, is read where it is,
    and in ``out`` written (but for the ``per_sample`` ones); its shape is channels-first whatever ``data_format`` says.
    One build on one generation of processors gives the same bits for the same arguments, whatever the number of
    threads and the memory layout, but for the sign of zero.

    With K products in the sum of an element and eps of the type in which it is formed, before the result is rounded to
    its dtype, ``precision`` means

    - "strict": products are summed, nothing else. The error of each element is below
      ``(4 + sqrt(K)) * eps * conv(|a|, |b|)`` (for K up to 100,000; of longer sums unless most roundings go one way),
      and what is not finite reaches exactly the results whose windows touch it.
    - "default": also Winograd's algorithm, F(2x2, 3x3), F(3x3, 2x2), F(2x2, 2x2), F(4x4, 3x3) and F(3x3, 4x4) with 46
      products and, along one of the last two axes alone, F(3, 2), and F(4, 3) and F(3, 4) with 7 products, for windows
      (in parts) over 16 channels or more. The error of a result as a whole, its largest and its root mean square, is no
      larger than that of a straight sum (up to 1.25 times that of one of less than 150 products, or of products most of
      which are zero); that of a small element beside large ones may be, and subnormal operands lose bits. Small
      integers stay exact. Operands that are not finite, and images in which a few values dwarf those around them, are
      left to "strict".
    - "fast": also F(4x4, 3x3) and F(3x3, 4x4) with 36 products, a quarter of the multiplications (F(2x2, 3x3): 4
      ninths), along one of the last two F(4, 3) with 6, and Fourier transforms of tiles for windows of 4 taps and more,
      a third to a seventeenth of the multiplications. The largest error of a result was measured at up to 4.1
      times that of PyTorch's sums, with Fourier transforms about that of straight sums, and stays below 16 eps of
      the largest element for normally distributed operands. Integers are not exact.

    References
    ----------
    .. [Dumoulin2016] V. Dumoulin and F. Visin, "A guide to convolution arithmetic for deep learning",
       arXiv:1603.07285, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> x = np.arange(8.0).reshape(1, 1, 8)
    >>> w = np.array([[[1.0, 2.0, 3.0]]])
    >>> dy = np.ones((1, 1, 3))
    >>> dx, dw, db = convbwd.convolution_backward(dy, x, w, stride=2)
    >>> dx
    array([[[1., 2., 4., 2., 4., 2., 3., 0.]]])
    >>> dw
    array([[[ 6.,  9., 12.]]])
    >>> db
    array([3.])
    """
    convert = None if like is None else converter("convolution_backward", like)
    results = _core.convolution_backward(
        grad_output,
        input,
        weight,
        bias_sizes,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
        data_format,
        algorithm,
        precision,
        cube_math_type,
        soc,
        dtype,
        out,
        accumulate,
        per_sample,
    )
    if convert is None:
        return results
    dx, dw, db = (
        r if r is o else convert(r) for r, o in zip(results, (None,) * 3 if out is None else out, strict=True)
    )
    return dx, dw, db


def convolution(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: IntOrInts = 1,
    padding: Padding = 0,
    dilation: IntOrInts = 1,
    transposed: bool = False,
    output_padding: IntOrInts = 0,
    groups: SupportsIndex = 1,
    *,
    data_format: str | None = None,
    algorithm: str = "auto",
    like: object = None,
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
) -> NDArray[Any]:
    r"""
    Convolve batches of 1-, 2- or 3-D images with a kernel, or apply the transpose of that.

    The arguments and their order are those of PyTorch's operator ``aten::convolution``. As everywhere in neural
    networks, the kernel is not flipped: this is a cross-correlation.

    Parameters
    ----------
    input : array_like, shape (N, C_in, \*I)
        Images. Without the batch axis it is one image, and the output has no batch axis either.
    weight : array_like, shape (C_out, C_in / groups, \*k); if transposed (C_in, C_out / groups, \*k)
        Kernel; its rank is the number of spatial dimensions + 2.
    bias : array_like, shape (C_out,), optional
        Added to the output, channel by channel. Its dtype does not influence the dtype of the output; not of 8 bits.
    stride, padding, dilation, transposed, output_padding, groups, data_format
        As in `convolution_backward`.
    algorithm, precision, cube_math_type, soc, dtype, like
        As in `convolution_backward`.

    Returns
    -------
    output : array, shape (N, C_out, \*O)
        A new C-contiguous ndarray, or what ``like`` asks for.
        Its sizes are ``O = (I + before + after - dilation * (k - 1) - 1) // stride + 1``, transposed
        ``O = (I - 1) * stride - before - after + dilation * (k - 1) + output_padding + 1``. Its dtype is the wider of
        those of ``input`` and ``weight``; float16 and bfloat16 together give float32.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As `convolution_backward`.

    See Also
    --------
    convolution_backward : The gradients of this function.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> x = np.arange(8.0).reshape(1, 1, 8)
    >>> w = np.array([[[1.0, 2.0, 3.0]]])
    >>> convbwd.convolution(x, w, stride=2)
    array([[[ 8., 20., 32.]]])
    >>> convbwd.convolution(x, w, np.array([0.5]), padding="same").shape
    (1, 1, 8)
    """
    convert = converter("convolution", like)
    output = _core.convolution(
        input,
        weight,
        bias,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        data_format,
        algorithm,
        precision,
        cube_math_type,
        soc,
        dtype,
    )
    converted: NDArray[Any] = convert(output)
    return converted


def set_num_threads(n: SupportsIndex) -> None:
    """
    Set how many threads a call may use, for the whole process; of more than 256, it uses 256.

    The default is the environment variable CONVBWD_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs that affinity and
    cgroup quota leave to this process. The results do not depend on it.

    Parameters
    ----------
    n : int
        Number of threads, at least 1, the calling one included.

    Raises
    ------
    ValueError
        If ``n`` is not from 1 to 2147483647.
    TypeError
        If ``n`` is not an int.
    """
    _core.set_num_threads(n)


def get_num_threads() -> int:
    """
    Return how many threads a call may use.

    Returns
    -------
    int
        What `set_num_threads` has set, or the default that it describes.
    """
    return _core.get_num_threads()


def build_info() -> dict[str, str]:
    """
    Return facts about this build of the library, such as its version, compiler and instruction sets.

    Returns
    -------
    dict of str to str
        Names and values, for bug reports.

    Examples
    --------
    >>> import convbwd
    >>> sorted(convbwd.build_info())  # doctest: +ELLIPSIS
    [...]
    """
    return _core.build_info()
