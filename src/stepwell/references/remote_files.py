"""Files of other machines, fetched whole into a cache that all processes of this machine share; and unpacked ones.

::

    $STEPWELL_CACHE/remote/                            $XDG_CACHE_HOME/stepwell | ~/.cache/stepwell
      5f2c9be0a1d4c377-91ab03cd77e2-train-000000.tar   digests of the address and of the file's state; its name
      .5f2c9be0a1d4c377-91ab....tar.partial            being fetched
      .locks/5f2c9be0a1d4c377                          held by the fetching process; others wait
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import unquote, urlsplit

from stepwell.errors import DatasetNotFoundError, FormatError, ReadOnlyError, StepwellError
from stepwell.files.addresses import SCHEME, cache_directory, is_remote, path_of_file, plain_address
from stepwell.files.file_locks import FileLock, lock_file
from stepwell.files.local_files import OpenFile, close_removed_files
from stepwell.files.shared_cache import SharedCache
from stepwell.references.remote_sources import (
    PIECE_BYTES,
    RemoteSource,
    RemoteState,
    UnreachableError,
    source_of,
    write_piece,
)
from stepwell.sizes import parse_bytes

__all__ = [
    "fetched_ahead",
    "kept_files",
    "known_state",
    "local_path",
    "open_fetched",
    "opened",
    "remote_states",
    "use_fetched",
]

LOGGER = logging.getLogger("stepwell.remote")
DEFAULT_CACHE_BYTES = "100 GB"
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
MAX_NAME = 64
DIGITS = 16
NUM_ASKERS = 16
NUM_AHEAD = 3
PARTIAL = ".partial"
GZIP = "gzip://"
LOCKS = ".locks"
CHANGED_NS = 0
MAX_OPEN_FILES = 8
# to use a file of the cache before other processes evict it
MAX_TRIES = 10
# a file not written to for this long was left by a killed process
ABANDONED_SECONDS = 3600.0
GRACE_SECONDS = 5.0

Used = TypeVar("Used")

# the state of each address at its last request: until the next one, a process sees no other
_STATES: dict[str, RemoteState] = {}
# hosts of which a warning was logged
_UNREACHABLE: set[str] = set()
_OPEN: SharedCache[tuple[str, str], OpenFile] = SharedCache(MAX_OPEN_FILES, size_of=lambda file: 1)


def local_path(path: str) -> str:
    """Return the path of a file on this machine, after fetching it where it is on another."""
    # Any number of threads and processes may ask for the same file: one fetches it, the others wait.
    if SCHEME.match(path) is None:
        return path
    if not is_remote(path):
        return path_of_file(path)
    state = known_state(path)
    folder = cache_directory() / "remote"
    target = folder / f"{_digest(path)}-{state.version}-{_name_of(path)}"
    if not _touch(target):
        try:
            with _locked(folder, _digest(path)):
                if not _touch(target):
                    _fetch(path, state, target)
        except PermissionError as error:
            raise ReadOnlyError(f"{folder} cannot be written. Set STEPWELL_CACHE to a directory that can.") from error
    return str(target)


def opened(path: str) -> OpenFile:
    """Return a file, open for reading, after fetching it if it is remote; a process keeps a few remote ones open."""
    if not is_remote(path):
        return OpenFile(local_path(path))
    state = known_state(path)
    return _OPEN.get((path, state.version), lambda: open_fetched(path))


def fetched_ahead(paths: Sequence[str]) -> Iterator[tuple[int, OpenFile]]:
    """Yield each file with its number, open, while the next ones are fetched."""
    with ThreadPoolExecutor(NUM_AHEAD) as pool:
        coming = deque(pool.submit(opened, path) for path in paths[:NUM_AHEAD])
        for number in range(len(paths)):
            file = coming.popleft().result()
            if number + NUM_AHEAD < len(paths):
                coming.append(pool.submit(opened, paths[number + NUM_AHEAD]))
            yield number, file


def known_state(path: str) -> RemoteState:
    """Return the state of a remote file, requested once in a process."""
    return _STATES.get(path) or remote_states([path])[0]


def kept_files(path: str) -> list[str]:
    """Return the cached files of an address; of an unpacked file, those of the compressed one too."""
    folder = cache_directory() / "remote"
    kept = sorted(map(str, _versions(folder, path)))
    return kept + kept_files(path[len(GZIP) :]) if path.startswith(GZIP) else kept


def open_fetched(path: str) -> OpenFile:
    """Return a remote file, fetched and opened for this caller alone; see `opened`."""
    return use_fetched(path, OpenFile)


def use_fetched(path: str, use: Callable[[str], Used]) -> Used:
    """Return `use` of a file's local path; the file is fetched again if another process evicts it before."""
    for _ in range(MAX_TRIES):
        with suppress(FileNotFoundError):
            return use(local_path(path))
    return use(local_path(path))


def remote_states(addresses: Sequence[str]) -> list[RemoteState]:
    """Return what files on other machines are now; `local_path` gives them in this state from now on."""
    if len(addresses) < 2:
        found = list(map(_ask, addresses))
    else:
        with ThreadPoolExecutor(min(NUM_ASKERS, len(addresses))) as pool:
            found = list(pool.map(_ask, addresses))
    _STATES.update(zip(addresses, found, strict=True))
    return found


class _Unpacked:
    """Files of this machine or of others that gzip compressed, as they were before."""

    def state(self, address: str, *, waits: bool = True) -> RemoteState:
        """Return the state of the compressed file, without the size of what is in it."""
        inner = address[len(GZIP) :]
        if is_remote(inner):
            return RemoteState.of(None, remote_states([inner])[0].version)
        try:
            status = os.stat(local_path(inner))  # noqa: PTH116  all else here are texts
        except OSError as error:
            raise DatasetNotFoundError(
                f"no file at {plain_address(inner)}: {error.strerror}. Check the path."
            ) from error
        return RemoteState.of(None, (status.st_size, status.st_mtime_ns))

    def fetch(self, address: str, state: RemoteState, file: IO[bytes]) -> None:
        """Write what is in the file."""
        inner = address[len(GZIP) :]
        try:
            with gzip.open(local_path(inner)) as given:
                while piece := given.read(PIECE_BYTES):
                    write_piece(file, piece)
        except StepwellError:
            raise
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(
                f"{plain_address(inner)} cannot be unpacked: {error}. Fetch or write it again."
            ) from error


def _source(address: str) -> RemoteSource:
    return _Unpacked() if address.startswith(GZIP) else source_of(address)


def _ask(address: str) -> RemoteState:
    kept = _versions(cache_directory() / "remote", address)
    try:
        # after one failure of a server, cached files are used at once
        return _source(address).state(address, waits=not kept or _host(address) not in _UNREACHABLE)
    except UnreachableError as error:
        if not kept:
            raise
        _warn_of_kept(address, error)
        newest = max(kept, key=lambda path: path.stat().st_atime_ns)
        return RemoteState(newest.stat().st_size, newest.name.split("-")[1])


def _host(address: str) -> str:
    parts = urlsplit(plain_address(address))
    return f"{parts.scheme}://{parts.netloc}"


def _warn_of_kept(address: str, error: UnreachableError) -> None:
    """Warn once in a process and host that files are read from the cache without a look at the server."""
    host = _host(address)
    if host not in _UNREACHABLE:
        _UNREACHABLE.add(host)
        LOGGER.warning("%s What the cache has of %s is read as it was fetched before.", error, host)


def _fetch(address: str, state: RemoteState, target: Path) -> None:
    """Put a file into the cache, whole or not at all."""
    value = os.environ.get("STEPWELL_CACHE_BYTES") or DEFAULT_CACHE_BYTES
    limit = parse_bytes("STEPWELL_CACHE_BYTES", int(value) if value.isdecimal() else value)
    for stale in _versions(target.parent, address):
        stale.unlink(missing_ok=True)
    _make_room(target.parent, limit - (state.num_bytes or 0))
    # also those that other processes removed
    close_removed_files()
    partial = target.with_name(f".{target.name}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            _source(address).fetch(address, state, file)
        _touch(partial)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    if state.num_bytes is None:
        _make_room(target.parent, limit, keep=target)


def _make_room(folder: Path, limit: int, keep: Path | None = None) -> None:
    """Remove the least recently used files until the rest has at most so many bytes."""
    removable, held = [], 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            status = path.stat()
            if path.is_dir() or path == keep:
                continue
            held += status.st_size
            # a file used a moment ago is about to be opened
            least = ABANDONED_SECONDS if path.name.startswith(".") else GRACE_SECONDS
            if time.time() - max(status.st_atime, status.st_ctime) >= least:
                removable.append((status.st_atime_ns, status.st_size, path))
    for _, size, path in sorted(removable):
        if held <= limit:
            return
        path.unlink(missing_ok=True)
        held -= size


def _versions(folder: Path, address: str) -> list[Path]:
    return list(folder.glob(f"{_digest(address)}-*"))


def _touch(path: Path) -> bool:
    """Note that a file is used; returns whether it is there."""
    try:
        # the time of the last change stays: readers recognise a replaced file by it
        os.utime(path, ns=(time.time_ns(), CHANGED_NS))
    except FileNotFoundError:
        return False
    except PermissionError:
        pass  # another user's cache, which can be read
    return True


def _locked(folder: Path, name: str) -> FileLock:
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    return lock_file(folder / LOCKS / name)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=DIGITS // 2).hexdigest()


def _name_of(address: str) -> str:
    name = NO_NAME.sub("_", unquote(urlsplit(address).path).rpartition("/")[2])
    return name[-MAX_NAME:].strip("-.") or "file"
