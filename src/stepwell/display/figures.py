"""Film strips, curves and boxes in figures of matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.display.html import COLOURS
from stepwell.display.pixels import displayable, within
from stepwell.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Film", "boxes", "curves", "film", "new_figure", "note"]

# of a frame in a film strip
FRAME_PIXELS = 256
MAX_LEGEND, MAX_CURVES = 12, 64
BACKENDS_WITHOUT_WINDOWS = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
GREY = "#888888"
DAMAGED = "#e5484d"


@dataclass(frozen=True)
class Film:
    """Frames of a film strip.

    Args:
        frames: of each its pixels [H, W] or [H, W, C] of any dtype, or the text of why it could not be read.
        captions: of each, beneath it.
        is_pad: of each whether it is padding: drawn pale, and marked.
    """

    frames: Sequence[npt.NDArray[Any] | str]
    captions: Sequence[str]
    is_pad: Sequence[bool] = ()


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches.

    Where windows can be opened, ``matplotlib.pyplot.show()`` shows it. Elsewhere pyplot does not hold it: a notebook
    shows it once, as what a cell returns, and a script that draws many does not keep them.

    Raises:
        MissingDependencyError: no matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib import pyplot
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of("matplotlib", "plot") from error
    backend = mpl.get_backend().lower()
    if backend in BACKENDS_WITHOUT_WINDOWS or "inline" in backend:
        return Figure(figsize=(width, height), layout="constrained")
    figure: Figure = pyplot.figure(figsize=(width, height), layout="constrained")
    return figure


def film(axes: Axes, shown: Film, title: str = "") -> None:
    """Draw frames side by side, all of one height."""
    left, centres = 0.0, []
    pads = [*shown.is_pad, *[False] * (len(shown.frames) - len(shown.is_pad))]
    for frame, is_pad in zip(shown.frames, pads, strict=True):
        width = 1.3 if isinstance(frame, str) else frame.shape[1] / max(frame.shape[0], 1)
        if isinstance(frame, str):
            axes.add_patch(_box(left, width, fill=False, edgecolor=DAMAGED, linestyle="--"))
            words = "\n".join(textwrap.wrap(frame, 22)[:8])
            axes.text(left + 0.05, 0.95, words, va="top", fontsize=5, color=DAMAGED, clip_on=True, parse_math=False)
        else:
            pixels = within(displayable(frame), FRAME_PIXELS)
            axes.imshow(pixels, extent=(left, left + width, 0, 1), alpha=0.3 if is_pad else 1.0)
        if is_pad:
            axes.add_patch(_box(left, width, fill=False, hatch="//", edgecolor=GREY, linewidth=0))
        centres.append(left + width / 2)
        left += width + 0.05
    axes.set_xlim(0, max(left - 0.05, 1))
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xticks(centres, shown.captions[: len(centres)], fontsize=7)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9, loc="left")


def curves(
    axes: Axes,
    x: npt.NDArray[Any],
    values: npt.NDArray[Any],
    names: Sequence[str] = (),
    is_pad: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Draw numbers [n, k] over x [n], a curve an element; of more than 64 elements a heat map.

    Args:
        axes: to draw on.
        x: places, ascending.
        values: bools are drawn as steps.
        names: of the elements, for the legend.
        is_pad: bool [n], which rows are padding: grey behind them.
    """
    numbers = np.asarray(values, np.float64).reshape(len(x), -1)
    if numbers.shape[1] > MAX_CURVES:
        ends = (float(x[0]), float(x[-1]) + 1e-9, 0, numbers.shape[1]) if len(x) else (0, 1, 0, 1)
        axes.imshow(numbers.T, aspect="auto", origin="lower", extent=ends, interpolation="nearest")
        axes.set_ylabel("element", fontsize=8)
    else:
        style = "steps-post" if values.dtype == np.bool_ else "default"
        marker = "." if len(x) <= 16 else ""
        labels = names or [str(place) for place in range(numbers.shape[1])]
        colours = COLOURS if numbers.shape[1] <= len(COLOURS) else ()
        for place, (column, label) in enumerate(zip(numbers.T, labels, strict=False)):
            colour = colours[place] if colours else None
            axes.plot(x, column, drawstyle=style, marker=marker, label=label, linewidth=1.2, color=colour)
        if names or 1 < numbers.shape[1] <= MAX_LEGEND:
            axes.legend(fontsize=7, loc="upper right", ncols=min(6, len(labels)), framealpha=0.6)
    if is_pad is not None and len(x):
        half = float(np.diff(x).min()) / 2 if len(x) > 1 else 0.5
        for place in x[is_pad]:
            axes.axvspan(place - half, place + half, color=GREY, alpha=0.25, linewidth=0)
    axes.margins(x=0.02)
    axes.tick_params(labelsize=7)


def boxes(axes: Axes, found: Sequence[dict[str, float]], labels: Sequence[str]) -> None:
    """Draw a box an element: quartiles, median and mean; whiskers at 1 and 99 %; dots at the least and the greatest.

    Args:
        axes: to draw on.
        found: of each element "q1", "med", "q3", "whislo", "whishi", "mean", and "fliers", as
            `matplotlib.axes.Axes.bxp` takes them.
        labels: of the elements.
    """
    dots = {"marker": ".", "markersize": 4, "markeredgecolor": GREY}
    mean = {"marker": "D", "markersize": 4, "markerfacecolor": COLOURS[1], "markeredgecolor": COLOURS[1]}
    axes.bxp(list(found), showmeans=True, flierprops=dots, meanprops=mean, medianprops={"color": COLOURS[0]})
    turned = sum(map(len, labels)) > 60
    axes.set_xticks(range(1, len(labels) + 1), labels, fontsize=7, rotation=90 if turned else 0)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", alpha=0.3)


def note(axes: Axes, text: str) -> None:
    """Write a text in the place of a plot."""
    axes.set_axis_off()
    axes.text(0.0, 0.5, text, fontsize=8, va="center", wrap=True, transform=axes.transAxes, parse_math=False)


def _box(left: float, width: float, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, 0), width, 1, **style)
