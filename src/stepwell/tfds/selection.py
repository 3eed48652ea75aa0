"""Which records of which files a split is: their numbers, and the files that hold them.

::

    split="train[:10%]+val"  ──shardLengths──>  position  0 1 2 3 4 ...
                                                shard     0 0 0 1 1        file i of `paths`
                                                record    0 1 2 0 1        in its file
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.formats.slicing import Split, split_ranges
from stepwell.tfds.framing import is_compressed
from stepwell.tfds.info import DatasetInfo, SplitInfo
from stepwell.tfds.record_files import open_records

__all__ = ["Selection", "select"]

# a record of a TFRecord file takes at least its size and two CRCs; of ArrayRecord, compressed, next to nothing
MIN_RECORD_BYTES = 16
MOST_A_BYTE = 64

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Records in the order of the split.

    Args:
        paths: of the files.
        splits: of which split each file is.
        lengths: int64 [files], records that each should have.
        shard: int64 [n], file of each record.
        record: int64 [n], its number there.
    """

    paths: tuple[str, ...]
    splits: tuple[str, ...]
    lengths: Int64s
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


def select(info: DatasetInfo, split: Split) -> Selection:
    """Return the records of a split.

    Args:
        info: of the dataset.
        split: as `stepwell.formats.slicing.split_indices` takes it.

    Raises:
        FormatError: no such split, or files that cannot hold what dataset_info.json says.
        DatasetNotFoundError: a file is missing.
    """
    sizes = {name: _lengths(found, info.file_format) for name, found in info.splits.items()}
    parts = split_ranges(split, sizes)
    used = list(dict.fromkeys(name for name, _, _ in parts))
    for name in used:
        _check_lengths(info.splits[name], sizes[name], info.file_format)
    bases = dict(zip(used, np.cumsum([0, *(len(info.splits[name].paths) for name in used)]).tolist(), strict=False))
    shards, records = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, start, stop in parts:
        indices = np.arange(start, stop, dtype=np.int64)
        edges = np.cumsum([0, *sizes[name]])
        # files without records begin where the next one does
        shard = np.searchsorted(edges, indices, side="right") - 1
        shards.append(shard + bases[name])
        records.append(indices - edges[shard])
    return Selection(
        tuple(path for name in used for path in info.splits[name].paths),
        tuple(name for name in used for _ in info.splits[name].paths),
        np.array([length for name in used for length in sizes[name]], np.int64),
        np.concatenate(shards),
        np.concatenate(records),
    )


def _lengths(split: SplitInfo, file_format: str) -> list[int]:
    """Return the records of each file of a split."""
    if split.shard_lengths is None:
        return [len(open_records(path, file_format)) for path in split.paths]
    return list(split.shard_lengths)


def _check_lengths(split: SplitInfo, lengths: Sequence[int], file_format: str) -> None:
    """Refuse numbers of records that the files cannot hold, before anything is made of that length."""
    for path, length in zip(split.paths, lengths, strict=True):
        try:
            size = os.stat(path).st_size  # noqa: PTH116  asked of thousands of files
        except OSError as error:
            raise DatasetNotFoundError(
                f"{path}: {error.strerror}. dataset_info.json names it: fetch all files of the dataset, or choose "
                "another split."
            ) from error
        is_plain = file_format == "tfrecord" and not is_compressed(path)
        if length > (size // MIN_RECORD_BYTES if is_plain else size * MOST_A_BYTE):
            raise FormatError(
                f"{path}: {length} records by dataset_info.json, in a file of {size} bytes. The file was cut off, or "
                "dataset_info.json is damaged: copy both again."
            )


def lengths_by_split(info: DatasetInfo) -> Mapping[str, int | None]:
    """Return the number of records of each split; None where the dataset does not say."""
    return {
        name: None if split.shard_lengths is None else sum(split.shard_lengths) for name, split in info.splits.items()
    }
