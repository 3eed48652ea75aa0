"""replay_loop: replay as a training loop uses it: steps between draws, ends of episodes, and caches that are cold.

The loop of CleanRL's DQN: 10 steps are recorded one by one, then a batch of 128 transitions is drawn as torch tensors.
Between the two 24 MB of other memory are read and written, as a network's step does: what a tight loop keeps in the
processor's caches is gone then. Episodes have 200 steps, and a run its 100,000 transitions of HalfCheetah (observation
17, action 6 of float32) in memory, or on disk behind the page cache, before it is timed.

Two times are compared, of the thread alone (`time.thread_time_ns`): that of the draws, and that of the steps with their
ends. The memory that is touched between counts in neither.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import removed
from report import Row, compare, skipped
from timing import MEMCPY, Rates, Settings, memcpy_gb_per_s
from transitions import ACTION, FEATURES, OBSERVATION

import stepwell
from stepwell.replay import ReplayLoader, Table, transition_fields

__all__ = ["run"]

NAME = "replay_loop"
BATCH, STEPS, EPISODE, FILLED = 128, 10, 200, 100_000
TOUCHED_BYTES = 24 << 20
OURS, CPPRB, SB3 = "stepwell", "cpprb ReplayBuffer", "stable_baselines3 ReplayBuffer"
CASES = {
    "draw": f"a draw of {BATCH} to torch, {STEPS} steps and {TOUCHED_BYTES >> 20} MB of other memory between",
    "steps": f"{STEPS} steps, {TOUCHED_BYTES >> 20} MB of other memory between",
}
# theirs over our time that is to be reached
TARGETS = {("draw", CPPRB): 1.0, ("draw", SB3): 1 / 0.6}

Step = tuple[np.ndarray, np.ndarray, float, np.ndarray, bool]


@dataclass(frozen=True, slots=True)
class Contender:
    """A buffer in the loop."""

    # one step: observation, action, reward, next observation, whether the episode ends with it
    add: Callable[[Step], object]
    # a batch, as torch tensors
    draw: Callable[[], object]


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of drawing, then those of recording."""
    filled = settings.sized(FILLED, 4 * EPISODE)
    steps = _steps()
    with removed(stepwell.create(settings.data / "loop.well", FEATURES)) as store, store.writer() as writer:
        contenders = {OURS: _ours(store, writer, filled)}
        for name, make in {CPPRB: _cpprb, SB3: _sb3}.items():
            try:
                contenders[name] = make(filled)
            except ImportError:
                yield from skipped(NAME, name, *CASES.values())
        for contender in contenders.values():
            for step in itertools.islice(itertools.cycle(steps), filled):
                contender.add(step)
        rates = _time(contenders, steps, settings)
    for part, case in CASES.items():
        for theirs in [name for name in contenders if name != OURS]:
            target = TARGETS.get((part, theirs))
            yield compare(NAME, case, rates[part], ours=OURS, theirs=theirs, unit="a second", target=target)


def _time(contenders: dict[str, Contender], steps: Sequence[Step], settings: Settings) -> dict[str, Rates]:
    """Return how often a second of their thread's time the contenders draw, and record."""
    touched = np.zeros(settings.sized(TOUCHED_BYTES, 1 << 16) // 8)
    found: dict[str, dict[str, list[float]]] = {part: {name: [] for name in contenders} for part in CASES}
    source, loops = itertools.cycle(steps), settings.sized(200, 2)
    for _ in range(settings.rounds):
        spent = {(part, name): 0 for part in CASES for name in contenders}
        for _ in range(loops):
            for name, contender in contenders.items():
                touched += 1.0
                few = list(itertools.islice(source, STEPS))
                began = time.thread_time_ns()
                for step in few:
                    contender.add(step)
                between = time.thread_time_ns()
                touched += 1.0
                drawing = time.thread_time_ns()
                contender.draw()
                ended = time.thread_time_ns()
                spent["steps", name] += between - began
                spent["draw", name] += ended - drawing
        for (part, name), nanoseconds in spent.items():
            found[part][name].append(1e9 * loops / max(1, nanoseconds))
    speed = np.full(settings.rounds, memcpy_gb_per_s(settings))
    return {
        part: Rates({MEMCPY: speed, **{name: np.array(rates) for name, rates in of.items()}})
        for part, of in found.items()
    }


def _steps() -> list[Step]:
    """Return the steps of ten episodes, as an environment returns them: new arrays, numbers of Python."""
    rng = np.random.default_rng(0)
    made: list[Step] = []
    for _ in range(10):
        observations = rng.standard_normal((EPISODE + 1, OBSERVATION), dtype=np.float32)
        for t in range(EPISODE):
            action = rng.standard_normal(ACTION, dtype=np.float32)
            made.append((observations[t].copy(), action, float(t), observations[t + 1].copy(), t + 1 == EPISODE))
    return made


def _ours(store: stepwell.Store, writer: stepwell.Writer, filled: int) -> Contender:
    targets = transition_fields()
    table = Table(store, max_size=filled)
    loader = ReplayLoader(table, targets.fields, batch_size=BATCH, transform=targets.transform, to="torch", info=())

    def add(step: Step) -> None:
        observation, action, reward, following, is_end = step
        writer.append({"observation": observation, "action": action, "reward": reward})
        if is_end:
            writer.end_episode(terminated=True, final={"observation": following})

    return Contender(add, lambda: next(loader))


def _cpprb(filled: int) -> Contender:
    import torch
    from cpprb import ReplayBuffer

    shapes: dict[str, Any] = {"obs": {"shape": OBSERVATION}, "act": {"shape": ACTION}, "rew": {}, "done": {}}
    buffer = ReplayBuffer(filled, {**shapes, "next_obs": {"shape": OBSERVATION}})

    def add(step: Step) -> None:
        observation, action, reward, following, is_end = step
        buffer.add(obs=observation, act=action, rew=reward, next_obs=following, done=is_end)
        if is_end:
            buffer.on_episode_end()

    return Contender(add, lambda: {name: torch.as_tensor(column) for name, column in buffer.sample(BATCH).items()})


def _sb3(filled: int) -> Contender:
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    spaces = [Box(-np.inf, np.inf, (size,), np.float32) for size in (OBSERVATION, ACTION)]
    buffer = ReplayBuffer(filled, *spaces, device="cpu", n_envs=1)

    def add(step: Step) -> None:
        observation, action, reward, following, is_end = step
        buffer.add(observation, following, action, np.array([reward]), np.array([is_end]), [{}])

    return Contender(add, lambda: buffer.sample(BATCH))
