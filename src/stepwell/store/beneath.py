"""Files of a store, opened beneath its directory: regular files only, never by a link, and never waiting for a writer.

The path of a store may lead through links. What lies in the store has none: `open_file` refuses one in a file's place,
`check_directory` one in a directory's. So a store from an unknown source reads and changes nothing outside of itself.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from stepwell.errors import (
    CorruptSegmentError,
    DiskFullError,
    ReadOnlyError,
    SegmentGoneError,
    StepwellError,
    StoreAccessError,
    StoreFileError,
)
from stepwell.files.local_files import KINDS

__all__ = [
    "CLOSED",
    "FULL",
    "GO_ON",
    "check_directory",
    "disk_error",
    "final_error",
    "list_directory",
    "open_file",
    "open_sized",
    "raise_from",
    "read_file",
    "remove_directory",
    "system_error",
    "system_errors",
]

SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WRITING = os.O_WRONLY | os.O_RDWR
MAX_TABLE_BYTES = 1 << 30
"""Of a file that is read whole: no store that stepwell writes has one a tenth as large."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of errors that a full disk, or a full quota, ends in."""
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
TOO_MANY = (errno.EMFILE, errno.ENFILE)
LINKED = (errno.ELOOP, errno.EMLINK)
GO_ON = "make room and go on, or close the writer."
"""What an error of a full disk says to a writer that may go on."""
CLOSED = "the writer is closed, and what it had not committed is lost: make room, and go on with a new store.writer()."
"""What it says to one that may not."""
# what callers tell from each other, and of which they know more
PASSED_ON = (FileNotFoundError, FileExistsError, BlockingIOError, InterruptedError)
# of networks and processes, never of a store's files
OTHERS = (ConnectionError, TimeoutError, ChildProcessError, ProcessLookupError)


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file of a store."""
    return open_sized(path, flags)[0]


def open_sized(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> tuple[int, int]:
    """Return a descriptor of a regular file of a store, and the file's bytes; see `open_file`."""
    try:
        descriptor = os.open(path, flags | SAFE, 0o644)
    except OSError as error:
        raise_from(_refusal(error, path, is_writing=bool(flags & WRITING)), error)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _wrong_kind(path, status.st_mode, "a file")
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise_from(system_error(error, path), error)
        raise
    return descriptor, status.st_size


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file that is small enough to be read whole; errors are those of `open_file`."""
    descriptor, size = open_sized(path)
    with open(descriptor, "rb", buffering=0) as file:
        try:
            if size > MAX_TABLE_BYTES:
                raise CorruptSegmentError(
                    f"{path} has {size} bytes; a file of this name has at most {MAX_TABLE_BYTES}. It was not read."
                )
            return file.read()
        except OSError as error:
            raise_from(system_error(error, path), error)


def raise_from(found: Exception, error: Exception) -> NoReturn:
    """Raise what an error became, with it as the cause; where it is the same, as it is."""
    try:
        if found is error:
            raise error
        raise found from error
    finally:
        # nor may they hold this frame, which holds them
        del found, error


def check_directory(path: str | os.PathLike[str]) -> None:
    """Refuse what is in a directory's place in a store."""
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        raise_from(_refusal(error, path), error)
    if not stat.S_ISDIR(mode):
        raise _wrong_kind(path, mode, "a directory")


def list_directory(path: str | os.PathLike[str]) -> list[str]:
    """Return the names in a directory of a store; errors are those of `check_directory`."""
    check_directory(path)
    try:
        return os.listdir(path)
    except OSError as error:
        raise_from(_refusal(error, path), error)


def remove_directory(path: str | os.PathLike[str]) -> None:
    """Remove a directory of a store with all that is in it; links in it go, what they lead to stays."""
    check_directory(path)
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise_from(system_error(error, path, is_writing=True), error)


def disk_error(error: OSError, num_bytes: int, path: str) -> OSError:
    """Return DiskFullError for an error of a full disk or quota; for others see `system_error`."""
    return system_error(error, path, is_writing=True, num_bytes=num_bytes)


def system_error(
    error: OSError, path: str | os.PathLike[str], *, is_writing: bool = False, num_bytes: int = 0, advice: str = ""
) -> OSError:
    """Return the error of stepwell that an error of the system is."""
    is_vague = bool(advice) and isinstance(error, StoreFileError) and error.errno in TOO_MANY
    if isinstance(error, (StepwellError, *PASSED_ON)) and not is_vague:
        return error
    found: OSError
    if error.errno in FULL:
        found = DiskFullError(f"no space left for {num_bytes} bytes of {path}. What was committed is safe; {GO_ON}")
    elif error.errno in TOO_MANY:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        found = StoreFileError(
            f"{path}: too many open files; this process may have {limit}. {advice}"
            'Raise the limit ("ulimit -n 65536" in the shell, or resource.setrlimit), or close what is not needed.'
        )
    elif error.errno in DENIED and is_writing:
        found = ReadOnlyError(
            f"{path} cannot be changed: {_reason(error)}. Get the right to write there; a store that is only read "
            'is opened with mode="r".'
        )
    elif error.errno in DENIED:
        found = StoreAccessError(f"{path} cannot be read: {_reason(error)}. Get the right to read it.")
    else:
        verb = "written" if is_writing else "read"
        found = StoreFileError(f"{path} cannot be {verb}: {_reason(error)}.")
    found.errno = error.errno
    return found


@contextmanager
def system_errors(root: str | os.PathLike[str], *, is_writing: bool = False) -> Iterator[None]:
    """Let no bare error of the system about files of a store out; see `final_error`."""
    try:
        yield
    except OSError as error:
        raise_from(final_error(error, root, is_writing=is_writing), error)


def final_error(error: OSError, root: str | os.PathLike[str], *, is_writing: bool = False) -> Exception:
    """Return the error of stepwell that an error of the system is, where no caller can say more."""
    if isinstance(error, (StepwellError, *OTHERS)):
        return error
    where = error.filename if isinstance(error.filename, str) else os.fspath(root)
    if error.errno not in FULL and not f"{os.path.abspath(where)}/".startswith(f"{os.path.abspath(root)}/"):
        return error
    if isinstance(error, FileNotFoundError):
        return CorruptSegmentError(
            f"{where} is missing: the store was damaged, moved or removed. Restore it from a copy; "
            '"stepwell verify PATH" says what else is missing.'
        )
    if isinstance(error, PASSED_ON):
        return StoreFileError(f"{where}: {_reason(error)}, which was not to be expected. Try again.")
    return system_error(error, where, is_writing=is_writing)


def _refusal(error: OSError, path: str | os.PathLike[str], *, is_writing: bool = False) -> Exception:
    if isinstance(error, SegmentGoneError):
        return error
    if error.errno in LINKED:
        return _wrong_kind(path, stat.S_IFLNK, "a file")
    if error.errno == errno.ENOTDIR:
        return CorruptSegmentError(f"{os.path.dirname(path)} is no directory, and a store must have one there.")
    # a FIFO, a socket or a device without a process behind it; a directory
    if error.errno in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
        return _wrong_kind(path, os.lstat(path).st_mode, "a file")
    return system_error(error, path, is_writing=is_writing)


def _wrong_kind(path: str | os.PathLike[str], mode: int, wanted: str) -> CorruptSegmentError:
    if stat.S_ISLNK(mode):
        return CorruptSegmentError(
            f"{path} is a symbolic link, and a store has none: it is not followed. Put what it leads to in its place, "
            "if you know that it is right."
        )
    kind = "a file" if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "something else")
    return CorruptSegmentError(f"{path} is {kind}, where {wanted} must be. Restore it from a copy.")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
