"""Rings show the newest steps of all writers that fit their capacity.

::

    stamps              1 2 3 4 5 6 7 8 9 . . .           of a clock that all writers share
    segment 3, sealed   e e e   d   f f                   d discarded: counts, and is not shown
    segment 4, live       i     i       i   i
    segment 5, live               g         g             a stalled writer's steps go like all others
                                <-------------> capacity
    shown                       i g f f i   i g           of each segment all from one row on: its head

Within a segment rows are in the order of their stamps; equal stamps go by the segment's ordinal. What was written
before rings had a clock is as old as the end of its episode, and an open episode of that kind is the newest.

Segments that lie wholly beyond the capacity are evicted: sealed ones, and those of dead writers. Under the store's
lock, as whatever changes which segments there are, a segment is renamed to ``.new-NAME``, which no reader takes for
one; then its files are removed. A process that maps them keeps valid bytes. What a kill leaves between the two is
removed by the next eviction, or when the store is opened for writing. A sealed segment whose stamps or records are not
what its manifest says is never removed, and pushes nothing out: it stays until ``stepwell verify`` names it.

All writers of a ring share a clock, so that the oldest steps go first::

    segments/00000003-7f3a/clock.stamps    int64 [rows], a .npy file: nanoseconds since 1970, never falling
    clock                                  int64 [2], mapped by every writer: the last stamp given; which tables
                                           hold writers, see back_pressure.py

A stamp is the time, but more than the last one: a system clock that is set back makes no new step an old one. Two
writers that take a stamp at the same moment may get the same one.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, KeysView
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.files.local_files import map_descriptor
from stepwell.schema import Schema
from stepwell.store.beneath import check_directory, list_directory, open_file
from stepwell.store.column_file import reserve
from stepwell.store.commit import CommitRecord
from stepwell.store.episodes import num_ended_rows
from stepwell.store.lanes import LANE_MARKS, LANE_STEPS, ROWS_SO_FAR, STAMP, STEPS_SO_FAR
from stepwell.store.layout import CLOCK as CLOCK_FILE
from stepwell.store.layout import EPISODES as EPISODES_FILE
from stepwell.store.layout import (
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENT_JSON,
    SEGMENTS,
    STORE_CLOCK,
    hide_segments,
    list_segments,
    locked_store,
    step_id,
)
from stepwell.store.maintenance import is_maintained
from stepwell.store.manifests import read_manifest, shown_segments
from stepwell.store.records import Capacity, fixed_row_bytes, read_record
from stepwell.store.sealing import file_checksum
from stepwell.store.segments import Segment
from stepwell.store.snapshot import open_segment

__all__ = [
    "LATEST",
    "Evictor",
    "RingClock",
    "RingCut",
    "SegmentLimit",
    "evicted_ids",
    "growing_segments",
    "map_clock",
    "stamps_of_records",
]

Int64s = npt.NDArray[np.int64]
NUM_CLOCK_BYTES = 16
LATEST = 1 << 62
"""Stamps are less, unless they are damaged: it is in the year 2116."""
# of steps that are as new as can be, but not more than the kernel's largest number
NEWEST = (1 << 63) - 2
FIRST_SEGMENTS, FIRST_EPISODES = 16, 32
# columns of a segment in the table that the kernel reads, and its words, see `stepwell.store.ring_kernels`
CLOCK, NUM_ROWS, EPISODES, NUM_EPISODES, ENDED_ROWS, ENDED_WEIGHT, ORDINAL, OFFSETS, HEAD_ROW = range(9)
FIRST, LANES, NUM_COLUMNS = 11, 13, 14
CUT_STAMP, CUT_ORDINAL = range(2)
SLACK, OLDEST, OLDEST_ROW, OLDEST_STOP, NUM_WORDS = range(3, 8)
# a ring is made of about this many segments a live writer: one of them is evicted at a time
SHARE = 8
LEAST_ROWS, LEAST_BYTES = 1024, 1 << 20


def map_clock(store: str) -> memoryview[int]:
    """Return the words of a ring's clock, which is made where there is none; the caller holds the store's lock."""
    path = f"{store}/{STORE_CLOCK}"
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        reserve(descriptor, NUM_CLOCK_BYTES, path)
        return map_descriptor(descriptor, NUM_CLOCK_BYTES, writable=True).data.cast("q")
    finally:
        os.close(descriptor)


class RingClock:
    """Give stamps that grow, in any number of threads and processes of a ring."""

    __slots__ = ("_words", "flags")

    def __init__(self, store: str, schema: Schema) -> None:
        with locked_store(store):
            self._words = map_clock(store)
            if not 0 < self._words[0] < LATEST:
                self._words[0] = max(_newest_stamps(store, schema), default=0)
        # one word: which tables hold writers
        self.flags = self._words[1:]

    @property
    def address(self) -> int:
        """Where the last stamp lies, for as long as this object is kept."""
        address: int = np.frombuffer(self._words, np.int64).ctypes.data
        return address

    def next(self, after: int, count: int = 1) -> int:
        """Return the first of ``count`` stamps that follow each other, all larger than ``after``."""
        words = self._words
        now, last = time.time_ns(), words[0]
        last = max(last, after)
        first = now if now > last else last + 1
        words[0] = first + count - 1
        return first


def _newest_stamps(store: str, schema: Schema) -> Iterator[int]:
    """Yield the newest stamp of each segment that has one."""
    for name, (_, is_sealed) in shown_segments(store)[0].items():
        # a damaged one must not prevent recording
        with suppress(FileNotFoundError, CorruptSegmentError):
            segment = Segment(f"{store}/{SEGMENTS}/{name}{'' if is_sealed else OPEN_SUFFIX}", schema)
            clock, num_rows = segment.clock_map(), segment.num_rows
            if segment.has_lanes:
                clock, num_rows = segment.lane_steps()[:, STAMP], len(segment.lane_steps())
            stamps = segment.records["time_ns"] if clock is None else clock[max(num_rows - 1, 0) : num_rows]
            if len(stamps) and stamps[-1] < LATEST:
                yield int(stamps[-1])


def stamps_of_records(records: npt.NDArray[np.void], num_rows: int) -> Int64s:
    """Return stamps, int64 [num_rows], for a segment that has none: the times at which the rows' episodes ended."""
    stamps = np.full(num_rows, NEWEST, np.int64)
    if len(records):
        ended = int(records["start"][-1] + records["rows"][-1])
        stamps[:ended] = np.repeat(np.maximum.accumulate(records["time_ns"]), records["rows"])
    return stamps


class RingCut:
    """The first row of each segment that a ring shows; an update costs only what changed."""

    # For one thread. Maps the stamps of the segments, and in bytes their offsets, and keeps the maps: a segment may be
    # gone. What is deleted or discarded counts like everything else until its time comes: so a step that was evicted
    # never comes back, and no reader needs to know what another one has seen.

    def __init__(self, capacity: Capacity, schema: Schema, *, counts_open: bool = True) -> None:
        self._capacity, self._counts_open = capacity.amount, counts_open
        in_bytes = capacity.unit == "bytes"
        self._row_bytes = fixed_row_bytes(schema) if in_bytes else -1
        self._names = [name for name, feature in schema.items() if not feature.is_raw] if in_bytes else []
        self._segments: list[_RingSegment] = []
        self._by_name: dict[str, _RingSegment] = {}
        self._is_anew = False
        self._table = np.zeros((FIRST_SEGMENTS, NUM_COLUMNS), np.int64)
        self._changed = np.zeros(FIRST_SEGMENTS, np.int64)
        self._words = np.zeros(NUM_WORDS, np.int64)
        self._words[CUT_STAMP] = -1
        # at most what all segments weigh together: until that is beyond the capacity no kernel is needed
        self._most = 0
        self._move: Callable[..., int] | None = None
        self.slack = 0

    def follow(self, segment: Segment) -> None:
        """Take in a segment of the store, or what its last refresh brought; O(new)."""
        found = self._by_name.get(segment.name)
        kind = _RingLanes if segment.has_lanes else _RingSegment
        if found is None or type(found) is not kind:
            # of one that another machine writes nothing was known, nor its kind: it keeps its slot
            slot = len(self._segments) if found is None else found.slot
            found = kind(segment, slot, self._row_bytes, self._names)
            found.map_files()
            if slot == len(self._segments):
                self._make_room()
                self._segments.append(found)
            self._segments[slot] = self._by_name[segment.name] = found
            self._table[slot] = 0
            self._table[slot, ORDINAL], self._table[slot, LANES] = segment.ordinal, segment.has_lanes
            self._take(found)
        elif not found.is_done:
            found.segment = segment
            if self._move is not None and found.has_only_grown():
                self._table[found.slot, NUM_ROWS] = segment.num_rows
                return
            if found.is_legacy:
                # its open episode was the newest, and is as old as its end when it has ended
                self._is_anew = True
            self._take(found)

    def _take(self, one: _RingSegment) -> None:
        """Write what is known of a segment into the table."""
        one.take()
        self._most += one.most - one.counted
        one.counted = one.most
        self._table[one.slot, : len(one.row)] = one.row

    def forget(self, names: Iterable[str]) -> None:
        """Leave out segments that went: where steps of them were shown, newer ones came that were not seen yet."""
        for name in names:
            one = self._by_name.pop(name, None)
            if one is None:
                continue
            self._most -= one.counted
            last = self._segments.pop()
            if last is not one:
                self._segments[one.slot], self._table[one.slot] = last, self._table[last.slot]
                last.slot = one.slot

    @property
    def names(self) -> KeysView[str]:
        """Names of the segments that were taken in."""
        return self._by_name.keys()

    def move(self) -> list[str]:
        """Find the first rows that are shown now; returns the names of the segments of which that is another one."""
        num = len(self._segments)
        if self._move is None:
            if self._most <= self._capacity:
                self.slack = self._capacity - self._most
                return []
            from stepwell.store.ring_kernels import move_cut

            # bound once: an import statement would cost as much as the kernel's call
            self._move = move_cut
        count = self._move(
            self._table[:num], self._words, self._capacity, self._row_bytes, len(self._names), self._counts_open,
            self._is_anew, self._changed,
        )  # fmt: skip
        self._is_anew = False
        self.slack = int(self._words[SLACK])
        return [self._segments[slot].segment.name for slot in self._changed[:count].tolist()]

    def first_row(self, name: str) -> int:
        """Return the first row of a segment that is shown; its number of rows where none is."""
        return int(self._table[self._by_name[name].slot, FIRST])

    def slots(self, names: Iterable[str]) -> Int64s:
        """Return what `first_rows` takes, int64 [S], for as long as no segment comes or goes."""
        return np.array([self._by_name[name].slot for name in names], np.int64)

    def first_rows(self, slots: Int64s) -> Int64s:
        """Return the first row of each segment that is shown, int64 [S]; see `first_row`."""
        found: Int64s = self._table[slots, FIRST]
        return found

    @property
    def oldest(self) -> tuple[str, int, int] | None:
        """Segment and row of the oldest step that is shown, and the first row there that goes after another step."""
        # None where nothing had to go yet
        slot = int(self._words[OLDEST])
        if self._move is None or slot < 0 or not len(self._segments):
            return None
        return self._segments[slot].segment.name, int(self._words[OLDEST_ROW]), int(self._words[OLDEST_STOP])

    def is_needed(self, name: str) -> bool:
        """Whether a segment must stay though nothing of it is shown: it has the step that did not fit in."""
        # in bytes a smaller one that is older might fit in its place, and come again
        return self._row_bytes >= 0 and bool(self._table[self._by_name[name].slot, ORDINAL] == self._words[CUT_ORDINAL])

    def _make_room(self) -> None:
        num = len(self._table)
        if len(self._segments) == num:
            table = np.zeros((2 * num, NUM_COLUMNS), np.int64)
            table[:num] = self._table
            self._table, self._changed = table, np.zeros(2 * num, np.int64)


class _RingSegment:
    """A segment, as the kernel needs it: its ended episodes, and addresses of maps that are kept here."""

    __slots__ = (
        "_clock",
        "_episodes",
        "_names",
        "_num_seen",
        "_offsets",
        "_offsets_at",
        "_room",
        "_row_bytes",
        "counted",
        "is_done",
        "is_legacy",
        "most",
        "row",
        "segment",
        "slot",
    )

    def __init__(self, segment: Segment, slot: int, row_bytes: int, names: list[str]) -> None:
        self.segment, self.slot = segment, slot
        self._row_bytes, self._names = row_bytes, names
        self._clock: Int64s = np.empty(0, np.int64)
        self._offsets: list[npt.NDArray[np.uint64]] = []
        self._offsets_at = np.empty(0, np.int64)
        self._episodes = np.zeros((FIRST_EPISODES, 4), np.int64)
        self._num_seen = self._room = 0
        self.is_done = self.is_legacy = False
        self.most = self.counted = 0
        # CLOCK to ENDED_WEIGHT, ORDINAL, OFFSETS of the table
        self.row = [0] * HEAD_ROW
        self.row[ORDINAL] = segment.ordinal

    def map_files(self) -> None:
        """Map stamps and offsets of the rows that the segment has now, and those it has room for."""
        segment = self.segment
        clock = segment.clock_map()
        self.is_legacy = clock is None
        self._clock = stamps_of_records(segment.records, segment.num_rows) if clock is None else clock
        self._offsets = [segment.offsets_map(name) for name in self._names]
        self._offsets_at = np.array([offsets.ctypes.data for offsets in self._offsets], np.int64)
        self._room = min([len(self._clock), *[len(offsets) - 1 for offsets in self._offsets]])
        self.row[CLOCK], self.row[OFFSETS] = self._clock.ctypes.data, self._offsets_at.ctypes.data

    def has_only_grown(self) -> bool:
        """Whether nothing but rows of an open episode came since, which lie in the maps."""
        segment = self.segment
        is_live = not segment.is_sealed and not self.is_legacy
        return is_live and len(segment.records) == self._num_seen and segment.num_rows <= self._room

    def take(self) -> None:
        """Take in what the segment's last refresh brought."""
        segment = self.segment
        num_rows, records = segment.num_rows, segment.records
        if num_rows > self._room or (self.is_legacy and not self.is_done):
            self.map_files()
        self.row[NUM_ROWS] = num_rows
        if len(records) > self._num_seen:
            self._add(records[self._num_seen :])
        self.most = int(self._bytes_before(num_rows))
        self.is_done = segment.is_sealed

    def _add(self, records: npt.NDArray[np.void]) -> None:
        """Count ended episodes that follow those counted before."""
        row = self.row
        self._num_seen += len(records)
        row[ENDED_ROWS] = num_ended_rows(records)
        known, count = row[NUM_EPISODES], row[NUM_EPISODES] + len(records)
        if count > len(self._episodes):
            grown = np.zeros((max(2 * known, count), 4), np.int64)
            grown[:known] = self._episodes[:known]
            self._episodes = grown
        row[EPISODES], row[NUM_EPISODES] = self._episodes.ctypes.data, count
        block = self._episodes[known:count]
        starts, stops = records["start"], records["start"] + records["rows"]
        lengths = records["length"]
        block[:, 0], block[:, 1], block[:, 2] = starts, lengths, stops
        weights = lengths if self._row_bytes < 0 else self._bytes_before(stops) - self._bytes_before(starts)
        ends = weights.cumsum() + row[ENDED_WEIGHT]
        block[:, 3] = ends - weights
        row[ENDED_WEIGHT] = int(ends[-1])

    def _bytes_before(self, rows: Any) -> Any:
        """Return the weight of the rows before ``rows``, an int or int64 [n]; in steps that is their number."""
        if self._row_bytes < 0:
            return rows
        total = rows * self._row_bytes
        for offsets in self._offsets:
            found = offsets[rows]
            total = total + (int(found) if isinstance(rows, int) else found.astype(np.int64))
        return total


class _RingLanes(_RingSegment):
    """A segment with lanes, as the kernel needs it: a row for each vector step; a sealed one is one ended episode."""

    __slots__ = ("_num_steps", "_stamps", "_weights")

    def map_files(self) -> None:
        """Have room for stamps and weights."""
        self._num_steps = 0
        self._stamps, self._weights = np.zeros(FIRST_EPISODES, np.int64), np.zeros(FIRST_EPISODES + 1, np.int64)

    def has_only_grown(self) -> bool:
        """Whether nothing is to be taken in: never."""
        return False

    def take(self) -> None:
        """Take in what the segment's last refresh brought."""
        lines, known, row = self.segment.lane_steps(), self._num_steps, self.row
        # mapped while it is there: they say which rows go, when the segment may have gone
        self.segment.lane_marks()
        count = self._num_steps = len(lines)
        if count > len(self._stamps):
            stamps, weights = np.zeros(2 * count, np.int64), np.zeros(2 * count + 1, np.int64)
            stamps[:known], weights[: known + 1] = self._stamps[:known], self._weights[: known + 1]
            self._stamps, self._weights = stamps, weights
        self._stamps[known:count] = lines[known:, STAMP]
        so_far = lines[known:, STEPS_SO_FAR] if self._row_bytes < 0 else lines[known:, ROWS_SO_FAR] * self._row_bytes
        self._weights[known + 1 : count + 1] = so_far
        self.most = int(self._weights[count])
        row[CLOCK], row[OFFSETS], row[NUM_ROWS] = self._stamps.ctypes.data, self._weights.ctypes.data, count
        self.is_done = self.segment.is_sealed
        if self.is_done:
            self._episodes[0] = 0, count, count, 0
            row[EPISODES], row[NUM_EPISODES] = self._episodes.ctypes.data, 1
            row[ENDED_ROWS], row[ENDED_WEIGHT] = count, self.most


class Evictor:
    """Remove what a ring does not show any more; follows its segments from one call to the next."""

    # safe in any number of processes and threads at once

    def __init__(self, store: str) -> None:
        self._store = store
        self._schema: Schema | None = None
        self._followed: _EndedSteps | None = None

    def evict(self) -> list[str]:
        """Remove the segments that are wholly beyond the capacity; returns their names."""
        # Nothing is done while a column is added or the store is compacted: the next call suffices. Steps of open
        # episodes push no file out, since a loss of power may take them.
        record = read_record(self._store)
        if record.capacity is None or record.schema is None:
            return []
        directory = f"{self._store}/{SEGMENTS}"
        with locked_store(self._store), ExitStack() as locks:
            if is_maintained(self._store):
                return []
            if self._followed is None or record.schema != self._schema:
                self._schema, self._followed = record.schema, _EndedSteps(self._store, record.schema, record.capacity)
            gone = [_directory_name(segment, locks) for segment in self._followed.look()]
            hidden = hide_segments(self._store, [name for name in gone if name])
            # under the lock no segment is made, so those that are there were left by killed processes
            left = [entry for entry in list_directory(directory) if entry.startswith(NEW_PREFIX)]
        for entry in left:
            shutil.rmtree(f"{directory}/{entry}", ignore_errors=True)
        return [os.path.basename(path).removeprefix(NEW_PREFIX).removesuffix(OPEN_SUFFIX) for path in hidden]


def _directory_name(segment: Segment, locks: ExitStack) -> str:
    """Return the name of a segment's directory; empty if its writer is alive, or recorded more since it was read."""
    if segment.is_sealed:
        return segment.name
    path = f"{segment.path.parent}/{segment.name}{OPEN_SUFFIX}"
    try:
        check_directory(path)
        progress = CommitRecord.take_over(f"{path}/{PROGRESS}")
    except FileNotFoundError:
        # a process that seals it is about to rename it, or has
        return ""
    if progress is None:
        return ""
    locks.callback(progress.close)
    state = segment.lane_state
    seen = (segment.num_rows, len(segment.records)) if state is None else (state.num_steps, progress.episodes)
    if progress.is_sealed or (progress.rows, progress.episodes) != seen:
        return ""
    return segment.name + OPEN_SUFFIX


def evicted_ids(store: str) -> Int64s:
    """Return the ids that hide, in another store of a ring's segments, what the ring has evicted."""
    # of the first steps of episodes that lie wholly beyond the capacity, and of the first ones within it of the rest;
    # the caller keeps segments from going
    record = read_record(store)
    found = [np.empty(0, np.int64)]
    if record.capacity is not None and record.schema is not None:
        ended = _EndedSteps(store, record.schema, record.capacity)
        ended.look()
        for name, segment in ended.segments.items():
            records, first = segment.records, ended.first_row(name)
            if segment.has_lanes:
                gone = segment.rows_before(records, first)
                rows = records["start"] + np.where(gone == records["length"], 0, gone)
                rows = rows[gone > 0]
                found.append(step_id(np.full(len(rows), segment.ordinal, np.int64), rows))
                continue
            starts = records["start"][records["start"] < first]
            ends = (records["start"] + records["length"])[: len(starts)]
            rows = np.where(ends <= first, starts, first)
            found.append(step_id(np.full(len(rows), segment.ordinal, np.int64), rows))
    return np.concatenate(found)


class _EndedSteps:
    """Where a ring of ended episodes begins, as it is on the disk."""

    def __init__(self, store: str, schema: Schema, capacity: Capacity) -> None:
        self._store, self._schema = store, schema
        self._cut = RingCut(capacity, schema, counts_open=False)
        self.segments: dict[str, Segment] = {}
        # of sealed ones: whether they are what their manifests say
        self._is_sound: dict[str, bool] = {}

    def look(self) -> list[Segment]:
        """Look at the store's segments; return those of which nothing is within the capacity."""
        found: dict[str, Segment] = {}
        for name, (_, is_sealed) in shown_segments(self._store)[0].items():
            segment = self._refreshed(name, is_sealed)
            if segment is not None and self._follow(segment):
                found[name] = segment
        self.segments = found
        self._is_sound = {name: is_sound for name, is_sound in self._is_sound.items() if name in found or not is_sound}
        self._cut.forget(self._cut.names - found.keys())
        self._cut.move()
        return [segment for segment in found.values() if self._is_gone(segment)]

    def first_row(self, name: str) -> int:
        """Return the first row of a segment that is within the capacity."""
        return self._cut.first_row(name)

    def _refreshed(self, name: str, is_sealed: bool) -> Segment | None:
        known = self.segments.get(name)
        if known is None:
            return open_segment(f"{self._store}/{SEGMENTS}/{name}", self._schema, is_sealed=is_sealed)
        try:
            known.refresh()
        except FileNotFoundError:
            return None
        return known

    def _follow(self, segment: Segment) -> bool:
        """Take a segment in; False for one that is damaged, or went."""
        name = segment.name
        if segment.is_sealed and name not in self._is_sound:
            self._is_sound[name] = _is_sound(segment)
        if not self._is_sound.get(name, True):
            return False
        try:
            self._cut.follow(segment)
        except FileNotFoundError:
            return False
        return True

    def _is_gone(self, segment: Segment) -> bool:
        num_rows = len(segment.lane_steps()) if segment.has_lanes else segment.num_rows
        if not num_rows or self._cut.first_row(segment.name) < num_rows or self._cut.is_needed(segment.name):
            return False
        return segment.is_sealed or _rises(segment)


def _is_sound(segment: Segment) -> bool:
    """Whether the files that say how old a sealed segment is, and what in it counts, are what its manifest says."""
    try:
        files = read_manifest(f"{segment.path}/{SEGMENT_JSON}")["files"]
        return all(
            _is_as_listed(f"{segment.path}/{name}", files[name])
            for name in (EPISODES_FILE, CLOCK_FILE, LANE_STEPS, LANE_MARKS)
            if name in files
        )
    except (CorruptSegmentError, OSError):
        return False


def _is_as_listed(path: str, entry: dict[str, Any]) -> bool:
    num_bytes, checksum = file_checksum(path)
    return {"bytes": num_bytes, "crc32": f"{checksum:08x}"} == entry


def _rises(segment: Segment) -> bool:
    """Whether the stamps of a segment that has no checksums yet can be true."""
    clock = segment.clock_map()
    if clock is None and not segment.has_lanes:
        return True
    stamps = segment.lane_steps()[:, STAMP] if clock is None else clock[: segment.num_rows]
    return bool(stamps[0] >= 0 and stamps[-1] < LATEST and (stamps[1:] >= stamps[:-1]).all())


@dataclass(frozen=True, slots=True)
class SegmentLimit:
    """When a writer goes on in another segment."""

    # at the end of an episode beyond segment_bytes; segments of a ring hold about an eighth of their writer's share of
    # the capacity, so that no more than that is kept in vain, but at least 1,024 rows or 1 MiB

    segment_bytes: int
    capacity: Capacity | None = None
    writers: int = 1

    @property
    def is_least(self) -> bool:
        """Whether segments are as small as they may be, however many writers there are."""
        if self.capacity is None:
            return True
        least = LEAST_ROWS if self.capacity.unit == "steps" else LEAST_BYTES
        return self.capacity.amount <= SHARE * least

    def shared(self, writers: int) -> SegmentLimit:
        """Return the limit of one of so many writers."""
        return replace(self, writers=max(1, writers))

    def is_full(self, rows: int, num_bytes: int, *, times: int = 1) -> bool:
        """Whether a segment is to be sealed at the end of an episode."""
        if num_bytes >= times * self.segment_bytes:
            return True
        if self.capacity is None:
            return False
        size = rows if self.capacity.unit == "steps" else num_bytes
        is_small = rows < times * LEAST_ROWS and num_bytes < times * LEAST_BYTES
        return not is_small and size * SHARE * self.writers >= times * self.capacity.amount

    def is_overlong(self, rows: int, num_bytes: int) -> bool:
        """Whether the open episode is to be cut: never, but in a ring."""
        return self.capacity is not None and self.is_full(rows, num_bytes, times=2)

    def next_look(self, rows: int) -> int:
        """Return at how many rows to ask `is_overlong` again."""
        return sys.maxsize if self.capacity is None else rows + 1 + rows // 64


def growing_segments(store: str) -> set[str]:
    """Return the names of a store's segments to which rows may come."""
    found = set()
    for name, (_, is_sealed) in list_segments(store).items():
        if is_sealed:
            continue
        try:
            progress = CommitRecord.open(f"{store}/{SEGMENTS}/{name}{OPEN_SUFFIX}/{PROGRESS}")
        except (FileNotFoundError, CorruptSegmentError):
            # sealed meanwhile; a damaged one has no writer
            continue
        if not progress.is_full:
            found.add(name)
        progress.close()
    return found
