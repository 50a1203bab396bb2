"""Every malformed call: the class of its exception, and a message that names function, argument, rule and value."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convbwd
from convbwd import formats


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return an array of ones."""
    return np.ones(shape, dtype)


def huge(*shape: int) -> np.ndarray:
    """Return an array that takes four bytes of memory whatever its shape."""
    return np.broadcast_to(np.float32(1), shape)


def plain() -> dict[str, Any]:
    """Return the arguments of a valid call."""
    return {"grad_output": ones(2, 6, 7, 7), "input": ones(2, 16, 9, 9), "weight": ones(6, 8, 3, 3), "groups": 2}


def transposed() -> dict[str, Any]:
    """Return the arguments of a valid transposed call."""
    return {
        "grad_output": ones(2, 6, 19, 19), "input": ones(2, 16, 9, 9), "weight": ones(16, 3, 3, 3),
        "groups": 2, "stride": 2, "transposed": True,
    }  # fmt: skip


def line() -> dict[str, Any]:
    """Return the arguments of a valid one-dimensional call."""
    return {"grad_output": ones(1, 1, 7), "input": ones(1, 1, 9), "weight": ones(1, 1, 3)}


def unbatched() -> dict[str, Any]:
    """Return the arguments of a valid call for one image."""
    return {"grad_output": ones(6, 7, 7), "input": ones(16, 9, 9), "weight": ones(6, 8, 3, 3), "groups": 2}


def volume() -> dict[str, Any]:
    """Return the arguments of a valid three-dimensional call."""
    return {"grad_output": ones(1, 1, 3, 3, 3), "input": ones(1, 1, 5, 5, 5), "weight": ones(1, 1, 3, 3, 3)}


def last() -> dict[str, Any]:
    """Return the arguments of a valid channels-last call."""
    return {
        "grad_output": ones(2, 7, 7, 6), "input": ones(2, 9, 9, 16), "weight": ones(6, 8, 3, 3), "groups": 2,
        "data_format": "NHWC",
    }  # fmt: skip


Row = tuple[Callable[[], dict[str, Any]], dict[str, Any], type[Exception], str, str]
BIG = 2**62

# Valid call, what is wrong with it, class, argument that the message names, value (or its type) that it gives; the last
# two are regular expressions.
BOTH: list[Row] = [
    # rank
    (plain, {"weight": ones()}, ValueError, "weight", "0"),
    (plain, {"weight": ones(6, 8)}, ValueError, "weight", "2"),
    (plain, {"weight": ones(6, 8, 3, 3, 3, 3)}, ValueError, "weight", "6"),
    (plain, {"input": ones(9, 9)}, ValueError, "input", "2"),
    (plain, {"input": ones(2, 16, 9, 9, 9)}, ValueError, "input", "5"),
    (line, {"input": ones(9)}, ValueError, "input", "1"),
    (volume, {"input": ones(5, 5, 5)}, ValueError, "input", "3"),
    # stride, dilation, output_padding
    *[
        (plain, {name: value}, ValueError, name, got)
        for name in ("stride", "dilation")
        for value, got in (((), "0"), ((1, 1, 1), "3"), (0, "0"), (-1, "-1"), ((1, 0), "0"), ((-2, 1), "-2"))
    ],
    (volume, {"stride": (1, 1)}, ValueError, "stride", "2"),
    (line, {"dilation": (1, 1)}, ValueError, "dilation", "2"),
    *[
        (plain, {name: value}, TypeError, name, got)
        for name in ("stride", "dilation", "output_padding", "padding")
        for value, got in (
            (1.5, "1.5|float"), (None, "None|NoneType"), ((1, 1.5), "1.5|float"), (np.ones(2), r"1|numpy\.float64"),
        )
    ],
    *[(plain, {name: "1"}, TypeError, name, "1|str") for name in ("stride", "dilation", "output_padding")],
    *[(plain, {name: 2**70}, ValueError, name, "") for name in ("stride", "dilation", "padding", "output_padding")],
    (plain, {"output_padding": 1}, ValueError, "output_padding", "1"),
    (plain, {"output_padding": (0, 1)}, ValueError, "output_padding", "1"),
    (plain, {"output_padding": (0, 0, 0)}, ValueError, "output_padding", "3"),
    (transposed, {"output_padding": 2}, ValueError, "output_padding", "2"),
    (transposed, {"output_padding": (0, 2)}, ValueError, "output_padding", "2"),
    (transposed, {"output_padding": 3, "dilation": 3}, ValueError, "output_padding", "3"),
    (transposed, {"output_padding": -1}, ValueError, "output_padding", "-1"),
    # padding
    (plain, {"padding": ()}, ValueError, "padding", "0"),
    (plain, {"padding": (1, 1, 1)}, ValueError, "padding", "3"),
    (plain, {"padding": (1,) * 5}, ValueError, "padding", "5"),
    (plain, {"padding": ((1, 1),)}, ValueError, "padding", "1"),
    (plain, {"padding": ((1, 1),) * 3}, ValueError, "padding", r"3|\(\(1, 1\), \(1, 1\), \(1, 1\)\)"),
    (plain, {"padding": ((1, 1, 1), (1, 1, 1))}, ValueError, "padding", "3|1, 1, 1"),
    (volume, {"padding": (1,) * 4}, ValueError, "padding", "4"),
    (line, {"padding": (1, 1, 1)}, ValueError, "padding", "3"),
    (plain, {"padding": "full"}, ValueError, "padding", "full"),
    (plain, {"padding": -1}, ValueError, "padding", "-1"),
    (plain, {"padding": ((0, 0), (2, -1))}, ValueError, "padding", "-1"),
    # groups
    (plain, {"groups": 0}, ValueError, "groups", "0"),
    (plain, {"groups": -2}, ValueError, "groups", "-2"),
    (plain, {"groups": 3}, ValueError, "groups", "3|16"),
    (plain, {"groups": 4}, ValueError, "groups", "4|6"),
    (plain, {"groups": 2**70}, ValueError, "groups", ""),
    (plain, {"groups": 1.5}, TypeError, "groups", "1.5|float"),
    (plain, {"groups": "2"}, TypeError, "groups", "2|str"),
    (plain, {"groups": None}, TypeError, "groups", "None|NoneType"),
    (transposed, {"groups": 3}, ValueError, "groups", "3|16"),
    (plain, {"transposed": "yes"}, TypeError, "transposed", "yes|str"),
    # channels and sizes
    (plain, {"weight": ones(6, 4, 3, 3)}, ValueError, r"weight\.shape\[1\]", "4"),
    (plain, {"weight": ones(5, 8, 3, 3)}, ValueError, r"groups|weight\.shape\[0\]", "2|5"),
    (plain, {"input": ones(2, 15, 9, 9)}, ValueError, "groups|input", "2|15"),
    (last, {"weight": ones(6, 4, 3, 3)}, ValueError, r"weight\.shape\[1\]", "4"),
    (transposed, {"weight": ones(14, 3, 3, 3)}, ValueError, r"weight\.shape\[0\]", "14"),
    (plain, {"weight": ones(0, 8, 3, 3)}, ValueError, "weight", "0"),
    (transposed, {"weight": ones(16, 0, 3, 3)}, ValueError, "weight", "0"),
    (plain, {"input": ones(2, 16, 0, 9)}, ValueError, "input", "0"),
    (plain, {"input": ones(2, 16, 9, 0), "padding": 5}, ValueError, "input", "0"),
    (transposed, {"input": ones(2, 16, 9, 0)}, ValueError, "input", "0"),
    (unbatched, {"input": ones(16, 0, 9)}, ValueError, "input", "0"),
    (last, {"input": ones(2, 0, 9, 16)}, ValueError, "input", "0"),
    (plain, {"weight": ones(6, 8, 0, 3)}, ValueError, "weight", "0"),
    (transposed, {"weight": ones(16, 3, 3, 0)}, ValueError, "weight", "0"),
    (plain, {"weight": ones(6, 8, 10, 3)}, ValueError, "kernel|weight", "10|9"),
    (plain, {"weight": ones(6, 8, 3, 12), "padding": 1}, ValueError, "kernel|weight", "12|11"),
    (plain, {"dilation": (1, 5)}, ValueError, "kernel|weight|dilation", "11|5|9"),
    (transposed, {"padding": 10}, ValueError, "padding|output", "-1"),
    # derived sizes that do not fit into 64 bits, or not into memory
    (plain, {"dilation": BIG}, ValueError, "dilation", ""),
    (plain, {"dilation": 2 * BIG - 1}, ValueError, "dilation", ""),
    (plain, {"padding": BIG}, ValueError, "padding", ""),
    (plain, {"padding": ((2 * BIG - 1,) * 2,) * 2}, ValueError, "padding", ""),
    (transposed, {"stride": BIG}, ValueError, "stride", ""),
    (transposed, {"dilation": BIG}, ValueError, "dilation", ""),
    (transposed, {"padding": BIG}, ValueError, "padding", ""),
    (transposed, {"stride": 2 * BIG - 1, "output_padding": BIG}, ValueError, "stride|output_padding", ""),
    # types of the operands
    *[
        (plain, {name: value}, TypeError, name, got)
        for name in ("input", "weight")
        for value, got in (
            (None, "NoneType"), ("text", "str"), (object(), "object"), ({}, "dict"),
            (np.ma.masked_array(ones(2, 2, 2, 2)), "a masked one"), ([[[[2**70]]]], "object"),
        )
    ],
    *[
        (plain, {name: plain()[name].astype(dtype)}, TypeError, name, got)
        for name in ("input", "weight")
        for dtype, got in (
            (np.int64, "int64"), (np.int32, "int32"), (np.uint8, "uint8"), (np.bool_, "bool"),
            (np.complex64, "complex64"), (np.complex128, "complex128"), (np.longdouble, np.dtype(np.longdouble).name),
            (object, "object"), ("S4", "S4|bytes32"), (ml_dtypes.int4, "int4"),
        )
    ],
    # the rest
    (plain, {"algorithm": "fastest"}, ValueError, "algorithm", "fastest"),
    (plain, {"algorithm": 1}, TypeError, "algorithm", "1|int"),
    (plain, {"algorithm": None}, TypeError, "algorithm", "None|NoneType"),
    (plain, {"precision": "exact"}, ValueError, "precision", "exact"),
    (plain, {"precision": True}, TypeError, "precision", "True|bool"),
    (plain, {"precision": None}, TypeError, "precision", "None|NoneType"),
    (plain, {"data_format": "NCWH"}, ValueError, "data_format", "NCWH"),
    (plain, {"data_format": "NCL"}, ValueError, "data_format", "NCL"),
    (volume, {"data_format": "NHWC"}, ValueError, "data_format", "NHWC"),
    (plain, {"data_format": 1}, TypeError, "data_format", "1|int"),
]  # fmt: skip

BACKWARD: list[Row] = [
    # grad_output: every axis
    (plain, {"grad_output": ones(3, 6, 7, 7)}, ValueError, r"grad_output\.shape", "3"),
    (plain, {"grad_output": ones(1, 6, 7, 7)}, ValueError, r"grad_output\.shape", "1"),
    (plain, {"grad_output": ones(0, 6, 7, 7)}, ValueError, r"grad_output\.shape", "0"),
    (plain, {"grad_output": ones(2, 7, 7, 7)}, ValueError, r"grad_output\.shape", "7"),
    (plain, {"grad_output": ones(2, 3, 7, 7)}, ValueError, r"grad_output\.shape", "3"),
    (plain, {"grad_output": ones(2, 0, 7, 7)}, ValueError, r"grad_output\.shape", "0"),
    (plain, {"grad_output": ones(2, 6, 8, 7)}, ValueError, r"grad_output\.shape", "8"),
    (plain, {"grad_output": ones(2, 6, 7, 6)}, ValueError, r"grad_output\.shape", "6"),
    (plain, {"grad_output": ones(2, 6, 7, 7), "stride": 2}, ValueError, r"grad_output\.shape", "7"),
    (plain, {"grad_output": ones(2, 6, 7, 7), "stride": BIG}, ValueError, r"grad_output\.shape", "7"),
    (plain, {"grad_output": ones(2, 6, 49)}, ValueError, "grad_output", "3"),
    (plain, {"grad_output": ones(2, 6, 7, 7, 1)}, ValueError, "grad_output", "5|2, 6, 7, 7, 1"),
    (plain, {"grad_output": ones(6, 7, 7)}, ValueError, "grad_output", "3"),
    (unbatched, {"grad_output": ones(1, 6, 7, 7)}, ValueError, "grad_output", "4|1, 6, 7, 7"),
    (unbatched, {"grad_output": ones(6, 8, 7)}, ValueError, r"grad_output\.shape", "8"),
    (last, {"grad_output": ones(2, 6, 7, 7)}, ValueError, r"grad_output\.shape", "6"),
    (last, {"grad_output": ones(2, 7, 8, 6)}, ValueError, r"grad_output\.shape", "8"),
    (transposed, {"grad_output": ones(2, 6, 20, 19)}, ValueError, r"grad_output\.shape", "20"),
    (transposed, {"output_padding": 1}, ValueError, r"grad_output\.shape", "19"),
    (plain, {"input": ones(0, 16, 9, 9)}, ValueError, r"grad_output\.shape", "2"),
    (plain, {"input": ones(2, 0, 9, 9), "weight": ones(6, 0, 3, 3), "grad_output": ones(2, 5, 7, 7)},
     ValueError, r"grad_output\.shape", "5"),
    *[
        (plain, {"grad_output": value}, TypeError, "grad_output", got)
        for value, got in (
            (None, "NoneType"), ("text", "str"), (object(), "object"), ({}, "dict"),
            (np.ma.masked_array(ones(2, 2, 2, 2)), "a masked one"), ([[[[2**70]]]], "object"),
        )
    ],
    *[
        (plain, {"grad_output": ones(2, 6, 7, 7).astype(dtype)}, TypeError, "grad_output", got)
        for dtype, got in ((np.int64, "int64"), (np.bool_, "bool"), (np.complex64, "complex64"), (object, "object"))
    ],
    # output_mask
    (plain, {"output_mask": (True, True)}, ValueError, "output_mask", "2|True, True"),
    (plain, {"output_mask": (True,) * 4}, ValueError, "output_mask", "4|True, True, True, True"),
    (plain, {"output_mask": (True, True, "yes")}, TypeError, "output_mask", "yes|str"),
    (plain, {"output_mask": (True, None, True)}, TypeError, "output_mask", "None|NoneType"),
    (plain, {"output_mask": True}, TypeError, "output_mask", "True|bool"),
    (plain, {"output_mask": None}, TypeError, "output_mask", "None|NoneType"),
    # memory for a result that no machine has
    (line, {"input": huge(2**50, 1, 1), "weight": ones(1, 1, 1), "grad_output": huge(2**50, 1, 1),
            "output_mask": (True, False, False)}, MemoryError, "", ""),
]  # fmt: skip

BIAS_SIZES: list[Row] = [
    (plain, {"bias_sizes": (7,)}, ValueError, "bias_sizes", "7"),
    (plain, {"bias_sizes": [0]}, ValueError, "bias_sizes", "0"),
    (plain, {"bias_sizes": ()}, ValueError, "bias_sizes", "0|"),
    (plain, {"bias_sizes": (6, 1)}, ValueError, "bias_sizes", "6, 1|2"),
    (transposed, {"bias_sizes": (3,)}, ValueError, "bias_sizes", "3"),
    (plain, {"bias_sizes": "6"}, TypeError, "bias_sizes", "6|str"),
    (plain, {"bias_sizes": (6.0,)}, TypeError, "bias_sizes", "6.0|float"),
    (plain, {"bias_sizes": 1.5}, TypeError, "bias_sizes", "1.5|float"),
]

FORWARD: list[Row] = [
    (plain, {"bias": ones(7)}, ValueError, "bias", "7"),
    (plain, {"bias": ones()}, ValueError, "bias", "0|"),
    (plain, {"bias": ones(6, 1)}, ValueError, "bias", "6, 1|2"),
    (transposed, {"bias": ones(3)}, ValueError, "bias", "3"),
    (plain, {"bias": ones(6, dtype=np.int64)}, TypeError, "bias", "int64"),
    (plain, {"bias": "text"}, TypeError, "bias", "text|str|<U4"),
    (line, {"padding": 2**50}, MemoryError, "", ""),
    (plain, {"padding": 2**40}, ValueError, "output|padding", ""),
    (line, {"input": huge(2**31, 1, 1), "weight": huge(2**31, 1, 1)}, ValueError, "output|input|weight", ""),
]


def expect(function: Callable[..., Any], make: Callable[[], dict[str, Any]], row: Row, **extra: Any) -> None:
    """Make the malformed call of a row and check what it raises, and that it leaves its operands alone."""
    _, wrong, kind, argument, value = row
    arguments = make() | wrong | extra
    if function is convbwd.convolution:
        del arguments["grad_output"]
    arrays = [a for a in arguments.values() if isinstance(a, np.ndarray) and a.nbytes < 1 << 20]
    before = [a.tobytes() for a in arrays]
    with pytest.raises((ValueError, TypeError, MemoryError)) as caught:
        function(**arguments)
    message = str(caught.value)
    assert isinstance(caught.value, kind), f"{type(caught.value).__name__}: {message}"
    assert before == [a.tobytes() for a in arrays]
    if kind is not MemoryError:
        assert re.match(rf"{function.__name__}: ", message), message
        assert re.search(rf"(?<![\w.])({argument})(?!\w)", message), f"{argument!r} is not named: {message}"
        assert re.search(r"\bmust\b.*\bgot\b", message), f"no rule, or no value: {message}"
        given = message.partition("got")[2]
        assert re.search(rf"(?<![\w.])({value})(?!\w)", given), f"{value!r} is not given: {message}"


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_memory_of_the_workspace() -> None:
    code = """if True:
        import resource, numpy as np, convbwd
        convbwd.set_num_threads(1)
        x, w = np.broadcast_to(np.float32(1), (1, 1, 1 << 26)), np.ones((1, 1, 1), np.float32)
        out = (np.zeros(x.shape, x.dtype), None, None)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26),) * 2)
        try:  # the gradient that is to be added takes 2**28 bytes
            convbwd.convolution_backward(x, x, w, output_mask=(True, False, False), accumulate=True, out=out)
        except MemoryError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.match(r"convolution_backward: cannot allocate \d+ bytes of workspace", done.stdout)


def identify(value: Any) -> str | None:
    """Name a row after its mistake."""
    if not isinstance(value, tuple) or len(value) != 5:
        return None
    make, wrong, *_ = value
    parts = []
    for name, argument in wrong.items():
        is_array = isinstance(argument, np.ndarray) and argument.ndim > 0
        shown = f"{argument.dtype.str}{argument.shape}" if is_array else argument
        parts.append(f"{name}={'object' if type(shown) is object else shown}")
    return f"{make.__name__}: {', '.join(parts)}"


@pytest.mark.parametrize("row", BOTH + BACKWARD + BIAS_SIZES, ids=identify)
def test_convolution_backward(row: Row) -> None:
    expect(convbwd.convolution_backward, row[0], row)


@pytest.mark.parametrize("row", [row for row in BOTH + BACKWARD if not {"output_mask"} & {*row[1]}], ids=identify)
def test_convolution_backward_checks_even_when_nothing_is_asked(row: Row) -> None:
    expect(convbwd.convolution_backward, row[0], row, output_mask=(False, False, False))


@pytest.mark.parametrize("row", BOTH + FORWARD, ids=identify)
def test_convolution(row: Row) -> None:
    expect(convbwd.convolution, row[0], row)


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
@pytest.mark.parametrize("name", ["grad_output", "input", "weight", "bias"])
def test_byte_swapped_arrays_are_refused_with_advice(name: str, dtype: str) -> None:
    arguments = plain() | {"bias": ones(6)}
    del arguments["bias" if name == "grad_output" else "grad_output"]
    arguments[name] = arguments[name].astype(dtype)
    function = convbwd.convolution_backward if name == "grad_output" else convbwd.convolution
    with pytest.raises(TypeError, match=rf"^{function.__name__}: {name}\b.*must.*(astype|newbyteorder|byteswap)"):
        function(**arguments)
    if name in ("input", "weight"):
        with pytest.raises(TypeError, match=rf"^convolution_backward: {name}\b.*must.*(astype|newbyteorder|byteswap)"):
            convbwd.convolution_backward(ones(2, 6, 7, 7), arguments["input"], arguments["weight"], groups=2)


@pytest.mark.parametrize("make", [plain, transposed, line, unbatched, volume, last])
def test_the_calls_that_the_tables_break_are_valid(make: Callable[[], dict[str, Any]]) -> None:
    arguments = make()
    gradients = convbwd.convolution_backward(**arguments)
    shapes = [arguments["input"].shape, arguments["weight"].shape]
    assert [g.shape for g in gradients[:2] if g is not None] == shapes
    output = arguments.pop("grad_output")
    assert convbwd.convolution(**arguments).shape == output.shape


def test_message_reads_as_documented() -> None:
    text = (
        "convolution_backward: weight.shape[1] must be input channels / groups = 8, got 4 "
        "(input.shape=(2, 16, 9, 9), groups=2)"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        convbwd.convolution_backward(ones(2, 6, 7, 7), ones(2, 16, 9, 9), ones(6, 4, 3, 3), groups=2)


def test_masked_arrays_are_refused_everywhere() -> None:
    arrays = ones(2, 6, 7, 7), ones(2, 16, 9, 9), ones(6, 8, 3, 3)
    masked = [np.ma.masked_array(a) for a in arrays]
    bias = np.ma.masked_array(ones(6))
    for name, call in (
        ("bias", lambda: convbwd.convolution(*arrays[1:], bias, groups=2)),
        (r"out\[1\]", lambda: convbwd.convolution_backward(*arrays, groups=2, out=(None, masked[2], None))),
        ("input", lambda: convbwd.plan(arrays[0], masked[1], arrays[2], groups=2)),
        ("weight", lambda: convbwd.plan(*arrays, groups=2)(*arrays[:2], masked[2])),
        ("array", lambda: formats.cast(masked[0], "float16")),
        ("an array", lambda: formats.pack(masked[0], "NC1HWC0")),
    ):
        with pytest.raises(TypeError, match=f": {name} must .*mask"):
            call()


def test_messages_say_where_and_how_axes_lie() -> None:
    text = "fit the padded input = 9, got 11 along spatial axis 1 (input.shape=(2, 16, 9, 9), weight.shape=(6, 8, 3, 3)"
    with pytest.raises(ValueError, match=re.escape(text)):
        convbwd.convolution(ones(2, 16, 9, 9), ones(6, 8, 3, 3), dilation=(1, 5), groups=2)
    text = "got 4 (input.shape=(2, 9, 9, 16), data_format='NHWC', transposed=True, groups=1)"
    with pytest.raises(ValueError, match=re.escape(text)):
        convbwd.convolution(ones(2, 9, 9, 16), ones(4, 6, 3, 3), transposed=True, data_format="NHWC")


@pytest.mark.parametrize("function", [convbwd.convolution, convbwd.convolution_backward])
def test_signatures(function: Callable[..., Any]) -> None:
    arguments = plain()
    if function is convbwd.convolution:
        del arguments["grad_output"]
    with pytest.raises(TypeError, match="strides"):
        function(**arguments, strides=1)
    with pytest.raises(TypeError):
        function(arguments["input"])
    everything = (None,) * (9 if function is convbwd.convolution else 11)
    with pytest.raises(TypeError, match="positional"):
        function(*everything, "NCHW")  # what ATen does not have is keyword-only


@pytest.mark.parametrize(
    ("value", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError), (None, TypeError)]
)
def test_set_num_threads(value: Any, kind: type[Exception]) -> None:
    before = convbwd.get_num_threads()
    with pytest.raises(kind, match=rf"^set_num_threads: .*must.*got .*({value}|{type(value).__name__})"):
        convbwd.set_num_threads(value)
    assert convbwd.get_num_threads() == before


@pytest.mark.parametrize("flag", [np.True_, True])
def test_integers_and_booleans_of_numpy_are_accepted(flag: Any) -> None:
    arguments = plain() | {"stride": np.int64(1), "padding": np.array([0, 0]), "groups": np.int32(2)}
    assert convbwd.convolution_backward(**arguments, output_mask=np.array([flag, False, flag]))[1] is None
    assert convbwd.convolution_backward(**transposed() | {"transposed": flag})[0] is not None
