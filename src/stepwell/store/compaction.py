"""Compaction: sealed segments with deleted or discarded episodes, and runs of small ones, are written anew.

A ring is not written anew, since what is deleted or discarded in it counts until its time comes: what is wholly beyond
its capacity is removed.

::

    copy what is kept into staging/     →  arrangement.json: the new ones are hidden
    rename them into segments/          →  arrangement.json: the old ones are hidden   <- the swap, one rename
    remove the old ones                 →  arrangement.json: nothing is hidden

Whoever finds hidden segments without a live owner removes them: before the swap that undoes the compaction, after it
that finishes it. See design/002-compaction.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.json_text import seal_json
from stepwell.schema import Schema
from stepwell.store.bulk_writing import KeptEpisodes, merge_segments
from stepwell.store.deletion import moved_ids, read_deleted, replace_deleted
from stepwell.store.ids import split_id, step_id
from stepwell.store.layout import (
    SEGMENTS,
    STORE_JSON,
    list_segments,
    locked_store,
    new_tag,
    replace_file,
    reserve_ordinals,
    sync_directory,
)
from stepwell.store.maintenance import maintained_store
from stepwell.store.manifests import ordered_segments, read_store_manifest, replace_store_manifest
from stepwell.store.records import BirthLog, read_record, runs_of
from stepwell.store.sealing import recover_store
from stepwell.store.segments import Segment

if TYPE_CHECKING:
    from stepwell.store.store import Store

__all__ = ["compact_store"]

Ids = npt.NDArray[np.int64]
SMALL_PART = 4


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Old segments, and the new one in their place."""

    sources: Sequence[KeptEpisodes]
    ordinal: int
    name: str
    num_bytes: int
    moved: tuple[Ids, Ids, Ids]  # of the kept episodes: first steps' ids before, steps, first steps' ids after

    @property
    def has_episodes(self) -> bool:
        return len(self.moved[0]) > 0


def compact_store(store: Store, *, progress: Callable[[int, int], None] | None = None) -> int:
    """Free the space of deleted and discarded episodes, and merge neighbouring small segments.

    Of a ring, remove the segments that are wholly beyond its capacity.

    Args:
        store: open for writing. Writers may go on; their open segments are left alone.
        progress: called with (segments done, segments in all).

    Returns:
        By how many bytes the store is smaller.

    Raises:
        StoreBusyError: a column is being added, or another process compacts.
        DiskFullError: no space for the new segments; the store is as before.
        CorruptSegmentError: a segment that was to be written anew is damaged; the store is as before.
    """
    store.check_writable("compact it")
    store.refresh()
    path, schema = str(store.path), store.schema
    if schema is None:
        return 0
    recover_store(path, schema)
    if store.capacity is not None:
        return _evict(store)
    try:
        with maintained_store(path) as staging:
            replaced = _build(path, staging, schema, store.record.segment_bytes, progress)
            old = [source.segment for one in replaced for source in one.sources]
            freed = sum(_directory_bytes(str(segment.path)) for segment in old) - sum(one.num_bytes for one in replaced)
            if replaced:
                _swap(path, staging, replaced)
    finally:
        # also where the swap was made, and something failed after it
        store.refresh()
    return freed


def _evict(store: Store) -> int:
    """Remove what a ring does not show any more; returns the bytes freed."""
    store.refresh()
    sizes = {}
    for segment in store.segments:
        # a writer may remove it just now
        with suppress(FileNotFoundError):
            sizes[segment.name] = _directory_bytes(str(segment.path))
    gone = store.evictor.evict()
    store.refresh()
    return sum(sizes.get(name, 0) for name in gone)


def _build(
    path: str, staging: str, schema: Schema, segment_bytes: int, progress: Callable[[int, int], None] | None
) -> list[_Replacement]:
    """Write all new segments into the staging directory."""
    with locked_store(path) as lock:
        groups = _plan(path, schema, segment_bytes)
        first = reserve_ordinals(path, lock, len(groups)) if groups else 0
    built = []
    for number, group in enumerate(groups):
        built.append(_build_one(staging, schema, group, first + number))
        if progress is not None:
            progress(number + 1, len(groups))
    return built


def _build_one(staging: str, schema: Schema, sources: Sequence[KeptEpisodes], ordinal: int) -> _Replacement:
    name = f"{ordinal:08d}-{new_tag()}"
    before = np.concatenate([_first_ids(one.segment.ordinal, one.records) for one in sources])
    if len(before) == 0:
        return _Replacement(sources, ordinal, name, 0, (before, before, before))
    records = merge_segments(f"{staging}/{name}", schema, sources)
    moved = before, records["length"].copy(), _first_ids(ordinal, records)
    return _Replacement(sources, ordinal, name, _directory_bytes(f"{staging}/{name}"), moved)


def _plan(path: str, schema: Schema, segment_bytes: int) -> list[list[KeptEpisodes]]:
    """Return the groups of neighbouring segments that become one new segment each."""
    shown, manifest = ordered_segments(path)
    hidden = read_deleted(path)
    groups: list[list[KeptEpisodes]] = []
    run: list[KeptEpisodes] = []
    run_bytes, run_key = 0, ""
    for name, (_, is_sealed) in shown.items():
        source = None
        if is_sealed:
            source = _source(f"{path}/{SEGMENTS}/{name}", schema, hidden, manifest.keys.get(name, ""))
        size = 0 if source is None else _kept_bytes(source, schema)
        is_large = size * SMALL_PART >= segment_bytes or run_bytes >= segment_bytes
        key = "" if source is None else source.key
        if source is None or is_large or key != run_key:
            groups.append(run)
            run, run_bytes, run_key = [], 0, key
        if source is not None:
            run.append(source)
            # one that is large ends its run at once
            run_bytes += size if size * SMALL_PART < segment_bytes else segment_bytes
    groups.append(run)
    return [group for group in groups if len(group) > 1 or (group and not group[0].kept.all())]


def _source(directory: str, schema: Schema, hidden: Ids, key: str) -> KeptEpisodes:
    segment = Segment(directory, schema)
    is_hidden = np.isin(_first_ids(segment.ordinal, segment.records), hidden)
    kept = ~segment.records["discarded"] & ~is_hidden
    return KeptEpisodes(segment, kept, key if segment.note is None else segment.note.key)


def _first_ids(ordinal: int, records: npt.NDArray[Any]) -> Ids:
    return step_id(np.full(len(records), ordinal, np.int64), records["start"])


def _kept_bytes(source: KeptEpisodes, schema: Schema) -> int:
    """Return the bytes of the columns' kept rows, about; what a writer compares with ``segment_bytes``."""
    path, total = str(source.segment.path), 0
    for name, feature in schema.items():
        for file in (f"{name}.npy",) if feature.is_raw else (f"{name}.npy", f"{name}.bin"):
            total += os.stat(f"{path}/{file}").st_size
    return total * source.num_rows // max(1, source.segment.num_rows)


def _swap(path: str, staging: str, replaced: Sequence[_Replacement]) -> None:
    """Show the new segments instead of the old ones; the old ones are removed when the staging directory is."""
    new = [one for one in replaced if one.has_episodes]
    positions = dict(read_store_manifest(path).positions)
    with locked_store(path):
        replace_store_manifest(path, positions, [one.name for one in new])
        _carry_births(path, new)
    for one in new:
        os.rename(f"{staging}/{one.name}", f"{path}/{SEGMENTS}/{one.name}")
    sync_directory(f"{path}/{SEGMENTS}")
    for one in new:
        first = one.sources[0].segment
        positions[one.name] = positions.get(first.name, first.ordinal)
    with locked_store(path):
        _carry_deletions(path, new)
        old = [source.segment.name for one in replaced for source in one.sources]
        replace_store_manifest(path, positions, old)


def _carry_births(path: str, new: Sequence[_Replacement]) -> None:
    """Take note of where the episodes of new segments were first written, if any were in another store."""
    record = read_record(path)
    if not record.births or not new:
        return
    there = np.array([ordinal for ordinal, _ in list_segments(path).values()], np.int64)
    log = BirthLog.continued(record, there)
    for one in new:
        parts = [(record, source.segment.ordinal, np.flatnonzero(source.kept)) for source in one.sources]
        log.add(one.ordinal, runs_of(parts))
    record = replace(record, births=log.end(new[-1].ordinal + 1))
    replace_file(f"{path}/{STORE_JSON}", seal_json(record.to_json()))


def _carry_deletions(path: str, new: Sequence[_Replacement]) -> None:
    """Delete anew, under its new id, what was deleted while it was being copied; forget ids of segments long gone."""
    deleted = read_deleted(path)
    if len(deleted) == 0:
        return
    # those of the old segments stay until the next time: a reader may still have the old segments listed
    there = np.array([ordinal for ordinal, _ in list_segments(path).values()], np.int64)
    kept = deleted[np.isin(split_id(deleted)[0], there)]
    moved = [moved_ids(deleted, *one.moved) for one in new]
    replace_deleted(path, np.concatenate([kept, *moved]))


def _directory_bytes(path: str) -> int:
    with os.scandir(path) as entries:
        return sum(entry.stat().st_size for entry in entries)
