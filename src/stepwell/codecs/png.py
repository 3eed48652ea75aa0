"""Images without loss as PNG files: uint8 and uint16."""

from __future__ import annotations

import struct
import zlib
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.options import check_option_names, int_option
from stepwell.codecs.png_pixels import decode_any_png, lent
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.schema import Feature

__all__ = ["PngCodec"]

DEFAULT_LEVEL = 1
MAX_SIDE = 1_000_000
COLOR_TYPES = {1: 0, 3: 2, 4: 6}
CHANNELS = tuple(COLOR_TYPES)
COLORS = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGBA"}
# of each colour type: the bits that a sample may have, and samples of a pixel
SAMPLES = {0: ((1, 2, 4, 8, 16), 1), 2: ((8, 16), 3), 3: ((1, 2, 4, 8), 1), 4: ((8, 16), 2), 6: ((8, 16), 4)}
# deflate makes at most so many bytes of one
MAX_RATIO = 1032
SIGNATURE = b"\x89PNG\r\n\x1a\n"
# signature; length and name of the first chunk; width, height, bits, colour type, compression, filter, interlace
HEADER = struct.Struct(">8sI4sIIBBBBB")
START = [SIGNATURE, 13, b"IHDR"]
TRANSPARENT = b"tRNS"
# a chunk's checksum is that of its name and its content
NAME_PLACE = 12


@register_codec
class PngCodec(Codec):
    r"""One PNG file a row: uint8 or uint16, lossless.

    Args:
        feature: uint8 or uint16 of height x width, or height x width x 1, 3 (RGB) or 4 (RGBA), of one size or of any.
            Options: ``level`` of compression, 0 (none) to 9 (smallest), default 1: higher ones cost much time and gain
            little.

    Raises:
        SchemaError: another dtype or shape, or an option that is not allowed.
        MissingDependencyError: imagecodecs is not installed.

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
        """Return height and width, of images of any size as the header tells them; see `Codec.image_size`."""
        return self._told(blob)[0] if self._size is None else self._size

    def _told(self, blob: npt.NDArray[np.uint8]) -> tuple[tuple[int, int], bool]:
        """Return height and width, and whether rows are such as the codec writes, of a header that is right."""
        if blob.size < HEADER.size:
            raise DecodeError(f"png row of {blob.size} bytes: its header is cut off.")
        *start, width, height, bits, color, compression, filters, interlace = HEADER.unpack_from(blob.data)
        size, kind = (height, width), (bits, color, compression, filters, interlace)
        is_own = kind == self._kind
        is_png = start == START and (is_own or _is_allowed(*kind))
        if not is_png or min(size) < 1 or size != (self._size or size):
            told = f"{bits}-bit {COLORS.get(color, 'unknown')} {height}x{width}" if start == START else "no PNG file"
            raise DecodeError(
                f"png row of {blob.size} bytes: its header is not that of a {self.feature} image, but of {told}"
                f"{', interlaced' * (start == START and interlace == 1)}."
            )
        if (self._size is None or not is_own) and zlib.crc32(blob[NAME_PLACE : HEADER.size].data) != _checksum(blob):
            raise DecodeError(f"png row of {blob.size} bytes: the checksum of its header is wrong.")
        pixel_bits = 8 * self._pixel_bytes if is_own else bits * SAMPLES[color][1]
        if height * (1 + width * pixel_bits // 8) > MAX_RATIO * blob.size:
            raise DecodeError(
                f"png row of {blob.size} bytes: its header tells of {height}x{width}, it cannot hold them."
            )
        if self._size is None:
            check_decoded_bytes(height * width * self._pixel_bytes, blob.size, f"a png row of {height}x{width}")
        return size, is_own

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        if not self._told(blob)[1]:
            self._convert(blob, out)
            return
        pixels = out.reshape(*out.shape[:2], *self._planes)
        try:
            self._decode(blob, out=lent(pixels))
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
