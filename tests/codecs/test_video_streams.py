"""Which stream a run belongs to."""

from pathlib import Path

import numpy as np
import pytest
from written_videos import plain_frames, write_video

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.codecs.video_files import VideoFile
from stepwell.codecs.video_streams import StreamId, parse_row, stream_of
from stepwell.schema import Video

pytest.importorskip("av")


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
