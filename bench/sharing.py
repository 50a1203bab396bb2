#!/usr/bin/env python3
"""Count for how many threads the plans of a family have work at a time; one CPU is enough.

Frequencies of transforms that threads share count as tasks: what they do in between may be for fewer.
"""

from __future__ import annotations

import argparse
import re
from statistics import harmonic_mean

import convbwd
from convbwd._bench import command
from convbwd._bench.problem import Case, load_cases
from convbwd._bench.report import Output
from convbwd._interop import numpy_dtype

TASKS = re.compile(r"grad_(?:input|weight): .*?(\d+) tasks? on (\d+) thread")


def busy(case: Case, threads: int, dtype: str) -> list[float]:
    """Return the threads that are busy on average in the passes for dx and dw, if all tasks take as long."""
    convbwd.set_num_threads(threads)
    text = convbwd.plan(*case.stand_ins(numpy_dtype(dtype)), output_mask=(True, True, False), **case.options).explain()
    counts = [(int(tasks), int(slots)) for tasks, slots in TASKS.findall(text)]
    return [tasks / -(-tasks // slots) for tasks, slots in counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    command.add_shapes(parser)
    parser.add_argument("--least", type=float, default=0.05, help="GMAC of a shape that counts (default: %(default)s)")
    parser.add_argument(
        "--threads", type=command.positive, nargs="+", default=[2, 4, 8, 16], help="(default: %(default)s)"
    )
    parser.add_argument("--dtype", default="float32", choices=command.DTYPES, help="(default: %(default)s)")
    options = parser.parse_args()
    with command.refusals(parser):
        cases = [case for case in load_cases(options.shapes, options.family) if case.products >= options.least * 1e9]
        if not cases:
            raise ValueError(f"no shape has {options.least} GMAC")
        counts = {case: [busy(case, threads, options.dtype) for threads in options.threads] for case in cases}
    families = {case.family: [c for c in cases if c.family == case.family] for case in cases}
    rows = []
    for name, some in {**families, "all": cases}.items():
        at = [[one for case in some for one in counts[case][i]] for i in range(len(options.threads))]
        rows.append([name, str(len(some)), *(f"{harmonic_mean(passes):.1f}" for passes in at)])
    columns = ["family", "shapes", *(f"{threads} threads" for threads in options.threads)]
    Output().table(f"threads that have work, harmonic mean of the passes, {options.dtype}", columns, rows)


if __name__ == "__main__":
    main()
