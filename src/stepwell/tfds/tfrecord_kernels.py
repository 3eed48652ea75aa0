"""Records of TFRecord files, found and checked in a piece of the file.

::

    | u64 size | u32 masked crc of these 8 bytes | the record | u32 masked crc of it |      little-endian
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import load_u8, load_u64
from stepwell.tfds.crc32c_kernels import crc32c

__all__ = ["BAD_DATA", "BAD_HEADER", "TOO_LONG", "scan_records"]

HEADER, FOOTER = 12, 4
BAD_HEADER, BAD_DATA, TOO_LONG = 1, 2, 3
MASK_DELTA = 0xA282EAD8


@kernel
def _masked(crc: Any) -> Any:
    return (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + MASK_DELTA) & 0xFFFFFFFF


@kernel
def _load_u32(address: Any) -> Any:
    return load_u8(address) | load_u8(address + 1) << 8 | load_u8(address + 2) << 16 | load_u8(address + 3) << 24


@kernel
def scan_records(data: Any, left: Any, is_checked: Any, out: Any) -> Any:
    """Find the records that begin in a piece of a file.

    Args:
        data: uint8 [n], which begins with a record.
        left: bytes of the file from there to its end.
        is_checked: whether records themselves are checked: one that is not whole is left for the next piece. Else
            their headers only, and the last one may reach beyond the piece.
        out: int64 [most, 2], written: place and size of each record in the piece.

    Returns:
        How many were found, where the next one begins, and what is wrong there, or 0.
    """
    base, count, place = data.ctypes.data, 0, np.int64(0)
    while count < len(out) and place + HEADER <= data.size:
        size = load_u64(base + place)
        if _masked(crc32c(0, base + place, 8)) != _load_u32(base + place + 8):
            return count, place, BAD_HEADER
        if size < 0 or size > left - place - HEADER - FOOTER:
            return count, place, TOO_LONG
        end = place + HEADER + size
        if is_checked:
            if end + FOOTER > data.size:
                break
            if _masked(crc32c(0, base + place + HEADER, size)) != _load_u32(base + end):
                return count, place, BAD_DATA
        out[count, 0], out[count, 1] = place + HEADER, size
        count += 1
        place = end + FOOTER
    return count, place, 0
