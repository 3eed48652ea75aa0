"""Images of any dtype as uint8 RGB; smaller; as the bytes of a PNG file."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["displayable", "to_png", "within"]

# pixels of a side that each pixel of a smaller image is the mean of; of more every n-th is taken
MEAN_SIDE = 4


def displayable(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return an image of any dtype and channels as uint8 [H, W, 3]; depth and floats are stretched from min to max."""
    if image.dtype != np.uint8:
        values = np.nan_to_num(image.astype(np.float64), posinf=0.0, neginf=0.0)
        span = float(np.ptp(values)) or 1.0
        image = ((values - values.min()) / span * 255).astype(np.uint8)
    if image.ndim == 2:
        image = image[..., None]
    return np.ascontiguousarray(np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3])


def within(image: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Return an image [H, W, C] whose longer side is at most so many pixels, each the mean of those that it covers."""
    longer = max(image.shape[:2])
    if longer <= side:
        return image
    stride = max(1, longer // (side * MEAN_SIDE))
    image = image[::stride, ::stride]
    scale = side / max(image.shape[:2])
    starts = [np.arange(size) * length // size for length in image.shape[:2] if (size := max(1, round(length * scale)))]
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.uint32), starts[0], axis=0), starts[1], axis=1)
    counts = np.outer(*(np.diff([*begins, length]) for begins, length in zip(starts, image.shape[:2], strict=True)))
    return (sums // counts[..., None]).astype(np.uint8)


def to_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Return an image [H, W, 3] as a PNG file, by zlib alone: what a notebook shows needs no image library."""
    # Source: https://www.w3.org/TR/png-3/: signature, IHDR, IDAT (each row behind the number of its filter), IEND;
    # filter 1 stores the difference to the pixel on the left
    height, width, _ = image.shape
    differences = np.diff(image, axis=1, prepend=np.zeros((height, 1, 3), np.uint8)).reshape(height, -1)
    rows = np.concatenate([np.ones((height, 1), np.uint8), differences], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    packed = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
