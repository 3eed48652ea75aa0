"""Fields that the kernel does not copy: rows of any codec, each decoded once, converted or computed.

::

    cells     segment  4 4 9 4 . 9       of a batch, or of the rows that a pool holds; row -1 means zeros
              row      7 8 2 7 . 3
    segment 4          7 8               `stepwell.store.decode.decode_rows`, a segment at a time
    segment 9          2 3
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, Decoder, make_codec
from stepwell.errors import CorruptSegmentError, DecodeError, LoaderError, WindowError
from stepwell.kernels.places import ROW, SEGMENT
from stepwell.store.decode import RowError, StoredRows, decode_rows
from stepwell.windows.computed import ComputedWindows, window_rows
from stepwell.windows.fields import FieldSource, ResolvedField
from stepwell.windows.maps import MappedColumn, MapTable, SegmentMaps
from stepwell.windows.plans import HeldArray, Reach, Routes, column_of, row_at
from stepwell.windows.rated import RatedWindows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepwell.windows.reader import PlaceBatch
    from stepwell.windows.sources import JoinedSources

__all__ = ["Cells", "ColumnDecoder", "Decoded", "Filler", "RowError", "StoredCells", "announce_batch"]

Int64s = npt.NDArray[np.int64]
Decoded = dict[int, dict[int, npt.NDArray[Any]]]
"""Whole rows that were decoded, by segment and row."""
StoredCells = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_] | None]
"""Which of a column's distinct rows each cell of a window is, int32 [n, *window], -1 for zeros; and the mask."""
# rows of a segment are fewer than 2**32
SEGMENT_SHIFT = 32


@dataclass(slots=True, eq=False)
class Cells:
    """The rows that are wanted of one column, one a cell; columns with the same windows share them."""

    table: MapTable  # maps, the segments among them
    segments: Int64s  # int64 [m]
    rows: Int64s  # int64 [m]; -1 means zeros
    # the segments, where encoded bytes are read past the page cache; None: through the maps
    direct: Sequence[Any] | None = None
    # of each segment the numbers of its cells, and their rows, which ascend; found by `by_segment`
    parts: dict[int, tuple[list[int], list[int]]] | None = None
    missing: list[int] = field(default_factory=list)  # cells of zeros, likewise

    def by_segment(self) -> dict[int, tuple[list[int], list[int]]]:
        """Return `parts`."""
        if self.parts is None:
            # a sort of few by Python takes half of the time of numpy's
            found: dict[int, tuple[list[int], list[int]]] = {}
            numbers = range(len(self.rows))
            for segment, row, i in sorted(zip(self.segments.tolist(), self.rows.tolist(), numbers, strict=True)):
                if row < 0:
                    self.missing.append(i)
                    continue
                members, rows = found.setdefault(segment, ([], []))
                members.append(i)
                rows.append(row)
            self.parts = found
        return self.parts


class ColumnDecoder:
    """Decode the rows of one column; thread-safe."""

    def __init__(self, column: MappedColumn, number: int, stores: Int64s) -> None:
        self._column, self._slot, self._stores = column, 2 * number, stores
        self._codecs: list[Codec] = [make_codec(feature) for feature in column.features]
        self._is_raw = [feature.is_raw for feature in column.features]
        sizes = {codec.stored_row_bytes for codec in self._codecs}
        self._is_bulk = len(sizes) == 1 and None not in sizes
        self._has_one_codec = len({(feature, feature.reach) for feature in column.features}) == 1
        self.only_copies = self._is_bulk and all(codec.only_copies for codec in self._codecs)
        self.is_reference = any(codec.is_reference for codec in self._codecs)

    def follow(self, stores: Int64s) -> None:
        """Take in segments that came: the number of the store of each, int64 [S]."""
        self._stores = stores

    def is_raw_in(self, segment: int) -> bool:
        """Return whether the segment's store has the column as plain rows."""
        return self._is_raw[int(self._stores[segment])]

    def read(
        self,
        cells: Cells,
        out: npt.NDArray[Any],
        done: Decoded,
        decoder: Decoder | None = None,
        draws: npt.NDArray[Any] | None = None,
    ) -> None:
        """Decode rows into arrays of their own, or into ``out``, or let a field's decoder make steps of them."""
        if not out[:1].size or (decoder is None and self._is_bulk and self._read_bulk(cells, out)):
            return
        ways: dict[Codec, Any] = {}
        table, parts = cells.table, cells.by_segment() if cells.parts is None else cells.parts
        for segment, (members, rows) in parts.items():
            stored = table.stored.get((self._slot, segment))
            if stored is None or stored.num_rows != table.num_rows[segment]:
                stored = self._stored(table, segment)
            try:
                if out.dtype == object:
                    for i, value in zip(members, stored.objects(rows), strict=True):
                        out[i] = value
                    continue
                codec = stored.codec
                if not codec.is_sequential and codec not in ways:
                    ways[codec] = codec.batch_decoder()
                if cells.direct is not None:
                    read_direct = functools.partial(cells.direct[segment].read_direct, f"{self._column.name}.bin")
                    stored = stored.past_cache(rows, read_direct)
                own, outs = None if draws is None else draws[members], []
                for i in members:
                    outs.append(out[i, ...])
                decode_rows(stored, rows, outs, decoder, own, done.setdefault(segment, {}), ways.get(codec))
            except RowError as error:
                error.index = members[error.index]
                raise
        for i in cells.missing:
            out[i] = self._empty() if out.dtype == object else 0

    def announce(self, cells: Cells) -> None:
        """Let the system fetch the encoded bytes of rows at once, instead of a page at a time."""
        spans: list[tuple[int, int]] = []
        for segment, (members, rows) in cells.by_segment().items():
            stored = self._stored(cells.table, segment)
            base, last = int(stored.blobs.__array_interface__["data"][0]), -1
            for i, row in zip(members, rows, strict=True):
                try:
                    begin, end = stored.edges(row, row + 1)
                except Exception as error:
                    raise RowError(i, error, row, row) from error
                if begin == last:
                    begin = spans.pop()[0] - base
                spans.append((base + begin, end - begin))
                last = end
        announce(spans)

    def blobs(self, table: MapTable, segments: Int64s, rows: Int64s) -> list[memoryview]:
        """Return the encoded bytes of rows, views of their maps; segments [m] ascend."""
        found = []
        for number, (segment, row) in enumerate(zip(segments.tolist(), rows.tolist(), strict=True)):
            try:
                found.append(self._stored(table, segment).blob(row).data)
            except Exception as error:
                raise RowError(number, error, row, row) from error
        return found

    def _stored(self, table: MapTable, segment: int) -> StoredRows:
        """Return the rows of a segment, which the table keeps for as long as its maps."""
        num_rows = int(table.num_rows[segment])
        stored = table.stored.get((self._slot, segment))
        if stored is None or stored.num_rows != num_rows:
            store, maps = int(self._stores[segment]), table.arrays[segment] or []
            offsets: Any = None if self._is_raw[store] else maps[self._slot]
            rows: Any = maps[self._slot if self._is_raw[store] else self._slot + 1]
            stored = StoredRows(self._column.name, self._codecs[store], offsets, rows, num_rows)
            table.stored[self._slot, segment] = stored
        return stored

    def _read_bulk(self, cells: Cells, out: npt.NDArray[Any]) -> bool:
        """Decode all rows at once; False where one cannot be, which is found when they are decoded one by one."""
        table, blobs = cells.table, self._slot + 1
        encoded = np.empty((len(cells.rows), self._codecs[0].stored_row_bytes or 0), np.uint8)
        bases = table.addresses[self._slot], table.addresses[blobs], table.sizes[blobs]
        if _take_kernel()(*bases, cells.segments, cells.rows, encoded) >= 0:
            return False
        is_there, stores = cells.rows >= 0, self._stores[cells.segments]
        try:
            if self._has_one_codec and is_there.all():
                self._codecs[0].decode_rows(encoded, out)
                return True
            for store in np.unique(stores[is_there]).tolist():
                members = np.flatnonzero(is_there & (stores == store))
                part = np.empty((len(members), *out.shape[1:]), out.dtype)
                self._codecs[store].decode_rows(encoded[members], part)
                out[members] = part
        except DecodeError:
            return False
        out[~is_there] = np.zeros((), out.dtype)
        return True

    def _empty(self) -> Any:
        feature = self._column.features[0]
        if feature.kind == "text":
            return ""
        if feature.kind == "bytes":
            return b""
        return np.zeros([int(n or 0) for n in feature.shape], feature.np_dtype)


@functools.cache
def _take_kernel() -> Any:
    """Return the kernel; looked up once, where an import for every batch would take as long as it does."""
    from stepwell.kernels.spans import take_rows

    return take_rows


def announce(spans: Sequence[tuple[int, int]] | npt.NDArray[np.int64]) -> None:
    """Let the system fetch mapped bytes: address and size of each span."""
    from stepwell.kernels.spans import announce as announce_spans

    addresses, sizes = np.array(spans, np.int64).reshape(-1, 2).T
    announce_spans(np.ascontiguousarray(addresses), np.ascontiguousarray(sizes))


def announce_batch(
    batch: PlaceBatch, fields: Iterable[ResolvedField], filler: Filler, slots: Mapping[str, int]
) -> None:
    """Let the system fetch what a batch reads through maps."""
    for each in fields:
        # of windows that leave a piece of an episode, the rows in the anchors' own piece
        places = batch.at(each.field.at)[:6]
        for source in each.sources:
            if source.kind == "virtual":
                continue
            rows, _ = window_rows(each, source.is_final, places)
            if source.kind == "raw":
                _announce_raw(each, source, rows, batch.table.addresses[slots[source.name], places[SEGMENT]])
                continue
            segments = np.repeat(places[SEGMENT], rows.shape[1])
            try:
                cells = Cells(batch.table, segments, rows.reshape(-1))
                filler.decoders[source.name].announce(cells)
            except RowError as error:
                raise filler.error(each, source, cells, error) from error.cause


def _announce_raw(field: ResolvedField, source: FieldSource, rows: Int64s, bases: Int64s) -> None:
    from stepwell.kernels.gather import runs_of

    for _, number, start in runs_of(field.offsets.tolist()):
        first, last = rows[:, start], rows[:, start + number - 1]
        begins = bases + first * source.row_bytes
        announce(np.stack([begins, (last - first + 1) * source.row_bytes], axis=1))


class Filler:
    """Fill in what the kernel left out of a batch."""

    # Thread-safe: decoded rows live in the batch.

    def __init__(  # noqa: PLR0917
        self,
        sources: JoinedSources,
        maps: SegmentMaps,
        columns: Sequence[Reach],
        decoders: Mapping[str, ColumnDecoder],
        fields: Mapping[str, ResolvedField],
        slots: Mapping[str, int],
    ) -> None:
        self._sources, self._maps, self._columns, self.decoders = sources, maps, tuple(columns), decoders
        self._computed = ComputedWindows(sources)
        self._rated = RatedWindows(sources, maps, slots)
        self._fields = fields
        self._keys = [key for each in fields.values() for key in each.keys]
        self._zero_rows: dict[int, npt.NDArray[np.uint8]] = {}

    def fill(self, batch: PlaceBatch, routes: Routes) -> dict[str, npt.NDArray[Any]]:
        """Fill what the kernel left out, and return the batch in the order of its fields."""
        arrays = batch.arrays
        for each, rest in routes.others:
            if each.is_computed:
                self.compute(each, batch.places, batch.parts, arrays)
                continue
            if each.is_ragged:
                arrays[each.key] = np.empty((batch.places.shape[1], *each.window_shape), dtype=object)
            array, combine, start = arrays[each.key], each.field.combine, 0
            rows = array.reshape(len(array) * len(each.offsets), *array.shape[1 + len(each.window_shape) :])
            for number, source in enumerate(each.sources):
                stop = start + (1 if combine != "concat" else int(source.shape[0] or 0))
                if number in rest:
                    # the kernel has written the marks of what it copied, and further sources add to those of the first
                    has_marks = number > rest[0] or len(rest) < len(each.sources)
                    out = rows if combine is None else rows[:, start] if combine == "stack" else rows[:, start:stop]
                    self._fill(each, source, out, batch, has_marks, each.key in routes.held)
                start = stop
        for key in routes.in_place:
            field = self._fields[key]
            arrays[key] = HeldArray(arrays[key], field.shape[len(field.window_shape) :])
        # of a dict in another order, as ragged fields came last
        return dict(zip(self._keys, map(arrays.__getitem__, self._keys), strict=True))

    def stored(self, batch: PlaceBatch) -> tuple[dict[str, StoredCells], dict[str, list[memoryview]]]:
        """Return the cells of fields of one encoded column each, and the distinct rows of each column, encoded."""
        found: dict[str, list[tuple[ResolvedField, Int64s, npt.NDArray[np.bool_]]]] = {}
        for each in self._fields.values():
            (source,) = each.sources
            _, is_pad, cells = self._windows(each, source, batch)
            rows = np.where(cells.rows < 0, -1, cells.segments << SEGMENT_SHIFT | cells.rows)
            found.setdefault(source.name, []).append((each, rows, is_pad))
        keyed: dict[str, StoredCells] = {}
        blobs: dict[str, list[memoryview]] = {}
        for name, members in found.items():
            distinct, numbers = np.unique(np.concatenate([rows for _, rows, _ in members]), return_inverse=True)
            num_missing = int(len(distinct) > 0 and distinct[0] < 0)
            distinct, start = distinct[num_missing:], 0
            for each, rows, is_pad in members:
                shape = (len(rows) // len(each.offsets), *each.window_shape)
                cells_of_key = (numbers.reshape(-1)[start : start + len(rows)] - num_missing).astype(np.int32)
                keyed[each.key] = cells_of_key.reshape(shape), is_pad.reshape(shape) if each.has_mask else None
                start += len(rows)
            segments, own = distinct >> SEGMENT_SHIFT, distinct & ((1 << SEGMENT_SHIFT) - 1)
            try:
                blobs[name] = self.decoders[name].blobs(batch.table, segments, own)
            except RowError as error:
                each, (source,) = members[0][0], members[0][0].sources
                raise self.error(each, source, Cells(batch.table, segments, own), error) from error.cause
        return keyed, blobs

    def error(self, field: ResolvedField, source: FieldSource, cells: Cells, error: RowError) -> LoaderError:
        """Return the error of a row that could not be decoded: names store, episode, step, field and file."""
        segment, row = int(cells.segments[error.index]), int(cells.rows[error.index])
        return LoaderError(
            f"{self._sources.describe(segment, row)}, field {field.key!r} "
            f"({self._maps.file_of(source.name, segment)}): {error.cause}"
        )

    def compute(
        self, field: ResolvedField, places: Int64s, parts: Sequence[Int64s], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Compute a field and its mask."""
        out, name = arrays[field.key], field.sources[0].name
        if field.is_step:
            self._computed.write_steps(name, places, parts, out)
        else:
            mask = arrays[field.mask_key] if field.has_mask else None
            self._computed.write(name, field, places, parts, out.reshape(-1), mask)

    def _fill(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: FieldSource,
        out: npt.NDArray[Any],
        batch: PlaceBatch,
        has_marks: bool,
        is_held: bool,
    ) -> None:
        """Decode or compute one source of a field into ``out`` [n * K, ...], and mark its padding."""
        mask = batch.arrays[field.mask_key] if field.has_mask else None
        if source.kind == "virtual":
            # of the anchors' episodes, wherever their windows are put
            places = batch.at(field.field.at)
            self._computed.write(source.name, field, places, batch.parts, out, mask, has_marks)
            return
        if source.kind == "rated":
            self._fill_rated(field, source, out, batch, mask, has_marks)
            return
        key = field.field.at, source.is_final, field.pad == "zero", field.offsets.tobytes()
        if key not in batch.windows:
            batch.windows[key] = self._windows(field, source, batch)
        rows, is_pad, cells = batch.windows[key]
        if mask is not None:
            mask = mask.reshape(is_pad.shape)
            np.logical_or(mask, is_pad, out=mask) if has_marks else np.copyto(mask, is_pad)
        if is_held:
            self._convert_held(field, source, rows, is_pad, out, batch)
            return
        column = self.decoders[source.name]
        try:
            drawn = None if source.decoder is None else _draw(field, source, batch)
            draws = None if drawn is None else np.repeat(drawn, len(out) // len(drawn), axis=0)
            column.read(cells, out, batch.decoded.setdefault(source.name, {}), source.decoder, draws)
        except RowError as error:
            raise self.error(field, source, cells, error) from error.cause

    def _fill_rated(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: FieldSource,
        out: npt.NDArray[Any],
        batch: PlaceBatch,
        mask: npt.NDArray[np.bool_] | None,
        has_marks: bool,
    ) -> None:
        """Write the samples that windows show."""
        places = batch.at(field.field.at)
        steps, rates = self._computed.steps_of(places, batch.parts)
        try:
            is_pad = self._rated.write(field, source, batch, steps, rates, out, _draw(field, source, batch))
        except CorruptSegmentError as error:
            raise LoaderError(f"field {field.key!r}: {error}") from error
        except RowError as error:
            # of the window, as a sample is of no step
            cells = Cells(batch.table, *np.repeat(places[[SEGMENT, ROW]], len(field.offsets), axis=1))
            raise self.error(field, source, cells, error) from error.cause
        if mask is not None:
            mask = mask.reshape(is_pad.shape)
            np.logical_or(mask, is_pad, out=mask) if has_marks else np.copyto(mask, is_pad)

    def _windows(
        self, field: ResolvedField, source: FieldSource, batch: PlaceBatch
    ) -> tuple[Int64s, npt.NDArray[np.bool_], Cells]:
        """Return rows and padding [n, K] of windows, and the cells that are read of them."""
        places = batch.places if field.field.at == "anchor" else batch.at(field.field.at)
        rows, is_pad = window_rows(field, source.is_final, places)
        segments = places[SEGMENT] if rows.shape[1] == 1 else np.repeat(places[SEGMENT], rows.shape[1])
        found = rows
        if batch.chained is not None:
            in_segments, found = batch.chained.cells(places[SEGMENT], rows)
            segments = in_segments.reshape(-1)
        wanted = np.where(is_pad, -1, found) if field.pad == "zero" else found
        return rows, is_pad, Cells(batch.table, segments, wanted.reshape(-1))

    def _convert_held(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: FieldSource,
        rows: Int64s,
        is_pad: npt.NDArray[np.bool_],
        out: npt.NDArray[Any],
        batch: PlaceBatch,
    ) -> None:
        """Let a decoder that draws make steps of rows that are held whole; without one, write where they are."""
        number = column_of(self._columns, source)
        if batch.held is None or number is None:
            raise WindowError(f"field {field.key!r} is not among the held columns.")
        column = self._columns[number]
        per_window, is_zero = rows.shape[1], field.pad == "zero"
        bases = batch.held.table.addresses[2 * number, batch.held.columns]
        found = bases[:, None] + rows * column.row_bytes
        if source.decoder is None or not source.is_drawn:
            if is_zero:
                found[is_pad] = self._zeros(column.row_bytes)
            out[...] = found.reshape(-1)
            return
        addresses, drawn = found.reshape(-1).tolist(), _draw(field, source, batch)
        for i, is_outside in enumerate(is_pad.reshape(-1).tolist()):
            if is_zero and is_outside:
                out[i] = np.zeros((), out.dtype)
            else:
                draw = None if drawn is None else drawn[i // per_window]
                source.decoder.convert(row_at(addresses[i], column), out[i, ...], draw)

    def _zeros(self, num_bytes: int) -> int:
        """Return the address of so many zeros, which stay for as long as the reader."""
        if num_bytes not in self._zero_rows:
            self._zero_rows.setdefault(num_bytes, np.zeros(num_bytes, np.uint8))
        return int(self._zero_rows[num_bytes].ctypes.data)


def _draw(field: ResolvedField, source: FieldSource, batch: PlaceBatch) -> npt.NDArray[Any] | None:
    """Return what a field's decoder draws for each window, [n, ...]."""
    decoder, feature = source.decoder, source.feature
    if decoder is None or feature is None or not decoder.is_random or not batch.places.shape[1]:
        return None
    purpose = f"key {decoder.key}" if decoder.key is not None else f"decoder of {field.key}"
    return decoder.draw(feature, batch.drawn(purpose))
