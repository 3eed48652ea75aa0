"""Rivals that need a word before they are used."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from typing import Any

import numpy as np
from timing import Work

__all__ = ["TIANSHOU_PATH", "import_tianshou", "quiet_torchrl", "sb3_adding"]

TIANSHOU_PATH = "STEPWELL_TIANSHOU_PATH"


def quiet_torchrl() -> None:
    """Let TorchRL compute in one thread, and not tell what it allocates."""
    import torch

    torch.set_num_threads(1)
    logging.getLogger("torchrl").setLevel(logging.WARNING)


def import_tianshou() -> Any:
    """Return Tianshou's module of data.

    It wants versions of other packages that ours do not go with, so that it may lie in a directory of its own, with
    what it needs and is not installed here: the environment variable `TIANSHOU_PATH` names it.

    Raises:
        ImportError: it is not installed.
    """
    path = os.environ.get(TIANSHOU_PATH)
    if path and path not in sys.path:
        # at the end: what is installed here comes first
        sys.path.append(path)
    import tianshou.data

    return tianshou.data


def sb3_adding(columns: dict[str, np.ndarray], capacity: int) -> Work:
    """Return the work of Stable-Baselines3's `ReplayBuffer.add` of one step, in memory that was touched before.

    Args:
        columns: ``observation``, ``next_observation``, ``action``, ``reward`` and ``done``, [n, ...]; added in turn.
        capacity: of the buffer, at least n.

    Raises:
        ImportError: it is not installed.
    """
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    spaces = [Box(-np.inf, np.inf, columns[name].shape[1:], np.float32) for name in ("observation", "action")]
    buffer = ReplayBuffer(capacity, *spaces, device="cpu", n_envs=1)
    names = ("observation", "next_observation", "action", "reward", "done")
    # what `OffPolicyAlgorithm` hands it: one row for each of its environments, new arrays
    made = [
        (observation[None].copy(), following[None].copy(), action[None].copy(), reward[None].copy(),
         np.array([bool(done)]), [{}])
        for observation, following, action, reward, done in zip(*(columns[name] for name in names), strict=True)
    ]  # fmt: skip
    for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        array.fill(0)
    steps = itertools.cycle(made)
    for step in made:
        buffer.add(*step)
    np.testing.assert_array_equal(buffer.observations[: len(made), 0], columns["observation"])
    np.testing.assert_array_equal(buffer.dones[: len(made), 0], columns["done"])

    def add() -> float:
        buffer.add(*next(steps))
        return 1

    return add
