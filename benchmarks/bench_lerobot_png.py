"""lerobot_png: the current image of 2 cameras with windows of 16 actions, PNG in parquet, beside LeRobotDataset.

A dataset of 3,000 steps, recorded by lerobot itself in episodes of 150: PushT at 96 x 96 and a drawing of it at
224 x 224. Ours reads the parquet files in place, in a pooled order and in a random one, two threads, and makes what
LeRobot makes: float32, channels first. The rival is as in bench_lerobot_state.py; it decodes all images of a window's
rows, of which an item needs two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from lerobot_rival import (
    BATCH,
    EPISODE,
    FPS,
    beside,
    check_items,
    epoch_rate,
    lerobot,
    low_dim_columns,
    save_columns,
    window_deltas,
)
from report import Row, skipped
from screens import pusht_images
from timing import Settings

__all__ = ["CAMERAS", "camera_columns", "run"]

NAME = "lerobot_png"
STEPS = 3000
TARGET = 10.0
CAMERAS = {"observation.images.top": 96, "observation.images.side": 224}
CASES = {
    "2 cameras, 16 actions, in place, pooled": ("pooled", "float32", TARGET),
    "2 cameras, 16 actions, in place, random": ("random", "float32", None),
    "2 cameras, 16 actions, in place, pooled, uint8": ("pooled", "uint8", None),
}


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row an order."""
    with lerobot() as rival:
        if rival is None:
            yield from skipped(NAME, "lerobot", *CASES)
            return
        from stepwell.lerobot import LeRobotDataset

        os.environ["STEPWELL_CACHE"] = str(settings.data / "cache")
        number, root = settings.sized(STEPS, 2 * EPISODE), str(settings.data / "set")
        columns = save_columns(settings.data / "columns.npz", {**low_dim_columns(number), **camera_columns(number)})
        kinds = dict.fromkeys(CAMERAS, "image")
        rival.ask("make", root=root, columns=str(columns), cameras=kinds, episode=EPISODE, fps=FPS)
        deltas = window_deltas()
        rival.ask("open", root=root, deltas=deltas)
        dataset = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas)
        check_items(rival, dataset, [0, EPISODE - 1, EPISODE], settings.data / "items.npz", {})
        theirs = rival.rates(settings.sized(8, 1))
        for case, (order, images, target) in CASES.items():
            options = {"batch_size": BATCH, "order": order, "images": images, "threads": 2}
            loader = dataset.loader(**options)
            ours = [epoch_rate(loader) for _ in theirs]
            yield beside(NAME, case, (ours, theirs), settings, target)


def camera_columns(number: int) -> dict[str, np.ndarray]:
    """Return what two cameras see of PushT, uint8 [number, size, size, 3] each."""
    small = pusht_images(number)
    # each pixel of 96 becomes a few of 224
    nearest = np.arange(224) * 96 // 224
    return {name: small if size == 96 else small[:, nearest][:, :, nearest] for name, size in CAMERAS.items()}
