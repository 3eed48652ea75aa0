"""A ring whose writer is killed shows all that was committed and fits, and recording and sampling go on."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import stepwell
from stepwell.replay import ReplayLoader, Table
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import Store
from stepwell.store.segment_writer import SegmentWriter

KILLS = int(os.environ.get("STEPWELL_RING_KILLS", "30"))
CAPACITY = 60
# between the steps of one writer and those of another
FAR = 1_000_000
SCHEMA = Schema({"count": Array((), "int64"), "values": Array(3, "int64", final=True), "note": Bytes()})
# steps in the store, written by one store of the processor: a kill leaves the old number or the new one
Count: TypeAlias = "memoryview[int]"


def shared_count() -> Count:
    return memoryview(mmap.mmap(-1, 8)).cast("q")


def values_of(count: int) -> np.ndarray:
    return np.array([count, count ^ 0x5DEECE66D, -count])


def make(folder: Path) -> Store:
    # about 10 rows a segment; an open episode is cut at about 20
    return stepwell.create(folder / "a.well", SCHEMA, capacity=CAPACITY, segment_bytes=450)


def record(path: Path, recorded: Count, lengths: Any) -> None:
    """Record episodes of these lengths; after each call that returned say how many steps there are."""
    count = recorded[0]
    with Store(str(path)).writer() as writer:
        for length in lengths:
            for _ in range(length):
                writer.append(count=np.int64(count), values=values_of(count), note=b"%d" % count)
                count += 1
                recorded[0] = count
            writer.end_episode(truncated=True, final={"values": values_of(count)} if length % 2 else None)


def check(path: Path, owed: int) -> Store:
    """Open the store and check every value; ``owed`` calls had returned, one more may have been committed."""
    store = stepwell.open(path)
    entries = [entry.name for entry in (path / "segments").iterdir()]
    assert not [name for name in entries if name.startswith(".") or name.endswith(".open")], entries
    counts = []
    for episode in store:
        counts += episode["count"].tolist()
        values = episode["values"]
        expected = [values_of(count) for count in range(counts[-episode.length], counts[-episode.length] + len(values))]
        assert np.array_equal(values, expected)
        assert episode["note"] == [b"%d" % count for count in counts[-episode.length :]]
    total = counts[-1] + 1 if counts else 0
    assert owed <= total <= owed + 1
    assert counts == list(range(max(0, total - CAPACITY), total))
    # one that is half gone, and final rows
    assert sum(segment.num_rows for segment in store.segments) <= CAPACITY + 25 + len(store)
    return store


def fork_writer(path: Path, recorded: Count, seed: int, lengths: Sequence[int] = ()) -> int:
    child = os.fork()
    if child == 0:
        try:
            draw = random.Random(seed)
            record(path, recorded, lengths or (draw.choice([1, 2, 7, 25, 90]) for _ in range(10**9)))
        finally:
            os._exit(1)
    return child


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Record and sample once before forking, so that no child compiles kernels."""
    store = make(tmp_path_factory.mktemp("warm"))
    record(store.path, shared_count(), [3])
    next(ReplayLoader(Table(store), {"count": "count"}, batch_size=2))


def test_kills_at_any_moment_lose_nothing_and_a_table_goes_on(tmp_path: Path) -> None:
    store, recorded, moments = make(tmp_path), shared_count(), random.Random(0)
    table = Table(stepwell.open(store.path, mode="r"))
    loader = ReplayLoader(table, {"count": "count", "values": "values"}, batch_size=64)
    for kill in range(KILLS):
        before, deadline = recorded[0], time.monotonic() + 60
        child = fork_writer(store.path, recorded, kill)
        while recorded[0] < before + 1:
            assert time.monotonic() < deadline
        if kill % 2:
            # while it records, and evicts what the table knows
            table.follow()
        time.sleep(moments.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shown = check(store.path, recorded[0])
        recorded[0] = int(shown[-1]["count"][-1]) + 1
        table.follow()
        assert table.size == shown.num_steps
        batch = next(loader)
        assert np.array_equal(batch["values"], [values_of(count) for count in batch["count"].tolist()])
        assert batch["count"].min() >= recorded[0] - CAPACITY
    assert stepwell.open(store.path).verify(deep=True).is_ok
    assert recorded[0] > 10 * CAPACITY, "the ring did not go round"


@pytest.mark.parametrize("num_pieces", [1, 3])
@pytest.mark.parametrize("is_followed", [False, True])
def test_a_kill_between_two_pieces_of_an_episode_leaves_each_step_once_in_a_table(
    tmp_path: Path, num_pieces: int, is_followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recorded, ends = make(tmp_path), shared_count(), 0
    end_episode = SegmentWriter.end_episode

    def end_or_die(self: SegmentWriter, **options: Any) -> int:
        nonlocal ends
        ends += bool(options.get("goes_on"))
        if ends == num_pieces:
            os.kill(os.getpid(), signal.SIGKILL)
        return end_episode(self, **options)

    table = Table(stepwell.open(store.path, mode="r"))
    monkeypatch.setattr(SegmentWriter, "end_episode", end_or_die)
    os.waitpid(fork_writer(store.path, recorded, 1, lengths=[5, 200]), 0)
    if is_followed:
        # as it is while nobody has recovered it
        table.follow()
    # the first step of the piece that was begun is there as well
    shown = check(store.path, recorded[0])
    for each in (table, Table(shown)):
        each.follow()
        assert each.size == shown.num_steps
    assert any(episode.interrupted for episode in shown)


def test_a_kill_of_several_writers_leaves_the_newest_steps_of_each(tmp_path: Path) -> None:
    store, moments = make(tmp_path), random.Random(1)
    recorded = [shared_count() for _ in range(3)]
    for number, count in enumerate(recorded):
        count[0] = number * FAR
    for kill in range(6):
        before = [count[0] for count in recorded]
        children = [fork_writer(store.path, count, 10 * kill + number) for number, count in enumerate(recorded)]
        deadline = time.monotonic() + 60
        while any(count[0] < start + 1 for count, start in zip(recorded, before, strict=True)):
            assert time.monotonic() < deadline
        time.sleep(moments.random() * 0.05)
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        shown = stepwell.open(store.path)
        seen = np.concatenate([episode["count"] for episode in shown])
        total = sum(count[0] % FAR for count in recorded)
        assert min(CAPACITY, total) <= len(seen) <= min(CAPACITY, total + 3)
        for number, count in enumerate(recorded):
            mine = seen[seen // FAR == number]
            last = int(mine[-1]) + 1 if len(mine) else count[0]
            assert last - count[0] in (0, 1)
            assert mine.tolist() == list(range(last - len(mine), last))
            count[0] = last
    assert all(count[0] % FAR > CAPACITY for count in recorded)
    assert shown.verify(deep=True).is_ok


def goes_round(path: Path, recorded: Count) -> None:
    """Fill segments, one of them by an episode that is cut, so that others go."""
    record(path, recorded, [11, 33, 4])


def test_a_kill_at_any_call_that_changes_a_directory_loses_nothing(tmp_path: Path, wells: Any) -> None:
    recorded, begun = shared_count(), shared_count()
    store = make(tmp_path / "ring")
    record(store.path, begun, [12] * 7)
    check(store.path, begun[0])

    def begin(folder: Path) -> None:
        recorded[0] = begun[0]
        goes_round(folder / "a.well", recorded)

    kinds = set()
    for number, folder in enumerate(wells.kills(store.path.parent, begin)):
        path = folder / "a.well"
        kinds |= {entry.name[:5] if entry.name.startswith(".") else entry.suffix for entry in path.glob("segments/*")}
        shown = check(path, recorded[0])
        recorded[0] = int(shown[-1]["count"][-1]) + 1
        if number % 5 == 0:
            record(path, recorded, [2, 15])
            again = check(path, recorded[0])
            assert again.verify(deep=True).is_ok
            table = Table(again)
            table.follow()
            assert table.size == CAPACITY
    # it was killed while segments were made or removed, and while they were open
    assert {".new-", ".open", ""} <= kinds


def test_a_kill_of_an_eviction_at_any_call_leaves_no_directory(tmp_path: Path, wells: Any) -> None:
    from stepwell.store import ring

    recorded = shared_count()
    store = make(tmp_path / "ring")
    held = _held_evictions(ring)
    try:
        record(store.path, recorded, [12] * 12)
    finally:
        held()
    for folder in wells.kills(store.path.parent, lambda folder: ring.Evictor(str(folder / "a.well")).evict()):
        check(folder / "a.well", recorded[0])


def _held_evictions(module: Any) -> Callable[[], None]:
    """Let evictions do nothing until the returned function is called."""
    evict = module.Evictor.evict
    module.Evictor.evict = lambda self: []

    def release() -> None:
        module.Evictor.evict = evict

    return release
