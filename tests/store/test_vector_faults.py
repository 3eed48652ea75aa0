"""A vector writer that is killed, forked, refused by the system, or loses power: whole vector steps, or none of one."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import StepwellError, Store
from stepwell.errors import WriterClosedError
from stepwell.replay import Table
from stepwell.store import VectorWriter, lane_writer, ring, sealing, vector_writer
from stepwell.store.lane_writer import LaneWriter, NextSegment
from stepwell.store.sealing import seal_segment
from tests.store.test_system_errors import EVERY, Faults
from tests.store.vector_models import SCHEMA, Model, observation, read

KILLS = int(os.environ.get("STEPWELL_RING_KILLS", "15"))
NUM_ENVS, CAPACITY = 4, 120
# vector steps
AT_ONCE = 12
NUMBERS = (errno.EMFILE, errno.EIO, errno.ENOSPC)


def make(path: Path, **options: Any) -> Store:
    return stepwell.create(path, SCHEMA, **{"capacity": CAPACITY, **options})


def walk(model: Model, num_steps: int, shared: memoryview[int] | None = None) -> Model:
    """Record steps that follow from their numbers alone, and say after each how many there are."""
    for _ in range(num_steps):
        draw = np.random.default_rng(model.time)
        mask = (draw.random(model.num_envs) < 0.8).tolist()
        ends = draw.random((2, model.num_envs)) < 0.1
        model.step(mask, ends[0].tolist(), ends[1].tolist(), has_final=bool(model.time % 3))
        if shared is not None:
            shared[0] = model.time
    return model


def walk_at_once(model: Model, num_steps: int, at_once: int, shared: memoryview[int] | None = None) -> Model:
    """Record as `walk` does, several steps of all environments at once."""
    for _ in range(0, num_steps, at_once):
        times = range(model.time, model.time + at_once)
        ends = np.array([np.random.default_rng(time).integers(0, 40, model.num_envs) for time in times])
        model.batch(ends, has_final=True)
        if shared is not None:
            shared[0] = model.time
    return model


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Record once before forking, so that no child compiles kernels."""
    store = make(tmp_path_factory.mktemp("warm") / "a.well")
    with store.vector_writer(NUM_ENVS) as writer:
        walk(Model(writer, NUM_ENVS), 100)
        walk_at_once(Model(writer, NUM_ENVS), 100, AT_ONCE)


def record_until_killed(path: Path, shared: memoryview[int]) -> int:
    child = os.fork()
    if child == 0:
        try:
            writer = Store(str(path)).vector_writer(NUM_ENVS)
            walk(Model(writer, NUM_ENVS), 10**9, shared)
        finally:
            os._exit(1)
    return child


def test_a_kill_at_any_moment_loses_at_most_the_last_vector_step(tmp_path: Path) -> None:
    moments = random.Random(0)
    for kill in range(KILLS):
        path = tmp_path / f"{kill}.well"
        shared = memoryview(mmap.mmap(-1, 8)).cast("q")
        table = Table(stepwell.open(make(path).path, mode="r"))
        child = record_until_killed(path, shared)
        deadline = time.monotonic() + 60
        while shared[0] < 1 + kill:
            assert time.monotonic() < deadline
        if kill % 2:
            table.follow()
        time.sleep(moments.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store = stepwell.open(path)
        shown = read(store)
        told = [
            walk(Model(None, NUM_ENVS), shared[0] + more).shown(CAPACITY, ended_as="interrupted") for more in (0, 1)
        ]
        assert shown in told
        assert store.verify().is_ok, store.verify()
        table.follow()
        assert table.size <= store.num_steps
        before = store.num_steps
        with store.vector_writer(NUM_ENVS) as writer:
            walk(Model(writer, NUM_ENVS), 3)
        assert store.num_steps >= min(before, CAPACITY - NUM_ENVS)
        shutil.rmtree(path)


def test_a_kill_while_steps_come_at_once_leaves_whole_vector_steps(tmp_path: Path) -> None:
    moments = random.Random(1)
    for kill in range(KILLS // 3):
        path = make(tmp_path / f"{kill}.well").path
        shared = memoryview(mmap.mmap(-1, 8)).cast("q")
        child = os.fork()
        if child == 0:
            try:
                walk_at_once(Model(Store(str(path)).vector_writer(NUM_ENVS), NUM_ENVS), 10**9, AT_ONCE, shared)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        while shared[0] < 1 + kill:
            assert time.monotonic() < deadline
        time.sleep(moments.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store = stepwell.open(path)
        told = []
        for more in range(AT_ONCE + 1):
            model = walk_at_once(Model(None, NUM_ENVS), shared[0] + more, 1)
            told.append(model.shown(CAPACITY, ended_as="interrupted"))
        assert read(store) in told
        assert store.verify().is_ok, store.verify()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_kill_in_a_cut_leaves_each_step_once(
    tmp_path: Path, moment: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = make(tmp_path / "a.well"), None
    if moment != "before":
        table = Table(stepwell.open(store.path, mode="r"))
    end_pieces, calls = LaneWriter.end_pieces, []

    def end_or_die(self: LaneWriter, mask: Any, **options: Any) -> None:
        calls.append(mask)
        # the second is that of an environment that waited at the first
        dies = len(calls) > waits
        if moment == "after" or not dies:
            end_pieces(self, mask, **options)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def step(model: Model) -> None:
        is_out = waits and 20 <= model.time < 35
        model.step([True, True, True, not is_out], [False] * NUM_ENVS, [False] * NUM_ENVS, has_final=False)

    monkeypatch.setattr(LaneWriter, "end_pieces", end_or_die)
    shared = memoryview(mmap.mmap(-1, 8)).cast("q")
    child = os.fork()
    if child == 0:
        try:
            model = Model(Store(str(store.path)).vector_writer(NUM_ENVS), NUM_ENVS)
            for t in range(10_000):
                step(model)
                shared[0] = t + 1
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    expected = Model(None, NUM_ENVS)
    # the step that was to be the first of the new segment is there, or the first of what waited
    for _ in range(shared[0] + 1):
        step(expected)
    assert shared[0] == 35 if waits else shared[0] < 35
    recovered = stepwell.open(store.path)
    assert read(recovered) == expected.shown(CAPACITY, ended_as="interrupted")
    assert recovered.verify().is_ok
    if table is not None:
        table.follow()
        late = Table(stepwell.open(store.path, mode="r"))
        late.follow()
        assert table.size == late.size


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well")
    with store.vector_writer(NUM_ENVS) as writer:
        model = walk(Model(writer, NUM_ENVS), 5)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                writer.append(observation=observation(np.arange(4)), action=np.arange(4))
            except WriterClosedError:
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        walk(model, 5)
    assert read(store) == model.shown(CAPACITY, ended_as="interrupted")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.mark.parametrize("number", NUMBERS)
def test_whatever_the_system_says_what_was_acknowledged_is_there(tmp_path: Path, faults: Faults, number: int) -> None:
    at = 0
    while True:
        at += 1
        path = tmp_path / f"{at}.well"
        store = make(path, capacity=60)
        writer: VectorWriter = store.vector_writer(NUM_ENVS)
        model = Model(writer, NUM_ENVS)
        num_errors = 0
        with faults.on(at, number):
            while model.time < 40:
                before = model.time, model.count
                try:
                    walk(model, 1)
                except StepwellError:
                    # neither stored nor counted: the same step is tried again
                    assert (model.time, model.count) == before
                    num_errors += 1
                    assert num_errors < 3, faults.failed
            has_failed = bool(faults.failed)
            try:
                writer.close()
            except StepwellError:
                num_errors += 1
        del writer, model.writer
        found = stepwell.open(path)
        assert read(found) == model.shown(60, ended_as="interrupted"), (at, faults.failed)
        assert found.verify().is_ok, found.verify()
        shutil.rmtree(path)
        if not has_failed and not faults.failed:
            break
        # all numbers at all calls: STEPWELL_ALL_FAULTS=1
        at += 0 if EVERY else 6
    assert at > 30


def test_a_batch_that_finds_no_space_says_how_far_it_came(tmp_path: Path, faults: Faults) -> None:
    at = 0
    while True:
        at += 1
        path = tmp_path / f"{at}.well"
        store = make(path, capacity=60)
        writer: VectorWriter = store.vector_writer(NUM_ENVS)
        numbers = np.arange(40 * NUM_ENVS).reshape(40, NUM_ENVS)
        steps = {"observation": observation(numbers, -1), "action": numbers}
        ends = numbers % 29 == 0
        done = 0
        with faults.on(at, errno.ENOSPC):
            while done < 40:
                out = np.full((40 - done, NUM_ENVS), -1)
                left = {name: rows[done:] for name, rows in steps.items()}
                # no further than an error says; how often there is one is what `faults` says
                with suppress(StepwellError):
                    writer.append_batch(left, terminated=ends[done:], out=out)
                assert ((out >= 0) == (out[:, :1] >= 0)).all()
                done += int((out[:, 0] >= 0).sum())
            has_failed = bool(faults.failed)
            with suppress(StepwellError):
                writer.close()
        del writer
        found = sorted(step for steps, _, _ in read(stepwell.open(path)) for step in steps)
        assert found == list(range(100, 160)), (at, faults.failed)
        shutil.rmtree(path)
        if not has_failed and not faults.failed:
            break
        at += 0 if EVERY else 4
    assert at > 10


@pytest.mark.parametrize("sync", ["step", "episode", "none"])
def test_a_copy_counts_what_was_on_the_disk(tmp_path: Path, sync: Any) -> None:
    store = make(tmp_path / "a.well", sync=sync)
    writer = store.vector_writer(NUM_ENVS)
    model = walk(Model(writer, NUM_ENVS), 12)
    if sync == "none":
        writer.flush()
    if sync == "episode":
        model.end_some([True] * NUM_ENVS)
    # what a copy of the files has counts as after a loss of power
    shutil.copytree(tmp_path / "a.well", tmp_path / "b.well")
    copy = stepwell.open(tmp_path / "b.well")
    assert read(copy) == model.shown(CAPACITY, ended_as="interrupted")
    assert copy.verify().is_ok
    writer.close()


def test_what_was_never_on_the_disk_does_not_count_in_a_copy(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well")
    writer = store.vector_writer(NUM_ENVS)
    model = walk(Model(writer, NUM_ENVS), 6)
    writer.flush()
    walk(Model(None, NUM_ENVS), 6)
    expected = model.shown(CAPACITY, ended_as="interrupted")
    walk(model, 6)
    shutil.copytree(tmp_path / "a.well", tmp_path / "b.well")
    with pytest.warns(stepwell.errors.LeftOutWarning, match="6 vector steps more"):
        copy = stepwell.open(tmp_path / "b.well")
    assert read(copy) == expected
    assert copy.verify().is_ok
    writer.close()


def test_a_writer_may_be_let_go_of_by_the_thread_that_made_its_next_segment() -> None:
    found: list[Any] = []

    class Made:
        def populate(self) -> None:
            pass

    class Writer:
        """What the thread lets go of when the segment is made, and takes it then, as a writer does."""

        next: NextSegment

        def make(self) -> Any:
            started.wait()
            return Made()

        def __del__(self) -> None:
            try:
                found.append(self.next.take())
            except RuntimeError as error:
                found.append(error)

    started, writer = threading.Event(), Writer()
    writer.next = thread = NextSegment(writer.make)
    del writer
    started.set()
    assert thread.take() is None
    assert [type(each) for each in found] == [Made]


@pytest.mark.parametrize("lanes", [True, False])
def test_a_segment_whose_sealed_name_was_lost_is_whole(tmp_path: Path, lanes: bool) -> None:
    store = make(tmp_path / "a.well")
    writer: Any = store.vector_writer(1) if lanes else store.writer()
    values = {"observation": np.zeros((1, 2), np.float32), "action": np.zeros(1, np.int64)}
    step = values if lanes else {name: rows[0] for name, rows in values.items()}
    for _ in range(5):
        writer.append(step)
    writer.flush()
    for _ in range(3):
        writer.append(step)
    (segment,) = (tmp_path / "a.well" / "segments").glob("*.open")
    with (segment / "progress").open("rb") as record:
        writer.close()
        sealed = segment.with_suffix("")
        # the record says that it is sealed, and the rename and the removal of the record did not reach the disk
        sealed.rename(segment)
        (segment / "progress").write_bytes(record.read())
    # another inode: what the record says of rows is what was on the disk when it was written
    shown = stepwell.open(tmp_path / "a.well", mode="r")
    assert shown.num_steps == 8
    recovered = stepwell.open(tmp_path / "a.well")
    assert recovered.num_steps == 8
    assert recovered.verify(deep=True).is_ok, recovered.verify(deep=True)


@pytest.mark.parametrize("lanes", [True, False])
def test_flush_waits_for_segments_that_are_being_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: bool
) -> None:
    store = make(tmp_path / "a.well", sync="none")
    may_seal, synced, sync = threading.Event(), set(), os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def seal(*args: Any, **options: Any) -> Any:
        may_seal.wait(60)
        return seal_segment(*args, **options)

    monkeypatch.setattr(ring, "LEAST_ROWS", 8)
    monkeypatch.setattr(sealing, "seal_segment", seal)
    monkeypatch.setattr(os, "fsync", fsync)
    writer: Any = store.vector_writer(1) if lanes else store.writer()
    for _ in range(CAPACITY):
        observed, action = np.zeros((1, 2), np.float32), np.zeros(1, np.int64)
        writer.append(observation=observed if lanes else observed[0], action=action if lanes else np.int64(0))
    threading.Timer(0.2, may_seal.set).start()
    writer.flush()
    files = [file for file in (tmp_path / "a.well" / "segments").rglob("*") if file.suffix == ".npy"]
    assert len({file.parent for file in files}) > 1
    assert not [file for file in files if file.stat().st_ino not in synced]
    assert (tmp_path / "a.well" / "segments").stat().st_ino in synced
    writer.close()


@pytest.mark.parametrize("waits", [True, False])
def test_what_comes_after_an_interrupt_in_a_cut_is_stored(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    monkeypatch.setattr(vector_writer, "LEAST_ROWS", 8)
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        store = stepwell.create(":memory:", SCHEMA, capacity=200)
        writer, count = store.vector_writer(2), 0

        def step(*mask: bool) -> None:
            nonlocal count
            numbers = np.arange(count, count + 2)
            count += 2
            writer.append(observation=observation(numbers), action=numbers, mask=np.array(mask))  # noqa: B023

        step(True, True)
        segment = writer._segment
        while writer._segment is segment and (waits or segment.next_rows[0] < segment.lanes[1] - 1):
            step(True, not waits)
        # environment 1 goes on in the next segment, or all do
        was_interrupted = interrupted_at(line, lambda: step(True, True))
        first = count
        for _ in range(4):
            step(True, True)
        writer.close()
        found = sorted(number for piece in store for number in piece["action"].tolist())
        assert len(np.unique(found)) == len(found)
        assert found[-8:] == list(range(first, count)), line
    assert line > 80


def interrupted_at(line: int, call: Any) -> bool:
    """Call something, and interrupt it before so many lines of a vector writer; returns whether it came to that."""
    files, left, before = (vector_writer.__file__, lane_writer.__file__, sealing.__file__), line, sys.gettrace()

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace if frame.f_code.co_filename in files else None

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
