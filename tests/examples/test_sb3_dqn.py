"""Stable-Baselines3's DQN over a ring: the run's steps are a store, whether drawn alike or by priority."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

TOY = ("--steps", 600, "--envs", 2, "--learning-starts", 100, "--width", 16)


@pytest.mark.parametrize("options", [(), ("--prioritized", "--n-steps", 3)])
def test_what_was_played_is_a_store(run_example: Callable[..., dict[str, Any]], options: tuple[Any, ...]) -> None:
    summary = run_example("sb3_dqn.py", *TOY, *options)
    # up to the next update
    assert 600 <= summary["steps_stored"] < 620
    # a reward of 1 each step: of the episodes that ended, all steps but those of the two that had not
    assert 300 < sum(summary["returns"]) <= summary["steps_stored"]
    assert summary["evaluated_return"] > 5
