"""Row groups of one column of parquet files: read whole, kept while there is room, shared by a process's threads.

::

    row 130 of the file ── ends 50 100 150 ──> row group 2, row 30 of it ── held? ──> its bytes
                                                      | no: read by the thread that asks first, others wait for it
                                                      v
                                                 least recently used ones go until it fits
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.files.local_files import FileState, open_file, state_of
from stepwell.files.shared_cache import SharedCache
from stepwell.lerobot.parquet_places import RowPlaces, find_places

__all__ = ["RowGroup", "RowGroups", "Stamp", "TableFile", "stamp_of"]

MAX_BYTES = 256 << 20
FILES_BYTES = 64 << 20
# what pyarrow makes of a footer takes several times its bytes in the file; an open file counts, too
FOOTER_GROWTH = 4
LEAST_FILE_BYTES = 1 << 20
BATCH_ROWS = 64
MAX_READING = 4
MAX_KNOWN = 1 << 20
PLACES_BYTES = 64 << 20

Stamp = tuple[str, FileState]
"""A file as it was when it was looked at: its path and state."""
Key = tuple[Stamp, str, int]

_ALL: weakref.WeakSet[RowGroups] = weakref.WeakSet()


def stamp_of(path: str) -> Stamp:
    """Return what tells a file from one that takes its place."""
    try:
        return path, state_of(path)
    except OSError as error:
        raise DecodeError(
            f"{path} cannot be opened: {error.strerror}. Is the data set where it was, and whole?"
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """The byte strings of one column in one row group."""

    first_rows: npt.NDArray[np.int64]  # int64 [parts], the row of the group at which each part begins
    parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]  # int64 offsets [rows + 1] and uint8 bytes of each
    num_bytes: int  # what it takes

    def row(self, row: int) -> npt.NDArray[np.uint8]:
        """Return a row's bytes, a read-only view; empty where it has none."""
        part = int(np.searchsorted(self.first_rows, row, "right")) - 1 if len(self.parts) > 1 else 0
        offsets, data = self.parts[part]
        at = row - int(self.first_rows[part])
        return data[offsets[at] : offsets[at + 1]]

    def rows(self) -> list[npt.NDArray[np.uint8]]:
        """Return the bytes of all rows."""
        return [data[begin:end] for offsets, data in self.parts for begin, end in pairwise(offsets.tolist())]


class TableFile:
    """An open parquet file."""

    def __init__(self, path: str) -> None:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise MissingDependencyError.of("pyarrow", "lerobot") from error
        self.path = path
        self._lock = threading.Lock()
        try:
            self._file = ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        except _read_errors() as error:
            raise DecodeError(f"{path} cannot be opened as a parquet file: {error}.") from error
        footer = self._file.metadata
        self.num_bytes = max(LEAST_FILE_BYTES, FOOTER_GROWTH * int(footer.serialized_size))
        self._ends = np.cumsum([footer.row_group(i).num_rows for i in range(footer.num_row_groups)], dtype=np.int64)

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the row group of a row, and the row's number there."""
        num_rows = int(self._ends[-1]) if len(self._ends) else 0
        if not 0 <= row < num_rows:
            raise DecodeError(f"{self.path} has {num_rows} rows, none with number {row}. Open the data set again.")
        group = int(np.searchsorted(self._ends, row, "right"))
        return group, row - (int(self._ends[group - 1]) if group else 0)

    def read(self, column: str, group: int) -> RowGroup:
        """Read the byte strings of a column: of binary type, or the field ``bytes`` of a struct."""
        import pyarrow as pa

        leaf = self._leaf(column)
        try:
            with self._lock:
                chunks = self._chunks(leaf, group)
            arrays = [chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk for chunk in chunks]
            return _row_group([array.cast(pa.large_binary()) for array in arrays if len(array)])
        except _read_errors() as error:
            raise DecodeError(f"{self.path}, row group {group}, column {column!r}: {error}.") from error

    def places(self, column: str, group: int, state: FileState, rows: RowGroup) -> RowPlaces:
        """Return where the byte strings lie that `read` returned, to read some of them alone."""
        path = self._leaf(column)
        found = self._file.metadata.row_group(group)
        leaf = next(c for c in map(found.column, range(found.num_columns)) if c.path_in_schema == path)
        level = next(c for c in map(self._file.schema.column, range(found.num_columns)) if c.path == path)
        start = min(leaf.data_page_offset, leaf.dictionary_page_offset or leaf.data_page_offset)
        try:
            chunk = open_file(self.path, state).read(start, leaf.total_compressed_size)
        except OSError:
            chunk = b""
        return find_places(chunk, start, leaf.compression, rows.rows(), has_levels=level.max_definition_level > 0)

    def _chunks(self, leaf: str, group: int) -> list[Any]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, columns=[leaf], use_threads=False)
            return list(table.column(0).chunks)
        except pa.ArrowNotImplementedError:
            # a struct with more than 2 GiB of bytes cannot be read in one piece
            batches = self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[leaf], use_threads=False)
            return [batch.column(0) for batch in batches]

    def _leaf(self, column: str) -> str:
        import pyarrow as pa

        schema = self._file.schema_arrow
        number = schema.get_field_index(column)
        kind = schema.field(number).type if number >= 0 else None
        if kind is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            return column
        if kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            return f"{column}.bytes"
        raise DecodeError(
            f"{self.path}: column {column!r} is {kind or 'not there'}. Allowed: binary, or a struct with bytes."
        )


class RowGroups:
    """The row groups that were used last, and the files that they are of.

    ::

        wanted the first time     read whole, kept while there is room
        wanted again, and gone    read whole once more, and where each of its rows lies is kept
        from then on              a row alone; whole, when many follow each other
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.kept: SharedCache[Key, RowGroup] = SharedCache(max_bytes, lambda group: group.num_bytes)
        self._files: SharedCache[tuple[int, Stamp], TableFile] = SharedCache(FILES_BYTES, lambda file: file.num_bytes)
        self._known: SharedCache[Key, bool] = SharedCache(MAX_KNOWN, lambda _: 1)
        self._places: SharedCache[Key, RowPlaces] = SharedCache(PLACES_BYTES, lambda places: places.num_bytes + 100)
        self.num_read = 0
        self._renew()
        _ALL.add(self)

    def row(self, stamp: Stamp, column: str, row: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of one row."""
        # pyarrow's readers share what a fork copies in an unknown state
        file = self._files.get((os.getpid(), stamp), lambda: TableFile(stamp[0]))
        group, at = file.place_of(row)
        key = (stamp, column, group)
        held = self.kept.find(key)
        if held is None:
            places = self._places.find(key)
            if places is not None and places.is_for(at):
                return places.read(*stamp, at)
            held = self.kept.get(key, lambda: self._read(file, key))
        return held.row(at)

    def _read(self, file: TableFile, key: Key) -> RowGroup:
        stamp, column, group = key
        with self._reading:
            found = file.read(column, group)
            was_known = self._known.find(key)
            if was_known and self._places.find(key) is None and found.num_bytes <= self.kept.max_size:
                self._places.get(key, lambda: file.places(column, group, stamp[1], found))
        self._known.get(key, lambda: True)
        self.num_read += 1
        return found

    def _renew(self) -> None:
        self._reading = threading.BoundedSemaphore(MAX_READING)


def _row_group(arrays: list[Any]) -> RowGroup:
    """Return large binary arrays of Arrow as what numpy shows of their memory."""
    parts = []
    for array in arrays:
        _, offsets, data = array.buffers()
        edges = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        parts.append((edges, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)))
    sizes = [len(array) for array in arrays]
    first_rows = np.cumsum([0, *sizes[:-1]], dtype=np.int64) if sizes else np.empty(0, np.int64)
    return RowGroup(first_rows, parts, sum(offsets.nbytes + data.nbytes for offsets, data in parts))


def _read_errors() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises where a file is missing, damaged or something else."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, MemoryError)


def _after_fork() -> None:
    for groups in list(_ALL):
        groups._renew()


os.register_at_fork(after_in_child=_after_fork)
