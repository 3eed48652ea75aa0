"""Draw how well orders mix: ``python benchmarks/plot_mixing.py docs/images/mixing.png``; see `bench_mixing`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import numpy as np
from bench_mixing import BUFFER, POOLED, RECORDED, SHARES, Mixing, measure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from timing import Settings

BLUE, RED, ORANGE, INK = "#2f6f9f", "#c2543d", "#dfa08f", "#22282e"
STYLES = {RECORDED: (ORANGE, "^"), BUFFER: (RED, "s"), POOLED: (BLUE, "o")}


def main(arguments: list[str] | None = None) -> int:
    """Draw what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/plot_mixing.py", description=__doc__)
    parser.add_argument("plot", type=Path, help="the file to make: .svg, .png or .pdf")
    parser.add_argument("--quick", action="store_true", help="toy sizes: shows that it works")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="stepwell-mixing-") as data:
        draw(measure(Settings(Path(data), is_quick=options.quick))).savefig(options.plot, bbox_inches="tight", dpi=160)
    return 0


def draw(found: Mapping[tuple[float, str], Mixing]) -> Figure:
    """Return the figure: distance of batch means, and distinct episodes, over the size of the pool."""
    mpl.rcParams.update({"font.family": "sans-serif", "font.size": 10})
    figure = Figure(figsize=(9.5, 4.0))
    left, right = figure.subplots(1, 2)
    for name, style in STYLES.items():
        _draw_line(left, name, [found[share, name].distance for share in SHARES], *style)
        _draw_line(right, name, [found[share, name].num_episodes for share in SHARES], *style)
    most = float(np.median(found[1.0, BUFFER].num_episodes))
    _frame(left, "distance of batch means to the data set", 1.0)
    left.set_yscale("log")
    left.set_yticks([1, 2, 4, 8], ["1x", "2x", "4x", "8x"])
    left.minorticks_off()
    _frame(right, "distinct episodes in a batch of 64", most)
    right.set_ylim(0, 68)
    figure.legend(*left.get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(w_pad=3, rect=(0, 0.07, 1, 1))
    return figure


def _draw_line(axes: Axes, name: str, values: list[np.ndarray], colour: str, marker: str) -> None:
    medians = [float(np.median(value)) for value in values]
    axes.plot(range(len(SHARES)), medians, marker=marker, color=colour, label=name, linewidth=2, markersize=6)


def _frame(axes: Axes, title: str, random: float) -> None:
    axes.axhline(random, color=INK, linewidth=1.2, linestyle=":", label="random", zorder=1)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xticks(range(len(SHARES)), [f"{share:.0%}" for share in SHARES])
    axes.set_xlabel("steps that the pool, or the buffer, has room for")
    axes.grid(axis="y", color="#e3e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
