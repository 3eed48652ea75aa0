"""The files of one feature while a segment is being written.

Space is reserved (posix_fallocate) before it is mapped, so that a full disk is an error of the reservation, never a
bus error of a store into the map, and never half a step.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.files.mapping import map_descriptor
from stepwell.schema import Feature
from stepwell.store.beneath import open_file, raise_from, system_error
from stepwell.store.encoded_rows import EncodedRows
from stepwell.store.first_rows import check_first_row
from stepwell.store.npy import header_bytes, header_size
from stepwell.store.writeback import begin_writeback

__all__ = ["Column", "EncodedColumn", "RawColumn", "make_column"]

WRITE_BYTES = 2 << 10
# encoded rows that are joined to be written by one call
PART_BYTES = 256 << 10
# of longer ones a copy costs more than that the system takes them from where they are, so many by one call
GATHERED_BYTES = 1 << 10
MOST_GATHERED = 1024
# rows that are encoded already come as fast as they can be read: the disk need not wait until all are there
WRITEBACK_BYTES = 16 << 20


class RawColumn:
    """A growing ``.npy`` file, mapped: row i is ``rows[i]``.

    Notes:
        Owned by one writer, used by one thread at a time. `rows` is replaced by `grow`.
    """

    is_encoded = False

    def __init__(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], capacity: int) -> None:
        self.path = path
        self.dtype = dtype
        self.shape = shape
        self.row_bytes = math.prod(shape) * dtype.itemsize
        self.header = header_size(dtype, shape)
        self.rows: npt.NDArray[Any] = np.empty((0, *shape), dtype)
        self._descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self.grow(capacity)
        except BaseException:
            self.close()
            raise

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` rows; DiskFullError when there is none, with everything as it was."""
        num_bytes = self.header + capacity * self.row_bytes
        reserve(self._descriptor, num_bytes, self.path)
        write_all(self._descriptor, header_bytes(self.dtype, self.shape, capacity), 0, self.path)
        data = map_descriptor(self._descriptor, num_bytes, writable=True)[self.header :]
        rows = data.view(self.dtype) if self.row_bytes else np.empty(0, self.dtype)
        self.rows = rows.reshape(capacity, *self.shape)

    def write_rows(self, row: int, values: npt.NDArray[Any]) -> None:
        """Store ``values`` [n, *shape] from ``row`` on; there must be room for them."""
        if values.nbytes < WRITE_BYTES:
            self.rows[row : row + len(values)] = values
        else:
            # a page fault for each 4 KiB of a map costs three times what the copy of a system call does
            write_all(
                self._descriptor, values.reshape(-1).view(np.uint8).data, self.header + row * self.row_bytes, self.path
            )

    def moved(self, old: str, new: str) -> None:
        """Take note that the directory was renamed; only messages name it."""
        self.path = self.path.replace(old, new, 1)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the map; the file keeps its reserved length until the segment is sealed."""
        self.rows = np.empty((0, *self.shape), self.dtype)
        # never twice, whatever comes in between: its number may be another file's by then
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class EncodedColumn:
    """A growing pair of files: uint64 offsets [rows + 1], and the encoded rows back to back.

    Notes:
        Owned by one writer, used by one thread at a time.
    """

    is_encoded = True

    def __init__(self, stem: str, feature: Feature, capacity: int) -> None:
        self.codec = make_codec(feature)
        self._name = os.path.basename(stem)
        self._is_checked = False
        self._written_back = 0
        # bytes and CRC-32 of all that `write_encoded` wrote, for as long as nothing else was written
        self._checksum: tuple[int, int] | None = (0, 0)
        self.offsets = RawColumn(f"{stem}.npy", np.dtype("<u8"), (), capacity + 1)
        self.path = f"{stem}.bin"
        try:
            self._descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except BaseException:
            self.offsets.close()
            raise
        self.row_bytes = self.offsets.row_bytes

    @property
    def checksum(self) -> tuple[int, int] | None:
        """Bytes of the encoded rows and their CRC-32, where it was computed as they were written."""
        return self._checksum

    def grow(self, capacity: int) -> None:
        """Make room for the offsets of ``capacity`` rows."""
        self.offsets.grow(capacity + 1)

    def encode(self, value: Any) -> bytes:
        """Return a row as its codec has it; the first one is looked at, see `check_first_row`."""
        if not self._is_checked:
            check_first_row(self._name, self.codec, value)
            self._is_checked = True
        return self.codec.encode(value)

    def write(self, row: int, blob: bytes) -> None:
        """Store an encoded row; the rows before it must be stored already. DiskFullError leaves it unstored."""
        self._checksum = None
        offsets = self.offsets.rows
        start = int(offsets[row])
        write_all(self._descriptor, blob, start, self.path)
        offsets[row + 1] = start + len(blob)

    def write_rows(self, row: int, blobs: Iterable[bytes]) -> None:
        """Store encoded rows from ``row`` on, as `write` does each."""
        self._checksum = None
        offsets = self.offsets.rows
        start = int(offsets[row])
        for part in _parts(blobs):
            ends = start + np.cumsum([len(blob) for blob in part], dtype=np.uint64)
            write_all(self._descriptor, part[0] if len(part) == 1 else b"".join(part), start, self.path)
            offsets[row + 1 : row + 1 + len(part)] = ends
            start, row = int(ends[-1]), row + len(part)

    def write_encoded(self, row: int, rows: EncodedRows) -> None:
        """Store rows that are encoded already from ``row`` on, as `write` does each."""
        buffers = rows.buffers
        if rows.nbytes < GATHERED_BYTES * len(buffers):
            self.write_rows(row, rows)
            return
        offsets = self.offsets.rows
        ends = np.cumsum([offsets[row], *map(len, buffers)], dtype=np.uint64)
        for first in range(0, len(buffers), MOST_GATHERED):
            stop = min(first + MOST_GATHERED, len(buffers))
            write_gathered(self._descriptor, buffers[first:stop], int(ends[first]), int(ends[stop]), self.path)
            offsets[row + first + 1 : row + stop + 1] = ends[first + 1 : stop + 1]
        end = int(ends[-1])
        self._add_checksum(int(ends[0]), end, buffers)
        if end - self._written_back >= WRITEBACK_BYTES:
            begin_writeback(self._descriptor, self._written_back, end)
            self._written_back = end

    def _add_checksum(self, start: int, end: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Go on with the checksum while the bytes are in the processor's cache: it need not read the file again."""
        if self._checksum is None or self._checksum[0] != start:
            # rows were taken back, or others came in between
            self._checksum = None
            return
        crc = self._checksum[1]
        for buffer in buffers:
            crc = zlib.crc32(buffer, crc)
        self._checksum = end, crc

    def moved(self, old: str, new: str) -> None:
        """Take note that the directory was renamed; only messages name it."""
        self.path = self.path.replace(old, new, 1)
        self.offsets.moved(old, new)

    def num_bytes(self, rows: int) -> int:
        """Return the bytes of the first ``rows`` encoded rows."""
        return int(self.offsets.rows[rows])

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._descriptor)
        self.offsets.sync()

    def close(self) -> None:
        """Let go of the map and the file."""
        self.offsets.close()
        # never twice, whatever comes in between: its number may be another file's by then
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


Column = RawColumn | EncodedColumn


def _parts(blobs: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield rows that are written at once: many small ones, or a large one alone."""
    part: list[bytes] = []
    num_bytes = 0
    for blob in blobs:
        if part and num_bytes + len(blob) > PART_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(blob)
        num_bytes += len(blob)
    if part:
        yield part


def make_column(directory: str, name: str, feature: Feature, capacity: int) -> Column:
    """Create the files of one feature in a segment's directory."""
    stem = f"{directory}/{name}"
    if feature.is_raw:
        return RawColumn(f"{stem}.npy", feature.np_dtype, feature.fixed_shape, capacity)
    return EncodedColumn(stem, feature, capacity)


def reserve(descriptor: int, num_bytes: int, path: str) -> None:
    """Make sure that the file's first ``num_bytes`` have blocks on the disk; DiskFullError when they cannot."""
    try:
        os.posix_fallocate(descriptor, 0, max(num_bytes, 1))
    except OSError as error:
        raise_from(disk_error(error, num_bytes, path), error)


def write_all(descriptor: int, data: bytes | memoryview, offset: int, path: str) -> None:
    """Write all of ``data`` at ``offset``; DiskFullError when there is no room for it."""
    view = memoryview(data)
    try:
        while view:
            written = os.pwrite(descriptor, view, offset)
            view = view[written:]
            offset += written
    except OSError as error:
        raise_from(disk_error(error, len(data), path), error)


def write_gathered(descriptor: int, buffers: Sequence[bytes | memoryview], start: int, end: int, path: str) -> None:
    """Write buffers back to back from ``start`` to ``end``; DiskFullError when there is no room for them."""
    try:
        written = os.pwritev(descriptor, buffers, start)
    except OSError as error:
        raise_from(disk_error(error, end - start, path), error)
    if start + written < end:
        # rare: the disk is full, or more than the system takes at once
        write_all(descriptor, b"".join(buffers)[written:], start + written, path)


def disk_error(error: OSError, num_bytes: int, path: str) -> OSError:
    """Return DiskFullError for an error of a full disk or quota; for others see `system_error`."""
    return system_error(error, path, is_writing=True, num_bytes=num_bytes)
