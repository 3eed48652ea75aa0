"""Files of sealed segments in two places at once: hard links, or copies where the file system has none."""

from __future__ import annotations

import errno
import os
import shutil

from stepwell.store.beneath import open_file
from stepwell.store.column_file import disk_error

__all__ = ["copy_file", "link_file"]

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
COPY_BYTES = 1 << 20
# another file system, one without links, a file of somebody else, or too many links already
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def link_file(source: str, target: str, *, link: bool = True) -> None:
    """Make ``target`` a hard link of ``source``, or a copy when there cannot be one or ``link`` is False.

    Raises:
        DiskFullError: no space for it.
    """
    if link:
        # a link of a link would be one in the copy as well
        os.close(open_file(source))
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise disk_error(error, 0, target) from error
        else:
            return
    copy_file(source, target)


def copy_file(source: str, target: str) -> None:
    """Copy a file's bytes; DiskFullError when there is no space for them."""
    with open(open_file(source), "rb") as read, open(open_file(target, NEW), "wb") as written:
        try:
            shutil.copyfileobj(read, written, COPY_BYTES)
        except OSError as error:
            raise disk_error(error, os.fstat(read.fileno()).st_size, target) from error
