"""What is synced in the background, and what counts in a copy of a store that nobody closed."""

import os
import shutil
import time
import weakref

import numpy as np
import pytest

import stepwell
from stepwell.errors import LeftOutWarning, StepwellError
from stepwell.store import commit


@pytest.fixture
def store(tmp_path):
    return stepwell.create(tmp_path / "a.well", {"x": stepwell.Array(2, "float64")})


def rows_of(path):
    return [episode["x"][:, 0].tolist() for episode in stepwell.open(path)]


def abandon(writer):
    """Leave what a kill leaves."""
    segment, writer._segment = writer._segment, None
    segment.close().close()


def test_a_copy_shows_what_was_synced_and_says_how_much_it_leaves_out(store, tmp_path):
    writer = store.writer()
    for t in range(5):
        writer.append(x=np.full(2, float(t)))
    writer.flush()
    for t in range(5, 8):
        writer.append(x=np.full(2, float(t)))
    shutil.copytree(store.path, tmp_path / "copy.well")
    with pytest.warns(LeftOutWarning, match="3 rows more were recorded"):
        assert rows_of(tmp_path / "copy.well") == [[0.0, 1.0, 2.0, 3.0, 4.0]]
    abandon(writer)
    # where it was recorded the memory of the machine has all of it
    assert rows_of(store.path) == [[float(t) for t in range(8)]]


def test_readers_of_a_copy_see_no_more_than_recovery_keeps(store, tmp_path):
    writer = store.writer()
    writer.add_episode({"x": np.zeros((3, 2))})
    writer.flush()
    writer.add_episode({"x": np.ones((3, 2))})
    shutil.copytree(store.path, tmp_path / "copy.well")
    assert len(stepwell.open(tmp_path / "copy.well", mode="r")) == 1
    writer.close()
    assert len(stepwell.open(store.path)) == 2


def test_what_waits_for_no_disk_is_synced_in_the_background(store, tmp_path):
    writer = store.writer()
    writer.add_episode({"x": np.zeros((3, 2))})
    writer.append(x=np.ones(2))
    assert commit.beat()
    shutil.copytree(store.path, tmp_path / "copy.well")
    assert rows_of(tmp_path / "copy.well") == [[0.0, 0.0, 0.0], [1.0]]
    writer.close()


def test_a_disk_that_fails_in_the_background_is_told_of(store, monkeypatch):
    writer = store.writer()
    writer.append(x=np.zeros(2))

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        commit.beat()
    # the system tells of an error once; the writer goes on to
    with pytest.raises((OSError, StepwellError), match=r"(?i)input/output error"):
        writer.flush()
    with pytest.raises((OSError, StepwellError), match=r"(?i)input/output error"):
        writer.close()


def test_a_thread_goes_round_for_as_long_as_there_are_writers(store, monkeypatch):
    monkeypatch.setattr(commit, "_thread", None)
    monkeypatch.setattr(commit, "PERIOD", 0.01)
    with store.writer() as writer:
        writer.append(x=np.zeros(2))
        thread = commit._thread
        deadline = time.monotonic() + 60
        while writer._segment._record.durable != (1, 0):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    thread.join(60)
    assert not thread.is_alive()


def test_segments_are_forgotten_when_they_are_closed_or_nobody_has_them(store, monkeypatch):
    # other tests may have left writers that wait for the garbage collector
    monkeypatch.setattr(commit, "_attended", weakref.WeakSet())
    with store.writer() as writer:
        writer.append(x=np.zeros(2))
        assert commit.beat()
    abandoned = store.writer()
    abandoned.append(x=np.zeros(2))
    del abandoned
    assert not commit.beat()
