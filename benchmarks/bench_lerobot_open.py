"""lerobot_open: opening a LeRobot dataset of 10,000 episodes, beside LeRobotDataset.

Episodes of 50 steps, 14 + 14 floats, written by stepwell; both open it in fresh processes, for the first time (when
both make a cache) and again; imports are left out. What opening takes of memory; the time to the first batch of 256
windows, beside the mere construction of a LeRobotDataset, in a process whose numba has begun and in one where it has
not; the time from the start of a process to that batch, in both, imports and all; and the bytes of our cache, beside
those of the numeric columns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from children import run_child
from lerobot_rival import FPS, lerobot, low_dim_columns, window_deltas
from report import Row, skipped, within
from timing import Settings, memcpy_gb_per_s

import stepwell
from stepwell.lerobot import write_dataset

__all__ = ["run"]

NAME = "lerobot_open"
EPISODES, STEPS = 10_000, 50
ROUNDS = 3
FIRST, AGAIN = "open 10,000 episodes, the first time", "open 10,000 episodes, again"
FIRST_BATCH, MEMORY = "first batch after opening again, beside construction", "memory of opening again"
WITH_NUMBA = f"{FIRST_BATCH}, numba's start included"
WHOLE = "first batch after opening again, from the start of the process, imports included"
BATCH = 256
CACHE = "cache, beside the numeric columns"
OPEN = """
root, deltas, size, is_started = argument
import pyarrow.parquet, torch, torch.utils.data, stepwell, stepwell.loader
from stepwell.lerobot import LeRobotDataset
[getattr(stepwell, name) for name in stepwell.__all__]
def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))
if is_started:
    import numpy as np
    from stepwell.kernels.permutation import permute
    permute(np.arange(4), 4, np.zeros(2, np.uint64))
before, start = resident(), time.perf_counter()
dataset = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas)
seconds, after = time.perf_counter() - start, resident()
batch = next(iter(dataset.loader(batch_size=size, order="random")))
print(json.dumps([seconds, time.perf_counter() - start, after - before, len(dataset)]))
"""
FROM_START = """
root, deltas, size = argument
from stepwell.lerobot import LeRobotDataset
dataset = LeRobotDataset("bench/lerobot", root=root, delta_timestamps=deltas)
batch = next(iter(dataset.loader(batch_size=size, order="random")))
print(json.dumps(time.monotonic() - begun))
"""


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of times, then those of memory and disk."""
    with lerobot() as rival:
        if rival is None:
            yield from skipped(NAME, "lerobot", FIRST, AGAIN, FIRST_BATCH, WITH_NUMBA, WHOLE, MEMORY)
            return
    root = settings.data / "set"
    _write(root, settings)
    deltas = window_deltas()
    ours: list[list[Any]] = []
    theirs: list[dict[str, float]] = []
    whole: list[tuple[float, float]] = []
    for number in range(settings.sized(ROUNDS, 1)):
        cache = settings.data / f"cache-{number}"
        starts = (True, True, False)
        ours.append([run_child(OPEN, [str(root), deltas, BATCH, each], STEPWELL_CACHE=str(cache)) for each in starts])
        with lerobot() as rival:
            theirs.append([rival.ask("open", root=str(root), deltas=deltas) for _ in range(2)])
        seconds = run_child(FROM_START, [str(root), deltas, BATCH], STEPWELL_CACHE=str(cache))
        begun = time.monotonic()
        with lerobot() as rival:
            rival.ask("first_batch", root=str(root), deltas=deltas, batch_size=BATCH)
            whole.append((seconds, time.monotonic() - begun))
    row = partial(within, NAME, rival="lerobot", memcpy_gb_per_s=memcpy_gb_per_s(settings))
    for place, case, target in ((0, FIRST, 5.0), (1, AGAIN, 5.0)):
        limit = [each[place]["seconds"] for each in theirs]
        yield row(case=case, samples=[each[place][0] for each in ours], limit=limit, unit="s", target=target)
    limit = [each[1]["seconds"] for each in theirs]
    yield row(case=FIRST_BATCH, samples=[each[1][1] for each in ours], limit=limit, unit="s", target=2.0)
    yield row(case=WITH_NUMBA, samples=[each[2][1] for each in ours], limit=limit, unit="s")
    samples, limit = map(list, zip(*whole, strict=True))
    yield row(case=WHOLE, samples=samples, limit=limit, unit="s")
    grown = [each[0]["after"] - each[0]["before"] for each in theirs]
    yield row(case=MEMORY, samples=[each[1][2] for each in ours], limit=grown, unit="bytes", target=2.0)
    numbers = settings.sized(EPISODES, 20) * STEPS * (2 * 14 * 4 + 4 + 4 * 8)
    taken = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    yield within(NAME, CACHE, "numeric columns", [taken], numbers, unit="bytes", target=1.0,
                 memcpy_gb_per_s=memcpy_gb_per_s(settings))  # fmt: skip


def _write(root: Path, settings: Settings) -> None:
    """Write the dataset by way of a store."""
    number = settings.sized(EPISODES, 20)
    columns = low_dim_columns(number * STEPS)
    store = stepwell.create(settings.data / "source.well", {name: stepwell.Array(14) for name in columns}, fps=FPS)
    with store.writer() as writer:
        for first in range(0, number * STEPS, STEPS):
            writer.add_episode({name: values[first : first + STEPS] for name, values in columns.items()})
    store.refresh()
    write_dataset(store, root, task="none")
