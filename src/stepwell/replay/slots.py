"""Slots: a fixed number of places for steps, written round and round, as replay buffers of other libraries have them.

::

    slot      0    1    2    3           a buffer's own numbers, which its samplers draw
    _rows   | s5 | s6 | s3 | s4 |        the segment and the row of a step of a ring; -1: none yet
    read    (2, 0) --> one read of fields at two anchors --> arrays [2, ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.places import EPISODE, HI_FINAL, HI_STEP, LO, PLACE_ROWS, ROW, SEGMENT
from stepwell.kernels.signatures import load_kernels
from stepwell.store import Store
from stepwell.store.layout import MAX_ROWS, ROW_BITS, SEGMENTS, split_id
from stepwell.store.manifests import shown_segments
from stepwell.store.snapshot import open_segment
from stepwell.windows.reader import PlaceReader

__all__ = ["RingSegments", "Slots"]

Int64s = npt.NDArray[np.int64]
# what the first steps and samples call
KERNELS = [
    "stepwell.kernels.gather.touch_and_gather",
    "stepwell.store.lane_kernels.append_lane_steps",
    "stepwell.store.lane_kernels.append_lanes",
]


class Slots:
    """Keep which step of a ring each slot holds, and read fields at them; the steps are of one vector writer."""

    def __init__(self, store: Store, num_slots: int, fields: Mapping[str, Any]) -> None:
        load_kernels(KERNELS)
        self._segments = RingSegments(store)
        self._reader = PlaceReader([self._segments], fields)
        self._num_rows = 1 + self._reader.max_offset
        # and slot -1, which has none
        self._rows = np.full(num_slots + 1, -1, np.int64)

    def put(self, slots: slice | Int64s, ids: Int64s) -> None:
        """Let slots (a slice, or int64 [n]) hold the steps of ids (int64 [n], as they came), which the ring keeps.

        Those of steps that were dropped, whose id is -1, hold none.
        """
        if ids.min(initial=0) < 0:
            self._rows[slots] = -1
            slots, ids = np.arange(len(self._rows))[slots][ids >= 0], ids[ids >= 0]
        if len(ids):
            self._rows[slots] = self._found(ids)

    def _found(self, ids: Int64s) -> Int64s:
        """Return number of the segment, and row, of each of some steps."""
        first, last = int(ids[0]) >> ROW_BITS, int(ids[-1]) >> ROW_BITS
        segments = self._segments
        if last >= len(segments.numbers):
            segments.take(np.unique(ids >> ROW_BITS).tolist())
        if first == last:
            # steps that came at once are those of one segment, nearly always
            return ids + (int(segments.numbers[first]) - first << ROW_BITS)
        ordinals, rows = split_id(ids)
        found: Int64s = segments.numbers.take(ordinals) << ROW_BITS | rows
        return found

    def read(self, slots: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Return the fields at slots (int64 [n]) as new arrays [n, ...]; zeros for -1, and where no step was put."""
        found = self._rows.take(slots)
        if not len(found) or found.min() >= 0:
            return self._read(found)
        is_there = found >= 0
        values = {}
        for key, rows in self._read(found[is_there]).items():
            values[key] = np.zeros((len(found), *rows.shape[1:]), rows.dtype)
            values[key][is_there] = rows
        return values

    def _read(self, found: Int64s) -> dict[str, npt.NDArray[Any]]:
        places = np.empty((PLACE_ROWS, len(found)), np.int64)
        places[EPISODE] = -1
        np.right_shift(found, ROW_BITS, out=places[SEGMENT])
        np.bitwise_and(found, MAX_ROWS - 1, out=places[ROW])
        places[LO] = places[ROW]
        np.add(places[ROW], self._num_rows, out=places[HI_STEP])
        places[HI_FINAL] = places[HI_STEP]
        return self._reader.read_places([places])


class RingSegments:
    """The segments that hold a vector writer's steps: a source of places without episodes.

    Their files have all rows from the beginning, so that only segments that come and go are looked at.
    """

    chains = None
    is_live = is_ring = True

    def __init__(self, store: Store) -> None:
        self.stores = (store,)
        self.segments: list[Any] = []
        # the number of each ordinal; -1: none
        self.numbers: Int64s = np.empty(0, np.int64)
        self.revision = 0

    @property
    def segment_stores(self) -> Int64s:
        """Number of the store of each segment, int64 [S]: 0."""
        return np.zeros(len(self.segments), np.int64)

    @property
    def need_rows(self) -> Int64s:
        """Rows of each segment that may be read, int64 [S]; 0 for one that went."""
        return np.array([0 if segment is None else segment.num_rows for segment in self.segments], np.int64)

    def take(self, ordinals: list[int]) -> None:
        """Take in segments that have steps now, and let go of those that the ring removed."""
        store = self.stores[0]
        shown = {
            ordinal: (name, is_sealed) for name, (ordinal, is_sealed) in shown_segments(str(store.path))[0].items()
        }
        for ordinal in np.flatnonzero(self.numbers >= 0).tolist():
            if ordinal not in shown:
                self.segments[self.numbers[ordinal]] = None
                self.numbers[ordinal] = -1
        known = len(self.numbers)
        self.numbers = np.append(self.numbers, np.full(ordinals[-1] + 1 - known, -1))
        assert store.schema is not None
        for ordinal in ordinals:
            if ordinal >= known and ordinal in shown:
                name, is_sealed = shown[ordinal]
                segment = open_segment(f"{store.path}/{SEGMENTS}/{name}", store.schema, is_sealed=is_sealed)
                self.numbers[ordinal] = len(self.segments)
                self.segments.append(segment)
        self.revision += 1

    def describe(self, segment: int, row: int) -> str:
        """Return the store's path, segment and row, for people."""
        name = getattr(self.segments[segment], "name", "that went")
        return f"{self.stores[0].path}, row {row} of segment {name}"

    def compute(self, name: str, places: Int64s, rows: Int64s) -> npt.NDArray[Any]:
        """Refuse a computed column: it follows from episodes."""
        raise WindowError(
            f"{name!r} follows from episodes, and steps by slots have none. Read it by a Table or a view."
        )
