"""lerobot_swap: a training script's DataLoader, two workers, when nothing but the import of LeRobotDataset changes.

A dataset of 800 steps in 5 episodes, 3 cameras of 480 x 640 (H.264, a keyframe every 10 frames: a camera that pans over
a photo, with noise) and 14 numbers of state and action; items have 50 actions, batches 8 items, in a random order.
Both make LeRobot's items, float32 with channels first, in two spawned workers; the rival decodes with torchcodec. The
second case adds LeRobot's ImageTransforms as its configuration has them: of each image up to 3 of 6 changes. The third
is the same dataset by ``LeRobotDataset.loader``, two threads, which is a change of a few lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lerobot_rival import FPS, beside, check_items, lerobot, rate
from report import Row, skipped
from timing import Settings
from videos import pan_frames

__all__ = ["run"]

NAME = "lerobot_swap"
EPISODES, STEPS, CHUNK, BATCH_SIZE, WORKERS = 5, 160, 50, 8, 2
CAMERAS = [f"observation.images.camera{number}" for number in range(3)]
PLAIN, CHANGED = "3 cameras, DataLoader of 2 workers", "the same with ImageTransforms"
LOADER = "3 cameras, loader of 2 threads, uint8"
TARGETS = {PLAIN: 4.0, CHANGED: 4.0, LOADER: None}
# conversion from yuv is rounded the same way or by one
ROUNDING = 1.01 / 255


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a case."""
    with lerobot() as rival:
        if rival is None:
            yield from skipped(NAME, "lerobot", *TARGETS)
            return
        from stepwell.lerobot import ImageTransforms, ImageTransformsConfig, LeRobotDataset

        os.environ["STEPWELL_CACHE"] = str(settings.data / "cache")
        root = settings.data / "set"
        _record(root, settings)
        deltas = {"action": [step / FPS for step in range(CHUNK)]}
        seconds = settings.sized(10, 1)
        for case in (PLAIN, CHANGED):
            changes = {"enable": True} if case == CHANGED else None
            rival.ask("open", root=str(root), deltas=deltas, image_transforms=changes)
            made = None if changes is None else ImageTransforms(ImageTransformsConfig(**changes))
            dataset = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas, image_transforms=made)
            if case == PLAIN:
                atol = dict.fromkeys(CAMERAS, ROUNDING)
                check_items(rival, dataset, [0, 17, len(dataset) - 1], settings.data / "items.npz", atol)
            ours, theirs = [], []
            for _ in range(settings.sized(3, 1)):
                asked = {"batch_size": BATCH_SIZE, "workers": WORKERS, "seconds": seconds}
                theirs.append(float(rival.ask("rate", **asked)["rate"]))
                ours.append(rate(lambda dataset=dataset: _batches(dataset), seconds))
            yield beside(NAME, case, (ours, theirs), settings, TARGETS[case])
            if case == PLAIN:
                plain = theirs
        dataset = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas)
        options = {"batch_size": BATCH_SIZE, "order": "random", "images": "uint8", "threads": WORKERS, "epochs": None}
        ours = [rate(lambda: dataset.loader(**options), seconds) for _ in plain]
        yield beside(NAME, LOADER, (ours, plain), settings, TARGETS[LOADER])


def _batches(dataset: Any) -> Iterator[Any]:
    """Yield batches as a script of LeRobot's does, epoch after epoch."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=WORKERS, multiprocessing_context="spawn", persistent_workers=True
    )
    while True:
        yield from loader


def _record(root: Path, settings: Settings) -> None:
    from stepwell.lerobot import LeRobotRecorder

    size = settings.sized(480, 96), settings.sized(640, 128)
    steps = settings.sized(STEPS, CHUNK)
    features: dict[str, dict[str, Any]] = {
        name: {"dtype": "video", "shape": (*size, 3), "names": ["height", "width", "channels"]} for name in CAMERAS
    }
    for name in ("observation.state", "action"):
        features[name] = {"dtype": "float32", "shape": (14,), "names": None}
    rng = np.random.default_rng(0)
    video = {"encoder": "h264", "gop": 10}
    episodes = settings.sized(EPISODES, 1)
    with LeRobotRecorder.create(root, fps=FPS, features=features, output="v3.0", video=video) as recorder:
        cameras = [pan_frames(episodes * steps, size, 40 * number) for number in range(len(CAMERAS))]
        for _ in range(episodes):
            for _ in range(steps):
                images = {name: next(camera) for name, camera in zip(CAMERAS, cameras, strict=True)}
                values = {name: rng.random(14, np.float32) for name in ("observation.state", "action")}
                recorder.add_frame({**images, **values, "task": "none"})
            recorder.save_episode()
