"""What a ring shows, for who follows it: the rule of `stepwell.store.ring`, with work for what changed only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from stepwell.replay.followed import FollowedSegment
from stepwell.store import Store
from stepwell.store.ring import RingCut

__all__ = ["RingTrimmer"]

Int64s = npt.NDArray[np.int64]


class RingTrimmer:
    """Find the rows that lie beyond a store's capacity.

    Args:
        store: with a capacity.

    Attributes:
        slack: after `trim`, of a ring of steps: how many may come before any has to go; else 0.
        boundary: after `trim`, of a ring of steps: the segment that has the oldest step that is left, that step's row,
            and the first row there that goes after a step of another segment. None where nothing had to go yet.

    Notes:
        For one thread. Costs a few steps a segment that has news, and one call.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cut: RingCut | None = None
        self.slack = 0
        self.boundary: tuple[FollowedSegment, int, int] | None = None

    def trim(
        self, followed: Mapping[str, FollowedSegment], changed: Iterable[FollowedSegment]
    ) -> Iterator[tuple[FollowedSegment, int]]:
        """Yield the segments whose first shown row moved on, with that row.

        Args:
            followed: all segments by name.
            changed: those that have news.
        """
        capacity, schema = self._store.capacity, self._store.schema
        if capacity is None or schema is None:
            return
        cut = self._cut = self._cut or RingCut(capacity, schema)
        if len(cut.names) > len(followed) or not cut.names <= followed.keys():
            cut.forget(cut.names - followed.keys())
        for one in changed:
            try:
                cut.follow(one.segment)
            except FileNotFoundError:
                # removed since the look at the directory, and only what lies beyond the capacity is
                cut.forget([one.segment.name])
                yield one, one.num_rows
        moved = cut.move()
        in_steps = capacity.unit == "steps"
        self.slack, self.boundary = cut.slack if in_steps else 0, None
        if in_steps and cut.oldest is not None:
            name, row, stop = cut.oldest
            self.boundary = (followed[name], row, stop)
        for name in moved:
            one, first_row = followed[name], cut.first_row(name)
            if first_row > one.first_row:
                yield one, first_row
