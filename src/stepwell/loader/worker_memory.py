"""Batches from a worker of torch's DataLoader without a copy: in shared memory that is used again.

torch copies each tensor that a worker returns into new shared memory, page by page: of large batches that takes longer
than to read them. Here a worker has a few blocks::

    worker                                              process that takes the batches
    block 0   [mark | images | actions | ...]   ---->   tensors over the same memory
    block 1   is being written                             the last of them dies: mark = free
    block 2   free

A block is free when nothing in the worker refers to it and its mark says that nothing elsewhere does.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.loader.memory import import_torch
from stepwell.windows.plans import ALIGNMENT, aligned

__all__ = ["BatchMemory", "Empty", "WorkerBatch", "batch_memory"]

# makes arrays, as np.empty does
Empty = Callable[[tuple[int, ...], Any], npt.NDArray[Any]]

# in front of each block; the values stay aligned
HEAD_BYTES = ALIGNMENT
FREE, SENT = 0, 1
# what a DataLoader asks of a worker ahead, and some that are in use; further batches go torch's way
MAX_BLOCKS = 8


class _Block:
    """Shared memory for one batch at a time."""

    __slots__ = ("__weakref__", "_lease", "fd", "values")

    def __init__(self, num_bytes: int) -> None:
        size = HEAD_BYTES + num_bytes
        self.fd = _nameless_file()
        weakref.finalize(self, os.close, self.fd)
        os.truncate(self.fd, size)
        self.values = memoryview(mmap.mmap(self.fd, size))
        self._lease: weakref.ref[Any] | None = None

    @property
    def is_free(self) -> bool:
        return self.values[0] == FREE and (self._lease is None or self._lease() is None)

    def lease(self) -> npt.NDArray[np.uint8]:
        """Return the memory as an array that all others over it keep alive."""
        memory = np.frombuffer(self.values, np.uint8, offset=HEAD_BYTES)
        self._lease = weakref.ref(memory)
        return memory


class _Blocks:
    """The blocks of a worker; they are as large as its largest batch so far."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._blocks: list[_Block] = []

    def free(self) -> _Block | None:
        """Return a block that nobody uses; None where there is none, or no batch was seen yet."""
        for block in self._blocks:
            if block.is_free:
                return block
        if not self.num_bytes or len(self._blocks) == MAX_BLOCKS:
            return None
        try:
            self._blocks.append(_Block(self.num_bytes))
        except OSError:
            # no more files, or no memory: torch's way says what is the matter
            return None
        return self._blocks[-1]

    def reserve(self, num_bytes: int) -> None:
        """Make blocks as large as a batch was; those that are too small are forgotten."""
        if num_bytes > self.num_bytes:
            self.num_bytes, self._blocks = num_bytes, []


def _nameless_file() -> int:
    """Return a new file in memory, where the system has such; it is gone when nobody has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stepwell", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp()
    Path(path).unlink()
    return fd


_BLOCKS: tuple[int, _Blocks] | None = None


def batch_memory() -> BatchMemory | None:
    """Return memory for the next batch, in a worker of a DataLoader; None in other processes."""
    global _BLOCKS
    data = sys.modules.get("torch.utils.data")
    if data is None or data.get_worker_info() is None:
        return None
    if _BLOCKS is None or _BLOCKS[0] != os.getpid():
        _BLOCKS = os.getpid(), _Blocks()
    return BatchMemory(_BLOCKS[1])


class BatchMemory:
    """Memory of one batch, from front to back."""

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks = blocks
        self._take()

    def _take(self) -> None:
        self.block = self._blocks.free()
        self._memory = None if self.block is None else self.block.lease()
        self._end = 0

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of undefined content: of the block, as long as there is room."""
        dtype = np.dtype(dtype)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        begin, self._end = self._end, self._end + aligned(num_bytes)
        if self._memory is None or self._end > len(self._memory):
            return np.empty(shape, dtype)
        return self._memory[begin : begin + num_bytes].view(dtype).reshape(shape)

    def place_of(self, value: Any) -> int | None:
        """Return where in the block a plain tensor lies; None if it does not lie there."""
        if self._memory is None:
            return None
        place: int = value.data_ptr() - self._memory.ctypes.data
        return place if 0 <= place <= len(self._memory) - value.nbytes else None

    def batch(self, values: Mapping[str, Any]) -> WorkerBatch:
        """Return the values, in the block as far as there is room, as a dict that is sent as such."""
        batch = WorkerBatch(values)
        batch.memory = self
        tensors = {key: value for key, value in values.items() if _is_plain(value)}
        needed = sum(aligned(value.nbytes) for value in tensors.values())
        if needed > self._blocks.num_bytes:
            # the first batch, or one that is larger
            self._blocks.reserve(needed)
            self._take()
        for key, value in tensors.items():
            if self.place_of(value) is None:
                copy = import_torch().from_numpy(self.empty((value.nbytes,), np.uint8))
                batch[key] = copy.view(value.dtype).view(value.shape).copy_(value)
        return batch


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor whose values lie in memory one after the other."""
    torch = import_torch()
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return False
    return bool(value.nbytes and value.is_contiguous())


class WorkerBatch(dict[str, Any]):
    """A batch in a worker; the process that it is sent to gets a plain dict."""

    __slots__ = ("memory",)
    memory: BatchMemory

    def __reduce__(self) -> Any:
        """Send the block, and the places of values in it; other values as they are always sent."""
        block = self.memory.block
        # what is sent twice is sent as torch does
        if block is None or block.values[0] == SENT:
            return dict, (dict(self),)
        places, others = {}, {}
        for key, value in self.items():
            place = self.memory.place_of(value) if _is_plain(value) else None
            if place is None:
                others[key] = value
            else:
                places[key] = place, tuple(value.shape), value.dtype
        block.values[0] = SENT
        return _received, (DupFd(block.fd), len(block.values), tuple(self), places, others)


def _received(
    file: Any, size: int, keys: tuple[str, ...], places: Mapping[str, Any], others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a batch of a worker; its block is free again when the last tensor over it is gone."""
    torch = import_torch()
    fd = file.detach()
    try:
        memory = memoryview(mmap.mmap(fd, size))
    finally:
        os.close(fd)
    # all tensors keep it alive
    lease = np.frombuffer(memory, np.uint8, offset=HEAD_BYTES)
    weakref.finalize(lease, _release, memory, os.getpid()).atexit = False
    batch = dict(others)
    for key, (place, shape, dtype) in places.items():
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        batch[key] = torch.from_numpy(lease[place : place + size]).view(dtype).view(shape)
    return {key: batch[key] for key in keys}


def _release(memory: memoryview, pid: int) -> None:
    """Mark a block as free in the process that received it: a fork's copies say nothing about its parent's arrays."""
    if pid == os.getpid():
        memory[0] = FREE
