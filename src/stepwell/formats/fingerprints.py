"""Whether files are the ones they were: a digest of names, sizes and times, read from directories, not from files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

__all__ = ["digest_of", "listed", "walked"]

Entry = tuple[str, int, int]
Version = int | str


def digest_of(entries: Iterable[tuple[str, int, Version]], *more: bytes) -> str:
    """Return a digest of files, and of what else it shall depend on, as 32 hexadecimal digits.

    Args:
        entries: (path, bytes, mtime in nanoseconds, or what else says that it is another) of each file, in any order.
        more: e.g. which episodes were asked for.

    Example:
        >>> digest_of([("a", 1, 2), ("b", 3, 4)]) == digest_of([("b", 3, 4), ("a", 1, 2)])
        True
    """
    found = hashlib.blake2b(
        repr(sorted(entries, key=lambda entry: entry[0])).encode("utf-8", "surrogateescape"), digest_size=16
    )
    for part in more:
        found.update(hashlib.blake2b(part).digest())
    return found.hexdigest()


def listed(folder: Path, names: Collection[str] | None = None) -> Iterator[Entry]:
    """Yield the files of one directory, links followed; nothing of one that is not there.

    Args:
        folder: the directory.
        names: of the files that are wanted; None: all.
    """
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if (names is None or entry.name in names) and entry.is_file():
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns


def walked(folder: Path) -> Iterator[Entry]:
    """Yield the files of a directory and of those below it."""
    for path, _, _ in os.walk(folder):
        yield from listed(Path(path))
