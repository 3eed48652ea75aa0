"""Records by number, of TFRecord files, compressed ones, and ArrayRecord files."""

import gzip
import zlib
from contextlib import suppress

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.tfds import record_files
from stepwell.tfds.framing import framed
from stepwell.tfds.record_files import CompressedFile, TFRecordFile, open_records

RECORDS = [b"a" * number for number in range(50)]
PLAIN = b"".join(map(framed, RECORDS))
PACKED = {
    "gzip": gzip.compress(PLAIN),
    "zlib": zlib.compress(PLAIN),
    "two gzip files in one": gzip.compress(PLAIN[:999]) + gzip.compress(PLAIN[999:]),
}


def all_of(found):
    return [found.data[a:b].tobytes() for a, b in zip(found.starts, found.stops, strict=True)]


@pytest.fixture(params=["plain", *PACKED])
def file(request, tmp_path):
    (tmp_path / "records").write_bytes(PACKED.get(request.param, PLAIN))
    return open_records(str(tmp_path / "records"), "tfrecord")


def test_records_come_by_number_some_at_a_time(file):
    assert isinstance(file, TFRecordFile | CompressedFile)
    assert len(file) == 50
    assert all_of(file.read(3, 4)) == RECORDS[3:7]
    assert all_of(file.read(7, 1)) == RECORDS[7:8]
    assert all_of(file.read(2, 100)) == RECORDS[2:]


def test_a_number_beyond_the_end_is_an_error(file):
    with pytest.raises(FormatError, match="there is no record 50"):
        file.read(50, 1)


def test_not_more_is_read_at_once_than_may_be_held(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "BATCH_BYTES", 100)
    for name, data in {"plain": PLAIN, **PACKED}.items():
        (tmp_path / name).write_bytes(data)
        file = open_records(str(tmp_path / name), "tfrecord")
        assert 1 <= len(file.read(20, 30).starts) <= 6
        assert all_of(file.read(49, 30)) == RECORDS[49:]


def test_where_records_lie_in_the_file_is_told_of_plain_files_only(tmp_path):
    (tmp_path / "plain").write_bytes(PLAIN)
    found = open_records(str(tmp_path / "plain"), "tfrecord").read(5, 2)
    assert PLAIN[found.offset + found.starts[0] :].startswith(RECORDS[5])
    (tmp_path / "packed").write_bytes(PACKED["gzip"])
    assert open_records(str(tmp_path / "packed"), "tfrecord").read(5, 2).offset is None


@pytest.mark.parametrize("name", PACKED)
def test_damaged_compressed_files_are_errors_that_name_the_file(tmp_path, name):
    data = PACKED[name]
    path, harmless = tmp_path / "damaged", 0
    for place in range(2, len(data) - 8, 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :])
        # a header's time or name may be anything
        with suppress(FormatError):
            assert all_of(CompressedFile(str(path)).read(0, 100)) == RECORDS
            assert len(CompressedFile(str(path))) == 50
            harmless += 1
    assert harmless <= 4
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="cut off"):
        len(CompressedFile(str(path)))


def test_records_of_compressed_files_are_compared_with_their_crcs(tmp_path):
    record = bytearray(framed(b"record"))
    record[14] ^= 1
    (tmp_path / "a").write_bytes(gzip.compress(framed(b"first") + bytes(record)))
    with pytest.raises(FormatError, match="record 1, byte 21 of what was compressed"):
        len(CompressedFile(str(tmp_path / "a")))
    assert len(CompressedFile(str(tmp_path / "a"), is_verified=False)) == 2


def test_array_record_files_are_read_the_same_way(image_sets):
    pytest.importorskip("array_record")
    path = next(image_sets.glob("array_record/*/*/*-train.array_record-00000*"))
    file = open_records(str(path), "array_record")
    other = next(image_sets.glob("tfrecord/*/*/*-train.tfrecord-00000*"))
    assert sorted(all_of(file.read(0, 100))) == sorted(all_of(open_records(str(other), "tfrecord").read(0, 100)))
    assert all_of(file.read(3, 2)) == all_of(file.read(0, 100))[3:5]
    assert np.all(file.read(0, 100).stops[:-1] == file.read(0, 100).starts[1:])
    with pytest.raises(FormatError, match="there is no record 10"):
        file.read(10, 1)


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"format 'riegeli'\. Allowed: tfrecord, array_record"):
        open_records(str(tmp_path / "a"), "riegeli")


def test_short_records_read_in_order_need_no_index(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "BATCH_BYTES", 300)
    monkeypatch.setattr(record_files, "index_records", None)
    (tmp_path / "plain").write_bytes(PLAIN)
    file = open_records(str(tmp_path / "plain"), "tfrecord")
    seen = all_of(file.read(0, 2))
    while len(seen) < 50:
        assert file.num_known is None
        assert file.is_next(len(seen))
        found = file.read(len(seen), 9)
        places = found.starts + found.offset, found.stops + found.offset
        assert all_of(found) == [PLAIN[a:b] for a, b in zip(*places, strict=True)]
        seen += all_of(found)
    assert seen == RECORDS
    assert len(file) == 50
    assert all_of(file.read(0, 3)) == RECORDS[:3]


@pytest.mark.parametrize("is_verified", [False, True])
def test_reading_in_order_back_and_ahead_gives_the_same(tmp_path, monkeypatch, is_verified):
    monkeypatch.setattr(record_files, "BATCH_BYTES", 300)
    (tmp_path / "plain").write_bytes(PLAIN)
    file = TFRecordFile(str(tmp_path / "plain"), is_verified=is_verified)
    for first in (0, 3, 0, 20, 0, 3, 49):
        found = all_of(file.read(first, 3))
        assert found == RECORDS[first : first + len(found)]
        assert found


def test_records_before_a_damaged_one_are_read(tmp_path):
    place = len(b"".join(map(framed, RECORDS[:30]))) + 20
    (tmp_path / "plain").write_bytes(PLAIN[:place] + b"#" + PLAIN[place + 1 :])
    file = open_records(str(tmp_path / "plain"), "tfrecord")
    assert all_of(file.read(0, 50)) == RECORDS[:30]
    with pytest.raises(FormatError, match=r"record 30, byte \d+: its bytes"):
        file.read(30, 20)
    (tmp_path / "cut").write_bytes(PLAIN[:place])
    file = open_records(str(tmp_path / "cut"), "tfrecord")
    assert all_of(file.read(0, 50)) == RECORDS[:30]
    with pytest.raises(FormatError, match=r"record 30, byte \d+: the file ends"):
        file.read(30, 20)
