"""Which splits a data set has, and which of it was taken, is told where it is looked at and where it is imported."""

import json

import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.formats import import_dataset
from stepwell.formats.splits import TakenSplit, taken_split
from stepwell.tfds import write_rlds

LINE = "train taken, of train (2), val (1); split=NAME takes another"


@pytest.fixture
def arm(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    store = stepwell.create(tmp_path / "arm.well", {"action": stepwell.Array(2)})
    with store.writer() as writer:
        for length in (3, 4, 2):
            writer.add_episode({"action": [[step, length] for step in range(length)]}, terminated=True)
    view = stepwell.View(store)
    splits = {"train": view.select([0, 1]), "val": view.select([2])}
    return write_rlds(splits, tmp_path / "data", name="arm", workers=1, progress=False)


def test_info_of_an_address_tells_the_splits_in_one_line(arm, capsys):
    assert main(["info", f"tfds://{arm}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  splits           {LINE}"
    assert main(["info", f"tfds://{arm}?split=all", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["split"] == {"taken": "all", "splits": {"train": 2, "val": 1}} and record["num_episodes"] == 3


def test_an_import_tells_them_and_so_does_the_store(arm, tmp_path, capsys):
    assert main(["convert", str(arm), str(tmp_path / "x.well"), "--workers", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("x.well: 2 episodes") and told[1] == f"  splits: {LINE}"
    assert main(["info", str(tmp_path / "x.well")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  splits           {LINE}"
    report = import_dataset(arm, tmp_path / "y.well", split="val", workers=1)
    assert report.split == TakenSplit("val", {"train": 2, "val": 1})
    assert report.to_json()["split"]["taken"] == "val"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tfds": {"split": "train", "splits": {"train": 2}}},
        {"splits": {"train": 1, "val": 2}},
        {"mine": {"splits": {"a": 1, "b": 2}}},
        {"mine": {"split": "a", "splits": ["a", "b"]}},
    ],
)
def test_of_one_split_nothing_is_told(metadata):
    assert taken_split(metadata) is None


def test_of_very_many_splits_some_are_named():
    told = str(TakenSplit("a", dict.fromkeys("abcdefghijkl")))
    assert told == "a taken, of a, b, c, d, e, f, g, h and 4 more; split=NAME takes another"
