"""One vector step into the lanes of a segment: rows, marks, ended episodes and the commit, in one call."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import commit_u64, load_u8, load_u32, load_u64, memcpy, store_u32, store_u64

__all__ = ["COLUMN_WORDS", "FIRST_COLUMN", "append_lane_steps", "append_lanes"]

# Words of `control`, int64 [FIRST_COLUMN + COLUMN_WORDS * columns]. Addresses of arrays [lanes]: int64 the next row of
# each, the row at which its open episode begins, steps that this one has in earlier segments, and its origin; uint8
# which environments take part, and which terminate and are truncated. Addresses of files: marks, steps, episodes; of
# the word that commits; of int64 [lanes] for ids. Numbers so far: vector steps, ended episodes, rows, steps of
# episodes. How many vector steps there is room for. Of the lines of metadata: where those end that are committed, and
# the bytes of those of this step. The address of the ring's clock, and the last stamp of this segment.
(
    LANES, CAPACITY, COLUMNS, NEXT_ROWS, STARTS, SKIPPED, ORIGINS, TAKES_PART, TERMINATED, TRUNCATED,
    MARKS, STEPS, EPISODES, COMMIT, IDS, NUM_CALLS, NUM_EPISODES, NUM_ROWS, NUM_STEPS, FIRST_ID,
    STEPS_ROOM, METADATA_END, METADATA_BYTES, CLOCK, LAST_STAMP,
) = range(25)  # fmt: skip
FIRST_COLUMN = 32
# of a column: addresses of its file's rows, of the values and of the final values [lanes], 0 where it has none; bytes
# of a row
TARGET, VALUES, FINALS, ROW_BYTES, COLUMN_WORDS = range(5)
_RECORD_BYTES, _STEP_BYTES = 48, 32
# vector steps that are stored lane by lane: a processor reads ahead in so many places
_MOST_TOGETHER = 8
# What is asked for: rows are stored; episodes that end have a final row; all that are open end; there is room for
# records of those that end, and their metadata is stored; final values are those of the step. All other bits, of which
# the first says that an episode terminated, are in the record of every episode that ends.
HAS_ROWS, HAS_FINAL, ENDS_ALL, IS_PREPARED, HAS_NEXT_AS_FINAL = 2, 4, 8, 16, 32
_ASKED = 62
IS_FULL, NEEDS_STEPS = -1, -2


@kernel
def append_lanes(control: Any, now: Any, kind: Any) -> Any:
    """Store and commit one vector step, if any environment takes part.

    Args:
        control: int64, see above; the numbers so far are written.
        now: nanoseconds since 1970; its stamp follows from them and the ring's clock, see `stepwell.store.ring`.
        kind: what is asked for, see above.

    Returns:
        0; or how many episodes end, where that was to be prepared; or -1, where a lane is full, or -2, where there is
        no room for another vector step: then nothing was stored.
    """
    if control[NUM_CALLS] >= control[STEPS_ROOM]:
        return NEEDS_STEPS
    has_rows, has_final = 1 if kind & HAS_ROWS else 0, 1 if kind & HAS_FINAL else 0
    num_ends, num_parts = _count(control, kind, has_rows, has_final)
    if num_ends < 0:
        return IS_FULL
    if num_parts == 0:
        # a line for it would stay, and cost space: nothing came
        return 0
    if num_ends and not kind & IS_PREPARED:
        return num_ends
    stamp = _next_stamp(control, now)
    is_plain = has_rows and num_ends == 0 and num_parts == control[LANES]
    for column in range(control[COLUMNS]):
        at = FIRST_COLUMN + COLUMN_WORDS * column
        if is_plain:
            _store_plain(control, at)
        else:
            _store_column(control, at, kind)
    mark = control[NUM_CALLS] + 1
    next_rows, marks, ids = control[NEXT_ROWS], control[MARKS], control[IDS]
    for lane in range(control[LANES]):
        if not is_plain and not load_u8(control[TAKES_PART] + lane):
            continue
        row = load_u64(next_rows + 8 * lane)
        ends = 0 if is_plain else _ends(control, lane, kind)
        if has_rows:
            store_u64(ids + 8 * lane, control[FIRST_ID] | row)
            store_u32(marks + 4 * row, mark)
            row += 1
        if ends:
            row = _end_episode(control, lane, row, mark, stamp, kind)
        store_u64(next_rows + 8 * lane, row)
    control[METADATA_END] += control[METADATA_BYTES]
    control[METADATA_BYTES] = 0
    _put_line(control, stamp, num_parts * has_rows + num_ends * has_final, num_parts * has_rows)
    # last: all of it is there, or nothing
    commit_u64(control[COMMIT], mark)
    return 0


@kernel
def append_lane_steps(control: Any, batch: Any, now: Any, kind: Any, num_steps: Any, line_bytes: Any) -> Any:  # noqa: PLR0917
    """Store and commit vector steps of all environments that lie back to back, until a lane is full.

    Args:
        control: as for `append_lanes`; there is room for ``num_steps`` and for the records of those that end.
        batch: int64 [3 + 2 * columns], addresses of the first step's flags ``terminated`` and ``truncated``, of its
            ids, and of the values and final values of each column, 0 where it has none; they are moved on.
        now: as for `append_lanes`.
        kind: as for `append_lanes`.
        num_steps: how many there are.
        line_bytes: of the metadata of each episode that ends, which is stored.

    Returns:
        How many were stored.
    """
    lanes, done = control[LANES], 0
    # back at the end: other calls find the addresses of `LaneValues`
    _swap(control, batch)
    while done < num_steps:
        count = _num_plain(control, num_steps - done)
        if count > 0:
            _store_together(control, now, count)
        else:
            count = 1
            found = append_lanes(control, now, kind)
            if found > 0:
                control[METADATA_BYTES] = line_bytes * found
                found = append_lanes(control, now, kind | IS_PREPARED)
            if found:
                break
        control[TERMINATED] += lanes * count
        control[TRUNCATED] += lanes * count
        control[IDS] += 8 * lanes * count
        for column in range(control[COLUMNS]):
            at = FIRST_COLUMN + COLUMN_WORDS * column
            control[at + VALUES] += lanes * count * control[at + ROW_BYTES]
            if control[at + FINALS]:
                control[at + FINALS] += lanes * count * control[at + ROW_BYTES]
        done += count
    _swap(control, batch)
    return done


@kernel
def _num_plain(control: Any, most: Any) -> Any:
    """Return with how many of the next vector steps no episode ends, and no lane is full."""
    lanes, last = control[LANES], control[CAPACITY] - 1
    most = min(most, _MOST_TOGETHER, control[STEPS_ROOM] - control[NUM_CALLS])
    for lane in range(lanes):
        most = min(most, last - load_u64(control[NEXT_ROWS] + 8 * lane))
        last += control[CAPACITY]
    for i in range(most * lanes):
        if load_u8(control[TERMINATED] + i) | load_u8(control[TRUNCATED] + i):
            return i // lanes
    return most


@kernel
def _store_together(control: Any, now: Any, count: Any) -> None:
    """Store and commit vector steps of all environments with which no episode ends, and for which there is room."""
    # lane by lane: rows that follow each other in a file are stored one after the other
    lanes, next_rows, mark = control[LANES], control[NEXT_ROWS], control[NUM_CALLS]
    for column in range(control[COLUMNS]):
        at = FIRST_COLUMN + COLUMN_WORDS * column
        num_bytes = control[at + ROW_BYTES]
        for lane in range(lanes):
            target = control[at + TARGET] + num_bytes * load_u64(next_rows + 8 * lane)
            values = control[at + VALUES] + num_bytes * lane
            for _ in range(count):
                if num_bytes == 4:
                    store_u32(target, load_u32(values))
                else:
                    memcpy(target, values, num_bytes)
                target += num_bytes
                values += num_bytes * lanes
    for lane in range(lanes):
        row = load_u64(next_rows + 8 * lane)
        for step in range(count):
            store_u64(control[IDS] + 8 * (lanes * step + lane), control[FIRST_ID] | (row + step))
            store_u32(control[MARKS] + 4 * (row + step), mark + 1 + step)
        store_u64(next_rows + 8 * lane, row + count)
    for _ in range(count):
        _put_line(control, _next_stamp(control, now), lanes, lanes)
    commit_u64(control[COMMIT], control[NUM_CALLS])


@kernel
def _next_stamp(control: Any, now: Any) -> Any:
    """Return a stamp of the ring's clock."""
    stamp = max(now, max(load_u64(control[CLOCK]), control[LAST_STAMP]) + 1)
    control[LAST_STAMP] = stamp
    store_u64(control[CLOCK], stamp)
    return stamp


@kernel
def _put_line(control: Any, stamp: Any, num_rows: Any, num_steps: Any) -> None:
    """Count a vector step, its rows and steps, and store its line."""
    line = control[STEPS] + _STEP_BYTES * control[NUM_CALLS]
    control[NUM_CALLS] += 1
    control[NUM_ROWS] += num_rows
    control[NUM_STEPS] += num_steps
    store_u64(line, stamp)
    store_u64(line + 8, control[NUM_ROWS])
    store_u64(line + 16, control[NUM_STEPS])
    store_u64(line + 24, control[NUM_EPISODES])


@kernel
def _swap(control: Any, batch: Any) -> None:
    """Exchange the addresses of a step's values in ``control`` for those in ``batch``."""
    control[TERMINATED], batch[0] = batch[0], control[TERMINATED]
    control[TRUNCATED], batch[1] = batch[1], control[TRUNCATED]
    control[IDS], batch[2] = batch[2], control[IDS]
    for column in range(control[COLUMNS]):
        at = FIRST_COLUMN + COLUMN_WORDS * column
        control[at + VALUES], batch[3 + 2 * column] = batch[3 + 2 * column], control[at + VALUES]
        control[at + FINALS], batch[4 + 2 * column] = batch[4 + 2 * column], control[at + FINALS]


@kernel
def _count(control: Any, kind: Any, has_rows: Any, has_final: Any) -> Any:
    """Return how many episodes end and how many environments take part; -1 and 0 where a lane is full."""
    num_ends, num_parts = 0, 0
    next_rows, capacity, takes_part = control[NEXT_ROWS], control[CAPACITY], control[TAKES_PART]
    # one row more is for the final one of an episode that is cut
    last = capacity - 1
    for lane in range(control[LANES]):
        if load_u8(takes_part + lane):
            ends = _ends(control, lane, kind)
            if has_rows and load_u64(next_rows + 8 * lane) + (ends & has_final) >= last:
                return -1, 0
            num_ends += ends
            num_parts += 1
        last += capacity
    return num_ends, num_parts


@kernel
def _ends(control: Any, lane: Any, kind: Any) -> Any:
    """Whether the episode of an environment that takes part ends, as a number."""
    if kind & ENDS_ALL:
        return 1 if load_u64(control[NEXT_ROWS] + 8 * lane) > load_u64(control[STARTS] + 8 * lane) else 0
    return load_u8(control[TERMINATED] + lane) | load_u8(control[TRUNCATED] + lane)


@kernel
def _store_plain(control: Any, at: Any) -> None:
    """Copy a row of each environment into one column."""
    target, values, num_bytes = control[at + TARGET], control[at + VALUES], control[at + ROW_BYTES]
    next_rows = control[NEXT_ROWS]
    if num_bytes == 4:
        for lane in range(control[LANES]):
            store_u32(target + 4 * load_u64(next_rows + 8 * lane), load_u32(values + 4 * lane))
        return
    for lane in range(control[LANES]):
        memcpy(target + num_bytes * load_u64(next_rows + 8 * lane), values + num_bytes * lane, num_bytes)


@kernel
def _store_column(control: Any, at: Any, kind: Any) -> None:
    """Copy the rows of one column, and the final ones of episodes that end."""
    target, values, finals, num_bytes = (
        control[at + TARGET], control[at + VALUES], control[at + FINALS], control[at + ROW_BYTES],
    )  # fmt: skip
    has_rows, stores_finals = kind & HAS_ROWS, kind & HAS_FINAL and finals != 0
    if kind & HAS_NEXT_AS_FINAL:
        finals = values
    for lane in range(control[LANES]):
        if not load_u8(control[TAKES_PART] + lane):
            continue
        row = load_u64(control[NEXT_ROWS] + 8 * lane)
        if has_rows:
            memcpy(target + row * num_bytes, values + lane * num_bytes, num_bytes)
            row += 1
        if stores_finals and _ends(control, lane, kind):
            memcpy(target + row * num_bytes, finals + lane * num_bytes, num_bytes)


@kernel
def _end_episode(control: Any, lane: Any, row: Any, mark: Any, stamp: Any, kind: Any) -> Any:  # noqa: PLR0917
    """Store the record of an episode whose last step lies before ``row``; returns the row of the next one."""
    start = load_u64(control[STARTS] + 8 * lane)
    length = row - start
    if kind & HAS_FINAL:
        store_u32(control[MARKS] + 4 * row, mark)
        row += 1
    skipped, origin = load_u64(control[SKIPPED] + 8 * lane), load_u64(control[ORIGINS] + 8 * lane)
    record = control[EPISODES] + _RECORD_BYTES * control[NUM_EPISODES]
    store_u64(record, start)
    store_u64(record + 8, length)
    store_u64(record + 16, row - start)
    store_u64(record + 24, origin if skipped else control[FIRST_ID] | start)
    store_u64(record + 32, stamp)
    flags = kind & ~_ASKED | skipped << 32
    if not kind & ENDS_ALL:
        flags |= load_u8(control[TERMINATED] + lane) | load_u8(control[TRUNCATED] + lane) << 8
    store_u64(record + 40, flags)
    control[NUM_EPISODES] += 1
    store_u64(control[STARTS] + 8 * lane, row)
    store_u64(control[SKIPPED] + 8 * lane, 0)
    return row
