"""Rows that lie in memory, decoded: what a batch is gathered from when they were loaded beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.windows.maps import MapTable
from stepwell.windows.reach import Reach

__all__ = ["HeldRows", "row_at"]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """The held rows of one batch.

    Args:
        table: addresses of held pieces, one a column: ``addresses[2 * column, piece]`` is where row 0 would lie.
        columns: int64 [n], the piece of each anchor: its column in the table.
        owner: whatever keeps the memory alive while the batch is read.
    """

    table: MapTable
    columns: npt.NDArray[np.int64]
    owner: Any = None


def row_at(address: int, column: Reach) -> npt.NDArray[Any]:
    """Return a held row as an array; whoever asks keeps its memory alive.

    Args:
        address: of its first byte.
        column: whose row it is.
    """
    flat = np.asarray(_Memory(address, column.row_bytes))
    return flat.view(column.dtype).reshape(column.shape)


class _Memory:
    """Bytes at an address, as numpy takes them."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, True), "version": 3}
