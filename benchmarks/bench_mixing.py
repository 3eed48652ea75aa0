"""mixing: how far batches of a pooled order are from the data set, beside a true random order and a shuffle buffer.

A store of 800 episodes of 100 to 400 steps, of 40 tasks that were recorded one after the other. Most of a step's value
is its task's and its episode's, drawn at random: what is worst for who keeps few episodes at hand. Windows of 2 steps,
batches of 64. Measured are the batches' means: the root of their mean square distance to the mean of the data set, in
units of that of a random order, so that 1 is as well mixed as can be; and the number of distinct episodes in a batch.

The pool has memory for 1, 5, 20 and 100 % of the steps, the shuffle buffer room for as many. The buffer is that of
TFDS, WebDataset and RLDS loaders: it is filled with the first steps, then each step that goes out is drawn at random
from it, and replaced by the next one of the stream. Episodes are streamed in a new random order each epoch, which is
the best that such a loader can do, or as they were recorded, which is what it does where many are in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import removed
from report import Row
from timing import Settings, memcpy_gb_per_s

import stepwell
from stepwell.order import Order, pooled, random
from stepwell.windows import View, WindowReader

__all__ = ["BUFFER", "FEW_BLOCKS", "POOLED", "RECORDED", "SHARES", "Mixing", "measure", "run"]

NAME = "mixing"
SHARES = (0.01, 0.05, 0.2, 1.0)
POOLED, FEW_BLOCKS = "pooled", "pooled, 64 blocks"
BUFFER, RECORDED = "shuffle buffer, episodes shuffled", "shuffle buffer, as recorded"
BATCH = 64
NUM_TASKS = 40
ROW_SIZE = 128


@dataclass(frozen=True, slots=True)
class Mixing:
    """How well one order mixes: one figure an epoch.

    Args:
        distance: root mean square distance of batch means, over that of a random order.
        ends: the same over the first and the last tenth of the epoch.
        time: the same of the time within the episode.
        num_episodes: distinct episodes in a batch.
        loaded: rows that are loaded, over rows that there are.
    """

    distance: np.ndarray
    ends: np.ndarray
    time: np.ndarray
    num_episodes: np.ndarray
    loaded: float = 1.0


def run(settings: Settings) -> Iterator[Row]:
    """Yield rows for each size of the pool: against the buffer, and against a random order."""
    memcpy = memcpy_gb_per_s(settings)
    found = measure(settings)
    for share in SHARES:
        ours, few, theirs, recorded = (found[share, name] for name in (POOLED, FEW_BLOCKS, BUFFER, RECORDED))
        ones = np.ones(len(ours.distance))
        for what, rival, figures, unit in (
            ("batch means", BUFFER, (ours.distance, theirs.distance), "x random"),
            ("batch means", RECORDED, (ours.distance, recorded.distance), "x random"),
            ("batch means", "random", (ours.distance, ones), "x random"),
            ("batch means, 64 blocks", "random", (few.distance, ones), "x random"),
            ("batch means, ends of the epoch", "random", (ours.ends, ones), "x random"),
            ("distinct episodes", BUFFER, (ours.num_episodes, theirs.num_episodes), "a batch"),
        ):
            ratios = figures[0] / figures[1] if unit == "a batch" else figures[1] / figures[0]
            low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
            yield Row(
                bench=NAME,
                case=f"pool of {share:.0%}, {what}",
                rival=rival,
                ratio=middle,
                spread=high - low,
                ours=float(np.median(figures[0])),
                theirs=float(np.median(figures[1])),
                unit=unit,
                memcpy_gb_per_s=memcpy,
            )


def measure(settings: Settings) -> Mapping[tuple[float, str], Mixing]:
    """Return how well each order mixes at each size of the pool."""
    with removed(_store(settings.data / "mixing.well", settings)) as store:
        reader = WindowReader(View(store), {"row": [-1, 0], "value": "value"})
        return _Bench.of(reader, settings).measure()


@dataclass(frozen=True, slots=True)
class _Bench:
    reader: WindowReader
    values: np.ndarray
    times: np.ndarray
    episodes: np.ndarray
    epochs: int

    @classmethod
    def of(cls, reader: WindowReader, settings: Settings) -> _Bench:
        index = reader.index
        episodes, _, rows, lo, *_ = index.locate(np.arange(index.num_anchors))
        return cls(reader, index.read_steps("value"), rows - lo, episodes, settings.sized(settings.rounds, 2))

    def measure(self) -> dict[tuple[float, str], Mixing]:
        reference = self._epochs(lambda epoch: self._walk(random(0), epoch))
        found = {}
        for share in SHARES:
            size = int(share * len(self.values))
            num_bytes = size * ROW_SIZE * 4 + size * 4
            few, many = pooled(num_bytes, blocks=64), pooled(num_bytes)
            for name, order in ((POOLED, many), (FEW_BLOCKS, few)):
                blocks = order.bind(self.reader.index).blocks
                once = self.reader.index.blocks(1 << 60).num_bytes
                epochs = self._epochs(lambda epoch, order=order: self._walk(order, epoch))
                found[share, name] = _mixing(epochs, reference, blocks.num_bytes / once)
            for name, stream in ((BUFFER, self._shuffled_episodes), (RECORDED, self._as_recorded)):
                epochs = self._epochs(
                    lambda epoch, size=size, stream=stream: shuffled_by_buffer(stream(epoch), size, epoch)
                )
                found[share, name] = _mixing(epochs, reference, 1.0)
        return found

    def _walk(self, order: Order, epoch: int) -> np.ndarray:
        return order.bind(self.reader.index).positions(epoch, 0, len(self.values))

    def _as_recorded(self, epoch: int) -> np.ndarray:
        return np.arange(len(self.values))

    def _shuffled_episodes(self, epoch: int) -> np.ndarray:
        places = np.random.default_rng([epoch, 1]).permutation(self.episodes.max() + 1)
        return np.argsort(places[self.episodes], kind="stable")

    def _epochs(self, walk: Callable[[int], np.ndarray]) -> np.ndarray:
        """Return the figures of some epochs, [epochs, 4]: not yet in units of a random order."""
        found = []
        for epoch in range(self.epochs):
            anchors = walk(epoch)
            np.testing.assert_array_equal(np.sort(anchors), np.arange(len(anchors)))
            batches = anchors[: len(anchors) // BATCH * BATCH].reshape(-1, BATCH)
            values = self.values[batches].mean(axis=1) - self.values.mean()
            times = self.times[batches].mean(axis=1) - self.times.mean()
            tenth = max(1, len(values) // 10)
            distinct = np.mean([len(np.unique(batch)) for batch in self.episodes[batches]])
            found.append([_rms(values), _rms(np.append(values[:tenth], values[-tenth:])), _rms(times), distinct])
        return np.array(found)


def shuffled_by_buffer(stream: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the steps of a stream in the order in which they leave a shuffle buffer."""
    rng = np.random.default_rng(seed)
    steps = stream.tolist()
    buffer, out = steps[:size], []
    for step, place in zip(steps[size:], rng.integers(0, size, len(steps)).tolist(), strict=False):
        out.append(buffer[place])
        buffer[place] = step
    return np.array(out + rng.permutation(buffer).tolist())


def _mixing(epochs: np.ndarray, reference: np.ndarray, loaded: float) -> Mixing:
    distance, ends, time, num_episodes = (epochs / np.append(reference.mean(axis=0)[:3], 1)).T
    return Mixing(distance, ends, time, num_episodes, loaded)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _store(path: Path, settings: Settings) -> stepwell.Store:
    rng = np.random.default_rng(0)
    schema = stepwell.Schema({"row": stepwell.Array(ROW_SIZE), "value": stepwell.Array()})
    store = stepwell.create(path, schema)
    with store.writer() as writer:
        for _ in range(NUM_TASKS):
            task = rng.normal(scale=0.8)
            for _ in range(settings.sized(20, 1)):
                length = int(rng.integers(100, 401))
                level, drift = task + rng.normal(scale=0.6), 0.3 * np.sin(np.arange(length) / 40)
                values = level + drift + rng.normal(scale=0.1, size=length)
                rows = np.zeros((length, ROW_SIZE), np.float32)
                writer.add_episode({"row": rows, "value": values.astype(np.float32)})
    store.refresh()
    return store
