"""Stores that were made to do harm: nothing outside is read, nothing hangs, memory is bounded."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Image, StepwellError, Text
from stepwell.testing import check_strangers, evil_copies

# processes are forked beside threads that they do not need
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
# all of them: STEPWELL_STRANGERS=1000000
COUNT = int(os.environ.get("STEPWELL_STRANGERS", "16"))


def read(path: Path) -> Any:
    with stepwell.open(path) as store:
        return store.metadata, [(episode.metadata, {name: episode[name] for name in store.schema}) for episode in store]


def test_evil_copies_do_nothing(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    pytest.importorskip("imagecodecs")
    features = {
        "x": Array(2),
        "z": Array((None, 2), codec="zstd"),
        "image": Image((None, None, 3), codec="png"),
        "text": Text(),
    }
    with stepwell.create(tmp_path / "a.well", features) as store:
        rows = {
            "x": np.ones((3, 2), np.float32),
            "z": [np.ones((2, 2), np.float32)] * 3,
            "image": [np.zeros((5, 6, 3), np.uint8)] * 3,
        }
        with store.writer() as writer:
            for number in range(2):
                writer.add_episode({**rows, "text": ["a"] * 3}, number=number)
        store.delete_episodes([0])
    assert check_strangers(tmp_path / "a.well", read, count=COUNT, seed=2).errors


def test_evil_copies_of_a_ring_do_nothing(tmp_path: Path) -> None:
    with stepwell.create(tmp_path / "a.well", {"x": Array(2)}, capacity=8) as store:
        for number in range(2):
            with store.writer() as writer:
                writer.add_episode({"x": np.full((6, 2), number, np.float32)})
    copies = [copy for copy in evil_copies(tmp_path / "a.well", tmp_path) if "clock.stamps" in copy.told]
    # headers, stamps and kinds of files, of two segments
    assert len(copies) > 40
    for copy in copies[::3] if len(copies) > COUNT else copies:
        target = tmp_path / "copy" / "a.well"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tmp_path / "a.well", target)
        copy.change(target)
        with contextlib.suppress(StepwellError):
            read(target)
        # the other segment's steps push out, and a writer goes on
        with contextlib.suppress(StepwellError), stepwell.open(target) as store, store.writer() as writer:
            writer.add_episode({"x": np.full((6, 2), 2, np.float32)})
            store.refresh()
            assert store.num_steps <= 8
