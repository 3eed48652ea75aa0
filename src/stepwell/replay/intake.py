"""What comes into a table from its store: rows become items, which wait where the limiter says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.replay.advances import NOTHING, advance_of
from stepwell.replay.matching import Matcher
from stepwell.replay.pending import Pending
from stepwell.replay.table_states import Seen, pending_arrays, restore_pending

if TYPE_CHECKING:
    from stepwell.replay.contents import Contents
    from stepwell.replay.history import History
    from stepwell.replay.limiters import Limiter
    from stepwell.replay.patterns import Pattern
    from stepwell.replay.tails import Growth

__all__ = ["Intake"]

Ints = npt.NDArray[np.int64]
# what an open episode grew by: more at once goes the way of whole arrays
MOST_ROWS = 64


class Intake:
    """Follows a history for a table.

    Args:
        history: of the store.
        pattern: which items follow from new rows; None for none.
        limiter: how many may come in.
        contents: where they go.

    Notes:
        Used under its table's lock.
    """

    def __init__(self, history: History, pattern: Pattern | None, limiter: Limiter, contents: Contents) -> None:
        self.pending = Pending(history)
        self.matcher = None if pattern is None else Matcher(pattern, history)
        self._history, self._limiter, self._contents = history, limiter, contents
        # runs of rows that came between a checkpoint's tables and its store
        self._unseen: Ints | None = None

    def follow(self) -> int:
        """Take in what the store got and lost; return how many items were inserted."""
        growth = None if self._unseen is not None else self._history.grow()
        if growth is None:
            found = self._history.advance(may_grow=self._unseen is not None)
            return 0 if found is NOTHING and self._unseen is None and not self.pending else self._take(*found)
        num = self._grow(growth)
        return self._take(*advance_of(growth)) if num < 0 else num

    def _grow(self, growth: Growth) -> int:
        """Take in new rows of an open episode; below 0 where it is to be done the other way."""
        num_rows = growth[2] - growth[1]
        if self.pending or self.matcher is None or self.matcher.shape is None or num_rows > MOST_ROWS:
            return -1
        if not num_rows:
            return 0
        if self._limiter.num_inserts(self._contents.counts, num_rows) < num_rows:
            return -1
        history = self._history
        return self._contents.grow(growth, (history.records, history.base), self.matcher.shape)

    def _take(self, runs: Ints, evicted: Ints) -> int:
        if len(evicted):
            self._contents.evict(evicted)
        if self._unseen is not None:
            runs, self._unseen = np.concatenate([self._unseen, runs]), None
        if len(runs) and self.matcher is not None:
            found = self.matcher.match(runs)
            num = int(found.shape[1])
            if num and not self.pending and self._limiter.num_inserts(self._contents.counts, num) == num:
                self._insert(found)
                return num
            self.pending.push(found)
        return self.let_in() if self.pending else 0

    def let_in(self) -> int:
        """Insert what waits, as far as the limiter allows; return how many items."""
        allowed = self._limiter.num_inserts(self._contents.counts, len(self.pending))
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
