"""The table of sealed segments: which there were and all their episode records, in one file that is read at once.

::

    segments.table   | head | keys | ends | records of segment 0 | of segment 1 | ...
                     | places of their writers' keys | those keys, as JSON            where any segment has one

It is derived from the segments, which alone say what is there: a segment of the table that is not listed is not shown,
one that is listed and not in the table is read itself, and a table that is missing or damaged is as one without
segments. So it may be behind, and what opens a store for writing, or closes a writer, replaces it when enough segments
came since. Rings, whose segments come and go, have none.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.files.mapping import map_descriptor
from stepwell.json_text import parse_json
from stepwell.store.beneath import open_file, read_file
from stepwell.store.episodes import EPISODE_DTYPE
from stepwell.store.layout import EPISODES, SEGMENTS, name_of_key, replace_file
from stepwell.store.npy import header_size
from stepwell.store.writer_keys import read_note

__all__ = ["TABLE", "SegmentTable", "check_table", "drop_table", "load_table", "read_table", "replace_table"]

Int64s = npt.NDArray[np.int64]
TABLE = "segments.table"
MAGIC = b"stepwell-table\0\0"
VERSION = 1
# with the keys of writers
KEYED_VERSION = 2
HEAD = np.dtype([("magic", "S16"), ("version", "<u4"), ("crc32", "<u4"), ("segments", "<i8"), ("episodes", "<i8")])
CHECKED_FROM = 24  # the checksum covers all that follows it
# a table is worth its bytes from so many segments on, and is written anew when so large a share of them is not in it
MIN_NEW = 256
NEW_SHARE = 16

REMOVE = "Remove it: what opens the store for writing makes another."

_REPLACING = threading.Lock()


class SegmentTable:
    """Records of sealed segments.

    Args:
        keys: int64 [S], ascending, see `stepwell.store.layout`.
        ends: int64 [S], how many records there are up to the last one of each.
        records: `EPISODE_DTYPE` [E], segment by segment.
        texts: the keys of writers that segments have, ascending.
        places: int64 [S], one more than the place of each segment's among ``texts``; 0: it has none. None: all have
            none.
    """

    def __init__(
        self,
        keys: Int64s,
        ends: Int64s,
        records: npt.NDArray[Any],
        texts: Sequence[str] = (),
        places: Int64s | None = None,
    ) -> None:
        self.keys, self.ends, self.records, self.texts = keys, ends, records, texts
        self.places: Int64s = np.zeros(len(keys), np.int64) if places is None else places
        self.starts: Int64s = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends

    @classmethod
    def empty(cls) -> SegmentTable:
        """Return the table of no segments."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, EPISODE_DTYPE))

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Int64s) -> Int64s:
        """Return the place of each segment in the table, int64 [n]; -1 where it has none."""
        if len(self.keys) == 0:
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)

    def ranks_of(self, keys: Int64s) -> Int64s:
        """Return twice `places` of segments, int64 [n]; 0 where one is not in the table."""
        if not self.texts:
            return np.zeros(len(keys), np.int64)
        found = self.find(keys)
        ranks: Int64s = np.where(found >= 0, 2 * self.places[found], 0)
        return ranks

    def with_text(self, text: str) -> Int64s:
        """Return the segments of a writer's key, int64 [n]."""
        place = bisect_left(self.texts, text)
        if place == len(self.texts) or self.texts[place] != text:
            return self.keys[:0]
        keys: Int64s = self.keys[self.places == place + 1]
        return keys

    def texts_of(self, keys: Int64s) -> dict[int, str]:
        """Return segments of the table, of those that have one, to their writers' keys."""
        if not self.texts:
            return {}
        places = self.places[self.find(keys)].tolist()
        return {key: self.texts[place - 1] for key, place in zip(keys.tolist(), places, strict=True) if place}

    def text_at(self, place: int) -> str:
        """Return the writer's key of one segment; empty: it has none."""
        number = int(self.places[place])
        return self.texts[number - 1] if number else ""

    def records_at(self, place: int) -> npt.NDArray[Any]:
        """Return the records of one segment."""
        return self.records[self.starts[place] : self.ends[place]]

    def is_behind(self, num_missing: int) -> bool:
        """Whether so many sealed segments are not in it that it is to be written anew."""
        return num_missing >= max(MIN_NEW, len(self.keys) // NEW_SHARE)


def read_table(store: str) -> SegmentTable:
    """Read the table of the store at ``store``; one that is missing, or is not as it was written, has no segments."""
    with suppress(OSError, ValueError):
        return load_table(store)
    return SegmentTable.empty()


def load_table(store: str) -> SegmentTable:
    """Read the table of the store at ``store``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged; says how.
    """
    descriptor = open_file(f"{store}/{TABLE}")
    try:
        data = map_descriptor(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
    if len(data) < HEAD.itemsize:
        raise ValueError(f"{len(data)} bytes are no table")
    head = data[: HEAD.itemsize].view(HEAD)[0]
    is_keyed = head["version"] == KEYED_VERSION
    if head["magic"] != MAGIC.rstrip(b"\0") or head["version"] not in (VERSION, KEYED_VERSION):
        raise ValueError("it does not begin as a table of this version does")
    num_segments, num_episodes = int(head["segments"]), int(head["episodes"])
    need = HEAD.itemsize + 16 * num_segments + EPISODE_DTYPE.itemsize * num_episodes
    keyed_from = need
    if is_keyed:
        need = max(need + 8 * num_segments, len(data))
    if num_segments < 0 or num_episodes < 0 or len(data) != need:
        raise ValueError(f"{num_segments} segments of {num_episodes} episodes are not {len(data)} bytes")
    computed = zlib.crc32(data[CHECKED_FROM:].data)
    if computed != head["crc32"]:
        raise ValueError(f"crc32 {int(head['crc32']):08x} stored, {computed:08x} computed")
    start = HEAD.itemsize
    keys = data[start : start + 8 * num_segments].view("<i8")
    ends = data[start + 8 * num_segments : start + 16 * num_segments].view("<i8")
    records = data[start + 16 * num_segments : keyed_from].view(EPISODE_DTYPE)
    _check(keys, ends, records)
    if not is_keyed:
        return SegmentTable(keys, ends, records)
    texts_from = keyed_from + 8 * num_segments
    places, texts = data[keyed_from:texts_from].view("<i8"), parse_json(data[texts_from:].tobytes())
    _check_keys(places, texts)
    return SegmentTable(keys, ends, records, texts, places)


def drop_table(store: str) -> None:
    """Remove the table: before a segment is made whose name a removed one may have had."""
    with suppress(FileNotFoundError):
        os.unlink(f"{store}/{TABLE}")


def check_table(store: str) -> None:
    """Compare the table with itself and with the segments that are there; nothing when there is none.

    Raises:
        CorruptSegmentError: it is not as it was written, or a segment has other records.
    """
    try:
        table = load_table(store)
    except FileNotFoundError:
        return
    except ValueError as error:
        raise CorruptSegmentError(f"{error}. {REMOVE}") from error
    header = header_size(EPISODE_DTYPE, ())
    for place, key in enumerate(table.keys.tolist()):
        name = name_of_key(key)
        with suppress(OSError):
            found = read_file(f"{store}/{SEGMENTS}/{name}/{EPISODES}")[header:]
            if found != table.records_at(place).tobytes():
                raise CorruptSegmentError(f"its records of segment {name} are not those that the segment has. {REMOVE}")
            note = read_note(f"{store}/{SEGMENTS}/{name}")
            if note is not None and note.key != table.text_at(place):
                raise CorruptSegmentError(f"its key of segment {name} is not that of the segment's writer. {REMOVE}")


def _check(keys: Int64s, ends: Int64s, records: npt.NDArray[Any]) -> None:
    """Raise ValueError where a segment's records are none that `check_records` would pass."""
    counts = np.diff(ends, prepend=0)
    if (np.diff(keys) <= 0).any() or (counts < 0).any() or (ends[-1] if len(ends) else 0) != len(records):
        raise ValueError("its segments are not in order")
    if len(keys) and (keys[0] < 0 or keys[-1] >> 50):
        raise ValueError("its ordinals cannot be")
    if len(records) == 0:
        return
    start, rows, length = (np.ascontiguousarray(records[name]) for name in ("start", "rows", "length"))
    if ((start | rows | length) >> 32).any() or ((rows - length) & ~1).any():
        raise ValueError("episodes whose rows cannot be")
    follows = np.concatenate([[0], start[:-1] + rows[:-1]])
    follows[(ends - counts)[counts > 0]] = 0
    if (start != follows).any() or int((start + rows).max()) >> 32:
        raise ValueError("episodes whose rows do not follow each other")


def _check_keys(places: Int64s, texts: Any) -> None:
    """Raise ValueError where these are no keys of writers."""
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("its keys of writers are none")
    if any(before >= after for before, after in pairwise(texts)) or (places < 0).any() or (places > len(texts)).any():
        raise ValueError("its keys of writers are not in order")


def replace_table(
    store: str, keys: Int64s, counts: Int64s, records: npt.NDArray[Any], texts: Mapping[int, str] = MappingProxyType({})
) -> SegmentTable:
    """Write the table of the store at ``store`` anew; nothing where that is not possible: nothing needs it.

    Args:
        store: path of the store.
        keys: int64 [S], of sealed segments, ascending.
        counts: int64 [S], records of each.
        records: `EPISODE_DTYPE` [E], in the order of the keys.
        texts: segment to the key of its writer.

    Returns:
        The table, whether it was written or not.
    """
    sorted_texts = sorted(set(texts.values()))
    place_of = {text: place for place, text in enumerate(sorted_texts, start=1)}
    places = np.array([place_of.get(texts.get(key, ""), 0) for key in keys.tolist()], np.int64) if texts else None
    ends = np.cumsum(counts, dtype=np.int64)
    table = SegmentTable(keys, ends, records, sorted_texts, places)
    head = np.zeros(1, HEAD)
    head["magic"], head["version"] = MAGIC, KEYED_VERSION if texts else VERSION
    head["segments"], head["episodes"] = len(keys), len(records)
    parts = [head.tobytes(), keys.astype("<i8").tobytes(), ends.astype("<i8").tobytes(), records.tobytes()]
    if texts:
        parts += [table.places.astype("<i8").tobytes(), json.dumps(sorted_texts, ensure_ascii=False).encode()]
    data = b"".join(parts)
    head["crc32"] = zlib.crc32(memoryview(data)[CHECKED_FROM:])
    # what it is made of is on the disk: a loss of power may take it, and its checksum says so
    # of two threads one is enough
    if _REPLACING.acquire(blocking=False):
        try:
            with suppress(OSError):
                replace_file(f"{store}/{TABLE}", head.tobytes() + data[HEAD.itemsize :], sync=False)
        finally:
            _REPLACING.release()
    return table
