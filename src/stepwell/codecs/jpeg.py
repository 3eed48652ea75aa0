"""Camera images as JPEG, decoded by libjpeg-turbo straight into the batch."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.options import check_option_names, choice_option, int_option
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.schema import Feature

__all__ = ["JpegCodec"]

DEFAULT_QUALITY = 95
SUBSAMPLINGS = ("444", "422", "420", "440", "411", "gray")
COLORSPACES = ("YCbCr", "RGB", "Gray")
MAX_SIDE = 65500


@register_codec
class JpegCodec(Codec):
    """One JPEG file a row: uint8, lossy.

    Args:
        feature: uint8 of height x width x 3 (RGB), height x width x 1 or height x width (grey). Options: ``quality``
            1 to 100, default 95; ``subsampling`` of the colours, "420" (default), "422", "444", "440", "411" or "gray".

    Raises:
        SchemaError: another dtype or shape, or an option that is not allowed.
        MissingDependencyError: simplejpeg is not installed.

    Example:
        >>> from stepwell.schema import Image
        >>> codec = JpegCodec(Image((16, 20, 3), codec="jpeg", quality=90))
        >>> codec.decode(np.frombuffer(codec.encode(np.zeros((16, 20, 3), "uint8")), np.uint8)).shape
        (16, 20, 3)

    Notes:
        Safe for any number of threads; decoding releases the GIL. Rows of one feature begin with the same bytes: one
        that begins as the last good one did needs no second look at its header. A corrupt header is refused before
        anything is written, a row that breaks off raises. What JPEG itself cannot detect (a changed coefficient) shows
        as changed pixels; ``stepwell verify`` finds it by the segment's checksum.

    Source:
        ITU-T T.81.
    """

    name: ClassVar[str] = "jpeg"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "quality", "subsampling")
        _check_is_jpeg_image(feature)
        self._size = feature.fixed_shape[:2]
        is_grey = feature.fixed_shape[2:] != (3,)
        self._colorspace = "GRAY" if is_grey else "RGB"
        self._quality = int_option(feature, "quality", DEFAULT_QUALITY, least=1, most=100)
        choices = ("gray",) if is_grey else SUBSAMPLINGS
        self._subsampling = choice_option(feature, "subsampling", "gray" if is_grey else "420", choices)
        try:
            import simplejpeg
        except ImportError as error:
            raise MissingDependencyError.of("simplejpeg", "image") from error
        self._encode = simplejpeg.encode_jpeg
        self._decode_header = simplejpeg.decode_jpeg_header
        self._head = b""
        self._decode = simplejpeg.decode_jpeg

    def encode(self, value: Any) -> bytes:
        """Return the image as a JPEG file; see `Codec.encode`."""
        image = np.ascontiguousarray(value, dtype=np.uint8).reshape(*self._size, -1)
        encoded = self._encode(image, self._quality, colorspace=self._colorspace, colorsubsampling=self._subsampling)
        return bytes(encoded)

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        out = np.empty(self.feature.fixed_shape, np.uint8)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        head = self._head
        try:
            if not head or blob[: len(head)].tobytes() != head:
                self._check_header(blob)
            # Where rows of pixels begin at multiples of 32 bytes, as in a batch, libjpeg-turbo (AVX2) writes around
            # the cache, which takes a tenth longer than to write to an odd address and to copy.
            pixels = np.empty(out.nbytes + 1, np.uint8)[1:]
            self._decode(blob, self._colorspace, buffer=pixels)
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        out[...] = pixels.reshape(out.shape)

    def _check_header(self, blob: npt.NDArray[np.uint8]) -> None:
        """Refuse an image of another size or colour space; remember the header of one that is right."""
        height, width, colorspace, _ = self._decode_header(blob)
        if (height, width) != self._size or colorspace not in COLORSPACES:
            wanted = "x".join(map(str, self._size))
            raise DecodeError(
                f"jpeg row of {blob.size} bytes: {height}x{width} {colorspace}, where the feature is {wanted}."
            )
        self._head = _head_of(blob.tobytes())


def _head_of(image: bytes) -> bytes:
    """Return a JPEG file's bytes before its first scan, which say its size and colours; empty when they do not end."""
    place = 2
    while image[place : place + 1] == b"\xff":
        if image[place + 1 : place + 2] == b"\xda":
            return image[: place + 2]
        place += 2 + int.from_bytes(image[place + 2 : place + 4], "big")
    return b""


def _check_is_jpeg_image(feature: Feature) -> None:
    shape = feature.shape
    is_image = not feature.is_ragged and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)))
    if feature.kind not in ("image", "array") or feature.np_dtype != np.uint8 or not is_image:
        raise SchemaError(
            f'codec "jpeg" cannot store {feature.np_dtype.name} {shape}. Allowed: uint8 (height, width) or '
            '(height, width, 1 | 3). Use "png" for uint16 and for 4 channels, "zstd" for anything else.'
        )
    if not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "jpeg" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')
