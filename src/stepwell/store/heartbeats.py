"""Signs of life of writers on a file system that several machines mount: nobody there can see their locks.

One thread of a process touches the commit records of its writers; it ends when there are none.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

from stepwell.store.layout import PROGRESS

__all__ = ["keep_beating"]

PERIOD = 10.0
"""Seconds."""


class HasPath(Protocol):
    """A segment that is being written."""

    path: str


_beating: weakref.WeakSet[HasPath] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def keep_beating(writer: HasPath) -> None:
    """Touch a writer's commit record every ten seconds, for as long as the writer and the record are there."""
    global _thread
    with _lock:
        _beating.add(writer)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="stepwell-heartbeat", daemon=True)
            _thread.start()


def beat() -> bool:
    """Touch all commit records once; False when there are no writers left."""
    with _lock:
        writers = list(_beating)
    for writer in writers:
        try:
            # by name: a descriptor may be another file's by now
            os.utime(f"{writer.path}/{PROGRESS}")
        except FileNotFoundError:
            # sealed
            with _lock:
                _beating.discard(writer)
        except OSError:
            # the next time will do: a server may be away
            continue
    return bool(writers)


def _run() -> None:
    global _thread
    while True:
        time.sleep(PERIOD)
        is_needed = beat()
        with _lock:
            if not is_needed and not _beating:
                _thread = None
                return


def _leave_all() -> None:
    global _thread, _lock
    _lock, _thread = threading.Lock(), None
    _beating.clear()


os.register_at_fork(after_in_child=_leave_all)
