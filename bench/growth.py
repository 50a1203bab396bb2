#!/usr/bin/env python3
"""Check that the rate of a family of shapes stays flat while the batch grows. See bench/README.md."""

from __future__ import annotations

import argparse
import sys
from functools import partial

import convbwd
from convbwd._bench import command, machine, sides
from convbwd._bench.problem import Case, load_cases
from convbwd._bench.report import Output
from convbwd._bench.timing import PASSES, PAUSE, geometric_mean, interleave
from convbwd._interop import numpy_dtype


def chosen(cases: list[Case], everything: bool) -> dict[str, list[Case]]:
    """Return the cases of each family as single images: all, or the one of median work."""
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case.family, []).append(case.with_batch(1))
    if everything:
        return families
    return {name: [sorted(some, key=Case.flops)[len(some) // 2]] for name, some in families.items()}


def rates(case: Case, batches: list[int], options: argparse.Namespace) -> list[float]:
    """Return the operations a second at each batch size, measured in turns."""
    side = sides.ours(command.keywords(options))
    dtype = numpy_dtype(options.dtype)
    grown = [case.with_batch(n) for n in batches]
    turns = [partial(side(c, c.arrays(dtype)).turn, PASSES["dx+dw+db"]) for c in grown]
    best = interleave(turns, options.seconds, PAUSE if options.threads > 1 else 0).min(axis=1)
    return [c.flops() / float(seconds) for c, seconds in zip(grown, best, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    command.add_shapes(parser)
    parser.add_argument("--all", action="store_true", help="all shapes of a family, not only the one of median work")
    parser.add_argument(
        "--most", type=command.positive, default=32, help="largest batch, reached by doubling (default: %(default)s)"
    )
    parser.add_argument("--tolerance", type=float, default=0.15, help="of the highest rate (default: %(default)s)")
    parser.add_argument("--seconds", type=command.seconds, default=3.0, help="for each shape (default: %(default)s)")
    command.add_common(parser)
    options = parser.parse_args()
    table, uneven = [], []
    batches = [1 << i for i in range(options.most.bit_length()) if 1 << i <= options.most]
    with command.refusals(parser):
        cases = load_cases(options.shapes, options.family)
        command.check_cases(cases, numpy_dtype(options.dtype), command.keywords(options))
        machine.in_environment(options.threads, not options.plain_malloc)
        convbwd.set_num_threads(options.threads)
        for name, some in chosen(cases, options.all).items():
            of_cases = [rates(case, batches, options) for case in some]
            means = [geometric_mean(at_batch) for at_batch in zip(*of_cases, strict=True)]
            flatness = min(means) / max(means)
            table.append([name, *(f"{mean / 1e9:.1f}" for mean in means), f"{flatness:.0%}"])
            if flatness < 1 - options.tolerance:
                uneven.append(name)
    columns = ["family", *(f"n={n}" for n in batches), "lowest/highest"]
    Output().table(f"GF/s of dx, dw and db together, {options.dtype}, threads: {options.threads}", columns, table)
    if uneven:
        sys.exit(f"not flat within {options.tolerance:.0%}: {', '.join(uneven)}")


if __name__ == "__main__":
    main()
