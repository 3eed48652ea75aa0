"""Tests beside the real lerobot and others: `make test-interop` runs them where these are, else they skip."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import stepwell

# goes into those environments
collect_ignore = [
    "sitecustomize.py",
    "own_requirements.py",
    "answering.py",
    "ffcv_child.py",
    "lerobot_robot.py",
    "lerobot_swap.py",
    "lerobot_scripts_child.py",
    "readers_child.py",
    "tfds_child.py",
]
# what both tests stand on is beside them
sys.path.insert(0, str(Path(__file__).parent))
REASON = "lerobot is not here: make test-interop"


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    if importlib.util.find_spec("lerobot") is None:
        for item in items:
            if here in item.path.parents and item.path.name.startswith("test_lerobot"):
                item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture
def store(tmp_path):
    """Return a store of three episodes of all kinds of features."""
    from interop_sets import CAMERAS, FPS, smooth

    rng = np.random.default_rng(0)
    schema = {
        "observation.state": stepwell.Array(3, final=True),
        "observation.grid": stepwell.Array((2, 3), "int64"),
        "action": stepwell.Array(2),
        "next.reward": stepwell.Array(),
        "next.success": stepwell.Array(dtype="bool"),
        **{name: stepwell.Image(shape, codec="png") for name, shape in CAMERAS.items()},
    }
    store = stepwell.create(tmp_path / "source.well", schema, fps=FPS)
    with store.writer() as writer:
        for number, length in enumerate((12, 1, 30)):
            columns = {
                "observation.state": rng.normal(size=(length + 1, 3)).astype("f4"),
                "observation.grid": rng.integers(0, 9, (length, 2, 3)),
                "action": rng.normal(size=(length, 2)).astype("f4"),
                "next.reward": rng.normal(size=length).astype("f4"),
                "next.success": rng.random(length) < 0.5,
                **{name: smooth(rng, length, shape) for name, shape in CAMERAS.items()},
            }
            writer.add_episode(columns, terminated=True, task=f"task {number % 2}")
    store.refresh()
    return store
