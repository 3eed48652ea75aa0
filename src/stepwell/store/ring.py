"""What a ring shows: the newest steps of its segments that fit its capacity.

::

    by age      | segment 3, full    | segment 5, full   | segment 4, live |
    episodes    | e e e e d d f f f f | g g g - - h h h h | i i i i          d discarded: does not count
                            <--------------- capacity ---------------->
    shown               x x f f f f    g g g     h h h h   i i i i          the rest of e is gone, f's begins here

Full segments are as old as the end of their last episode, those that may still grow are the newest; equals go by
ordinal. So the segment of a slow actor is not thrown away for its low ordinal. Within a segment rows are in the order
of time.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.schema import Schema
from stepwell.store.capacity import Capacity, fixed_row_bytes
from stepwell.store.episodes import num_ended_rows
from stepwell.store.ids import step_id
from stepwell.store.segments import Segment

__all__ = ["SegmentLimit", "ShownRows", "visible_from"]

Int64s = npt.NDArray[np.int64]
START, LENGTH, STOP, WEIGHT = 0, 1, 2, 3
FIRST_EPISODES = 64
# a ring is made of about this many segments: what is evicted at a time is one of them
SHARE = 8
LEAST_ROWS, LEAST_BYTES = 1024, 1 << 20


class ShownRows:
    """How much of one segment counts against the capacity: all that is neither discarded nor deleted.

    Args:
        segment: followed by `follow`, after its own ``refresh``.
        capacity: in steps or in bytes.
        schema: the store's features.

    Attributes:
        weight: steps, or bytes, that count; the open episode's are in it.
        age: what segments sort by, the oldest first.

    Notes:
        For one thread. In bytes with encoded features it maps their offsets, and keeps the maps: it can be asked when
        the segment is gone.
    """

    __slots__ = (
        "_deleted",
        "_ended_rows",
        "_ended_weight",
        "_episodes",
        "_in_bytes",
        "_is_done",
        "_names",
        "_num_episodes",
        "_num_seen",
        "_offsets",
        "_row_bytes",
        "_segment",
        "age",
        "weight",
    )

    def __init__(self, segment: Segment, capacity: Capacity, schema: Schema) -> None:
        self._segment = segment
        self._in_bytes = capacity.unit == "bytes"
        self._row_bytes = fixed_row_bytes(schema)
        self._names = [name for name, feature in schema.items() if not feature.is_raw] if self._in_bytes else []
        self._offsets: list[npt.NDArray[np.uint64]] = []
        self._deleted: Int64s | None = None
        self._is_done = False
        self.weight = 0
        self.age: tuple[bool, int, int] = (False, 0, 0)

    def follow(self, deleted: Int64s) -> None:
        """Take in what the segment's last refresh brought; O(new), unless ``deleted`` is another array than before.

        Args:
            deleted: int64 [n], ids of the first steps of the store's deleted episodes.

        Raises:
            FileNotFoundError: the segment is gone, and its offsets are needed.
        """
        segment = self._segment
        if self._is_done and deleted is self._deleted:
            return
        if deleted is not self._deleted:
            self._deleted = deleted
            self._episodes = np.zeros((4, FIRST_EPISODES), np.int64)
            self._num_episodes = self._num_seen = self._ended_rows = self._ended_weight = 0
        if self._names and (not self._offsets or len(self._offsets[0]) <= segment.num_rows):
            self._offsets = [segment.offsets_map(name) for name in self._names]
        if len(segment.records) > self._num_seen:
            self._add(segment.records[self._num_seen :])
        self.weight, self._is_done = self._ended_weight, segment.is_sealed
        if not segment.is_sealed:
            self.weight += self._bytes_before(segment.num_rows) - self._bytes_before(self._ended_rows)
        last = int(segment.records["time_ns"][-1]) if segment.is_full and len(segment.records) else 0
        self.age = (not segment.is_full, last, segment.ordinal)

    @property
    def ended_weight(self) -> int:
        """What ended episodes weigh: never taken back, but by deleting them."""
        return self._ended_weight

    def first_row(self, excess: int) -> int:
        """Return the first row that is shown when the oldest ``excess`` steps, or bytes, are not.

        Args:
            excess: 0 or less: everything is shown; `weight` or more: nothing, and the number of rows is returned.
        """
        if excess <= 0:
            return 0
        if excess >= self.weight:
            return self._segment.num_rows
        count = self._num_episodes
        starts, lengths, stops, weights = self._episodes
        i = int(np.searchsorted(weights[:count], excess, side="right"))
        excess -= int(weights[i - 1]) if i else 0
        if i == count:
            start, stop = self._ended_rows, self._segment.num_rows
            return start + self._steps_of(start, stop - start, excess)
        start, length = int(starts[i]), int(lengths[i])
        steps = self._steps_of(start, length, excess)
        # a final row alone is nothing that one could begin at
        return start + steps if steps < length else int(stops[i])

    def _add(self, records: npt.NDArray[np.void]) -> None:
        """Count ended episodes that follow those counted before."""
        self._num_seen += len(records)
        self._ended_rows = num_ended_rows(records)
        is_shown = ~records["discarded"]
        if self._deleted is not None and len(self._deleted):
            ids = step_id(np.full(len(records), self._segment.ordinal, np.int64), records["start"])
            is_shown &= ~np.isin(ids, self._deleted)
        records = records[is_shown]
        known, count = self._num_episodes, self._num_episodes + len(records)
        if count > self._episodes.shape[1]:
            self._episodes = np.concatenate([self._episodes, np.zeros((4, max(count, FIRST_EPISODES)), np.int64)], 1)
        block = self._episodes[:, known:count]
        block[START], block[LENGTH] = records["start"], records["length"]
        block[STOP] = records["start"] + records["rows"]
        weights = (
            self._bytes_before(block[STOP]) - self._bytes_before(block[START]) if self._in_bytes else block[LENGTH]
        )
        block[WEIGHT] = weights.cumsum() + self._ended_weight
        self._num_episodes = count
        self._ended_weight = int(self._episodes[WEIGHT, count - 1]) if count else 0

    def _bytes_before(self, rows: Any) -> Any:
        """Return the weight of the rows before ``rows``, an int or int64 [n]; in steps that is their number."""
        if not self._in_bytes:
            return rows
        total = rows * self._row_bytes
        for offsets in self._offsets:
            found = offsets[rows]
            total = total + (int(found) if isinstance(rows, int) else found.astype(np.int64))
        return total

    def _steps_of(self, start: int, length: int, weight: int) -> int:
        """Return how many rows from ``start`` on weigh at least ``weight``: at most ``length``."""
        if not self._in_bytes:
            return min(weight, length)
        wanted = self._bytes_before(start) + weight
        return bisect_left(range(start, start + length), wanted, key=self._bytes_before)


def visible_from(shown: Sequence[ShownRows], capacity: int) -> Int64s:
    """Return the first row of each segment that a ring shows; episodes that end before it are gone.

    Args:
        shown: one a segment, followed to the same refresh.
        capacity: steps or bytes, as they count.

    Returns:
        int64 [S]; the segment's number of rows where nothing of it is shown.

    Notes:
        O(S + log episodes).
    """
    first = np.zeros(len(shown), np.int64)
    excess = sum(one.weight for one in shown) - capacity
    if excess <= 0:
        return first
    for number in sorted(range(len(shown)), key=lambda number: shown[number].age):
        first[number] = shown[number].first_row(excess)
        excess -= shown[number].weight
        if excess <= 0:
            break
    return first


@dataclass(frozen=True, slots=True)
class SegmentLimit:
    """When a writer goes on in another segment.

    Args:
        segment_bytes: at the end of an episode beyond this size.
        capacity: of a ring, whose segments hold about an eighth of it, so that no more than that is kept in vain, but
            at least 1,024 rows or 1 MiB.

    Example:
        >>> limit = SegmentLimit(1 << 28, Capacity(80_000, "steps"))
        >>> limit.is_full(9_999, 1 << 22), limit.is_full(10_000, 1 << 22), limit.is_overlong(10_000, 1 << 22)
        (False, True, False)
    """

    segment_bytes: int
    capacity: Capacity | None = None

    def is_full(self, rows: int, num_bytes: int, *, times: int = 1) -> bool:
        """Whether a segment is to be sealed at the end of an episode."""
        if num_bytes >= times * self.segment_bytes:
            return True
        if self.capacity is None:
            return False
        size = rows if self.capacity.unit == "steps" else num_bytes
        is_small = rows < times * LEAST_ROWS and num_bytes < times * LEAST_BYTES
        return not is_small and size * SHARE >= times * self.capacity.amount

    def is_overlong(self, rows: int, num_bytes: int) -> bool:
        """Whether the open episode is to be cut: never, but in a ring."""
        return self.capacity is not None and self.is_full(rows, num_bytes, times=2)

    def next_look(self, rows: int) -> int:
        """Return at how many rows to ask `is_overlong` again."""
        return sys.maxsize if self.capacity is None else rows + 1 + rows // 64
