"""Files that are read at places: a few kept open, whoever reads."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from stepwell.files.regular_files import check_status, open_regular
from stepwell.files.shared_cache import SharedCache

__all__ = ["MAX_OPEN_FILES", "FileState", "OpenFile", "close_removed_files", "open_file", "state_of"]

MAX_OPEN_FILES = 64

FileState = tuple[int, int, int, int]
"""Device, inode, size and time of the last change: what differs when a file was replaced or written to."""


class OpenFile:
    """A file that is open for reading.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be opened, or is no regular file.

    Notes:
        Safe for any number of threads, and for children of a fork: no read moves a place that others share. Closed when
        nobody has it any more.
    """

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
    """Return a file, opened unless it is; at most `MAX_OPEN_FILES` are kept open in a process.

    Args:
        path: of the file.
        state: that it should have; one in another is opened again, once.

    Raises:
        OSError: it cannot be opened.
    """
    file = _FILES.get(path, lambda: OpenFile(path))
    if state is not None and file.state != state:
        _FILES.drop(path, file)
        file = _FILES.get(path, lambda: OpenFile(path))
    return file


def close_removed_files() -> None:
    """Let go of files that are open and were removed meanwhile: their space is free when nobody reads them."""
    _FILES.drop_where(lambda path: not os.path.exists(path))  # noqa: PTH110  paths are strings here


def state_of(path: str) -> FileState:
    """Return the state of the file that is at a path now; OSError where it is no regular file, or none."""
    return _state(check_status(os.stat(path), path))  # noqa: PTH116  asked for with every read


def _state(status: os.stat_result) -> FileState:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
