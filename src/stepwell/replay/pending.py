"""Items that wait until a rate limiter lets them into their table."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.replay.records import LO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepwell.replay.matching import Past
    from stepwell.replay.samples import Sample

__all__ = ["Pending", "still_there", "still_there_samples"]

Ints = npt.NDArray[np.int64]
LEAST_TRIMMED = 1024


class Pending:
    """A queue of items, int64 [3, n] each time: episode, row and number of steps; without those whose steps are gone.

    Args:
        history: that knows which steps are there.

    Notes:
        Used under its table's lock. 24 bytes an item. Items whose steps were evicted leave it when they come up, and
        all at once whenever it has doubled, so that it never keeps more than twice what a ring does.
    """

    __slots__ = ("_blocks", "_history", "_num", "_trim_at", "missed")

    def __init__(self, history: Past) -> None:
        self._history = history
        self._blocks: deque[Ints] = deque()
        self._num = 0
        self._trim_at = LEAST_TRIMMED
        # items whose steps were evicted before they were let in
        self.missed = 0

    def __len__(self) -> int:
        return self._num

    def push(self, items: Ints) -> None:
        """Add items behind the others."""
        if items.shape[1]:
            self._blocks.append(items)
            self._num += items.shape[1]
        if self._num >= self._trim_at:
            self.trim()

    def take(self, count: int) -> Ints:
        """Take up to ``count`` of the first items that are still there; fewer only when there are no more."""
        taken: list[Ints] = []
        while count > 0 and self._blocks:
            block = self._kept(self._blocks.popleft())
            if block.shape[1] > count:
                self._blocks.appendleft(block[:, count:])
                block = block[:, :count]
            self._num -= block.shape[1]
            count -= block.shape[1]
            taken.append(block)
        return np.concatenate(taken, axis=1) if taken else np.empty((3, 0), np.int64)

    def trim(self) -> None:
        """Drop the items whose steps are gone."""
        kept = [self._kept(block) for block in self._blocks]
        whole = np.concatenate(kept, axis=1) if kept else np.empty((3, 0), np.int64)
        self._blocks = deque([whole] if whole.shape[1] else [])
        self._trim_at = max(LEAST_TRIMMED, 2 * self._num)

    def items(self) -> Ints:
        """Return all that wait, oldest first."""
        self.trim()
        return self._blocks[0] if self._blocks else np.empty((3, 0), np.int64)

    def clear(self) -> None:
        """Forget all."""
        self._blocks.clear()
        self._num = 0

    def _kept(self, block: Ints) -> Ints:
        is_there = still_there(self._history, block[0], block[1])
        gone = block.shape[1] - int(np.count_nonzero(is_there))
        self._num -= gone
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
