"""Rows compressed without loss by Zstandard: depth images of any dtype, masks, texts, point clouds."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.codecs.options import check_option_names, int_option
from stepwell.codecs.payload import Payload, bytes_of
from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.schema import Feature

__all__ = ["ZstdCodec"]

DEFAULT_LEVEL = 3
MAGIC = b"\x28\xb5\x2f\xfd"
CHECKSUM_BYTES = 4
MAX_BLOCK_BYTES = 128 << 10
RAW_BLOCK, RLE_BLOCK, RESERVED_BLOCK = 0, 1, 3


@register_codec
class ZstdCodec(Codec):
    """One Zstandard frame a row, with its size and a checksum.

    Args:
        feature: of any kind, dtype and shape. Options: ``level`` 1 (fastest) to 22 (smallest), default 3.

    Raises:
        SchemaError: an option that is not allowed.
        MissingDependencyError: zstandard is not installed.

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
        self._level = int_option(feature, "level", DEFAULT_LEVEL, least=1, most=22)
        self._payload = Payload(feature)
        try:
            import zstandard
        except ImportError as error:
            raise MissingDependencyError.of("zstandard", "zstd") from error
        self._zstandard: Any = zstandard
        self._contexts = threading.local()

    def encode(self, value: Any) -> bytes:
        """Return the row as one frame; see `Codec.encode`."""
        try:
            compressor = self._contexts.compressor
        except AttributeError:
            compressor = self._zstandard.ZstdCompressor(level=self._level, write_checksum=True, write_content_size=True)
            self._contexts.compressor = compressor
        return bytes(compressor.compress(self._payload.pack(value)))

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return the row; see `Codec.decode`."""
        size = self._content_size(blob)
        owned = np.empty(size, np.uint8)
        self._decompress(blob, owned)
        return self._payload.unpack(owned)

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decompress the row into `out`; see `Codec.decode_into`."""
        self._payload.check_size(self._content_size(blob))
        self._decompress(blob, bytes_of(out))

    def _content_size(self, blob: npt.NDArray[np.uint8]) -> int:
        """Return the size that the header states, once it is known that the frame is whole and can hold so much."""
        try:
            header = self._zstandard.get_frame_parameters(blob)
            start = self._zstandard.frame_header_size(blob)
        except (self._zstandard.ZstdError, ValueError) as error:
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

    def _decompress(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Decompress a whole frame into memory of exactly its size, which zstd does in one pass."""
        try:
            decompressor = self._contexts.decompressor
        except AttributeError:
            decompressor = self._contexts.decompressor = self._zstandard.ZstdDecompressor()
        try:
            # room for a byte where there is nothing to write, or the frame's checksum would not be looked at
            written = decompressor.stream_reader(blob).readinto(out if out.size else np.empty(1, np.uint8))
        except self._zstandard.ZstdError as error:
            raise DecodeError(f"zstd row of {blob.size} bytes: {error}.") from error
        if written != out.size:
            raise DecodeError(f"zstd row of {blob.size} bytes: {written} bytes came out of it, not {out.size}.")


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
