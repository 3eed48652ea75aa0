"""Images without loss as PNG files: uint8 and uint16."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.options import check_option_names, int_option
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.schema import Feature

__all__ = ["PngCodec"]

DEFAULT_LEVEL = 1
MAX_SIDE = 1_000_000
COLOR_TYPES = {1: 0, 3: 2, 4: 6}
CHANNELS = tuple(COLOR_TYPES)
SIGNATURE = b"\x89PNG\r\n\x1a\n"
# signature; length and name of the first chunk; width, height, bits, colour type, compression, filter, interlace
HEADER = struct.Struct(">8sI4sIIBBBBB")


@register_codec
class PngCodec(Codec):
    r"""One PNG file a row: uint8 or uint16, lossless.

    Args:
        feature: uint8 or uint16 of height x width, or height x width x 1, 3 (RGB) or 4 (RGBA). Options: ``level`` of
            compression, 0 (none) to 9 (smallest), default 1: higher ones cost much time and gain little.

    Raises:
        SchemaError: another dtype or shape, or an option that is not allowed.
        MissingDependencyError: imagecodecs is not installed.

    Example:
        >>> from stepwell.schema import Image
        >>> codec = PngCodec(Image((4, 5), "uint16", codec="png"))
        >>> codec.encode(np.zeros((4, 5), "uint16"))[:4]
        b'\x89PNG'

    Notes:
        Keeps no state: safe for any number of threads; decoding releases the GIL. A header that is not the feature's is
        refused before anything is written.

    Source:
        W3C Portable Network Graphics, second edition, sections 5 and 11.2.2.
    """

    name: ClassVar[str] = "png"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "level")
        self._level = int_option(feature, "level", DEFAULT_LEVEL, least=0, most=9)
        _check_is_png_image(feature)
        height, width, channels = (*feature.fixed_shape, 1)[:3]
        self._image_shape = (height, width) if channels == 1 else (height, width, channels)
        bits = 8 * feature.np_dtype.itemsize
        self._header = HEADER.pack(SIGNATURE, 13, b"IHDR", width, height, bits, COLOR_TYPES[channels], 0, 0, 0)
        try:
            import imagecodecs
        except ImportError as error:
            raise MissingDependencyError.of("imagecodecs", "image") from error
        self._encode: Any = imagecodecs.png_encode
        self._decode: Any = imagecodecs.png_decode

    def encode(self, value: Any) -> bytes:
        """Return the image as a PNG file; see `Codec.encode`."""
        image = np.ascontiguousarray(value, dtype=self.feature.np_dtype).reshape(self._image_shape)
        return bytes(self._encode(image, level=self._level))

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the image; see `Codec.decode`."""
        out = np.empty(self.feature.fixed_shape, self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        if blob[: HEADER.size].tobytes() != self._header:
            raise DecodeError(f"png row of {blob.size} bytes: its header is not that of a {self.feature} image.")
        try:
            self._decode(blob, out=out.reshape(self._image_shape))
        except (ValueError, RuntimeError) as error:
            raise DecodeError(f"png row of {blob.size} bytes: {error}.") from error


def _check_is_png_image(feature: Feature) -> None:
    shape, dtype = feature.shape, feature.np_dtype
    is_image = not feature.is_ragged and (len(shape) == 2 or (len(shape) == 3 and shape[2] in CHANNELS))
    if feature.kind not in ("image", "array") or dtype not in (np.uint8, np.uint16) or not is_image:
        raise SchemaError(
            f'codec "png" cannot store {dtype.name} {shape}. Allowed: uint8 and uint16, (height, width) or '
            '(height, width, 1 | 3 | 4). Use codec="zstd" for floats and anything else: lossless, any dtype and shape.'
        )
    if not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "png" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')
