"""Regular files of this machine: read whole, read at places, or mapped; a FIFO or a device is refused.

::

    read_regular             all bytes, or the first few
    open_file ──> OpenFile   pread at places; a process keeps the last few open
    map_file                 a map without a file handle: a process may hold 65,530 maps, often only 1,024 open files
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.files.shared_cache import SharedCache

__all__ = [
    "KINDS",
    "MAX_OPEN_FILES",
    "FileState",
    "OpenFile",
    "available_memory",
    "check_status",
    "close_removed_files",
    "map_descriptor",
    "map_file",
    "open_file",
    "open_regular",
    "read_regular",
    "state_of",
]

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
MAX_OPEN_FILES = 64

FileState = tuple[int, int, int, int]
"""Device, inode, size and time of the last change: what differs when a file was replaced or written to."""


def check_status(status: os.stat_result, path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a regular file; an OSError for a directory, a FIFO or another special file."""
    if not stat.S_ISREG(status.st_mode):
        kind = stat.S_IFMT(status.st_mode)
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(number, f"it is {KINDS.get(kind, 'something else')}, where a file must be", os.fspath(path))
    return status


def open_regular(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of a regular file, open for reading; does not block on a FIFO without a writer."""
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
    """
    with open(open_regular(path), "rb") as file:
        return file.read(most)


class OpenFile:
    """A regular file that is open for reading, safe for threads and forks since no read moves a shared position."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = open_regular(path)
        self.state = _state(os.fstat(self._descriptor))

    @property
    def path(self) -> str:
        """A path that leads to the file for as long as this lives, also when it was removed from its directory."""
        return f"/dev/fd/{self._descriptor}"

    @property
    def num_bytes(self) -> int:
        """The file's size when it was opened."""
        return self.state[2]

    def read(self, place: int, count: int) -> bytes:
        """Return bytes from a place on: ``count``, or fewer where the file ends."""
        data = os.pread(self._descriptor, count, place)
        while len(data) < count:
            more = os.pread(self._descriptor, count - len(data), place + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, place: int, out: npt.NDArray[np.uint8]) -> int:
        """Read bytes from a place on into memory, uint8 [n], contiguous; return how many: fewer where the file ends."""
        count = os.preadv(self._descriptor, [out.data], place)
        while 0 < count < out.size:
            more = os.preadv(self._descriptor, [out[count:].data], place + count)
            if not more:
                break
            count += more
        return count

    def __del__(self) -> None:
        if self._descriptor >= 0:
            # not suppress: at the interpreter's end names of modules are None
            try:  # noqa: SIM105
                os.close(self._descriptor)
            except (OSError, TypeError, AttributeError):
                pass


_FILES: SharedCache[str, OpenFile] = SharedCache(MAX_OPEN_FILES, size_of=lambda file: 1)


def open_file(path: str, state: FileState | None = None) -> OpenFile:
    """Return an open file from the process's cache; one in another state than `state` is opened again, once."""
    file = _FILES.get(path, lambda: OpenFile(path))
    if state is not None and file.state != state:
        _FILES.drop(path, file)
        file = _FILES.get(path, lambda: OpenFile(path))
    return file


def close_removed_files() -> None:
    """Drop cached files that were removed from their directories, so that their disk space can be freed."""
    _FILES.drop_where(lambda path: not os.path.exists(path))  # noqa: PTH110  paths are strings here


def state_of(path: str) -> FileState:
    """Return the state of the file that is at a path now; OSError where it is no regular file, or none."""
    return _state(check_status(os.stat(path), path))  # noqa: PTH116  called with every read


def _state(status: os.stat_result) -> FileState:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@functools.cache
def _libc() -> Any:
    # Python's own mmap keeps a duplicate of the descriptor for as long as the map lives (until 3.13's trackfd=False)
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
    """Map the first bytes of an open file as uint8 [num_bytes]; the map ends with the last view of the array."""
    # at most the file's size: a touch beyond it kills the process
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


def sync_file(descriptor: int) -> None:
    """Wait until what was written to a file, or a directory's entries, are on the disk."""
    # macOS leaves them in the drive's own memory otherwise; not every file system there knows the call
    if hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def available_memory() -> int:
    """Return the bytes of memory that can be had without swapping, file cache included."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
