"""The samples of a shard: members of an archive that follow each other and are called alike up to the first dot.

::

    dir/00017.jpg  dir/00017.json  dir/00017.vec.npy  dir/00018.jpg ...
    |------key---| |ending|                  |-ending|
    `-------------- sample "dir/00017": jpg, json, vec.npy -------'
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.webdataset.tar_files import TarIndex

__all__ = ["Members", "Shard", "group_samples", "split_name"]

# what describes a whole shard, such as "__meta__/classes.json"
META = re.compile(r"__[^/]*__($|/)")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The members of one ending: one for each sample of a shard."""

    # int64 [n], place of the first byte; -1 where a sample has no such member
    offsets: Int64s
    # int64 [n], bytes of each
    sizes: Int64s

    @property
    def is_there(self) -> npt.NDArray[np.bool_]:
        """Bool [n]: which samples have one."""
        return self.offsets >= 0


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The samples of one archive."""

    # path or address of the archive
    path: str
    keys: list[str]
    # by ending, in lower case
    members: Mapping[str, Members]
    # whether the archive was cut off, so that the last sample may lack members
    is_cut: bool = False
    # samples of the archive, those of other endings included
    num_stored: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def spans(self) -> tuple[Int64s, Int64s]:
        """Return where each sample begins and ends in the archive: int64 [n] each."""
        first, last = np.full(len(self), np.iinfo(np.int64).max), np.zeros(len(self), np.int64)
        for members in self.members.values():
            there = members.is_there
            first[there] = np.minimum(first, members.offsets)[there]
            last[there] = np.maximum(last, members.offsets + members.sizes)[there]
        return np.minimum(first, last), last

    def where(self, sample: int, ending: str) -> str:
        """Return what messages call a member."""
        return f"{self.path}: {self.keys[sample]}.{ending}, byte {self.members[ending].offsets[sample]}"

    def __repr__(self) -> str:
        return f"<Shard {self.path}  {len(self):,} samples of {', '.join(self.members)}>"


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and ending of a member's name, the ending in lower case; None for what belongs to no sample."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot <= start or (name.startswith("__") and META.match(name)):
        return None
    return name[:dot], name[dot + 1 :].lower()


def group_samples(
    index: TarIndex,
    *,
    keep: Callable[[str], bool] | None = None,
    column_of: Callable[[str], str] = str,
    allow_repeats: bool = False,
) -> Shard:
    """Return the samples of an archive."""
    keys: list[str] = []
    numbers: dict[str, list[int]] = defaultdict(list)
    rows: dict[str, list[int]] = defaultdict(list)
    columns: dict[str, str | None] = {}
    key = stored_key = ""
    num_stored = 0
    for member, name in enumerate(index.names):
        split = split_name(name)
        if split is None:
            continue
        ending = split[1]
        if split[0] != stored_key or not num_stored:
            stored_key = split[0]
            num_stored += 1
        if ending not in columns:
            columns[ending] = column_of(ending) if keep is None or keep(ending) else None
        column = columns[ending]
        if column is None:
            continue
        if split[0] != key or not keys:
            key = split[0]
            keys.append(key)
        found = rows[column]
        if found and found[-1] == len(keys) - 1:
            raise _twice(index, member, column)
        found.append(len(keys) - 1)
        numbers[column].append(member)
    if not allow_repeats and len(set(keys)) != len(keys):
        raise _again(index, keys)
    members = {ending: _members(index, len(keys), rows[ending], numbers[ending]) for ending in rows}
    return Shard(index.path, keys, members, index.is_cut, num_stored)


def _members(index: TarIndex, count: int, rows: list[int], numbers: list[int]) -> Members:
    offsets, sizes = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    offsets[rows], sizes[rows] = index.offsets[numbers], index.sizes[numbers]
    return Members(offsets, sizes)


def _twice(index: TarIndex, member: int, column: str) -> FormatError:
    if "|" in column:
        return FormatError(
            f"{index.path}, byte {index.headers[member]}: the sample of {index.names[member]} has two members of "
            f"{column.replace('|', ', ')}, whose new name is one. Give each a name of its own with rename=."
        )
    return FormatError(
        f"{index.path}, byte {index.headers[member]}: {index.names[member]} comes twice in its sample. Write the "
        "archive again with a name each; upper and lower case of the ending are the same."
    )


def _again(index: TarIndex, keys: list[str]) -> FormatError:
    seen: set[str] = set()
    key = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    begins = [row for row, name in enumerate(index.names) if (split_name(name) or ("",))[0] == key]
    return FormatError(
        f"{index.path}, byte {index.headers[begins[-1]]}: sample {key} comes again; its members must follow each "
        "other. Sort the archive by name when it is written; allow_repeats=True takes each run of them as a sample."
    )
