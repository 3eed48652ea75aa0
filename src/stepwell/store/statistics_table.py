"""The printed forms of statistics: numbers in columns, the same as HTML and as a plot.

::

               count    mean     std     min     q01    q50    q99    max
    state.x      551   0.503   0.287  0.0012  0.0154  0.498  0.986  0.999
    state.y      551  -0.012    1.01   -3.12   -2.31  -0.02   2.28   2.95
    image.0  115,200     127    73.9       0       2    127    252    255  sampled
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepwell.display.html import Markup, bars, block, never_raising, table
from stepwell.errors import FeatureNotFoundError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.store.sketch import Sketch
    from stepwell.store.statistics import FeatureStatistics

__all__ = ["StatisticsTable", "statistics_text"]

HEAD = ("count", "mean", "std", "min", "q01", "q50", "q99", "max")
# elements of a feature that are printed, and that are plotted
MAX_PRINTED, MAX_BOXES = 16, 32
MAX_PLOTS = 24
NUM_BINS = 24
WHISKERS = (0.01, 0.25, 0.5, 0.75, 0.99)


class StatisticsTable(dict[str, "FeatureStatistics"]):
    """The result of `Store.statistics` and `View.statistics`: feature name to its statistics; ``print`` shows numbers.

    Args:
        found: of each feature.
        names: of each feature the names of its elements along the last axis, where the schema has any.
    """

    def __init__(
        self,
        found: Mapping[str, FeatureStatistics] | Iterable[tuple[str, FeatureStatistics]] = (),
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(found)
        self.names = dict(names or {})

    def plot(self, names: Iterable[str] | None = None) -> Figure:
        """Draw it with matplotlib: for each feature a box an element, of at most 32.

        A box goes from the first quartile to the third, its whiskers from 1 % to 99 %, the dots are the least and the
        greatest value, the diamond is the mean.

        Args:
            names: of the features; default all, the first 24.

        Returns:
            ``matplotlib.figure.Figure``: a notebook shows it, ``savefig`` writes it, ``matplotlib.pyplot.show`` opens a
            window with it, where there are windows.

        Raises:
            FeatureNotFoundError: no such feature.
            MissingDependencyError: no matplotlib.
        """
        from stepwell.display.figures import boxes, new_figure, note

        chosen = list(self) if names is None else list(names)
        for name in chosen:
            if name not in self:
                raise FeatureNotFoundError(f"no statistics of a feature {name!r}. There are: {', '.join(self)}.")
        chosen, left = chosen[:MAX_PLOTS], chosen[MAX_PLOTS:]
        figure = new_figure(10.0, 2.2 * max(len(chosen), 1))
        if left:
            figure.suptitle(f"and {len(left)} more: name them", fontsize=10, x=0.01, ha="left")
        grid = figure.subplots(max(len(chosen), 1), 1, squeeze=False)[:, 0]
        if not chosen:
            note(grid[0], "no feature of numbers or images")
        for axes, name in zip(grid, chosen, strict=False):
            elements = [each for each in _elements(self[name], self.names.get(name, ())) if each.num][:MAX_BOXES]
            if elements:
                boxes(axes, [_box(each) for each in elements], [each.label for each in elements])
            else:
                note(axes, "no finite value")
            rest = "" if self[name].count.size <= MAX_BOXES else f"   the first {MAX_BOXES} elements"
            sampled = "   of sampled steps" if self[name].is_sampled else ""
            axes.set_title(f"{name}{rest}{sampled}", fontsize=9, loc="left", parse_math=False)
        return figure

    def __str__(self) -> str:
        rows = [row for name in self for row in _rows(name, self[name], self.names.get(name, ()))]
        return _in_columns(rows) if rows else "no statistics"

    __repr__ = __str__

    @never_raising
    def _repr_html_(self) -> str:
        rows: list[Sequence[str]] = []
        for name, found in self.items():
            names = self.names.get(name, ())
            for row, each in zip(_rows(name, found, names), _elements(found, names), strict=False):
                rows.append((*row[:-1], Markup(f"{_spread(each.sketch)} {row[-1]}")))
        return block(f"<Statistics of {len(self)} features>", table(rows, ("", *HEAD, ""), "element"))

    def __reduce__(self) -> tuple[Any, ...]:
        return StatisticsTable, (dict(self), self.names)


def statistics_text(found: FeatureStatistics) -> str:
    """Return the numbers of one feature in columns."""
    return _in_columns(_rows("", found, ()))


class Element(NamedTuple):
    """One element of a feature."""

    label: str  # its name, or its place
    num: int
    mean: float
    std: float
    min: float
    max: float
    sketch: Sketch


def _elements(found: FeatureStatistics, names: Sequence[str]) -> Iterator[Element]:
    places = list(np.ndindex(found.shape))
    columns = [np.ravel(each).tolist() for each in (found.count, found.mean, found.std, found.min, found.max)]
    for place, *numbers, sketch in zip(places, *columns, found.sketches, strict=True):
        num, mean, std, low, high = numbers
        yield Element(_label(place, found.shape, names), num, mean, std, low, high, sketch)


def _label(place: tuple[int, ...], shape: tuple[int, ...], names: Sequence[str]) -> str:
    parts = [str(number) for number in place]
    if parts and len(names) == shape[-1]:
        parts[-1] = names[place[-1]]
    return ".".join(parts)


def _rows(name: str, found: FeatureStatistics, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the cells of a feature, an element a row."""
    notes = "sampled" if found.is_sampled else ""
    num_odd = int(np.sum(found.num_nan)) + int(np.sum(found.num_inf))
    if num_odd:
        notes = f"{notes} {num_odd:,} not finite".strip()
    rows = []
    for number, each in enumerate(_elements(found, names)):
        if number == MAX_PRINTED:
            rows.append((f"{name}: {found.count.size - number:,} more", *[""] * len(HEAD), ""))
            break
        low, middle, high = each.sketch.quantile([0.01, 0.5, 0.99]).tolist()
        numbers = (each.mean, each.std, each.min, low, middle, high, each.max)
        label = ".".join(filter(None, (name, each.label)))
        rows.append((label, f"{each.num:,}", *map(_number, numbers), notes))
    return rows


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    # whole numbers as they are, and no exponent where a person would write none; both keep the order of numbers
    is_large = 1e4 <= abs(value) < 1e9
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if is_large else f"{value:.4g}"


def _in_columns(rows: Sequence[tuple[str, ...]]) -> str:
    cells = [("", *HEAD, ""), *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD) + 2)]
    return "\n".join(
        "  ".join(
            [f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:-1], widths[1:], strict=False)), row[-1]]
        ).rstrip()
        for row in cells
    )


def _spread(sketch: Sketch) -> Markup:
    """Return how the values of an element are spread, as bars from 1 to 99 %."""
    if not len(sketch.values):
        return Markup("")
    low, high = sketch.quantile([0.01, 0.99]).tolist()
    if not high > low:
        return Markup("")
    inside = np.clip(sketch.values, low, high)
    return bars(np.histogram(inside, NUM_BINS, (low, high), weights=sketch.weights)[0])


def _box(each: Element) -> dict[str, Any]:
    low, first, middle, third, high = each.sketch.quantile(WHISKERS).tolist()
    return {
        "whislo": low,
        "q1": first,
        "med": middle,
        "q3": third,
        "whishi": high,
        "mean": each.mean,
        "fliers": [each.min, each.max],
    }
