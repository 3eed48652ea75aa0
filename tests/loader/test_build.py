"""Small batches that are read several at once are what they would be if each was read alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import LoaderError
from stepwell.loader import Batch, Loader
from stepwell.loader import loader as loader_module
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Array
from stepwell.store import Store
from stepwell.windows import Field, WindowReader
from stepwell.windows.plans import ALIGNMENT

LENGTHS = (40, 3, 77, 1, 130)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store whose rows are 64 bytes, so that batches of any size stay aligned."""
    store = stepwell.create(tmp_path_factory.mktemp("wide") / "wide.well", {"state": Array(16)})
    write(store)
    return store


def write(store: Store) -> None:
    with store.writer() as writer:
        for episode, length in enumerate(LENGTHS):
            numbers = 1000 * episode + np.arange(length, dtype=np.float32)
            writer.add_episode({"state": np.repeat(numbers[:, None], 16, axis=1)})
    store.refresh()


def add_noise(values: Any, rng: np.random.Generator) -> Any:
    return values + rng.integers(0, 100, len(values)).reshape(-1, *[1] * (values.ndim - 1))


def add_all_noise(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    batch["noise"] = rng.integers(0, 1000, len(batch["state"]))
    return batch


def told(batch: Batch) -> Any:
    valid = None if batch.valid is None else np.asarray(batch.valid).tolist()
    values = {key: np.asarray(value).tolist() for key, value in batch.items()}
    return values, batch.epoch, batch.index, valid, None if batch.anchors is None else batch.anchors.tolist()


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every batch be read by itself."""
    monkeypatch.setattr(loader_module, "_stays_aligned", lambda *_: False)


@given(data=st.data())
@settings(deadline=None, max_examples=80)
def test_batches_are_those_that_are_read_alone(wide: Store, data: st.DataObject) -> None:
    rank, world = data.draw(st.sampled_from([(0, 1), (0, 3), (2, 3)]))
    options: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 70)),
        "order": data.draw(st.sampled_from(["sequential", "random", "pooled"])),
        "epochs": data.draw(st.sampled_from([1, 2, None])),
        "threads": data.draw(st.sampled_from([0, 2])),
        "to": data.draw(st.sampled_from(["numpy", "torch"])),
        "transform": data.draw(st.sampled_from([None, add_all_noise])),
        "nested": data.draw(st.booleans()),
        "rank": rank,
        "world_size": world,
        **data.draw(st.sampled_from([{}, {"drop_last": True}, {"pad": True}, {"pad": "wrap"}])),
    }
    if options["to"] == "torch":
        pytest.importorskip("torch")
        options["transform"] = None
    transforms = data.draw(st.sampled_from([(), (add_noise,)]))
    fields = {"state": Field("state", data.draw(st.sampled_from([0, range(-1, 2)])), transform=list(transforms))}
    first = data.draw(st.integers(0, 8))

    def batches() -> Iterator[Any]:
        loader = Loader(wide, fields, seed=3, **options)
        taken = iter(loader)
        for _, _batch in zip(range(first), taken, strict=False):
            pass
        again = Loader(wide, fields, seed=3, **options)
        again.load_state_dict(loader.state_dict())
        yield from (told(batch) for batch, _ in zip(again, range(12), strict=False))

    grouped = list(batches())
    with pytest.MonkeyPatch.context() as monkeypatch:
        alone(monkeypatch)
        assert list(batches()) == grouped


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the rows of every read from now on."""
    sizes: list[int] = []
    read = WindowReader.read

    def counting(self: WindowReader, positions: Any, *rest: Any, **options: Any) -> Any:
        sizes.append(len(positions))
        return read(self, positions, *rest, **options)

    monkeypatch.setattr(WindowReader, "read", counting)
    return sizes


@pytest.mark.parametrize("threads", [0, 1])
def test_small_batches_are_read_by_fewer_calls(wide: Store, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    sizes = count_reads(monkeypatch)
    batches = list(Loader(wide, {"state": "state"}, batch_size=8, threads=threads))
    assert len(batches) == -(-sum(LENGTHS) // 8)
    assert sum(sizes) == sum(LENGTHS)
    assert len(sizes) <= len(batches) // 8 + 2


def test_arrays_are_aligned_and_overlap_nowhere(wide: Store) -> None:
    batches = list(Loader(wide, {"a": "state", "b": Field("state", range(2))}, batch_size=3, threads=0))
    addresses = [array.ctypes.data for batch in batches for array in batch.values()]
    assert all(address % ALIGNMENT == 0 for address in addresses)
    before = [told(batch) for batch in batches]
    for batch in batches[::2]:
        for array in batch.values():
            array[...] = 0
    assert [told(batch) for batch in batches[1::2]] == before[1::2]


def test_batches_that_would_not_be_aligned_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_reads(monkeypatch)
    store = stepwell.create(tmp_path / "a.well", {"number": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"number": np.arange(50)})
    store.refresh()
    assert [batch["number"].ctypes.data % ALIGNMENT for batch in Loader(store, batch_size=5, threads=0)] == [0] * 10
    assert sizes == [5] * 10


def test_memory_is_used_again_when_all_that_was_read_with_it_is_gone(wide: Store) -> None:
    loader = Loader(wide, {"state": "state"}, batch_size=64, threads=0)
    kept = [batch["state"].base for batch in loader]
    blocks = {id(array) for array in kept}
    assert len(blocks) < len(kept)
    numbers = [batch["state"][:, 0].copy() for batch in Loader(wide, {"state": "state"}, batch_size=64, threads=0)]
    for _ in range(3):
        for batch, expected in zip(loader, numbers, strict=True):
            assert np.array_equal(batch["state"][:, 0], expected)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_row_that_is_lost_is_an_error_of_its_own_batch(tmp_path: Path, threads: int) -> None:
    file = tmp_path / "rows.bin"
    np.repeat(np.arange(64, dtype=np.float32), 16).tofile(file)
    feature = Array(16)
    store = stepwell.create(tmp_path / "a.well", {"state": span_feature(feature, [str(file)])})
    # the last rows lie behind the end of their file
    offsets = 64 * np.concatenate([np.arange(60), np.arange(70, 74)])
    with store.writer() as writer:
        writer.add_episode({"state": FileSpans(feature, [str(file)], 0, offsets, np.full(64, 64))})
    store.refresh()
    batches = iter(Loader(store, batch_size=8, threads=threads))
    assert [next(batches)["state"][0, 0] for _ in range(7)] == [0, 8, 16, 24, 32, 40, 48]
    with pytest.raises(LoaderError, match="step 60, field 'state'"):
        next(batches)
