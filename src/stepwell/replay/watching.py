"""Whether anything came to a store, went, or was deleted: asked before every batch, so it must cost nothing."""

from __future__ import annotations

import os
import time
from typing import Any

from stepwell.store.arrangement import ARRANGEMENT
from stepwell.store.layout import DELETED, SEGMENTS, STORE_JSON

__all__ = ["StoreWatch"]

# a directory's time stamp may stand still for one tick of the kernel's clock: one that young is not trusted
TICK_NS = 50_000_000


class StoreWatch:
    """Notice changes of a store's directories by their time stamps, and while these are young by what is in them.

    Args:
        path: of the store.

    Notes:
        For one thread. Keeps both directories open. A store as it was last seen costs two system calls.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptors = [os.open(directory, flags) for directory in (path, f"{path}/{SEGMENTS}")]
        self._stamps = (-1, -1)
        # while the stamps are young: what was there
        self._looked: tuple[Any, ...] | None = None

    def is_same(self) -> bool:
        """Return whether nothing changed since `begin_look`; False before the first one."""
        if self._stamps != self._read_stamps():
            return False
        if self._looked is None:
            return True
        is_old = time.time_ns() - max(self._stamps) > TICK_NS
        if self._look() != self._looked:
            return False
        if is_old:
            self._looked = None
        return True

    def begin_look(self) -> None:
        """Take note of how things are, before they are looked at: what comes in between is found by the next look."""
        self._stamps = self._read_stamps()
        self._looked = self._look() if time.time_ns() - max(self._stamps) <= TICK_NS else None

    def close(self) -> None:
        """Let go of the directories."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _read_stamps(self) -> tuple[int, int]:
        store, segments = self._descriptors
        return os.fstat(store).st_mtime_ns, os.fstat(segments).st_mtime_ns

    def _look(self) -> tuple[Any, ...]:
        store, segments = self._descriptors
        names = os.listdir(segments)  # noqa: PTH208
        return (names, *(_identity(name, store) for name in (STORE_JSON, ARRANGEMENT, DELETED)))


def _identity(name: str, directory: int) -> tuple[int, int] | None:
    """Return what changes when a file is replaced whole; None for one that is not there."""
    try:
        found = os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
