"""Records of ArrayRecord files, by number, through the ``array_record`` package, which needs no TensorFlow.

::

    name-train.array_record-00000-of-00001
      | chunk: record 0 | chunk: record 1 | ... | index | end |       Riegeli blocks of 64 KiB, zstd, hashed

The hashes are the package's to check: what is damaged is an error here, not other bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.errors import DatasetNotFoundError, FormatError, MissingDependencyError

__all__ = ["ArrayRecordFile", "import_array_record"]

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
        """Return a record.

        Raises:
            IndexError: there is none of that number.
            FormatError: it is damaged; names the file and the record.
        """
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
    """Return array_record's module of readers and writers.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise MissingDependencyError.of("array_record", "tfds") from error


def _group_size(options: Any) -> int:
    """Return how many records lie in a chunk, as the writer's options in the file say."""
    found = re.search(r"group_size:(\d+)", str(options or ""))
    return max(1, int(found[1])) if found else 1
