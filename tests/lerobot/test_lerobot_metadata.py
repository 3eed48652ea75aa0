"""LeRobotDatasetMetadata: the metadata of a directory, without its data."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from stepwell.errors import DatasetNotFoundError, FeatureNotFoundError, FormatError, SchemaError
from stepwell.lerobot import LeRobotDatasetMetadata, LeRobotRecorder
from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot

TOP, SIDE = "observation.images.top", "observation.images.side"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meta") / "tiny"
    return Path(tiny_lerobot(path, cameras={TOP: ("png", (16, 24)), SIDE: ("video", (16, 24))}, files=2))


def test_it_has_the_names_of_lerobots_class(root: Path) -> None:
    meta = LeRobotDatasetMetadata("me/tiny", root)
    assert (meta.repo_id, meta.root, meta.revision) == ("me/tiny", root, None)
    assert (meta.total_episodes, meta.fps, meta.camera_keys, meta.depth_keys) == (3, 10, [TOP, SIDE], [])
    assert meta.episodes is not None and meta.tasks is not None
    assert meta.episodes["dataset_to_index"][-1] == meta.total_frames
    assert (meta.tasks.iloc[1].name, meta.get_task_index(TINY_TASKS[0])) == (TINY_TASKS[1], 0)
    assert meta.stats is not None and meta.stats["action"]["mean"].shape == (2,)
    assert meta.url_root == "hf://datasets/me/tiny"
    assert (meta.info.fps, meta.info["fps"], meta.has_language_columns) == (10, 10, False)
    assert meta.features["observation.state"]["shape"] == (4,)


def test_paths_are_those_of_the_files(root: Path) -> None:
    meta = LeRobotDatasetMetadata("me/tiny", root)
    for episode in range(3):
        assert (root / meta.get_data_file_path(episode)).is_file()
        assert (root / meta.get_video_file_path(episode, SIDE)).is_file()
    assert meta.data_path.format(chunk_index=0, file_index=0) == meta.get_data_file_path(0).as_posix()
    assert "{video_key}" in (meta.video_path or "")
    with pytest.raises(IndexError, match="no episode 3 among 3"):
        meta.get_data_file_path(3)
    with pytest.raises(FeatureNotFoundError, match=SIDE):
        meta.get_video_file_path(0, TOP)


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_older_versions_have_files_of_their_own(tmp_path: Path, version: str) -> None:
    root = Path(tiny_lerobot(tmp_path / "old", version=version, cameras={SIDE: ("video", (16, 24))}))
    meta = LeRobotDatasetMetadata("me/old", root)
    assert len({meta.get_data_file_path(episode) for episode in range(3)}) == 3
    assert (root / meta.get_video_file_path(2, SIDE)).is_file()


def test_it_reads_no_data(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "meta", tmp_path / "bare" / "meta")
    assert LeRobotDatasetMetadata("me/tiny", tmp_path / "bare").total_episodes == 3


def test_episodes_are_filtered_by_their_rows(root: Path) -> None:
    meta = LeRobotDatasetMetadata("me/tiny", root)
    assert meta.episodes is not None
    longest = max(meta.episodes["length"])
    found = meta.filter_episodes(lambda row: row["length"] == longest)
    assert found == [i for i, length in enumerate(meta.episodes["length"]) if length == longest]
    assert meta.filter_episodes(lambda row: True, [2, 0, 9]) == [0, 2]


def test_features_are_left_out_and_the_file_keeps_them(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    meta = LeRobotDatasetMetadata("me/tiny", tmp_path / "copy", ignore=[SIDE])
    assert SIDE not in meta.features
    meta.update_chunk_settings(chunks_size=7)
    written = json.loads((tmp_path / "copy/meta/info.json").read_text())
    assert (written["chunks_size"], SIDE in written["features"]) == (7, True)


def test_sizes_of_files_are_changed_on_the_disk(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    meta = LeRobotDatasetMetadata("me/tiny", tmp_path / "copy")
    meta.update_chunk_settings(data_files_size_in_mb=5)
    expected = {"chunks_size": 1000, "data_files_size_in_mb": 5.0, "video_files_size_in_mb": 200.0}
    assert meta.get_chunk_settings() == expected
    assert LeRobotDatasetMetadata("me/tiny", tmp_path / "copy").get_chunk_settings() == expected
    with pytest.raises(SchemaError, match="chunks_size must be positive"):
        meta.update_chunk_settings(chunks_size=0)


def test_a_copy_knows_the_same(root: Path) -> None:
    meta = pickle.loads(pickle.dumps(LeRobotDatasetMetadata("me/tiny", root)))
    assert (meta.episodes["episode_index"], meta.info.fps) == ([0, 1, 2], 10)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="never looked for on the hub"):
        LeRobotDatasetMetadata("me/tiny", tmp_path)
    with pytest.raises(FormatError, match="bucket"):
        LeRobotDatasetMetadata("me/tiny", tmp_path, repo_type="bucket")  # type: ignore[arg-type]


def test_lerobots_home_is_looked_into(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(root, tmp_path / "me" / "tiny")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    assert LeRobotDatasetMetadata("me/tiny").root == tmp_path / "me" / "tiny"
    with pytest.raises(DatasetNotFoundError, match="cache"):
        LeRobotDatasetMetadata("me/tiny", force_cache_sync=True, cache_dir=tmp_path / "no", local_files_only=True)


def test_an_empty_dataset_is_made_and_gone_on_with(tmp_path: Path) -> None:
    features = {"state": {"dtype": "float32", "shape": (2,), "names": None}}
    root = tmp_path / "new"
    meta = LeRobotDatasetMetadata.create("me/new", 10, features, "arm", root, chunks_size=5, video_files_size_in_mb=3)
    assert (meta.total_episodes, meta.episodes, meta.tasks, meta.stats) == (0, None, None, None)
    assert (meta.robot_type, meta.chunks_size, meta.video_files_size_in_mb) == ("arm", 5, 3.0)
    with pytest.raises(FileExistsError):
        LeRobotDatasetMetadata.create("me/new", 10, features, root=root)
    with LeRobotRecorder.resume(root) as recorder:
        recorder.add_frame({"state": np.zeros(2, np.float32), "task": "wait"})
        recorder.save_episode()
    found = LeRobotDatasetMetadata("me/new", root)
    assert (found.total_episodes, found.chunks_size, found.robot_type) == (1, 5, "arm")
    assert found.stats is not None and found.stats["state"]["count"].tolist() == [1]


def test_an_empty_dataset_gets_the_facts_of_its_videos(tmp_path: Path) -> None:
    pytest.importorskip("av")
    features = {SIDE: {"dtype": "video", "shape": (16, 24, 3), "names": ["height", "width", "channels"]}}
    with pytest.raises(SchemaError, match="use_videos=False"):
        LeRobotDatasetMetadata.create("me/new", 10, features, root=tmp_path / "no", use_videos=False)
    LeRobotDatasetMetadata.create("me/new", 10, features, root=tmp_path / "new")
    with LeRobotRecorder.resume(tmp_path / "new") as recorder:
        recorder.add_frame({SIDE: np.zeros((16, 24, 3), np.uint8), "task": "wait"})
        recorder.save_episode()
    info = LeRobotDatasetMetadata("me/new", tmp_path / "new").info
    assert info.features[SIDE]["info"]["video.codec"] == "h264"
