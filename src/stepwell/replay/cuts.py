"""The pieces of episodes that a ring cut, as a history sees them come, end and go."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.replay.records import (
    FLAGS,
    HI_FINAL,
    HI_STEP,
    IS_CUT,
    IS_GONE,
    IS_INTERRUPTED,
    LO,
    ORIGIN,
    SEGMENT,
    SKIPPED,
    START,
    EpisodeRecords,
)
from stepwell.windows.chains import Chains

__all__ = ["Cuts"]

Int64s = npt.NDArray[np.int64]
# where the records have what the kernel looks at, and the flag of those that are gone
COLUMNS = np.array([LO, HI_STEP, HI_FINAL, FLAGS, IS_GONE], np.int64)


class Cuts:
    """Which episodes of a history are pieces, and which follow each other.

    Args:
        table: the records of the history.

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
