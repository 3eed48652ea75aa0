"""Following a store's directory: which segments came, went or were sealed since the last look.

A directory that did not change is recognised by its time of change, so that a refresh costs a few calls of the system.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from stepwell.schema import Schema
from stepwell.store.beneath import UNKNOWN, mtime, trusted_mtime
from stepwell.store.layout import DELETED, SEGMENTS, name_of_key, without
from stepwell.store.maintenance import read_deleted
from stepwell.store.manifests import StoreManifest, shown_keys
from stepwell.store.marks import Marks
from stepwell.store.records import StoreRecord
from stepwell.store.ring import RingCut
from stepwell.store.segments import Segment
from stepwell.store.snapshot import (
    NO_TABLE,
    TABLE,
    MetadataLines,
    SegmentList,
    Snapshot,
    open_segment,
    read_table,
    replace_table,
)

__all__ = ["Follower"]

Int64s = npt.NDArray[np.int64]
MAX_LISTINGS = 100


class Follower:
    """The segments of a store with one schema, as of the last refresh."""

    def __init__(self, path: str, record: StoreRecord, marks: Marks) -> None:
        self._path, self._marks = path, marks
        self._schema, self._capacity = record.schema, record.capacity
        # read one by one: live ones, and those that the store's table does not know
        self._segments: dict[str, Segment] = {}
        self._table, self._table_time = NO_TABLE, 0
        # segments of the table: those that were made, and those that went
        self._made: dict[int, Segment] = {}
        self._gone: set[int] = set()
        # of the segments, in their order and ascending
        self._keys = self._ascending = np.empty(0, np.int64)
        self._manifest = StoreManifest()
        self._listed: Set[str] = frozenset()
        self._listed_time = self._deleted_time = UNKNOWN
        self._deleted = np.empty(0, np.int64)
        self._metadata = MetadataLines()
        # the segments of the last snapshot, while none came or went
        self._listing: SegmentList | None = None
        self._live: list[Segment] = []
        self._ring: RingCut | None = None
        self._slots = np.empty(0, np.int64)

    def refresh(self) -> bool:
        """Look for changes; return whether there are any."""
        changed = False
        if self._listed_time == UNKNOWN or mtime(f"{self._path}/{SEGMENTS}") != self._listed_time:
            changed = self._list_segments()
        for segment in self._live:
            changed |= self._refresh_segment(segment)
        if self._deleted_time == UNKNOWN or mtime(f"{self._path}/{DELETED}") != self._deleted_time:
            changed |= self._read_deleted()
        before, self._marks = self._marks, self._marks.refreshed()
        return changed or self._marks is not before

    def take_record(self, record: StoreRecord) -> None:
        """Take note of a record with the same schema."""
        if self._marks.record not in (None, record):
            self._marks = self._marks.with_record(record)

    @property
    def marks(self) -> Marks:
        """The marks of episodes, as of the last refresh."""
        return self._marks

    def snapshot(self) -> Snapshot:
        """Return the segments as they are now; all that is shown follows from it."""
        ring = None if self._capacity is None else self._followed_ring()
        segments = self._listing
        if segments is None:
            own = {segment.key: segment for segment in self._segments.values()}
            is_there = self._in_table(self._keys)
            if not is_there.all():
                is_there |= np.isin(self._keys, np.fromiter(own, np.int64, len(own)))
            segments = SegmentList(self._path, self._schema, self._keys[is_there], own, self._table, self._made)
            self._listing = segments
            if ring is not None:
                self._slots = ring.slots(own[key].name for key in segments.keys.tolist())
        first_rows = None if ring is None else ring.first_rows(self._slots)
        self._live = [segment for _, segment in segments.open if not segment.is_sealed]
        return Snapshot(segments, self._deleted, self._metadata, self.marks, first_rows)

    def segments_of(self, key: str) -> tuple[list[str], int]:
        """Return the names of a writer's segments, and how often the segments had been rearranged."""
        found = {*self._table.with_text(key).tolist(), *self._manifest.segments_of(key)}
        found.update(segment for segment, text in self._written().items() if text == key)
        gone = without(np.array(list(found), np.int64), self._ascending)
        return [name_of_key(segment) for segment in found.difference(gone.tolist())], self._manifest.sequence

    def save_table(self) -> bool:
        """Replace the table of sealed segments where it lacks many; return whether it did."""
        # episodes of lanes do not follow each other, as those of a table do
        there = self._segments.values()
        sealed = {segment.key: segment for segment in there if segment.is_sealed and not segment.has_lanes}
        if self._capacity is not None or not self._table.is_behind(len(sealed)):
            return False
        known = self._keys[self._in_table(self._keys)]
        keys = np.union1d(known, np.fromiter(sealed, np.int64, len(sealed)))
        records, counts = SegmentList(self._path, self._schema, keys, sealed, self._table, {}).records()
        written = {key: text for key, text in self._written().items() if key in sealed}
        self._table = replace_table(self._path, keys, counts, records, self._table.texts_of(known) | written)
        self._table_time = mtime(f"{self._path}/{TABLE}")
        self._made.update(sealed)
        self._gone.difference_update(sealed)
        for segment in sealed.values():
            del self._segments[segment.name]
        self._listing = None
        return True

    def _refresh_segment(self, segment: Segment) -> bool:
        try:
            return segment.refresh()
        except FileNotFoundError:
            return self._forget(segment.name)

    def _forget(self, name: str) -> bool:
        """Leave out a segment that is gone; the directory is looked at again at the next refresh."""
        self._listed_time, self._listing = UNKNOWN, None
        return self._segments.pop(name, None) is not None

    def _list_segments(self) -> bool:
        """List the directory; True when segments came, went or were sealed."""
        changed = False
        for _ in range(MAX_LISTINGS):
            changed |= self._list_once()
            if self._segments.keys() >= self._listed:
                break
        return changed

    def _list_once(self) -> bool:
        """List the directory; a segment that goes before it is opened is left out, for another look."""
        self._listed_time, self._listing = trusted_mtime(f"{self._path}/{SEGMENTS}"), None
        before, manifest = self._keys, self._manifest
        keys, opened, self._manifest = shown_keys(self._path)
        if self._schema is None:
            keys = opened = keys[:0]
        changed = not self._manifest.has_order_of(manifest)
        if self._table is not NO_TABLE:
            # a name that comes again may be of another segment than the table's
            self._gone.update(without(self._ascending, keys).tolist())
        self._ascending = keys
        found, is_open = self._not_in_table(keys), set(opened.tolist())
        self._listed = found.keys()
        for name in self._segments.keys() - found.keys():
            segment = self._segments.pop(name)
            if segment.is_sealed:
                # in the table by now, if it is there: readers that hold maps of it go on using them
                self._made[segment.key] = segment
        if not self._gone.isdisjoint(self._made):
            self._made = {key: segment for key, segment in self._made.items() if key not in self._gone}
        for name, key in found.items():
            if name not in self._segments and self._schema is not None:
                changed |= self._add_segment(name, key not in is_open, self._schema)
        self._keys = self._manifest.ordered(keys, self._table, self._written())
        return changed or not np.array_equal(self._keys, before)

    def _add_segment(self, name: str, is_sealed: bool, schema: Schema) -> bool:
        found = open_segment(f"{self._path}/{SEGMENTS}/{name}", schema, is_sealed=is_sealed)
        if found is None:
            self._listed_time = UNKNOWN
            return False
        self._segments[name] = found
        return True

    def _not_in_table(self, keys: Int64s) -> dict[str, int]:
        """Return the segments that are read one by one, by name; the table is read again where that is worth it."""
        if self._capacity is not None:
            return {name_of_key(key): key for key in keys.tolist()}
        missing = keys[~self._in_table(keys)]
        stamp = mtime(f"{self._path}/{TABLE}")
        if stamp != self._table_time and self._table.is_behind(len(missing) - len(self._segments)):
            self._table_time, self._table = stamp, read_table(self._path)
            missing = keys[~self._in_table(keys)]
        return {name_of_key(key): key for key in missing.tolist()}

    def _in_table(self, keys: Int64s) -> npt.NDArray[np.bool_]:
        """Return which segments are those of the table."""
        if self._table is NO_TABLE:
            return np.zeros(len(keys), np.bool_)
        found = self._table.find(keys) >= 0
        return found & ~np.isin(keys, np.fromiter(self._gone, np.int64, len(self._gone))) if self._gone else found

    def _written(self) -> dict[int, str]:
        """Return the keys of writers that segments say themselves; the table has those of others."""
        return {segment.key: segment.note.key for segment in self._segments.values() if segment.note is not None}

    def _read_deleted(self) -> bool:
        """Read the list of deleted episodes again; True when it is another one."""
        self._deleted_time = trusted_mtime(f"{self._path}/{DELETED}")
        before = self._deleted
        self._deleted = read_deleted(self._path) if self._deleted_time else np.empty(0, np.int64)
        return not np.array_equal(before, self._deleted)

    def _followed_ring(self) -> RingCut | None:
        """Return what a ring shows of its segments; those that went meanwhile are left out."""
        if self._capacity is None or self._schema is None:
            return None
        ring = self._ring = self._ring or RingCut(self._capacity, self._schema)
        for segment in list(self._segments.values()) if self._listing is None else self._live:
            try:
                ring.follow(segment)
            except FileNotFoundError:
                self._forget(segment.name)
        if self._listing is None:
            ring.forget(ring.names - self._segments.keys())
        ring.move()
        return ring
