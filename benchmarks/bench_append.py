"""append: recording transitions, beside replay buffers in memory.

The transition is HalfCheetah's: observation 17, next observation 17, action 6, reward and done, float32, in episodes
of 1,000 steps. "next_obs stored" gives both sides the same five arrays. stepwell does not need the next observation
(it is the next row, and the episode's final one is given at its end), so the other case leaves it out and is what a
user of stepwell would write.

Every step of ours is validated (names, dtypes, shapes), committed, and visible to other processes when the call
returns; it goes to files of the page cache, which grow, are sealed and get statistics, while the rivals write over a
ring in memory of 100,000 transitions and check nothing.

"No segment full" is what a call takes while its segment (256 MB unless asked otherwise) has room: full ones are sealed
by a thread, with checksums and statistics, and a writer that fills the next one sooner than that waits.

Pages are recycled before (see `datasets.recycle_pages`): a virtual machine backs memory slowly when it is touched for
the first time, and files that grow touch new memory all the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from datasets import ONE_SEGMENT, recycle_pages, removed
from report import Row, compare, skipped
from rivals import sb3_adding
from timing import Settings, Work, time_rounds

import stepwell

__all__ = ["run"]

NAME = "append"
RING = 100_000
EPISODE = 1000
FEATURES = {
    "observation": stepwell.Array(17),
    "next_observation": stepwell.Array(17),
    "action": stepwell.Array(6),
    "reward": stepwell.Array(),
    "done": stepwell.Array(),
}
ONE_CASE = "one step at a time"
BATCH_CASE = "batches of 1000 steps"
WITH_NEXT, WITHOUT, UNSEALED = "next_obs stored", "next_obs is the next row", "no segment full"
DEFAULT_SEGMENT = 256 << 20
Columns = dict[str, np.ndarray]


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of single steps, then those of batches."""
    recycle_pages(settings.data, settings.sized(6 << 30, 1 << 20))
    columns = _transitions()
    yield from _bench(settings, columns, Duel(ONE_CASE, "stable_baselines3 ReplayBuffer", _sb3, _one, 1.2))
    yield from _bench(settings, columns, Duel(BATCH_CASE, "cpprb ReplayBuffer", _cpprb, _batches, 1.0))


class Duel(NamedTuple):
    """What is done, by whom, and the ratio to reach."""

    case: str
    rival: str
    make_rival: Callable[[Columns], Work]
    make_ours: Callable[[Any, Columns], Work]
    target: float


def _bench(settings: Settings, columns: Columns, duel: Duel) -> Iterator[Row]:
    cases = {
        f"{duel.case}, {WITH_NEXT}": (columns, DEFAULT_SEGMENT),
        f"{duel.case}, {WITHOUT}": (_without_next(columns), DEFAULT_SEGMENT),
        f"{duel.case}, {WITH_NEXT}, {UNSEALED}": (columns, ONE_SEGMENT),
    }
    try:
        rival = duel.make_rival(columns)
    except ImportError:
        yield from skipped(NAME, duel.rival, *cases)
        return
    # one after the other: threads that seal would disturb the next case
    for case, (given, segment_bytes) in cases.items():
        features = {name: FEATURES[name] for name in given}
        with removed(stepwell.create(settings.data / "append.well", features, segment_bytes=segment_bytes)) as store:
            with store.writer() as writer:
                rates = time_rounds({"stepwell": duel.make_ours(writer, given), duel.rival: rival}, settings)
            store.refresh()
            _check(store, given)
        yield compare(NAME, case, rates, ours="stepwell", theirs=duel.rival, unit="transitions/s", target=duel.target)


def _transitions() -> Columns:
    """Return one episode."""
    rng = np.random.default_rng(0)
    shapes = {name: (EPISODE, *feature.shape) for name, feature in FEATURES.items()}
    columns = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    columns["done"][:] = 0
    columns["done"][-1] = 1
    columns["next_observation"][:-1] = columns["observation"][1:]
    return columns


def _without_next(columns: Columns) -> Columns:
    return {name: values for name, values in columns.items() if name != "next_observation"}


def _steps(columns: Columns) -> list[dict[str, Any]]:
    """Return the steps as an environment returns them: new arrays, numbers of Python."""
    each = range(len(columns["done"]))
    return [{name: v[t].copy() if v.ndim > 1 else float(v[t]) for name, v in columns.items()} for t in each]


def _one(writer: Any, columns: Columns) -> Work:
    steps = itertools.cycle(_steps(columns))
    append, end_episode = writer.append, writer.end_episode

    def add() -> float:
        step = next(steps)
        append(step)
        if step["done"]:
            end_episode(terminated=True)
        return 1

    return add


def _batches(writer: Any, columns: Columns) -> Work:
    def add() -> float:
        writer.append_batch(columns)
        writer.end_episode(terminated=True)
        return EPISODE

    return add


def _sb3(columns: Columns) -> Work:
    return sb3_adding(columns, RING)


def _cpprb(columns: Columns) -> Work:
    from cpprb import ReplayBuffer

    short = {"observation": "obs", "next_observation": "next_obs", "action": "act", "reward": "rew", "done": "done"}
    buffer = ReplayBuffer(RING, {short[name]: {"shape": feature.shape or 1} for name, feature in FEATURES.items()})
    batch = {short[name]: values for name, values in columns.items()}
    buffer.add(**batch)
    for name, values in buffer.get_all_transitions().items():
        np.testing.assert_array_equal(values.reshape(batch[name].shape), batch[name])

    def add() -> float:
        buffer.add(**batch)
        buffer.on_episode_end()
        return EPISODE

    return add


def _check(store: stepwell.Store, columns: Columns) -> None:
    """Compare the first and the last episode that is whole with what was added."""
    last = next(i for i in reversed(range(len(store))) if store[i].length == EPISODE) if len(store) > 1 else 0
    for number in (0, last):
        for name, values in columns.items():
            found = store[number][name]
            np.testing.assert_array_equal(found, values[: len(found)])
