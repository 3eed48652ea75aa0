"""Image files of every kind that data sets have, with the colours that they show."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["KindOfImage", "image_files", "png_file"]

PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6

Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class KindOfImage:
    """An image file and what it shows.

    Args:
        data: the file.
        colors: uint8 [height, width, 3], RGB as TensorFlow's ``decode_image(data, channels=3)`` gives it.
        is_exact: whether a decoder must give exactly these; JPEG comes close.
    """

    data: bytes
    colors: npt.NDArray[np.uint8]
    is_exact: bool = True


def png_file(
    samples: Pixels,
    color: int,
    bits: int = 8,
    *,
    palette: Pixels | None = None,
    transparent: bytes = b"",
    interlaced: bool = False,
) -> bytes:
    """Return a PNG file of any kind.

    Args:
        samples: [height, width] or [height, width, samples], numbers below ``2 ** bits``.
        color: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGBA.
        bits: of a sample.
        palette: uint8 [colours, 3], of colour type 3.
        transparent: content of a ``tRNS`` chunk.
        interlaced: whether it is in seven passes.

    Source:
        W3C Portable Network Graphics, second edition.
    """
    planes = samples.reshape(*samples.shape[:2], -1)
    passes = [planes[top::down, left::right] for top, left, down, right in PASSES] if interlaced else [planes]
    scan = b"".join(_row(row, bits) for part in passes if part.size for row in part)
    header = struct.pack(">IIBBBBB", planes.shape[1], planes.shape[0], bits, color, 0, 0, interlaced)
    chunks = [(b"IHDR", header), (b"PLTE", b"" if palette is None else palette.tobytes()), (b"tRNS", transparent)]
    chunks += [(b"IDAT", zlib.compress(scan))]
    kept = [_chunk(name, content) for name, content in chunks if content]
    return b"\x89PNG\r\n\x1a\n" + b"".join(kept) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _row(row: Pixels, bits: int) -> bytes:
    """Return a row of pixels without filter, its samples packed."""
    if bits == 16:
        return b"\0" + row.astype(">u2").tobytes()
    places = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, 8 - bits :]
    return b"\0" + np.packbits(places.reshape(-1)).tobytes()


def image_files(height: int = 21, width: int = 34) -> dict[str, KindOfImage]:
    """Return a file of every kind by its name, which begins with "png", "jpeg" or "webp".

    Args:
        height: of all.
        width: of all.

    Raises:
        ImportError: imagecodecs is not installed.
    """
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 9 + turn) + np.cos(y / 7 - turn) for turn in (0, 2, 4)]
    colors = (127 + 60 * np.stack(waves, axis=-1)).astype(np.uint8)
    alpha = (5 * x + 3 * y).astype(np.uint8)
    return _png_files(colors, alpha) | _jpeg_files(colors) | _webp_files(colors, alpha)


def _png_files(colors: Pixels, alpha: Pixels) -> dict[str, KindOfImage]:
    grey = colors[..., 0]
    wide, wide_alpha = colors.astype(np.uint16) * 256 + alpha[..., None], alpha.astype(np.uint16) * 3
    found = {
        "png rgb": (png_file(colors, RGB), colors),
        "png grey": (png_file(grey, GREY), grey),
        "png grey alpha": (png_file(np.dstack([grey, alpha]), GREY_ALPHA), grey),
        "png rgba": (png_file(np.dstack([colors, alpha]), RGBA), colors),
        "png rgb interlaced": (png_file(colors, RGB, interlaced=True), colors),
        "png grey transparent": (png_file(grey, GREY, transparent=struct.pack(">H", int(grey[-1, -1]))), grey),
        "png rgb transparent": (png_file(colors, RGB, transparent=colors[-1, -1].astype(">u2").tobytes()), colors),
        "png rgb 16": (png_file(wide, RGB, 16), colors),
        "png grey 16": (png_file(wide[..., 0], GREY, 16), grey),
        "png grey alpha 16": (png_file(np.dstack([wide[..., 0], wide_alpha]), GREY_ALPHA, 16), grey),
        "png rgba 16 interlaced": (png_file(np.dstack([wide, wide_alpha]), RGBA, 16, interlaced=True), colors),
    }
    for bits in (1, 2, 4):
        few = grey >> (8 - bits)
        found[f"png grey {bits}"] = png_file(few, GREY, bits), few * np.uint8(255 // (2**bits - 1))
    for bits in (1, 2, 4, 8):
        numbers, palette = grey >> (8 - bits), np.random.default_rng(bits).integers(0, 256, (2**bits, 3), np.uint8)
        found[f"png palette {bits}"] = png_file(numbers, PALETTE, bits, palette=palette), palette[numbers]
    numbers, palette = grey >> 4, np.random.default_rng(0).integers(0, 256, (16, 3), np.uint8)
    options: dict[str, Any] = {"palette": palette, "transparent": bytes(range(9)), "interlaced": True}
    found["png palette transparent interlaced"] = png_file(numbers, PALETTE, **options), palette[numbers]
    return {
        name: KindOfImage(data, np.broadcast_to(shown.reshape(*grey.shape, -1), colors.shape))
        for name, (data, shown) in found.items()
    }


def _jpeg_files(colors: Pixels) -> dict[str, KindOfImage]:
    import imagecodecs

    grey = np.repeat(colors[..., :1], 3, axis=2)
    inks = np.dstack([colors, np.full(colors.shape[:2], 230, np.uint8)])
    mixed = (colors.astype(int) * 230 // 255).astype(np.uint8)

    def encode(pixels: Pixels, space: str, stored: str) -> bytes:
        return bytes(imagecodecs.jpeg8_encode(pixels, 97, colorspace=space, outcolorspace=stored, subsampling="444"))

    files = {
        "jpeg rgb": (encode(colors, "RGB", "YCBCR"), colors),
        "jpeg rgb as rgb": (encode(colors, "RGB", "RGB"), colors),
        "jpeg grey": (encode(grey[..., 0].copy(), "GRAYSCALE", "GRAYSCALE"), grey),
        "jpeg cmyk adobe": (encode(inks, "CMYK", "CMYK"), mixed),
        "jpeg ycck adobe": (encode(inks, "CMYK", "YCCK"), mixed),
        "jpeg cmyk": (_without_adobe(encode(255 - inks, "CMYK", "CMYK")), mixed),
    }
    return {name: KindOfImage(data, shown, is_exact=False) for name, (data, shown) in files.items()}


def _without_adobe(data: bytes) -> bytes:
    """Return a JPEG file without Adobe's mark: its inks are not inverted."""
    place = data.index(b"\xff\xee")
    return data[:place] + data[place + 2 + int.from_bytes(data[place + 2 : place + 4], "big") :]


def _webp_files(colors: Pixels, alpha: Pixels) -> dict[str, KindOfImage]:
    import imagecodecs

    # what nobody sees may be stored as black
    opaque = np.maximum(alpha, 1)
    return {
        "webp": KindOfImage(bytes(imagecodecs.webp_encode(colors, 90, lossless=False)), colors, is_exact=False),
        "webp lossless": KindOfImage(bytes(imagecodecs.webp_encode(colors, lossless=True)), colors),
        "webp rgba": KindOfImage(bytes(imagecodecs.webp_encode(np.dstack([colors, opaque]), lossless=True)), colors),
    }
