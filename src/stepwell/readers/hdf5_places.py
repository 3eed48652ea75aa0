"""Where HDF5 files of a source lie, and what lies beside them: JSON, videos, names of roles."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError, UntrustedFileError
from stepwell.files.local_files import read_regular
from stepwell.formats.source_paths import natural
from stepwell.json_text import parse_json
from stepwell.readers.hdf5 import SUFFIXES

__all__ = [
    "aliased",
    "entries_of",
    "entry_of",
    "files_beside",
    "first_file",
    "hdf5_paths",
    "parsed_object",
    "short_values",
    "shown_name",
]

# a simulator's XML of each demonstration is larger than most of them
MAX_TOLD_BYTES = 4096
MAX_JSON_BYTES = 256 << 20
# folders below a directory that are looked into to find out what it is
MOST_FOLDERS = 16
MOST_ENTRIES = 4096


def hdf5_paths(source: str, key: Any = None) -> Sequence[str]:
    """Return the HDF5 files of a source."""
    if "://" in source:
        raise FormatError(f"{source}: HDF5 files are read from this machine. Copy them here first.")
    paths = []
    for part in source.split("\n"):
        place = Path(part)
        below = [str(path) for path in place.rglob("*") if path.suffix in SUFFIXES] if place.is_dir() else [part]
        paths += sorted(below, key=key)
    if not paths:
        raise FormatError(f"{source} holds no HDF5 files ({', '.join(SUFFIXES)}).")
    return paths


def first_file(source: str) -> str | None:
    """Return an HDF5 file of a source: itself, or one in it or in the first folders of it, without a walk of all."""
    place = Path(source.partition("\n")[0])
    if "://" in source or not place.is_dir():
        return None if "://" in source else str(place)
    try:
        inside = list(islice(place.iterdir(), MOST_ENTRIES))
        folders = sorted(path for path in inside if path.is_dir())[:MOST_FOLDERS]
        entries = (path for folder in folders for path in islice(folder.iterdir(), MOST_ENTRIES))
        return next((str(path) for path in (*sorted(inside), *entries) if path.suffix in SUFFIXES), None)
    except OSError:
        return None


def shown_name(path: str, source: str) -> str:
    """Return the name of an episode that is a file: that of the file, below the directory that was named."""
    place, root = Path(path), Path(source)
    is_below = place != root and place.is_relative_to(root)
    return place.relative_to(root).with_suffix("").as_posix() if is_below else place.stem


def short_values(attributes: Mapping[str, Any], *, parse: bool = False) -> dict[str, Any]:
    """Return attributes that JSON holds and that are not larger than an episode's numbers."""
    told: dict[str, Any] = {}
    for name, given in attributes.items():
        value = given
        if parse and isinstance(value, str) and value[:1] in "{[":
            with suppress(ValueError, RecursionError):
                value = parse_json(value)
        if len(str(value)) <= MAX_TOLD_BYTES and isinstance(value, str | int | float | bool | list | dict):
            told[name] = value
    return told


def files_beside(path: Path, pattern: str) -> list[Path]:
    """Return the files that fit a pattern below a file's directory, none of which is a link out of it."""
    folder = path.parent
    found = sorted(folder.glob(pattern.replace("{stem}", glob.escape(path.stem))), key=lambda each: natural(each.name))
    root = folder.resolve()
    for each in found:
        if not each.resolve().is_relative_to(root):
            raise UntrustedFileError(
                f"{each} is a link that leads out of {folder}, and was not read. Copy the file there."
            )
    return found


def parsed_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds; FormatError for anything else."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
        told = parse_json(read_regular(path))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: {error}. It should be a JSON object.") from error
    if not isinstance(told, dict):
        raise FormatError(f"{path} holds a {type(told).__name__}. It should be a JSON object.")
    return told


def entry_of(beside: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what JSON says of an episode of a number, such as ``{"episodes": [{"episode_id": 7, ...}]}``."""
    number = name.rpartition("_")[2]
    return next((entry for entry in entries_of(beside) if str(entry.get("episode_id")) == number), {})


def entries_of(beside: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what JSON lists of episodes."""
    entries = beside.get("episodes")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def aliased(name: str, roles: Mapping[str, str]) -> str:
    """Return a dotted name with roles instead of serial numbers: cameras.13062452_left is cameras.wrist_left."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        for serial, role in roles.items():
            if part == serial or part.startswith((f"{serial}_", f"{serial}-")):
                parts[place] = role + part[len(serial) :]
    return ".".join(parts)
