"""Which records of which files a split is, and those files, open one at a time.

::

    split="train[:10%]+val"  ──shardLengths──>  position  0 1 2 3 4 ...
                                                shard     0 0 0 1 1        file i of `paths`
                                                record    0 1 2 0 1        in its file

Files none of whose records are in the split are not looked at, and need not be there. Where dataset_info.json tells no
lengths of shards, all files of the splits that are named are opened and counted.

Files of other machines are fetched, the next one while one is read:

::

    paths     0        1        2            gs://bucket/arm/1.0.0/arm-train.tfrecord-00000-of-00003, ...
    fetched   |--------|   |--------|        into the cache that all processes share, which is bounded in bytes
    read               |------------|...     through a descriptor: a file that leaves the cache is read to its end
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.files.local_files import OpenFile, close_removed_files
from stepwell.formats.splits import Split, split_ranges
from stepwell.references.remote_files import kept_files, open_fetched, remote_states
from stepwell.references.remote_sources import UnreachableError
from stepwell.tfds.dataset_files import DatasetInfo, SplitInfo
from stepwell.tfds.framing import is_compressed
from stepwell.tfds.record_files import CompressedFile, RecordFile, Records, open_records

__all__ = ["FetchedFile", "Selection", "Shards", "files_of", "lengths_by_split", "open_shard", "select"]


class Shards:
    """The files of a split.

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
        """Return the records of a file, which is opened unless it was the last one."""
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
        """Return some records; see `RecordFile`."""
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
    """Return the records of a file, fetched where it is on another machine; see `open_records`."""
    return Shards([path], file_format, is_verified=is_verified).records(0)


class _Coming(NamedTuple):
    """A file that is being fetched."""

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


# a record of a TFRecord file takes at least its size and two CRCs; of ArrayRecord, compressed, next to nothing
MIN_RECORD_BYTES = 16
MOST_A_BYTE = 64
# of a file whose size its server does not tell
MOST_UNTOLD = 10**8

Int64s = npt.NDArray[np.int64]
# split, first record, one past the last
Parts = Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Records in the order of the split.

    Args:
        names: of the splits that they are of.
        paths: of the files that they lie in, or addresses.
        splits: of which split each file is.
        lengths: int64 [files], records that each should have.
        num_bytes: int64 [files], how large each is.
        shard: int64 [n], file of each record.
        record: int64 [n], its number there.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    splits: tuple[str, ...]
    lengths: Int64s
    num_bytes: Int64s
    shard: Int64s
    record: Int64s

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def edges(self) -> Int64s:
        """The positions where another file begins, int64 [k]."""
        is_first = np.diff(self.shard, prepend=-1) != 0
        return np.flatnonzero(is_first).astype(np.int64)

    def run(self, position: int, most: int) -> int:
        """Return how many records from a position on follow each other in one file, at most so many."""
        shard, record = self.shard[position : position + most], self.record[position : position + most]
        is_next = (shard == shard[0]) & (record == record[0] + np.arange(len(record)))
        return len(is_next) if is_next.all() else int(np.argmin(is_next))


@dataclass(frozen=True, slots=True)
class _File:
    """A file that records are taken of."""

    split: str
    path: str
    length: int


def select(info: DatasetInfo, split: Split) -> Selection:
    """Return the records of a split."""
    sizes = _Lengths(info)
    parts = split_ranges(split, sizes)
    needed = _needed(info, parts, sizes)
    files = list(needed.values())
    _check_empty(info, {name for name, _, _ in parts}, sizes)
    num_bytes = _checked_bytes(files, info.file_format)
    numbers = dict(zip(needed, range(len(needed)), strict=True))
    shards, records = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, start, stop in parts:
        indices = np.arange(start, stop, dtype=np.int64)
        edges = np.cumsum([0, *sizes[name]])
        # files without records begin where the next one does
        shard = np.searchsorted(edges, indices, side="right") - 1
        number = np.array([numbers.get((name, place), -1) for place in range(len(sizes[name]))], np.int64)
        shards.append(number[shard])
        records.append(indices - edges[shard])
    return Selection(
        tuple(dict.fromkeys(name for name, _, _ in parts)),
        tuple(file.path for file in files),
        tuple(file.split for file in files),
        np.array([file.length for file in files], np.int64),
        num_bytes,
        np.concatenate(shards),
        np.concatenate(records),
    )


def files_of(info: DatasetInfo, split: Split) -> list[str]:
    """Return the paths or addresses of the files that hold a split's records; none is opened."""
    sizes = _Lengths(info)
    return [file.path for file in _needed(info, split_ranges(split, sizes), sizes).values()]


def lengths_by_split(info: DatasetInfo) -> Mapping[str, int | None]:
    """Return the number of records of each split; None where the dataset does not say."""
    return {
        name: None if split.shard_lengths is None else sum(split.shard_lengths) for name, split in info.splits.items()
    }


class _Lengths(Mapping[str, Sequence[int]]):
    """The number of records of each file by split; files are opened where the dataset does not say it."""

    def __init__(self, info: DatasetInfo) -> None:
        self._info = info
        self._known: dict[str, Sequence[int]] = {}

    def __getitem__(self, name: str) -> Sequence[int]:
        if name not in self._known:
            split = self._info.splits[name]
            told = split.shard_lengths
            self._known[name] = self._counted(split) if told is None else list(told)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._info.splits

    def __iter__(self) -> Iterator[str]:
        return iter(self._info.splits)

    def __len__(self) -> int:
        return len(self._info.splits)

    def _counted(self, split: SplitInfo) -> Sequence[int]:
        return [len(open_shard(path, self._info.file_format)) for path in split.paths]


def _needed(info: DatasetInfo, parts: Parts, sizes: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], _File]:
    """Return the files that parts of splits lie in, by split and number there, in the order of the files."""
    found = {}
    for name in dict.fromkeys(name for name, _, _ in parts):
        stops = list(accumulate(sizes[name]))
        ranges = [(start, stop) for part, start, stop in parts if part == name and start < stop]
        for shard, (length, end) in enumerate(zip(sizes[name], stops, strict=True)):
            if any(start < end and end - length < stop for start, stop in ranges) and length:
                found[name, shard] = _File(name, info.splits[name].paths[shard], length)
    return found


def _check_empty(info: DatasetInfo, names: Iterable[str], sizes: Mapping[str, Sequence[int]]) -> None:
    """Refuse files that should have no records by dataset_info.json, and have some."""
    for name in names:
        for path, length in zip(info.splits[name].paths, sizes[name], strict=True):
            # where no file is, nothing is lost; those of other machines are not fetched for it
            if not length and not is_remote(path) and os.path.isfile(path):  # noqa: PTH113  thousands of files
                count = len(open_shard(path, info.file_format)) if os.path.getsize(path) else 0  # noqa: PTH202
                if count:
                    raise FormatError(
                        f"{path}: {count} records, by dataset_info.json none. Copy all of the dataset again."
                    )


def _checked_bytes(files: Sequence[_File], file_format: str) -> Int64s:
    """Return the files' sizes; refuse numbers of records that they cannot hold, before anything is made of them."""
    sizes = _sizes_of([file.path for file in files])
    for file, size in zip(files, sizes, strict=True):
        # whether one of another machine is compressed is seen when it is fetched
        is_plain = file_format == "tfrecord" and not is_remote(file.path) and not is_compressed(file.path)
        most = MOST_UNTOLD if size is None else size // MIN_RECORD_BYTES if is_plain else size * MOST_A_BYTE
        if file.length > most:
            raise FormatError(
                f"{plain_address(file.path)}: {file.length} records by dataset_info.json, in a file of {size} bytes. "
                "The file was cut off, or dataset_info.json is damaged: copy both again."
            )
    return np.array([size or 0 for size in sizes], np.int64)


def _sizes_of(paths: Sequence[str]) -> list[int | None]:
    """Return how large files are; None where another machine does not tell."""
    remote = [path for path in paths if is_remote(path)]
    try:
        states = dict(zip(remote, remote_states(remote), strict=True))
        # thousands of files
        return [states[path].num_bytes if path in states else os.stat(path).st_size for path in paths]  # noqa: PTH116
    except UnreachableError:
        raise
    except OSError as error:
        told = error if isinstance(error, DatasetNotFoundError) else f"{error.filename}: {error.strerror}."
        raise DatasetNotFoundError(
            f"{told} dataset_info.json names it: fetch all files of the dataset, or choose another split."
        ) from error
