"""Lanes: a segment that n environments share, each with a run of rows of its own.

::

                    lane 0            lane 1            lane 2                row = lane * rows of a lane + place
    state.npy     | a a a A a a |   | b b b b b . |   | . . . . . . |
    lanes.marks   | 1 2 3 3 4 5 |   | 1 2 3 4 5 . |   | . . . . . . |         uint32: the row's vector step; 0: none
    lanes.steps   stamp, and rows, steps and ended episodes so far            int64 [T, 4], one line each
    progress      T                                                           vector steps that are committed

Everything follows from T: a row is there when its mark is one of 1 to T, and the ended episodes are as many as line
T - 1 says. One store of one word commits a vector step; see design/015-vector-writer.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.store.episodes import EPISODE_DTYPE
from stepwell.store.layout import step_id

if TYPE_CHECKING:
    from stepwell.store.column_file import RowType

__all__ = [
    "EPISODES_SO_FAR",
    "IS_SYNCED",
    "LANE_CARRIED",
    "LANE_FILES",
    "LANE_MARKS",
    "LANE_STEPS",
    "MARK",
    "ROWS_SO_FAR",
    "STAMP",
    "STEPS_SO_FAR",
    "STEP_WORDS",
    "LaneState",
    "check_marks",
    "check_steps",
    "open_lane_records",
    "rows_until",
]

Int64s = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint32]
# of a writer, beside what its kernel returns: the step is stored, and is committed once it is on the disk
IS_SYNCED = -3
# no feature has files of such names
LANE_MARKS = "lanes.marks"
LANE_STEPS = "lanes.steps"
# of lanes whose episode began in an earlier segment: how many of its steps lie there, and its origin; int64 [n, 2]
LANE_CARRIED = "lanes.carried"
MARK = np.dtype("<u4")
STAMP, ROWS_SO_FAR, STEPS_SO_FAR, EPISODES_SO_FAR, STEP_WORDS = range(5)
LANE_FILES: dict[str, RowType] = {
    LANE_MARKS: (MARK, ()),
    LANE_STEPS: ("<i8", (STEP_WORDS,)),
    LANE_CARRIED: ("<i8", (2,)),
}


class LaneState(NamedTuple):
    """What of an open segment with lanes is committed."""

    # vector steps
    num_steps: int
    # int64 [lanes], rows of each lane
    counts: Int64s
    # rows of a lane
    capacity: int
    # int64 [lanes, 2], see `LANE_CARRIED`: the file, of which a line holds once the lane has a row
    carried: Int64s


def rows_until(marks: Marks, starts: Int64s, lengths: Int64s, num_steps: int) -> Int64s:
    """Return how many rows of each run (int64 [k]) the first vector steps wrote."""
    # Marks of a run never fall, and are zeros behind the rows that were written.
    low, high = np.zeros(len(starts), np.int64), lengths.astype(np.int64)
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        found = marks[np.where(is_open, starts + middle, 0)] if len(marks) else np.zeros(len(starts), MARK)
        is_there = is_open & (found > 0) & (found <= num_steps)
        low = np.where(is_there, middle + 1, low)
        high = np.where(is_open & ~is_there, middle, high)
    return low


def open_lane_records(state: LaneState, ended: npt.NDArray[Any], ordinal: int) -> npt.NDArray[Any]:
    """Return the records that the open episodes of all lanes would have if they ended now, by lane."""
    starts = np.arange(len(state.counts)) * state.capacity
    begins = starts.copy()
    if len(ended):
        ends = ended["start"] + ended["rows"]
        np.maximum.at(begins, ended["start"] // state.capacity, ends)
    lengths = starts + state.counts - begins
    lanes = np.flatnonzero(lengths > 0)
    records = np.zeros(len(lanes), EPISODE_DTYPE)
    records["start"] = begins[lanes]
    records["length"] = records["rows"] = lengths[lanes]
    records["origin"] = step_id(ordinal, 0) + begins[lanes]
    # of an episode that began in an earlier segment
    is_carried = (begins == starts)[lanes] & (state.carried[lanes, 0] > 0)
    records["cut"][is_carried], records["origin"][is_carried] = state.carried[lanes[is_carried]].T
    return records


def check_steps(steps: Int64s, segment: str) -> None:
    """Refuse lines of ``lanes.steps``, int64 [T, 4], that cannot be."""
    falls = (steps[1:] < steps[:-1]).any() or (len(steps) and steps[0].min() < 0)
    if falls or (len(steps) and (steps[:, STEPS_SO_FAR] > steps[:, ROWS_SO_FAR]).any()):
        raise CorruptSegmentError(f'{LANE_STEPS} of segment {segment}: numbers that fall. Run "stepwell verify PATH".')


def check_marks(
    marks: Marks, records: npt.NDArray[Any], num_steps: int, segment: str, *, is_open: bool = False
) -> None:
    """Refuse marks that do not rise along the episodes of ``records``, or that rows without an episode have."""
    rows = np.repeat(records["start"] - (np.cumsum(records["rows"]) - records["rows"]), records["rows"])
    rows += np.arange(len(rows))
    found = marks[rows].astype(np.int64)
    falls = found[1:] < found[:-1]
    falls[np.cumsum(records["rows"])[:-1] - 1] = False
    is_wrong = falls.any() or ((found < 1) | (found > num_steps)).any()
    if is_wrong or (not is_open and np.count_nonzero(marks) != len(rows)):
        raise CorruptSegmentError(
            f'{LANE_MARKS} of segment {segment}: marks that are wrong. Run "stepwell verify PATH".'
        )
