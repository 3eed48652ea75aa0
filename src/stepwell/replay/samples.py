"""What a table gives out: rows of items, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError

__all__ = ["Sample", "checked_count", "joined_samples"]


class Sample(NamedTuple):
    """Items drawn from a table, in the order in which they were drawn; one row each, so an item may be there twice.

    Args:
        keys: uint64 [n], for `Table.update_priorities` and `Table.delete`.
        episodes: int64 [n], numbers of the table's history.
        rows: int64 [n], of the first step in its segment.
        lengths: int32 [n], steps that the item covers.
        probabilities: float64 [n], of being drawn, at the time; 1.0 where the sampler has no choice.
        priorities: float64 [n], at the time.
        times_sampled: int32 [n], this time included.
        table_size: int64 [n], items in the table at the time, this one included.
        num_items: items in the table before the first row was drawn.
    """

    keys: npt.NDArray[np.uint64]
    episodes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    priorities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    table_size: npt.NDArray[np.int64]
    num_items: int

    def __repr__(self) -> str:
        return f"<Sample  {len(self.keys)} rows of {self.num_items} items>"

    def part(self, rows: slice | npt.NDArray[np.bool_]) -> Sample:
        """Return some of the rows: a slice of them, or those where a mask holds."""
        return Sample._make([*(column[rows] for column in self[:-1]), self.num_items])


def checked_count(count: int) -> int:
    """Return a number of rows to draw.

    Raises:
        TableError: no whole number, or below 1.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise TableError(f"sample({count!r}): draw a whole number of rows, one or more.")
    return int(count)


def joined_samples(parts: Sequence[Sample]) -> Sample:
    """Return the rows of several samples, one after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = (np.concatenate(column) for column in zip(*(part[:-1] for part in parts), strict=True))
    return Sample._make([*columns, parts[0].num_items])
