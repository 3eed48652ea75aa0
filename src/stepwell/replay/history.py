"""What came to a store and what went: the rows that tables make items of, without an index over all of them.

::

    segments on disk                       advance()                      what a table sees
      sealed   | e0 e0 e1 |    first       runs  (0, 0, 2, ended) (1, 2, 3, ended)
      live     | e2 e2 . . |               (2, 0, 2, open)
      live     | e2 e2 e2 |    later       runs  (2, 2, 3, ended)         rows of e2 that are new
      sealed   gone                        evicted  (0, 2) (1, 3)         nothing is left of them

Episodes are numbered in the order in which they were seen, and a number is never used again. `History.records` holds a
few numbers of each; what is done at every call grows with what is new, never with what is stored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, LoaderError, SegmentGoneError, TableError
from stepwell.kernels.places import CHAIN_START, CHAIN_STEP, PLACE_ROWS
from stepwell.replay.episode_records import (
    FLAGS,
    HI_FINAL,
    HI_STEP,
    IS_CUT,
    IS_GONE,
    IS_OPEN,
    IS_TERMINATED,
    IS_TRUNCATED,
    LO,
    ORIGIN,
    SEGMENT,
    SKIPPED,
    START,
    Cuts,
    EpisodeRecords,
    flags_of,
    records_of,
)
from stepwell.replay.following import FollowedLanes, FollowedSegment, Growth, RingTrimmer, StoreWatch, Tail
from stepwell.store import Segment, Store
from stepwell.store.episodes import EPISODE_DTYPE, MAX_SKIPPED, num_ended_rows
from stepwell.store.lanes import EPISODES_SO_FAR
from stepwell.store.layout import split_id, step_id
from stepwell.store.maintenance import hidden_steps, read_deleted
from stepwell.windows.chains import Chains, cells_of

__all__ = ["CLUED", "NOTHING", "Advance", "History", "advance_of", "computed_of", "joined"]

Int64s = npt.NDArray[np.int64]


class Advance(NamedTuple):
    """What `stepwell.replay.history.History.advance` found.

    Args:
        runs: int64 [r, 4]: episode, first row, stop row, whether it has ended; rows of steps that are new, the oldest
            first. A final row is in no run. An episode that ended without new steps has an empty one.
        evicted: int64 [m, 2]: episode, and the first of its rows that is still there; its ``hi_final`` when none is.
    """

    runs: Int64s
    evicted: Int64s


NOTHING = Advance(np.empty((0, 4), np.int64), np.empty((0, 2), np.int64))


def advance_of(*growths: Growth) -> Advance:
    """Return what episodes grew by, one after the other."""
    # of an episode that went in several parts the last one counts
    evicted = {growth[4]: growth[5] for growth in growths if growth[4] >= 0}
    return Advance(np.array([growth[:4] for growth in growths]), joined([*evicted.items()], 2))


def joined(parts: list[Any], width: int) -> Int64s:
    """Return rows and arrays of rows as one array, int64 [n, width]."""
    if len(parts) == 1 and type(parts[0]) is not tuple:
        whole: Int64s = parts[0]
        return whole
    if all(type(part) is tuple for part in parts):
        return np.array(parts, np.int64).reshape(-1, width)
    return np.concatenate([np.asarray(part, np.int64).reshape(-1, width) for part in parts])


NO_PIECES = np.empty(0, np.int64)
# maps of segments that went are kept for batches that were drawn before
LEAVE_SECONDS = 2.0
FIRST_SEGMENTS = 64
# of columns that are true at the last step of some episodes: which flags are looked at, and what they are then
ENDINGS = {
    "terminated": (IS_TERMINATED, IS_TERMINATED),
    "truncated": (IS_TRUNCATED, IS_TRUNCATED),
    "is_last": (IS_OPEN | IS_CUT, 0),
}


# of what `History.clues` returns: flags below, and above them the row at which the episode's step 0 is, or would be
CLUE_BITS = 8
# what they are made of
CLUE_COLUMNS = np.array([HI_STEP, FLAGS, START, SKIPPED], np.int64)
CLUED = frozenset({*ENDINGS, "is_first", "step_index", "timestamp"})
"""The computed columns that follow from clues."""


def computed_of(clues: Int64s, name: str, last: Int64s, rows: Int64s, fps: float | None) -> npt.NDArray[Any]:
    """Return a computed column as `History.compute` does.

    Args:
        clues: int64 [n], of `History.clues`.
        name: of the column, one of `CLUED`.
        last: int64 [n], the last row that windows may reach, of those with steps.
        rows: int64 [n, K].
        fps: steps a second of the store.
    """
    if name in ENDINGS:
        mask, wanted = ENDINGS[name]
        marks: npt.NDArray[np.bool_] = (rows == last[:, None]) & ((clues & mask) == wanted)[:, None]
        return marks
    steps: npt.NDArray[Any] = rows - (clues >> CLUE_BITS)[:, None]
    if name == "step_index":
        return steps
    return np.asarray(steps / (fps or np.nan)) if name == "timestamp" else np.asarray(steps == 0)


class History:
    """Follow a store: which rows came, which went, and where each episode lies.

    Attributes:
        store: its own store object.
        segments: by number; new ones are added at the end, None for one that went.
        segment_stores: int64 [S], zeros: a history has one store.
        revision: grows whenever a segment comes or goes.
        is_ring: whether the store has a capacity.
        table: the `EpisodeRecords`.
        chains: the pieces of episodes that a ring cut, or None.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> writer = store.writer()
        >>> first = writer.append(action=0.5)
        >>> history = History(store)
        >>> history.advance().runs.tolist()
        [[0, 0, 1, 0]]
        >>> second = writer.append(action=0.25)
        >>> history.advance().runs.tolist(), history.step_ids([0], [1]).tolist() == [second]
        ([[0, 1, 2, 0]], True)
        >>> writer.close()

    Notes:
        `advance` is for one thread at a time; the rest may be called meanwhile, and sees what was there before or
        after. Memory: 80 bytes an episode that is there, nothing a step. What is gone stays gone: a step that a ring
        has evicted does not come back when newer ones are deleted.
    """

    is_live = True

    def __init__(self, store: Store) -> None:
        from stepwell.replay.batch_kernels import episode_clues, mark_last_steps
        from stepwell.replay.following_kernels import follow_lanes, trim_lanes
        from stepwell.replay.item_kernels import item_places

        # bound once: an import statement would cost as much as the kernel's call
        self._mark_last_steps, self._item_places, self._episode_clues = mark_last_steps, item_places, episode_clues
        self._follow_lanes, self._trim_of_lanes = follow_lanes, trim_lanes
        self.store = Store(str(store.path), "r", store.address, store.trust, store.place)
        self.stores = (self.store,)
        self.segments: list[Any] = []
        self.revision = 0
        self.is_ring = getattr(self.store, "capacity", None) is not None
        self.table = EpisodeRecords()
        self._cuts = Cuts(self.table)
        self.chains: Chains | None = None
        self._followed: dict[str, FollowedSegment] = {}
        self._by_ordinal: dict[int, FollowedSegment] = {}
        self._live: list[FollowedSegment] = []
        self._leaving: list[tuple[float, int]] = []
        self._ordinals, self._need_rows = np.zeros((2, FIRST_SEGMENTS), np.int64)
        self._deleted: Int64s = np.empty(0, np.int64)
        self._trimmer = RingTrimmer(self.store) if self.is_ring else None
        self._runs: list[Any] = []
        self._evicted: list[Any] = []
        self._tail: Tail | None = None
        # the segment that a tail grew, which the trimmer has not seen grow
        self._grown: FollowedSegment | None = None
        self._watch = StoreWatch(str(store.path))

    @property
    def records(self) -> Int64s:
        """What is known of each episode, int64 [capacity, 8] by episode - `base`; see `EpisodeRecords`."""
        return self.table.window[0]

    @property
    def base(self) -> int:
        """Number of the first episode in `records`."""
        return self.table.window[1]

    @property
    def ascending_pieces(self) -> Int64s:
        """Episodes that are pieces of longer ones, int64 [P], ascending."""
        return NO_PIECES if self.chains is None else self.chains.ascending

    @property
    def num_seen(self) -> int:
        """How many episodes were seen so far: the number of the next one."""
        return self.table.num_seen

    @property
    def segment_stores(self) -> Int64s:
        """Number of the store of each segment, int64 [S]: 0."""
        return np.zeros(len(self.segments), np.int64)

    @property
    def ordinals(self) -> Int64s:
        """The ordinal of each segment by number, int64 [S]."""
        return self._ordinals[: len(self.segments)]

    @property
    def need_rows(self) -> Int64s:
        """Rows of each segment that may be read, int64 [S]; 0 for one that went."""
        return self._need_rows[: len(self.segments)]

    def advance(self, *, grown: Sequence[Growth] = (), may_grow: bool = True) -> Advance:
        """Take in what was committed, ended, deleted and evicted since the last call.

        Args:
            grown: what `grow` has returned since then; it is part of what this returns.
            may_grow: False where `grow` has just returned None.

        Notes:
            O(new). When nothing changed: two system calls, and a load for each segment that is being written.
        """
        if any(self._takes_in(growth) for growth in grown):
            return self._taken()
        while may_grow and (growth := self.grow()) is not None:
            if self._takes_in(growth):
                return self._taken()
        self._drop_tail()
        changed: list[FollowedSegment] = []
        if not self._watch.is_same():
            changed = self._list()
        for followed in self._live:
            if followed.has_news() and followed not in changed:
                changed.append(followed)
        if self._leaving:
            self._let_go(time.monotonic())
        if not changed and not self._runs and not self._evicted:
            return NOTHING
        changed = self._take([followed for followed in changed if not self._waits(followed)])
        if self._trimmer is not None:
            self._trim(self._trimmer, changed)
        found = self._taken()
        if self._cuts.take(self._came_or_ended(found.runs)):
            self.chains = self._cuts.chains()
        self._tail = Tail.of(self._live, self.table, self._trimmer)
        return found

    def _takes_in(self, growth: Growth) -> bool:
        """Take note of what an episode grew by; return whether nothing can have come after it."""
        episode, first, stop, has_ended, cut, left = growth
        if first < stop or has_ended:
            self._runs.append((episode, first, stop, has_ended))
        if cut >= 0:
            self._evicted.append((cut, left))
        return not has_ended

    def _came_or_ended(self, runs: Int64s) -> Int64s:
        """Return the episodes of runs that are new, or have ended: the others are pieces as they were."""
        records, base = self.table.window
        starts = records[np.maximum(runs[:, 0] - base, 0), START]
        episodes: Int64s = runs[(runs[:, 3] != 0) | (runs[:, 1] == starts), 0]
        return episodes

    def _taken(self) -> Advance:
        """Return what was taken in since the last call."""
        runs, evicted = self._runs, self._evicted
        if not runs and not evicted:
            return NOTHING
        self._runs, self._evicted = [], []
        gone = joined(evicted, 2)
        if len(evicted) > 1 and len(gone) > 1:
            # an episode that went in several parts has gone as far as the farthest
            gone = gone[np.lexsort((gone[:, 1], gone[:, 0]))]
            gone = gone[np.append(gone[1:, 0] != gone[:-1, 0], True)]
        return Advance(joined(runs, 4), gone)

    def grow(self) -> Growth | None:
        """Take in new rows of one episode, and its end, where nothing else happened."""
        tail = self._tail
        if tail is None or not self._watch.is_same():
            return None
        growth = tail.grow()
        if growth is not None and (growth[1] < growth[2] or growth[3]):
            self._grown = tail.followed
            self._need_rows[tail.followed.number] = tail.followed.num_rows
            if self._leaving:
                self._let_go(time.monotonic())
        return growth

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def find(self, step_ids: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Return where steps are.

        Args:
            step_ids: int64 [n].

        Returns:
            Episodes, int64 [n], -1 for a step that is gone, was never there or is a final row; and rows, int64 [n].
        """
        ordinals, rows = split_id(np.asarray(step_ids, np.int64).reshape(-1))
        episodes = np.full(len(rows), -1, np.int64)
        for ordinal in np.unique(ordinals).tolist() if len(rows) > 1 else ordinals.tolist():
            followed = self._by_ordinal.get(ordinal)
            if followed is not None:
                chosen = np.flatnonzero(ordinals == ordinal)
                episodes[chosen] = followed.episodes_at(rows[chosen])
        # asked for last: another thread may have added what was just found
        records, base = self.table.window
        found = records[np.maximum(episodes - base, 0)]
        is_there = (episodes >= base) & (rows >= found[:, LO]) & (rows < found[:, HI_STEP])
        return np.where(is_there, episodes, -1), rows

    def numbers_by_ordinal(self) -> Int64s:
        """Return the number of the segment of each ordinal, as step ids have it; -1 for one that is not there."""
        found = np.full(max(self._by_ordinal, default=-1) + 1, -1)
        for ordinal, followed in self._by_ordinal.items():
            found[ordinal] = followed.number
        return found

    def step_ids(self, episodes: npt.ArrayLike, rows: npt.ArrayLike) -> Int64s:
        """Return the ids of rows of episodes, int64 [n]; the episodes must be kept."""
        records, base = self.table.window
        segments = records[np.asarray(episodes, np.int64) - base, SEGMENT]
        ordinals = self._ordinals[segments]
        return step_id(ordinals, np.asarray(rows, np.int64))

    def places(self, episodes: npt.ArrayLike, rows: npt.ArrayLike) -> Int64s:
        """Return the places of rows, int64 [6, n], as `stepwell.windows.PlaceReader` takes them.

        Args:
            episodes: int64 [n].
            rows: int64 [n].
        """
        episodes, rows = np.asarray(episodes, np.int64), np.asarray(rows, np.int64)
        places = np.empty((PLACE_ROWS, len(rows)), np.int64)
        missing = self._item_places(episodes, rows, *self.table.window, places)
        if missing >= 0:
            raise TableError(
                f"the steps of row {missing} of the sample were evicted since it was drawn. Read a sample before the "
                "ring comes round, or raise its capacity."
            )
        return places

    def describe(self, segment: int, row: int) -> str:
        """Return the store's path, the episode's number here and the step of a row, for people."""
        followed = next((one for one in self._followed.values() if one.number == segment), None)
        episode = -1 if followed is None else int(followed.episodes_at(np.array([row]))[0])
        records, base = self.table.window
        if episode < base:
            return f"{self.store.path}: row {row} of a segment that is gone"
        record = records[episode - base]
        return f"{self.store.path}: episode {episode}, step {row - record[START] + record[SKIPPED]}"

    def compute(self, name: str, places: Int64s, rows: Int64s) -> npt.NDArray[Any]:
        """Return a computed column; see `stepwell.windows.sources.PlaceSource`.

        ``episode_index`` is the episode's number here, and an episode that is still recorded has no last step.
        """
        if name == "step_id":
            segments, chains = places[1][:, None], self.chains
            if len(places) > PLACE_ROWS and chains is not None:
                segments, rows = cells_of(chains, places, rows)
            return step_id(self._ordinals[segments], rows)
        if name in {"store_index", "episode_index"}:
            index: Int64s = places[0] if name == "episode_index" else np.zeros_like(places[0])
            return index[:, None]
        if name in ENDINGS:
            return self._endings(name, *self._last_pieces(places, rows))
        records, base = self.table.window
        if places.shape[1] and int(places[0].min()) < base:
            raise self._long_gone(places[0].min())
        found = records[places[0] - base]
        steps: npt.NDArray[Any] = rows - (found[:, START] - found[:, SKIPPED])[:, None]
        if name == "step_index":
            return steps
        if name == "timestamp":
            return np.asarray(steps / (self.store.fps or np.nan))
        return np.asarray(steps == 0)

    def last_episodes(self, episodes: Int64s) -> Int64s:
        """Return the last pieces of the episodes that these (int64 [n]) are pieces of; others are their own."""
        chains = self.chains
        if chains is None:
            return episodes
        at = chains.find(episodes)
        return np.where(at >= 0, chains.numbers[chains.last[at]], episodes)

    def _last_pieces(self, places: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the episodes whose ends say how windows end, and the rows counted in theirs."""
        chains = self.chains
        if len(places) == PLACE_ROWS or chains is None:
            return places[0], rows
        episodes, rows = places[0].copy(), rows.copy()
        chosen = np.flatnonzero(places[-2] > places[4])
        at = chains.find(episodes[chosen])
        chosen, at = chosen[at >= 0], at[at >= 0]
        shift = chains.pieces[:, CHAIN_START] - chains.pieces[:, CHAIN_STEP]
        episodes[chosen] = chains.numbers[chains.last[at]]
        rows[chosen] += (shift[chains.last[at]] - shift[at])[:, None]
        return episodes, rows

    def clues(self, places: Int64s) -> Int64s:
        """Return what some computed columns follow from without this history, see `computed_of`: int64 [n].

        Args:
            places: int64 [6 or 9, n].
        """
        last = (places[-2] - 1)[:, None]
        episodes, rows = self._last_pieces(places, last)
        clues = np.empty(len(last), np.int64)
        missing = self._episode_clues(
            places[0], episodes, rows.reshape(-1), *self.table.window, CLUE_COLUMNS, IS_OPEN, CLUE_BITS, clues
        )
        if missing >= 0:
            raise self._long_gone(min(places[0, missing], episodes[missing]))
        return clues

    def _endings(self, name: str, episodes: Int64s, rows: Int64s) -> npt.NDArray[np.bool_]:
        """Return which rows are the last steps of episodes that ended as the column says."""
        records, base = self.table.window
        marks = np.empty(rows.shape, np.bool_)
        missing = self._mark_last_steps(episodes, rows, records, base, HI_STEP, FLAGS, *ENDINGS[name], marks)
        if missing >= 0:
            raise self._long_gone(episodes[missing])
        return marks

    def _long_gone(self, episode: np.int64) -> LoaderError:
        error = LoaderError(f"{self.store.path}: episode {episode} was evicted. Sample again.")
        # as where a row's segment was removed: who drew it may draw again
        error.__cause__ = SegmentGoneError(f"episode {episode} of {self.store.path} is gone.")
        return error

    def _list(self) -> list[FollowedSegment]:
        """Look at the store's directories; return the segments that have news."""
        self._watch.begin_look()
        self.store.refresh()
        shown = {segment.name: segment for segment in self.store.segments}
        for name, followed in list(self._followed.items()):
            # of a segment that another machine wrote nothing is known until it is sealed, nor whether it has lanes
            if name not in shown or shown[name].has_lanes != isinstance(followed, FollowedLanes):
                self._forget(name)
        changed = []
        for name, segment in shown.items():
            followed = self._followed.get(name) or self._follow(segment)
            if followed.segment is not segment:
                followed.segment = self.segments[followed.number] = segment
                self.revision += 1
            if not followed.is_sealed and followed.has_news():
                changed.append(followed)
        self._live = [followed for followed in self._followed.values() if not followed.is_sealed]
        deleted = read_deleted(str(self.store.path))
        if not np.array_equal(deleted, self._deleted):
            self._delete(np.setdiff1d(deleted, self._deleted))
            self._deleted = deleted
        return changed

    def _follow(self, segment: Segment) -> FollowedSegment:
        """Begin to follow a segment."""
        number = len(self.segments)
        if number == len(self._need_rows):
            grown = np.zeros((2, 2 * number), np.int64)
            grown[0, :number], grown[1, :number] = self._ordinals, self._need_rows
            self._ordinals, self._need_rows = grown
        self._ordinals[number] = segment.ordinal
        followed = (FollowedLanes if segment.has_lanes else FollowedSegment)(segment, number)
        self._followed[segment.name] = self._by_ordinal[segment.ordinal] = followed
        self.segments.append(segment)
        self.revision += 1
        return followed

    def _forget(self, name: str) -> None:
        """Let all episodes of a segment go that went."""
        followed = self._followed.pop(name)
        self._by_ordinal.pop(followed.segment.ordinal, None)
        self._evicted.append(self.table.mark_gone(followed.episodes))
        self._leaving.append((time.monotonic() + LEAVE_SECONDS, followed.number))

    def _let_go(self, now: float) -> None:
        """Give up the segments that went a while ago."""
        while self._leaving and self._leaving[0][0] <= now:
            _, number = self._leaving.pop(0)
            self.segments[number] = None
            self._need_rows[number] = 0
            self.revision += 1
            if self._cuts.forget(number):
                self.chains = self._cuts.chains()

    def _delete(self, ids: Int64s) -> None:
        """Let episodes go that begin with these steps."""
        ordinals, rows = split_id(ids)
        for ordinal in np.unique(ordinals).tolist():
            followed = self._by_ordinal.get(ordinal)
            if followed is not None:
                self._evicted.append(self.table.mark_gone(followed.episodes_from(rows[ordinals == ordinal])))

    def _waits(self, followed: FollowedSegment) -> bool:
        """Whether a segment begins with a piece of an episode whose piece before has not ended yet.

        A writer commits the first step of a piece before it ends the one before it; that one then has all its steps.
        """
        steps, origin = followed.segment.carried
        if not steps or followed.num_rows:
            return False
        return any((piece := _open_piece(one.segment))[1] == origin and piece[0] < steps for one in self._live)

    def _lanes_wait(self, followed: FollowedLanes, num_steps: int, others: list[FollowedSegment]) -> bool:
        """Whether in some lanes pieces of episodes begin whose pieces before were not seen to end, as `_waits`.

        The segments ``others`` are about to be taken in.
        """
        state = followed.segment.lane_state
        if state is None or np.count_nonzero(state.carried[:, 0]) == followed.num_carried:
            return False
        firsts = followed.segment.lane_marks()[: len(state.carried) * state.capacity : state.capacity]
        began = (state.carried[:, 0] > 0) & (firsts > 0) & (firsts <= num_steps)
        records, base = self.table.window
        for one in self._live if began.any() else ():
            if one is followed or not isinstance(one, FollowedLanes):
                continue
            if one in others:
                opened = one.segment.open_records()["origin"]
            else:
                episodes = np.empty(0, np.int64) if one.lanes is None else one.lanes[2]
                opened = records[episodes[episodes >= base] - base, ORIGIN]
            if np.isin(opened, state.carried[began, 1]).any():
                return True
        followed.num_carried = int(np.count_nonzero(began))
        return False

    def _grow(self, changed: list[FollowedSegment]) -> tuple[list[FollowedSegment], list[FollowedSegment]]:
        """Take in vector steps where one call does; returns the segments of these, and those that are left."""
        grown: list[FollowedSegment] = []
        others: list[FollowedSegment] = []
        for one in changed:
            if isinstance(one, FollowedLanes):
                num_steps = one.num_steps_now
                if num_steps is not None and self._lanes_wait(one, num_steps, others):
                    continue
                if num_steps is not None and self._grow_lanes(one, num_steps):
                    grown.append(one)
                    continue
                one.segment.refresh()
                state = one.segment.lane_state
                if state is not None and self._lanes_wait(one, state.num_steps, others):
                    continue
            others.append(one)
        return grown, others

    def _take(self, changed: list[FollowedSegment]) -> list[FollowedSegment]:
        """Take in the rows and records of segments that have news; returns those that did not wait for others."""
        grown, others = self._grow(changed)
        fresh = []
        for followed in others:
            segment = followed.segment
            new = segment.records[followed.num_records :]
            if isinstance(followed, FollowedLanes):
                new = self._end_lanes(followed, new)
            if followed.open_episode >= 0 and (len(new) or segment.is_sealed):
                self._end(followed, new)
                new = new[1:]
            if len(new):
                fresh.append((followed, new))
        if fresh:
            self._add_ended(fresh)
        for followed in others:
            segment = followed.segment
            if followed.num_records != len(segment.records):
                followed.num_records = len(segment.records)
            if isinstance(followed, FollowedLanes):
                self._extend_lanes(followed)
            elif not segment.is_sealed:
                self._extend(followed)
            followed.num_rows = segment.num_rows
            self._need_rows[followed.number] = segment.num_rows
            if segment.is_sealed:
                followed.is_sealed = True
                self._live = [one for one in self._live if one is not followed]
        return grown + others

    def _end(self, followed: FollowedSegment, new: npt.NDArray[np.void]) -> None:
        """End the open episode of a segment, as the first of its new records says."""
        episode, followed.open_episode = followed.open_episode, -1
        records, base = self.table.window
        record = records[episode - base]
        if record[FLAGS] & IS_GONE:
            return
        if not len(new) or new["discarded"][0]:
            if len(new):
                record[HI_FINAL] = record[START] + int(new["rows"][0])
            self._evicted.append(self.table.mark_gone(np.array([episode])))
            return
        start, length, rows, origin, _, terminated, truncated, interrupted, _, cut = new[0].item()
        seen = int(record[HI_STEP])
        record[HI_STEP], record[HI_FINAL], record[ORIGIN] = start + length, start + rows, origin
        record[FLAGS] = flags_of(terminated, truncated, interrupted, cut)
        record[SKIPPED] = cut & MAX_SKIPPED
        self._runs.append((episode, seen, start + length, 1))
        if record[LO] >= record[HI_STEP]:
            # all its steps went while it was recorded, by a writer that stood still
            self._evicted.append(self.table.mark_gone(np.array([episode])))

    def _add_ended(self, fresh: list[tuple[FollowedSegment, npt.NDArray[np.void]]]) -> None:
        """Add episodes that began and ended since the last look, of all segments at once."""
        counts = np.array([len(new) for _, new in fresh])
        # joined as bytes: numpy compares the fields of structured arrays one by one before it concatenates them
        ended = np.frombuffer(b"".join([new.tobytes() for _, new in fresh]), EPISODE_DTYPE)
        segments = np.repeat(np.array([followed.number for followed, _ in fresh], np.int64), counts)
        is_shown, hidden = ~ended["discarded"], np.zeros(len(ended), np.int64)
        if len(self._deleted):
            ids = step_id(self._ordinals[segments], ended["start"])
            is_deleted, hidden = hidden_steps(ids, ended["length"], self._deleted)
            is_shown &= ~is_deleted
        if not is_shown.all():
            counts = np.add.reduceat(is_shown, np.cumsum(counts) - counts, dtype=np.int64)
            ended, segments, hidden = ended[is_shown], segments[is_shown], hidden[is_shown]
        records = records_of(ended, segments)
        records[:, LO] += hidden
        first = self.table.add(records)
        episodes = np.arange(first, first + len(records))
        starts = records[:, START].copy()
        begin = 0
        for (followed, _), count in zip(fresh, counts.tolist(), strict=True):
            if count:
                followed.add(starts[begin : begin + count], episodes[begin : begin + count])
            begin += count
        runs = np.stack([episodes, records[:, LO], records[:, HI_STEP], np.ones_like(starts)], axis=1)
        if self.is_ring and len(fresh) > 1:
            # what several writers recorded meanwhile: the oldest first, whoever wrote it
            runs = runs[np.argsort(ended["time_ns"], kind="stable")]
        self._runs.append(runs)

    def _extend(self, followed: FollowedSegment) -> None:
        """Take in the committed rows of the episode that is being recorded."""
        segment, episode = followed.segment, followed.open_episode
        num_rows = segment.num_rows
        if episode >= 0:
            records, base = self.table.window
            record = records[episode - base]
            record[HI_STEP] = record[HI_FINAL] = num_rows
            if num_rows > followed.num_rows:
                self._runs.append((episode, followed.num_rows, num_rows, 0))
            return
        start = num_ended_rows(segment.records)
        if num_rows > start:
            skipped, origin = segment.next_piece(segment.records)
            episode = followed.begin(self.table, start, num_rows, skipped, origin)
            self._runs.append((episode, start, num_rows, 0))

    def _grow_lanes(self, followed: FollowedLanes, num_steps: int) -> bool:
        """Take in vector steps, up to the last of ``num_steps``, by one call; False where more has to be looked at."""
        segment, lanes = followed.segment, followed.lanes
        state = segment.lane_state
        if state is None or lanes is None or len(self._deleted):
            return False
        try:
            num_records = int(segment.lane_steps()[num_steps - 1, EPISODES_SO_FAR])
            ended = np.empty((0, 6), np.int64)
            if num_records > followed.num_records:
                ended = segment.read_records(followed.num_records, num_records)
        except (FileNotFoundError, CorruptSegmentError):
            return False
        if (ended[:, 5] >> 24 & 1).any():
            # some were taken back
            return False
        runs = np.empty((lanes.shape[1] + len(ended), 4), np.int64)
        records = self.table.room(len(runs))
        base, first = self.table.window[1], self.table.num_seen
        num_runs, num_added, num_lost = self._follow_lanes(
            segment.lane_marks(), num_steps, state.capacity, lanes, ended, state.carried, followed.number,
            step_id(segment.ordinal, 0), records, base, first, runs,
        )  # fmt: skip
        self.table.num_seen += num_added
        if num_added:
            followed.add(
                records[first - base : first - base + num_added, START].copy(), np.arange(first, first + num_added)
            )
        runs = runs[:num_runs]
        if num_runs:
            self._runs.append(runs)
        if num_lost:
            lines = runs[:, 0] - base
            is_lost = (runs[:, 3] != 0) & (records[lines, LO] >= records[lines, HI_STEP])
            self._evicted.append(self.table.mark_gone(runs[is_lost, 0]))
        followed.num_steps, followed.num_records = num_steps, num_records
        return True

    def _end_lanes(self, followed: FollowedLanes, new: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """End the open episodes that new records are of; returns the other ones."""
        if followed.lanes is not None:
            is_open = followed.lanes[2] >= 0
            followed.open_starts, followed.open_episodes = followed.lanes[1, is_open], followed.lanes[2, is_open]
        starts, numbers = followed.open_starts, followed.open_episodes
        if not len(starts) or not len(new):
            return new
        at = np.minimum(starts.searchsorted(new["start"]), len(starts) - 1)
        is_known = starts[at] == new["start"]
        at, ended = at[is_known], new[is_known]
        episodes = numbers[at]
        is_open = np.ones(len(starts), np.bool_)
        is_open[at] = False
        followed.open_starts, followed.open_episodes = starts[is_open], numbers[is_open]
        records, base = self.table.window
        lines = episodes - base
        is_there = (lines >= 0) & (records[np.maximum(lines, 0), FLAGS] & IS_GONE == 0)
        episodes, lines, ended = episodes[is_there], lines[is_there], ended[is_there]
        seen = records[lines, HI_STEP].copy()
        found = records_of(ended, np.full(len(ended), followed.number))
        for column in (HI_STEP, HI_FINAL, ORIGIN, FLAGS, SKIPPED):
            records[lines, column] = found[:, column]
        is_lost = ended["discarded"] | (records[lines, LO] >= records[lines, HI_STEP])
        stops = records[lines, HI_STEP]
        kept = ~ended["discarded"]
        self._runs.append(np.stack([episodes, seen, stops, np.ones_like(seen)], axis=1)[kept])
        if is_lost.any():
            self._evicted.append(self.table.mark_gone(episodes[is_lost]))
        others: npt.NDArray[np.void] = new[~is_known]
        return others

    def _extend_lanes(self, followed: FollowedLanes) -> None:
        """Take in the committed rows of the episodes that are being recorded."""
        state, before = followed.segment.lane_state, (followed.open_starts, followed.open_episodes)
        if state is None:
            # sealed: what has no record was not there after a loss of power
            if len(before[1]):
                self._evicted.append(self.table.mark_gone(before[1]))
            followed.open_starts = followed.open_episodes = np.empty(0, np.int64)
            followed.lanes = None
            return
        followed.num_steps = state.num_steps
        opened = followed.segment.open_records()
        firsts = np.arange(len(state.counts)) * state.capacity
        followed.lanes = lanes = np.empty((3, len(firsts)), np.int64)
        lanes[0] = lanes[1] = firsts + state.counts
        lanes[2] = -1
        starts, stops = opened["start"].copy(), opened["start"] + opened["length"]
        # both ascend; there may be none before
        at = np.minimum(before[0].searchsorted(starts), max(len(before[0]) - 1, 0))
        is_known = before[0][at] == starts if len(before[0]) else np.zeros(len(starts), np.bool_)
        episodes = np.empty(len(starts), np.int64)
        episodes[is_known] = before[1][at[is_known]]
        if not is_known.all():
            new = opened[~is_known]
            begun = records_of(new, np.full(len(new), followed.number))
            begun[:, FLAGS] |= IS_OPEN
            first = self.table.add(begun)
            episodes[~is_known] = np.arange(first, first + len(begun))
            followed.add(begun[:, START].copy(), episodes[~is_known])
        records, base = self.table.window
        lines = episodes - base
        is_there = lines >= 0
        seen = np.where(is_known, records[np.maximum(lines, 0), HI_STEP], starts)
        records[lines[is_there], HI_STEP] = records[lines[is_there], HI_FINAL] = stops[is_there]
        has_grown = is_there & (stops > seen)
        runs = np.stack([episodes, seen, stops, np.zeros_like(seen)], axis=1)[has_grown]
        if len(runs):
            self._runs.append(runs)
        followed.open_starts, followed.open_episodes = starts, episodes
        places = starts // state.capacity
        lanes[1, places], lanes[2, places] = starts, episodes

    def _trim_lanes(self, followed: FollowedLanes, step: int) -> None:
        """Let go what the first vector steps of a segment with lanes wrote."""
        followed.first_row = step
        evicted = np.empty((len(followed.episodes), 2), np.int64)
        try:
            marks = followed.segment.lane_marks()
        except FileNotFoundError:
            # the next look at the directory finds it gone
            return
        count = self._trim_of_lanes(marks, step, followed.episodes, *self.table.window, evicted)
        if count:
            self._evicted.append(evicted[:count])

    def _trim(self, trimmer: RingTrimmer, changed: list[FollowedSegment]) -> None:
        """Let go what lies beyond the ring's capacity."""
        if self._grown is not None and self._grown not in changed:
            changed = [*changed, self._grown]
        self._grown = None
        for followed, first_row in trimmer.trim(self._followed, changed):
            if isinstance(followed, FollowedLanes):
                self._trim_lanes(followed, first_row)
                continue
            episodes = followed.episodes_before(first_row)
            followed.first_row = first_row
            if not len(episodes):
                continue
            records, base = self.table.window
            last, record = int(episodes[-1]), records[max(int(episodes[-1]) - base, 0)]
            is_cut = last >= base and (record[HI_FINAL] > first_row or bool(record[FLAGS] & IS_OPEN))
            whole = episodes[:-1] if is_cut else episodes
            if len(whole):
                self._evicted.append(self.table.mark_gone(whole))
            if is_cut and not record[FLAGS] & IS_GONE:
                record[LO] = first_row
                self._evicted.append((last, first_row))

    def close(self) -> None:
        """Let go of the store and its directories."""
        self.store.close()
        self._watch.close()

    def __del__(self) -> None:
        # an interpreter that ends has taken away what closing needs
        if hasattr(self, "_watch") and sys is not None and not sys.is_finalizing():
            self.close()


def _open_piece(segment: Segment) -> tuple[int, int]:
    """Return of the open episode its steps in earlier segments and its origin; (0, -1) where there is none."""
    start = num_ended_rows(segment.records)
    if segment.is_sealed or segment.has_lanes or segment.num_rows <= start:
        return 0, -1
    return segment.next_piece(segment.records)
