"""The stream that a packet belongs to, and packets of an mp4 file in the form that decoders take.

::

    in the file   |size|NAL unit|size|NAL unit|...                   h264, hevc; parameter sets in the file's head
    to a decoder  |parameter sets|start code|NAL unit|start code|... the sets in front of key packets only
    in the file   |OBU|OBU|...                                       av1; the sequence header perhaps in the head only
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.errors import DecodeError

__all__ = ["START_CODE", "LastStream", "SampleFormat", "StreamId", "stream_of", "with_sequence_header"]

START_CODE = b"\0\0\1"
H264_IDR = 5
_PARAMETER_SETS = {"h264": 7, "hevc": 33}
_SLICES = {"h264": range(1, 6), "hevc": range(32)}
# AV1: open bitstream units
SEQUENCE_HEADER, FRAMES = 1, (3, 4, 6)
# MPEG-4: a group of pictures, which has a time of its own, and a picture
MPEG4_PICTURES = (b"\0\0\1\xb3", b"\0\0\1\xb6")
START = b"\0\0\0\1"
AVCC_LENGTH_PLACE, AVCC_SETS_PLACE = 4, 5
HVCC_LENGTH_PLACE, HVCC_SETS_PLACE = 21, 22
AV1_CONFIGURATION_BYTES = 4
AV1_SEQUENCE_HEADER = 0x0A
AV1_TEMPORAL_DELIMITER = b"\x12\x00"


@dataclass(frozen=True, slots=True)
class StreamId:
    """What runs must have in common to be decoded by one open decoder.

    A decoder keeps what a stream said about itself, its colours for instance, and takes it for said where the next
    stream is silent.

    Args:
        kind: of the stream, see `video_rows`.
        parameters: the sequence parameter set of h264 and hevc, the sequence header of av1, what mpeg4 has before its
            picture; empty for vp9, whose headers say everything.
        is_closed: whether nothing in the run speaks of pictures before it.
    """

    kind: str
    parameters: bytes = b""
    is_closed: bool = True


class LastStream:
    """The streams of runs, by what their first packets begin with: most begin as the last one did.

    Notes:
        Safe for any number of threads: what it keeps is replaced as a whole, and threads see one or another.
    """

    def __init__(self) -> None:
        self._known = StreamId(""), b""

    def of(self, kind: str, packet: bytes | memoryview) -> tuple[StreamId, bytes]:
        """Return the stream of a run, and how its first packet begins; see `stream_of`."""
        stream, head = self._known
        if not head or stream.kind != kind or packet[: len(head)] != head:
            stream, head = self._known = stream_of(kind, bytes(packet))
        return stream, head


def stream_of(kind: str, packet: bytes) -> tuple[StreamId, bytes]:
    """Return the stream of a run, and how its first packet begins: up to the type of the first slice.

    Args:
        kind: of the stream.
        packet: the run's first.

    Example:
        >>> stream, head = stream_of("h264", bytes.fromhex("00000001 674d 000001 68ee 000001 6588"))
        >>> stream.parameters.hex(), stream.is_closed, len(head)
        ('674d', True, 15)
    """
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
    """Return where the sequence header of a packet of AV1 begins and ends; (0, 0) where it has none.

    Source: AV1 Bitstream & Decoding Process Specification, 5.3.2 and 4.10.5.
    """
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
    """How the packets of one stream become those of a decoder.

    Args:
        kind: of the stream, one of `stepwell.codecs.video_rows.STREAM_KINDS`.
        head: what goes in front of key packets: parameter sets with start codes, a sequence header.
        length_bytes: of the size in front of each NAL unit; 0: packets are as decoders take them.
    """

    kind: str
    head: bytes = b""
    length_bytes: int = 0

    @classmethod
    def of(cls, kind: str, extradata: bytes) -> SampleFormat:
        r"""Return the format that the head of a file tells of.

        Args:
            kind: of the stream.
            extradata: what ffmpeg calls so.

        Raises:
            DecodeError: it is cut off.

        Example:
            >>> SampleFormat.of("h264", bytes.fromhex("01640014 ff e1 0002 6764 01 0003 68eecb"))
            SampleFormat(kind='h264', head=b'\x00\x00\x00\x01gd\x00\x00\x00\x01h\xee\xcb', length_bytes=4)
        """
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

    def packet(self, sample: bytes | memoryview, *, is_key: bool) -> bytes:
        """Return the packet for a decoder.

        Args:
            sample: its bytes in the file.
            is_key: whether decoding may begin at it.

        Raises:
            DecodeError: sizes of NAL units that do not add up to the sample's.
        """
        data = self._with_start_codes(sample) if self.length_bytes else bytes(sample)
        if not is_key or not self.head:
            return data
        return with_sequence_header(data, self.head) if self.kind == "av1" else self.head + data

    def _with_start_codes(self, sample: bytes | memoryview) -> bytes:
        size, place, parts = self.length_bytes, 0, []
        while place < len(sample):
            begin = place + size
            place = begin + int.from_bytes(sample[place:begin], "big")
            parts += [START, sample[begin:place]]
        if place != len(sample):
            raise DecodeError(f"the sizes of its {self.kind} units do not add up to the {len(sample)} bytes there are")
        return b"".join(parts)


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
