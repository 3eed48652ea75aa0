"""Image files of several formats in one column, each row as it came: JPEG, PNG and WebP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.image_heads import ImageHead, read_image_head
from stepwell.codecs.jpeg import JpegCodec
from stepwell.codecs.png import PngCodec
from stepwell.codecs.png_pixels import with_channels
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Feature

__all__ = ["ImageFileCodec"]

JPEG_START, PNG_START = b"\xff\xd8", b"\x89P"
JPEG_OPTION = "dct"


@register_codec
class ImageFileCodec(Codec):
    """JPEG, PNG and WebP files in one column; new rows are stored as PNG, so that nothing is lost.

    Args:
        feature: uint8 of height x width, or height x width x 1, 3 (RGB) or 4 (RGBA), of one size or of any. Files of
            other channels are taken for such, as by the codecs "jpeg" and "png". Option ``dct``, as of "jpeg".

    Raises:
        SchemaError: another dtype or shape, or an option that is not allowed.
        MissingDependencyError: imagecodecs or simplejpeg is not installed.

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
        """Return height and width as the file's head tells them; see `Codec.image_size`."""
        if self._size is not None:
            return self._size
        start = blob[:2].tobytes()
        if start == JPEG_START:
            return self._jpeg.image_size(blob)
        if start == PNG_START:
            return self._png.image_size(blob)
        head = _webp_head(blob)
        told = f"a webp row of {head.height}x{head.width}"
        check_decoded_bytes(head.height * head.width * self._channels, blob.size, told)
        return head.height, head.width

    def _webp(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        head = _webp_head(blob)
        if (head.height, head.width) != (self._size or (head.height, head.width)):
            raise DecodeError(
                f"webp row of {blob.size} bytes: {head.height}x{head.width}, where the feature is {self.feature.shape}."
            )
        try:
            pixels = self._decode_webp(blob, 0)
        except (ValueError, RuntimeError) as error:
            raise DecodeError(f"webp row of {blob.size} bytes: {error}.") from error
        if pixels.shape[:2] != (head.height, head.width):
            raise DecodeError(f"webp row of {blob.size} bytes: {pixels.shape}, where its header tells of {head}.")
        return with_channels(pixels, self._channels, np.dtype(np.uint8))


def _webp_head(blob: npt.NDArray[np.uint8]) -> ImageHead:
    head = read_image_head(blob[:32].tobytes())
    if head is None or head.format != "webp":
        raise DecodeError(
            f"a row of {blob.size} bytes that begins with {blob[:8].tobytes()!r}. Allowed: JPEG, PNG and WebP files."
        )
    return head
