"""Reads past the page cache, for files that are much larger than memory and are not read again soon.

::

    file      |....|....|##############################|....|....     what is wanted, anywhere
    disk           |----1 MiB----|----1 MiB----|--|                   O_DIRECT: whole blocks of 4 KiB
    out             |############################|                    a copy of 1 MiB that is warm in the CPU's cache

A third of the CPU time of a read through the cache, which makes and drops its pages; and no read-ahead beyond what is
wanted, which would be of a block that is needed at another time. Files whose system knows no O_DIRECT are read through
the cache, and their pages dropped.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading

import numpy as np
import numpy.typing as npt

__all__ = ["avoid_read_ahead", "read_past_cache"]

Bytes = npt.NDArray[np.uint8]
BLOCK_BYTES = 4096
LARGE_PAGE_BYTES = 1 << 16
# large enough for the speed of a sequential read, small enough for a core's own cache
BUFFER_BYTES = 1 << 20


def avoid_read_ahead(descriptor: int) -> None:
    """Turn off read-ahead for a file; call it before the first read."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def read_past_cache(descriptor: int, start: int, out: Bytes, *, is_direct: bool = True) -> int:
    """Read bytes of a file, and leave nothing of them in the page cache that was not there."""
    done = 0
    if is_direct and _set_direct(descriptor, True):
        try:
            done = _read_direct(descriptor, start, out)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # what is left is beyond the file's end, or its system asks for larger blocks
        _set_direct(descriptor, False)
    if done < out.nbytes:
        done += _read_cached(descriptor, start + done, out[done:])
    return done


class _Buffer(threading.local):
    """Memory of a thread, at a multiple of the pages, as O_DIRECT needs it."""

    def __init__(self) -> None:
        # private: a forked child must not share it
        self.memory = memoryview(mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.bytes: Bytes = np.frombuffer(self.memory, np.uint8)


_BUFFER = _Buffer()


def _read_direct(descriptor: int, start: int, out: Bytes) -> int:
    """Read whole blocks into the thread's buffer and copy what is wanted of them; 0 bytes mean the end of the file."""
    stop = start + out.nbytes
    position = start
    while position < stop:
        first = position & -BLOCK_BYTES
        last = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, first + BUFFER_BYTES)
        end = min(first + os.preadv(descriptor, [_BUFFER.memory[: last - first]], first), stop)
        if end <= position:
            break
        out[position - start : end - start] = _BUFFER.bytes[position - first : end - first]
        position = end
    return position - start


def _read_cached(descriptor: int, start: int, out: Bytes) -> int:
    """Read through the page cache, no further than wanted, and let go of the pages."""
    avoid_read_ahead(descriptor)
    done = 0
    while done < out.nbytes:
        count = os.preadv(descriptor, [out[done:].data], start + done)
        if count == 0:
            break
        done += count
    if hasattr(os, "posix_fadvise"):
        # the cache is of pages of up to 64 KiB here, of which only whole ones go: also those that the next span needs
        first = start & -LARGE_PAGE_BYTES
        last = -(-(start + done) // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
        os.posix_fadvise(descriptor, first, last - first, os.POSIX_FADV_DONTNEED)
    return done


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Turn O_DIRECT on or off; return whether the file's system knows it."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT if is_direct else 0)
    except OSError:
        return False
    return True
