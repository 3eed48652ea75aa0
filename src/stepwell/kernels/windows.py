"""Computed values along windows: from one number an anchor to a window of them, with its padding, in one pass.

Columns that every store has without storing them are not looked up step by step. Within an episode such a column counts
up with the rows, stays the same, or is true at one row only, the first or the last::

    step_index     anchor's value + steps from it       4 5 6 7 7 7        rows beyond the episode: the nearest inside
    episode_index  anchor's value                       2 2 2 2 2 2
    terminated     at the last row, if it ended so      . . . x x x
    padding                                             . . . . x x
"""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.places import HI_STEP, LO, ROW

__all__ = ["clamp_windows", "count_along", "mark_rows", "nearest"]


@inlined
def nearest(row: Any, lo: Any, hi: Any) -> Any:
    """Return the row of an episode, [lo, hi), that stands for a row: the padding rule. Another row is padding."""
    return min(max(row, lo), hi - 1)


@kernel
def clamp_windows(offsets: Any, anchors: Any, los: Any, his: Any, rows: Any, is_pad: Any) -> None:  # noqa: PLR0917
    """Write the rows of windows; those beyond an episode are its nearest, and padding."""
    for i in range(anchors.size):
        for k in range(offsets.size):
            wanted = anchors[i] + offsets[k]
            inside = nearest(wanted, los[i], his[i])
            rows[i, k] = inside
            is_pad[i, k] = wanted != inside


@kernel
def mark_rows(  # noqa: PLR0917
    marked: Any, is_marked: Any, places: Any, offsets: Any, is_zero: Any, values: Any, mask: Any, adds: Any
) -> None:
    """Write windows of a value that is true at one row of an episode at most.

    Args:
        marked: int64 [n], that row, of each anchor's episode.
        is_marked: bool [n], whether it is true there.
        places: int64 [PLACE_ROWS, n], see `stepwell.kernels.places`.
        offsets: int64 [K].
        is_zero: whether padding is false; else it is the value of the nearest row.
        values: bool [n, K], written.
        mask: bool [n, K], written: which are padding; or bool [0, K] for no mask.
        adds: whether marks that are in the mask stay.
    """
    rows, los, his = places[ROW], places[LO], places[HI_STEP]
    min_offset, max_offset = offsets.min(), offsets.max()
    has_mask = mask.shape[0] > 0
    values[:] = False
    if not adds:
        mask[:] = False
    for i in range(rows.size):
        row, lo, last = rows[i], los[i], his[i] - 1
        first_row, last_row = row + min_offset, row + max_offset
        is_beside = not is_marked[i] or marked[i] < first_row or marked[i] > last_row
        # of nearly all windows all is false by now
        if is_beside and first_row >= lo and last_row <= last:
            continue
        for k in range(offsets.size):
            wanted = row + offsets[k]
            inside = nearest(wanted, lo, last + 1)
            is_pad = wanted != inside
            values[i, k] = is_marked[i] and inside == marked[i] and not (is_pad and is_zero)
            if has_mask and is_pad:
                mask[i, k] = True


@kernel
def count_along(  # noqa: PLR0917
    starts: Any, step: Any, places: Any, offsets: Any, is_zero: Any, values: Any, mask: Any, adds: Any
) -> None:
    """Write windows of a number that grows by ``step`` from row to row; else as `mark_rows`."""
    rows, los, his = places[ROW], places[LO], places[HI_STEP]
    has_mask = mask.shape[0] > 0
    for i in range(rows.size):
        row, lo, last = rows[i], los[i], his[i] - 1
        for k in range(offsets.size):
            wanted = row + offsets[k]
            inside = nearest(wanted, lo, last + 1)
            is_pad = wanted != inside
            values[i, k] = 0 if is_pad and is_zero else starts[i] + step * (inside - row)
            if has_mask:
                mask[i, k] = is_pad or (adds and mask[i, k])
