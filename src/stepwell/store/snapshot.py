"""The segments of a store at one refresh, and the table of episodes that follows from them.

The records of sealed segments come from one file that is read at once::

    segments.table   | head | keys | ends | records of segment 0 | of segment 1 | ...
                     | places of their writers' keys | those keys, as JSON            where any segment has one

It is derived from the segments, which alone say what is there: a segment of the table that is not listed is not shown,
one that is listed and not in the table is read itself, and a table that is missing or damaged is as one without
segments. So it may be behind; opening a store for writing, or closing a writer, replaces it when enough segments came
since. Rings, whose segments come and go, have none.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.files.local_files import map_descriptor
from stepwell.json_text import parse_json
from stepwell.schema import Schema
from stepwell.store.beneath import check_directory, header_size, open_file, read_file
from stepwell.store.episodes import EPISODE_DTYPE, GOES_ON, MAX_SKIPPED, EpisodeTable, num_ended_rows
from stepwell.store.layout import (
    EPISODES,
    OPEN_SUFFIX,
    SEGMENTS,
    key_of_name,
    name_of_key,
    ordinals_of_keys,
    replace_file,
    step_id,
)
from stepwell.store.maintenance import hidden_steps
from stepwell.store.manifests import read_note
from stepwell.store.mark_keys import MarkedColumns
from stepwell.store.marks import Marks, metadata_reader
from stepwell.store.segments import Segment

__all__ = [
    "NO_TABLE",
    "TABLE",
    "MetadataLines",
    "SegmentList",
    "SegmentTable",
    "Snapshot",
    "check_table",
    "columns_of",
    "drop_table",
    "keys_of",
    "load_table",
    "open_segment",
    "read_table",
    "replace_table",
]
Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[Any]
# whose metadata lines are kept
MAX_SEGMENTS = 64
TABLE = "segments.table"
MAGIC = b"stepwell-table\0\0"
VERSION = 1
# with the keys of writers
KEYED_VERSION = 2
HEAD = np.dtype([("magic", "S16"), ("version", "<u4"), ("crc32", "<u4"), ("segments", "<i8"), ("episodes", "<i8")])
CHECKED_FROM = 24  # the checksum covers all that follows it
# a table is worth its bytes from so many segments on, and is replaced when it lacks so large a share of them
MIN_NEW = 256
NEW_SHARE = 16
REMOVE = "Remove it: opening the store for writing makes another."

_REPLACING = threading.Lock()


class SegmentTable:
    """Records of sealed segments."""

    def __init__(
        self,
        keys: Int64s,  # [S], ascending, see `stepwell.store.layout`
        ends: Int64s,  # [S], records up to the last one of each segment
        records: npt.NDArray[Any],  # `EPISODE_DTYPE` [E], segment by segment
        texts: Sequence[str] = (),  # the writers' keys, ascending, each once
        places: Int64s | None = None,  # [S], one more than the place of each segment's key in texts; 0: it has none
    ) -> None:
        self.keys, self.ends, self.records, self.texts = keys, ends, records, texts
        self.places: Int64s = np.zeros(len(keys), np.int64) if places is None else places
        self.starts: Int64s = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends

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
        """Whether it lacks so many sealed segments that it is to be replaced."""
        return num_missing >= max(MIN_NEW, len(self.keys) // NEW_SHARE)


NO_TABLE = SegmentTable(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, EPISODE_DTYPE))
"""The table of no segments."""


def read_table(store: str) -> SegmentTable:
    """Read the table of the store at ``store``; one that is missing, or is not as it was written, has no segments."""
    with suppress(OSError, ValueError):
        return load_table(store)
    return NO_TABLE


def load_table(store: str) -> SegmentTable:
    """Read the table of the store at ``store``."""
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
    """Compare the table with itself and with the segments that are there; nothing when there is none."""
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
    """Write the table of these segments; nothing where that fails, since nothing needs it. Returns the table."""
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


class SegmentList(Sequence[Segment]):
    """Segments in their order, as they were at one moment; each is made when it is first needed."""

    # safe to share between threads: two that need a segment at once get the same one

    def __init__(  # noqa: PLR0917
        self,
        store: str,
        schema: Schema | None,
        keys: Int64s,  # [S]
        own: Mapping[int, Segment],  # by key, those that were read themselves
        table: SegmentTable,  # has the records of the others
        made: dict[int, Segment],  # by key, those of the table that were made before; grows
    ) -> None:
        self.keys = keys
        self._store, self._schema, self._own, self._table, self._made = store, schema, own, table, made
        self._places = table.find(keys)
        # whose directories were found to be no links
        self._checked: set[int] = set()
        if own:
            self._places[np.isin(keys, np.fromiter(own, np.int64, len(own)))] = -1
        # segments that were not sealed when this was made, each with its number
        self.open = [(number, segment) for number, segment in self.own if not segment.is_sealed]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def schema(self) -> Schema | None:
        """The features of all of them."""
        return self._schema

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        key = int(self.keys[index])
        found = self._own.get(key) or self._made.get(key)
        return self._make(key, int(self._places[index])) if found is None else found

    def __iter__(self) -> Iterator[Segment]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine is its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def own(self) -> Iterator[tuple[int, Segment]]:
        """The segments that were read for themselves, each with its number."""
        for number in np.flatnonzero(self._places < 0).tolist():
            yield number, self._own[int(self.keys[number])]

    def directory(self, index: int) -> str:
        """Return the path of a segment's directory, without making the segment."""
        key = int(self.keys[index])
        own = self._own.get(key)
        directory = f"{self._store}/{SEGMENTS}/{name_of_key(key)}" if own is None else own.path
        if key not in self._checked:
            check_directory(directory)
            self._checked.add(key)
        return str(directory)

    def records(self, own: Mapping[int, npt.NDArray[Any]] | None = None) -> tuple[npt.NDArray[Any], Int64s]:
        """Return the records of all segments, and how many each has; `own` replaces those of some, by number."""
        table, places = self._table, self._places
        counts = np.zeros(len(self), np.int64)
        is_known = places >= 0
        known = places[is_known]
        counts[is_known] = table.ends[known] - table.starts[known]
        given = own or {}
        mine = {number: given.get(number, segment.records) for number, segment in self.own}
        numbers = np.fromiter(mine, np.int64, len(mine))
        counts[numbers] = [len(records) for records in mine.values()]
        if not (np.diff(self.keys) > 0).all():
            # those that were read themselves stand anywhere among the others: all at once
            starts = np.zeros(len(self), np.int64)
            starts[is_known] = table.starts[known]
            starts[numbers] = len(table.records) + np.cumsum(counts[numbers]) - counts[numbers]
            return _gathered(_joined([table.records, *mine.values()]), starts, counts), counts
        parts: list[npt.NDArray[Any]] = []
        done = 0
        for number, records in mine.items():
            parts += [_run_of(table, places[done:number]), records]
            done = number + 1
        parts.append(_run_of(table, places[done:]))
        return _joined([part for part in parts if len(part)]), counts

    def _make(self, key: int, place: int) -> Segment:
        assert self._schema is not None
        directory = f"{self._store}/{SEGMENTS}/{name_of_key(key)}"
        segment = Segment(directory, self._schema, records=self._table.records_at(place))
        return self._made.setdefault(key, segment)


def open_segment(base: str, schema: Schema, *, is_sealed: bool) -> Segment | None:
    """Open a segment that was listed in this state; None where it is gone."""
    for suffix in ("", OPEN_SUFFIX) if is_sealed else (OPEN_SUFFIX, ""):
        # sealed, removed or recovered since it was listed
        with suppress(FileNotFoundError):
            return Segment(base + suffix, schema)
    return None


def keys_of(segments: Sequence[Any]) -> Int64s:
    """Return the keys of segments, int64 [S]."""
    if isinstance(segments, SegmentList):
        return segments.keys
    found = (key_of_name(segment.name) for segment in segments)
    return np.array([-1 if key is None else key for key in found], np.int64)


def _run_of(table: SegmentTable, places: Int64s) -> npt.NDArray[Any]:
    """Return the records of segments of a table, which mostly lie one after the other."""
    if len(places) == 0:
        return table.records[:0]
    starts, ends = table.starts[places], table.ends[places]
    if (starts[1:] == ends[:-1]).all():
        return table.records[starts[0] : ends[-1]]
    return _gathered(table.records, starts, ends - starts)


def _gathered(records: npt.NDArray[Any], starts: Int64s, counts: Int64s) -> npt.NDArray[Any]:
    """Return runs of records, one after the other."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    # as plain bytes: numpy copies structured entries field by field
    rows = records.view(f"V{EPISODE_DTYPE.itemsize}")[within + np.repeat(starts, counts)]
    found: npt.NDArray[Any] = rows.view(EPISODE_DTYPE)
    return found


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    # joined as bytes: numpy compares the fields of structured arrays one by one before it concatenates them
    joined = b"".join(np.ascontiguousarray(part).view(np.uint8).data for part in parts)
    return np.frombuffer(joined, EPISODE_DTYPE)


class MetadataLines:
    """The metadata of the episodes of the segments that were read last."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def read(self, segment: Segment, record: int) -> dict[str, Any]:
        """Return the metadata of an episode by its record's number; none of one that is being recorded."""
        if record >= len(segment.records):
            return {}
        lines = self._lines.get(segment.name)
        if lines is None or len(lines) <= record:
            lines = self._lines[segment.name] = segment.metadata_lines()
            while len(self._lines) > MAX_SEGMENTS:
                self._lines.popitem(last=False)
        return lines[record]


class Snapshot:
    """The segments of a store at one moment; whatever they grow by later is not in its table."""

    # The table is made when it is first needed: following a store only by its segments costs nothing an episode.

    def __init__(
        self,
        segments: SegmentList,
        deleted: npt.NDArray[np.int64],
        metadata: MetadataLines,
        marks: Marks,
        first_rows: npt.NDArray[np.int64] | None = None,  # [S], of a ring: rows of each segment before are not shown
    ) -> None:
        self.segments = segments
        self._deleted, self._first_rows = deleted, first_rows
        self._metadata, self._marks = metadata, marks
        self._live = {
            number: (segment.records, _open_records(segment))
            for number, segment in segments.open
            if not segment.is_sealed
        }

    @cached_property
    def table(self) -> EpisodeTable:
        """All shown episodes, the open ones of live segments included."""
        # a table holds neither the store nor this: both are freed with their last reference
        segments, metadata = self.segments, self._metadata
        records, counts, opened = self._records()
        segment_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        is_open = np.zeros(len(records), bool)
        is_open[opened] = True
        columns = columns_of(records)
        record = np.arange(len(records)) - (np.cumsum(counts) - counts)[segment_of]
        marked = MarkedColumns(segment_of, record, columns["origin"], columns["start"], columns["length"])
        table = EpisodeTable(
            segment=segment_of,
            **columns,
            is_open=is_open,
            record=record,
            read_metadata=metadata_reader(segments, metadata, self._marks, marked),
        )
        hidden = records["discarded"].copy()
        if len(self._deleted):
            ordinals = ordinals_of_keys(segments.keys)
            is_deleted, gone = hidden_steps(step_id(ordinals[segment_of], table.start), table.length, self._deleted)
            hidden |= is_deleted
            if gone.any():
                _trim(table, gone)
        if self._first_rows is not None and self._first_rows.any():
            gone = np.clip(self._first_rows[segment_of] - table.start, 0, table.length)
            for number in np.flatnonzero(self._first_rows).tolist():
                if segments[number].has_lanes:
                    # what was let go there are vector steps
                    mine = segment_of == number
                    gone[mine] = segments[number].rows_before(records[mine], int(self._first_rows[number]))
            hidden |= _trim(table, gone)
        return table.take(~hidden) if hidden.any() else table

    def _records(self) -> tuple[Records, npt.NDArray[np.int64], list[int]]:
        """Return the records of all segments, how many each has, and which are of episodes that are being recorded."""
        own: dict[int, Records] = {}
        num_opened = np.zeros(len(self.segments), np.int64)
        for number, (records, opened) in self._live.items():
            own[number] = np.frombuffer(records.tobytes() + opened, EPISODE_DTYPE) if opened else records
            num_opened[number] = len(opened) // EPISODE_DTYPE.itemsize
        records, counts = self.segments.records(own)
        ends = np.cumsum(counts)
        places = [range(ends[number] - num_opened[number], ends[number]) for number in np.flatnonzero(num_opened)]
        return records, counts, [place for each in places for place in each]


def columns_of(records: Records) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of an `EpisodeTable` that follow from episodes' records, as arrays of their own."""
    names = ("start", "length", "rows", "origin", "time_ns", "terminated", "truncated", "interrupted")
    return {
        **{name: records[name].copy() for name in names},
        "skipped": (records["cut"] & MAX_SKIPPED).astype(np.int64),
        "goes_on": (records["cut"] & GOES_ON) != 0,
    }


def _open_records(segment: Segment) -> bytes:
    """Return the records that the open episodes of a segment would have if they ended now."""
    if segment.has_lanes:
        return segment.open_records().tobytes()
    records = segment.records
    start = num_ended_rows(records)
    length = segment.num_rows - start
    if length <= 0:
        return b""
    record = np.zeros((), EPISODE_DTYPE)
    record["start"], record["length"], record["rows"] = start, length, length
    record["cut"], record["origin"] = segment.next_piece(records)
    return record.tobytes()


def _trim(table: EpisodeTable, gone: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Let episodes begin so many steps (int64 [E]) later; returns which of them have no step left."""
    table.start[...] += gone
    table.length[...] -= gone
    table.rows[...] -= gone
    table.skipped[...] += gone
    is_gone: npt.NDArray[np.bool_] = (table.length == 0) & (gone > 0)
    return is_gone
