"""``stepwell verify`` of LeRobot datasets: what it prints, and its exit codes."""

import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from stepwell.cli.main import main
from stepwell.testing.lerobot import tiny_lerobot


@pytest.fixture
def root(tmp_path):
    return tiny_lerobot(tmp_path / "tiny", cameras={}, lengths=(5, 7, 6))


def change_info(root, **values):
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_sound_dataset_exits_with_0(root, capsys):
    assert main(["verify", str(root)]) == 0
    assert capsys.readouterr().out == f"{root} (LeRobot v3.0): 3 episodes, 18 steps: nothing found\n"


def test_an_error_exits_with_1_and_is_printed_with_what_to_do(root, capsys):
    change_info(root, total_frames=19)
    assert main(["verify", f"lerobot://{root}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[1].split()) == "error totals - total_frames is 19 in meta/info.json, there are 18"
    assert lines[2].strip().startswith("-> Correct meta/info.json")


def test_warnings_alone_exit_with_0(root, capsys):
    (root / "meta/stats.json").unlink()
    assert main(["verify", str(root)]) == 0
    assert "1 warning" in capsys.readouterr().out


def test_json_says_the_same(root, capsys):
    change_info(root, total_frames=19)
    assert main(["verify", str(root), "--json", "--deep"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["is_ok"], record["findings"][0]["code"], record["unchecked"]) == (False, "totals", [])


def test_episodes_are_counted_from_either_end(root, capsys):
    assert main(["verify", str(root), "--episodes=-2:", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_episodes"] == 2


def test_a_dataset_without_its_info_is_a_finding_not_a_missing_store(root, capsys):
    (root / "meta/info.json").unlink()
    assert main(["verify", str(root)]) == 1
    captured = capsys.readouterr()
    assert "error  info" in captured.out and "not looked at" in captured.out and captured.err == ""


def test_what_is_not_there_is_one_line_on_standard_error(tmp_path, capsys):
    assert main(["verify", f"lerobot://{tmp_path}/nothing"]) == 1
    assert capsys.readouterr().err.startswith("DatasetNotFoundError: no directory")


def test_a_store_is_verified_as_ever_and_whole(toy_path, capsys):
    assert main(["verify", str(toy_path)]) == 0
    assert "all as written" in capsys.readouterr().out
    assert main(["verify", str(toy_path), "--episodes", "0:1"]) == 1
    assert "leave out --episodes" in capsys.readouterr().err


def test_a_range_without_episodes_is_refused_and_not_called_sound(root, capsys):
    assert main(["verify", str(root), "--episodes", "7:9"]) == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("EpisodeNotFoundError: --episodes: none of ")
