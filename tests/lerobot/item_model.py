"""What an item of a LeRobot dataset is, in plain Python and straight from the format: the model of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import stepwell
from stepwell import Array, Image, Text
from stepwell.store import Store
from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot_picture, tiny_lerobot_rows

TOP, SIDE = "observation.images.top", "observation.images.side"
# a camera of each kind; in the dataset's order, between the other features and the index
CAMERAS: dict[str, tuple[str, tuple[int, int]]] = {TOP: ("image", (16, 24)), SIDE: ("video", (8, 12))}
LENGTHS = (5, 7, 3, 6)
INDEXES = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def rows_of(episode: int, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Return the columns of an episode in the order of the features, pictures and the global index among them."""
    length = lengths[episode]
    rows = tiny_lerobot_rows(episode, length)
    rows["index"] = sum(lengths[:episode]) + np.arange(length)
    numbers = {name: values for name, values in rows.items() if name not in INDEXES}
    pictures = {
        key: np.stack([tiny_lerobot_picture(camera, episode, step, size) for step in range(length)])
        for camera, (key, (_, size)) in enumerate(CAMERAS.items())
    }
    return {**numbers, **pictures, **{name: rows[name] for name in INDEXES}}


def info_of(lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Return what meta/info.json says of them."""
    features: dict[str, Any] = {}
    for name, values in rows_of(0, lengths).items():
        if name in CAMERAS:
            features[name] = {"dtype": CAMERAS[name][0], "shape": list(values.shape[1:]), "names": None}
        elif isinstance(values, list):
            features[name] = {"dtype": "string", "shape": [1], "names": None}
        else:
            features[name] = {"dtype": values.dtype.name, "shape": list(values.shape[1:]) or [1], "names": None}
    totals = {"total_episodes": len(lengths), "total_frames": sum(lengths)}
    return {"codebase_version": "v3.0", "fps": 10, "robot_type": "tiny", **totals, "features": features}


def converted_store(path: Path, lengths: Sequence[int] = LENGTHS) -> Store:
    """Write them as a store that was converted from LeRobot."""
    rows = rows_of(0, lengths)
    schema = {
        name: Text()
        if isinstance(values, list)
        else Image(values.shape[1:], codec="png")
        if name in CAMERAS
        else Array(values.shape[1:], values.dtype)
        for name, values in rows.items()
    }
    told = {"info": info_of(lengths), "tasks": list(TINY_TASKS)}
    store = stepwell.create(path, schema, fps=10, metadata={"lerobot": told})
    with store.writer() as writer:
        for episode in range(len(lengths)):
            columns = rows_of(episode, lengths)
            tasks = [TINY_TASKS[task] for task in dict.fromkeys(columns["task_index"].tolist())]
            writer.add_episode(columns, tasks=tasks)
    store.refresh()
    return store


def expected_item(
    episode: int, step: int, deltas: Mapping[str, Sequence[int]], lengths: Sequence[int] = LENGTHS
) -> dict[str, Any]:
    """Return an item by the rules of the format, as arrays and strings; offsets are in steps."""
    rows, length = rows_of(episode, lengths), lengths[episode]
    order = sorted(rows, key=lambda name: CAMERAS.get(name, ("",))[0] != "video")
    item: dict[str, Any] = {}
    for name in order:
        wanted = [min(max(step + delta, 0), length - 1) for delta in deltas[name]] if name in deltas else step
        values = rows[name][step] if isinstance(rows[name], list) else rows[name][wanted]
        if name in CAMERAS:
            values = np.moveaxis(values, -1, -3).astype(np.float32) / np.float32(255)
            if CAMERAS[name][0] == "video" and len(deltas.get(name, ())) == 1:
                values = values[0]
        item[name] = values
    for name, offsets in deltas.items():
        item[f"{name}_is_pad"] = np.array([not 0 <= step + delta < length for delta in offsets])
    return {**item, "task": TINY_TASKS[int(item["task_index"])]} if "task_index" not in deltas else item


def assert_item(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare keys, their order, dtypes, shapes and every byte."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, str):
            assert found[key] == value
            continue
        array: npt.NDArray[Any] = found[key].numpy()
        assert array.dtype == np.asarray(value).dtype, key
        assert array.shape == np.shape(value), key
        assert array.tobytes() == np.ascontiguousarray(value).tobytes(), key
