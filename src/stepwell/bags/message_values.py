"""What features the messages of a topic make: numbers by dotted names, images as their files or pixels, texts.

::

    {"header": {...}, "position": [7 numbers], "twist": {"linear": {"x": ...}}}
                      NAME.position float64 [7]   NAME.twist.linear.x float64
    sensor_msgs/CompressedImage   the JPEG or PNG file as it is        sensor_msgs/Image   rgb8, bgr8, mono8, 16UC1, ...
    lists of messages, empty arrays, other encodings                   left out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, FormatError
from stepwell.formats.images import check_image, image_feature, image_format, image_head
from stepwell.schema import Array, Feature, Image, Text

__all__ = [
    "IMAGES",
    "LeafKinds",
    "Pixels",
    "checked",
    "encoded_feature",
    "image_of",
    "is_image",
    "leaves_of",
    "number_column",
    "pixels_of",
    "stamp_of",
]

IMAGES = ("Image", "CompressedImage")
"""Types of ``sensor_msgs`` and of Foxglove that are images."""

PACKAGES = ("sensor_msgs", "foxglove_msgs", "foxglove.")
MAX_DEPTH = 16
# names of seconds and nanoseconds: of ROS 2 and 1, and of protobuf
STAMPS = (frozenset(("sec", "secs", "seconds")), frozenset(("nanosec", "nsec", "nsecs", "nanos")))
# dtype, channels, and their order in the file: of Bayer patterns the raw mosaic
ENCODINGS: Mapping[str, tuple[str, int, Sequence[int] | None]] = {
    "rgb8": ("uint8", 3, None),
    "bgr8": ("uint8", 3, (2, 1, 0)),
    "rgba8": ("uint8", 4, None),
    "bgra8": ("uint8", 4, (2, 1, 0, 3)),
    "mono8": ("uint8", 1, None),
    "8UC1": ("uint8", 1, None),
    "8UC3": ("uint8", 3, None),
    "mono16": ("uint16", 1, None),
    "16UC1": ("uint16", 1, None),
    "32FC1": ("float32", 1, None),
    **{f"bayer_{order}8": ("uint8", 1, None) for order in ("rggb", "bggr", "gbrg", "grbg")},
}


def is_image(kind: str) -> bool:
    """Return whether messages of a type are images."""
    return kind.startswith(PACKAGES) and kind.replace(".", "/").rpartition("/")[2] in (*IMAGES, "RawImage")


def image_of(message: Mapping[str, Any]) -> bytes | None:
    """Return the JPEG, PNG or WebP file of a message; None where it holds none."""
    data = message.get("data")
    if "encoding" in message or not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        return None
    return data.tobytes() if image_format(data[:16].tobytes()) is not None else None


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image of plain pixels, as a message holds it."""

    feature: Feature
    # height, bytes of a row with its padding, bytes of a row without
    height: int
    step: int
    row_bytes: int
    order: Sequence[int] | None
    is_swapped: bool
    data: npt.NDArray[np.uint8]

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are those of the feature's row, as they lie."""
        return self.step == self.row_bytes and self.order is None and not self.is_swapped

    def array(self) -> npt.NDArray[Any]:
        """Return the pixels, [H, W, C] of an image, [H, W] of numbers."""
        rows = self.data[: self.height * self.step].reshape(self.height, self.step)[:, : self.row_bytes]
        dtype = self.feature.np_dtype
        stored = dtype.newbyteorder(">") if self.is_swapped else dtype
        found = np.ascontiguousarray(rows).view(stored).astype(dtype, copy=False).reshape(self.feature.fixed_shape)
        return found if self.order is None else np.ascontiguousarray(found[..., list(self.order)])


def pixels_of(message: Mapping[str, Any], where: str) -> Pixels:
    """Return the pixels of a message of ``sensor_msgs/Image``; FormatError for an encoding that is not read."""
    encoding, data = str(message.get("encoding")), message.get("data")
    height, width, step = (int(message.get(name, 0)) for name in ("height", "width", "step"))
    if encoding not in ENCODINGS:
        raise FormatError(f"{where}: images of encoding {encoding!r}. Read are: {', '.join(ENCODINGS)}. Leave it out.")
    name, channels, order = ENCODINGS[encoding]
    dtype = np.dtype(name)
    row_bytes = width * channels * dtype.itemsize
    if not isinstance(data, np.ndarray) or step < row_bytes or height < 1 or width < 1 or data.size < height * step:
        size = getattr(data, "size", 0)
        raise FormatError(
            f"{where}: an image of {height}x{width} {encoding} in rows of {step} bytes, of which {size} are."
        )
    is_picture = dtype == np.uint8
    feature = Image((height, width, channels)) if is_picture else Array((height, width), name)
    is_swapped = bool(message.get("is_bigendian")) and dtype.itemsize > 1
    return Pixels(feature, height, step, row_bytes, order, is_swapped, data)


def stamp_of(message: Mapping[str, Any]) -> int | None:
    """Return when a message was made, in nanoseconds: of ROS by its header, of Foxglove by its timestamp."""
    header = message.get("header")
    stamp = header.get("stamp") if isinstance(header, Mapping) else message.get("timestamp")
    if not isinstance(stamp, Mapping):
        return None
    parts = [next((stamp[name] for name in names if name in stamp), 0) for names in STAMPS]
    return int(parts[0]) * 1_000_000_000 + int(parts[1])


def leaves_of(message: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return the numbers, arrays and texts of a message by dotted names, without its header or time stamp."""
    found: dict[str, Any] = {}
    if depth > MAX_DEPTH:
        raise DecodeError(f"{prefix}: messages within messages, {MAX_DEPTH} deep.")
    for name, value in message.items():
        is_stamp = name == "timestamp" and isinstance(value, Mapping) and not STAMPS[0].isdisjoint(value)
        if not prefix and (name == "header" or is_stamp):
            continue
        if isinstance(value, Mapping):
            found |= leaves_of(value, f"{prefix}{name}.", depth + 1)
        else:
            found[f"{prefix}{name}"] = value
    return found


@dataclass(slots=True)
class LeafKinds:
    """Shapes and dtypes of the values of a leaf, of which none is kept."""

    shapes: set[Any] = field(default_factory=set)
    dtypes: set[np.dtype[Any]] = field(default_factory=set)
    count: int = 0

    def add(self, value: Any) -> None:
        """Take in one more value."""
        self.count += 1
        if isinstance(value, str):
            self.shapes.add("text")
            return
        numbers = _numbers(value)
        self.shapes.add(None if numbers is None else numbers.shape)
        if numbers is not None:
            self.dtypes.add(numbers.dtype)

    def feature(self) -> Feature | None:
        """Return the feature that holds all values: a number, an array, a text; None for what none holds."""
        if self.shapes == {"text"}:
            return Text()
        if not self.shapes.isdisjoint(("text", None)) or self.shapes in (set(), {(0,)}):
            return None
        dtype = np.result_type(*self.dtypes)
        if len(self.shapes) == 1:
            return Array(next(iter(self.shapes)), dtype)
        return Array((None,), dtype) if {len(shape) for shape in self.shapes} == {1} else None


def number_column(values: Sequence[Any], feature: Feature, where: str) -> Any:
    """Return the values of a leaf as a column: an array [n, ...], of varying lengths and texts a list."""
    if feature.kind == "text":
        return [str(value) for value in values]
    arrays = [_numbers(value) for value in values]
    if feature.is_ragged:
        return [np.asarray(array, feature.np_dtype) for array in arrays]
    wrong = next((array for array in arrays if array is None or array.shape != feature.fixed_shape), feature)
    if wrong is not feature:
        shape = None if wrong is None else wrong.shape
        raise FormatError(f"{where}: values of shape {shape}, where the first recording has {feature.fixed_shape}.")
    made: npt.NDArray[Any] = np.array(arrays, feature.np_dtype).reshape(-1, *feature.fixed_shape)
    return made


def encoded_feature(blobs: Iterable[bytes], name: str) -> Feature:
    """Return the feature that holds image files, of one size or of any."""
    return image_feature((image_head(np.frombuffer(blob, np.uint8)) for blob in blobs), name)


def checked(blob: bytes | None, feature: Feature, where: str) -> bytes:
    """Return an image file that a feature holds; FormatError for others."""
    try:
        if blob is None:
            raise DecodeError("no JPEG, PNG or WebP file, as the first message has.")
        check_image(np.frombuffer(blob, np.uint8), feature)
    except DecodeError as error:
        raise FormatError(f"{where}: {error}") from error
    return blob


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    """Return numbers as an array; None of what is none, such as a list of messages."""
    if isinstance(value, np.ndarray):
        return value
    is_list = isinstance(value, list) and value and all(isinstance(each, int | float) for each in value)
    if not is_list and not isinstance(value, np.generic | bool | int | float):
        return None
    found = np.asarray(value)
    # of integers that 64 bits do not hold it is objects
    return found if found.dtype.kind in "biuf" else None
