"""Eviction: a ring's sealed segments that lie wholly beyond its capacity are removed.

Under the store's lock, as whatever changes which segments there are, a segment is renamed to ``.new-NAME``, which
nobody takes for one; then its files are unlinked. Who maps them keeps valid bytes. What a kill leaves between the two
is removed by the next eviction, or when the store is opened for writing.
"""

from __future__ import annotations

import os
import shutil

import numpy as np
import numpy.typing as npt

from stepwell.schema import Schema
from stepwell.store.arrangement import arranged_segments
from stepwell.store.beneath import check_directory, list_directory
from stepwell.store.capacity import Capacity
from stepwell.store.deletion import read_deleted
from stepwell.store.ids import step_id
from stepwell.store.layout import NEW_PREFIX, OPEN_SUFFIX, SEGMENTS, locked_store
from stepwell.store.maintenance import is_maintained
from stepwell.store.records import read_record
from stepwell.store.ring import ShownRows, visible_from
from stepwell.store.segments import Segment

__all__ = ["Evictor", "evicted_ids"]

Int64s = npt.NDArray[np.int64]


class Evictor:
    """Remove what a ring does not show any more.

    Args:
        store: path of the store.

    Notes:
        Safe in any number of processes at once. Keeps the records of sealed segments from one time to the next.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._known: dict[str, Segment] = {}

    def evict(self) -> list[str]:
        """Remove the segments that are wholly beyond the capacity; returns their names.

        Nothing is done while a column is added or the store is compacted: the next time will do. Steps of open
        episodes push nothing out, since they may be taken back.

        Raises:
            CorruptSegmentError: a segment's records are damaged.
        """
        record = read_record(self._store)
        if record.capacity is None or record.schema is None:
            return []
        with locked_store(self._store):
            if is_maintained(self._store):
                return []
            names = self._wholly_gone(record.schema, record.capacity)
            for name in names:
                check_directory(self._path(name))
                os.rename(self._path(name), self._path(NEW_PREFIX + name))
            # under the lock nobody makes a segment, so all there are were left by others
            left = [entry for entry in list_directory(self._path("").rstrip("/")) if entry.startswith(NEW_PREFIX)]
        for entry in left:
            shutil.rmtree(self._path(entry), ignore_errors=True)
        return names

    def _path(self, name: str) -> str:
        return f"{self._store}/{SEGMENTS}/{name}"

    def _wholly_gone(self, schema: Schema, capacity: Capacity) -> list[str]:
        segments, firsts = first_rows(self._store, schema, capacity, self._known)
        self._known = {segment.name: segment for segment in segments if segment.is_sealed}
        return [
            segment.name
            for segment, first in zip(segments, firsts, strict=True)
            if first >= segment.num_rows and segment.name in self._known and os.path.isdir(self._path(segment.name))
        ]


def first_rows(
    store: str, schema: Schema, capacity: Capacity, known: dict[str, Segment] | None = None
) -> tuple[list[Segment], Int64s]:
    """Return the segments on the disk and the first row of each that is within the capacity, open episodes not counted.

    Args:
        store: path of the store; the caller keeps segments from going.
        schema: its features.
        capacity: its capacity.
        known: sealed segments by name, that need not be read again.
    """
    deleted = read_deleted(store)
    segments, shown = [], []
    for name, (_, is_sealed) in arranged_segments(store)[0].items():
        segment = (known or {}).get(name) or _open(f"{store}/{SEGMENTS}/{name}", schema, is_sealed)
        if segment is None:
            continue
        rows = ShownRows(segment, capacity, schema)
        rows.follow(deleted)
        rows.weight = rows.ended_weight
        segments.append(segment)
        shown.append(rows)
    return segments, visible_from(shown, capacity.amount)


def evicted_ids(store: str) -> Int64s:
    """Return the ids of the first steps of a ring's episodes that lie wholly beyond its capacity, as it is on the disk.

    Args:
        store: path of the store; none are found if it is no ring.
    """
    record = read_record(store)
    found = [np.empty(0, np.int64)]
    if record.capacity is not None and record.schema is not None:
        for segment, first in zip(*first_rows(store, record.schema, record.capacity), strict=True):
            records = segment.records
            starts = records["start"][records["start"] + records["length"] <= first]
            found.append(step_id(np.full(len(starts), segment.ordinal, np.int64), starts))
    return np.concatenate(found)


def _open(base: str, schema: Schema, is_sealed: bool) -> Segment | None:
    for suffix in ("", OPEN_SUFFIX) if is_sealed else (OPEN_SUFFIX, ""):
        try:
            return Segment(base + suffix, schema)
        except FileNotFoundError:
            continue
    return None
