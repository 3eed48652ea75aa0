"""replay_slices: 256 slices of 16 steps inside episodes, drawn uniformly, beside TorchRL's `SliceSampler`.

A step is observation 17 and action 6 of float32, reward and a bool, in episodes of 1,000. stepwell's table has an item
for each step at which a whole slice begins, so that slices are drawn uniformly; TorchRL draws trajectories first.
TorchRL is told by ``traj_key`` where episodes are and to keep that (``cache_values``): its fastest.

"One step appended between two batches" is what online learning does: both sides add one step to the episode that is
recorded and draw a batch. TorchRL then looks through all it has stored. "Without appending" takes the time of appending
alone, measured in the same rounds, from ours, and sets what is left against drawing where nothing was appended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from datasets import removed
from report import Row, compare, skipped
from rivals import quiet_torchrl
from timing import Rates, Settings, Work, time_rounds
from transitions import ACTION, EPISODE, OBSERVATION, Transitions, make_transitions, record

import stepwell
from stepwell.replay import Pattern, ReplayLoader, Table

__all__ = ["run"]

NAME = "replay_slices"
SLICE, BATCH = 16, 256
# of a million steps, for ten million
REPEATS = 10
COLUMNS = ("observation", "action", "reward", "terminated")
RIVAL = "torchrl SliceSampler"
OURS, TO_TORCH, ONLINE, ADDING = "stepwell", "stepwell to torch", "stepwell online", "appending"
DRAWING = "stepwell online, drawing"


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of a million steps that stay as they are, then those of ten million and more that come."""
    yield from _still(settings, "256 slices of 16, 1M stored")
    yield from _online(settings, "256 slices of 16, 10M stored, one step appended between two batches")


def _still(settings: Settings, case: str) -> Iterator[Row]:
    transitions = make_transitions(settings.sized(1_000_000, 20 * EPISODE))
    with removed(record(settings.data / "slices.well", transitions)) as store:
        contenders = {OURS: _drawn(store, transitions), TO_TORCH: _drawn(store, transitions, to="torch")}
        try:
            contenders[RIVAL] = TorchSlices(transitions).draw
        except ImportError:
            yield from skipped(NAME, RIVAL, case, f"{case}, to torch")
            return
        rates = time_rounds(contenders, settings)
    yield compare(NAME, case, rates, ours=OURS, theirs=RIVAL, unit="slices/s", target=12.0)
    yield compare(NAME, f"{case}, to torch", rates, ours=TO_TORCH, theirs=RIVAL, unit="slices/s", target=12.0)


def _online(settings: Settings, case: str) -> Iterator[Row]:
    transitions = make_transitions(settings.sized(1_000_000, 20 * EPISODE))
    with removed(record(settings.data / "slices.well", transitions, REPEATS)) as store, store.writer() as writer:
        appending = Appending(writer)
        contenders = {OURS: _drawn(store, transitions), ADDING: appending.add}
        contenders[ONLINE] = appending.before(_drawn(store, transitions))
        try:
            contenders[RIVAL] = TorchSlices(transitions, REPEATS).add_and_draw
        except ImportError:
            yield from skipped(NAME, RIVAL, case)
        found = dict(time_rounds(contenders, settings).by_name)
    # what is left of the time of appending and drawing
    found[DRAWING] = BATCH / (BATCH / found[ONLINE] - 1 / found[ADDING])
    rates = Rates(found)
    if RIVAL in found:
        yield compare(NAME, case, rates, ours=ONLINE, theirs=RIVAL, unit="slices/s", target=12.0)
    name = f"{case}, without appending"
    yield compare(NAME, name, rates, ours=DRAWING, theirs=OURS, unit="slices/s", target=0.95)


def _drawn(store: stepwell.Store, transitions: Transitions, **options: Any) -> Work:
    """Return the work of drawing a batch."""
    table = Table(store, max_size=1 << 24, pattern=Pattern(length=SLICE, ahead=0, ends="drop"))
    fields = {name: stepwell.Field(name, range(SLICE)) for name in COLUMNS}
    batches = iter(ReplayLoader(table, fields, batch_size=BATCH, **options))
    found = next(batches)
    _check(transitions, {name: np.asarray(found[name]) for name in COLUMNS})

    def draw() -> float:
        next(batches)
        return BATCH

    return draw


def _check(transitions: Transitions, found: Mapping[str, np.ndarray]) -> None:
    """Compare slices [batch, 16, ...] with what was stored, and that each lies in one episode."""
    flat = {name: values.reshape(BATCH * SLICE, -1) for name, values in found.items()}
    numbers = transitions.check(flat).reshape(BATCH, SLICE)
    np.testing.assert_array_equal(numbers, numbers[:, :1] + np.arange(SLICE))
    np.testing.assert_array_equal(numbers[:, 0] // EPISODE, numbers[:, -1] // EPISODE)


class Appending:
    """Append one step at a time, in episodes as long as the others.

    Args:
        writer: of the store that is drawn from.
    """

    def __init__(self, writer: stepwell.Writer) -> None:
        self._writer = writer
        self._step = {
            "observation": np.zeros(OBSERVATION, np.float32), "action": np.zeros(ACTION, np.float32), "reward": 0.0,
        }  # fmt: skip
        self._length = 0

    def add(self) -> float:
        """Append one step, and end the episode where it is long enough."""
        self._writer.append(self._step)
        self._length += 1
        if self._length == EPISODE:
            self._writer.end_episode(truncated=True, final={"observation": self._step["observation"]})
            self._length = 0
        return 1.0

    def before(self, draw: Work) -> Work:
        """Return the work of appending one step and drawing."""

        def add_and_draw() -> float:
            self.add()
            return draw()

        return add_and_draw


class TorchSlices:
    """TorchRL's buffer of the same steps, full: the oldest goes for each that comes.

    Args:
        transitions: to store.
        repeats: how many times.
    """

    def __init__(self, transitions: Transitions, repeats: int = 1) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

        quiet_torchrl()
        number = len(transitions.reward)
        sampler = SliceSampler(slice_len=SLICE, traj_key="episode", cache_values=True, strict_length=True)
        storage = LazyTensorStorage(number * repeats)
        self._buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH * SLICE)
        columns = {name: torch.from_numpy(getattr(transitions, name)) for name in COLUMNS}
        steps = TensorDict({**columns, "episode": torch.arange(number) // EPISODE}, batch_size=[number])
        for _ in range(repeats):
            self._buffer.extend(steps)
            steps["episode"] += number // EPISODE
        sample = self._buffer.sample()
        _check(transitions, {name: sample[name].numpy() for name in COLUMNS})
        self._steps, self._added = steps[:EPISODE].clone(), 0

    def draw(self) -> float:
        """Draw a batch."""
        self._buffer.sample()
        return BATCH

    def add_and_draw(self) -> float:
        """Add one step, and draw a batch."""
        step = self._added % EPISODE
        self._buffer.extend(self._steps[step : step + 1])
        self._added += 1
        if step == EPISODE - 1:
            self._steps["episode"] += 1
        return self.draw()
