"""One vector step into the lanes of a segment: rows, marks, ended episodes and the commit, in one call."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import load_u8, load_u64, memcpy, store_u32, store_u64

__all__ = ["COLUMN_WORDS", "FIRST_COLUMN", "append_lanes"]

# Words of `control`, int64 [FIRST_COLUMN + COLUMN_WORDS * columns]. Addresses of arrays [lanes]: int64 rows of each,
# the row at which its open episode begins, steps that this one has in earlier segments, and its origin; uint8 which
# environments take part, and which terminate and are truncated. Addresses of files: marks, steps, episodes; of the
# word that commits; of int64 [lanes] for ids. Numbers so far: vector steps, ended episodes, rows, steps of episodes.
# Of the lines of metadata: where those end that are committed, and the bytes of those of this step.
(
    LANES, CAPACITY, COLUMNS, COUNTS, STARTS, SKIPPED, ORIGINS, TAKES_PART, TERMINATED, TRUNCATED,
    MARKS, STEPS, EPISODES, COMMIT, IDS, NUM_CALLS, NUM_EPISODES, NUM_ROWS, NUM_STEPS, STAMP, FIRST_ID,
    HAS_ROWS, HAS_FINAL, ENDS_ALL, FLAGS, METADATA_END, METADATA_BYTES,
) = range(27)  # fmt: skip
FIRST_COLUMN = 32
# of a column: addresses of its file's rows, of the values and of the final values [lanes], 0 where it has none; bytes
# of a row
TARGET, VALUES, FINALS, ROW_BYTES, COLUMN_WORDS = range(5)
_RECORD_BYTES, _STEP_BYTES = 48, 32
IS_FULL = -1


@kernel
def append_lanes(control: Any, is_prepared: Any) -> Any:
    """Store and commit one vector step.

    Args:
        control: int64, see above; the numbers so far are written.
        is_prepared: whether there is room for records of the episodes that end, and their metadata is stored.

    Returns:
        0; or how many episodes end, where that was to be prepared, or -1, where a lane is full: nothing was stored.
    """
    num_lanes, capacity = control[LANES], control[CAPACITY]
    takes_part, counts = control[TAKES_PART], control[COUNTS]
    has_rows, has_final = control[HAS_ROWS], control[HAS_FINAL]
    num_ends, num_steps = 0, 0
    for lane in range(num_lanes):
        if load_u8(takes_part + lane):
            ends = _ends(control, lane)
            count = load_u64(counts + 8 * lane) + has_rows
            # one row more is for the final one of an episode that is cut
            if has_rows and count + (ends & has_final) >= capacity:
                return IS_FULL
            num_ends += ends
            num_steps += has_rows
    if num_ends and not is_prepared:
        return num_ends
    for column in range(control[COLUMNS]):
        _store_column(control, FIRST_COLUMN + COLUMN_WORDS * column)
    mark = control[NUM_CALLS] + 1
    num_finals = 0
    for lane in range(num_lanes):
        if not load_u8(takes_part + lane):
            continue
        count = load_u64(counts + 8 * lane)
        row = lane * capacity + count
        ends = _ends(control, lane)
        if has_rows:
            store_u64(control[IDS] + 8 * lane, control[FIRST_ID] | row)
            store_u32(control[MARKS] + 4 * row, mark)
            row += 1
        if ends:
            num_finals += has_final
            _end_episode(control, lane, row, mark)
        else:
            store_u64(counts + 8 * lane, count + has_rows)
    control[NUM_CALLS] = mark
    control[METADATA_END] += control[METADATA_BYTES]
    control[NUM_ROWS] += num_steps + num_finals
    control[NUM_STEPS] += num_steps
    line = control[STEPS] + _STEP_BYTES * (mark - 1)
    store_u64(line, control[STAMP])
    store_u64(line + 8, control[NUM_ROWS])
    store_u64(line + 16, control[NUM_STEPS])
    store_u64(line + 24, control[NUM_EPISODES])
    # last: all of it is there, or nothing
    store_u64(control[COMMIT], mark)
    return 0


@kernel
def _ends(control: Any, lane: Any) -> Any:
    """Whether the episode of an environment that takes part ends, as a number."""
    if control[ENDS_ALL]:
        has_open = load_u64(control[COUNTS] + 8 * lane) + lane * control[CAPACITY] > load_u64(
            control[STARTS] + 8 * lane
        )
        return 1 if has_open else 0
    return load_u8(control[TERMINATED] + lane) | load_u8(control[TRUNCATED] + lane)


@kernel
def _store_column(control: Any, at: Any) -> None:
    """Copy the rows of one column, and the final ones of episodes that end."""
    target, values, finals, num_bytes = (
        control[at + TARGET], control[at + VALUES], control[at + FINALS], control[at + ROW_BYTES],
    )  # fmt: skip
    has_rows = control[HAS_ROWS]
    stores_finals = control[HAS_FINAL] and finals
    for lane in range(control[LANES]):
        if not load_u8(control[TAKES_PART] + lane):
            continue
        row = lane * control[CAPACITY] + load_u64(control[COUNTS] + 8 * lane)
        if has_rows:
            memcpy(target + row * num_bytes, values + lane * num_bytes, num_bytes)
            row += 1
        if stores_finals and _ends(control, lane):
            memcpy(target + row * num_bytes, finals + lane * num_bytes, num_bytes)


@kernel
def _end_episode(control: Any, lane: Any, row: Any, mark: Any) -> None:
    """Store the record of an episode whose last step lies before ``row``, and begin another one behind it."""
    start = load_u64(control[STARTS] + 8 * lane)
    length = row - start
    if control[HAS_FINAL]:
        store_u32(control[MARKS] + 4 * row, mark)
        row += 1
    skipped, origin = load_u64(control[SKIPPED] + 8 * lane), load_u64(control[ORIGINS] + 8 * lane)
    record = control[EPISODES] + _RECORD_BYTES * control[NUM_EPISODES]
    store_u64(record, start)
    store_u64(record + 8, length)
    store_u64(record + 16, row - start)
    store_u64(record + 24, origin if skipped else control[FIRST_ID] | start)
    store_u64(record + 32, control[STAMP])
    flags = control[FLAGS] | skipped << 32
    if not control[ENDS_ALL]:
        flags |= load_u8(control[TERMINATED] + lane) | load_u8(control[TRUNCATED] + lane) << 8
    store_u64(record + 40, flags)
    control[NUM_EPISODES] += 1
    store_u64(control[STARTS] + 8 * lane, row)
    store_u64(control[SKIPPED] + 8 * lane, 0)
    store_u64(control[COUNTS] + 8 * lane, row - lane * control[CAPACITY])
