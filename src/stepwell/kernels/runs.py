"""Runs of rows that depend on each other: where the one begins and ends that a row is in."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["run_of"]


@kernel
def is_sync(offsets: Any, blob: Any, row: Any, position: Any, mask: Any) -> Any:
    """Return whether decoding may begin at a row: its blob has the mark of a sync row."""
    begin = np.int64(offsets[np.uintp(row)])
    end = np.int64(offsets[np.uintp(row + 1)])
    if begin < 0 or end > blob.size or end - begin <= position:
        return False
    return (blob[np.uintp(begin + position)] & mask) != 0


@kernel
def run_of(offsets: Any, blob: Any, row: Any, lo: Any, hi: Any, position: Any, mask: Any) -> Any:  # noqa: PLR0917
    """Return (first row, row after the last) of the run that a row is in, (-1, -1) when no sync row is before it.

    Args:
        offsets: uint64 [>= hi + 1], of the encoded rows.
        blob: uint8 [n], the encoded rows.
        row: ``lo <= row < hi``.
        lo: where to stop looking back, and
        hi: forward: 0 and the number of rows, since runs say by themselves where they begin and end.
        position: of the mark in a sync row's blob, and
        mask: its bits.
    """
    first = row
    while first >= lo and not is_sync(offsets, blob, first, position, mask):
        first -= 1
    if first < lo:
        return -1, -1
    stop = row + 1
    # an empty row is a final one without a value: the next row begins another episode
    while stop < hi and offsets[stop + 1] != offsets[stop] and not is_sync(offsets, blob, stop, position, mask):
        stop += 1
    return first, stop
