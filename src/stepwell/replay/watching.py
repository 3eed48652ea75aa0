"""Whether anything came to a store, went, or was deleted: asked before every batch, so it must cost nothing."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from stepwell.store.layout import DELETED, SEGMENTS, STORE_JSON
from stepwell.store.manifests import ARRANGEMENT_JSON

__all__ = ["StoreWatch"]

# Two system calls take longer than all else that is done for one step. Deleting episodes or beginning a segment takes
# twice this time at least, so what a thread changed since it last asked is always noticed.
FASTEST_NS = 200_000
# A directory's time stamp comes from a clock that stands still for a tick, of 1 to 10 ms: a change in the tick of the
# one before may not show. Linux tells that clock (CLOCK_REALTIME_COARSE); elsewhere stamps younger than TICK_NS are not
# trusted.
CLOCK, TICK_NS = (5, 0) if sys.platform == "linux" else (getattr(time, "CLOCK_REALTIME", 0), 50_000_000)


class StoreWatch:
    """Notice changes of a store's directories by their time stamps, and while these are young by what is in them.

    Args:
        path: of the store.

    Notes:
        For one thread. Keeps both directories open. A store as it was last seen costs two system calls, and
        nothing when it was asked for within the last 0.2 ms.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptors = [os.open(directory, flags) for directory in (path, f"{path}/{SEGMENTS}")]
        self._stamps = (-1, -1)
        self._trusted_until = 0
        # while the stamps are young: what was there
        self._looked: tuple[Any, ...] | None = None

    def is_same(self) -> bool:
        """Return whether nothing changed since `begin_look`; False before the first one."""
        now = time.monotonic_ns()
        if now < self._trusted_until:
            return True
        if self._stamps != self._read_stamps() or (self._looked is not None and not self._is_as_looked()):
            self._trusted_until = 0
            return False
        self._trusted_until = now + FASTEST_NS
        return True

    def _is_as_looked(self) -> bool:
        is_old = self._is_old()
        if self._look() != self._looked:
            return False
        if is_old:
            self._looked = None
        return True

    def begin_look(self) -> None:
        """Take note of how things are, before they are looked at: what comes in between is found by the next look."""
        self._trusted_until = 0
        self._stamps = self._read_stamps()
        self._looked = None if self._is_old() else self._look()

    def close(self) -> None:
        """Let go of the directories."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _is_old(self) -> bool:
        return time.clock_gettime_ns(CLOCK) - max(self._stamps) > TICK_NS

    def _read_stamps(self) -> tuple[int, int]:
        store, segments = self._descriptors
        return os.fstat(store).st_mtime_ns, os.fstat(segments).st_mtime_ns

    def _look(self) -> tuple[Any, ...]:
        store, segments = self._descriptors
        names = os.listdir(segments)  # noqa: PTH208
        return (names, *(_identity(name, store) for name in (STORE_JSON, ARRANGEMENT_JSON, DELETED)))


def _identity(name: str, directory: int) -> tuple[int, int] | None:
    """Return what changes when a file is replaced whole; None for one that is not there."""
    try:
        found = os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
