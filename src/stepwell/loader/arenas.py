"""Recycled batch memory: a block is used again only when nobody can see it any more.

How a block is known to be free: every batch gets a *lease*, an array object made for it alone over the block. numpy
lets every view, slice and transpose keep the array alive that it was cut from (``.base``), and a torch tensor keeps
its array. So the lease dies when the last of them is gone, and a weak reference then puts the block back::

    block  <-- memoryview <-- lease <-- batch["action"] <-- batch["action"][3:].T <-- torch.from_numpy(...)
      ^                         :
      +------- pool.free <......+  when the lease dies
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.windows import aligned_empty

__all__ = ["ArenaPool"]


class ArenaPool:
    """Blocks of one size, leased for a batch each and recycled.

    Args:
        num_bytes: of each block.
        max_free: free blocks to keep; more than that go back to the system.

    Notes:
        Threads may lease at once; a lease may die in any thread. A forked child has its own copies. Held batches
        outlive the pool. There is no limit to the blocks on lease: whoever holds all batches gets all of them.
    """

    __slots__ = ("__weakref__", "_free", "_leases", "max_free", "num_bytes")

    def __init__(self, num_bytes: int, max_free: int) -> None:
        # numpy makes no array over an empty buffer
        self.num_bytes = max(num_bytes, 1)
        self.max_free = max_free
        self._free: deque[memoryview] = deque()
        # a weak reference calls back only while it is itself alive; arrays have no hash, so they are kept by their id
        self._leases: dict[int, _Lease] = {}

    @property
    def num_free(self) -> int:
        """Blocks that wait for the next batch."""
        return len(self._free)

    def lease(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory that no living array shares.

        Args:
            num_bytes: wanted; more than a block holds is new memory that is not recycled.

        Returns:
            uint8 [num_bytes], 64-byte aligned, of undefined content.
        """
        if num_bytes > self.num_bytes:
            return aligned_empty(num_bytes)
        try:
            block = self._free.pop()
        except IndexError:
            block = aligned_empty(self.num_bytes).data
        memory = np.frombuffer(block, np.uint8)
        ref = _Lease(memory, self._take_back)
        ref.block = block
        self._leases[id(ref)] = ref
        return memory if num_bytes == self.num_bytes else memory[:num_bytes]

    def _take_back(self, ref: _Lease) -> None:
        del self._leases[id(ref)]
        if len(self._free) < self.max_free:
            self._free.append(ref.block)


class _Lease(weakref.ref[Any]):
    """A weak reference to a lease that knows the block below it."""

    __slots__ = ("block",)
    block: memoryview
