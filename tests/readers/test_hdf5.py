"""Rows of HDF5 files are read as values of features, or left where they lie; errors name the file and the dataset."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import FormatError, UntrustedFileError
from stepwell.readers import hdf5
from stepwell.readers.hdf5 import (
    Hdf5Files,
    can_stay,
    datasets_of,
    feature_of,
    is_hdf5,
    read_rows,
    read_varying,
    rows_in_file,
    top_names,
)
from stepwell.schema import Array, Bytes, Image, Text

h5py = pytest.importorskip("h5py")
ROWS = np.arange(6 * 16 * 24 * 3).reshape(6, 16, 24, 3)


@pytest.fixture
def path(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["image"] = ROWS.astype(np.uint8)
        file["group/depth"] = ROWS.astype(">f8")
        file["group/flag"] = np.arange(6) % 2 == 0
        file["group/deep/text"] = ["é" * number for number in range(6)]
        file["one"] = 7
        file["pair"] = np.zeros(6, [("a", "f4"), ("b", "i2")])
        blobs = file.create_dataset("blob", (6,), h5py.vlen_dtype(np.uint8))
        for number in range(6):
            blobs[number] = np.full(number, number, np.uint8)
        file.create_dataset("packed", data=ROWS.astype(np.uint8), compression="gzip", chunks=(2, 16, 24, 3))
        file.create_dataset("empty", (1 << 40, 10), "f4", chunks=(1, 10))
    return str(tmp_path / "a.hdf5")


@pytest.fixture
def file(path: str):
    files = Hdf5Files([path])
    yield files.open(0)
    files.close()


def test_datasets_are_found_by_dotted_names(file):
    assert list(datasets_of(file["group"], "g")) == ["g.deep.text", "g.depth", "g.flag"]
    assert list(datasets_of(file["one"], "one")) == ["one"]


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("image", Image((16, 24, 3))),
        ("packed", Image((16, 24, 3))),
        ("group/depth", Array((16, 24, 3), "float64")),
        ("group/flag", Array((), "bool")),
        ("group/deep/text", Text()),
        ("blob", Bytes()),
    ],
)
def test_rows_are_values_of_their_feature(file, name: str, feature: object):
    assert feature_of(file[name]) == feature
    rows = read_rows(file[name], feature, 2, 5)
    if name == "group/deep/text":
        assert rows == ["éé", "ééé", "éééé"]
    elif name == "blob":
        assert rows == [b"\2\2", b"\3\3\3", b"\4\4\4\4"]
    else:
        expected = np.arange(6) % 2 == 0 if name == "group/flag" else ROWS.astype(feature.np_dtype)
        assert rows.dtype == feature.np_dtype
        assert np.array_equal(rows, expected[2:5])


def test_what_no_feature_holds_is_named(file):
    with pytest.raises(FormatError, match=r"a.hdf5, /one is one value, not a row a step"):
        feature_of(file["one"])
    with pytest.raises(FormatError, match=r"a.hdf5, /pair has elements of .*Allowed: numbers, bool, text and bytes"):
        feature_of(file["pair"])


def test_other_rows_than_the_features_are_refused(file):
    with pytest.raises(FormatError, match=r"/image has \(6, 16, 24, 3\) where 7 rows are needed"):
        read_rows(file["image"], Image((16, 24, 3)), 0, 7)
    with pytest.raises(FormatError, match=r"/image has rows of uint8 \(16, 24, 3\)"):
        read_rows(file["image"], Array((16, 24, 3), "float64"), 0, 6)


def test_rows_that_are_claimed_but_not_stored_cost_no_memory(file):
    with pytest.raises(FormatError, match=r"/empty claims \d+ bytes, of which 0 are stored: damaged"):
        read_rows(file["empty"], feature_of(file["empty"]), 0, 1 << 40)


def test_plain_rows_stay_where_they_lie(path: str, file):
    assert can_stay(file["image"], Image((16, 24, 3)), path)
    assert not can_stay(file["packed"], Image((16, 24, 3)), path)
    assert not can_stay(file["group/depth"], Array((16, 24, 3), "float64"), path)
    assert not can_stay(file["group/flag"], Array((), "bool"), path)
    spans = rows_in_file([(file["image"], 1, 3), (file["image"], 5, 6)], Image((16, 24, 3)), [path], 0)
    assert np.array_equal(spans.array(), ROWS.astype(np.uint8)[[1, 2, 5]])


def test_rows_beyond_the_end_of_a_file_are_refused(path: str, file):
    offset = file["image"].id.get_offset()
    os.truncate(path, offset + 3 * 16 * 24 * 3)
    with pytest.raises(FormatError, match=r"/image lies beyond the end of its file"):
        rows_in_file([(file["image"], 0, 4)], Image((16, 24, 3)), [path], 0)


def test_a_file_is_opened_anew_where_it_is_sent(path: str):
    files = Hdf5Files([path, path])
    first = files.open(0)
    assert files.open(0) is first
    assert files.datasets(0)["group.flag"] is files.datasets(0)["group.flag"]
    again = pickle.loads(pickle.dumps(files))
    assert np.array_equal(again.datasets(0)["image"][2], ROWS[2].astype(np.uint8))
    second = files.open(1)
    assert not first
    assert np.array_equal(files.datasets(1)["image"][1], second["image"][1])
    files.close()
    assert not second
    again.close()


def test_what_is_no_hdf5_file_is_told(tmp_path: Path, path: str):
    assert is_hdf5(path)
    assert top_names(path) >= {"image", "group"}
    (tmp_path / "b.hdf5").write_bytes(b"nothing of the kind")
    assert not is_hdf5(str(tmp_path / "b.hdf5"))
    assert not is_hdf5(str(tmp_path / "c.hdf5"))
    assert not is_hdf5("http://somewhere/a.hdf5")
    assert top_names(str(tmp_path / "b.hdf5")) is None
    with pytest.raises(FormatError, match=r"b\.hdf5"):
        Hdf5Files([str(tmp_path / "b.hdf5")]).open(0)
    with pytest.raises(FormatError, match=r"c.hdf5 is not there"):
        Hdf5Files([str(tmp_path / "c.hdf5")]).open(0)


def test_a_link_to_another_file_is_refused_before_the_file_is_open(path: str, tmp_path: Path):
    with h5py.File(tmp_path / "linked.hdf5", "w") as linked:
        linked["image"] = h5py.ExternalLink("a.hdf5", "/image")
    files = Hdf5Files([str(tmp_path / "linked.hdf5")])
    with pytest.raises(UntrustedFileError, match=r"/image is a link to 'a\.hdf5', another file"):
        files.open(0)
    with pytest.raises(UntrustedFileError):
        top_names(files.paths[0])


def test_datasets_that_dots_make_alike_are_refused(tmp_path: Path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["a/b"], file["a.b"] = [1], [2]
        with pytest.raises(FormatError, match=r"a\.hdf5: two features are called 'a\.b'"):
            datasets_of(file)


def test_threads_take_turns(path: str):
    def values(number: int) -> bool:
        return all(
            read_varying(path, "/group/deep/text", number, number + 1) == [b"\xc3\xa9" * number] for _ in range(50)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(values, range(4)))


def test_an_answer_that_was_interrupted_is_not_taken_for_the_next(path: str, monkeypatch: pytest.MonkeyPatch):
    def interrupted(child):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(hdf5, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_varying(path, "/group/deep/text", 3, 4)
    assert read_varying(path, "/group/deep/text", 1, 2) == [b"\xc3\xa9"]


def test_a_request_of_any_length_is_written_whole(path: str):
    with pytest.raises(FormatError, match="KeyError"):
        read_varying(path, "/none" * 50_000, 0, 1)
    assert read_varying(path, "/group/deep/text", 1, 2) == [b"\xc3\xa9"]


def test_a_fork_reads_with_a_process_of_its_own_and_leaves_that_of_its_parent(path: str):
    script = f"""
import os, warnings
warnings.simplefilter("error")
from stepwell.readers.hdf5 import read_varying
def show():
    print(read_varying({path!r}, "/group/deep/text", 2, 3), flush=True)
show()
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
show()
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    told = str(["éé".encode()])
    assert (found.stdout.splitlines(), found.stderr) == ([told, told, "0", told], "")
