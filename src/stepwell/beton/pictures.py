"""Images as a ``.beton`` file has them: JPEG files or plain pixels, made smaller where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import Encoder, Region
from stepwell.beton.layout import JPEG_MODE, RAW_MODE, FieldDescriptor, FieldType
from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError, StepError
from stepwell.schema import Image

__all__ = ["JPEG_START", "ImageEncoder", "WriteMode"]

WriteMode = Literal["raw", "jpg", "smart", "proportion"]
MAX_SIDE = 65535
# a JPEG file and what begins one
JPEG_START = b"\xff\xd8"
# grey ones are shown as RGB, by FFCV too
COLORSPACES = ("YCbCr", "RGB", "Gray")


@dataclass(frozen=True, slots=True)
class ImageEncoder(Encoder):
    """RGB images, uint8 [height, width, 3], a PIL image, or the bytes of a JPEG file.

    Args:
        write_mode: "raw" (pixels); "jpg"; "smart" (JPEG where the pixels take more than ``smart_threshold`` bytes);
            "proportion" (JPEG of a part of the images, drawn by the number of the sample).
        max_resolution: the longest side; larger images become smaller, by the mean of what a pixel covers.
        smart_threshold: in bytes; None: nothing is large.
        jpeg_quality: 1 to 100.
        compress_probability: of JPEG, with "proportion".

    Raises:
        SchemaError: an option that is not allowed.
        MissingDependencyError: simplejpeg is not installed, and JPEG is asked for.

    Notes:
        A JPEG file goes over as it is wherever it would be written as JPEG and is small enough; one of inks (CMYK),
        which FFCV does not decode, as RGB. JPEG that is made is 4:2:0.
    """

    write_mode: WriteMode = "raw"
    max_resolution: int | None = None
    smart_threshold: int | None = None
    jpeg_quality: int = 90
    compress_probability: float = 0.5

    def __post_init__(self) -> None:
        if self.write_mode not in get_args(WriteMode):
            raise SchemaError(f"write_mode={self.write_mode!r}. Allowed: {', '.join(get_args(WriteMode))}.")
        if self.max_resolution is not None and self.max_resolution < 1:
            raise SchemaError(f"max_resolution={self.max_resolution}. Allowed: 1 and more, or None.")
        if not 1 <= self.jpeg_quality <= 100:
            raise SchemaError(f"jpeg_quality={self.jpeg_quality}. Allowed: 1 to 100.")
        if not 0 <= self.compress_probability <= 1:
            raise SchemaError(f"compress_probability={self.compress_probability}. Allowed: 0 to 1.")
        if self.write_mode != "raw":
            _simplejpeg()

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.IMAGE, name)

    def encode(self, value: Any, sample: int) -> tuple[tuple[int, int, int], Region]:
        """Return (mode, width, height) and the file or the pixels; see `Encoder.encode`."""
        is_file = isinstance(value, bytes | bytearray | memoryview)
        if is_file:
            height, width, has_inks = _file_head(value)
            if has_inks:
                value, is_file = _mixed(value), False
        else:
            height, width = _checked(value := np.asarray(value))
        small = self._small_sides(height, width)
        mode = self._mode(small[0] * small[1] * 3, sample)
        if is_file and mode == JPEG_MODE and small == (height, width):
            return (mode, width, height), memoryview(value).cast("B")
        pixels = np.ascontiguousarray(_decoded(value) if is_file else value)
        if small != (height, width):
            pixels = _resized(pixels, small)
        region = self._jpeg(pixels) if mode == JPEG_MODE else pixels.reshape(-1).data
        return (mode, small[1], small[0]), region

    def fill(
        self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Write mode, sides and ptrs; see `Encoder.fill`."""
        rows["mode"], rows["width"], rows["height"] = np.array(cells, np.int64).reshape(-1, 3).T
        rows["ptr"] = ptrs

    def _mode(self, num_bytes: int, sample: int) -> int:
        if self.write_mode == "smart":
            is_jpeg = self.smart_threshold is not None and num_bytes > self.smart_threshold
        elif self.write_mode == "proportion":
            is_jpeg = bool(np.random.default_rng((90, sample)).random() < self.compress_probability)
        else:
            is_jpeg = self.write_mode == "jpg"
        return JPEG_MODE if is_jpeg else RAW_MODE

    def _small_sides(self, height: int, width: int) -> tuple[int, int]:
        longest = max(height, width)
        if self.max_resolution is None or longest <= self.max_resolution:
            return height, width
        ratio = self.max_resolution / longest
        return max(1, int(height * ratio)), max(1, int(width * ratio))

    def _jpeg(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        encoded: bytes = _simplejpeg().encode_jpeg(pixels, self.jpeg_quality, "RGB", "420", False)
        return encoded


def _checked(image: npt.NDArray[Any]) -> tuple[int, int]:
    """Return height and width of an image; StepError when it is none."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise StepError(
            f"got dtype {image.dtype} and shape {image.shape}. Allowed: RGB images, uint8 [height, width, 3]; "
            'of a PIL image, image.convert("RGB").'
        )
    height, width = image.shape[:2]
    if max(height, width) > MAX_SIDE:
        raise StepError(f"got an image of {width} x {height}. Allowed: sides of at most {MAX_SIDE}.")
    return height, width


def _file_head(data: Any) -> tuple[int, int, bool]:
    """Return height and width of a JPEG file, and whether it has inks; StepError when it is none."""
    if bytes(data[:2]) != JPEG_START:
        raise StepError(f"got {len(data)} bytes that are no JPEG file. Decode them first.")
    try:
        height, width, colorspace, _ = _simplejpeg().decode_jpeg_header(data)
    except ValueError as error:
        raise StepError(f"got a JPEG file that cannot be read: {error}.") from error
    return int(height), int(width), colorspace not in COLORSPACES


def _mixed(data: Any) -> npt.NDArray[np.uint8]:
    """Return RGB of a JPEG file of inks, which FFCV does not decode."""
    try:
        found: npt.NDArray[np.uint8] = make_codec(Image((None, None, 3), codec="jpeg")).decode(
            np.frombuffer(data, np.uint8)
        )
    except DecodeError as error:
        raise StepError(f"got a JPEG file that cannot be read: {error}") from error
    return found


def _decoded(data: Any) -> npt.NDArray[np.uint8]:
    try:
        found: npt.NDArray[np.uint8] = _simplejpeg().decode_jpeg(data, "RGB")
    except ValueError as error:
        raise StepError(f"got a JPEG file that cannot be read: {error}.") from error
    return found


def _resized(pixels: npt.NDArray[np.uint8], sides: tuple[int, int]) -> npt.NDArray[np.uint8]:
    from stepwell.transforms.cropping_kernels import AREA, resize_bytes

    out = np.empty((1, *sides, 3), np.uint8)
    box = np.array([[0, 0, *pixels.shape[:2]]], np.int64)
    address = np.array([pixels.ctypes.data], np.int64)
    resize_bytes(address, pixels.shape, box, np.zeros(1, np.uint8), AREA, out)
    found: npt.NDArray[np.uint8] = out[0]
    return found


def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingDependencyError.of("simplejpeg", "image") from error
    return simplejpeg
