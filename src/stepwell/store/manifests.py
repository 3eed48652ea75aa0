"""Manifests: of the files of a segment (``segment.json``), and of the segments of a store (``arrangement.json``).

A store shows its segments by ordinal, unless its manifest says otherwise::

    {"sequence": 3,                        grows with every replacement
     "positions": {"00000009-7f3a": 2},    sorts where ordinal 2 was, whose place it took
     "hidden": ["00000002-91bc"],          on the disk, but not shown: not yet, or not any more
     "keys": {"00000004-33d0": "task-17"}, of segments without a note of their key, as older releases wrote them
     "crc32": "9a1f0c22"}

The file is absent until the first compaction. It is replaced whole, so that one rename swaps old segments for new ones.
Segments of writers with a key come after all others, by key.

A writer's key names a task: when it is tried again, it replaces its earlier segments, which have a place of their own::

    pusht.well/
      segments/*/key.json     of each segment of a writer with a key: {"key": "task-17", "episodes": 12, "crc32": ...},
                              where episodes counts those that the writer kept in segments before this one
      keys/
        5d1f0a...             flock of the writer of the key with this SHA-256, while it is open

``key.json`` is there before the segment is, and stays when that is sealed. With the key and its number among the
episodes that its writer kept, an episode has the same ``origin`` whenever its task runs, and however often.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError, StoreBusyError
from stepwell.files.file_locks import FileLock
from stepwell.json_text import open_json, seal_json
from stepwell.store.beneath import check_directory, open_file, read_file, read_rare_file, system_errors
from stepwell.store.column_file import ColumnFile
from stepwell.store.layout import (
    OPEN_SUFFIX,
    RESTORE,
    SEGMENT_JSON,
    SEGMENTS,
    is_sealed_name,
    key_of_name,
    list_keys,
    list_segments,
    locked_store,
    name_of_key,
    ordinals_of_keys,
    replace_file,
    without,
)

if TYPE_CHECKING:
    from stepwell.store.snapshot import SegmentTable

__all__ = [
    "ARRANGEMENT_JSON",
    "KEY",
    "MAX_KEY",
    "KeyNote",
    "StoreManifest",
    "WriterKey",
    "check_key",
    "find_note",
    "has_listed_files",
    "ordered_segments",
    "read_manifest",
    "read_note",
    "read_store_manifest",
    "replace_store_manifest",
    "shown_keys",
    "shown_segments",
    "write_note",
]

Int64s = npt.NDArray[np.int64]
KEY = "key.json"
KEYS = "keys"
MAX_KEY = 200
ARRANGEMENT_JSON = "arrangement.json"
MAX_TRIES = 1000
# of ten digits
MAX_ORDINAL = 10**10
CRC = re.compile(r"[0-9a-f]{8}")
# of a file in a segment: no path, and nothing that is hidden
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class KeyNote:
    """The content of ``key.json``."""

    # of the writer
    key: str
    # episodes that it kept in segments before this one
    num_before: int = 0

    def origin(self, number: int) -> int:
        """Return the origin of one of the episodes that are kept in this segment: negative, as no id of a step is."""
        text = f"{self.num_before + number} {self.key}".encode()
        return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1 << 63) - (1 << 64)

    def origins(self, first: int, count: int) -> Int64s:
        """Return the origins of ``count`` of them that follow each other, int64 [count]."""
        return np.array([self.origin(number) for number in range(first, first + count)], np.int64)

    def next_origin(self, records: npt.NDArray[Any]) -> int:
        """Return the origin of the episode after all those of the segment's records."""
        return self.origin(len(records) - int(np.count_nonzero(records["discarded"])))


def check_key(key: object) -> str:
    """Return the key of a writer; StepwellError when it is none."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or any("\ud800" <= char <= "\udfff" for char in key):
        raise StepwellError(f"{key!r:.100} is no key of a writer. Give text of 1 to {MAX_KEY} characters.")
    return key


def write_note(directory: str, note: KeyNote) -> None:
    """Write the note of a segment that is being made, onto the disk."""
    path = f"{directory}/{KEY}"
    file = ColumnFile(path)
    try:
        file.write(seal_json({"key": note.key, "episodes": note.num_before}), 0)
        file.sync()
    finally:
        file.close()


def read_note(directory: str) -> KeyNote | None:
    """Return the note of the segment at ``directory``; None where there is none; CorruptSegmentError: damaged."""
    path = f"{directory}/{KEY}"
    data = read_rare_file(path)
    if data is None:
        return None
    record = open_json(data, name=path)
    num_before = record.get("episodes")
    with suppress(StepwellError):
        if isinstance(num_before, int) and 0 <= num_before < 1 << 63:
            return KeyNote(check_key(record.get("key")), num_before)
    raise CorruptSegmentError(f"{path} is no note of a key. {RESTORE}")


def find_note(directory: str) -> KeyNote | None:
    """Return the note of a segment, under its open name or its sealed one: it may be sealed meanwhile."""
    return read_note(directory) or (
        read_note(directory.removesuffix(OPEN_SUFFIX)) if directory.endswith(OPEN_SUFFIX) else None
    )


class WriterKey:
    """The key of one writer: no other writer has it until it is released, or the process ends."""

    def __init__(self, store: str, text: str) -> None:
        self._store, self.text = store, text
        # of the segment that comes next
        self.note = KeyNote(text)
        self._path = f"{store}/{KEYS}/{hashlib.sha256(text.encode()).hexdigest()}"
        with system_errors(store, is_writing=True), locked_store(store):
            with suppress(FileExistsError):
                os.mkdir(f"{store}/{KEYS}")
            check_directory(f"{store}/{KEYS}")
            try:
                self._lock = FileLock(open_file(self._path, os.O_RDWR | os.O_CREAT), is_waiting=False)
            except BlockingIOError:
                raise self.busy() from None

    def busy(self) -> StoreBusyError:
        """Return the error of a second writer."""
        return StoreBusyError(
            f"a writer with key={self.text!r} is recording into {self._store}. Wait until it is closed or dead, or "
            "give another key."
        )

    def go_on(self, num_kept: int) -> None:
        """Take note of the episodes of a segment after which the writer begins another."""
        self.note = KeyNote(self.text, self.note.num_before + num_kept)

    def release(self) -> None:
        """Let others have the key."""
        if self._lock.is_held:
            with suppress(OSError), locked_store(self._store):
                # under the store's lock no process is about to lock the file whose name goes
                os.unlink(self._path)
            self._lock.release()

    def leave(self) -> None:
        """Let others have the key, and wait for nothing: when a writer is collected, at any moment."""
        self._lock.release()


def read_manifest(path: str) -> dict[str, Any]:
    """Return what a ``segment.json`` says."""
    manifest = open_json(read_file(path), name=path)
    files = manifest.get("files")
    entries = files.values() if isinstance(files, dict) else [None]
    is_whole = all(isinstance(manifest.get(key), int) for key in ("rows", "episodes")) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and CRC.fullmatch(str(entry.get("crc32"))) is not None
        for entry in entries
    )
    if not is_whole:
        raise CorruptSegmentError(f'{path} lacks "rows", "episodes", or "files" with "bytes" and "crc32". {RESTORE}')
    for name in files or ():
        if not FILE_NAME.fullmatch(name):
            raise CorruptSegmentError(f"{path} lists {name!r:.200}, which is no file of a segment. {RESTORE}")
    return manifest


def has_listed_files(directory: str) -> bool:
    """Return whether a segment has a manifest and every file that it lists; True where the manifest is damaged."""
    # A manifest comes after the bytes of all files are on the disk, but a loss of power may have kept its name and not
    # theirs.
    try:
        files = read_manifest(f"{directory}/{SEGMENT_JSON}")["files"]
    except FileNotFoundError:
        return False
    except CorruptSegmentError:
        return True
    return all(os.path.lexists(f"{directory}/{name}") for name in files)


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Which segments a store shows and in which order, as ``arrangement.json`` says."""

    positions: Mapping[str, int] = field(default_factory=dict)  # segment's name to the ordinal that it sorts by
    hidden: frozenset[str] = frozenset()  # names of segments that are not shown
    sequence: int = 0  # how often it was replaced
    keys: Mapping[str, str] = field(default_factory=dict)  # name of a segment without a note to its writer's key

    def by_position(self, segments: Int64s) -> Int64s:
        """Return segments (keys, ascending) by position and ordinal, whatever the keys of their writers."""
        return segments[np.lexsort((segments, self._positions(segments)))] if self.positions else segments

    def _positions(self, segments: Int64s) -> Int64s:
        positions = ordinals_of_keys(segments)
        if len(segments):
            _put(positions, segments, {_number(name): position for name, position in self.positions.items()})
        return positions

    def ordered(self, segments: Int64s, known: SegmentTable, written: Mapping[int, str]) -> Int64s:
        """Return segments (keys, ascending) by writer's key, position and ordinal; `written` has the keys of some."""
        if len(segments) == 0 or not (self.positions or self.keys or written or known.texts):
            return segments
        ranks = known.ranks_of(segments)
        between = np.zeros(len(segments), np.int64)
        others = {_number(name): key for name, key in self.keys.items()} | dict(written)
        if others:
            # no walk over all keys of the table: a key that it lacks comes between two of its keys
            places = {number: _place(known.texts, key) for number, key in others.items()}
            new = {others[number] for number, place in places.items() if place % 2}
            fresh = {key: rank for rank, key in enumerate(sorted(new))}
            _put(ranks, segments, places)
            _put(between, segments, {number: fresh.get(key, 0) for number, key in others.items()})
        return segments[np.lexsort((segments, self._positions(segments), between, ranks))]

    def segments_of(self, key: str) -> list[int]:
        """Return the segments that have a key here, as numbers."""
        return [_number(name) for name, text in self.keys.items() if text == key]

    def has_order_of(self, other: StoreManifest) -> bool:
        """Whether it orders the same segments as the other one does."""
        return self.positions == other.positions and self.keys == other.keys


def _number(name: str) -> int:
    number = key_of_name(name)
    return -1 if number is None else number


def _place(texts: Sequence[str], text: str) -> int:
    """Return where a key comes among others: an even number where it is one of them."""
    place = bisect_left(texts, text)
    return 2 * place + 1 + (place < len(texts) and texts[place] == text)


def _put(target: Int64s, segments: Int64s, values: Mapping[int, int]) -> None:
    """Store the value of each segment that is there in its place; at least one segment is there."""
    named = np.fromiter(values, np.int64, len(values))
    at = np.minimum(np.searchsorted(segments, named), len(segments) - 1)
    is_there = segments[at] == named
    target[at[is_there]] = np.fromiter(values.values(), np.int64, len(values))[is_there]


def read_store_manifest(store: str) -> StoreManifest:
    """Read the manifest of the store at ``store``; CorruptSegmentError when it is damaged."""
    return _parse(read_rare_file(f"{store}/{ARRANGEMENT_JSON}"), store)


def replace_store_manifest(
    store: str,
    positions: Mapping[str, int],
    hidden: Iterable[str],
    *,
    new_keys: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Replace the manifest; the caller holds the store's lock. Positions and keys of segments gone are dropped."""
    there, before = list_segments(store), read_store_manifest(store)
    record: dict[str, Any] = {
        "sequence": before.sequence + 1,
        "positions": {name: position for name, position in sorted(positions.items()) if name in there},
        "hidden": sorted(hidden),
    }
    keys = {name: key for name, key in before.keys.items() if name in there} | dict(new_keys)
    if keys:
        record["keys"] = dict(sorted(keys.items()))
    replace_file(f"{store}/{ARRANGEMENT_JSON}", seal_json(record))


def shown_keys(store: str) -> tuple[Int64s, Int64s, StoreManifest]:
    """Return the keys of the shown segments, int64 [S], ascending; of the open ones among them; and the manifest."""
    for _ in range(MAX_TRIES):
        before = read_rare_file(f"{store}/{ARRANGEMENT_JSON}")
        keys, opened = list_keys(store)
        if read_rare_file(f"{store}/{ARRANGEMENT_JSON}") == before:
            break
    else:
        raise StoreBusyError(
            f"{ARRANGEMENT_JSON} of {store} was replaced {MAX_TRIES} times during as many listings. Try again."
        )
    manifest = _parse(before, store)
    if manifest.hidden:
        hidden = np.array(list(map(_number, manifest.hidden)), np.int64)
        hidden.sort()
        keys, opened = without(keys, hidden), without(opened, hidden)
    return keys, opened, manifest


def shown_segments(store: str) -> tuple[dict[str, tuple[int, bool]], StoreManifest]:
    """Return the shown segments, name to (ordinal, sealed?), in their order but for writers' keys; and the manifest."""
    keys, opened, manifest = shown_keys(store)
    shown, is_open = manifest.by_position(keys), set(opened.tolist())
    ordinals = ordinals_of_keys(shown).tolist()
    found = {
        name_of_key(key): (ordinal, key not in is_open) for key, ordinal in zip(shown.tolist(), ordinals, strict=True)
    }
    return found, manifest


def ordered_segments(store: str) -> tuple[dict[str, tuple[int, bool]], StoreManifest]:
    """Return the same as `shown_segments`, those with a writer's key in their order, too: looks into each segment."""
    shown, manifest = shown_segments(store)
    keys = {}
    for name, (_, is_sealed) in shown.items():
        note = find_note(f"{store}/{SEGMENTS}/{name}" + ("" if is_sealed else OPEN_SUFFIX))
        keys[name] = manifest.keys.get(name, "") if note is None else note.key
    return dict(sorted(shown.items(), key=lambda item: keys[item[0]])), manifest


@lru_cache(maxsize=4)
def _parse(data: bytes | None, store: str) -> StoreManifest:
    if data is None:
        return StoreManifest()
    path = os.path.join(store, ARRANGEMENT_JSON)
    record = open_json(data, name=path)
    try:
        positions = {_checked(name): _ordinal(position) for name, position in record["positions"].items()}
        keys = {_checked(name): check_key(key) for name, key in record.get("keys", {}).items()}
        return StoreManifest(positions, frozenset(map(_checked, record["hidden"])), int(record["sequence"]), keys)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StepwellError) as error:
        raise CorruptSegmentError(f"{path} is not an arrangement: {error!r}.") from error


def _checked(name: Any) -> str:
    """Return the name of a segment, checked: hidden names are removed from the disk."""
    if not is_sealed_name(name):
        raise ValueError(f"{name!r:.100} is no name of a segment")
    return str(name)


def _ordinal(position: Any) -> int:
    if not isinstance(position, int) or not 0 <= position < MAX_ORDINAL:
        raise ValueError(f"{position!r:.100} is no ordinal")
    return position
