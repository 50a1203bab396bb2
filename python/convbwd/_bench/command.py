"""The commands `bench`, which compares, and `explain`, which says how one problem is computed and how well."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import convbwd
from convbwd import _core
from convbwd._bench import machine, sides
from convbwd._bench.problem import GATE_SHAPES, SYNTAX, Case, Operands, load_cases, parse_problem
from convbwd._bench.report import HEADER, Output, Row, draw, line, make_row
from convbwd._bench.timing import PASSES, PAUSE, interleave
from convbwd._bench.verify import verify
from convbwd._interop import numpy_dtype

DTYPES = ("float64", "float32", "float16", "bfloat16")


def positive(text: str) -> int:
    """Read an argument that counts something."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def seconds(text: str) -> float:
    """Read an argument that is a time."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be more than 0 and finite, got {text}")
    return value


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in a folder that exists, got {text}")
    return path


def picture(text: str) -> Path:
    """Read an argument that names a picture, which only matplotlib can draw."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ModuleNotFoundError as error:
        raise argparse.ArgumentTypeError(f"{error}: pictures need matplotlib, pip install 'convbwd[bench]'") from error
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if Path(text).suffix.removeprefix(".").lower() not in known:
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(known)}, got {text}")
    return _file(text)


@contextmanager
def refusals(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the process with one line and status 2 where arguments cannot be served, in silence where nobody reads."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        parser.exit(1)
    except (ValueError, OSError, MemoryError, ModuleNotFoundError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130)  # 128 + SIGINT, as shells count


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose shapes of a list."""
    parser.add_argument("--shapes", type=Path, default=GATE_SHAPES, help="JSON list of shapes (default: the gate's)")
    parser.add_argument("--family", nargs="+", help="only the shapes of these families")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that both commands have."""
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="(default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of every side (default: %(default)s)")
    parser.add_argument("--algorithm", help="convbwd's algorithm (default: that of the function)")
    parser.add_argument("--precision", help="convbwd's precision class (default: that of the function)")
    parser.add_argument("--plain-malloc", action="store_true", help="leave the C library's malloc as it is")


def check_cases(cases: Iterable[Case], dtype: np.dtype[Any], given: dict[str, Any]) -> None:
    """Plan every case, so that what would be refused is refused before anything is measured."""
    for case in cases:
        _core.Plan(*case.stand_ins(dtype), **{**case.options, **given})


def keywords(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments for `convbwd.convolution_backward` that were given."""
    known = inspect.signature(convbwd.convolution_backward).parameters
    given = {name: value for name in ("algorithm", "precision") if (value := getattr(options, name)) is not None}
    for name in given:
        if name not in known:
            raise ValueError(f"--{name}: this build's convolution_backward has no such argument")
    return given


def add_bench(parser: argparse.ArgumentParser, repository: Path | None = None) -> None:
    """Make a parser that of `bench`; repository is the folder whose commit was built, where known."""
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"{SYNTAX}; without any, the gate's shapes")
    add_shapes(parser)
    default = "torch" if importlib.util.find_spec("torch") else "numpy"
    parser.add_argument(
        "--baseline", nargs="+", default=[default], help=f"what to compare with: {sides.NAMES} (default: {default})"
    )
    add_common(parser)
    parser.add_argument("--seconds", type=seconds, default=1.0, help="for each shape and pass (default: %(default)s)")
    parser.add_argument("--passes", action="store_true", help="time dx, dw and db alone as well")
    parser.add_argument("--verify", action="store_true", help="check every result against im2col in float64 first")
    parser.add_argument("--json", type=_file, help="write the rows and the facts of the machine here")
    parser.add_argument("--picture", type=picture, help="draw the roofline here (needs matplotlib)")
    parser.add_argument("--list", action="store_true", help="print the problem strings and stop")
    parser.set_defaults(run=partial(bench, repository))


def select(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the options ask for."""
    if not options.problems:
        return load_cases(options.shapes, options.family)
    if options.shapes != GATE_SHAPES or options.family:
        raise ValueError("problem strings cannot be combined with --shapes or --family")
    return [parse_problem(text) for text in options.problems]


def measure_case(
    case: Case, arrays: Operands, all_sides: dict[str, sides.Side], options: argparse.Namespace,
    roofline: machine.Roofline, out: Output,
) -> list[Row]:  # fmt: skip
    """Time a case, the first side against each of the others; the rows, which are printed as they come."""
    runners = {}
    for name, side in all_sides.items():
        try:
            runners[name] = side(case, arrays)
        except sides.Unavailable as reason:
            out.print(f"{name}: {reason} ({case.problem})")
    rows: list[Row] = []
    (_, *baselines) = runners
    for name in PASSES if options.passes else ["dx+dw+db"]:
        if not baselines:
            break
        turns = [partial(runner.turn, PASSES[name]) for runner in runners.values()]
        times = interleave([*turns, roofline.peak_by.turn], options.seconds, PAUSE if options.threads > 1 else 0)
        for i, baseline in enumerate(baselines, 1):
            rows.append(make_row(case, name, baseline, arrays[0].itemsize, times[[0, i, -1]], roofline))
            out.print(line(rows[-1]) + (f"  {baseline}" if len(all_sides) > 2 else ""))
    return rows


def make_sides(options: argparse.Namespace, given: dict[str, Any], stack: ExitStack) -> dict[str, sides.Side]:
    """Make this build's side, the first, and those that it is compared with."""
    baselines = {name: sides.make_side(name, given, options.threads, stack) for name in options.baseline}
    if all(map(sides.apart, baselines)):  # then this build has a process of its own too: equal conditions
        package = Path(convbwd.__file__).parent
        return {"convbwd": sides.make_side(f"build:{package}", given, options.threads, stack), **baselines}
    return {"convbwd": sides.ours(given), **baselines}


def compare(repository: Path | None, options: argparse.Namespace, stack: ExitStack) -> list[str]:
    """Compare; returns what `--verify` found."""
    cases = select(options)
    if options.list:
        print("\n".join(case.problem for case in cases))
        return []
    given, dtype = keywords(options), numpy_dtype(options.dtype)
    for algorithm in [{}, *({"algorithm": name} for name in options.baseline if name in sides.ALGORITHMS)]:
        check_cases(cases, dtype, given | algorithm)
    machine.in_environment(options.threads, not options.plain_malloc)
    convbwd.set_num_threads(options.threads)
    all_sides = make_sides(options, given, stack)
    out = Output()
    facts = machine.facts(repository)
    roofline = machine.measure(dtype.name, options.threads)
    name = " ".join(["convbwd", *(f"{k}={v}" for k, v in given.items())])
    plural = "s" * (options.threads > 1)
    title = f"{name} against {', '.join(options.baseline)}; {options.dtype}, {options.threads} thread{plural}"
    out.print(f"{facts['cpu']}, {facts['cpus']} CPUs, {facts['convbwd']['isa']}; {title}")
    out.print(f"{roofline}\n{HEADER}")

    rows: list[Row] = []
    failures: list[str] = []
    family = None
    with out.progress(len(cases)) as advance:
        for case in cases:
            if case.family != family:
                family = case.family
                out.print(family)
            arrays = case.arrays(dtype)
            if options.verify:
                failures += verify(case, arrays, given)
            rows += measure_case(case, arrays, all_sides, options, roofline, out)
            advance()
    if not rows:
        raise ValueError(f"none of {', '.join(options.baseline)} could compute any of these shapes")
    out.summary(rows)
    if options.verify and not failures:
        out.print(f"verified: {len(cases)} shapes within the bound")
    if options.json:
        settings = {name: getattr(options, name) for name in ("dtype", "threads", "algorithm", "precision")}
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        result = {
            "title": title, "command": command, "machine": facts, "options": settings, "rows": rows,
            "roofline": {**roofline._asdict(), "peak_by": roofline.peak_by.name},
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.picture:
        draw(rows, roofline.bandwidth, f"{title}\n{facts['cpu']}", options.picture)
    return failures


def bench(repository: Path | None, options: argparse.Namespace) -> None:
    """Run `bench`."""
    with ExitStack() as stack:
        if failures := compare(repository, options, stack):
            sys.exit("\n".join(failures))


def explain(options: argparse.Namespace) -> None:
    """Print how problems are computed and, unless that is not wanted, how near to the limits of the machine."""
    cases = [parse_problem(text) for text in options.problems]
    given, dtype = keywords(options), numpy_dtype(options.dtype)
    check_cases(cases, dtype, given)
    if not options.plan_only:
        machine.in_environment(options.threads, not options.plain_malloc)
    convbwd.set_num_threads(options.threads)
    roofline = None if options.plan_only else machine.measure(dtype.name, options.threads)
    out = Output()
    if roofline:
        out.print(str(roofline))
    for case in cases:
        plan = _core.Plan(*case.stand_ins(dtype), **{**case.options, **given})
        out.print(f"\n{case.problem}")
        shapes = zip(("grad_output", "input", "weight"), case.shapes, strict=True)
        out.print("  " + ", ".join(f"{name} {shape}" for name, shape in shapes) + f", {dtype.name}")
        steps = [text for text in plan.explain().splitlines() if text != case.problem.removeprefix("transposed:")]
        out.print("\n".join(f"  {text}" for text in steps))
        im2col = case.im2col_bytes * dtype.itemsize / 4
        workspace = plan.workspace_bytes
        out.print(f"  workspace: {workspace:,} bytes, {workspace / im2col:.1%} of a full im2col")
        columns = ["gradients", "GFLOP", "MB", "FLOP/byte"]
        columns += ["limit by", "least ms", "ms", "GF/s", "of limit"] if roofline else []
        runner = sides.ours(given)(case, case.arrays(dtype)) if roofline else None
        table = []
        for name, mask in PASSES.items():
            flops, nbytes = case.flops(mask), case.nbytes(dtype.itemsize, mask)
            cells = [name, f"{flops / 1e9:.3g}", f"{nbytes / 1e6:.3g}", f"{flops / nbytes:.3g}"]
            if roofline and runner:
                turns: list[Callable[[int], float]] = [partial(runner.turn, mask), roofline.peak_by.turn]
                best, probe = interleave(turns, options.seconds).min(axis=1)
                here = roofline.at(probe)
                least = here.seconds(flops, nbytes)
                bound = "peak" if flops / here.peak >= nbytes / here.bandwidth else "bandwidth"
                cells += [bound, f"{least * 1e3:.3g}", f"{best * 1e3:.3g}", f"{flops / best / 1e9:.1f}"]
                cells.append(f"{least / best:.0%}")
            table.append(cells)
        out.table("what must be done, and how fast it is" if roofline else "what must be done", columns, table)


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Make a parser that of `explain`."""
    parser.add_argument("problems", nargs="+", metavar="problem", help=SYNTAX)
    add_common(parser)
    parser.add_argument("--seconds", type=seconds, default=0.3, help="for each of the passes (default: %(default)s)")
    parser.add_argument("--plan-only", action="store_true", help="measure nothing")
    parser.set_defaults(run=explain)
