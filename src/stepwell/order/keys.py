"""Keys for the counter-based generators, from a seed, an epoch and the name of what is drawn."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["derive_key", "derive_seed"]


def derive_key(seed: int, epoch: int, purpose: str) -> npt.NDArray[np.uint64]:
    """Return the 128-bit key of one stream of random numbers.

    The three arguments are hashed as separate words (BLAKE2b), so that seed 0 epoch 1 has nothing to do with seed 1
    epoch 0, at any size of either, on any machine and Python version.

    Args:
        seed: an int, 0 or more, of any size.
        epoch: an int, 0 or more, of any size.
        purpose: what is drawn, so that two draws of one epoch are independent; no "/" in it.

    Returns:
        uint64 [2].

    Example:
        >>> bool((derive_key(0, 1, "random") == derive_key(1, 0, "random")).any())
        False
    """
    digest = _digest(seed, epoch, purpose)
    return np.array([int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")], np.uint64)


def derive_seed(seed: int, purpose: str) -> int:
    """Return a seed of 128 bits for a part of something that has a seed itself."""
    return int.from_bytes(_digest(seed, 0, f"seed of {purpose}"), "little")


def _digest(seed: int, epoch: int, purpose: str) -> bytes:
    return hashlib.blake2b(f"stepwell/{purpose}/{seed}/{epoch}".encode(), digest_size=16).digest()
