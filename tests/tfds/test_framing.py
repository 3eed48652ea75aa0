"""Records of TFRecord files: found, checked, and never skipped when they are damaged."""

import os
import struct

import numpy as np
import pytest

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.tfds.framing import PIECE_BYTES, framed, index_records, is_compressed, read_records

RECORDS = [b"", b"a", b"hello" * 20, bytes(1000)]
# longer than a piece, and around its end
LONG = [b"x" * 40, bytes(PIECE_BYTES - 100), b"y" * 40, bytes(3 * PIECE_BYTES + 5), b"z" * 200_000, b"end"]


def written(path, records):
    path.write_bytes(b"".join(map(framed, records)))
    return str(path)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("records", [RECORDS, LONG, []], ids=["short", "long", "none"])
def test_records_are_where_the_index_says(tmp_path, records, is_checked):
    path = written(tmp_path / "a.tfrecord", records)
    index = index_records(path, is_checked=is_checked)
    data = (tmp_path / "a.tfrecord").read_bytes()
    found = [data[offset : offset + size] for offset, size in zip(*index, strict=True)]
    assert found == records


def test_some_records_are_read_at_once(tmp_path):
    path = written(tmp_path / "a.tfrecord", RECORDS)
    index = index_records(path, is_checked=False)
    data = read_records(path, index, 1, 3)
    assert data.tobytes() == b"".join(map(framed, RECORDS[1:3]))


def flipped(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_flipped_bit_is_found_and_its_record_and_byte_are_named(tmp_path, is_long):
    path = tmp_path / "a.tfrecord"
    records = [b"first", bytes(2 * PIECE_BYTES if is_long else 500), b"last"]
    name = written(path, records)
    index = index_records(name, is_checked=False)
    flipped(path, int(index.offsets[1]) + 100)
    with pytest.raises(FormatError, match=rf"{name}: record 1, byte 21: its bytes are not"):
        index_records(name, is_checked=True)
    with pytest.raises(FormatError, match=rf"{name}: record 1, byte 21: its bytes are not"):
        read_records(name, index_records(name, is_checked=False), 0, 3)
    assert len(read_records(name, index, 0, 3, is_checked=False))


def test_a_damaged_size_is_found_without_reading_the_record(tmp_path):
    path = tmp_path / "a.tfrecord"
    name = written(path, RECORDS)
    flipped(path, 16)
    for is_checked in (True, False):
        with pytest.raises(FormatError, match="record 1, byte 16: its size is not what its CRC says"):
            index_records(name, is_checked=is_checked)


def test_a_size_beyond_the_end_is_an_error_before_memory_is_taken(tmp_path):
    from stepwell.tfds.framing import masked_crc32c

    size = struct.pack("<Q", 2**50)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(size + struct.pack("<I", masked_crc32c(size)) + bytes(50))
    with pytest.raises(FormatError, match="record 0, byte 0: the file ends before"):
        index_records(str(path), is_checked=False)


@pytest.mark.parametrize("records", [RECORDS, LONG[:4]], ids=["short", "long"])
def test_a_file_that_was_cut_off_anywhere_is_an_error(tmp_path, records):
    path = tmp_path / "a.tfrecord"
    data = b"".join(map(framed, records))
    edges = set(np.cumsum([len(framed(record)) for record in records]).tolist())
    for length in {*range(1, 60), len(data) - 1, len(data) - 5, len(data) - 200} - edges:
        path.write_bytes(data[:length])
        for is_checked in (True, False):
            with pytest.raises(FormatError, match="the file ends before"):
                index_records(str(path), is_checked=is_checked)


def test_a_file_that_was_cut_off_after_it_was_opened_is_an_error(tmp_path):
    path = tmp_path / "a.tfrecord"
    name = written(path, RECORDS)
    index = index_records(name, is_checked=False)
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(FormatError, match="cut off since"):
        read_records(name, index, 0, 4)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"none\.tfrecord"):
        index_records(str(tmp_path / "none.tfrecord"), is_checked=True)


def test_only_compressed_files_look_compressed(tmp_path):
    # this record's size begins as a gzip file does
    path = written(tmp_path / "a.tfrecord", [bytes(0x8B1F)])
    assert not is_compressed(path)
    (tmp_path / "b").write_bytes(b"\x1f\x8b" + bytes(40))
    assert is_compressed(str(tmp_path / "b"))
    (tmp_path / "c").write_bytes(b"")
    assert not is_compressed(str(tmp_path / "c"))
