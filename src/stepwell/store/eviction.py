"""Eviction: a ring's segments that lie wholly beyond its capacity are removed: sealed ones, and those of dead writers.

Under the store's lock, as whatever changes which segments there are, a segment is renamed to ``.new-NAME``, which
nobody takes for one; then its files are unlinked. Who maps them keeps valid bytes. What a kill leaves between the two
is removed by the next eviction, or when the store is opened for writing.

A sealed segment whose stamps or records are not what its manifest says is never removed, and pushes nothing out: it
stays until ``stepwell verify`` is asked.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.schema import Schema
from stepwell.store.arrangement import shown_segments
from stepwell.store.beneath import check_directory, list_directory
from stepwell.store.clock import LATEST
from stepwell.store.commit import CommitRecord
from stepwell.store.ids import step_id
from stepwell.store.layout import (
    CLOCK,
    EPISODES,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENT_JSON,
    SEGMENTS,
    locked_store,
    sync_directory,
)
from stepwell.store.maintenance import is_maintained
from stepwell.store.manifests import read_manifest
from stepwell.store.records import Capacity, read_record
from stepwell.store.ring import RingCut
from stepwell.store.sealing import file_checksum
from stepwell.store.segments import Segment

__all__ = ["Evictor", "evicted_ids"]

Int64s = npt.NDArray[np.int64]


class Evictor:
    """Remove what a ring does not show any more.

    Args:
        store: path of the store.

    Notes:
        Safe in any number of processes and threads at once. Follows the segments from one time to the next.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._schema: Schema | None = None
        self._followed: _EndedSteps | None = None

    def evict(self) -> list[str]:
        """Remove the segments that are wholly beyond the capacity; returns their names.

        Nothing is done while a column is added or the store is compacted: the next time will do. Steps of open
        episodes push no file out, since a loss of power may take them.

        Raises:
            CorruptSegmentError: a segment's records are damaged.
        """
        record = read_record(self._store)
        if record.capacity is None or record.schema is None:
            return []
        with locked_store(self._store):
            if is_maintained(self._store):
                return []
            if self._followed is None or record.schema != self._schema:
                self._schema, self._followed = record.schema, _EndedSteps(self._store, record.schema, record.capacity)
            gone = [segment.name for segment in self._followed.look() if self._rename(segment)]
            if gone:
                # first their names: one that came back after a loss of power would lack files
                sync_directory(self._path("").rstrip("/"))
            # under the lock nobody makes a segment, so all there are were left by others
            left = [entry for entry in list_directory(self._path("").rstrip("/")) if entry.startswith(NEW_PREFIX)]
        for entry in left:
            shutil.rmtree(self._path(entry), ignore_errors=True)
        return gone

    def _path(self, name: str) -> str:
        return f"{self._store}/{SEGMENTS}/{name}"

    def _rename(self, segment: Segment) -> bool:
        """Take a segment out of the store; False where its writer is alive, or recorded more since it was looked at."""
        name, path = segment.name, self._path(segment.name)
        try:
            if segment.is_sealed:
                check_directory(path)
                os.rename(path, self._path(NEW_PREFIX + name))
                return True
            check_directory(path + OPEN_SUFFIX)
            progress = CommitRecord.take_over(f"{path}{OPEN_SUFFIX}/{PROGRESS}")
        except FileNotFoundError:
            # whoever seals it is about to rename it, or has
            return False
        if progress is None:
            return False
        try:
            if progress.is_sealed or (progress.rows, progress.episodes) != (segment.num_rows, len(segment.records)):
                return False
            os.rename(path + OPEN_SUFFIX, self._path(NEW_PREFIX + name))
        except FileNotFoundError:
            # whoever opened the store just now has sealed it
            return False
        finally:
            progress.close()
        return True


class _EndedSteps:
    """Where a ring of ended episodes begins, as it is on the disk.

    Args:
        store: path of the store.
        schema: its features.
        capacity: its capacity.
    """

    def __init__(self, store: str, schema: Schema, capacity: Capacity) -> None:
        self._store, self._schema = store, schema
        self._cut = RingCut(capacity, schema, counts_open=False)
        self.segments: dict[str, Segment] = {}
        # of sealed ones: whether they are what their manifests say
        self._is_sound: dict[str, bool] = {}

    def look(self) -> list[Segment]:
        """Look at the store's segments; return those of which nothing is within the capacity.

        The caller keeps segments from going.
        """
        found: dict[str, Segment] = {}
        for name, (_, is_sealed) in shown_segments(self._store)[0].items():
            segment = self._refreshed(name, is_sealed)
            if segment is not None and self._follow(segment):
                found[name] = segment
        self.segments = found
        self._is_sound = {name: is_sound for name, is_sound in self._is_sound.items() if name in found or not is_sound}
        self._cut.forget(self._cut.names - found.keys())
        self._cut.move()
        return [segment for segment in found.values() if self._is_gone(segment)]

    def first_row(self, name: str) -> int:
        """Return the first row of a segment that is within the capacity."""
        return self._cut.first_row(name)

    def _refreshed(self, name: str, is_sealed: bool) -> Segment | None:
        known = self.segments.get(name)
        if known is None:
            return _open(f"{self._store}/{SEGMENTS}/{name}", self._schema, is_sealed)
        try:
            known.refresh()
        except FileNotFoundError:
            return None
        return known

    def _follow(self, segment: Segment) -> bool:
        """Take a segment in; False for one that is damaged, or went."""
        name = segment.name
        if segment.is_sealed and name not in self._is_sound:
            self._is_sound[name] = _is_sound(segment)
        if not self._is_sound.get(name, True):
            return False
        try:
            self._cut.follow(segment)
        except FileNotFoundError:
            return False
        return True

    def _is_gone(self, segment: Segment) -> bool:
        num_rows = segment.num_rows
        if not num_rows or self._cut.first_row(segment.name) < num_rows or self._cut.is_needed(segment.name):
            return False
        return segment.is_sealed or _rises(segment)


def _is_sound(segment: Segment) -> bool:
    """Whether the files that say how old a sealed segment is, and what in it counts, are what its manifest says."""
    try:
        files = read_manifest(f"{segment.path}/{SEGMENT_JSON}")["files"]
        return all(_is_as_listed(f"{segment.path}/{name}", files[name]) for name in (EPISODES, CLOCK) if name in files)
    except (CorruptSegmentError, OSError):
        return False


def _is_as_listed(path: str, entry: dict[str, Any]) -> bool:
    num_bytes, checksum = file_checksum(path)
    return {"bytes": num_bytes, "crc32": f"{checksum:08x}"} == entry


def _rises(segment: Segment) -> bool:
    """Whether the stamps of a segment that has no checksums yet can be true."""
    clock = segment.clock_map()
    if clock is None:
        return True
    stamps = clock[: segment.num_rows]
    return bool(stamps[0] >= 0 and stamps[-1] < LATEST and (stamps[1:] >= stamps[:-1]).all())


def evicted_ids(store: str) -> Int64s:
    """Return the ids that hide, in another store of a ring's segments, what it has evicted, as it is on the disk.

    Those of the first steps of episodes that lie wholly beyond the capacity, and of the first ones within it of the
    rest; see `stepwell.store.deletion`.

    Args:
        store: path of the store; the caller keeps segments from going. None are found if it is no ring.
    """
    record = read_record(store)
    found = [np.empty(0, np.int64)]
    if record.capacity is not None and record.schema is not None:
        ended = _EndedSteps(store, record.schema, record.capacity)
        ended.look()
        for name, segment in ended.segments.items():
            records, first = segment.records, ended.first_row(name)
            starts = records["start"][records["start"] < first]
            ends = (records["start"] + records["length"])[: len(starts)]
            rows = np.where(ends <= first, starts, first)
            found.append(step_id(np.full(len(rows), segment.ordinal, np.int64), rows))
    return np.concatenate(found)


def _open(base: str, schema: Schema, is_sealed: bool) -> Segment | None:
    for suffix in ("", OPEN_SUFFIX) if is_sealed else (OPEN_SUFFIX, ""):
        try:
            return Segment(base + suffix, schema)
        except FileNotFoundError:
            continue
    return None
