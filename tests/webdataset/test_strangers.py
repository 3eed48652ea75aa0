"""Shards that were made to do harm: members of any name, links, sizes, and what stands beside the shards."""

import os
from pathlib import Path

import numpy as np
import pytest
from shards import picture, sample, write_tar  # type: ignore[import-not-found]

import stepwell
from stepwell import Array, Image
from stepwell.testing import check_strangers
from stepwell.webdataset import write_webdataset

pytest.importorskip("imagecodecs")
# processes are forked beside threads that they do not need
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
COUNT = int(os.environ.get("STEPWELL_STRANGERS", "14"))


def test_evil_samples_do_nothing(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for shard in range(2):
        members = [member for number in range(1, 4) for member in sample(3 * shard + number)]
        write_tar(tmp_path / "set" / f"a-{shard:06d}.tar", members)
    assert check_strangers(tmp_path / "set", "webdataset", count=COUNT, seed=1).errors


def test_evil_shards_of_episodes_do_nothing(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": Image((24, 32, 3), codec="png"), "x": Array(2)})
    with store.writer() as writer:
        for number in range(3):
            writer.add_episode({"image": [picture(number)] * 2, "x": np.ones((2, 2), "f4")})
    write_webdataset(store, tmp_path / "set", samples="episodes")
    assert check_strangers(tmp_path / "set", "webdataset-episodes", count=COUNT, seed=1).errors
