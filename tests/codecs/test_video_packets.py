"""The packets of a file: the same from wherever reading begins."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from stepwell.codecs.video_packets import PacketReader, packet_table
from stepwell.codecs.video_streams import stream_of
from stepwell.errors import DecodeError

av = pytest.importorskip("av")
NUM_FRAMES = 40


@pytest.fixture(params=["a.mp4", "a.mkv"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a video with B-frames, a keyframe every eight."""
    path = tmp_path / str(request.param)
    pixels = np.random.default_rng(0).integers(0, 255, (NUM_FRAMES, 32, 48, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 25)
        stream.codec_context.options = {"x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=2:b-adapt=0:threads=1"}
        for image in pixels:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))
    return path


def test_table_has_the_packets_in_the_order_of_decoding(path: Path) -> None:
    table = packet_table(path, 0)
    assert (table.kind, table.height, table.width) == ("h264", 32, 48)
    assert len(table.pts) == NUM_FRAMES
    assert not (np.diff(table.pts) > 0).all()
    assert np.flatnonzero(table.is_key).tolist() == list(range(0, NUM_FRAMES, 8))
    assert table.is_shown.all()
    np.testing.assert_allclose(np.sort(table.seconds), np.arange(NUM_FRAMES) / 25, atol=1e-3)


def test_table_is_made_once_while_the_file_stays_the_same(path: Path) -> None:
    table = packet_table(path, 0)
    assert packet_table(path, 0) is table
    path.write_bytes(path.read_bytes() + b"\0" * 8)
    assert packet_table(path, 0) is not table


def test_packets_are_the_same_from_wherever_reading_begins(path: Path) -> None:
    table = packet_table(path, 0)
    whole = PacketReader(path, 0, table)
    packets = [whole.packet(number) for number in range(NUM_FRAMES)]
    whole.close()
    for first in range(NUM_FRAMES):
        reader = PacketReader(path, 0, table)
        assert reader.packet(first) == packets[first]
        assert reader.packet(NUM_FRAMES - 1) == packets[-1]
        assert reader.packet(first) == packets[first], "kept"
        reader.close()
        reader.close()


def test_key_packets_have_start_codes_and_parameter_sets(path: Path) -> None:
    table = packet_table(path, 0)
    reader = PacketReader(path, 0, table)
    for number in range(NUM_FRAMES):
        packet = reader.packet(number)
        assert packet.startswith((b"\0\0\1", b"\0\0\0\1"))
        assert bool(stream_of("h264", packet)[0].parameters) == bool(table.is_key[number])
    reader.close()


def test_packets_that_were_forgotten_are_gone(path: Path) -> None:
    reader = PacketReader(path, 0, packet_table(path, 0))
    reader.packet(20)
    reader.forget(16)
    assert reader.packet(16)
    with pytest.raises(DecodeError, match="packet 15 is shown after later ones"):
        reader.packet(15)
    reader.close()
