"""What came to the lanes of a segment since the last look: the records of their episodes, and the runs of new rows."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel
from stepwell.replay.episode_records import (
    FLAGS,
    HI_FINAL,
    HI_STEP,
    IS_CUT,
    IS_GONE,
    IS_INTERRUPTED,
    IS_OPEN,
    IS_TERMINATED,
    IS_TRUNCATED,
    LO,
    ORIGIN,
    SEGMENT,
    SKIPPED,
    START,
)
from stepwell.store.episodes import MAX_SKIPPED

__all__ = ["follow_lanes", "trim_lanes"]

# of an array [3, lanes]: the first row that was not seen; the one at which the open episode begins, or the next one
# will; the number of the open episode, or -1
NEXT_ROW, START_ROW, EPISODE = range(3)


@kernel
def follow_lanes(  # noqa: PLR0917
    marks: Any,
    num_steps: Any,
    capacity: Any,
    lanes: Any,
    ended: Any,
    carried: Any,
    segment: Any,
    first_id: Any,
    records: Any,
    base: Any,
    num_seen: Any,
    runs: Any,
) -> Any:
    """Take in new vector steps of a segment with lanes.

    Args:
        marks: uint32 [rows], the vector step of each row.
        num_steps: committed vector steps.
        capacity: rows of a lane.
        lanes: int64 [3, lanes], see above; written.
        ended: int64 [k, 6], the records of episodes that ended since; none of them was taken back.
        carried: int64 [lanes, 2], steps in earlier segments, and origin, of what begins in the first row.
        segment: its number.
        first_id: id of row 0.
        records: int64 [capacity, 8] of a history, with room for the lanes and ``ended``; written.
        base: the number of the first one's episode.
        num_seen: the number of the next episode.
        runs: int64 [lanes + k, 4], written: episode, first row, row after the last, whether it has ended.

    Returns:
        The number of runs, of episodes that are new, and of ended ones that no row is left of.
    """
    num_runs, num_added, num_lost = 0, 0, 0
    for k in range(ended.shape[0]):
        start, stop, end = ended[k, 0], ended[k, 0] + ended[k, 1], ended[k, 0] + ended[k, 2]
        lane = start // capacity
        episode, seen = lanes[EPISODE, lane], start
        if episode < 0 or lanes[START_ROW, lane] != start:
            episode = num_seen + num_added
            num_added += 1
            _begin(records, episode - base, segment, start)
        else:
            seen = records[episode - base, HI_STEP] if episode >= base else -1
        line = episode - base
        if line >= 0 and not records[line, FLAGS] & IS_GONE:
            word = ended[k, 5]
            records[line, HI_STEP], records[line, HI_FINAL], records[line, ORIGIN] = stop, end, ended[k, 3]
            records[line, SKIPPED] = (word >> 32) & MAX_SKIPPED
            flags = (word & 1) * IS_TERMINATED | ((word >> 8) & 1) * IS_TRUNCATED | ((word >> 16) & 1) * IS_INTERRUPTED
            records[line, FLAGS] = flags | IS_CUT if word < 0 else flags
            _put(runs, num_runs, episode, seen, stop, 1)
            num_runs += 1
            if records[line, LO] >= stop:
                num_lost += 1
        lanes[NEXT_ROW, lane] = lanes[START_ROW, lane] = end
        lanes[EPISODE, lane] = -1
    for lane in range(lanes.shape[1]):
        first = row = lanes[NEXT_ROW, lane]
        last = (lane + 1) * capacity
        while row < last and 0 < marks[row] <= num_steps:
            row += 1
        if row == first:
            continue
        lanes[NEXT_ROW, lane] = row
        episode = lanes[EPISODE, lane]
        if episode < 0:
            episode = num_seen + num_added
            num_added += 1
            lanes[EPISODE, lane] = episode
            line = episode - base
            _begin(records, line, segment, first)
            records[line, ORIGIN], records[line, FLAGS] = first_id | first, IS_OPEN
            if first == lane * capacity and carried[lane, 0]:
                records[line, SKIPPED], records[line, ORIGIN] = carried[lane, 0], carried[lane, 1]
        line = episode - base
        if line >= 0 and not records[line, FLAGS] & IS_GONE:
            records[line, HI_STEP] = records[line, HI_FINAL] = row
            _put(runs, num_runs, episode, first, row, 0)
            num_runs += 1
    return num_runs, num_added, num_lost


@kernel
def trim_lanes(marks: Any, step: Any, episodes: Any, records: Any, base: Any, evicted: Any) -> Any:  # noqa: PLR0917
    """Let go what the first ``step`` vector steps of a segment wrote.

    Args:
        marks: uint32 [rows], the vector step of each row.
        step: how many.
        episodes: int64 [k], those of the segment.
        records: int64 [capacity, 8] of a history; written.
        base: the number of the first one's episode.
        evicted: int64 [k, 2], written: episodes of which rows went, and the first row that is there.

    Returns:
        How many these are.
    """
    num = 0
    for k in range(episodes.shape[0]):
        line = episodes[k] - base
        if line < 0 or records[line, FLAGS] & IS_GONE:
            continue
        first = row = records[line, LO]
        stop = records[line, HI_STEP]
        while row < stop and marks[row] <= step:
            row += 1
        if row == first:
            continue
        if row == stop and not records[line, FLAGS] & IS_OPEN:
            row = records[line, HI_FINAL]
            records[line, FLAGS] |= IS_GONE
        records[line, LO] = row
        evicted[num, 0], evicted[num, 1] = episodes[k], row
        num += 1
    return num


@kernel
def _begin(records: Any, line: Any, segment: Any, start: Any) -> None:
    records[line, SEGMENT], records[line, START], records[line, LO] = segment, start, start
    records[line, HI_STEP] = records[line, HI_FINAL] = start
    records[line, SKIPPED] = records[line, FLAGS] = records[line, ORIGIN] = 0


@kernel
def _put(runs: Any, at: Any, episode: Any, first: Any, stop: Any, has_ended: Any) -> None:  # noqa: PLR0917
    runs[at, 0], runs[at, 1], runs[at, 2], runs[at, 3] = episode, first, stop, has_ended
