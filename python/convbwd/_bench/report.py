"""Rows of results: made, printed, summarised, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from convbwd._bench.machine import Roofline
from convbwd._bench.problem import Array, Case
from convbwd._bench.timing import PASSES, geometric_mean

Row: TypeAlias = dict[str, Any]

TABLE_WIDTH = 140
LOWEST = 10  # ratios that a summary lists
HEADER = (
    f"{'pass':9} {'GF/s':>7} {'base':>7} {'ms':>9} {'base':>9} {'ratio':>6} {'median':>6} {'quartiles':>13} "
    f"{'limit':>6}"
)


def make_row(case: Case, name: str, baseline: str, itemsize: int, turns: Array, roofline: Roofline) -> Row:
    """Sum up a pass of a case: turns holds the seconds of ours, of the baseline and of `roofline.peak_by`."""
    best, base, probe = (float(t) for t in turns.min(axis=1))
    here = roofline.at(probe)
    low, median, high = (float(q) for q in np.quantile(turns[1] / turns[0], (0.25, 0.5, 0.75)))
    flops, nbytes = case.flops(PASSES[name]), case.nbytes(itemsize, PASSES[name])
    return {
        "family": case.family,
        "source": case.source,
        "name": case.name,
        "problem": case.problem,
        "pass": name,
        "baseline": baseline,
        "seconds": best,
        "baseline_seconds": base,
        "gflops": flops / best / 1e9,
        "baseline_gflops": flops / base / 1e9,
        "ratio": base / best,
        "ratio_median": median,
        "ratio_quartiles": [low, high],
        "turns": turns.shape[1],
        "intensity": flops / nbytes,
        "peak_gflops": here.peak / 1e9,
        "limit": here.seconds(flops, nbytes) / best,
    }


def line(row: Row) -> str:
    """Format a row as `HEADER` says."""
    low, high = row["ratio_quartiles"]
    return (
        f"{row['pass']:9} {row['gflops']:7.1f} {row['baseline_gflops']:7.1f} {row['seconds'] * 1e3:9.3f} "
        f"{row['baseline_seconds'] * 1e3:9.3f} {row['ratio']:6.2f} {row['ratio_median']:6.2f} {low:6.2f}-{high:<6.2f} "
        f"{row['limit']:6.0%}  {row['problem']}"
    )


def by(rows: Iterable[Row], *fields: str) -> dict[tuple[str, ...], list[Row]]:
    """Group rows by the values of fields, in the order in which these come."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    return groups


def summaries(rows: list[Row]) -> list[dict[str, Any]]:
    """Return, for each baseline and pass, the means of each family and of all, and the rows of the lowest ratios."""
    result = []
    for (baseline, name), group in by(rows, "baseline", "pass").items():
        families = {family: members for (family,), members in by(group, "family").items()} | {"all": group}
        means = [
            {
                "family": family,
                "shapes": len(members),
                "ratio": geometric_mean(row["ratio"] for row in members),
                "lowest": min(row["ratio"] for row in members),
                "limit": geometric_mean(row["limit"] for row in members),
            }
            for family, members in families.items()
        ]
        lowest = sorted(group, key=lambda row: float(row["ratio"]))[:LOWEST]
        result.append({"baseline": baseline, "pass": name, "means": means, "lowest": lowest})
    return result


class Output:
    """Prints plainly, or through rich where that is installed."""

    def __init__(self) -> None:
        try:
            from rich.console import Console
        except ModuleNotFoundError:
            self._console = None
        else:
            # Wider than a narrow terminal rather than cut.
            self._console = Console(highlight=False, soft_wrap=True, width=max(Console().width, TABLE_WIDTH))

    def print(self, text: str = "") -> None:
        """Print a line."""
        if self._console is None:
            print(text, flush=True)
        else:
            self._console.print(text, markup=False)

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """Print a table: the first column is text, the others are numbers."""
        if self._console is None:
            widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
            self.print(f"\n{title}")
            for row in (columns, *rows):
                cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
                self.print("  " + "  ".join(cells).rstrip())
            return
        from rich.box import SIMPLE
        from rich.table import Table

        table = Table(title=title, title_justify="left", box=SIMPLE)
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    @contextmanager
    def progress(self, total: int) -> Iterator[Any]:
        """Show a bar while something is under way; yields what advances it by one."""
        if self._console is None:
            yield lambda: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            task = progress.add_task("", total=total)
            yield lambda: progress.advance(task)

    def summary(self, rows: list[Row]) -> None:
        """Print the means of the families and the lowest ratios."""
        for part in summaries(rows):
            head = f"{part['pass']} against {part['baseline']}"
            means = [
                [m["family"], str(m["shapes"]), f"{m['ratio']:.2f}", f"{m['lowest']:.2f}", f"{m['limit']:.0%}"]
                for m in part["means"]
            ]
            self.table(f"{head}: geometric means", ["family", "shapes", "ratio", "lowest", "limit"], means)
            lowest = [[row["problem"], row["family"], f"{row['ratio']:.2f}"] for row in part["lowest"]]
            self.table(f"{head}: the lowest ratios", ["problem", "family", "ratio"], lowest)


def draw(rows: list[Row], bandwidth: float, title: str, path: Path) -> None:
    """
    Draw each shape into the roofline of the machine: its operations a second over its intensity.

    Parameters
    ----------
    rows : list of dict
        What `make_row` made; the first pass that multiplies is drawn, against every baseline.
    bandwidth : float
        Bytes a second; the peak is in the rows.
    title, path
        Text above the picture; file to write, whose suffix chooses the format.
    """
    from matplotlib.figure import Figure

    first = next((row for row in rows if row["intensity"] > 0), None)
    if first is None:
        raise ValueError("there is nothing to draw: the bias gradient alone has no products")
    of_pass = [row for row in rows if row["pass"] == first["pass"]]
    drawn = [row for row in of_pass if row["baseline"] == first["baseline"]]
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots()
    peaks = [row["peak_gflops"] for row in drawn]
    low, high, bandwidth = min(peaks), max(peaks), bandwidth / 1e9
    intensities = [row["intensity"] for row in drawn] + [high / bandwidth]
    reach = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)
    label = f"limits: {high:.0f} GF/s, {bandwidth:.1f} GB/s"
    axes.loglog(reach, np.minimum(high, reach * bandwidth), color="black", label=label)
    label = f"peak while this ran: from {low:.0f} GF/s"
    axes.fill_between(reach, np.minimum(low, reach * bandwidth), np.minimum(high, reach * bandwidth), color="0.9",
                      label=label)  # fmt: skip
    for i, ((baseline,), members) in enumerate(by(of_pass, "baseline").items()):
        axes.scatter(
            [row["intensity"] for row in members], [row["baseline_gflops"] for row in members],
            s=20, color="0.6", marker="x+1234"[i % 6], label=baseline,
        )  # fmt: skip
    markers = "osD^v<>P"
    for i, ((family,), members) in enumerate(by(drawn, "family").items()):
        axes.scatter(
            [row["intensity"] for row in members], [row["gflops"] for row in members],
            s=26, color=f"C{i % 10}", marker=markers[i // 10 % len(markers)], label=family,
        )  # fmt: skip
    axes.set(xlabel="operations a byte that must be moved", ylabel="10⁹ operations a second", title=title)
    axes.grid(visible=True, which="both", alpha=0.25)
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=150)
