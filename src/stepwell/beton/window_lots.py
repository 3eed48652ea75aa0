"""The windows of a view as lots of anchors, cut into pieces: consecutive anchors with all rows of their windows.

::

    anchors of a lot    | episode 3 ......... | episode 4 ... | episode 5 ..........      spans
    pages               | 3 ....... | 3 .. 4 ... 5 .. | 5 .....                           pieces: rows at a cut are
                                                                                          there twice
    piece   | rows of column 0 | rows of column 1 | windows by themselves | regions |     each part aligned
                  ^ ^ ^ ptrs of shared fields           ^    ^    ^          ^ ^  ptrs of fields that are regions
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import JPEG_START
from stepwell.beton.laying import FilePart, Lot, PageCursor, aligned, too_large
from stepwell.beton.layout import ALLOCATION_DTYPE, row_dtype
from stepwell.beton.window_fields import OutField, RowRegions, SharedColumn, WindowPlan
from stepwell.codecs import SequentialCodec, codec_class, make_codec
from stepwell.errors import StepError
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature
from stepwell.store import Segment
from stepwell.windows import View
from stepwell.windows.fields import resolve_fields, schema_of
from stepwell.windows.index import AnchorIndex
from stepwell.windows.reader import WindowReader

__all__ = [
    "JPEG_CODECS",
    "AnchorSpan",
    "EncodedRegions",
    "LotSizes",
    "Piece",
    "RegionRows",
    "WindowLots",
    "plain_rows",
    "row_values",
]

LOT_BYTES = 16 << 20
# at most a piece each: the places of a few lots fit into a pipe, so that parent and worker never wait for each other
MAX_LOT_ANCHORS = 1024
# of a row whose size is not known before it is read
UNKNOWN_BYTES = 1 << 17
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A lot in memory: its sizes, and of each span those rows that are regions, for each kind of them."""

    sizes: LotSizes
    regions: list[list[EncodedRegions]]


class WindowLots:
    """The windows of a view's anchors; sample i is the anchor at position i."""

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
            found = [self._encode_rows(span, kind) for kind in self._plan.regions]
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
        size += sum(self._row_bytes(kind) for kind in self._plan.regions)
        size += sum(self._plan.window_bytes)
        return max(1, min(MAX_LOT_ANCHORS, LOT_BYTES // max(1, size)))

    def _row_bytes(self, kind: RowRegions) -> int:
        """Return about how large the regions of a kind are; it decides only how many are encoded at a time."""
        store = self._view.parts[0].store
        feature = schema_of(store)[kind.source]
        if not feature.is_ragged and feature.kind == "image":
            return feature.row_bytes
        segment = next((segment for segment in self._segments if segment.num_rows), None)
        if segment is None or issubclass(codec_class(feature), FileCodec):
            return UNKNOWN_BYTES
        return int(segment.offsets_map(kind.source)[segment.num_rows]) // segment.num_rows

    def _spans(self, lot: Lot) -> list[AnchorSpan]:
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
            spans.append(AnchorSpan(lot.start + first, int(segments[first]), int(rows[first]), count, *bounds))
        return spans

    @cached_property
    def _is_plain(self) -> bool:
        """Whether every window is the anchor's step alone."""
        shared = all(column.rows.offsets == (0,) and not column.rows.spread for column in self._plan.columns)
        return shared and all(kind.offsets == (0,) for kind in self._plan.regions)

    @cached_property
    def _segments(self) -> list[Segment]:
        return list(self._view.segments)

    def _encode_rows(self, span: AnchorSpan, kind: RowRegions) -> tuple[RegionRows, EncodedRegions]:
        wanted = span.first + np.arange(span.number)[:, None] + np.array(kind.offsets)
        rows = np.unique(span.clamped(wanted, kind.is_final))
        feature = schema_of(self._view.parts[int(self.index.stores[span.segment])].store)[kind.source]
        regions, cells = [], []
        for row, value in zip(
            rows.tolist(), row_values(self._segments[span.segment], kind.source, feature, rows), strict=True
        ):
            try:
                # by the row, so that the same row is written the same way in every sample
                cell, region = kind.encoder.encode(value, row)
            except StepError as error:
                raise StepError(f"{self.index.where(span.segment, row)}, feature {kind.source!r}: {error}") from error
            regions.append(region)
            cells.append(cell)
        sizes = np.array([len(region or b"") for region in regions], np.int64)
        return RegionRows(rows, sizes), EncodedRegions(regions, cells)

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


# codecs whose rows are JPEG files, or those of them that begin like one
JPEG_CODECS = ("jpeg", "jpeg-or-raw", "image-file")
BATCH_BYTES = 32 << 20
UNKNOWN_ROW_BYTES = 1 << 20


def plain_rows(segment: Segment, name: str, rows: Int64s, dtype: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    """Return rows of a feature of fixed size as bytes."""
    first, stop = int(rows.min()), int(rows.max()) + 1
    found = segment.read_rows(name, first, stop)
    number, row_bytes = len(found), found.dtype.itemsize * int(np.prod(found.shape[1:], dtype=np.int64))
    as_bytes = np.ascontiguousarray(found).reshape(-1).view(np.uint8).reshape(number, row_bytes)
    if len(rows) != number or not np.array_equal(rows, np.arange(first, stop)):
        as_bytes = np.take(as_bytes, rows - first, axis=0)
    if found.dtype == dtype:
        return as_bytes
    converted: npt.NDArray[Any] = as_bytes.reshape(-1).view(found.dtype).astype(dtype)
    return converted.view(np.uint8).reshape(len(rows), -1)


def row_values(segment: Segment, name: str, feature: Feature, rows: Int64s) -> Iterator[Any]:
    """Yield the encoder's argument for each row: the bytes of a JPEG file that is stored as such, else the value."""
    codec = None if feature.is_raw else make_codec(feature)
    if codec is None or isinstance(codec, SequentialCodec):
        yield from _read_values(segment, name, feature, rows)
        return
    offsets, blobs = segment.offsets_map(name), segment.blob_map(name)
    first, stop = offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)
    stored = [blobs[begin:end] for begin, end in zip(first.tolist(), stop.tolist(), strict=True)]
    if isinstance(codec, FileCodec) and feature.kind == "image" and codec.embedded().codec in JPEG_CODECS:
        embedded = codec.embedded()
        inner = make_codec(embedded)
        for row in codec.embed(stored).rows(embedded):
            blob = np.frombuffer(row, np.uint8)
            yield row if row[:2] == JPEG_START else inner.decode(blob)
        return
    for blob in stored:
        is_file = feature.codec in JPEG_CODECS and blob[:2].tobytes() == JPEG_START
        yield blob.data if is_file else codec.decode(blob)


def _read_values(segment: Segment, name: str, feature: Feature, rows: Int64s) -> Iterator[Any]:
    """Yield decoded rows, a batch of them in memory."""
    size = UNKNOWN_ROW_BYTES if feature.is_ragged else max(1, feature.row_bytes)
    most = max(1, BATCH_BYTES // size)
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        for begin in range(0, len(run), most):
            few = run[begin : begin + most]
            yield from segment.read_rows(name, int(few[0]), int(few[-1]) + 1)


@dataclass(frozen=True, slots=True)
class AnchorSpan:
    """Consecutive anchors of one episode."""

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
    """EncodedRegions of a span that are a region each."""

    rows: Int64s
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class LotSizes:
    """The measure of a lot of anchors; see `stepwell.beton.laying.Measure`."""

    plan: WindowPlan
    spans: Sequence[AnchorSpan]
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
        """Return the bytes of a piece."""
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
        """Return the indices of a piece's regions among those of its span, ascending."""
        return np.unique(self.region_places(number, at, first, count))

    def region_places(self, number: int, at: int, first: int, count: int) -> Int64s:
        """Return the indices of the regions in each anchor's windows, int64 [count, offsets]."""
        span, kind = self.spans[number], self.plan.regions[at]
        wanted = span.first + first + np.arange(count)[:, None] + np.array(kind.offsets)
        return np.searchsorted(self.regions[number][at].rows, span.clamped(wanted, kind.is_final))

    def _fitting(self, number: int, done: int, cursor: PageCursor) -> int:
        """Return how many anchors the next piece has; the cursor turns the page where that is better."""
        left = self.spans[number].number - done
        whole = self.num_bytes(number, done, left)
        if whole <= cursor.room:
            return left
        count = self._most(number, done, left, cursor.room)
        if count:
            # rows at the cut are written twice; the rest of the page stays empty otherwise
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
        for at, kind in enumerate(self.plan.regions):
            sizes = self.regions[number][at].sizes[self.used_rows(number, at, done, 1)]
            parts.append(f"{kind.source} {int(sizes.sum())}")
        what = f"sample {self.spans[number].sample + done}"
        return too_large(what, ", ".join(parts), self.num_bytes(number, done, 1), page_size)


def _name(column: SharedColumn) -> str:
    return f"{column.rows.length} rows of {column.source}"


@dataclass(frozen=True, slots=True)
class EncodedRegions:
    """EncodedRegions that are regions, and what stands in the samples' rows beside their ptrs."""

    regions: Sequence[Any]
    cells: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive anchors of a span, which go to one page together."""

    sizes: LotSizes
    kept: Sequence[EncodedRegions]
    segment: Segment
    number: int
    first: int
    count: int

    def fill(
        self, place: int, windows: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[Any], table: npt.NDArray[Any]
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of the piece."""
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
            ptrs, sizes, cells = self._ptrs_of(out)
            table["ptr"][:, at], table["size"][:, at] = ptrs + place, sizes
            out.encoder.fill(rows[out.name], cells, ptrs + place, sizes)
        return data

    @property
    def _span(self) -> AnchorSpan:
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
        for shown, kind in zip(self._shown, self.sizes.regions[self.number], strict=True):
            used = np.unique(shown)
            reserved = aligned(kind.sizes[used], self.sizes.align)
            ends = np.cumsum(reserved)
            ptrs = np.full(len(kind.rows), -1, np.int64)
            ptrs[used] = begin + ends - reserved
            begin += int(ends[-1])
            found.append((ptrs, int(ends[-1])))
        return found

    def _ptrs_of(self, out: OutField) -> tuple[Int64s, Int64s, Sequence[Any]]:
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
