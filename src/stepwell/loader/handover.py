"""From numpy to torch over the same memory, and the pinned memory that a GPU copies from."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, MissingDependencyError

__all__ = ["PinnedBlock", "Target", "import_torch", "pins_by_default", "to_torch"]

Target = Literal["numpy", "torch"]


def import_torch() -> Any:
    """Return the torch module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError.of("torch", "torch") from error
    return torch


def pins_by_default() -> bool:
    """Return whether batches for torch lie in pinned memory when the user does not say: where CUDA is there."""
    return bool(import_torch().cuda.is_available())


def to_torch(values: dict[str, Any], torch: Any, pinned: PinnedBlock | None = None) -> dict[str, Any]:
    """Return the batch with tensors over the arrays' own memory.

    Args:
        values: key to array.
        torch: the module.
        pinned: the pinned memory that the arrays were read into, if they were.

    Returns:
        The same dict. Object and structured arrays, and dtypes that this torch does not have, stay numpy. Arrays that
        torch cannot wrap (read-only, negative strides, strides of part of an element) are copied.
    """
    for key, value in values.items():
        if isinstance(value, np.ndarray) and has_torch_dtype(value.dtype, torch):
            values[key] = _wrap(value, torch) if pinned is None else pinned.tensor(value)
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

    Raises:
        LoaderError: this machine has nothing to pin memory for, or no more of it.
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
        flat = self._storage[start : start + reach + size].view(_torch_dtype(value.dtype, self._torch))
        return flat.as_strided(value.shape, [stride // size for stride in value.strides])


_DTYPES: dict[np.dtype[Any], Any] = {}


def has_torch_dtype(dtype: np.dtype[Any], torch: Any) -> bool:
    """Return whether torch has tensors of a numpy dtype."""
    return _torch_dtype(dtype, torch) is not None


def _torch_dtype(dtype: np.dtype[Any], torch: Any) -> Any:
    if dtype not in _DTYPES:
        try:
            _DTYPES[dtype] = torch.from_numpy(np.zeros(1, dtype)).dtype
        except (TypeError, ValueError):
            # TypeError: no such dtype; ValueError: not this machine's byte order
            _DTYPES[dtype] = None
    return _DTYPES[dtype]


def _wrap(value: npt.NDArray[Any], torch: Any) -> Any:
    if not value.flags.writeable or any(stride < 0 or stride % value.itemsize for stride in value.strides):
        value = value.copy()
    return torch.from_numpy(value)
