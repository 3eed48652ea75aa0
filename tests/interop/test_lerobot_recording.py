"""Recordings, both ways: each goes on with what the other has recorded, and lerobot reads all of it."""

import numpy as np
import pytest
from interop_sets import FPS, opened

from stepwell.lerobot import LeRobotRecorder

pytest.importorskip("torch")
NAMES = ["height", "width", "channels"]
FEATURES = {
    "observation.images.top": {"dtype": "video", "shape": (32, 48, 3), "names": NAMES},
    "observation.images.side": {"dtype": "image", "shape": (16, 24, 3), "names": NAMES},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
}
TASKS = ("push", "pull", "lift", "throw")
# two encoders of video, none of them exact
ATOL = 8 / 255
# as root, SVT-AV1, which lerobot takes otherwise, may stop for ever
VCODEC = "h264"


def frame(episode, step):
    shade = (37 * episode + 5 * step) % 256
    return {
        "observation.images.top": np.full((32, 48, 3), shade, np.uint8),
        "observation.images.side": np.full((16, 24, 3), shade, np.uint8),
        "observation.state": np.array([episode, step, 0.5], "f4"),
        "task": TASKS[episode % 4],
    }


def record_here(recorder, episodes):
    with recorder:
        for _ in range(episodes):
            episode = recorder.num_episodes
            for step in range(3 + episode):
                recorder.add_frame(frame(episode, step))
            assert recorder.save_episode() == episode


def record_there(dataset, episodes):
    for _ in range(episodes):
        episode = dataset.num_episodes
        for step in range(3 + episode):
            dataset.add_frame(frame(episode, step))
        dataset.save_episode()
    dataset.finalize()


def check(root, episodes):
    dataset = opened(root)
    rows = [(episode, step) for episode in range(episodes) for step in range(3 + episode)]
    assert len(dataset) == len(rows)
    for index, (episode, step) in enumerate(rows):
        item, wanted = dataset[index], frame(episode, step)
        assert (item["index"], item["episode_index"], item["frame_index"]) == (index, episode, step)
        assert item["task"] == wanted["task"]
        np.testing.assert_array_equal(item["observation.state"], wanted["observation.state"])
        for name, atol in (("observation.images.side", 1e-6), ("observation.images.top", ATOL)):
            np.testing.assert_allclose(item[name].permute(1, 2, 0), wanted[name] / 255, rtol=0, atol=atol)


def test_lerobot_reads_and_goes_on_with_what_was_recorded_here(tmp_path):
    root = tmp_path / "set"
    record_here(LeRobotRecorder.create(root, fps=FPS, features=FEATURES, output="v3.0"), 2)
    check(root, 2)
    record_there(opened(root, vcodec=VCODEC), 1)
    check(root, 3)
    record_here(LeRobotRecorder.resume(root), 2)
    check(root, 5)


def test_what_lerobot_recorded_is_gone_on_with_here(tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = tmp_path / "set"
    record_there(LeRobotDataset.create("interop/set", FPS, FEATURES, root=root, vcodec=VCODEC), 2)
    record_here(LeRobotRecorder.resume(root), 2)
    check(root, 4)
    record_there(opened(root, vcodec=VCODEC), 1)
    check(root, 5)
