"""Two directories change places, at once where the system can."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

__all__ = ["BEFORE", "exchange"]

# <linux/fs.h> and <fcntl.h>; of macOS <sys/stdio.h>
AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2
UNABLE = (errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.ENOTSUP)
BEFORE = "{}.before-edit"


def exchange(one: str, other: str) -> None:
    """Let two directories of one file system change their places.

    Args:
        one: its path.
        other: the path of the other, which others read. Where the system cannot do it at once it is moved to
            ``OTHER.before-edit`` for a moment, where a kill in between leaves it.

    Raises:
        OSError: a path is missing, or may not be written.
    """
    number = _swap(os.fsencode(one), os.fsencode(other))
    if number in UNABLE:
        _exchange_by_renames(one, other)
    elif number:
        raise OSError(number, os.strerror(number), other)


def _swap(one: bytes, other: bytes) -> int:
    """Ask the system, and return the number of its error, or 0."""
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        failed = library.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(one, other, RENAME_SWAP)
    else:
        return errno.ENOSYS
    return ctypes.get_errno() if failed else 0


def _exchange_by_renames(one: str, other: str) -> None:
    before = BEFORE.format(other)
    Path(other).rename(before)
    try:
        Path(one).rename(other)
    except OSError:
        Path(before).rename(other)
        raise
    Path(before).rename(one)
