"""The demo, at toy size."""

from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.cli.demo import choose_windows
from stepwell.cli.main import main

pytest.importorskip("gym_pusht")
images = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_demo_leaves_a_store_and_a_sheet(codec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--out", str(tmp_path), "--episodes", "2", "--seed", "14", "--image", codec]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "windows/s" in out
    assert "of memcpy" in out
    assert "observation.pixels" in out
    with stepwell.open(tmp_path / "pusht.well", mode="r") as store:
        assert len(store) == 2
        assert store[0].length != store[1].length
        assert store[0].metadata["is_success"] is True
        assert len(store[0]["observation.pixels"]) == store[0].length + 1
    with images.open(tmp_path / "windows.png") as sheet:
        assert len(sheet.convert("RGB").getcolors(1 << 24)) > 1000
    assert main(words) == 0, "a second run replaces the first"


def test_demo_removes_nothing_that_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pusht.well").mkdir()
    (tmp_path / "pusht.well" / "thesis.txt").write_text("dear")
    assert main(["demo", "--out", str(tmp_path), "--episodes", "1"]) == 1
    assert capsys.readouterr().err.startswith("StoreExistsError: ")
    assert (tmp_path / "pusht.well" / "thesis.txt").read_text() == "dear"


def test_chosen_windows_are_of_different_episodes_and_the_last_is_cut() -> None:
    is_pad = np.zeros((12, 16), bool)
    is_pad[5, -3:] = True
    batch = {"episode_index": np.arange(12) % 8, "action_is_pad": is_pad}
    chosen = choose_windows(batch)
    assert chosen[-1] == 5
    assert len({batch["episode_index"][sample] for sample in chosen[:-1]}) == len(chosen) - 1 == 5
