"""Where showing a ring begins in each of its segments: at the oldest step of the newest ones that fit.

::

    segment   stamps of its steps (a clock that all writers share)         the cut, capacity 7
       0      1  4  5  8 12                                                        5  8 12
       1      2  3  9                                                    ->              9
       2      6  7 11                                                               6  7 11

Steps go in the order of (stamp, ordinal of the segment, row). Rows of a segment are in that order, so the cut is one
row a segment, its *head*. When steps come, the oldest heads move on; what is far away is found by bisection first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import load_u64

__all__ = ["NO_STAMP", "NUM_COLUMNS", "NUM_WORDS", "move_cut"]

# a segment: address of its rows' stamps; rows; address of its ended episodes (int64 [count, 4]: first row,
# steps, the row after the last, weight of those before it), their number; rows and weight of all ended ones; ordinal;
# address of the addresses of its offsets; its head: row, number of the episode, stamp; first row that is shown; what
# that was when it was returned; whether it has lanes: then its rows are vector steps, and the address is that of one
# array, of the weight of those before each
(
    CLOCK, NUM_ROWS, EPISODES, NUM_EPISODES, ENDED_ROWS, ENDED_WEIGHT, ORDINAL, OFFSETS,
    HEAD_ROW, HEAD_EPISODE, HEAD_STAMP, FIRST, TOLD, LANES,
) = range(14)  # fmt: skip
NUM_COLUMNS = 14
_EPISODE_BYTES = 32
# of all segments: the newest step that went; weight that may come before any goes; the segment of
# the oldest step that is left (-1: none), that step's row, and the first row of its segment that goes after a step of
# another one
CUT_STAMP, CUT_ORDINAL, CUT_ROW, SLACK, OLDEST, OLDEST_ROW, OLDEST_STOP = range(7)
NUM_WORDS = 7
NO_STAMP = (1 << 63) - 1
# steps that are taken one by one before the rest is found by bisection
_MOST_WALKED = 512


@kernel
def move_cut(  # noqa: PLR0917
    table: Any,
    words: Any,
    capacity: Any,
    row_bytes: Any,
    num_encoded: Any,
    counts_open: Any,
    is_anew: Any,
    changed: Any,
) -> Any:
    """Move the heads of segments on until what is left fits.

    Args:
        table: int64 [S, NUM_COLUMNS], of the segments; heads are written.
        words: int64 [NUM_WORDS], written.
        capacity: steps, or bytes.
        row_bytes: of a row but for its encoded values; -1: steps are counted, not bytes.
        num_encoded: encoded features, in bytes.
        counts_open: whether steps of open episodes weigh anything.
        is_anew: whether heads begin at the first rows: where rows without stamps are older than they were.
        changed: int64 [S], written: the segments whose first row that is shown is another one.

    Returns:
        How many of these there are.
    """
    if is_anew:
        words[CUT_STAMP] = -1
        for s in range(table.shape[0]):
            table[s, HEAD_ROW] = table[s, HEAD_EPISODE] = 0
    left = _take_in(table, words, row_bytes, num_encoded, counts_open)
    num_walked = 0
    while left > capacity:
        oldest, stamp, ordinal = _oldest_two(table)
        if oldest < 0:
            break
        if num_walked > _MOST_WALKED:
            num_walked = -1 << 62
            _jump(table, words, capacity, row_bytes, num_encoded, counts_open)
            left = _take_in(table, words, row_bytes, num_encoded, counts_open)
            continue
        while left > capacity and _is_before(table, oldest, stamp, ordinal):
            before = _weight_before(table, oldest, row_bytes, num_encoded, counts_open)
            words[CUT_STAMP], words[CUT_ORDINAL] = table[oldest, HEAD_STAMP], table[oldest, ORDINAL]
            words[CUT_ROW] = table[oldest, HEAD_ROW]
            table[oldest, HEAD_ROW] += 1
            _settle(table, oldest)
            left -= _weight_before(table, oldest, row_bytes, num_encoded, counts_open) - before
            num_walked += 1
            if num_walked > _MOST_WALKED:
                break
    words[SLACK] = max(0, capacity - left)
    return _find_changed(table, words, row_bytes, num_encoded, counts_open, changed)


@kernel
def _take_in(table: Any, words: Any, row_bytes: Any, num_encoded: Any, counts_open: Any) -> Any:
    """Let heads stand at steps that count, none at one that would have gone already; return the weight that is left."""
    left = np.int64(0)
    cut = words[CUT_STAMP]
    for s in range(table.shape[0]):
        _settle(table, s)
        if table[s, HEAD_STAMP] <= cut:
            row, ordinal = table[s, HEAD_ROW], table[s, ORDINAL]
            first = _first_at(table, s, cut)
            if ordinal < words[CUT_ORDINAL]:
                first = _first_at(table, s, cut + 1)
            elif ordinal == words[CUT_ORDINAL]:
                first = max(first, words[CUT_ROW] + 1)
            if first > row:
                _seek(table, s, first)
        left += _weight_of(table, s, row_bytes, num_encoded, counts_open)
        left -= _weight_before(table, s, row_bytes, num_encoded, counts_open)
    return left


@kernel
def _settle(table: Any, s: Any) -> None:
    """Let a head that stands at no step that counts go to the next one."""
    row, episode, count = table[s, HEAD_ROW], table[s, HEAD_EPISODE], table[s, NUM_EPISODES]
    stamp = np.int64(NO_STAMP)
    while episode < count:
        address = table[s, EPISODES] + _EPISODE_BYTES * episode
        start = load_u64(address)
        row = max(row, start)
        if row < start + load_u64(address + 8):
            stamp = load_u64(table[s, CLOCK] + 8 * row)
            break
        episode += 1
    if episode == count:
        row = max(row, table[s, ENDED_ROWS])
        if row < table[s, NUM_ROWS]:
            stamp = load_u64(table[s, CLOCK] + 8 * row)
    table[s, HEAD_ROW], table[s, HEAD_EPISODE], table[s, HEAD_STAMP] = row, episode, stamp


@kernel
def _seek(table: Any, s: Any, row: Any) -> None:
    """Let a head go to the first step that counts from a row on."""
    low, high = table[s, HEAD_EPISODE], table[s, NUM_EPISODES]
    while low < high:
        middle = (low + high) // 2
        if load_u64(table[s, EPISODES] + _EPISODE_BYTES * middle + 16) > row:
            high = middle
        else:
            low = middle + 1
    table[s, HEAD_ROW], table[s, HEAD_EPISODE] = row, low
    _settle(table, s)


@kernel
def _first_at(table: Any, s: Any, stamp: Any) -> Any:
    """Return the first row from the head on with a stamp that is not older; the number of rows where there is none."""
    low, high = table[s, HEAD_ROW], max(table[s, NUM_ROWS], table[s, HEAD_ROW])
    while low < high:
        middle = (low + high) // 2
        if load_u64(table[s, CLOCK] + 8 * middle) >= stamp:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _bytes_before(table: Any, s: Any, row: Any, row_bytes: Any, num_encoded: Any) -> Any:
    """Return the bytes of all rows before one; their number where steps are counted."""
    if table[s, LANES]:
        return load_u64(table[s, OFFSETS] + 8 * row)
    if row_bytes < 0:
        return row
    total = row * row_bytes
    for k in range(num_encoded):
        total += load_u64(load_u64(table[s, OFFSETS] + 8 * k) + 8 * row)
    return total


@kernel
def _weight_of(table: Any, s: Any, row_bytes: Any, num_encoded: Any, counts_open: Any) -> Any:
    """Return what all of a segment weighs."""
    weight = table[s, ENDED_WEIGHT]
    if counts_open and table[s, NUM_ROWS] > table[s, ENDED_ROWS]:
        weight += _bytes_before(table, s, table[s, NUM_ROWS], row_bytes, num_encoded)
        weight -= _bytes_before(table, s, table[s, ENDED_ROWS], row_bytes, num_encoded)
    return weight


@kernel
def _weight_before(table: Any, s: Any, row_bytes: Any, num_encoded: Any, counts_open: Any) -> Any:
    """Return what the steps of a segment before its head weigh; the head is settled."""
    row, episode = table[s, HEAD_ROW], table[s, HEAD_EPISODE]
    if episode < table[s, NUM_EPISODES]:
        address = table[s, EPISODES] + _EPISODE_BYTES * episode
        start, weight = load_u64(address), load_u64(address + 24)
    else:
        start, weight = table[s, ENDED_ROWS], table[s, ENDED_WEIGHT]
        if not counts_open:
            return weight
        # an open episode that was taken back lies before the row
        row = min(row, table[s, NUM_ROWS])
    if row > start:
        weight += _bytes_before(table, s, row, row_bytes, num_encoded)
        weight -= _bytes_before(table, s, start, row_bytes, num_encoded)
    return weight


@kernel
def _oldest_two(table: Any) -> Any:
    """Return the segment of the oldest head, -1 where there is none, and stamp and ordinal of the second one."""
    oldest, stamp, ordinal = -1, np.int64(NO_STAMP), np.int64(0)
    for s in range(table.shape[0]):
        if table[s, HEAD_STAMP] == NO_STAMP:
            continue
        if oldest < 0 or _is_before(table, s, table[oldest, HEAD_STAMP], table[oldest, ORDINAL]):
            if oldest >= 0:
                stamp, ordinal = table[oldest, HEAD_STAMP], table[oldest, ORDINAL]
            oldest = s
        elif _is_before(table, s, stamp, ordinal):
            stamp, ordinal = table[s, HEAD_STAMP], table[s, ORDINAL]
    return oldest, stamp, ordinal


@kernel
def _is_before(table: Any, s: Any, stamp: Any, ordinal: Any) -> Any:
    own = table[s, HEAD_STAMP]
    return own < stamp or (own == stamp and own != NO_STAMP and table[s, ORDINAL] < ordinal)


@kernel
def _copy_heads(source: Any, source_column: Any, target: Any, target_column: Any) -> None:
    # slices of arrays take seconds to compile
    for s in range(source.shape[0]):
        for k in range(3):
            target[s, target_column + k] = source[s, source_column + k]


@kernel
def _jump(  # noqa: PLR0917
    table: Any, words: Any, capacity: Any, row_bytes: Any, num_encoded: Any, counts_open: Any
) -> None:
    """Let all heads go to the latest stamp from which on the capacity is still full."""
    num = table.shape[0]
    low, high = np.int64(NO_STAMP), np.int64(0)
    for s in range(num):
        if table[s, HEAD_STAMP] != NO_STAMP:
            low = min(low, table[s, HEAD_STAMP])
            high = max(high, load_u64(table[s, CLOCK] + 8 * (table[s, NUM_ROWS] - 1)))
    # of a damaged clock
    low = max(low, np.int64(0))
    heads = np.empty((num, 3), np.int64)
    _copy_heads(table, HEAD_ROW, heads, 0)
    while low < high:
        middle = low + (high - low + 1) // 2
        left = np.int64(0)
        for s in range(num):
            if table[s, HEAD_STAMP] < middle:
                _seek(table, s, _first_at(table, s, middle))
            left += _weight_of(table, s, row_bytes, num_encoded, counts_open)
            left -= _weight_before(table, s, row_bytes, num_encoded, counts_open)
        if left >= capacity:
            low = middle
            _copy_heads(table, HEAD_ROW, heads, 0)
        else:
            high = middle - 1
        _copy_heads(heads, 0, table, HEAD_ROW)
    # the newest of what went is older than that
    words[CUT_STAMP], words[CUT_ORDINAL], words[CUT_ROW] = low - 1, 1 << 62, 0


@kernel
def _find_changed(  # noqa: PLR0917
    table: Any, words: Any, row_bytes: Any, num_encoded: Any, counts_open: Any, changed: Any
) -> Any:
    """Set the first rows that are shown, and what is the oldest step; returns how many first rows are other ones."""
    oldest, stamp, ordinal = _oldest_two(table)
    words[OLDEST], oldest_stamp = oldest, np.int64(0)
    if oldest >= 0:
        oldest_stamp = table[oldest, HEAD_STAMP]
        words[OLDEST_ROW] = table[oldest, HEAD_ROW]
        words[OLDEST_STOP] = _first_at(table, oldest, stamp if ordinal <= table[oldest, ORDINAL] else stamp + 1)
        if stamp == NO_STAMP:
            words[OLDEST_STOP] = table[oldest, NUM_ROWS]
    num = 0
    for s in range(table.shape[0]):
        num_rows, first = table[s, NUM_ROWS], 0
        has_gone = _weight_before(table, s, row_bytes, num_encoded, counts_open) > 0
        if table[s, HEAD_STAMP] != NO_STAMP:
            first = table[s, HEAD_ROW] if has_gone else 0
        elif num_rows and (
            has_gone or (words[CUT_STAMP] >= 0 and load_u64(table[s, CLOCK] + 8 * (num_rows - 1)) < oldest_stamp)
        ):
            first = num_rows
        table[s, FIRST] = first
        if first != table[s, TOLD]:
            table[s, TOLD] = first
            changed[num] = s
            num += 1
    return num
