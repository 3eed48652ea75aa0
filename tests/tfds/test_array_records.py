"""ArrayRecord files: records by number; what is damaged is refused by name, and never ends the process."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import warm_children

from stepwell.errors import DatasetNotFoundError, FormatError, MissingDependencyError
from stepwell.tfds.record_files import ArrayRecordFile

module = pytest.importorskip("array_record.python.array_record_module")

DATA = Path(__file__).parents[3] / "shared" / "data" / "rlds" / "array_record"
RECORDS = [bytes([number]) * (37 * number) for number in range(50)]
NUM_DAMAGED = 120
# read in a process of its own: a crash of the C++ code must fail one test, not end the run
CHILD = """
import json, sys
from stepwell.errors import StepwellError
from stepwell.testing.damage import check_damage
from stepwell.tfds.record_files import ArrayRecordFile
from pathlib import Path
def read(path):
    with ArrayRecordFile(path) as file:
        return list(file)
path, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
right = read(path)
# what is appended or repeated behind a whole file may give no other records
report = check_damage(path, read, count=count, seed=seed, is_right=lambda found: found == right)
print(json.dumps([dict(report.errors), report.num_read]))
"""


def written(path, group_size=1):
    writer = module.ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize("group_size", [1, 7, 65536])
def test_records_come_by_number_and_in_order_however_they_are_grouped(tmp_path, group_size):
    with ArrayRecordFile(written(tmp_path / "a", group_size)) as file:
        assert len(file) == len(RECORDS)
        assert [file[number] for number in (49, 0, 8)] == [RECORDS[number] for number in (49, 0, 8)]
        assert list(file) == RECORDS


def test_a_number_that_is_not_there_is_an_index_error(tmp_path):
    file = ArrayRecordFile(written(tmp_path / "a"))
    for number in (50, -1):
        with pytest.raises(IndexError, match=f"no record {number}: it has 50"):
            file[number]


def test_it_pickles_as_its_path(tmp_path):
    file = pickle.loads(pickle.dumps(ArrayRecordFile(written(tmp_path / "a"))))
    assert file[3] == RECORDS[3]


def test_a_file_without_records_has_none(tmp_path):
    module.ArrayRecordWriter(str(tmp_path / "none"), "group_size:1").close()
    assert list(ArrayRecordFile(tmp_path / "none")) == []


def test_a_damaged_record_is_named(tmp_path):
    path = written(tmp_path / "a")
    data = bytearray(path.read_bytes())
    data[200:210] = b"\xff" * 10
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"/a: record \d+ cannot be read: .*orrupted"):
        list(ArrayRecordFile(path))


@pytest.mark.parametrize("data", [b"", b"abc" * 1000, bytes(200_000)])
def test_what_is_no_such_file_is_refused_by_name(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(FormatError, match=r"/a: .*Copy or write it again"):
        ArrayRecordFile(tmp_path / "a")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no such file"):
        ArrayRecordFile(tmp_path / "a")


def test_without_the_package_the_pip_line_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[tfds\]"):
        ArrayRecordFile(tmp_path / "a")


def test_damaged_files_are_refused_or_right_and_do_not_end_the_process(tmp_path):
    path = written(tmp_path / "a", group_size=4)
    count = int(os.environ.get("STEPWELL_DAMAGE", NUM_DAMAGED))
    command = [sys.executable, "-c", CHILD, str(path), str(count), "0"]
    done = warm_children.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    errors, num_read = json.loads(done.stdout)
    assert set(errors) <= {"FormatError"}
    assert sum(errors.values()) + num_read == count


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared RLDS sets are not beside this checkout")
def test_the_samples_have_the_records_that_their_info_tells():
    (folder,) = DATA.glob("*/*")
    info = json.loads((folder / "dataset_info.json").read_text())
    for split in info["splits"]:
        (path,) = folder.glob(f"*-{split['name']}.array_record-*")
        assert len(ArrayRecordFile(path)) == sum(map(int, split["shardLengths"]))
