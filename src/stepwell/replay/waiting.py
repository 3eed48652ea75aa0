"""Waiting for a rate limiter: look, sleep a little, look again; a wait that nothing ends is said in the log."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from numbers import Real

from stepwell.errors import RateLimitError, TableError

__all__ = ["Changes", "LongWait", "Waiting", "checked_timeout"]

FIRST_SECONDS, LONGEST_SECONDS = 0.0002, 0.005
# a wait without a time-out that lasts longer may be one for ever: its reader should know what for
SILENT_SECONDS = 10.0
LOGGER = logging.getLogger("stepwell.replay")


def checked_timeout(timeout: float | None) -> float:
    """Return seconds to wait: infinity for None.

    Raises:
        TableError: no number, NaN, or below 0.

    Example:
        >>> checked_timeout(None), checked_timeout(2)
        (inf, 2.0)
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout >= 0:
        raise TableError(f"timeout={timeout!r}. Allowed: seconds of 0 or more, or None to wait without end.")
    return float(timeout)


class LongWait:
    """Says once, in the log ``stepwell.replay``, what a wait without a time-out is for."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = time.monotonic() + SILENT_SECONDS

    def look(self, why: Callable[[], str]) -> None:
        """Log a warning if it lasts long by now, and was not logged yet."""
        if time.monotonic() >= self._due:
            self._due = math.inf
            LOGGER.warning("a wait without a time-out lasts %g s by now: %s", SILENT_SECONDS, why())


class Changes:
    """Tells threads that wait for a table that something changed.

    Args:
        lock: of the table.
    """

    __slots__ = ("_condition", "_num_waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self._num_waiting = 0

    def announce(self) -> None:
        """Wake who waits; the caller holds the lock."""
        if self._num_waiting:
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Sleep until something changes, at most so long; the caller does not hold the lock."""
        with self._condition:
            self._num_waiting += 1
            try:
                self._condition.wait(seconds)
            finally:
                self._num_waiting -= 1


class Waiting:
    """One wait, until a time-out.

    Args:
        changes: made by threads of this process; those of other processes are found by looking, after 0.2 ms at first
            and every 5 ms in the end.
        timeout: seconds; None for ever, 0 not at all.
        why: what it waits for, as a sentence, given the seconds that it waited.

    Notes:
        Of one thread. Ctrl-C ends `pause` with KeyboardInterrupt.
    """

    __slots__ = ("_begin", "_changes", "_delay", "_long", "_seconds", "_why")

    def __init__(self, changes: Changes, timeout: float | None, why: Callable[[float], str]) -> None:
        self._changes, self._why = changes, why
        self._delay = FIRST_SECONDS
        self._seconds = checked_timeout(timeout)
        self._begin = time.monotonic()
        self._long = LongWait() if self._seconds == math.inf else None

    def pause(self) -> None:
        """Sleep a little, longer each time.

        Raises:
            RateLimitError: without a sleep, when the time is over; it says why.
        """
        waited = time.monotonic() - self._begin
        if waited >= self._seconds:
            raise RateLimitError(self._why(self._seconds))
        if self._long is not None:
            self._long.look(lambda: self._why(waited))
        self._changes.wait(min(self._delay, self._seconds - waited))
        self._delay = min(2 * self._delay, LONGEST_SECONDS)
