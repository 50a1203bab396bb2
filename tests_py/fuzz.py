"""Fuzzer: random valid problems against the float64 reference.

    python tests_py/fuzz.py --count 20000 --seed 0

Stops at the first failure with exit code 1 and prints the problem and how to run it alone.
"""

import argparse
import collections
import dataclasses
import faulthandler
import sys
import time

import convbwd
from cases import ALGORITHMS, RandomSource, check, draw_case


def run_one(seed: int, index: int, algorithms: tuple[str, ...] = ALGORITHMS) -> str:
    """Draw and check problem `index` of the stream `seed`; return the algorithm it ran with."""
    source = RandomSource(seed, index)
    # Every 64th problem is large enough for several blocks in every loop; every 8th has NaN and Inf in it.
    case = draw_case(source, 4 if index % 64 == 63 else 1)
    if index % 8 == 0:
        case = dataclasses.replace(case, data="nonfinite")
    algorithm = source.choice(algorithms)
    try:
        check(case, algorithm)
    except BaseException:
        print(f"\nfailed with algorithm={algorithm!r}: {case}")
        print(
            f"again: CONVBWD_ISA={convbwd.build_info()['isa']} python tests_py/fuzz.py --seed {seed} --first {index}"
            f" --count 1 --algorithm {' '.join(algorithms)}"
        )
        raise
    return algorithm


def main() -> None:
    """Run the fuzzer; an exception ends it with exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000, help="problems to run")
    parser.add_argument("--seed", type=int, default=0, help="names the stream of problems")
    parser.add_argument("--first", type=int, default=0, help="index of the first problem")
    parser.add_argument(
        "--algorithm", nargs="+", default=ALGORITHMS, choices=ALGORITHMS, help="algorithms to draw from"
    )
    options = parser.parse_args()
    faulthandler.enable()
    start = time.monotonic()
    ran: collections.Counter[str] = collections.Counter()
    for index in range(options.first, options.first + options.count):
        print(f"\r{index} ", end="", file=sys.stderr, flush=True)  # names the problem even if the process dies of it
        ran[run_one(options.seed, index, tuple(options.algorithm))] += 1
    isa, seconds = convbwd.build_info()["isa"], time.monotonic() - start
    print(f"{ran.total()} problems of seed {options.seed} passed on {isa} in {seconds:.0f} s: {dict(ran)}")


if __name__ == "__main__":
    main()
