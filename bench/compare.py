#!/usr/bin/env python3
"""Time convbwd against others: `python -m convbwd bench`, which also notes the commit. See bench/README.md."""

import argparse
from pathlib import Path

from convbwd._bench import command

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    command.add_bench(parser, repository=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    with command.refusals(parser):
        options.run(options)
