"""How many Python calls a batch of a table takes, and the steps and episodes that came before it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, ReplayLoader, Table

PACKAGE = str(Path(stepwell.__file__).parent)


def num_calls(run: Callable[[], object]) -> int:
    """Return how many Python functions of ours are called; kernels are compiled."""
    calls = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        path = frame.f_code.co_filename
        calls += event == "call" and path.startswith(PACKAGE) and "kernels" not in path

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_a_batch_takes_few_calls_also_after_a_step_and_after_an_end(tmp_path: Path, sampler: str) -> None:
    store = stepwell.create(tmp_path / "a.well", {"state": Array(7)})
    with store.writer() as writer:
        for _ in range(20):
            writer.add_episode({"state": np.zeros((50, 7), np.float32)})
        table = Table(store, sampler=sampler)
        loader = ReplayLoader(table, {"state": [0, 1]}, batch_size=64)
        state = np.zeros(7, np.float32)
        for _ in range(5):
            writer.append(state=state)
            batch = next(loader)
        # as long as the time stamps of directories are young, the directories are looked at as well
        time.sleep(0.1)
        next(loader)
        size = table.size
        writer.append(state=state)
        assert num_calls(lambda: next(loader)) <= 35
        assert num_calls(lambda: next(loader)) <= 32
        assert table.size == size + 1
        writer.end_episode(truncated=True)
        writer.append(state=state)
        assert num_calls(lambda: next(loader)) <= 55
        assert table.size == size + 2
        assert num_calls(lambda: table.update_priorities(batch["table.key"], np.ones(64))) <= 15
