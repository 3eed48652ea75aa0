"""The regions of a file: how many bytes lie at each ptr, which only the allocation table says.

A ptr may be there several times, when samples share a region. FFCV gives an empty value the ptr of the region that
comes next, so of the sizes at one ptr those that are 0 count for nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.layout import ALLOCATION_DTYPE, BetonLayout
from stepwell.errors import FormatError

__all__ = ["RegionTable"]

Int64s = npt.NDArray[np.int64]


class RegionTable:
    """The size of the region at each ptr.

    Args:
        table: `ALLOCATION_DTYPE` [n], in any order.
        layout: of the file: regions lie between its rows and its allocation table.
        path: said by errors.

    Raises:
        FormatError: a region that lies elsewhere, or several sizes at one ptr.

    Notes:
        Holds 16 bytes a region. Safe for any number of threads.
    """

    def __init__(self, table: npt.NDArray[Any], layout: BetonLayout, path: str) -> None:
        self._path, self._table_ptr = path, layout.header.table_ptr
        filled = np.flatnonzero(table["size"])
        every = filled.size == len(table)
        ptrs, sizes = (table[name] if every else table[name][filled] for name in ("ptr", "size"))
        stop = np.uint64(self._table_ptr)
        # ptr + size may wrap around
        wrong = (ptrs < np.uint64(layout.rows_stop)) | (sizes > stop) | (ptrs > stop - np.minimum(sizes, stop))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise FormatError(
                f"{self._row_name(int(filled[first]))} has {sizes[first]} bytes at {ptrs[first]}. Allowed: regions "
                f"between the rows, which end at {layout.rows_stop}, and the table, which begins at {self._table_ptr}."
            )
        self._ptrs, self._sizes = self._distinct(ptrs.astype(np.int64), sizes.astype(np.int64), filled)

    def sizes_at(self, ptrs: npt.NDArray[np.uint64]) -> Int64s:
        """Return how many bytes lie at each ptr, int64 [n]; 0 where the table has nothing.

        Args:
            ptrs: uint64 [n], in any order.
        """
        if not self._ptrs.size:
            return np.zeros(len(ptrs), np.int64)
        wanted = np.minimum(ptrs, np.uint64(self._table_ptr)).astype(np.int64)
        places = np.minimum(np.searchsorted(self._ptrs, wanted), self._ptrs.size - 1)
        return np.where(self._ptrs[places] == wanted, self._sizes[places], 0)

    def _distinct(self, ptrs: Int64s, sizes: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return each ptr once, ascending, and its size."""
        if (ptrs[1:] < ptrs[:-1]).any():
            # one ascending run for each process that wrote: these a stable sort merges
            order = np.argsort(ptrs, kind="stable")
            ptrs, sizes, rows = ptrs[order], sizes[order], rows[order]
        is_again = np.zeros(len(ptrs), bool)
        is_again[1:] = ptrs[1:] == ptrs[:-1]
        differs = np.flatnonzero(is_again[1:] & (sizes[1:] != sizes[:-1])) + 1
        if differs.size:
            one, two = int(differs[0]) - 1, int(differs[0])
            raise FormatError(
                f"{self._row_name(int(rows[two]))} has {sizes[two]} bytes at {ptrs[two]}, where row {rows[one]} has "
                f"{sizes[one]}. Allowed: one size for what lies at one place. Write the file anew."
            )
        return (ptrs[~is_again], sizes[~is_again]) if is_again.any() else (ptrs, sizes)

    def _row_name(self, row: int) -> str:
        place = self._table_ptr + row * ALLOCATION_DTYPE.itemsize
        return f"{self._path}: row {row} of the allocation table, at byte {place},"

    def __len__(self) -> int:
        return len(self._ptrs)

    def __repr__(self) -> str:
        return f"<RegionTable {len(self)} regions of {self._path}>"
