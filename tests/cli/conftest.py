"""A small store with images, for the verbs that read."""

from pathlib import Path

import numpy as np
import pytest

import stepwell


@pytest.fixture
def toy_path(tmp_path: Path) -> Path:
    """Return the path of a sealed store: three episodes of 4, 6 and 8 steps, an image with a final row."""
    schema = stepwell.Schema(
        {
            "observation.image": stepwell.Image((24, 32, 3), codec="png", final=True),
            "action": stepwell.Array(2),
            "task": stepwell.Text(),
        }
    )
    path = tmp_path / "toy.well"
    with stepwell.create(path, schema, fps=10) as store, store.writer() as writer:
        for number, length in enumerate((4, 6, 8)):
            images = np.full((length + 1, 24, 32, 3), number * 40, np.uint8)
            actions = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
            columns = {"observation.image": images, "action": actions, "task": [f"task {number}"] * length}
            writer.add_episode(columns, terminated=number == 1, truncated=number == 2, score=number / 3)
    return path
