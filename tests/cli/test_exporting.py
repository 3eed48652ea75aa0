"""``stepwell export``: what it writes, what it prints."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.cli.main import main

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
