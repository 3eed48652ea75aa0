"""Pieces: runs of consecutive anchors with all the rows of their windows, each on one page.

::

    anchors of a lot    | episode 3 ......... | episode 4 ... | episode 5 ..........      spans
    pages               | 3 ....... | 3 .. 4 ... 5 .. | 5 .....                           pieces; where one is cut, the
                                                                                          rows on both sides are twice
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.beton.pages import PageCursor, aligned, too_large
from stepwell.beton.window_fields import SharedColumn, WindowPlan

__all__ = ["LotSizes", "RegionRows", "Span"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive anchors of one episode.

    Args:
        sample: of the first anchor.
        segment: numbered over all stores.
        first: row of the first anchor.
        number: of anchors.
        lo: first row of the episode.
        hi_step: one past its last step.
        hi_final: one past its final row.
    """

    sample: int
    segment: int
    first: int
    number: int
    lo: int
    hi_step: int
    hi_final: int

    def clamped(self, rows: Int64s, is_final: bool) -> Int64s:
        """Return rows of the episode, the nearest of those that lie outside."""
        return np.clip(rows, self.lo, (self.hi_final if is_final else self.hi_step) - 1)


@dataclass(frozen=True, slots=True)
class RegionRows:
    """Rows of a span that are a region each.

    Args:
        rows: int64 [u], ascending.
        sizes: int64 [u], of the regions.
    """

    rows: Int64s
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class LotSizes:
    """The measure of a lot of anchors; see `stepwell.beton.laying.Measure`.

    Args:
        plan: of the fields.
        spans: of the lot.
        regions: of each span, those of each `RowRegions` of the plan.
        align: where the parts of a piece begin.
    """

    plan: WindowPlan
    spans: Sequence[Span]
    regions: Sequence[Sequence[RegionRows]]
    align: int

    def place(self, cursor: PageCursor) -> Int64s:
        """Return the pieces, int64 [p, 4]: span, first anchor in it, anchors, place."""
        pieces = []
        for number, span in enumerate(self.spans):
            done = 0
            while done < span.number:
                count = self._fitting(number, done, cursor)
                pieces.append((number, done, count, cursor.take(self.num_bytes(number, done, count))))
                done += count
        return np.array(pieces, np.int64).reshape(-1, 4)

    def num_bytes(self, number: int, first: int, count: int) -> int:
        """Return what a piece takes up.

        Args:
            number: of the span.
            first: anchor in it.
            count: of anchors.
        """
        total = sum(int(aligned(size, self.align)) for size in self.part_bytes(count))
        for at, regions in enumerate(self.regions[number]):
            used = self.used_rows(number, at, first, count)
            total += int(aligned(regions.sizes[used], self.align).sum())
        return total

    def part_bytes(self, count: int) -> list[int]:
        """Return the bytes of each column's rows, and of the windows that are written by themselves."""
        columns = [column.rows.num_rows(count) * column.row_bytes for column in self.plan.columns]
        return columns + [count * size for size in self.plan.window_bytes]

    def used_rows(self, number: int, at: int, first: int, count: int) -> Int64s:
        """Return which of a span's regions a piece has, as indices, ascending."""
        return np.unique(self.region_places(number, at, first, count))

    def region_places(self, number: int, at: int, first: int, count: int) -> Int64s:
        """Return which of a span's regions each anchor's windows show, int64 [count, offsets]."""
        span, told = self.spans[number], self.plan.regions[at]
        wanted = span.first + first + np.arange(count)[:, None] + np.array(told.offsets)
        return np.searchsorted(self.regions[number][at].rows, span.clamped(wanted, told.is_final))

    def _fitting(self, number: int, done: int, cursor: PageCursor) -> int:
        """Return how many anchors the next piece has; the cursor turns the page where that is better."""
        left = self.spans[number].number - done
        whole = self.num_bytes(number, done, left)
        if whole <= cursor.room:
            return left
        count = self._most(number, done, left, cursor.room)
        if count:
            # rows at the cut are there twice, the room that is left is there for nothing
            twice = self.num_bytes(number, done, count) + self.num_bytes(number, done + count, left - count) - whole
            if twice < cursor.room:
                return count
        cursor.turn()
        count = left if whole <= cursor.room else self._most(number, done, left, cursor.room)
        if not count:
            raise self._too_large(number, done, cursor.page_size)
        return count

    def _most(self, number: int, done: int, left: int, room: int) -> int:
        """Return how many anchors fit at most: more anchors never take less."""
        fits, beyond = 0, left + 1
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if self.num_bytes(number, done, middle) <= room:
                fits = middle
            else:
                beyond = middle
        return fits

    def _too_large(self, number: int, done: int, page_size: int) -> Exception:
        parts = [f"{_name(column)} {size}" for column, size in zip(self.plan.columns, self.part_bytes(1), strict=False)]
        for at, told in enumerate(self.plan.regions):
            sizes = self.regions[number][at].sizes[self.used_rows(number, at, done, 1)]
            parts.append(f"{told.source} {int(sizes.sum())}")
        what = f"sample {self.spans[number].sample + done}"
        return too_large(what, ", ".join(parts), self.num_bytes(number, done, 1), page_size)


def _name(column: SharedColumn) -> str:
    return f"{column.rows.length} rows of {column.source}"
