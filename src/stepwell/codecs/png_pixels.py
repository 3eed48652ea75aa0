"""PNG files of any kind as images of a feature's channels and depth: what TensorFlow's decoder makes of them.

::

    palette                    its colours
    grey, for colours          in all of them
    colours, for grey          0.299 red + 0.587 green + 0.114 blue, by libpng's whole numbers
    alpha, transparent colours left out; opaque where a feature has alpha, and the file none
    16 bits, for 8             the higher 8; 8 bits for 16: times 257
    1, 2 or 4 bits             over the whole range
    interlaced                 in order
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, MissingDependencyError

__all__ = ["decode_any_png", "decode_interlaced", "lent", "with_channels"]

# of a PNG file's header: width, height, bits, colour type
HEADER, HEADER_PLACE = struct.Struct(">IIBB"), 16
# where it says whether its rows are interlaced
INTERLACE_PLACE = 28
# of each colour type: samples that a decoded pixel has
PLANES = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
TRANSPARENT = b"tRNS"
# red, green and blue of grey in parts of 2 ** 15, as libpng rounds them
GREY_BITS = 15
GREY_SHARES = (9797, 19234, 3737)
# libpng decodes interlaced files itself, but as imagecodecs calls it, it prints a warning for every file
# of each pass: first row, first column, and the steps between its rows and its columns
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
IHDR = struct.Struct(">IIBBBBB")
SIGNATURE_BYTES = 8
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# what tells of colours
KEPT = (b"PLTE", b"tRNS")

Pixels = npt.NDArray[Any]


def decode_any_png(blob: npt.NDArray[np.uint8], channels: int, dtype: np.dtype[Any]) -> Pixels:
    """Return the pixels of a PNG file of any kind.

    Args:
        blob: uint8 [n], the file; its header is known to be one.
        channels: 1, 3 or 4, that the result has.
        dtype: uint8 or uint16, of the result.

    Returns:
        [height, width, channels].

    Raises:
        DecodeError: a damaged file.
        MissingDependencyError: imagecodecs is not installed.

    Notes:
        Gamma is not applied: TensorFlow's grey of colours is that of linear light where a file has a ``gAMA`` chunk.
        Where alpha is missing of files of less than 8 bits, TensorFlow's opaque is 1, 3 or 15; here it is 255.

    Source:
        W3C Portable Network Graphics, second edition, sections 6 and 13; libpng 1.6, ``png_set_rgb_to_gray``.
    """
    try:
        import imagecodecs
    except ImportError as error:
        raise MissingDependencyError.of("imagecodecs", "image") from error
    try:
        decode = partial(_decode_plain, imagecodecs.png_decode)
        pixels = decode_interlaced(blob, decode) if blob[INTERLACE_PLACE] else decode(blob.tobytes())
    except (ValueError, RuntimeError) as error:
        raise DecodeError(f"png row of {blob.size} bytes: {error}.") from error
    return with_channels(pixels, channels, dtype)


def lent(array: Pixels) -> Pixels:
    """Return an array of the same memory, lent for a call: whoever keeps it keeps nothing of the lender's.

    imagecodecs (2026.3.6) never lets go of an array that it could not fill: of damaged rows the batch's memory.
    """
    return np.asarray(_Lent(array))


class _Lent:
    __slots__ = ("__array_interface__",)

    def __init__(self, array: Pixels) -> None:
        self.__array_interface__ = array.__array_interface__


def _decode_plain(decode: Any, file: bytes) -> Pixels:
    """Return the pixels of a file as they are, by `imagecodecs.png_decode`.

    The array is always given to it: where it is to make one, and the file is damaged, it counts ``None`` down.
    """
    width, height, bits, color = HEADER.unpack_from(file, HEADER_PLACE)
    dtype, planes = np.uint16 if bits == 16 else np.uint8, PLANES[color]
    if planes % 2 and TRANSPARENT in file:
        with suppress(ValueError):  # the bytes are not a chunk's name, or it is one that libpng does not take
            return _filled(decode, file, np.empty((height, width, planes + 1), dtype))
    shape = (height, width) if planes == 1 else (height, width, planes)
    return _filled(decode, file, np.empty(shape, dtype))


def _filled(decode: Any, file: bytes, pixels: Pixels) -> Pixels:
    decode(file, out=lent(pixels))
    return pixels


def with_channels(pixels: Pixels, channels: int, dtype: np.dtype[Any]) -> Pixels:
    """Return an image with other channels, and another depth.

    Args:
        pixels: uint8 or uint16 [height, width] or [height, width, 1 to 4]: grey or RGB, each with or without alpha.
        channels: 1, 3 or 4, that the result has.
        dtype: uint8 or uint16, of the result.

    Returns:
        [height, width, channels].

    Example:
        >>> grey_and_alpha = np.array([[[7, 0]]], np.uint8)
        >>> with_channels(grey_and_alpha, 3, np.dtype("uint8")).tolist()
        [[[7, 7, 7]]]
        >>> with_channels(grey_and_alpha[..., :1], 4, np.dtype("uint16")).tolist()
        [[[1799, 1799, 1799, 65535]]]
    """
    planes = pixels.reshape(*pixels.shape[:2], -1)
    has_alpha = planes.shape[2] in (2, 4)
    colors = planes[..., :-1] if has_alpha else planes
    if channels == 1 and colors.shape[2] == 3:
        colors = _grey(colors)
    made = np.empty((*planes.shape[:2], channels), dtype)
    made[..., :3] = _with_depth(colors, dtype)
    if channels == 4:
        made[..., 3] = _with_depth(planes[..., -1], dtype) if has_alpha else np.iinfo(dtype).max
    return made


def _grey(colors: Pixels) -> Pixels:
    red, green, blue = (colors[..., place].astype(np.uint32) * share for place, share in enumerate(GREY_SHARES))
    # of 16 bits libpng rounds, of 8 it does not
    rounding = 1 << GREY_BITS - 1 if colors.dtype == np.uint16 else 0
    return ((red + green + blue + rounding) >> GREY_BITS).astype(colors.dtype)[..., None]


def _with_depth(values: Pixels, dtype: np.dtype[Any]) -> Pixels:
    if values.dtype == dtype:
        return values
    return values >> 8 if values.dtype == np.uint16 else values.astype(dtype) * 257


def decode_interlaced(blob: npt.NDArray[np.uint8], decode: Callable[[bytes], Pixels]) -> Pixels:
    """Return the pixels of an interlaced PNG file, each of its passes decoded as a file that is not interlaced."""
    # W3C Portable Network Graphics, second edition, sections 5 and 8.2
    file = blob.tobytes()
    chunks = list(_chunks(file))
    width, height, bits, color, *_ = IHDR.unpack_from(chunks[0][1])
    passes = _passes(height, width, bits * SAMPLES[color])
    scan = _inflated(b"".join(content for name, content in chunks if name == b"IDAT"), sum(each[-1] for each in passes))
    colors = b"".join(_chunk(name, content) for name, content in chunks if name in KEPT)
    place, parts = 0, []
    for rows, columns, num_bytes in passes:
        kind = IHDR.pack(len(range(width)[columns]), len(range(height)[rows]), bits, color, 0, 0, 0)
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
