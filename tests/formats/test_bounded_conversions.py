"""Memory that an import takes does not grow with the data set: samples of shards, episodes of records."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.schema import Array, Bytes
from stepwell.tfds import write_rlds
from stepwell.webdataset import write_webdataset

ROW_BYTES = 32 << 10


def make_store(path: Path, episodes: int) -> stepwell.Store:
    """Return a store of random bytes, which take as much in any format."""
    store = stepwell.create(path, {"blob": Bytes(), "table": Array(ROW_BYTES, "uint8")})
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for _ in range(episodes):
            table = rng.integers(0, 256, (4, ROW_BYTES), np.uint8)
            writer.add_episode({"table": table, "blob": [row.tobytes() for row in table]})
    store.refresh()
    return store


def shards(store: stepwell.Store, target: Path) -> str:
    write_webdataset(store, target, workers=0)
    return str(target)


def episode_shards(store: stepwell.Store, target: Path) -> str:
    write_webdataset(store, target, samples="episodes", workers=0)
    return str(target)


def records(store: stepwell.Store, target: Path) -> str:
    return str(write_rlds(store, target, name="set", num_shards=1, encodings="bytes", workers=0))


def peak_of(source: str, target: Path, options: dict[str, str]) -> int:
    tracemalloc.start()
    try:
        convert(source, target, workers=0, progress=False, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("write", [shards, episode_shards, records])
def test_memory_of_an_import_does_not_grow_with_the_data_set(
    tmp_path: Path, write: Callable[[stepwell.Store, Path], str]
) -> None:
    store = make_store(tmp_path / "a.well", 160)
    source = write(store, tmp_path / "whole")
    part = write(stepwell.View(store).select(slice(0, 40)), tmp_path / "part")  # type: ignore[arg-type]
    options = {"as_bytes": "blob"} if write is records else {}
    convert(part, tmp_path / "warm.well", workers=0, progress=False, **options)  # what is loaded once
    of_part, of_whole = peak_of(part, tmp_path / "b.well", options), peak_of(source, tmp_path / "c.well", options)
    num_bytes = 160 * 4 * 2 * ROW_BYTES
    assert of_whole < of_part + num_bytes // 16
    assert of_whole < num_bytes // 2
