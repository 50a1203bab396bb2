"""Number formats by their tables and definitions, in float64: what the tests expect of every rounding."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

DATA = Path(__file__).parent / "data"
# What NumPy holds elements of a type in. HiFloat8 has a package, but not for every Python: here its arrays are codes.
MEMORY = {name: np.dtype(name) for name in ("float64", "float32", "float16")} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "hifloat8": np.dtype(np.uint8),
}
TABLES = {
    name: np.array([float(v) for v in json.loads((DATA / f"{name}.json").read_text())])
    for name in ("float8_e4m3fn", "hifloat8")
}
MANTISSA_BITS = {"hf32": 11, "hf32_10": 10}


def decode(array: Array, name: str) -> Array:
    """Return the values of an array's elements in float64."""
    if name not in TABLES:
        return array.astype(np.float64)
    values: Array = TABLES[name][array.view(np.uint8)]
    return values


def encode(values: Array, name: str) -> Array:
    """Round values, float64 or narrower, to a type, once."""
    if name not in TABLES:
        if name in ("float16", "bfloat16") and values.dtype == np.float64:
            values = to_odd(values)
        return values.astype(MEMORY[name])
    table = TABLES[name]
    codes = np.flatnonzero(np.isfinite(table[:128]))
    codes = codes[np.argsort(table[codes])].astype(np.uint8)
    numbers = table[codes]
    beyond = {"float8_e4m3fn": (480.0, 0x7F), "hifloat8": (49152.0, 0x6F)}[name]
    middles = (numbers + np.append(numbers[1:], beyond[0])) / 2
    codes = np.append(codes, np.uint8(beyond[1]))
    magnitude = np.abs(values)
    up = np.searchsorted(middles, magnitude, side="right").astype(np.uint8)
    if name == "hifloat8":  # half away from zero, one zero
        result = codes[up] | np.where(up > 0, np.signbit(values).astype(np.uint8) << 7, 0).astype(np.uint8)
        return np.where(np.isnan(values), np.uint8(0x80), result)
    down = np.searchsorted(middles, magnitude, side="left").astype(np.uint8)
    nearest = codes[np.where(codes[up] % 2 == 0, up, down)]
    result = np.where(np.isnan(values), np.uint8(0x7F), nearest) | np.signbit(values).astype(np.uint8) << 7
    return result.astype(np.uint8).view(MEMORY[name])


def to_odd(values: Array) -> Array:
    """Round float64 to float32 so that a second rounding gives what a single one would."""
    with np.errstate(all="ignore"):
        near = values.astype(np.float32)
        inexact = (near != values) & np.isfinite(values)
        bits = near.view(np.int32) - (inexact & (np.abs(near.astype(np.float64)) > np.abs(values)))
    return np.where(inexact, bits | 1, bits).astype(np.int32).view(np.float32)


def rounded(values: Array, name: str) -> Array:
    """Return values rounded to a type, "hf32" and "hf32_10" included, in their own dtype."""
    if name not in MANTISSA_BITS:
        return decode(encode(values, name), name).astype(values.dtype)
    _, exponent = np.frexp(values)
    step = np.ldexp(1.0, np.maximum(exponent - 1, -126) - MANTISSA_BITS[name])
    with np.errstate(all="ignore"):
        near = np.rint(values / step) * step
        return np.where(np.isfinite(values), near, values).astype(np.float32).astype(values.dtype)


def read_as(dtypes: tuple[str, ...], mode: int, soc: str) -> list[str]:
    """Return how operands of these dtypes are read, from the table of modes."""
    together = dtypes[0] if len({*dtypes}) == 1 else "float64" if "float64" in dtypes else "float32"
    if together == "float32":
        to = {0: "", 1: "float16" if soc == "910" else "hf32", 2: "float16", 3: "hf32"}[mode]
    else:
        to = "float16" if (together, mode) == ("bfloat16", 2) else ""
    if to == "hf32":
        to = "hf32_10" if soc == "950" else "hf32"
    return [to or dtype for dtype in dtypes]
