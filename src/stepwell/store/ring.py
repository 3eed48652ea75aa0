"""What a ring shows: the newest of its steps that fit its capacity, whoever wrote them.

::

    stamps              1 2 3 4 5 6 7 8 9 . . .           of a clock that all writers share, see `stepwell.store.clock`
    segment 3, sealed   e e e   d   f f                   d discarded: counts, and is not shown
    segment 4, live       i     i       i   i
    segment 5, live               g         g             a stalled writer's steps go like all others
                                <-------------> capacity
    shown                       i g f f i   i g           of each segment all from one row on: its head

Within a segment rows are in the order of their stamps; equal stamps go by the segment's ordinal. What was written
before rings had a clock is as old as the end of its episode, and an open episode of that kind is the newest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.schema import Schema
from stepwell.store.clock import stamps_of_records
from stepwell.store.commit import CommitRecord
from stepwell.store.episodes import num_ended_rows
from stepwell.store.layout import OPEN_SUFFIX, PROGRESS, SEGMENTS, list_segments
from stepwell.store.records import Capacity, fixed_row_bytes
from stepwell.store.segments import Segment

__all__ = ["RingCut", "SegmentLimit", "growing_segments"]

Int64s = npt.NDArray[np.int64]
FIRST_SEGMENTS, FIRST_EPISODES = 16, 32
# columns of a segment in the table that the kernel reads, and its words, see `stepwell.store.ring_kernels`
CLOCK, NUM_ROWS, EPISODES, NUM_EPISODES, ENDED_ROWS, ENDED_WEIGHT, ORDINAL, OFFSETS, HEAD_ROW = range(9)
FIRST, NUM_COLUMNS = 11, 13
CUT_STAMP, CUT_ORDINAL = range(2)
SLACK, OLDEST, OLDEST_ROW, OLDEST_STOP, NUM_WORDS = range(3, 8)
# a ring is made of about this many segments a live writer: what is evicted at a time is one of them
SHARE = 8
LEAST_ROWS, LEAST_BYTES = 1024, 1 << 20


class RingCut:
    """The first row of each segment that a ring shows, found anew with work for what changed only.

    Args:
        capacity: in steps or in bytes.
        schema: the store's features.
        counts_open: whether steps of open episodes push others out.

    Attributes:
        slack: after `move`: weight that may come before any step has to go.

    Notes:
        For one thread. Maps the stamps of the segments, and in bytes their offsets, and keeps the maps: it can be asked
        when a segment is gone. What is deleted or discarded counts like everything else until its time comes: so a step
        that was evicted never comes back, and no reader needs to know what another one has seen.
    """

    def __init__(self, capacity: Capacity, schema: Schema, *, counts_open: bool = True) -> None:
        self._capacity, self._counts_open = capacity.amount, counts_open
        in_bytes = capacity.unit == "bytes"
        self._row_bytes = fixed_row_bytes(schema) if in_bytes else -1
        self._names = [name for name, feature in schema.items() if not feature.is_raw] if in_bytes else []
        self._segments: list[_RingSegment] = []
        self._by_name: dict[str, _RingSegment] = {}
        self._is_anew = False
        self._table, self._changed = (
            np.zeros((FIRST_SEGMENTS, NUM_COLUMNS), np.int64),
            np.zeros(FIRST_SEGMENTS, np.int64),
        )
        self._words = np.zeros(NUM_WORDS, np.int64)
        self._words[CUT_STAMP] = -1
        # at most what all segments weigh together: until that is beyond the capacity no kernel is needed
        self._most = 0
        self._move: Callable[..., int] | None = None
        self.slack = 0

    def follow(self, segment: Segment) -> None:
        """Take in a segment of the store, or what its last refresh brought; O(new).

        Raises:
            FileNotFoundError: the segment is gone.
            CorruptSegmentError: the file of its stamps is damaged.
        """
        found = self._by_name.get(segment.name)
        if found is None:
            found = _RingSegment(segment, len(self._segments), self._row_bytes, self._names)
            found.map_files()
            self._make_room()
            self._table[found.slot] = 0
            self._table[found.slot, ORDINAL] = segment.ordinal
            self._segments.append(found)
            self._by_name[segment.name] = found
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
        """Find the first rows that are shown now; returns the names of the segments of which that is another one.

        Notes:
            O(S + log S + steps that went), and O(S log steps) at first.
        """
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
        """The segment of the oldest step that is shown, its row, and the first row there that goes after another step.

        None where nothing had to go yet.
        """
        slot = int(self._words[OLDEST])
        if self._move is None or slot < 0 or not len(self._segments):
            return None
        return self._segments[slot].segment.name, int(self._words[OLDEST_ROW]), int(self._words[OLDEST_STOP])

    def is_needed(self, name: str) -> bool:
        """Whether a segment must stay though nothing of it is shown: it has the step that did not fit in.

        In bytes a smaller one that is older might fit in its place, and come again.
        """
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


@dataclass(frozen=True, slots=True)
class SegmentLimit:
    """When a writer goes on in another segment.

    Args:
        segment_bytes: at the end of an episode beyond this size.
        capacity: of a ring, whose segments hold about an eighth of the writer's share of it, so that no more than that
            is kept in vain, but at least 1,024 rows or 1 MiB.
        writers: that share it.

    Example:
        >>> limit = SegmentLimit(1 << 28, Capacity(80_000, "steps"))
        >>> limit.is_full(9_999, 1 << 22), limit.is_full(10_000, 1 << 22), limit.is_overlong(10_000, 1 << 22)
        (False, True, False)
        >>> limit.shared(10).is_full(1_024, 1 << 22)
        True
    """

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
            # sealed meanwhile; nobody writes to one that is damaged
            continue
        if not progress.is_full:
            found.add(name)
        progress.close()
    return found
