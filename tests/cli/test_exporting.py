"""``stepwell export``: what it writes, what it prints."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.formats import open_reader
from stepwell.references.file_spans import FileSpans

pytest.importorskip("pyarrow")
pytest.importorskip("imagecodecs")


def test_a_store_is_written_and_the_table_tells_of_its_features(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(toy_path), str(tmp_path / "toy"), "--cameras", "image", "--workers", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0].startswith("toy: LeRobot v3.0  3 episodes  18 steps  10 fps  ")
    assert [line.split() for line in lines[1:]] == [
        ["observation.image", "image", "24x32x3"],
        ["action", "float32", "2"],
    ]
    assert (tmp_path / "toy/meta/tasks.parquet").exists()


def test_names_episodes_task_and_version_are_chosen(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(toy_path), str(tmp_path / "toy"), "--version", "v2.1", "--episodes", "1:3", "--json"]
    words += ["--feature", "action", "--rename", "action=control", "--task", "count"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["num_episodes"], told["tasks"]) == ("v2.1", 2, ["count"])
    assert told["features"] == {"control": {"dtype": "float32", "shape": [2]}}


def test_episodes_are_appended(toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(toy_path), str(tmp_path / "toy"), "--feature", "action", "--task", "count"]
    assert main(words) == 0
    assert main([*words, "--append", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.split("\n", 2)[2])["num_episodes"] == 6


def test_episodes_that_are_not_there_are_refused(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(toy_path), str(tmp_path / "toy"), "--episodes", "0:9"]) == 1
    assert "--episodes 0:9" in capsys.readouterr().err
    assert not (tmp_path / "toy").exists()


def test_a_store_without_a_rate_is_given_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stepwell.create(tmp_path / "x.well", {"action": stepwell.Array(2)}) as store, store.writer() as writer:
        writer.add_episode({"action": np.zeros((3, 2), np.float32)})
    words = ["export", str(tmp_path / "x.well"), str(tmp_path / "set"), "--task", "rest", "--json"]
    assert main(words) == 1
    assert main([*words, "--fps", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["fps"] == 5


@pytest.mark.parametrize(
    ("target", "words", "kind"),
    [
        ("toy.beton", [], "beton"),
        ("shards", ["--to", "webdataset", "--with", "shard_samples=3"], "webdataset"),
        ("rlds/toy", ["--to", "rlds", "--with", "split=val"], "rlds"),
        ("tfds/toy", ["--to", "tfds"], "tfds"),
    ],
)
def test_other_formats_are_written_and_read_back(toy_path: Path, tmp_path: Path, capsys, target, words, kind):
    words = ["export", str(toy_path), str(tmp_path / target), "--feature", "action", "--json", "--workers", "0", *words]
    assert main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["format"] == kind
    assert record["num_bytes"] > 0
    reader = open_reader(record["path"], options={"split": "val"} if kind == "rlds" else None)
    store = stepwell.open(toy_path, mode="r")
    # in RLDS the observation after the last action is a step of its own
    stop = -1 if kind == "rlds" else None
    written = np.concatenate([columns_of(episode)["action"][:stop] for episode in reader.episodes()])
    assert np.array_equal(written, np.concatenate([episode["action"] for episode in store]))


def columns_of(episode):
    """Return columns as arrays, wherever they lie."""
    return {
        name: column.array() if isinstance(column, FileSpans) else column for name, column in episode.columns.items()
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "beton", "--fps", "3"], "--fps is of LeRobot datasets, not of beton"),
        (["--to", "beton", "--with", "shards=3"], "the writer of beton has no such option. It has: windows"),
        (["--with", "task=x"], "--with is not of LeRobot datasets"),
        (["--to", "webdataset", "--with", "shard_samples=abc"], "shard_samples=abc: allowed is a whole number"),
        (["--to", "webdataset", "--with", "shard_samples=1.5"], "shard_samples=1.5: allowed is a whole number"),
        (["--to", "rlds", "--with", "workers=true"], "workers=true: allowed is a whole number"),
        (["--to", "rlds", "--with", "rename=a"], "rename=a: allowed is an object of JSON"),
        (["--to", "rlds", "--with", "features=action"], "features=action: allowed is a list of JSON"),
        (["--to", "rlds", "--with", "version=1.0"], "version='1.0'"),
        (["--to", "rlds", "--with", "name=Toy"], "name='Toy'"),
    ],
)
def test_options_of_other_formats_are_refused(toy_path: Path, tmp_path: Path, capsys, words, message):
    assert main(["export", str(toy_path), str(tmp_path / "out"), *words]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_directory_that_no_dataset_is_called_by_is_told_with_the_way_out(toy_path: Path, tmp_path: Path, capsys):
    assert main(["export", str(toy_path), str(tmp_path / "Toy-Set"), "--to", "rlds"]) == 1
    assert "name='Toy-Set'. Allowed: lower-case letters" in (told := capsys.readouterr().err)
    assert "--with name=NAME" in told
    words = ["--to", "rlds", "--with", "name=toy", "--workers", "1"]
    assert main(["export", str(toy_path), str(tmp_path / "Toy-Set"), *words]) == 0
    assert (tmp_path / "Toy-Set" / "toy" / "1.0.0" / "features.json").is_file()
