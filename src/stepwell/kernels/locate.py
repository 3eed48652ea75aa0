"""From anchor positions to places: which episode, which segment, which row, and how far a window may reach.

Anchors are numbered episode after episode; ``anchor_starts`` holds the number of anchors before each. A position's
episode is found through a guide table with about one entry an episode::

    position  >> shift   ->  bucket  ->  guide[bucket] .. guide[bucket + 1]: the few episodes that can hold it

and a binary search among those. With even lengths that is one or two episodes; with very uneven ones the search inside
a bucket takes over, and its mean over all positions stays small, since long episodes own most positions and fill whole
buckets alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import prefetch
from stepwell.kernels.places import EPISODE, HI_FINAL, HI_STEP, LO, ROW, SEGMENT

__all__ = ["guide_of", "locate", "number_places", "touch"]

RECORD_BYTES = 40
AHEAD = 8


def guide_of(anchor_starts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the guide table of an anchor index and its shift.

    Args:
        anchor_starts: int64 [E + 1], anchors before each episode, ascending from 0.

    Returns:
        ``guide`` int64 [buckets + 1], the episode that holds the first position of each bucket, and ``shift``, the
        logarithm of a bucket's positions.

    Example:
        >>> guide_of(np.array([0, 8, 8, 16]))
        (array([0, 2, 2, 2]), 3)
    """
    num_episodes, num_anchors = len(anchor_starts) - 1, int(anchor_starts[-1])
    shift = 0
    while (num_anchors >> shift) > max(num_episodes, 1):
        shift += 1
    firsts = np.arange((num_anchors >> shift) + 2, dtype=np.int64) << shift
    guide = np.searchsorted(anchor_starts, firsts, side="right") - 1
    return np.clip(guide, 0, max(num_episodes - 1, 0)).astype(np.int64), shift


@kernel
def locate(  # noqa: PLR0917
    positions: Any, anchor_starts: Any, guide: Any, shift: Any, records: Any, places: Any
) -> Any:
    """Write the place of every position; return -1, or the index of the first position that is no anchor.

    Args:
        positions: int64 [n].
        anchor_starts: int64 [E + 1].
        guide: int64, of `guide_of`, with its ``shift``.
        records: int64 [E, 5]: segment, row of the first anchor, lo, hi_step, hi_final.
        places: int64 [PLACE_ROWS, n], written.
    """
    num_anchors = anchor_starts[anchor_starts.size - 1]
    guide_base, starts_base, records_base = guide.ctypes.data, anchor_starts.ctypes.data, records.ctypes.data
    count = positions.size
    for i in range(count):
        # two lookups that depend on each other: the guide of a position is asked for well ahead, then what it names
        if i + 2 * AHEAD < count:
            prefetch(guide_base + 8 * (positions[i + 2 * AHEAD] >> shift))
        if i + AHEAD < count and 0 <= positions[i + AHEAD] < num_anchors:
            likely = guide[positions[i + AHEAD] >> shift]
            prefetch(starts_base + 8 * likely)
            prefetch(records_base + RECORD_BYTES * likely)
        position = positions[i]
        if position < 0 or position >= num_anchors:
            return i
        bucket = position >> shift
        low = guide[bucket]
        high = guide[bucket + 1]
        while low < high:
            middle = (low + high + 1) >> 1
            if anchor_starts[middle] <= position:
                low = middle
            else:
                high = middle - 1
        places[EPISODE, i] = low
        places[SEGMENT, i] = records[low, 0]
        places[ROW, i] = records[low, 1] + position - anchor_starts[low]
        places[LO, i] = records[low, 2]
        places[HI_STEP, i] = records[low, 3]
        places[HI_FINAL, i] = records[low, 4]
    return -1


@kernel
def touch(places: Any, num_rows: Any, last_used: Any, now: Any) -> Any:
    """Mark the segments of a batch as used, and return how many of its anchors may reach rows that no map holds.

    Args:
        places: int64 [PLACE_ROWS, n], of `locate`.
        num_rows: int64 [S], rows of each segment that are mapped; -1: it is not mapped at all.
        last_used: int64 [S], written.
        now: int64, the time of this batch by the maps' own clock.
    """
    num_missing = 0
    for i in range(places.shape[1]):
        segment = places[SEGMENT, i]
        last_used[segment] = now
        num_missing += places[HI_FINAL, i] > num_rows[segment]
    return num_missing


@kernel
def number_places(places: Any, ordinals: Any, numbers: Any, num_rows: Any) -> Any:
    """Put the numbers of segments in place of their ordinals; return -1, or the first place that is none.

    Nothing is written then. Bounds of whole episodes ([9, n]) are not looked at.

    Args:
        places: int64 [PLACE_ROWS or more, n], changed.
        ordinals: int64 [S], of the segments that are known, ascending.
        numbers: int64 [S], of each.
        num_rows: int64 [N], rows of the segment with each number.
    """
    for i in range(places.shape[1]):
        at = np.searchsorted(ordinals, places[SEGMENT, i])
        if at == ordinals.size or ordinals[at] != places[SEGMENT, i]:
            return i
        lo, row, stop, last = places[LO, i], places[ROW, i], places[HI_STEP, i], places[HI_FINAL, i]
        if not (0 <= lo <= row < stop <= last <= num_rows[numbers[at]]):
            return i
    for i in range(places.shape[1]):
        places[SEGMENT, i] = numbers[np.searchsorted(ordinals, places[SEGMENT, i])]
    return -1
