"""Memory maps without a file handle: a process may hold 65,530 maps, but often only 1,024 open files.

Python's own `mmap` keeps a duplicate of the descriptor for as long as the map lives (until 3.13's ``trackfd=False``).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["available_memory", "map_descriptor", "map_file"]


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class _Map:
    """The owner of one mapped range; numpy arrays over it keep it alive as their base."""

    __slots__ = ("__array_interface__", "_address", "_munmap", "_num_bytes")

    def __init__(self, address: int, num_bytes: int, writable: bool) -> None:
        self._munmap = _libc().munmap
        self._address = address
        self._num_bytes = num_bytes
        self.__array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, not writable),
            "version": 3,
        }

    def __del__(self) -> None:
        # a Ctrl-C may have come before it was made
        if hasattr(self, "_munmap"):
            self._munmap(self._address, self._num_bytes)


def map_descriptor(descriptor: int, num_bytes: int, *, writable: bool = False) -> npt.NDArray[np.uint8]:
    """Map the first bytes of an open file; the descriptor may be closed afterwards.

    Args:
        descriptor: an open file, for writing too when ``writable``.
        num_bytes: how much; at most the file's size, since a touch beyond it kills the process.
        writable: whether stores through the array reach the file.

    Returns:
        uint8 [num_bytes]; unmapped when the array and all views of it are gone.

    Raises:
        OSError: the system refuses the map.
    """
    if num_bytes == 0:
        return np.empty(0, np.uint8)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc().mmap(None, num_bytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {num_bytes} bytes: {os.strerror(code)}")
    return np.asarray(_Map(address, num_bytes, writable))


def map_file(path: str, num_bytes: int | None = None, *, writable: bool = False) -> npt.NDArray[np.uint8]:
    """Map a file's first ``num_bytes`` (default: all of it); see `map_descriptor`."""
    descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size if num_bytes is None else num_bytes
        return map_descriptor(descriptor, size, writable=writable)
    finally:
        os.close(descriptor)


def available_memory() -> int:
    """Return the bytes of memory that can be had without swapping, file cache included."""
    if sys.platform == "linux":
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
