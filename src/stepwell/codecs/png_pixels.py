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
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.png_passes import decode_interlaced
from stepwell.errors import DecodeError, MissingDependencyError

__all__ = ["decode_any_png", "lent", "with_channels"]

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
