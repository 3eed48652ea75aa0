"""The bytes of a video row: what was packed comes back, what was changed does not."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_videos import plain_frames, write_video

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.codecs.video_files import VideoFile
from stepwell.codecs.video_streams import (
    FLAGS_PLACE,
    STREAM_KINDS,
    SYNC_FLAG,
    SampleFormat,
    StreamId,
    pack_row,
    parse_row,
    stream_of,
    with_sequence_header,
)
from stepwell.errors import DecodeError
from stepwell.schema import Video

pytest.importorskip("av")


KINDS = st.sampled_from(STREAM_KINDS)
PACKETS = st.lists(st.binary(min_size=1, max_size=5000).filter(lambda data: data[:2] != b"\x12\x00"), max_size=4)


@given(kind=KINDS, packets=PACKETS, frame=st.integers(0, 10**6), is_sync=st.booleans(), turn=st.integers(0, 7))
def test_packed_row_is_parsed_as_it_was(kind: str, packets: list[bytes], frame: int, is_sync: bool, turn: int) -> None:
    row = parse_row(pack_row(kind, packets, frame, is_sync=is_sync, turn=turn))
    assert (row.kind, row.frame, row.is_sync, row.turn) == (kind, frame, is_sync, turn)
    assert [bytes(packet).removeprefix(b"\x12\x00" if kind == "av1" else b"") for packet in row.packets] == packets


@given(kind=KINDS, packets=PACKETS, frame=st.integers(0, 10**6), is_sync=st.booleans())
def test_marker_has_its_flags_at_one_place_and_no_start_code_behind_its_first_bytes(
    kind: str, packets: list[bytes], frame: int, is_sync: bool
) -> None:
    blob = pack_row(kind, packets, frame, is_sync=is_sync)
    assert bool(blob[FLAGS_PLACE] & SYNC_FLAG) is is_sync
    marker = blob[FLAGS_PLACE : len(blob) - sum(map(len, parse_row(blob).packets))]
    assert min(marker) >= 0x80


@given(packets=PACKETS, frame=st.integers(0, 10**6))
def test_marker_of_av1_is_one_open_bitstream_unit(packets: list[bytes], frame: int) -> None:
    blob = pack_row("av1", packets, frame, is_sync=True)
    assert blob[:3] == b"\x12\x00\x7a", "a temporal delimiter, and a padding unit with a size"
    size = blob[3] & 0x7F | blob[4] << 7
    assert len(blob) == 5 + size + sum(map(len, parse_row(blob).packets))
    assert blob[4 + size] == 0x80, "the trailing bits"


@given(data=st.data(), kind=KINDS, packets=PACKETS)
def test_changed_or_cut_row_is_refused(data: st.DataObject, kind: str, packets: list[bytes]) -> None:
    blob = pack_row(kind, packets, 3, is_sync=True)
    place = data.draw(st.integers(0, len(blob) - 1))
    changed = bytearray(blob)
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), blob[:place], blob + b"\0"):
        with pytest.raises(DecodeError, match="video row"):
            parse_row(damaged)


@pytest.mark.parametrize("numbers", ["81", "c1", "8284c5", "82848586", "818580", "818380", "ffffffff"])
def test_numbers_that_do_not_fit_are_refused_though_the_checksum_is_right(numbers: str) -> None:
    blob = pack_row("h264", [b"abcd"], 0, is_sync=True)
    body = bytes.fromhex(numbers) + b"abcd"
    sealed = blob[:7] + (_crc(body, blob[6]) | 0x80808080).to_bytes(4, "little") + body
    with pytest.raises(DecodeError, match=r"packets end|numbers do not end"):
        parse_row(sealed)


def _crc(body: bytes, begin: int) -> int:
    import zlib

    return zlib.crc32(body, begin)


def first_packets(**options: str | int) -> list[bytes]:
    codec = make_codec(Video((32, 48, 3), gop=1, **options))  # type: ignore[arg-type]
    assert isinstance(codec, SequentialCodec)
    encoder = codec.encoder()
    images = np.random.default_rng(0).integers(0, 255, (3, 32, 48, 3), np.uint8)
    rows = [parse_row(blob) for image in images for blob in encoder.put(image)]
    encoder.close()
    return [bytes(row.packets[0]) for row in rows]


@pytest.mark.parametrize("encoder", ["h264", "hevc"])
def test_runs_of_one_encoder_are_of_one_stream_and_other_formats_of_another(encoder: str) -> None:
    streams = {stream_of(encoder, packet)[0] for packet in first_packets(encoder=encoder)}
    others = {stream_of(encoder, packet)[0] for packet in first_packets(encoder=encoder, pixel_format="yuv444p")}
    assert len(streams) == len(others) == 1
    assert streams != others
    assert all(stream.parameters and stream.is_closed for stream in streams)


@pytest.mark.parametrize("encoder", ["h264", "hevc"])
def test_head_ends_with_the_type_of_the_first_slice(encoder: str) -> None:
    for packet in first_packets(encoder=encoder):
        _, head = stream_of(encoder, packet)
        assert packet.startswith(head)
        assert head[-4:-1] == b"\0\0\1"
        assert (head[-1] & 0x1F if encoder == "h264" else head[-1] >> 1) in (5, 19, 20)


def test_run_that_begins_without_an_idr_picture_is_open() -> None:
    stream, head = stream_of("h264", bytes.fromhex("000001 6711 000001 68ee 000001 0605 000001 41ff"))
    assert not stream.is_closed
    assert len(head) == 19


@pytest.mark.parametrize("packet", ["", "00", "000001", "0000 01", "abcdef", "000001 6711"])
def test_packet_without_slices_has_no_head(packet: str) -> None:
    assert stream_of("h264", bytes.fromhex(packet))[1] == b""


def test_other_kinds_are_one_stream_each() -> None:
    assert stream_of("av1", b"\0\0\1\x67abc") == (StreamId("av1"), b"")


@pytest.mark.parametrize("encoder", ["av1", "mpeg4"])
def test_streams_that_say_other_things_of_themselves_are_different_ones(encoder: str, tmp_path: Path) -> None:
    wide, narrow = (packets_of_file(tmp_path / f"{width}.mp4", encoder, width) for width in (64, 48))
    assert len({stream_of(encoder, packet)[0] for packet in wide}) == 1
    assert stream_of(encoder, wide[0])[0] != stream_of(encoder, narrow[0])[0]
    for packet in (*wide, *narrow):
        stream, head = stream_of(encoder, packet)
        assert head
        assert packet.startswith(head)
        assert stream.parameters


def packets_of_file(path: Path, encoder: str, width: int) -> list[bytes]:
    """Return the packets of a video file that begin runs, as rows have them."""
    write_video(path, {"av1": "libsvtav1", "mpeg4": "mpeg4"}[encoder], "lp=1", size=(48, width))
    video = VideoFile(path)
    codec = make_codec(video.feature)
    assert isinstance(codec, SequentialCodec)
    return [bytes(parse_row(blob).packets[0]) for blob in video.rows(video.feature) if codec.is_sync(blob)]


@pytest.mark.parametrize("packet", [b"", b"\x12", b"\x0a\xff\xff\xff", b"\x12\x00\x32\x05abcde", b"\x08"])
def test_packets_of_av1_without_a_whole_header_do_no_harm(packet: bytes) -> None:
    stream, head = stream_of("av1", packet)
    assert packet.startswith(head)
    assert stream.kind == "av1"


def test_colours_of_one_stream_are_not_taken_for_those_of_the_next(tmp_path: Path) -> None:
    # a file that says nothing of its colours
    path = write_video(tmp_path / "a.mp4", "libsvtav1", "lp=1")
    _, frames = plain_frames(path)
    video = VideoFile(path)
    codec = make_codec(video.feature)
    assert isinstance(codec, SequentialCodec)
    run = [np.frombuffer(blob, np.uint8) for blob in video.rows(video.feature)][:10]
    for _ in range(2):
        outs = list(np.empty((10, *frames.shape[1:]), np.uint8))
        codec.decode_run(run, range(10), outs)
        np.testing.assert_array_equal(np.stack(outs), frames[:10])
        # one that does
        own = make_codec(Video(frames.shape[1:], encoder="av1"))
        own.decode(np.frombuffer(own.encode(frames[0]), np.uint8))


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
    assert samples.packets([memoryview(sample)], is_key=False)[0] == plain
    assert samples.packets([sample], is_key=True)[0] == b"".join(START + unit for unit in SETS) + plain


@pytest.mark.parametrize("kind", ["h264", "hevc"])
def test_head_that_is_cut_off_is_refused(kind: str) -> None:
    whole = (avcc if kind == "h264" else hvcc)(4)
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError, match=f"sets of its {kind} stream are cut off"):
            SampleFormat.of(kind, whole[:end])


@pytest.mark.parametrize("sample", [b"\0\0\0\5abc", b"\0\0\0\1ab", b"\0\0\0\1a\0\0", b"\xff\xff\xff\xffabc"])
def test_units_that_do_not_fit_their_sample_are_refused(sample: bytes) -> None:
    with pytest.raises(DecodeError, match="do not add up"):
        SampleFormat("h264", b"", 4).packets([sample], is_key=False)[0]


def test_av1_key_packet_gets_the_sequence_header_that_it_lacks() -> None:
    header = b"\x0a\x02ab"
    samples = SampleFormat.of("av1", b"\x81\0\0\0" + header)
    assert samples.packets([b"\x12\0\x32pic"], is_key=True)[0] == header + b"\x32pic"
    assert samples.packets([b"\x12\0" + header + b"\x32pic"], is_key=True)[0] == header + b"\x32pic"
    assert samples.packets([b"\x32pic"], is_key=False)[0] == b"\x32pic"
    assert with_sequence_header(header, b"other") == header


def test_kinds_whose_packets_need_nothing_are_left_alone() -> None:
    assert SampleFormat.of("vp9", b"whatever").packets([b"abc"], is_key=True)[0] == b"abc"
    assert SampleFormat.of("mpeg4", b"head").packets([b"abc"], is_key=True)[0] == b"headabc"
    assert SampleFormat.of("h264", b"").packets([b"abc"], is_key=True)[0] == b"abc"
