"""What the system has cached of files: to measure reads from the disk, and what they leave behind."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

import stepwell

__all__ = ["cached_bytes", "can_forget", "forget", "row_files"]


def row_files(store: stepwell.Store) -> list[Path]:
    """Return the files of a store that hold its rows, one or two a feature and segment."""
    names = {f"{name}.{kind}" for name in store.schema for kind in ("npy", "bin")}
    paths = [path for segment in store.segments for path in sorted(segment.path.iterdir())]
    return [path for path in paths if path.name in names]


def can_forget() -> bool:
    """Whether the system can be told to forget files, and asked whether it did."""
    return hasattr(os, "posix_fadvise") and hasattr(_libc(), "mincore")


def forget(paths: list[Path]) -> None:
    """Let the system drop files from its cache, so that they are next read from the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(paths: list[Path]) -> int:
    """Return how much of files is cached, in whole pages."""
    return sum(_cached_pages(path) for path in paths) * mmap.PAGESIZE


def _cached_pages(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        # a map that is not touched reads nothing
        address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    try:
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        if _libc().mincore(address, size, pages.ctypes.data) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        _libc().munmap(address, size)
    return int(np.count_nonzero(pages & 1))


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if hasattr(libc, "mincore"):
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc
