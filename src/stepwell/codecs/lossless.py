"""Rows compressed without loss, by Zstandard or LZ4: any kind, dtype and shape.

::

    "zstd"    one Zstandard frame, with its size and a checksum     small
    "lz4"     CRC-32, size and one LZ4 block                        larger, about twice as fast to read
    "delta"   groups of rows: the compressors alone, see `stepwell.codecs.delta`
"""

from __future__ import annotations

import struct
import threading
import zlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, check_option_names, int_option, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.raw import Payload, bytes_of
from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.schema import Feature

__all__ = ["COMPRESSORS", "Compressor", "Lz4Codec", "Lz4Compressor", "ZstdCodec", "ZstdCompressor"]

Bytes = npt.NDArray[np.uint8]

CHECKSUM_BYTES = 4
DEFAULT_ZSTD_LEVEL = 3
MAGIC = b"\x28\xb5\x2f\xfd"
MAX_BLOCK_BYTES = 128 << 10
RAW_BLOCK, RLE_BLOCK, RESERVED_BLOCK = 0, 1, 3
# of an LZ4 row: CRC-32 of all that follows; bytes of the row
LZ4_HEADER = struct.Struct("<IQ")
# LZ4 spends a byte on at most so many that are alike
MAX_LZ4_RATIO = 255


class Compressor(ABC):
    """Compress bytes at one level; safe for many threads at once, and both ways release the GIL."""

    # the lowest, the highest and the default
    levels: ClassVar[tuple[int, int, int]]

    def __init__(self, level: int) -> None:
        self._level = level

    @abstractmethod
    def compress(self, data: bytes | Bytes) -> bytes:
        """Return the data, smaller where it can be."""

    @abstractmethod
    def decompress(self, data: Bytes, out: Bytes) -> None:
        """Fill `out`, which has the size of what was compressed; a DecodeError may leave it partly written."""


class ZstdCompressor(Compressor):
    """Zstandard (RFC 8878); a sealed frame has its size and a checksum in it, others are for rows that store both."""

    levels = (1, 22, 1)

    def __init__(self, level: int, *, sealed: bool = False) -> None:
        super().__init__(level)
        try:
            import zstandard
        except ImportError as error:
            raise MissingDependencyError.of("zstandard", "zstd") from error
        self._zstandard: Any = zstandard
        self._options = {"write_checksum": sealed, "write_content_size": sealed}
        self._contexts = threading.local()

    def compress(self, data: bytes | Bytes) -> bytes:
        """Return one frame."""
        try:
            compressor = self._contexts.compressor
        except AttributeError:
            compressor = self._zstandard.ZstdCompressor(level=self._level, **self._options)
            self._contexts.compressor = compressor
        return bytes(compressor.compress(data))

    def decompress(self, data: Bytes, out: Bytes) -> None:
        """Fill `out` from one frame."""
        try:
            decompressor = self._contexts.decompressor
        except AttributeError:
            decompressor = self._contexts.decompressor = self._zstandard.ZstdDecompressor()
        try:
            # never allocates the size that the frame states; an empty row needs room for a byte, or no checksum is read
            written = decompressor.stream_reader(data).readinto(out if out.size else np.empty(1, np.uint8))
        except self._zstandard.ZstdError as error:
            raise DecodeError(f"{data.size} bytes of Zstandard: {error}.") from error
        if written != out.size:
            raise DecodeError(f"{data.size} bytes of Zstandard: {written} bytes came out of them, not {out.size}.")

    def frame_header(self, data: Bytes) -> tuple[Any, int]:
        """Return the fields of a frame's header, and its size; a ValueError where it has none."""
        try:
            return self._zstandard.get_frame_parameters(data), self._zstandard.frame_header_size(data)
        except self._zstandard.ZstdError as error:
            raise ValueError(str(error)) from error


class Lz4Compressor(Compressor):
    """LZ4 (block format): results half as large again as Zstandard's, decompressed about twice as fast."""

    levels = (0, 12, 0)

    def __init__(self, level: int) -> None:
        super().__init__(level)
        try:
            import lz4.block
        except ImportError as error:
            raise MissingDependencyError.of("lz4", "lz4") from error
        self._block: Any = lz4.block

    def compress(self, data: bytes | Bytes) -> bytes:
        """Return one block."""
        options = {"mode": "high_compression", "compression": self._level} if self._level else {}
        return bytes(self._block.compress(data, store_size=False, **options))

    def decompress(self, data: Bytes, out: Bytes) -> None:
        """Fill `out` from one block."""
        try:
            content = self._block.decompress(data, uncompressed_size=out.size)
        except (self._block.LZ4BlockError, ValueError) as error:
            raise DecodeError(f"{data.size} bytes of LZ4: {error}.") from error
        if len(content) != out.size:
            raise DecodeError(f"{data.size} bytes of LZ4: {len(content)} bytes came out of them, not {out.size}.")
        out[:] = np.frombuffer(content, np.uint8)


COMPRESSORS: dict[Literal["zstd", "lz4"], type[Compressor]] = {"zstd": ZstdCompressor, "lz4": Lz4Compressor}


@register_codec
class ZstdCodec(Codec):
    """One Zstandard frame a row, with its size and a checksum.

    Example:
        >>> from stepwell.schema import Image
        >>> codec, depth = ZstdCodec(Image((48, 64), "uint16", codec="zstd")), np.full((48, 64), 1500, "uint16")
        >>> len(codec.encode(depth)) < 50
        True

    Notes:
        Safe for any number of threads: each has its own contexts, because those of zstandard are not shared. Decoding
        releases the GIL and writes straight into the batch. A size in a corrupt header is never allocated: that of a
        fixed shape is known, others are bounded by what the blocks of the frame can hold.

    Source:
        RFC 8878, section 3.1.1 (frame header, block header).
    """

    name: ClassVar[str] = "zstd"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "level")
        level = int_option(feature, "level", DEFAULT_ZSTD_LEVEL, least=1, most=22)
        self._compressor = ZstdCompressor(level, sealed=True)
        self._payload = Payload(feature)

    def encode(self, value: Any) -> bytes:
        """Return the row as one frame; see `Codec.encode`."""
        return self._compressor.compress(self._payload.pack(value))

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return the row; see `Codec.decode`."""
        owned = np.empty(self._content_size(blob), np.uint8)
        self._compressor.decompress(blob, owned)
        return self._payload.unpack(owned)

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decompress the row into `out`; see `Codec.decode_into`."""
        self._payload.check_size(self._content_size(blob))
        self._compressor.decompress(blob, bytes_of(out))

    def _content_size(self, blob: npt.NDArray[np.uint8]) -> int:
        """Return the size that the header states, once it is known that the frame is whole and can hold so much."""
        try:
            header, start = self._compressor.frame_header(blob)
        except ValueError as error:
            raise DecodeError(f"zstd row of {blob.size} bytes: {error}.") from error
        if blob[:4].tobytes() != MAGIC or not header.has_checksum:
            raise DecodeError(f"zstd row of {blob.size} bytes: not a Zstandard frame with a checksum.")
        end, capacity = _walk_blocks(blob, start)
        if end + CHECKSUM_BYTES != blob.size:
            raise DecodeError(f"zstd row of {blob.size} bytes: the frame is cut off or followed by other bytes.")
        if header.content_size > capacity:
            raise DecodeError(
                f"zstd row of {blob.size} bytes: its header states {header.content_size} bytes, "
                f"its blocks hold {capacity} at most."
            )
        if self.feature.is_ragged:
            check_decoded_bytes(header.content_size, blob.size, "a zstd row")
        else:
            self._payload.check_size(header.content_size)
        return int(header.content_size)


def _walk_blocks(blob: npt.NDArray[np.uint8], position: int) -> tuple[int, int]:
    """Return where the frame's blocks end, and the most bytes that they can hold."""
    capacity, is_last = 0, False
    while not is_last:
        header = blob[position : position + 3].tobytes()
        if len(header) < 3:
            raise DecodeError(f"zstd row of {blob.size} bytes: the frame is cut off.")
        fields = int.from_bytes(header, "little")
        is_last, kind, size = bool(fields & 1), fields >> 1 & 3, fields >> 3
        if kind == RESERVED_BLOCK:
            raise DecodeError(f"zstd row of {blob.size} bytes: a block of an unknown kind at byte {position}.")
        capacity += size if kind in (RAW_BLOCK, RLE_BLOCK) else MAX_BLOCK_BYTES
        position += 3 + (1 if kind == RLE_BLOCK else size)
    return position, capacity


@register_codec
class Lz4Codec(Codec):
    """One LZ4 block a row, behind a checksum and the row's size.

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
        sized = LZ4_HEADER.pack(0, len(content))[CHECKSUM_BYTES:] + self._compressor.compress(content)
        return zlib.crc32(sized).to_bytes(CHECKSUM_BYTES, "little") + sized

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return the row; see `Codec.decode`."""
        num_bytes = _lz4_content_size(blob)
        if self.feature.is_ragged:
            check_decoded_bytes(num_bytes, blob.size, "an lz4 row")
        else:
            self._payload.check_size(num_bytes)
        owned = np.empty(num_bytes, np.uint8)
        self._compressor.decompress(blob[LZ4_HEADER.size :], owned)
        return self._payload.unpack(owned)

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decompress the row into `out`; see `Codec.decode_into`."""
        self._payload.check_size(_lz4_content_size(blob))
        self._compressor.decompress(blob[LZ4_HEADER.size :], bytes_of(out))


def _lz4_content_size(blob: npt.NDArray[np.uint8]) -> int:
    """Return the size that the header states, once it is known that the row is whole and can hold so much."""
    if blob.size < LZ4_HEADER.size:
        raise DecodeError(f"lz4 row of {blob.size} bytes: it is cut off.")
    checksum, size = LZ4_HEADER.unpack_from(blob.data)
    if checksum != zlib.crc32(blob.data[CHECKSUM_BYTES:]):
        raise DecodeError(f"lz4 row of {blob.size} bytes: its checksum is wrong.")
    if size > MAX_LZ4_RATIO * (blob.size - LZ4_HEADER.size):
        raise DecodeError(f"lz4 row of {blob.size} bytes: its header states {size} bytes, which it cannot hold.")
    return int(size)
