"""Where the blocks of a Snappy stream begin, so that a part of it can be decompressed alone.

Compressors cut their input into blocks of 64 KiB, and copy only from within the block::

    length | literal  copy  literal  copy | literal  literal | copy ...       each block is a stream of its own,
           ^ block 0                      ^ block 1          ^ block 2         but for its length

Source:
    Snappy's format description (google/snappy), and its compressor's block size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["BLOCK_BYTES", "find_blocks"]

BLOCK_BYTES = 1 << 16
LONG_LITERAL = 60


@kernel
def find_blocks(data: Any, place: Any, places: Any) -> Any:
    """Find where blocks begin."""
    made, block = np.int64(0), 0
    places[0] = place
    while place < data.size:
        tag = np.int64(data[np.uintp(place)])
        kind = tag & 3
        # bytes of the number behind the tag: of a long literal its length, of a copy its distance
        extra: Any = 1 if kind == 1 else (2 if kind == 2 else 4)
        if kind == 0:
            extra = (tag >> 2) + 1 - LONG_LITERAL if (tag >> 2) >= LONG_LITERAL else 0
        if place + 1 + extra > data.size:
            return -1
        number = np.int64(0)
        for i in range(extra):
            number |= np.int64(data[np.uintp(place + 1 + i)]) << (8 * i)
        place += 1 + extra
        if kind == 0:
            count = number + 1 if extra else (tag >> 2) + 1
            place += count
        else:
            count = (((tag >> 2) & 7) + 4) if kind == 1 else (tag >> 2) + 1
            distance = (((tag >> 5) << 8) | number) if kind == 1 else number
            if distance > made - block * BLOCK_BYTES:
                return -1
        made += count
        if made > (block + 1) * BLOCK_BYTES or place > data.size:
            return -1
        if made == (block + 1) * BLOCK_BYTES:
            block += 1
            if block >= places.size:
                return -1
            places[block] = place
    if made > block * BLOCK_BYTES:
        if block + 1 >= places.size:
            return -1
        places[block + 1] = place
    return made
