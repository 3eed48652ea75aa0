"""Marks of episodes: good, bad and a note, beside what was recorded, which never changes.

``marks.json`` lies in the store, or for a data set that is read in place among the user's files, since the data set is
somebody else's and its store in the cache may be removed::

    pusht.well/marks.json
    $XDG_DATA_HOME/stepwell/marks/lerobot/pusht-1f2e3d4c5b6a.json      default of the variable: ~/.local/share

    {
      "marks": {
        "9c0e...:4294967296": {"mark": "good"},                  keys of episodes, see `stepwell.store.mark_keys`
        "9c0e...:4294967343": {"mark": "bad", "note": "slips"}
      },
      "crc32": "..."
    }

It is replaced whole. Both are part of an episode's metadata, as ``mark`` and ``note``. A data set in place has one
file, whatever it is opened with; earlier releases wrote one for each choice of options, which is read, too, and taken
over. Marks whose episodes are gone stay in the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, LeftOutWarning, StepwellError
from stepwell.files.file_locks import FileLock
from stepwell.json_text import open_json, seal_json
from stepwell.store.beneath import disk_error, mtime, open_file, read_file, read_rare_file, trusted_mtime
from stepwell.store.layout import locked_store, replace_file
from stepwell.store.mark_keys import (
    MarkedColumns,
    find_in_place,
    find_in_store,
    is_key,
    keys_in_place,
    keys_in_store,
)
from stepwell.store.records import StoreRecord, read_record

if TYPE_CHECKING:
    from stepwell.store.episodes import EpisodeTable
    from stepwell.store.snapshot import SegmentList
    from stepwell.store.store import Store

__all__ = [
    "MARKS",
    "MARK_VALUES",
    "Marks",
    "carry_marks",
    "carry_marks_of_place",
    "key_of_episode",
    "mark_episodes",
    "metadata_reader",
    "num_lost_marks",
    "read_marks",
]

MARKS = "marks.json"
MARK_VALUES = ("good", "bad")
MAX_NOTE = 2000
ONLY_MARKS = "It holds marks and notes alone: without the file all that was recorded can be read."
MAX_NAME = 64
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
Entries = Mapping[str, Mapping[str, str]]
Int64s = npt.NDArray[np.int64]


class Marks:
    """The marks of a store; read when an episode's metadata are first asked for, then as of the last refresh."""

    # ``record``: None of a data set in place; ``place``: its reader and where it is, whatever it is opened with

    def __init__(self, path: str, record: StoreRecord | None, place: tuple[str, str] | None = None) -> None:
        self._path, self.record, self._place = path, record, place

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The file that is written, and those of earlier releases that are read as well."""
        if self.record is not None:
            return (f"{self._path}/{MARKS}",)
        # what a store in the cache is called: READER/NAME-DIGEST_OF_ITS_PLACE/NAME-FILES-OPTIONS; files may change
        cached = Path(self._path)
        name = f"{cached.parent.name}-{cached.stem.rpartition('-')[2]}.json"
        earlier = f"{_home()}/{cached.parent.parent.name}/{name}"
        return (earlier,) if self._place is None else (marks_of_place(*self._place), earlier)

    def with_record(self, record: StoreRecord | None) -> Marks:
        """Return the marks, not read yet, by another record of the store."""
        return Marks(self._path, record, self._place)

    @property
    def data(self) -> tuple[bytes, ...]:
        """The files as they are; nothing for one that is not there."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        # the stamps first: what is replaced in between is found by the next refresh
        stamps = tuple(map(trusted_mtime, self.files))
        return stamps, tuple(read_rare_file(file) or b"" for file in self.files)

    @cached_property
    def entries(self) -> Entries:
        """Key to what is said of an episode; CorruptSegmentError where a file is damaged."""
        found: dict[str, Mapping[str, str]] = {}
        for file, data in reversed([*zip(self.files, self.data, strict=True)]):
            found |= _parsed(data, file) if data else {}
        return found

    def refreshed(self) -> Marks:
        """Return the marks as they are now; itself where nobody asked for them yet, or none changed."""
        if "_read" not in self.__dict__ or tuple(map(mtime, self.files)) == self._read[0]:
            return self
        now = self.with_record(self.record)
        if now.data == self.data:
            self._read = now._read
            return self
        return now

    def find(self, segments: SegmentList, columns: MarkedColumns) -> dict[int, str]:
        """Return number of an episode to its key, of those that are marked and there."""
        if self.record is None:
            return find_in_place(segments, columns, self.entries)
        return find_in_store(self.record, segments, columns, self.entries)


def metadata_reader(
    segments: Any, lines: Any, marks: Marks, columns: MarkedColumns
) -> Callable[[int, int], dict[str, Any]]:
    """Return what reads an episode's metadata by (segment, record): what was recorded, and its marks over that."""
    found: dict[tuple[int, int], Mapping[str, str]] | None = None

    def read(segment: int, record: int) -> dict[str, Any]:
        nonlocal found
        if found is None:
            keys = marks.find(segments, columns) if any(marks.data) else {}
            found = {
                (int(columns.segment[number]), int(columns.record[number])): marks.entries[key]
                for number, key in keys.items()
            }
        return {**lines.read(segments[segment], record), **found.get((segment, record), {})}

    return read


def marks_of_place(reader: str, place: str) -> str:
    """Return the file of the marks of a data set of another system.

    Args:
        reader: name of its format.
        place: where it is, whatever it is opened with: absolute paths and addresses, one a line.
    """
    name = place.partition("\n")[0].partition("?")[0].rstrip("/").rpartition("/")[2]
    told = NO_NAME.sub("-", name)[:MAX_NAME].strip("-.") or "dataset"
    digest = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    return f"{_home()}/{reader}/{told}-{digest}.json"


def _home() -> str:
    return f"{os.environ.get('XDG_DATA_HOME') or os.path.expanduser('~/.local/share')}/stepwell/marks"


def mark_episodes(
    store: Store, listing: tuple[SegmentList, EpisodeTable], chosen: Int64s, mark: str | None, note: str | None
) -> None:
    """Change what is said of episodes; see `Store.mark_episodes`."""
    if mark not in (None, "", *MARK_VALUES):
        raise StepwellError(f'mark={mark!r}. Allowed: {", ".join(map(repr, MARK_VALUES))}; "" takes it back.')
    if note is not None and (not isinstance(note, str) or len(note) > MAX_NOTE or not _is_unicode(note)):
        raise StepwellError(f'note={note!r:.60}. Allowed: text, {MAX_NOTE} characters at most; "" takes it back.')
    given = {name: value for name, value in (("mark", mark), ("note", note)) if value is not None}
    (file, *earlier), segments, columns = store.marks.files, listing[0], MarkedColumns.of(listing[1])
    with _locked(store, file):
        record = None if store.address else read_record(str(store.path))
        entries = {key: dict(entry) for key, entry in store.marks.with_record(record).entries.items()}
        # of a data set in place an episode may be known by another number, or as earlier releases named it
        known = find_in_place(segments, columns, entries) if record is None else {}
        changed = set(chosen.tolist())
        numbers = sorted(changed | {number for number, key in known.items() if key.count(":") == 1})
        for number, key in zip(numbers, _keys(record, segments, columns, numbers), strict=True):
            entry = {**entries.pop(known.get(number, key), {}), **(given if number in changed else {})}
            if any(entry.values()):
                entries[key] = {name: value for name, value in entry.items() if value}
        replace_file(file, seal_json({"marks": entries}))
        for each in earlier:
            with suppress(FileNotFoundError):
                os.unlink(each)


def carry_marks(stores: Sequence[Store], target: str) -> None:
    """Write, beside the segments of a copy of stores, the marks of their episodes."""
    entries: dict[str, Mapping[str, str]] = {}
    for store in stores:
        found = store.marks.with_record(store.marks.record).entries
        if store.address is not None and found:
            segments, table = store.listing
            columns = MarkedColumns.of(table)
            known = find_in_place(segments, columns, found)
            births = keys_in_store(store.record, segments, columns, list(known))
            found = {birth: found[key] for birth, key in zip(births, known.values(), strict=True)}
        entries |= found
    if entries:
        replace_file(f"{target}/{MARKS}", seal_json({"marks": entries}))


def carry_marks_of_place(place: tuple[str, str], target: Store, sources: Int64s) -> None:
    """Write, beside the segments of a store that was made of a data set of another system, the marks of its episodes.

    Args:
        place: reader and place of the data set, see `marks_of_place`.
        target: the store.
        sources: int64 [E], the numbers of its episodes in the data set.
    """
    try:
        entries = read_marks(marks_of_place(*place))
    except (StepwellError, OSError) as error:
        # the episodes are all there: a conversion of hours does not fail for it
        warnings.warn(f"marks were not carried over: {error}", LeftOutWarning, stacklevel=2)
        return
    if not entries:
        return
    segments, table = target.listing
    columns = MarkedColumns.of(table)
    known = find_in_place(segments, columns, entries, sources if len(sources) == len(table) else None)
    births = keys_in_store(target.record, segments, columns, list(known))
    found = {birth: entries[key] for birth, key in zip(births, known.values(), strict=True)}
    if found:
        replace_file(f"{target.path}/{MARKS}", seal_json({"marks": found}))


def key_of_episode(store: Store, index: int) -> str:
    """Return what names an episode, whatever its number becomes: the key of its mark."""
    segments, table = store.listing
    return _keys(store.marks.record, segments, MarkedColumns.of(table), [index])[0]


def num_lost_marks(store: Store) -> int:
    """Return how many marks of a data set in place are of episodes that are not there; 0 of a store."""
    marks, (segments, table) = store.marks, store.listing
    if store.address is None or not any(marks.data):
        return 0
    return len(marks.entries) - len(marks.find(segments, MarkedColumns.of(table)))


def read_marks(file: str) -> Entries:
    """Return key to what is said of an episode, by the file; none where there is no file.

    Raises:
        CorruptSegmentError: it is damaged.
    """
    try:
        return _parsed(read_file(file), file)
    except FileNotFoundError:
        return {}


def _keys(
    record: StoreRecord | None, segments: SegmentList, columns: MarkedColumns, numbers: Sequence[int]
) -> list[str]:
    if record is None:
        return keys_in_place(segments, columns, numbers)
    return keys_in_store(record, segments, columns, numbers)


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
    return is_key(key) and isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())


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
