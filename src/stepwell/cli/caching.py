"""``stepwell cache``: what lies in the cache of data sets in place and fetched files, and kernels; clearing it."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stepwell.cli.terminal import ask, lay_out, print_cut, print_folded, width_of
from stepwell.errors import StepwellError, did_you_mean
from stepwell.files.addresses import cache_directory
from stepwell.formats.cache import CacheEntry, cache_entries
from stepwell.sizes import counted, human_bytes

__all__ = ["run_cache"]

DAY = 24 * 3600.0
KERNELS = "kernels"
PACKAGE = Path(__file__).parents[1]
# numba's index of a function, and the machine code of each of its signatures
COMPILED = (".nbi", ".nbc")


@dataclass(frozen=True, slots=True)
class CompiledKernels(CacheEntry):
    """The kernels that were compiled and kept in one place: beside the package, or in a cache of numba's."""

    files: tuple[Path, ...] = ()

    def remove(self) -> bool:
        """Remove them; a process that has loaded them keeps them, and the next one compiles again."""
        for file in self.files:
            with suppress(OSError):
                file.unlink()
        return not any(file.exists() for file in self.files)


def kernel_entries() -> Iterator[CompiledKernels]:
    """Yield what was kept of kernels in each place where numba keeps it; without importing numba."""
    folders = sorted({file.parent for file in PACKAGE.rglob("*.py")})
    caches = [os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"]
    places = {PACKAGE: [folder / "__pycache__" for folder in folders]}
    # a directory for each of ours, called as numba calls it
    names = [f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}" for folder in folders]
    for cache, inner in zip(caches, ("", "numba"), strict=True):
        if cache:
            place = Path(cache).expanduser() / inner
            places[place] = [place / name for name in names]
    for place, directories in places.items():
        files = [file for each in directories for file in _children(each) if file.suffix in COMPILED]
        if files:
            states = [file.stat() for file in files]
            used = max(max(state.st_atime, state.st_mtime) for state in states)
            num_bytes = sum(state.st_size for state in states)
            yield CompiledKernels(KERNELS, "compiled", place, num_bytes, used, tuple(files))


def _children(path: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path.iterdir())
    return []


def run_cache(arguments: argparse.Namespace) -> int:
    """List what is in the cache, or remove it."""
    kernels = list(kernel_entries())
    # all of the cache is made or fetched again when it is needed; to compile takes minutes, and goes when it is named
    is_named = KERNELS in arguments.names or not arguments.clear
    entries = _chosen([*cache_entries(), *(kernels if is_named else [])], arguments.names)
    if arguments.unused is not None:
        entries = [each for each in entries if each.used < time.time() - arguments.unused * DAY]
    if arguments.clear:
        return _clear(arguments, entries)
    if arguments.json:
        for each in entries:
            print(json.dumps(_record(each)))
        return 0
    place = cache_directory()
    compiled = [each for each in entries if isinstance(each, CompiledKernels)]
    entries = [each for each in entries if not isinstance(each, CompiledKernels)]
    if entries or not arguments.names:
        print_folded(f"{place}: {_size(entries)}")
    rows = [
        [each.format, each.name, human_bytes(each.num_bytes), datetime.fromtimestamp(each.used).strftime("%Y-%m-%d")]
        for each in entries
    ]
    if rows:
        for line in lay_out(["format", "name", "size", "last used"], rows, right={"size"}, width=width_of()):
            print_cut(line)
    for found in compiled:
        print_folded(
            f"{found.path}: compiled kernels, {counted(len(found.files), 'file')}, {human_bytes(found.num_bytes)}"
        )
    return 0


def _chosen(entries: list[CacheEntry], names: list[str]) -> list[CacheEntry]:
    """Return the entries of the given formats and names."""
    known = {name for each in entries for name in (each.format, each.name)}
    unknown = [name for name in names if name not in known]
    if unknown:
        there = f"There are: {', '.join(sorted(known))}." if known else "It is empty."
        raise StepwellError(f"{unknown[0]!r} is not in the cache.{did_you_mean(unknown[0], known)} {there}")
    return [each for each in entries if not names or {each.format, each.name} & set(names)]


def _clear(arguments: argparse.Namespace, entries: list[CacheEntry]) -> int:
    if entries and not arguments.yes:
        ask(
            arguments.parser,
            f"Remove {_size(entries)} from {_places(entries)}? They are made or fetched again when needed.",
        )
    removed = [each for each in entries if each.remove()]
    kept = [each for each in entries if each not in removed]
    if arguments.json:
        print(json.dumps({"removed": list(map(_record, removed)), "in_use": list(map(_record, kept))}))
        return 0
    print_folded(f"{_size(removed)} removed")
    for each in kept:
        print_folded(f"in use, and kept: {each.format} {each.name}")
    return 0


def _places(entries: Iterable[CacheEntry]) -> str:
    found = [each.path if isinstance(each, CompiledKernels) else cache_directory() for each in entries]
    return " and ".join(dict.fromkeys(map(str, found)))


def _size(entries: Iterable[CacheEntry]) -> str:
    sizes = [each.num_bytes for each in entries]
    return f"{counted(len(sizes), 'item')}, {human_bytes(sum(sizes))}"


def _record(entry: CacheEntry) -> dict[str, object]:
    return {
        "format": entry.format,
        "name": entry.name,
        "path": str(entry.path),
        "num_bytes": entry.num_bytes,
        "used": entry.used,
    }
