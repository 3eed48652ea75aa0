"""What a dataset says of itself."""

import json

import pytest
from made_sets import episode, simple_tree, write_set

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.tfds.dataset_files import Directory, label_names, read_info
from stepwell.tfds.features import Fields, Leaf, walk
from stepwell.tfds.shards import select


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


def test_a_split_that_says_no_number_of_files_is_an_error(tmp_path):
    for number, lost in enumerate(("shardLengths", "splits", "name")):
        file = made(tmp_path / str(number)) / "dataset_info.json"
        text = file.read_text()
        file.write_text(text.replace(f'"{lost}"', f'"{lost[:-1]}X"'))
        with pytest.raises(FormatError, match=r"dataset_info\.json: not a description"):
            select(read_info(str(file.parent)), "train")
    path = changed(made(tmp_path / "empty"), shardLengths=[], numBytes="12")
    with pytest.raises(FormatError, match="12 bytes in no files"):
        read_info(path)


def test_two_splits_of_one_name_are_an_error(tmp_path):
    with pytest.raises(FormatError, match="two splits have one name: val, val"):
        read_info(changed(made(tmp_path), name="val"))


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_of_which_no_records_are_told_is_looked_at(tmp_path, number):
    path = made(tmp_path)
    lengths = ["1", "1"]
    lengths[number] = "0"
    with pytest.raises(FormatError, match=rf"{number:05d}-of-00002: 1 records, by dataset_info\.json none"):
        select(read_info(changed(path, shardLengths=lengths)), "train")
    next(path.glob(f"*{number:05d}-of-00002")).write_bytes(b"")
    assert len(select(read_info(str(path)), "train")) == 1


def test_names_of_classes_that_cannot_be_read_are_an_error(tmp_path):
    path = write_set(tmp_path, Fields({"label": Leaf("label", "int64", num_classes=2)}), {"train": [[]]})
    (path / "label.labels.txt").write_bytes(b"cat\n\xff\n")
    info = read_info(str(path))
    with pytest.raises(FormatError, match=r"label\.labels\.txt cannot be read"):
        label_names(info.directory, next(walk(info.features)))
