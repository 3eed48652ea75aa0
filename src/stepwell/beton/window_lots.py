"""The windows of a view as lots of anchors; see `stepwell.beton.laying` for who calls what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.laying import Lot
from stepwell.beton.layout import ALLOCATION_DTYPE, row_dtype
from stepwell.beton.piece_filling import Piece, Rows
from stepwell.beton.pieces import LotSizes, RegionRows, Span
from stepwell.beton.stored_rows import row_values
from stepwell.beton.unfinished import FilePart
from stepwell.beton.window_fields import RowRegions, WindowPlan
from stepwell.codecs import codec_class
from stepwell.errors import StepError
from stepwell.references.file_codec import FileCodec
from stepwell.store import Segment
from stepwell.windows import View
from stepwell.windows.fields import resolve_fields, schema_of
from stepwell.windows.index import AnchorIndex
from stepwell.windows.reader import WindowReader

__all__ = ["WindowLots"]

LOT_BYTES = 16 << 20
# at most a piece each: the places of a few lots fit into a pipe, so that nobody waits for who waits for him
MAX_LOT_ANCHORS = 1024
# of a row whose size nobody knows before it is read
UNKNOWN_BYTES = 1 << 17
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A lot in memory: its sizes, and of each span those rows that are regions, for each kind of them."""

    sizes: LotSizes
    regions: list[list[Rows]]


class WindowLots:
    """The windows of a view's anchors; sample i is the anchor at position i.

    Args:
        view: the episodes.
        windows: key to field.
        plan: how they are written.
        align: where runs of rows begin.

    Notes:
        Pickles as its view and windows; used by one thread.
    """

    noun = "sample"

    def __init__(self, view: View, windows: Mapping[str, Any], plan: WindowPlan, align: int) -> None:
        self._view, self._windows, self._plan, self._align = view, dict(windows), plan, align
        self._rows = row_dtype([out.encoder.descriptor(out.name) for out in plan.fields])

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_view", "_windows", "_plan", "_align", "_rows")}

    @cached_property
    def index(self) -> AnchorIndex:
        """The anchors."""
        return AnchorIndex(self._view, resolve_fields(self._windows, self._view.stores).values())

    def lots(self) -> list[Lot]:
        """Return the anchors as lots, which end with an episode unless it is long."""
        starts, number = self.index.anchor_starts, self.index.num_anchors
        length = self._lot_anchors()
        found: list[Lot] = []
        start = 0
        while start < number:
            end = int(starts[np.searchsorted(starts, min(start + length, number))])
            stop = end if end - start <= 2 * length else start + length
            found.append(Lot(len(found), start, stop))
            start = stop
        return found

    def encode(self, lot: Lot, at: Callable[[int], None]) -> tuple[_Encoded, LotSizes]:
        """Return the regions of a lot and its measure; see `stepwell.beton.laying.Lots`."""
        spans = self._spans(lot)
        rows, kept = [], []
        for span in spans:
            at(span.sample)
            found = [self._encode_rows(span, told) for told in self._plan.regions]
            rows.append([each for each, _ in found])
            kept.append([each for _, each in found])
        sizes = LotSizes(self._plan, spans, rows, self._align)
        return _Encoded(sizes, kept), sizes

    def write(self, lot: Lot, encoded: _Encoded, places: Int64s, part: FilePart) -> int:
        """Write a lot; see `stepwell.beton.laying.Lots`."""
        number = lot.stop - lot.start
        rows = np.zeros(number, self._rows)
        table = np.zeros((number, len(self._plan.with_region)), ALLOCATION_DTYPE)
        table["sample"] = np.arange(lot.start, lot.stop)[:, None]
        read = self._read(lot)
        self._fill_cells(rows, read)
        written = 0
        for span, first, count, place in places.tolist():
            begin = encoded.sizes.spans[span].sample + first - lot.start
            of_piece = slice(begin, begin + count)
            windows = {key: values[of_piece] for key, values in read.items()}
            segment = self._segments[encoded.sizes.spans[span].segment]
            piece = Piece(encoded.sizes, encoded.regions[span], segment, span, first, count)
            data = piece.fill(place, windows, rows[of_piece], table[of_piece])
            part.write(place, data)
            written += data.nbytes
        part.write_samples(lot.start, rows, table)
        return written

    def _lot_anchors(self) -> int:
        size = sum(column.row_bytes for column in self._plan.columns)
        size += sum(self._row_bytes(told) for told in self._plan.regions)
        size += sum(self._plan.window_bytes)
        return max(1, min(MAX_LOT_ANCHORS, LOT_BYTES // max(1, size)))

    def _row_bytes(self, told: RowRegions) -> int:
        """Return about how large the regions of a kind are; it decides only how many are encoded at a time."""
        store = self._view.parts[0].store
        feature = schema_of(store)[told.source]
        if not feature.is_ragged and feature.kind == "image":
            return feature.row_bytes
        segment = next((segment for segment in self._segments if segment.num_rows), None)
        if segment is None or issubclass(codec_class(feature), FileCodec):
            return UNKNOWN_BYTES
        return int(segment.offsets_map(told.source)[segment.num_rows]) // segment.num_rows

    def _spans(self, lot: Lot) -> list[Span]:
        _, segments, rows, lo, hi_step, hi_final = self.index.places(np.arange(lot.start, lot.stop))
        ends = (np.diff(segments) != 0) | (np.diff(rows) != 1)
        if not self._is_plain:
            ends |= np.diff(lo) != 0
        firsts = np.concatenate([[0], np.flatnonzero(ends) + 1])
        counts = np.diff(np.concatenate([firsts, [len(rows)]]))
        spans = []
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            # nothing reaches beyond the anchors of a plain span, whatever episodes they are of
            last = first + count - 1
            bounds = (int(lo[first]), int(hi_step[last]), int(hi_final[last]))
            spans.append(Span(lot.start + first, int(segments[first]), int(rows[first]), count, *bounds))
        return spans

    @cached_property
    def _is_plain(self) -> bool:
        """Whether every window is the anchor's step alone."""
        shared = all(column.rows.offsets == (0,) and not column.rows.spread for column in self._plan.columns)
        return shared and all(told.offsets == (0,) for told in self._plan.regions)

    @cached_property
    def _segments(self) -> list[Segment]:
        return list(self._view.segments)

    def _encode_rows(self, span: Span, told: RowRegions) -> tuple[RegionRows, Rows]:
        wanted = span.first + np.arange(span.number)[:, None] + np.array(told.offsets)
        rows = np.unique(span.clamped(wanted, told.is_final))
        feature = schema_of(self._view.parts[int(self.index.stores[span.segment])].store)[told.source]
        regions, cells = [], []
        for row, value in zip(
            rows.tolist(), row_values(self._segments[span.segment], told.source, feature, rows), strict=True
        ):
            try:
                # by the row, so that the same row is written the same way in every sample
                cell, region = told.encoder.encode(value, row)
            except StepError as error:
                raise StepError(f"{self.index.where(span.segment, row)}, feature {told.source!r}: {error}") from error
            regions.append(region)
            cells.append(cell)
        sizes = np.array([len(region or b"") for region in regions], np.int64)
        return RegionRows(rows, sizes), Rows(regions, cells)

    @cached_property
    def _reader(self) -> WindowReader:
        keys = {key: self._windows[key] for key in self._windows if key in self._plan.read_keys}
        return WindowReader(self._view, keys)

    def _read(self, lot: Lot) -> dict[str, npt.NDArray[Any]]:
        """Return the windows of a lot that are written by themselves, by key."""
        if not self._plan.read_keys:
            return {}
        positions = np.arange(lot.start, lot.stop)
        ids, segments = self.index.step_ids(positions), self.index.places(positions)[1]
        stores = self.index.stores[segments]
        found = np.empty(len(positions), np.int64)
        for store in np.unique(stores).tolist():
            # other windows may have other anchors: those that fit
            is_here = stores == store
            found[is_here] = self._reader.index.positions_of(ids[is_here], store=store)
        return self._reader.read(found)

    def _fill_cells(self, rows: npt.NDArray[Any], read: Mapping[str, npt.NDArray[Any]]) -> None:
        for out in self._plan.fields:
            if out.kind == "cell":
                rows[out.name] = read[out.key]
