"""Rows of one column that a batch or a pool wants, whatever codec each store has for it: each decoded once.

::

    cells     segment  4 4 9 4 . 9       of a batch, or of the rows that a pool holds; row -1 asks for zeros
              row      7 8 2 7 . 3
    segment 4          7 8               `stepwell.store.decode.decode_rows`, a segment at a time
    segment 9          2 3
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, Decoder, make_codec
from stepwell.errors import DecodeError
from stepwell.kernels.places import SEGMENT
from stepwell.store.decode import RowError, StoredRows, decode_rows
from stepwell.windows.maps import Column, MapTable
from stepwell.windows.resolved import ResolvedField, Source
from stepwell.windows.rows import window_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepwell.windows.filling import Filler
    from stepwell.windows.reader import PlaceBatch

__all__ = ["Cells", "ColumnDecoder", "Decoded", "RowError", "announce_batch"]

Int64s = npt.NDArray[np.int64]
Decoded = dict[int, dict[int, npt.NDArray[Any]]]
"""Whole rows that were decoded, by segment and row."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The rows that are wanted of one column, one a cell.

    Args:
        table: maps, the segments among them.
        segments: int64 [m].
        rows: int64 [m]; -1 asks for zeros.
        direct: the segments, where encoded bytes are read past the page cache; None: through the maps.
    """

    table: MapTable
    segments: Int64s
    rows: Int64s
    direct: Sequence[Any] | None = None

    def by_segment(self) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield each segment, the numbers of its cells, and their rows, which ascend."""
        members = np.flatnonzero(self.rows >= 0)
        members = members[np.lexsort((self.rows[members], self.segments[members]))]
        segments = self.segments[members]
        for few in np.split(members, np.flatnonzero(segments[1:] != segments[:-1]) + 1):
            if len(few):
                yield int(self.segments[few[0]]), few.tolist(), self.rows[few].tolist()


class ColumnDecoder:
    """Decode the rows of one column; thread-safe.

    Args:
        column: the feature in each store.
        number: of the column in the table of maps.
        stores: int64 [S], number of the store of each segment.

    Attributes:
        only_copies: whether its rows are plain ones in other files, copied a batch at a time.
    """

    def __init__(self, column: Column, number: int, stores: Int64s) -> None:
        self._column, self._slot, self._stores = column, 2 * number, stores
        self._codecs: list[Codec] = [make_codec(feature) for feature in column.features]
        sizes = {codec.stored_row_bytes for codec in self._codecs}
        self._is_bulk = len(sizes) == 1 and None not in sizes
        self._has_one_codec = len({(feature, feature.reach) for feature in column.features}) == 1
        self.only_copies = self._is_bulk and all(codec.only_copies for codec in self._codecs)

    def follow(self, stores: Int64s) -> None:
        """Take in segments that came: the number of the store of each, int64 [S]."""
        self._stores = stores

    def is_raw_in(self, segment: int) -> bool:
        """Return whether the segment's store has the column as plain rows."""
        return self._column.features[int(self._stores[segment])].is_raw

    def read(
        self,
        cells: Cells,
        out: npt.NDArray[Any],
        done: Decoded,
        decoder: Decoder | None = None,
        draws: npt.NDArray[Any] | None = None,
    ) -> None:
        """Decode rows of a fixed shape, or let a field's decoder make steps of them."""
        if not out[:1].size or (decoder is None and self._is_bulk and self._read_bulk(cells, out)):
            return
        is_there = cells.rows >= 0
        if not is_there.all():
            out[~is_there] = np.zeros((), out.dtype)
        ways: dict[Codec, Any] = {}
        for segment, members, rows in cells.by_segment():
            stored = self._stored(cells, segment, ways)
            try:
                if cells.direct is not None:
                    stored = stored.past_cache(
                        rows, functools.partial(cells.direct[segment].read_direct, f"{self._column.name}.bin")
                    )
                own = None if draws is None else draws[members]
                decode_rows(stored, rows, [out[i, ...] for i in members], decoder, own, done.setdefault(segment, {}))
            except RowError as error:
                error.index = members[error.index]
                raise

    def read_objects(self, cells: Cells, out: npt.NDArray[np.object_]) -> None:
        """Decode rows of any size into an object array [m], one for each cell: shared arrays would change alike."""
        for i in np.flatnonzero(cells.rows < 0).tolist():
            out[i] = self._empty()
        for segment, members, rows in cells.by_segment():
            try:
                for i, value in zip(members, self._stored(cells, segment).objects(rows), strict=True):
                    out[i] = value
            except RowError as error:
                error.index = members[error.index]
                raise

    def announce(self, cells: Cells) -> None:
        """Let the system fetch the encoded bytes of rows at once, instead of a page at a time."""
        spans: list[tuple[int, int]] = []
        for segment, members, rows in cells.by_segment():
            stored = self._stored(cells, segment)
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

    def _stored(self, cells: Cells, segment: int, ways: dict[Codec, Any] | None = None) -> StoredRows:
        """Return the rows of a segment; what decodes one is made once for each codec of a batch."""
        codec, maps = self._codecs[int(self._stores[segment])], cells.table.arrays[segment] or []
        first, second = maps[self._slot], maps[self._slot + 1]
        name, num_rows = self._column.name, int(cells.table.num_rows[segment])
        way = None if ways is None else ways.get(codec)
        if codec.feature.is_raw:
            stored = StoredRows(name, codec, None, first, num_rows, decode_into=way)  # type: ignore[arg-type]
        else:
            stored = StoredRows(name, codec, first, second, num_rows, decode_into=way)  # type: ignore[arg-type]
        if ways is not None:
            ways[codec] = stored.decode_into
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
        # of windows that leave a piece of an episode, what lies in the anchors' own
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
                filler.decoders[source.name].announce(Cells(batch.table, segments, rows.reshape(-1)))
            except RowError as error:
                raise filler.error(each, source, segments, error, rows) from error.cause


def _announce_raw(field: ResolvedField, source: Source, rows: Int64s, bases: Int64s) -> None:
    from stepwell.kernels.gather import runs_of

    for _, number, start in runs_of(field.offsets.tolist()):
        first, last = rows[:, start], rows[:, start + number - 1]
        begins = bases + first * source.row_bytes
        announce(np.stack([begins, (last - first + 1) * source.row_bytes], axis=1))
