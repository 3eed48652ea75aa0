"""Bytes from every rank to every rank, over torch.distributed, with a time-out.

Two rounds, in each of which every rank takes part::

    sizes       int64 [1] of each rank
    messages    uint8 [largest] of each rank, cut to its size
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError

__all__ = ["Exchange"]

Bytes = npt.NDArray[np.uint8]


class Exchange:
    """The ranks of a group, or this process alone where torch.distributed is not in use.

    Args:
        group: of torch.distributed; default: all ranks.
        timeout_seconds: to wait for the others; default: the group's own.

    Attributes:
        rank: of this process within the group.
        world_size: ranks of the group.

    Raises:
        LoaderError: this process is not in the group.

    Notes:
        gloo exchanges memory of the processor, nccl copies to the current CUDA device. After a time-out the group is of
        no more use: end the process.
    """

    __slots__ = ("_distributed", "_group", "_timeout", "rank", "world_size")

    def __init__(self, group: Any = None, timeout_seconds: float | None = None) -> None:
        self._distributed = _in_use()
        self._group = group
        self._timeout = None if timeout_seconds is None else timedelta(seconds=timeout_seconds)
        self.rank, self.world_size = 0, 1
        if self._distributed is not None:
            self.rank = int(self._distributed.get_rank(group))
            self.world_size = int(self._distributed.get_world_size(group))
        if self.rank < 0:
            raise LoaderError("this process is not in the group. Gather with a group that it belongs to.")

    def messages(self, own: bytes, to: int | None = None) -> list[memoryview]:
        """Return the messages of all ranks, in their order.

        Args:
            own: this rank's message.
            to: the rank that gets them; default: all. On others the list is empty.

        Raises:
            LoaderError: a rank did not answer in time, or has gone.
        """
        if self._distributed is None:
            return [memoryview(own)]
        try:
            sizes = [int(size.view(np.int64)[0]) for size in self._rows(np.int64(len(own)).tobytes(), 8, None)]
            rows = self._rows(own, max(sizes), to)
        except RuntimeError as error:
            raise LoaderError(
                f"rank {self.rank} of {self.world_size} waited for the others, and one did not answer: {error} "
                "Look for the first error in the other ranks' output, and let all ranks gather equally often."
            ) from error
        return [row.data[:size] for row, size in zip(rows, sizes, strict=False)]

    def _rows(self, own: bytes, size: int, to: int | None) -> list[Bytes]:
        """Return the bytes of all ranks, each filled up to a size; none where another rank gets them."""
        distributed = self._distributed
        filled = np.zeros(max(size, 1), np.uint8)
        filled[: len(own)] = np.frombuffer(own, np.uint8)
        mine = sys.modules["torch"].from_numpy(filled).to(self._device)
        is_mine = to is None or to == self.rank
        rows = [mine.new_empty(mine.shape) for _ in range(self.world_size)] if is_mine else []
        if to is None:
            work = distributed.all_gather(rows, mine, group=self._group, async_op=True)
        else:
            root = to if self._group is None else distributed.get_global_rank(self._group, to)
            work = distributed.gather(mine, rows or None, dst=root, group=self._group, async_op=True)
        work.wait() if self._timeout is None else work.wait(self._timeout)
        return [row.cpu().numpy() for row in rows]

    @property
    def _device(self) -> str:
        backend = str(self._distributed.get_backend(self._group))
        # a group of both ("cpu:gloo,cuda:nccl") needs no copies to a GPU
        return "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"


def _in_use() -> Any:
    """Return torch.distributed where this process has joined others, None where it has not, without loading torch."""
    distributed = sys.modules.get("torch.distributed")
    is_there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_there else None
