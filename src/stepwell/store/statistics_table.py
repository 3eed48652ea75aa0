"""The printed forms of statistics: numbers in columns, the same as HTML and as a plot.

::

    feature  dim    mean    std     min    max     q01    q10    q50    q90    q99    count
    state    x     0.503  0.287  0.0012  0.999  0.0154  0.101  0.498  0.899  0.986      551
             y    -0.012   1.01   -3.12   2.95   -2.31  -1.31  -0.02    1.3   2.28      551
    image    0       127   73.9       0    255       2     25    127    229    252  115,200
    of evenly spaced steps only: image

The command ``stepwell stats`` prints the same rows, fitted to a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepwell.display.html import Markup, bars, block, never_raising, table
from stepwell.errors import FeatureNotFoundError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.store.sketch import Sketch
    from stepwell.store.statistics import FeatureStatistics

__all__ = ["SAMPLED", "StatisticsTable", "statistics_text"]

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# columns that are shown where something was counted in them
FAULTS = ("nan", "inf")
HEAD = ("feature", "dim", "mean", "std", "min", "max", *QUANTILES, "count", *FAULTS)
# elements of a feature that are printed, and that are plotted
MAX_PRINTED, MAX_BOXES = 16, 32
MAX_PLOTS = 24
SAMPLED = "of evenly spaced steps only"
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

    def rows(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns and the cells of the table, a row an element.

        Args:
            most: elements of a feature; the others are counted in a row. Default: all.
        """
        found = [row for name in self for row in _rows(name, self[name], self.names.get(name, ()), most)]
        shown = [
            name not in FAULTS or any(row[place] not in ("", "0") for row in found) for place, name in enumerate(HEAD)
        ]
        return list(compress(HEAD, shown)), [list(compress(row, shown)) for row in found]

    @property
    def sampled(self) -> list[str]:
        """The features of which evenly spaced steps were looked at."""
        return [name for name, each in self.items() if each.is_sampled]

    def __str__(self) -> str:
        head, rows = self.rows(MAX_PRINTED)
        lines = [_in_columns(head, rows) if rows else "no statistics"]
        return "\n".join([*lines, *([f"{SAMPLED}: {', '.join(self.sampled)}"] if self.sampled else [])])

    __repr__ = __str__

    @never_raising
    def _repr_html_(self) -> str:
        head, cells = self.rows(MAX_PRINTED)
        spreads: list[Markup] = []
        for name, found in self.items():
            elements = list(_elements(found, self.names.get(name, ())))
            spreads += [_spread(each.sketch) for each in elements[:MAX_PRINTED]]
            spreads += [Markup("")] * (len(elements) > MAX_PRINTED)
        rows: list[Sequence[str]] = [(*row, spread) for row, spread in zip(cells, spreads, strict=True)]
        sampled = f", of evenly spaced steps: {', '.join(self.sampled)}" if self.sampled else ""
        return block(f"<Statistics of {len(self)} features{sampled}>", table(rows, (*head, ""), "element"))

    def __reduce__(self) -> tuple[Any, ...]:
        return StatisticsTable, (dict(self), self.names)


def statistics_text(found: FeatureStatistics) -> str:
    """Return the numbers of one feature in columns."""
    head, rows = StatisticsTable({"": found}).rows(MAX_PRINTED)
    return _in_columns(head[1:], [row[1:] for row in rows])


class Element(NamedTuple):
    """One element of a feature."""

    label: str  # its name, or its place
    num: int
    num_nan: int
    num_inf: int
    mean: float
    std: float
    min: float
    max: float
    sketch: Sketch


def _elements(found: FeatureStatistics, names: Sequence[str]) -> Iterator[Element]:
    places = list(np.ndindex(found.shape))
    given = (found.count, found.num_nan, found.num_inf, found.mean, found.std, found.min, found.max)
    columns = [np.ravel(each).tolist() for each in given]
    for place, *numbers, sketch in zip(places, *columns, found.sketches, strict=True):
        count, num_nan, num_inf, mean, std, low, high = numbers
        yield Element(_label(place, found.shape, names), count, num_nan, num_inf, mean, std, low, high, sketch)


def _label(place: tuple[int, ...], shape: tuple[int, ...], names: Sequence[str]) -> str:
    parts = [str(number) for number in place]
    if parts and len(names) == shape[-1]:
        parts[-1] = names[place[-1]]
    return ",".join(parts)


def _rows(name: str, found: FeatureStatistics, names: Sequence[str], most: int | None) -> Iterator[list[str]]:
    """Yield the cells of a feature, an element a row."""
    for number, each in enumerate(_elements(found, names)):
        # the first line of a feature has its name
        cells = [name if number == 0 else ""]
        if number == most:
            yield [*cells, f"{found.count.size - number:,} more", *[""] * (len(HEAD) - 2)]
            return
        numbers = (each.mean, each.std, each.min, each.max, *each.sketch.quantile([*QUANTILES.values()]).tolist())
        yield [*cells, each.label, *map(_number, numbers), *map(_number, (each.num, each.num_nan, each.num_inf))]


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    # whole numbers as they are, and no exponent where a person would write none; both keep the order of numbers
    is_large = 1e6 <= abs(value) < 1e9
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if is_large else f"{value:,.6g}"


def _in_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_text = [name in ("feature", "dim") for name in head]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if left else f"{cell:>{width}}"
            for cell, width, left in zip(row, widths, is_text, strict=True)
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
