#!/usr/bin/env python3
"""Time convbwd against others: `python -m convbwd bench`, which also notes the commit. See bench/README.md."""

from pathlib import Path

from convbwd._bench.command import bench_main

if __name__ == "__main__":
    bench_main(prog="compare.py", repository=Path(__file__).resolve().parents[1])
