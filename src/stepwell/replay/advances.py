"""What came to a store and what went, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.replay.tails import Growth

__all__ = ["NOTHING", "Advance", "advance_of", "joined"]

Int64s = npt.NDArray[np.int64]


class Advance(NamedTuple):
    """What `stepwell.replay.history.History.advance` found.

    Args:
        runs: int64 [r, 4]: episode, first row, stop row, whether it has ended; rows of steps that are new, the oldest
            first. A final row is in no run. An episode that ended without new steps has an empty one.
        evicted: int64 [m, 2]: episode, and the first of its rows that is still there; its ``hi_final`` when none is.
    """

    runs: Int64s
    evicted: Int64s


NOTHING = Advance(np.empty((0, 4), np.int64), np.empty((0, 2), np.int64))


def advance_of(growth: Growth) -> Advance:
    """Return what an open episode grew by."""
    episode, first, stop, cut, left = growth
    if first == stop:
        return NOTHING
    evicted = NOTHING.evicted if cut < 0 else np.array([[cut, left]])
    return Advance(np.array([[episode, first, stop, 0]]), evicted)


def joined(parts: list[Any], width: int) -> Int64s:
    """Return rows and arrays of rows as one array, int64 [n, width]."""
    if all(type(part) is tuple for part in parts):
        return np.array(parts, np.int64).reshape(-1, width)
    return np.concatenate([np.asarray(part, np.int64).reshape(-1, width) for part in parts])
