"""The files of a split, open one at a time; those of other machines are fetched, the next one while one is read.

::

    paths     0        1        2            gs://bucket/arm/1.0.0/arm-train.tfrecord-00000-of-00003, ...
    fetched   |--------|   |--------|        into the cache that all processes share, which is bounded in bytes
    read               |------------|...     through a descriptor: a file that leaves the cache is read to its end
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.files.local_files import OpenFile, close_removed_files
from stepwell.references.remote_files import kept_files, open_fetched
from stepwell.tfds.framing import is_compressed
from stepwell.tfds.record_files import CompressedFile, RecordFile, Records, open_records

__all__ = ["FetchedFile", "Shards", "open_shard"]


class Shards:
    """The files of a split.

    Args:
        paths: of them, or addresses.
        file_format: "tfrecord" or "array_record".
        is_verified: whether records are compared with their CRCs.

    Notes:
        For one thread. Pickles as what it was made of, and what is expected. Holds one file open; of other machines the
        next one, too, which a thread of its own fetches.
    """

    def __init__(self, paths: Sequence[str], file_format: str, *, is_verified: bool = True) -> None:
        self.paths, self._file_format, self._is_verified = paths, file_format, is_verified
        self._next: dict[int, int] = {}
        self._open: tuple[int, RecordFile] | None = None
        self._coming: _Coming | None = None
        self._is_left = False

    def called(self, number: int) -> str:
        """Return what messages call a file."""
        return plain_address(self.paths[number])

    def expect(self, order: npt.NDArray[np.int64]) -> None:
        """Take note of the files that will be read one after the other, int64 [n], as often as they come."""
        changes = order[np.flatnonzero(np.diff(order, prepend=-1))].tolist()
        self._next = dict(pairwise(changes))

    def records(self, number: int) -> RecordFile:
        """Return the records of a file, which is opened unless it was the last one.

        Raises:
            FormatError: damaged, or of a format that is not read.
            DatasetNotFoundError: no such file.
        """
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, self._opened(number)
        return self._open[1]

    def close(self) -> None:
        """Let go of the file that is open; of a fetched one that left the cache the space is free then."""
        if self._open is not None:
            is_fetched = isinstance(self._open[1], FetchedFile)
            self._open = None
            if is_fetched:
                close_removed_files()

    def can_be_left(self) -> bool:
        """Return whether places in the records are places in the files.

        Of other machines one file is looked at; if another is compressed, that is an error when it is opened.
        """
        looked_at = [path for path in self.paths if not is_remote(path)] or self.paths[:1]
        self._is_left = self._file_format == "tfrecord" and not any(map(_is_compressed, looked_at))
        return self._is_left

    def _opened(self, number: int) -> RecordFile:
        path = self.paths[number]
        if not is_remote(path):
            return open_records(path, self._file_format, is_verified=self._is_verified)
        coming = self._taken(path)
        following = self._next.get(number)
        # one at a time: one that others fetch, too, may not have come yet
        if following is not None and self._coming is None:
            self._coming = _Coming.of(self.paths[following])
        file = open_fetched(path) if coming is None else coming.file.result()
        found = FetchedFile(path, file, self._file_format, is_verified=self._is_verified)
        if self._is_left and found.is_compressed:
            raise FormatError(
                f"{self.called(number)} is compressed, and others are not: they cannot be read in place. Make a store "
                "of the dataset by stepwell convert."
            )
        return found

    def _taken(self, path: str) -> _Coming | None:
        """Return what is being fetched, if it is this file; forget it where it came for nobody."""
        coming = self._coming
        # a child of a fork has not the thread that fetches
        if coming is None or coming.process != os.getpid():
            self._coming = None
            return None
        if coming.path == path or coming.file.done():
            self._coming = None
        return coming if coming.path == path else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_coming": None}


class FetchedFile:
    """Records of a file of another machine, see `RecordFile`; its errors give the address.

    Args:
        address: of it.
        file: as it was fetched.
        file_format: "tfrecord" or "array_record".
        is_verified: whether records are compared with their CRCs.

    Raises:
        FormatError: damaged, or of a format that is not read.

    Notes:
        For one thread. Holds the file, which may leave the cache meanwhile.
    """

    def __init__(self, address: str, file: OpenFile, file_format: str, *, is_verified: bool = True) -> None:
        self._address, self._file = address, file
        with self._named():
            self._records = open_records(file.path, file_format, is_verified=is_verified)

    def __len__(self) -> int:
        with self._named():
            return len(self._records)

    @property
    def num_known(self) -> int | None:
        """How many records there are, where that was seen already."""
        return self._records.num_known

    @property
    def is_compressed(self) -> bool:
        """Whether it is compressed as a whole."""
        return isinstance(self._records, CompressedFile)

    def is_next(self, first: int) -> bool:
        """Return whether a record can be read without knowing where all of them lie."""
        return self._records.is_next(first)

    def read(self, first: int, most: int) -> Records:
        """Return some records; see `RecordFile`.

        Raises:
            FormatError: damaged, or there is no such record; names the address and the record.
        """
        with self._named():
            return self._records.read(first, most)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            told = str(error).replace(self._file.path, plain_address(self._address))
            kept = " and ".join(kept_files(self._address))
            advice = f"What was fetched is {kept}: remove it to fetch it again." if kept else "Fetch it again."
            raise FormatError(f"{told} {advice}") from error

    def __repr__(self) -> str:
        return f"<FetchedFile {plain_address(self._address)}>"


def open_shard(path: str, file_format: str, *, is_verified: bool = True) -> RecordFile:
    """Return the records of a file, fetched where it is on another machine; see `open_records`.

    Raises:
        FormatError: damaged, or of a format that is not read.
        DatasetNotFoundError: no such file, or no answer.
        MissingDependencyError: array_record is not installed, or fsspec.
    """
    return Shards([path], file_format, is_verified=is_verified).records(0)


class _Coming(NamedTuple):
    """A file that is being fetched.

    Args:
        path: its address.
        process: that fetches it.
        file: when it is there.
    """

    path: str
    process: int
    file: Future[OpenFile]

    @classmethod
    def of(cls, path: str) -> _Coming:
        coming = cls(path, os.getpid(), Future())
        # nobody who ends waits for it
        threading.Thread(target=coming.fetch, name=f"fetch {plain_address(path)}", daemon=True).start()
        return coming

    def fetch(self) -> None:
        try:
            self.file.set_result(open_fetched(self.path))
        except BaseException as error:
            self.file.set_exception(error)


def _is_compressed(path: str) -> bool:
    if not is_remote(path):
        return is_compressed(path)
    file = open_fetched(path)
    return is_compressed(file.path)
