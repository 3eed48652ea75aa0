"""One piece on its way into memory, and what its samples' rows and the allocation table say of it.

::

    | rows of column 0 | rows of column 1 | windows by themselves | regions |        each part aligned, see `LotSizes`
          ^ ^ ^ ptrs of shared fields            ^    ^    ^          ^ ^  ptrs of fields that are regions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.pages import aligned
from stepwell.beton.pieces import LotSizes, Span
from stepwell.beton.stored_rows import plain_rows
from stepwell.beton.window_fields import OutField, SharedColumn
from stepwell.store import Segment

__all__ = ["Piece", "Rows"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are regions, and what stands in the samples' rows beside their ptrs."""

    regions: Sequence[Any]
    cells: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive anchors of a span, which go to one page together.

    Args:
        sizes: of the lot.
        kept: of the span, for each `RowRegions` of the plan.
        segment: that the span is in.
        number: of the span.
        first: anchor in it.
        count: of anchors.
    """

    sizes: LotSizes
    kept: Sequence[Rows]
    segment: Segment
    number: int
    first: int
    count: int

    def fill(
        self, place: int, windows: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[Any], table: npt.NDArray[Any]
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of the piece.

        Args:
            place: of its first byte in the file.
            windows: of the fields that are read, by key, [count, ...].
            rows: [count], of the samples; written.
            table: `ALLOCATION_DTYPE` [count, fields with a region], of the samples; ptr and size are written.
        """
        plan = self.sizes.plan
        data = np.zeros(self._begins[-1] + sum(num_bytes for _, num_bytes in self._regions), np.uint8)
        for column, begin in zip(plan.columns, self._begins, strict=False):
            self._copy_column(column, data[begin:])
        for out, begin in zip(plan.read_fields, self._begins[len(plan.columns) :], strict=False):
            given = np.ascontiguousarray(windows[out.key], out.array.dtype)
            data[begin : begin + given.nbytes] = given.reshape(-1).view(np.uint8)
        for at in range(len(self.kept)):
            self._copy_regions(at, data)
        for at, out in enumerate(plan.with_region):
            ptrs, sizes, cells = self._told(out)
            table["ptr"][:, at], table["size"][:, at] = ptrs + place, sizes
            out.encoder.fill(rows[out.name], cells, ptrs + place, sizes)
        return data

    @property
    def _span(self) -> Span:
        return self.sizes.spans[self.number]

    @cached_property
    def _begins(self) -> list[int]:
        """Where the parts begin; last, where the regions do."""
        parts = [int(aligned(size, self.sizes.align)) for size in self.sizes.part_bytes(self.count)]
        begins: list[int] = np.cumsum([0, *parts]).tolist()
        return begins

    @cached_property
    def _shown(self) -> list[Int64s]:
        """Of each kind of regions which of the span's rows each anchor shows, int64 [count, offsets]."""
        kinds = range(len(self.kept))
        return [self.sizes.region_places(self.number, at, self.first, self.count) for at in kinds]

    @cached_property
    def _regions(self) -> list[tuple[Int64s, int]]:
        """Of each kind of regions the place of each row of the span, -1 where it is not shown; and their bytes."""
        begin, found = self._begins[-1], []
        for shown, told in zip(self._shown, self.sizes.regions[self.number], strict=True):
            used = np.unique(shown)
            reserved = aligned(told.sizes[used], self.sizes.align)
            ends = np.cumsum(reserved)
            ptrs = np.full(len(told.rows), -1, np.int64)
            ptrs[used] = begin + ends - reserved
            begin += int(ends[-1])
            found.append((ptrs, int(ends[-1])))
        return found

    def _told(self, out: OutField) -> tuple[Int64s, Int64s, Sequence[Any]]:
        """Return ptrs in the piece and sizes, int64 [count], and cells of a field."""
        plan = self.sizes.plan
        if out.kind == "region":
            used = self._shown[out.number][:, plan.regions[out.number].offsets.index(out.offset)]
            cells = [self.kept[out.number].cells[each] for each in used.tolist()]
            return self._regions[out.number][0][used], self.sizes.regions[self.number][out.number].sizes[used], cells
        if out.kind == "shared":
            column = plan.columns[out.number]
            starts = column.rows.starts(self.count, out.offset - column.rows.offsets[0])
            ptrs = self._begins[out.number] + starts * column.row_bytes
            size = column.rows.length * column.row_bytes
        else:
            size = out.array.num_bytes
            ptrs = self._begins[len(plan.columns) + plan.read_fields.index(out)] + np.arange(self.count) * size
        return ptrs, np.full(self.count, size), [out.cell] * self.count

    def _copy_column(self, column: SharedColumn, out: npt.NDArray[np.uint8]) -> None:
        wanted = column.rows.rows(self._span.first + self.first, self.count)
        rows = self._span.clamped(wanted, column.is_final)
        found = plain_rows(self.segment, column.source, rows, column.dtype)
        target = out[: found.size].reshape(found.shape)
        target[:] = found
        if column.is_zero:
            target[rows != wanted] = 0

    def _copy_regions(self, at: int, data: npt.NDArray[np.uint8]) -> None:
        for region, ptr in zip(self.kept[at].regions, self._regions[at][0].tolist(), strict=True):
            if ptr >= 0:
                data[ptr : ptr + len(region)] = np.frombuffer(region, np.uint8)
