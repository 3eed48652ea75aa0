"""Calls that may never come back, made by a thread that is left behind when they do not.

SVT-AV1 4.1 stands still now and then: its threads all wait for each other, about once in a few hundred openings on a
loaded machine, and whoever encodes waits with them.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["PatientCaller", "StalledError"]


class StalledError(Exception):
    """A call did not come back in time; never leaves the codecs."""


class PatientCaller:
    """Make calls one after the other in a thread of its own, and wait for each so long and no longer.

    Args:
        seconds: to wait for a call.

    Notes:
        For one thread at a time, and not after a fork. After a `StalledError` no further call is possible: the thread,
        and what it holds, is left behind. It ends with the caller otherwise.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls, self._answers), name="stepwell-patient", daemon=True).start()
        self._finalizer = weakref.finalize(self, self._calls.put, None)

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns, and raise what it raises.

        Raises:
            StalledError: it did not come back in time.
        """
        self._calls.put(function)
        try:
            result, error = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            raise StalledError from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the thread end; may be called twice."""
        self._finalizer()


def _serve(calls: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (function := calls.get()) is not None:
        try:
            answer = function(), None
        except BaseException as error:
            answer = None, error  # type: ignore[assignment]
        # what it was called with is not kept until the next call
        del function
        answers.put(answer)
        del answer
