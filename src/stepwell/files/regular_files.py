"""Regular files, and nothing else: a FIFO that nobody writes to would be waited for for ever, a device has no end."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["check_status", "open_regular", "read_regular"]

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_status(status: os.stat_result, path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a regular file as it is.

    Args:
        status: of ``os.stat`` or ``os.fstat``.
        path: for the message.

    Raises:
        OSError: it is of something else, such as a directory (IsADirectoryError) or a FIFO.
    """
    if not stat.S_ISREG(status.st_mode):
        kind = stat.S_IFMT(status.st_mode)
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(number, f"it is {KINDS.get(kind, 'something else')}, where a file must be", os.fspath(path))
    return status


def open_regular(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of a regular file, open for reading; never waits for a writer.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        check_status(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: of the file.
        most: how many of its first bytes; -1: all.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    with open(open_regular(path), "rb") as file:
        return file.read(most)
