"""Images of a camera as torch has them: channels first, bytes looked up in a table."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel

__all__ = ["put_channels_first"]


@kernel
def put_channels_first(images: Any, table: Any, out: Any) -> None:
    """Write ``table[images]`` of uint8 [n, height, width, channels] to ``out`` [n, channels, height, width]."""
    # a plane at a time: 305 us for 480 x 640 to floats, pixel by pixel 543, with divisions 756
    n, height, width, channels = images.shape
    for i in range(n):
        for k in range(channels):
            for y in range(height):
                for x in range(width):
                    out[i, k, y, x] = table[images[i, y, x, k]]
