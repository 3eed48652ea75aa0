"""Exact inside Ray Train, where Ray is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell import random

from .exact_model import epoch_batches, item_store

SCRIPT = Path(__file__).with_name("ray_ranks.py")


class Count:
    """An index of so many anchors."""

    num_anchors = 30


@pytest.mark.slow
def test_two_workers_of_ray_train_share_evaluation_and_training_exactly(tmp_path: Path) -> None:
    # in a process of its own: Ray leaves threads behind
    pytest.importorskip("torch")
    pytest.importorskip("ray.train", reason="Ray Train is not installed: pip install 'ray[train]'")
    store = item_store(tmp_path / "items.well", 30, 3)
    command = [sys.executable, str(SCRIPT), str(store.path), str(tmp_path)]
    done = subprocess.run(command, timeout=240, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    order = random(0).bind(Count())  # type: ignore[arg-type]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["world"] == 2
        assert found["gathered"] == list(range(30))
        epochs = [epoch_batches(order.positions(n, 0, 30).tolist(), rank, 2, 4, "wrap") for n in range(2)]
        assert found["trained"] == [list(each) for each in epochs[0] + epochs[1]]
