"""From new rows of a store to the items of a table: a pattern matches them, and they wait where the limiter says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.replay.episode_records import (
    FLAGS,
    HI_STEP,
    IS_CUT,
    IS_OPEN,
    LO,
    ORIGIN,
    SEGMENT,
    SKIPPED,
    START,
)
from stepwell.replay.history import NOTHING, advance_of
from stepwell.replay.patterns import FEATURE, IS_END, STEP_INDEX, STEPS_SINCE_APPLIED, Condition
from stepwell.replay.table_states import Seen, pending_arrays, restore_pending
from stepwell.windows.chains import Chains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepwell.replay.contents import Contents, Sample
    from stepwell.replay.following import Growth
    from stepwell.replay.history import History
    from stepwell.replay.limiters import Limiter
    from stepwell.replay.patterns import Pattern
    from stepwell.store import Store

__all__ = ["Intake", "Matcher", "Pending", "still_there", "still_there_samples"]

Ints = npt.NDArray[np.int64]
# what an open episode grew by: more at once goes the way of whole arrays
MOST_ROWS = 64


class Intake:
    """Follows a history for a table.

    Notes:
        Used under its table's lock.
    """

    def __init__(self, history: History, pattern: Pattern | None, limiter: Limiter, contents: Contents) -> None:
        self.pending = Pending(history)
        self.matcher = None if pattern is None else Matcher(pattern, history)
        self._history, self._limiter, self._contents = history, limiter, contents
        # of what goes into the table in one call; None where it cannot
        self.shape = self.matcher.shape if self.matcher is not None and contents.grows_in_one else None
        self._reach = 0 if pattern is None else pattern.reach
        # runs of rows that came between a checkpoint's tables and its store
        self._unseen: Ints | None = None

    def follow(self) -> int:
        """Take in what the store got and lost; return how many items were inserted."""
        growth = self._history.grow() if self._unseen is None else None
        return self._follow(growth) if growth is None or growth[3] else self.grow(growth)

    def follow_but_growth(self) -> Growth | None:
        """Follow, but leave new rows of an episode to whom a kernel can take them in: return those, or None."""
        growth = self._history.grow() if self._unseen is None else None
        if growth is None or growth[3]:
            self._follow(growth)
        elif growth[1] < growth[2] and self._fits(growth):
            return growth
        else:
            self.grow(growth)
        return None

    def _follow(self, growth: Growth | None) -> int:
        history = self._history
        if growth is None:
            found = history.advance(may_grow=self._unseen is not None)
            return 0 if found is NOTHING and self._unseen is None and not self.pending.num else self._take(*found)
        further = history.grow()
        if further is not None and further[1] == further[2] and not further[3]:
            return self.grow(growth)
        # all at once, as where the store was looked at: which slots items get must not depend on when that was
        if further is not None and not further[3]:
            return self._take(*advance_of(growth, further))
        grown = [growth] if further is None else [growth, further]
        return self._take(*history.advance(grown=grown, may_grow=further is not None))

    def _fits(self, growth: Growth) -> bool:
        """Return whether the kernel of `stepwell.replay.contents` may take in new rows of an episode."""
        num_rows = growth[2] - growth[1]
        if self.shape is None or self.pending.num or num_rows > MOST_ROWS:
            return False
        # an end lets items come that waited for what is ahead of them, or for the end itself
        most = max(1, num_rows + self._reach) if growth[3] else num_rows
        return self._limiter.num_inserts(self._contents.counts, most) == most

    def grow(self, growth: Growth) -> int:
        """Take in new rows of an episode; return how many items were inserted."""
        if growth[1] == growth[2] and not growth[3]:
            return self.let_in() if self.pending.num else 0
        if self.shape is not None and self._fits(growth):
            num = self._contents.grow(growth, self.shape)
            if num >= 0:
                return num
        return self._take(*advance_of(growth))

    def _take(self, runs: Ints, evicted: Ints) -> int:
        if len(evicted):
            self._contents.evict(evicted)
        if self._unseen is not None:
            runs, self._unseen = np.concatenate([self._unseen, runs]), None
        if len(runs) and self.matcher is not None:
            found = self.matcher.match(runs)
            num = int(found.shape[1])
            if num and not self.pending.num and self._limiter.num_inserts(self._contents.counts, num) == num:
                self._insert(found)
                return num
            self.pending.push(found)
        return self.let_in() if self.pending.num else 0

    def let_in(self) -> int:
        """Insert what waits, as far as the limiter allows; return how many items."""
        allowed = self._limiter.num_inserts(self._contents.counts, self.pending.num)
        if not allowed:
            return 0
        found = self.pending.take(allowed)
        if found.shape[1]:
            self._insert(found)
        return int(found.shape[1])

    def _insert(self, found: Ints) -> None:
        priorities = np.empty(found.shape[1])
        priorities.fill(self._contents.largest)
        self._contents.insert(found, priorities)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what waits, what the pattern remembers, and what was seen of the store."""
        applied = {} if self.matcher is None else self.matcher.applied
        return {
            "applied": np.array([[*applied], [*applied.values()]], np.int64),
            **pending_arrays(self.pending, self._history),
            **Seen.by(self._history).arrays(),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], runs: Ints) -> None:
        """Take over what `arrays` returned; of runs, what was not seen then comes with the next `follow`."""
        restore_pending(self.pending, self._history, arrays)
        self._unseen = Seen.from_arrays(arrays).unseen(runs, self._history)
        if self.matcher is not None:
            self.matcher.applied = dict(zip(*arrays["applied"].tolist(), strict=True))


LEAST_TRIMMED = 1024


class Pending:
    """A queue of items, int64 [3, n] each time: episode, row and number of steps; without those whose steps are gone.

    Attributes:
        num: items that wait, those included whose steps are gone.
        missed: items whose steps were evicted before they were let in.

    Notes:
        Used under its table's lock. 24 bytes an item. Items whose steps were evicted leave it when they come up, and
        all at once whenever it has doubled, so that it never keeps more than twice what a ring does.
    """

    __slots__ = ("_blocks", "_history", "_trim_at", "missed", "num")

    def __init__(self, history: Past) -> None:
        self._history = history
        self._blocks: deque[Ints] = deque()
        self.num = 0
        self._trim_at = LEAST_TRIMMED
        self.missed = 0

    def push(self, items: Ints) -> None:
        """Add items behind the others."""
        if items.shape[1]:
            self._blocks.append(items)
            self.num += items.shape[1]
        if self.num >= self._trim_at:
            self.trim()

    def take(self, count: int) -> Ints:
        """Take up to ``count`` of the first items that are still there; fewer only when there are no more."""
        taken: list[Ints] = []
        while count > 0 and self._blocks:
            block = self._kept(self._blocks.popleft())
            if block.shape[1] > count:
                self._blocks.appendleft(block[:, count:])
                block = block[:, :count]
            self.num -= block.shape[1]
            count -= block.shape[1]
            taken.append(block)
        return np.concatenate(taken, axis=1) if taken else np.empty((3, 0), np.int64)

    def trim(self) -> None:
        """Drop the items whose steps are gone."""
        kept = [self._kept(block) for block in self._blocks]
        whole = np.concatenate(kept, axis=1) if kept else np.empty((3, 0), np.int64)
        self._blocks = deque([whole] if whole.shape[1] else [])
        self._trim_at = max(LEAST_TRIMMED, 2 * self.num)

    def items(self) -> Ints:
        """Return all that wait, oldest first."""
        self.trim()
        return self._blocks[0] if self._blocks else np.empty((3, 0), np.int64)

    def clear(self) -> None:
        """Forget all."""
        self._blocks.clear()
        self.num = 0

    def _kept(self, block: Ints) -> Ints:
        is_there = still_there(self._history, block[0], block[1])
        gone = block.shape[1] - int(np.count_nonzero(is_there))
        self.num -= gone
        self.missed += gone
        return np.ascontiguousarray(block[:, is_there]) if gone else block


def still_there(history: Past, episodes: Ints, rows: Ints) -> npt.NDArray[np.bool_]:
    """Return which rows of episodes were not evicted, bool [n]."""
    lines = episodes - history.base
    is_there = lines >= 0
    is_there[is_there] = rows[is_there] >= history.records[lines[is_there], LO]
    return is_there


def still_there_samples(history: Past, samples: Sequence[Sample]) -> list[Sample]:
    """Return the rows of samples whose steps were not evicted, without samples that have none left."""
    parts = (each.part(still_there(history, each.episodes, each.rows)) for each in samples)
    return [part for part in parts if len(part.keys)]


class Past(Protocol):
    """What a matcher reads of a `stepwell.replay.history.History`."""

    @property
    def store(self) -> Store: ...
    @property
    def segments(self) -> Any: ...
    @property
    def records(self) -> Ints: ...
    @property
    def base(self) -> int: ...
    @property
    def chains(self) -> Chains | None: ...


class Matcher:
    """The items of a pattern, found as rows are committed.

    Notes:
        Used under its table's lock. It keeps nothing but a number an open episode, for patterns that ask for
        ``steps_since_applied``.
    """

    def __init__(self, pattern: Pattern, history: Past) -> None:
        from stepwell.replay.pattern_kernels import anchors_of_pieces, anchors_of_runs

        self.pattern = pattern
        self._history = history
        self._find, self._find_over = anchors_of_runs, anchors_of_pieces
        self._shape = (
            pattern.length,
            pattern.every,
            pattern.ahead,
            pattern.behind,
            pattern.ends == "keep",
            pattern.at == "end",
        )
        # for the short way of `stepwell.replay.contents`; None where conditions must be looked at
        self.shape = None if pattern.where else np.array(self._shape, np.int64)
        self._values = [condition for condition in pattern.where if condition.source != STEPS_SINCE_APPLIED]
        self._since = [condition for condition in pattern.where if condition.source == STEPS_SINCE_APPLIED]
        # id of an episode's first step, which pieces of it share -> step at which the pattern was last applied
        self.applied: dict[int, int] = {}
        if history.store.schema is not None:
            self._check_features()

    def match(self, runs: Ints) -> Ints:
        """Return the items that newly committed rows complete.

        Args:
            runs: int64 [r, 4], of `stepwell.replay.history.Advance`.

        Returns:
            int64 [3, n]: episode, row of the first step, and number of steps of each; oldest first.
        """
        found = self._found(runs)
        return self._filtered(found, runs) if self.pattern.where else found

    def _found(self, runs: Ints) -> Ints:
        history = self._history
        chains = history.chains
        if chains is None:
            found: Ints = self._find(runs, history.records, history.base, *self._shape)
            return found
        found = self._find_over(
            runs, history.records, history.base, chains.ascending, chains.order, chains.pieces, chains.numbers,
            *self._shape,
        )  # fmt: skip
        return found

    def _filtered(self, found: Ints, runs: Ints) -> Ints:
        episodes, last = self._at_piece(found[0], found[1] + found[2] - 1)
        takes = np.ones(found.shape[1], np.bool_)
        for condition in self._values:
            # values are looked up only where the conditions before hold
            where = np.flatnonzero(takes)
            takes[where] = self._holds(condition, episodes[where], last[where])
        if self._since:
            self._apply(episodes, last, takes)
            self._forget(runs)
        return np.ascontiguousarray(found[:, takes])

    def _at_piece(self, episodes: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Return the pieces that have rows, which may lie beyond their episode's own, and the rows there."""
        chains = self._history.chains
        if chains is None:
            return episodes, rows
        at = chains.find(episodes)
        chosen = np.flatnonzero(at >= 0)
        pieces, found = chains.piece_of(at[chosen], rows[chosen])
        episodes, rows = episodes.copy(), rows.copy()
        episodes[chosen], rows[chosen] = chains.numbers[pieces], found
        return episodes, rows

    def _holds(self, condition: Condition, episodes: Ints, rows: Ints) -> npt.NDArray[np.bool_]:
        if condition.source == FEATURE:
            return self._feature_holds(condition, episodes, rows)
        record = self._history.records[episodes - self._history.base]
        if condition.source == STEP_INDEX:
            return condition.holds(_step_index(record, rows))
        if condition.source == IS_END:
            has_ended = (record[:, FLAGS] & (IS_OPEN | IS_CUT)) == 0
            return condition.holds(np.asarray(has_ended & (rows == record[:, HI_STEP] - 1)))
        raise TableError(f"no value {condition.source!r} of a step.")

    def _feature_holds(self, condition: Condition, episodes: Ints, rows: Ints) -> npt.NDArray[np.bool_]:
        self._check_features()
        schema = self._history.store.schema
        dtype = schema[condition.name].np_dtype if schema is not None else np.dtype(np.float64)
        holds = np.zeros(len(rows), np.bool_)
        numbers = self._history.records[episodes - self._history.base, SEGMENT]
        for number in np.unique(numbers):
            chosen = numbers == number
            try:
                column = self._history.segments[int(number)].raw_map(condition.name)
            except FileNotFoundError:
                # a ring has let go of the segment since the history looked: no item of it could be read
                continue
            count = len(column) // dtype.itemsize
            values = column[: count * dtype.itemsize].view(dtype)[rows[chosen]]
            holds[chosen] = condition.holds(values)
        return holds

    def _apply(self, episodes: Ints, last: Ints, takes: npt.NDArray[np.bool_]) -> None:
        from stepwell.replay.pattern_kernels import COMPARISONS, apply_in_order

        records = self._history.records[episodes - self._history.base]
        origins, groups = np.unique(records[:, ORIGIN], return_inverse=True)
        applied = np.array([self.applied.get(int(origin), -1) for origin in origins], np.int64)
        steps = _step_index(records, last)
        tests = np.array([(c.modulus, COMPARISONS.index(c.comparison)) for c in self._since], np.int64)
        values = np.array([condition.number for condition in self._since])
        apply_in_order(steps, groups.reshape(-1), applied, tests, values, takes)
        self.applied.update(zip(origins.tolist(), applied.tolist(), strict=True))

    def _forget(self, runs: Ints) -> None:
        episodes = runs[(runs[:, 3] != 0) & (runs[:, 0] >= self._history.base), 0]
        records = self._history.records[episodes - self._history.base]
        # an episode that a ring has cut goes on in another piece
        for origin in records[records[:, FLAGS] & IS_CUT == 0, ORIGIN].tolist():
            self.applied.pop(origin, None)

    def _check_features(self) -> None:
        schema = self._history.store.schema
        for condition in self._values:
            if condition.source != FEATURE or schema is None:
                continue
            described = schema[condition.name]
            if not (described.is_raw and described.shape == () and described.np_dtype.kind in "biuf"):
                raise TableError(
                    f'feature("{condition.name}") is not one raw number a step. Conditions take scalar features of a '
                    "bool, int or float dtype."
                )


def _step_index(records: Ints, rows: Ints) -> Ints:
    return np.asarray(rows - records[:, START] + records[:, SKIPPED], np.int64)
