"""A thread that goes round the open segments of this process every few seconds.

It says that their writers live, where a file system that several machines mount shows no locks, and it syncs what was
committed: a loss of power costs a writer that waits for no disk a few seconds of steps, and none of its calls waits. It
ends when there are no writers.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Protocol

__all__ = ["attend", "forget"]

PERIOD = 5.0
"""Seconds."""


class Attended(Protocol):
    """A segment that is being written."""

    def attend(self) -> None:
        """Say that its writer lives, and sync what it committed."""


_attended: weakref.WeakSet[Attended] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def attend(segment: Attended) -> None:
    """Go round a segment, too, until it is forgotten, or nobody has it."""
    global _thread
    with _lock:
        _attended.add(segment)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="stepwell-heartbeat", daemon=True)
            _thread.start()


def forget(segment: Attended) -> None:
    """Go round a segment no more."""
    with _lock:
        _attended.discard(segment)


def beat() -> bool:
    """Go round all segments once; False when there are none left."""
    with _lock:
        segments = list(_attended)
    for segment in segments:
        # the next time will do: a server may be away
        with suppress(OSError):
            segment.attend()
    return bool(segments)


def _run() -> None:
    global _thread
    while True:
        time.sleep(PERIOD)
        is_needed = beat()
        with _lock:
            if not is_needed and not _attended:
                _thread = None
                return


def _leave_all() -> None:
    global _thread, _lock
    _lock, _thread = threading.Lock(), None
    _attended.clear()


os.register_at_fork(after_in_child=_leave_all)
