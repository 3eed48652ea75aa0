"""Waiting for a rate limiter: look, sleep a little, look again."""

from __future__ import annotations

import threading
import time

__all__ = ["Changes", "Waiting"]

FIRST_SECONDS, LONGEST_SECONDS = 0.0002, 0.005


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

    Notes:
        Of one thread. Ctrl-C ends `pause` with KeyboardInterrupt.
    """

    __slots__ = ("_changes", "_delay", "_until", "timeout")

    def __init__(self, changes: Changes, timeout: float | None) -> None:
        self._changes = changes
        self._delay = FIRST_SECONDS
        self._until = None if timeout is None else time.monotonic() + timeout
        self.timeout = timeout

    def pause(self) -> bool:
        """Sleep a little, longer each time; False, without a sleep, when the time is over."""
        delay = self._delay
        if self._until is not None:
            delay = min(delay, self._until - time.monotonic())
            if delay <= 0:
                return False
        self._changes.wait(delay)
        self._delay = min(2 * self._delay, LONGEST_SECONDS)
        return True
