"""A word to the system that written bytes may go to the disk now, so that who waits for them later waits less.

Source:
    Linux, sync_file_range(2): SYNC_FILE_RANGE_WRITE begins to write dirty pages, and waits for none.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

__all__ = ["begin_writeback"]

SYNC_FILE_RANGE_WRITE = 2


def begin_writeback(descriptor: int, start: int, end: int) -> None:
    """Let the system begin to write bytes of a file to the disk; one that knows no such call does it later.

    Args:
        descriptor: of the file.
        start: of the first byte.
        end: of the byte behind the last.
    """
    # an answer is no news: what went wrong is told by who waits for the disk
    _sync_file_range()(descriptor, start, end - start, SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], Any]:
    found: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is None:
        return lambda *_: 0
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found  # type: ignore[no-any-return]
