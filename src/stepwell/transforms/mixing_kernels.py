"""Blends rows of bytes with each other: what mixup does to images, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["blend_bytes"]


@kernel
def blend_bytes(values: Any, partner: Any, weights: Any, out: Any) -> None:
    """Write ``weight * own + (1 - weight) * partner`` of every row, rounded.

    Args:
        values: uint8 [B, N].
        partner: int64 [B], rows in 0 .. B - 1: not checked.
        weights: float32 [B], 0 to 1.
        out: uint8 [B, N], other memory.
    """
    half = np.float32(0.5)
    for i in range(np.uintp(values.shape[0])):
        own, other, into, weight = values[i], values[np.uintp(partner[i])], out[i], weights[i]
        for j in range(np.uintp(own.size)):
            base = np.float32(other[j])
            into[j] = np.uint8(np.int32(base + (np.float32(own[j]) - base) * weight + half))
