"""Which rows come next: several batches at once where nothing waits, always in the order of the batches.

::

    sources ---- draw(count) ----> Drawn: places, keys and weights of a batch ----> DrawnReader ----> Batch
       ^                              |
       '-- priorities updated by the learner; what is drawn already does not see them: `max_staleness` batches

Several sources share a batch exactly over time::

    batch of 10, shares 1 : 2             rows      3 7 | 3 7 | 4 6 | 3 7 | ...
                                          owed     +.3-.3|+.7-.7| 0  0 | ...

Each batch a source is owed its share of the rows; it gets what is owed rounded, and the rest is carried on. So after
any number of batches it has had at most one row more or less than its share of all rows.

Importance weights make up for drawing some items more often than others: the weight of a row is ``(N * P) ** -beta``,
with N items in the table and P the probability of the item when it was drawn. With ``beta=1`` the mean of ``weight *
loss`` is what uniform draws would give; smaller ones correct in part. Over the largest of the batch (``normalize``),
weights only scale down.

Source: T. Schaul et al., Prioritized experience replay, 2016, section 3.4.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, OrderError, RateLimitError, TableError
from stepwell.order.mixture import check_weights
from stepwell.replay.sampling import Rows, RowSource, joined
from stepwell.store.back_pressure import LongWait

if TYPE_CHECKING:
    from stepwell.windows.blocks import HeldRows
    from stepwell.windows.reader import Drawing, PlaceReader

__all__ = [
    "INFO",
    "Beta",
    "BetaSchedule",
    "Drawer",
    "Drawn",
    "DrawnReader",
    "Progress",
    "TurnTaker",
    "checked_info",
    "checked_shares",
    "deal_rows",
    "importance_weights",
    "look_up",
    "to_numpy",
]

# columns of the table that a batch may hold
INFO = ("key", "probability", "weight", "priority", "times_sampled", "size", "source")
# how long a thread waits for a rate limiter before it looks whether the loader was closed
POLL_SECONDS = 0.1

# rows of each source, and the progress after them
Plan = tuple[tuple[int, ...], "Progress"]


class Progress(NamedTuple):
    """How far a loader has come."""

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
        beta: as given; ``normalize``: likewise.

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
        from stepwell.replay.batch_kernels import importance_weights

        self._weigh = importance_weights
        self._sources = list(sources)
        self._shares = shares
        self._batch_size = batch_size
        self._whole: tuple[int, ...] = (batch_size,)
        self.beta = beta
        self.normalize = normalize
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
        """Draw as many batches as there are tickets, or only one where the others would have to wait."""
        if self._begun is None and len(tickets) == len(self._sources) == 1:
            # what most loaders do, in few calls
            number, owed, (taken,) = self.progress
            size, source = self._batch_size, self._sources[0]
            try:
                drawn = source.draw(taken, size, 0.0)
            except RateLimitError:
                drawn = self._wait_for(source, taken, size)
            self.progress = Progress(number + 1, owed, (taken + size,))
            betas, weights = np.array([self.beta(number * size)]), np.empty(size, np.float32)
            self._weigh(drawn.probabilities, drawn.table_size, betas, self.normalize, weights)
            return [Drawn(number, [drawn], self._whole, weights, (self.progress,))]
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

    def draw_again(self, drawn: Drawn) -> Drawn:
        """Draw batches of the same numbers anew: a ring has come round to rows of them. Any thread may ask."""
        for source in self._sources:
            if source.table is not None:
                source.table.follow()
        starts = [taken - count for taken, count in zip(drawn.afters[-1].taken, drawn.counts, strict=True)]
        parts = [self._wait_for(*each) for each in zip(self._sources, starts, drawn.counts, strict=True)]
        return self._drawn(drawn.number, parts, drawn.counts, drawn.afters)

    def _drawn(self, number: int, parts: list[Rows], counts: tuple[int, ...], afters: tuple[Progress, ...]) -> Drawn:
        betas = np.array([self.beta((number + i) * self._batch_size) for i in range(len(afters))], np.float64)
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
            left = 0.0 if waiting is None else POLL_SECONDS
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
                    if source.table is not None:
                        source.table.check_wait(count)
                    waiting = waiting or LongWait()
                    waiting.look(error.__str__)

    def _weights_of(self, parts: list[Rows], betas: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        weights = np.empty(len(betas) * self._batch_size, np.float32)
        if len(parts) == 1:
            probabilities, sizes = parts[0].probabilities, parts[0].table_size
        else:
            probabilities = np.concatenate([part.probabilities for part in parts])
            sizes = np.concatenate([part.table_size for part in parts])
        self._weigh(probabilities, sizes, betas, self.normalize, weights)
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


Taken = TypeVar("Taken")


class Taking(Protocol[Taken]):
    """Gives what belongs to some tickets; one thread at a time."""

    def draw(self, tickets: Sequence[Any]) -> list[Taken]: ...


class TurnTaker(Generic[Taken]):
    """Lets threads draw in the order of their tickets, so that batches do not depend on which thread is first.

    Notes:
        Tickets are numbered from 0 and taken by threads in order, so whoever is waited for is already at work. After
        an error nobody draws any more: rows drawn for batches that never come would be lost.
    """

    def __init__(self, drawer: Taking[Taken]) -> None:
        self._drawer = drawer
        self._turn = 0
        self._has_failed = False
        self._changed = threading.Condition()

    def draw(self, tickets: Sequence[int]) -> list[Taken]:
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


def checked_shares(shares: Sequence[float] | None, num_sources: int) -> tuple[float, ...]:
    """Return shares that sum to 1."""
    found = check_weights("shares", np.ones(num_sources) if shares is None else shares)
    if len(found) != num_sources:
        raise OrderError(f"{len(found)} shares for {num_sources} sources. One is needed for each.")
    total = math.fsum(found.tolist())
    return tuple(share / total for share in found.tolist())


def deal_rows(shares: Sequence[float], owed: Sequence[float], batch_size: int) -> tuple[list[int], list[float]]:
    """Return the rows that each source has in the next batch, and what each is owed afterwards.

    Example:
        >>> deal_rows([0.5, 0.5], [0.0, 0.0], 256)
        ([128, 128], [0.0, 0.0])
    """
    due = [before + share * batch_size for share, before in zip(shares, owed, strict=True)]
    # what rounding has left of a whole number is one
    rows = [max(0, math.floor(each + 1e-9)) for each in due]
    rest = batch_size - sum(rows)
    while rest:
        step = 1 if rest > 0 else -1
        # the one that is owed most has one more; or of those that have any, the one that is owed least one less
        candidates = [s for s in range(len(rows)) if step > 0 or rows[s] > 0]
        chosen = max(candidates, key=lambda s: step * (due[s] - rows[s]))
        rows[chosen] += step
        rest -= step
    return rows, [each - count for each, count in zip(due, rows, strict=True)]


def checked_info(info: Sequence[str] | None) -> tuple[str, ...]:
    """Return which columns of the table a batch holds, in their order."""
    if info is None:
        return INFO
    if isinstance(info, str) or not set(info) <= set(INFO):
        raise OrderError(f"info={info!r}. Allowed: None for all, or some of {', '.join(INFO)}.")
    return tuple(name for name in INFO if name in info)


class DrawnReader:
    """Reads what was drawn: the fields, then columns of the table."""

    def __init__(self, reader: PlaceReader, info: Sequence[str] = INFO) -> None:
        self._reader = reader
        self.fields = reader.fields
        self._info = info
        self._sources: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def num_bytes(self, num_rows: int, /) -> int:
        """Return the bytes of memory that the fields of a batch take."""
        return self._reader.num_bytes(num_rows)

    def read(
        self,
        drawn: Drawn,
        memory: npt.NDArray[np.uint8] | None = None,
        /,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, Any]:
        """Return the arrays of a batch by key, those of the fields views of ``memory``, and how its rows were drawn."""
        parts = drawn.parts
        if len(parts) == 1:
            rows, places = parts[0], [parts[0].places]
        else:
            rows, places = joined(parts), [part.places for part in parts]
        values: dict[str, Any] = self._reader.read_places(places, memory, draws=draws)
        if not self._info:
            return values
        sources = self._sources.get(drawn.counts)
        columns = {
            "key": rows.keys,
            "probability": rows.probabilities,
            "weight": drawn.weights,
            "priority": rows.priorities,
            "times_sampled": rows.times_sampled,
            "size": rows.table_size,
            "source": self._source_of(drawn.counts) if sources is None else sources,
        }
        for name in self._info:
            values[f"table.{name}"] = columns[name]
        return values

    def _source_of(self, counts: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Return which source each row is of; the same array for the same counts."""
        found = self._sources[counts] = np.repeat(np.arange(len(counts)), counts)
        found.flags.writeable = False
        return found


def look_up(batch: Mapping[str, Any], name: str) -> Any:
    """Return a column of the table from a batch, nested or not."""
    if f"table.{name}" in batch:
        return batch[f"table.{name}"]
    nested = batch.get("table")
    if isinstance(nested, Mapping) and name in nested:
        return nested[name]
    raise TableError(
        f"the batch has no 'table.{name}'. Give the batch as the loader returned it, and name {name!r} in info=."
    )


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return an array of what may be a torch tensor, on any device, with a gradient or without."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


Beta: TypeAlias = float | Sequence[float] | Callable[[int], float]


class BetaSchedule:
    """The exponent of importance weights at any number of rows drawn so far.

    Example:
        >>> beta = BetaSchedule((0.4, 1.0, 1_000_000))
        >>> beta(0), beta(500_000), beta(2_000_000)
        (0.4, 0.7, 1.0)
    """

    def __init__(self, beta: Beta) -> None:
        self._beta = beta
        self._function: Callable[[int], float] | None = None
        self._first = self._last = 0.0
        self._samples = 1
        if callable(beta):
            self._function = beta
        elif isinstance(beta, tuple | list):
            if len(beta) != 3 or not beta[2] > 0:
                raise TableError(f"beta={beta!r}. Allowed: a number, (first, last, samples) or a function of samples.")
            self._first, self._last = _checked(beta[0]), _checked(beta[1])
            self._samples = int(beta[2])
        else:
            self._first = self._last = _checked(beta)

    def __call__(self, num_samples: int) -> float:
        """Return beta after a number of rows."""
        if self._function is not None:
            return _checked(self._function(num_samples))
        if num_samples >= self._samples:
            return self._last
        return self._first + (self._last - self._first) * (num_samples / self._samples)

    def __repr__(self) -> str:
        return f"BetaSchedule({self._beta!r})"


def importance_weights(
    probabilities: npt.ArrayLike, sizes: npt.ArrayLike, beta: float, *, normalize: bool = True
) -> npt.NDArray[np.float32]:
    """Return the importance weights of rows.

    Args:
        probabilities: float64 [n], of the items when they were drawn; above 0.
        sizes: int64 [n] or one number, items in the table then.
        beta: 0 (no correction) to 1 (full).
        normalize: divide by the largest.

    Returns:
        float32 [n], computed in float64.

    Example:
        >>> importance_weights([0.5, 0.25], 4, beta=1.0).tolist()
        [0.5, 1.0]
    """
    from stepwell.replay.batch_kernels import importance_weights as kernel

    drawn = np.asarray(probabilities, np.float64)
    weights = np.empty(len(drawn), np.float32)
    counts = np.broadcast_to(np.asarray(sizes, np.int64), drawn.shape)
    kernel(drawn, counts, np.array([beta], np.float64), normalize, weights)
    return weights


def _checked(beta: object) -> float:
    if isinstance(beta, int | float | np.number) and math.isfinite(beta) and beta >= 0:
        return float(beta)
    raise TableError(f"beta={beta!r}. Allowed is a finite number of 0 or more.")
