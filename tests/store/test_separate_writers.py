"""The vector writer where each environment has a writer: stores that are no rings, and rows that vary in size."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Image, StepwellError, Store, Text
from stepwell.errors import DiskFullError, EncodeError, StepError, WriterClosedError
from stepwell.store import VectorWriter
from stepwell.store.segment_writer import SegmentWriter
from tests.store.test_system_errors import EVERY, Faults
from tests.store.test_vector_faults import walk
from tests.store.test_vector_writer import FLAG_LISTS
from tests.store.vector_models import SCHEMA, Model, observation, read

ENCODED = SCHEMA | {"action": Array((), "int64", codec="zstd")}
KINDS: list[tuple[dict[str, Any], int | None]] = [(SCHEMA, None), (ENCODED, None), (ENCODED, 10_000)]


@settings(max_examples=30, deadline=None)
@given(FLAG_LISTS, st.sampled_from(KINDS), st.sampled_from([None, 1, 2]), st.sampled_from([1000, 1 << 20]))
def test_every_reader_sees_what_was_recorded(
    calls: tuple[int, list[Any]], kind: tuple[dict[str, Any], int | None], writers: int | None, segment_bytes: int
) -> None:
    num_envs, steps = calls
    store = stepwell.create(":memory:", kind[0], capacity=kind[1], segment_bytes=segment_bytes)
    live = stepwell.open(store.path, mode="r")
    writers = None if writers is None else min(writers, num_envs)
    model = Model(store.vector_writer(num_envs, writers=writers), num_envs)
    model.has_ids = writers is None or writers == num_envs
    assert model.writer is not None
    with model.writer:
        for mask, ends, way in steps:
            if way == 0:
                model.discard(mask)
            elif way == 1:
                model.end_some(mask)
            elif way == 2:
                model.batch(np.array([ends, ends[::-1]]), has_final=True)
            else:
                everybody = [True] * num_envs if way % 2 else mask
                terminated, truncated = [end == 0 for end in ends], [end == 1 for end in ends]
                model.step(everybody, terminated, truncated, has_final=way % 3 > 0)
            live.refresh()
            expected = model.shown()
            assert read(live) == [episode for episode in expected if model.has_ids or episode[2] != "open"]
        model.writer.flush()
    assert read(store) == model.shown(ended_as="interrupted")
    # each is whole
    if kind[1] is None:
        assert len(store) == len(model.shown())
    assert store.verify(deep=True).is_ok, store.verify(deep=True)


def frames(number: int, sides: Sequence[int] = (16, 16)) -> np.ndarray[Any, Any]:
    return np.full((*sides, 3), number, np.uint8)


@pytest.mark.parametrize("capacity", [None, 500])
@pytest.mark.parametrize("writers", [None, 2])
def test_rows_of_any_kind_are_recorded(tmp_path: Path, capacity: int | None, writers: int | None) -> None:
    schema = {
        "small": Image((16, 16, 3), codec="png", final=True),
        "any": Image((None, None, 3), codec="png"),
        "delta": Image((16, 16, 3), codec="delta", final=True),
        "note": Text(),
        "action": Array((), "int64"),
    }
    store = stepwell.create(tmp_path / "a.well", schema, capacity=capacity)
    with store.vector_writer(3, writers=writers) as writer:
        for t in range(6):
            mask = np.array([True, t > 1, True])
            writer.append(
                {
                    "small": np.stack([frames(t)] * 3),
                    "any": [frames(t, (4 + env, 5)) for env in range(3)],
                    "delta": np.stack([frames(t)] * 3),
                    # of those that do not step, nothing is looked at
                    "note": [f"{t}-{env}" if mask[env] else None for env in range(3)],
                    "action": np.full(3, t),
                },
                mask=mask,
                terminated=np.array([t == 3, False, False]),
                final={"small": np.stack([frames(9)] * 3), "delta": np.stack([frames(8)] * 3)},
                metadata={0: {"seed": 1}},
            )
        writer.end_episodes(np.array([False, True, False]), truncated=True, metadata={1: {"terminated": "no"}})
    assert store.verify(deep=True).is_ok, store.verify(deep=True)
    found = {(int(episode["action"][0]), int(episode["note"][0][-1])): episode for episode in store}
    assert sorted(found) == [(0, 0), (0, 2), (2, 1), (4, 0)]
    first = found[0, 0]
    assert (first.terminated, first.metadata) == (True, {"seed": 1})
    assert first["small"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 9]
    assert first["delta"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 8]
    assert [image.shape for image in found[2, 1]["any"]] == [(5, 5, 3)] * 4
    assert found[2, 1]["note"] == [f"{t}-1" for t in range(2, 6)]
    assert (found[2, 1].truncated, found[2, 1].metadata) == (True, {"terminated": "no"})
    assert found[4, 0].interrupted and found[0, 2].interrupted


def test_refusals_leave_all_as_it_was(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {**ENCODED, "note": Text()})
    numbers, notes = np.arange(3), ["a", "b", "c"]
    good: dict[str, Any] = {"observation": observation(numbers), "action": numbers, "note": notes}
    with store.vector_writer(3) as writer:
        writer.append(good)
        for changed, options, message in (
            ({"action": numbers[:2]}, {}, "2 values of 3"),
            ({"note": notes[:2]}, {}, "3 values"),
            ({"note": "abc"}, {}, "3 values"),
            ({"note": ["a", "b", 3]}, {}, "note"),
            ({"action": stepwell.EncodedRows([b"a", b"b", b"c"])}, {}, "action"),
            ({"more": numbers}, {}, "more"),
            ({}, {"terminated": numbers}, "terminated of dtype"),
            ({}, {"mask": numbers > 5, "truncated": [True]}, "truncated"),
            ({}, {"terminated": numbers > 1, "final": {"action": numbers}}, "final=True"),
            ({}, {"terminated": numbers > 1, "metadata": {2: {"a": object()}}}, "metadata"),
        ):
            with pytest.raises(StepError, match=message):
                writer.append({**good, **changed}, **options)
        batch = {name: [values, values] for name, values in good.items()}
        for changed in ({"note": [notes]}, {"note": [notes, notes[:2]]}, {"action": np.zeros((2, 2), np.int64)}):
            with pytest.raises(StepError):
                writer.append_batch({**batch, **changed})
        assert writer.append_batch(batch).shape == (2, 3)
    assert [episode.length for episode in store] == [3, 3, 3]
    for call in (lambda: writer.append(good), writer.end_episodes, writer.discard_episodes, writer.flush):
        with pytest.raises(WriterClosedError):
            call()


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), EncodeError("cannot"), KeyboardInterrupt()])
def test_a_step_that_some_environments_have_is_joined_to_nothing(
    tmp_path: Path, number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    append, calls = SegmentWriter.append, []

    def failing(self: SegmentWriter, values: Any) -> int:
        calls.append(values)
        if len(calls) == 7 + number:
            raise error
        return append(self, values)

    monkeypatch.setattr(SegmentWriter, "append", failing)
    with store.vector_writer(3) as writer:
        for t in range(2):
            writer.append(observation=observation(np.full(3, t)), action=np.full(3, t))
        with pytest.raises(DiskFullError if isinstance(error, OSError) else type(error)):
            writer.append(observation=observation(np.full(3, 2)), action=np.full(3, 2))
        for t in range(2, 4):
            writer.append(observation=observation(np.full(3, t)), action=np.full(3, t))
    found = sorted(episode["action"].tolist() for episode in store)
    if number == 0 and isinstance(error, Exception):
        assert found == [[0, 1, 2, 3]] * 3
    else:
        assert found == sorted([[0, 1, 2]] * number + [[0, 1]] * (3 - number) + [[2, 3]] * 3)
    assert all(episode.interrupted for episode in store)
    assert store.verify().is_ok


@pytest.mark.parametrize("writers", [None, 2])
def test_whatever_the_system_says_what_was_acknowledged_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: int | None
) -> None:
    faults, at = Faults(monkeypatch), 0
    while True:
        at += 1
        store = stepwell.create(tmp_path / f"{at}.well", SCHEMA, segment_bytes=100)
        writer = store.vector_writer(3, writers=writers)
        with faults.on(at, errno.ENOSPC):
            t = 0
            while t < 12:
                numbers = np.full(3, t)
                done = numbers % 5 == np.arange(3)
                with suppress(StepwellError):
                    writer.append(
                        {"observation": observation(numbers), "action": numbers},
                        terminated=done,
                        final={"observation": observation(numbers + 1)},
                        metadata={env: {"env": env} for env in range(3)},
                    )
                    t += 1
            while True:
                try:
                    writer.end_episodes(metadata={env: {"env": env, "left": True} for env in range(3)})
                    break
                except StepwellError:
                    assert faults.failed
            has_failed = bool(faults.failed)
            with suppress(StepwellError):
                writer.close()
        del writer
        found = stepwell.open(store.path)
        assert found.verify().is_ok, found.verify()
        episodes = [(e.metadata.get("env"), e["action"].tolist(), e) for e in found]
        for env, steps, episode in episodes:
            # without gaps, and nothing twice
            assert steps == list(range(steps[0], steps[0] + len(steps))), (at, faults.failed)
            assert episode.terminated == (env is not None and steps[-1] % 5 == env and "left" not in episode.metadata)
            assert episode.interrupted == (env is None)
        count = np.bincount([step for _, steps, _ in episodes for step in steps], minlength=12)
        assert (count >= 3).all(), (at, faults.failed)
        if not has_failed:
            assert (count == 3).all()
        shutil.rmtree(found.path)
        if not faults.failed:
            break
        at += 0 if EVERY else 12
    assert at > 30


@pytest.mark.parametrize("failing", ["append_rows", "end_episode"])
def test_episodes_in_memory_are_as_they_were_where_the_disk_is_full(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    original = getattr(SegmentWriter, failing)

    def full(self: SegmentWriter, *args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "full")

    def append(writer: VectorWriter, t: int) -> None:
        numbers = np.full(3, t)
        writer.append(observation=observation(numbers), action=numbers, terminated=numbers == [5, t, 5])

    with store.vector_writer(3, writers=1) as writer:
        for t in range(4):
            monkeypatch.setattr(SegmentWriter, failing, full)
            for _ in range(2):
                with pytest.raises(DiskFullError):
                    append(writer, t)
            monkeypatch.setattr(SegmentWriter, failing, original)
            append(writer, t)
    assert sorted(episode["action"].tolist() for episode in store) == [[0], [0, 1, 2, 3], [0, 1, 2, 3], [1], [2], [3]]


@pytest.mark.parametrize("failing", ["append_rows", "end_episode"])
def test_an_episode_in_memory_is_written_once_when_the_disk_has_room_again(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    numbers, original = np.arange(3), getattr(SegmentWriter, failing)

    def full(self: SegmentWriter, *args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "full")

    with store.vector_writer(3, writers=1) as writer:
        writer.append(observation=observation(numbers), action=numbers)
        writer.append(observation=observation(numbers), action=numbers)
        monkeypatch.setattr(SegmentWriter, failing, full)
        with pytest.raises(DiskFullError):
            writer.end_episodes(truncated=True)
        monkeypatch.setattr(SegmentWriter, failing, original)
        writer.end_episodes(truncated=True)
    assert [episode["action"].tolist() for episode in store] == [[0, 0], [1, 1], [2, 2]]
    assert all(episode.truncated for episode in store)


def test_a_kill_at_any_moment_loses_at_most_the_last_step_of_each_environment(tmp_path: Path) -> None:
    num_envs, moments = 4, random.Random(0)
    for kill in range(5):
        path, shared = tmp_path / f"{kill}.well", memoryview(mmap.mmap(-1, 8)).cast("q")
        stepwell.create(path, SCHEMA)
        child = os.fork()
        if child == 0:
            try:
                walk(Model(Store(str(path)).vector_writer(num_envs), num_envs), 10**9, shared)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        while shared[0] < 1 + kill:
            assert time.monotonic() < deadline
        time.sleep(moments.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store = stepwell.open(path)
        before, after = (walk(Model(None, num_envs), shared[0] + more).shown(ended_as="interrupted") for more in (0, 1))
        shown = read(store)
        for env in range(num_envs):
            whole = [episode for episode in after if episode[0][0] % num_envs == env]
            found = [episode for episode in shown if episode[0][0] % num_envs == env]
            # the newest step may be there, and the end of its episode not
            stepped = [*whole[:-1], (whole[-1][0], None, "interrupted")]
            assert found in ([e for e in before if e[0][0] % num_envs == env], whole, stepped)
        assert store.verify().is_ok


def test_a_child_may_not_write(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with store.vector_writer(2) as writer:
        writer.append(observation=observation(np.arange(2)), action=np.arange(2))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                writer.append(observation=observation(np.arange(2)), action=np.arange(2))
            except WriterClosedError:
                writer.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        writer.append(observation=observation(np.arange(2)), action=np.arange(2))
    assert [episode.length for episode in store] == [2, 2]


def test_a_schema_of_text_is_inferred_in_a_ring(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", capacity=100)
    with store.vector_writer(2) as writer:
        writer.append(note=["left", "right"], action=np.arange(2))
    assert sorted(episode["note"][0] for episode in store) == ["left", "right"]
