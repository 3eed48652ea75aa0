"""``stepwell convert``: what it makes, what it prints."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.cli.converting import _feature
from stepwell.cli.main import main

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")


def test_a_store_is_converted_and_the_table_tells_of_every_feature(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "small.well"
    words = ["convert", str(toy_path), str(target), "--workers", "1"]
    words += ["--codec", "observation.image=jpeg", "--option", "observation.image.quality=90"]
    words += ["--option", "observation.image.subsampling=444", "--codec", "task=raw"]
    assert main(words) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    # flat pictures are larger as JPEG, which is said
    assert captured.err.startswith("observation.image takes ") and captured.err.count("\n") == 1
    assert lines[0].startswith("small.well: 3 episodes  18 steps  in ")
    assert lines[1].split() == ["feature", "from", "to", "ratio", "PSNR", "worst"]
    assert lines[2].split()[:2] == ["observation.image", "png"]
    assert " jpeg quality=90 subsampling=444 " in lines[2]
    assert " dB at " in lines[2] or " lossless" in lines[2]
    assert [line.split()[0] for line in lines[3:]] == ["action", "task", "all"]
    assert " copied " in lines[3]
    store = stepwell.open(target)
    assert store.schema is not None
    wanted = stepwell.Image((24, 32, 3), codec="jpeg", quality=90, subsampling="444", final=True)
    assert store.schema["observation.image"] == wanted
    assert np.abs(store[2]["observation.image"].astype(int) - 80).max() <= 2


def test_json_has_the_numbers_and_null_for_what_is_infinite(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(toy_path), str(tmp_path / "b.well"), "--codec", "observation.image=raw", "--json"]
    assert main([*words, "--episodes", "1:", "--workers", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    image = record["features"]["observation.image"]
    assert (record["num_episodes"], record["num_steps"]) == (2, 14)
    assert (image["is_lossless"], image["is_copied"], image["psnr_db"]) == (True, False, None)
    assert image["bytes_after"] == 16 * 24 * 32 * 3
    assert record["features"]["action"]["is_copied"] is True


def test_an_option_is_read_as_the_codec_takes_it() -> None:
    feature = stepwell.Array(2)
    assert _feature(feature, "zstd", {"level": "3"}).options == (("level", 3),)
    image = stepwell.Image((8, 8, 3), final=True, names="rgb")
    wanted = stepwell.Image((8, 8, 3), codec="jpeg", subsampling="422", quality=9, final=True, names="rgb")
    assert _feature(image, "jpeg", {"subsampling": "422", "quality": "9"}) == wanted
    # what no codec takes stays a number, for the message
    assert _feature(feature, "zstd", {"level": "3.5"}).options == (("level", 3.5),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--codec", "wrist=jpeg"], "FeatureNotFoundError: no feature 'wrist'"),
        (["--codec", "action=jpeg"], "SchemaError: feature 'action': "),
        (["--codec", "task=zstd", "--codec", "task=raw"], "StepwellError: feature 'task' has several codecs"),
        (["--codec", "task=raw", "--option", "action.level=3"], "StepwellError: an option of 'action', which is not"),
        (["--codec", "observation.image=jpeg", "--option", "observation.image.quality=high"], "option 'quality'"),
        (["--codec", "observation.image=jpeg", "--option", "observation.image.gop=2"], "has no option 'gop'"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    words: list[str], message: str, toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(toy_path), str(tmp_path / "b.well"), *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["toy.well"]


def test_a_damaged_source_is_told_without_a_trace(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(toy_path.glob("segments/*/observation.image.bin"))
    file.write_bytes(bytes(50) + file.read_bytes()[50:])
    assert main(["convert", str(toy_path), str(tmp_path / "b.well"), "--codec", "observation.image=jpeg"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("WorkerError: episode 0 could not be written: DecodeError: feature 'observation.image'")
    assert error.count("\n") == 1


@pytest.mark.parametrize("codec", ["delta", "video"])
def test_show_ls_and_info_work_for_rows_that_need_rows_before_them(
    codec: str, toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av" if codec == "video" else "zstandard")
    pytest.importorskip("PIL.Image")
    path = str(tmp_path / "b.well")
    assert main(["convert", str(toy_path), path, "--codec", f"observation.image={codec}", "--workers", "1"]) == 0
    assert main(["verify", path, "--deep"]) == 0
    assert main(["ls", path]) == 0
    capsys.readouterr()
    assert main(["info", path]) == 0
    assert f"observation.image  {codec}" in capsys.readouterr().out
    assert main(["show", path, "1:5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["observation.image"]["shape"] == [24, 32, 3]
    assert main(["show", path, "1"]) == 0
    assert "observation.image  uint8 7x24x32x3" in capsys.readouterr().out
    assert main(["show", path, "1", "--out", str(tmp_path / "x.png")]) == 0


@pytest.mark.parametrize("episodes", ["1:999", "3:"])
def test_episodes_that_there_are_not_are_refused_with_how_many_there_are(
    toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], episodes: str
) -> None:
    words = ["convert", str(toy_path), str(tmp_path / "part.well"), "--codec", "task=raw", "--workers", "1"]
    assert main([*words, "--episodes", episodes]) == 1
    assert "has 3 episodes, 0:3" in capsys.readouterr().err
    assert main([*words, "--episodes", "1:-1"]) == 0
