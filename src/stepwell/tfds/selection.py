"""Which records of which files a split is: their numbers, and the files that hold them.

::

    split="train[:10%]+val"  ──shardLengths──>  position  0 1 2 3 4 ...
                                                shard     0 0 0 1 1        file i of `paths`
                                                record    0 1 2 0 1        in its file

Files none of whose records are in the split are not looked at, and need not be there. Where dataset_info.json tells no
lengths of shards, all files of the splits that are named are opened and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.formats.splits import Split, split_ranges
from stepwell.references.remote_files import remote_states
from stepwell.references.remote_sources import UnreachableError
from stepwell.tfds.framing import is_compressed
from stepwell.tfds.info import DatasetInfo, SplitInfo
from stepwell.tfds.shards import open_shard

__all__ = ["Selection", "files_of", "lengths_by_split", "select"]

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
    """A file that records are taken of.

    Args:
        split: which it is of.
        path: or address.
        length: records that it should have.
    """

    split: str
    path: str
    length: int


def select(info: DatasetInfo, split: Split) -> Selection:
    """Return the records of a split.

    Args:
        info: of the dataset.
        split: as `stepwell.formats.splits.split_indices` takes it.

    Raises:
        FormatError: no such split, or files that cannot hold what dataset_info.json says.
        DatasetNotFoundError: a file is missing.
    """
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
    """Return the paths or addresses of the files that a split's records lie in, without looking whether they are there.

    Raises:
        FormatError: no such split.
    """
    sizes = _Lengths(info)
    return [file.path for file in _needed(info, split_ranges(split, sizes), sizes).values()]


def lengths_by_split(info: DatasetInfo) -> Mapping[str, int | None]:
    """Return the number of records of each split; None where the dataset does not say."""
    return {
        name: None if split.shard_lengths is None else sum(split.shard_lengths) for name, split in info.splits.items()
    }


class _Lengths(Mapping[str, Sequence[int]]):
    """The records of each file of each split; of splits that do not tell, the files are opened when one is asked for.

    Args:
        info: of the dataset.
    """

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
