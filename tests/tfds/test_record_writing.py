"""Files of records: what is written stands in them byte by byte, and both formats read back."""

import errno
import struct
from pathlib import Path

import numpy as np
import pytest

from stepwell.tfds.record_files import ArrayRecordFile, write_records


def crc32c(data):
    """Compute it bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


RECORDS = [b"", b"abc", bytes(np.random.default_rng(0).integers(0, 256, 5000, np.uint8))]


def test_a_tfrecord_file_is_framed_as_its_format_says(tmp_path):
    assert write_records(tmp_path / "a", RECORDS) == sum(map(len, RECORDS))
    expected = b""
    for record in RECORDS:
        size = struct.pack("<Q", len(record))
        expected += size + masked(size) + record + masked(record)
    assert (tmp_path / "a").read_bytes() == expected


def test_an_array_record_file_reads_back_and_is_the_same_each_time(tmp_path):
    pytest.importorskip("array_record.python.array_record_module")
    for name in "ab":
        assert write_records(tmp_path / name, RECORDS, "array_record") == sum(map(len, RECORDS))
    assert list(ArrayRecordFile(tmp_path / "a")) == RECORDS
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_a_directory_that_is_not_there_is_an_error_of_the_system(tmp_path, file_format):
    if file_format == "array_record":
        pytest.importorskip("array_record.python.array_record_module")
    with pytest.raises(OSError, match="missing"):
        write_records(tmp_path / "missing" / "a", RECORDS, file_format)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_records_that_cannot_be_made_raise_their_own_error(tmp_path, file_format):
    if file_format == "array_record":
        pytest.importorskip("array_record.python.array_record_module")

    def records():
        yield b"abc"
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        write_records(tmp_path / "a", records(), file_format)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_a_disk_that_takes_no_more_is_told_by_its_number(tmp_path, file_format):
    if file_format == "array_record":
        pytest.importorskip("array_record.python.array_record_module")
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match="No space left") as told:
        write_records("/dev/full", [bytes(1 << 16)] * 40, file_format)
    assert told.value.errno == errno.ENOSPC
