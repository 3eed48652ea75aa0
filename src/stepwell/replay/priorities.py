"""Keys and priorities that a user gives: checked as a whole before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError

__all__ = ["checked_keys", "checked_priorities", "checked_updates"]


def checked_keys(keys: Any) -> npt.NDArray[np.uint64]:
    """Return keys as uint64 [n]; TableError when they are no keys."""
    if isinstance(keys, list | tuple):
        # numpy makes float64 of Python numbers that no signed integer holds together
        keys = np.array(keys, object if keys else np.uint64)
        if any(not isinstance(key, int | np.integer) or not 0 <= key < 1 << 64 for key in keys.flat):
            raise TableError("keys are whole numbers of 64 bits, as a sample gives them.")
        keys = keys.astype(np.uint64)
    array = np.asarray(keys)
    if array.dtype != np.uint64:
        if array.size and (array.dtype.kind not in "iu" or (array.dtype.kind == "i" and int(array.min()) < 0)):
            raise TableError(f"keys of dtype {array.dtype}: they are uint64, as a sample gives them.")
        array = array.astype(np.uint64)
    if array.ndim != 1:
        array = array.reshape(-1)
    return np.ascontiguousarray(array)


def checked_priorities(priorities: Any, count: int) -> npt.NDArray[np.float64]:
    """Return priorities as float64 [count]; one number is given to all.

    Raises:
        TableError: another number of them, or one that is NaN, infinite or negative: the message says which.
    """
    try:
        array = np.asarray(priorities, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TableError(f"priorities that are no numbers: {error}. Nothing was changed.") from error
    if array.ndim == 0:
        array = np.full(count, float(array))
    if array.ndim != 1:
        array = array.reshape(-1)
    if len(array) != count:
        raise TableError(f"{len(array)} priorities for {count} items. Give one for each.")
    # one pass: NaN and negative numbers fail the first comparison, infinite ones the second
    if count and not (array.min() >= 0.0 and array.max() < np.inf):
        bad = np.flatnonzero(~((array >= 0.0) & (array < np.inf)))
        raise TableError(
            f"priority {array[bad[0]]} at index {bad[0]} ({len(bad)} of {count} are bad): a priority is finite and not "
            "negative. Nothing was changed."
        )
    return np.ascontiguousarray(array)


def checked_updates(
    updates: Mapping[int, float] | tuple[Any, Any],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Return the keys and priorities of a mapping, or of two arrays.

    Raises:
        TableError: as `checked_keys` and `checked_priorities`.
    """
    if isinstance(updates, Mapping):
        updates = list(updates.keys()), list(updates.values())
    keys = checked_keys(updates[0])
    return keys, checked_priorities(updates[1], len(keys))
