"""lerobot_state: windows of 2 states and 16 actions of a LeRobot dataset, read in place, beside LeRobotDataset.

A dataset of 60,000 steps of two arms (14 + 14 floats), recorded by lerobot itself, in episodes of 150. Items have the
same keys and values, and are compared. "lerobot" is LeRobotDataset in a shuffling DataLoader, batches of 256, with no
or two workers, whichever is faster, in an interpreter of its own that ``STEPWELL_LEROBOT_PYTHON`` names. Ours is
`LeRobotDataset.loader` (one thread, tensors), and the same class in torch's DataLoader without workers. Both have read
the dataset before; nothing is converted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lerobot_rival import (
    BATCH,
    EPISODE,
    FPS,
    LeRobot,
    beside,
    check_items,
    lerobot,
    low_dim_columns,
    rate,
    save_columns,
    window_deltas,
)
from report import Row, skipped
from timing import Settings

__all__ = ["run"]

NAME = "lerobot_state"
STEPS = 60_000
TARGET = 500.0
LOADER, DROP_IN = "2 states, 16 actions, in place", "2 states, 16 actions, in place, by torch's DataLoader"


def run(settings: Settings) -> Iterator[Row]:
    """Yield two rows."""
    with lerobot() as rival:
        if rival is None:
            yield from skipped(NAME, "lerobot", LOADER, DROP_IN)
            return
        os.environ["STEPWELL_CACHE"] = str(settings.data / "cache")
        columns = save_columns(settings.data / "columns.npz", low_dim_columns(settings.sized(STEPS, 2 * EPISODE)))
        root = str(settings.data / "set")
        rival.ask("make", root=root, columns=str(columns), cameras={}, episode=EPISODE, fps=FPS)
        deltas = window_deltas()
        rival.ask("open", root=root, deltas=deltas)
        yield from _beside(settings, rival, root, deltas)


def _beside(settings: Settings, rival: LeRobot, root: str, deltas: dict[str, list[float]]) -> Iterator[Row]:
    from torch.utils.data import DataLoader

    from stepwell.lerobot import LeRobotDataset

    dataset = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas)
    check_items(rival, dataset, [0, 1, EPISODE - 1, EPISODE, len(dataset) - 1], settings.data / "items.npz", {})
    theirs = rival.rates(settings.sized(5, 1))
    for case, make, target in (
        (LOADER, lambda: dataset.loader(batch_size=BATCH, order="random", epochs=None), TARGET),
        (DROP_IN, lambda: DataLoader(dataset, batch_size=BATCH, shuffle=True), None),
    ):
        ours = [rate(make, settings.sized(2, 0)) for _ in theirs]
        yield beside(NAME, case, (ours, theirs), settings, target)
