"""Rows compressed without loss by LZ4: larger than by Zstandard, and about twice as fast to read."""

from __future__ import annotations

import struct
import zlib
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.compression import Lz4Compressor
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.options import check_option_names, int_option
from stepwell.codecs.payload import Payload, bytes_of
from stepwell.errors import DecodeError
from stepwell.schema import Feature

__all__ = ["Lz4Codec"]

# CRC-32 of all that follows; bytes of the row
HEADER = struct.Struct("<IQ")
CHECKSUM_BYTES = 4
# LZ4 spends a byte on at most so many that are alike
MAX_RATIO = 255


@register_codec
class Lz4Codec(Codec):
    """One LZ4 block a row, behind a checksum and the row's size.

    Args:
        feature: of any kind, dtype and shape. Options: ``level`` 0 (default, fastest) to 12 (smallest, slow to write).

    Raises:
        SchemaError: an option that is not allowed.
        MissingDependencyError: lz4 is not installed.

    Example:
        >>> from stepwell.schema import Image
        >>> codec, screen = Lz4Codec(Image((84, 84), codec="lz4")), np.full((84, 84), 7, "uint8")
        >>> len(codec.encode(screen)) < 60
        True

    Notes:
        Keeps no state: safe for any number of threads; what is heavy releases the GIL. A size in a corrupt header is
        never allocated.

    Source:
        LZ4 block format description, 2024.
    """

    name: ClassVar[str] = "lz4"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "level")
        least, most, usual = Lz4Compressor.levels
        self._compressor = Lz4Compressor(int_option(feature, "level", usual, least=least, most=most))
        self._payload = Payload(feature)

    def encode(self, value: Any) -> bytes:
        """Return the row behind its header; see `Codec.encode`."""
        content = self._payload.pack(value)
        sized = HEADER.pack(0, len(content))[CHECKSUM_BYTES:] + self._compressor.compress(content)
        return zlib.crc32(sized).to_bytes(CHECKSUM_BYTES, "little") + sized

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return the row; see `Codec.decode`."""
        num_bytes = _content_size(blob)
        if self.feature.is_ragged:
            check_decoded_bytes(num_bytes, blob.size, "an lz4 row")
        else:
            self._payload.check_size(num_bytes)
        owned = np.empty(num_bytes, np.uint8)
        self._compressor.decompress(blob[HEADER.size :], owned)
        return self._payload.unpack(owned)

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decompress the row into `out`; see `Codec.decode_into`."""
        self._payload.check_size(_content_size(blob))
        self._compressor.decompress(blob[HEADER.size :], bytes_of(out))


def _content_size(blob: npt.NDArray[np.uint8]) -> int:
    """Return the size that the header states, once it is known that the row is whole and can hold so much."""
    if blob.size < HEADER.size:
        raise DecodeError(f"lz4 row of {blob.size} bytes: it is cut off.")
    checksum, size = HEADER.unpack_from(blob.data)
    if checksum != zlib.crc32(blob.data[CHECKSUM_BYTES:]):
        raise DecodeError(f"lz4 row of {blob.size} bytes: its checksum is wrong.")
    if size > MAX_RATIO * (blob.size - HEADER.size):
        raise DecodeError(f"lz4 row of {blob.size} bytes: its header states {size} bytes, which it cannot hold.")
    return int(size)
