"""Image files of several formats in one column, each row as it came: JPEG, PNG and WebP."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.jpeg import JpegCodec
from stepwell.codecs.png import PngCodec, with_channels
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Feature

__all__ = ["HEAD_BYTES", "ImageFileCodec", "ImageHead", "look_at_image", "read_image_head"]

HEAD_BYTES = 2048
"""Bytes that are enough for most files; the sizes of a JPEG file may stand behind a thumbnail."""

JPEG_START, PNG_START = b"\xff\xd8", b"\x89P"
JPEG_OPTION = "dct"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PALETTE = 3
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}
# the header has room for more than decoders take
MAX_WEBP_SIDE = 16384
# the bit of VP8X for transparency
WEBP_ALPHA = 0x10
NO_FRAME = (0xC4, 0xC8, 0xCC)
NO_SEGMENT = (0x01, *range(0xD0, 0xD9))


@dataclass(frozen=True, slots=True)
class ImageHead:
    """Size and kind of an image."""

    height: int  # in pixels
    width: int  # in pixels
    channels: int  # 1, 3 or 4 that an array needs to hold it: a palette has 3, grey with alpha 4
    dtype: str  # "uint8" or "uint16"
    format: str  # "jpeg", "png" or "webp"; the first two are codecs, too, "image-file" reads all
    # whether samples are the pixels as every reader shows them: no palette, no inks, 8 or 16 bits
    is_plain: bool = True


def look_at_image(blob: npt.NDArray[np.uint8]) -> ImageHead | None:
    """Return size and kind of an image file, whose header may be longer than `HEAD_BYTES`; None if unknown."""
    return read_image_head(blob[:HEAD_BYTES].tobytes()) or read_image_head(blob.tobytes())


def read_image_head(data: bytes) -> ImageHead | None:
    """Return size and kind of an image file from its first bytes; None where they do not suffice."""
    # Source: ITU-T T.81, annex B; W3C Portable Network Graphics, section 11.2.2; RFC 9649, section 2.
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


@register_codec
class ImageFileCodec(Codec):
    """JPEG, PNG and WebP files in one column; new rows are stored as PNG, so that nothing is lost.

    Args:
        feature: uint8 of height x width, or height x width x 1, 3 (RGB) or 4 (RGBA), of one size or of any. Files of
            other channels are taken for such, as by the codecs "jpeg" and "png". Option ``dct``, as of "jpeg".

    Example:
        >>> from stepwell.schema import Image
        >>> codec = ImageFileCodec(Image((None, None, 3), codec="image-file"))
        >>> row = np.frombuffer(codec.encode(np.zeros((2, 5, 3), "uint8")), np.uint8)
        >>> codec.image_size(row), codec.decode(row).shape
        ((2, 5), (2, 5, 3))

    Notes:
        As for `stepwell.codecs.jpeg.JpegCodec` and `stepwell.codecs.png.PngCodec`. WebP has no checksum, and says
        nothing by which its sides could be doubted: of images of any size they are bounded as `decoded_sizes` says.
    """

    name: ClassVar[str] = "image-file"
    option_names: ClassVar[tuple[str, ...] | None] = (JPEG_OPTION,)
    decoding_options: ClassVar[tuple[str, ...]] = (JPEG_OPTION,)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        if feature.np_dtype != np.uint8:
            raise SchemaError(
                f'codec "image-file" cannot store {feature.np_dtype.name}. Allowed: uint8. Use "png" for uint16.'
            )
        self._png = PngCodec(replace(feature, codec="png", options=()))
        import imagecodecs  # the codec "png" has seen that it is there

        self._decode_webp: Any = imagecodecs.webp_decode
        self._planes = tuple(int(size or 0) for size in feature.shape[2:])
        self._channels = (*feature.shape, 1)[2] or 1
        self._size = None if feature.is_ragged else (feature.fixed_shape[0], feature.fixed_shape[1])
        # JPEG has no alpha
        shape = feature.shape if self._channels < 4 else (*feature.shape[:2], 3)
        options = tuple(option for option in feature.options if option[0] == JPEG_OPTION)
        self._jpeg = JpegCodec(replace(feature, shape=shape, codec="jpeg", options=options))

    def encode(self, value: Any) -> bytes:
        """Return the image as a PNG file; see `Codec.encode`."""
        return self._png.encode(value)

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        out = np.empty((*self.image_size(blob), *self._planes), np.uint8)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        start = blob[:2].tobytes()
        if start == PNG_START:
            self._png.decode_into(blob, out)
        elif start != JPEG_START:
            out[...] = self._webp(blob).reshape(out.shape)
        elif self._channels == 4:
            out[..., :3], out[..., 3] = self._jpeg.decode(blob), 255
        else:
            self._jpeg.decode_into(blob, out)

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part, of JPEG files without what lies below; see `Codec.decode_crop`."""
        if blob[:2].tobytes() == JPEG_START and self._channels != 4:
            return self._jpeg.decode_crop(blob, box, size)
        return super().decode_crop(blob, box, size)

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width from the file's header; see `Codec.image_size`."""
        if self._size is not None:
            return self._size
        start = blob[:2].tobytes()
        if start == JPEG_START:
            return self._jpeg.image_size(blob)
        if start == PNG_START:
            return self._png.image_size(blob)
        head = _checked_webp_head(blob)
        row = f"a webp row of {head.height}x{head.width}"
        check_decoded_bytes(head.height * head.width * self._channels, blob.size, row)
        return head.height, head.width

    def _webp(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        head = _checked_webp_head(blob)
        if (head.height, head.width) != (self._size or (head.height, head.width)):
            raise DecodeError(
                f"webp row of {blob.size} bytes: {head.height}x{head.width}, where the feature is {self.feature.shape}."
            )
        try:
            pixels = self._decode_webp(blob, 0)
        except (ValueError, RuntimeError) as error:
            raise DecodeError(f"webp row of {blob.size} bytes: {error}.") from error
        if pixels.shape[:2] != (head.height, head.width):
            raise DecodeError(f"webp row of {blob.size} bytes: {pixels.shape}, where its header says {head}.")
        return with_channels(pixels, self._channels, np.dtype(np.uint8))


def _checked_webp_head(blob: npt.NDArray[np.uint8]) -> ImageHead:
    head = read_image_head(blob[:32].tobytes())
    if head is None or head.format != "webp":
        raise DecodeError(
            f"a row of {blob.size} bytes that begins with {blob[:8].tobytes()!r}. Allowed: JPEG, PNG and WebP files."
        )
    return head
