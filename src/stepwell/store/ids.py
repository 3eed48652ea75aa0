"""Step ids: the segment's ordinal in the upper 31 bits, the row in the lower 32; never reused."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_ROWS", "ROW_BITS", "split_id", "step_id"]

ROW_BITS = 32
MAX_ROWS = 1 << ROW_BITS


@overload
def step_id(ordinal: int, row: int) -> int: ...
@overload
def step_id(ordinal: npt.NDArray[Any], row: npt.NDArray[Any]) -> npt.NDArray[np.int64]: ...
def step_id(ordinal: Any, row: Any) -> Any:
    """Return the id of a row of a segment; works on ints and on integer arrays alike."""
    if isinstance(ordinal, int) and isinstance(row, int):
        return (ordinal << ROW_BITS) | row
    return (np.asarray(ordinal, np.int64) << ROW_BITS) | np.asarray(row, np.int64)


@overload
def split_id(ids: int) -> tuple[int, int]: ...
@overload
def split_id(ids: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def split_id(ids: Any) -> Any:
    """Return (segment ordinal, row) of step ids; works on ints and on integer arrays alike."""
    return ids >> ROW_BITS, ids & (MAX_ROWS - 1)
