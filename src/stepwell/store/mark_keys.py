"""Keys by which marks find their episodes again, though numbers change.

::

    of a store             9c0e...:4294967296                       uuid of the store that the episode was first written
                                                                    in, and its origin: kept by every copy
    of a data set in place 3:50:action=1f2e3d4c,state=9a8b7c6d      its number and length then, and for each feature a
                                                                    checksum of some of its rows, evenly spaced
                           3:50                                     the same as earlier releases wrote it

A data set of another system has no names for its episodes, and numbers them anew when some are deleted. So an episode
is looked for at its number first, then among those of the same length, the nearest numbers first, by its rows. Features
that were added since do not matter, nor do the columns by which LeRobot numbers rows, episodes and tasks. Of episodes
with next to no numbers (an image and a label) the files of images count, too; no image is decoded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import StepwellError
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature
from stepwell.store.layout import ordinals_of_keys
from stepwell.store.records import StoreRecord, births_of

if TYPE_CHECKING:
    from stepwell.store.episodes import EpisodeTable
    from stepwell.store.segments import Segment
    from stepwell.store.snapshot import SegmentList

__all__ = ["MarkedColumns", "find_in_place", "find_in_store", "is_key", "keys_in_place", "keys_in_store"]

Int64s = npt.NDArray[np.int64]
# rows of a feature that are looked at, so many bytes of them at most
MAX_ROWS, MAX_BYTES = 64, 16 << 10
MAX_FEATURES = 16
# numbers of so many bytes tell an episode from others of its length
ENOUGH_BYTES = 64
# a key cannot hold names with these
MARKS_OF_KEYS = frozenset(",:=")
# what LeRobot numbers anew when episodes are deleted
NUMBERING = frozenset({"timestamp", "frame_index", "episode_index", "index", "task_index", "subtask_index"})


class MarkedColumns(NamedTuple):
    """The columns of an `EpisodeTable` by which episodes are found."""

    segment: npt.NDArray[np.int32]
    record: Int64s
    origin: Int64s
    start: Int64s
    length: Int64s

    @classmethod
    def of(cls, table: EpisodeTable) -> MarkedColumns:
        """Return those of a table."""
        return cls(table.segment, table.record, table.origin, table.start, table.length)


def is_key(text: str) -> bool:
    """Whether a text of a file is the key of an episode."""
    _, colon, rest = text.partition(":")
    number, _, parts = rest.partition(":")
    return bool(colon) and number.isdecimal() and len(number) < 19 and all("=" in part for part in _split(parts))


def keys_in_store(
    record: StoreRecord, segments: SegmentList, columns: MarkedColumns, numbers: Sequence[int]
) -> list[str]:
    """Return the keys of episodes of a store, by their numbers."""
    chosen = np.asarray(numbers, np.int64)
    ordinals = ordinals_of_keys(segments.keys)[columns.segment[chosen]] if len(chosen) else chosen
    uuids, births = births_of(record, ordinals, columns.record[chosen])
    origins = columns.origin[chosen].tolist()
    return [f"{uuids[birth]}:{origin}" for birth, origin in zip(births.tolist(), origins, strict=True)]


def find_in_store(
    record: StoreRecord, segments: SegmentList, columns: MarkedColumns, keys: Iterable[str]
) -> dict[int, str]:
    """Return number of the episode to key, of the keys whose episodes are there."""
    known = {key for key in keys if key.count(":") == 1}
    origins = np.array([int(key.partition(":")[2]) for key in known], np.int64)
    numbers = np.flatnonzero(np.isin(columns.origin, origins)).tolist()
    found = zip(numbers, keys_in_store(record, segments, columns, numbers), strict=True)
    return {number: key for number, key in found if key in known}


def keys_in_place(segments: SegmentList, columns: MarkedColumns, numbers: Sequence[int]) -> list[str]:
    """Return the keys of episodes of a data set that is read in place, by their numbers."""
    rows = _Rows(segments, columns)
    return [_joined(number, int(columns.length[number]), rows.checksums(number)) for number in numbers]


def find_in_place(
    segments: SegmentList, columns: MarkedColumns, keys: Iterable[str], sources: Int64s | None = None
) -> dict[int, str]:
    """Return number of the episode to key, of the keys whose episodes are there.

    Args:
        segments: of the store that stands for the data set, or was made of it.
        columns: of its episodes.
        keys: of marks.
        sources: int64 [E], what the keys call the episodes; default: their numbers.
    """
    rows, found, moved = _Rows(segments, columns), dict[int, str](), list[str]()
    places = {number: place for place, number in enumerate(sources.tolist())} if sources is not None else None
    for key in keys:
        number, length, parts = _parsed(key)
        place = number if places is None else places.get(number, len(columns.length))
        is_there = 0 <= place < len(columns.length) and columns.length[place] == length and place not in found
        if is_there and rows.agree(place, parts, is_same_number=True):
            found[place] = key
        elif parts:
            moved.append(key)
    for key in moved:
        number, length, parts = _parsed(key)
        alike = np.flatnonzero(columns.length == length)
        for place in alike[np.argsort(np.abs(alike - number), kind="stable")].tolist():
            if place not in found and rows.agree(place, parts, is_same_number=False):
                found[place] = key
                break
    return found


class _Rows:
    """Checksums of some rows of the features of episodes; each is computed once."""

    def __init__(self, segments: SegmentList, columns: MarkedColumns) -> None:
        self._segments, self._columns = segments, columns
        self._schema: Mapping[str, Feature] = segments.schema or {}
        self._known: dict[tuple[int, str], str | None] = {}

    def agree(self, number: int, parts: Sequence[tuple[str, str]], *, is_same_number: bool) -> bool:
        """Whether an episode has the rows of a key; at the same number those that can be compared suffice."""
        num_compared = 0
        for name, checksum in parts:
            there = self._checksum(number, name)
            if there is None and is_same_number:
                continue
            if there != checksum:
                return False
            num_compared += 1
        return num_compared > 0 or not parts

    def checksums(self, number: int) -> dict[str, str]:
        """Return name of a feature to the checksum of its rows, of those that tell episodes apart."""
        found: dict[str, str | None] = {}
        num_bytes = 0
        for name, feature in self._schema.items():
            is_told = feature.kind != "image" and name not in NUMBERING and MARKS_OF_KEYS.isdisjoint(name)
            if is_told and len(found) < MAX_FEATURES:
                found[name] = self._checksum(number, name)
                num_bytes += len(self._read(number, name) or b"") if num_bytes < ENOUGH_BYTES else 0
        if num_bytes < ENOUGH_BYTES:
            schema = self._schema.items()
            images = [name for name, each in schema if each.kind == "image" and MARKS_OF_KEYS.isdisjoint(name)]
            found |= {name: self._checksum(number, name) for name in images[:MAX_FEATURES]}
        return {name: checksum for name, checksum in found.items() if checksum is not None}

    def _checksum(self, number: int, name: str) -> str | None:
        if (number, name) not in self._known:
            data = self._read(number, name)
            self._known[number, name] = None if data is None else f"{zlib.crc32(data):08x}"
        return self._known[number, name]

    def _read(self, number: int, name: str) -> bytes | None:
        """Return some rows as bytes; None where there are none, or they cannot be read."""
        feature, length = self._schema.get(name), int(self._columns.length[number])
        if feature is None or not length or self._columns.segment[number] < 0:
            return None
        segment = self._segments[int(self._columns.segment[number])]
        start = int(self._columns.start[number])
        # what is damaged is reported where it is shown
        with suppress(StepwellError, OSError, ValueError):
            if feature.kind == "image":
                return _image_file(segment, name, feature, start)
            return b"".join(_rows_of(segment, name, feature, start, length))
        return None


def _rows_of(segment: Segment, name: str, feature: Feature, start: int, length: int) -> Iterator[bytes]:
    row_bytes = MAX_BYTES // MAX_ROWS if feature.is_ragged else max(feature.row_bytes, 1)
    count = min(length, MAX_ROWS, max(MAX_BYTES // row_bytes, 2))
    steps = np.unique(np.linspace(0, length - 1, count).round().astype(np.int64))
    if feature.is_raw:
        yield segment.read_rows(name, start, start + length)[steps].tobytes()
        return
    for step in (start + steps).tolist():
        yield _bytes_of(segment.read_rows(name, step, step + 1)[0])


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str | bytes):
        return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return np.ascontiguousarray(value).tobytes()


def _image_file(segment: Segment, name: str, feature: Feature, row: int) -> bytes | None:
    """Return the first image of an episode as it lies; None of video, which is cut anew when episodes are deleted."""
    codec = make_codec(feature)
    kept = codec.embedded() if isinstance(codec, FileCodec) else feature
    if make_codec(kept).is_sequential:
        return None
    if feature.is_raw:
        return _bytes_of(segment.read_rows(name, row, row + 1))
    blob = segment.stored_rows(name).blob(row)
    return bytes(next(iter(codec.embed([blob]).rows(kept))) if isinstance(codec, FileCodec) else blob)


def _joined(number: int, length: int, checksums: dict[str, str]) -> str:
    parts = ",".join(f"{name}={checksum}" for name, checksum in checksums.items())
    return f"{number}:{length}:{parts}" if parts else f"{number}:{length}"


def _parsed(key: str) -> tuple[int, int, list[tuple[str, str]]]:
    number, length, parts = f"{key}:".split(":")[:3]
    pairs = [part.partition("=") for part in _split(parts)]
    # of a file of the user's that another program has changed
    return int(number) if number.isdecimal() else -1, int(length), [(name, checksum) for name, _, checksum in pairs]


def _split(parts: str) -> list[str]:
    return parts.split(",") if parts else []
