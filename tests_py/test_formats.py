"""convbwd.formats against the tables of the formats, on every instruction set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import convbwd
from convbwd import formats
from numerics import DATA, MEMORY, TABLES, Array, encode, rounded

CODES = np.arange(256, dtype=np.uint8)


def same(a: Array, b: Array) -> bool:
    """Whether arrays have the same bits, all NaNs being one."""
    nan = np.isnan(a) & np.isnan(b)
    return bool((nan | (a == b) & (np.signbit(a) == np.signbit(b))).all())


def bits_of(name: str) -> dict[str, Array]:
    """Read a table of bits."""
    return {k: np.array(v, np.uint32) for k, v in json.loads((DATA / f"{name}.json").read_text()).items()}


@pytest.mark.parametrize("name", TABLES)
def test_every_code_decodes_as_in_the_table_and_comes_back(name: str) -> None:
    values = formats.decode(CODES, name)
    assert values.dtype == np.float32
    assert same(values.astype(np.float64), TABLES[name])
    for wide in (values, values.astype(np.float64)):
        codes = formats.cast(wide, name).view(np.uint8)
        np.testing.assert_array_equal(codes[~np.isnan(values)], CODES[~np.isnan(values)])
        assert np.isnan(TABLES[name][codes[np.isnan(values)]]).all()


def test_hifloat8_rounds_as_in_the_table() -> None:
    table = bits_of("hifloat8_rounding")
    values = table["float32"].view(np.float32)
    np.testing.assert_array_equal(formats.cast(values, "hifloat8").view(np.uint8), table["code"])
    np.testing.assert_array_equal(formats.cast(values, "hifloat8", saturate=True).view(np.uint8), table["saturated"])


@pytest.mark.parametrize(("name", "kept"), [("hf32", "m11"), ("hf32_10", "m10")])
def test_hf32_rounds_as_in_the_table(name: str, kept: str) -> None:
    table = bits_of("hf32_rounding")
    values = table["f32"].view(np.float32)
    np.testing.assert_array_equal(formats.cast(values, name).view(np.uint32), table[f"{kept}_even"])
    np.testing.assert_array_equal(formats.cast(values, name, rounding="even").view(np.uint32), table[f"{kept}_even"])
    np.testing.assert_array_equal(formats.cast(values, name, rounding="away").view(np.uint32), table[f"{kept}_away"])
    special = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    for rounding in ("even", "away"):
        got = formats.cast(special.view(np.float32), name, rounding=rounding)
        np.testing.assert_array_equal(got.view(np.uint32), special)


def test_saturation_of_float8_e4m3fn() -> None:
    values = np.array([448, 464, 465, 1e9, np.inf, -np.inf, np.nan, 17], np.float32)
    got = formats.cast(values, "float8_e4m3fn", saturate=True)
    np.testing.assert_array_equal(formats.decode(got), [448, 448, 448, 448, 448, -448, 0, 16])
    assert np.isnan(formats.decode(formats.cast(values[2:7], "float8_e4m3fn"))).all()


@pytest.mark.parametrize(
    ("name", "mantissa_bits"),
    [("float32", 23), ("hf32", 11), ("hf32_10", 10), ("float16", 10), ("bfloat16", 7), *[(name, 3) for name in TABLES]],
)
def test_float64_is_rounded_once(name: str, mantissa_bits: int, rng: np.random.Generator) -> None:
    # A hair beside the middle of two numbers, where rounding to float32 first would lose the hair.
    numbers = rounded(rng.uniform(0.25, 4, 2000), name)
    _, exponent = np.frexp(numbers)
    middles = numbers + np.ldexp(0.25, exponent - mantissa_bits)
    for hair in (-(2.0**-45), 0, 2.0**-45):
        values = middles * (1 + hair)
        codes = formats.cast(values, name)
        got = formats.decode(codes, name if codes.dtype == np.uint8 else None).astype(np.float64)
        np.testing.assert_array_equal(got, rounded(values, name))
        if name.startswith("hf32"):
            away = formats.cast(values, name, rounding="away")
            up = np.nextafter(values, np.inf) if hair == 0 else values  # of positive numbers half-way, that decides
            np.testing.assert_array_equal(away, rounded(up, name))
        assert (hair == 0) or ((got > values) == (hair > 0)).all()


def patterns() -> Array:
    """2**24 float32 values: random bits, and special values with their neighbours."""
    bits = np.random.default_rng(7).integers(0, 2**32, 1 << 24, dtype=np.uint32)
    special = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF])
    tables = [TABLES[name][np.isfinite(TABLES[name])].astype(np.float32).view(np.uint32) for name in TABLES]
    edges = np.concatenate([special, *tables]).astype(np.int64)
    edges = np.unique(np.concatenate([edges + i for i in range(-2, 3)]) & 0x7FFFFFFF)
    edges = np.concatenate([edges, edges | 0x80000000]).astype(np.uint32)
    bits[: len(edges)] = edges
    return bits.view(np.float32)


def check_patterns(folder: Path) -> None:
    """Compare the casts of this process's instruction set with what the folder says."""
    values = np.load(folder / "values.npy")
    for file in sorted(folder.glob("*.*.npy")):
        name = file.name.partition(".")[0]
        got, expected = formats.cast(values, name), np.load(file)
        codes = got.view(expected.dtype)
        wrong = codes != expected
        if name != "hifloat8":  # which NaN it is, is nobody's business
            wrong &= ~(np.isnan(got.astype(np.float32)) & np.isnan(expected.view(got.dtype).astype(np.float32)))
        assert not wrong.any(), f"{name}: {values[wrong][:3]} became {codes[wrong][:3]}, not {expected[wrong][:3]}"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with values, and their codes in each format."""
    folder = tmp_path_factory.mktemp("patterns")
    values = patterns()
    np.save(folder / "values.npy", values)
    with np.errstate(all="ignore"):
        for name in ("float16", "bfloat16", "float8_e4m3fn"):
            codes = values.astype(MEMORY[name])
            np.save(folder / f"{name}.codes.npy", codes.view(np.uint8 if codes.itemsize == 1 else np.uint16))
        np.save(folder / "hifloat8.codes.npy", encode(values, "hifloat8"))
        for name in ("hf32", "hf32_10"):
            np.save(
                folder / f"{name}.codes.npy", rounded(values.astype(np.float64), name).astype(np.float32).view("u4")
            )
    return folder


@pytest.mark.parametrize("isa", convbwd.build_info()["isas"].split())
def test_sixteen_million_patterns(isa: str, expected: Path) -> None:
    command = "import sys, pathlib, test_formats; test_formats.check_patterns(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {
        "CONVBWD_ISA": isa,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", command, str(expected)], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_table_of_float8_is_that_of_ml_dtypes() -> None:
    assert same(CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float64), TABLES["float8_e4m3fn"])


def test_hifloat8_is_that_of_en_dtypes(expected: Path) -> None:
    en_dtypes = pytest.importorskip("en_dtypes")
    dtype = np.dtype(en_dtypes.hifloat8)
    assert same(CODES.view(dtype).astype(np.float64), TABLES["hifloat8"])
    values = np.load(expected / "values.npy")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(values.astype(dtype).view(np.uint8), np.load(expected / "hifloat8.codes.npy"))
    assert formats.cast(values[:9], "hifloat8").dtype == dtype
    np.testing.assert_array_equal(formats.decode(CODES[:128].view(dtype)), formats.decode(CODES[:128], "hifloat8"))

    ones = np.ones((1, 2, 4), np.float32).astype(dtype)
    dx, dw, db = convbwd.convolution_backward(ones, ones, np.ones((2, 2, 1), np.float32).astype(dtype))
    assert dx is not None and dx.dtype == dtype and (dx.astype(float) == 2).all()
    assert dw is not None and dw.dtype == np.float32 and (dw == 4).all()
    assert db is not None and db.dtype == np.float32 and (db == 4).all()


def test_shapes_layouts_and_kinds_of_arrays() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    for array in (values, values.T, values[:, ::2, ::-1], values[:0], values[0, 0, 0], values.tolist(), 3.0):
        got = formats.cast(array, "hf32")
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, array)
    for float64 in (values, values.tolist(), memoryview(values), 3 + 2.0**-40):
        got = formats.decode(float64)
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, float64)
    codes = formats.cast(formats.cast(values, "bfloat16").view(np.uint16), "float32", source="bfloat16")
    np.testing.assert_array_equal(codes, values)


def test_a_package_that_is_not_installed_leaves_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setitem(sys.modules, "en_dtypes", None)
    for name, dtype in (("bfloat16", np.uint16), ("float8_e4m3fn", np.uint8), ("hifloat8", np.uint8)):
        codes = formats.cast([1.0, -2.0], name)
        assert codes.dtype == dtype
        np.testing.assert_array_equal(formats.decode(codes, name), [1, -2])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([1.0], "float8"), ValueError, r"format must be 'float64', .*, got 'float8'"),
        (([1.0], 8), TypeError, r"format must be 'float64', .*, got int"),
        (([1], "hf32"), TypeError, r"array.dtype must be float64, .*, got int64"),
        ((CODES, "hf32"), TypeError, r"array.dtype must .*, got uint8 \(codes in unsigned integers need source='hif"),
    ],
)
def test_what_cast_refuses(arguments: tuple[object, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^cast: {message}"):
        formats.cast(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({"source": "int8"}, ValueError, "source must be None, .*, got 'int8'"),
        ({"saturate": True}, ValueError, "saturate must be False unless .*, got True"),
        ({"saturate": 1}, TypeError, "saturate must be a bool, got int"),
        ({"rounding": "up"}, ValueError, "rounding must be None, 'even' or 'away', got 'up'"),
        ({"rounding": "away"}, ValueError, "rounding must be None unless .*, got 'away'"),
    ],
)
def test_what_options_of_cast_refuse(wrong: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^cast: {message}"):
        formats.cast([1.0], "float32", **wrong)  # type: ignore[arg-type]


def test_what_decode_refuses() -> None:
    with pytest.raises(TypeError, match=r"^decode: array.dtype must .*, got uint8 \(codes .* need format='hifloat8'"):
        formats.decode(CODES)
    with pytest.raises(ValueError, match=r"^decode: format must be None, 'hifloat8', .*, got 'int8'"):
        formats.decode(CODES, "int8")
