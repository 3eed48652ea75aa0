"""Stores that stand for data sets of others: made once, found again by what their files look like, kept while in use.

::

    $STEPWELL_CACHE | $XDG_CACHE_HOME/stepwell | ~/.cache/stepwell
      lerobot/                               a folder a reader
        pusht-5e884898da28/                  name and hash of the dataset's directory
          lock                               held by who builds; others wait
          pusht-9f86d081884c7d65-2c26b46b.well     a store: digests of the files, and of what was asked for
          .pusht-9f86....well.7f3a91bc.partial     being built
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell.errors import (
    CorruptSegmentError,
    DiskFullError,
    ReadOnlyError,
    SegmentGoneError,
    StoreNotFoundError,
    UntrustedFileError,
)
from stepwell.files.file_locks import FileLock, lock_directory, lock_file
from stepwell.store.beneath import disk_error
from stepwell.store.layout import new_tag
from stepwell.store.store import Store

__all__ = ["CachedStore"]

# another one makes every store anew
FORMAT = 1
DIGITS = 16
OPTION_DIGITS = 8
ROOT_DIGITS = 12
MAX_NAME = 64
MAX_TRIES = 10
SUFFIX = ".well"
LOCK = "lock"
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


class CachedStore:
    """The store in the cache that stands for a data set as its files are now.

    Args:
        reader: name of the reader, the folder in the cache.
        root: where the data set is, which the store's name is made of.
        name: for people.
        files: digest of its files, hexadecimal digits.
        options: what else the store depends on; its ``repr`` counts.
        cache: directory of the cache.
        address: by which the store is known to people.

    Notes:
        Any number of processes may come at once: one builds, the others wait. A killed one leaves nothing that is taken
        for whole. While a store that `open` returned lives, no other process removes its files.
    """

    def __init__(
        self, reader: str, root: str, *, name: str, files: str, options: Any, cache: Path, address: str | None = None
    ) -> None:
        told = NO_NAME.sub("-", name)[:MAX_NAME].strip("-.") or "dataset"
        self._folder = cache / reader / f"{told}-{_digest(root, ROOT_DIGITS)}"
        self._address = address
        self._current = f"{told}-{files[:DIGITS]}-"
        self.path = self._folder / f"{self._current}{_digest(repr((FORMAT, options)), OPTION_DIGITS)}{SUFFIX}"

    def open(self, build: Callable[[Path], None]) -> Store:
        """Return the store, open for reading; it is built first where it is not there.

        Args:
            build: writes the store at a path.

        Raises:
            ReadOnlyError: it is not there, and the cache cannot be written.
            DiskFullError: there is no space for it.
        """
        for _ in range(MAX_TRIES):
            found = self._find() or self._make(build)
            if found is not None:
                return found
        raise ReadOnlyError(f"{self.path} is removed as soon as it is made. Set STEPWELL_CACHE to another directory.")

    def _make(self, build: Callable[[Path], None]) -> Store | None:
        """Build the store, unless another process just did; None when it is gone again."""
        try:
            with _locked(self._folder):
                found = self._find()
                if found is None:
                    # what a loss of power left of it
                    shutil.rmtree(self.path, ignore_errors=True)
                    build(self.path)
                self._remove_stale()
        except UntrustedFileError:
            # an error of permissions, and not the cache's
            raise
        except OSError as error:
            told = _cache_error(error, self._folder)
            if told is None:
                raise
            raise told from error
        return found or self._find()

    def _find(self) -> Store | None:
        """Return the store, if it is there and whole, with a lock that keeps others from removing it."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            # some network file systems have no locks: others may remove it there
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            store = Store(str(self.path), "r", self._address, trust=True)
            _check_is_whole(store)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, StoreNotFoundError | SegmentGoneError | CorruptSegmentError):
                return None
            raise
        weakref.finalize(store, os.close, descriptor)
        return store

    def _remove_stale(self) -> None:
        """Remove stores of the data set as it was before, unless they are in use."""
        for entry in list(self._folder.iterdir()):
            if entry.name.endswith(SUFFIX) and not entry.name.startswith((self._current, ".")):
                _remove_unused(entry)


def _check_is_whole(store: Store) -> None:
    """Raise CorruptSegmentError where a file is shorter than its rows: nobody waited until it was on the disk."""
    for segment in store.segments:
        for name, feature in (store.schema or {}).items():
            if feature.is_raw:
                segment.raw_map(name)
            elif segment.blob_map(name).size < segment.offsets_map(name)[segment.num_rows]:
                raise CorruptSegmentError(f"{name}.bin of segment {segment.name} is cut short.")


def _remove_unused(path: Path) -> None:
    with suppress(OSError), lock_directory(path, is_waiting=False):
        # who looks for it sees it whole or not at all
        gone = path.rename(path.with_name(f".{path.name}.{new_tag()}.gone"))
        shutil.rmtree(gone, ignore_errors=True)


def _locked(folder: Path) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    return lock_file(folder / LOCK)


def _cache_error(error: OSError, folder: Path) -> OSError | None:
    """Return an error that says which variable names another directory; None for one that is not about the cache."""
    if isinstance(disk_error(error, 0, str(folder)), DiskFullError):
        return DiskFullError(f"no space in the cache, {folder}. Make room, or set STEPWELL_CACHE to another directory.")
    if isinstance(error, PermissionError) or error.errno in UNWRITABLE:
        return ReadOnlyError(
            f"the cache, {folder}, cannot be written ({error.strerror}). Set STEPWELL_CACHE to a directory that can."
        )
    return None


def _digest(text: str, digits: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=digits // 2).hexdigest()
