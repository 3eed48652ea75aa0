"""The bytes of a video row: what was packed comes back, what was changed does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.codecs.video_streams import FLAGS_PLACE, STREAM_KINDS, SYNC_FLAG, pack_row, parse_row
from stepwell.errors import DecodeError

KINDS = st.sampled_from(STREAM_KINDS)
PACKETS = st.lists(st.binary(min_size=1, max_size=5000).filter(lambda data: data[:2] != b"\x12\x00"), max_size=4)


@given(kind=KINDS, packets=PACKETS, frame=st.integers(0, 10**6), is_sync=st.booleans())
def test_packed_row_is_parsed_as_it_was(kind: str, packets: list[bytes], frame: int, is_sync: bool) -> None:
    row = parse_row(pack_row(kind, packets, frame, is_sync=is_sync))
    assert (row.kind, row.frame, row.is_sync) == (kind, frame, is_sync)
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
