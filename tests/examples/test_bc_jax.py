"""Behaviour cloning in JAX: the chunks of a policy come close to those of episodes that it has not seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="this example trains with JAX")


def test_a_policy_learns_chunks_of_episodes_that_were_held_out(
    run_example: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    from walks import record_walks, standing_still

    record_walks(tmp_path / "walks.well", 150)
    summary = run_example(
        "bc_jax.py", "--store", tmp_path / "walks.well", "--epochs", 30, "--batch-size", 64, "--hidden", 96
    )
    assert summary["losses"][-1] < 0.5 * summary["losses"][0]
    # nearer than a policy that stays where it is: that one has not read the T's position
    assert summary["distance"] < 0.7 * standing_still(tmp_path / "walks.well")
    assert summary["distance"] < 0.4 * summary["untrained_distance"]
