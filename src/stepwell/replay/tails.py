"""The one open episode of a store: followed a few steps at a time, without a detour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.replay.records import FLAGS, HI_FINAL, HI_STEP, IS_GONE, IS_OPEN, LO
from stepwell.store.commit import CARRIED_WORD, EPISODES_WORD, ROWS_WORD, SEALED_WORD

if TYPE_CHECKING:
    from stepwell.replay.followed import FollowedSegment
    from stepwell.replay.records import EpisodeRecords
    from stepwell.replay.trimming import RingTrimmer

__all__ = ["Growth", "Tail"]

Int64s = npt.NDArray[np.int64]


Growth = tuple[int, int, int, int, int]
"""What an open episode grew by, and what a ring let go for it: its number, its first new row and the row after its last
(equal where there is nothing new), an episode of which rows are gone, or -1, and the first of its rows that is there.
A plain tuple: one is made for every step."""


class Tail:
    """An open episode, while no other segment gets anything.

    Args:
        followed: its segment.
        words: of that segment's commit record.
        quiet: segments that are not sealed, and have no open episode.
        table: the records of the history.
        trimmer: of a ring, after it has trimmed.

    Notes:
        What it knows holds until anything but new rows comes: then `grow` returns None and changes nothing, and the
        history makes another one after its next look. Of a ring it moves the first row of the oldest episode on, as
        far as that episode's last step, or the first one that goes after a step of another segment.
    """

    __slots__ = (
        "_carried",
        "_cut",
        "_left",
        "_num_records",
        "_oldest",
        "_quiet",
        "_record",
        "_slack",
        "_words",
        "followed",
    )

    def __init__(
        self,
        followed: FollowedSegment,
        words: memoryview[int],
        quiet: list[FollowedSegment],
        table: EpisodeRecords,
        trimmer: RingTrimmer | None,
    ) -> None:
        segment = followed.segment
        records, base = table.window
        self.followed, self._words = followed, words
        self._quiet = [(one.segment.commit_words, one.num_rows, one.num_records) for one in quiet]
        self._num_records, self._carried = followed.num_records, segment.carried[0]
        self._record = records[followed.open_episode - base]
        # steps that may come before any has to go; the episode that goes then, its first row, and its segment
        self._slack, self._cut, self._left = 1 << 62, -1, 0
        self._oldest: tuple[FollowedSegment, Int64s, int] | None = None
        if trimmer is not None:
            self._slack = trimmer.slack
            if trimmer.boundary is not None:
                self._find_oldest(*trimmer.boundary, records, base)

    @classmethod
    def of(cls, live: list[FollowedSegment], table: EpisodeRecords, trimmer: RingTrimmer | None) -> Tail | None:
        """Return the tail of a store; None where there is no open episode, or there may be several."""
        growing = [one for one in live if one.open_episode >= 0]
        words = growing[0].segment.commit_words if len(growing) == 1 else None
        if words is None:
            return None
        records, base = table.window
        if records[growing[0].open_episode - base, FLAGS] & IS_GONE:
            return None
        return cls(growing[0], words, [one for one in live if one is not growing[0]], table, trimmer)

    def _find_oldest(self, segment: FollowedSegment, row: int, stop: int, records: Int64s, base: int) -> None:
        episode = int(segment.episodes_at(np.array([row]))[0])
        if episode < base:
            return
        record = records[episode - base]
        # what was let go before more was shown again stays gone: then the trimmer says when it goes on
        if record[LO] == row and not record[FLAGS] & (IS_OPEN | IS_GONE):
            self._oldest = segment, record, min(int(record[HI_STEP]) - 1, stop)
            self._cut, self._left = episode, row

    def grow(self) -> Growth | None:
        """Take in new rows; None where something else happened, or an episode of the ring goes: nothing is changed."""
        words, followed = self._words, self.followed
        # rows before episodes: see stepwell.store.commit
        rows = words[ROWS_WORD]
        if words[EPISODES_WORD] != self._num_records or words[SEALED_WORD] or words[CARRIED_WORD] != self._carried:
            return None
        if self._quiet and not self._is_quiet():
            return None
        episode, first, cut = followed.open_episode, followed.num_rows, -1
        surplus = rows - first - self._slack
        if surplus > 0:
            if self._oldest is None or self._left + surplus > self._oldest[2]:
                return None
            cut = self._cut
            self._slack = 0
            self._left += surplus
            self._oldest[1][LO] = self._left
        else:
            self._slack = -surplus
        record = self._record
        record[HI_STEP] = record[HI_FINAL] = rows
        followed.num_rows = followed.segment.num_rows = rows
        return episode, first, rows, cut, self._left

    def _is_quiet(self) -> bool:
        # what waits to be sealed
        for words, num_rows, num_records in self._quiet:
            if words is None or words[SEALED_WORD]:
                return False
            if words[ROWS_WORD] != num_rows or words[EPISODES_WORD] != num_records:
                return False
        return True

    def close(self) -> None:
        """Leave the segment of the oldest episode as the trimmer wants it."""
        if self._oldest is not None:
            segment = self._oldest[0]
            segment.first_row = max(segment.first_row, self._left)
