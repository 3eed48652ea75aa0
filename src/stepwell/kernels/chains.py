"""Windows that leave the piece of an episode for another: the few that the window kernel cannot copy from one segment.

::

    the episode    | 0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13 ...       cut by a ring into pieces, each in its own segment
    offsets -3..0            ----|--                               anchor 7: two rows of the piece before its own
"""

from __future__ import annotations

from typing import Any

from numba import njit

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
from stepwell.kernels.locate import ROW
from stepwell.kernels.memory import memcpy, memset, store_u8

__all__ = [
    "CHAIN",
    "OUTER_FINAL",
    "OUTER_LO",
    "OUTER_STEP",
    "PIECE_COLUMNS",
    "SEGMENT",
    "START",
    "STEP",
    "gather_chained",
]

# columns of a table of pieces: which belong together; where each lies; the number of its first step in the episode
CHAIN, SEGMENT, START, STEP = range(4)
PIECE_COLUMNS = 4
# rows of places of windows that may leave a piece: bounds of the whole episode, counted in rows of the anchor's piece
OUTER_LO, OUTER_STEP, OUTER_FINAL = 6, 7, 8


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
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
        pieces: int64 [P, PIECE_COLUMNS], by chain and step.
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
            shift = pieces[piece, STEP] - pieces[piece, START]
            target = start + item[OUTPUT] + anchor * item[WINDOW_STRIDE]
            mask = -1
            if item[MASK] >= 0:
                mask = start + item[MASK] + anchor * num_offsets
                if is_first:
                    memset(mask, 0, num_offsets)
            for t in range(num_offsets):
                wanted = places[ROW, anchor] + offsets[item[FIRST_OFFSET] + t]
                inside = min(max(wanted, lo), hi - 1)
                if wanted != inside and mask >= 0:
                    store_u8(mask + t, 1)
                if wanted != inside and item[IS_ZERO] == 1:
                    memset(target, 0, row_bytes)
                else:
                    step = inside + shift
                    while step < pieces[piece, STEP] and piece > 0:
                        piece -= 1
                    while (
                        piece + 1 < num_pieces
                        and pieces[piece + 1, CHAIN] == pieces[piece, CHAIN]
                        and step >= pieces[piece + 1, STEP]
                    ):
                        piece += 1
                    row = step - pieces[piece, STEP] + pieces[piece, START]
                    memcpy(target, column[pieces[piece, SEGMENT]] + row * row_bytes, row_bytes)
                target += item[ROW_STRIDE]
