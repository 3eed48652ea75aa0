"""Rows without loss as differences to rows before them: screens of simulators and games, where little moves.

A run has up to ``every`` rows. Its first is whole; each of the others is the exclusive or with the row whose place in
the run is its own with the lowest bit cleared::

    place           0  1  2  3  4  5  6  7  8        any row is at most log2(every) differences from the first,
    differs from    -  0  0  2  0  4  4  6  0        four rows in a row at the default of 16 take 6 to decode

Differences to the very row before would be a tenth smaller, and reading a row would take half a run.

A row on disk::

    bytes 0-3   CRC-32 of all that follows, little endian
    byte 4      bit 0: begins a run; bit 1: is a difference
    byte 5      place in the run
    from 6 on   a Zstandard frame without its size, or an LZ4 block
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import (
    RowEncoder,
    SequentialCodec,
    check_option_names,
    choice_option,
    int_option,
    register_codec,
)
from stepwell.codecs.lossless import COMPRESSORS, Compressor
from stepwell.codecs.raw import Payload, bytes_of
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Feature

__all__ = ["DeltaCodec"]

DEFAULT_EVERY = 16
MAX_EVERY = 256
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = CHECKSUM.size + 2
SYNC, DIFFERENCE = 1, 2

Bytes = npt.NDArray[np.uint8]


@register_codec
class DeltaCodec(SequentialCodec):
    """Differences between rows, compressed: lossless, any dtype.

    Example:
        >>> from stepwell.schema import Image
        >>> encoder = DeltaCodec(Image((84, 84), codec="delta", every=4)).encoder()
        >>> screen = np.frombuffer(np.random.default_rng(0).bytes(84 * 84), "uint8").reshape(84, 84)
        >>> [len(blob) < 100 for _ in range(5) for blob in encoder.put(screen)]
        [False, True, True, True, False]

    Notes:
        Safe for any number of threads; what is heavy releases the GIL. Every row has a checksum, over what is stored,
        and knows its place: wrong or cut bytes, and rows of another run, raise DecodeError.

    Source:
        The places are those of the tree of Fenwick (A new data structure for cumulative frequency tables, 1994).
    """

    name: ClassVar[str] = "delta"
    sync_mark = (CHECKSUM.size, SYNC)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "every", "compression", "level")
        if feature.is_ragged:
            raise SchemaError(f'codec "delta" cannot store {feature}, whose size varies. Use codec="zstd".')
        self.every = int_option(feature, "every", DEFAULT_EVERY, least=1, most=MAX_EVERY)
        compression: Any = choice_option(feature, "compression", "zstd", tuple(COMPRESSORS))
        compressor = COMPRESSORS[compression]
        least, most, usual = compressor.levels
        self._compressor = compressor(int_option(feature, "level", usual, least=least, most=most))
        self._row_bytes = feature.row_bytes

    def encoder(self) -> RowEncoder:
        """Return the encoder of a new column."""
        return _DeltaEncoder(Payload(self.feature), self._compressor, self.every)

    def decode_run(
        self,
        blobs: Sequence[Bytes],
        wanted: Sequence[int],
        outs: Sequence[npt.NDArray[Any]],
        size: tuple[int, int] | None = None,
    ) -> None:
        """Decode rows, and of the others those that they differ from; see `SequentialCodec.decode_run`."""
        rows: dict[int, Bytes] = {}
        for place, out in zip(wanted, outs, strict=True):
            self._restore(blobs, place, rows, bytes_of(out))

    def _restore(self, blobs: Sequence[Bytes], place: int, rows: dict[int, Bytes], out: Bytes) -> None:
        """Decode one row into `out` and keep it in `rows`, with those that it needs."""
        flags, body = _opened(blobs[place], place)
        self._compressor.decompress(body, out)
        if flags & DIFFERENCE:
            parent = place & (place - 1)
            if parent not in rows:
                self._restore(blobs, parent, rows, np.empty(self._row_bytes, np.uint8))
            np.bitwise_xor(out, rows[parent], out=out)
        rows[place] = out


class _DeltaEncoder(RowEncoder):
    """The rows that the next one may differ from: those on the way from the last one to the run's first."""

    def __init__(self, payload: Payload, compressor: Compressor, every: int) -> None:
        self._payload = payload
        self._compressor = compressor
        self._every = every
        self._place = 0
        self._path: list[Bytes] = []
        self._whole_bytes = 0

    def put(self, value: Any) -> list[bytes]:
        """Take a row; return its blob."""
        place = self._place % self._every
        row = np.array(self._payload.pack(value))
        # a place is as many differences from the first as it has bits
        depth = place.bit_count()
        del self._path[depth:]
        flags, body = self._smaller(row, self._path[-1]) if depth else (SYNC, self._whole(row))
        self._path.append(row)
        self._place += 1
        sealed = bytes([flags, place]) + body
        return [CHECKSUM.pack(zlib.crc32(sealed)) + sealed]

    def end(self) -> list[bytes]:
        """Keep nothing back; the next row put begins a run."""
        self._place = 0
        return []

    def _smaller(self, row: Bytes, parent: Bytes) -> tuple[int, bytes]:
        difference = self._compressor.compress(np.bitwise_xor(row, parent))
        # the row itself is tried only where it may win: a scene has changed
        if 2 * len(difference) > self._whole_bytes:
            whole = self._whole(row)
            if len(whole) <= len(difference):
                return 0, whole
        return DIFFERENCE, difference

    def _whole(self, row: Bytes) -> bytes:
        body = self._compressor.compress(row)
        self._whole_bytes = len(body)
        return body


def _opened(blob: Bytes, place: int) -> tuple[int, Bytes]:
    """Return flags and body of a row, which is whole and the one of its place."""
    if blob.size < HEADER_BYTES or CHECKSUM.unpack_from(blob.data)[0] != zlib.crc32(blob.data[CHECKSUM.size :]):
        raise DecodeError(f"delta row of {blob.size} bytes: its checksum is wrong.")
    flags, stored_place = int(blob[CHECKSUM.size]), int(blob[CHECKSUM.size + 1])
    if stored_place != place or bool(flags & SYNC) != (place == 0):
        raise DecodeError(f"delta row of {blob.size} bytes: place {stored_place} of its run, expected {place}.")
    return flags, blob[HEADER_BYTES:]
