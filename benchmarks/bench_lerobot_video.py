"""lerobot_video: windows of 2 steps of 2 cameras of video with 16 actions, shuffled, beside LeRobotDataset.

A dataset of 6,000 steps of PushT, as that of bench_lerobot_png.py, recorded by lerobot in episodes of 150; its mp4
files are then replaced by ones of as many frames, av1 with a keyframe every 2 frames, as lerobot records by default.
Frames of a noisy camera, which take several times longer to decode, are in bench_pool_video.py, beside the same rival.
The rival decodes with torchcodec; its other ways of decoding need what torchvision no longer has. Ours, on two threads,
makes what LeRobot makes, float32 with channels first: in place, from the mp4 files, in a pooled and a random order; and
from a store into which the dataset was converted, with JPEG images.

Of the dataset's frames nearly all fit into what a process keeps by default, so that later epochs decode little; each
order is measured with nothing kept, too, as of a dataset that is much larger.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bench_lerobot_png import CAMERAS, camera_columns
from lerobot_rival import (
    BATCH,
    EPISODE,
    FPS,
    LeRobot,
    beside,
    check_items,
    epoch_rate,
    lerobot,
    low_dim_columns,
    save_columns,
    window_deltas,
)
from report import Row, skipped
from timing import Settings
from videos import write_mp4

__all__ = ["run"]

NAME = "lerobot_video"
STEPS = 6000
IN_PLACE, AT_RANDOM = "2 steps of 2 cameras, in place, pooled", "2 steps of 2 cameras, in place, random"
CONVERTED = "2 steps of 2 cameras, converted to jpeg, pooled"
PLAIN, PLAIN_AT_RANDOM = f"{IN_PLACE}, nothing kept", f"{AT_RANDOM}, nothing kept"
TARGETS = {PLAIN: None, PLAIN_AT_RANDOM: None, IN_PLACE: 10.0, AT_RANDOM: 7.0, CONVERTED: 15.0}
# conversion from yuv is rounded the same way or by one
ROUNDING = 1.01 / 255


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a way of reading."""
    with lerobot() as rival:
        if rival is None:
            yield from skipped(NAME, "lerobot", *TARGETS)
            return
        from stepwell import convert
        from stepwell.lerobot import LeRobotDataset

        os.environ["STEPWELL_CACHE"] = str(settings.data / "cache")
        root = settings.data / "set"
        _make(rival, root, settings)
        deltas = window_deltas({key: [-1, 0] for key in CAMERAS})
        rival.ask("open", root=str(root), deltas=deltas)
        plain = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas, frame_cache=0)
        in_place = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas)
        atol = dict.fromkeys(CAMERAS, ROUNDING)
        check_items(rival, plain, [0, 1, EPISODE - 1, EPISODE], settings.data / "items.npz", atol)
        convert(root, settings.data / "jpeg.well", features="jpeg", workers=2)
        converted = LeRobotDataset("bench/lerobot", root=settings.data / "jpeg.well", delta_timestamps=deltas)
        theirs = rival.rates(settings.sized(8, 1))
        # nothing is kept until the first dataset asks for it
        ways = {PLAIN: (plain, "pooled"), PLAIN_AT_RANDOM: (plain, "random")}
        ways |= {IN_PLACE: (in_place, "pooled"), AT_RANDOM: (in_place, "random"), CONVERTED: (converted, "pooled")}
        for case, (dataset, order) in ways.items():
            loader = dataset.loader(batch_size=BATCH // 4, order=order, images="float32", threads=2)
            ours = [epoch_rate(loader) for _ in theirs]
            yield beside(NAME, case, (ours, theirs), settings, TARGETS[case])


def _make(rival: LeRobot, root: Path, settings: Settings) -> None:
    """Record a dataset, and put our mp4 files in the place of its own."""
    number = settings.sized(STEPS, 2 * EPISODE)
    images = camera_columns(number)
    columns = save_columns(settings.data / "columns.npz", {**low_dim_columns(number), **images})
    kinds = dict.fromkeys(CAMERAS, "video")
    files = rival.ask("make", root=str(root), columns=str(columns), cameras=kinds, episode=EPISODE, fps=FPS)["files"]
    if len(files) != len(CAMERAS):
        raise RuntimeError(f"{len(files)} files of {len(CAMERAS)} cameras: the dataset is too large for one each.")
    for name, size in CAMERAS.items():
        (path,) = (Path(file) for file in files if name in file)
        write_mp4(path, iter(images[name]), size, "av1", 2)
    columns.unlink()
