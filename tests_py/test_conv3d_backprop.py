"""Conv3DBackpropInputV2 and Conv3DBackpropFilter: every row of the operator's table, its limits, SAME and VALID."""

import itertools

import numpy as np
import pytest

import convbwd
from convbwd import _reference

ORDERS = ("NCDHW", "NDHWC", "DHWCN")
SIXTEEN = ("float16", "float32", "bfloat16")


def ordered(array, order, inverse=False):
    """Bring the axes N, C, D, H, W into an order; or back."""
    axes = ["NCDHW".index(axis) for axis in order]
    return array.transpose(np.argsort(axes) if inverse else axes)


def spaced(values, order):
    """Entries of D, H and W among those of N and C, which are 1."""
    return (1, *values, 1) if order == "NDHWC" else (1, 1, *values)


def dtype_of(name):
    if name in ("bfloat16", "float8_e4m3fn"):
        return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    if name == "hifloat8":
        return np.dtype(pytest.importorskip("en_dtypes").hifloat8)
    return np.dtype(name)


# dtype, groups, order of the images, order of the filter: the operator's table, and groups in NDHWC besides.
ROWS = [
    *itertools.product(("hifloat8", "float8_e4m3fn"), (1, 2), ("NCDHW", "NDHWC"), ("NCDHW",)),
    *itertools.product(("float64", *SIXTEEN), (1, 2), ("NCDHW", "NDHWC"), ORDERS),
]


@pytest.mark.parametrize(("name", "groups", "image", "weight"), ROWS)
def test_rows_of_the_table(name, groups, image, weight):
    dtype = dtype_of(name)
    rng = np.random.default_rng(0)
    stride, pads, dilation = (2, 1, 2), ((1, 0), (1, 2), (0, 1)), (1, 2, 1)
    x_shape, w_shape, y_shape = (2, 4, 4, 6, 5), (6, 4 // groups, 2, 3, 2), (2, 6, 2, 5, 3)
    x, w, dy = (rng.integers(-1, 2, shape).astype(np.float32) for shape in (x_shape, w_shape, y_shape))
    dx, dw, _ = _reference.convolution_backward(
        dy, x, w, stride=stride, padding=pads, dilation=dilation, transposed=False, groups=groups
    )
    attributes = {
        "strides": spaced(stride, image),
        "pads": [n for pair in pads for n in pair],
        "dilations": spaced(dilation, image),
        "groups": groups,
        "data_format": image,
        "filter_format": weight,
    }
    x, w, dy = (ordered(a.astype(dtype), order) for a, order in ((x, image), (w, weight), (dy, image)))
    got = convbwd.conv3d_backprop_input(np.array(x.shape, np.int32), w, dy, **attributes)
    assert got.dtype == dtype and got.shape == x.shape and got.flags.c_contiguous
    np.testing.assert_array_equal(ordered(got, image, True).astype(float), dx)
    got = convbwd.conv3d_backprop_filter(x, w.shape, dy, **attributes)
    assert got.dtype == (np.float32 if dtype.itemsize == 1 else dtype) and got.shape == w.shape
    np.testing.assert_array_equal(ordered(got, weight, True).astype(float), dw.astype(got.dtype).astype(float))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("padding", ["SAME", "VALID", "same", "valid"])
def test_same_and_valid(padding, k, stride):
    """TensorFlow's rule: the odd zero comes after."""
    rng = np.random.default_rng(0)
    for size in (5, 6, 7):
        out = -(-size // stride) if padding.lower() == "same" else (size - k) // stride + 1
        total = max((out - 1) * stride + k - size, 0) if padding.lower() == "same" else 0
        pads = (total // 2, total - total // 2) * 3
        w, dy = rng.integers(-3, 4, (2, 3, k, k, k)).astype("f"), rng.integers(-3, 4, (1, 2, out, out, out)).astype("f")
        args, strides = ((1, 3, size, size, size), w, dy), (1, 1, stride, stride, stride)
        named = convbwd.conv3d_backprop_input(*args, strides, None, data_format="NCDHW", padding=padding)
        explicit = convbwd.conv3d_backprop_input(*args, strides, pads, data_format="NCDHW")
        np.testing.assert_array_equal(named, explicit)
        if padding == "SAME":
            skipped = convbwd.conv3d_backprop_input(*args, strides, (-1,) * 6, data_format="NCDHW")
            np.testing.assert_array_equal(named, skipped)
        x = rng.integers(-3, 4, (1, 3, size, size, size)).astype("f")
        named = convbwd.conv3d_backprop_filter(x, w.shape, dy, strides, None, data_format="NCDHW", padding=padding)
        explicit = convbwd.conv3d_backprop_filter(x, w.shape, dy, strides, pads, data_format="NCDHW")
        np.testing.assert_array_equal(named, explicit)
        if padding == "SAME":
            skipped = convbwd.conv3d_backprop_filter(x, w.shape, dy, strides, (-1,) * 6, data_format="NCDHW")
            np.testing.assert_array_equal(named, skipped)


def arguments(**changes):
    """Return a call in NCDHW: 4 channels to 6, kernel 1x3x3."""
    return {
        "input_size": (2, 4, 1, 8, 9),
        "filter": np.ones((6, 4, 1, 3, 3), np.float32),
        "out_backprop": np.ones((2, 6, 1, 6, 7), np.float32),
        "strides": (1,) * 5,
        "pads": (0,) * 6,
        "data_format": "NCDHW",
        **changes,
    }


def test_defaults():
    """NDHWC images and filters, one group."""
    x, w, dy = np.ones((1, 1, 4, 4, 2), "f"), np.ones((3, 1, 2, 2, 2), "f"), np.ones((1, 1, 3, 3, 3), "f")
    dx = convbwd.conv3d_backprop_input(x.shape, w, dy, (1,) * 5, (0,) * 6)
    np.testing.assert_array_equal(dx[0, 0, :, :, 1], 3 * np.outer([1, 2, 2, 1], [1, 2, 2, 1]))
    assert convbwd.conv3d_backprop_filter(x, w.shape, dy, (1,) * 5, (0,) * 6).shape == w.shape


def test_four_sizes_are_those_without_depth():
    five, four = arguments(), arguments(input_size=(2, 4, 8, 9))
    np.testing.assert_array_equal(convbwd.conv3d_backprop_input(**five), convbwd.conv3d_backprop_input(**four))
    last = convbwd.conv3d_backprop_input(
        (1, 4, 4, 2), np.ones((3, 1, 2, 2, 2), "f"), np.ones((1, 1, 3, 3, 3), "f"), (1,) * 5, (0,) * 6
    )
    assert last.shape == (1, 1, 4, 4, 2)


def test_groups_follow_from_the_channels():
    call = arguments(filter=np.ones((6, 2, 1, 3, 3), np.float32))
    np.testing.assert_array_equal(
        convbwd.conv3d_backprop_input(**call), convbwd.conv3d_backprop_input(**call, groups=2)
    )
    with pytest.raises(ValueError, match="groups must be 2 as the channels say, got 4"):
        convbwd.conv3d_backprop_input(**call, groups=4)


def test_hf32_rounds_operands():
    w, dy = (np.full(s, 1 + 2.0**-20, np.float32) for s in ((1, 1, 1, 1, 1), (1, 1, 1, 1, 1)))
    args = ((1, 1, 1, 1, 1), w, dy, (1,) * 5, (0,) * 6)
    assert convbwd.conv3d_backprop_input(*args) > 1
    assert convbwd.conv3d_backprop_input(*args, enable_hf32=True) == 1
    assert convbwd.conv3d_backprop_filter(dy, w.shape, dy, *args[3:], enable_hf32=True) == 1
    with pytest.raises(TypeError, match="enable_hf32 must be false for float64"):
        convbwd.conv3d_backprop_input(args[0], w.astype(float), dy.astype(float), *args[3:], enable_hf32=True)


def test_codes():
    w, dy = (np.full(s, 0x08, np.uint8) for s in ((1, 1, 1, 2, 2), (1, 1, 1, 3, 3)))  # ones
    dx = convbwd.conv3d_backprop_input(
        (1, 1, 1, 4, 4), w, dy, (1,) * 5, (0,) * 6, data_format="NCDHW", dtype="hifloat8"
    )
    np.testing.assert_array_equal(convbwd.formats.decode(dx, "hifloat8")[0, 0, 0, 1], [2, 4, 4, 2])
    dw = convbwd.conv3d_backprop_filter(
        np.full((1, 1, 1, 4, 4), 0x08, np.uint8), w.shape, dy, (1,) * 5, (0,) * 6, data_format="NCDHW", dtype="hifloat8"
    )
    np.testing.assert_array_equal(dw, np.full(w.shape, 9, np.float32))


def zeros(*shape):
    return np.zeros(shape, np.float32)


REFUSED = [
    ({"strides": (1, 2, 1, 1, 1)}, "strides of C must be 1, got 2"),
    ({"strides": (2, 1, 1, 1, 1)}, "strides of N must be 1, got 2"),
    ({"strides": (1, 1, 1, 64, 1)}, "strides of H must be from 1 to 63, got 64"),
    ({"strides": (1, 1, 1, 1, 0)}, "strides of W must be from 1 to 63, got 0"),
    ({"strides": (1, 1, 256, 1, 1)}, "strides of D must be from 1 to 255, got 256"),
    ({"strides": (1, 1, 1)}, "strides must have 5 entries, got 3"),
    ({"dilations": (1, 1, 1, 1, 256)}, "dilations of W must be from 1 to 255, got 256"),
    ({"dilations": (1, 1, 0, 1, 1)}, "dilations of D must be from 1 to 255, got 0"),
    ({"dilations": (1, 3, 1, 1, 1)}, "dilations of C must be 1, got 3"),
    ({"dilations": (1, 1, 1, 1, 8)}, "the dilated filter must fit the padded input = 9 along W, got 17"),
    ({"pads": (0, 0, 0, 0, 0, 256)}, "pads must be from 0 to 255"),
    ({"pads": (0, 0, 0, -1, 0, 0)}, "pads must be from 0 to 255"),
    ({"pads": (1, 1)}, "pads must have 6 entries, got 2"),
    ({"padding": "SAME"}, "pads must be None where padding is given"),
    ({"padding": "FULL"}, "padding must be None, 'SAME' or 'VALID', got 'FULL'"),
    ({"groups": 0}, "groups must be from 1 to 65535, got 0"),
    ({"groups": 65536}, "groups must be from 1 to 65535, got 65536"),
    ({"data_format": "DHWCN"}, "data_format must be 'NDHWC' or 'NCDHW', got 'DHWCN'"),
    ({"filter_format": "NCHW"}, "filter_format must be 'NCDHW' or 'NDHWC' or 'DHWCN', got 'NCHW'"),
    ({"out_backprop": zeros(2, 6, 1, 6, 6)}, r"out_backprop.shape must be \(2, 6, 1, 6, 7\), got \(2, 6, 1, 6, 6\)"),
    ({"out_backprop": zeros(1, 6, 1, 6, 7)}, r"out_backprop.shape must be \(2, 6, 1, 6, 7\)"),
    ({"out_backprop": zeros(2, 6, 6, 7)}, "out_backprop.shape must have 5 entries, got 4"),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *REFUSED,
        ({"input_size": (2, 4, 8, 8)}, r"out_backprop.shape must be \(2, 6, 1, 6, 6\)"),
        ({"input_size": (2, 4, 1)}, "input_size must have 5 entries, got 3"),
        ({"input_size": (2, 4, 1, 8, -9)}, "input_size must be from 0 to"),
        ({"input_size": (2, 4, 1, 8, 2**40)}, "input_size must be from 0 to"),
        ({"input_size": (2, 4, 0, 8, 9)}, "input_size of D must be at least 1, got 0"),
        ({"input_size": (2, 5, 1, 8, 9)}, "input_size of C must be a multiple of filter.shape of C = 4, got 5"),
        ({"input_size": (2, 16, 1, 8, 9)}, "filter.shape of N must be divisible by groups = 4"),
        ({"filter": zeros(6, 4, 1, 512, 3)}, "filter.shape of H must be from 1 to 511, got 512"),
        ({"filter": zeros(6, 4, 1, 3, 0)}, "filter.shape of W must be from 1 to 511, got 0"),
        ({"filter": zeros(6, 0, 1, 3, 3)}, "input_size of C must be a multiple"),
    ],
)
def test_what_is_refused_of_the_input_gradient(changes, message):
    with pytest.raises(ValueError, match=f"conv3d_backprop_input: {message}"):
        convbwd.conv3d_backprop_input(**arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *REFUSED,
        ({"input": zeros(2, 5, 1, 8, 9)}, "input.shape of C must be a multiple of filter_size of C = 4, got 5"),
        ({"filter_size": (6, 4, 1, 3)}, "filter_size must have 5 entries, got 4"),
        ({"filter_size": (6, 4, 1, 3, 512)}, "filter_size of W must be from 1 to 511, got 512"),
    ],
)
def test_what_is_refused_of_the_filter_gradient(changes, message):
    call = arguments(input=zeros(2, 4, 1, 8, 9), filter_size=(6, 4, 1, 3, 3))
    del call["input_size"], call["filter"]
    assert convbwd.conv3d_backprop_filter(**call).shape == (6, 4, 1, 3, 3)
    with pytest.raises(ValueError, match=f"conv3d_backprop_filter: {message}"):
        convbwd.conv3d_backprop_filter(**{**call, **changes})


def test_types_that_are_refused():
    half = np.zeros((6, 4, 1, 3, 3), np.float16)
    with pytest.raises(TypeError, match=r"filter\.dtype must be that of out_backprop = float32, got float16"):
        convbwd.conv3d_backprop_input(**arguments(filter=half))
    with pytest.raises(TypeError, match="strides must be a sequence of ints, got int"):
        convbwd.conv3d_backprop_input(**arguments(strides=1))
    with pytest.raises(TypeError, match="pads must be a sequence of ints, got NoneType"):
        convbwd.conv3d_backprop_input(**arguments(pads=None))
    with pytest.raises(TypeError, match=r"filter\.dtype must be float64, float32"):
        convbwd.conv3d_backprop_input(**arguments(filter=np.zeros((6, 4, 1, 3, 3), int)))
    codes = {"filter": np.zeros((6, 1, 3, 3, 4), np.uint8), "out_backprop": np.zeros((2, 6, 1, 6, 7), np.uint8)}
    with pytest.raises(ValueError, match="filter_format must be NCDHW for hifloat8, got NDHWC"):
        convbwd.conv3d_backprop_input(**arguments(**codes, filter_format="NDHWC", dtype="hifloat8"))


def test_packed_arrays_are_refused():
    """Their shape is NCDHW, whatever the format of the others; of equal sizes, a wrong order would pass."""
    plain = zeros(4, 4, 4, 4, 4)
    packed = convbwd.formats.Packed(convbwd.formats.pack(plain, "NDC1HWC0"), "NDC1HWC0", plain.shape)
    sizes, attributes = plain.shape, ((1,) * 5, (0,) * 6)
    for name, call in (
        ("filter", lambda: convbwd.conv3d_backprop_input(sizes, packed, plain, *attributes)),
        ("out_backprop", lambda: convbwd.conv3d_backprop_input(sizes, plain, packed, *attributes)),
        ("input", lambda: convbwd.conv3d_backprop_filter(packed, sizes, plain, *attributes)),
        ("out_backprop", lambda: convbwd.Conv3DBackpropInput(sizes, plain, packed, *attributes)),
    ):
        with pytest.raises(TypeError, match=f": {name} must be a plain array, got Packed"):
            call()


def test_empty_batch():
    dx = convbwd.conv3d_backprop_input(**arguments(input_size=(0, 4, 1, 8, 9), out_backprop=zeros(0, 6, 1, 6, 7)))
    assert dx.shape == (0, 4, 1, 8, 9)
