"""What a dataset says of itself."""

import json

import pytest
from made_sets import episode, simple_tree, write_set

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.tfds.directories import Directory
from stepwell.tfds.features import walk
from stepwell.tfds.info import label_names, read_info


def made(root, **more):
    return write_set(root, simple_tree(), {"train": [[episode(2)], [episode(3)]], "val": [[episode(1)]]}, **more)


def test_a_real_dataset_is_described(rlds_sets):
    info = read_info(str(rlds_sets / "tfrecord_3shards"))
    assert (info.name, info.version, info.file_format) == ("mini_rlds_sharded", "1.2.3", "tfrecord")
    assert info.splits["train"].shard_lengths == (2, 1, 2)
    assert info.splits["train"].paths[1].endswith("/mini_rlds_sharded-train.tfrecord-00001-of-00003")
    label = next(found for found in walk(info.features) if found.leaf.kind == "label")
    assert label_names(info.directory, label) == ["panda", "ur5"]


def changed(path, **more):
    file = path / "dataset_info.json"
    record = json.loads(file.read_text())
    record["splits"][0] |= more
    file.write_text(json.dumps(record))
    return str(path)


def test_names_of_files_follow_from_the_template(tmp_path):
    path = changed(made(tmp_path), filepathTemplate="{SPLIT}/{DATASET}.{FILEFORMAT}-{SHARD_INDEX}of{NUM_SHARDS}")
    assert read_info(path).splits["train"].paths[1] == f"{path}/train/made.tfrecord-00001of00002"


def test_the_number_of_records_may_be_left_out(tmp_path):
    path = made(tmp_path)
    record = json.loads((path / "dataset_info.json").read_text())
    record["splits"] = [{"name": "train", "numShards": "2"}]
    (path / "dataset_info.json").write_text(json.dumps(record))
    assert read_info(str(path)).splits["train"].shard_lengths is None


@pytest.mark.parametrize(
    "more",
    [
        {"filepathTemplate": "../{SPLIT}"},
        {"filepathTemplate": "/etc/{SPLIT}"},
        {"filepathTemplate": "{WHAT}"},
        {"shardLengths": ["-1"]},
        {"shardLengths": ["x"]},
        {"shardLengths": 5},
        {"name": None, "shardLengths": [[]]},
    ],
    ids=str,
)
def test_what_is_no_description_is_an_error_that_names_the_file(tmp_path, more):
    path = changed(made(tmp_path), **more)
    with pytest.raises(FormatError, match=r"dataset_info\.json: not a description"):
        read_info(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", '"a"'])
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_what_is_no_json_is_an_error_that_names_the_file(tmp_path, name, text):
    path = made(tmp_path)
    (path / name).write_text(text, encoding="latin-1")
    with pytest.raises(FormatError, match=name):
        read_info(str(path))


def test_a_missing_description_is_an_error_that_names_the_file(tmp_path):
    path = made(tmp_path)
    (path / "dataset_info.json").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"dataset_info\.json is not there"):
        read_info(str(path))


def test_names_of_classes_must_be_as_many_as_classes(tmp_path, rlds_sets):
    info = read_info(str(rlds_sets / "tfrecord"))
    label = next(found for found in walk(info.features) if found.leaf.kind == "label")
    assert label_names(Directory(str(tmp_path)), label) is None
    (tmp_path / "episode_metadata-robot_id.labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(FormatError, match=r"3 names\. By features\.json there are 2 classes"):
        label_names(Directory(str(tmp_path)), label)


def test_names_of_classes_are_lines_as_tfds_cuts_them(tmp_path, rlds_sets):
    info = read_info(str(rlds_sets / "tfrecord"))
    label = next(found for found in walk(info.features) if found.leaf.kind == "label")
    names = ["left\u2028arm", "ro\x85bot"]
    (tmp_path / "episode_metadata-robot_id.labels.txt").write_bytes("\r\n".join([*names, "", " "]).encode())
    assert label_names(Directory(str(tmp_path)), label) == names
