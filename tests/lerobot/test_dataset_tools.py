"""LeRobot's functions that edit datasets, by its names: what they take, give and refuse."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("torch")

from stepwell import lerobot
from stepwell.lerobot import LeRobotDataset
from stepwell.testing import tiny_lerobot

SIDE = "observation.images.side"


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    root = tiny_lerobot(tmp_path / "a", lengths=[5, 7, 6, 4], cameras={SIDE: ("video", (32, 48))})
    return LeRobotDataset("me/a", root, delta_timestamps={"action": [0.0, 0.1]})


def test_a_new_dataset_has_the_options_of_the_old_one_and_lies_below_the_home(dataset, tmp_path):
    shorter = lerobot.delete_episodes(dataset, [1])
    assert shorter.root == tmp_path / "home/me/a_modified" and shorter.repo_id == "me/a_modified"
    assert len(shorter) == 15 and shorter[0]["action"].shape == (2, 2)
    parts = lerobot.split_dataset(dataset, {"train": 0.5, "val": 0.5}, tmp_path / "parts")
    assert [len(part) for part in parts.values()] == [12, 10] and parts["val"].root == tmp_path / "parts/val"
    merged = lerobot.merge_datasets([shorter, parts["val"]], "me/m", concatenate_videos=False)
    assert len(merged) == 25 and len(list(merged.root.glob("videos/**/*.mp4"))) == 2
    lerobot.aggregate_datasets(["me/a_modified", "me/m"], "me/all")
    assert len(LeRobotDataset("me/all", tmp_path / "home/me/all")) == 40


def test_a_dataset_that_is_edited_in_place_sees_it(dataset):
    assert lerobot.modify_tasks(dataset, new_task="T", episode_tasks={2: "S"}) is dataset
    assert [dataset[step]["task"] for step in (0, 12, 21)] == ["T", "S", "T"]
    assert dataset[0]["action"].shape == (2, 2)
    config = SimpleNamespace(vcodec="h264", pix_fmt="yuv420p", g=3, crf=18, preset=None, extra_options={})
    assert lerobot.reencode_dataset(dataset, config) is dataset
    facts = dataset.meta.features[SIDE]["info"]
    assert (facts["video.codec"], facts["video.g"], facts["video.crf"]) == ("h264", 3, 18)
    before = next(dataset.root.glob("videos/**/*.mp4")).stat().st_ino
    lerobot.reencode_dataset(dataset, config)
    assert next(dataset.root.glob("videos/**/*.mp4")).stat().st_ino == before


def test_statistics_of_relative_actions_are_those_of_all_chunks_in_episodes(dataset):
    # of a state that is as wide as an action
    added = {"observation.state": (np.random.default_rng(0).normal(size=(22, 2)), {"dtype": "float32", "shape": [2]})}
    wide = lerobot.modify_features(lerobot.remove_feature(dataset, "observation.state"), added, repo_id="me/w")
    plain = LeRobotDataset("me/w", wide.root)
    rows = [plain[step] for step in range(22)]
    expected = np.concatenate(
        [
            (np.stack([rows[at + k]["action"] for k in range(3)]) - np.asarray(rows[at]["observation.state"]))
            for at in range(20)
            if rows[at]["episode_index"] == rows[at + 2]["episode_index"]
        ]
    )
    lerobot.recompute_stats(wide, relative_action=True, chunk_size=3, relative_exclude_joints=[])
    stats = json.loads((wide.root / "meta/stats.json").read_text())["action"]
    for key, found in {"mean": expected.mean(0), "std": expected.std(0), "q90": np.quantile(expected, 0.9, 0)}.items():
        np.testing.assert_allclose(stats[key], found, atol=1e-5)
    assert stats["count"] == [len(expected)]
    lerobot.recompute_stats(wide)
    stats = json.loads((wide.root / "meta/stats.json").read_text())["action"]
    np.testing.assert_allclose(stats["mean"], np.mean([row["action"] for row in rows], 0), atol=1e-6)


def test_images_become_videos(tmp_path, dataset):
    images = LeRobotDataset("me/i", tiny_lerobot(tmp_path / "i", cameras={SIDE: ("png", (32, 48))}))
    video = lerobot.convert_image_to_video_dataset(images, episode_indices=[0, 2], num_workers=0)
    assert video.repo_id == "me/i_video" and video.meta.video_keys == [SIDE] and video.meta.total_episodes == 2
    assert (video[0][SIDE] - images[0][SIDE]).abs().mean() < 0.05
    with pytest.raises(ValueError, match="image datasets only"):
        lerobot.convert_image_to_video_dataset(dataset)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: lerobot.delete_episodes(d, []), "No episodes to delete"),
        (lambda d: lerobot.delete_episodes(d, [9]), "Invalid episode indices"),
        (lambda d: lerobot.delete_episodes(d, range(4)), "Cannot delete all episodes"),
        (lambda d: lerobot.split_dataset(d, {}), "No splits provided"),
        (lambda d: lerobot.split_dataset(d, {"a": 0.9, "b": 0.9}), "must sum to"),
        (lambda d: lerobot.split_dataset(d, {"a": [0], "b": [0]}), "multiple splits"),
        (lambda _: lerobot.merge_datasets([], "m"), "No datasets to merge"),
        (lerobot.modify_features, "at least one of add_features"),
        (lambda d: lerobot.add_features(d, {"action": (None, {})}), "already exists"),
        (lambda d: lerobot.add_features(d, {"r": (None, {"dtype": "bool"})}), "must contain keys"),
        (lambda d: lerobot.remove_feature(d, "nonexistent"), "not found"),
        (lambda d: lerobot.remove_feature(d, "index"), "Cannot remove required features"),
        (lerobot.modify_tasks, "at least one of new_task"),
        (lambda d: lerobot.modify_tasks(d, task_replacements={"x": "y"}), "unknown tasks"),
        (lerobot.reencode_dataset, "must be provided"),
    ],
)
def test_what_lerobot_refuses_is_refused_in_its_words(call, words, dataset):
    with pytest.raises(ValueError, match=words):
        call(dataset)
    assert len(LeRobotDataset("me/a", dataset.root)) == 22
