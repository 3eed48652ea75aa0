"""Files that are fetched when an episode needs them, and let go of when the last one that does is stored.

::

    episodes to read      0 1 2 3 | 4 5 6 7 | 8 9 ...        chunks, a worker each, in any order
    file-000              =========                          fetched by who comes first, while others wait
    file-001                      ===========                gone when 2, 3, 4, 5, 6 and 7 are all done

The workers of an import share the directory; what they have done stands in a file of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.files.file_locks import FileLock, lock_file

__all__ = ["FetchedFiles"]

Ints = npt.NDArray[np.int64]
DONE = ".done"
LOCKS = ".locks"


class FetchedFiles:
    """The files of a data set that are in a directory for as long as they are needed.

    Args:
        directory: of the files; made when the first is fetched.
        users: relative path to the episodes that need the file, int64 [n].
        fetch: called with a relative path and the directory: puts the file there, whole or not at all.

    Notes:
        Shared by processes by its pickle: each file is fetched once, and stays until the episodes given to `plan` that
        need it are done, whoever does them. What another import left in the directory is used.
    """

    def __init__(self, directory: Path, users: Mapping[str, Ints], fetch: Callable[[str, Path], None]) -> None:
        self._directory, self._users, self._fetch = directory, users, fetch
        self._files_of: dict[int, list[str]] = {}
        for name, episodes in users.items():
            for episode in episodes.tolist():
                self._files_of.setdefault(episode, []).append(name)

    def plan(self, episodes: Ints) -> None:
        """Keep files for these episodes only; before anybody fetches."""
        self._users = {
            name: wanted for name, users in self._users.items() if len(wanted := np.intersect1d(users, episodes))
        }
        (self._directory / DONE).unlink(missing_ok=True)
        if self._directory.is_dir():
            known = {self._directory / name for name in self._users}
            for path in self._directory.rglob("*"):
                if path not in known and not path.is_dir() and not _is_hidden(path.relative_to(self._directory)):
                    _let_go(path)

    def need(self, name: str) -> None:
        """Return when a file is there."""
        path = self._directory / name
        if path.exists():
            return
        with self._locked(name):
            if not path.exists():
                # a link that an earlier import left, to what its cache has no more
                path.unlink(missing_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(name, self._directory)

    def done(self, episodes: Ints) -> None:
        """Let go of the files that no other episode will need."""
        names = {name for episode in episodes.tolist() for name in self._files_of.get(episode, ())}
        with self._locked(DONE), (self._directory / DONE).open("a+b") as file:
            file.write(np.ascontiguousarray(episodes, np.int64).tobytes())
            file.seek(0)
            finished = np.frombuffer(file.read(), np.int64)
            for name in names:
                if np.isin(self._users.get(name, finished), finished).all():
                    _let_go(self._directory / name)

    def close(self) -> None:
        """Let go of all of them."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _locked(self, name: str) -> FileLock:
        locks = self._directory / LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        return lock_file(locks / name.replace("/", "+"))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _let_go(path: Path) -> None:
    """Remove a file; its space is free at once, though it may still be open somewhere."""
    try:
        # a link leads to a cache that is not ours
        if not path.is_symlink():
            os.truncate(path, 0)
        path.unlink()
    except FileNotFoundError:
        pass
