"""A ring may begin in the middle of a run: rows that need rows before them are read whatever is shown of their run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Image, Loader, Order, Video, WindowDataset
from stepwell.order import pooled
from stepwell.transforms import ToFloat

SHAPE = (16, 16, 3)
FEATURES = {
    "zstd": Image(SHAPE, codec="delta", every=5),
    "lz4": Image(SHAPE, codec="delta", every=7, compression="lz4", final=True),
}
POOLED = pooled(bytes="90 KB", blocks=4)


def features_with_video() -> dict[str, Any]:
    pytest.importorskip("av")
    return {**FEATURES, "video": Video(SHAPE, gop=6)}


def screen(number: int) -> np.ndarray:
    return np.full(SHAPE, number * 2 % 250, np.uint8)


def write_step(writer: stepwell.Writer, number: int, names: Any) -> None:
    writer.append(k=number, **dict.fromkeys(names, screen(number)))


def check(store: Any, names: Any, order: str | Order, *, page_cache: bool, threads: int, first: int, stop: int) -> None:
    """Read the steps of a store, all of one episode, and compare them with numbers."""
    offsets = [-2, 0, 1]
    fields = {"k": "k", **{name: Field(name, offsets) for name in names}}
    fields["floats"] = Field("zstd", offsets, transform=ToFloat(scale=1))
    seen = []
    for batch in Loader(store, fields, batch_size=9, order=order, page_cache=page_cache, threads=threads):
        wanted = np.clip(batch["k"][:, None] + offsets, first, stop - 1)
        for name in names:
            distance = np.abs(batch[name].astype(int) - (wanted * 2 % 250)[..., None, None, None])
            assert distance.max() <= (4 if name == "video" else 0), name
        np.testing.assert_array_equal(batch["floats"], batch["zstd"])
        seen += batch["k"].tolist()
    assert sorted(seen) == list(range(first, stop))


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("order", ["sequential", "random", POOLED], ids=["sequential", "random", "pooled"])
def test_a_ring_cut_within_a_run_is_read_in_every_order(tmp_path: Path, order: str | Order, page_cache: bool) -> None:
    features = features_with_video()
    for cut in range(1, 9):
        schema = {"k": Array((), "int64"), **features}
        store = stepwell.create(tmp_path / f"{cut}.well", schema, capacity=40)
        with store.writer() as writer:
            for number in range(40 + cut):
                write_step(writer, number, features)
            writer.end_episode()
        check(store, features, order, page_cache=page_cache, threads=cut % 3, first=cut, stop=40 + cut)
        dataset = WindowDataset(store, {"zstd": [-1, 0], "lz4": [0, 1]}, page_cache=page_cache)
        assert dataset[20]["zstd"][:, 0, 0, 0].tolist() == [(cut + 19) * 2, (cut + 20) * 2]
        assert store[0]["zstd"][:, 0, 0, 0].tolist() == [number * 2 % 250 for number in range(cut, 40 + cut)]
        assert store.verify(deep=True).is_ok


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_reader_of_a_ring_follows_its_writer_step_by_step(tmp_path: Path, page_cache: bool) -> None:
    store = stepwell.create(tmp_path / "a.well", {"k": Array((), "int64"), **FEATURES}, capacity=30, segment_bytes=3000)
    orders: list[Any] = ["sequential", "random", POOLED]
    reader = stepwell.open(store.path, mode="r")
    with store.writer() as writer:
        number = 0
        for length in (3, 35, 1, 20, 41):
            for _ in range(length):
                write_step(writer, number, FEATURES)
                number += 1
                reader.refresh()
                seen: list[int] = []
                order = orders[number % 3]
                for batch in Loader(
                    reader, {"k": "k", **{name: name for name in FEATURES}}, order=order, page_cache=page_cache
                ):
                    for name in FEATURES:
                        assert np.array_equal(batch[name][:, 0, 0, 0], batch["k"] * 2 % 250)
                    seen += batch["k"].tolist()
                assert sorted(seen) == list(range(max(0, number - 30), number))
            writer.end_episode(final={"lz4": screen(number)})
