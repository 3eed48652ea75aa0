"""The way of one item through our code: how many Python calls it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from called_files import files_in_python

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from stepwell.lerobot import LeRobotDataset
from stepwell.testing import tiny_lerobot

# where frames are found in their files and decoded
DECODING = ("codecs/", "references/", "files/", "store/decode.py", "windows/decode.py", "lerobot/parquet_")
CAMERAS = {"observation.images.left": (32, 48), "observation.images.right": (32, 48)}
DELTAS = {"action": [0.0, 0.1, 0.2], "observation.state": [-0.1, 0.0]}


def calls_of(dataset: Any, number: int) -> list[str]:
    """Return the file of each Python function of ours that an item calls, warm."""
    dataset[number]
    return files_in_python(lambda: dataset[number])


@pytest.mark.parametrize("deltas", [None, DELTAS], ids=["steps", "windows"])
def test_an_item_without_cameras_takes_at_most_sixty_calls(tmp_path: Path, deltas: Any) -> None:
    dataset = LeRobotDataset(tiny_lerobot(tmp_path / "set", cameras={}), delta_timestamps=deltas)
    assert len(calls_of(dataset, 3)) <= 60


@pytest.mark.parametrize(("kind", "per_camera"), [("png", 40), ("video", 75)])
@pytest.mark.parametrize("deltas", [None, DELTAS], ids=["steps", "windows"])
def test_an_item_of_two_cameras_takes_at_most_sixty_calls_beside_decoding(
    tmp_path: Path, kind: Any, per_camera: int, deltas: Any
) -> None:
    if kind == "video":
        pytest.importorskip("av")
    root = tiny_lerobot(tmp_path / "set", cameras={name: (kind, size) for name, size in CAMERAS.items()})
    calls = calls_of(LeRobotDataset(root, delta_timestamps=deltas), 3)
    assert sum(not name.startswith(DECODING) for name in calls) <= 60
    assert len(calls) <= 60 + 2 * per_camera
