"""Where single byte strings of a row group lie in the file, found while the row group is in memory.

A row group that did not stay in memory can then be read in part: of an uncompressed page the bytes themselves, of a
Snappy one the blocks of 64 KiB that they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError
from stepwell.files.local_files import FileState, open_file
from stepwell.lerobot.parquet_pages import Page, entries_of, pages_of

__all__ = ["RowPlaces", "find_places"]

Uint8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
# so many rows one after the other, and the whole row group is wanted
STREAK_ROWS = 32
CODECS = {"UNCOMPRESSED": False, "SNAPPY": True}


@dataclass(slots=True, eq=False)
class RowPlaces:
    """Places of the byte strings of one column in one row group."""

    # int64 [rows, 5]: begin and end in the file of what has to be read, its bytes when it is decompressed (-1: it is
    # not compressed), how many of them come before the string, and the string's bytes. No rows: they could not be found
    rows: Int64s
    _last: int = -1
    _streak: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return self.rows.nbytes

    def is_for(self, row: int) -> bool:
        """Return whether a row shall be read alone: it can be, and is not one of many that follow each other."""
        if not len(self.rows):
            return False
        self._streak = self._streak + 1 if row == self._last + 1 else 0
        self._last = row
        return self._streak < STREAK_ROWS

    def read(self, path: str, state: FileState, row: int) -> Uint8s:
        """Return the byte string of a row."""
        begin, end, num_bytes, before, size = self.rows[row].tolist()
        if size == 0:
            return np.empty(0, np.uint8)
        try:
            file = open_file(path, state)
            data = file.read(begin, end - begin)
        except OSError as error:
            raise DecodeError(f"{path} cannot be read: {error.strerror}.") from error
        if file.state != state or len(data) != end - begin:
            raise DecodeError(f"{path} was changed. Open the data set again.")
        found = np.frombuffer(data, np.uint8) if num_bytes < 0 else _decompressed(data, num_bytes)
        return found[before : before + size]


def find_places(chunk: bytes, start: int, codec: str, rows: Sequence[Uint8s], *, has_levels: bool) -> RowPlaces:
    """Return where the byte strings of a row group lie; without rows where that cannot be told."""
    places = np.zeros((len(rows), 5), np.int64)
    try:
        is_compressed = CODECS[codec]
        pages = pages_of(chunk, has_levels=has_levels, is_compressed=is_compressed)
        entries = [entry for page in pages for entry in _entries(page, chunk, start)]
        if not _assign(rows, entries, places):
            return RowPlaces(places[:0])
    except (KeyError, ValueError, IndexError):
        return RowPlaces(places[:0])
    return RowPlaces(places)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A byte string of a page, and its row of `RowPlaces`."""

    data: Uint8s
    place: tuple[int, int, int, int, int]


def _entries(page: Page, chunk: bytes, start: int) -> list[_Entry]:
    """Return the byte strings of a page; ValueError for one that cannot be read in parts."""
    body = np.frombuffer(chunk, np.uint8)[page.start : page.stop]
    if not page.is_compressed:
        base = start + page.start
        return [
            _Entry(body[begin:end], (base + begin, base + end, -1, 0, end - begin))
            for begin, end in entries_of(page, body)
        ]
    from stepwell.lerobot.snappy_kernels import BLOCK_BYTES, find_blocks

    blocks = np.zeros(-(-page.num_bytes // BLOCK_BYTES) + 1, np.int64)
    first = next((i + 1 for i, byte in enumerate(body[:5].tolist()) if byte < 128), 0)
    if find_blocks(body, first, blocks) != page.num_bytes:
        raise ValueError("a stream that is not cut into blocks")
    data = _pyarrow_codec().decompress(body, page.num_bytes)
    whole = np.frombuffer(data, np.uint8)
    found = []
    for begin, end in entries_of(page, whole):
        low, high = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        num_bytes = min(high * BLOCK_BYTES, page.num_bytes) - low * BLOCK_BYTES
        base = start + page.start
        place = (base + int(blocks[low]), base + int(blocks[high]), num_bytes, begin - low * BLOCK_BYTES, end - begin)
        found.append(_Entry(whole[begin:end], place))
    return found


def _assign(rows: Sequence[Uint8s], entries: list[_Entry], places: Int64s) -> bool:
    """Write the place of each row: entries come in the order of the rows that show them first."""
    by_size: dict[int, list[_Entry]] = {}
    following = 0
    for number, row in enumerate(rows):
        if not len(row):
            continue
        while following < len(entries) and not len(entries[following].data):
            following += 1
        if following < len(entries) and np.array_equal(entries[following].data, row):
            found = entries[following]
            following += 1
            by_size.setdefault(len(row), []).append(found)
        else:
            same = (entry for entry in by_size.get(len(row), []) if np.array_equal(entry.data, row))
            known = next(same, None)
            if known is None:
                return False
            found = known
        places[number] = found.place
    return True


def _decompressed(data: bytes, num_bytes: int) -> Uint8s:
    """Return whole blocks of a Snappy stream, decompressed: with their length in front they are one themselves."""
    head, left = bytearray(), num_bytes
    while left > 127:
        head.append(left & 127 | 128)
        left >>= 7
    head.append(left)
    return np.frombuffer(_pyarrow_codec().decompress(bytes(head) + data, num_bytes), np.uint8)


def _pyarrow_codec() -> Any:
    import pyarrow as pa

    return pa.Codec("snappy")
