"""Shards that a numbered sequence lacks are named by a warning, where no ``_info.json`` counts them."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from stepwell import Array
from stepwell.errors import LeftOutWarning
from stepwell.formats import open_reader
from stepwell.store import create
from stepwell.webdataset import write_webdataset


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    with create(tmp_path / "a.well", {"x": Array(2)}) as store:
        with store.writer() as writer:
            writer.add_episode({"x": np.ones((12, 2), np.float32)})
        store.refresh()
        write_webdataset(store, tmp_path / "set", shard_samples=3, rename={"x": "x.npy"}, workers=1)
    (tmp_path / "set" / "_info.json").unlink()
    return tmp_path / "set"


@pytest.mark.parametrize("pattern", ["", "/*.tar"])
def test_a_directory_or_pattern_without_a_shard_in_the_middle_warns_by_name(shards: Path, pattern: str) -> None:
    lost = sorted(shards.glob("*.tar"))[1]
    source = f"{shards}{pattern}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_reader(source, "webdataset")) == 12
    lost.unlink()
    with pytest.warns(LeftOutWarning, match=rf"{lost.name} is not there, where 3 files are numbered"):
        assert len(open_reader(source, "webdataset")) == 9


def test_shards_that_are_chosen_by_name_or_range_are_no_gap(shards: Path) -> None:
    paths = sorted(map(str, shards.glob("*.tar")))
    for source in (f"{paths[0]}::{paths[2]}", f"{paths[0][:-5]}[02].tar"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(open_reader(source, "webdataset")) == 6
