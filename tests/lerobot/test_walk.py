"""The way of one item through our code: how many Python calls it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from called_files import files_in_python

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

import stepwell
from stepwell.lerobot import LeRobotDataset
from stepwell.testing import tiny_lerobot

from .head_sets import DEPTH_SETS, head_set

MOST_CALLS = 62
CAMERAS = {"observation.images.left": (32, 48), "observation.images.right": (32, 48)}
DELTAS = {"action": [0.0, 0.1, 0.2], "observation.state": [-0.1, 0.0]}


def calls_of(dataset: Any, number: int) -> list[str]:
    """Return the file of each Python function of ours that an item calls, warm."""
    dataset[number]
    return files_in_python(lambda: dataset[number])


# without cameras, and with two in place or in a store
@pytest.mark.parametrize(
    ("kind", "is_stored"), [(None, False), ("png", False), ("png", True), ("video", False), ("video", True)]
)
@pytest.mark.parametrize("deltas", [None, DELTAS], ids=["steps", "windows"])
def test_an_item_with_or_without_two_cameras_takes_few_calls(
    tmp_path: Path, kind: Any, deltas: Any, is_stored: bool
) -> None:
    if kind == "video":
        pytest.importorskip("av")
    cameras = {name: (kind, size) for name, size in CAMERAS.items()} if kind else {}
    source = tiny_lerobot(tmp_path / "set", cameras=cameras)
    if is_stored:
        stepwell.convert(f"lerobot://{source}", tmp_path / "set.well", workers=0, progress=False)
        source = tmp_path / "set.well"
    assert len(calls_of(LeRobotDataset(source, delta_timestamps=deltas), 3)) <= MOST_CALLS


@pytest.mark.parametrize("name", [*DEPTH_SETS, "language"])
def test_an_item_with_a_depth_map_or_with_language_takes_as_many(tmp_path: Path, name: str) -> None:
    pytest.importorskip("av")
    pytest.importorskip("PIL")
    assert len(calls_of(LeRobotDataset(head_set(name, tmp_path)), 3)) <= MOST_CALLS
