"""Interlaced PNG files: each of their seven passes is a PNG file of its own, which is decoded and put in its place.

libpng reads them, too, but as imagecodecs asks it to, it prints a warning for every file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError

__all__ = ["decode_interlaced"]

# of each pass: first row, first column, and the steps between its rows and its columns
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
HEADER = struct.Struct(">IIBBBBB")
SIGNATURE_BYTES = 8
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# what tells of colours
KEPT = (b"PLTE", b"tRNS")

Pixels = npt.NDArray[Any]


def decode_interlaced(blob: npt.NDArray[np.uint8], decode: Callable[[bytes], Pixels]) -> Pixels:
    """Return the pixels of an interlaced PNG file.

    Args:
        blob: uint8 [n], the file; its header is known to be one, of a size that it can hold.
        decode: what decodes a PNG file that is not interlaced.

    Returns:
        [height, width] or [height, width, channels], as ``decode`` makes them.

    Raises:
        DecodeError: a damaged file.

    Source:
        W3C Portable Network Graphics, second edition, sections 5 and 8.2.
    """
    file = blob.tobytes()
    chunks = list(_chunks(file))
    width, height, bits, color, *_ = HEADER.unpack_from(chunks[0][1])
    passes = _passes(height, width, bits * SAMPLES[color])
    scan = _inflated(b"".join(content for name, content in chunks if name == b"IDAT"), sum(each[-1] for each in passes))
    colors = b"".join(_chunk(name, content) for name, content in chunks if name in KEPT)
    place, parts = 0, []
    for rows, columns, num_bytes in passes:
        kind = HEADER.pack(len(range(width)[columns]), len(range(height)[rows]), bits, color, 0, 0, 0)
        data = zlib.compress(scan[place : place + num_bytes], 0)
        image = _chunk(b"IHDR", kind) + colors + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
        parts.append(decode(file[:SIGNATURE_BYTES] + image))
        place += num_bytes
    whole = np.empty((height, width, *parts[0].shape[2:]), parts[0].dtype)
    for (rows, columns, _), part in zip(passes, parts, strict=True):
        whole[rows, columns] = part
    return whole


def _passes(height: int, width: int, pixel_bits: int) -> list[tuple[slice, slice, int]]:
    """Return rows, columns and bytes in the scan of each pass that has pixels."""
    found = []
    for top, left, down, right in PASSES:
        rows, columns = slice(top, None, down), slice(left, None, right)
        num_rows, num_columns = len(range(height)[rows]), len(range(width)[columns])
        if num_rows and num_columns:
            # a byte a row says how it was filtered
            found.append((rows, columns, num_rows * (1 + -(-num_columns * pixel_bits // 8))))
    return found


def _chunks(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of chunks, up to the image's end."""
    place = SIGNATURE_BYTES
    while place + 12 <= len(file):
        size, name = struct.unpack_from(">I4s", file, place)
        content = file[place + 8 : place + 8 + size]
        if file[place + 8 + size : place + 12 + size] != struct.pack(">I", zlib.crc32(name + content)):
            raise DecodeError(f"png row of {len(file)} bytes: the checksum of its chunk {name!r} is wrong.")
        if name == b"IEND":
            return
        yield name, content
        place += 12 + size
    raise DecodeError(f"png row of {len(file)} bytes: it breaks off.")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _inflated(data: bytes, size: int) -> bytes:
    """Return the scan of an image, whose size is known."""
    try:
        found = zlib.decompressobj().decompress(data, max(1, size))
    except zlib.error as error:
        raise DecodeError(f"png row: {error}.") from error
    if len(found) != size:
        raise DecodeError(f"png row: its scan has {len(found)} bytes of {size}.")
    return found
