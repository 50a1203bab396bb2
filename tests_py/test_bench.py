"""Measurements: what is measured is what is said, and computes what it should."""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import convbwd
from convbwd import _im2col, _reference
from convbwd.__main__ import main
from convbwd._bench import sides, verify
from convbwd._bench.command import refusals
from convbwd._bench.machine import Roofline, Work, _peak_work
from convbwd._bench.problem import GATE_SHAPES, Case, load_cases, parse_problem
from convbwd._bench.report import line, make_row, summaries
from convbwd._bench.timing import PASSES, interleave

ROOT = Path(__file__).resolve().parents[1]
GATE = load_cases()
FAMILIES = sorted({case.family for case in GATE})
# Each dimension, transposed ones, groups, uneven padding, strides that leave elements out.
SMALL = [
    "n2ci2x9co3k3s2p1",
    "n2g4ci1x7x8co2k3x2d2p1",
    "ci3x6x7x5co2k3x2x1s2x1x3p1x0x2",
    "n2g2ci2x9x8co3y4x4k3x4s2p1",
    "transposed:n2g2ci2x9x8co3y5x4k3s2p1",
    "transposed:n2ci3x9x8x7co2k3s2x1x2d2p2",
]
ALL = PASSES["dx+dw+db"]


def load_script(name):
    """Import a script of bench/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"bench/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(case: Case) -> Case:
    """Shrink a case to few channels, images and pixels; kernel, stride, padding and dilation stay."""
    groups = min(case.groups, 3)
    reach = [d * (k - 1) + 2 * s + 1 for d, k, s in zip(case.dilation, case.kernel, case.stride, strict=True)]
    return dataclasses.replace(
        case, n=min(case.n, 2), groups=groups, in_channels=groups * min(case.in_channels // case.groups, 2),
        out_channels=groups * min(case.out_channels // case.groups, 3),
        input=tuple(min(i, r) for i, r in zip(case.input, reach, strict=True)),
    )  # fmt: skip


def integers(case: Case, dtype="float64"):
    """Operands whose gradients are exact in any order of sums."""
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-2, 3, shape).astype(dtype) for shape in case.shapes)


def test_problem_strings_of_all_gate_shapes_are_read_back():
    assert len(GATE) == 129 and len(FAMILIES) == 22
    for case in GATE:
        again = parse_problem(case.problem)
        assert again.problem == case.problem
        assert again.transposed == case.transposed
        assert [math.prod(s) for s in again.shapes] == [math.prod(s) for s in case.shapes]
        assert again.flops() == case.flops()
        assert again.nbytes(4) == case.nbytes(4)


@pytest.mark.parametrize(
    ("text", "shapes", "options"),
    [
        ("ci3x8co5k3", [(1, 5, 6), (1, 3, 8), (5, 3, 3)], {"stride": (1,), "padding": (0,), "groups": 1}),
        ("n2g2ci3x8x9co5k3x2s2p1", [(2, 10, 4, 5), (2, 6, 8, 9), (10, 3, 3, 2)], {"stride": (2, 2), "groups": 2}),
        ("ci1x1x8x9co1y1x8x9k1x3x3s1d1p0x1x1", [(1, 1, 8, 9)] * 2 + [(1, 1, 3, 3)], {"padding": (1, 1)}),
        ("ci1x8co1y4k3s2", [(1, 1, 4), (1, 1, 8), (1, 1, 3)], {"padding": ((0, 1),)}),
        ("transposed:ci1x8co2y4k3s2p1", [(1, 1, 8), (1, 2, 4), (2, 1, 3)], {"output_padding": (1,)}),
        ("transposed:ci1x8x8co2k2s2", [(1, 1, 8, 8), (1, 2, 4, 4), (2, 1, 2, 2)], {"output_padding": (0, 0)}),
        ("transposed:ci1x7co2y4k3s2", [(1, 1, 7), (1, 2, 4), (2, 1, 3)], {"padding": ((0, 2),)}),
    ],
)  # fmt: skip
def test_short_problem_strings(text, shapes, options):
    case = parse_problem(text)
    assert list(case.shapes) == shapes
    assert {name: case.options[name] for name in options} == options
    results = convbwd.convolution_backward(*case.arrays(), **case.options)  # which would refuse a wrong geometry
    assert [result.shape for result in results[:2]] == shapes[1:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be like"),
        ("x8ci3co5k3", "must be like"),
        ("ci3x8co5k-3", "must be like"),
        ("ci3x8x8co5k3x3x3", "k must have 1 or 2 numbers"),
        ("ci3x8x8x8x8co5k3", "x must have 1, 2 or 3 sizes, got 4"),
        ("ci3x8co5k3s0", "s must be at least 1, got 0"),
        ("n0ci3x8co5k3", "all sizes must be at least 1"),
        ("ci3x8co5k9", "all sizes must be at least 1"),
        ("ci3x8co5y4k3", "y must be at least 6 for an x of 8, got 4"),
        ("transposed:ci3x8co5y2k3s2", "y must be at least 3 for an x of 8, got 2"),
    ],
)
def test_bad_problem_strings(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_problem(text)


def test_products_are_counted_without_padding():
    for case in [*map(parse_problem, SMALL), *map(small, GATE)]:
        ones = [np.ones(shape) for shape in case.shapes]
        assert case.products == _reference.convolution_backward(*ones, **case.geometry)[1].sum(), case
        assert case.flops((True, False, True)) == 2 * case.products


def test_bytes_of_each_pass():
    case = parse_problem("ci2x4co3k1")  # 12 of dy, 8 of x, 6 of w, 3 of b
    found = [case.nbytes(4, PASSES[name]) for name in ("dx+dw+db", "dx", "dw", "db")]
    assert found == [4 * n for n in (12 + 2 * (8 + 6) + 3, 12 + 6 + 8, 12 + 8 + 6, 12 + 3)]


@pytest.mark.parametrize("family", FAMILIES)
def test_im2col_of_every_gate_shape(family, monkeypatch):
    monkeypatch.setattr(_im2col, "CHUNK_BYTES", 4096)  # some in one chunk, some image by image
    for case in (small(case) for case in GATE if case.family == family):
        arrays = integers(case)
        expected = convbwd.convolution_backward(*arrays, algorithm="reference", **case.options)
        for got, want in zip(_im2col.convolution_backward(*arrays, **case.geometry), expected, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=str(case))


SIDES = ("torch", "torch-channels-last", "jax", "numpy", "direct", "reference")


@pytest.fixture(scope="module")
def every_side():
    """Give each side that runs here; PyTorch and JAX keep no setting that other tests would notice."""
    threads = sides.cpus()
    made, stack = {}, contextlib.ExitStack()
    for name in SIDES:
        try:
            made[name] = sides.make_side(name, {}, threads, stack)
        except ModuleNotFoundError:
            assert name.startswith(("torch", "jax"))
    return made


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("problem", SMALL)
@pytest.mark.parametrize("name", SIDES)
def test_sides_compute_the_same(every_side, name, problem, dtype):
    if name not in every_side:
        pytest.skip(f"{name} is not installed")
    case = parse_problem(problem)
    arrays = integers(case, pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    if name.startswith("torch") and not case.symmetric:
        with pytest.raises(sides.Unavailable, match="pads both ends alike"):
            every_side[name](case, arrays)
        return
    if name == "torch-channels-last" and len(case.kernel) == 1:
        with pytest.raises(sides.Unavailable, match="1-D"):
            every_side[name](case, arrays)
        return
    runner = every_side[name](case, arrays)
    exact = _reference.convolution_backward(*(a.astype(np.float64) for a in arrays), **case.geometry)
    # JAX sums 16-bit types in their own precision; all others round once.
    rtol = {"float64": 0, "float32": 1e-6, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    for mask in PASSES.values():
        for got, want, asked in zip(sides.to_numpy(runner.call(mask)), exact, mask, strict=True):
            assert asked or got is None or name.startswith("torch")  # which may compute more than it is asked for
            if asked:
                np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=4 * rtol * abs(want).max())
    assert runner.turn(ALL, 2) > 0


def test_another_process_computes_the_same_and_reports_errors():
    case = parse_problem(SMALL[1])
    arrays = case.arrays()
    package = Path(convbwd.__file__).parent
    ours = convbwd.convolution_backward(*arrays, **case.options, algorithm="direct")
    with contextlib.ExitStack() as stack:
        runner = sides.make_side(f"build:{package}", {"algorithm": "direct"}, 1, stack)(case, arrays)
        for got, want in zip(runner.call(ALL), ours, strict=True):
            np.testing.assert_array_equal(got, want)
        assert runner.turn((True, False, False), 3) > 0
        side = sides.make_side("isa:generic", {"algorithm": "none"}, 1, stack)
        with pytest.raises(ValueError, match="algorithm"):
            side(case, arrays).call(ALL)
        with pytest.raises(ValueError, match="isa:none: the instruction sets of this machine are generic"):
            sides.make_side("isa:none", {}, 1, stack)
        with pytest.raises(ValueError, match="is not the folder of a convbwd package"):
            sides.make_side(f"build:{ROOT}/tests_py", {}, 1, stack)


def test_turns_alternate():
    order = []

    def turn(name, seconds):
        def run(calls):
            order.append((name, calls))
            return seconds

        return run

    times = interleave([turn("a", 1.0), turn("b", 1e-9)], seconds=0)
    assert times.tolist() == [[1.0] * 4, [1e-9] * 4]
    names = "".join(name for name, _ in order)
    assert names == "aabb" + "ab" + "ba" + "ab" + "ba"  # the first calls, then the rounds
    assert order[4:6] == [("a", 4), ("b", 500)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_peak_is_looked_for_on_the_matrix_unit_too(dtype):
    work = {w.name.rpartition(" ")[2]: w for w in _peak_work(dtype)}
    assert work["direct"].amount == work["matrix"].amount
    got = [work[by].run() for by in ("direct", "matrix")]
    assert got[0][0].dtype == dtype and got[0][2] is None
    np.testing.assert_allclose(got[0][1], got[1][1], rtol=1e-4, atol=1e-2)


def test_rows_and_summaries():
    cases = [dataclasses.replace(parse_problem("ci2x4co3k1"), family=name) for name in ("f", "f", "g")]
    roofline = Roofline(1e9, 1e9, Work("probe", 100.0, lambda: None), "copy")
    ours, theirs, probe = [2e-6, 1e-6, 4e-6, 2e-6], [8e-6, 4e-6, 8e-6, 16e-6], [1e-6] * 4
    rows = [
        make_row(case, "dx", "them", 4, np.array([ours, [t * f for t in theirs], probe]), roofline)
        for case, f in zip(cases, (1, 4, 1), strict=True)
    ]
    row = rows[0]
    assert row["ratio"] == pytest.approx(4) and row["turns"] == 4
    assert row["ratio_median"] == pytest.approx(4) and row["ratio_quartiles"] == pytest.approx([3.5, 5])
    assert row["gflops"] == pytest.approx(48e-9 / 1e-6) and row["intensity"] == pytest.approx(48 / 104)
    assert row["peak_gflops"] == pytest.approx(0.1)  # that of the probe, not what was measured before
    assert row["limit"] == pytest.approx(48e-8 / 1e-6)  # 48 operations at 1e8 a second
    assert row["problem"] in line(row) and " 4.00 " in line(row)
    (summary,) = summaries(rows)
    found = {mean["family"]: (mean["shapes"], mean["ratio"], mean["lowest"]) for mean in summary["means"]}
    assert found["f"] == (2, pytest.approx(8), pytest.approx(4))
    assert found["all"] == (3, pytest.approx(4 * 4 ** (1 / 3)), pytest.approx(4))
    assert [row["family"] for row in summary["lowest"]] == ["f", "g", "f"]


@pytest.mark.parametrize("keywords", [{}, {"algorithm": "direct"}], ids=["as a whole", "element-wise"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_verification_notices_a_wrong_result(monkeypatch, dtype, keywords):
    case = parse_problem("n2g2ci8x9x8co8k3p1")
    arrays = case.arrays(dtype)
    assert verify.verify(case, arrays, keywords) == []
    right = convbwd.convolution_backward

    def wrong(*args, **kwargs):
        dx, dw, db = right(*args, **kwargs)
        if keywords:
            dx[0, 3, 4, 5] += 1
        else:
            dx *= dx.dtype.type(1.01)
        return dx, dw * dw.dtype.type(1.01), db

    monkeypatch.setattr(convbwd, "convolution_backward", wrong)
    found = verify.verify(case, arrays, keywords)
    assert [text.split(" of ")[0] for text in found] == ["dx", "dw"]


def run(*arguments, code=None):
    start = ["-c", code] if code else ["-m", "convbwd", *arguments]
    return subprocess.run([sys.executable, *start], capture_output=True, text=True, timeout=300)


def test_bench_command(tmp_path):
    pytest.importorskip("matplotlib")
    result, picture = tmp_path / "result.json", tmp_path / "roofline.png"
    done = run("bench", *SMALL[1:3], "--baseline", "numpy", "isa:generic", "--passes", "--verify", "--seconds", "0.01",
               "--json", str(result), "--picture", str(picture))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "verified: 2 shapes within the bound" in done.stdout
    assert re.search(r"dx\+dw\+db against numpy: geometric means", done.stdout)
    written = json.loads(result.read_text())
    problems = [parse_problem(text).problem for text in SMALL[1:3]]
    expected = {(p, name, b) for p in problems for name in PASSES for b in ("numpy", "isa:generic")}
    assert {(row["problem"], row["pass"], row["baseline"]) for row in written["rows"]} == expected
    for row in written["rows"]:
        assert row["seconds"] > 0 and row["ratio"] == pytest.approx(row["baseline_seconds"] / row["seconds"])
        assert row["problem"] in done.stdout
    assert written["machine"]["malloc"]["MALLOC_MMAP_MAX_"] == "0"
    assert picture.read_bytes().startswith(b"\x89PNG")

    script = [sys.executable, str(ROOT / "bench/report.py"), "--folder", str(tmp_path), "--pictures", str(result)]
    reported = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert reported.returncode == 0, reported.stderr
    text = Path(reported.stdout.strip()).read_text()
    assert written["machine"]["cpu"] in text and all(f"`{problem}`" in text for problem in problems)
    drawn = re.search(r"!\[Roofline\]\((.+)\)", text)
    assert drawn is not None and (tmp_path / drawn[1]).is_file()
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**written, "machine": {**written["machine"], "cpu": "another"}}))
    refused = subprocess.run([*script, str(other)], capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2 and "cpu is another" in refused.stderr


def test_bench_command_without_rich():
    code = "import sys; sys.modules['rich'] = None; from convbwd.__main__ import main; main(sys.argv[1:])"
    arguments = ["bench", SMALL[0], "--baseline", "direct", "--seconds", "0.01", "--plain-malloc"]
    done = run(code=code.replace("sys.argv[1:]", repr(arguments)))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  given +1 +\d+\.\d\d", done.stdout, re.MULTILINE)


def test_bench_lists_the_gate():
    done = run("bench", "--list")
    assert done.stdout.split() == [case.problem for case in GATE]
    done = run("bench", "--list", "--shapes", str(GATE_SHAPES), "--family", "stem")
    assert done.stdout.split() == [case.problem for case in GATE if case.family == "stem"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ci3"], "a problem string must be like"),
        (["--family", "none"], "has no family none"),
        (["--family", "stem", "--", SMALL[0]], "cannot be combined"),
        (["--shapes", "none.json"], "none.json"),
        (["--baseline", "none", "--", SMALL[0]], "there is no 'none' to compare with"),
        (["--baseline", "jax", "--threads", "1000", "--", SMALL[0]], "JAX computes with a thread for each"),
        (["--threads", "0"], "must be at least 1"),
        (["--seconds", "0"], "must be more than 0"),
        (["--seconds", "inf"], "must be more than 0 and finite"),
        (["--json", "no/folder/x.json"], "--json: must be a file in a folder that exists, got no/folder/x.json"),
        (["--json", "."], "--json: must be a file in a folder that exists, got ."),
        (["--picture", "roofline.none"], "--picture: must end in one of "),
        (["--algorithm", "none", SMALL[0]], "algorithm must be"),
        (["--precision", "none", SMALL[0]], "precision must be"),
    ],
)
def test_bench_refuses(arguments, message):
    done = run("bench", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr


SHAPE = {
    "n": 1, "groups": 1, "in_channels": 2, "out_channels": 2, "input": [8, 8], "kernel": [3, 3], "stride": [1, 1],
    "padding": [0, 0], "dilation": [1, 1], "output_padding": [], "transposed": False, "family": "", "source": "",
    "name": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "must hold JSON: Expecting value"),
        ({"a": 1}, "must hold a list of shapes, got {'a': 1}"),
        ([5], "shape 0: it must be an object, got 5"),
        ([{"n": 1}], "shape 0: it must have groups, in_channels, out_channels, input, "),
        ([SHAPE, {**SHAPE, "input": 5}], "shape 1: input must be a list of int, got 5"),
        ([{**SHAPE, "stride": [1, 1.5]}], "shape 0: stride must be a list of int, got [1, 1.5]"),
        ([{**SHAPE, "n": "1"}], "shape 0: n must be of type int, got '1'"),
        ([{**SHAPE, "groups": 0}], "shape 0: all sizes must be at least 1 and less than 2**31"),
        ([{**SHAPE, "input": [8, 2**64]}], "shape 0: all sizes must be at least 1 and less than 2**31"),
        ([{**SHAPE, "dilation": [1]}], "shape 0: dilation must have as many numbers as input, got [1]"),
        ([{**SHAPE, "groups": 3}], "shape 0: convolution: "),
        ([{**SHAPE, "kernel": [9, 9]}], "shape 0: convolution: "),
    ],
)
def test_bench_refuses_other_shapes(content, message, tmp_path, capsys):
    path = tmp_path / "shapes.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--list", "--shapes", str(path)])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert error.startswith(f"python -m convbwd bench: error: {path}") and message in error


def test_explain_says_what_does_not_fit_into_memory():
    huge = "ci2000000000x40x40co8k3"
    done = run("explain", huge)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "python -m convbwd explain: error: Unable to allocate" in done.stderr
    done = run("explain", huge, "--plan-only")  # needs no memory
    assert done.returncode == 0 and "grad_weight: " in done.stdout


def test_a_reader_that_leaves_gets_no_error():
    command = f"{sys.executable} -m convbwd bench --list"
    done = subprocess.run(f"{command} | true", shell=True, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""


def test_interrupted_commands_say_nothing(capsys):
    with pytest.raises(SystemExit) as ended, refusals(argparse.ArgumentParser()):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["errors.py", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["errors.py", "--family", "none"], "has no family none"),
        (["fit.py", "none.jsonl"], "none.jsonl"),
        (["growth.py", "--seconds", "0"], "must be more than 0"),
        (["growth.py", "--algorithm", "none"], "algorithm must be"),
        (["growth.py", "--threads", "99999999999"], "n must be from 1"),
        (["fit.py", os.devnull], "must hold what `candidates` printed, got nothing"),
        (["fit.py", str(GATE_SHAPES)], "/shapes.json"),
        (["report.py", str(GATE_SHAPES)], "must hold what compare.py --json wrote"),
        (["memory.py", "--algorithm", "none"], "algorithm must be"),
        (["report.py", "none.json"], "none.json"),
        (["sharing.py", "--threads", "0"], "must be at least 1"),
        (["sharing.py", "--least", "1e3"], "no shape has 1000.0 GMAC"),
    ],
)
def test_scripts_refuse(arguments, message):
    script = [sys.executable, str(ROOT / "bench" / arguments[0]), *arguments[1:]]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr


def test_explain_command():
    done = run("explain", SMALL[4], "--plan-only", "--algorithm", "direct")
    assert done.returncode == 0, done.stderr
    case = parse_problem(SMALL[4])
    assert case.problem in done.stdout and "workspace: " in done.stdout
    for name in ("grad_input", "grad_weight", "grad_bias"):
        assert f"{name}: " in done.stdout
    assert f"{case.flops() / case.nbytes(4):.3g}" in done.stdout
    assert "of limit" not in done.stdout
    done = run("explain", SMALL[0], "--seconds", "0.01", "--dtype", "float64")
    assert done.returncode == 0, done.stderr
    assert "of limit" in done.stdout and re.search(r"^peak [\d.]+ GF/s", done.stdout)
    for arguments, message in (
        (("ci3",), "a problem string must be like"),
        ((SMALL[0], "--algorithm", "none"), "must be"),
    ):
        done = run("explain", *arguments)
        assert done.returncode == 2 and message in done.stderr and done.stdout == ""


def test_growth(tmp_path):
    shapes = [entry for entry in json.loads(GATE_SHAPES.read_text()) if entry["family"] == "depthwise1d"]
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps(shapes))
    script = [sys.executable, str(ROOT / "bench/growth.py"), "--shapes", str(path), "--seconds", "0.01", "--most", "2"]
    done = subprocess.run([*script, "--tolerance", "1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"depthwise1d +[\d.]+ +[\d.]+ +\d+%", done.stdout)
    done = subprocess.run([*script, "--tolerance", "-1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "depthwise1d" in done.stderr


def test_sharing(monkeypatch):
    script = [sys.executable, str(ROOT / "bench/sharing.py"), "--family", "dense3x3", "pointwise"]
    monkeypatch.setenv("CONVBWD_ISA", "generic")
    done = subprocess.run([*script, "--threads", "1", "8"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"(dense3x3|pointwise|all) +\d+ +([\d.]+) +([\d.]+)", done.stdout)
    assert len(rows) == 3
    for _, one, eight in rows:
        assert float(one) == 1 and 4 < float(eight) <= 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_errors(dtype):
    pytest.importorskip("torch")
    errors = load_script("errors")
    found = []
    # Matrix units and every tile; long sums of few channels; strides, with groups; depthwise.
    for text in (
        "ci64x28x28co64k3p1", "ci64x28x28co64k5p2", "ci3x60x60co32k3x5", "n2g2ci16x20x20co24k3s2p1",
        "g8ci1x30x30co1k3p1",
    ):  # fmt: skip
        for row in errors.measure(parse_problem(text), dtype):
            assert row.kept, row
            found.append(row.choice)
    served = {*errors.CHOICES} if " amx" in convbwd.build_info()["isas"] else {
        name for name, choice in errors.CHOICES.items() if choice.serves != "matrix"
    }  # fmt: skip
    assert served <= {*found} or convbwd.build_info()["isa"] == "generic"


def test_errors_tells_what_is_off(tmp_path):
    pytest.importorskip("torch")
    errors = load_script("errors")
    exact = np.array([4.0, -2.0])
    got = errors.error_of(np.array([4.0, -2.5]), exact, np.array([0.125, 0.125]))
    assert got == (0.125, math.sqrt(0.125) / 4, 4)
    fine = errors.Error(2.0**-23, 2.0**-25, 0.5)
    rows = [errors.Row(GATE[0], "float32", "grad_input", name, got, fine) for name in errors.CHOICES]
    assert not any(row.kept for row in rows)
    assert all(row._replace(ours=fine).kept for row in rows)
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps(json.loads(GATE_SHAPES.read_text())[-1:]))
    script = [
        sys.executable,
        str(ROOT / "bench/errors.py"),
        "--shapes",
        str(path),
        "--dtype",
        "bfloat16",
        "--rectified",
    ]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"bfloat16 +grad_weight +direct +1 ", done.stdout)
