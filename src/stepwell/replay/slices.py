"""Slices of the history, as a user names them by the ids of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.kernels.places import CHAIN_START, CHAIN_STEP
from stepwell.replay.records import HI_STEP, LO
from stepwell.store.layout import split_id

if TYPE_CHECKING:
    from stepwell.replay.history import History

__all__ = ["find_slices", "slices_of_steps"]

Ints = npt.NDArray[np.int64]


def slices_of_steps(steps: Any, length: Any) -> tuple[Ints, Ints, Ints | None]:
    """Return the first step, the number of steps and, where it is known, the last step of each slice, int64 [n] each.

    Args:
        steps: without a length: ids of the steps of one slice [k], or of several of one length [n, k]. With one: the
            id of the first step, or of several slices [n].
        length: steps of each, one number or [n]; None.

    Raises:
        TableError: no ids, or ids that do not follow each other.

    Example:
        >>> slices_of_steps([[4, 5, 6], [7, 8, 9]], None)
        (array([4, 7]), array([3, 3]), array([6, 9]))
        >>> slices_of_steps([4, 7], 2)
        (array([4, 7]), array([2, 2]), None)
    """
    ids = np.asarray(steps)
    if not ids.size or ids.dtype.kind not in "iu":
        raise TableError(f"step ids are whole numbers, of Writer.append; got {ids.size} of dtype {ids.dtype}.")
    ids = ids.astype(np.int64)
    if length is None:
        slices = np.atleast_2d(ids)
        # where a ring cut the episode, the next step is the first one of another segment
        if slices.ndim != 2 or ((np.diff(slices, axis=1) != 1) & (split_id(slices[:, 1:])[1] != 0)).any():
            raise TableError(
                "an item is a slice of steps that follow each other in one episode. Make several items of others."
            )
        return slices[:, 0].copy(), np.full(len(slices), slices.shape[1], np.int64), slices[:, -1].copy()
    firsts = ids.reshape(-1)
    lengths = np.broadcast_to(np.asarray(length), firsts.shape)
    if lengths.dtype.kind not in "iu" or lengths.min() < 1:
        raise TableError(f"length={length!r}: an item covers one step or more.")
    return firsts, lengths.astype(np.int64), None


def find_slices(history: History, firsts: Ints, lengths: Ints, lasts: Ints | None = None) -> Ints:
    """Return the items that slices are, int64 [3, n]: episode, row and number of steps.

    Args:
        history: that has followed its store.
        firsts: int64 [n], ids of their first steps.
        lengths: int64 [n].
        lasts: int64 [n], ids of their last steps, where they are known.

    Raises:
        TableError: a slice that is not there as a whole, in one episode.
    """
    episodes, rows = history.find(firsts)
    is_there = episodes >= 0
    if is_there.all():
        records = history.records[episodes - history.base]
        stops, chains = records[:, HI_STEP], history.chains
        if chains is not None:
            at = chains.find(episodes)
            ends = chains.bounds()[at, 1] - chains.pieces[at, CHAIN_STEP] + chains.pieces[at, CHAIN_START]
            stops = np.where(at >= 0, ends, stops)
        is_there = (rows >= records[:, LO]) & (rows + lengths <= stops)
        if lasts is not None:
            is_there[is_there] = _last_ids(history, episodes, rows, lengths)[is_there] == lasts[is_there]
    if not is_there.all():
        index = int(np.flatnonzero(~is_there)[0])
        raise TableError(
            f"item {index} of {len(firsts)}: {lengths[index]} steps from step id {firsts[index]} are not in one "
            "episode of the store, or are not committed yet, or were evicted. Nothing was inserted."
        )
    return np.stack([episodes, rows, lengths])


def _last_ids(history: History, episodes: Ints, rows: Ints, lengths: Ints) -> Ints:
    """Return the ids of the last steps of slices that are there; of others any numbers."""
    rows, chains = rows + lengths - 1, history.chains
    if chains is not None:
        at = chains.find(episodes)
        chosen = np.flatnonzero(at >= 0)
        pieces, found = chains.piece_of(at[chosen], rows[chosen])
        episodes = episodes.copy()
        episodes[chosen], rows[chosen] = chains.numbers[pieces], found
    return history.step_ids(np.maximum(episodes, history.base), rows)
