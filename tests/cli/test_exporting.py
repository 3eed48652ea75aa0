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


@pytest.mark.parametrize("name", ["film.gif", "film.AVI", "a.well", "a.h5", "a.json"])
def test_an_ending_that_is_not_written_is_refused(toy_path: Path, tmp_path: Path, capsys, name: str) -> None:
    assert main(["export", str(toy_path), str(tmp_path / name), "--task", "t"]) == 1
    told = capsys.readouterr().err
    assert "Allowed: a name that ends in .beton, .html, .mp4, .rrd, or the name of a directory" in told
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["set.v2", "set-1.0", "set.2026", "set"])
def test_a_directory_may_have_a_dot_in_its_name(toy_path: Path, tmp_path: Path, name: str) -> None:
    words = ["--cameras", "image", "--workers", "0", "--task", "t", "--where", "length > 5"]
    assert main(["export", str(toy_path), str(tmp_path / name), *words]) == 0
    store = stepwell.open(toy_path, mode="r")
    with stepwell.open(f"lerobot://{tmp_path / name}", mode="r") as written:
        assert written.episodes.length.tolist() == [each for each in store.episodes.length.tolist() if each > 5]


def test_a_condition_chooses_what_is_converted_and_exported(toy_path: Path, tmp_path: Path, capsys) -> None:
    """Of a store, and of a set in place, by its marks: the same as ``ls`` lists."""
    assert main(["export", str(toy_path), str(tmp_path / "set"), "--cameras", "image", "--workers", "0"]) == 0
    address = f"lerobot://{tmp_path / 'set'}"
    with stepwell.open(address, mode="r") as store:
        store.mark_episodes([0, 2], "good")
        lengths = store.episodes.length.tolist()
    for number, source in enumerate((address, str(tmp_path / "set"))):
        target = tmp_path / f"{number}.well"
        assert main(["convert", source, str(target), "--where", "mark = good", "--workers", "0"]) == 0
        with stepwell.open(target, mode="r") as made:
            assert made.episodes.length.tolist() == [lengths[0], lengths[2]]
            assert [episode.metadata["mark"] for episode in made] == ["good", "good"]
            assert np.array_equal(made[1]["action"], stepwell.open(address, mode="r")[2]["action"])
    words = [str(tmp_path / "0.well"), str(tmp_path / "part.well")]
    assert main(["convert", *words, "--where", "episode_index = 1", "--workers", "0"]) == 0
    assert len(stepwell.open(words[1], mode="r")) == 1
    capsys.readouterr()
    for verb in ("convert", "export"):
        assert main([verb, str(toy_path), str(tmp_path / "none"), "--where", "length > 1000"]) == 1
        assert "meets the condition: nothing was written" in capsys.readouterr().err
        assert main([verb, str(toy_path), str(tmp_path / "none"), "--where", "lenth > 1"]) == 1
        assert "Did you mean 'length'?" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
