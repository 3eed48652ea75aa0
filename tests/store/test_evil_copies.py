"""Stores that were made to do harm: nothing outside is read, nothing hangs, memory is bounded."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Image, Text
from stepwell.testing import check_strangers

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
