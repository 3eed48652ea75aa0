"""What the fields together take of each column around an anchor: the rows that must be there before it is visited."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Decoder, SequentialCodec, make_codec
from stepwell.errors import CorruptSegmentError, LoaderError
from stepwell.windows.resolved import ResolvedField, Source
from stepwell.windows.views import Part

__all__ = [
    "PIECE_ANCHOR",
    "PIECE_COLUMNS",
    "PIECE_FIRST",
    "PIECE_HI_FINAL",
    "PIECE_HI_STEP",
    "PIECE_LAST",
    "PIECE_LO",
    "PIECE_SEGMENT",
    "Reach",
    "SyncRows",
    "column_of",
    "reaches",
    "sync_rows_of",
]

Int64s = npt.NDArray[np.int64]

# columns of a table of pieces, see stepwell.windows.blocks
PIECE_ANCHOR, PIECE_SEGMENT, PIECE_FIRST, PIECE_LAST, PIECE_LO, PIECE_HI_STEP, PIECE_HI_FINAL = range(7)
PIECE_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class Reach:
    """The offsets between which all fields of a view read one column.

    Args:
        name: of the column.
        first: the earliest offset from the anchor.
        last: the latest.
        is_final: whether it has a value in an episode's final row.
        row_bytes: bytes of a decoded row, as the pool holds it.
        is_sequential: whether rows must be decoded from a sync row on.
        is_encoded: whether a field that reads it needs decoding.
        shape: of a row as the pool holds it.
        dtype: likewise.
        decoder: that makes such a row, or None for the feature's own.
    """

    name: str
    first: int
    last: int
    is_final: bool
    row_bytes: int
    is_sequential: bool
    is_encoded: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    decoder: Decoder | None

    def rows(self, pieces: Int64s) -> tuple[Int64s, Int64s]:
        """Return the rows that the windows of pieces reach in this column."""
        hi = pieces[..., PIECE_HI_FINAL] if self.is_final else pieces[..., PIECE_HI_STEP]
        first = np.maximum(pieces[..., PIECE_LO], pieces[..., PIECE_FIRST] + min(self.first, 0))
        return first, np.minimum(hi, pieces[..., PIECE_LAST] + max(self.last, 0) + 1)


def reaches(fields: Iterable[ResolvedField]) -> tuple[Reach, ...]:
    """Return the reach of every column that can be held: ragged and computed ones, and moved windows, cannot.

    A column of which a decoder makes the same for every window is held as that; another decoder of it is one more.
    """
    found: list[Reach] = []
    for field in fields:
        for source in field.sources:
            if not field.is_held or source.kind == "virtual":
                continue
            number = column_of(found, source)
            first, last, is_encoded = field.min_offset, field.max_offset, field.is_encoded
            if number is not None:
                known = found.pop(number)
                first, last = min(first, known.first), max(last, known.last)
                is_encoded |= known.is_encoded
            found.insert(len(found) if number is None else number, _reach(source, first, last, is_encoded))
    return tuple(found)


def column_of(columns: Sequence[Reach], source: Source) -> int | None:
    """Return the number of the held column that a source reads, or None."""
    decoder = None if source.is_drawn else source.decoder
    for number, column in enumerate(columns):
        if column.name == source.name and column.decoder == decoder:
            return number
    return None


def _reach(source: Source, first: int, last: int, is_encoded: bool) -> Reach:
    feature = source.feature
    if source.is_drawn and feature is not None:
        shape, dtype, decoder = feature.fixed_shape, feature.np_dtype, None
    else:
        shape, dtype, decoder = cast(tuple[int, ...], source.shape), source.dtype, source.decoder
    row_bytes = math.prod(shape) * dtype.itemsize
    return Reach(
        source.name,
        first,
        last,
        source.is_final,
        row_bytes,
        source.is_sequential,
        is_encoded,
        shape,
        dtype,
        decoder,
    )


class SyncRows:
    """Find the sync rows of one column."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name = name
        self._parts = parts
        self._ends = np.cumsum([len(part.segments) for part in parts]).tolist()
        self._segment = -1
        self._codec: SequentialCodec | None = None
        self._maps: tuple[npt.NDArray[Any], npt.NDArray[np.uint8]] | None = None

    def around(self, segment: int, row: int, lo: int, hi: int) -> tuple[int, int]:
        """Return the sync row nearest before a row, or the row itself, and the next one after it."""
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
