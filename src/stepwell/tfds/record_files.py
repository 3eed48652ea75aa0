"""Files of records, read by number and written: TFRecord files, compressed ones, ArrayRecord files.

::

    TFRecord               TFRecordFile      in order, or an index; many short records a read, which may stay there
    TFRecord, compressed   CompressedFile    from the beginning on; who asks in ascending order waits for nothing twice
    ArrayRecord            IndexedFile       by the package array_record

The hashes of ArrayRecord files are the package's to check: what is damaged is an error here, not other bytes.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, is_too_large
from stepwell.errors import DatasetNotFoundError, FormatError, MissingDependencyError
from stepwell.files.local_files import open_file, state_of, sync_file
from stepwell.store.beneath import FULL
from stepwell.tfds.framing import (
    FOOTER,
    HEADER,
    LONG_BYTES,
    RecordIndex,
    index_records,
    is_compressed,
    masked_crc32c,
    read_next,
    read_records,
)

__all__ = [
    "ArrayRecordFile",
    "CompressedFile",
    "FileFormat",
    "IndexedFile",
    "RecordFile",
    "Records",
    "TFRecordFile",
    "import_array_record",
    "open_records",
    "write_records",
]

# one record at a time, no threads that read ahead: those would not survive a fork, and hold memory for nothing
OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
MAX_GROUP = 1024


class ArrayRecordFile:
    """The records of one ArrayRecord file.

    Args:
        path: of the file.

    Raises:
        DatasetNotFoundError: there is no such file.
        FormatError: it is cut off or damaged at its end, where its index is.
        MissingDependencyError: array_record is not installed.

    Notes:
        Used by one thread. Holds the records of one chunk of the file. Pickles as its path. Opened when it is made: a
        forked child makes its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        module = import_array_record()
        if not Path(self.path).is_file():
            raise DatasetNotFoundError(f"{self.path}: there is no such file.")
        self._reader: Any = module.ArrayRecordReader(self.path, options=OPTIONS)
        if not self._reader.ok():
            raise FormatError(f"{self.path}: {self._failure()}. Is it complete? Copy or write it again.")
        self._length = int(self._reader.num_records())
        self._group = min(_group_size(self._reader.writer_options_string()), MAX_GROUP)
        # the records of one chunk, which is decompressed as a whole
        self._first, self._held = 0, list[bytes]()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> bytes:
        """Return a record."""
        if not 0 <= number < self._length:
            raise IndexError(f"{self.path} has no record {number}: it has {self._length}.")
        if not 0 <= number - self._first < len(self._held):
            self._first = number // self._group * self._group
            self._held = self._read(self._first, min(self._first + self._group, self._length))
        return self._held[number - self._first]

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(self._length))

    def close(self) -> None:
        """Close the file; it may be called again."""
        # what was wrong with the file was said when it was read
        with suppress(RuntimeError):
            self._reader.close()

    def __enter__(self) -> ArrayRecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayRecordFile, (self.path,)

    def _read(self, start: int, stop: int) -> list[bytes]:
        try:
            found: list[bytes] = self._reader.read(start, stop)
        except RuntimeError as error:
            raise FormatError(f"{self.path}: record {self._named(start, stop)} cannot be read: {error}.") from error
        if len(found) != stop - start:
            raise FormatError(f"{self.path}: {len(found)} records where {start} to {stop - 1} should be.")
        return found

    def _named(self, start: int, stop: int) -> str:
        return f"{start}" if stop == start + 1 else f"{start} or one of those up to {stop - 1}"

    def _failure(self) -> str:
        """Return what the package says is wrong: it tells when the file is closed."""
        try:
            self._reader.close()
        except RuntimeError as error:
            return str(error)
        return "not an ArrayRecord file"


def import_array_record() -> Any:
    """Return array_record's module of readers and writers."""
    try:
        return import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise MissingDependencyError.of("array_record", "tfds") from error


def _group_size(options: Any) -> int:
    """Return how many records lie in a chunk, as the writer's options in the file say."""
    found = re.search(r"group_size:(\d+)", str(options or ""))
    return max(1, int(found[1])) if found else 1


FORMATS = ("tfrecord", "array_record")
READ_BYTES = 1 << 20
# of short records that are read at once
BATCH_BYTES = 4 << 20
# the header says whether it is gzip or zlib
ANY_WINDOW = 47

Int64s = npt.NDArray[np.int64]
Uint8s = npt.NDArray[np.uint8]


class Records(NamedTuple):
    """Records that follow each other in a file.

    Args:
        first: number of the first one.
        data: uint8, their bytes and what is between them.
        starts: int64 [n], first byte of each in the data.
        stops: int64 [n], one past its last.
        offset: of the data in the file; None where it lies in none as it is.
    """

    first: int
    data: Uint8s
    starts: Int64s
    stops: Int64s
    offset: int | None


class RecordFile(Protocol):
    """Records by number."""

    def __len__(self) -> int:
        """Return how many there are."""

    @property
    def num_known(self) -> int | None:
        """How many there are, where that was seen already."""

    def is_next(self, first: int, /) -> bool:
        """Return whether a record can be read without knowing where all of them lie."""

    def read(self, first: int, most: int, /) -> Records:
        """Return some records: at least one, at most ``most``, and not many megabytes of short ones."""


class TFRecordFile:
    """A TFRecord file that is not compressed.

    Notes:
        For one thread. Short records that are read from the first one on, in order, are found as they are read; else
        an index is made, of all headers.
    """

    def __init__(self, path: str, *, is_verified: bool = True) -> None:
        self.path, self._is_verified = path, is_verified
        self._index: RecordIndex | None = None
        # where reading in order has come to: number and place of the next record; and the number of all at the end
        self._next = self._place = 0
        self._length: int | None = None

    @property
    def num_known(self) -> int | None:
        """How many records there are; None as long as neither all headers nor the end were seen."""
        return self._length if self._index is None else len(self._index)

    def is_next(self, first: int) -> bool:
        """Return whether it is the first record, or follows those that were read last, and there is no index."""
        return self._index is None and first in (0, self._next)

    @property
    def index(self) -> RecordIndex:
        """Where the records lie."""
        if self._index is None:
            self._index = index_records(self.path, is_checked=False)
        return self._index

    def check(self) -> None:
        """Read all of the file, and compare all records with their CRCs."""
        self._index = index_records(self.path, is_checked=True)

    def __len__(self) -> int:
        known = self.num_known
        return len(self.index) if known is None else known

    def read(self, first: int, most: int) -> Records:
        """Return some records; see `RecordFile`."""
        found = self._read_on(first, most) if self.is_next(first) else None
        if found is not None:
            return found
        index = self.index
        if not 0 <= first < len(index):
            raise FormatError(f"{self.path}: there is no record {first}, only {len(index)}. Is the file complete?")
        place = int(index.offsets[first]) - HEADER.size
        whole = int(np.searchsorted(index.offsets, place + BATCH_BYTES))
        stop = min(max(first + 1, whole), first + most, len(index))
        data = read_records(self.path, index, first, stop, is_checked=self._is_verified)
        starts = index.offsets[first:stop] - place
        return Records(first, data, starts, starts + index.sizes[first:stop], place)

    def _read_on(self, first: int, most: int) -> Records | None:
        """Return the records that come next; None where they are long: then an index costs little."""
        place = self._place if first else 0
        data, found = read_next(self.path, place, first, BATCH_BYTES, is_checked=self._is_verified)
        if not len(found) or found[-1, 1] > LONG_BYTES:
            return None
        stops = found.sum(axis=1)
        if place + stops[-1] + FOOTER.size == state_of(self.path)[2]:
            self._length = first + len(found)
        starts, stops = found[:most, 0].copy(), stops[:most]
        end = int(stops[-1]) + FOOTER.size
        self._next, self._place = first + len(starts), place + end
        return Records(first, data[:end], starts, stops, place)

    def __repr__(self) -> str:
        return f"<TFRecordFile {self.path}>"


class CompressedFile:
    """A TFRecord file that is compressed as a whole, by gzip or zlib.

    Notes:
        For one thread. Holds one record. Its records come in ascending order; an earlier one begins anew.
    """

    def __init__(self, path: str, *, is_verified: bool = True) -> None:
        self.path, self._is_verified = path, is_verified
        self._records: Iterator[bytes] | None = None
        self._next = 0  # number of the record that comes next
        self._length: int | None = None

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self._read())
        return self._length

    @property
    def num_known(self) -> int | None:
        """How many records there are, where they were counted."""
        return self._length

    def is_next(self, first: int) -> bool:
        """Return False: who reads wants to know first that the file is whole."""
        return False

    def read(self, first: int, most: int) -> Records:
        """Return some records; see `RecordFile`."""
        if self._records is None or first < self._next:
            self._records, self._next = self._read(), 0
        skipped = sum(1 for _ in islice(self._records, first - self._next))
        self._next += skipped
        found = _joined(first, islice(self._records, most))
        self._next += len(found.starts)
        return _not_empty(found, self.path)

    def _read(self) -> Iterator[bytes]:
        """Yield the records."""
        stream, number = _Inflated(self.path), 0
        while head := stream.take(HEADER.size):
            where = f"{self.path}: record {number}, byte {stream.place - len(head)} of what was compressed"
            if len(head) < HEADER.size or HEADER.unpack(head)[1] != masked_crc32c(head[:8]):
                raise FormatError(f"{where}: no header of a record. The file is damaged: copy or write it again.")
            size = int(HEADER.unpack(head)[0])
            if is_too_large(size, stream.num_bytes):
                raise FormatError(f"{where}: {size:,} bytes, in a file of {stream.num_bytes:,}. {WHAT_TO_SET}")
            record, crc = stream.take(size), stream.take(FOOTER.size)
            if len(crc) < FOOTER.size or (self._is_verified and FOOTER.unpack(crc)[0] != masked_crc32c(record)):
                raise FormatError(f"{where}: its bytes are not what its CRC says. Copy or write the file again.")
            yield record
            number += 1

    def __repr__(self) -> str:
        return f"<CompressedFile {self.path}>"


class _Inflated:
    """The bytes of a compressed file, from its beginning on; `place` counts those that were taken."""

    def __init__(self, path: str) -> None:
        self._path, self._file = path, open_file(path, state_of(path))
        self._read = 0
        self.num_bytes = self._file.num_bytes
        self._inflater = zlib.decompressobj(ANY_WINDOW)
        self._held = bytearray()
        self.place = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        while len(self._held) < count and self._fill():
            pass
        found = bytes(self._held[:count])
        del self._held[:count]
        self.place += len(found)
        return found

    def _fill(self) -> bool:
        """Hold more bytes, not many at a time; return whether there were any."""
        given = self._inflater.unconsumed_tail or self._inflater.unused_data
        if not given:
            given = self._file.read(self._read, READ_BYTES)
            self._read += len(given)
        try:
            if self._inflater.eof and given:
                self._inflater = zlib.decompressobj(ANY_WINDOW)
            before = len(self._held)
            self._held += self._inflater.decompress(given, READ_BYTES)
        except zlib.error as error:
            raise FormatError(f"{self._path}: {error}. The file is damaged: copy or write it again.") from error
        if not given and not self._inflater.eof:
            raise FormatError(f"{self._path}: cut off within what is compressed. Copy or write the file again.")
        return bool(given) or len(self._held) > before


class IndexedFile:
    """A file whose records a package gives by number."""

    def __init__(self, path: str) -> None:

        self._file = ArrayRecordFile(path)

    def __len__(self) -> int:
        return len(self._file)

    @property
    def num_known(self) -> int | None:
        """How many records there are."""
        return len(self)

    def is_next(self, first: int) -> bool:
        """Return False: all places are known."""
        return False

    def read(self, first: int, most: int) -> Records:
        """Return some records; see `RecordFile`."""
        return _not_empty(
            _joined(first, (self._file[number] for number in range(first, min(first + most, len(self))))),
            self._file.path,
        )


def _joined(first: int, records: Iterable[bytes]) -> Records:
    """Return records put one after the other, as many as there are or as are read at once."""
    taken: list[bytes] = []
    size = 0
    for record in records:
        taken.append(record)
        size += len(record)
        if size >= BATCH_BYTES:
            break
    stops = np.cumsum(list(map(len, taken)), dtype=np.int64)
    return Records(first, np.frombuffer(b"".join(taken), np.uint8), np.concatenate([[0], stops])[:-1], stops, None)


def _not_empty(found: Records, path: str) -> Records:
    """Refuse no records."""
    if not len(found.starts):
        raise FormatError(f"{path}: there is no record {found.first}. Is the file complete?")
    return found


def open_records(path: str, file_format: str, *, is_verified: bool = True) -> RecordFile:
    """Return the records of a file."""
    if file_format == "array_record":
        return IndexedFile(path)
    if file_format != "tfrecord":
        raise FormatError(f"{path}: files of format {file_format!r}. Allowed: {', '.join(FORMATS)}.")
    kind = CompressedFile if is_compressed(path) else TFRecordFile
    return kind(path, is_verified=is_verified)


FileFormat = Literal["tfrecord", "array_record"]
SIZE = struct.Struct("<Q")
BUFFER_BYTES = 1 << 20


def write_records(path: str | os.PathLike[str], records: Iterable[bytes], file_format: FileFormat = "tfrecord") -> int:
    """Write a new file of records, and wait until it is on the disk.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.tfrecord-00000-of-00001"
        >>> write_records(path, [b"abc", b""]), os.path.getsize(path)
        (3, 35)
    """
    return _write_tfrecord(path, records) if file_format == "tfrecord" else _write_array_record(path, records)


def _write_tfrecord(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    total = 0
    with Path(path).open("wb", buffering=BUFFER_BYTES) as file:
        for record in records:
            # in three parts: a record may be as large as an episode, and needs no copy
            file.write(HEADER.pack(len(record), masked_crc32c(SIZE.pack(len(record)))))
            file.write(record)
            file.write(FOOTER.pack(masked_crc32c(record)))
            total += len(record)
        file.flush()
        sync_file(file.fileno())
    return total


def _write_array_record(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    total = 0
    writer = import_array_record().ArrayRecordWriter(os.fspath(path), "group_size:1")
    try:
        for record in records:
            writer.write(record)
            total += len(record)
        writer.close()
    except RuntimeError as error:
        raise _system_error(error, path) from error
    finally:
        # what was wrong is being raised
        with suppress(RuntimeError):
            writer.close()
    with Path(path).open("rb+") as file:
        sync_file(file.fileno())
    return total


def _system_error(error: RuntimeError, path: str | os.PathLike[str]) -> OSError:
    """Return what the package tells in words as an error with its number."""
    numbers = [number for number in FULL if os.strerror(number) in str(error)]
    return OSError(numbers[0], os.strerror(numbers[0]), path) if numbers else OSError(f"{path}: {error}")
