"""The stream that a packet belongs to, and packets of an mp4 file in the form that decoders take.

::

    in the file   |size|NAL unit|size|NAL unit|...                   h264, hevc; parameter sets in the file's head
    to a decoder  |parameter sets|start code|NAL unit|start code|... the sets in front of key packets only
    in the file   |OBU|OBU|...                                       av1; the sequence header perhaps in the head only

A row's bytes are a marker that decoders skip, then the packets of the row::

    h264   00 00 00 01 1e 80   F  C C C C  numbers  packets      a NAL unit of an unspecified type
    hevc   00 00 00 01 60 01   F  C C C C  numbers  packets      likewise
    av1    12 00 7a L  L  80   F  C C C C  numbers  80  packets  temporal delimiter, padding OBU of L bytes
    mpeg4  00 00 01 b2 34 80   F  C C C C  numbers  packets      user data
    vp9    00 00 01 b2 39 80   F  C C C C  numbers  packets      no stream that can be cut: only stepwell reads it

    F        flags; bit 0: the row begins a run; bits 1 to 3: how its frame is turned before it is shown
    C        CRC-32 of the following bytes, begun with F; little-endian, the top bit of each byte set
    numbers  number of packets, the size of each, and the frame of the run that the row shows; 6 bits a byte, low ones
             first, bit 6 where more follow

Every byte from F on has its top bit set: no start code arises in a marker. So the rows of a column, back to back, are
an elementary stream that ffmpeg plays when its format is named: ``ffplay -f h264 NAME.bin``; hevc; obu for av1.
Packets are in the order of decoding, with parameter sets in band. **Frame** n of a run is the one that its n-th
packet makes: own recordings show frames 0, 1, 2, ..., those with B-frames jump.

A **turn** is one of the eight ways in which a frame can lie: 1, rows and columns change places; then 2, upside down;
then 4, left is right. Files say so in a display matrix, and rows that were taken from them in their flags.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from stepwell.errors import DecodeError

__all__ = [
    "FLAGS_PLACE",
    "MIRRORED",
    "START_CODE",
    "STREAM_KINDS",
    "SWAPPED_SIDES",
    "SYNC_FLAG",
    "UPSIDE_DOWN",
    "LastStream",
    "SampleFormat",
    "StreamId",
    "VideoRow",
    "pack_row",
    "parse_row",
    "stream_of",
    "turned",
    "turned_size",
    "with_sequence_header",
]

FLAGS_PLACE = 6
SYNC_FLAG = 0x01
TURN_SHIFT, TURN_MASK = 1, 0x07
SWAPPED_SIDES, UPSIDE_DOWN, MIRRORED = 1, 2, 4
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
    """One parsed row."""

    kind: str  # of the stream, one of `STREAM_KINDS`
    is_sync: bool  # whether the row begins a run
    # of the row, in the order of decoding; none where the row shows a frame of an earlier row
    packets: list[memoryview]
    frame: int  # which frame of the run the row shows
    turn: int = 0  # how it is shown


def turned(pixels: npt.NDArray[Any], turn: int) -> npt.NDArray[Any]:
    """Return a view of a frame [height, width, ...] as it is shown."""
    if turn & SWAPPED_SIDES:
        pixels = pixels.swapaxes(0, 1)
    return pixels[:: -1 if turn & UPSIDE_DOWN else 1, :: -1 if turn & MIRRORED else 1]


def turned_size(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """Return height and width of a frame as it is shown, or of one that is shown as it is stored."""
    return size[::-1] if turn & SWAPPED_SIDES else size


def pack_row(kind: str, packets: Sequence[bytes], frame: int, *, is_sync: bool, turn: int = 0) -> bytes:
    """Return the bytes of a row."""
    if kind == "av1":
        packets = _delimited(packets)
    numbers = b"".join(map(_pack_number, (len(packets), *map(len, packets), frame)))
    numbers += AV1_TRAILING_BITS * (kind == "av1")
    body = numbers + b"".join(packets)
    flags = TOP_BIT | turn << TURN_SHIFT | (SYNC_FLAG if is_sync else 0)
    checksum = (zlib.crc32(body, flags) | TOP_BITS).to_bytes(CHECKSUM_BYTES, "little")
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
    if stored != zlib.crc32(view[HEAD_BYTES:], flags) | TOP_BITS:
        raise DecodeError(f"video row of {len(blob)} bytes: its checksum is wrong, bytes were changed or cut off.")
    # the number of packets, the size of each, and the frame
    numbers: list[int] = []
    value = shift = 0
    place = HEAD_BYTES
    while not numbers or len(numbers) < numbers[0] + 2:
        if place == len(blob):
            raise DecodeError(f"video row of {len(blob)} bytes: its numbers do not end.")
        group = view[place]
        place += 1
        value |= (group & 0x3F) << shift
        shift += 6
        if not group & MORE_BIT:
            numbers.append(value)
            value = shift = 0
    _, *sizes, frame = numbers
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
    return VideoRow(kind, flags & SYNC_FLAG != 0, packets, frame, flags >> TURN_SHIFT & TURN_MASK)


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


def _pack_number(value: int) -> bytes:
    groups = bytearray()
    while value >= MORE_BIT:
        groups.append(TOP_BIT | MORE_BIT | value & 0x3F)
        value >>= 6
    groups.append(TOP_BIT | value)
    return bytes(groups)


START_CODE = b"\0\0\1"
H264_IDR = 5
_PARAMETER_SETS = {"h264": 7, "hevc": 33}
_SLICES = {"h264": range(1, 6), "hevc": range(32)}
# AV1: open bitstream units
SEQUENCE_HEADER, FRAMES = 1, (3, 4, 6)
# MPEG-4: a group of pictures, which has a time of its own, and a frame
MPEG4_PICTURES = (b"\0\0\1\xb3", b"\0\0\1\xb6")
START = b"\0\0\0\1"
AVCC_LENGTH_PLACE, AVCC_SETS_PLACE = 4, 5
HVCC_LENGTH_PLACE, HVCC_SETS_PLACE = 21, 22
AV1_CONFIGURATION_BYTES = 4
AV1_SEQUENCE_HEADER = 0x0A
AV1_TEMPORAL_DELIMITER = b"\x12\x00"


@dataclass(frozen=True, slots=True)
class StreamId:
    """The properties that runs share when one open decoder decodes them."""

    # A decoder keeps properties of a stream, its colours for instance, and applies them to a next stream without them.

    kind: str  # of the stream, a key of `STREAM_KINDS`
    # the sequence parameter set of h264 and hevc, the sequence header of av1, the bytes of mpeg4 before its frame;
    # empty for vp9, whose headers say everything
    parameters: bytes = b""
    is_closed: bool = True  # whether nothing in the run speaks of frames before it


class LastStream:
    """The streams of runs, by what their first packets begin with: most begin as the last one did."""

    # Safe for any number of threads: the known stream is replaced as a whole.

    def __init__(self) -> None:
        self._known = StreamId(""), b""

    def of(self, kind: str, packet: bytes | memoryview) -> tuple[StreamId, bytes]:
        """Return the stream of a run, and how its first packet begins; see `stream_of`."""
        stream, head = self._known
        if not head or stream.kind != kind or packet[: len(head)] != head:
            stream, head = self._known = stream_of(kind, bytes(packet))
        return stream, head


def stream_of(kind: str, packet: bytes) -> tuple[StreamId, bytes]:
    """Return the stream of a run, and how its first packet begins: up to the type of the first slice."""
    if kind == "av1":
        begin, end = _sequence_header(packet)
        return StreamId(kind, packet[begin:end]), packet[:end]
    if kind == "mpeg4":
        head = packet[: min((place for place in map(packet.find, MPEG4_PICTURES) if place >= 0), default=0)]
        return StreamId(kind, head), head
    if kind not in ("h264", "hevc"):
        return StreamId(kind), b""
    parameters = b""
    for begin, end in _units(packet):
        unit_type = packet[begin] & 0x1F if kind == "h264" else packet[begin] >> 1 & 0x3F
        if unit_type == _PARAMETER_SETS[kind]:
            parameters = packet[begin:end].rstrip(b"\0")
        elif unit_type in _SLICES[kind]:
            is_closed = kind == "hevc" or unit_type == H264_IDR
            return StreamId(kind, parameters, is_closed), packet[: begin + 1]
    return StreamId(kind, parameters), b""


def _sequence_header(packet: bytes) -> tuple[int, int]:
    """Return where the sequence header of a packet of AV1 begins and ends; (0, 0) where it has none."""
    # Source: AV1 Bitstream & Decoding Process Specification, 5.3.2 and 4.10.5.
    place = 0
    while place < len(packet):
        begin, header = place, packet[place]
        place += 2 if header & 0x04 else 1
        size = shift = 0
        if header & 0x02:
            while place < len(packet) and shift < 56:
                byte = packet[place]
                size |= (byte & 0x7F) << shift
                place, shift = place + 1, shift + 7
                if not byte & 0x80:
                    break
        else:
            size = len(packet) - place
        place += size
        unit_type = header >> 3 & 0x0F
        if unit_type == SEQUENCE_HEADER:
            return begin, min(place, len(packet))
        if unit_type in FRAMES:
            break
    return 0, 0


def _units(packet: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the NAL units of a packet begin and end, the zeros before the next start code with them."""
    begin = packet.find(START_CODE) + len(START_CODE)
    while len(START_CODE) <= begin < len(packet):
        next_one = packet.find(START_CODE, begin)
        yield begin, len(packet) if next_one < 0 else next_one
        begin = next_one + len(START_CODE)


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """How the packets of one stream become those of a decoder."""

    kind: str  # of the stream, a key of `STREAM_KINDS`
    head: bytes = b""  # what goes in front of key packets: parameter sets with start codes, a sequence header
    length_bytes: int = 0  # of the size in front of each NAL unit; 0: packets are as decoders take them

    @classmethod
    def of(cls, kind: str, extradata: bytes) -> SampleFormat:
        """Return the format from the head of a file."""
        if kind == "av1":
            return cls(kind, extradata[AV1_CONFIGURATION_BYTES:])
        if kind not in ("h264", "hevc") or extradata[:1] in (b"", b"\0"):
            return cls(kind, extradata if kind != "vp9" else b"")
        try:
            place = AVCC_LENGTH_PLACE if kind == "h264" else HVCC_LENGTH_PLACE
            sets = _avcc_sets(extradata) if kind == "h264" else _hvcc_sets(extradata)
            return cls(kind, b"".join(START + unit for unit in sets), (extradata[place] & 3) + 1)
        except IndexError:
            raise DecodeError(f"the parameter sets of its {kind} stream are cut off") from None

    def packets(self, samples: Iterable[bytes | memoryview], *, is_key: bool) -> list[bytes]:
        """Return packets for a decoder; with ``is_key`` the first of them is a key packet."""
        found = []
        size = self.length_bytes
        for sample in samples:
            if not size:
                found.append(bytes(sample))
                continue
            place, parts = 0, []
            while place < len(sample):
                begin = place + size
                place = begin + int.from_bytes(sample[place:begin], "big")
                parts += [START, sample[begin:place]]
            if place != len(sample):
                raise DecodeError(
                    f"the sizes of its {self.kind} units do not add up to the {len(sample)} bytes there are"
                )
            found.append(b"".join(parts))
        if is_key and self.head:
            head = self.head
            found[0] = with_sequence_header(found[0], head) if self.kind == "av1" else head + found[0]
        return found


def with_sequence_header(packet: bytes, header: bytes) -> bytes:
    """Return a key packet of AV1 with the sequence header that a container may keep to itself."""
    bare = packet.removeprefix(AV1_TEMPORAL_DELIMITER)
    return bare if bare[:1] == bytes((AV1_SEQUENCE_HEADER,)) else header + bare


def _avcc_sets(data: bytes) -> Iterator[bytes]:
    place = AVCC_SETS_PLACE
    for mask in (0x1F, 0xFF):
        count, place = data[place] & mask, place + 1
        for _ in range(count):
            unit, place = _sized(data, place)
            yield unit


def _hvcc_sets(data: bytes) -> Iterator[bytes]:
    place = HVCC_SETS_PLACE + 1
    for _ in range(data[HVCC_SETS_PLACE]):
        count, place = data[place + 1] << 8 | data[place + 2], place + 3
        for _ in range(count):
            unit, place = _sized(data, place)
            yield unit


def _sized(data: bytes, place: int) -> tuple[bytes, int]:
    """Return what follows its size of two bytes, and the place after it."""
    begin = place + 2
    end = begin + int.from_bytes(data[place:begin], "big")
    if begin > len(data) or end > len(data):
        raise IndexError
    return data[begin:end], end
