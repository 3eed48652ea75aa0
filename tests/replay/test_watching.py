"""Whether a change of a store is noticed, by its time stamps or, right after another change, without them."""

from __future__ import annotations

import os

import pytest

import stepwell
from stepwell import Array, Schema
from stepwell.replay.following import StoreWatch


@pytest.fixture
def store(tmp_path):
    store = stepwell.create(tmp_path / "a.well", Schema({"x": Array((), "int64")}))
    with store.writer() as writer:
        for _ in range(3):
            writer.add_episode({"x": [1, 2]})
    store.refresh()
    return store


def set_time(store, seconds_ago):
    """Set the directories' stamps, as if all had happened so long ago."""
    for directory in (store.path, store.path / "segments"):
        now = directory.stat().st_mtime_ns
        os.utime(directory, ns=(now, now - seconds_ago * 10**9))


@pytest.mark.parametrize("is_old", [True, False])
def test_changes_are_noticed_and_nothing_else(store, is_old):
    watch = StoreWatch(str(store.path))
    assert not watch.is_same()
    for change in (lambda: store.delete_episodes(0), store.compact, lambda: store.writer().append(x=1)):
        if is_old:
            set_time(store, 10)
        watch.begin_look()
        assert watch.is_same()
        assert watch.is_same()
        change()
        assert not watch.is_same()
    watch.close()


def test_a_change_within_one_tick_of_the_clock_is_noticed(store, monkeypatch):
    # however slow the machine is
    monkeypatch.setattr("stepwell.replay.following.TICK_NS", 10**12)
    watch = StoreWatch(str(store.path))
    stamps = [directory.stat().st_mtime_ns for directory in (store.path, store.path / "segments")]
    watch.begin_look()
    store.delete_episodes(1)
    for directory, stamp in zip((store.path, store.path / "segments"), stamps, strict=True):
        os.utime(directory, ns=(stamp, stamp))
    assert not watch.is_same()
    watch.close()
