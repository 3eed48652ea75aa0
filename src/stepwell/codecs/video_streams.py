"""Which stream a packet belongs to, read from the packet that begins a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["START_CODE", "LastStream", "StreamId", "stream_of"]

START_CODE = b"\0\0\1"
H264_IDR = 5
_PARAMETER_SETS = {"h264": 7, "hevc": 33}
_SLICES = {"h264": range(1, 6), "hevc": range(32)}
# AV1: open bitstream units
SEQUENCE_HEADER, FRAMES = 1, (3, 4, 6)
# MPEG-4: a group of pictures, which has a time of its own, and a picture
MPEG4_PICTURES = (b"\0\0\1\xb3", b"\0\0\1\xb6")


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
