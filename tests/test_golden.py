"""Stores of every format version stay readable for ever."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.store import Store, open
from stepwell.windows import Field, View, WindowReader

GOLDEN = Path(__file__).parent / "golden"
# compared within a few levels; everything else must be equal
LOSSY = ("observation.camera",)
# sha256 of all windows of `test_windows_of_a_golden_store_are_what_they_were`
WINDOWS_OF = {"v1.well": "d169375a64259d4f223b301d6d852668b461bfccce1c19a5b1db6da30b55a451"}


def golden_module() -> Any:
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=sorted(path.name for path in GOLDEN.glob("v*.well")))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Open a copy: opening for writing may touch what is there."""
    shutil.copytree(GOLDEN / request.param, tmp_path / request.param)
    return open(tmp_path / request.param)


def test_a_golden_store_reads_as_it_was_written(golden: Store) -> None:
    made = golden_module()
    assert golden.schema == made.SCHEMA
    assert (golden.fps, dict(golden.metadata)) == (10, {"robot": "golden"})
    assert [episode.length for episode in golden] == list(made.LENGTHS)
    for (number, length, ending), episode in zip(made.episodes(), golden, strict=True):
        assert (episode.terminated, episode.truncated) == (ending["terminated"], ending["truncated"])
        assert episode.metadata == {"task": ending["task"], "seed": ending["seed"]}
        assert episode.has_final == (number != 2)
        for name, feature in made.SCHEMA.items():
            column = episode[name]
            assert len(column) == length + (feature.final and episode.has_final)
            for t, value in enumerate(column):
                expected = made.step(number, t)[name]
                if name in LOSSY:
                    assert np.abs(value.astype(int) - expected).mean() < 6
                else:
                    assert np.array_equal(value, expected)


def test_a_golden_store_verifies(golden: Store) -> None:
    assert golden.verify(deep=True).findings == ()


def test_windows_of_a_golden_store_are_what_they_were(golden: Store) -> None:
    fields = {
        "state": Field("observation.state", (-1, 0, 1)),
        "action": Field("action", tuple(range(4)), pad="zero"),
        "image": Field("observation.image", (-1, 0)),
        "language": Field("language"),
    }
    reader = WindowReader(View(golden), fields)
    batch = reader.read(np.arange(reader.index.num_anchors))
    digest = hashlib.sha256()
    for key in sorted(batch):
        value = batch[key]
        digest.update(key.encode())
        digest.update(
            "|".join(value.ravel()).encode() if value.dtype == object else np.ascontiguousarray(value).tobytes()
        )
    assert digest.hexdigest() == WINDOWS_OF[golden.path.name]


def test_statistics_of_a_golden_store_are_what_they_were(golden: Store) -> None:
    reward = golden.statistics(names=["reward"])["reward"]
    made = golden_module()
    values = np.array(
        [made.step(e, t)["reward"] for e, length, _ in made.episodes() for t in range(length)], np.float64
    )
    assert (int(reward.count), float(reward.min), float(reward.max)) == (14, values.min(), values.max())
    assert np.isclose(float(reward.mean), values.mean(), rtol=1e-12)
    assert np.isclose(float(reward.std), values.std(), rtol=1e-12)
