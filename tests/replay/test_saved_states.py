"""A learner that died goes on over the ring that actors kept writing: as the table would have that lived on."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.errors import CorruptSegmentError, DiskFullError, StoreNotFoundError, TableError
from stepwell.replay import Pattern, SampleToInsertRatio, Table, steps_since_applied
from stepwell.schema import Array

SAMPLERS = ["uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized(0.5)"]
CAPACITY = 3000


def contents_of(table):
    """Return everything that can be seen of a table's items, by key."""
    items, history = table._contents.items, table.history
    slots = items.slots
    ids = history.step_ids(items.episode[slots], items.row[slots])
    columns = [getattr(items, name)[slots] for name in ("length", "priority", "times_sampled", "sequence")]
    keyed = zip(items.keys_of(slots).tolist(), zip(ids, *columns, strict=True), strict=True)
    return {key: tuple(np.array(values).tolist()) for key, values in keyed}, table._contents.counts


def is_same(resumed, table):
    """Return whether two tables have the same items and counts, and the same keys of those that were saved."""
    (ours, counts), (theirs, their_counts) = contents_of(resumed), contents_of(table)
    return sorted(ours.values()) == sorted(theirs.values()) and counts == their_counts


def play(writer, start, count, length=70):
    for n in range(start, start + count):
        writer.append(n=n)
        if n % length == length - 1:
            writer.end_episode(truncated=n % 2 == 0, terminated=n % 2 == 1)


def learn(table, times=3):
    for _ in range(times):
        sample = table.sample(16)
        table.update_priorities(sample.keys, np.linspace(0.5, 4.0, 16))


@pytest.fixture
def ring(tmp_path):
    return stepwell.create(tmp_path / "ring.well", {"n": Array((), "int64")}, capacity=CAPACITY, segment_bytes=8000)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("moved", [0, 10, 500, 2500, 20_000])
def test_a_resumed_table_is_the_one_that_lived_on(ring, tmp_path, sampler, moved):
    patterns = (Pattern(ahead=1), Pattern(behind=2, where=[steps_since_applied >= 3]))
    with ring.writer() as writer:
        play(writer, 0, 2000)
        tables = [Table(ring, sampler=sampler, max_size=5000, pattern=pattern, seed=2) for pattern in patterns]
        for number, table in enumerate(tables):
            learn(table)
            table.save_state(tmp_path / f"{number}.npz")
        saved = [contents_of(table)[0] for table in tables]
        play(writer, 2000, moved)
        for number, table in enumerate(tables):
            resumed = Table.resume(stepwell.open(ring.path), tmp_path / f"{number}.npz")
            table.follow()
            resumed.follow()
            assert is_same(resumed, table)
            there, lived = contents_of(resumed)[0], contents_of(table)[0]
            survivors = [key for key in saved[number] if key in there]
            assert all(there[key] == saved[number][key] for key in survivors)
            assert bool(survivors) == (moved < CAPACITY)
            assert survivors == [key for key in saved[number] if key in lived]
            assert resumed.settings == table.settings
            play(writer, 2000 + moved, 200)
            table.follow()
            resumed.follow()
            assert is_same(resumed, table)
            if moved < CAPACITY and (sampler not in ("uniform", "prioritized(0.5)") or not moved):
                assert resumed.sample(8).keys.tolist() == table.sample(8).keys.tolist()


def test_a_limiter_owes_what_it_owed(ring, tmp_path):
    limiter = SampleToInsertRatio(2.0, min_size=10, error_buffer=20.0)
    with ring.writer() as writer:
        play(writer, 0, 100)
        table = Table(ring, limiter=limiter, pattern=Pattern(ahead=0))
        table.sample(5)
        waits = table.info.num_pending
        assert waits > 0
        table.save_state(tmp_path / "table.npz")
        resumed = Table.resume(stepwell.open(ring.path), tmp_path / "table.npz")
        assert resumed.info.num_pending == waits
        for each in (table, resumed):
            with pytest.raises(stepwell.errors.RateLimitError):
                each.sample(1000, timeout=0)
        assert resumed.info.counts == table.info.counts


def test_the_state_of_another_store_is_refused(ring, tmp_path):
    with ring.writer() as writer:
        play(writer, 0, 100)
    Table(ring).save_state(tmp_path / "table.npz")
    other = stepwell.create(tmp_path / "other.well", {"n": Array((), "int64")})
    with pytest.raises(TableError, match=r"is not the state of a table over .*other\.well"):
        Table.resume(other, tmp_path / "table.npz")
    with pytest.raises(StoreNotFoundError, match="no state of a table at"):
        Table.resume(ring, tmp_path / "nothing.npz")


def test_a_damaged_state_is_an_error_that_names_it(ring, tmp_path):
    with ring.writer() as writer:
        play(writer, 0, 100)
    data = Table(ring).save_state(tmp_path / "table.npz").read_bytes()
    for place in (0, 10, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.npz").write_bytes(data[:place])
        with pytest.raises(CorruptSegmentError, match=r"cut\.npz"):
            Table.resume(ring, tmp_path / "cut.npz")


def test_a_saving_that_fails_leaves_the_one_before(ring, tmp_path, monkeypatch):
    with ring.writer() as writer:
        play(writer, 0, 100)
    table = Table(ring)
    before = table.save_state(tmp_path / "table.npz").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFullError):
            table.save_state(tmp_path / "table.npz")
    assert (tmp_path / "table.npz").read_bytes() == before
    assert [path.name for path in tmp_path.glob("table.npz*")] == ["table.npz"]


def test_it_is_saved_at_once_periodically_and_at_the_end(ring, tmp_path, monkeypatch):
    saved = threading.Semaphore(0)
    replaced = os.replace

    def replace(source, target):
        replaced(source, target)
        if str(target).endswith("table.npz"):
            saved.release()

    monkeypatch.setattr(os, "replace", replace)
    with ring.writer() as writer:
        play(writer, 0, 100)
        table = Table(ring, pattern=Pattern(ahead=0))
        with table.save_state_every(tmp_path / "table.npz", seconds=0.001):
            for _ in range(5):
                assert saved.acquire(timeout=60)
            play(writer, 100, 50)
            table.follow()
        assert Table.resume(ring, tmp_path / "table.npz").size == table.size == 150
    assert not [thread for thread in threading.enumerate() if thread.name == "stepwell-table-state"]


def test_a_table_that_nobody_has_is_not_kept_by_its_saver(ring, tmp_path):
    table = Table(ring)
    saver = table.save_state_every(tmp_path / "table.npz", seconds=0.001)
    del table
    saver._thread.join(60)
    assert not saver._thread.is_alive()
    saver.close()


def test_bad_intervals_are_refused(ring, tmp_path):
    for seconds in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(TableError, match="seconds="):
            Table(ring).save_state_every(tmp_path / "table.npz", seconds=seconds)


LEARNER = """
import sys, os, numpy as np, stepwell
from stepwell.replay import Table, Pattern
store = stepwell.open(sys.argv[1], mode="r")
table = Table(store, sampler="prioritized(1.0)", pattern=Pattern(ahead=0), max_size=5000)
n = 0
while True:
    sample = table.sample(32)
    # the priority of a step says which one it is
    table.update_priorities(sample.keys, 1e6 + table.history.step_ids(sample.episodes, sample.rows) % 2**32)
    table.save_state(sys.argv[2])
    n += 1
    print(n, flush=True)
"""


def test_a_learner_that_is_killed_at_any_moment_goes_on_over_the_live_ring(ring, tmp_path):
    with ring.writer() as writer:
        play(writer, 0, 1000)
        learner = warm_children.Popen(
            [sys.executable, "-c", LEARNER, str(ring.path), str(tmp_path / "table.npz")], stdout=subprocess.PIPE
        )
        for _ in range(5):
            assert learner.stdout.readline()
        learner.send_signal(signal.SIGKILL)
        learner.communicate()
        play(writer, 1000, 1500)
        resumed = Table.resume(stepwell.open(ring.path, mode="r"), tmp_path / "table.npz")
        resumed.follow()
        assert resumed.size == 2500
        items, counts = contents_of(resumed)
        # of items that were there before the first update
        old = [(step, priority) for step, _, priority, times, _ in items.values() if times]
        assert counts.samples >= 4 * 32
        assert len(old) >= 32
        assert all(priority == 1e6 + step % 2**32 for step, priority in old)
