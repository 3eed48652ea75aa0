"""The packets of an mp4 file as decoders take them that know nothing of the file.

::

    in the file   |size|NAL unit|size|NAL unit|...                   h264, hevc; parameter sets in the file's head
    to a decoder  |parameter sets|start code|NAL unit|start code|... the sets in front of key packets only
    in the file   |OBU|OBU|...                                       av1; the sequence header perhaps in the head only
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.errors import DecodeError

__all__ = ["SampleFormat", "with_sequence_header"]

START = b"\0\0\0\1"
AVCC_LENGTH_PLACE, AVCC_SETS_PLACE = 4, 5
HVCC_LENGTH_PLACE, HVCC_SETS_PLACE = 21, 22
AV1_CONFIGURATION_BYTES = 4
AV1_SEQUENCE_HEADER = 0x0A
AV1_TEMPORAL_DELIMITER = b"\x12\x00"


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
