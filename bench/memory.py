#!/usr/bin/env python3
"""Check the scratch memory of every shape: what the plan states, and what the process really takes."""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np

import convbwd
from convbwd import _core
from convbwd._bench import command
from convbwd._bench.problem import Case, load_cases

# What every problem may take, however small its im2col.
LEAST = {"float64": 64 << 10, "float32": 64 << 10, "float16": 256 << 10}
# Pages that a call touches besides its scratch: code, thread stacks, the allocator's own.
SLACK = 1 << 20


def peak() -> int:
    """Peak resident bytes of this process."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


def measure(case: Case, dtype: str, algorithm: str, threads: int) -> tuple[int, int]:
    """Stated workspace, and growth of the peak over one call beyond its results. Needs a fresh process."""
    convbwd.set_num_threads(threads)
    arrays = case.arrays(dtype)
    small = np.ones((1, 1, 4, 4), dtype)
    convbwd.convolution_backward(small, small, np.ones((1, 1, 1, 1), dtype), algorithm=algorithm)  # start the threads
    stated = _core.Plan(*arrays, algorithm=algorithm, **case.options).workspace_bytes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    results = convbwd.convolution_backward(*arrays, algorithm=algorithm, **case.options)
    taken = peak() - before - sum(result.nbytes for result in results if result is not None)
    return stated, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    command.add_shapes(parser)
    parser.add_argument("--dtype", default="float32", choices=("float64", "float32", "float16"))
    parser.add_argument("--algorithm", default="auto", help="convbwd's algorithm (default: %(default)s)")
    parser.add_argument("--threads", type=command.positive, default=1)
    options = parser.parse_args()

    # Huge pages would count whole where only a part is used; children inherit this.
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
    with command.refusals(parser):
        cases = load_cases(options.shapes, options.family)
        command.check_cases(cases, np.dtype(options.dtype), {"algorithm": options.algorithm})
        call = partial(measure, dtype=options.dtype, algorithm=options.algorithm, threads=options.threads)
        failures = 0
        print(f"{'limit kB':>12} {'stated kB':>12} {'taken kB':>12}")
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            for case, (stated, taken) in zip(cases, pool.imap(call, cases), strict=True):
                limit = max(case.im2col_bytes // 4, LEAST[options.dtype])
                faults = []
                if stated > limit:
                    faults.append("more than allowed")
                if taken > stated + SLACK:
                    faults.append("more than stated")
                failures += bool(faults)
                numbers = " ".join(f"{value / 1024:12.1f}" for value in (limit, stated, taken))
                print(f"{numbers}  {case.family:28} {case.problem}  {', '.join(faults)}".rstrip(), flush=True)
    print(f"{len(cases) - failures} of {len(cases)} shapes keep to what they may take")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
