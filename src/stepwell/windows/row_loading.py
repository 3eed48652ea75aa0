"""Runs of rows into memory: decoded, or read past the page cache, once for all windows that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, SequentialCodec
from stepwell.errors import CorruptSegmentError, DecodeError, LoaderError
from stepwell.windows.blocks import piece_bytes
from stepwell.windows.decoding import ColumnDecoder, RowError, Span, decode_runs, misplaced
from stepwell.windows.index import AnchorIndex
from stepwell.windows.layouts import ALIGNMENT
from stepwell.windows.maps import MapError, MapTable, SegmentMaps
from stepwell.windows.reach import PIECE_FIRST, PIECE_LAST, PIECE_SEGMENT, Reach

__all__ = ["RowLoader"]

Int64s = npt.NDArray[np.int64]


class RowLoader:
    """Load the rows that pieces of the anchors reach.

    ::

        piece (segment, rows of its anchors)    memory  |image rows......|pad|depth rows....|
          | Reach.rows, for each column                  ^ addresses[0] + first * row_bytes
          | decode, or read

    Args:
        index: of the anchors.
        maps: of the segments.
        columns: that are held.
        decoders: name of a column to its `ColumnDecoder`, of those that any store encodes.
        slots: name of a column to its row in the maps' table.
        page_cache: whether to read through maps; else what is large is read past it.

    Notes:
        Thread-safe: any number of `load` at once, each into memory of its own.
    """

    def __init__(
        self,
        index: AnchorIndex,
        maps: SegmentMaps,
        columns: Sequence[Reach],
        decoders: Mapping[str, ColumnDecoder],
        slots: Mapping[str, int],
        *,
        page_cache: bool,
    ) -> None:
        self.columns = tuple(columns)
        self.page_cache = page_cache
        self._index, self._maps, self._decoders, self._slots = index, maps, dict(decoders), dict(slots)
        self._finals = _final_rows(index)

    def new_table(self, num_pieces: int) -> MapTable:
        """Return an empty table for so many held pieces."""
        return MapTable(len(self.columns), num_pieces)

    def num_bytes(self, pieces: Int64s) -> Int64s:
        """Return the bytes of memory that each piece takes.

        Args:
            pieces: int64 [q, 7], see `stepwell.windows.blocks`.

        Returns:
            int64 [q].
        """
        return piece_bytes(self.columns, pieces)

    def load(self, piece: Int64s, memory: npt.NDArray[np.uint8]) -> Int64s:
        """Load the rows of one piece.

        Args:
            piece: int64 [7].
            memory: uint8 [>= num_bytes], written. At a multiple of 64 bytes, or anywhere if all columns are of bytes.

        Returns:
            int64 [2 * columns], the piece's column of a table's addresses; odd entries are 0.

        Raises:
            LoaderError: a row could not be read or decoded; names store, episode and step.
        """
        addresses = np.zeros(2 * len(self.columns), dtype=np.int64)
        base = int(memory.__array_interface__["data"][0])
        segment, start = int(piece[PIECE_SEGMENT]), 0
        anchors = int(piece[PIECE_FIRST]), int(piece[PIECE_LAST])
        for number, column in enumerate(self.columns):
            first, stop = (int(row) for row in column.rows(piece))
            num_bytes = (stop - first) * column.row_bytes
            out = memory[start : start + num_bytes].view(column.dtype).reshape(stop - first, *column.shape)
            addresses[2 * number] = base + start - first * column.row_bytes
            if num_bytes:
                stretches = self._index.stretches(segment, anchors, first, stop)
                table = self._mapped([each for each, _, _ in stretches], anchors[0])
                done = 0
                for each, begin, end in stretches:
                    self._load_column(column, table, each, begin, out[done : done + end - begin])
                    done += end - begin
            start += int(_aligned(num_bytes))
        return addresses

    def _mapped(self, segments: list[int], row: int) -> MapTable:
        try:
            return self._maps.ensure(np.array(segments))
        except MapError as error:
            raise LoaderError(f"{self._index.where(error.segment, row)}: {error.cause}") from error.cause

    def _load_column(self, column: Reach, table: MapTable, segment: int, first: int, out: npt.NDArray[Any]) -> None:
        decoder = self._decoders.get(column.name)
        try:
            if decoder is not None and not decoder.is_raw_in(segment):
                self._decode(column, decoder, table, segment, first, out)
            else:
                self._copy(column, table, segment, first, out)
        except RowError as error:
            row = first + error.index
            what = f"{self._maps.file_of(column.name, segment)}: {error.cause}"
            raise LoaderError(f"{self._index.where(segment, row)}, {what}") from error.cause
        except CorruptSegmentError as error:
            # names its file itself
            raise LoaderError(f"{self._index.where(segment, first)}, {error}") from error
        except OSError as error:
            what = f"{self._maps.file_of(column.name, segment)}: {error}"
            raise LoaderError(f"{self._index.where(segment, first)}, {what}") from error

    def _copy(self, column: Reach, table: MapTable, segment: int, first: int, out: npt.NDArray[Any]) -> None:
        """Copy plain rows, and let the field's decoder make something of them."""
        feature = self._maps.feature_of(column.name, segment)
        begin, num_bytes = first * feature.row_bytes, len(out) * feature.row_bytes
        if self.page_cache:
            rows = (table.arrays[segment] or [])[self._slots[column.name]]
            data = rows[begin : begin + num_bytes]  # type: ignore[index]
        else:
            is_own = column.decoder is None
            data = out.reshape(-1).view(np.uint8) if is_own else np.empty(num_bytes, np.uint8)
            self._maps.segments[segment].read_raw_into(column.name, begin, data)
        values = data.view(feature.np_dtype).reshape(len(out), *feature.fixed_shape)
        if column.decoder is not None:
            for i, value in enumerate(values):
                column.decoder.convert(value, out[i, ...], None)
        elif self.page_cache:
            out[...] = values

    def _decode(  # noqa: PLR0917
        self, column: Reach, decoder: ColumnDecoder, table: MapTable, segment: int, first: int, out: npt.NDArray[Any]
    ) -> None:
        codec = decoder.codec_of(segment)
        offsets, blob = decoder.maps_of(table, segment)
        rows = self._rows_with_value(column, segment, first, first + len(out))
        edges = offsets[first : first + len(out) + 1].astype(np.int64)
        if (np.diff(edges) < 0).any() or edges[-1] > blob.size or edges[0] < 0:
            wrong = int(np.argmax(np.append(np.diff(edges) < 0, True)))
            raise RowError(wrong, misplaced(column.name, first + wrong))
        if self.page_cache and self._maps.is_announcing:
            _announce(blob[edges[0] : edges[-1]])
        if isinstance(codec, SequentialCodec):
            span, num_rows = (offsets, blob), int(table.num_rows[segment])
            self._decode_runs(column, codec, span, num_rows, segment, rows, first, out)
            return
        start = int(edges[0])
        if self.page_cache:
            blob = blob[start : edges[-1]]
        else:
            blob = self._read_blobs(column.name, segment, start, int(edges[-1]))
        is_bulk = column.decoder is None and codec.stored_row_bytes is not None
        if is_bulk and _decode_at_once(codec, blob, np.diff(edges), np.array(rows) - first, out):
            return
        spans = (edges - start).tolist()
        decode_into = codec.batch_decoder()
        for row in rows:
            i = row - first
            try:
                if column.decoder is None:
                    decode_into(blob[spans[i] : spans[i + 1]], out[i, ...])
                else:
                    column.decoder.decode(codec, blob[spans[i] : spans[i + 1]], out[i, ...], None)
            except Exception as error:
                raise RowError(i, error) from error

    def _decode_runs(  # noqa: PLR0917
        self,
        column: Reach,
        codec: SequentialCodec,
        span: Span,
        num_rows: int,
        segment: int,
        rows: list[int],
        first: int,
        out: npt.NDArray[Any],
    ) -> None:
        size = column.decoder.resizes_to if column.decoder is not None and codec.resizes else None
        is_direct = column.decoder is None or size is not None
        feature = self._maps.feature_of(column.name, segment)
        made = out if is_direct else np.empty((len(out), *feature.fixed_shape), feature.np_dtype)
        begin = 0
        if not self.page_cache and rows:
            begin, span, num_rows = self._read_runs(column.name, codec, span, num_rows, segment, rows)
        outs = [made[row - first, ...] for row in rows]
        try:
            decode_runs(codec, span, num_rows, [row - begin for row in rows], outs, size)
        except RowError as error:
            raise RowError(rows[error.index] - first, error.cause) from error.cause
        if column.decoder is not None and not is_direct:
            for row in rows:
                column.decoder.convert(made[row - first], out[row - first, ...], None)

    def _read_runs(  # noqa: PLR0917
        self, name: str, codec: SequentialCodec, span: Span, num_rows: int, segment: int, rows: list[int]
    ) -> tuple[int, Span, int]:
        """Read the runs that hold rows past the page cache; return the first run's row, and what begins with it."""
        offsets, blob = span
        begin, _ = codec.run_of(offsets, blob, rows[0], 0, num_rows)
        _, end = codec.run_of(offsets, blob, rows[-1], 0, num_rows)
        if begin < 0 or end < 0:
            return 0, span, num_rows
        edges = offsets[begin : end + 1].astype(np.int64)
        if (np.diff(edges) < 0).any() or edges[-1] > blob.size:
            raise RowError(0, misplaced(name, begin))
        data = self._read_blobs(name, segment, int(edges[0]), int(edges[-1]))
        return begin, ((edges - edges[0]).astype(np.uint64), data), end - begin

    def _read_blobs(self, name: str, segment: int, begin: int, end: int) -> npt.NDArray[np.uint8]:
        data = np.empty(end - begin, np.uint8)
        self._maps.segments[segment].read_blob_into(name, begin, data)
        return data

    def _rows_with_value(self, column: Reach, segment: int, first: int, stop: int) -> list[int]:
        """Return the rows that hold something: a feature without a final value has none in an episode's final row."""
        if column.is_final:
            return list(range(first, stop))
        begin, end = np.searchsorted(self._finals, [(segment << 32) | first, (segment << 32) | stop])
        finals = set((self._finals[begin:end] & 0xFFFFFFFF).tolist())
        return [row for row in range(first, stop) if row not in finals]


def _decode_at_once(
    codec: Codec, blob: npt.NDArray[np.uint8], sizes: Int64s, places: Int64s, out: npt.NDArray[Any]
) -> bool:
    """Decode rows that are all of one size; False where they are not, or one cannot be decoded.

    Args:
        codec: with a `stored_row_bytes`.
        blob: uint8, all rows, back to back.
        sizes: int64 [n], bytes of each; those without a value have none.
        places: int64 [m], which of the n have a value.
        out: [n, *shape], written.
    """
    size = codec.stored_row_bytes or 0
    if (sizes[places] != size).any() or blob.size != size * len(places):
        return False
    found = out if len(places) == len(out) else np.empty((len(places), *out.shape[1:]), out.dtype)
    try:
        codec.decode_rows(blob.reshape(-1, size), found)
    except DecodeError:
        return False
    if found is not out:
        out[places] = found
    return True


def _announce(span: npt.NDArray[np.uint8]) -> None:
    """Tell the system that mapped bytes are about to be read: it fetches them at once instead of a page at a time."""
    from stepwell.kernels.spans import announce

    announce(np.array([span.__array_interface__["data"][0]]), np.array([span.nbytes]))


def _final_rows(index: AnchorIndex) -> Int64s:
    """Return the final rows of all episodes as sorted (segment << 32 | row)."""
    segments, _, _, hi_step, hi_final = index.records.T
    # of other pieces than the view's only steps are read, but for the last one's final row
    has_final = hi_final > hi_step
    return np.sort((segments[has_final] << 32) | hi_step[has_final])


def _aligned(num_bytes: Any) -> Any:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
