"""Behaviour cloning: the chunks of a policy come close to those of episodes that it has not seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell

pytest.importorskip("torch", reason="the examples train with PyTorch")


def record_walks(path: Path, num_episodes: int) -> None:
    """Record a pusher that walks to the T and stays there, in a store with the features of PushT."""
    schema = {
        "observation.agent_pos": stepwell.Array(2, "float64", final=True),
        "info.block_pose": stepwell.Array(3, "float64"),
        "action": stepwell.Array(2),
    }
    rng = np.random.default_rng(0)
    with stepwell.create(path, schema, fps=10) as store, store.writer() as writer:
        for _ in range(num_episodes):
            agent, block = rng.uniform(50, 450, (2, 2))
            agents, actions = [agent], []
            for _ in range(12):
                way = block - agents[-1]
                actions.append(agents[-1] + way * min(1.0, 60 / max(np.linalg.norm(way), 1e-9)))
                agents.append(agents[-1] + 0.7 * (actions[-1] - agents[-1]))
            writer.add_episode(
                {
                    "observation.agent_pos": np.array(agents),
                    "info.block_pose": np.tile([*block, 0.5], (12, 1)),
                    "action": np.array(actions, np.float32),
                }
            )


def test_a_policy_learns_chunks_of_episodes_that_were_held_out(
    run_example: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    record_walks(tmp_path / "walks.well", 150)
    summary = run_example(
        "bc_pusht.py", "--store", tmp_path / "walks.well", "--epochs", 30, "--batch-size", 64, "--hidden", 96,
        "--evaluation-episodes", 0,
    )  # fmt: skip
    losses = [row["held_out"] for row in summary["history"]]
    assert losses[-1] < 0.5 * losses[0]
    # nearer than a policy that stays where it is: that one has not read the T's position
    # (about half as far; which episodes are held out differs from store to store)
    assert summary["distance"] < 0.7 * standing_still(tmp_path / "walks.well")
    assert summary["distance"] < 0.4 * summary["untrained_distance"]
    assert (tmp_path / "out" / "loss.png").stat().st_size > 1000


def standing_still(path: Path) -> float:
    """Return the mean distance of the actions from where the pusher is at the beginning of their chunk."""
    store = stepwell.open(path, mode="r")
    fields = {"agent": "observation.agent_pos", "action": range(16)}
    (batch,) = stepwell.Loader(store, fields, batch_size=store.num_steps)
    apart = np.linalg.norm(batch["action"] - batch["agent"][:, None], axis=-1)
    return float(apart[~batch["action_is_pad"]].mean())


def test_a_policy_is_trained_on_recorded_pusht_and_played(run_example: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("gym_pusht", reason="gym-pusht is not installed: nothing to record and play")
    summary = run_example("bc_pusht.py", "--episodes", 8, "--epochs", 2, "--hidden", 32, "--evaluation-episodes", 1)
    assert len(summary["history"]) == 3
    assert 0.0 <= summary["coverage"] <= 1.0
