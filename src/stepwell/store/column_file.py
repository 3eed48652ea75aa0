"""The files of a segment while they are written: by a writer step by step, or at once from columns or other segments.

Space that is mapped is reserved first, so that a full disk is an error of the reservation, never a
bus error of a store into the map, and never half a step.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.errors import CorruptSegmentError
from stepwell.files.local_files import map_descriptor, sync_file
from stepwell.schema import Feature, Schema
from stepwell.store.beneath import disk_error, header_bytes, header_size, open_file, raise_from
from stepwell.store.episodes import EPISODE_DTYPE, LANES_DTYPE
from stepwell.store.layout import CLOCK, EPISODES, METADATA
from stepwell.store.values import check_first_row

if TYPE_CHECKING:
    from stepwell.store.segments import Segment

__all__ = [
    "Column",
    "ColumnFile",
    "EncodedColumn",
    "RawColumn",
    "SegmentFiles",
    "begin_writeback",
    "checksums_of",
    "make_column",
    "new_column",
    "parts_of",
]

Buffer = bytes | memoryview
RowType = tuple[npt.DTypeLike, tuple[int, ...]]

OFFSET = np.dtype("<u8")
STAMP = np.dtype("<i8")
FIRST_EPISODES = 64
WRITE_BYTES = 2 << 10
# what is appended is written so many bytes at a time, while they are in the processor's cache for the checksum
BUFFER_BYTES = 1 << 20
# encoded rows that are written by one call: short ones are joined; to copy longer ones costs more than to gather them
PART_BYTES = 256 << 10
ZERO_BYTES = 1 << 20
GATHERED_BYTES = 1 << 10
MOST_GATHERED = 1024
# rows that are encoded already come as fast as they can be read: the disk need not wait until all are there
WRITEBACK_BYTES = 16 << 20
SYNC_FILE_RANGE_WRITE = 2
UNKNOWN = (-1, 0)


class ColumnFile:
    """A new file of a segment; its checksum is summed while it is written from front to back."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.end = 0
        # bytes from the file's begin, and their CRC-32: summed while they are in the processor's cache
        self._sum = (0, 0)
        self._pending = bytearray()
        self._written_back = 0
        self._descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    @property
    def checksum(self) -> tuple[int, int] | None:
        """Bytes of the file and their CRC-32; None where it was not written from front to back."""
        return None if self._sum == UNKNOWN else self._sum

    def write(self, data: Buffer, start: int) -> None:
        """Write at a place; DiskFullError when there is no room."""
        write_all(self._descriptor, data, start, self.path)
        summed, crc = self._sum
        # rows that were taken back are written over
        self._sum = (start + len(data), zlib.crc32(data, crc)) if summed == start else UNKNOWN

    def gather(self, buffers: Sequence[Buffer], start: int, end: int) -> None:
        """Write buffers back to back from ``start`` to ``end``, by one call, and start their write-back early."""
        if end - start < GATHERED_BYTES * len(buffers):
            buffers = [b"".join(buffers)]
        write_gathered(self._descriptor, buffers, start, end, self.path)
        summed, crc = self._sum
        if summed == start:
            for buffer in buffers:
                crc = zlib.crc32(buffer, crc)
        self._sum = (end, crc) if summed == start else UNKNOWN
        self._write_back(end)

    def append(self, data: Buffer) -> None:
        """Write behind all that was appended; small pieces wait in memory until `finish`."""
        if len(self._pending) + len(data) < BUFFER_BYTES:
            self._pending += data
            self.end += len(data)
            return
        self._flush()
        for first in range(0, len(data), BUFFER_BYTES):
            piece = memoryview(data)[first : first + BUFFER_BYTES]
            self.write(piece, self.end)
            self.end += len(piece)
        self._write_back(self.end)

    def _flush(self) -> None:
        if self._pending:
            self.write(bytes(self._pending), self.end - len(self._pending))
            self._pending.clear()

    def _write_back(self, end: int) -> None:
        if end - self._written_back >= WRITEBACK_BYTES:
            begin_writeback(self._descriptor, self._written_back, end)
            self._written_back = end

    def moved(self, old: str, new: str) -> None:
        """Take note that the directory was renamed; only messages name it."""
        self.path = self.path.replace(old, new, 1)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        sync_file(self._descriptor)

    def finish(self) -> None:
        """Write what was appended and waits in memory."""
        self._flush()

    def close(self) -> None:
        """Let go of the file; may be called twice."""
        # never twice, whatever comes in between: its number may be another file's by then
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RawColumn(ColumnFile):
    """An ``.npy`` file: mapped, with row i at ``rows[i]``, once rows are reserved; else for `append` and `finish`."""

    def __init__(self, path: str, dtype: npt.DTypeLike, shape: tuple[int, ...], num_rows: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.row_bytes = math.prod(shape) * self.dtype.itemsize
        self.header = header_size(self.dtype, shape)
        self.rows: npt.NDArray[Any] = np.empty((0, *shape), self.dtype)
        self._num_appended, self._num_expected = 0, num_rows
        super().__init__(path)
        self.end = self.header
        # of the header that `finish` writes if as many rows are appended as are expected; else the file is read again
        self._sum = (self.header, zlib.crc32(header_bytes(self.dtype, shape, num_rows))) if num_rows else UNKNOWN

    @property
    def num_bytes_appended(self) -> int:
        """Bytes of the rows that were appended."""
        return self.end - self.header

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` rows, and map them; DiskFullError when there is none, with all as it was."""
        num_bytes = self.header + capacity * self.row_bytes
        reserve(self._descriptor, num_bytes, self.path)
        write_all(self._descriptor, header_bytes(self.dtype, self.shape, capacity), 0, self.path)
        data = map_descriptor(self._descriptor, num_bytes, writable=True)[self.header :]
        rows = data.view(self.dtype) if self.row_bytes else np.empty(0, self.dtype)
        self.rows, self._sum = rows.reshape(capacity, *self.shape), UNKNOWN

    def write_rows(self, row: int, values: npt.NDArray[Any]) -> None:
        """Store ``values`` [n, *shape] from ``row`` on; they must be reserved."""
        if values.nbytes < WRITE_BYTES:
            self.rows[row : row + len(values)] = values
        else:
            # a page fault for each 4 KiB of a map costs three times what the copy of a system call does
            write_all(self._descriptor, _bytes_of(values), self.header + row * self.row_bytes, self.path)

    def append_rows(self, values: npt.NDArray[Any], num_rows: int) -> None:
        """Append the bytes of ``num_rows`` rows."""
        self.append(_bytes_of(np.ascontiguousarray(values)))
        self._num_appended += num_rows

    def finish(self) -> None:
        """Write what waits in memory, and the true header."""
        super().finish()
        write_all(self._descriptor, header_bytes(self.dtype, self.shape, self._num_appended), 0, self.path)
        if self._num_appended != self._num_expected:
            self._sum = UNKNOWN

    def close(self) -> None:
        """Let go of the map; the file keeps its reserved length until the segment is sealed."""
        self.rows = np.empty((0, *self.shape), self.dtype)
        super().close()


class EncodedColumn:
    """A pair of files: uint64 offsets [rows + 1], and the encoded rows back to back."""

    def __init__(self, stem: str, feature: Feature, num_rows: int = 0) -> None:
        self.feature = feature
        self._name = os.path.basename(stem)
        self._is_checked = False
        self.offsets = RawColumn(f"{stem}.npy", OFFSET, (), num_rows and num_rows + 1)
        try:
            self.blobs = ColumnFile(f"{stem}.bin")
        except BaseException:
            self.offsets.close()
            raise

    @functools.cached_property
    def codec(self) -> Codec:
        """The codec of the rows; rows that are copied need none."""
        return make_codec(self.feature)

    def reserve(self, capacity: int) -> None:
        """Make room for the offsets of ``capacity`` rows."""
        self.offsets.reserve(capacity + 1)

    def encode(self, value: Any) -> bytes:
        """Return a row as its codec has it; the first one is looked at, see `check_first_row`."""
        if not self._is_checked:
            check_first_row(self._name, self.codec, value)
            self._is_checked = True
        return self.codec.encode(value)

    def write(self, row: int, blob: bytes) -> None:
        """Store an encoded row; the rows before it must be stored already. DiskFullError leaves it unstored."""
        offsets = self.offsets.rows
        start = int(offsets[row])
        self.blobs.write(blob, start)
        offsets[row + 1] = start + len(blob)

    def extend(self, row: int, blob: bytes) -> None:
        """Store more bytes of the last row; readers see all of them or none."""
        end = int(self.offsets.rows[row + 1])
        self.blobs.write(blob, end)
        self.offsets.rows[row + 1] = end + len(blob)

    def write_rows(self, row: int, blobs: Iterable[Buffer]) -> None:
        """Store encoded rows from ``row`` on, as `write` does each."""
        offsets = self.offsets.rows
        start = int(offsets[row])
        for part in parts_of(blobs):
            ends = start + np.cumsum([len(blob) for blob in part], dtype=np.uint64)
            self.blobs.gather(part, start, int(ends[-1]))
            offsets[row + 1 : row + 1 + len(part)] = ends
            start, row = int(ends[-1]), row + len(part)

    def append_rows(self, data: npt.NDArray[np.uint8], sizes: npt.NDArray[np.integer[Any]]) -> None:
        """Append rows that lie back to back, of which each has its size."""
        ends = self.blobs.end + np.cumsum(sizes, dtype=OFFSET)
        self._begin_offsets()
        self.blobs.append(data.data)
        self.offsets.append_rows(ends, len(ends))

    @property
    def num_bytes_appended(self) -> int:
        """Bytes of the rows that were appended, and of their offsets."""
        return self.blobs.end + self.offsets.num_bytes_appended

    def _begin_offsets(self) -> None:
        if self.offsets.end == self.offsets.header:
            self.offsets.append_rows(np.zeros(1, OFFSET), 1)

    def moved(self, old: str, new: str) -> None:
        """Take note that the directory was renamed; only messages name it."""
        self.blobs.moved(old, new)
        self.offsets.moved(old, new)

    def num_bytes(self, rows: int) -> int:
        """Return the bytes of the first ``rows`` encoded rows."""
        return int(self.offsets.rows[rows])

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        self.blobs.sync()
        self.offsets.sync()

    def finish(self) -> None:
        """Write what was appended and waits in memory, and the true header."""
        self._begin_offsets()
        self.blobs.finish()
        self.offsets.finish()

    def close(self) -> None:
        """Let go of the map and the files."""
        self.offsets.close()
        self.blobs.close()


Column = RawColumn | EncodedColumn
File = TypeVar("File", bound=ColumnFile | EncodedColumn)


class SegmentFiles:
    """All files of a new segment: a column per feature, episode records, their metadata, and the clock of a ring."""

    # Either rows are reserved and written where a counter that readers see says; or they are appended, and `finish`
    # makes the files those of a sealed segment.

    def __init__(
        self,
        directory: str,
        schema: Schema,
        *,
        num_rows: int = 0,
        num_episodes: int = 0,
        others: Collection[str] = (),
        has_clock: bool = False,
        is_mapped: bool = False,
        lanes: Mapping[str, RowType] = MappingProxyType({}),
    ) -> None:
        # of a segment with lanes: the files that say which rows are there, which are reserved by their writer
        self.lanes: dict[str, RawColumn] = {}
        self.columns: dict[str, Column] = {}
        self.stamps: RawColumn | None = None
        self._made: list[Column | ColumnFile] = []
        with ExitStack() as undo:
            undo.callback(self._close_made)
            for name, feature in schema.items():
                if name not in others:
                    self.columns[name] = self._add(new_column(directory, name, feature, num_rows))
            if has_clock:
                self.stamps = self._add(RawColumn(f"{directory}/{CLOCK}", STAMP, (), num_rows))
            for name, (dtype, shape) in lanes.items():
                self.lanes[name] = self._add(RawColumn(f"{directory}/{name}", dtype, shape))
            dtype = LANES_DTYPE if lanes else EPISODE_DTYPE
            self.episodes = self._add(RawColumn(f"{directory}/{EPISODES}", dtype, (), num_episodes))
            self.metadata = self._add(ColumnFile(f"{directory}/{METADATA}"))
            if is_mapped:
                self.reserve(num_rows)
                self.episodes.reserve(FIRST_EPISODES)
            undo.pop_all()

    def _add(self, file: File) -> File:
        self._made.append(file)
        return file

    def _close_made(self) -> None:
        for file in self._made:
            file.close()

    def reserve(self, rows: int) -> None:
        """Make room for rows, and map what has a fixed size a row."""
        for column in self.columns.values():
            column.reserve(rows)
        if self.stamps is not None:
            self.stamps.reserve(rows)

    def append_from(self, segment: Segment, name: str, ranges: Iterable[tuple[int, int]]) -> None:
        """Append half-open ranges of rows of another segment, as they are."""
        column = self.columns[name]
        if isinstance(column, RawColumn):
            size, rows = column.row_bytes, segment.raw_map(name)
            for start, stop in ranges:
                column.append_rows(rows[start * size : stop * size], stop - start)
            return
        offsets, blobs = segment.offsets_map(name), segment.blob_map(name)
        for start, stop in ranges:
            mine = offsets[start : stop + 1]
            if np.any(mine[1:] < mine[:-1]) or int(mine[-1]) > len(blobs):
                raise CorruptSegmentError(
                    f"{name}.npy of segment {segment.name}: the offsets of rows {start} to {stop} do not "
                    f'fit {name}.bin. Run "stepwell verify PATH".'
                )
            column.append_rows(blobs[int(mine[0]) : int(mine[-1])], np.diff(mine))

    def append_episodes(self, records: npt.NDArray[Any], metadata: bytes) -> None:
        """Append ended episodes and their lines of metadata."""
        self.episodes.append_rows(records, len(records))
        self.metadata.append(metadata)

    @property
    def checksums(self) -> dict[str, tuple[int, int]]:
        """Bytes and CRC-32 of the files of which they are known already, by name."""
        return checksums_of(self._made)

    def moved(self, old: str, new: str) -> None:
        """Take note that the directory was renamed; only messages name it."""
        for file in self._made:
            file.moved(old, new)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        for file in self._made:
            file.sync()

    def finish(self) -> None:
        """Write what was appended and waits in memory, and true headers."""
        for file in self._made:
            file.finish()

    def close(self) -> None:
        """Let go of the files; may be called twice."""
        self._close_made()

    def __enter__(self) -> SegmentFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def checksums_of(columns: Iterable[Column | ColumnFile]) -> dict[str, tuple[int, int]]:
    """Return bytes and CRC-32 of the files of which they are known already, by name."""
    files = [file for column in columns for file in _files_of(column)]
    return {os.path.basename(file.path): file.checksum for file in files if file.checksum is not None}


def _files_of(column: Column | ColumnFile) -> list[ColumnFile]:
    return [column.offsets, column.blobs] if isinstance(column, EncodedColumn) else [column]


def new_column(directory: str, name: str, feature: Feature, num_rows: int = 0) -> Column:
    """Create the files of one feature in a segment's directory, for so many rows to be appended."""
    stem = f"{directory}/{name}"
    if feature.is_raw:
        return RawColumn(f"{stem}.npy", feature.np_dtype, feature.fixed_shape, num_rows)
    return EncodedColumn(stem, feature, num_rows)


def make_column(directory: str, name: str, feature: Feature, num_rows: int) -> Column:
    """Create the files of one feature in a segment's directory, with its rows reserved; raw ones are zeros."""
    column = new_column(directory, name, feature)
    try:
        column.reserve(num_rows)
    except BaseException:
        column.close()
        raise
    return column


def _bytes_of(values: npt.NDArray[Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def parts_of(blobs: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    """Yield rows that are written at once: many small ones, or a large one alone."""
    part: list[Buffer] = []
    num_bytes = 0
    for blob in blobs:
        if part and (num_bytes + len(blob) > PART_BYTES or len(part) == MOST_GATHERED):
            yield part
            part, num_bytes = [], 0
        part.append(blob)
        num_bytes += len(blob)
    if part:
        yield part


def reserve(descriptor: int, num_bytes: int, path: str) -> None:
    """Make sure that the file's first ``num_bytes`` have blocks on the disk; DiskFullError when they cannot."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, max(num_bytes, 1))
        else:
            _fill_up(descriptor, max(num_bytes, 1))
    except OSError as error:
        raise_from(disk_error(error, num_bytes, path), error)


def _fill_up(descriptor: int, num_bytes: int) -> None:
    """Write zeros behind a file's end, where the system has no call that reserves blocks (macOS)."""
    size = os.fstat(descriptor).st_size
    zeros = bytes(min(ZERO_BYTES, max(num_bytes - size, 0)))
    while size < num_bytes:
        size += os.pwrite(descriptor, zeros[: num_bytes - size], size)


def write_all(descriptor: int, data: Buffer, offset: int, path: str) -> None:
    """Write all of ``data`` at ``offset``; DiskFullError when there is no room for it."""
    try:
        done = os.pwrite(descriptor, data, offset)
        while done < len(data):
            done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)
    except OSError as error:
        raise_from(disk_error(error, len(data), path), error)


def write_gathered(descriptor: int, buffers: Sequence[Buffer], start: int, end: int, path: str) -> None:
    """Write buffers back to back from ``start`` to ``end``; DiskFullError when there is no room for them."""
    try:
        written = os.pwritev(descriptor, buffers, start)
    except OSError as error:
        raise_from(disk_error(error, end - start, path), error)
    if start + written < end:
        # rare: the disk is full, or more than the system takes at once
        write_all(descriptor, b"".join(buffers)[written:], start + written, path)


def begin_writeback(descriptor: int, start: int, end: int) -> None:
    """Start write-back of a file's bytes early, so that a later fsync returns sooner."""
    # errors are left to that fsync
    _sync_file_range()(descriptor, start, end - start, SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], Any]:
    """Return sync_file_range(2), or what does nothing where the system has no such call."""
    found: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is None:
        return lambda *_: 0
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found  # type: ignore[no-any-return]
