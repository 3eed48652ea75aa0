"""The metadata by LeRobot's names."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import stepwell
from stepwell.errors import FeatureNotFoundError, WindowError
from stepwell.lerobot.meta_tables import EpisodeRows, TaskRows
from stepwell.lerobot.meta_view import DatasetMeta, LeRobotDatasetMetadata, dataset_info
from stepwell.store import Store
from stepwell.testing import tiny_store
from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot

from .item_model import LENGTHS, SIDE, TOP, converted_store, info_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return converted_store(tmp_path / "a.well")


@pytest.fixture
def meta(store: Store) -> DatasetMeta:
    return DatasetMeta(store, repo_id="me/tiny")


def test_attributes_have_lerobots_names(meta: DatasetMeta) -> None:
    assert meta.info == {**info_of(), "features": meta.features}
    assert (meta.fps, meta.robot_type, meta.repo_id) == (10, "tiny", "me/tiny")
    assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (4, 21, 3)
    assert (meta.camera_keys, meta.image_keys, meta.video_keys) == ([TOP, SIDE], [TOP], [SIDE])
    assert list(meta.features) == list(info_of()["features"])
    # dataset_to_policy_features of LeRobot hands them on, and policies compare them with tuples
    assert meta.features["observation.state"]["shape"] == meta.shapes["observation.state"] == (4,)
    assert meta.names["action"] is None
    assert "21 frames" in repr(meta)


def test_episodes_are_asked_for_by_column_and_by_number(meta: DatasetMeta) -> None:
    episodes = meta.episodes
    assert len(episodes) == 4
    assert episodes["length"] == list(LENGTHS)
    assert (episodes["dataset_from_index"], episodes["dataset_to_index"]) == ([0, 5, 12, 15], [5, 12, 15, 21])
    assert episodes[1]["tasks"] == [TINY_TASKS[1], TINY_TASKS[2]]
    assert episodes[-1]["episode_index"] == 3
    assert episodes[1:3]["length"] == [7, 3]
    assert [episode["length"] for episode in episodes] == list(LENGTHS)
    assert "length" in episodes.column_names
    assert episodes is meta.episodes


def test_a_column_that_there_is_not_is_named() -> None:
    with pytest.raises(FeatureNotFoundError, match=r"'lenght'.*length"):
        EpisodeRows({"length": [1]})["lenght"]
    with pytest.raises(IndexError):
        EpisodeRows({"length": [1]})[1]


def test_tasks_are_asked_for_by_number_and_by_text(meta: DatasetMeta) -> None:
    assert meta.tasks.iloc[2].name == TINY_TASKS[2]
    assert meta.tasks.loc[TINY_TASKS[1]].task_index == 1
    assert (list(meta.tasks.index), len(meta.tasks)) == (list(TINY_TASKS), 3)
    assert meta.get_task_index(TINY_TASKS[1]) == 1
    assert meta.get_task_index("fly") is None
    with pytest.raises(FeatureNotFoundError, match="task_index"):
        TaskRows(["a"])["task"]


def test_statistics_of_a_store_are_computed_and_may_be_changed(meta: DatasetMeta) -> None:
    stats = meta.stats
    assert stats is not None
    assert stats[TOP]["mean"].shape == (3, 1, 1)
    stats[TOP]["mean"] = 0.5
    assert meta.stats[TOP]["mean"] == 0.5  # type: ignore[index]


def test_a_copy_knows_the_same(meta: DatasetMeta) -> None:
    copy = pickle.loads(pickle.dumps(meta))
    assert copy.info == meta.info
    assert copy.episodes["length"] == list(LENGTHS)


def test_a_store_of_another_origin_is_described_as_lerobot_would(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "tiny.well", lengths=(4, 2))
    info = dataset_info(store)
    assert (info["fps"], info["total_episodes"], info["total_frames"]) == (10, 2, 6)
    assert info["features"]["observation.image"]["dtype"] == "image"
    assert info["features"]["action"] == {"dtype": "float32", "shape": (2,), "names": None}
    assert info["features"]["task"]["dtype"] == "string"
    assert info["features"]["timestamp"] == {"dtype": "float32", "shape": (1,), "names": None}
    assert list(info["features"])[-1] == "task_index"
    assert DatasetMeta(store, repo_id="tiny").tasks.index == [""]


def test_what_a_store_lacks_is_left_out_and_what_varies_in_shape_too(tmp_path: Path) -> None:
    told = {"info": info_of(), "tasks": []}
    features = {"action": stepwell.Array(2), "points": stepwell.Array((None, 3)), "extra": stepwell.Array((), "int64")}
    store = stepwell.create(tmp_path / "a.well", features, fps=10, metadata={"lerobot": told})
    info = dataset_info(store)
    indexes = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    assert list(info["features"]) == ["action", *indexes, "extra"]
    assert info["total_episodes"] == 0


def test_index_features_keep_the_order_of_the_dataset_whichever_are_stored(tmp_path: Path) -> None:
    features = {"task_index": stepwell.Array((), "int32"), "action": stepwell.Array(2)}
    own = stepwell.create(tmp_path / "own.well", features, fps=10)
    indexes = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    assert list(dataset_info(own)["features"]) == ["action", *indexes]
    assert dataset_info(own)["features"]["task_index"]["dtype"] == "int32"
    told = {"info": info_of(), "tasks": []}
    copy = stepwell.create(tmp_path / "copy.well", features, fps=10, metadata={"lerobot": told})
    assert list(dataset_info(copy)["features"]) == ["action", *indexes]


def test_a_rate_that_is_no_whole_number_stays_one(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"action": stepwell.Array(2)}, fps=29.97)
    assert dataset_info(store)["fps"] == 29.97


def test_a_store_that_is_empty_of_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WindowError, match="no features"):
        dataset_info(stepwell.create(tmp_path / "a.well", fps=10))


def test_tools_are_those_of_the_file_or_say(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "set", cameras={})
    meta = LeRobotDatasetMetadata("me/set", root)
    assert [each["function"]["name"] for each in meta.tools] == ["say"]
    meta.tools[0]["function"]["name"] = "changed"
    assert meta.tools[0]["function"]["name"] == "say"
    meta.tools = [{"type": "function", "function": {"name": "point"}}]
    assert LeRobotDatasetMetadata("me/set", root).tools == [{"type": "function", "function": {"name": "point"}}]
    meta.tools = None
    assert "tools" not in json.loads((root / "meta/info.json").read_text())
    assert meta.tools[0]["function"]["name"] == "say"
