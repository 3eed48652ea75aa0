"""Rows as they are: text, bytes and arrays whose first dimension varies."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.options import check_option_names
from stepwell.codecs.payload import Payload
from stepwell.schema import Feature

__all__ = ["RawCodec"]


@register_codec
class RawCodec(Codec):
    """The bytes of a row, unchanged.

    A raw feature of fixed shape needs no codec, its column is a plain ``.npy``; this one stores it all the same.

    Args:
        feature: of any kind; no options.

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
