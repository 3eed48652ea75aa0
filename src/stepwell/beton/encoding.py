"""Values of samples as a ``.beton`` file has them: a number in the sample's row, or a region that the row points to.

::

    value ──> Encoder.encode ──> cell, the values in the row beside a ptr: a number, an image's mode and sides
                            └──> region, bytes; None where the row has it all
    cells, ptrs, sizes ──> Encoder.fill ──> the field's part of the rows
"""

from __future__ import annotations

import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.beton.layout import JPEG_MODE, MAX_NAME_BYTES, RAW_MODE, FieldDescriptor, FieldType
from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, FormatError, MissingDependencyError, SchemaError, StepError
from stepwell.schema import Image

__all__ = [
    "JPEG_START",
    "ArrayEncoder",
    "BytesEncoder",
    "Encoder",
    "FloatEncoder",
    "ImageEncoder",
    "IntEncoder",
    "JsonEncoder",
    "Region",
    "WriteMode",
    "check_names",
    "encode_named",
]

Region = bytes | memoryview
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class Encoder(ABC):
    """How the values of a field are written."""

    has_region: ClassVar[bool] = True

    @abstractmethod
    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of a field of this kind."""

    @abstractmethod
    def encode(self, value: Any, sample: int) -> tuple[Any, Region | None]:
        """Return cell and region of a value."""

    @abstractmethod
    def fill(
        self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Write the field's part of rows."""


@dataclass(frozen=True, slots=True)
class IntEncoder(Encoder):
    """An int64 in the row."""

    has_region: ClassVar[bool] = False

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.INT, name)

    def encode(self, value: Any, sample: int) -> tuple[int, None]:
        """Return the number; see `Encoder.encode`."""
        try:
            number = operator.index(value)
        except TypeError:
            number = _whole(value)
        if not INT64_MIN <= number <= INT64_MAX:
            raise StepError(f"got {number}, which int64 cannot hold.")
        return number, None

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write the numbers; see `Encoder.fill`."""
        rows[:] = cells


@dataclass(frozen=True, slots=True)
class FloatEncoder(Encoder):
    """A float64 in the row."""

    has_region: ClassVar[bool] = False

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.FLOAT, name)

    def encode(self, value: Any, sample: int) -> tuple[float, None]:
        """Return the number; see `Encoder.encode`."""
        if type(value) is float:
            return value, None
        return float(_number(value, "a number")), None

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write the numbers; see `Encoder.fill`."""
        rows[:] = cells


@dataclass(frozen=True, slots=True)
class BytesEncoder(Encoder):
    """Bytes of any length: an array [n] of whole numbers from 0 to 255, bytes, or a text, which becomes UTF-8."""

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.BYTES, name)

    def encode(self, value: Any, sample: int) -> tuple[None, Region]:
        """Return the bytes; see `Encoder.encode`."""
        if isinstance(value, bytes | bytearray | memoryview):
            return None, memoryview(value).cast("B")
        if isinstance(value, str):
            return None, value.encode()
        found = np.asarray(_on_host(value))
        # FFCV casts whatever it gets; what is cast here is the same number afterwards
        is_whole = found.ndim == 1 and found.dtype.kind in "biuf" and bool(((found >= 0) & (found <= 255)).all())
        if not is_whole or (found.dtype.kind == "f" and bool((found % 1).any())):
            raise StepError(
                f"got {_brief(value)}. Allowed: bytes, a text, or an array of one axis of whole numbers from 0 to 255."
            )
        return None, np.ascontiguousarray(found, np.uint8).data

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write ptrs and sizes; see `Encoder.fill`."""
        rows["ptr"], rows["size"] = ptrs, sizes


@dataclass(frozen=True, slots=True)
class JsonEncoder(Encoder):
    """What JSON holds, as a text that ends with a NUL."""

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.JSON, name)

    def encode(self, value: Any, sample: int) -> tuple[None, Region]:
        """Return the text; see `Encoder.encode`."""
        try:
            return None, json.dumps(value).encode() + b"\0"
        except (TypeError, ValueError) as error:
            raise StepError(f"got what JSON does not hold: {error}.") from error

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write ptrs and sizes; see `Encoder.fill`."""
        rows["ptr"], rows["size"] = ptrs, sizes


class ArrayEncoder(Encoder):
    """Arrays of one shape and dtype."""

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike, type_id: FieldType = FieldType.NDARRAY) -> None:
        self.shape = tuple(operator.index(size) for size in shape)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.type_id = type_id
        self.num_bytes = math.prod(self.shape) * self.dtype.itemsize
        if not self.shape or min(self.shape) < 1:
            raise SchemaError(f"shape {self.shape} does not fit a .beton file. Allowed: one axis or more, none of 0.")
        try:
            self.descriptor("array").array_type()
        except FormatError as error:
            raise SchemaError(f"{self.dtype} {self.shape}: {error}") from error

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor.of_array(name, self.shape, self.dtype, self.type_id)

    def encode(self, value: Any, sample: int) -> tuple[None, Region]:
        """Return the elements; see `Encoder.encode`. As many in another shape are taken, as FFCV does."""
        found = np.asarray(_on_host(value))
        if found.size != math.prod(self.shape):
            raise StepError(f"got shape {found.shape}, the field has {self.shape}.")
        if found.dtype != self.dtype and not np.can_cast(found.dtype, self.dtype, "safe"):
            raise StepError(f"got dtype {found.dtype}, the field has {self.dtype}. Convert it, or change the field.")
        return None, np.ascontiguousarray(found, self.dtype).reshape(-1).view(np.uint8).data

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write the ptrs; see `Encoder.fill`."""
        rows[:] = ptrs


def check_names(names: Iterable[str], cure: str) -> None:
    """Refuse names of fields that a file would not keep apart: FFCV cuts them off, without a word."""
    found = list(names)
    if not found:
        raise SchemaError("no fields to write. A .beton file has at least one.")
    for name in found:
        if not isinstance(name, str) or not name.isascii() or not name or not name.isprintable():
            raise SchemaError(
                f"field name {name!r}. Allowed: 1 to {MAX_NAME_BYTES} ASCII characters. Give another name: {cure}."
            )
        if len(name) > MAX_NAME_BYTES:
            raise SchemaError(
                f"field name {name!r} has {len(name)} characters, FFCV would cut it to {name[:MAX_NAME_BYTES]!r}. "
                f"Allowed: 1 to {MAX_NAME_BYTES} ASCII characters. Give another name: {cure}."
            )
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"two fields are called {twice!r}. Give one of them another name: {cure}.")


def encode_named(encoders: Mapping[str, Encoder], values: Sequence[Any], sample: int) -> list[tuple[Any, Any]]:
    """Return cell and region of each field of a sample."""
    found = []
    for (name, encoder), value in zip(encoders.items(), values, strict=True):
        try:
            found.append(encoder.encode(value, sample))
        except StepError as error:
            raise StepError(f"field {name!r}: {error}") from error
    return found


def _whole(value: Any) -> int:
    """Return a whole number that comes as a float, or as an array of one."""
    number = _number(value, "a whole number")
    if not float(number).is_integer():
        raise StepError(f"got {_brief(value)}. Allowed: a whole number.")
    return int(number)


def _number(value: Any, allowed: str) -> Any:
    """Return the number in an array of one element, or in a tensor; a number itself is one, too."""
    found = np.asarray(_on_host(value))
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise StepError(f"got {_brief(value)}. Allowed: {allowed}.")
    return found.reshape(()).item()


def _on_host(value: Any) -> Any:
    """Return a tensor as an array; anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") and hasattr(value, "cpu") else value


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of dtype {getattr(value, 'dtype', '?')} and shape {tuple(shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


WriteMode = Literal["raw", "jpg", "smart", "proportion"]
MAX_SIDE = 65535
# a JPEG file and what begins one
JPEG_START = b"\xff\xd8"
# grey ones are shown as RGB, by FFCV too
COLORSPACES = ("YCbCr", "RGB", "Gray")


@dataclass(frozen=True, slots=True)
class ImageEncoder(Encoder):
    """RGB images, uint8 [height, width, 3], a PIL image, or the bytes of a JPEG file."""

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
