"""Where decoding may begin: the sync rows of a sequential column, looked for one at a time in the maps of segments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.errors import CorruptSegmentError, LoaderError
from stepwell.windows.reach import Reach
from stepwell.windows.views import Part

__all__ = ["SyncRows", "sync_rows_of"]


class SyncRows:
    """Find the sync rows of one column.

    Args:
        name: of the column.
        parts: the stores of a view; where one has the column in another codec, every row counts as a sync row.

    Notes:
        Keeps the maps of the segment that was asked for last. For one thread.
    """

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name = name
        self._parts = parts
        self._ends = np.cumsum([len(part.segments) for part in parts]).tolist()
        self._segment = -1
        self._codec: SequentialCodec | None = None
        self._maps: tuple[npt.NDArray[Any], npt.NDArray[np.uint8]] | None = None

    def around(self, segment: int, row: int, lo: int, hi: int) -> tuple[int, int]:
        """Return the sync row nearest before a row, or the row itself, and the next one after it.

        Args:
            segment: numbered over all stores.
            row: of an episode with the rows ``[lo, hi)``.
            lo: first row of the episode, which counts as a sync row.
            hi: the row after its last one; returned where no sync row follows.

        Raises:
            LoaderError: the segment is gone, or its files are too short; names store and segment.
        """
        if segment != self._segment:
            self._open(segment)
        if self._maps is None or self._codec is None:
            return row, row + 1
        first, stop = self._codec.run_of(*self._maps, row, 0, hi)
        # a ring may show a run in part; damaged bytes have no marks: the read that decodes them will say so
        return (lo, row + 1) if first < 0 else (max(first, lo), stop)

    def _open(self, number: int) -> None:
        part = self._parts[bisect_right(self._ends, number)]
        segment = part.segments[number - self._ends[bisect_right(self._ends, number)] + len(part.segments)]
        schema = part.store.schema
        feature = None if schema is None else schema[self.name]
        codec = None if feature is None or feature.is_raw else make_codec(feature)
        self._segment, self._codec, self._maps = number, None, None
        if isinstance(codec, SequentialCodec):
            try:
                self._maps = segment.offsets_map(self.name), segment.blob_map(self.name)
            except FileNotFoundError:
                raise LoaderError(
                    f"{part.store.path}: segment {segment.name} was removed since. Refresh the loader."
                ) from None
            except CorruptSegmentError as error:
                raise LoaderError(f"{part.store.path}: {error}") from error
            self._codec = codec


def sync_rows_of(reaches: Sequence[Reach], parts: Sequence[Part]) -> SyncRows | None:
    """Return the sync rows of the sequential column with the largest rows; None without one."""
    found = [reach for reach in reaches if reach.is_sequential]
    return SyncRows(max(found, key=lambda reach: reach.row_bytes).name, parts) if found else None
