"""DQN on screens: it learns what only a stack can tell; with ale-py, games are stored at a tenth of their bytes."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the examples train with PyTorch")
pytest.importorskip("gymnasium", reason="the examples play tasks of Gymnasium")
pytest.importorskip("zstandard", reason="screens are stored with zstd")

SIDE = 84
TOY = ("--width", 8, "--learning-rate", 1e-3, "--target-every", 100, "--timed-batches", 20)


def test_it_learns_which_way_things_move(run_example: Callable[..., dict[str, Any]]) -> None:
    summary = run_example(
        "dqn_atari.py", *TOY, "--game", "moving:Moving-v0", "--frames", 1800, "--learning-starts", 200,
        "--train-every", 1, "--discount", 0.5, "--n-step", 1, "--exploration-steps", 400,
    )  # fmt: skip
    # of 20 steps: random actions gain 0, +- 2 for the mean of five, and so does whoever sees one screen only
    returns = [episode["return"] for episode in summary["episodes"]]
    assert sum(returns[:5]) / 5 < 8
    assert sum(returns[-5:]) / 5 > 12


def test_a_game_is_stored_once_and_small(run_example: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("ale_py", reason="ale-py is not installed: no Atari games")
    pytest.importorskip("cv2", reason="opencv is not installed: Gymnasium's Atari wrapper scales screens with it")
    summary = run_example(
        "dqn_atari.py", *TOY, "--frames", 1600, "--learning-starts", 100, "--train-every", 8,
    )  # fmt: skip
    assert summary["steps_stored"] == 400
    assert summary["bytes_per_transition"] < 0.3 * SIDE * SIDE
    assert summary["samples_per_second"] > 0
    losses = summary["losses"]
    assert len(losses) > 30
    assert max(losses) < 10
