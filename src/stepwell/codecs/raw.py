"""Rows as they are: text, bytes and arrays whose first dimension varies.

The plain bytes of a row, which other codecs compress::

    fixed shape            C order, prod(shape) x itemsize bytes
    first dimension varies C order; the first dimension is the number of bytes / bytes of one entry
    image of any size      uint16 height, uint16 width, little-endian, and the pixels in C order
    text                   UTF-8
    bytes                  themselves
"""

from __future__ import annotations

import math
import struct
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, check_option_names, register_codec
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.schema import Feature

__all__ = ["Payload", "RawCodec", "bytes_of"]

SIDES = struct.Struct("<HH")
MAX_SIDE = (1 << 16) - 1


def bytes_of(out: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the memory of a C-contiguous array as uint8 [n]."""
    if not isinstance(out, np.ndarray):
        raise TypeError(
            "decode_into got a numpy scalar, a copy. Give a view of the batch: out[i, ...] instead of out[i]."
        )
    return out.reshape(-1).view(np.uint8)


class Payload:
    """Turns one row of a feature into its plain bytes and back."""

    # Keeps no state: safe for any number of threads.

    def __init__(self, feature: Feature) -> None:
        self.kind = feature.kind
        self.dtype = feature.np_dtype
        self.is_ragged, self.has_sides = feature.is_ragged, feature.is_image_of_any_size
        num_varying = 2 if self.has_sides else 1 if self.is_ragged else 0
        self.shape = cast(tuple[int, ...], feature.shape[num_varying:])
        self.entry_bytes = math.prod(self.shape) * self.dtype.itemsize
        if self.is_ragged and self.entry_bytes == 0:
            raise SchemaError(f"shape {feature.shape} has entries of no bytes. Allowed: inner sizes of 1 or more.")

    def check_size(self, num_bytes: int) -> None:
        """Raise DecodeError unless a row may have so many bytes."""
        if self.is_ragged and num_bytes % self.entry_bytes:
            raise DecodeError(
                f"a row of {num_bytes} bytes, which is no multiple of the {self.entry_bytes} of one entry."
            )
        if not self.is_ragged and num_bytes != self.entry_bytes:
            raise DecodeError(f"a row of {num_bytes} bytes, where the feature's shape has {self.entry_bytes}.")

    def pack(self, value: Any) -> bytes | npt.NDArray[np.uint8]:
        """Return a row's bytes, without a copy where the value is an array and its sizes are not stored."""
        if self.kind == "bytes":
            return bytes(value)
        if self.kind == "text":
            try:
                return str(value).encode("utf-8")
            except UnicodeEncodeError as error:
                raise StepError(
                    f"a text with a lone surrogate, U+{ord(value[error.start]):04X} at {error.start}, is not UTF-8. "
                    'Mend it first, e.g. text.encode("utf-8", "replace").decode().'
                ) from error
        array = np.ascontiguousarray(value, dtype=self.dtype)
        return _packed_image(array) if self.has_sides else array.reshape(-1).view(np.uint8)

    def unpack(self, owned: npt.NDArray[np.uint8]) -> Any:
        """Return the row of bytes that only the caller holds: arrays are views of them."""
        if self.kind == "bytes":
            return owned.tobytes()
        if self.kind == "text":
            try:
                return owned.tobytes().decode("utf-8")
            except UnicodeDecodeError as error:
                raise DecodeError(f"a text that is not UTF-8: {error}.") from error
        if self.has_sides:
            sides = self.image_size(owned)
            # of numbers of 8 bytes the first lies at an odd multiple of 4
            return np.require(np.ndarray((*sides, *self.shape), self.dtype, owned, SIDES.size), requirements="A")
        self.check_size(owned.size)
        shape = (owned.size // self.entry_bytes, *self.shape) if self.is_ragged else self.shape
        return np.ndarray(shape, self.dtype, buffer=owned)

    def image_size(self, row: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width of an image of any size."""
        height, width = SIDES.unpack_from(row.data) if row.size >= SIDES.size else (0, 0)
        num_bytes = height * width * self.entry_bytes
        if not num_bytes or row.size != SIDES.size + num_bytes:
            raise DecodeError(
                f"a row of {row.size} bytes, whose header says an image of {height}x{width}, {num_bytes} bytes."
            )
        return height, width

    def unpack_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy the bytes of a row of fixed shape into an array."""
        self.check_size(blob.size)
        bytes_of(out)[:] = blob


def _packed_image(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return an image behind its height and width."""
    height, width = image.shape[:2]
    if max(height, width) > MAX_SIDE:
        raise StepError(
            f"an image of {height}x{width}. Allowed: sides of 1 to {MAX_SIDE}. Give a fixed shape, or cut it."
        )
    packed = np.empty(SIDES.size + image.nbytes, np.uint8)
    SIDES.pack_into(packed.data, 0, height, width)
    packed[SIDES.size :] = image.reshape(-1).view(np.uint8)
    return packed


@register_codec
class RawCodec(Codec):
    """The bytes of a row, unchanged.

    A raw feature of fixed shape needs no codec, its column is a plain ``.npy``; this one stores it all the same.

    Example:
        >>> from stepwell.schema import Array
        >>> codec = RawCodec(Array((None, 2), "int8"))
        >>> codec.decode(np.frombuffer(codec.encode(np.ones((3, 2), "int8")), np.uint8)).shape
        (3, 2)

    Notes:
        Keeps no state: safe for any number of threads.
    """

    name: ClassVar[str] = "raw"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature)
        self._payload = Payload(feature)

    def encode(self, value: Any) -> bytes:
        """Return the row's bytes; see `Codec.encode`."""
        return bytes(self._payload.pack(value))

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return a copy of the row; see `Codec.decode`."""
        return self._payload.unpack(blob.copy())

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
        """Return height and width of an image; see `Codec.image_size`."""
        return self._payload.image_size(blob) if self._payload.has_sides else super().image_size(blob)

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[Any]:
        """Return a part of an image as it lies in the file, not copied; see `Codec.decode_crop`."""
        top, left, height, width = box
        part: npt.NDArray[Any] = self._payload.unpack(blob)[top : top + height, left : left + width]
        return part

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy the row into `out`; see `Codec.decode_into`."""
        self._payload.unpack_into(blob, out)
