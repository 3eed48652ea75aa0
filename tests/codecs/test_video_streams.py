"""Which stream a run belongs to."""

import numpy as np
import pytest

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.codecs.video_rows import parse_row
from stepwell.codecs.video_streams import StreamId, stream_of
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
