"""The datasets of ``head_sets.zip``, which lerobot 0.6.2 wrote (`make_head_sets.py`), and its items of them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.lerobot import LeRobotDataset

from .make_head_sets import DELTAS

ARCHIVE = Path(__file__).parent / "head_sets.zip"
DEPTH_SETS = ("video", "video_metres", "video_linear", "image", "image_metres")


def head_set(name: str, folder: Path) -> Path:
    """Return the directory of a dataset, unpacked."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder, [each for each in archive.namelist() if each.startswith(f"{name}/")])
    return folder / name


def head_items(root: Path) -> dict[str, Any]:
    """Return what lerobot reads, by "unit/step or window/key": an array of all items, or a list."""
    found = json.loads((root / "items.json").read_text())
    with np.load(root / "items.npz") as arrays:
        return found | dict(arrays)


def check_items(source: Any, expected: dict[str, Any], unit: str = "mm", *, is_window: bool = False) -> None:
    """Compare every item, alone and in a batch, with those of lerobot."""
    deltas = DELTAS if is_window else None
    dataset = LeRobotDataset(source, depth_output_unit=unit, delta_timestamps=deltas)
    kind = f"{unit}/{'window' if is_window else 'step'}/"
    wanted = {place.removeprefix(kind): values for place, values in expected.items() if place.startswith(kind)}
    batch = dataset.__getitems__(range(len(dataset)))
    for number in range(len(dataset)):
        for item in (dataset[number], batch[number]):
            assert item.keys() == wanted.keys()
            for key, values in wanted.items():
                check_value(item[key], values[number])


def check_value(found: Any, expected: Any) -> None:
    """Compare a value bit by bit."""
    if not isinstance(expected, np.ndarray | np.generic):
        assert found == expected
        return
    array = found.numpy()
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)
