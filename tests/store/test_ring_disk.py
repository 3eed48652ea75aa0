"""The disk holds a ring's capacity, a little more for each writer, and what is being sealed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import Store, Writer

ROW_BYTES = 1024
CAPACITY = 8_192
# an eighth of the capacity, which is about 1 MiB, too
LIMIT = 1_024 * ROW_BYTES
SCHEMA = Schema({"t": Array((), "int64"), "values": Array(ROW_BYTES - 8, "uint8")})
ENCODED = Schema({"t": Array((), "int64"), "values": Bytes()})
# segments that a writer may have filled before it waits for one to be sealed
MAX_SEALING = 5
OVERHEAD = 1.1


def disk_bytes(store: Store) -> int:
    """Return what ``du`` counts; files may go meanwhile."""
    total = 0
    for folder, _, files in os.walk(store.path):
        for file in files:
            try:
                total += Path(folder, file).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def wait_for_seals() -> None:
    for thread in threading.enumerate():
        if thread.name == "stepwell-seal":
            thread.join()


def record(writer: Writer, length: int, rng: np.random.Generator, *, is_encoded: bool) -> None:
    for begin in range(0, length, 128):
        count = min(128, length - begin)
        rows: Any = rng.integers(0, 256, (count, ROW_BYTES - 8), np.uint8)
        if is_encoded:
            rows = [row.tobytes()[: rng.integers(1, ROW_BYTES - 8)] for row in rows]
        writer.append_batch({"t": np.arange(begin, begin + count), "values": rows})
    writer.end_episode(truncated=True)


@pytest.mark.parametrize(
    ("capacity", "num_writers", "lengths"),
    [
        (CAPACITY, 1, [300]),
        (CAPACITY, 3, [300]),
        pytest.param(CAPACITY, 1, [3 * CAPACITY], id="an episode longer than the capacity"),
        pytest.param(100, 1, [700, 5, 4_000], id="a capacity smaller than an episode"),
        pytest.param(CAPACITY, 2, [1, 3_000], id="episodes of one step"),
        pytest.param(f"{CAPACITY * ROW_BYTES} B", 1, [300], id="bytes of encoded rows"),
    ],
)
def test_the_disk_holds_the_capacity_and_little_more_at_all_times(
    tmp_path: Path, capacity: int | str, num_writers: int, lengths: list[int]
) -> None:
    is_encoded = isinstance(capacity, str)
    store = stepwell.create(tmp_path / "a.well", ENCODED if is_encoded else SCHEMA, capacity=capacity)
    kept = CAPACITY * ROW_BYTES if isinstance(capacity, str) else capacity * ROW_BYTES
    # an open episode is cut at two limits, else a segment ends with the first episode beyond one
    segment = 2 * LIMIT if max(lengths) > 1_024 else 1.3 * LIMIT
    # one is half gone; files of open ones grow ahead by doubling
    at_rest = (kept + segment + num_writers * 2 * segment) * OVERHEAD
    writers, rng, written, number = [store.writer() for _ in range(num_writers)], np.random.default_rng(0), 0, 0
    while written < 5 * CAPACITY:
        length = lengths[number % len(lengths)]
        record(writers[number % num_writers], length, rng, is_encoded=is_encoded)
        written, number = written + length, number + 1
        if length > 1 or number % 50 == 0:
            assert disk_bytes(store) <= at_rest + num_writers * MAX_SEALING * segment * OVERHEAD
    wait_for_seals()
    assert disk_bytes(store) <= at_rest
    for writer in writers:
        writer.close()
    assert disk_bytes(store) <= (kept + segment) * OVERHEAD + 64 * 1024
    store.refresh()
    if not isinstance(capacity, str):
        assert store.num_steps == capacity
    assert disk_bytes(store) >= min(kept, CAPACITY * ROW_BYTES) * 0.9


@pytest.mark.parametrize("capacity", [1, 5, "64 B"])
def test_a_ring_of_a_few_steps_shows_them(tmp_path: Path, capacity: int | str) -> None:
    store = stepwell.create(tmp_path / "a.well", {"t": Array((), "int64")}, capacity=capacity)
    shown = capacity if isinstance(capacity, int) else 8
    with store.writer() as writer:
        for t in range(5_000):
            writer.append(t=np.int64(t))
            if t % 3 == 0:
                writer.end_episode()
    assert [t for episode in store for t in episode["t"].tolist()] == list(range(5_000 - shown, 5_000))
    wait_for_seals()
    assert disk_bytes(store) < 400 * 1024
