"""What a table draws next as long as nothing changes: selected together, drawn one batch after the other.

::

    select   | batch 0 | batch 1 | batch 2 | batch 3 |    no counter moves
    draw     | batch 0 | batch 1 |                        the table is as it was: counted, one at a time
    change                       | dropped           |    selected anew, of the items that are there now
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.replay.rows import Rows, clipped

if TYPE_CHECKING:
    from stepwell.replay.contents import Contents
    from stepwell.replay.history import History

__all__ = ["Foreseen"]

Ints = npt.NDArray[np.int64]


class Foreseen:
    """Batches that are selected before they are drawn: one, then twice as many each time that nothing has changed.

    Args:
        count: rows of a batch.
        most: batches to select together.
        is_clipped: whether windows stay within the steps of their item.

    Attributes:
        number: batches that were selected together.
        places: int64 [6, n], where the rows of all of them lie.

    Notes:
        For a sampler whose draws depend on nothing but its items (`Contents.is_foreseeable`); used under the table's
        lock.
    """

    def __init__(self, count: int, most: int, *, is_clipped: bool) -> None:
        self.count = count
        self.number = 0
        self._most, self._is_clipped = most, is_clipped
        self._left: deque[tuple[Ints, Rows]] = deque()
        self._state: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether the batch drawn last is the first one of those that were selected together."""
        return len(self._left) == self.number - 1

    def forget(self) -> None:
        """Drop what was selected and not drawn."""
        self._state = ()

    def draw(self, contents: Contents, history: History, num_news: int) -> Rows:
        """Draw a batch, which the limiter lets be drawn.

        Args:
            contents: of the table.
            history: of its store.
            num_news: changes of the store that the table knows of.
        """
        items, num_draws = contents.items, contents.num_draws
        # items come and are updated with a count, and those that go are fewer afterwards: no two states are alike
        state = num_news, history.revision, items.num_touched, len(items), num_draws
        if state != self._state:
            self._select(1, contents, history)
        elif not self._left:
            self._select(min(2 * self.number, self._most), contents, history)
        slots, rows = self._left.popleft()
        contents.count_draws(slots, rows.times_sampled)
        self._state = (*state[:-1], num_draws + self.count)
        return rows

    def _select(self, number: int, contents: Contents, history: History) -> None:
        slots, probabilities = contents.select(number * self.count)
        taken = contents.items.take(slots, times=0)
        self.places = history.places(taken.episodes, taken.rows)
        if self._is_clipped:
            self.places = clipped(self.places, taken.lengths, history.chains)
        sizes = np.full(len(slots), len(contents))
        # how often each was drawn is written when it is
        rows = Rows(self.places, taken.keys, probabilities, taken.priorities, taken.times_sampled, sizes)
        parts = [rows] if number == 1 else rows.pieces(number)
        self._left = deque(zip(slots.reshape(number, -1), parts, strict=True))
        self.number = number
