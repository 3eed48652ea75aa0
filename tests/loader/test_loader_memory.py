"""Recycled memory never changes below anyone who still sees it."""

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Field
from stepwell.loader import Loader
from stepwell.store import Store

FIELDS = {
    "number": "number",
    "state": Field("observation.state", range(4)),
    "image": Field("observation.image", [0, 1]),
}

HOLDS = {
    "nothing": lambda batch: None,
    "batch": lambda batch: batch,
    "array": lambda batch: batch["state"],
    "slice": lambda batch: batch["state"][1:, ::2],
    "transposed": lambda batch: batch["image"].T,
    "row": lambda batch: batch["state"][-1],
    "flat": lambda batch: batch["state"].reshape(-1),
    "view": lambda batch: batch["number"].view(np.uint8),
    "mask": lambda batch: batch["state_is_pad"],
    "memoryview": lambda batch: memoryview(batch["number"]),
    "tensor": lambda batch: __import__("torch").from_numpy(batch["state"])[1:].transpose(0, 1),
}


def content(held: Any) -> Any:
    if held is None:
        return None
    if isinstance(held, dict):
        return {key: np.array(value) for key, value in held.items()}
    return np.array(held.numpy() if hasattr(held, "numpy") else held)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(sorted(HOLDS)), min_size=10, max_size=40), st.integers(0, 2), st.integers(0, 5))
def test_what_is_held_never_changes(store: Store, holds: list[str], threads: int, release: int) -> None:
    pytest.importorskip("torch")
    loader = Loader(store, FIELDS, batch_size=4, order="random", epochs=None, threads=threads, prefetch=1)
    held: list[tuple[Any, Any]] = []
    for name, batch in zip(holds, loader, strict=False):
        one = HOLDS[name](batch)
        held.append((one, content(one)))
        if release and len(held) > release:
            del held[0]
        del batch, one
    for one, before in held:
        now = content(one)
        np.testing.assert_equal(now, before)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_list_of_batches_is_right(store: Store, threads: int, numbers: list[int]) -> None:
    batches = list(Loader(store, FIELDS, batch_size=4, threads=threads, epochs=3))
    assert [n for batch in batches for n in batch["number"].tolist()] == numbers * 3
    assert [n for batch in batches for n in batch["state"][:, 0, 0].tolist()] == numbers * 3


@pytest.mark.parametrize("to", ["numpy", "torch"])
@pytest.mark.parametrize("threads", [0, 2])
def test_dropped_memory_is_used_again(store: Store, threads: int, to: str) -> None:
    if to == "torch":
        pytest.importorskip("torch")
    loader = Loader(store, FIELDS, batch_size=4, threads=threads, prefetch=1, epochs=20, to=to, pin_memory=None)
    addresses = set()
    for batch in loader:
        state = batch["state"]
        addresses.add(state.data_ptr() if to == "torch" else state.ctypes.data)
    assert len(batch) and len(addresses) <= 2 * 16 * max(threads, 1) + 2 < len(loader)


def test_memory_of_held_batches_goes_back_to_the_system(store: Store) -> None:
    loader = Loader(store, FIELDS, batch_size=4, threads=0, epochs=3)
    held = list(loader)
    pool = loader._running()._builder._pool
    assert pool.num_free == 0
    del held
    gc.collect()
    assert 0 < pool.num_free <= 2


@pytest.mark.parametrize("threads", [0, 1])
def test_a_transform_may_keep_what_it_was_given(store: Store, threads: int) -> None:
    kept = []

    def keep(array: np.ndarray) -> np.ndarray:
        kept.append((array, array.copy()))
        return array * 2

    fields = {"state": Field("observation.state", range(4), transform=keep)}
    for _ in Loader(store, fields, batch_size=4, threads=threads, epochs=3):
        pass
    assert len(kept) == 30
    for array, before in kept:
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("threads", [0, 2])
def test_batches_go_without_the_garbage_collector(store: Store, threads: int) -> None:
    gone = []
    gc.collect()
    gc.disable()
    try:
        for batch in Loader(store, FIELDS, batch_size=4, threads=threads):
            gone.append(weakref.ref(batch["state"]))
        del batch
        assert [ref() for ref in gone] == [None] * 10
    finally:
        gc.enable()


def private_bytes() -> int:
    """Return the memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("threads", [0, 2])
def test_private_memory_is_flat_over_epochs_of_files_that_do_not_fit(
    store: Store, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr("stepwell.windows.maps.available_memory", lambda: 1)
    fields = {
        "state": Field("observation.state", range(1000)),
        "image": Field("observation.image", range(100)),
        "text": range(9),
    }
    loader = Loader(store, fields, batch_size=8, order="random", threads=threads)

    def run(epochs: int) -> int:
        num_bytes = sum(batch["state"].nbytes for _ in range(epochs) for batch in loader)
        assert loader.reader.maps.is_announcing
        return num_bytes

    run(5)
    before = private_bytes()
    assert run(60) > 16 << 20
    assert private_bytes() - before < 4 << 20
