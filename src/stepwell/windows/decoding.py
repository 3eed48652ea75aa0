"""Encoded and ragged columns of a batch.

A row of a fixed shape is decoded once a batch, and copied where the batch has it again; rows of a sequential codec are
decoded run by run. Ragged rows are decoded for each cell, since cells that shared an array would change together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, Decoder, SequentialCodec, make_codec
from stepwell.errors import CorruptSegmentError, DecodeError, StepwellError
from stepwell.windows.maps import Column, MapTable

__all__ = ["Cells", "ColumnDecoder", "RowError", "Span", "decode_runs"]

Int64s = npt.NDArray[np.int64]
Rows = dict[int, npt.NDArray[Any]]
Span = tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]


class RowError(StepwellError):
    """A row could not be decoded; says which one of those that were asked for. Never leaves the reader."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.index, self.cause = index, cause


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The rows that a batch wants of one column, one a cell.

    Args:
        table: maps, the segments among them.
        segments: int64 [m].
        rows: int64 [m]; -1 asks for zeros.
    """

    table: MapTable
    segments: Int64s
    rows: Int64s


class ColumnDecoder:
    """Decode the rows of one column, whatever codec each store has for it.

    Args:
        column: the feature in each store.
        number: of the column in the table of maps.
        stores: int64 [S], number of the store of each segment.

    Attributes:
        only_copies: whether its rows are plain ones in other files, copied a batch at a time.

    Notes:
        Thread-safe: codecs keep no state between calls, and a batch's decoded rows live in a mapping that its read
        owns.
    """

    def __init__(self, column: Column, number: int, stores: Int64s) -> None:
        self._column, self._slot = column, 2 * number
        self._stores = stores
        self._codecs: list[Codec] = [make_codec(feature) for feature in column.features]
        self._row_bytes = [feature.row_bytes if feature.is_raw else -1 for feature in column.features]
        sizes = {codec.stored_row_bytes for codec in self._codecs}
        self._is_bulk = len(sizes) == 1 and None not in sizes
        self._has_one_codec = len({(feature, feature.reach) for feature in column.features}) == 1
        self.only_copies = self._is_bulk and all(codec.only_copies for codec in self._codecs)

    def follow(self, stores: Int64s) -> None:
        """Take in segments that came: the number of the store of each, int64 [S]."""
        self._stores = stores

    def codec_of(self, segment: int) -> Codec:
        """Return the codec that a segment's rows are encoded with."""
        return self._codecs[int(self._stores[segment])]

    def is_raw_in(self, segment: int) -> bool:
        """Return whether the segment's store has the column as plain rows."""
        return self._row_bytes[int(self._stores[segment])] >= 0

    def maps_of(self, table: MapTable, segment: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
        """Return a segment's offsets and blobs (both the rows, where its store has them raw)."""
        maps = table.arrays[segment] or []
        first, second = maps[self._slot], maps[self._slot + 1]
        return first, first if second is None else second  # type: ignore[return-value]

    def read_into(self, cells: Cells, out: npt.NDArray[Any], done: Rows, size: tuple[int, int] | None = None) -> None:
        """Decode rows of a fixed shape into a batch's memory.

        Args:
            cells: what is wanted.
            out: [m, *shape], each entry C-contiguous; written.
            done: rows of this batch that were decoded already, by (segment << 32 | row); added to.
            size: height and width that a sequential codec resizes to; None: as the feature says.

        Raises:
            RowError: bytes that are no row.
        """
        if not out[:1].size or (self._is_bulk and self._read_bulk(cells, out)):
            return
        is_own = self._read_runs(cells, out, done, size)
        decoders = _BatchDecoders(self)
        for i, (key, segment, blob) in enumerate(self._blobs(cells)):
            known = done.get(key)
            if key < 0:
                out[i] = np.zeros((), out.dtype)
            elif known is not None:
                if i not in is_own:
                    out[i] = known
            else:
                cell = done[key] = out[i, ...]
                try:
                    decoders[segment](blob, cell)
                except Exception as error:
                    raise RowError(i, error) from error

    def convert_into(
        self, cells: Cells, out: npt.NDArray[Any], done: Rows, decoder: Decoder, draws: npt.NDArray[Any] | None
    ) -> None:
        """Make steps of rows by a field's decoder.

        Args:
            cells: what is wanted.
            out: [m, *shape], each entry C-contiguous; written.
            done: whole rows of this batch by key; added to where a sequential codec decodes them.
            decoder: of the field.
            draws: [m, ...], what is random about each cell's window, or None.

        Raises:
            RowError: bytes that are no row.
        """
        if not out[:1].size:
            return
        made: dict[Any, npt.NDArray[Any]] = {}
        resized = self._read_runs(cells, out, made, decoder.resizes_to) if decoder.resizes_to else set()
        whole = self._whole_rows(cells, done, is_resized=decoder.resizes_to is not None)
        for i, (key, segment, blob) in enumerate(self._blobs(cells)):
            if key < 0:
                out[i] = np.zeros((), out.dtype)
                continue
            if i in resized:
                continue
            draw = None if draws is None else draws[i]
            name = key if draw is None else (key, draw.tobytes())
            if name in made:
                out[i] = made[name]
                continue
            cell = made[name] = out[i, ...]
            try:
                if key in whole:
                    decoder.convert(whole[key], cell, draw)
                elif self.is_raw_in(segment):
                    decoder.convert(self._row_of(segment, blob), cell, draw)
                else:
                    decoder.decode(self.codec_of(segment), blob, cell, draw)
            except Exception as error:
                raise RowError(i, error) from error

    def read_objects(self, cells: Cells, out: npt.NDArray[np.object_]) -> None:
        """Decode rows of any size into the cells of an object array [m]; -1 asks for an empty value.

        Raises:
            RowError: bytes that are no row.
        """
        for i, (key, segment, blob) in enumerate(self._blobs(cells)):
            try:
                out[i] = self._empty() if key < 0 else self.codec_of(segment).decode(blob)
            except Exception as error:
                raise RowError(i, error) from error

    def addresses(self, table: MapTable, segments: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return where the encoded bytes of rows lie in memory: address and size of each, int64 [m] twice."""
        begins, ends = self._spans(table, segments, rows)
        is_raw = np.array(self._row_bytes)[self._stores[segments]] >= 0
        slots = np.where(is_raw, self._slot, self._slot + 1)
        return table.addresses[slots, segments] + begins, ends - begins

    def _read_bulk(self, cells: Cells, out: npt.NDArray[Any]) -> bool:
        """Decode all rows at once; False where one cannot be, which is found when they are decoded one by one."""
        addresses, sizes, blobs = cells.table.addresses, cells.table.sizes, self._slot + 1
        stored = np.empty((len(cells.rows), self._codecs[0].stored_row_bytes or 0), np.uint8)
        bases = addresses[self._slot], addresses[blobs], sizes[blobs]
        if _take_kernel()(*bases, cells.segments, cells.rows, stored) >= 0:
            return False
        try:
            if self._has_one_codec and cells.rows.min() >= 0:
                self._codecs[0].decode_rows(stored, out)
            else:
                self._read_parts(cells, stored, out)
        except DecodeError:
            return False
        return True

    def _read_parts(self, cells: Cells, stored: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the rows of each store at once, and write zeros where none is asked for."""
        is_there, stores = cells.rows >= 0, self._stores[cells.segments]
        for store in np.unique(stores[is_there]).tolist():
            members = np.flatnonzero(is_there & (stores == store))
            found = np.empty((len(members), *out.shape[1:]), out.dtype)
            self._codecs[store].decode_rows(stored[members], found)
            out[members] = found
        out[~is_there] = np.zeros((), out.dtype)

    def _read_runs(
        self, cells: Cells, out: npt.NDArray[Any], done: Rows, size: tuple[int, int] | None = None
    ) -> set[int]:
        """Decode what sequential codecs have of the cells, each row into its first; return those cells."""
        own: set[int] = set()
        if not any(codec.is_sequential for codec in self._codecs):
            return own
        keys = np.where(cells.rows < 0, -1, (cells.segments << 32) | cells.rows)
        unique, first = np.unique(keys, return_index=True)
        wanted = [i for key, i in zip(unique.tolist(), first.tolist(), strict=True) if key >= 0 and key not in done]
        # by key, and so by segment
        segments = cells.segments.tolist()
        for segment, group in groupby(wanted, key=segments.__getitem__):
            codec = self.codec_of(segment)
            if not isinstance(codec, SequentialCodec) or self.is_raw_in(segment):
                continue
            if size is not None and not codec.resizes:
                continue
            members = list(group)
            # spans are checked before a kernel walks along them
            self._spans(cells.table, cells.segments[members], cells.rows[members])
            outs = [out[i, ...] for i in members]
            maps = self.maps_of(cells.table, segment), int(cells.table.num_rows[segment])
            try:
                decode_runs(codec, *maps, cells.rows[members].tolist(), outs, size)
            except RowError as error:
                raise RowError(members[error.index], error.cause) from error.cause
            done.update(zip(keys[members].tolist(), outs, strict=True))
            own.update(members)
        return own

    def _whole_rows(self, cells: Cells, done: Rows, is_resized: bool) -> Rows:
        """Return the rows that only a sequential codec can decode, decoded, unless each was resized as it was."""
        runs = [codec for codec in self._codecs if isinstance(codec, SequentialCodec)]
        if all(is_resized and codec.resizes for codec in runs):
            return {}
        # stores may have rows of several shapes, of which the decoder makes one
        for shape in dict.fromkeys(codec.feature.fixed_shape for codec in runs):
            is_such = np.array([codec.feature.shape == shape for codec in self._codecs])
            own = np.flatnonzero(is_such[self._stores[cells.segments]])
            part = Cells(cells.table, cells.segments[own], cells.rows[own])
            try:
                self._read_runs(part, np.empty((len(own), *shape), self._column.features[0].np_dtype), done)
            except RowError as error:
                raise RowError(int(own[error.index]), error.cause) from error.cause
        return done

    def _row_of(self, segment: int, row: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        feature = self._column.features[int(self._stores[segment])]
        return row.view(feature.np_dtype).reshape(feature.fixed_shape)

    def _blobs(self, cells: Cells) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
        begins, ends = self._spans(cells.table, cells.segments, cells.rows)
        keys = np.where(cells.rows < 0, -1, (cells.segments << 32) | cells.rows)
        arrays: Mapping[int, npt.NDArray[np.uint8]] = {
            segment: self.maps_of(cells.table, segment)[1] for segment in np.unique(cells.segments).tolist()
        }
        for key, segment, begin, end in zip(
            keys.tolist(), cells.segments.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            yield key, segment, arrays[segment][begin:end]

    def _spans(self, table: MapTable, segments: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        from stepwell.kernels.spans import spans

        row_bytes = np.array(self._row_bytes, dtype=np.int64)[self._stores[segments]]
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        # rows of a fixed size have no offsets to look up
        encoded = np.where(row_bytes >= 0, -1, rows)
        wrong = spans(table.addresses[self._slot], table.sizes[self._slot + 1], segments, encoded, begins, ends)
        if wrong >= 0:
            raise RowError(int(wrong), misplaced(self._column.name, int(rows[wrong])))
        is_raw = (row_bytes >= 0) & (rows >= 0)
        np.multiply(rows, row_bytes, out=begins, where=is_raw)
        np.add(begins, row_bytes, out=ends, where=is_raw)
        return begins, ends

    def _empty(self) -> Any:
        feature = self._column.features[0]
        if feature.kind == "text":
            return ""
        if feature.kind == "bytes":
            return b""
        return np.zeros([int(n or 0) for n in feature.shape], feature.np_dtype)


class _BatchDecoders(dict[int, Callable[[npt.NDArray[np.uint8], npt.NDArray[Any]], None]]):
    """By segment, what decodes its rows of one batch; made when it is asked for, one for each codec."""

    def __init__(self, column: ColumnDecoder) -> None:
        self._column = column
        self._made: dict[Codec, Callable[[npt.NDArray[np.uint8], npt.NDArray[Any]], None]] = {}

    def __missing__(self, segment: int) -> Callable[[npt.NDArray[np.uint8], npt.NDArray[Any]], None]:
        codec = self._column.codec_of(segment)
        found = self._made.get(codec)
        if found is None:
            found = self._made[codec] = codec.batch_decoder()
        self[segment] = found
        return found


@functools.cache
def _take_kernel() -> Any:
    """Return the kernel; looked up once, where an import for every batch would take as long as it does."""
    from stepwell.kernels.spans import take_rows

    return take_rows


def misplaced(name: str, row: int) -> CorruptSegmentError:
    """Return the error of a row whose offsets lie outside its file."""
    return CorruptSegmentError(
        f'{name}.npy: the offsets of row {row} do not fit {name}.bin. Run "stepwell verify PATH".'
    )


def decode_runs(  # noqa: PLR0917
    codec: SequentialCodec,
    span: Span,
    num_rows: int,
    wanted: list[int],
    outs: list[npt.NDArray[Any]],
    size: tuple[int, int] | None = None,
) -> None:
    """Decode rows of one segment, each run once.

    Args:
        codec: of the column.
        span: offsets, uint64 [>= num_rows + 1], and blobs, uint8 [n].
        num_rows: how many may be read. Those that a ring does not show any more are among them: a run that is shown in
            part is decoded from its beginning on.
        wanted: ascending rows.
        outs: for each an array to write.
        size: see `SequentialCodec.decode_run`.

    Raises:
        RowError: bytes that are no row; its index counts in ``wanted``.
    """
    offsets, blob = span
    if codec.sync_mark is None:
        _decode_any(codec, offsets, blob, wanted, outs, size)
        return
    place = 0
    while place < len(wanted):
        row = wanted[place]
        first, stop = codec.run_of(offsets, blob, row, 0, num_rows)
        if first < 0:
            raise RowError(place, DecodeError(f"row {row} of its segment: no row before it can be decoded by itself."))
        end = place + 1
        while end < len(wanted) and wanted[end] < stop:
            end += 1
        edges = offsets[first : stop + 1].astype(np.int64).tolist()
        blobs = [blob[begin:until] for begin, until in pairwise(edges)]
        rows = [each - first for each in wanted[place:end]]
        try:
            codec.decode_run(blobs, rows, outs[place:end], size)
        except Exception as error:
            raise RowError(place + _first_bad(codec, blobs, rows, outs[place:end], size), error) from error
        place = end


def _decode_any(  # noqa: PLR0917
    codec: SequentialCodec,
    offsets: npt.NDArray[Any],
    blob: npt.NDArray[np.uint8],
    rows: list[int],
    outs: list[npt.NDArray[Any]],
    size: tuple[int, int] | None,
) -> None:
    """Decode rows of a codec that itself finds those that are decoded together: all at once."""
    begins, ends = offsets[rows].tolist(), offsets[np.add(rows, 1)].tolist()
    blobs = [blob[begin:end] for begin, end in zip(begins, ends, strict=True)]
    try:
        codec.decode_run(blobs, range(len(rows)), outs, size)
    except Exception as error:
        raise RowError(_first_bad(codec, blobs, list(range(len(rows))), outs, size), error) from error


def _first_bad(
    codec: SequentialCodec,
    blobs: list[npt.NDArray[np.uint8]],
    rows: list[int],
    outs: list[npt.NDArray[Any]],
    size: tuple[int, int] | None,
) -> int:
    """Return which row of a damaged run is the first that cannot be decoded, to name it."""
    for number, (row, out) in enumerate(zip(rows, outs, strict=True)):
        try:
            codec.decode_run(blobs, [row], [out], size)
        except Exception:
            return number
    return 0
