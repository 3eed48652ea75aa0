"""RGB images of which some are JPEG files and others plain pixels, each row as it came; FFCV writes such sets.

::

    FF D8 ...                                       a JPEG file
    00 | uint16 height | uint16 width | pixels      plain, little-endian sizes, C order
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.jpeg import JpegCodec
from stepwell.codecs.raw import bytes_of
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.schema import Feature, Image

__all__ = ["JpegOrRawCodec", "jpeg_codec_like", "raw_row"]

RAW_HEAD = struct.Struct("<BHH")
RAW_MARK = 0
MAX_SIDE = 65535


def raw_row(pixels: bytes | npt.NDArray[np.uint8], height: int, width: int) -> bytes:
    """Return a plain image as a row of the codec.

    Args:
        pixels: uint8, ``height * width * 3`` bytes.
        height: 1 to 65535.
        width: likewise.
    """
    return RAW_HEAD.pack(RAW_MARK, height, width) + bytes(pixels)


def jpeg_codec_like(feature: Feature) -> JpegCodec:
    """Return the codec of a feature's rows that are JPEG files.

    Raises:
        SchemaError: not an RGB image of uint8.
        MissingDependencyError: simplejpeg is not installed.
    """
    if not feature.is_rgb_image:
        raise SchemaError(
            f"codec {feature.codec!r} cannot store {feature.np_dtype.name} {feature.shape}. Allowed: uint8, RGB images."
        )
    return JpegCodec(Image(feature.shape, codec="jpeg", dct=feature.option("dct", "exact")))


@register_codec
class JpegOrRawCodec(Codec):
    """JPEG files and plain pixels in one column; new rows are stored plain, so that nothing is lost.

    Args:
        feature: an RGB image of uint8, of fixed size or any. Option ``dct``, as of codec "jpeg".

    Raises:
        SchemaError: another dtype or shape.
        MissingDependencyError: simplejpeg is not installed.

    Example:
        >>> codec = JpegOrRawCodec(Image((None, None, 3), codec="jpeg-or-raw"))
        >>> row = np.frombuffer(codec.encode(np.zeros((2, 5, 3), "uint8")), np.uint8)
        >>> row.size, codec.image_size(row), codec.decode(row).shape
        (35, (2, 5), (2, 5, 3))

    Notes:
        As for `stepwell.codecs.jpeg.JpegCodec`.
    """

    name: ClassVar[str] = "jpeg-or-raw"
    option_names: ClassVar[tuple[str, ...] | None] = ("dct",)
    decoding_options: ClassVar[tuple[str, ...]] = ("dct",)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._jpeg = jpeg_codec_like(feature)
        self._size = None if feature.is_ragged else feature.fixed_shape[:2]

    def encode(self, value: Any) -> bytes:
        """Return the image as plain pixels; see `Codec.encode`."""
        image = np.ascontiguousarray(value, np.uint8)
        height, width = image.shape[:2]
        if max(height, width) > MAX_SIDE:
            raise StepError(f"an image of {height}x{width}. Allowed: sides of 1 to {MAX_SIDE}.")
        return raw_row(bytes_of(image), height, width)

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        return self._pixels(blob).copy() if _is_raw(blob) else self._jpeg.decode(blob)

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy or decode the image into `out`; see `Codec.decode_into`."""
        if not _is_raw(blob):
            self._jpeg.decode_into(blob, out)
            return
        pixels = self._pixels(blob)
        if pixels.shape != out.shape:
            raise DecodeError(f"a plain image of shape {pixels.shape}, where {out.shape} is wanted.")
        out[...] = pixels

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part; see `Codec.decode_crop`."""
        if not _is_raw(blob):
            return self._jpeg.decode_crop(blob, box, size)
        top, left, height, width = box
        return self._pixels(blob)[top : top + height, left : left + width]

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width as the row's head tells them; see `Codec.image_size`."""
        if not _is_raw(blob):
            return self._jpeg.image_size(blob)
        height, width = self._pixels(blob).shape[:2]
        return height, width

    def _pixels(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the pixels of a plain row, a view of it."""
        height, width = RAW_HEAD.unpack_from(blob.data)[1:] if blob.size >= RAW_HEAD.size else (0, 0)
        wanted = self._size or (height, width)
        if (height, width) != wanted or not height * width or blob.size != RAW_HEAD.size + height * width * 3:
            raise DecodeError(
                f"a plain row of {blob.size} bytes, whose head tells of an image of {height}x{width}, where the "
                f"feature is {self.feature.shape}."
            )
        return blob[RAW_HEAD.size :].reshape(height, width, 3)


def _is_raw(blob: npt.NDArray[np.uint8]) -> bool:
    return blob.size > 0 and blob[0] == RAW_MARK
