"""Images without loss as PNG files: uint8 and uint16.

Files of any kind become images of a feature's channels and depth as TensorFlow's decoder makes them::

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
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, check_option_names, int_option, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.schema import Feature

__all__ = ["PngCodec", "decode_any_png", "decode_interlaced", "with_channels"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# signature; length and name of the first chunk; width, height, bits, colour type, compression, filter, interlace
HEADER = struct.Struct(">8sI4sIIBBBBB")
START = [SIGNATURE, 13, b"IHDR"]
# where it says whether its rows are interlaced
INTERLACE_PLACE = 28
# of each colour type: the bits that a sample may have, and samples of a pixel
SAMPLES = {0: ((1, 2, 4, 8, 16), 1), 2: ((8, 16), 3), 3: ((1, 2, 4, 8), 1), 4: ((8, 16), 2), 6: ((8, 16), 4)}
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
# chunks with colours
KEPT = (b"PLTE", b"tRNS")
DEFAULT_LEVEL = 1
MAX_SIDE = 1_000_000
COLOR_TYPES = {1: 0, 3: 2, 4: 6}
CHANNELS = tuple(COLOR_TYPES)
COLORS = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGBA"}
# deflate makes at most so many bytes of one
MAX_RATIO = 1032
# a chunk's checksum is that of its name and its content
NAME_PLACE = 12

Pixels = npt.NDArray[Any]


def decode_any_png(blob: npt.NDArray[np.uint8], channels: int, dtype: np.dtype[Any]) -> Pixels:
    """Return the pixels of a PNG file of any kind."""
    # Gamma is not applied: TensorFlow's grey of colours is that of linear light where a file has a ``gAMA`` chunk.
    # Where alpha is missing of files of less than 8 bits, TensorFlow's opaque is 1, 3 or 15; here it is 255.
    # Source: W3C Portable Network Graphics, second edition, sections 6 and 13; libpng 1.6, ``png_set_rgb_to_gray``.
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


def borrowed(array: Pixels) -> Pixels:
    """Return an array of the same memory that does not keep this memory alive."""
    # imagecodecs (2026.3.6) never frees an array that it could not fill: with a damaged row, the batch's memory
    return np.asarray(SimpleNamespace(__array_interface__=array.__array_interface__))


def _decode_plain(decode: Any, file: bytes) -> Pixels:
    """Return the pixels of a file as they are, by `imagecodecs.png_decode`."""
    # the array is always passed: where a damaged file makes imagecodecs allocate one, it counts None down
    *_, width, height, bits, color, _, _, _ = HEADER.unpack_from(file)
    dtype, planes = np.uint16 if bits == 16 else np.uint8, PLANES[color]
    if planes % 2 and TRANSPARENT in file:
        with suppress(ValueError):  # the bytes are not a chunk's name, or it is one that libpng does not take
            return _filled(decode, file, np.empty((height, width, planes + 1), dtype))
    shape = (height, width) if planes == 1 else (height, width, planes)
    return _filled(decode, file, np.empty(shape, dtype))


def _filled(decode: Any, file: bytes, pixels: Pixels) -> Pixels:
    decode(file, out=borrowed(pixels))
    return pixels


def with_channels(pixels: Pixels, channels: int, dtype: np.dtype[Any]) -> Pixels:
    """Return an image with other channels, and another depth."""
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
    passes = _passes(height, width, bits * SAMPLES[color][1])
    scan = _inflated(b"".join(content for name, content in chunks if name == b"IDAT"), sum(each[-1] for each in passes))
    colors = b"".join(_chunk(name, content) for name, content in chunks if name in KEPT)
    place, parts = 0, []
    for rows, columns, num_bytes in passes:
        kind = IHDR.pack(len(range(width)[columns]), len(range(height)[rows]), bits, color, 0, 0, 0)
        data = zlib.compress(scan[place : place + num_bytes], 0)
        image = _chunk(b"IHDR", kind) + colors + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
        parts.append(decode(SIGNATURE + image))
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
    place = len(SIGNATURE)
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


@register_codec
class PngCodec(Codec):
    r"""One PNG file a row: uint8 or uint16, lossless.

    Args:
        feature: uint8 or uint16 of height x width, or height x width x 1, 3 (RGB) or 4 (RGBA), of one size or of any.
            Options: ``level`` of compression, 0 (none) to 9 (smallest), default 1: higher ones cost much time and gain
            little.

    Example:
        >>> from stepwell.schema import Image
        >>> codec = PngCodec(Image((4, 5), "uint16", codec="png"))
        >>> codec.encode(np.zeros((4, 5), "uint16"))[:4]
        b'\x89PNG'

    Notes:
        Keeps no state: safe for any number of threads; decoding releases the GIL. A header of another size than the
        feature's is refused before anything is written, or memory asked for that its row cannot fill.

    Source:
        W3C Portable Network Graphics, second edition, sections 5 and 11.2.2.
    """

    name: ClassVar[str] = "png"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "level")
        self._level = int_option(feature, "level", DEFAULT_LEVEL, least=0, most=9)
        _check_is_png_image(feature)
        channels = (*feature.shape, 1)[2] or 1
        self._size = None if feature.is_ragged else (feature.fixed_shape[0], feature.fixed_shape[1])
        self._channels = tuple(int(size or 0) for size in feature.shape[2:])
        self._planes = () if channels == 1 else (channels,)
        self._num_channels = channels
        self._pixel_bytes = channels * feature.np_dtype.itemsize
        self._kind = 8 * feature.np_dtype.itemsize, COLOR_TYPES[channels], 0, 0, 0
        try:
            import imagecodecs
        except ImportError as error:
            raise MissingDependencyError.of("imagecodecs", "image") from error
        self._encode: Any = imagecodecs.png_encode
        self._decode: Any = imagecodecs.png_decode

    def encode(self, value: Any) -> bytes:
        """Return the image as a PNG file; see `Codec.encode`."""
        image = np.ascontiguousarray(value, dtype=self.feature.np_dtype)
        return bytes(self._encode(image.reshape(*image.shape[:2], *self._planes), level=self._level))

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the image; see `Codec.decode`."""
        out = np.empty((*self.image_size(blob), *self._channels), self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width, of images of any size from the header; see `Codec.image_size`."""
        return self._checked_header(blob)[0] if self._size is None else self._size

    def _checked_header(self, blob: npt.NDArray[np.uint8]) -> tuple[tuple[int, int], bool]:
        """Return height and width, and whether rows are such as the codec writes, of a header that is right."""
        if blob.size < HEADER.size:
            raise DecodeError(f"png row of {blob.size} bytes: its header is cut off.")
        *start, width, height, bits, color, compression, filters, interlace = HEADER.unpack_from(blob.data)
        size, kind = (height, width), (bits, color, compression, filters, interlace)
        is_own = kind == self._kind
        is_png = start == START and (is_own or _is_allowed(*kind))
        if not is_png or min(size) < 1 or size != (self._size or size):
            image = f"{bits}-bit {COLORS.get(color, 'unknown')} {height}x{width}" if start == START else "no PNG file"
            raise DecodeError(
                f"png row of {blob.size} bytes: its header is not that of a {self.feature} image, but of {image}"
                f"{', interlaced' * (start == START and interlace == 1)}."
            )
        if (self._size is None or not is_own) and zlib.crc32(blob[NAME_PLACE : HEADER.size].data) != _checksum(blob):
            raise DecodeError(f"png row of {blob.size} bytes: the checksum of its header is wrong.")
        pixel_bits = 8 * self._pixel_bytes if is_own else bits * SAMPLES[color][1]
        if height * (1 + width * pixel_bits // 8) > MAX_RATIO * blob.size:
            raise DecodeError(f"png row of {blob.size} bytes: its header says {height}x{width}, which it cannot hold.")
        if self._size is None:
            check_decoded_bytes(height * width * self._pixel_bytes, blob.size, f"a png row of {height}x{width}")
        return size, is_own

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        if not self._checked_header(blob)[1]:
            self._convert(blob, out)
            return
        pixels = out.reshape(*out.shape[:2], *self._planes)
        try:
            self._decode(blob, out=borrowed(pixels))
        except (ValueError, RuntimeError) as error:
            if TRANSPARENT in blob.tobytes():
                # a colour that stands for no colour: its pixels have alpha
                self._convert(blob, out)
                return
            raise DecodeError(f"png row of {blob.size} bytes: {error}.") from error

    def _convert(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode an image of another kind than the feature's into `out`."""
        out[...] = decode_any_png(blob, self._num_channels, self.feature.np_dtype).reshape(out.shape)


def _is_allowed(bits: int, color: int, compression: int, filters: int, interlace: int) -> bool:
    """Whether PNG has such images."""
    return (compression, filters) == (0, 0) and interlace in (0, 1) and bits in SAMPLES.get(color, ((), 0))[0]


def _checksum(blob: npt.NDArray[np.uint8]) -> int:
    """Return the checksum of the header that a file has."""
    return int.from_bytes(blob[HEADER.size : HEADER.size + 4].tobytes(), "big")


def _check_is_png_image(feature: Feature) -> None:
    shape, dtype = feature.shape, feature.np_dtype
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in CHANNELS)
    is_image &= not feature.is_ragged or feature.is_image_of_any_size
    if feature.kind not in ("image", "array") or dtype not in (np.uint8, np.uint16) or not is_image:
        raise SchemaError(
            f'codec "png" cannot store {dtype.name} {shape}. Allowed: uint8 and uint16, (height, width) or '
            '(height, width, 1 | 3 | 4). Use codec="zstd" for floats and anything else: lossless, any dtype and shape.'
        )
    if not feature.is_ragged and not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "png" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')
