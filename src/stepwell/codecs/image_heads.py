"""What an image file says of itself in its first bytes: JPEG, PNG and WebP."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["HEAD_BYTES", "ImageHead", "look_at_image", "read_image_head"]

HEAD_BYTES = 2048
"""Bytes that are enough for most files; the sizes of a JPEG file may stand behind a thumbnail."""

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PALETTE = 3
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}
# the header has room for more than decoders take
MAX_WEBP_SIDE = 16384
# the bit of VP8X that tells of transparency
WEBP_ALPHA = 0x10
NO_FRAME = (0xC4, 0xC8, 0xCC)
NO_SEGMENT = (0x01, *range(0xD0, 0xD9))


@dataclass(frozen=True, slots=True)
class ImageHead:
    """Size and kind of an image.

    Args:
        height: in pixels.
        width: in pixels.
        channels: 1, 3 or 4 that an array needs to hold it: a palette has 3, grey with alpha 4.
        dtype: "uint8" or "uint16".
        format: "jpeg", "png" or "webp"; the first two are codecs, too, "image-file" reads all.
        is_plain: whether samples are the pixels as every reader shows them: no palette, no inks, 8 or 16 bits.
    """

    height: int
    width: int
    channels: int
    dtype: str
    format: str
    is_plain: bool = True


def look_at_image(blob: npt.NDArray[np.uint8]) -> ImageHead | None:
    """Return what an image file says of itself, in its first bytes or further behind; None where it does not tell.

    Args:
        blob: uint8 [n], the file; of most, `HEAD_BYTES` are copied.
    """
    return read_image_head(blob[:HEAD_BYTES].tobytes()) or read_image_head(blob.tobytes())


def read_image_head(data: bytes) -> ImageHead | None:
    r"""Return what an image file says of itself; None where the bytes do not tell.

    Args:
        data: its first bytes, `HEAD_BYTES` or more where it has them.

    Example:
        >>> png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 64, 48, 8, 2, 0, 0, 0)
        >>> read_image_head(png)
        ImageHead(height=48, width=64, channels=3, dtype='uint8', format='png', is_plain=True)

    Source:
        ITU-T T.81, annex B; W3C Portable Network Graphics, section 11.2.2; RFC 9649, section 2.
    """
    if data[:2] == b"\xff\xd8":
        return _jpeg_head(data)
    if data[:8] == PNG_SIGNATURE:
        return _png_head(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp_head(data)
    return None


def _jpeg_head(data: bytes) -> ImageHead | None:
    place = 2
    while place + 10 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF or marker in NO_SEGMENT:
            place += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in NO_FRAME:
            bits, height, width, components = struct.unpack_from(">BHHB", data, place + 4)
            is_known = bits == 8 and components in (1, 3, 4)
            channels, is_plain = (1, True) if components == 1 else (3, components == 3)
            return ImageHead(height, width, channels, "uint8", "jpeg", is_plain) if is_known else None
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


def _png_head(data: bytes) -> ImageHead | None:
    if len(data) < 29 or data[12:16] != b"IHDR":
        return None
    width, height, bits, color, *_ = struct.unpack_from(">IIBBBBB", data, 16)
    if color not in PNG_CHANNELS:
        return None
    dtype, is_plain = "uint16" if bits == 16 else "uint8", color != PALETTE and bits >= 8
    return ImageHead(height, width, PNG_CHANNELS[color], dtype, "png", is_plain)


def _webp_head(data: bytes) -> ImageHead | None:
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", body, 6)
        return ImageHead(height & 0x3FFF, width & 0x3FFF, 3, "uint8", "webp")
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return ImageHead((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3, "uint8", "webp")
    width, height = (int.from_bytes(body[place : place + 3], "little") + 1 for place in (4, 7))
    if kind == b"VP8X" and max(width, height) <= MAX_WEBP_SIDE:
        return ImageHead(height, width, 4 if body[0] & WEBP_ALPHA else 3, "uint8", "webp")
    return None
