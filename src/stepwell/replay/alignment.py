"""Arrays that begin on a cache line, so that a line of eight words is one line of the processor's cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LINE_BYTES", "aligned_empty"]

LINE_BYTES = 64
"""Bytes of a cache line."""


def aligned_empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array with any contents whose first byte lies on a cache line.

    Args:
        shape: as of `numpy.empty`.
        dtype: as of `numpy.empty`.

    Example:
        >>> aligned_empty((3, 8), np.float64).ctypes.data % LINE_BYTES
        0
    """
    dimensions = (shape,) if isinstance(shape, int) else shape
    num_bytes = math.prod(dimensions) * np.dtype(dtype).itemsize
    block = np.empty(num_bytes + LINE_BYTES, np.uint8)
    start = -block.ctypes.data % LINE_BYTES
    return block[start : start + num_bytes].view(dtype).reshape(dimensions)
