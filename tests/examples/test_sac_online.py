"""Soft actor-critic, its actor in another process: it learns, also from an earlier run, and leaves no orphan."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import stepwell

pytest.importorskip("torch", reason="the examples train with PyTorch")
pytest.importorskip("gymnasium", reason="the examples play tasks of Gymnasium")

TIMEOUT_SECONDS = 120
TOY = (
    "--env", "reach:Reach-v0", "--learning-starts", 100, "--hidden", 32, "--batch-size", 64, "--evaluate-every", 100,
)  # fmt: skip
# a point that stays where it is, anywhere in (-1, 1), loses a half at each of ten steps
STANDING_STILL = -5.0


def final_return(summary: dict[str, Any]) -> float:
    return float(summary["evaluations"][-1]["return"])


def test_it_learns_from_what_another_process_plays_and_from_what_an_earlier_run_stored(
    run_example: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    first = run_example("sac_online.py", *TOY, "--steps", 400, "--replay", tmp_path / "first.well")
    assert final_return(first) > STANDING_STILL / 2
    assert final_return(first) > first["evaluations"][0]["return"] + 1
    assert first["samples"] == 400 * 64
    stored = stepwell.open(tmp_path / "first.well", mode="r")
    # the steps before the first update, and one an update; the actor is at most an order ahead
    assert 400 <= stored.num_steps == first["steps_stored"] <= 100 + 400 + 50
    assert all(episode.length == 10 and episode.truncated for episode in list(stored)[:-1])

    both = run_example(
        "sac_online.py", *TOY, "--steps", 400, "--prioritized", "--offline", tmp_path / "first.well", "--share", 0.5,
        out="both",
    )  # fmt: skip
    assert final_return(both) > STANDING_STILL / 2
    # half of every batch is the table's, half the store's
    assert both["samples"] == 400 * 32
    assert (tmp_path / "both" / "curve.png").stat().st_size > 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_the_actor_ends_when_the_learner_does(
    number: signal.Signals, start_example: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    learner = start_example("sac_online.py", *TOY, "--steps", 1_000_000, "--replay", tmp_path / "ring.well")
    assert learner.stdout is not None
    while "200 steps" not in (line := learner.stdout.readline()):
        assert line, "the learner ended by itself"
    children = psutil.Process(learner.pid).children(recursive=True)
    assert children
    learner.send_signal(number)
    learner.communicate(timeout=TIMEOUT_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=TIMEOUT_SECONDS)
    assert not alive
    # what was played is there
    assert stepwell.open(tmp_path / "ring.well").num_steps >= 100
