"""Where a dataset lies: the directory of its version, on this machine or on another.

::

    data/arm              data/arm/1.0.0           one of these is given; the newest version is taken
    gs://bucket/arm       gs://bucket/arm/1.0.0    likewise: file systems of fsspec have lists
                          https://host/arm/1.0.0   the version itself: HTTP has none
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.files.local_files import read_regular
from stepwell.references.remote_files import local_path, opened, remote_states
from stepwell.references.remote_sources import UnreachableError, list_addresses

__all__ = ["FEATURES", "INFO", "VERSION", "Directory", "find_version", "named_version"]

INFO, FEATURES = "dataset_info.json", "features.json"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)
WEB = ("http", "https")
# name, configuration, version
MAX_DEPTH = 3
# folders of images have more, and looking for a version in all of them would take long
MAX_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of this machine, or of another.

    Args:
        place: its path or address, without a slash at the end.

    Example:
        >>> Directory("https://host/arm/1.0.0?token=1").file("features.json")
        'https://host/arm/1.0.0/features.json?token=1'
    """

    place: str

    @classmethod
    def of(cls, source: str) -> Directory:
        """Return the directory that somebody names."""
        if "://" not in source or not is_remote(source):
            return cls(str(Path(local_path(source)).expanduser()))
        if urlsplit(source).scheme.lower() not in WEB:
            return cls(source.rstrip("/"))
        parts = urlsplit(source)
        return cls(urlunsplit(parts._replace(path=parts.path.rstrip("/"))))

    @property
    def is_remote(self) -> bool:
        """Whether it is on another machine."""
        return is_remote(self.place)

    @property
    def name(self) -> str:
        """Its name, without those above it."""
        return (urlsplit(self.place).path if self.is_remote else self.place).rpartition("/")[2]

    def __str__(self) -> str:
        """Return what messages call it."""
        return plain_address(self.place)

    def file(self, name: str) -> str:
        """Return the path or address of a file in it."""
        if not self.is_remote:
            return str(Path(self.place, name))
        parts = urlsplit(self.place)
        if parts.scheme.lower() in WEB:
            return urlunsplit(parts._replace(path=f"{parts.path}/{quote(name)}"))
        return f"{self.place}/{name}"

    def read(self, name: str) -> bytes:
        """Return what is in a file; one of another machine is as it was when it was asked about last.

        Raises:
            OSError: a file of this machine that is not there, or cannot be read.
            DatasetNotFoundError: the same of another machine.
        """
        file = opened(self.file(name)) if self.is_remote else None
        return read_regular(self.file(name)) if file is None else file.read(0, file.num_bytes)

    def there(self, names: Iterable[str]) -> list[str]:
        """Return which files are in it; those of another machine are asked about anew.

        Raises:
            DatasetNotFoundError: the other machine does not answer.
        """
        return [name for name in names if self.missing([name]) is None]

    def missing(self, names: Sequence[str]) -> str | None:
        """Return what is to be said where not all of some files are in it; None where they are.

        Raises:
            DatasetNotFoundError: the other machine does not answer.
        """
        if not self.is_remote:
            lacking = [name for name in names if not Path(self.place, name).is_file()]
            return f"no {lacking[0]} there" if lacking else None
        try:
            remote_states([self.file(name) for name in names])
        except UnreachableError:
            raise
        except DatasetNotFoundError as error:
            return str(error)
        return None


def named_version(source: str) -> bool:
    """Whether an address of another machine ends as that of a version does.

    Example:
        >>> named_version("gs://bucket/arm/1.0.0/"), named_version("gs://bucket/arm"), named_version("arm/1.0.0")
        (True, False, False)
    """
    return is_remote(source) and "\n" not in source and VERSION.fullmatch(Directory.of(source).name) is not None


def find_version(source: str) -> Directory:
    """Return the directory of a version: the source, or the newest version below it.

    Args:
        source: a path or an address.

    Raises:
        DatasetNotFoundError: no dataset there, or no answer.
        FormatError: several datasets or configurations.
        MissingDependencyError: fsspec, or what it needs for the address, is not installed.
    """
    place = Directory.of(source)
    return _find_remote(place) if "://" in source and is_remote(source) else _find_local(place)


def _find_remote(place: Directory) -> Directory:
    reason = place.missing([FEATURES, INFO])
    if reason is None:
        return place
    if urlsplit(place.place).scheme.lower() in WEB:
        raise DatasetNotFoundError(
            f"no TFDS dataset at {place}: {reason} HTTP has no lists of files: give the address of a version's "
            "directory, such as https://host/name/1.0.0."
        )
    for depth in range(1, MAX_DEPTH + 1):
        found = _below(place, depth)
        sets = {version.place.rpartition("/")[0] for version in found}
        if len(sets) > 1:
            _refuse_several(place, sorted(found.removeprefix(f"{place.place}/") for found in sets))
        if found:
            return max(found, key=_number)
    raise DatasetNotFoundError(
        f"no TFDS dataset at {place}: {reason} Nor is one in directories below that are named by versions, such as "
        "1.0.0. Give the address of the directory that holds dataset_info.json and features.json."
    )


def _below(place: Directory, depth: int) -> list[Directory]:
    """Return the directories of versions so many levels below one of a file system that has lists."""
    found = list_addresses("/".join([glob.escape(place.place), *["*"] * depth, FEATURES]))
    # lists name a path as the file system does, which may differ from the address by slashes
    tails = ["/".join(address.split("/")[-1 - depth : -1]) for address in found]
    versions = [Directory(place.file(tail)) for tail in tails]
    return [version for version in versions if VERSION.fullmatch(version.name)]


def _find_local(directory: Directory) -> Directory:
    place = Path(directory.place)
    for _ in range(MAX_DEPTH + 1):
        if (place / FEATURES).is_file():
            return Directory(str(place))
        found = _children(place)
        if not found:
            break
        if len(found) > 1:
            _refuse_several(Directory(str(place)), [path.name for path in found])
        place = found[0]
    raise DatasetNotFoundError(
        f"no TFDS dataset at {directory}: no {FEATURES} there, nor in directories named by versions, such as 1.0.0. "
        "Give the directory that holds dataset_info.json and features.json."
    )


def _refuse_several(place: Directory, names: Sequence[str]) -> None:
    raise FormatError(
        f"{place} has several datasets or configurations: {', '.join(names)}. Give the path of one of them."
    )


def _children(place: Path) -> list[Path]:
    """Return the directories that may hold the dataset: of versions the newest one only."""
    folders, versions = _look_into(place)
    if versions:
        return [max(versions, key=_number)]
    found = []
    for path in folders:
        below, versions = _look_into(path)
        if versions or any(_look_into(folder)[1] for folder in below):
            found.append(path)
    return found


def _number(version: Path | Directory) -> tuple[int, ...]:
    return tuple(map(int, version.name.split(".")))


def _look_into(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the directories in one, by name, and those of versions; none of very many entries, which is other data."""
    try:
        with os.scandir(place) as entries:
            found = list(islice(entries, MAX_ENTRIES + 1))
    except OSError:
        return [], []
    folders, versions = [], []
    for entry in found if len(found) <= MAX_ENTRIES else ():
        if not entry.name.startswith(".") and entry.is_dir():
            folders.append(Path(entry.path))
            if VERSION.fullmatch(entry.name) and (folders[-1] / FEATURES).is_file():
                versions.append(folders[-1])
    return sorted(folders), versions
