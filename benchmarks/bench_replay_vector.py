"""replay_vector: a step of n environments appended to a full ring, beside Stable-Baselines3's `ReplayBuffer.add`.

Observation 24, action 6, reward; the next observation is the next row. Both get what a vector environment returns:
arrays [n, ...] and which environments are done; about one in 1,000 is. Stable-Baselines3 has its memory, touched
before; a step of ours is checked, on disk behind the page cache, committed, and visible to other processes. Rates are
by processor time: of the thread that appends, which a training loop waits for, and of the process, with the thread that
makes and seals our segments meanwhile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
from datasets import removed
from report import Row, compare, skipped
from timing import Settings, Work, time_rounds

import stepwell
from stepwell import Array

__all__ = ["run"]

NAME = "replay_vector"
RIVAL = "stable_baselines3 ReplayBuffer"
# environments, and at how much of the rival's rate they are asked to be
TARGETS = {1: 1 / 1.2, 8: 1.0, 64: 1.0, 256: 1.0, 4096: 1.0}
# by the clock that a row is of
CLOCKS = {"": time.thread_time, ", by all threads": time.process_time}
RING, STEPS = 500_000, 64
SCHEMA = {"observation": Array(24, final=True), "action": Array(6), "reward": Array()}


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row for each number of environments."""
    capacity = settings.sized(RING, 8192)
    cases = [case(number) + of for number in TARGETS for of in CLOCKS]
    try:
        from stable_baselines3.common.buffers import ReplayBuffer
    except ImportError:
        yield from skipped(NAME, RIVAL, *cases)
        return
    from gymnasium.spaces import Box

    for number, target in TARGETS.items():
        steps = _steps(number)
        with ExitStack() as stack:
            store = stepwell.create(settings.data / f"vector-{number}.well", SCHEMA, capacity=capacity)
            stack.enter_context(removed(store))
            spaces = [Box(-np.inf, np.inf, (size,), np.float32) for size in (24, 6)]
            buffer = ReplayBuffer(max(capacity, number), *spaces, device="cpu", n_envs=number)
            for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
                array.fill(0)
            writer = stack.enter_context(store.vector_writer(number))
            works = {RIVAL: _adding(buffer, steps), NAME: _appending(writer, steps, capacity)}
            found = {of: time_rounds(works, settings, clock=clock) for of, clock in CLOCKS.items()}
        for of, rates in found.items():
            asked = None if of else target
            yield compare(NAME, case(number) + of, rates, ours=NAME, theirs=RIVAL, unit="vector steps/s", target=asked)


def case(number: int) -> str:
    """Return the name of a number of environments."""
    return f"{number:,} environment{'s' * (number > 1)}"


def _steps(number: int) -> list[tuple[np.ndarray, ...]]:
    """Return observations, next ones, actions, rewards, and which environments are done."""
    random = np.random.default_rng(0)
    observations = random.random((STEPS + 1, number, 24), np.float32)
    return [
        (
            observations[step].copy(),
            observations[step + 1].copy(),
            random.random((number, 6), np.float32),
            random.random(number).astype(np.float32),
            random.random(number) < 0.001,
        )
        for step in range(STEPS)
    ]


def _adding(buffer: object, steps: list[tuple[np.ndarray, ...]]) -> Work:
    cycle = itertools.cycle(steps)
    infos = [{} for _ in range(len(steps[0][3]))]
    add = buffer.add

    def step() -> float:
        add(*next(cycle), infos)
        return 1

    return step


def _appending(writer: stepwell.store.VectorWriter, steps: list[tuple[np.ndarray, ...]], capacity: int) -> Work:
    cycle, append = itertools.cycle(steps), writer.append

    def step() -> float:
        observation, following, action, reward, done = next(cycle)
        append(observation=observation, action=action, reward=reward, terminated=done, final={"observation": following})
        return 1

    for _ in range(capacity // writer.num_envs + 1):
        step()
    return step
