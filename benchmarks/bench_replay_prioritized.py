"""replay_prioritized: 256 transitions drawn by priority from a million and their priorities set anew, beside rivals.

The transition is that of `replay_uniform`; exponent 0.6, beta 0.4, weights over the largest of the batch (cpprb's: over
the largest there is). New priorities were drawn beforehand. All trees hold float64, and each side finds out where the
drawn ones lie from what it gave along: keys that miss what is gone (stepwell), rows that hit what took the place.

* cpprb: `PrioritizedReplayBuffer`, next observations stored of their own.
* Tianshou: `PrioritizedReplayBuffer`; its tree is numba, as ours. It may lie in a directory of its own that the
  environment variable STEPWELL_TIANSHOU_PATH names.

TorchRL's sampler is left out: its trees are native code that goes with few versions of torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from datasets import removed
from report import Row, compare, skipped
from rivals import import_tianshou
from timing import Settings, Work, time_rounds
from transitions import ACTION, EPISODE, OBSERVATION, Transitions, make_transitions, record

import stepwell
from stepwell.replay import Prioritized, ReplayLoader, Table, transition_fields

__all__ = ["run"]

NAME = "replay_prioritized"
BATCH = 256
EXPONENT, BETA = 0.6, 0.4
CASE = "256 of 1M by priority, and updated"
OURS = "stepwell"


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a rival."""
    transitions = make_transitions(settings.sized(1_000_000, 20 * EPISODE))
    rivals: dict[str, Callable[[Transitions], Work]] = {
        "cpprb PrioritizedReplayBuffer": _cpprb, "tianshou PrioritizedReplayBuffer": _tianshou,
    }  # fmt: skip
    contenders = {}
    for name, make in rivals.items():
        try:
            contenders[name] = make(transitions)
        except ImportError:
            yield from skipped(NAME, name, CASE)
    with removed(record(settings.data / "prioritized.well", transitions)) as store:
        rates = time_rounds({OURS: _stepwell(store, transitions), **contenders}, settings)
    for name in contenders:
        yield compare(NAME, CASE, rates, ours=OURS, theirs=name, unit="transitions/s", target=2.0)


def _new_priorities() -> Iterator[np.ndarray]:
    return itertools.cycle(np.random.default_rng(2).uniform(0.1, 3.0, (64, BATCH)))


def _stepwell(store: stepwell.Store, transitions: Transitions) -> Work:
    number = len(transitions.reward)
    table = Table(store, max_size=number, sampler=Prioritized(EXPONENT))
    targets = transition_fields()
    loader = ReplayLoader(
        table, targets.fields, batch_size=BATCH, beta=BETA, transform=targets.transform
    )  # fmt: skip
    batches, priorities = iter(loader), _new_priorities()

    def draw() -> float:
        loader.update_priorities(next(batches), next(priorities))
        return BATCH

    for _ in range(50):
        draw()
    batch = next(batches)
    transitions.check({name: batch[name] for name in transitions.columns()})
    weights = (number * batch["table.probability"]) ** -BETA
    np.testing.assert_allclose(batch["table.weight"], weights / weights.max(), rtol=1e-6)
    shares = batch["table.priority"] ** EXPONENT / batch["table.probability"]
    np.testing.assert_allclose(shares, shares[0], rtol=1e-6)
    return draw


def _cpprb(transitions: Transitions) -> Work:
    from cpprb import PrioritizedReplayBuffer

    shapes: dict[str, Any] = {
        "observation": {"shape": OBSERVATION}, "next_observation": {"shape": OBSERVATION}, "action": {"shape": ACTION},
        "reward": {}, "terminated": {},
    }  # fmt: skip
    buffer = PrioritizedReplayBuffer(len(transitions.reward), shapes, alpha=EXPONENT)
    buffer.add(**transitions.columns())
    found, priorities = buffer.sample(BATCH, BETA), _new_priorities()
    transitions.check({name: found[name] for name in transitions.columns()})

    def draw() -> float:
        drawn = buffer.sample(BATCH, BETA)
        buffer.update_priorities(drawn["indexes"], next(priorities))
        return BATCH

    return draw


def _tianshou(transitions: Transitions) -> Work:
    data = import_tianshou()
    number = len(transitions.reward)
    buffer = data.PrioritizedReplayBuffer(number, EXPONENT, BETA)
    # as its `add` leaves it after each of them, which takes half a minute
    buffer.set_batch(
        data.Batch(
            obs=transitions.observation, obs_next=transitions.next_observation, act=transitions.action,
            rew=transitions.reward, terminated=transitions.terminated, truncated=~transitions.terminated,
            done=transitions.terminated, info=data.Batch(),
        )
    )  # fmt: skip
    buffer._size = number
    buffer.init_weight(np.arange(number))
    found, _ = buffer.sample(BATCH)
    names = {"observation": "obs", "next_observation": "obs_next", "action": "act", "reward": "rew"}
    transitions.check({ours: found[theirs] for ours, theirs in names.items()})
    priorities = _new_priorities()

    def draw() -> float:
        _, rows = buffer.sample(BATCH)
        buffer.update_weight(rows, next(priorities))
        return BATCH

    return draw
