"""Stores in memory: directories in ``/dev/shm`` that go with the process that made them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from typing import Any

from stepwell.files.file_locks import lock_directory

__all__ = ["hold_memory", "is_in_memory", "memory_path"]

SHARED_MEMORY = "/dev/shm"
PREFIX = "stepwell-"
NAME = "memory.well"

# of this process: path of a store to its owner's id, the descriptor that is locked, and how many objects there are
_HELD: dict[str, list[int]] = {}


def memory_path() -> str:
    """Return the path of a store to be made: in ``/dev/shm``, else in the temporary directory."""
    # The directory is removed when the last `Store` object of this process on it is gone, or the process ends. The next
    # call, of any process, removes directories of killed ones.
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else tempfile.gettempdir()
    _remove_left(parent)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    path = f"{folder}/{NAME}"
    _HELD[path] = [os.getpid(), descriptor, 0]
    return path


def hold_memory(store: Any, path: str) -> None:
    """Keep the directory of a store in memory for as long as ``store`` lives; nothing for any other path."""
    held = _HELD.get(path)
    if held is not None and held[0] == os.getpid():
        held[2] += 1
        weakref.finalize(store, _let_go, path)


def _let_go(path: str) -> None:
    held = _HELD.get(path)
    # a forked child holds nothing
    if held is None or held[0] != os.getpid():
        return
    held[2] -= 1
    if held[2] == 0:
        del _HELD[path]
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        os.close(held[1])


def _remove_left(parent: str) -> None:
    """Remove directories of dead processes, of which no process holds the lock."""
    for entry in os.listdir(parent):
        folder = f"{parent}/{entry}"
        # a link is not of stepwell's making
        if not entry.startswith(PREFIX) or os.path.islink(folder) or not os.path.isdir(f"{folder}/{NAME}"):
            continue
        with suppress(OSError), lock_directory(folder, is_waiting=False):
            shutil.rmtree(folder, ignore_errors=True)


def is_in_memory(path: str) -> bool:
    """Return whether a store goes with this process."""
    return path in _HELD
