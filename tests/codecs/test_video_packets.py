"""The packets of a file: the same from wherever reading begins."""

import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from stepwell.codecs.video_packets import PacketReader, packet_delays, packet_table
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


NUM_PACKETS = 7


def box(kind: bytes, *contents: bytes, large: bool = False) -> bytes:
    data = b"".join(contents)
    if large:
        return struct.pack(">I4sQ", 1, kind, len(data) + 16) + data
    return struct.pack(">I4s", len(data) + 8, kind) + data


def track(number: int, delays: list[tuple[int, int]] | None, *, version: int = 0, count: int = NUM_PACKETS) -> bytes:
    tkhd = box(b"tkhd", bytes([version, 0, 0, 7]), bytes(16 if version else 8), struct.pack(">I", number), bytes(60))
    stsz = box(b"stsz", bytes(4), struct.pack(">II", 0, count), bytes(4 * count))
    ctts = b""
    if delays is not None:
        ctts = box(b"ctts", bytes(4), struct.pack(">I", len(delays)), b"".join(struct.pack(">Ii", *d) for d in delays))
    stbl = box(b"stbl", box(b"stsd", bytes(8)), ctts, stsz)
    return box(b"trak", tkhd, box(b"edts"), box(b"mdia", box(b"hdlr", bytes(5)), box(b"minf", stbl)))


def delays_of(data: bytes, number: int = 1, count: int = NUM_PACKETS) -> list[int] | None:
    found = packet_delays(lambda place, size: data[place : place + size], len(data), number, count)
    return None if found is None else found.tolist()


def movie(*tracks: bytes, large: bool = False) -> bytes:
    return box(b"ftyp", b"isom") + box(b"mdat", bytes(300), large=large) + box(b"moov", box(b"mvhd"), *tracks)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("version", [0, 1])
def test_delays_are_those_of_the_track(version: int, large: bool) -> None:
    tracks = [
        track(3, [(NUM_PACKETS, 99)], version=version),
        track(1, [(1, 20), (5, -10), (1, 1 << 30)], version=version),
    ]
    data = movie(*tracks, large=large)
    assert delays_of(data) == [20, -10, -10, -10, -10, -10, 1 << 30]
    assert delays_of(data, 3) == [99] * NUM_PACKETS
    assert delays_of(data, 2) is None


def test_track_without_a_table_has_no_delays() -> None:
    assert delays_of(movie(track(1, None))) == [0] * NUM_PACKETS


def test_table_that_does_not_tell_of_every_packet_tells_nothing() -> None:
    assert delays_of(movie(track(1, None, count=0))) is None, "the packets are in fragments"
    assert delays_of(movie(track(1, None)), count=NUM_PACKETS + 1) is None
    assert delays_of(movie(track(1, [(3, 0)]))) is None
    assert delays_of(movie(track(1, [(0xFFFFFFFF, 0)] * 4))) is None


def test_file_that_ends_early_or_is_none_tells_nothing() -> None:
    data = movie(track(1, [(1, 20), (6, 0)]))
    for end in range(len(data)):
        assert delays_of(data[:end]) is None
    assert delays_of(b"no movie at all, but some text that is long enough to be one") is None


def test_damage_tells_nothing_or_numbers_for_every_packet() -> None:
    data, rng = movie(track(1, [(1, 20), (6, 0)])), np.random.default_rng(0)
    begin = data.rfind(b"moov") - 4
    for place in range(begin, len(data)):
        damaged = bytearray(data)
        damaged[place] = int(rng.integers(256))
        found = delays_of(bytes(damaged))
        assert found is None or len(found) == NUM_PACKETS
