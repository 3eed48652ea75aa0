"""replay_sb3: Stable-Baselines3's replay buffer and `stepwell.sb3`'s of the same name, in a loop as training is.

10 vector steps are added, then a batch of 256 transitions is drawn; 24 MB of other memory are read and written before
each of the two, as a network's step does. Observation 24, action 6, both float32; one of 200 steps ends an episode.
Both buffers are full before they are timed, and are drawn from at the same positions: their batches are compared.

The times are those of the thread alone (`time.thread_time_ns`); Stable-Baselines3's memory was touched before.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from report import Row, compare, skipped
from timing import MEMCPY, Rates, Settings, memcpy_gb_per_s

__all__ = ["run"]

NAME = "replay_sb3"
OURS, RIVAL = "stepwell.sb3 ReplayBuffer", "stable_baselines3 ReplayBuffer"
# environments, and at how much of the rival's rate adding is asked to be
TARGETS = {1: 1 / 1.2, 8: 1.0, 64: 1.0}
STEPS, BATCH, TRANSITIONS, TOUCHED_BYTES = 10, 256, 100_000, 24 << 20
OBSERVATION, ACTION, MADE = 24, 6, 64


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row of adding and one of drawing for each number of environments."""
    try:
        from stable_baselines3.common.buffers import ReplayBuffer

        import stepwell.sb3
    except ImportError:
        yield from skipped(NAME, RIVAL, *(case(part, number) for number in TARGETS for part in ("add", "sample")))
        return
    from gymnasium.spaces import Box

    spaces = [Box(-np.inf, np.inf, (size,), np.float32) for size in (OBSERVATION, ACTION)]
    for number, target in TARGETS.items():
        size = settings.sized(TRANSITIONS, 40 * number)
        buffers = {
            name: kind(size, *spaces, device="cpu", n_envs=number)
            for name, kind in ((OURS, stepwell.sb3.ReplayBuffer), (RIVAL, ReplayBuffer))
        }
        source = itertools.cycle(_steps(number))
        for step in itertools.islice(source, size // number + STEPS):
            for buffer in buffers.values():
                buffer.add(*step)
        _compare(buffers)
        for part, rates in _time(buffers, source, settings).items():
            asked = target if part == "add" else None
            yield compare(NAME, case(part, number), rates, ours=OURS, theirs=RIVAL, unit="a second", target=asked)


def case(part: str, number: int) -> str:
    """Return the name of what is timed."""
    what = f"add {STEPS} vector steps" if part == "add" else f"sample {BATCH} transitions"
    return f"{what} of {number} environment{'s' * (number > 1)}"


def _time(buffers: Mapping[str, Any], source: Iterator[Any], settings: Settings) -> dict[str, Rates]:
    touched = np.zeros(settings.sized(TOUCHED_BYTES, 1 << 16) // 8)
    found: dict[str, dict[str, list[float]]] = {part: {name: [] for name in buffers} for part in ("add", "sample")}
    loops = settings.sized(200, 2)
    for _ in range(settings.rounds):
        spent = dict.fromkeys([(part, name) for part in found for name in buffers], 0)
        for _ in range(loops):
            few = list(itertools.islice(source, STEPS))
            for name, buffer in buffers.items():
                touched += 1.0
                began = time.thread_time_ns()
                for step in few:
                    buffer.add(*step)
                spent["add", name] += time.thread_time_ns() - began
                touched += 1.0
                began = time.thread_time_ns()
                buffer.sample(BATCH)
                spent["sample", name] += time.thread_time_ns() - began
        for (part, name), nanoseconds in spent.items():
            found[part][name].append(1e9 * loops / max(1, nanoseconds))
    speed = np.full(settings.rounds, memcpy_gb_per_s(settings))
    return {
        part: Rates({MEMCPY: speed, **{name: np.array(rates) for name, rates in of.items()}})
        for part, of in found.items()
    }


def _compare(buffers: Mapping[str, Any]) -> None:
    """Raise where the two draw other batches from one seed."""
    drawn = []
    for buffer in buffers.values():
        np.random.seed(0)
        drawn.append([part.numpy() for part in buffer.sample(BATCH)[:5]])
    for ours, theirs in zip(*drawn, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _steps(number: int) -> list[tuple[Any, ...]]:
    """Return what `add` takes, of steps that follow each other round and round."""
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((MADE, number, OBSERVATION), dtype=np.float32)
    return [
        (
            observations[at],
            observations[(at + 1) % MADE],
            rng.standard_normal((number, ACTION), dtype=np.float32),
            rng.standard_normal(number),
            rng.random(number) < 1 / 200,
            [{} for _ in range(number)],
        )
        for at in range(MADE)
    ]
