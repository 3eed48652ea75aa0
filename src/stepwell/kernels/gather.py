"""The window kernel: every raw field of a batch in one call, one memcpy a run of consecutive offsets.

The kernel knows no dtypes. Each source of each field is one row of ``plan`` (the columns are named below), each anchor
one column of ``places``. Sources are the outer loop: one column's cache misses then follow each other at a distance
that prefetching can hide::

    for source in plan:                      "observation", offsets -1 0
        for anchor in places:                rows     | lo . . . . row-1 row . . . hi |
            window inside [lo, hi)?          yes: one memcpy a run              (fast)
                                             no:  row by row, clamp or zero     (slow), and mark the mask

Sources that are stacked or concatenated into one output interleave there: each writes its rows ``row_stride`` apart.

Notes:
    Bounds: a source row is read at ``base + r * row_bytes`` with lo <= r < hi only. Who maps checks that hi fits the
        map.
"""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import inlined, inlined_too, kernel
from stepwell.kernels.locate import locate, touch
from stepwell.kernels.memory import memcpy, memset, prefetch, store_u8
from stepwell.kernels.places import HI_FINAL, HI_STEP, LO, ROW, SEGMENT
from stepwell.kernels.windows import nearest

__all__ = [
    "AHEAD",
    "FIRST_OFFSET",
    "FIRST_RUN",
    "IS_FINAL",
    "IS_ZERO",
    "MASK",
    "MAX_OFFSET",
    "MIN_OFFSET",
    "NUM_OFFSETS",
    "NUM_RUNS",
    "OUTPUT",
    "PLAN_COLUMNS",
    "ROW_BYTES",
    "ROW_STRIDE",
    "SLOT",
    "WINDOW_STRIDE",
    "gather",
    "locate_and_gather",
    "runs_of",
    "touch_and_gather",
]

# columns of the plan, int64 [num_sources, PLAN_COLUMNS]
SLOT = 0  # row of the table of base addresses
ROW_BYTES = 1
FIRST_OFFSET, NUM_OFFSETS = 2, 3  # where the source's offsets lie in the array of all offsets
FIRST_RUN, NUM_RUNS = 4, 5  # where its runs lie in the array of all runs
MIN_OFFSET, MAX_OFFSET = 6, 7
OUTPUT = 8  # first byte of the output in the batch memory
WINDOW_STRIDE, ROW_STRIDE = 9, 10  # bytes from one anchor's window to the next, from one row of a window to the next
MASK = 11  # first byte of the field's mask in the batch memory, -1 without one
IS_ZERO = 12  # 1: rows outside the episode are zeros, 0: they are the nearest row inside
IS_FINAL = 13  # 1: the window may reach the final row
PLAN_COLUMNS = 14

# A random window waits for memory and for nothing else, so cache lines are asked for some anchors ahead of their copy:
# all lines of a small window, the first ones of a large one, whose rest the processor's own prefetcher finds. How many
# anchors ahead follows from the lines that may be under way at once. 256 windows of 1,088 bytes from 1.4 GB of cached
# file: 27 us with 8 lines 12 anchors ahead, 22 with all 18 lines; between 96 and 256 lines under way measure alike.
# Those of the first anchors are asked for at once, and small windows far ahead: 256 transitions of 136 + 24 + 4 + 1
# bytes from 98 MB take 12.6 us, where 16 anchors ahead and nothing asked for at first took 17.2.
LINE_BYTES = 64
LINES_AHEAD = 32
LINES_UNDER_WAY = 144
AHEAD = 48


def runs_of(offsets: list[int]) -> list[tuple[int, int, int]]:
    """Return the runs of consecutive offsets as (first offset, number, index of the first in the window).

    Example:
        >>> runs_of([-3, -2, -1, 0, 4, 4])
        [(-3, 4, 0), (4, 1, 4), (4, 1, 5)]
    """
    runs: list[tuple[int, int, int]] = []
    for index, offset in enumerate(offsets):
        if runs and offset == runs[-1][0] + runs[-1][1]:
            first, number, start = runs[-1]
            runs[-1] = (first, number + 1, start)
        else:
            runs.append((offset, 1, index))
    return runs


@inlined
def fetch_ahead(first: Any, num_bytes: Any) -> None:
    """Ask for the cache lines of a window."""
    for line in range(first & -LINE_BYTES, first + num_bytes, LINE_BYTES):
        prefetch(line)


@inlined
def copy_bytes(target: Any, source: Any, num_bytes: Any) -> None:
    """Copy a few bytes: of a known number a move of the processor's, where a call would cost as much as 60 bytes."""
    if num_bytes == 4:
        memcpy(target, source, 4)
    elif num_bytes == 8:
        memcpy(target, source, 8)
    elif num_bytes == 1:
        memcpy(target, source, 1)
    else:
        memcpy(target, source, num_bytes)


@inlined
def copy_run(target: Any, source: Any, number: Any, row_bytes: Any, row_stride: Any) -> None:
    """Copy ``number`` consecutive rows to rows that are ``row_stride`` apart."""
    if row_stride == row_bytes:
        copy_bytes(target, source, number * row_bytes)
    else:
        for _ in range(number):
            memcpy(target, source, row_bytes)
            target += row_stride
            source += row_bytes


@kernel
def copy_padded(  # noqa: PLR0917
    item: Any, offsets: Any, base: Any, row: Any, lo: Any, hi: Any, target: Any, mask: Any
) -> None:
    """Copy a window that leaves its episode, row by row; mark padding in ``mask`` (an address, or -1)."""
    row_bytes = item[ROW_BYTES]
    for t in range(item[NUM_OFFSETS]):
        wanted = row + offsets[item[FIRST_OFFSET] + t]
        inside = nearest(wanted, lo, hi)
        if wanted != inside and mask >= 0:
            store_u8(mask + t, 1)
        if wanted != inside and item[IS_ZERO] == 1:
            memset(target, 0, row_bytes)
        else:
            memcpy(target, base + inside * row_bytes, row_bytes)
        target += item[ROW_STRIDE]


@kernel
def gather(plan: Any, runs: Any, offsets: Any, bases: Any, places: Any, memory: Any) -> None:  # noqa: PLR0917
    """Copy the windows of all anchors and all raw sources into the batch memory.

    Args:
        plan: int64 [num_sources, PLAN_COLUMNS].
        runs: int64 [num_runs, 3], of `runs_of`.
        offsets: int64 [num_offsets].
        bases: int64 [num_slots, S], addresses of the first row of each column of each segment.
        places: int64 [PLACE_ROWS, n], of `stepwell.kernels.locate.locate`.
        memory: uint8 [m], written. Masks are written whole, zeros included, by the first source of their field; the
            further ones only add marks, for which the plan lists them after it.
    """
    start = memory.ctypes.data
    num_anchors = places.shape[1]
    last_mask = -1
    for source in range(plan.shape[0]):
        item = plan[source]
        slot, row_bytes, first_run, num_runs = item[SLOT], item[ROW_BYTES], item[FIRST_RUN], item[NUM_RUNS]
        min_offset, max_offset, row_stride, num_offsets = (
            item[MIN_OFFSET],
            item[MAX_OFFSET],
            item[ROW_STRIDE],
            item[NUM_OFFSETS],
        )
        hi_row = HI_FINAL if item[IS_FINAL] == 1 else HI_STEP
        target = start + item[OUTPUT]
        mask = -1
        if item[MASK] >= 0:
            mask = start + item[MASK]
            if item[MASK] != last_mask:
                memset(mask, 0, num_anchors * num_offsets)
            last_mask = item[MASK]
        ahead_bytes = min((max_offset - min_offset + 1) * row_bytes, LINES_AHEAD * LINE_BYTES)
        ahead = min(AHEAD, LINES_UNDER_WAY // (ahead_bytes // LINE_BYTES + 1))
        column, segments, rows, los, his = bases[slot], places[SEGMENT], places[ROW], places[LO], places[hi_row]
        for b in range(min(ahead, num_anchors)):
            fetch_ahead(column[segments[b]] + (rows[b] + min_offset) * row_bytes, ahead_bytes)
        for b in range(num_anchors):
            if b + ahead < num_anchors:
                fetch_ahead(column[segments[b + ahead]] + (rows[b + ahead] + min_offset) * row_bytes, ahead_bytes)
            base, row, lo, hi = column[segments[b]], rows[b], los[b], his[b]
            if row + min_offset >= lo and row + max_offset < hi:
                for r in range(first_run, first_run + num_runs):
                    from_address = base + (row + runs[r, 0]) * row_bytes
                    copy_run(target + runs[r, 2] * row_stride, from_address, runs[r, 1], row_bytes, row_stride)
            else:
                copy_padded(item, offsets, base, row, lo, hi, target, mask)
            target += item[WINDOW_STRIDE]
            if mask >= 0:
                mask += num_offsets


# compiled into the kernels below and not beside them: what most programs call is one compilation then
_locate, _touch, _gather = inlined_too(locate), inlined_too(touch), inlined_too(gather)


@kernel
def touch_and_gather(  # noqa: PLR0917
    places: Any, num_rows: Any, last_used: Any, now: Any, plan: Any, runs: Any, offsets: Any, bases: Any, memory: Any
) -> Any:
    """Do what `touch` does, and where all rows are mapped what `gather` does; return what `touch` does."""
    num_missing = _touch(places, num_rows, last_used, now)
    if num_missing == 0:
        _gather(plan, runs, offsets, bases, places, memory)
    return num_missing


@kernel
def locate_and_gather(  # noqa: PLR0917
    positions: Any, anchor_starts: Any, guide: Any, shift: Any, records: Any, places: Any,
    num_rows: Any, last_used: Any, now: Any, plan: Any, runs: Any, offsets: Any, bases: Any, memory: Any,
) -> Any:  # fmt: skip
    """Do what `locate` does, and then what `touch_and_gather` does: most batches need nothing else.

    Returns:
        0, or that nothing was copied: how many anchors may reach rows that no map holds, or -1 where a position is no
        anchor.
    """
    if _locate(positions, anchor_starts, guide, shift, records, places) >= 0:
        return -1
    num_missing = _touch(places, num_rows, last_used, now)
    if num_missing == 0:
        _gather(plan, runs, offsets, bases, places, memory)
    return num_missing
