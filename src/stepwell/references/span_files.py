r"""The files that spans lie in: paths, states when references were made, bytes read at places, maps of whole files.

::

    option root   "/data/set"            ──> "/data/set/shard-00000.tar", ...      or addresses, fetched when needed
    option files  "shard-00000.tar\n..."        │
    option states "1240 17637289991234...\n..." │   bytes and time of the last change (ns), or a remote file's version
                                                ├── read, read_into    pread: rows of any size, decoded afterwards
                                                └── addresses_of       maps: plain rows, copied by a kernel
"""

from __future__ import annotations

import functools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, SchemaError, StepwellError
from stepwell.files.addresses import plain_address
from stepwell.files.local_files import (
    FileState,
    OpenFile,
    available_memory,
    map_descriptor,
    open_file,
    open_regular,
    state_of,
)
from stepwell.references.trusted_paths import check_reach

__all__ = [
    "FileMaps",
    "PathLike",
    "SpanFiles",
    "common_root",
    "difference",
    "lines_of",
    "noted_bytes",
    "noted_states",
    "number_of",
    "paths_of",
    "problem_of",
]

PathLike = str | os.PathLike[str]
_Used = TypeVar("_Used")

MAX_MAPPED_FILES = 4096
# of a column, beside those that a process keeps open: to look one up costs as much as to read a row
MAX_HELD_FILES = 4
# a larger row gets memory of its own, which goes with it
MAX_SCRATCH_BYTES = 16 << 20
SIZE, TIME = 2, 3  # of a FileState
# to use a file of a cache before others remove it
MAX_TRIES = 10
AGAIN = "Open the data set again; a store that was made of it while it was in place has to be made anew."
TIME_TEXT = re.compile(r"-?[0-9]{1,19}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CHANGED = "the file was changed or replaced since it was read first. Open the data set again."


class _Scratch(threading.local):
    """Memory of a thread for the bytes of one row."""

    memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def of(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return uint8 [num_bytes], overwritten by the next call in this thread."""
        if num_bytes > MAX_SCRATCH_BYTES:
            return np.empty(num_bytes, np.uint8)
        if num_bytes > self.memory.size:
            self.memory = np.empty(min(MAX_SCRATCH_BYTES, 2 * num_bytes), np.uint8)
        return self.memory[:num_bytes]


class _SpanMap:
    """A whole file, mapped, and its state at that time."""

    def __init__(self, path: str) -> None:
        descriptor = open_regular(path)
        try:
            status = os.fstat(descriptor)
            self.state: FileState = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            self.data = map_descriptor(descriptor, status.st_size)
        finally:
            os.close(descriptor)


class FileMaps(NamedTuple):
    """Addresses of files that are mapped, for as long as this lives."""

    bases: npt.NDArray[np.int64]  # int64 [files], 0 where one is not mapped
    sizes: npt.NDArray[np.int64]  # int64 [files], bytes
    files: dict[int, _SpanMap]  # the maps, by number
    is_large: bool = False  # whether they exceed half of the memory: the rows to be read are worth announcing

    def with_files(self, added: dict[int, _SpanMap], used: Sequence[int], num_files: int) -> FileMaps:
        """Return the same with more files; of too many only those that are used now."""
        is_full = len(self.files) + len(added) > MAX_MAPPED_FILES
        kept = {number: file for number, file in self.files.items() if not is_full or number in used} | added
        bases, sizes = np.zeros(num_files, np.int64), np.zeros(num_files, np.int64)
        for number, file in kept.items():
            bases[number], sizes[number] = file.data.__array_interface__["data"][0], file.data.size
        return FileMaps(bases, sizes, kept, int(sizes.sum()) > available_memory() // 2)


_SCRATCH = _Scratch()
# for as long as a reader holds them
_MAPS: weakref.WeakValueDictionary[tuple[str, FileState], _SpanMap] = weakref.WeakValueDictionary()


class SpanFiles:
    """The files of one column."""

    # Safe for any number of threads, and after a fork. On its first use a file is compared with its recorded
    # state; from then on, at every read (once a batch, see `FilesOfBatch`), with its state at the first use, by inode,
    # size and time: a truncated or replaced file is an error, not other data, and no access behind the end of a map.
    # A fetched file is compared by version and size.

    def __init__(self, paths: Sequence[PathLike], states: str = "", reach: tuple[str, ...] | None = None) -> None:
        self.paths, self.states, self.reach = paths, states, reach
        self._known: dict[int, tuple[str, FileState]] = {}
        self._held: dict[int, tuple[str, OpenFile]] = {}
        self._maps = FileMaps(np.zeros(0, np.int64), np.zeros(0, np.int64), {})

    def __len__(self) -> int:
        return len(self.paths)

    @functools.cached_property
    def _lines(self) -> tuple[str, ...]:
        # of many files a long text: to find it in a cache would compare it with another feature's for each of them
        return lines_of(self.states)

    def recorded_states(self) -> Iterator[tuple[str, str]]:
        """Yield path or address of each file and its recorded state; nothing where no states are given."""
        lines = self._lines or [""] * len(self)
        yield from ((os.fspath(path), line) for path, line in zip(self.paths, lines, strict=True))

    def path(self, number: int) -> str:
        """Return the path or address of a file."""
        if not 0 <= number < len(self.paths):
            raise DecodeError(f"a span in file {number}. There are {len(self.paths)}, numbered from 0.")
        return os.fspath(self.paths[number])

    def called(self, number: int) -> str:
        """Return what messages call a file, see `plain_address`."""
        return plain_address(self.path(number))

    def read(self, number: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file: uint8 [size], overwritten by the next call in this thread."""
        return self.filled(self.opened(number, offset, size), number, offset, _SCRATCH.of(size))

    def read_into(self, number: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Read bytes of a file into memory."""
        self.filled(self.opened(number, offset, out.size), number, offset, out)

    def addresses_of(self, numbers: npt.NDArray[np.uint32]) -> FileMaps:
        """Return files that are mapped whole, those of some rows among them."""
        maps, added = self._maps, {}
        used = [0] if len(self.paths) == 1 else _distinct(numbers)
        for number in used:
            state, known = self._looked_at(number)[1], maps.files.get(number)
            if known is None or known.state != state:
                added[number] = self._mapped(number)
        if added:
            # others may be reading through the table that there was
            self._maps = maps = self._without_removed(maps).with_files(added, used, len(self.paths))
        return maps

    def _without_removed(self, maps: FileMaps) -> FileMaps:
        """Return maps without those of files that left the cache, whose space is free when no map holds them."""
        kept = {
            number: file
            for number, file in maps.files.items()
            if "://" not in self.path(number) or os.path.exists(self._known[number][0])  # noqa: PTH110  many files
        }
        return maps if len(kept) == len(maps.files) else maps._replace(files=kept)

    def opened(self, number: int, offset: int, size: int) -> OpenFile:
        """Return a file that was looked at and has bytes up to ``offset + size``."""
        held = self._held.get(number)
        if held is not None:
            with suppress(OSError):
                if state_of(held[0]) == held[1].state and offset + size <= held[1].num_bytes:
                    return held[1]
            # that says what is wrong
            self._held.pop(number, None)
        local, state, file = self._used(number, open_file)
        if offset + size > state[SIZE]:
            raise DecodeError(f"{self.called(number)}: bytes {offset} to {offset + size} of a file of {state[SIZE]}.")
        self._check_same(number, file.state, state)
        # one that was fetched may go from the cache, and its space with it
        if len(self._held) < MAX_HELD_FILES and "://" not in os.fspath(self.paths[number]):
            self._held[number] = local, file
        return file

    def filled(self, file: OpenFile, number: int, offset: int, out: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return memory with the bytes of a file that is open."""
        try:
            count = file.read_into(offset, out)
        except OSError as error:
            raise DecodeError(f"{self.called(number)}, byte {offset}: {error}") from error
        if count < out.size:
            raise DecodeError(f"{self.called(number)}: {CHANGED}")
        return out

    def _mapped(self, number: int) -> _SpanMap:
        local, state, found = self._used(number, lambda local, state: _MAPS.get((local, state)) or _SpanMap(local))
        self._check_same(number, found.state, state)
        return _MAPS.setdefault((local, found.state), found)

    def _used(self, number: int, use: Callable[[str, FileState], _Used]) -> tuple[str, FileState, _Used]:
        """Return where a file lies on this machine, its state, and what is made of it."""
        # One that was fetched may be gone when it is used, where the cache is small and many fetch: it is fetched
        # again.
        path = self.path(number)
        tries = MAX_TRIES if "://" in path else 1
        while True:
            local, state = self._looked_at(number)
            tries -= 1
            try:
                return local, state, use(local, state)
            except OSError as error:
                if not tries or not isinstance(error, FileNotFoundError):
                    raise DecodeError(f"{self.called(number)}: {error}") from error

    def _looked_at(self, number: int) -> tuple[str, FileState]:
        """Return where a file lies on this machine, and its state now, which is that of the first time."""
        known = self._known.get(number)
        if known is None:
            check_reach(self.path(number), self.reach)
        try:
            local, state = self._found(number) if known is None else (known[0], state_of(known[0]))
        except FileNotFoundError:
            local, state = self._fetched_again(number)
        except OSError as error:
            raise DecodeError(f"{self.called(number)}: {error}") from error
        if known is None:
            known = self._known.setdefault(number, (local, state))
        if state != known[1]:
            self._check_same(number, state, known[1])
            self._known[number] = local, state
        return local, state

    def _check_same(self, number: int, state: FileState, known: FileState) -> None:
        """Refuse a file that was replaced; in a cache, times change and files are fetched again."""
        path = self.path(number)
        if state != known and ("://" not in path or state[SIZE] != known[SIZE]):
            raise DecodeError(f"{self.called(number)}: {CHANGED}")

    def _found(self, number: int) -> tuple[str, FileState]:
        """Return where a file lies on this machine, and its state, which is the recorded one."""
        return self._compared(number, _local(self.path(number)))

    def _compared(self, number: int, local: str) -> tuple[str, FileState]:
        """Return a file's local path and its state, which is the recorded one."""
        state = state_of(local)
        changed = difference(self.path(number), self._lines[number], state) if self.states else None
        if changed is not None:
            raise DecodeError(f"{self.called(number)}: {changed}")
        return local, state

    def _fetched_again(self, number: int) -> tuple[str, FileState]:
        """Return a file that went from the cache since; one of this machine is lost."""
        path = self.path(number)
        if "://" in path:
            from stepwell.references.remote_files import use_fetched

            try:
                return use_fetched(path, lambda local: self._compared(number, local))
            except FileNotFoundError as error:
                raise DecodeError(
                    f"{self.called(number)}: it goes from the cache as soon as it is there. Raise STEPWELL_CACHE_BYTES."
                ) from error
        raise DecodeError(
            f"{self.called(number)}: there is no such file. Put it back, or leave out the episodes that lie in it."
        )


class FilesOfBatch:
    """The files of a column for the length of one batch: each is compared with what it was once, not for every row."""

    # Of many files the last few are remembered.
    # For one thread.

    __slots__ = ("_files", "_opened")

    def __init__(self, files: SpanFiles) -> None:
        self._files = files
        self._opened: dict[int, OpenFile] = {}

    def read(self, number: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file; see `SpanFiles.read`."""
        file = self._opened.get(number)
        if file is None or offset + size > file.num_bytes:
            if len(self._opened) >= MAX_HELD_FILES:
                # rows may lie in a file each, which is closed then when others need the room
                self._opened.clear()
            file = self._opened[number] = self._files.opened(number, offset, size)
        return self._files.filled(file, number, offset, _SCRATCH.of(size))


def _distinct(numbers: npt.NDArray[np.uint32]) -> list[int]:
    if not len(numbers):
        return []
    # a damaged number may be large
    is_small = int(numbers.max()) < MAX_MAPPED_FILES
    found: list[int] = (np.flatnonzero(np.bincount(numbers)) if is_small else np.unique(numbers)).tolist()
    return found


def _local(path: str) -> str:
    if "://" not in path:
        return path
    from stepwell.references.remote_files import local_path

    return local_path(path)


@functools.lru_cache(maxsize=16)
def paths_of(root: str, files: str) -> tuple[str, ...]:
    """Return the files of a column, as paths and addresses."""
    prefix = f"{root.rstrip('/')}/" if root else ""
    return tuple(prefix + name for name in files.split("\n"))


@functools.lru_cache(maxsize=16)
def _numbers_of(root: str, files: str) -> dict[str, int]:
    return {path: number for number, path in enumerate(paths_of(root, files))}


def number_of(path: PathLike, root: str, files: str) -> int:
    """Return the number of a file among a column's."""
    found = _numbers_of(root, files).get(_whole(path))
    if found is None:
        raise SchemaError(
            f"rows in {plain_address(path)}, which is none of the files of the feature. Name it to span_feature, too."
        )
    return found


def common_root(paths: Sequence[PathLike]) -> tuple[str, str]:
    """Return the options ``root`` and ``files`` of some files."""
    whole = [_whole(path) for path in paths]
    broken = next((path for path in whole if "\n" in path), None)
    if broken is not None or not whole:
        wrong = "no files" if broken is None else f"{broken!r}, a path with a line break"
        raise SchemaError(f"{wrong}: rows cannot be left there. Give paths of one line each, at least one.")
    first, last = min(whole), max(whole)
    length = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    end = first.rfind("/", 0, length)
    is_address_alone = first[: end + 1].endswith("://")
    root = first[:end] if end > 0 and not is_address_alone else ""
    cut = len(root) + 1 if root else 0
    return root, "\n".join(path[cut:] for path in whole)


def _whole(path: PathLike) -> str:
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100  a link stays one


def noted_states(states: Iterable[tuple[int, int | str] | None]) -> str:
    """Return states of files as a feature's option has them."""
    return "\n".join("" if state is None else f"{state[0]} {state[1]}" for state in states)


@functools.lru_cache(maxsize=16)
def lines_of(states: str) -> tuple[str, ...]:
    """Return the recorded state of each file; () of an empty text."""
    return tuple(states.split("\n")) if states else ()


def noted_bytes(line: str) -> int:
    """Return a file's recorded size; 0 where it is not known."""
    size = line.partition(" ")[0]
    return int(size) if size.isdecimal() else 0


def difference(path: str, line: str, state: FileState | None = None) -> str | None:
    """Return how a file differs from its recorded state, as a message; None if it does not, or without a state."""
    if not line:
        return None
    size, _, version = line.partition(" ")
    if "://" in path:
        from stepwell.references.remote_files import known_state

        now = known_state(path)
        is_same, found = now.version == version, _size_and_version(str(now.num_bytes), f"version {now.version}")
        was = _size_and_version(size, f"version {version}")
    else:
        state = state_of(path) if state is None else state
        is_same = line == f"{state[SIZE]} {state[TIME]}"
        was, found = (
            _size_and_version(size, _when(version)),
            _size_and_version(str(state[SIZE]), _when(str(state[TIME]))),
        )
    if is_same:
        return None
    return f"the file is another one than when references into it were made: it had {was}; it has {found}. {AGAIN}"


def problem_of(path: str, line: str) -> str | None:
    """Return how a file differs from its recorded state, or why it cannot be read; None if it is unchanged."""
    try:
        return difference(path, line, None if "://" in path else state_of(path))
    except FileNotFoundError:
        return "there is no such file. Put it back, or leave out the episodes that lie in it."
    except (OSError, StepwellError) as error:
        return f"it cannot be looked at: {error}"


def _size_and_version(size: str, version: str) -> str:
    return f"{int(size):,} bytes, {version}" if size.isdecimal() else version


def _when(nanoseconds: str) -> str:
    """Return a time in ISO format, to the microsecond; other text as a version."""
    if not TIME_TEXT.fullmatch(nanoseconds):
        return f"version {nanoseconds}"
    time = (EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)).isoformat(" ")
    return f"last changed {time.removesuffix('+00:00')} UTC"
