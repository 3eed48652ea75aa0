"""Transitions of a control task for replay buffers: each row says which one it is, so that any draw can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import ONE_SEGMENT

import stepwell

__all__ = ["ACTION", "EPISODE", "FEATURES", "OBSERVATION", "Transitions", "make_transitions", "record"]

OBSERVATION, ACTION = 17, 6
EPISODE = 1000
FEATURES = {
    "observation": stepwell.Array(OBSERVATION, final=True),
    "action": stepwell.Array(ACTION),
    "reward": stepwell.Array(),
}


@dataclass(frozen=True, slots=True)
class Transitions:
    """Columns of n transitions, in episodes of 1,000: every other one terminated, the rest were truncated.

    Args:
        observation: float32 [n, 17]; the first value is the number of the transition.
        next_observation: float32 [n, 17]; that after an episode's last action begins with -1 - its number.
        action: float32 [n, 6].
        reward: float32 [n].
        terminated: bool [n].
    """

    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray

    def check(self, found: dict[str, np.ndarray]) -> np.ndarray:
        """Compare drawn transitions with those that were stored; return which they are, int64 [batch]."""
        numbers = found["observation"][:, 0].astype(np.int64)
        for name, values in found.items():
            stored = getattr(self, name)[numbers]
            np.testing.assert_array_equal(np.asarray(values).reshape(stored.shape), stored, err_msg=name)
        return numbers

    def columns(self) -> dict[str, np.ndarray]:
        """Return all as name to array."""
        return {name: getattr(self, name) for name in self.__slots__}


def make_transitions(number: int) -> Transitions:
    """Return transitions of whole episodes.

    Args:
        number: of transitions, below 2**24: floats count no further exactly.
    """
    rng = np.random.default_rng(0)
    shapes = ((number, OBSERVATION), (number, ACTION), (number,))
    observation, action, reward = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    observation[:, 0] = np.arange(number)
    following = np.empty_like(observation)
    following[:-1] = observation[1:]
    ends = np.arange(EPISODE - 1, number, EPISODE)
    following[ends] = rng.standard_normal((len(ends), OBSERVATION), dtype=np.float32)
    following[ends, 0] = -1.0 - ends
    terminated = np.zeros(number, np.bool_)
    terminated[ends[::2]] = True
    return Transitions(observation, following, action, reward, terminated)


def record(path: Path, transitions: Transitions, repeats: int = 1) -> stepwell.Store:
    """Record them, episode by episode, each observation once; all of it several times."""
    store = stepwell.create(path, FEATURES, segment_bytes=ONE_SEGMENT)
    with store.writer() as writer:
        for start in [*range(0, len(transitions.reward), EPISODE)] * repeats:
            steps, last = slice(start, start + EPISODE), start + EPISODE - 1
            has_terminated = bool(transitions.terminated[last])
            writer.add_episode(
                {name: getattr(transitions, name)[steps] for name in FEATURES},
                final={"observation": transitions.next_observation[last]},
                terminated=has_terminated,
                truncated=not has_terminated,
            )
    store.refresh()
    return store
