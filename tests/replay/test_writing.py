"""Writers that wait for tables, by themselves and below recorders."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array
from stepwell.errors import RateLimitError, TableError
from stepwell.replay.limiters import SampleToInsertRatio
from stepwell.replay.tables import Table
from stepwell.replay.writing import TableTarget, TableWriter

SCHEMA = {"x": Array(final=True)}


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    return stepwell.create(tmp_path / "ring.well", SCHEMA)


def test_every_method_writes_and_tables_follow(store: stepwell.Store) -> None:
    table = Table(store)
    with TableWriter(store.writer(), [table]) as writer:
        assert writer.append(x=0.0) != writer.append({"x": 1.0})
        assert table.size == 1
        writer.append_batch({"x": np.arange(3, dtype=np.float32)})
        writer.end_episode(terminated=True, final={"x": 5.0})
        assert table.size == 5
        writer.add_episode({"x": np.arange(3, dtype=np.float32)}, truncated=True)
        writer.append(x=1.0)
        writer.discard_episode()
        writer.flush()
        assert writer.schema == store.schema
    assert table.size == 8
    assert store.num_steps == 8


def test_a_step_that_no_limiter_lets_in_is_refused_and_not_written(store: stepwell.Store) -> None:
    table = Table(store, limiter=SampleToInsertRatio(1.0, 1, (-3.0, 3.0)))
    writer = TableWriter(store.writer(), table, timeout=0.01)
    with pytest.raises(RateLimitError, match="Nothing was written"):
        for _ in range(20):
            writer.append(x=0.0)
    written = table.size + table.info.num_pending
    with pytest.raises(RateLimitError):
        writer.append(x=0.0)
    assert table.size + table.info.num_pending == written
    table.sample(2)
    writer.append(x=0.0)
    writer.close()


@pytest.mark.parametrize("capacity", [None, 100])
def test_every_method_of_a_vector_writer_writes_and_tables_follow(tmp_path: Path, capacity: int | None) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=capacity)
    table, x, done = Table(store), np.arange(3, dtype=np.float32), np.array([True, False, False])
    with TableTarget(store, table).vector_writer(3) as writer:
        assert (writer.append(x=x) >= 0).all()
        writer.append({"x": x}, terminated=done, final={"x": x})
        assert table.size == 2 + 1 + 1
        assert writer.append_batch({"x": np.stack([x, x])}).shape == (2, 3)
        assert table.size == 3 * 3 + 1 - 1 + 1 - 1
        writer.end_episodes(np.array([False, True, False]), final={"x": x})
        assert table.size == 10
        writer.discard_episodes(np.array([False, False, True]))
        assert table.size == 7
        writer.flush()
        assert (writer.schema, writer.num_envs) == (store.schema, 3)
        assert "TableVectorWriter of <VectorWriter" in repr(writer)


@pytest.mark.parametrize("capacity", [None, 100])
def test_a_vector_step_that_no_limiter_lets_in_is_refused_whole(tmp_path: Path, capacity: int | None) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=capacity)
    table, x = Table(store, limiter=SampleToInsertRatio(1.0, 1, (-3.0, 3.0))), np.arange(3, dtype=np.float32)
    writer = TableTarget(store, table, timeout=0.01).vector_writer(3)
    for _ in range(2):
        writer.append(x=x)
    with pytest.raises(RateLimitError, match="Nothing was written"):
        for _ in range(20):
            writer.append(x=x)
    store.refresh()
    written = store.num_steps
    assert written % 3 == 0
    with pytest.raises(RateLimitError):
        writer.append_batch({"x": np.stack([x, x])})
    store.refresh()
    assert store.num_steps == written
    table.sample(3)
    writer.append(x=x)
    writer.close()
    assert store.num_steps == written + 3


def test_a_time_out_that_is_no_number_of_seconds_is_refused(store: stepwell.Store) -> None:
    with store.writer() as writer, pytest.raises(TableError, match="timeout=nan"):
        TableWriter(writer, Table(store), timeout=float("nan"))


def test_a_writer_waits_until_a_learner_in_another_thread_has_drawn(store: stepwell.Store) -> None:
    table = Table(store, limiter=SampleToInsertRatio(1.0, 1, (-3.0, 3.0)))
    writer = TableWriter(store.writer(), table, timeout=10)

    def learn() -> None:
        while table.info.counts.samples < 20:
            try:
                table.sample(1, timeout=1)
            except RateLimitError:
                return

    learner = threading.Thread(target=learn)
    learner.start()
    for _ in range(20):
        writer.append(x=0.0)
        assert table.info.counts.inserts - table.info.counts.samples <= 4
    writer.end_episode()
    learner.join(10)
    assert table.info.counts.samples >= 16
    writer.close()


def test_recorders_take_a_target_in_place_of_a_store(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from stepwell.recorders import EpisodeRecorder, VectorRecorder, schema_of

    env = gymnasium.make("CartPole-v1")
    store = stepwell.create(tmp_path / "cart.well", schema_of(env))
    table = Table(store)
    with EpisodeRecorder(env, TableTarget(store, table)) as recorder:  # type: ignore[arg-type]
        _play(recorder, 30)
    store.refresh()
    assert table.size == store.num_steps == 30
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with VectorRecorder(envs, TableTarget(store, table)) as recorder:  # type: ignore[arg-type]
        recorder.reset(seed=0)
        for _ in range(5):
            recorder.step(recorder.action_space.sample())
    assert table.size == 40


def test_a_recorder_takes_a_table_writer_in_place_of_a_writer(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from stepwell.recorders import EpisodeRecorder, schema_of

    env = gymnasium.make("CartPole-v1")
    store = stepwell.create(tmp_path / "cart.well", schema_of(env))
    table = Table(store)
    writer = TableWriter(store.writer(), table)
    with EpisodeRecorder(env, writer) as recorder:  # type: ignore[arg-type]
        _play(recorder, 5)
    writer.close()
    assert table.size == 5


def _play(env: Any, steps: int) -> None:
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
