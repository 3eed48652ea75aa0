"""Windows that leave the piece of an episode for another: the few that the window kernel cannot copy from one segment.

::

    the episode    | 0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13 ...       cut by a ring into pieces, each in its own segment
    offsets -3..0            ----|--                               anchor 7: two rows of the piece before its own
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.gather import (
    FIRST_OFFSET,
    IS_FINAL,
    IS_ZERO,
    MASK,
    NUM_OFFSETS,
    OUTPUT,
    ROW_BYTES,
    ROW_STRIDE,
    SLOT,
    WINDOW_STRIDE,
)
from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import memcpy, memset, store_u8
from stepwell.kernels.places import (
    CHAIN,
    CHAIN_SEGMENT,
    CHAIN_START,
    CHAIN_STEP,
    EPISODE,
    HI_FINAL,
    HI_STEP,
    LO,
    OUTER_FINAL,
    OUTER_LO,
    OUTER_STEP,
    PLACE_ROWS,
    ROW,
)
from stepwell.kernels.windows import nearest

__all__ = ["are_mapped", "bounds_of_pieces", "gather_chained", "num_leaving", "widen"]


@kernel
def gather_chained(  # noqa: PLR0917
    plan: Any, offsets: Any, bases: Any, places: Any, chosen: Any, at: Any, pieces: Any, memory: Any
) -> None:
    """Copy the windows of some anchors row by row, each from the piece that has it; else as `gather`, and after it.

    Args:
        plan: int64 [num_sources, PLAN_COLUMNS].
        offsets: int64 [num_offsets].
        bases: int64 [num_slots, S]; all segments that the windows reach are mapped.
        places: int64 [9, n], with the bounds of whole episodes.
        chosen: int64 [m], which of the n.
        at: int64 [m], the piece of each.
        pieces: int64 [P, CHAIN_COLUMNS], by chain and step.
        memory: uint8 [k], written.
    """
    start = memory.ctypes.data
    num_pieces = pieces.shape[0]
    last_mask = -1
    for source in range(plan.shape[0]):
        item = plan[source]
        column, row_bytes, num_offsets = bases[item[SLOT]], item[ROW_BYTES], item[NUM_OFFSETS]
        outer_hi = OUTER_FINAL if item[IS_FINAL] == 1 else OUTER_STEP
        is_first = item[MASK] != last_mask
        last_mask = item[MASK]
        for i in range(chosen.size):
            anchor, piece = chosen[i], at[i]
            lo, hi = places[OUTER_LO, anchor], places[outer_hi, anchor]
            shift = pieces[piece, CHAIN_STEP] - pieces[piece, CHAIN_START]
            target = start + item[OUTPUT] + anchor * item[WINDOW_STRIDE]
            mask = -1
            if item[MASK] >= 0:
                mask = start + item[MASK] + anchor * num_offsets
                if is_first:
                    memset(mask, 0, num_offsets)
            for t in range(num_offsets):
                wanted = places[ROW, anchor] + offsets[item[FIRST_OFFSET] + t]
                inside = nearest(wanted, lo, hi)
                if wanted != inside and mask >= 0:
                    store_u8(mask + t, 1)
                if wanted != inside and item[IS_ZERO] == 1:
                    memset(target, 0, row_bytes)
                else:
                    step = inside + shift
                    while step < pieces[piece, CHAIN_STEP] and piece > 0:
                        piece -= 1
                    while (
                        piece + 1 < num_pieces
                        and pieces[piece + 1, CHAIN] == pieces[piece, CHAIN]
                        and step >= pieces[piece + 1, CHAIN_STEP]
                    ):
                        piece += 1
                    row = step - pieces[piece, CHAIN_STEP] + pieces[piece, CHAIN_START]
                    memcpy(target, column[pieces[piece, CHAIN_SEGMENT]] + row * row_bytes, row_bytes)
                target += item[ROW_STRIDE]


@kernel
def num_leaving(places: Any, min_offset: Any, max_offset: Any) -> Any:
    """Return how many windows between two offsets leave the rows of their anchor's piece: of most batches none does."""
    rows, los, his = places[ROW], places[LO], places[HI_STEP]
    num = 0
    for i in range(rows.size):
        num += rows[i] + min_offset < los[i] or rows[i] + max_offset >= his[i]
    return num


@kernel
def widen(  # noqa: PLR0917
    places: Any, min_offset: Any, max_offset: Any, numbers: Any, order: Any, pieces: Any, bounds: Any,
    wide: Any, chosen: Any, at: Any,
) -> Any:  # fmt: skip
    """Write places with the bounds of whole episodes; return how many anchors have windows that leave their piece.

    Args:
        places: int64 [6, n].
        min_offset: int64, the earliest step that a window reaches; ``max_offset``: int64, the latest.
        numbers: int64 [P], episodes that are pieces, ascending.
        order: int64 [P], the piece that each of them is.
        pieces: int64 [P, CHAIN_COLUMNS], by chain and step.
        bounds: int64 [P, 3], of each piece's episode the first step that is shown, the step after the last, and the
            same with the final row.
        wide: int64 [9, n], written.
        chosen: int64 [n], written as far as there are such anchors.
        at: int64 [n], likewise: the piece of each.
    """
    num = 0
    for i in range(places.shape[1]):
        for k in range(PLACE_ROWS):
            wide[k, i] = places[k, i]
        lo, hi_step, hi_final = places[LO, i], places[HI_STEP, i], places[HI_FINAL, i]
        if places[ROW, i] + min_offset < lo or places[ROW, i] + max_offset >= hi_step:
            found = np.searchsorted(numbers, places[EPISODE, i])
            if found < numbers.size and numbers[found] == places[EPISODE, i]:
                piece = order[found]
                chosen[num], at[num] = i, piece
                num += 1
                shift = pieces[piece, CHAIN_START] - pieces[piece, CHAIN_STEP]
                # what the place says of its own piece holds: it may be older than the bounds
                lo = min(lo, bounds[piece, 0] + shift)
                if bounds[piece, 1] + shift > hi_step:
                    hi_step, hi_final = bounds[piece, 1] + shift, bounds[piece, 2] + shift
        wide[OUTER_LO, i], wide[OUTER_STEP, i], wide[OUTER_FINAL, i] = lo, hi_step, hi_final
    return num


@kernel
def are_mapped(  # noqa: PLR0917
    places: Any, chosen: Any, at: Any, pieces: Any, min_offset: Any, max_offset: Any, num_rows: Any
) -> Any:
    """Return whether maps hold all rows that the windows of some anchors reach."""
    for i in range(chosen.size):
        anchor, piece = chosen[i], at[i]
        lo, hi = places[OUTER_LO, anchor], places[OUTER_FINAL, anchor]
        shift = pieces[piece, CHAIN_STEP] - pieces[piece, CHAIN_START]
        first = nearest(places[ROW, anchor] + min_offset, lo, hi) + shift
        last = nearest(places[ROW, anchor] + max_offset, lo, hi) + shift
        while first < pieces[piece, CHAIN_STEP] and piece > 0:
            piece -= 1
        while True:
            has_next = piece + 1 < pieces.shape[0] and pieces[piece + 1, CHAIN] == pieces[piece, CHAIN]
            stop = last + 1
            if has_next and pieces[piece + 1, CHAIN_STEP] < stop:
                stop = pieces[piece + 1, CHAIN_STEP]
            if (
                stop > first
                and num_rows[pieces[piece, CHAIN_SEGMENT]]
                < stop - pieces[piece, CHAIN_STEP] + pieces[piece, CHAIN_START]
            ):
                return False
            if stop > last:
                break
            piece += 1
    return True


@kernel
def bounds_of_pieces(numbers: Any, pieces: Any, records: Any, base: Any, columns: Any, bounds: Any) -> None:  # noqa: PLR0917
    """Write what is shown of the episodes of pieces, as the records of a history say."""
    first = 0
    while first < numbers.size:
        stop = first
        low, high, final = np.int64(1) << 40, np.int64(0), np.int64(0)
        while stop < numbers.size and pieces[stop, CHAIN] == pieces[first, CHAIN]:
            line = numbers[stop] - base
            if line >= 0 and records[line, columns[3]] & columns[4] == 0:
                shift = pieces[stop, CHAIN_STEP] - pieces[stop, CHAIN_START]
                low = min(low, records[line, columns[0]] + shift)
                high = max(high, records[line, columns[1]] + shift)
                final = max(final, records[line, columns[2]] + shift)
            else:
                # what comes before it went as well, or is about to
                low = np.int64(1) << 40
            stop += 1
        bounds[first:stop, 0], bounds[first:stop, 1], bounds[first:stop, 2] = low, high, final
        first = stop
