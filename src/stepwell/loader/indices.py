"""The rows of a batch as a batch sampler asks a dataset for them: their numbers, and what the batch is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from stepwell.order import Share

__all__ = ["BatchIndices"]


@dataclass(frozen=True, slots=True, eq=False)
class BatchIndices(Sequence[int]):
    """The numbers of a batch's rows, as a sequence of ints for any dataset; a `WindowDataset` reads the rest, too.

    What is random about a window depends on its epoch and position. Persistent workers know of neither, so both travel
    with the numbers.

    Args:
        anchors: int64 [share.num_rows], which anchor each row is.
        share: positions of the epoch that the rows are of; which rows only fill up.
        number: of the batch within its epoch.

    Example:
        >>> from stepwell.order import Partition
        >>> indices = BatchIndices(np.array([5, 7, 9]), Partition(3, 3).batch(0), 0)
        >>> list(indices), indices.share.epoch
        ([5, 7, 9], 0)

    Notes:
        An immutable value; pickled (for a worker) it takes 8 bytes a row and some hundreds.
    """

    anchors: npt.NDArray[np.int64]
    share: Share
    number: int

    def __len__(self) -> int:
        return len(self.anchors)

    def __iter__(self) -> Iterator[int]:
        return iter(self.anchors.tolist())

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> list[int]: ...
    def __getitem__(self, i: int | slice) -> int | list[int]:
        found: int | list[int] = self.anchors[i].tolist()
        return found
