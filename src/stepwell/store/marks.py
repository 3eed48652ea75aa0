"""Marks of episodes: good, bad and a note, beside what was recorded, which never changes.

``marks.json`` lies in the store, or for a data set that is read in place among the user's files, since the data set is
somebody else's and its store in the cache may be removed::

    pusht.well/marks.json
    $XDG_DATA_HOME/stepwell/marks/lerobot/pusht-1f2e3d4c-9a8b7c6d.json         default of the variable: ~/.local/share

    {
      "marks": {
        "9c0e...:4294967296": {"mark": "good"},                  uuid of the store that the episode was first written
        "9c0e...:4294967343": {"mark": "bad", "note": "slips"}   in, and its origin: kept by every copy of it
      },                                                         (in place: its number, and its length)
      "crc32": "..."
    }

It is replaced whole. Both are part of an episode's metadata, as ``mark`` and ``note``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.files.file_locks import FileLock
from stepwell.json_text import open_json, seal_json
from stepwell.store.beneath import disk_error, open_file, read_file
from stepwell.store.layout import locked_store, ordinals_of_keys, replace_file
from stepwell.store.records import StoreRecord, births_of, read_record

if TYPE_CHECKING:
    from stepwell.store.episodes import EpisodeTable
    from stepwell.store.store import Store

__all__ = [
    "MARKS",
    "MARK_VALUES",
    "MarkedColumns",
    "Marks",
    "carry_marks",
    "mark_episodes",
    "marks_file",
    "metadata_reader",
    "read_marks",
]

MARKS = "marks.json"
MARK_VALUES = ("good", "bad")
MAX_NOTE = 2000
ONLY_MARKS = "It holds marks and notes alone: without the file all that was recorded can be read."
Entries = Mapping[str, Mapping[str, str]]
Int64s = npt.NDArray[np.int64]


class MarkedColumns(NamedTuple):
    """The columns of an `EpisodeTable` by which episodes are found."""

    segment: npt.NDArray[np.int32]
    record: Int64s
    origin: Int64s
    length: Int64s


@dataclass(frozen=True)
class Marks:
    """The marks of a store as of a refresh; parsed when an episode's metadata are first read."""

    file: str
    data: bytes  # none: no marks
    record: StoreRecord | None  # None: of a data set that is read in place

    @cached_property
    def entries(self) -> Entries:
        """Key to what is said of an episode; CorruptSegmentError where the file is damaged."""
        return _parsed(self.data, self.file) if self.data else {}

    def find(self, keys: Int64s, columns: MarkedColumns) -> dict[tuple[int, int], Mapping[str, str]]:
        """Return what is said of episodes, by segment and record."""
        found = {}
        for number, key in zip(*self._candidates(keys, columns), strict=True):
            if key in self.entries:
                found[int(columns.segment[number]), int(columns.record[number])] = self.entries[key]
        return found

    def _candidates(self, keys: Int64s, columns: MarkedColumns) -> tuple[list[int], list[str]]:
        """Return numbers of episodes that may be marked, and their keys."""
        if self.record is None:
            numbers = sorted({int(key.partition(":")[0]) for key in self.entries})
            numbers = [number for number in numbers if number < len(columns.length)]
        else:
            origins = np.array([int(key.partition(":")[2]) for key in self.entries], np.int64)
            numbers = np.flatnonzero(np.isin(columns.origin, origins)).tolist()
        return numbers, _keys_of(self.record, keys, columns, numbers)


def metadata_reader(
    segments: Any, lines: Any, marks: Marks, columns: MarkedColumns
) -> Callable[[int, int], dict[str, Any]]:
    """Return what reads an episode's metadata by (segment, record): what was recorded, and its marks over that."""
    if not marks.data:
        return lambda segment, record: lines.read(segments[segment], record)
    found: dict[tuple[int, int], Mapping[str, str]] | None = None

    def read(segment: int, record: int) -> dict[str, Any]:
        nonlocal found
        if found is None:
            found = marks.find(segments.keys, columns)
        return {**lines.read(segments[segment], record), **found.get((segment, record), {})}

    return read


def marks_file(path: str, address: str | None) -> str:
    """Return where the marks of a store are kept; of one that stands for a data set, among the user's files."""
    if address is None:
        return f"{path}/{MARKS}"
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    # what a store in the cache is called: READER/NAME-DIGEST_OF_ITS_PLACE/NAME-FILES-OPTIONS; files may change
    cached = Path(path)
    name = f"{cached.parent.name}-{cached.stem.rpartition('-')[2]}.json"
    return f"{home}/stepwell/marks/{cached.parent.parent.name}/{name}"


def mark_episodes(store: Store, table: EpisodeTable, chosen: Int64s, mark: str | None, note: str | None) -> None:
    """Change what is said of episodes; see `Store.mark_episodes`."""
    if mark not in (None, "", *MARK_VALUES):
        raise StepwellError(f'mark={mark!r}. Allowed: {", ".join(map(repr, MARK_VALUES))}; "" takes it back.')
    if note is not None and (not isinstance(note, str) or len(note) > MAX_NOTE or not _is_unicode(note)):
        raise StepwellError(f'note={note!r:.60}. Allowed: text, {MAX_NOTE} characters at most; "" takes it back.')
    given = {name: value for name, value in (("mark", mark), ("note", note)) if value is not None}
    file = marks_file(str(store.path), store.address)
    columns = MarkedColumns(table.segment, table.record, table.origin, table.length)
    with _locked(store, file):
        record = None if store.address else read_record(str(store.path))
        entries = {key: dict(entry) for key, entry in read_marks(file).items()}
        for key in _keys_of(record, store.segments.keys, columns, chosen.tolist()):
            entry = {name: value for name, value in {**entries.pop(key, {}), **given}.items() if value}
            if entry:
                entries[key] = entry
        replace_file(file, seal_json({"marks": entries}))


def carry_marks(stores: Sequence[Store], target: str) -> None:
    """Write, beside the segments of a copy of stores, the marks of their episodes."""
    entries: dict[str, Mapping[str, str]] = {}
    for store in stores:
        found = read_marks(marks_file(str(store.path), store.address))
        if store.address is not None and found:
            segments, table = store.listing
            columns = MarkedColumns(table.segment, table.record, table.origin, table.length)
            numbers, keys = Marks("", seal_json({"marks": found}), None)._candidates(segments.keys, columns)
            births = _keys_of(store.record, segments.keys, columns, numbers)
            found = {birth: found[key] for key, birth in zip(keys, births, strict=True) if key in found}
        entries |= found
    if entries:
        replace_file(f"{target}/{MARKS}", seal_json({"marks": entries}))


def read_marks(file: str) -> Entries:
    """Return key to what is said of an episode, by the file; none where there is no file.

    Raises:
        CorruptSegmentError: it is damaged.
    """
    try:
        return _parsed(read_file(file), file)
    except FileNotFoundError:
        return {}


def _keys_of(record: StoreRecord | None, keys: Int64s, columns: MarkedColumns, numbers: Sequence[int]) -> list[str]:
    chosen = np.asarray(numbers, np.int64)
    if record is None:
        return [f"{number}:{length}" for number, length in zip(numbers, columns.length[chosen].tolist(), strict=True)]
    ordinals = ordinals_of_keys(keys)[columns.segment[chosen]] if len(chosen) else chosen
    uuids, births = births_of(record, ordinals, columns.record[chosen])
    return [
        f"{uuids[birth]}:{origin}"
        for birth, origin in zip(births.tolist(), columns.origin[chosen].tolist(), strict=True)
    ]


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: half of a surrogate pair cannot."""
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


def _parsed(data: bytes, file: str) -> Entries:
    try:
        entries = open_json(data, name=file).get("marks")
    except CorruptSegmentError as error:
        raise CorruptSegmentError(f"{error} {ONLY_MARKS}") from error
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.items())):
        raise CorruptSegmentError(f"{file}: the checksum is right, but these are no marks. {ONLY_MARKS}")
    return entries


def _is_entry(item: tuple[str, Any]) -> bool:
    key, entry = item
    _, colon, number = key.partition(":")
    is_key = colon and number.isdecimal() and len(number) < 19
    return bool(is_key) and isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())


@contextmanager
def _locked(store: Store, file: str) -> Iterator[None]:
    if store.address is None:
        with locked_store(str(store.path)):
            yield
        return
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
    except OSError as error:
        raise disk_error(error, 0, file) from error
    with FileLock(open_file(f"{file}.lock", os.O_RDWR | os.O_CREAT)):
        yield
