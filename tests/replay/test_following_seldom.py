"""Tables that may be some time behind their store: `follow_seconds`."""

import numpy as np
import pytest

import stepwell
from stepwell.errors import RateLimitError, TableError
from stepwell.replay import MinSize, ReplayLoader, Table
from stepwell.schema import Array

LONG = 1e6


@pytest.fixture
def store(tmp_path):
    store = stepwell.create(tmp_path / "steps.well", {"value": Array(dtype="int64")})
    record(store, 3)
    return store


def record(store, count, first=0):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(first, first + count)})


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_draws_within_the_time_do_not_see_new_steps_and_follow_does(store, sampler):
    table = Table(store, sampler=sampler, follow_seconds=LONG)
    loader = ReplayLoader(table, {"value": None}, batch_size=64)
    assert set(next(loader)["value"].tolist()) <= {0, 1, 2}
    record(store, 1000, first=3)
    assert next(loader)["table.size"].tolist() == [3] * 64
    assert table.follow() == 1000
    assert next(loader)["table.size"].tolist() == [1003] * 64
    assert max(next(loader)["value"]) > 2


def test_by_default_every_draw_follows(store):
    loader = ReplayLoader(Table(store), {"value": None}, batch_size=8)
    next(loader)
    record(store, 1, first=3)
    assert next(loader)["table.size"].tolist() == [4] * 8


def test_a_draw_that_would_have_to_wait_follows(store):
    table = Table(store, limiter=MinSize(5), follow_seconds=LONG)
    with pytest.raises(RateLimitError, match="MinSize"):
        table.sample(1, timeout=0)
    record(store, 2, first=3)
    assert table.sample(4, timeout=0).table_size.tolist() == [5] * 4


def test_until_it_follows_a_table_of_a_ring_draws_what_was_there_and_then_what_is(tmp_path):
    store = stepwell.create(tmp_path / "ring.well", {"value": Array(dtype="int64")}, capacity=64, segment_bytes=256)
    record(store, 64)
    table = Table(store, follow_seconds=LONG)
    loader = ReplayLoader(table, {"value": None}, batch_size=16)
    table.sample(1)
    with store.writer() as writer:
        for first in range(64, 6400, 8):
            writer.add_episode({"value": np.arange(first, first + 8)})
    assert next(loader)["value"].max() < 64
    table.follow()
    assert next(loader)["value"].min() >= 6400 - 64


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True])
def test_a_time_that_is_none_is_refused(store, seconds):
    with pytest.raises(TableError, match="follow_seconds"):
        Table(store, follow_seconds=seconds)


def test_a_restored_table_keeps_the_time(store, tmp_path):
    table = Table(store, follow_seconds=2.5)
    table.checkpoint(tmp_path / "kept")
    restored = stepwell.replay.restore(tmp_path / "kept", to=tmp_path / "again.well")
    assert restored["replay"].settings.follow_seconds == 2.5


@pytest.mark.parametrize("follow_seconds", [0, LONG])
def test_what_is_drawn_is_drawn_once(store, follow_seconds):
    table = Table(store, sampler="fifo", max_times_sampled=2, follow_seconds=follow_seconds)
    drawn = [int(table.sample(1, timeout=0).rows[0]) for _ in range(6)]
    assert drawn == [0, 0, 1, 1, 2, 2]
    record(store, 1, first=3)
    assert table.sample(1, timeout=0).table_size.tolist() == [1]
    if follow_seconds:
        # a draw that something is there for leaves new steps where they are
        record(store, 1, first=4)
        assert table.sample(1, timeout=0).table_size.tolist() == [1]
