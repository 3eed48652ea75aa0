"""Recordings of a small robot: every value of a frame says which episode and frame it is of."""

from __future__ import annotations

from typing import Any

import numpy as np

import stepwell

FEATURES: dict[str, dict[str, Any]] = {
    "observation.images.top": {"dtype": "image", "shape": (16, 24, 3), "names": ["height", "width", "channels"]},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
}
VIDEO_FEATURES = {**FEATURES, "observation.images.top": {**FEATURES["observation.images.top"], "dtype": "video"}}
TASKS = ("push", "pull", "lift")


def picture(episode: int, step: int) -> np.ndarray:
    return np.full((16, 24, 3), (37 * episode + 5 * step) % 256, np.uint8)


def frame(episode: int, step: int, task: str | None = None) -> dict[str, Any]:
    return {
        "observation.images.top": picture(episode, step),
        "observation.state": np.array([episode, step, 0.5], np.float32),
        "next.reward": np.array([step / 4], np.float32),
        "task": TASKS[episode % 3] if task is None else task,
    }


def add_frames(recorder: Any, episode: int, length: int) -> None:
    for step in range(length):
        recorder.add_frame(frame(episode, step))


def check_episode(episode: stepwell.Episode, number: int, length: int, tolerance: int = 0) -> None:
    """Compare the steps of an episode with the frames that were given."""
    assert episode.length == length
    steps = np.arange(length)
    assert np.array_equal(episode["observation.state"], np.stack([steps * 0 + number, steps, steps * 0 + 0.5], axis=1))
    assert np.array_equal(episode["next.reward"], (steps / 4).astype(np.float32))
    expected = np.array([picture(number, step) for step in range(length)])
    assert np.abs(np.asarray(episode["observation.images.top"]).astype(int) - expected).max() <= tolerance
