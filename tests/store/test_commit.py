"""Who may take over a segment: dead writers of this boot, those of boots before, and others only when asked."""

import fcntl
import os
import shutil
import sys
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.errors import LeftOutWarning, SchemaError, SharedFileSystemWarning, StepwellError
from stepwell.replay.history import History
from stepwell.store import commit
from stepwell.store.commit import OWNER_START, CommitRecord

OTHER_BOOT = bytes(range(16))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.well"


@pytest.fixture
def network(monkeypatch):
    """Let every file system be one of the network."""
    monkeypatch.setattr(commit, "type_of_device", lambda device: "nfs4")
    monkeypatch.setattr(commit, "_WARNED", set())
    monkeypatch.setattr(commit, "PERIOD", 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SharedFileSystemWarning)
        yield


def live_writer(path, steps=3, sync="none"):
    writer = stepwell.create(path, {"a": stepwell.Array((), "int64")}, sync=sync).writer()
    writer.append_batch({"a": np.arange(steps)})
    return writer


def record_of(path):
    return next(path.glob("segments/*.open/progress"))


def leave(writer):
    """Let go of a writer as its death does."""
    writer._segment.close().close()
    writer._segment = None


def disown(path, *, boot=None, pid=None, start=None, namespace=None):
    """Let a commit record name another owner."""
    record = record_of(path)
    data = bytearray(record.read_bytes())
    for at, value in ((12, pid), (OWNER_START + 16, start), (OWNER_START + 24, namespace)):
        if value is not None:
            size = 4 if at == 12 else 8
            data[at : at + size] = value.to_bytes(size, "little")
    if boot is not None:
        data[OWNER_START : OWNER_START + 16] = boot
    record.write_bytes(data)
    return record


def ignore_locks(monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, kind: None)


def test_a_record_names_its_process(path):
    live_writer(path)
    data = record_of(path).read_bytes()
    me = commit.this_process()
    assert len(data) == 256
    assert data[OWNER_START : OWNER_START + 16] == me.boot != bytes(16)
    assert int.from_bytes(data[OWNER_START + 16 : OWNER_START + 24], "little") == me.start > 0
    assert data[112:176].rstrip(b"\0").decode() == me.host
    assert me.is_alive
    assert not commit.Owner(me.boot, me.pid, me.start + 1, me.namespace).is_alive
    assert commit.Owner(me.boot, me.pid, me.start, me.namespace + 1).is_alive is None


def test_a_process_to_which_locks_do_not_reach_seals_no_live_segment(path):
    writer = live_writer(path)
    code = (
        "import fcntl; fcntl.flock = lambda *_: None; import stepwell; "
        f"s = stepwell.open({str(path)!r}); print([segment.is_sealed for segment in s.segments], s.num_steps)"
    )
    found = warm_children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == "[False] 3"
    writer.append(a=3)
    writer.end_episode()
    writer.close()
    assert stepwell.open(path)[0]["a"].tolist() == [0, 1, 2, 3]


def test_where_locks_mean_nothing_a_dead_process_is_told_from_one_with_its_number(path, monkeypatch):
    writer = live_writer(path)
    leave(writer)
    ignore_locks(monkeypatch)
    # this process is alive, and may hold the segment
    assert not stepwell.open(path).segments[0].is_sealed
    disown(path, start=1)
    assert stepwell.open(path).segments[0].is_sealed


def test_where_locks_mean_nothing_another_namespace_of_processes_is_asked_for(path, monkeypatch):
    leave(live_writer(path))
    ignore_locks(monkeypatch)
    record = disown(path, namespace=1, start=1)
    assert not stepwell.open(path).segments[0].is_sealed
    assert not stepwell.open(path, recover="silent").segments[0].is_sealed
    os.utime(record, (0, 0))
    assert stepwell.open(path, recover="silent").segments[0].is_sealed


def test_a_writer_that_nobody_holds_any_more_is_recovered_in_its_own_process(path):
    writer = live_writer(path)
    leave(writer)
    assert stepwell.open(path)[0]["a"].tolist() == [0, 1, 2]


def test_nothing_is_recovered_where_that_is_asked_for(path):
    leave(live_writer(path))
    assert not stepwell.open(path, recover="none").segments[0].is_sealed
    assert stepwell.open(path).segments[0].is_sealed
    with pytest.raises(SchemaError, match="'dead', 'silent', 'none'"):
        stepwell.open(path, recover="all")


def test_a_segment_of_another_machine_on_a_network_is_neither_recovered_nor_shown(path, network, monkeypatch):
    writer = live_writer(path, sync="step")
    reader = stepwell.open(path, mode="r")
    assert reader.num_steps == 3
    monkeypatch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
    ignore_locks(monkeypatch)
    for options in ({"mode": "r"}, {}, {"recover": "silent"}):
        store = stepwell.open(path, **options)
        assert store.num_steps == 0
        assert len(list(path.glob("segments/*.open"))) == 1
    writer.end_episode()
    writer.close()
    assert store.refresh()
    assert store.num_steps == 3
    assert stepwell.open(path)[0]["a"].tolist() == [0, 1, 2]


def test_lanes_of_another_machine_on_a_network_are_shown_when_they_are_sealed(path, network, monkeypatch):
    writer = stepwell.create(path, {"a": stepwell.Array((), "int64")}, capacity=100).vector_writer(2)
    for step in range(3):
        writer.append(a=np.array([step, 10 + step]))
    real = commit.boot_id
    monkeypatch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
    reader = stepwell.open(path, mode="r")
    history = History(reader)
    assert (reader.num_steps, len(history.advance().runs)) == (0, 0)
    monkeypatch.setattr(commit, "boot_id", real)
    writer.close()
    monkeypatch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
    assert reader.refresh()
    assert sorted(episode["a"].tolist() for episode in reader) == [[0, 1, 2], [10, 11, 12]]
    runs = history.advance().runs
    assert [(stop - start, ended) for _, start, stop, ended in runs.tolist()] == [(3, 1), (3, 1)]


def test_a_silent_segment_of_another_machine_is_recovered_when_that_is_asked_for(path, network, monkeypatch):
    leave(live_writer(path, sync="step"))
    monkeypatch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
    os.utime(record_of(path), (0, 0))
    assert stepwell.open(path).num_steps == 0
    assert stepwell.open(path, recover="silent")[0]["a"].tolist() == [0, 1, 2]


def test_a_writer_on_a_network_gives_signs_of_life(path, network):
    writer = live_writer(path)
    record = record_of(path)
    os.utime(record, (0, 0))
    assert commit.is_silent(str(record))
    assert commit.beat()
    assert not commit.is_silent(str(record))
    writer.close()


def test_a_file_system_of_the_network_is_told_once(path, monkeypatch):
    monkeypatch.setattr(commit, "type_of_device", lambda device: "fuse.sshfs")
    monkeypatch.setattr(commit, "_WARNED", set())
    stepwell.create(path, {"a": stepwell.Array()})
    with pytest.warns(SharedFileSystemWarning, match="fuse.sshfs"):
        stepwell.open(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepwell.open(path)


def test_disks_of_this_machine_are_told_from_file_systems_of_the_network(monkeypatch):
    for kind, is_shared in (("nfs", True), ("lustre", True), ("fuse.x", True), ("fuseblk", False), ("ext4", False)):
        monkeypatch.setattr(commit, "type_of_device", lambda device, kind=kind: kind)
        assert commit.is_shared("/") is is_shared


def test_the_type_of_a_file_system_is_that_of_its_mount():
    assert commit.type_of_device(Path("/proc").stat().st_dev) == "proc"


def test_a_record_of_an_earlier_version_is_recovered_by_its_counters(path, monkeypatch):
    leave(live_writer(path))
    record = record_of(path)
    record.write_bytes(record.read_bytes()[:64])
    monkeypatch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
    assert stepwell.open(path, mode="r")[0]["a"].tolist() == [0, 1, 2]
    assert stepwell.open(path)[0]["a"].tolist() == [0, 1, 2]


def test_a_record_that_never_reached_the_disk_keeps_nobody_out(path):
    leave(live_writer(path))
    record_of(path).write_bytes(b"")
    assert stepwell.open(path, mode="r").num_steps == 0
    assert stepwell.open(path).verify().is_ok
    assert not list(path.glob("segments/*"))


@pytest.mark.parametrize(
    ("sync", "append", "end"),
    [
        ("none", [], []),
        ("episode", [], ["a.npy", "episodes.npy", "episodes.jsonl", "progress"]),
        ("step", *[["a.npy", "episodes.npy", "episodes.jsonl", "progress"]] * 2),
    ],
)
def test_data_reaches_the_disk_before_the_record_that_counts_it(path, monkeypatch, sync, append, end):
    writer = live_writer(path, sync=sync)
    segment, log, fsync = writer._segment, [], os.fsync

    def logged(descriptor):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115, PTH119
        words = segment._record.words
        log.append((name, words[8], words[9], words[2], words[3]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", logged)
    writer.append(a=3)
    assert [entry[0] for entry in log] == append
    # until its data are on the disk a step does not count
    assert [entry[1:] for entry in log] == [(3, 0, 3, 0)] * 3 * bool(append) + [(4, 0, 4, 0)] * bool(append)
    log.clear()
    writer.end_episode()
    assert [entry[0] for entry in log] == end
    assert [entry[4] for entry in log] == [0, 0, 0, 1][: len(end)]
    assert [entry[2] for entry in log] == [0, 0, 0, 1][: len(end)]
    monkeypatch.undo()


def test_a_hidden_record_has_nothing():
    progress = CommitRecord.hidden()
    assert (progress.rows, progress.episodes, progress.is_sealed) == (0, 0, False)


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
    # writers that another test left are none of its own
    monkeypatch.setattr(commit, "_attended", weakref.WeakSet())
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


def test_a_segment_that_is_closed_while_the_thread_goes_round_ends_no_thread(path, monkeypatch):
    monkeypatch.setattr(commit, "_attended", weakref.WeakSet())
    store = stepwell.create(path)
    with store.writer() as writer:
        writer.add_episode({"x": np.zeros(3)})
        # as the thread holds them while it goes round
        segments = list(commit._attended)
    assert segments
    for segment in segments:
        segment.attend()
