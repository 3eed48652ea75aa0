"""Following the segments of a store: which ones changed, how far each was seen, and what a ring lets go.

`StoreWatch` says before every batch whether anything changed at all. `Tail` follows the one segment that grows, a few
steps at a time, from its commit record; anything else is for `stepwell.replay.history.History.advance`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.replay.episode_records import (
    FLAGS,
    HI_FINAL,
    HI_STEP,
    IS_GONE,
    IS_OPEN,
    LO,
    ORIGIN,
    SKIPPED,
    START,
    flags_of,
)
from stepwell.store import Segment, Store
from stepwell.store.commit import CARRIED_WORD, EPISODES_WORD, ROWS_WORD, SEALED_WORD
from stepwell.store.layout import DELETED, SEGMENTS, STORE_JSON, step_id
from stepwell.store.manifests import ARRANGEMENT_JSON
from stepwell.store.ring import RingCut

if TYPE_CHECKING:
    from stepwell.replay.episode_records import EpisodeRecords

__all__ = ["FollowedLanes", "FollowedSegment", "Growth", "RingTrimmer", "StoreWatch", "Tail"]

# Two system calls take longer than all else that is done for one step. Deleting episodes or beginning a segment takes
# twice this time at least, so what a thread changed since it last asked is always noticed.
FASTEST_NS = 200_000
# A directory's time stamp comes from a clock that stands still for a tick, of 1 to 10 ms: a change in the tick of the
# one before may not show. Linux tells that clock (CLOCK_REALTIME_COARSE); elsewhere stamps younger than TICK_NS are not
# trusted.
CLOCK, TICK_NS = (5, 0) if sys.platform == "linux" else (getattr(time, "CLOCK_REALTIME", 0), 50_000_000)


class StoreWatch:
    """Notice changes of a store's directories by their time stamps, and while these are young by what is in them.

    Notes:
        For one thread. Keeps both directories open. A store as it was last seen costs two system calls, and
        nothing when it was asked for within the last 0.2 ms.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptors = [os.open(directory, flags) for directory in (path, f"{path}/{SEGMENTS}")]
        self._stamps = (-1, -1)
        self._trusted_until = 0
        # while the stamps are young: what was there
        self._looked: tuple[Any, ...] | None = None

    def is_same(self) -> bool:
        """Return whether nothing changed since `begin_look`; False before the first one."""
        now = time.monotonic_ns()
        if now < self._trusted_until:
            return True
        store, segments = self._descriptors
        stamps = os.fstat(store).st_mtime_ns, os.fstat(segments).st_mtime_ns
        if self._stamps != stamps or (self._looked is not None and not self._is_as_looked()):
            self._trusted_until = 0
            return False
        self._trusted_until = now + FASTEST_NS
        return True

    def _is_as_looked(self) -> bool:
        is_old = self._is_old()
        if self._look() != self._looked:
            return False
        if is_old:
            self._looked = None
        return True

    def begin_look(self) -> None:
        """Take note of how things are, before they are looked at: what comes in between is found by the next look."""
        self._trusted_until = 0
        self._stamps = self._read_stamps()
        self._looked = None if self._is_old() else self._look()

    def close(self) -> None:
        """Let go of the directories."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _is_old(self) -> bool:
        return time.clock_gettime_ns(CLOCK) - max(self._stamps) > TICK_NS

    def _read_stamps(self) -> tuple[int, int]:
        store, segments = self._descriptors
        return os.fstat(store).st_mtime_ns, os.fstat(segments).st_mtime_ns

    def _look(self) -> tuple[Any, ...]:
        store, segments = self._descriptors
        names = os.listdir(segments)  # noqa: PTH208
        return (names, *(_identity(name, store) for name in (STORE_JSON, ARRANGEMENT_JSON, DELETED)))


def _identity(name: str, directory: int) -> tuple[int, int] | None:
    """Return what changes when a file is replaced whole; None for one that is not there."""
    try:
        found = os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


Int64s = npt.NDArray[np.int64]
FIRST_EPISODES = 4


class FollowedSegment:
    """A segment, as far as it was seen.

    Attributes:
        num_records: ended episodes that were seen.
        num_rows: rows that were seen.
        open_episode: number of the episode that is being recorded, or -1.
        is_sealed: whether it was seen to be sealed.
        first_row: rows before it were evicted.
    """

    __slots__ = (
        "_count",
        "_episodes",
        "_starts",
        "first_row",
        "is_sealed",
        "num_records",
        "num_rows",
        "number",
        "open_episode",
        "segment",
    )

    def __init__(self, segment: Segment, number: int) -> None:
        self.segment, self.number = segment, number
        self.num_records = self.num_rows = self.first_row = 0
        self.open_episode = -1
        self.is_sealed = False
        self._count = 0
        self._starts: Int64s = np.empty(0, np.int64)
        self._episodes: Int64s = np.empty(0, np.int64)

    def has_news(self) -> bool:
        """Refresh the segment; return whether it has what was not seen."""
        segment = self.segment
        try:
            segment.refresh()
        except FileNotFoundError:
            # the next look at the directory finds it gone
            return False
        if segment.has_lanes:
            # another machine wrote it: the next look follows it as one with lanes
            return False
        is_new = segment.num_rows != self.num_rows or len(segment.records) != self.num_records
        return is_new or segment.is_sealed != self.is_sealed

    def add(self, starts: Int64s, episodes: Int64s) -> None:
        """Take note of episodes and their first rows, ascending."""
        count, total = self._count, self._count + len(starts)
        if count == 0 and total > 1:
            self._starts, self._episodes = starts, episodes
        else:
            if total > len(self._starts):
                room = max(FIRST_EPISODES, 2 * total)
                grown = np.empty((2, room), np.int64)
                grown[0, :count], grown[1, :count] = self._starts[:count], self._episodes[:count]
                self._starts, self._episodes = grown
            self._starts[count:total], self._episodes[count:total] = starts, episodes
        self._count = total

    def begin(self, table: EpisodeRecords, start: int, stop: int, skipped: int, origin: int) -> int:
        """Add the record of an episode that is being recorded, with rows [start, stop); return its number."""
        rows = np.array([[self.number, start, start, stop, stop, skipped, IS_OPEN, origin]], np.int64)
        self.open_episode = table.add(rows)
        self.add(rows[0, START : START + 1], np.array([self.open_episode]))
        return self.open_episode

    @property
    def episodes(self) -> Int64s:
        """Its episodes by row, int64 [n]."""
        return self._episodes[: self._count]

    def episodes_at(self, rows: Int64s) -> Int64s:
        """Return the episode that each row (int64 [n]) would lie in, -1 before the first one."""
        count = self._count
        if count == 0:
            return np.full(len(rows), -1, np.int64)
        found = self._starts[:count].searchsorted(rows, "right") - 1
        return np.where(found >= 0, self._episodes[found], -1)

    def episodes_from(self, rows: Int64s) -> Int64s:
        """Return the episodes that begin at some rows (int64 [n]); those that none begins at are passed over."""
        starts = self._starts[: self._count]
        found = np.minimum(np.searchsorted(starts, rows), max(self._count - 1, 0))
        return self._episodes[found[starts[found] == rows]] if self._count else self.episodes

    def episodes_before(self, row: int) -> Int64s:
        """Return the episodes that begin before a row, int64 [n], from the one that has `first_row` on."""
        starts = self._starts[: self._count]
        first = max(int(starts.searchsorted(self.first_row, "right")) - 1, 0)
        return self._episodes[first : int(starts.searchsorted(row))]


class FollowedLanes(FollowedSegment):
    """A segment with lanes, as far as it was seen: several of its episodes may be open.

    Attributes:
        num_steps: vector steps that were seen.
        num_carried: lanes of which a first row was seen that goes on with an episode of an earlier segment.
        open_starts: int64 [k], first rows of the open episodes, ascending.
        open_episodes: int64 [k], their numbers.
        lanes: int64 [3, lanes], see `stepwell.replay.following_kernels`; None where it is to be made anew.
    """

    __slots__ = ("_by_row", "lanes", "num_carried", "num_steps", "open_episodes", "open_starts")

    def __init__(self, segment: Segment, number: int) -> None:
        super().__init__(segment, number)
        self.num_steps = self.num_carried = 0
        self.lanes: Int64s | None = None
        self.open_starts = self.open_episodes = np.empty(0, np.int64)
        self._by_row: tuple[Int64s, Int64s] | None = None

    @property
    def num_steps_now(self) -> int | None:
        """Vector steps that are committed by now; None where more has to be looked at."""
        words = self.segment.lane_words
        return None if words is None or self.lanes is None or words[SEALED_WORD] else words[ROWS_WORD]

    def has_news(self) -> bool:
        """Return whether it has what was not seen."""
        segment = self.segment
        words = segment.lane_words
        if words is not None and self.num_steps and not words[SEALED_WORD]:
            return words[ROWS_WORD] != self.num_steps
        try:
            segment.refresh()
        except FileNotFoundError:
            return False
        state = segment.lane_state
        return segment.is_sealed != self.is_sealed or (state is not None and state.num_steps != self.num_steps)

    def add(self, starts: Int64s, episodes: Int64s) -> None:
        """Take note of episodes and their first rows, in any order."""
        super().add(starts, episodes)
        self._by_row = None

    def _sorted(self) -> tuple[Int64s, Int64s]:
        # another thread may do the same
        found = self._by_row
        if found is None:
            count = self._count
            order = np.argsort(self._starts[:count], kind="stable")
            found = self._by_row = self._starts[:count][order], self._episodes[:count][order]
        return found

    def episodes_at(self, rows: Int64s) -> Int64s:
        """Return the episode that each row (int64 [n]) would lie in, -1 before the first one."""
        starts, episodes = self._sorted()
        found = starts.searchsorted(rows, "right") - 1
        return np.where(found >= 0, episodes[found], -1) if len(starts) else np.full(len(rows), -1, np.int64)

    def episodes_from(self, rows: Int64s) -> Int64s:
        """Return the episodes that begin at some rows (int64 [n]); those that none begins at are passed over."""
        starts, episodes = self._sorted()
        if not len(starts):
            return episodes
        found = np.minimum(starts.searchsorted(rows), len(starts) - 1)
        there: Int64s = episodes[found[starts[found] == rows]]
        return there


class RingTrimmer:
    """Find the rows that lie beyond a store's capacity.

    Attributes:
        slack: after `trim`, of a ring of steps: how many may come before any has to go; else 0.
        boundary: after `trim`, of a ring of steps: the segment that has the oldest step that is left, that step's row,
            and the first row there that goes after a step of another segment. None where nothing had to go yet.

    Notes:
        For one thread. Costs a few steps a segment that has news, and one call.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cut: RingCut | None = None
        self.slack = 0
        self.boundary: tuple[FollowedSegment, int, int] | None = None

    def trim(
        self, followed: Mapping[str, FollowedSegment], changed: Iterable[FollowedSegment]
    ) -> Iterator[tuple[FollowedSegment, int]]:
        """Yield the segments whose first shown row moved on, with that row."""
        capacity, schema = self._store.capacity, self._store.schema
        if capacity is None or schema is None:
            return
        cut = self._cut = self._cut or RingCut(capacity, schema)
        if len(cut.names) > len(followed) or not cut.names <= followed.keys():
            cut.forget(cut.names - followed.keys())
        for one in changed:
            try:
                cut.follow(one.segment)
            except FileNotFoundError:
                # removed since the look at the directory, and only what lies beyond the capacity is
                cut.forget([one.segment.name])
                yield one, one.num_steps if isinstance(one, FollowedLanes) else one.num_rows
        moved = cut.move()
        in_steps = capacity.unit == "steps"
        self.slack, self.boundary = cut.slack if in_steps else 0, None
        if in_steps and cut.oldest is not None:
            name, row, stop = cut.oldest
            self.boundary = (followed[name], row, stop)
        for name in moved:
            one, first_row = followed[name], cut.first_row(name)
            if first_row > one.first_row:
                yield one, first_row


Growth = tuple[int, int, int, int, int, int]
"""What an episode grew by, and what a ring let go for it: its number, its first new row and the row after its last new
step, whether it ended, an episode of which rows are gone, or -1, and the first of its rows that is there. A plain
tuple: one is made for every step."""


class Tail:
    """The end of a segment, while no other segment gets anything.

    Notes:
        What it knows holds until something else comes than rows of one episode, its end, or rows of the next one: then
        `grow` returns None and changes nothing, and the history makes another tail after its next look. Of a ring it
        moves the first row of the oldest episode on, as far as that episode's last step, or the first one that goes
        after a step of another segment.
    """

    __slots__ = (
        "_carried",
        "_cut",
        "_left",
        "_oldest",
        "_quiet",
        "_record",
        "_slack",
        "_table",
        "_words",
        "followed",
    )

    def __init__(
        self,
        followed: FollowedSegment,
        words: memoryview[int],
        quiet: list[FollowedSegment],
        table: EpisodeRecords,
        trimmer: RingTrimmer | None,
    ) -> None:
        records, base = table.window
        self.followed, self._words, self._table = followed, words, table
        self._quiet = [(one.segment.commit_words, one.num_rows, one.num_records) for one in quiet]
        self._carried = followed.segment.carried[0]
        # of the open episode; None between two
        self._record: Int64s | None = records[followed.open_episode - base] if followed.open_episode >= 0 else None
        # steps that may come before any has to go; the episode that goes then, its first row, and its segment
        self._slack, self._cut, self._left = 1 << 62, -1, 0
        self._oldest: tuple[FollowedSegment, Int64s, int] | None = None
        if trimmer is not None:
            self._slack = trimmer.slack
            if trimmer.boundary is not None:
                self._find_oldest(*trimmer.boundary, records, base)

    @classmethod
    def of(cls, live: list[FollowedSegment], table: EpisodeRecords, trimmer: RingTrimmer | None) -> Tail | None:
        """Return the tail of a store; None where several segments may grow."""
        growing = [one for one in live if one.open_episode >= 0] or live
        words = growing[0].segment.commit_words if len(growing) == 1 else None
        if words is None:
            return None
        records, base = table.window
        episode = growing[0].open_episode
        if episode >= 0 and records[episode - base, FLAGS] & IS_GONE:
            return None
        return cls(growing[0], words, [one for one in live if one is not growing[0]], table, trimmer)

    def _find_oldest(self, segment: FollowedSegment, row: int, stop: int, records: Int64s, base: int) -> None:
        if isinstance(segment, FollowedLanes):
            # vector steps, not rows
            return
        episode = int(segment.episodes_at(np.array([row]))[0])
        if episode < base:
            return
        record = records[episode - base]
        # what was let go before more was shown again stays gone: then the trimmer says when it goes on
        if record[LO] == row and not record[FLAGS] & (IS_OPEN | IS_GONE):
            self._oldest = segment, record, min(int(record[HI_STEP]) - 1, stop)
            self._cut, self._left = episode, row

    def grow(self) -> Growth | None:  # noqa: PLR0911
        """Take in new rows of one episode, with its end if that came."""
        words, followed = self._words, self.followed
        # rows before episodes: see stepwell.store.commit
        stop = num_rows = words[ROWS_WORD]
        num_records = words[EPISODES_WORD]
        if words[SEALED_WORD] or words[CARRIED_WORD] != self._carried:
            return None
        if self._quiet and not self._is_quiet():
            return None
        first, ending, record = followed.num_rows, None, self._record
        if num_records != followed.num_records:
            ending = self._read_ending(num_records)
            if ending is None:
                return None
            stop, num_rows, _ = ending
        elif record is None and num_rows > first and not self._may_begin():
            return None
        cut = -1
        surplus = stop - first - self._slack
        if surplus > 0:
            if self._oldest is None or self._left + surplus > self._oldest[2]:
                return None
            cut = self._cut
            self._slack = 0
            self._left += surplus
            self._oldest[1][LO] = self._left
        else:
            self._slack = -surplus
        if record is None:
            if num_rows == first:
                return -1, first, first, 0, -1, 0
            record = self._begin(first)
        episode = followed.open_episode
        record[HI_STEP], record[HI_FINAL] = stop, num_rows
        if ending is not None:
            record[ORIGIN], record[FLAGS] = ending[2]
            followed.num_records, followed.open_episode, self._record = num_records, -1, None
        followed.num_rows = followed.segment.num_rows = num_rows
        return episode, first, stop, int(ending is not None), cut, self._left

    def _read_ending(self, num_records: int) -> tuple[int, int, tuple[int, int]] | None:
        """Return where the open episode ended, the row after its last one, its origin and flags; None: look closer."""
        followed, record = self.followed, self._record
        if record is None or num_records != followed.num_records + 1:
            return None
        ended = followed.segment.read_record(followed.num_records)
        if ended is None:
            return None
        start, length, rows, origin, _, terminated, truncated, interrupted, discarded, cut = ended
        stop = start + length
        is_plain = start == record[START] and not discarded and not cut and not record[SKIPPED]
        if not is_plain or rows - length not in {0, 1} or stop < followed.num_rows or record[LO] >= stop:
            return None
        return stop, start + rows, (origin, flags_of(terminated, truncated, interrupted, cut))

    def _may_begin(self) -> bool:
        """Whether an episode that begins is a whole one, with an origin that follows from its place."""
        return self.followed.num_rows > 0 and self.followed.segment.note is None

    def _begin(self, start: int) -> Int64s:
        """Add the record of an episode that begins."""
        followed = self.followed
        episode = followed.begin(self._table, start, start, 0, step_id(followed.segment.ordinal, start))
        # more room for records may be elsewhere
        records, base = self._table.window
        if self._oldest is not None:
            self._oldest = self._oldest[0], records[self._cut - base], self._oldest[2]
        record: Int64s = records[episode - base]
        self._record = record
        return record

    def _is_quiet(self) -> bool:
        # what waits to be sealed
        for words, num_rows, num_records in self._quiet:
            if words is None or words[SEALED_WORD]:
                return False
            if words[ROWS_WORD] != num_rows or words[EPISODES_WORD] != num_records:
                return False
        return True

    def close(self) -> None:
        """Leave the segment of the oldest episode as the trimmer wants it."""
        if self._oldest is not None:
            segment = self._oldest[0]
            segment.first_row = max(segment.first_row, self._left)
