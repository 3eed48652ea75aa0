"""A segment that a history follows: how far it was seen, and which episode has which of its rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.store import Segment

__all__ = ["FollowedSegment"]

Int64s = npt.NDArray[np.int64]
FIRST_ROOM = 4


class FollowedSegment:
    """A segment, as far as it was seen.

    Args:
        segment: of the history's own store.
        number: that the history gave it.

    Attributes:
        num_records: ended episodes that were seen.
        num_rows: rows that were seen.
        open_episode: number of the episode that is being recorded, or -1.
        is_sealed: whether it was seen to be sealed.
        first_row: rows before it were evicted.
    """

    __slots__ = (
        "_count",
        "_episodes",
        "_starts",
        "first_row",
        "is_sealed",
        "num_records",
        "num_rows",
        "number",
        "open_episode",
        "segment",
    )

    def __init__(self, segment: Segment, number: int) -> None:
        self.segment, self.number = segment, number
        self.num_records = self.num_rows = self.first_row = 0
        self.open_episode = -1
        self.is_sealed = False
        self._count = 0
        self._starts: Int64s = np.empty(0, np.int64)
        self._episodes: Int64s = np.empty(0, np.int64)

    def has_news(self) -> bool:
        """Refresh the segment; return whether it has what was not seen."""
        segment = self.segment
        try:
            segment.refresh()
        except FileNotFoundError:
            # the next look at the directory finds it gone
            return False
        is_new = segment.num_rows != self.num_rows or len(segment.records) != self.num_records
        return is_new or segment.is_sealed != self.is_sealed

    def add(self, starts: Int64s, episodes: Int64s) -> None:
        """Take note of episodes and their first rows, ascending."""
        count, total = self._count, self._count + len(starts)
        if count == 0 and total > 1:
            self._starts, self._episodes = starts, episodes
        else:
            if total > len(self._starts):
                room = max(FIRST_ROOM, 2 * total)
                grown = np.empty((2, room), np.int64)
                grown[0, :count], grown[1, :count] = self._starts[:count], self._episodes[:count]
                self._starts, self._episodes = grown
            self._starts[count:total], self._episodes[count:total] = starts, episodes
        self._count = total

    @property
    def episodes(self) -> Int64s:
        """Its episodes by row, int64 [n]."""
        return self._episodes[: self._count]

    def episodes_at(self, rows: Int64s) -> Int64s:
        """Return the episode that each row (int64 [n]) would lie in, -1 before the first one."""
        count = self._count
        if count == 0:
            return np.full(len(rows), -1, np.int64)
        found = self._starts[:count].searchsorted(rows, "right") - 1
        return np.where(found >= 0, self._episodes[found], -1)

    def episodes_from(self, rows: Int64s) -> Int64s:
        """Return the episodes that begin at some rows (int64 [n]); those that none begins at are passed over."""
        starts = self._starts[: self._count]
        found = np.minimum(np.searchsorted(starts, rows), max(self._count - 1, 0))
        return self._episodes[found[starts[found] == rows]] if self._count else self.episodes

    def episodes_before(self, row: int) -> Int64s:
        """Return the episodes that begin before a row, int64 [n], from the one that has `first_row` on."""
        starts = self._starts[: self._count]
        first = max(int(starts.searchsorted(self.first_row, "right")) - 1, 0)
        return self._episodes[first : int(starts.searchsorted(row))]
