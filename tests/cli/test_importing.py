"""``stepwell convert`` of data sets of other systems, and the verbs that read them in place."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import warm_children

pytest.importorskip("pyarrow")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

import stepwell
from stepwell.cli.main import main
from stepwell.errors import LeftOutWarning
from stepwell.progress import RateBar
from stepwell.recorders.resuming import read_plan
from stepwell.testing.lerobot import tiny_lerobot

TOP, SIDE = "observation.images.top", "observation.images.side"
FOLDER_READER = Path(__file__).parents[1] / "formats"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    cameras = {TOP: ("png", (32, 48)), SIDE: ("png", (16, 16))}
    return tiny_lerobot(tmp_path / "set", cameras=cameras, episodes=6, files=2)


def test_a_directory_becomes_a_store_as_it_is(root, tmp_path, capsys):
    assert main(["convert", str(root), str(tmp_path / "x.well"), "--workers", "1"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0].startswith("x.well: 6 episodes  ")
    (line,) = (line.split() for line in told.out.splitlines() if TOP in line)
    assert line[1] == "png" and "copied" in line
    assert told.err == ""
    assert stepwell.open(tmp_path / "x.well").schema[TOP].codec == "png"


def test_an_address_its_episodes_and_codecs(root, tmp_path, capsys):
    words = ["convert", f"lerobot://{root}", str(tmp_path / "x.well"), "--from", "lerobot", "--episodes", "1:3"]
    words += ["--codec", "jpeg", "--option", "quality=80", "--codec", f"{SIDE}=raw", "--workers", "1", "--json"]
    assert main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["num_episodes"] == 2
    store = stepwell.open(tmp_path / "x.well")
    assert [episode.metadata["lerobot_episode"] for episode in store] == [1, 2]
    assert store.schema[TOP] == stepwell.Image((32, 48, 3), codec="jpeg", quality=80)
    assert store.schema[SIDE] == stepwell.Image((16, 16, 3))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--codec", "wrist=jpeg"], "FeatureNotFoundError: no feature 'wrist'"),
        (["--codec", "action=jpeg"], "SchemaError: feature 'action'"),
        (["--codec", "jpeg", "--codec", "png"], "StepwellError: feature of all images has several codecs"),
        (["--option", "quality=9"], "StepwellError: an option of images, which is not converted. Give its codec"),
        (["--episodes", "2:9"], "EpisodeNotFoundError: --episodes 2:9: "),
        (["--from", "tfrecord"], "FormatError: no reader 'tfrecord'"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(words, message, root, tmp_path, capsys):
    assert main(["convert", str(root), str(tmp_path / "x.well"), "--workers", "1", *words]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(message) and told.err.count("\n") == 1 and told.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_features_are_left_out(toy_path, root, tmp_path, capsys):
    target = tmp_path / "x.well"
    assert main(["convert", str(root), str(target), "--ignore", "action", "--ignore", "next.done"]) == 0
    assert not {"action", "next.done"} & set(stepwell.open(target).schema)
    words = ["convert", str(toy_path), str(tmp_path / "y.well"), "--codec", "png", "--ignore", "action"]
    assert main(words) == 1
    assert "StepwellError: options ignore of" in capsys.readouterr().err


def test_revisions_are_for_the_hub(toy_path, root, tmp_path, capsys):
    words = ["convert", str(toy_path), str(tmp_path / "x.well"), "--codec", "png", "--revision", "main"]
    assert main(words) == 1
    assert "FormatError: --revision is of sources on the hub; this one is on this machine" in capsys.readouterr().err
    assert main(["convert", str(root), str(tmp_path / "x.well"), "--revision", "main"]) == 1
    assert "this one is on this machine" in capsys.readouterr().err


def test_a_source_that_is_not_there_is_no_store_to_be_made(tmp_path, capsys):
    assert main(["convert", str(tmp_path / "nothing"), str(tmp_path / "x.well")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("StoreNotFoundError: no store at ") and "there is nothing of this name." in error


def test_a_store_takes_a_codec_for_all_its_images(toy_path, tmp_path):
    assert main(["convert", str(toy_path), str(tmp_path / "x.well"), "--codec", "jpeg", "--workers", "1"]) == 0
    schema = stepwell.open(tmp_path / "x.well").schema
    assert schema["observation.image"].codec == "jpeg" and schema["action"].codec == "raw"


def test_a_failure_says_how_to_go_on_and_info_that_it_is_unfinished(root, tmp_path, capsys):
    other = tiny_lerobot(tmp_path / "v2", version="v2.1", cameras={TOP: ("png", (32, 48))}, episodes=4)
    file = other / "data" / "chunk-000" / "episode_000002.parquet"
    whole = file.read_bytes()
    file.write_bytes(b"PAR1")
    target = tmp_path / "x.well"
    assert main(["convert", str(other), str(target), "--workers", "1"]) == 1
    told = capsys.readouterr().err
    assert f"{target}: 2 of 4 episodes are there. The same command again makes the rest." in told
    assert "episode 2 of" in told and "episode_000002.parquet" in told and "Traceback" not in told
    assert main(["info", str(target)]) == 0
    assert "unfinished       2 of 4; the same call again makes the rest" in capsys.readouterr().out
    assert main(["info", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unfinished"]["num_episodes"] == 4
    file.write_bytes(whole)
    assert main(["convert", str(other), str(target), "--workers", "1", "--codec", "jpeg"]) == 1
    feature = f'made of other things: feature {TOP!r}: codec "png", not codec "jpeg"'
    told = capsys.readouterr().err
    assert feature in told and "same command" not in told
    assert main(["convert", str(root), str(target), "--workers", "1"]) == 1
    assert "unfinished, and made of other things: source " in capsys.readouterr().err
    with pytest.warns(LeftOutWarning, match="files of the source changed"):
        assert main(["convert", str(other), str(target), "--workers", "1"]) == 0
    assert main(["info", str(target)]) == 0
    assert "unfinished" not in capsys.readouterr().out.removeprefix("x.well")


def test_a_ctrl_c_says_how_to_go_on_and_the_same_command_goes_on(root, tmp_path, capsys, monkeypatch):
    def interrupt(self, num_items, *_):
        if num_items >= 2:
            raise KeyboardInterrupt

    words = ["convert", str(root), str(tmp_path / "x.well"), "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(RateBar, "show", interrupt)
        assert main(words) == 130
    assert "2 of 6 episodes are there. The same command again makes the rest." in capsys.readouterr().err
    assert main(words) == 0
    assert main(words) == 1
    assert "StoreExistsError" in capsys.readouterr().err


@pytest.mark.parametrize("num_done", [0, 2])
def test_a_kill_at_any_moment_and_the_same_command_again(num_done, root, tmp_path):
    target = tmp_path / "x.well"
    words = ["convert", str(root), str(target), "--codec", "jpeg", "--workers", "2"]
    process = warm_children.Popen([sys.executable, "-m", "stepwell", *words], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        sealed = [path for path in target.glob("segments/*-????") if path.is_dir()]
        if len(sealed) >= num_done and target.exists():
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    is_done = target.exists() and read_plan(target) is None
    assert main(words) == (1 if is_done else 0)
    assert main(["convert", str(root), str(tmp_path / "y.well"), *words[3:]]) == 0
    assert files_of(target) == files_of(tmp_path / "y.well")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def files_of(store):
    """Return the files of all segments, but for those that have times in them."""
    files = {path.relative_to(store).as_posix(): path for path in sorted(store.glob("segments/*/*"))}
    return {name: file.read_bytes() for name, file in files.items() if file.stem not in ("episodes", "segment")}


def test_verbs_that_read_take_an_address_and_a_directory_that_is_recognised(root, tmp_path, capsys, monkeypatch):
    address = f"lerobot://{root}"
    assert main(["info", address]) == 0
    assert capsys.readouterr().out.startswith(f"<Store {address}  6 episodes")
    assert main(["ls", address, "--last", "1"]) == 0
    assert "lerobot_episode=5" in capsys.readouterr().out
    assert main(["show", address, "2:1"]) == 0
    assert "uint8 32x48x3" in capsys.readouterr().out
    bench = ["--field", "action=0:2", "--seconds", "0.05"]
    assert main(["bench", address, *bench]) == 0
    monkeypatch.chdir(tmp_path)
    for verb, words in {"info": [], "ls": [], "show": ["0"], "bench": bench}.items():
        assert main([verb, "set", *words]) == 0
    assert str(root) in capsys.readouterr().out


def test_a_reader_of_ones_own_is_imported_by_name(tmp_path):
    sys.path.insert(0, str(FOLDER_READER))
    try:
        from folder_reader import write_folder
    finally:
        sys.path.remove(str(FOLDER_READER))
    write_folder(tmp_path / "mine")
    words = ["convert", "mine", "x.well", "--import", "folder_reader", "--workers", "2", "--codec", "top=jpeg"]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER_READER)}
    subprocess.run([sys.executable, "-m", "stepwell", *words], cwd=tmp_path, env=environment, check=True)
    store = stepwell.open(tmp_path / "x.well")
    assert [episode.length for episode in store] == [4, 7, 3, 5]
    np.testing.assert_array_equal(store[1]["action"], np.ones((7, 2)))


def test_a_feature_that_is_left_out_in_two_ways_is_refused(tmp_path, capsys):
    words = [
        "convert",
        str(tmp_path),
        str(tmp_path / "x.well"),
        "--from",
        "tfds",
        "--ignore",
        "a",
        "--with",
        "ignore=b",
    ]
    assert main(words) == 1
    assert "--with ignore=b: ignore is given twice" in capsys.readouterr().err
