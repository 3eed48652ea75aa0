"""What a ring shows, for who follows it: the rule of `stepwell.store.ring`, with work for what changed only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from stepwell.replay.followed import FollowedSegment
from stepwell.store import Store
from stepwell.store.ring import ShownRows

__all__ = ["RingTrimmer"]

Int64s = npt.NDArray[np.int64]


class RingTrimmer:
    """Find the rows that lie beyond a store's capacity.

    Args:
        store: with a capacity.

    Attributes:
        slack: after `trim`, of a ring of steps: how many may come before any has to go; else 0.
        boundary: after `trim`, the segment that has the oldest step that is left, and that step's row, where the
            segments before it and a part of it went; of a ring of bytes None.

    Notes:
        For one thread. Costs a few steps a segment at every call, and a ring has few.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shown: dict[str, ShownRows] = {}
        self._order: list[FollowedSegment] = []
        self._deleted: Int64s | None = None
        self._total = 0
        self.slack = 0
        self.boundary: tuple[FollowedSegment, int] | None = None

    def trim(
        self, followed: Mapping[str, FollowedSegment], changed: Iterable[FollowedSegment], deleted: Int64s
    ) -> Iterator[tuple[FollowedSegment, int]]:
        """Yield the segments whose first shown row moved on, with that row.

        Args:
            followed: all segments by name.
            changed: those that have news.
            deleted: int64 [n], ids of the first steps of deleted episodes; another array when they changed.
        """
        capacity, schema = self._store.capacity, self._store.schema
        if capacity is None or schema is None:
            return
        is_moved = self._forget(followed)
        for one in changed if deleted is self._deleted else list(followed.values()):
            shown = self._shown.get(one.segment.name)
            if shown is None:
                shown = self._shown[one.segment.name] = ShownRows(one.segment, capacity, schema)
                is_moved = True
            weight, age = shown.weight, shown.age
            try:
                shown.follow(deleted)
            except FileNotFoundError:
                # the next look at the directory finds it gone
                continue
            self._total += shown.weight - weight
            is_moved |= shown.age != age
        self._deleted = deleted
        if is_moved:
            # a segment without any news yet has nothing to let go
            known = [one for one in followed.values() if one.segment.name in self._shown]
            self._order = sorted(known, key=lambda one: self._shown[one.segment.name].age)
        excess = self._total - capacity.amount
        in_steps = capacity.unit == "steps"
        self.slack, self.boundary = max(0, -excess) if in_steps else 0, None
        for one in self._order:
            if excess <= 0:
                return
            shown = self._shown[one.segment.name]
            first_row = shown.first_row(excess)
            if in_steps and excess < shown.weight:
                self.boundary = (one, first_row)
            excess -= shown.weight
            if first_row > one.first_row:
                yield one, first_row

    def _forget(self, followed: Mapping[str, FollowedSegment]) -> bool:
        """Leave out segments that went; return whether there are any."""
        if len(self._shown) <= len(followed) and self._shown.keys() <= followed.keys():
            return False
        for name in self._shown.keys() - followed.keys():
            self._total -= self._shown.pop(name).weight
        return True
