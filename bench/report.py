#!/usr/bin/env python3
"""Turn what compare.py wrote with --json into the text of record, bench/results/<date>-<cpu>-<isa>.md."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from convbwd._bench import command
from convbwd._bench.report import by, draw, summaries

RESULTS = Path(__file__).resolve().parent / "results"
SAME = ("cpu", "generation", "cpus", "flags", "caches", "system", "python", "packages", "convbwd", "commit", "malloc")

PARTS = {"title", "command", "machine", "options", "rows", "roofline"}

Run = dict[str, Any]


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Format a table; the first column is text, the others are numbers."""
    names = list(columns)
    lines = [names, [":--", *["--:"] * (len(names) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def facts(machine: dict[str, Any]) -> str:
    """Format the facts of the machine."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{k} {text(v)}" for k, v in value.items())
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    shown = machine | {name: f"{machine[name] / 2**30:.0f} GiB" for name in ("memory",)}
    shown["caches"] = {level: f"{size >> 10} KiB" for level, size in machine["caches"].items()}
    rows = ((name, text(value)) for name, value in shown.items() if value)
    return table(("fact", "value"), rows)


def overview(runs: list[Run]) -> str:
    """Format one line for each run, baseline and pass."""
    lines = []
    for run in runs:
        for part in summaries(run["rows"]):
            everything = part["means"][-1]
            numbers = (f"{everything[name]:.2f}" for name in ("ratio", "lowest"))
            lines.append((settings(run), part["baseline"], part["pass"], everything["shapes"], *numbers))
    return table(("convbwd", "against", "gradients", "shapes", "geometric mean", "lowest"), lines)


def settings(run: Run) -> str:
    """Say in a few words how convbwd was run."""
    options = run["options"]
    chosen = [f"{name} {options[name]}" for name in ("algorithm", "precision") if options[name]]
    threads = f"{options['threads']} thread{'s' * (options['threads'] > 1)}"
    return ", ".join([options["dtype"], threads, *chosen])


def families(run: Run) -> str:
    """Format the means of the families, a column for each baseline and pass."""
    parts = summaries(run["rows"])
    columns = ["family", *(f"{part['baseline']}, {part['pass']}" for part in parts), "limit"]
    means = [{mean["family"]: mean for mean in part["means"]} for part in parts]
    names = dict.fromkeys(family for part in means for family in part)
    lines = []
    for name in names:
        ratios = (f"{part[name]['ratio']:.2f}" if name in part else "" for part in means)
        lines.append((name, *ratios, f"{means[0][name]['limit']:.0%}" if name in means[0] else ""))
    return table(columns, lines)


def shapes(run: Run) -> str:
    """Format every row."""
    columns = ("problem", "gradients", "against", "ms", "GF/s", "limit", "ratio", "median", "quartiles")
    lines = []
    for row in run["rows"]:
        low, high = row["ratio_quartiles"]
        numbers = (f"{row['seconds'] * 1e3:.3f}", f"{row['gflops']:.1f}", f"{row['limit']:.0%}", f"{row['ratio']:.2f}")
        band = (f"{row['ratio_median']:.2f}", f"{low:.2f}-{high:.2f}")
        lines.append((f"{row['family']} `{row['problem']}`", row["pass"], row["baseline"], *numbers, *band))
    return table(columns, lines)


def chapter(run: Run, picture: str | None) -> str:
    """Format a run in full."""
    roofline = run["roofline"]
    peaks = [row["peak_gflops"] for row in run["rows"]]
    return "\n".join(
        [
            f"## {run['title']}\n",
            f"`{run['command']}`\n",
            f"Peak {min(peaks):.0f} to {max(peaks):.0f} GF/s while it ran, by {roofline['peak_by']}. "
            f"Bandwidth {roofline['bandwidth'] / 1e9:.1f} GB/s, by {roofline['bandwidth_by']}.\n",
            *([f"![Roofline]({picture})\n"] if picture else []),
            "Geometric means of the ratios (their time / ours) and of the reached part of the roofline limit:\n",
            families(run),
            "<details><summary>Every shape</summary>\n",
            shapes(run),
            "</details>\n",
        ]
    )


def write(paths: list[Path], folder: Path, pictures: bool) -> Path:
    """Write the text of these runs, all of one machine, into a folder; its path."""
    runs: list[Run] = [json.loads(path.read_text()) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if not isinstance(run, dict) or not run.keys() >= PARTS:
            raise ValueError(f"{path} must hold what compare.py --json wrote")
    machine = runs[0]["machine"]
    for path, run in zip(paths, runs, strict=True):
        for name in SAME:
            if run["machine"][name] != machine[name]:
                raise ValueError(f"{path}: {name} is {run['machine'][name]}, in {paths[0]} {machine[name]}")
    cpu = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", machine["cpu"].lower())).strip("-")
    stem = f"{machine['date']}-{cpu}-{machine['convbwd']['isa']}"
    folder.mkdir(parents=True, exist_ok=True)
    chapters = []
    for i, run in enumerate(runs, 1):
        picture = f"{stem}-{i}.png" if pictures else None
        if picture:
            draw(run["rows"], run["roofline"]["bandwidth"], run["title"], folder / picture)
        chapters.append(chapter(run, picture))
    counted = ", ".join(f"{family} {len(rows)}" for (family,), rows in by(runs[0]["rows"], "family").items())
    path = folder / f"{stem}.md"
    path.write_text(
        f"# {machine['cpu']}, {machine['date']}\n\nHow this is measured: [bench/README.md](../README.md). Written by "
        f"`bench/report.py`.\n\n{facts(machine)}\n{overview(runs)}\nRows of the first run: {counted}.\n\n"
        + "\n".join(chapters)
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="files that compare.py --json wrote, all of one machine")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where to write (default: %(default)s)")
    parser.add_argument("--pictures", action="store_true", help="draw the roofline of each run beside the text")
    options = parser.parse_args()
    with command.refusals(parser):
        print(write(options.runs, options.folder, options.pictures))


if __name__ == "__main__":
    main()
