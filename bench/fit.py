"""Say how well the planner's estimates fit, from what `candidates` printed, and what its choices cost.

build/bench/candidates $(python bench/compare.py --list | grep -v transposed) > candidates.jsonl
python bench/fit.py candidates.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from convbwd._bench import command


def report(lines: Path, worst: float) -> None:
    """Print the fit of each algorithm, the choices that cost most, and the cost of all."""
    choices: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for line in lines.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not row.keys() >= {"problem", "unknown", "name", "measured", "expected"}:
            raise ValueError(f"{lines} must hold what `candidates` printed, got {line}")
        choices[row["problem"], row["unknown"]].append(row)
        ratios[row["name"]].append(row["measured"] / row["expected"])
    if not choices:
        raise ValueError(f"{lines} must hold what `candidates` printed, got nothing")
    print("measured / expected: quartiles")
    for name, values in sorted(ratios.items()):
        quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        print(f"  {name:24} {len(values):4}  " + "  ".join(f"{q:.2f}" for q in quartiles))
    costs = []
    for (problem, unknown), candidates in choices.items():  # the first is the one that is taken
        costs.append(candidates[0]["measured"] / min(c["measured"] for c in candidates))
        if costs[-1] > worst:
            listed = ", ".join(f"{c['name']} {c['measured'] / 1e3:.0f} us" for c in candidates)
            print(f"{costs[-1]:.2f}  {unknown} of {problem}: {listed}")
    print(f"the choices took {math.exp(statistics.fmean(map(math.log, costs))):.3f} times as long as the best")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="what `candidates` printed")
    text = "list choices that took so many times as long as the best (default: %(default)s)"
    parser.add_argument("--worst", type=float, default=1.1, help=text)
    options = parser.parse_args()
    with command.refusals(parser):
        report(options.lines, options.worst)


if __name__ == "__main__":
    main()
