"""How many Python calls a batch of a table takes, and the steps and episodes that came before it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from called_files import files_in_python

import stepwell
from stepwell import Array, ReplayLoader, Table


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
        assert len(files_in_python(lambda: next(loader))) <= 26
        assert len(files_in_python(lambda: next(loader))) <= 25
        assert table.size == size + 1
        writer.end_episode(truncated=True)
        writer.append(state=state)
        assert len(files_in_python(lambda: next(loader))) <= 60
        assert table.size == size + 2
        assert len(files_in_python(lambda: table.update_priorities(batch["table.key"], np.ones(64)))) <= 15
