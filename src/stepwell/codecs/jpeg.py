"""Camera images as JPEG, decoded by libjpeg-turbo straight into the batch."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.jpeg_headers import Header, Part
from stepwell.codecs.jpeg_tiles import with_tiles
from stepwell.codecs.options import check_option_names, choice_option, int_option
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError, StepError
from stepwell.schema import Feature

__all__ = ["JpegCodec"]

DEFAULT_QUALITY = 95
SUBSAMPLINGS = ("444", "422", "420", "440", "411", "gray")
TRANSFORMS = ("exact", "fast")
COLORSPACES = ("YCbCr", "RGB", "Gray")
# cyan, magenta, yellow and black: read as RGB
INKS = ("CMYK", "YCCK")
MAX_SIDE = 65500
# a block of 8 x 8 pixels takes a bit at least
MAX_PIXELS_A_BYTE = 512
# of the scales that libjpeg-turbo offers, those that it has SIMD code for: others take longer than the whole image
SHRINKS = (8, 4, 2)
END_OF_IMAGE = b"\xff\xd9"
# libjpeg's first complaint, when rows of blocks are left over after those that the header promised
LEFT_OVER = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")


@register_codec
class JpegCodec(Codec):
    """One JPEG file a row: uint8, lossy.

    Args:
        feature: uint8 of height x width x 3 (RGB), height x width x 1 or height x width (grey), of one size or of any.
            Rows of grey files and of inks (CMYK) are taken for RGB, those of colours for grey. Options: ``quality``
            1 to 100, default 95; ``subsampling`` of the colours, "420" (default), "422", "444", "440", "411" or "gray";
            ``tile`` 0 (default) or the width in pixels of tiles that crops are decoded by: a random resized crop then
            takes about two thirds of the time, the file 1 to 2 % more bytes, and writing a row twice as long or more;
            ``dct``, how rows are decoded: "exact" (default) or "fast", libjpeg-turbo's less precise transform, whose
            pixels are FFCV's.

    Raises:
        SchemaError: another dtype or shape, or an option that is not allowed.
        MissingDependencyError: simplejpeg is not installed.

    Example:
        >>> from stepwell.schema import Image
        >>> codec = JpegCodec(Image((16, 20, 3), codec="jpeg", quality=90))
        >>> codec.decode(np.frombuffer(codec.encode(np.zeros((16, 20, 3), "uint8")), np.uint8)).shape
        (16, 20, 3)

    Notes:
        Safe for any number of threads; decoding releases the GIL. Of a crop what lies below it is not decoded, and it
        is decoded at 1/2, 1/4 or 1/8 where that is enough; a file of inks is always decoded whole. Rows of one size
        begin with the same bytes: one that begins as the last good one did needs no second look at its header. A
        corrupt header is refused before anything is written, or memory asked for that its row cannot fill; a row that
        breaks off raises. What JPEG itself cannot detect (a changed coefficient) shows as changed pixels; ``stepwell
        verify`` finds it by the segment's checksum.

    Source:
        ITU-T T.81.
    """

    name: ClassVar[str] = "jpeg"
    decoding_options: ClassVar[tuple[str, ...]] = ("dct",)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "quality", "subsampling", "tile", "dct")
        _check_is_jpeg_image(feature)
        self._size = None if feature.is_ragged else (feature.fixed_shape[0], feature.fixed_shape[1])
        self._channels = tuple(int(size or 0) for size in feature.shape[2:])
        is_grey = self._channels != (3,)
        self._colorspace = "GRAY" if is_grey else "RGB"
        self._quality = int_option(feature, "quality", DEFAULT_QUALITY, least=1, most=100)
        self._tile = int_option(feature, "tile", 0, least=0, most=MAX_SIDE)
        choices = ("gray",) if is_grey else SUBSAMPLINGS
        self._subsampling = choice_option(feature, "subsampling", "gray" if is_grey else "420", choices)
        try:
            import simplejpeg
        except ImportError as error:
            raise MissingDependencyError.of("simplejpeg", "image") from error
        self._encode = simplejpeg.encode_jpeg
        self._decode_header = simplejpeg.decode_jpeg_header
        self._colorspaces = COLORSPACES if is_grey else COLORSPACES + INKS
        # of the last row: its header, height and width, and whether it has inks
        self._known = Header(b""), (0, 0), False
        is_fast = choice_option(feature, "dct", TRANSFORMS[0], TRANSFORMS) == "fast"
        self._decode = partial(simplejpeg.decode_jpeg, fastdct=True) if is_fast else simplejpeg.decode_jpeg

    def encode(self, value: Any) -> bytes:
        """Return the image as a JPEG file; see `Codec.encode`."""
        image = np.ascontiguousarray(value, dtype=np.uint8)
        if max(image.shape[:2]) > MAX_SIDE:
            raise StepError(
                f"an image of {image.shape[0]}x{image.shape[1]}. Allowed as JPEG: sides of 1 to {MAX_SIDE}."
            )
        image = image.reshape(*image.shape[:2], -1)
        encoded = self._encode(image, self._quality, colorspace=self._colorspace, colorsubsampling=self._subsampling)
        return with_tiles(bytes(encoded), self._tile) if self._tile else bytes(encoded)

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        out = np.empty((*self.image_size(blob), *self._channels), np.uint8)
        self.decode_into(blob, out)
        return out

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width, of images of any size as the header tells them; see `Codec.image_size`."""
        if self._size is not None:
            return self._size
        try:
            return self._header_of(blob)[1]
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        try:
            header, _, has_inks = self._header_of(blob)
            if has_inks:
                out[...] = self._decode_inks(blob, header)
                return
            # Where rows of pixels begin at multiples of 32 bytes, as in a batch, libjpeg-turbo (AVX2) writes around
            # the cache, which takes a tenth longer than to write to an odd address and to copy.
            if out.ctypes.data % 2:
                self._decode(blob, self._colorspace, buffer=out)
                return
            pixels = np.empty(out.nbytes + 1, np.uint8)[1:]
            self._decode(blob, self._colorspace, buffer=pixels)
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        out[...] = pixels.reshape(out.shape)

    def check(self, blob: npt.NDArray[np.uint8]) -> None:
        """Look at header and end of a file, and decode one that has others; see `Codec.check`."""
        try:
            is_whole = not self._header_of(blob)[2] and blob[-2:].tobytes() == END_OF_IMAGE
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        if not is_whole:
            super().check(blob)

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part, without what lies below, and tiles beside it; see `Codec.decode_crop`.

        Equal to the part of the whole image where it is not smaller than ``box``; else at a scale of 1/2, 1/4 or 1/8,
        its edges at the nearest pixels of that scale.
        """
        top, left, height, width = box
        shrink = next((s for s in SHRINKS if height >= s * size[0] and width >= s * size[1]), 1)
        # colours at an edge are interpolated with those of the pixel beyond; edges are rounded at a smaller scale
        margin = 1 if shrink == 1 else 2 * shrink
        needed = (top - margin, left - margin, height + 2 * margin, width + 2 * margin)
        try:
            header, whole, has_inks = self._header_of(blob)
            if has_inks:
                return self._decode_inks(blob, header)[top : top + height, left : left + width]
            part = header.part_of(blob, whole, needed)
            pixels = self._decode_part(part, shrink)
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        rows, columns = (
            slice((start + shrink // 2) // shrink, (start + length + shrink // 2) // shrink)
            for start, length in ((top - part.top, height), (left - part.left, width))
        )
        cut = pixels[rows, columns]
        return cut.reshape(*cut.shape[:2], *self._channels)

    def _decode_inks(self, blob: npt.NDArray[np.uint8], header: Header) -> npt.NDArray[np.uint8]:
        """Return RGB of a file of inks, as TensorFlow mixes them; raise ValueError."""
        inks: npt.NDArray[np.uint16] = self._decode(blob, "CMYK").astype(np.uint16)
        if not header.is_adobes:
            inks = 255 - inks
        mixed: npt.NDArray[np.uint8] = (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
        return mixed

    def _decode_part(self, part: Part, shrink: int) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part of the image at 1 / `shrink`; raise ValueError."""
        shape = (-(-part.height // shrink), -(-part.width // shrink), 1 if self._colorspace == "GRAY" else 3)
        memory = np.empty(shape[0] * shape[1] * shape[2] + 1, np.uint8)[1:]
        least = {"min_height": shape[0], "min_width": shape[1], "min_factor": shrink} if shrink > 1 else {}
        try:
            self._decode(part.file, self._colorspace, buffer=memory, **least)
        except ValueError as error:
            if not part.is_open or not LEFT_OVER.fullmatch(str(error)):
                raise
        return memory.reshape(shape)

    def _header_of(self, blob: npt.NDArray[np.uint8]) -> tuple[Header, tuple[int, int], bool]:
        """Return header, height and width, and whether it has inks, such as the feature may have; remember them.

        Raises:
            ValueError: no header of a JPEG file, or one that tells of other sizes or colours.
        """
        known = self._known
        head = known[0].head
        if head and blob[: len(head)].tobytes() == head and (self._size or _may_hold(blob, known[1])):
            return known
        height, width, colorspace, _ = self._decode_header(blob)
        size = height, width
        if size != (self._size or size) or colorspace not in self._colorspaces:
            wanted = "x".join(map(str, self._size or "??"))
            raise ValueError(
                f"{height}x{width} {colorspace}, where the feature is {wanted} of {', '.join(self._colorspaces)}"
            )
        if self._size is None and not _may_hold(blob, size):
            raise ValueError(f"its header tells of {height}x{width}, which it cannot hold")
        if self._size is None:
            num_bytes = height * width * (1 if self._colorspace == "GRAY" else 3)
            check_decoded_bytes(num_bytes, blob.size, f"{height}x{width} pixels")
        self._known = known = Header.of(blob.tobytes()), size, colorspace in INKS
        return known


def _may_hold(blob: npt.NDArray[np.uint8], size: tuple[int, int]) -> bool:
    """Whether a file may have so many pixels: memory for what a corrupt header tells is not to be asked for."""
    return size[0] * size[1] <= MAX_PIXELS_A_BYTE * blob.size


def _check_is_jpeg_image(feature: Feature) -> None:
    shape = feature.shape
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    is_image &= not feature.is_ragged or feature.is_image_of_any_size
    if feature.kind not in ("image", "array") or feature.np_dtype != np.uint8 or not is_image:
        raise SchemaError(
            f'codec "jpeg" cannot store {feature.np_dtype.name} {shape}. Allowed: uint8 (height, width) or '
            '(height, width, 1 | 3). Use "png" for uint16 and for 4 channels, "zstd" for anything else.'
        )
    if not feature.is_ragged and not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "jpeg" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')
