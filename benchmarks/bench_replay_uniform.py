"""replay_uniform: batches of 256 transitions drawn uniformly from a million, beside replay buffers in memory.

A transition is HalfCheetah's: observation 17 and action 6 of float32, reward, whether it terminated, and the next
observation. stepwell stores an observation once, on disk behind the page cache, finds out which steps are there before
each batch, and gives the table's keys, probabilities and weights along, in memory that is new or free again.

* numpy take: `numpy.take(out=)` from arrays into arrays that are used again, over rows that a generator draws: the
  least that drawing can cost. Next to what the learner gets, it knows no episode and no step that comes or goes. Either
  with next observations stored of their own, or as rows that follow: whichever is faster here.
* cpprb: `ReplayBuffer`, next observations stored of their own (its fastest), and once (`next_of`).
* TorchRL: `ReplayBuffer` of `LazyTensorStorage`; tensors come out. Beside it also our loader with ``to="torch"``.

"16 batches drawn together" is ``prefetch=16``: up to 15 batches do not know yet of a step that came meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from datasets import removed
from report import Row, compare, skipped
from rivals import quiet_torchrl
from timing import Settings, Work, time_rounds
from transitions import ACTION, EPISODE, OBSERVATION, Transitions, make_transitions, record

from stepwell.replay import ReplayLoader, Table, transition_fields

__all__ = ["run"]

NAME = "replay_uniform"
BATCH = 256
CASE = "256 of 1M transitions"
OURS, TO_TORCH, STORE = "stepwell", "stepwell to torch", "stepwell without a table"
AHEAD = 16
TOGETHER = f"stepwell, {AHEAD} drawn together"
CPPRB, CPPRB_ONCE = "cpprb ReplayBuffer", "cpprb ReplayBuffer next_of"
TORCHRL = "torchrl ReplayBuffer"
TAKES = ("numpy take, next_obs stored", "numpy take, next_obs is the next row")
NUMPY = "numpy take(out=)"


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a rival."""
    transitions = make_transitions(settings.sized(1_000_000, 20 * EPISODE))
    rivals: dict[str, Callable[[Transitions], Work]] = {
        TAKES[0]: _take_stored, TAKES[1]: _take_following, CPPRB: _cpprb, CPPRB_ONCE: _cpprb_once, TORCHRL: _torchrl,
    }  # fmt: skip
    contenders = {}
    for name, make in rivals.items():
        try:
            contenders[name] = make(transitions)
        except ImportError:
            yield from skipped(NAME, name, CASE)
    with removed(record(settings.data / "uniform.well", transitions)) as store:
        contenders[OURS] = _drawn(Table(store, max_size=len(transitions.reward)), transitions)
        contenders[TOGETHER] = _drawn(Table(store, max_size=len(transitions.reward)), transitions, prefetch=AHEAD)
        contenders[STORE] = _drawn(store, transitions)
        if TORCHRL in contenders:
            contenders[TO_TORCH] = _drawn(Table(store, max_size=len(transitions.reward)), transitions, to="torch")
        rates = time_rounds(contenders, settings)
    fastest = max(TAKES, key=rates.median)
    for case, ours, theirs, target in _comparisons(fastest):
        if theirs in contenders:
            yield compare(NAME, case, rates, ours=ours, theirs=theirs, unit="transitions/s", target=target)


def _comparisons(take: str) -> Iterator[tuple[str, str, str, float | None]]:
    """Yield case, ours, theirs and target."""
    yield CASE, OURS, take, 0.8
    yield CASE, OURS, CPPRB, 2.0
    yield CASE, OURS, CPPRB_ONCE, 2.0
    yield CASE, OURS, TORCHRL, 5.0
    yield f"{CASE}, to torch", TO_TORCH, TORCHRL, 5.0
    yield f"{CASE}, {AHEAD} batches drawn together", TOGETHER, take, None
    yield f"{CASE}, no table", STORE, take, None


def _drawn(source: Any, transitions: Transitions, **options: Any) -> Work:
    """Return the work of taking a batch of a table, or of a store."""
    targets = transition_fields()
    loader = ReplayLoader(source, targets.fields, batch_size=BATCH, transform=targets.transform, **options)
    batches = iter(loader)
    found = next(batches)
    numbers = transitions.check({name: np.asarray(found[name]) for name in transitions.columns()})
    discounts = np.where(transitions.terminated[numbers], np.float32(0), np.float32(0.99))
    np.testing.assert_array_equal(np.asarray(found["discount"]), discounts)

    def draw() -> float:
        next(batches)
        return BATCH

    return draw


def _take_stored(transitions: Transitions) -> Work:
    """Take from five arrays."""
    columns = list(transitions.columns().values())
    outs = [np.empty((BATCH, *column.shape[1:]), column.dtype) for column in columns]
    pairs = list(zip(columns, outs, strict=True))
    rng, number = np.random.default_rng(1), len(transitions.reward)

    def draw() -> float:
        rows = rng.integers(0, number, BATCH)
        for column, out in pairs:
            column.take(rows, axis=0, out=out, mode="clip")
        return BATCH

    draw()
    transitions.check(dict(zip(transitions.columns(), outs, strict=True)))
    return draw


def _take_following(transitions: Transitions) -> Work:
    """Take from four arrays of which the observations have a row more for each episode."""
    columns = transitions.columns()
    lasts = columns.pop("next_observation").reshape(-1, EPISODE, OBSERVATION)[:, -1:]
    stored = np.concatenate([columns.pop("observation").reshape(-1, EPISODE, OBSERVATION), lasts], axis=1)
    stored = stored.reshape(-1, OBSERVATION)
    outs = {name: np.empty((BATCH, *column.shape[1:]), column.dtype) for name, column in columns.items()}
    observation, following = (np.empty((BATCH, OBSERVATION), np.float32) for _ in range(2))
    pairs = list(zip(columns.values(), outs.values(), strict=True))
    rng, number = np.random.default_rng(1), len(transitions.reward)

    def draw() -> float:
        rows = rng.integers(0, number, BATCH)
        for column, out in pairs:
            column.take(rows, axis=0, out=out, mode="clip")
        rows += rows // EPISODE
        stored.take(rows, axis=0, out=observation, mode="clip")
        rows += 1
        stored.take(rows, axis=0, out=following, mode="clip")
        return BATCH

    draw()
    transitions.check({**outs, "observation": observation, "next_observation": following})
    return draw


def _cpprb(transitions: Transitions, next_of: str | None = None) -> Work:
    from cpprb import ReplayBuffer

    shapes: dict[str, Any] = {
        "observation": {"shape": OBSERVATION}, "action": {"shape": ACTION}, "reward": {}, "terminated": {},
    }  # fmt: skip
    if next_of is None:
        shapes["next_observation"] = {"shape": OBSERVATION}
    buffer = ReplayBuffer(len(transitions.reward), shapes, next_of=next_of)
    for start in range(0, len(transitions.reward), EPISODE):
        buffer.add(**{name: column[start : start + EPISODE] for name, column in transitions.columns().items()})
        buffer.on_episode_end()
    transitions.check(buffer.sample(BATCH))

    def draw() -> float:
        buffer.sample(BATCH)
        return BATCH

    return draw


def _cpprb_once(transitions: Transitions) -> Work:
    return _cpprb(transitions, "observation")


def _torchrl(transitions: Transitions) -> Work:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    quiet_torchrl()
    number = len(transitions.reward)
    buffer = ReplayBuffer(storage=LazyTensorStorage(number), batch_size=BATCH)
    columns = {name: torch.from_numpy(column) for name, column in transitions.columns().items()}
    buffer.extend(TensorDict(columns, batch_size=[number]))
    sample = buffer.sample()
    transitions.check({name: sample[name].numpy() for name in columns})

    def draw() -> float:
        buffer.sample()
        return BATCH

    return draw
