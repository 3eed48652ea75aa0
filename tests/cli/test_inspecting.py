"""``stepwell show``: episodes, steps and sheets."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.cli.inspecting import describe_value, name_of, value_to_json
from stepwell.cli.main import main
from stepwell.store import Segment


def test_show_prints_an_episode(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(toy_path), "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("episode 1  6 steps  terminated\n")
    assert "observation.image  uint8 7x24x32x3  min 40" in out
    assert '"task 1"' in out


def test_show_prints_a_step_with_its_values(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(toy_path), "2:6", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["step_index"] == 6
    assert record["values"]["action"] == [12.0, 13.0]
    assert record["values"]["task"] == "task 2"


def test_negative_steps_count_from_the_last_step_not_the_final_row(
    toy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(toy_path), "2:-1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("episode 2  step 7 of 8\n")
    assert "[14., 15.]" in out


@pytest.mark.parametrize(("where", "allowed"), [("2:8", "-8 to 7"), ("2:-9", "-8 to 7")])
def test_a_step_outside_the_episode_says_what_is_allowed(
    where: str, allowed: str, toy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(toy_path), where]) == 1
    assert allowed in capsys.readouterr().err


def test_show_as_json_says_what_an_episode_holds(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(toy_path), "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"] == {
        "observation.image": {"dtype": "uint8", "shape": [7, 24, 32, 3]},
        "action": {"dtype": "float32", "shape": [6, 2]},
        "task": {"rows": 6},
    }


def test_a_step_and_a_sheet_read_only_the_rows_they_show(
    toy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL.Image")
    reads = []
    read = Segment.read_rows
    monkeypatch.setattr(
        Segment,
        "read_rows",
        lambda self, name, start, stop, **kw: reads.append(stop - start) or read(self, name, start, stop, **kw),
    )
    assert main(["show", str(toy_path), "2:6"]) == 0
    assert reads == [1, 1, 1]
    reads.clear()
    assert main(["show", str(toy_path), "2", "--out", str(tmp_path / "x.png"), "--tiles", "4"]) == 0
    assert reads == [1, 1, 1, 1]


def test_an_episode_that_is_too_large_is_shown_without_reading_it(
    toy_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepwell.cli.inspecting.MAX_READ_BYTES", 10_000)
    assert main(["show", str(toy_path), "1"]) == 0
    out = capsys.readouterr().out
    assert "observation.image  uint8 7x24x32x3, too large to sum up" in out
    assert "[10., 11.]" in out


def test_an_unknown_episode_is_an_error(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(toy_path), "3"]) == 1
    assert capsys.readouterr().err.startswith("EpisodeNotFoundError: ")


def test_a_sheet_shows_the_images(toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pytest.importorskip("PIL.Image")
    out = tmp_path / "deep" / "sheet.png"
    assert main(["show", str(toy_path), "2", "--out", str(out), "--tiles", "4"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    with images.open(out) as sheet:
        assert (80, 80, 80) in {colour for _, colour in sheet.convert("RGB").getcolors(1 << 20)}


def test_a_sheet_of_a_feature_that_is_no_image_is_refused(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(toy_path), "0", "--out", str(tmp_path / "x.png"), "--feature", "action"]) == 1
    assert "FeatureNotFoundError: no image feature 'action'. There are: observation.image." in capsys.readouterr().err


def test_values_are_shown_in_full_when_small_and_as_a_range_when_large() -> None:
    assert describe_value(np.float32([1, 2.5])) == "[1. , 2.5]"
    assert describe_value(np.arange(100)) == "int64 100  min 0  mean 49.5  max 99"
    assert describe_value("a\nb") == '"a\\nb"'
    assert describe_value(b"abc") == "3 bytes"


def test_json_values_are_valid_json_with_nan_as_null() -> None:
    assert value_to_json(np.float32([1, np.nan, np.inf])) == [1.0, None, None]
    assert value_to_json(np.zeros((64, 64))) == {"dtype": "float64", "shape": [64, 64]}
    assert value_to_json(np.bool_(True)) is True


def test_a_sheet_is_of_a_whole_episode(toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(toy_path), "2:3", "--out", str(tmp_path / "x.png")]) == 1
    assert "--out draws a whole episode: give 2, not 2:3." in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_an_address_is_called_by_its_last_part() -> None:
    named = [name_of(place) for place in ("lerobot://./data/pusht/", "lerobot://me/arm@v3.0", Path("data/a.well"))]
    assert named == ["pusht", "arm@v3.0", "a.well"]


def test_images_of_any_size_are_shown_with_the_size_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL.Image")
    store = stepwell.create(tmp_path / "any.well", {"photo": stepwell.Image((None, None, 3))})
    with store.writer() as writer:
        writer.add_episode({"photo": [np.full((20 + k, 40 - k, 3), k, np.uint8) for k in range(4)]})
    read: list[int] = []
    read_rows = Segment.read_rows
    monkeypatch.setattr(
        Segment,
        "read_rows",
        lambda self, name, *rows, **how: read.append(rows[0]) or read_rows(self, name, *rows, **how),
    )
    assert main(["show", str(store.path), "0"]) == 0
    assert "photo  4 rows, the first: uint8 20x40x3  min 0" in capsys.readouterr().out
    assert read == [0]
    assert main(["show", str(store.path), "0:2"]) == 0
    assert "photo  uint8 22x38x3  min 2" in capsys.readouterr().out
    assert main(["show", str(store.path), "0", "--out", str(tmp_path / "sheet.png")]) == 0
    assert (tmp_path / "sheet.png").stat().st_size > 0
    assert main(["info", str(store.path)]) == 0
    assert "?x?x3" in capsys.readouterr().out
