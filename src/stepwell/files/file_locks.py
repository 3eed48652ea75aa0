"""Locks on files, bytes of files and directories (flock, and locks of open files) that a fork does not share.

A lock belongs to an open file, which a child of a fork has, too: closed here alone it would stay locked for as long as
the child lives, and a child that waits for it would wait for itself. So who is done unlocks it, for all that have the
file open; and a child lets go of its copies at once, so that the lock goes with the process that took it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

__all__ = ["ByteLock", "FileLock", "is_byte_locked", "lock_byte", "lock_directory", "lock_file"]

# weak: one that an interrupt keeps from whoever took it is let go of
_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()
# locks of bytes that belong to an open file are Linux's; elsewhere each byte has a file of its own beside it
HAS_BYTES = hasattr(fcntl, "F_OFD_SETLK")
BESIDE = "{}.{}"
# Linux's struct flock on 64 bits: kind, whence, start, length, process
RANGE = struct.Struct("hhqqi4x")


class FileLock:
    """A lock on a file that is open, until `release` is called, or a ``with`` block or the process ends."""

    # A child of a fork does not hold it, and leaves its parent's as it is.

    _descriptor = -1

    def __init__(self, descriptor: int, *, is_shared: bool = False, is_waiting: bool = True) -> None:
        self._descriptor = descriptor
        # before it is taken: a child made while this waits has a copy, too
        _HELD.add(self)
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            self._lock(descriptor, kind if is_waiting else kind | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def _lock(self, descriptor: int, kind: int) -> None:
        fcntl.flock(descriptor, kind)

    @property
    def is_held(self) -> bool:
        """Whether it is this process's, and was not released."""
        return self._descriptor >= 0

    @property
    def descriptor(self) -> int:
        """The file's, -1 where the lock is not held."""
        return self._descriptor

    def release(self) -> None:
        """Let go of it; nothing where that was done, or in a child of a fork."""
        # first, since it may be done twice: a Ctrl-C that comes in between leaves a file open, but nothing locked
        descriptor = self._descriptor
        if descriptor >= 0:
            with suppress(OSError):
                self._lock(descriptor, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """Close a copy, and leave the lock to the process that took it."""
        # never twice, whatever comes in between: its number may be another file's by then
        descriptor, self._descriptor = self._descriptor, -1
        _HELD.discard(self)
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            self.release()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ByteLock(FileLock):
    """A lock on one byte of a file that is open; BlockingIOError at once where another one has it."""

    def __init__(self, descriptor: int, byte: int) -> None:
        self._byte = byte
        super().__init__(descriptor, is_waiting=False)

    def _lock(self, descriptor: int, kind: int) -> None:
        if not HAS_BYTES:
            fcntl.flock(descriptor, kind)
            return
        found = fcntl.F_UNLCK if kind == fcntl.LOCK_UN else fcntl.F_WRLCK
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, RANGE.pack(found, os.SEEK_SET, self._byte, 1, 0))


def lock_byte(path: str, byte: int, open_file: Callable[[str, int], int]) -> ByteLock:
    """Lock one byte of a file in an opening of its own; BlockingIOError at once where another one has it."""
    if HAS_BYTES:
        return ByteLock(open_file(path, os.O_RDWR), byte)
    return ByteLock(open_file(BESIDE.format(path, byte), os.O_RDWR | os.O_CREAT), byte)


def is_byte_locked(descriptor: int, path: str, byte: int) -> bool:
    """Return whether a byte of a file, which is open, is locked through another opening of it, by any process."""
    if not HAS_BYTES:
        return _is_locked(BESIDE.format(path, byte))
    asked = RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return bool(RANGE.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)


def _is_locked(path: str) -> bool:
    """Return whether a file is there, and another opening of it has a lock that excludes others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_file(path: str | os.PathLike[str], *, is_waiting: bool = True) -> FileLock:
    """Lock a file, which is made where there is none."""
    return FileLock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), is_waiting=is_waiting)


def lock_directory(path: str | os.PathLike[str], *, is_shared: bool = False, is_waiting: bool = True) -> FileLock:
    """Lock a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return FileLock(descriptor, is_shared=is_shared, is_waiting=is_waiting)


def _leave_all() -> None:
    for lock in list(_HELD):
        lock.leave()


os.register_at_fork(after_in_child=_leave_all)
