"""cube_math_type, soc and the rules of 8-bit types: what is rounded, what differs, what is refused."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import convbwd
from cases import ALGORITHMS, Array, Case, bits, call_backward, call_forward, check
from convbwd import CubeMathType
from numerics import MEMORY, decode, encode, read_as, rounded

CASES = {
    "dense": Case(
        input_size=(11, 12), kernel=(3, 3), stride=(1, 1), padding=((1, 1), (1, 0)), dilation=(1, 1),
        output_padding=(0, 0), in_channels=24, out_channels=20, batch=2,
    ),
    "strided": Case(
        input_size=(9, 14), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 2)), dilation=(1, 2),
        output_padding=(1, 0), in_channels=12, out_channels=17, transposed=True, channels_last=True,
    ),
    "depthwise": Case(
        input_size=(15, 16), kernel=(3, 5), stride=(1, 1), padding=((1, 1), (2, 2)), dilation=(1, 1),
        output_padding=(0, 0), groups=6, batch=2,
    ),
    "pointwise": Case(
        input_size=(40,), kernel=(1,), stride=(1,), padding=((0, 0),), dilation=(1,), output_padding=(0,),
        in_channels=33, out_channels=40, batch=2,
    ),
    "tiny": Case(
        input_size=(7,), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,), output_padding=(0,),
        in_channels=3, out_channels=4,
    ),
}  # fmt: skip
UNIFORM = [(name,) * 3 for name in MEMORY]
MIXED = [
    ("float32", "float16", "float32"), ("bfloat16", "float32", "float32"), ("float16", "bfloat16", "bfloat16"),
    ("bfloat16", "float16", "float32"),
]  # fmt: skip
MODES = [
    (dtypes, mode, soc)
    for dtypes, mode, soc in itertools.product(UNIFORM + MIXED, range(4), ("a2", "950"))
    if "float64" not in dtypes
] + [(("float32",) * 3, 1, "910"), (("float32",) * 3, 2, "910"), (("float32", "float16", "float32"), 1, "910")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtypes", "mode", "soc"), MODES)
def test_results_are_those_of_rounded_operands(dtypes: tuple[str, str, str], mode: int, soc: str, name: str) -> None:
    case = dataclasses.replace(CASES[name], dtypes=dtypes, cube_math_type=mode, soc=soc)
    for algorithm in ("auto", "reference") if name == "tiny" else ALGORITHMS:
        check(case, algorithm)


def results_of(case: Case, operands: list[Array]) -> list[Array | None]:
    """Return the gradients and the output, by kernels that a mode implies."""
    return [*call_backward(case, operands, "direct"), call_forward(case, operands, "direct")]


@pytest.mark.parametrize(("dtypes", "mode", "soc"), MODES)
def test_a_mode_rounds_operands_and_nothing_else(dtypes: tuple[str, str, str], mode: int, soc: str) -> None:
    keep = dataclasses.replace(CASES["dense"], dtypes=dtypes)
    case = dataclasses.replace(keep, cube_math_type=mode, soc=soc)
    # Small enough for float16 to round what bfloat16 holds.
    values = [decode(a, d) * 2.0**-18 for a, d in zip(keep.operands(), (*dtypes, keep.bias_dtype), strict=True)]
    raw = [encode(v, d) for v, d in zip(values, (*dtypes, keep.bias_dtype), strict=True)]
    how = [*read_as(dtypes, mode, soc), keep.bias_dtype]
    once = [encode(rounded(decode(a, d), to), d) for a, d, to in zip(raw, (*dtypes, how[3]), how, strict=True)]
    forward_how = [dtypes[0], *read_as(dtypes[1:], mode, soc), keep.bias_dtype]
    once_forward = [
        encode(rounded(decode(a, d), to), d) for a, d, to in zip(raw, (*dtypes, how[3]), forward_how, strict=True)
    ]
    got, plain = results_of(case, raw), results_of(keep, raw)
    expected = [*results_of(keep, once)[:2], plain[2], results_of(keep, once_forward)[3]]
    assert bits(got) == bits(expected)

    moved = [
        to != dtype and not (to.startswith("hf32") and dtype != "float32")
        for to, dtype in zip(how[:3], dtypes, strict=True)
    ]
    for a, b, changes in zip(raw[:3], once[:3], moved, strict=True):
        assert (a != b).any() == changes
    for i, of in enumerate(((0, 2), (0, 1))):
        assert (bits(got)[i] != bits(plain)[i]) == (moved[of[0]] or moved[of[1]]), "the mode does nothing"


def test_float16_operands_overflow_to_infinity() -> None:
    x, w = np.array([65519.0, 65520.0, -1e9], np.float32).reshape(3, 1, 1), np.ones((1, 1, 1), np.float32)
    y = convbwd.convolution(x, w, cube_math_type=CubeMathType.USE_FP16)
    np.testing.assert_array_equal(y.reshape(-1), [65504, np.inf, -np.inf])
    y = convbwd.convolution(x, w, cube_math_type=CubeMathType.USE_HF32)
    np.testing.assert_array_equal(y.reshape(-1), [65520, 65520, -1000079360])


def call(grad_output: Any, input: Any, weight: Any, **more: Any) -> Any:
    return convbwd.convolution_backward(np.ones((1, 1, 3), grad_output), np.ones((1, 1, 5), input),
                                        np.ones((1, 1, 3), weight), **more)  # fmt: skip


F32, F16, F64, E4M3, BF16 = (MEMORY[n] for n in ("float32", "float16", "float64", "float8_e4m3fn", "bfloat16"))
REFUSED: list[tuple[tuple[Any, Any, Any], dict[str, Any], type[Exception], str]] = [
    ((F64, F64, F64), {"cube_math_type": 1}, TypeError, "grad_output.dtype must not be float64 where cube_math_type"),
    ((F32, F32, F64), {"cube_math_type": 3}, TypeError, "weight.dtype must not be float64 where cube_math_type"),
    ((F32, F32, F32), {"cube_math_type": 4}, ValueError, "cube_math_type must be 0, 1, 2 or 3, got 4"),
    ((F32, F32, F32), {"cube_math_type": -1}, ValueError, "cube_math_type must be 0, 1, 2 or 3, got -1"),
    ((F32, F32, F32), {"cube_math_type": 2**70}, ValueError, "cube_math_type must fit in 64 bits"),
    ((F32, F32, F32), {"cube_math_type": "USE_HF32"}, TypeError, "cube_math_type must be an int, got str"),
    ((F32, F32, F32), {"cube_math_type": 1.0}, TypeError, "cube_math_type must be an int, got float"),
    ((F32, F32, F32), {"soc": "A3"}, ValueError, "soc must be 'a2', '950' or '910', got 'A3'"),
    ((F32, F32, F32), {"soc": 950}, TypeError, "soc must be 'a2', '950' or '910', got int"),
    (
        (F32, F32, F32),
        {"soc": "910"},
        ValueError,
        "cube_math_type must be 1 or 2 for float32 where soc is '910', got 0",
    ),
    ((F32, F16, F16), {"soc": "910", "cube_math_type": 3}, ValueError, "cube_math_type must be 1 or 2 for float32"),
    ((BF16, BF16, BF16), {"soc": "910"}, TypeError, "grad_output.dtype must be float32 or float16 where soc is '910'"),
    ((F16, F16, BF16), {"soc": "910", "cube_math_type": 2}, TypeError, "weight.dtype must be float32 or float16"),
    ((F64, F64, F64), {"soc": "910"}, TypeError, "grad_output.dtype must be float32 or float16 where soc is '910'"),
    ((E4M3, E4M3, E4M3), {"soc": "910"}, TypeError, "grad_output.dtype must be float32 or float16 where soc is '910'"),
    ((E4M3, F32, E4M3), {}, TypeError, "input.dtype must be float8_e4m3fn as grad_output.dtype is, .*, got float32"),
    ((F32, E4M3, F32), {}, TypeError, "grad_output.dtype must be float8_e4m3fn as input.dtype is, .*, got float32"),
    ((F64, F64, E4M3), {}, TypeError, "grad_output.dtype must be float8_e4m3fn as weight.dtype is, .*, got float64"),
    ((E4M3, E4M3, "u1"), {"dtype": "hifloat8"}, TypeError, "weight.dtype must be float8_e4m3fn .*, got hifloat8"),
    (("u1", "u1", "u1"), {}, TypeError, r"grad_output.dtype must be .*, got uint8 \(codes in unsigned integers need"),
    (("u2", "u2", "u2"), {"dtype": "hifloat8"}, TypeError, "grad_output.dtype must be .*, got uint16"),
    (("i1", "u1", "u1"), {"dtype": "hifloat8"}, TypeError, "grad_output.dtype must be .*, got int8"),
    (("u1", "u1", "u1"), {"dtype": "float8_e5m2"}, ValueError, "dtype must be None, 'hifloat8', .*, got 'float8_e5m2'"),
    (("u1", "u1", "u1"), {"dtype": np.uint8}, TypeError, "dtype must be None, 'hifloat8', .*, got type"),
]


@pytest.mark.parametrize(("dtypes", "options", "kind", "message"), REFUSED)
def test_refusals(dtypes: tuple[Any, Any, Any], options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^convolution_backward: {message}"):
        call(*dtypes, **options)


def test_an_eight_bit_bias_is_refused() -> None:
    x, w, b = (np.ones(shape, E4M3) for shape in ((1, 1, 5), (1, 1, 3), 1))
    with pytest.raises(TypeError, match=r"^convolution: bias\.dtype must have at least 16 bits, got float8_e4m3fn"):
        convbwd.convolution(x, w, b)
    assert convbwd.convolution(x, w, b.astype(F16)).dtype == E4M3


def test_soc_910_computes_float16() -> None:
    for mode in CubeMathType:
        assert call(F16, F16, F16, soc="910", cube_math_type=mode)[0].dtype == F16
    for mode in (1, 2):
        assert call(F32, F32, F32, soc="910", cube_math_type=mode)[0].dtype == F32


def test_codes_and_arrays_of_the_type_may_be_mixed() -> None:
    codes = np.ones((1, 1, 3), E4M3).view(np.uint8)
    dx, dw, db = convbwd.convolution_backward(
        np.ones((1, 1, 3), E4M3), np.ones((1, 1, 5), E4M3), codes, dtype="float8_e4m3fn"
    )
    assert dx is not None and dw is not None and db is not None
    np.testing.assert_array_equal(decode(dx, "float8_e4m3fn"), [[[1, 2, 3, 2, 1]]])
    assert dw.dtype == db.dtype == F32
    half = np.full((1, 1, 5), 0x3F80, np.uint16)  # ones in bfloat16
    y = convbwd.convolution(half, half[..., :3], dtype="bfloat16")
    assert y.dtype == np.uint16 and (y == 0x4040).all()
    assert convbwd.convolution(half, np.ones((1, 1, 3), F32), dtype="bfloat16").dtype == F32


def test_the_plan_says_how_operands_are_read() -> None:
    arguments = [np.ones(shape, F32) for shape in ((1, 1, 3), (1, 1, 5), (1, 1, 3))]
    plans = [convbwd.plan(*arguments, cube_math_type=mode, soc=soc).explain() for mode, soc in
             ((0, "a2"), (3, "a2"), (3, "950"), (2, "a2"))]  # fmt: skip
    assert "read as" not in plans[0]
    for plan, name in zip(plans[1:], ("hf32", "hf32_10", "float32_as_float16"), strict=True):
        for operand in ("grad_output", "input", "weight"):
            assert f"{operand}: read as {name}\n" in plan
