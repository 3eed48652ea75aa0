"""The memory of batches: recycled blocks, pinned blocks, and torch tensors over the same memory.

How a block is known to be free: every batch gets a *lease*, an array object made for it alone over the block. numpy
lets every view, slice and transpose keep the array alive that it was cut from (``.base``), and a torch tensor keeps
its array, as does an array of JAX. So the lease dies when the last of them is gone, and a weak reference then puts the
block back::

    block  <-- memoryview <-- lease <-- batch["action"] <-- batch["action"][3:].T <-- torch.from_numpy(...)
      ^                         :
      +------- pool.free <......+  when the lease dies
"""

from __future__ import annotations

import weakref
from collections import deque
from sys import getrefcount
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, MissingDependencyError
from stepwell.windows import aligned_empty

__all__ = [
    "ArenaPool",
    "CountedPool",
    "PinnedBlock",
    "Target",
    "import_torch",
    "pins_by_default",
    "to_torch",
    "torch_dtype",
]

Target = Literal["numpy", "torch", "jax"]


class ArenaPool:
    """Blocks of one size, leased for a batch each and recycled.

    Args:
        num_bytes: of each block.
        max_free: free blocks to keep; more than that go back to the system.

    Notes:
        Threads may lease at once; a lease may die in any thread. A forked child has its own copies. Held batches
        outlive the pool. There is no limit to the blocks on lease.
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
        # np.ndarray(..., buffer=block) would be a view of the array below, and numpy cuts such chains short
        memory = np.frombuffer(block, np.uint8)
        ref = _Lease(memory, self._take_back)
        ref.block = block
        self._leases[id(ref)] = ref
        return memory if num_bytes == self.num_bytes else memory[:num_bytes]

    def _take_back(self, ref: _Lease) -> None:
        del self._leases[id(ref)]
        if len(self._free) < self.max_free:
            self._free.append(ref.block)


class CountedPool:
    """As `ArenaPool`, for batches that are drawn in microseconds.

    A lease is an array that is kept, and is free once nothing but the pool refers to it.

    Args:
        num_bytes: of each block.
        max_known: blocks to know of; those that are leased beyond are not recycled.

    Notes:
        What was leased and is dropped stays with the pool, ``max_known`` blocks at most, so these should be small.
        Threads may lease at once; a forked child has its own copies.
    """

    __slots__ = ("_leases", "num_bytes")

    def __init__(self, num_bytes: int, max_known: int) -> None:
        # numpy makes no array over an empty buffer
        self.num_bytes = max(num_bytes, 1)
        # the one that was leased longest ago first
        self._leases: deque[npt.NDArray[np.uint8]] = deque(maxlen=max_known)

    def lease(self) -> npt.NDArray[np.uint8]:
        """Return memory that no living array shares: uint8 [num_bytes], 64-byte aligned, of undefined content."""
        leases = self._leases
        for _ in range(len(leases)):
            try:
                lease = leases.popleft()
            except IndexError:
                # other threads look at them
                break
            leases.append(lease)
            # one that another thread looks at, too, has a reference more
            if getrefcount(lease) == _FREE:
                return lease
        made = np.frombuffer(aligned_empty(self.num_bytes).data, np.uint8)
        leases.append(made)
        return made


def _references() -> int:
    """Return how many references a lease has that is a pool's alone, as `CountedPool.lease` counts them."""
    leases: deque[npt.NDArray[np.uint8]] = deque([np.empty(0, np.uint8)])
    lease = leases.popleft()
    leases.append(lease)
    return getrefcount(lease)


_FREE = _references()


class _Lease(weakref.ref[Any]):
    """A weak reference to a lease that knows the block below it."""

    __slots__ = ("block",)
    block: memoryview


def import_torch() -> Any:
    """Return the torch module."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError.of("torch", "torch") from error
    return torch


def pins_by_default() -> bool:
    """Return whether batches for torch lie in pinned memory when the user does not say: where CUDA is there."""
    return bool(import_torch().cuda.is_available())


def to_torch(values: dict[str, Any], torch: Any, pinned: PinnedBlock | None = None) -> dict[str, Any]:
    """Return the batch with tensors over the arrays' own memory."""
    for key, value in values.items():
        if not isinstance(value, np.ndarray):
            continue
        # a dict of few dtypes: a call for each array would cost as much as its tensor
        kind = _DTYPES[value.dtype] if value.dtype in _DTYPES else torch_dtype(value.dtype, torch)
        if kind is None:
            continue
        if pinned is not None:
            values[key] = pinned.tensor(value)
        elif value.flags.writeable and value.flags.c_contiguous:
            values[key] = torch.from_numpy(value)
        else:
            values[key] = _wrap(value, torch)
    return values


class PinnedBlock:
    """Page-locked memory for one batch, from torch's own caching allocator.

    A GPU may still be copying from a batch that the program has dropped (``tensor.to("cuda", non_blocking=True)``).
    torch's allocator knows of such copies and waits for them before it hands a block out again, but only for tensors
    that share the storage it made. So pinned batches do not use `ArenaPool`: every batch asks torch, which recycles,
    and its tensors are cut from that one storage.

    Args:
        num_bytes: of the block.
        torch: the module.
    """

    __slots__ = ("_address", "_storage", "_torch", "memory")

    def __init__(self, num_bytes: int, torch: Any) -> None:
        self._torch = torch
        try:
            self._storage = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise LoaderError(
                f"{num_bytes} bytes could not be pinned: {error} Leave pin_memory out to pin only where CUDA is there, "
                "or use pin_memory=False."
            ) from error
        self.memory: npt.NDArray[np.uint8] = self._storage.numpy()
        self._address = self.memory.ctypes.data

    def tensor(self, value: npt.NDArray[Any]) -> Any:
        """Return a pinned tensor of an array's values: a view of the block where the array is one, else a copy."""
        start, size = value.ctypes.data - self._address, value.itemsize
        # axes may be in any order: channels first are a view of channels last
        fits = all(stride > 0 and stride % size == 0 for stride in value.strides)
        if value.base is not self.memory or value.size == 0 or not fits:
            return _wrap(value, self._torch).pin_memory()
        reach = sum(stride * (length - 1) for stride, length in zip(value.strides, value.shape, strict=True))
        flat = self._storage[start : start + reach + size].view(torch_dtype(value.dtype, self._torch))
        return flat.as_strided(value.shape, [stride // size for stride in value.strides])


_DTYPES: dict[np.dtype[Any], Any] = {}


def torch_dtype(dtype: np.dtype[Any], torch: Any) -> Any:
    """Return the torch dtype of a numpy dtype, or None."""
    if dtype not in _DTYPES:
        try:
            _DTYPES[dtype] = torch.from_numpy(np.zeros(1, dtype)).dtype
        except (TypeError, ValueError):
            # TypeError: no such dtype; ValueError: not this machine's byte order
            _DTYPES[dtype] = None
    return _DTYPES[dtype]


def _wrap(value: npt.NDArray[Any], torch: Any) -> Any:
    if value.flags.writeable:
        try:
            return torch.from_numpy(value)
        except ValueError:
            # strides that are negative, or of part of an element
            pass
    return torch.from_numpy(value.copy())
