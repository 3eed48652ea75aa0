"""What notebooks show of an object, as HTML: tables, lines, bars, film strips.

::

    block(title, *parts)                one <div>: what a ``_repr_html_`` returns
      table(rows, head)                 cells are texts, or Markup: what the functions below return
        lines(values), bars(counts)     a few numbers as an SVG of one line's height
      strips(rows)                      thumbnails as PNG in data URIs; what could not be read says why

Every text is escaped, since it comes from files of others; only `Markup` is not. There is no script, and nothing is
fetched. A part stops at its share of MAX_BYTES and says what it left out. Colours are those of the page, so that both
light and dark notebooks can be read.
"""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.display.pixels import displayable, to_png, within

__all__ = [
    "COLOURS",
    "Markup",
    "Strip",
    "bars",
    "block",
    "line",
    "lines",
    "never_raising",
    "strips",
    "table",
]

MAX_BYTES = 100_000
# the shares of a table, of which a block has two at most, and of all its film strips
TABLE_BYTES, STRIPS_BYTES, TEXT_CHARACTERS = 22_000, 48_000, 160
# seconds after which no further thumbnail is begun
STRIP_SECONDS = 2.0
MAX_STRIPS = 4
# longer sides of thumbnails in pixels: the largest at which all of them fit
SIDES = (96, 72, 54, 40, 28, 20, 14, 10)
# readable on white as on black
COLOURS = ("#3b82f6", "#f97316", "#22a35a", "#d946ef", "#e0a400", "#14a3b8")
LINES_WIDTH, LINES_HEIGHT, LINES_POINTS = 128, 24, 64
FAINT = "opacity:.65"
CELL = "padding:2px 8px;text-align:left"
RULE = "border-bottom:1px solid rgba(128,128,128,.25)"

Show = TypeVar("Show", bound=Callable[[Any], str])


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


class Strip:
    """Frames side by side, read when they are shown.

    Args:
        label: of the strip.
        frames: a function that reads a frame [H, W], or [H, W, C], and the caption beneath it, of each.
    """

    def __init__(self, label: str, frames: Sequence[tuple[Callable[[], Any], str]]) -> None:
        self.label, self.frames = label, frames


def block(title: str, *parts: str) -> str:
    """Return a title and parts below it as one element."""
    whole = "".join(f"<div style='margin:4px 0'>{_escaped(part)}</div>" for part in parts if part)
    return f"<div style='max-width:100%;overflow-x:auto'><code>{_escaped(title, 400)}</code>{whole}</div>"


def line(*parts: str) -> Markup:
    """Return parts beside each other."""
    return Markup(" ".join(_escaped(part) for part in parts))


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), noun: str = "row") -> Markup:
    """Return rows of cells as a table; what goes beyond its share of bytes is left out, and counted below."""
    cells = "".join(f"<th style='{CELL}'>{_escaped(cell)}</th>" for cell in head)
    top = f"<thead><tr style='{RULE}'>{cells}</tr></thead>" if cells else ""
    body, num_bytes, num_left = [], 0, 0
    for row in rows:
        cells = "".join(f"<td style='{CELL}'>{_escaped(cell)}</td>" for cell in row)
        num_bytes += len(cells.encode())
        if num_bytes > TABLE_BYTES:
            num_left += 1
        else:
            body.append(f"<tr style='{RULE}'>{cells}</tr>")
    more = f"<div style='{FAINT}'>and {num_left:,} more {noun}{'' if num_left == 1 else 's'}</div>" if num_left else ""
    opening = "<table style='border-collapse:collapse;margin:0;background:transparent;color:inherit'>"
    return Markup(f"{opening}{top}<tbody>{''.join(body)}</tbody></table>{more}")


def lines(values: npt.NDArray[Any]) -> Markup:
    """Return numbers [n] or [n, k] as k lines over n, at most 6: of more their least, mean and greatest."""
    points = _reduced(values)
    there = points[np.isfinite(points)]
    if not len(there):
        return Markup("")
    low, high = float(there.min()), float(there.max())
    # halves: the difference of two floats may overflow
    heights = (points / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    ys = LINES_HEIGHT - 2 - (heights if high > low else heights + 0.5) * (LINES_HEIGHT - 4)
    xs = np.linspace(1, LINES_WIDTH - 1, len(points)) if len(points) > 1 else np.array([LINES_WIDTH / 2])
    drawn = "".join(_polyline(xs, column, colour) for column, colour in zip(ys.T, COLOURS, strict=False))
    return _svg(drawn, f"{low:.4g} to {high:.4g}")


def _reduced(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values [n, ...] as at most 64 rows and 6 columns, NaN where they are not finite."""
    if not values.size:
        return np.empty((0, 1))
    # rows first: the whole of a long episode need not be copied
    rows = np.unique(np.linspace(0, len(values) - 1, LINES_POINTS).astype(int))
    chosen = np.asarray(values[rows], np.float64).reshape(len(rows), -1)
    is_finite: npt.NDArray[np.bool_] = np.isfinite(chosen)
    if chosen.shape[1] <= len(COLOURS):
        return np.where(is_finite, chosen, np.nan)
    num = np.maximum(is_finite.sum(axis=1), 1)
    # divided first: a sum may overflow
    mean = np.where(is_finite, chosen / num[:, None], 0).sum(axis=1)
    low, high = np.where(is_finite, chosen, np.inf).min(axis=1), np.where(is_finite, chosen, -np.inf).max(axis=1)
    found = np.stack([low, mean, high], axis=1)
    found[~is_finite.any(axis=1)] = np.nan
    return found


def bars(counts: Sequence[float] | npt.NDArray[Any], caption: str = "") -> Markup:
    """Return counts as bars."""
    heights = np.asarray(counts, np.float64)
    if not len(heights) or heights.max() <= 0:
        return Markup("")
    width = LINES_WIDTH / len(heights)
    tall = heights / heights.max() * (LINES_HEIGHT - 2)
    drawn = "".join(
        f"<rect x='{i * width:.1f}' y='{LINES_HEIGHT - high:.1f}' width='{width * 0.85:.1f}' height='{high:.1f}'/>"
        for i, high in enumerate(np.where(heights > 0, np.maximum(tall, 1), 0).tolist())
        if high
    )
    return _svg(f"<g fill='{COLOURS[0]}'>{drawn}</g>", caption)


def strips(rows: Sequence[Strip]) -> Markup:
    """Return film strips one below the other, at most 4; a frame that cannot be read is a box that says why.

    Thumbnails are as large as their share of bytes lets them be, 96 pixels at most. After 2 seconds no further frame is
    read.
    """
    deadline = time.monotonic() + STRIP_SECONDS
    shown = rows[:MAX_STRIPS]
    found = [[_attempt(read, deadline) for read, _ in strip.frames] for strip in shown]
    for side in SIDES:
        drawn = [[_thumbnail(frame, side) for frame in frames] for frames in found]
        if sum(len(cell) for cells in drawn for cell in cells) <= STRIPS_BYTES:
            break
    more = f"<div style='{FAINT}'>and {len(rows) - len(shown):,} more</div>" if len(rows) > len(shown) else ""
    return Markup("".join(_strip(strip, cells) for strip, cells in zip(shown, drawn, strict=True)) + more)


def never_raising(show: Show) -> Show:
    """Return a ``_repr_html_`` that says what went wrong, where something does: a notebook goes on."""

    @wraps(show)
    def shown(this: Any) -> str:
        try:
            return show(this)
        except Exception as error:
            with suppress(Exception):
                return block(repr(this), f"Its content cannot be shown. {_said(error)}")
            return block(f"<{type(this).__name__}>", f"It cannot be shown. {_said(error)}")

    return shown  # type: ignore[return-value]


def _attempt(read: Callable[[], Any], deadline: float) -> npt.NDArray[np.uint8] | str:
    if time.monotonic() > deadline:
        return f"not read: those before it took {STRIP_SECONDS:g} s"
    try:
        return within(displayable(np.asarray(read())), SIDES[0])
    except Exception as error:
        return _said(error)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _thumbnail(frame: npt.NDArray[np.uint8] | str, side: int) -> str:
    if isinstance(frame, str):
        frame_style = "width:120px;min-height:40px;font-size:9px;border:1px dashed #e5484d;padding:2px;overflow:hidden"
        return f"<div style='{frame_style}'>{_escaped(frame)}</div>"
    data = base64.b64encode(to_png(within(frame, side))).decode()
    height, width = frame.shape[:2]
    shape = "width:96px" if width >= height else "height:96px"
    return f"<img style='{shape};max-width:none;margin:0' src='data:image/png;base64,{data}'>"


def _strip(strip: Strip, cells: Sequence[str]) -> str:
    captions = (caption for _, caption in strip.frames)
    frames = "".join(
        f"<div>{cell}<div style='font-size:10px;{FAINT}'>{_escaped(caption)}</div></div>"
        for cell, caption in zip(cells, captions, strict=True)
    )
    label = f"<div style='{FAINT}'>{_escaped(strip.label)}</div>"
    return f"{label}<div style='display:flex;flex-wrap:wrap;gap:4px'>{frames}</div>"


def _polyline(xs: npt.NDArray[np.float64], ys: npt.NDArray[np.float64], colour: str) -> str:
    there = np.isfinite(ys)
    if np.count_nonzero(there) == 1:
        (x,), (y,) = xs[there], ys[there]
        return f"<circle cx='{x:.0f}' cy='{y:.0f}' r='1.5' fill='{colour}'/>"
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(xs[there].tolist(), ys[there].tolist(), strict=True))
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.2'/>"


def _svg(drawn: str, caption: str) -> Markup:
    size = f"width='{LINES_WIDTH}' height='{LINES_HEIGHT}' style='vertical-align:middle'"
    return Markup(f"<svg {size}>{drawn}</svg> <span style='{FAINT}'>{_escaped(caption)}</span>")


def _escaped(text: str, most: int = TEXT_CHARACTERS) -> str:
    if isinstance(text, Markup):
        return text
    text = str(text)
    return html.escape(text if len(text) <= most else f"{text[: most - 1]}…")
