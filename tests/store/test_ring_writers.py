"""A ring of many writers shows the newest steps, whoever wrote them: fast, slow, stalled or dead."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.errors import CorruptSegmentError, SegmentGoneError, StoreBusyError
from stepwell.replay import Pattern, ReplayLoader, Table
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import Store, Writer
from stepwell.store.layout import CLOCK

SCHEMA = Schema({"actor": Array((), "int64"), "n": Array((), "int64"), "note": Bytes()})
SEEDS = int(os.environ.get("STEPWELL_RING_SEEDS", "30"))
# 2 int64, the offset and the note of a step
STEP_BYTES = 29


def wait_for_seals() -> None:
    for thread in threading.enumerate():
        if thread.name == "stepwell-seal":
            thread.join()


def equal(num: int) -> Iterator[int]:
    while True:
        yield from range(num)


def unequal(num: int) -> Iterator[int]:
    """Yield the numbers of writers: one writes 1,000 times as much as the others, of which one writes nothing more."""
    yield from range(num)
    while True:
        for number in range(max(1, num - 1)):
            yield from [0] * max(1, 1000 // num)
            yield number


def record(writers: list[Writer], order: Iterator[int], count: int, *, length: int = 20) -> None:
    """Append ``count`` steps by the writers in this order, numbered from 0 on; episodes have a random length."""
    rng = random.Random(0)
    for n in range(count):
        number = next(order)
        writers[number].append(actor=number, n=n, note=b"12345")
        if rng.random() * length < 1:
            writers[number].end_episode(truncated=True)


def shown(store: Store) -> list[int]:
    store.refresh()
    return sorted(n for episode in store for n in episode["n"].tolist())


@pytest.mark.parametrize("unit", ["steps", "bytes"])
@pytest.mark.parametrize("rates", [equal, unequal])
@pytest.mark.parametrize("num", [1, 4, 16, 64, 256])
def test_the_newest_steps_of_all_writers_are_there(
    tmp_path: Path, num: int, rates: Callable[[int], Iterator[int]], unit: str
) -> None:
    capacity, count = 1_500, 5_000
    amount: Any = capacity if unit == "steps" else f"{capacity * STEP_BYTES + 7} B"
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=amount, segment_bytes=50_000)
    reader = stepwell.open(store.path, mode="r")
    table = Table(store, pattern=Pattern(ahead=0))
    writers = [store.writer() for _ in range(num)]
    order = rates(num)
    record(writers, order, 1_000)
    table.follow()
    reader.refresh()
    record(writers, order, count)
    newest = list(range(count - capacity, count))
    assert shown(store) == shown(reader) == newest
    assert table.follow() > 0
    assert table.size == capacity
    table_loader = ReplayLoader(table, {"n": "n"}, batch_size=20 * capacity, seed=1)
    assert set(next(table_loader)["n"].tolist()) <= set(newest)
    (batch,) = stepwell.Loader(stepwell.View(reader), {"n": "n"}, batch_size=capacity, epochs=1)
    assert sorted(batch["n"].tolist()) == newest
    # what nobody closed is what killed writers leave
    del writers
    assert shown(stepwell.open(store.path)) == newest


def test_a_table_that_is_smaller_than_the_ring_takes_the_newest_episodes_of_all_writers(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=1_500)
    writers = [store.writer() for _ in range(8)]
    for n in range(1_600):
        writers[n % 8].append(actor=n % 8, n=n, note=b"")
        if n % 40 >= 32:
            writers[n % 8].end_episode()
    table = Table(store, max_size=200, pattern=Pattern(ahead=0))
    batch = next(ReplayLoader(table, {"n": "n"}, batch_size=3_000))
    assert table.size == 200
    assert batch["n"].min() >= 1_600 - 200 - 2 * 40
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("file", ["progress", "clock"])
def test_what_is_damaged_keeps_no_writer_from_recording(tmp_path: Path, file: str) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=100_000)
    writers = [store.writer() for _ in range(2)]
    writers[0].append(actor=0, n=0, note=b"")
    damaged = store.path / "clock" if file == "clock" else next(store.path.glob("segments/*.open/progress"))
    with damaged.open("r+b") as opened:
        opened.write(b"\xff" * 8)
    for n in range(1, 4):
        writers[1].append(actor=1, n=n, note=b"")
    if file == "clock":
        assert shown(store) == [0, 1, 2, 3]


def test_each_environment_of_a_vector_has_its_share(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from stepwell.recorders import VectorRecorder, schema_of

    class Counting(gymnasium.Env):  # type: ignore[misc]
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, number: int) -> None:
            self.number, self.total = number, 0

        def observe(self) -> Any:
            return np.array([self.number, self.total], np.float64)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return self.observe(), {}

        def step(self, action: Any) -> Any:
            self.t, self.total = self.t + 1, self.total + 1
            return self.observe(), 0.0, False, self.t >= 20, {}

    num, capacity = 32, 960
    envs: Any = gymnasium.vector.SyncVectorEnv([lambda i=i: Counting(i) for i in range(num)])
    store = stepwell.create(tmp_path / "a.well", schema_of(envs), capacity=capacity)
    envs = VectorRecorder(envs, store)
    envs.reset(seed=0)
    for _ in range(100):
        envs.step(envs.action_space.sample())
    store.refresh()
    steps = np.concatenate([episode["observation"][: episode.length] for episode in store])
    counts = np.unique(steps[:, 0], return_counts=True)[1]
    assert store.num_steps == capacity
    assert counts.min() >= capacity // num - 1
    assert steps[:, 1].min() >= 100 - capacity // num - 5
    envs.close()


def test_a_writer_may_be_any_process(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"at": Array((), "int64")}, capacity=600)
    code = (
        "import sys, time, stepwell\n"
        "writer, times = stepwell.open(sys.argv[1]).writer(), []\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for number in range(int(sys.argv[2])):\n"
        "    times.append(time.time_ns())\n"
        "    writer.append(at=times[-1])\n"
        "    if number % 50 == 49:\n"
        "        writer.end_episode()\n"
        "        time.sleep(0.002)\n"
        "writer.close()\n"
        "print(*times)\n"
    )
    children = [
        warm_children.Popen(
            [sys.executable, "-c", code, str(store.path), str(steps)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for steps in (1_000, 400)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    times = sorted(int(text) for child in children for text in child.communicate()[0].split())
    store.refresh()
    found = {at for episode in store for at in episode["at"].tolist()}
    assert len(found) == 600
    # each may have been stopped between the time that it tells and its stamp
    assert len(found - set(times[-600:])) <= 2 * len(children)


def test_steps_of_a_dead_writer_go_when_their_time_comes_and_its_directory_too(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=300, segment_bytes=4_000)
    dead, stalled, alive = (store.writer() for _ in range(3))
    for n, writer in enumerate([dead, stalled] * 50):
        writer.append(actor=n % 2, n=n, note=b"12345")
    reader, table = stepwell.open(store.path, mode="r"), Table(store, pattern=Pattern(ahead=0))
    table.follow()
    del dead, writer
    for n in range(100, 900):
        alive.append(actor=2, n=n, note=b"12345")
        if n % 50 == 49:
            alive.end_episode()
            expected = list(range(max(0, n - 299), n + 1))
            assert shown(reader) == expected
            table.follow()
            assert table.size == len(expected)
    wait_for_seals()
    reader.refresh()
    # that of the stalled writer stays until it closes it, and shows nothing
    open_segments = [segment.name for segment in reader.segments if not segment.is_sealed]
    assert len(open_segments) == 2
    stalled.append(actor=1, n=900, note=b"12345")
    assert shown(reader) == list(range(601, 901))
    (last,) = [episode for episode in reader if episode["actor"][0] == 1]
    assert (last.length, last.skipped) == (1, 50)
    stalled.close()
    alive.close()
    assert store.verify().is_ok


@pytest.mark.parametrize("ending", ["append", "close", "kill"])
def test_a_stalled_writer_that_goes_on_during_an_eviction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    from stepwell.store import ring

    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=100, segment_bytes=1_000)
    writers = {"stalled": store.writer(), "fast": store.writer()}
    writers["stalled"].append(actor=0, n=0, note=b"")
    for n in range(1, 201):
        writers["fast"].append(actor=1, n=n, note=b"")
        if n % 20 == 0:
            writers["fast"].end_episode()
    wait_for_seals()
    look = ring._EndedSteps.look

    def look_and_wait(self: Any) -> Any:
        found = look(self)
        assert any(not segment.is_sealed for segment in found)
        writers["stalled"].append(actor=0, n=201, note=b"")
        if ending == "close":
            _seal(writers.pop("stalled"))
        elif ending == "kill":
            del writers["stalled"]
        return found

    monkeypatch.setattr(ring._EndedSteps, "look", look_and_wait)
    ring.Evictor(str(store.path)).evict()
    assert shown(store) == list(range(102, 202))


def _seal(writer: Writer) -> None:
    """Close a writer whose segment is sealed in this thread, which holds the store's lock."""
    from stepwell.store.sealing import seal_segment
    from stepwell.store.values import encode_metadata

    segment: Any = writer._segment
    segment.end_episode(metadata=encode_metadata({}))
    progress = segment.close()
    seal_segment(segment.path, segment.schema, rows=segment.row, episodes=1, sync=False, has_statistics=False)
    progress.mark_sealed()
    progress.close()
    writer._segment = None


def test_a_clock_that_is_set_back_makes_no_new_step_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=100, segment_bytes=1_000)
    now = [time.time_ns()]
    monkeypatch.setattr("stepwell.store.ring.time.time_ns", lambda: now[0])
    for part in range(5):
        with store.writer() as one, store.writer() as other:
            for n in range(60 * part, 60 * part + 60):
                (one if n % 3 else other).append(actor=0, n=n, note=b"")
        now[0] -= 3_600_000_000_000
        assert shown(store) == list(range(max(0, 60 * part - 40), 60 * part + 60))
        if part == 2:
            # whoever makes it again goes on after the newest stamp
            (store.path / "clock").unlink()


def test_batches_and_whole_episodes_are_as_old_as_they_were_given(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=50, segment_bytes=1_000)
    one, other = store.writer(), store.writer()
    count = 0
    for size in (5, 30, 1, 17, 40, 3):
        for call in (one.append_batch, other.add_episode, other.add_one_step_episodes):
            columns = {"actor": [0] * size, "n": np.arange(count, count + size), "note": [b"x"] * size}
            call(columns)
            count += size
            assert shown(store) == list(range(max(0, count - 50), count))
    one.close()
    other.close()


def test_features_may_be_named_as_the_clock_is(tmp_path: Path) -> None:
    names = ("clock", "clock.stamps")
    store = stepwell.create(tmp_path / "a.well", {name: Array((), "int64") for name in names}, capacity=5)
    with store.writer() as writer:
        for n in range(9):
            writer.append(dict.fromkeys(names, n))
    assert [store[0][name].tolist() for name in names] == [[4, 5, 6, 7, 8]] * 2
    assert store.verify().is_ok


@pytest.mark.parametrize("file", ["episodes.npy", CLOCK, "segment.json"])
def test_a_damaged_segment_is_not_evicted_and_verify_names_it(tmp_path: Path, file: str) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=1_000, segment_bytes=2_000)
    with store.writer() as writer:
        record([writer], equal(1), 600)
    segment = store.segments[-2]
    path = segment.path / file
    if file == "segment.json":
        path.write_bytes(path.read_bytes().replace(b"rows", b"raws"))
    else:
        # it seems the oldest
        rows = np.load(path, mmap_mode="r+")
        (rows["time_ns"] if file == "episodes.npy" else rows)[...] = 0
        rows.flush()
    with stepwell.open(store.path).writer() as writer:
        record([writer], equal(1), 3_000)
    assert segment.path.is_dir()
    after = stepwell.open(store.path, mode="r")
    # the others went
    assert sum(one.num_rows for one in after.segments) < 1_300
    assert {Path(finding.file).parent.name for finding in after.verify().findings} == {segment.name}


def test_stamps_that_are_cut_off_are_refused_by_name(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=100)
    with store.writer() as writer:
        record([writer], equal(1), 50)
    file = store.segments[0].path / CLOCK
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CorruptSegmentError, match=rf"{CLOCK} of segment"):
        stepwell.open(store.path, mode="r")


def test_a_ring_of_an_older_release_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.store.segment_writer import SegmentWriter

    make = SegmentWriter.__init__

    def make_old(self: SegmentWriter, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options | {"clock": None})

    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=100, segment_bytes=1_000)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "__init__", make_old)
        with store.writer() as writer:
            record([writer], equal(1), 120)
        old = store.writer()
        for n in range(120, 140):
            old.append(actor=1, n=n, note=b"")
    assert not list(store.path.glob(f"segments/*/{CLOCK}"))
    assert shown(store) == list(range(40, 140))
    with store.writer() as writer:
        for n in range(140, 180):
            writer.append(actor=2, n=n, note=b"")
        # an open episode without stamps is the newest
        assert shown(store) == list(range(80, 180))
        for n in range(180, 280):
            writer.append(actor=2, n=n, note=b"")
        assert shown(store) == [*range(120, 140), *range(200, 280)]
    old.end_episode()
    # then it is as old as its end
    assert shown(store) == [*range(120, 140), *range(200, 280)]
    with store.writer() as writer:
        for n in range(280, 380):
            writer.append(actor=2, n=n, note=b"")
    assert shown(store) == list(range(280, 380))
    old.close()
    assert shown(store) == list(range(280, 380))
    assert store.verify().is_ok


class Model:
    """A ring of three writers, and a plain list of what was recorded."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.capacity = self.rng.choice([10, 40, 90])
        self.store = stepwell.create(path, SCHEMA, capacity=self.capacity, segment_bytes=self.rng.choice([300, 1_500]))
        self.reader, self.writers = stepwell.open(path, mode="r"), [self.store.writer() for _ in range(3)]
        self.table = Table(stepwell.open(path, mode="r"), pattern=Pattern(ahead=0))
        self.count = 0
        # steps that were not deleted or discarded; those of each writer's open episode
        self.steps: set[int] = set()
        self.open: list[list[int]] = [[], [], []]

    def act(self) -> None:  # noqa: PLR0912
        number = self.rng.choice([0, 0, 0, 1, 2])
        writer, opened, kind = self.writers[number], self.open[number], self.rng.random()
        size = self.rng.randint(1, 15)
        if kind < 0.5:
            for _ in range(size):
                writer.append(actor=number, n=self.count, note=b"x" * (self.count % 3))
                self._add(opened, 1)
        elif kind < 0.6:
            writer.append_batch(self._columns(size))
            self._add(opened, size)
        elif kind < 0.8 and opened:
            if self.rng.random() < 0.25:
                writer.discard_episode()
                self.steps -= set(opened)
            else:
                writer.end_episode()
            opened.clear()
        elif kind < 0.86 and not opened:
            writer.add_episode(self._columns(size))
            self._add([], size)
        elif kind < 0.9:
            self.store.refresh()
            ended = np.flatnonzero(~self.store.episodes.is_open).tolist()
            if ended:
                index = self.rng.choice(ended)
                self.steps -= set(self.store[index]["n"].tolist())
                self.store.delete_episodes([index])
        elif kind < 0.94:
            self.writers[number] = self.store.writer()
            opened.clear()
            del writer
            if self.rng.random() < 0.5:
                stepwell.open(self.store.path)
        elif kind < 0.97:
            writer.close()
            self.writers[number] = self.store.writer()
            opened.clear()
        else:
            self.store.compact()

    def _columns(self, size: int) -> dict[str, Any]:
        return {"actor": [9] * size, "n": np.arange(self.count, self.count + size), "note": [b"y"] * size}

    def _add(self, opened: list[int], size: int) -> None:
        new = range(self.count, self.count + size)
        opened += new
        self.steps.update(new)
        self.count += size

    def check(self) -> None:
        for store in (self.store, self.reader):
            found = shown(store)
            # deleted and discarded steps count, too
            assert found == [
                step for step in range(max(0, self.count - self.capacity), self.count) if step in self.steps
            ]
        fresh = stepwell.open(self.store.path, mode="r")
        assert shown(fresh) == found
        self.table.follow()
        if self.table.size:
            (batch,) = itertools.islice(ReplayLoader(self.table, {"n": "n"}, batch_size=500, timeout=0), 1)
            assert set(batch["n"].tolist()) <= set(found)
        assert self.table.size == len(found)


@pytest.mark.parametrize("part", range(3))
def test_a_ring_is_what_a_plain_list_says(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.time_ns()]
    monkeypatch.setattr("stepwell.store.ring.time.time_ns", lambda: now[0])
    for seed in range(part * SEEDS // 10, (part + 1) * SEEDS // 10):
        model = Model(tmp_path / f"{seed}.well", seed)
        for number in range(60):
            now[0] += model.rng.choice([1, 1_000, -1_000_000])
            model.act()
            if number % 3 == 0:
                model.check()
        del model.writers
        stepwell.open(model.store.path)
        model.check()
        assert model.store.verify().is_ok


def test_what_a_reader_saw_go_never_comes_back_while_others_record_delete_and_discard(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"n": Array((), "int64")}, capacity=150, segment_bytes=800)
    reader = stepwell.open(store.path, mode="r")
    stop = threading.Event()
    raised: list[BaseException] = []
    seen: set[int] = set()
    gone: set[int] = set()

    def record(number: int) -> None:
        rng, own = random.Random(number), stepwell.open(store.path)
        try:
            with own.writer() as writer:
                count = number
                while not stop.is_set():
                    for _ in range(rng.randint(1, 12)):
                        writer.append(n=count)
                        count += 3
                    if rng.random() < 0.3:
                        writer.discard_episode()
                    else:
                        writer.end_episode()
        except BaseException as error:
            raised.append(error)

    def delete() -> None:
        rng, own = random.Random(9), stepwell.open(store.path)
        try:
            while not stop.is_set():
                own.refresh()
                ended = np.flatnonzero(~own.episodes.is_open).tolist()
                with suppress(StoreBusyError):
                    own.delete_episodes(rng.sample(ended, min(len(ended), 1)))
                own.compact()
                stop.wait(0.005)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(3)]
    threads.append(threading.Thread(target=delete))
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            try:
                found = set(shown(reader))
            except SegmentGoneError:
                # evicted between the look and the read
                continue
            gone |= seen - found
            seen |= found
            assert not found & gone, f"{sorted(found & gone)} came back"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not raised, raised
    assert gone
    with store.writer() as writer:
        for start in range(10**6, 10**6 + 420, 60):
            writer.add_episode({"n": np.arange(start, start + 60)})
    gone |= seen - set(shown(store))
    gone |= set(range(10**6, 10**6 + 420 - 150))
    store.delete_episodes([-1])
    assert shown(store) == list(range(10**6 + 270, 10**6 + 360))
    copy = stepwell.open(store.checkpoint(tmp_path / "copy.well"))
    whole = stepwell.concatenate(tmp_path / "whole.well", [store])
    other = stepwell.open(stepwell.convert(store, tmp_path / "other.well", {"n": "zstd"}, workers=1).path)
    for each in (store, stepwell.open(store.path), copy, whole, other):
        assert shown(each) == shown(store)
        assert not set(shown(each)) & gone
