"""Options beside addresses, ``--with``, on the verbs that read; and what is said of a path that is no store."""

import json
from pathlib import Path

import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.tfds import write_rlds

VERBS = {
    "info": [],
    "ls": [],
    "show": ["0"],
    "head": [],
    "stats": [],
    "verify": [],
    "bench": ["--seconds", "0.05", "--field", "action=0:2"],
}


@pytest.fixture
def arm(toy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of two splits, of two episodes and of one."""
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    with stepwell.open(toy_path, mode="r") as store:
        view = stepwell.View(store)
        return Path(
            write_rlds({"train": view.select([0, 1]), "val": view.select([2])}, tmp_path, name="arm", workers=1)
        )


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_take_options_beside_an_address(arm: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [verb, f"rlds://{arm}", *VERBS[verb], "--json"]
    assert main([*command, "--with", "split=val"]) == 0
    told = capsys.readouterr().out
    assert main([*command, "--with", "no=1"]) == 1
    assert "the reader 'rlds' has no option 'no'. It has: split" in capsys.readouterr().err
    if verb in ("info", "ls", "show"):
        # the last images are a step in RLDS
        assert '"num_steps": 9' in told or '"length": 9' in told


@pytest.mark.parametrize("verb", VERBS)
def test_stores_have_no_options(toy_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, str(toy_path), *VERBS[verb], "--with", "mode=a"]) == 1
    assert "--with" in (told := capsys.readouterr().err) and "eave it out" in told


def test_an_option_is_given_once(arm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = ["--with", "split=val"]
    for words in ([f"rlds://{arm}", *once, *once], [f"rlds://{arm}?split=val", *once]):
        assert main(["info", *words]) == 1
        assert "Give it once" in capsys.readouterr().err


def test_options_of_lerobot_are_texts_there_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    from stepwell.testing.lerobot import tiny_lerobot

    address = f"lerobot://{tiny_lerobot(tmp_path / 'tiny', cameras={}, lengths=(5, 7))}"
    told = ["--with", "ignore=action, observation.state", "--with", "tolerance=0.1", "--with", "local_files_only=no"]
    assert main(["info", address, "--json", *told]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)["features"]}
    assert "timestamp" in names and not names & {"action", "observation.state"}
    assert main(["info", address, "--with", "tolerance=much"]) == 1
    assert "tolerance=much: no number" in capsys.readouterr().err
    assert main(["verify", address, "--with", "tolerance=1"]) == 1
    assert "--with is of other data sets" in capsys.readouterr().err


def test_verbs_take_the_path_of_a_data_set_that_is_recognised(
    arm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(arm.parent)
    told = []
    for name in (arm.name, f"tfds://./{arm.name}"):
        assert main(["info", "--json", name]) == 0
        told.append(json.loads(capsys.readouterr().out)["features"])
        for verb in ("ls", "verify"):
            assert main([verb, name]) == 0
            told.append(capsys.readouterr().out)
    assert told[:2] == told[3:5]
    assert told[2].endswith(told[5].removeprefix(f"tfds://./{arm.name}")), told
    (arm.parent / "empty").mkdir()
    assert main(["verify", "empty"]) == 1
    assert "there is neither store.json nor segments" in capsys.readouterr().err


def test_every_verb_that_reads_takes_a_directory_of_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("uvicorn")
    from stepwell.testing.lerobot import tiny_lerobot

    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tiny_lerobot(tmp_path / "arm", cameras={}, lengths=(5, 7))
    for verb, *words in (
        ["info"],
        ["ls"],
        ["show", "0"],
        ["head"],
        ["stats"],
        ["verify"],
        ["view", "--once"],
        ["diff", "lerobot://./arm"],
        ["bench", "--seconds", "0.05", "--field", "action=0:2"],
        ["export", "shards", "--to", "webdataset", "--workers", "0"],
        ["convert", "arm.well", "--workers", "1"],
        ["split", "parts", "a=0"],
        ["rm", "0", "--yes"],
    ):
        assert main([verb, "arm", *words]) == 0, (verb, capsys.readouterr().err)
    assert main(["rm", "lerobot://./arm", "0", "--yes"]) == 1
    assert "Leave at least one" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["rm", "lerobot://lerobot/pusht", "0", "--yes"])
    assert "is an address, and what is there is read in place, never changed" in capsys.readouterr().err


def test_a_path_that_looks_like_several_formats_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["tfds", "webdataset"]
    monkeypatch.setattr("stepwell.formats.opening._reader_names", lambda path: names)
    assert main(["info", str(tmp_path)]) == 1
    assert "looks like a data set of tfds or webdataset" in capsys.readouterr().err
