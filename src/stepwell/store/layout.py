"""Where things are in a store's directory, its lock, and files that are replaced whole.

::

    pusht.well/
      store.json              format version, uuid, schema, fps, metadata; replaced by atomic rename
      lock                    flock while a segment is made or the store is changed; holds the next ordinal
      clock                   of a ring: the last stamp that a writer gave to a row; whether tables hold writers
      limits                  of a ring: how many steps tables let writers append; see back_pressure.py
      deleted.npy             int64 ids of the first steps of deleted episodes; absent when there are none
      arrangement.json        which segments are hidden, and which sort elsewhere than by ordinal; often absent
      maintenance             flock while a column is added or the store compacted, with staging/
      keys/                   flocks of writers with a key
      segments/
        00000000-7f3a/        sealed
        00000001-91bc.open/   being written
        .new-91bc/            being made, under the lock; or being removed

Segments are numbers, too, so that a directory of 10^5 is listed at once: the **key** of a segment is the ordinal and
the tag of its name in one int64, and sorts as names of one store do::

    00000012-7f3a  ->  0x0000000c_7f3a        ordinal << 16 | tag
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import DiskFullError, StepwellError, StoreExistsError
from stepwell.files.addresses import local_path
from stepwell.files.exchanging import exchange
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.files.local_files import sync_file
from stepwell.schema import Feature
from stepwell.store.beneath import (
    FULL,
    check_directory,
    disk_error,
    open_file,
    raise_from,
    system_error,
    system_errors,
)

__all__ = [
    "DELETED",
    "MAX_ROWS",
    "OPEN_SUFFIX",
    "STORE_JSON",
    "built_directory",
    "built_store",
    "check_is_outside",
    "column_files",
    "copy_file",
    "full_disk_named",
    "hidden_directory",
    "hide_segments",
    "is_sealed_name",
    "key_of_name",
    "link_file",
    "list_keys",
    "list_segments",
    "locked_store",
    "mend_ordinals",
    "name_of_key",
    "new_tag",
    "ordinals_of_keys",
    "parse_segment_name",
    "remove_directory",
    "remove_segments",
    "replace_file",
    "replaced_directory",
    "reserve_ordinals",
    "split_id",
    "step_id",
    "sync_directory",
    "sync_names",
    "sync_tree",
    "target_path",
    "without",
]

FORMAT = "stepwell"
FORMAT_VERSION = 1
# of stores with segments that have lanes, see lanes.py
LANES_VERSION = 2
STORE_JSON = "store.json"
LOCK = "lock"
DELETED = "deleted.npy"
SEGMENTS = "segments"
# of a directory that is being built
BUILD_SUFFIX = ".partial"
# the file of a hidden directory that becomes the target
BUILT_FILE = "file"
ROW_BITS = 32
MAX_ROWS = 1 << ROW_BITS
RESTORE = "Restore it from a copy, or remove the segment."
SEGMENT_JSON = "segment.json"
PROGRESS = "progress"
EPISODES = "episodes.npy"
METADATA = "episodes.jsonl"
# of a ring: no feature has a file of such a name, see ring.py
CLOCK = "clock.stamps"
STORE_CLOCK = "clock"
LIMITS = "limits"
OPEN_SUFFIX = ".open"
NEW_PREFIX = ".new-"
NEXT_ORDINAL = re.compile(rb"\d{1,10}")
SEGMENT_NAME = re.compile(r"([0-9]{8,10})-([0-9a-f]{4})(\.open)?")
Int64s = npt.NDArray[np.int64]
TAG_BITS = 16
ORDINAL_DIGITS, TAG_DIGITS = 8, 4
NAME_BYTES = ORDINAL_DIGITS + 1 + TAG_DIGITS
# value of each hexadecimal digit, by its byte; 16 for any other byte
_HEX = np.full(256, 16, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
COPY_BYTES = 1 << 20
# what a rename onto a directory with files ends in
TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
# another file system, one without links, a file of another user, or too many links already
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def new_tag() -> str:
    """Return the four hexadecimal digits that tell segments of one ordinal in different stores apart."""
    return secrets.token_hex(2)


def parse_segment_name(name: str) -> tuple[int, str, bool] | None:
    """Return (ordinal, name without suffix, sealed?) of a segment's directory; None for anything else."""
    match = SEGMENT_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), f"{match[1]}-{match[2]}", match[3] is None)


def is_sealed_name(name: object) -> bool:
    """Whether this is the name of a sealed segment's directory."""
    parsed = parse_segment_name(name) if isinstance(name, str) else None
    return parsed is not None and parsed[2]


def column_files(name: str, feature: Feature) -> tuple[str, ...]:
    """Return the names of a feature's files in a segment."""
    return (f"{name}.npy",) if feature.is_raw else (f"{name}.npy", f"{name}.bin")


def list_segments(store: str) -> dict[str, tuple[int, bool]]:
    """Return name without suffix to (ordinal, sealed?), by ordinal. Where both states are seen, sealed wins."""
    keys, opened = list_keys(store)
    is_open = set(opened.tolist())
    return {name_of_key(key): (key >> TAG_BITS, key not in is_open) for key in keys.tolist()}


def key_of_name(name: str) -> int | None:
    """Return the key of a segment's name without suffix; None for anything else."""
    parsed = parse_segment_name(name)
    if parsed is None or not parsed[2]:
        return None
    key = parsed[0] << TAG_BITS | int(name[-TAG_DIGITS:], 16)
    return key if name_of_key(key) == name else None


def name_of_key(key: int) -> str:
    """Return the name of a segment, without suffix."""
    return f"{key >> TAG_BITS:0{ORDINAL_DIGITS}d}-{key & 0xFFFF:0{TAG_DIGITS}x}"


def ordinals_of_keys(keys: Int64s) -> Int64s:
    """Return the ordinals of segments, int64 [n]."""
    return keys >> TAG_BITS


def list_keys(store: str) -> tuple[Int64s, Int64s]:
    """Return the keys of a store's segments, int64 [n], ascending, and of those with an open name only, int64 [m]."""
    directory = f"{store}/{SEGMENTS}"
    check_directory(directory)
    try:
        entries = os.listdir(os.fsencode(directory))
    except OSError as error:
        raise_from(system_error(error, directory), error)
    if not entries:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    chars = np.array(entries, "S").view(np.uint8).reshape(len(entries), -1)
    is_plain = np.zeros(len(entries), np.bool_)
    keys = np.zeros(len(entries), np.int64)
    if chars.shape[1] >= NAME_BYTES:
        # a column at a time: numpy takes long over short axes
        columns = np.ascontiguousarray(chars[:, : NAME_BYTES + 1].T)
        is_plain = columns[ORDINAL_DIGITS] == ord("-")
        if len(columns) > NAME_BYTES:
            is_plain &= columns[NAME_BYTES] == 0
        for column in columns[:ORDINAL_DIGITS]:
            digits = column - np.uint8(ord("0"))
            is_plain &= digits < 10
            keys = keys * 10 + digits
        for column in columns[ORDINAL_DIGITS + 1 : NAME_BYTES]:
            digits = _HEX[column]
            is_plain &= digits < 16
            keys = keys << 4 | digits
    sealed = keys[is_plain]
    if is_plain.all():
        sealed.sort()
        return sealed, sealed[:0]
    others, opened = _parsed(entries[number] for number in np.flatnonzero(~is_plain).tolist())
    found = np.concatenate([sealed, others])
    found.sort()
    opened = without(opened, found)
    if len(opened):
        found = np.concatenate([found, opened])
        found.sort()
    return found, opened


def without(keys: Int64s, others: Int64s) -> Int64s:
    """Return the keys that are not among others, which ascend; numpy's own first finds what is unique."""
    if len(others) == 0:
        return keys
    left: Int64s = keys[others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] != keys]
    return left


def _parsed(names: Iterable[bytes]) -> tuple[Int64s, Int64s]:
    """Return the keys of sealed segments, and those of open ones, among names of any form."""
    sealed: list[int] = []
    opened: list[int] = []
    for entry in names:
        parsed = parse_segment_name(os.fsdecode(entry))
        if parsed is not None:
            _, name, is_sealed = parsed
            key = key_of_name(name)
            if key is not None:
                (sealed if is_sealed else opened).append(key)
    return np.array(sealed, np.int64), np.unique(np.array(opened, np.int64))


@contextmanager
def locked_store(store: str) -> Iterator[int]:
    """Hold the store's lock; yields the descriptor of the lock file."""
    with _lock(f"{store}/{LOCK}") as lock:
        yield lock.descriptor


def _lock(path: str) -> FileLock:
    try:
        return FileLock(open_file(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise_from(system_error(error, path, is_writing=True), error)


def reserve_ordinals(store: str, lock: int, count: int = 1) -> int:
    """Take ``count`` ordinals that were never given before; the caller holds the lock. Returns the first."""
    first = _next_ordinal(lock)
    if first is None:
        first = max((ordinal + 1 for ordinal, _ in list_segments(store).values()), default=0)
    _set_next(lock, first + count)
    return first


def mend_ordinals(store: str, names: Iterable[str]) -> None:
    """Let the ordinals that are given go on after those of segments that are there."""
    # The number in ``lock`` may be behind after a loss of power, or when an older copy of it was put back. Whatever
    # opens a store for writing lists its segments once; what makes a segment need not.
    # names with more digits are longer
    last = max((name.removesuffix(OPEN_SUFFIX) for name in names if name[:1].isdigit()), key=_by_length, default="")
    parsed = parse_segment_name(last)
    if parsed is None or not _is_behind(store, parsed[0]):
        return
    with locked_store(store) as lock:
        found = _next_ordinal(lock)
        if found is not None and found <= parsed[0]:
            _set_next(lock, parsed[0] + 1)


def _by_length(name: str) -> tuple[int, str]:
    return len(name), name


def _is_behind(store: str, ordinal: int) -> bool:
    """Return whether the lock's file names an ordinal that is there already; one that names none is found later."""
    try:
        descriptor = open_file(f"{store}/{LOCK}")
    except FileNotFoundError:
        return False
    try:
        found = _next_ordinal(descriptor)
    finally:
        os.close(descriptor)
    return found is not None and found <= ordinal


def _next_ordinal(lock: int) -> int | None:
    """Return the number in the lock's file; None where it holds none."""
    text = os.pread(lock, 32, 0).strip()
    return int(text) if NEXT_ORDINAL.fullmatch(text) else None


def _set_next(lock: int, ordinal: int) -> None:
    os.pwrite(lock, b"%-20d\n" % ordinal, 0)


def replace_file(path: str, data: bytes, *, sync: bool = True) -> None:
    """Write a file whole: readers see the old bytes or the new ones; with ``sync`` these are on the disk."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        # a new file, never one that is there: a killed process may have had this number, or another process may know it
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        with open(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                sync_file(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise_from(system_error(error, path, is_writing=True, num_bytes=len(data)), error)


def hide_segments(store: str, names: Iterable[str]) -> list[str]:
    """Rename segments out of sight, and return where they are: half of one, left by a kill, could not be opened."""
    directory, hidden = f"{store}/{SEGMENTS}", []
    for name in names:
        # another process that recovers the store may be removing it as well
        with suppress(FileNotFoundError):
            check_directory(f"{directory}/{name}")
            os.rename(f"{directory}/{name}", f"{directory}/{NEW_PREFIX}{name}")
            hidden.append(f"{directory}/{NEW_PREFIX}{name}")
    if hidden:
        # first their names: one that came back after a loss of power would lack files
        sync_directory(directory)
    return hidden


def remove_segments(store: str, names: Iterable[str]) -> bool:
    """Remove segments, first from where they are seen; False when there are none."""
    hidden = hide_segments(store, names)
    for path in hidden:
        shutil.rmtree(path, ignore_errors=True)
    return bool(hidden)


def link_file(source: str, target: str, *, link: bool = True) -> None:
    """Make ``target`` a hard link of ``source``, or a copy when there cannot be one or ``link`` is False."""
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


def sync_directory(path: str) -> None:
    """Wait until a directory's entries are on the disk."""
    _sync(path, lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def sync_tree(path: str) -> None:
    """Wait until a directory and everything beneath it are on the disk."""
    # A hard link of a file of another process says nothing about whether its bytes are.
    for directory, _, files in os.walk(path, topdown=False):
        for name in files:
            path = f"{directory}/{name}"
            # a link is its directory's
            if not os.path.islink(path):
                _sync(path, partial(open_file, path))
        sync_directory(directory)


def sync_names(store: str) -> None:
    """Wait until the names of a store and of its segments are on the disk, as what is in sealed segments is."""
    for directory in (f"{store}/{SEGMENTS}", store, os.path.dirname(store)):
        sync_directory(directory)


def _sync(path: str, open_it: Callable[[], int]) -> None:
    try:
        descriptor = open_it()
        try:
            sync_file(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise_from(system_error(error, path, is_writing=True), error)


# a directory that is built out of sight and appears whole: with all that belongs to it, or not at all


@contextmanager
def built_store(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a hidden directory next to ``path`` with an empty ``segments`` in it."""
    with built_directory(path) as partial:
        with system_errors(partial, is_writing=True):
            os.mkdir(f"{partial}/{SEGMENTS}")
        yield partial


@contextmanager
def built_directory(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a hidden directory next to ``path``; at the end it is renamed to ``path``, with all of it on the disk."""
    with _built(path, _check_free) as partial:
        yield partial


@contextmanager
def built_file(path: str | os.PathLike[str], *, replaces: bool = False) -> Iterator[str]:
    """Yield a hidden directory next to ``path``; at the end its file `BUILT_FILE` is renamed to ``path``."""

    def check_free(target: Path) -> None:
        if target.is_dir() or (target.exists() and not replaces):
            raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")

    with _built(path, check_free, BUILT_FILE) as partial:
        yield partial


@contextmanager
def _built(path: str | os.PathLike[str], check_free: Callable[[Path], None], name: str = "") -> Iterator[str]:
    target = target_path(path)
    check_free(target)
    made = [parent for parent in target.parents if not parent.exists()]
    is_built = False
    try:
        with hidden_directory(target) as partial:
            yield partial
            is_built = True
            sync_tree(partial)
            check_free(target)
            os.rename(Path(partial, name), target)
            for parent in (target, *made):
                sync_directory(str(parent.parent))
    except OSError as error:
        if is_built and error.errno in TAKEN:
            # by another process, a moment ago
            check_free(target)
        told = _hidden_error(error, target, "nothing of it is left")
        raise_from(disk_error(told, 0, str(target)) if is_built else told, error)


def _hidden_error(error: OSError, target: Path, state: str) -> OSError:
    """Return what an error is of a directory that was to become ``target``, or take its place."""
    if error.errno in FULL:
        return _full_disk(error, f"to write {target}; {state}")
    # only who writes gets this one; pyarrow does not say of which file
    return disk_error(error, 0, str(target)) if error.errno == errno.EFBIG else error


@contextmanager
def replaced_directory(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a hidden directory next to the directory ``path``, whose place it takes at the end, all of it at once."""
    target = target_path(path)
    try:
        with hidden_directory(target) as partial:
            yield partial
            sync_tree(partial)
            try:
                exchange(partial, str(target))
                sync_directory(str(target.parent))
            except OSError as error:
                raise disk_error(error, 0, str(target)) from error
    except OSError as error:
        raise_from(_hidden_error(error, target, "it is as it was"), error)


@contextmanager
def full_disk_named(what: str) -> Iterator[None]:
    """Raise DiskFullError for a full disk: "no space left", what for, and what is there of it."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and not isinstance(error, DiskFullError):
            raise _full_disk(error, what) from error
        raise


def _full_disk(error: OSError, what: str) -> DiskFullError:
    full = DiskFullError(f"no space left {what}. Make room, and try again.")
    full.errno = error.errno
    return full


@contextmanager
def hidden_directory(target: Path) -> Iterator[str]:
    """Yield a new hidden directory next to ``target``, removed at the end; those of killed processes are removed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(target)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreExistsError(f"{target} would lie in a file, not in a directory. Choose another path.") from error
    except OSError as error:
        raise disk_error(error, 0, str(target)) from error
    partial = _hidden_name(target)
    try:
        with _locked_directory(partial):
            yield str(partial)
    finally:
        # nothing is there where it was renamed
        shutil.rmtree(partial, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove a directory that others see whole or not at all; the next build at its path removes what a kill left."""
    hidden = path if path.name.endswith(BUILD_SUFFIX) else _hidden_name(path)
    path.rename(hidden)
    shutil.rmtree(hidden)


def target_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of what is to be made: where ``path`` is a link, of what it leads to."""
    target = Path(local_path(path)).absolute()
    return target.resolve() if target.is_symlink() else target


def check_is_outside(target: str | os.PathLike[str], sources: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse a target in the directory of a source, whose files it would become some of."""
    above = target_path(target).resolve().parents
    for source in sources:
        if Path(source).resolve() in above:
            raise StepwellError(
                f"{target} lies in {source}, the source of it: the new one would be a part of the old. Choose a path "
                "outside of it."
            )


def _hidden_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{new_tag()}{new_tag()}{BUILD_SUFFIX}")


def _locked_directory(path: Path) -> FileLock:
    """Make a directory and hold its lock, a sign that its builder lives."""
    try:
        while True:
            path.mkdir(exist_ok=True)
            # before it is locked, another process may take it for one that was left, and remove it
            with suppress(FileNotFoundError):
                lock = lock_directory(path)
                if path.exists():
                    return lock
                lock.release()
    except OSError as error:
        raise disk_error(error, 0, str(path)) from error


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")


def _remove_left(target: Path) -> None:
    for entry in list(target.parent.iterdir()):
        if not (entry.name.startswith(f".{target.name}.") and entry.name.endswith(BUILD_SUFFIX)):
            continue
        with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError), lock_directory(entry, is_waiting=False):
            shutil.rmtree(entry, ignore_errors=True)


# step ids: the segment's ordinal in the upper 31 bits, the row in the lower 32; never reused


@overload
def step_id(ordinal: int, row: int) -> int: ...
@overload
def step_id(ordinal: npt.NDArray[Any], row: npt.NDArray[Any]) -> npt.NDArray[np.int64]: ...
def step_id(ordinal: Any, row: Any) -> Any:
    """Return the id of a row of a segment; works on ints and on integer arrays alike."""
    if isinstance(ordinal, int) and isinstance(row, int):
        return (ordinal << ROW_BITS) | row
    return (np.asarray(ordinal, np.int64) << ROW_BITS) | np.asarray(row, np.int64)


@overload
def split_id(ids: int) -> tuple[int, int]: ...
@overload
def split_id(ids: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def split_id(ids: Any) -> Any:
    """Return (segment ordinal, row) of step ids; works on ints and on integer arrays alike."""
    return ids >> ROW_BITS, ids & (MAX_ROWS - 1)
