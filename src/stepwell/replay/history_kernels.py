"""Which rows are the last steps of episodes that ended in a certain way."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import prefetch

__all__ = ["mark_last_steps"]

_AHEAD = 16


@kernel
def mark_last_steps(  # noqa: PLR0917
    episodes: Any,
    rows: Any,
    records: Any,
    base: Any,
    hi_column: Any,
    flag_column: Any,
    mask: Any,
    wanted: Any,
    marks: Any,
) -> Any:
    """Mark the rows that are the last step of an episode whose flags, masked, are the wanted ones.

    Args:
        episodes: int64 [n].
        rows: int64 [n, K].
        records: int64 [E, columns], by ``episode - base``.
        base: int64.
        hi_column: the column with the row after the last step.
        flag_column: the column with the flags.
        mask: which flags are looked at.
        wanted: what they must be.
        marks: bool [n, K], written.

    Returns:
        -1, or the index of the first row whose episode is not among the records.
    """
    address, row_bytes, num = records.ctypes.data, 8 * records.shape[1], episodes.size
    for i in range(num):
        if i + _AHEAD < num:
            prefetch(address + row_bytes * (episodes[i + _AHEAD] - base))
        line = episodes[i] - base
        if line < 0 or line >= records.shape[0]:
            return i
        has_ended_so = records[line, flag_column] & mask == wanted
        last = records[line, hi_column] - 1
        for k in range(rows.shape[1]):
            marks[i, k] = has_ended_so and rows[i, k] == last
    return -1
