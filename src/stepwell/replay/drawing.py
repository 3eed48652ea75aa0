"""Which rows come next: several batches at once where nothing waits, always in the order of the batches.

::

    sources ---- draw(count) ----> Drawn: places and numbers of a batch ----> read ----> Batch
       ^                              |
       '-- priorities updated by the learner; what is drawn already does not see them: `max_staleness` batches
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, RateLimitError
from stepwell.replay.rows import Rows
from stepwell.replay.shares import deal_rows
from stepwell.replay.sources import RowSource
from stepwell.replay.waiting import LongWait
from stepwell.replay.weights import BetaSchedule

__all__ = ["Drawer", "Drawn", "Progress", "TurnTaker"]

# how long a thread waits for a rate limiter before it looks whether the loader was closed
POLL_SECONDS = 0.1

# rows of each source, and the progress after them
Plan = tuple[tuple[int, ...], "Progress"]


class Progress(NamedTuple):
    """How far a loader has come.

    Args:
        number: of batches.
        owed: rows that each source has had too few of.
        taken: rows that each source has had.
    """

    number: int
    owed: tuple[float, ...]
    taken: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Drawn:
    """One batch whose rows are known, or, of a single source, several of equal size that are read at once.

    Args:
        number: of the first batch.
        parts: the rows by source.
        counts: rows of each source.
        weights: float32 [n].
        afters: the progress once the consumer has each batch.
    """

    number: int
    parts: list[Rows]
    counts: tuple[int, ...]
    weights: npt.NDArray[np.float32]
    afters: tuple[Progress, ...]

    def __len__(self) -> int:
        return len(self.weights)


class Drawer:
    """Draws the rows of one batch after the other.

    Args:
        sources: what rows come from.
        shares: of each source, summing to 1; None: as large as each source is at the time.
        batch_size: rows of a batch.
        beta: exponent of the importance weights.
        normalize: whether a batch's largest weight is 1.
        timeout: seconds to wait for a rate limiter; None: without end.

    Attributes:
        progress: before the next batch.

    Notes:
        One thread at a time; `stop` by any.
    """

    def __init__(  # noqa: PLR0917
        self,
        sources: Sequence[RowSource],
        shares: tuple[float, ...] | None,
        batch_size: int,
        beta: BetaSchedule,
        normalize: bool,
        timeout: float | None,
    ) -> None:
        from stepwell.replay.weight_kernels import importance_weights

        self._weigh = importance_weights
        self._sources = list(sources)
        self._shares = shares
        self._batch_size = batch_size
        self._whole: tuple[int, ...] = (batch_size,)
        self._beta = beta
        self._normalize = normalize
        self._timeout = timeout
        self._is_stopped = threading.Event()
        self.progress = Progress(0, (0.0,) * len(self._sources), (0,) * len(self._sources))
        self._begun: tuple[list[Plan], list[Rows]] | None = None

    def move_to(self, progress: Progress) -> None:
        """Go on elsewhere; what was drawn of some sources, while others made wait, is kept only where it fits."""
        if progress != self.progress:
            self.progress, self._begun = progress, None

    def stop(self) -> None:
        """Let nobody wait any more."""
        self._is_stopped.set()

    def resume(self) -> None:
        """Let them wait again."""
        self._is_stopped.clear()

    def draw(self, tickets: Sequence[Any]) -> list[Drawn]:
        """Draw as many batches as there are tickets, or only one where the others would have to wait.

        Returns:
            One or several; those of a single source come in one.

        Raises:
            RateLimitError: the rows did not come in time; what other sources gave is kept for the next call.
        """
        if self._begun is None and len(tickets) == len(self._sources) == 1:
            return [self._draw_one(self._sources[0])]
        if self._begun is None:
            self._begun = (self._plans(len(tickets)), [])
        plans, rows = self._begun
        while len(rows) < len(self._sources):
            number = len(rows)
            total = sum(counts[number] for counts, _ in plans)
            rows.append(self._wait_for(self._sources[number], self.progress.taken[number], total))
        self._begun = None
        number, self.progress = self.progress.number, plans[-1][1]
        if len(rows) == 1:
            afters = tuple([after for _, after in plans])
            return [self._drawn(number, rows, (len(rows[0].keys),), afters)]
        parts_of = [rows] if len(plans) == 1 else _split(rows, [counts for counts, _ in plans])
        return [
            self._drawn(after.number - 1, parts, counts, (after,))
            for (counts, after), parts in zip(plans, parts_of, strict=True)
        ]

    def _draw_one(self, source: RowSource) -> Drawn:
        """Draw the next batch of the only source: what most loaders do, in few calls."""
        number, owed, (taken,) = self.progress
        rows = self._wait_for(source, taken, self._batch_size)
        self.progress = Progress(number + 1, owed, (taken + self._batch_size,))
        betas, weights = np.array([self._beta(number * self._batch_size)]), np.empty(self._batch_size, np.float32)
        self._weigh(rows.probabilities, rows.table_size, betas, self._normalize, weights)
        return Drawn(number, [rows], self._whole, weights, (self.progress,))

    def draw_again(self, drawn: Drawn) -> Drawn:
        """Draw batches of the same numbers anew: a ring has come round to rows of them. Any thread may ask.

        Raises:
            RateLimitError: the rows did not come in time.
        """
        for source in self._sources:
            if source.table is not None:
                source.table.follow()
        starts = [taken - count for taken, count in zip(drawn.afters[-1].taken, drawn.counts, strict=True)]
        parts = [self._wait_for(*each) for each in zip(self._sources, starts, drawn.counts, strict=True)]
        return self._drawn(drawn.number, parts, drawn.counts, drawn.afters)

    def _drawn(self, number: int, parts: list[Rows], counts: tuple[int, ...], afters: tuple[Progress, ...]) -> Drawn:
        betas = np.array([self._beta((number + i) * self._batch_size) for i in range(len(afters))], np.float64)
        return Drawn(number, parts, counts, self._weights_of(parts, betas), afters)

    def _plans(self, number: int) -> list[Plan]:
        """Return the rows of each source in the next batches, and the progress after each."""
        plans: list[Plan] = []
        now = self.progress
        for _ in range(number):
            if len(self._sources) == 1:
                counts = self._whole
                now = Progress(now.number + 1, now.owed, (now.taken[0] + self._batch_size,))
            else:
                found, owed = deal_rows(self._shares_now(), now.owed, self._batch_size)
                counts = tuple(found)
                taken = tuple([before + count for before, count in zip(now.taken, counts, strict=True)])
                now = Progress(now.number + 1, tuple(owed), taken)
            plans.append((counts, now))
        return plans if number == 1 or self._can_draw(plans) else plans[:1]

    def _shares_now(self) -> Sequence[float]:
        if self._shares is not None:
            return self._shares
        sizes = [source.size for source in self._sources]
        return [size / max(sum(sizes), 1) for size in sizes] if any(sizes) else [1 / len(sizes)] * len(sizes)

    def _can_draw(self, plans: list[Plan]) -> bool:
        return all(source.can_draw(sum(counts[s] for counts, _ in plans)) for s, source in enumerate(self._sources))

    def _wait_for(self, source: RowSource, start: int, count: int) -> Rows:
        """Draw from a source; a short wait at a time: closing the loader does not wait for writers."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        waiting: LongWait | None = None
        while True:
            left = POLL_SECONDS
            if deadline is not None:
                left = min(POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            try:
                return source.draw(start, count, left)
            except RateLimitError as error:
                if self._is_stopped.is_set():
                    raise LoaderError("the loader was closed while it waited for a rate limiter.") from None
                if deadline is not None and time.monotonic() >= deadline:
                    error.add_note(f"That was the last of several waits: {self._timeout:g} s in all.")
                    raise
                if deadline is None:
                    waiting = waiting or LongWait()
                    waiting.look(error.__str__)

    def _weights_of(self, parts: list[Rows], betas: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        weights = np.empty(len(betas) * self._batch_size, np.float32)
        if len(parts) == 1:
            probabilities, sizes = parts[0].probabilities, parts[0].table_size
        else:
            probabilities = np.concatenate([part.probabilities for part in parts])
            sizes = np.concatenate([part.table_size for part in parts])
        self._weigh(probabilities, sizes, betas, self._normalize, weights)
        return weights


def _split(rows: list[Rows], counts_of: list[tuple[int, ...]]) -> list[list[Rows]]:
    """Return the rows of each source batch by batch."""
    if len(set(counts_of)) == 1:
        return [list(parts) for parts in zip(*(each.pieces(len(counts_of)) for each in rows), strict=True)]
    found = []
    starts = [0] * len(rows)
    for counts in counts_of:
        stops = [start + count for start, count in zip(starts, counts, strict=True)]
        found.append([each.part(*bounds) for each, *bounds in zip(rows, starts, stops, strict=True)])
        starts = stops
    return found


class TurnTaker:
    """Lets threads draw in the order of their tickets, so that batches do not depend on which thread is first.

    Args:
        drawer: that draws.

    Notes:
        Tickets are numbered from 0 and taken by threads in order, so whoever is waited for is already at work. After
        an error nobody draws any more: rows drawn for batches that never come would be lost.
    """

    def __init__(self, drawer: Drawer) -> None:
        self._drawer = drawer
        self._turn = 0
        self._has_failed = False
        self._changed = threading.Condition()

    def draw(self, tickets: Sequence[int]) -> list[Drawn]:
        """Draw the batch of one ticket when its turn has come."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_failed or self._turn == tickets[0])
            if self._has_failed:
                raise LoaderError("the batch before this one could not be drawn.")
            try:
                drawn = self._drawer.draw(tickets)
            except BaseException:
                self._has_failed = True
                raise
            finally:
                self._turn += 1
                self._changed.notify_all()
        return drawn
