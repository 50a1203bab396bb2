#!/usr/bin/env python3
"""Time convbwd against another implementation, in one process and in turns. The method is in bench/README.md."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import convbwd
from cases import DEFAULT_SHAPES, HERE, Case, load_cases

# Fresh pages cost more than many of these convolutions. With these settings freed memory stays in the process.
HOT_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
MASKS = {"dx+dw+db": (True, True, True), "dx": (True, False, False), "dw": (False, True, False)}

Mask = tuple[bool, bool, bool]
Runner = Callable[[Mask], Any]


def convbwd_runner(case: Case, arrays: list[Any], algorithm: str) -> Runner:
    return lambda mask: convbwd.convolution_backward(*arrays, output_mask=mask, algorithm=algorithm, **case.options)


def torch_runner(case: Case, arrays: list[Any], channels_last: bool = False, dtype: str | None = None) -> Runner:
    import torch

    def tensor(a: Any) -> Any:
        # NumPy's bfloat16 is foreign to torch; float32 carries every value of it.
        t = torch.from_numpy(a.astype(np.float32) if a.dtype.name == "bfloat16" else a)
        t = t.to(getattr(torch, dtype or a.dtype.name))
        layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
        return t.contiguous(memory_format=layouts[t.ndim]) if channels_last and t.ndim in layouts else t

    tensors = [tensor(a) for a in arrays]
    lists = case.stride, case.padding, case.dilation, case.transposed, case.output_padding, case.groups
    run = torch.ops.aten.convolution_backward.default
    return lambda mask: run(*tensors, [case.out_channels], *lists, mask)


BASELINES: dict[str, Callable[[Case, list[Any]], Runner]] = {
    "torch": torch_runner,
    "torch-channels-last": lambda case, arrays: torch_runner(case, arrays, channels_last=True),
    "blas": lambda case, arrays: convbwd_runner(case, arrays, "blas"),
    "reference": lambda case, arrays: convbwd_runner(case, arrays, "reference"),
}


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleave(runs: list[Callable[[], Any]], seconds: float, pause: float) -> np.ndarray[Any, Any]:
    """Let the runs take turns; the best time of each turn, one row a run.

    A turn is a few calls in a row, so that one run does not pay for what the other left in the caches. The pause lets
    the threads of the one fall asleep before the other begins.
    """
    calls = []
    for run in runs:
        run()
        calls.append(min(max(2, math.ceil(0.002 / timed(run))), 500))
    turns: list[list[float]] = [[] for _ in runs]
    deadline = time.perf_counter() + seconds
    while len(turns[0]) < 4 or len(turns[0]) % 2 or time.perf_counter() < deadline:
        for i in range(len(runs)) if len(turns[0]) % 2 == 0 else reversed(range(len(runs))):
            time.sleep(pause)
            turns[i].append(min(timed(runs[i]) for _ in range(calls[i])))
    return np.array(turns)


def verify(case: Case, arrays: list[Any], results: tuple[Any, Any, Any]) -> list[str]:
    """Compare with PyTorch in float64; the worst error of each result above its bound.

    The bound of an element is (4 + sqrt(K)) * eps times the convolution of the absolute values, K products being
    summed; 16-bit results may also round once.
    """
    everything = (True, True, True)
    exact = [t.numpy() for t in torch_runner(case, arrays, dtype="float64")(everything)]
    scale = [t.numpy() for t in torch_runner(case, [abs(a) for a in arrays], dtype="float64")(everything)]
    pixels = case.n * math.prod(case.output)
    lengths = case.out_channels // case.groups * math.prod(case.kernel), case.n * case.windows, pixels
    dtype = arrays[0].dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    failures = []
    for name, result, e, s, length in zip(("dx", "dw", "db"), results, exact, scale, lengths, strict=True):
        bound = (4 + math.sqrt(length)) * float(np.finfo(wide).eps) * s
        if dtype == np.float64:
            bound *= 2  # PyTorch's own error
        elif dtype.itemsize == 2:
            bound += np.abs(e) * (2.0**-11 if dtype == np.float16 else 2.0**-8) * 1.01 + 6e-8
        excess = np.max(np.abs(result.astype(np.float64) - e) - bound)
        if not excess <= 0:
            failures.append(f"{name} of {case.problem} is off by {excess:.3g} more than its bound")
    return failures


def machine() -> dict[str, Any]:
    """Facts that a result means nothing without."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    git = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "cpu": models[0].split(":")[1].strip() if models else platform.processor(),
        "cpus": os.cpu_count(),
        "commit": git.stdout.strip(),
        "convbwd": convbwd.build_info(),
        "numpy": np.__version__,
        "malloc": {name: os.environ.get(name) for name in HOT_MALLOC},
    }


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shapes", type=Path, default=DEFAULT_SHAPES, help="JSON list of shapes (default: %(default)s)"
    )
    parser.add_argument("--family", nargs="+", help="only the shapes of these families")
    parser.add_argument("--baseline", choices=BASELINES, default="torch", help="the other side (default: %(default)s)")
    parser.add_argument("--algorithm", default="auto", help="convbwd's algorithm (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float64", "float32", "float16", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1, help="threads of either side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each shape and pass (default: %(default)s)")
    parser.add_argument("--passes", action="store_true", help="time dx alone and dw alone as well")
    parser.add_argument("--verify", action="store_true", help="check every result against PyTorch in float64 first")
    parser.add_argument("--json", type=Path, help="write the rows and the facts of the machine here")
    parser.add_argument("--plain-malloc", action="store_true", help="leave the C library's malloc as it is")
    parser.add_argument("--list", action="store_true", help="print the problem strings and stop")
    return parser.parse_args()


def main() -> None:
    options = parse()
    cases = load_cases(options.shapes, options.family)
    if not cases:
        sys.exit(f"no shapes of {options.family} in {options.shapes}")
    if options.list:
        print("\n".join(case.problem for case in cases))
        return
    if not options.plain_malloc and os.environ.get("MALLOC_MMAP_MAX_") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **HOT_MALLOC})

    facts = machine()
    convbwd.set_num_threads(options.threads)
    if options.baseline.startswith("torch") or options.verify:
        try:
            import torch
        except ModuleNotFoundError:
            sys.exit("PyTorch is not installed: pip install torch==2.13.0, or choose --baseline blas without --verify")
        torch.set_num_threads(options.threads)
        facts["torch"] = torch.__version__
    if options.dtype == "bfloat16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(options.dtype)

    for name, value in facts.items():
        print(f"{name}: {value}")
    print(f"{options.dtype}, threads: {options.threads}, algorithm: {options.algorithm}, baseline: {options.baseline}")
    print("malloc: plain" if options.plain_malloc else "malloc: freed memory is kept (--plain-malloc for the default)")
    print("ratio: baseline's best time / convbwd's; median and quartiles of the ratios of neighbouring turns\n")
    print(f"{'pass':9} {'GF/s':>7} {'base':>7} {'ms':>9} {'base':>9} {'ratio':>6} {'median':>6} {'quartiles':>13}")

    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    family = None
    for case in sorted(cases, key=lambda case: case.family):
        if case.family != family:
            family = case.family
            print(family)
        arrays = case.arrays(dtype)
        ours, theirs = convbwd_runner(case, arrays, options.algorithm), BASELINES[options.baseline](case, arrays)
        if options.verify:
            failures += verify(case, arrays, ours(MASKS["dx+dw+db"]))
        for name in MASKS if options.passes else ["dx+dw+db"]:
            mask = MASKS[name]
            runs = [partial(ours, mask), partial(theirs, mask)]
            turns = interleave(runs, options.seconds, pause=0.01 if options.threads > 1 else 0)
            best, base = turns.min(axis=1)
            quartiles = [float(q) for q in np.quantile(turns[1] / turns[0], (0.25, 0.5, 0.75))]
            gflop = case.flops * (mask[0] + mask[1]) / 1e9
            row = {
                "family": case.family, "source": case.source, "name": case.name, "problem": case.problem, "pass": name,
                "seconds": best, "baseline_seconds": base, "gflops": gflop / best, "baseline_gflops": gflop / base,
                "ratio": base / best, "ratio_median": quartiles[1], "ratio_quartiles": quartiles[::2],
                "turns": turns.shape[1],
            }  # fmt: skip
            rows.append(row)
            print(
                f"{name:9} {gflop / best:7.1f} {gflop / base:7.1f} {best * 1e3:9.3f} {base * 1e3:9.3f}"
                f" {base / best:6.2f} {quartiles[1]:6.2f} {quartiles[0]:6.2f}-{quartiles[2]:<6.2f}  {case.problem}",
                flush=True,
            )

    means: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["pass"] for row in rows):
        of_pass = [row for row in rows if row["pass"] == name]
        ratios: dict[str, list[float]] = {}
        for row in of_pass:
            ratios.setdefault(row["family"], []).append(row["ratio"])
        ratios["all"] = [row["ratio"] for row in of_pass]
        means[name] = {f: geometric_mean(values) for f, values in ratios.items()}
        print(f"\n{name}: geometric mean of the ratios")
        for f, mean in means[name].items():
            print(f"  {f:28} {mean:6.2f}  ({len(ratios[f])} shapes)")
        print(f"{name}: the lowest ratios")
        for row in sorted(of_pass, key=lambda row: row["ratio"])[:10]:
            print(f"  {row['ratio']:6.2f}  {row['family']:28} {row['problem']}")
    if options.json:
        arguments = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        result = {"machine": facts, "options": arguments, "geometric_means": means, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if failures:
        sys.exit("\n".join(failures))
    if options.verify:
        print(f"\nverified: {len(cases)} shapes within the bound")


if __name__ == "__main__":
    main()
