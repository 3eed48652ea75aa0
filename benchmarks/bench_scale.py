"""scale: stores of very many segments, 10 episodes of 1,000 steps each: up to 10^6 episodes, 10^9 steps.

* open: `stepwell.open(mode="r")` of a store that was opened for writing before, files cached.
* random batch: 256 windows of 4 steps in random order, in the consumer; beside the smallest store, whose files are all
  mapped.
* new segment: a writer's first step, while the store holds so many.
* refresh: after one new segment.
* pickled loader: its bytes, over all episodes.

Times are of the processor, so that they do not depend on what else the machine does. Segments are hard links of one,
with episodes of their own; a file has at most 30,000 names. Limits were set beforehand; ratios are limit / ours, above
1 is within it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from report import Row, within
from timing import Settings, memcpy_gb_per_s

import stepwell
from stepwell.json_text import open_json, seal_json
from stepwell.store.episodes import EPISODE_DTYPE

__all__ = ["run"]

NAME = "scale"
OPEN_MS, SEGMENT_MS, REFRESH_MS, PICKLE_KB, BATCH_FACTOR = 300.0, 1.0, 100.0, 100.0, 3.0
EPISODES, STEPS, BATCHES = 10, 1000, 200
MAX_LINKS = 30_000
SHARED = ("action.npy", "episodes.jsonl", "statistics.npz")


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of each size, smallest first."""
    row = partial(within, memcpy_gb_per_s=memcpy_gb_per_s(settings))
    least: list[float] = []
    for count in (settings.sized(size, toy) for size, toy in ((1000, 10), (10_000, 20), (100_000, 40))):
        path = _linked_store(settings.data / f"{count}.well", count)
        stepwell.open(path)
        case = f"{count:,} segments"
        yield row(NAME, f"open {case}", "limit", _times(settings, partial(_open, path)), OPEN_MS, unit="ms", target=1.0)
        store = _open(path)
        loader = stepwell.Loader(
            store, {"action": range(4)}, batch_size=256, order="random", threads=0, epochs=None, seed=1
        )
        batches = iter(loader)
        size = settings.sized(BATCHES, 2)

        def read(size: int = size, batches: Iterator[stepwell.Batch] = batches) -> None:
            for _ in range(size):
                next(batches)

        read()
        times = [each / size for each in _times(settings, read)]
        least = least or times
        rival = f"{settings.sized(1000, 10):,} segments"
        yield row(NAME, f"random batch, {case}", rival, times, least, unit="ms", target=1 / BATCH_FACTOR)
        segments, refreshes = _new_segments(settings, path)
        yield row(NAME, f"new segment, {case}", "limit", segments, SEGMENT_MS, unit="ms", target=1.0)
        yield row(NAME, f"refresh after one, {case}", "limit", refreshes, REFRESH_MS, unit="ms", target=1.0)
        sizes = [len(pickle.dumps(loader)) / 1e3]
        yield row(NAME, f"pickled loader, {case}", "limit", sizes, PICKLE_KB, unit="kB", target=1.0)
        del batches, loader, store
        shutil.rmtree(path)


def _open(path: Path) -> stepwell.Store:
    return stepwell.open(path, mode="r")


def _times(settings: Settings, work: Callable[[], object]) -> list[float]:
    """Return the milliseconds of the processor that each of several calls takes."""
    return [_time(work) for _ in range(settings.rounds)]


def _time(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def _new_segments(settings: Settings, path: Path) -> tuple[list[float], list[float]]:
    """Return the times to begin a segment, and to take it in elsewhere."""
    store, other = stepwell.open(path), _open(path)
    segments, refreshes = [], []
    for _ in range(settings.rounds):
        writer = store.writer()
        segments.append(_time(lambda writer=writer: writer.append(action=1.0)))  # type: ignore[misc]
        # a directory's time stamp that is younger than a tick is not trusted
        time.sleep(0.1)
        refreshes.append(_time(other.refresh))
        writer.discard_episode()
        writer.close()
    return segments, refreshes


def _linked_store(path: Path, count: int) -> Path:
    """Make a store of ``count`` segments that share their columns."""
    store = stepwell.create(path, {"action": stepwell.Array(())}, segment_bytes="1 GB")
    with store.writer() as writer:
        for _ in range(EPISODES):
            writer.add_episode({"action": np.arange(STEPS, dtype=np.float32)}, terminated=True)
    source = store.segments[0].path
    manifest = open_json((source / "segment.json").read_bytes(), name="segment.json")
    data = (source / "episodes.npy").read_bytes()
    head = len(data) - EPISODES * EPISODE_DTYPE.itemsize
    records = np.frombuffer(data[head:], EPISODE_DTYPE).copy()
    masters = {file: source / file for file in SHARED}
    for ordinal in range(1, count):
        name = f"{ordinal:08d}-{ordinal & 0xFFFF:04x}"
        directory = source.parent / name
        directory.mkdir()
        records["origin"] = (ordinal << 32) + records["start"]
        episodes = data[:head] + records.tobytes()
        (directory / "episodes.npy").write_bytes(episodes)
        manifest["files"]["episodes.npy"]["crc32"] = f"{zlib.crc32(episodes):08x}"
        told = {**manifest, "name": name, "ordinal": ordinal}
        (directory / "segment.json").write_bytes(seal_json(told))
        for file in SHARED:
            if ordinal % MAX_LINKS == 0:
                shutil.copy(masters[file], directory / file)
                masters[file] = directory / file
            else:
                os.link(masters[file], directory / file)
    (path / "lock").write_bytes(b"%-20d\n" % count)
    return path
