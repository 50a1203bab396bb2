"""Gradients of Dask arrays: the bits of those in memory, for any chunks and any scheduler; volumes beyond memory."""

import doctest
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import convbwd
from cases import Case, compare, exact_results, first, reference
from numerics import MEMORY, TABLES, decode
from strategies import cases

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")
convbwd_dask = pytest.importorskip("convbwd.dask")

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "dask_volume.py"
BUILD = convbwd.build_info()
# OpenBLAS does not tell its order of sums.
ALGORITHMS = ("direct", "reference") if BUILD["isa"] == "generic" and BUILD["blas"] != "none" else ("auto", "direct")
# The types that NumPy knows; codes in integers are not for Dask.
PLAIN = tuple(name for name in MEMORY if MEMORY[name] != np.uint8)


def chunked(rng: np.random.Generator, array: Any, most: int = 3) -> Any:
    """Return a Dask array with random chunks, some of them empty."""
    chunks = []
    for size in array.shape:
        cuts = np.sort(rng.integers(0, size + 1, rng.integers(0, most)))
        chunks.append(tuple(np.diff([0, *cuts, size]).tolist()))
    return da.from_array(array, chunks=tuple(chunks))


def same_bits(got: Any, expected: Any) -> None:
    """Compare arrays bit by bit; all NaNs count as one."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    wrong = (got.view(f"u{got.itemsize}") != expected.view(f"u{got.itemsize}")) & ~(np.isnan(got) & np.isnan(expected))
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} differ, the first at {first(wrong)}"


def arguments(case: Case) -> dict[str, Any]:
    """Return those of a case that Dask arrays have."""
    return {
        name: value
        for name, value in case.arguments().items()
        if name not in ("data_format", "cube_math_type", "soc", "dtype")
    }


@settings(max_examples=150)
@given(
    case=cases(scale=2, channels_last=False, cube_math_type=0, soc="a2", mask=(True, True, True)),
    algorithm=st.sampled_from(ALGORITHMS),
    nonfinite=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_chunks(case: Case, algorithm: str, nonfinite: bool, seed: int) -> None:
    assume(all(dtype in PLAIN for dtype in case.dtypes))
    if nonfinite and algorithm != "auto":
        case = Case(**{**vars(case), "data": "nonfinite"})
    rng = np.random.default_rng(seed)
    operands = case.operands()
    options = {**arguments(case), "algorithm": algorithm}
    expected = convbwd.convolution_backward(*operands[:3], **options)
    lazy = convbwd_dask.convolution_backward(*(chunked(rng, a) for a in operands[:3]), **options)
    with np.errstate(all="ignore"):
        gradients = dask.compute(*lazy, scheduler="synchronous")
        same_bits(gradients[0], expected[0])
        exact = reference(case, operands)
        magnitude = exact_results(
            case, [np.abs(decode(a, d)) for a, d in zip(operands, (*case.dtypes, case.bias_dtype), strict=True)]
        )
        outputs = (case.batch or 1) * math.prod(case.output_size)
        products = (case.batch or 1) * math.prod(case.input_size if case.transposed else case.output_size)
        for i, terms in ((1, products), (2, outputs)):
            assert lazy[i].shape == gradients[i].shape == expected[i].shape
            assert lazy[i].dtype == gradients[i].dtype == expected[i].dtype
            narrow = case.dtypes[0] in TABLES
            dtype = "float32" if narrow else next(name for name in PLAIN if MEMORY[name] == expected[i].dtype)
            compare(
                ("grad_weight", "grad_bias")[i - 1], case, "direct", gradients[i], dtype, exact[i], magnitude[i], terms
            )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("precision", ["strict", "default", "fast"])
@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "dilation"),
    [
        ((64, 48), (37, 41), (3, 3), 1, 1),  # Winograd's, or a matrix unit's
        ((48, 40), (33, 30), (5, 5), 1, 1),
        ((64, 48), (42, 60), (7, 7), 1, 1),
        ((64, 64), (61, 50), (3, 3), 1, (2, 3)),
        ((40, 96), (30, 35), (2, 2), 2, 1),  # patches
        ((33, 64), (31, 29), (3, 3), 2, 1),
        ((64, 64), (61, 70), (4, 4), 2, 1),
        ((32, 48), (75, 58), (5, 6), (2, 3), 1),
        ((32, 33), (11, 13, 12), (3, 3, 3), 1, 1),
        ((64, 64), (200,), (3,), 1, 1),
        ((64, 64), (200,), (7,), 1, 3),
        ((128, 320), (12, 13), (5, 5), 1, 1),  # a matrix unit's by pixels
    ],
)
def test_many_channels(
    rng: np.random.Generator,
    channels: tuple[int, int],
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    precision: str,
    transposed: bool,
) -> None:
    """What passes of many channels do differently for small and large images."""
    ci, co = channels
    x = rng.standard_normal((2, ci, *size), np.float32)
    w = rng.standard_normal((ci, co, *kernel) if transposed else (co, ci, *kernel), np.float32)
    options = {"stride": stride, "padding": 1, "dilation": dilation, "transposed": transposed, "precision": precision}
    options |= {"algorithm": ALGORITHMS[0]}
    dy = rng.standard_normal(convbwd.convolution(x, w, **options).shape, np.float32)
    expected = convbwd.convolution_backward(dy, x, w, output_mask=(True, False, False), **options)[0]
    for _ in range(2):
        lazy = convbwd_dask.convolution_backward(
            chunked(rng, dy), chunked(rng, x), w, output_mask=(True, False, False), **options
        )
        assert lazy[1] is lazy[2] is None
        same_bits(lazy[0].compute(scheduler="synchronous"), expected)


@pytest.mark.parametrize("groups", [1, 20])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "rows"),
    [
        ((51, 51), (4, 4), 2, 26),  # phases of the parts have as many pixels each, those of the whole do not
        ((60, 61), (6, 5), 3, 31),
        ((45, 71), (3, 2), (1, 2), 20),
        ((90, 50), (15, 3), 1, 64),
    ],
)
def test_one_channel(
    rng: np.random.Generator,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int | tuple[int, int],
    rows: int,
    groups: int,
) -> None:
    """Rows of a single result share rows of the source, or not, as sizes suggest."""
    x = rng.standard_normal((2, groups, *size), np.float32)
    w = rng.standard_normal((6 if groups == 1 else groups, 1, *kernel), np.float32)
    options = {"stride": stride, "groups": groups, "algorithm": ALGORITHMS[0]}
    dy = rng.standard_normal(convbwd.convolution(x, w, **options).shape, np.float32)
    expected = convbwd.convolution_backward(dy, x, w, output_mask=(True, False, False), **options)[0]
    for chunks in ((rows, size[0] - rows), (size[1],)), ((size[0],), (size[1] // 2, (size[1] + 1) // 2)):
        lazy = convbwd_dask.convolution_backward(
            dy, da.from_array(x, chunks=(2, groups, *chunks)), w, output_mask=(True, False, False), **options
        )
        same_bits(lazy[0].compute(scheduler="synchronous"), expected)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("size", "stride", "chunks"), [((65, 65), 2, (32, 33)), ((37, 64), 3, (18, 19))])
def test_parts_whose_phases_are_alike(
    rng: np.random.Generator, size: tuple[int, int], stride: int, chunks: tuple[int, int], dtype: Any
) -> None:
    """Of a part, phases may have as many pixels each where those of the whole do not."""
    x, w = rng.standard_normal((1, 64, *size)).astype(dtype), rng.standard_normal((64, 64, 2, 2)).astype(dtype)
    dy = rng.standard_normal(convbwd.convolution(x, w, stride=stride).shape).astype(dtype)
    for algorithm in (ALGORITHMS[0], "matrix"):
        options = {"stride": stride, "algorithm": algorithm, "output_mask": (True, False, False)}
        expected = convbwd.convolution_backward(dy, x, w, **options)[0]
        lazy = convbwd_dask.convolution_backward(dy, da.from_array(x, chunks=(1, 64, chunks, size[1])), w, **options)
        same_bits(lazy[0].compute(scheduler="synchronous"), expected)


def test_an_input_without_channels() -> None:
    arrays = np.ones((2, 0, 4)), np.ones((2, 0, 6)), np.ones((4, 0, 3))
    expected = convbwd.convolution_backward(*arrays)
    for got, e in zip(convbwd_dask.convolution_backward(*arrays), expected, strict=True):
        assert got.shape == e.shape
        same_bits(got.compute(scheduler="synchronous"), e)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "chunks", "options"),
    [
        ((2, 64, 37, 22), (33, 64, 4, 5), ((37,), (22,)), {"padding": [(2, 5), (4, 0)]}),  # windows in padding only
        ((1, 33, 239), (48, 33, 2), ((239,),), {"padding": [(1, 5)], "dilation": 3}),
        ((1, 64, 2400), (64, 64, 10), ((960, 1440),), {}),  # a part with fewer taps than a transform
        ((3, 96, 90), (96, 48, 5), ((4, 43, 43),), {"stride": 3, "transposed": True, "groups": 2}),
        ((2, 64, 2400), (64, 64, 12), ((957, 1443),), {}),
        ((1, 64, 2400), (64, 64, 40), ((957, 1443),), {}),  # in parts
        ((1, 64, 2400), (64, 64, 22), ((957, 1443),), {"stride": 2}),
        ((1, 64, 2400), (64, 64, 11), ((957, 1443),), {"dilation": 3}),
        ((1, 64, 90, 85), (64, 64, 9, 8), ((41, 49), (30, 55)), {"padding": 4}),
    ],
)
@pytest.mark.parametrize("precision", ["default", "fast"])
def test_tiles_that_read_beyond_windows(
    rng: np.random.Generator,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    chunks: tuple[tuple[int, ...], ...],
    options: dict[str, Any],
    precision: str,
) -> None:
    """What is multiplied by zeros, or cancels, must be the same in parts and whole."""
    x, w = rng.standard_normal(x_shape, np.float32), rng.standard_normal(w_shape, np.float32)
    dy = rng.standard_normal(convbwd.convolution(x, w, **options).shape, np.float32)
    options = {**options, "algorithm": "winograd", "precision": precision, "output_mask": (True, False, False)}
    assert "winograd" in convbwd.plan(dy, x, w, **options).explain()
    expected = convbwd.convolution_backward(dy, x, w, **options)[0]
    lazy = convbwd_dask.convolution_backward(
        chunked(rng, dy), da.from_array(x, chunks=((x.shape[0],), (x.shape[1],), *chunks)), w, **options
    )
    same_bits(lazy[0].compute(scheduler="synchronous"), expected)


def test_bits_do_not_depend_on_workers(rng: np.random.Generator) -> None:
    dy, x = (rng.standard_normal((4, 6, 20, 18), np.float32) for _ in range(2))
    arrays = [chunked(rng, dy, 5), chunked(rng, x, 5), rng.standard_normal((6, 3, 3, 3), np.float32)]
    results = []
    for options in ({"scheduler": "synchronous"}, *({"scheduler": "threads", "num_workers": n} for n in (1, 2, 7))):
        for _ in range(2):
            lazy = convbwd_dask.convolution_backward(*arrays, padding=1, groups=2)
            results.append([gradient.tobytes() for gradient in dask.compute(*lazy, **options)])
    assert all(result == results[0] for result in results)


def test_results_have_the_chunks_of_the_input(rng: np.random.Generator) -> None:
    x = da.zeros((5, 12, 9, 10), chunks=((2, 3), (4, 2, 2, 4), (4, 5), (10,)))
    dx, dw, db = convbwd_dask.convolution_backward(
        da.zeros((5, 24, 9, 10), chunks=(5, 6, 3, 3)), x, np.ones((24, 4, 3, 3)), padding=1, groups=3
    )
    assert dx.chunks == ((2, 3), (4, 4, 4), (4, 5), (10,))
    assert dw.chunks == ((8, 8, 8), (4,), (3,), (3,))
    assert db.chunks == ((6, 6, 6, 6),)
    dx, _, _ = convbwd_dask.convolution_backward(dx[0, :4], dx[0, :4], np.ones((4, 4, 3, 3)), padding=1)
    assert dx.shape == (4, 9, 10)


def test_results_of_different_calls_have_different_names(rng: np.random.Generator) -> None:
    """Dask takes arrays of one name for the same."""
    dy, x = (da.from_array(rng.standard_normal((2, 4, 8, 8), np.float32), chunks=4) for _ in range(2))
    w = rng.standard_normal((4, 4, 3, 3), np.float32)
    calls = [
        convbwd_dask.convolution_backward(dy, x, w, padding=1),
        convbwd_dask.convolution_backward(dy, x, w, padding=1, precision="strict"),
        convbwd_dask.convolution_backward(dy, x.astype(np.float64), w, padding=1),
        convbwd_dask.convolution_backward(dy, x, w.astype(np.float64), padding=1),
        convbwd_dask.convolution_backward(dy, x, w[:, :2], padding=1, groups=2),
        convbwd_dask.convolution_backward(dy, x, w, padding=2, dilation=2),
        convbwd_dask.convolution_backward(dy, x, w, padding=1, transposed=True),
    ]
    names = [gradient.name for call in calls for gradient in call]
    assert len(set(names)) == len(names)
    again = convbwd_dask.convolution_backward(dy, x, w, padding=1)
    assert [gradient.name for gradient in again] == names[:3]


def never(block: Any) -> Any:
    raise AssertionError("a block was computed")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"groups": 3}, ValueError, "input channels must be divisible by groups = 3, got 4"),
        ({"stride": 0}, ValueError, "stride must be at least 1, got 0"),
        ({"padding": (1, 2, 3)}, ValueError, "padding must be an int or have length"),
        ({"bias_sizes": (7,)}, ValueError, r"bias_sizes must be None or \(C_out,\) = \(6,\), got \(7,\)"),
        ({"output_mask": (True, True)}, ValueError, "output_mask must be a sequence of 3 bools"),
        ({"precision": "exact"}, ValueError, "precision must be 'default', 'strict' or 'fast', got 'exact'"),
        ({"transposed": True}, ValueError, r"weight.shape\[0\] must be input channels = 4, got 6"),
        ({"groups": 1.5}, TypeError, "groups must be an int, got float"),
    ],
)
def test_errors_are_raised_before_a_graph_runs(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    dy, x = (da.zeros((2, c, 8, 8), chunks=3).map_blocks(never, dtype=float, meta=np.empty(0)) for c in (6, 4))
    w = da.zeros((6, 4, 3, 3)).map_blocks(never, dtype=float, meta=np.empty(0))
    convbwd_dask.convolution_backward(dy, x, w, padding=1)  # computes nothing
    with pytest.raises(kind, match=f"^convolution_backward: {message}"):
        convbwd_dask.convolution_backward(dy, x, w, **{"padding": 1, **changes})


def test_tensors_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in ((1, 4, 6, 6), (1, 3, 8, 8), (4, 3, 3, 3))]
    expected = convbwd.convolution_backward(*arrays)
    for a, b in zip(convbwd_dask.convolution_backward(*map(torch.from_numpy, arrays)), expected, strict=True):
        np.testing.assert_allclose(a.compute(), b, rtol=1e-5, atol=1e-5)


def test_options_may_change_before_blocks_are_computed() -> None:
    x, w, dilation = np.arange(9.0).reshape(1, 1, 9), np.array([[[1.0, 2.0]]]), [1]
    dy = np.arange(4.0).reshape(1, 1, 4)
    expected = convbwd.convolution_backward(dy, x, w, stride=2, dilation=1)
    got = convbwd_dask.convolution_backward(da.from_array(dy, chunks=(1, 1, 2)), x, w, stride=2, dilation=dilation)
    dilation[0] = 2
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.compute(), other)


def test_refuses_what_cannot_be_planned() -> None:
    x = da.zeros((2, 4, 8, 8), chunks=3)
    with pytest.raises(ValueError, match=r"grad_output\.shape must be the output shape = \(2, 6, 6, 6\)"):
        convbwd_dask.convolution_backward(da.zeros((2, 6, 8, 8)), x, np.ones((6, 4, 3, 3)))
    with pytest.raises(TypeError, match=r"input\.dtype must be float64, float32"):
        convbwd_dask.convolution_backward(da.zeros((2, 6, 6, 6)), x.astype(int), np.ones((6, 4, 3, 3)))
    unknown = x[x[:, 0, 0, 0] > 0]
    with pytest.raises(ValueError, match=r"^convolution_backward: input must have chunks of known sizes"):
        convbwd_dask.convolution_backward(da.zeros((2, 6, 6, 6)), unknown, np.ones((6, 4, 3, 3)))


def test_examples_of_the_docstrings() -> None:
    results = doctest.testmod(convbwd_dask)
    assert results.attempted > 0 and results.failed == 0


def test_volumes_larger_than_memory() -> None:
    """The example, on threads and on a cluster of two processes: four times the memory that they may take."""
    pytest.importorskip("distributed")
    sums = []
    for options in ([], ["--processes", "2"]):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "--cap", "96", *options], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "volume and gradient: 384 MiB; memory to be taken: 96 MiB" in done.stdout
        assert "memory for the whole volume at once: False" in done.stdout
        assert "same bits as in memory: True" in done.stdout
        sums.append(re.search("sums of the gradients of weight and bias: (.*)", done.stdout)[1])
    assert sums[0] == sums[1]
