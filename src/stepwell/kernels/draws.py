"""Random numbers by counter: each window of a batch has a stream of its own, computed and not remembered.

A number is a hash of (key, window, how-manieth): the numbers of a window do not depend on the batch it came in, on the
thread that built it, or on what other windows drew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Draws"]

Bounds = int | npt.NDArray[np.int64]
Size = int | Sequence[int]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Draws:
    """The random numbers of the windows of one batch, for one purpose.

    Args:
        keys: uint64 [B], one for each window; equal keys draw equal numbers.

    Example:
        >>> key = np.array([1, 2], np.uint64)
        >>> together = Draws.of(key, np.arange(100, 164)).uniform()
        >>> bool((together[7:9] == Draws.of(key, np.array([107, 108])).uniform()).all())
        True

    Notes:
        Every call goes on in each window's stream, so the same calls in the same order give the same numbers. Used by
        one thread.

    Source:
        The hash is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
        2014); normal numbers are of Box and Muller (1958).
    """

    __slots__ = ("_count", "_keys")

    def __init__(self, keys: npt.NDArray[np.uint64]) -> None:
        self._keys = keys
        self._count = 0

    @classmethod
    def of(cls, key: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> Draws:
        """Return the draws of windows at positions of an epoch.

        Args:
            key: uint64 [2], of `stepwell.order.order.derive_key`.
            positions: int64 [B].
        """
        with np.errstate(over="ignore"):
            return cls(_mix(_mix(positions.astype(np.uint64) * GOLDEN + key[0]) + key[1]))

    def __len__(self) -> int:
        return len(self._keys)

    def part(self, start: int, stop: int) -> Draws:
        """Return the draws of some of the windows, from the first number of each on."""
        return Draws(self._keys[start:stop])

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """uint64 [B], new at each look: for kernels that hash numbers of their own."""
        self._count += 1
        with np.errstate(over="ignore"):
            return _mix(self._keys + GOLDEN * np.uint64(self._count))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Size = ()) -> npt.NDArray[np.float64]:
        """Return numbers of [low, high), float64 [B, *size]; bounds broadcast."""
        unit = (self._bits(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        scaled: npt.NDArray[np.float64] = low + (np.asarray(high) - low) * unit
        return scaled

    def integers(self, low: Bounds, high: Bounds, size: Size = ()) -> npt.NDArray[np.int64]:
        """Return whole numbers of [low, high), int64 [B, *size]; bounds broadcast, and low < high."""
        span = np.asarray(high, np.int64) - low
        unit = (self._bits(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.asarray(low + np.minimum((unit * span).astype(np.int64), span - 1), np.int64)

    def normal(self, size: Size = ()) -> npt.NDArray[np.float64]:
        """Return numbers of mean 0 and deviation 1, float64 [B, *size]."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(size=size)))
        return radius * np.cos(2.0 * np.pi * self.uniform(size=size))

    def _bits(self, size: Size) -> npt.NDArray[np.uint64]:
        shape = (size,) if isinstance(size, int) else tuple(size)
        number = math.prod(shape)
        counters = np.arange(self._count + 1, self._count + 1 + number, dtype=np.uint64)
        self._count += number
        with np.errstate(over="ignore"):
            return _mix(self._keys[:, None] + GOLDEN * counters).reshape(len(self._keys), *shape)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    return words ^ (words >> np.uint64(31))
