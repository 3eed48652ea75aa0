"""Draw the ratios of a run as one SVG: ``python benchmarks/plot.py RESULTS.jsonl PLOT.svg``.

A bar a comparison, grouped by benchmark, on a logarithmic axis around 1, "as fast as the rival"; a tick where the
target is.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, RED, GREY, INK = "#2f6f9f", "#c2543d", "#9aa3ab", "#22282e"
ROW_INCHES = 0.29
MAX_FIGURE = 100


def main(arguments: list[str] | None = None) -> int:
    """Draw what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/plot.py", description=__doc__)
    parser.add_argument("results", type=Path, help="lines of JSON that run.py printed")
    parser.add_argument("plot", type=Path, help="the file to make: .svg, .png or .pdf")
    options = parser.parse_args(arguments)
    rows = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
    draw([row for row in rows if row["ratio"] is not None]).savefig(options.plot, bbox_inches="tight", dpi=160)
    return 0


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Return the figure of rows, in the order of their benchmarks."""
    # text stays text: it can be searched, and tested
    mpl.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    entries = _entries(rows)
    figure = Figure(figsize=(8.5, 0.9 + ROW_INCHES * len(entries)))
    axes = figure.subplots()
    for y, (title, row) in enumerate(entries):
        if row is None:
            axes.text(-0.62, y, title, transform=axes.get_yaxis_transform(), weight="bold", va="center", color=INK)
        else:
            _draw_row(axes, y, row)
    _frame(axes, len(entries), [row["ratio"] for row in rows])
    return figure


def _entries(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any] | None]]:
    """Return a title for each benchmark, followed by its rows."""
    found: list[tuple[str, dict[str, Any] | None]] = []
    for bench in dict.fromkeys(row["bench"] for row in rows):
        found.append((bench, None))
        found += [(bench, row) for row in rows if row["bench"] == bench]
    return found


def _draw_row(axes: Axes, y: int, row: dict[str, Any]) -> None:
    ratio, target, half = row["ratio"], row["target"], row["spread"] / 2
    colour = GREY if target is None else BLUE if ratio >= target else RED
    axes.barh(y, ratio - 1, left=1, height=0.62, color=colour)
    axes.plot([max(ratio - half, ratio / 2), ratio + half], [y, y], color=INK, linewidth=1)
    axes.plot(ratio, y, marker="o", markersize=5, color=colour, markeredgecolor="white", markeredgewidth=0.6)
    if target is not None:
        axes.plot([target, target], [y - 0.42, y + 0.42], color=INK, linewidth=1.8)
    label = f"{row['case']}  /  {row['rival']}"
    axes.text(-0.015, y, label, transform=axes.get_yaxis_transform(), ha="right", va="center", color=INK)
    figures = f"{_short(ratio)}x    {_short(row['ours'])} : {_short(row['theirs'])} {row['unit']}"
    axes.text(1.015, y, figures, transform=axes.get_yaxis_transform(), va="center", color=INK)


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _frame(axes: Axes, num_entries: int, ratios: list[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(0.25, *ratios) / 1.15, max(4.0, *ratios) * 1.3)
    axes.set_ylim(num_entries - 0.4, -0.8)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks([])
    ticks = [
        tick
        for tick in (0.1, 0.25, 0.5, 1, 2, 4, 10, 20, 50, MAX_FIGURE)
        if axes.get_xlim()[0] < tick < axes.get_xlim()[1]
    ]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color="#e3e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labeltop=True, labelbottom=False, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel(
        "speed: stepwell / rival (1x: equal). Black marks: targets. Blue: reached, red: missed, grey: no target set."
    )


if __name__ == "__main__":
    sys.exit(main())
