"""Behaviour cloning: the chunks of a policy come close to those of episodes that it has not seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the examples train with PyTorch")


def test_a_policy_learns_chunks_of_episodes_that_were_held_out(
    run_example: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    from walks import record_walks, standing_still

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


def test_a_policy_is_trained_on_recorded_pusht_and_played(run_example: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("gym_pusht", reason="gym-pusht is not installed: nothing to record and play")
    summary = run_example("bc_pusht.py", "--episodes", 8, "--epochs", 2, "--hidden", 32, "--evaluation-episodes", 1)
    assert len(summary["history"]) == 3
    assert 0.0 <= summary["coverage"] <= 1.0
