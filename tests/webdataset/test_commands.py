"""The command over shards: converted by their names, shown where they are."""

from pathlib import Path

import pytest
from shards import sample, write_tar  # type: ignore[import-not-found]

from stepwell.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shards").mkdir()
    for number in range(2):
        members = [member for n in (2 * number, 2 * number + 1) for member in sample(n)]
        write_tar(tmp_path / "shards" / f"train-{number}.tar", members)
    return tmp_path / "shards"


@pytest.mark.parametrize("name", ["train-{0..1}.tar", "train-*.tar", ""])
def test_shards_are_converted_by_braces_patterns_and_directory(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(folder / name), str(tmp_path / "a.well"), "--workers", "1"]) == 0
    assert "a.well: 4 episodes  4 steps" in capsys.readouterr().out


def test_braces_may_be_longer_than_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{number:06d}" for number in range(40)]
    for name in names:
        write_tar(tmp_path / f"train-{name}.tar", [("a.txt", b"well")])
    source = f"{tmp_path}/train-{{{','.join(names)}}}.tar"
    assert main(["convert", source, str(tmp_path / "a.well"), "--workers", "1"]) == 0
    assert "a.well: 40 episodes" in capsys.readouterr().out


def test_shards_are_shown_where_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", f"webdataset://{folder}"]) == 0
    assert "4 episodes" in capsys.readouterr().out


def test_a_shard_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path / "none.tar"), str(tmp_path / "a.well")]) != 0
    assert f"no store at {tmp_path}/none.tar: there is nothing of this name" in capsys.readouterr().err
