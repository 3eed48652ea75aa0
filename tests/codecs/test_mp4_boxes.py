"""Delays of packets, from the head of an mp4 file that is put together by hand."""

import struct

import numpy as np
import pytest

from stepwell.codecs.video_packets import packet_delays

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
