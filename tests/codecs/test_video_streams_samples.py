"""Packets of mp4 files as decoders take them."""

import pytest

from stepwell.codecs.video_streams import SampleFormat, with_sequence_header
from stepwell.errors import DecodeError

SETS = [b"\x67first", b"\x68second"]
START = b"\0\0\0\1"


def avcc(length_bytes: int) -> bytes:
    sps, pps = SETS
    head = bytes([1, 100, 0, 20, 0xFC | length_bytes - 1, 0xE1])
    return head + len(sps).to_bytes(2, "big") + sps + b"\1" + len(pps).to_bytes(2, "big") + pps


def hvcc(length_bytes: int) -> bytes:
    head = bytes(21) + bytes([length_bytes - 1, len(SETS)])
    return b"\1" + head[1:] + b"".join(b"\x20\0\1" + len(unit).to_bytes(2, "big") + unit for unit in SETS)


@pytest.mark.parametrize("length_bytes", [1, 2, 4])
@pytest.mark.parametrize(("kind", "configuration"), [("h264", avcc), ("hevc", hvcc)])
def test_units_get_start_codes_and_key_packets_parameter_sets(
    kind: str, configuration: object, length_bytes: int
) -> None:
    samples = SampleFormat.of(kind, configuration(length_bytes))  # type: ignore[operator]
    units = [b"\x65picture", b"\x06more"]
    sample = b"".join(len(unit).to_bytes(length_bytes, "big") + unit for unit in units)
    plain = b"".join(START + unit for unit in units)
    assert samples.packet(memoryview(sample), is_key=False) == plain
    assert samples.packet(sample, is_key=True) == b"".join(START + unit for unit in SETS) + plain


@pytest.mark.parametrize("kind", ["h264", "hevc"])
def test_head_that_is_cut_off_is_refused(kind: str) -> None:
    whole = (avcc if kind == "h264" else hvcc)(4)
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError, match=f"sets of its {kind} stream are cut off"):
            SampleFormat.of(kind, whole[:end])


@pytest.mark.parametrize("sample", [b"\0\0\0\5abc", b"\0\0\0\1ab", b"\0\0\0\1a\0\0", b"\xff\xff\xff\xffabc"])
def test_units_that_do_not_fit_their_sample_are_refused(sample: bytes) -> None:
    with pytest.raises(DecodeError, match="do not add up"):
        SampleFormat("h264", b"", 4).packet(sample, is_key=False)


def test_av1_key_packet_gets_the_sequence_header_that_it_lacks() -> None:
    header = b"\x0a\x02ab"
    samples = SampleFormat.of("av1", b"\x81\0\0\0" + header)
    assert samples.packet(b"\x12\0\x32pic", is_key=True) == header + b"\x32pic"
    assert samples.packet(b"\x12\0" + header + b"\x32pic", is_key=True) == header + b"\x32pic"
    assert samples.packet(b"\x32pic", is_key=False) == b"\x32pic"
    assert with_sequence_header(header, b"other") == header


def test_kinds_whose_packets_need_nothing_are_left_alone() -> None:
    assert SampleFormat.of("vp9", b"whatever").packet(b"abc", is_key=True) == b"abc"
    assert SampleFormat.of("mpeg4", b"head").packet(b"abc", is_key=True) == b"headabc"
    assert SampleFormat.of("h264", b"").packet(b"abc", is_key=True) == b"abc"
