"""Which stream a packet belongs to, read from the packet that begins a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["START_CODE", "LastStream", "StreamId", "stream_of"]

START_CODE = b"\0\0\1"
H264_IDR = 5
_PARAMETER_SETS = {"h264": 7, "hevc": 33}
_SLICES = {"h264": range(1, 6), "hevc": range(32)}


@dataclass(frozen=True, slots=True)
class StreamId:
    """What runs must have in common to be decoded by one open decoder.

    A decoder keeps what a stream said about itself, its colours for instance, and takes it for said where the next
    stream is silent.

    Args:
        kind: of the stream, see `video_rows`.
        parameters: the sequence parameter set of h264 and hevc; empty for others, whose headers say everything.
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


def _units(packet: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the NAL units of a packet begin and end, the zeros before the next start code with them."""
    begin = packet.find(START_CODE) + len(START_CODE)
    while len(START_CODE) <= begin < len(packet):
        next_one = packet.find(START_CODE, begin)
        yield begin, len(packet) if next_one < 0 else next_one
        begin = next_one + len(START_CODE)
