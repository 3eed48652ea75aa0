"""The bytes of one video row: a marker that decoders skip, then the packets of the row.

::

    h264   00 00 00 01 1e 80   F  C C C C  numbers  packets      a NAL unit of an unspecified type
    hevc   00 00 00 01 60 01   F  C C C C  numbers  packets      likewise
    av1    12 00 7a L  L  80   F  C C C C  numbers  80  packets  temporal delimiter, padding OBU of L bytes
    mpeg4  00 00 01 b2 34 80   F  C C C C  numbers  packets      user data
    vp9    00 00 01 b2 39 80   F  C C C C  numbers  packets      no stream that can be cut: only stepwell reads it

    F        flags; bit 0: the row begins a run
    C        CRC-32 of what follows, begun with F; little-endian, the top bit of each byte set
    numbers  how many packets, the size of each, which picture of the run the row shows; 6 bits a byte, low ones
             first, bit 6 where more follow

Every byte from F on has its top bit set: no start code arises in a marker. So the rows of a column, back to back, are
an elementary stream that ffmpeg plays when it is told of what kind: ``ffplay -f h264 NAME.bin``; hevc; obu for av1.
Packets are in the order of decoding, with parameter sets in band. **Picture** n of a run is the one that its n-th
packet makes: own recordings show picture 0, 1, 2, ..., those with B-frames jump.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from stepwell.errors import DecodeError

__all__ = ["FLAGS_PLACE", "STREAM_KINDS", "SYNC_FLAG", "VideoRow", "pack_row", "parse_row"]

FLAGS_PLACE = 6
SYNC_FLAG = 0x01
TOP_BIT = 0x80
MORE_BIT = 0x40
TOP_BITS = 0x80808080
CHECKSUM_BYTES = 4
HEAD_BYTES = FLAGS_PLACE + 1 + CHECKSUM_BYTES
TEMPORAL_DELIMITER = b"\x12\x00"
AV1_MARK = TEMPORAL_DELIMITER + b"\x7a"
# an OBU's size in two bytes of LEB128, whatever it is, so that the flags stand at one place in all streams
AV1_SIZE_PLACE = len(AV1_MARK)
AV1_SIZE_BYTES = 2
# an OBU ends with a set bit and clear ones up to the byte
AV1_TRAILING_BITS = b"\x80"
_MARKS = {
    "h264": b"\0\0\0\1\x1e\x80",
    "hevc": b"\0\0\0\1\x60\x01",
    "mpeg4": b"\0\0\1\xb2\x34\x80",
    "vp9": b"\0\0\1\xb2\x39\x80",
}
_KINDS = {mark: kind for kind, mark in _MARKS.items()}
STREAM_KINDS = ("av1", *_MARKS)


class VideoRow(NamedTuple):
    """One parsed row.

    Attributes:
        kind: of the stream, one of `STREAM_KINDS`.
        is_sync: whether the row begins a run.
        packets: of the row, in the order of decoding; none where the row shows a picture of an earlier row.
        picture: which picture of the run the row shows.
    """

    kind: str
    is_sync: bool
    packets: list[memoryview]
    picture: int


def pack_row(kind: str, packets: Sequence[bytes], picture: int, *, is_sync: bool) -> bytes:
    """Return the bytes of a row.

    Example:
        >>> row = pack_row("h264", [bytes([0, 0, 0, 1, 0x65, 7])], picture=0, is_sync=True)
        >>> parse_row(row).picture, len(row)
        (0, 20)
    """
    if kind == "av1":
        packets = _delimited(packets)
    numbers = b"".join(map(_pack_number, (len(packets), *map(len, packets), picture)))
    numbers += AV1_TRAILING_BITS * (kind == "av1")
    body = numbers + b"".join(packets)
    flags = TOP_BIT | (SYNC_FLAG if is_sync else 0)
    checksum = _checksum(body, flags).to_bytes(CHECKSUM_BYTES, "little")
    return _mark(kind, HEAD_BYTES + len(numbers)) + bytes((flags,)) + checksum + body


def parse_row(blob: bytes | memoryview) -> VideoRow:
    """Return what a row says and holds; its packets are views of it."""
    head, view = bytes(blob[:HEAD_BYTES]), memoryview(blob)
    kind = "av1" if head.startswith(AV1_MARK) else _KINDS.get(head[:FLAGS_PLACE])
    if kind is None or len(blob) <= HEAD_BYTES:
        raise DecodeError(
            f"video row of {len(blob)} bytes begins with {head[:8].hex(' ')!r}: no marker of a video row."
        )
    flags, stored = head[FLAGS_PLACE], int.from_bytes(head[FLAGS_PLACE + 1 :], "little")
    if stored != _checksum(view[HEAD_BYTES:], flags):
        raise DecodeError(f"video row of {len(blob)} bytes: its checksum is wrong, bytes were changed or cut off.")
    count, place = _parse_number(blob, HEAD_BYTES)
    sizes = []
    for _ in range(count):
        size, place = _parse_number(blob, place)
        sizes.append(size)
    picture, place = _parse_number(blob, place)
    if kind == "av1":
        place += len(AV1_TRAILING_BITS)
        if head[:FLAGS_PLACE] != _mark(kind, place):
            raise DecodeError(f"video row of {len(blob)} bytes: its marker is of another size than it says.")
    packets = []
    for size in sizes:
        packets.append(view[place : place + size])
        place += size
    if place != len(blob):
        raise DecodeError(f"video row of {len(blob)} bytes: its packets end at byte {place}.")
    return VideoRow(kind, flags & SYNC_FLAG != 0, packets, picture)


def _delimited(packets: Sequence[bytes]) -> list[bytes]:
    """Return packets of AV1 each behind a temporal delimiter, the first without: the marker begins with one."""
    bare = [packet.removeprefix(TEMPORAL_DELIMITER) for packet in packets]
    return [*bare[:1], *(TEMPORAL_DELIMITER + packet for packet in bare[1:])]


def _mark(kind: str, marker_bytes: int) -> bytes:
    """Return the bytes before the flags, of a marker that ends where the packets begin."""
    if kind != "av1":
        return _MARKS[kind]
    size = marker_bytes - AV1_SIZE_PLACE - AV1_SIZE_BYTES
    return AV1_MARK + bytes((TOP_BIT | size & 0x7F, size >> 7, TOP_BIT))


def _checksum(body: bytes | memoryview, flags: int) -> int:
    return zlib.crc32(body, flags) | TOP_BITS


def _pack_number(value: int) -> bytes:
    groups = bytearray()
    while value >= MORE_BIT:
        groups.append(TOP_BIT | MORE_BIT | value & 0x3F)
        value >>= 6
    groups.append(TOP_BIT | value)
    return bytes(groups)


def _parse_number(blob: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return a number and the place of the byte after it."""
    value = shift = 0
    while place < len(blob):
        group = blob[place]
        place += 1
        value |= (group & 0x3F) << shift
        if not group & MORE_BIT:
            return value, place
        shift += 6
    raise DecodeError(f"video row of {len(blob)} bytes: its numbers do not end.")
