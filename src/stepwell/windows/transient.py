"""The rows of one batch, held for as long as it is read: what reads past the page cache in any order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.windows.chains import outer
from stepwell.windows.held import HeldRows
from stepwell.windows.layouts import aligned_empty
from stepwell.windows.reach import PIECE_COLUMNS, PIECE_FIRST, PIECE_LAST, PIECE_LO
from stepwell.windows.row_loading import RowLoader

__all__ = ["hold_rows"]

Int64s = npt.NDArray[np.int64]


def hold_rows(loader: RowLoader, places: Int64s) -> HeldRows:
    """Load what the windows at some anchors reach; anchors whose windows touch share a piece.

    Args:
        loader: of the rows.
        places: int64 [6, n], of `AnchorIndex.places`, or [9, n] with the bounds of whole episodes.

    Raises:
        LoaderError: a row could not be read or decoded.
    """
    pieces, columns = _pieces_of(loader, places)
    sizes = loader.num_bytes(pieces)
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    memory = aligned_empty(starts[-1])
    table = loader.new_table(len(pieces))
    for number, piece in enumerate(pieces):
        table.addresses[:, number] = loader.load(piece, memory[starts[number] : starts[number + 1]])
    return HeldRows(table, columns, memory)


def _pieces_of(loader: RowLoader, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the pieces, int64 [q, 7], and the piece of each anchor, int64 [n]."""
    episode, segment, row, lo, hi_step, hi_final = outer(places)
    order = np.lexsort((row, episode))
    span = max((column.last - column.first for column in loader.columns), default=0)
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (np.diff(episode[order]) != 0) | (np.diff(row[order]) > span + 1)
    heads = np.flatnonzero(is_new)
    tails = np.append(heads[1:], len(order))[: len(heads)] - 1
    first = order[heads]
    pieces = np.zeros((len(heads), PIECE_COLUMNS), dtype=np.int64)
    pieces[:, 1] = segment[first]
    pieces[:, PIECE_FIRST], pieces[:, PIECE_LAST] = row[first], row[order[tails]]
    pieces[:, PIECE_LO:] = np.stack([lo, hi_step, hi_final])[:, first].T
    columns = np.empty(len(order), dtype=np.int64)
    columns[order] = np.cumsum(is_new) - 1
    return pieces, columns
