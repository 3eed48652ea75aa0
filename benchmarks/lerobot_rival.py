"""LeRobotDataset as a rival: it lives in an interpreter of its own, which the environment variable `LEROBOT` names."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from asked import Asked, asked
from report import Row
from timing import Settings, memcpy_gb_per_s

__all__ = [
    "BATCH",
    "EPISODE",
    "FPS",
    "LEROBOT",
    "LeRobot",
    "beside",
    "check_items",
    "epoch_rate",
    "lerobot",
    "low_dim_columns",
    "rate",
    "save_columns",
    "window_deltas",
]

LEROBOT = "STEPWELL_LEROBOT_PYTHON"
FPS, EPISODE = 30, 150
BATCH = 256
WORKERS = (0, 2)
ROUNDS = 3


class LeRobot:
    """A process that has lerobot, see lerobot_child.py."""

    def __init__(self, process: Asked) -> None:
        self.ask = process.ask

    def rates(self, seconds: float) -> list[float]:
        """Return items a second in some rounds, by the number of workers that is best."""
        first = {workers: self._rate(workers, seconds) for workers in WORKERS}
        best = max(first, key=lambda workers: first[workers])
        return [first[best], *(self._rate(best, seconds) for _ in range(ROUNDS - 1))]

    def _rate(self, workers: int, seconds: float) -> float:
        return float(self.ask("rate", batch_size=BATCH, workers=workers, seconds=seconds)["rate"])


@contextmanager
def lerobot() -> Iterator[LeRobot | None]:
    """Lend the rival; None where `LEROBOT` names no interpreter."""
    python = os.environ.get(LEROBOT)
    if python is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as home:
        # nothing is fetched, and nothing is cached from one run to the next
        variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": home, "HF_DATASETS_CACHE": f"{home}/datasets"}
        with asked(python, "lerobot_child.py", "lerobot", variables=variables, folder=home) as process:
            yield LeRobot(process)


def low_dim_columns(number: int) -> dict[str, np.ndarray]:
    """Return states and actions of a robot of two arms, float32 [number, 14] each."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=(number, 14)).cumsum(axis=0).astype(np.float32)
        for name in ("observation.state", "action")
    }


def save_columns(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    """Save the columns that the rival records, and return where."""
    np.savez(path, **columns)
    return path


def window_deltas(cameras: Mapping[str, list[int]] | None = None) -> dict[str, list[float]]:
    """Return what LeRobot calls windows of 2 states and 16 actions, and of cameras as given, in seconds."""
    offsets = {"observation.state": [-1, 0], "action": list(range(16)), **(cameras or {})}
    return {key: [offset / FPS for offset in each] for key, each in offsets.items()}


def check_items(rival: LeRobot, ours: Any, indexes: list[int], path: Path, atol: Mapping[str, float]) -> None:
    """Compare items, all keys that are tensors: equal, but for what ``atol`` allows to a key.

    Raises:
        AssertionError: they differ.
    """
    keys = rival.ask("items", indexes=indexes, path=str(path))["keys"]
    with np.load(path) as theirs:
        for index in indexes:
            item = ours[index]
            assert list(item) == keys, f"{list(item)} where lerobot has {keys}"
            for name in (name for name in theirs.files if name.startswith(f"{index}/")):
                key = name.partition("/")[2]
                value = np.asarray(item[key])
                assert value.dtype == theirs[name].dtype and value.shape == theirs[name].shape, key
                np.testing.assert_allclose(value, theirs[name], rtol=0, atol=atol.get(key, 0.0), err_msg=key)


def rate(make: Callable[[], Any], seconds: float) -> float:
    """Return items a second of a loader, from its second batch on."""
    batches = iter(make())
    next(batches)
    count, start = 0, time.perf_counter()
    for batch in batches:
        count += len(batch["index"])
        if time.perf_counter() - start > seconds:
            break
    return count / (time.perf_counter() - start)


def epoch_rate(loader: Iterable[Any]) -> float:
    """Return items a second of a whole epoch: what a pooled order loads before its first batch counts, too."""
    # of one loader for all epochs, as in training: it keeps its memory
    start = time.perf_counter()
    count = sum(len(batch["index"]) for batch in loader)
    return count / (time.perf_counter() - start)


def beside(
    bench: str, case: str, rates: tuple[list[float], list[float]], settings: Settings, target: float | None
) -> Row:
    """Return the row of rates, ours and theirs, a pair a round."""
    ours, theirs = rates
    ratios = np.array(ours) / np.array(theirs)
    return Row(
        bench=bench,
        case=case,
        rival="lerobot",
        ratio=float(np.median(ratios)),
        spread=float(np.ptp(ratios)),
        ours=float(np.median(ours)),
        theirs=float(np.median(theirs)),
        unit="items/s",
        memcpy_gb_per_s=memcpy_gb_per_s(settings),
        target=target,
    )
