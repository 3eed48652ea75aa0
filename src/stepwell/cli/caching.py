"""``stepwell cache``: what lies in the cache of data sets that are read in place or fetched; clearing it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from datetime import datetime

from stepwell.cli.terminal import ask, lay_out, print_cut, print_folded, width_of
from stepwell.errors import StepwellError, did_you_mean
from stepwell.files.addresses import cache_directory
from stepwell.formats.cache import CacheEntry, cache_entries
from stepwell.sizes import counted, human_bytes

__all__ = ["run_cache"]

DAY = 24 * 3600.0


def run_cache(arguments: argparse.Namespace) -> int:
    """List what is in the cache, or remove it."""
    entries = _chosen(cache_entries(), arguments.names)
    if arguments.unused is not None:
        entries = [each for each in entries if each.used < time.time() - arguments.unused * DAY]
    if arguments.clear:
        return _clear(arguments, entries)
    if arguments.json:
        for each in entries:
            print(json.dumps(_record(each)))
        return 0
    place = cache_directory()
    print_folded(f"{place}: {_size(entries)}")
    rows = [
        [each.format, each.name, human_bytes(each.num_bytes), datetime.fromtimestamp(each.used).strftime("%Y-%m-%d")]
        for each in entries
    ]
    if rows:
        for line in lay_out(["format", "name", "size", "last used"], rows, right={"size"}, width=width_of()):
            print_cut(line)
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
            f"Remove {_size(entries)} from {cache_directory()}? They are made or fetched again when needed.",
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
