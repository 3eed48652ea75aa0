"""Rate limiters: how many items may go into a table, and how many may be drawn, for what went in and out so far.

::

    insert n allowed:   I + n - D <= min_size     or   (I + n) s - S <= max_diff
    sample n allowed:   I - D     >= min_size     and  I s - S - n   >= min_diff

I, S and D count items: inserted, drawn and deleted (by whatever: the remover, `max_times_sampled`, the user, the ring).
s is `samples_per_insert`. I - D is the size of the table; deletes never enter the ratio.

Source: Reverb, ``reverb/rate_limiters.py`` (Cassirer et al.: Reverb, a framework for experience replay, 2021).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from stepwell.errors import RateLimitError, TableError
from stepwell.replay.contents import Counts
from stepwell.store.back_pressure import FIRST_SECONDS, LONGEST_SECONDS, LongWait

__all__ = [
    "Changes",
    "Limiter",
    "MinSize",
    "Queue",
    "SampleToInsertRatio",
    "Stack",
    "Waiting",
    "checked_timeout",
]

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Limiter:
    """Four numbers that couple inserting to sampling. `MinSize`, `SampleToInsertRatio`, `Queue` and `Stack` make one.

    Args:
        name: what errors and tables call it, e.g. ``"MinSize(1000)"``.
        samples_per_insert: samples that an insert pays for; above 0.
        min_size: items that must be there before any is drawn; at least 1.
        min_diff: the least that ``inserts * samples_per_insert - samples`` may become by sampling.
        max_diff: the most it may become by inserting.

    Raises:
        TableError: numbers that cannot be.

    Example:
        >>> limiter = SampleToInsertRatio(2.0, min_size=3, error_buffer=4.0)
        >>> counts = Counts(inserts=3)
        >>> limiter.num_samples(counts, 10), limiter.num_inserts(counts, 10)
        (4, 2)

    Notes:
        Immutable; the counts are the table's.
    """

    name: str
    samples_per_insert: float = 1.0
    min_size: int = 1
    min_diff: float = -math.inf
    max_diff: float = math.inf

    def __post_init__(self) -> None:
        if not (math.isfinite(self.samples_per_insert) and self.samples_per_insert > 0):
            raise TableError(f"samples_per_insert={self.samples_per_insert!r} of {self.name} must be above 0.")
        if not isinstance(self.min_size, int) or self.min_size < 1:
            raise TableError(f"min_size={self.min_size!r} of {self.name} must be a whole number, at least 1.")
        if math.isnan(self.min_diff) or math.isnan(self.max_diff):
            raise TableError(f"the limits of {self.name} are ({self.min_diff}, {self.max_diff}): they must be numbers.")

    def can_sample(self, counts: Counts, count: int = 1) -> bool:
        """Return whether ``count`` items may be drawn now."""
        return (
            counts.size >= self.min_size
            and counts.inserts * self.samples_per_insert - counts.samples - count >= self.min_diff
        )

    def can_insert(self, counts: Counts, count: int = 1) -> bool:
        """Return whether ``count`` items may be put in now."""
        inserts = counts.inserts + count
        return (
            inserts - counts.deletes <= self.min_size
            or inserts * self.samples_per_insert - counts.samples <= self.max_diff
        )

    def num_samples(self, counts: Counts, wanted: int) -> int:
        """Return how many of ``wanted`` items may be drawn one after the other, if none goes by being drawn."""
        if counts.inserts - counts.deletes < self.min_size:
            return 0
        if self.min_diff == -math.inf:
            return wanted
        paid = counts.inserts * self.samples_per_insert - counts.samples - self.min_diff
        return _most(paid, wanted, lambda count: self.can_sample(counts, count))

    def num_inserts(self, counts: Counts, wanted: int) -> int:
        """Return how many of ``wanted`` items may be put in one after the other.

        Notes:
            A full table gives one back for each that comes, which changes nothing: its size is above ``min_size``.
        """
        if self.max_diff == math.inf:
            return wanted
        room = self.min_size - counts.size
        owed = (self.max_diff + counts.samples) / self.samples_per_insert - counts.inserts
        return _most(max(room, owed), wanted, lambda count: self.can_insert(counts, count))

    @property
    def max_inserts(self) -> int:
        """The most items that can ever be put in at once."""
        if math.isinf(self.max_diff) or math.isinf(self.min_diff):
            return UNBOUNDED
        return max(self.min_size, math.floor((self.max_diff - self.min_diff) / self.samples_per_insert))

    def check_size(self, max_size: int) -> None:
        """Raise TableError when a table of ``max_size`` items could never be sampled."""
        if self.min_size > max_size:
            raise TableError(
                f"{self.name} lets nothing be drawn before {self.min_size} items are there, and max_size={max_size} "
                "keeps fewer. Raise max_size or lower min_size."
            )

    def check_inserts(self, count: int) -> None:
        """Raise TableError when ``count`` items could never be put in at once."""
        if count > self.max_inserts:
            raise TableError(
                f"{count} items at once; {self.name} never lets in more than {self.max_inserts}. Create them in "
                "smaller batches."
            )

    def why_no_sample(self, counts: Counts) -> str:
        """Return what must happen before the next item is drawn, with the numbers."""
        if counts.size < self.min_size:
            return f"the table has {counts.size} of the {self.min_size} items that must be there before any is drawn"
        diff = counts.inserts * self.samples_per_insert - counts.samples
        return (
            f"{counts.inserts} inserts * {self.samples_per_insert:g} - {counts.samples} samples = {diff:g}, and one "
            f"more sample would bring it below {self.min_diff:g}: it waits for inserts"
        )

    def why_no_insert(self, counts: Counts) -> str:
        """Return what must happen before the next item is put in, with the numbers."""
        diff = counts.inserts * self.samples_per_insert - counts.samples
        return (
            f"{counts.inserts} inserts * {self.samples_per_insert:g} - {counts.samples} samples = {diff:g}, and one "
            f"more insert would bring it above {self.max_diff:g}: it waits for samples"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON types; an open limit is None."""
        return {key: None if value in (math.inf, -math.inf) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Limiter:
        """Return the limiter of `to_json`."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if record[field.name] is not None})


def MinSize(min_size: int) -> Limiter:
    """Return a limiter that lets items be drawn as soon as ``min_size`` are there, and never refuses an insert.

    Example:
        >>> MinSize(2).can_sample(Counts(inserts=1)), MinSize(2).can_sample(Counts(inserts=2))
        (False, True)
    """
    return Limiter(f"MinSize({min_size})", min_size=min_size)


def SampleToInsertRatio(samples_per_insert: float, min_size: int, error_buffer: float | tuple[float, float]) -> Limiter:
    """Return a limiter that keeps samples per insert near a ratio.

    Args:
        samples_per_insert: the ratio, above 0.
        min_size: items that must be there before any is drawn.
        error_buffer: how far ``inserts * samples_per_insert - samples`` may be from ``samples_per_insert * min_size``,
            both ways; or its (least, largest) value as they are.

    Raises:
        TableError: a buffer narrower than ``2 * max(1, samples_per_insert)``, in which nothing could move, or a least
            value above ``samples_per_insert * min_size``.
    """
    if isinstance(error_buffer, tuple | list):
        low, high = map(float, error_buffer)
    else:
        low, high = (samples_per_insert * min_size + sign * error_buffer for sign in (-1, 1))
    name = f"SampleToInsertRatio({samples_per_insert:g}, {min_size}, {error_buffer})"
    limiter = Limiter(name, float(samples_per_insert), min_size, low, high)
    least = 2 * max(1.0, samples_per_insert)
    if high - low < least:
        raise TableError(
            f"{name}: its limits {low:g} and {high:g} must be at least {least:g} apart; widen error_buffer."
        )
    if low > (start := samples_per_insert * min_size):
        raise TableError(
            f"{name}: with {min_size} items in the table the difference is {start:g}, below the least of {low:g}: "
            "nothing could be drawn. Lower min_diff to at most samples_per_insert * min_size."
        )
    return limiter


def Queue(max_items: int) -> Limiter:
    """Return a limiter that lets ``max_items`` wait to be drawn, and each be drawn once.

    For a table with ``sampler="fifo", remover="fifo", max_times_sampled=1``: see `stepwell.replay.Table.queue`.
    """
    return _buffered("Queue", max_items)


def Stack(max_items: int) -> Limiter:
    """Return the limiter of a stack: as `Queue`, for ``sampler="lifo", remover="lifo"``."""
    return _buffered("Stack", max_items)


def _buffered(kind: str, max_items: int) -> Limiter:
    if not isinstance(max_items, int) or max_items < 1:
        raise TableError(f"{kind}({max_items!r}): the number of items must be a whole number, at least 1.")
    return Limiter(f"{kind}({max_items})", 1.0, 1, 0.0, float(max_items))


def _most(estimate: float, wanted: int, allows: Callable[[int], bool]) -> int:
    """Return the largest count up to ``wanted`` that is allowed; the estimate may be one off by rounding."""
    count = min(wanted, max(0, math.floor(min(estimate, wanted)) + 1))
    while count > 0 and not allows(count):
        count -= 1
    return count


# between two looks whether a wait may end at all
CHECK_SECONDS = 1.0


def checked_timeout(timeout: float | None) -> float:
    """Return seconds to wait: infinity for None.

    Example:
        >>> checked_timeout(None), checked_timeout(2)
        (inf, 2.0)
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout >= 0:
        raise TableError(f"timeout={timeout!r}. Allowed: seconds of 0 or more, or None to wait without end.")
    return float(timeout)


class Changes:
    """Tells threads that wait for a table that something changed.

    Attributes:
        num_waiting: threads that wait.
    """

    __slots__ = ("_condition", "num_waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self.num_waiting = 0

    def announce(self) -> None:
        """Wake who waits; the caller holds the lock."""
        if self.num_waiting:
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Sleep until something changes, at most so long; the caller does not hold the lock."""
        with self._condition:
            self.num_waiting += 1
            try:
                self._condition.wait(seconds)
            finally:
                self.num_waiting -= 1


class Waiting:
    """One wait, until a time-out.

    Args:
        changes: made by threads of this process; those of other processes are found by looking, after 0.2 ms at first
            and every 5 ms in the end.
        timeout: seconds; None for ever, 0 not at all.
        why: what it waits for, as a sentence, given the seconds that it waited.
        check: raises where the wait would have no end; called before it, and every second.

    Notes:
        Of one thread. Ctrl-C ends `pause` with KeyboardInterrupt.
    """

    __slots__ = ("_begin", "_changes", "_check", "_delay", "_long", "_next_check", "_seconds", "_why")

    def __init__(
        self,
        changes: Changes,
        timeout: float | None,
        why: Callable[[float], str],
        check: Callable[[], None] | None = None,
    ) -> None:
        self._changes, self._why = changes, why
        self._delay = FIRST_SECONDS
        self._seconds = checked_timeout(timeout)
        self._begin = self._next_check = time.monotonic()
        self._check = check
        self._long = LongWait() if self._seconds == math.inf else None

    def pause(self) -> None:
        """Sleep a little, longer each time."""
        waited = time.monotonic() - self._begin
        if waited >= self._seconds:
            raise RateLimitError(self._why(self._seconds))
        if self._check is not None and self._begin + waited >= self._next_check:
            self._check()
            self._next_check = self._begin + waited + CHECK_SECONDS
        if self._long is not None:
            self._long.look(lambda: self._why(waited))
        self._changes.wait(min(self._delay, self._seconds - waited))
        self._delay = min(2 * self._delay, LONGEST_SECONDS)
