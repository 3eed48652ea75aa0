"""What is known of each episode that a history follows: eight numbers, in a window that moves on.

::

    numbers      0 . . . . 5 6 7 8 9 . . . . . . .          base = 5: the episodes before it are gone
    records                | 5 | 6 | 7 | 8 | 9 |   |   |    int64 [capacity, 8], by number - base
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.store.episodes import GOES_ON, MAX_SKIPPED
from stepwell.windows.chains import Chains

__all__ = [
    "FLAGS",
    "HI_FINAL",
    "HI_STEP",
    "IS_CUT",
    "IS_GONE",
    "IS_INTERRUPTED",
    "IS_OPEN",
    "IS_TERMINATED",
    "IS_TRUNCATED",
    "LO",
    "ORIGIN",
    "SEGMENT",
    "SKIPPED",
    "START",
    "Cuts",
    "EpisodeRecords",
    "flags_of",
    "records_of",
]

Int64s = npt.NDArray[np.int64]
# columns: number of the segment, first row, first row that is still there, row after the last step, row after the last
# one, steps of the episode that were written before ``start``, flags, id of the episode's first step as it was written
SEGMENT, START, LO, HI_STEP, HI_FINAL, SKIPPED, FLAGS, ORIGIN = range(8)
NUM_COLUMNS = 8
# still recorded; cut by a ring, and goes on in another segment; nothing of it is left
IS_TERMINATED, IS_TRUNCATED, IS_OPEN, IS_INTERRUPTED, IS_CUT, IS_GONE = 1, 2, 4, 8, 16, 32
FIRST_ROOM = 64
LEAST_DROPPED = 1024


class EpisodeRecords:
    """The records of episodes by number.

    Attributes:
        window: the records, int64 [capacity, 8], and the number of the first: replaced together, so that another thread
            never sees one without the other.
        num_seen: the number of the next episode.

    Notes:
        One thread changes it; others may read ``window`` meanwhile.
    """

    __slots__ = ("_num_gone", "num_seen", "window")

    def __init__(self) -> None:
        self.window: tuple[Int64s, int] = (np.zeros((FIRST_ROOM, NUM_COLUMNS), np.int64), 0)
        self.num_seen = 0
        self._num_gone = 0

    def add(self, rows: Int64s) -> int:
        """Add records, int64 [k, 8]; return the number of the first."""
        records, base = self.window
        first, used, count = self.num_seen, self.num_seen - base, len(rows)
        if used + count > len(records):
            records, base, used = self._make_room(count)
        records[used : used + count] = rows
        self.num_seen += count
        return first

    def room(self, count: int) -> Int64s:
        """Return the window's records, with room for ``count`` more."""
        records, base = self.window
        return records if self.num_seen - base + count <= len(records) else self._make_room(count)[0]

    def mark_gone(self, episodes: Int64s) -> Int64s:
        """Let episodes go that are still there; return int64 [m, 2], each of those and the row after its last."""
        records, base = self.window
        lines = episodes[episodes >= base] - base
        lines = lines[records[lines, FLAGS] & IS_GONE == 0]
        records[lines, LO] = records[lines, HI_FINAL]
        records[lines, FLAGS] = records[lines, FLAGS] & ~IS_OPEN | IS_GONE
        gone = np.empty((len(lines), 2), np.int64)
        gone[:, 0], gone[:, 1] = lines + base, records[lines, HI_FINAL]
        return gone

    def _make_room(self, count: int) -> tuple[Int64s, int, int]:
        """Drop the oldest records that are gone, where that is worth it, and have room for ``count`` more."""
        records, base = self.window
        used = self.num_seen - base
        is_kept = records[:used, FLAGS] & IS_GONE == 0
        dropped = int(np.argmax(is_kept)) if is_kept.any() else used
        if dropped < max(LEAST_DROPPED, used // 2):
            dropped = 0
        room = max(FIRST_ROOM, 2 * (used - dropped + count))
        moved = np.zeros((room, NUM_COLUMNS), np.int64)
        moved[: used - dropped] = records[dropped:used]
        self.window = (moved, base + dropped)
        return moved, base + dropped, used - dropped


def records_of(ended: npt.NDArray[np.void], segments: Int64s) -> Int64s:
    """Return the records of ended episodes.

    Args:
        ended: `stepwell.store.episodes.EPISODE_DTYPE` [k].
        segments: int64 [k], number of each one's segment.

    Returns:
        int64 [k, 8].
    """
    found = np.empty((len(ended), NUM_COLUMNS), np.int64)
    start = ended["start"]
    found[:, SEGMENT], found[:, START], found[:, LO] = segments, start, start
    found[:, HI_STEP], found[:, HI_FINAL] = start + ended["length"], start + ended["rows"]
    found[:, SKIPPED], found[:, ORIGIN] = ended["cut"] & MAX_SKIPPED, ended["origin"]
    found[:, FLAGS] = flags_of(ended["terminated"], ended["truncated"], ended["interrupted"], ended["cut"])
    return found


def flags_of(terminated: Any, truncated: Any, interrupted: Any, cut: Any) -> Any:
    """Return the flags of ended episodes, from ints or arrays [k]."""
    return (
        terminated * IS_TERMINATED + truncated * IS_TRUNCATED + interrupted * IS_INTERRUPTED + (cut >= GOES_ON) * IS_CUT
    )


# where the records have what the kernel looks at, and the flag of those that are gone
COLUMNS = np.array([LO, HI_STEP, HI_FINAL, FLAGS, IS_GONE], np.int64)


class Cuts:
    """Which episodes of a history are pieces, and which follow each other.

    Notes:
        One thread changes it. What it returns is for any, and says of bounds what the records say by then.
    """

    def __init__(self, table: EpisodeRecords) -> None:
        self._table = table
        # by episode: chain, segment, first row, steps before it; in the order in which they were seen
        self._pieces: dict[int, tuple[int, int, int, int]] = {}
        # by origin, of pieces after which another may come: the step after the last, and the chain
        self._ends: dict[int, tuple[int, int]] = {}
        self._num_chains = 0

    def take(self, episodes: Int64s) -> bool:
        """Take note of episodes that came or ended, int64 [n]; return whether any is a piece."""
        if not len(episodes):
            return False
        records, base = self._table.window
        episodes = np.unique(episodes[episodes >= base])
        found = records[episodes - base]
        is_piece = (found[:, SKIPPED] > 0) | (found[:, FLAGS] & IS_CUT != 0)
        for episode, record in zip(episodes[is_piece].tolist(), found[is_piece], strict=True):
            self._add(episode, record)
        return bool(is_piece.any())

    def _add(self, episode: int, record: Int64s) -> None:
        skipped, origin = int(record[SKIPPED]), int(record[ORIGIN])
        known = self._pieces.get(episode)
        if known is None:
            end, chain = self._ends.pop(origin, (-1, 0))
            if skipped and end != skipped:
                # what went before has no ending where its writer died while it was cut
                end, chain = self._interrupted(episode, origin, skipped)
            if not skipped or end != skipped:
                chain, self._num_chains = self._num_chains, self._num_chains + 1
            self._pieces[episode] = chain, int(record[SEGMENT]), int(record[START]), skipped
        else:
            chain = known[0]
        if record[FLAGS] & (IS_CUT | IS_INTERRUPTED):
            self._ends[origin] = skipped + int(record[HI_STEP] - record[START]), chain

    def _interrupted(self, episode: int, origin: int, skipped: int) -> tuple[int, int]:
        records, base = self._table.window
        known = records[: episode - base]
        is_before = (known[:, ORIGIN] == origin) & (known[:, FLAGS] & IS_INTERRUPTED != 0) & (known[:, SKIPPED] == 0)
        is_before &= known[:, HI_STEP] - known[:, START] == skipped
        for line in np.flatnonzero(is_before)[-1:].tolist():
            self._add(line + base, known[line])
            return self._ends.pop(origin)
        return -1, 0

    def forget(self, segment: int) -> bool:
        """Forget the pieces of a segment that is let go; return whether there were any."""
        gone = [episode for episode, piece in self._pieces.items() if piece[1] == segment]
        for episode in gone:
            del self._pieces[episode]
        return bool(gone)

    def chains(self) -> Chains | None:
        """Return the pieces that there are; None without any."""
        if not self._pieces:
            return None
        from stepwell.kernels.chains import bounds_of_pieces

        numbers = np.array(list(self._pieces), np.int64)
        pieces = np.array(list(self._pieces.values()), np.int64)
        order = np.lexsort((pieces[:, 3], pieces[:, 0]))
        numbers, pieces = numbers[order], np.ascontiguousarray(pieces[order])
        table = self._table

        def bounds() -> Int64s:
            each = np.empty((len(numbers), 3), np.int64)
            bounds_of_pieces(numbers, pieces, *table.window, COLUMNS, each)
            return each

        return Chains(numbers, pieces, bounds)
