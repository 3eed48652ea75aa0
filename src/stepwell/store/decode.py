"""Rows of one column of one segment, decoded: for batches, pools, episodes, statistics and checks alike.

::

    NAME.npy     offsets   0    812   1630   1630   2101
    NAME.bin     rows      |row 0|row 1||row 3|            row 2 has no bytes: a final row without a value
    runs                   |----------|  |----|            rows that need rows before them, from a sync row on

Needs no compiled kernel: processes that read or write episodes load none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, Decoder, SequentialCodec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.errors import CorruptSegmentError, DecodeError, StepwellError

__all__ = ["NameRows", "RowError", "StoredRows", "decode_rows", "rows_text"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
DecodeInto = Callable[[Bytes, Array], None]
NameRows = Callable[[int, int], str]
"""A name for errors of the rows from a first to a last one, both included."""
# decoded rows that an iteration holds at a time
OUT_BYTES = 64 << 20


def rows_text(first: int, last: int) -> str:
    """Return rows by their numbers."""
    return f"row {first}" if first == last else f"rows {first} to {last}"


class RowError(StepwellError):
    """A row could not be decoded: which of those wanted, and the rows of its segment that were decoded with it."""

    def __init__(self, index: int, cause: Exception, first: int, last: int) -> None:
        super().__init__(str(cause))
        self.index, self.cause, self.first, self.last = index, cause, first, last

    def named(self, name_rows: NameRows) -> Exception:
        """Return the cause; a DecodeError with the rows that it is about."""
        if not isinstance(self.cause, DecodeError):
            return self.cause
        return DecodeError(f"{name_rows(self.first, self.last)}: {self.cause}")


class StoredRows:
    """The rows of one column of one segment, or a part of them in memory of its own; safe for any number of threads."""

    __slots__ = ("blobs", "codec", "file", "name", "num_bytes", "num_rows", "offsets", "start")

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        codec: Codec,
        offsets: npt.NDArray[np.uint64] | None,
        blobs: Bytes,
        num_rows: int,
        start: int = 0,
        file: str = "",
    ) -> None:
        self.name, self.codec, self.offsets, self.blobs, self.num_rows = name, codec, offsets, blobs, num_rows
        self.num_bytes, self.start, self.file = blobs.size, start, file or f"{name}.npy"

    def edges(self, first: int, stop: int) -> list[int]:
        """Return where rows begin in the blobs, and where the last ends: the one place where offsets are checked."""
        if self.offsets is None:
            size = self.codec.feature.row_bytes
            return [row * size for row in range(first, stop + 1)]
        edges: list[int] = self.offsets[first - self.start : stop - self.start + 1].tolist()
        if edges[-1] > self.num_bytes or edges != sorted(edges):
            falls = [edge > min(end, self.num_bytes) for edge, end in pairwise(edges)]
            row = first + (falls.index(True) if True in falls else len(falls) - 1)
            raise CorruptSegmentError(
                f'{self.file}: the offsets of row {row} do not fit {self.name}.bin. Run "stepwell verify PATH".'
            )
        return edges

    def blob(self, row: int) -> Bytes:
        """Return the bytes of a row."""
        begin, end = self.edges(row, row + 1)
        return self.blobs[begin:end]

    def is_sync(self, row: int) -> bool:
        """Return whether decoding may begin at a row."""
        return not isinstance(self.codec, SequentialCodec) or self.codec.is_sync(self.blob(row))

    def run_of(self, row: int) -> tuple[int, int]:
        """Return the first row of the run of a row, and the row after its last; see `SequentialCodec.run_of`."""
        if not isinstance(self.codec, SequentialCodec) or self.offsets is None:
            return row, row + 1
        start = self.start
        first, stop = self.codec.run_of(self.offsets, self.blobs, row - start, 0, self.num_rows - start)
        if first < 0:
            raise DecodeError("no row at or before it begins a run.")
        return first + start, stop + start

    def check_sizes(self, rows: Sequence[int]) -> None:
        """Refuse a shape that rows with these offsets cannot have, before memory is taken for it."""
        feature = self.codec.feature
        if len(rows) and not feature.is_ragged:
            largest = max(end - begin for begin, end in (self.edges(row, row + 1) for row in rows))
            check_decoded_bytes(feature.row_bytes, largest, f"a row of {self.name!r}, {feature.shape}")

    def read(self, rows: Sequence[int]) -> Any:
        """Return ascending rows, decoded: an array [n, *shape], or a list where they vary in size."""
        if self.codec.feature.is_ragged:
            return self.objects(rows)
        out = np.empty((len(rows), *self.codec.feature.fixed_shape), self.codec.feature.np_dtype)
        decode_rows(self, rows, [out[i, ...] for i in range(len(rows))])
        return out

    def objects(self, rows: Sequence[int]) -> list[Any]:
        """Return rows that vary in size, each decoded on its own."""
        found = []
        for i, row in enumerate(rows):
            try:
                begin, end = self.edges(row, row + 1)
                found.append(self.codec.decode(self.blobs[begin:end]))
            except Exception as error:
                raise RowError(i, error, row, row) from error
        return found

    def values(self, rows: Sequence[int]) -> Iterator[Any]:
        """Yield ascending rows one by one; each is valid until the next, and 64 MiB are held at a time."""
        feature = self.codec.feature
        is_alone = feature.is_ragged or not self.codec.is_sequential
        most = 1 if is_alone else max(1, OUT_BYTES // max(1, feature.row_bytes))
        begin = 0
        while begin < len(rows):
            end = min(begin + most, len(rows))
            try:
                if end < len(rows) and not is_alone:
                    # whole runs, unless one is longer than that
                    cut = bisect_left(rows, self.run_of(rows[end])[0], begin, end)
                    end = cut if cut > begin else end
                yield from self.read(rows[begin:end])
            except RowError as error:
                raise error.named(rows_text) from error.cause
            begin = end

    def past_cache(self, rows: Sequence[int], read_into: Callable[[int, Bytes], None]) -> StoredRows:
        """Return the same rows over bytes read past the page cache: from the first to the last, with their runs."""
        if self.offsets is None or not len(rows):
            return self
        first, last = rows[0], rows[-1]
        try:
            if isinstance(self.codec, SequentialCodec) and self.codec.sync_mark is not None:
                first, last = self.run_of(first)[0], self.run_of(last)[1] - 1
            begin, end = self.edges(first, first + 1)[0], self.edges(last, last + 1)[1]
        except (CorruptSegmentError, DecodeError):
            # decoding says which row it is
            return self
        data = np.empty(max(0, end - begin), np.uint8)
        read_into(begin, data)
        # an offset below the first becomes too large, which `edges` refuses
        offsets = self.offsets[first : last + 2] - np.uint64(begin)
        return StoredRows(self.name, self.codec, offsets, data, last + 1, first, self.file)


def decode_rows(  # noqa: PLR0917
    stored: StoredRows,
    rows: Sequence[int],
    outs: Sequence[Array],
    decoder: Decoder | None = None,
    draws: Sequence[Array] | Array | None = None,
    known: dict[int, Array] | None = None,
    decode_into: DecodeInto | None = None,
) -> None:
    """Decode ascending rows of fixed shape, each distinct one once; ``decode_into``: the batch's own."""
    known = {} if known is None else known
    names: Sequence[Any] = (
        rows if draws is None else [(row, draw.tobytes()) for row, draw in zip(rows, draws, strict=True)]
    )
    made: dict[Any, Array] = known if decoder is None else {}
    own = []
    for i, name in enumerate(names):
        if name not in made:
            made[name] = outs[i]
            own.append(i)
    own_rows, own_outs, own_draws = rows, outs, draws
    if len(own) < len(rows):
        own_rows, own_outs = [rows[i] for i in own], [outs[i] for i in own]
        own_draws = None if draws is None else [draws[i] for i in own]
    codec = stored.codec
    try:
        if decoder is None and isinstance(codec, SequentialCodec):
            _decode_runs(stored, codec, own_rows, own_outs)
        else:
            _decode_each(stored, own_rows, own_outs, decoder, own_draws, known, decode_into)
    except RowError as error:
        error.index = own[error.index]
        raise
    if len(own) < len(rows):
        for name, out in zip(names, outs, strict=True):
            if made[name] is not out:
                out[...] = made[name]


def _decode_each(  # noqa: PLR0917
    stored: StoredRows,
    rows: Sequence[int],
    outs: Sequence[Array],
    decoder: Decoder | None,
    draws: Sequence[Array] | Array | None,
    known: dict[int, Array],
    decode_into: DecodeInto | None,
) -> None:
    """Decode rows one by one; only those with draws of their own may come several times."""
    codec = stored.codec
    is_sequential = isinstance(codec, SequentialCodec)
    if isinstance(codec, SequentialCodec) and decoder is not None:
        size = decoder.resizes_to if draws is None and codec.resizes else None
        if size is not None:
            _decode_runs(stored, codec, rows, outs, size)
            return
        _decode_whole(stored, codec, rows, known)
    feature, edges, blobs = codec.feature, stored.edges, stored.blobs
    decode_into = decode_into or codec.batch_decoder()
    for i, (row, out) in enumerate(zip(rows, outs, strict=True)):
        try:
            draw = None if draws is None else draws[i]
            if is_sequential and decoder is not None:
                decoder.convert(known[row], out, draw)
                continue
            begin, end = edges(row, row + 1)
            blob = blobs[begin:end]
            if decoder is None:
                decode_into(blob, out)
            elif stored.offsets is None:
                decoder.convert(blob.view(feature.np_dtype).reshape(feature.fixed_shape), out, draw)
            else:
                decoder.decode(codec, blob, out, draw)
        except Exception as error:
            raise RowError(i, error, row, row) from error


def _decode_whole(stored: StoredRows, codec: SequentialCodec, rows: Sequence[int], known: dict[int, Array]) -> None:
    """Decode what is not known of rows that only a run gives whole."""
    missing = [row for row in dict.fromkeys(rows) if row not in known]
    memory = np.empty((len(missing), *codec.feature.fixed_shape), codec.feature.np_dtype)
    wholes = [memory[i, ...] for i in range(len(missing))]
    try:
        _decode_runs(stored, codec, missing, wholes)
    except RowError as error:
        error.index = rows.index(missing[error.index])
        raise
    known.update(zip(missing, wholes, strict=True))


def _decode_runs(
    stored: StoredRows,
    codec: SequentialCodec,
    rows: Sequence[int],
    outs: Sequence[Array],
    size: tuple[int, int] | None = None,
) -> None:
    """Decode rows run by run; all at once where the codec itself finds those that are decoded together."""
    place = 0
    while place < len(rows):
        row, end = rows[place], len(rows)
        try:
            blobs: list[Bytes] = []
            if codec.sync_mark is None:
                for each in rows:
                    begin, after = stored.edges(each, each + 1)
                    blobs.append(stored.blobs[begin:after])
                wanted: Sequence[int] = range(end)
            else:
                # of a run that a ring shows in part, the beginning is decoded, too
                first, stop = stored.run_of(row)
                end = bisect_left(rows, stop, place)
                for begin, after in pairwise(stored.edges(first, rows[end - 1] + 1)):
                    blobs.append(stored.blobs[begin:after])
                wanted = [each - first for each in rows[place:end]]
        except Exception as error:
            raise RowError(place, error, row, row) from error
        try:
            codec.decode_run(blobs, wanted, outs[place:end], size)
        except Exception as error:
            bad = place + _first_bad(codec, blobs, wanted, outs[place:end], size)
            first, stop = (rows[bad], rows[bad] + 1) if codec.sync_mark is None else (first, stop)
            raise RowError(bad, error, first, stop - 1) from error
        place = end


def _first_bad(
    codec: SequentialCodec, blobs: list[Bytes], rows: Sequence[int], outs: Sequence[Array], size: tuple[int, int] | None
) -> int:
    """Return which row of a damaged run is the first that cannot be decoded, to name it."""
    for number, (row, out) in enumerate(zip(rows, outs, strict=True)):
        try:
            codec.decode_run(blobs, [row], [out], size)
        except Exception:
            return number
    return 0
