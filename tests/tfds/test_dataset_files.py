"""The files beside the records, and the names that TFDS takes."""

import json

import pytest

from stepwell.errors import SchemaError, StepwellError
from stepwell.tfds.dataset_files import DatasetName, WrittenSplit, class_names, shard_name, write_info
from stepwell.tfds.features import Fields, Leaf, parse_feature

TREE = Fields({"label": Leaf("label", "int64", num_classes=2)})


def test_info_features_and_labels_are_as_tfds_has_them(tmp_path):
    splits = [WrittenSplit("train", 30, (2, 1)), WrittenSplit("val", 7, (1,))]
    name = DatasetName("arm", "1.2.3", "wide")
    labels = {"steps/label": ("left", "röd")}
    write_info(tmp_path, name, splits, TREE, labels, file_format="array_record", description="An arm.")
    info = json.loads((tmp_path / "dataset_info.json").read_text(encoding="utf-8"))
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    assert info == {
        "name": "arm",
        "version": "1.2.3",
        "configName": "wide",
        "description": "An arm.",
        "fileFormat": "array_record",
        "splits": [
            {"name": "train", "numBytes": "30", "shardLengths": ["2", "1"], "filepathTemplate": template},
            {"name": "val", "numBytes": "7", "shardLengths": ["1"], "filepathTemplate": template},
        ],
    }
    assert parse_feature(json.loads((tmp_path / "features.json").read_text())).features["label"].num_classes == 2
    assert (tmp_path / "steps-label.labels.txt").read_text(encoding="utf-8") == "left\nröd\n"


def test_what_is_not_told_is_left_out(tmp_path):
    write_info(tmp_path, DatasetName("arm"), [], TREE, {}, file_format="tfrecord", description="")
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert sorted(info) == ["fileFormat", "name", "splits", "version"]


def test_folders_and_shards_are_named_as_tfds_names_them():
    assert DatasetName("arm").folder == "arm/1.0.0"
    assert DatasetName("arm", "2.0.1", "a+b").folder == "arm/a+b/2.0.1"
    assert shard_name("arm", "val", "tfrecord", 7, 120) == "arm-val.tfrecord-00007-of-00120"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(("name", name) for name in ("Arm", "my-arm", "2arm", "a/b", "", "..", 3)),
        *(("version", version) for version in ("1.0", "1.0.0-rc", "v1.0.0", "1.0.*", "")),
        *(("config", config) for config in ("a/b", "..", "", "a b")),
    ],
)
def test_names_that_tfds_does_not_take_are_refused(kind, given):
    with pytest.raises(StepwellError, match=f"{kind}=.* Allowed: "):
        DatasetName(**{"name": "arm", kind: given})


@pytest.mark.parametrize("names", ["ab", [], ["a", " "], ["a", "a "], ["a\nb"]])
def test_classes_that_a_file_cannot_tell_apart_are_refused(names):
    with pytest.raises(SchemaError, match="here: labels="):
        class_names("here", names)
