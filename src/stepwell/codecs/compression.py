"""Compression of bytes without loss, by the library that a row's codec names: Zstandard or LZ4.

What comes out has neither size nor checksum in it: who stores it knows the one and adds the other.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, MissingDependencyError

__all__ = ["COMPRESSORS", "Compressor", "Lz4Compressor", "ZstdCompressor"]

Bytes = npt.NDArray[np.uint8]


class Compressor(ABC):
    """One way to compress, at one level.

    Attributes:
        levels: the lowest and the highest level, and the one that is meant where none is given.

    Notes:
        One instance serves many threads at once; compressing and decompressing release the GIL.
    """

    levels: ClassVar[tuple[int, int, int]]

    def __init__(self, level: int) -> None:
        self._level = level

    @abstractmethod
    def compress(self, data: bytes | Bytes) -> bytes:
        """Return the data, smaller where it can be."""

    @abstractmethod
    def decompress(self, data: Bytes, out: Bytes) -> None:
        """Fill `out`, which has the size of what was compressed.

        Raises:
            DecodeError: the data are not of this compression, or hold another number of bytes; `out` may be written.
        """


class ZstdCompressor(Compressor):
    """Zstandard: small, and fast enough for most (about 5 GB/s out of differences of rendered images).

    Args:
        level: 1 (fastest) to 22 (smallest).

    Source:
        RFC 8878.
    """

    levels = (1, 22, 1)

    def __init__(self, level: int) -> None:
        super().__init__(level)
        try:
            import zstandard
        except ImportError as error:
            raise MissingDependencyError.of("zstandard", "zstd") from error
        self._zstandard: Any = zstandard
        self._contexts = threading.local()

    def compress(self, data: bytes | Bytes) -> bytes:
        """Return one frame; see `Compressor.compress`."""
        try:
            compressor = self._contexts.compressor
        except AttributeError:
            compressor = self._zstandard.ZstdCompressor(level=self._level, write_content_size=False)
            self._contexts.compressor = compressor
        return bytes(compressor.compress(data))

    def decompress(self, data: Bytes, out: Bytes) -> None:
        """Fill `out` from one frame; see `Compressor.decompress`."""
        try:
            decompressor = self._contexts.decompressor
        except AttributeError:
            decompressor = self._contexts.decompressor = self._zstandard.ZstdDecompressor()
        try:
            # never allocates what the frame states
            written = decompressor.stream_reader(data).readinto(out)
        except self._zstandard.ZstdError as error:
            raise DecodeError(f"{data.size} bytes of Zstandard: {error}.") from error
        if written != out.size:
            raise DecodeError(f"{data.size} bytes of Zstandard: {written} bytes came out of them, not {out.size}.")


class Lz4Compressor(Compressor):
    """LZ4: rows half as large again as by Zstandard, decompressed about twice as fast.

    Args:
        level: 0 (fastest), or 1 to 12 of the slower search for smaller rows.

    Source:
        LZ4 block format description, 2024.
    """

    levels = (0, 12, 0)

    def __init__(self, level: int) -> None:
        super().__init__(level)
        try:
            import lz4.block
        except ImportError as error:
            raise MissingDependencyError.of("lz4", "lz4") from error
        self._block: Any = lz4.block

    def compress(self, data: bytes | Bytes) -> bytes:
        """Return one block; see `Compressor.compress`."""
        options = {"mode": "high_compression", "compression": self._level} if self._level else {}
        return bytes(self._block.compress(data, store_size=False, **options))

    def decompress(self, data: Bytes, out: Bytes) -> None:
        """Fill `out` from one block; see `Compressor.decompress`."""
        try:
            content = self._block.decompress(data, uncompressed_size=out.size)
        except (self._block.LZ4BlockError, ValueError) as error:
            raise DecodeError(f"{data.size} bytes of LZ4: {error}.") from error
        if len(content) != out.size:
            raise DecodeError(f"{data.size} bytes of LZ4: {len(content)} bytes came out of them, not {out.size}.")
        out[:] = np.frombuffer(content, np.uint8)


COMPRESSORS: dict[Literal["zstd", "lz4"], type[Compressor]] = {"zstd": ZstdCompressor, "lz4": Lz4Compressor}
