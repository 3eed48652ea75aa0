"""Reading rows of a sequential column: run by run, each decoded once.

Runs are found here as by `SequentialCodec.run_of`, without its compiled kernel: an episode is read, or written, by
processes that need no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec
from stepwell.errors import DecodeError

__all__ = ["NameRows", "RunReader", "rows_text"]

Int64s = npt.NDArray[np.int64]
LOOK_ROWS = 256
OUT_BYTES = 64 << 20
NameRows = Callable[[int, int], str]
"""What errors call the rows from a first to a last one, both included."""


def rows_text(first: int, last: int) -> str:
    """Return rows by their numbers.

    Example:
        >>> rows_text(3, 3), rows_text(3, 7)
        ('row 3', 'rows 3 to 7')
    """
    return f"row {first}" if first == last else f"rows {first} to {last}"


class RunReader:
    """The runs of a column, or of the front of one that is committed.

    Args:
        codec: of the feature.
        offsets: uint64 [>= num_rows + 1], which rise and end within ``blobs``.
        blobs: uint8 [n], the encoded rows back to back.
        num_rows: how many there are.
        name_rows: what errors call rows; default: their numbers.

    Notes:
        Keeps nothing but its arguments: safe for any number of threads.
    """

    def __init__(
        self,
        codec: SequentialCodec,
        offsets: npt.NDArray[Any],
        blobs: npt.NDArray[np.uint8],
        num_rows: int,
        name_rows: NameRows = rows_text,
    ) -> None:
        self._codec, self._offsets, self._blobs, self._name_rows = codec, offsets, blobs, name_rows
        self.num_rows = num_rows

    def is_sync(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return at which of the rows [start, stop) decoding may begin: bool [stop - start]."""
        offsets = self._offsets[start : stop + 1].astype(np.int64)
        if self._codec.sync_mark is None:
            has_bytes: npt.NDArray[np.bool_] = np.diff(offsets) > 0
            return has_bytes
        position, mask = self._codec.sync_mark
        marks = offsets[:-1] + position
        is_there = (marks < offsets[1:]) & (marks >= 0) & (marks < len(self._blobs))
        found: npt.NDArray[np.bool_] = is_there.copy()
        found[is_there] = self._blobs[marks[is_there]] & mask != 0
        return found

    def bounds(self, row: int) -> tuple[int, int]:
        """Return the first row of the run that a row is in, and the row after its last.

        Raises:
            DecodeError: no row before it begins a run.
        """
        if self._codec.sync_mark is None:
            return self._codec.run_of(self._offsets, self._blobs, row, 0, self.num_rows)
        return self._first(row), self._stop(row)

    def decode(self, rows: Sequence[int] | Int64s, outs: Sequence[npt.NDArray[Any]]) -> None:
        """Decode rows.

        Args:
            rows: ascending.
            outs: for each a C-contiguous array of the feature's dtype and shape; written.

        Raises:
            DecodeError: naming the rows of the run that cannot be decoded.
        """
        for first, stop, begin, end in self.pieces(rows):
            blobs = [self._blob(row) for row in range(first, stop)]
            wanted = [int(row) - first for row in rows[begin:end]]
            try:
                self._codec.decode_run(blobs, wanted, outs[begin:end])
            except DecodeError as error:
                raise DecodeError(f"{self._name_rows(first, stop - 1)}: {error}") from error

    def values(self, rows: Sequence[int] | Int64s) -> Iterator[npt.NDArray[Any]]:
        """Yield ascending rows one by one; each is valid until the next is asked for, and 64 MiB are held at once."""
        feature = self._codec.feature
        many = max(1, OUT_BYTES // max(1, feature.row_bytes))
        for begin, end in self._batches(rows, many):
            memory = np.empty((end - begin, *feature.fixed_shape), feature.np_dtype)
            self.decode(rows[begin:end], [memory[i, ...] for i in range(end - begin)])
            yield from memory

    def pieces(self, rows: Sequence[int] | Int64s) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first row, row after the last) of each run that ascending rows are in, and their range in ``rows``."""
        begin = 0
        while begin < len(rows):
            first, stop = self.bounds(int(rows[begin]))
            end = begin + int(np.searchsorted(np.asarray(rows[begin:]), stop))
            yield first, stop, begin, end
            begin = end

    def _batches(self, rows: Sequence[int] | Int64s, many: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of ``rows``: whole runs up to ``many`` rows, or parts of a longer one."""
        start = stop = 0
        for _, _, begin, end in self.pieces(rows):
            if end - start > many and stop > start:
                yield start, stop
                start = begin
            while end - start > many:
                yield start, start + many
                start += many
            stop = end
        if stop > start:
            yield start, stop

    def _blob(self, row: int) -> npt.NDArray[np.uint8]:
        return self._blobs[int(self._offsets[row]) : int(self._offsets[row + 1])]

    def _first(self, row: int) -> int:
        stop = row + 1
        while stop > 0:
            start = max(0, stop - LOOK_ROWS)
            found = np.flatnonzero(self.is_sync(start, stop))
            if len(found):
                return start + int(found[-1])
            stop = start
        raise DecodeError(f"{self._name_rows(row, row)}: no row at or before it begins a run.")

    def _stop(self, row: int) -> int:
        start = row + 1
        while start < self.num_rows:
            stop = min(self.num_rows, start + LOOK_ROWS)
            sizes = np.diff(self._offsets[start : stop + 1].astype(np.int64))
            # an empty row is a final one without a value
            found = np.flatnonzero(self.is_sync(start, stop) | (sizes == 0))
            if len(found):
                return start + int(found[0])
            start = stop
        return self.num_rows
