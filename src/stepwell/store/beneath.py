"""Files of a store, opened beneath its directory: regular files only, never by a link, and never waiting for a writer.

The path of a store may lead through links. What lies in the store has none: `open_file` refuses one in a file's place,
`check_directory` one in a directory's. So a store from an unknown source reads and changes nothing outside of itself.

``.npy`` files that grow have a header of constant length, rewritten when the number of rows is known (numpy's NEP 1,
format version 1.0: magic, version, uint16 length, a Python literal padded with spaces).

Files much larger than memory are read past the page cache::

    file      |....|....|##############################|....|....     the bytes to read, anywhere
    disk           |----1 MiB----|----1 MiB----|--|                   O_DIRECT: whole blocks of 4 KiB
    out             |############################|                    a copy of 1 MiB that is warm in the CPU's cache

This takes two thirds of the CPU time of a read through the cache, which makes and drops its pages, and reads nothing
ahead. On systems without O_DIRECT, files are read through the cache and their pages dropped.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import resource
import shutil
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

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
    "UNKNOWN",
    "avoid_read_ahead",
    "check_directory",
    "disk_error",
    "final_error",
    "header_bytes",
    "header_size",
    "list_directory",
    "mtime",
    "open_file",
    "open_sized",
    "parse_header_size",
    "raise_from",
    "read_again",
    "read_file",
    "read_past_cache",
    "read_rare_file",
    "remove_directory",
    "system_error",
    "system_errors",
    "trusted_mtime",
]

# a directory's time stamp may stand still for one tick of the kernel's clock: one that young is not trusted
TICK_SECONDS = 0.05
# of a file that is to be read again
UNKNOWN = -1
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
"""The advice of an error of a full disk to a writer that may go on."""
CLOSED = "the writer is closed, and what it had not committed is lost: make room, and go on with a new store.writer()."
"""The advice to one that may not."""
# errors that callers handle themselves
PASSED_ON = (FileNotFoundError, FileExistsError, BlockingIOError, InterruptedError)
# of networks and processes, never of a store's files
OTHERS = (ConnectionError, TimeoutError, ChildProcessError, ProcessLookupError)
NPY_MAGIC = b"\x93NUMPY\x01\x00"
NPY_PREFIX_BYTES = len(NPY_MAGIC) + 2
NPY_ALIGNMENT = 128
# room for any number of rows, so that the header's length does not depend on it
WIDEST_ROWS = 10**13
MAX_TRIES = 10
Found = TypeVar("Found")
Bytes = npt.NDArray[np.uint8]
BLOCK_BYTES = 4096
LARGE_PAGE_BYTES = 1 << 16


# large enough for the speed of a sequential read, small enough for a core's own cache
def mtime(path: str) -> int:
    """Return when a file was changed, in nanoseconds; 0 when there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0


def trusted_mtime(path: str) -> int:
    """Return the same, but `UNKNOWN` where the next change may have the same time."""
    try:
        stamp = os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
    return stamp if time.time_ns() - stamp > TICK_SECONDS * 1e9 else UNKNOWN


BUFFER_BYTES = 1 << 20


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file of a store."""
    return open_sized(path, flags)[0]


def open_sized(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> tuple[int, int]:
    """Return a descriptor of a regular file of a store, and the file's bytes; see `open_file`."""
    try:
        descriptor = os.open(path, flags | SAFE, 0o644)
    except FileNotFoundError:
        raise
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


def read_rare_file(path: str | os.PathLike[str]) -> bytes | None:
    """Return the bytes of a file that most stores do not have, as `read_file`; None where it is not there."""
    try:
        # a look is cheaper than the error of a file that is not there
        os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise_from(system_error(error, path), error)
    try:
        return read_file(path)
    except FileNotFoundError:
        return None


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
        what = f"for {num_bytes} bytes of" if num_bytes else "to write"
        found = DiskFullError(f"no space left {what} {path}. What was committed is safe; {GO_ON}")
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


@functools.lru_cache(maxsize=256)
def header_size(dtype: np.dtype[Any] | str, shape: tuple[int, ...]) -> int:
    """Return the length in bytes of the header of an array [rows, *shape], whatever ``rows`` is."""
    return -(-(NPY_PREFIX_BYTES + len(_literal(dtype, (WIDEST_ROWS, *shape))) + 1) // NPY_ALIGNMENT) * NPY_ALIGNMENT


def header_bytes(dtype: np.dtype[Any] | str, shape: tuple[int, ...], num_rows: int) -> bytes:
    """Return the header of an array [num_rows, *shape] in C order."""
    size = header_size(dtype, shape)
    text = _literal(dtype, (num_rows, *shape)).encode("latin1")
    return NPY_MAGIC + struct.pack("<H", size - NPY_PREFIX_BYTES) + text.ljust(size - NPY_PREFIX_BYTES - 1) + b"\n"


def parse_header_size(head: bytes, name: str) -> int:
    """Return where the data of a ``.npy`` file begins, from its first bytes."""
    if len(head) < NPY_PREFIX_BYTES or head[: len(NPY_MAGIC)] != NPY_MAGIC:
        raise CorruptSegmentError(f'{name}: the .npy header is damaged. Run "stepwell verify PATH".')
    return NPY_PREFIX_BYTES + int(struct.unpack("<H", head[len(NPY_MAGIC) : NPY_PREFIX_BYTES])[0])


def _literal(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> str:
    return f"{{'descr': {_descr(np.dtype(dtype))}, 'fortran_order': False, 'shape': {shape!r}, }}"


@functools.lru_cache(maxsize=256)
def _descr(dtype: np.dtype[Any]) -> str:
    return repr(np.lib.format.dtype_to_descr(dtype))


def read_again(read: Callable[[], Found]) -> Found:
    """Return the result of reading ``.npy`` headers by numpy, again where another thread interfered."""
    # numpy reads them by ``ast.literal_eval``. Before Python 3.12 all threads of a process share the depth that it
    # counts while it builds the tree (CPython issue 106905): where threads change places meanwhile, a good header is a
    # SystemError.
    for _ in range(MAX_TRIES - 1):
        try:
            return read()
        except SystemError:
            continue
    return read()


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
    if not hasattr(os, "O_DIRECT"):
        return False
    import fcntl

    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT if is_direct else 0)
    except OSError:
        return False
    return True
