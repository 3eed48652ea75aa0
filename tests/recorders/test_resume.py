"""A recording that is interrupted is gone on with: nothing is made twice, and what comes out is the same."""

import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

import numpy as np
import parallel_sources as sources
import pytest
import warm_children
from test_write import is_running

import stepwell
from stepwell.errors import SchemaError, StepError, StepwellError, StoreBusyError, StoreExistsError, WorkerError
from stepwell.progress import NoBar, RateBar
from stepwell.recorders import resuming, write_episodes
from stepwell.recorders.resuming import IMPORTING, read_plan

PROGRAM = Path(__file__).parent / "resume_killing.py"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "marks"
    path.mkdir()
    return path


def record(target, source, **options):
    options = {"workers": 0, "chunk_episodes": 2, "resume": True, "schema": sources.MARKED, **options}
    return write_episodes(target, source, **options)


def marks(folder, name="read"):
    """Return what was written down, and forget it."""
    path = folder / name
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def contents(store):
    """Return every file of a store but the times of episodes, and the store's identity."""
    found = {}
    for path in sorted(Path(store).rglob("*")):
        if path.name == "episodes.npy":
            records = np.load(path)
            records["time_ns"] = 0
            found[path.relative_to(store).as_posix()] = records.tobytes()
        elif path.is_file() and path.name not in ("store.json", "segment.json", "lock"):
            found[path.relative_to(store).as_posix()] = path.read_bytes()
    return found


def spoil(target, folder, at=7, **options):
    """Record until an episode that cannot be read."""
    with pytest.raises(WorkerError, match=f"item {at} could not be written: ValueError: not readable"):
        record(target, sources.MarkedEpisodes(folder, at=at), **options)


def test_a_failure_leaves_what_is_finished_and_the_next_call_makes_the_rest(tmp_path, folder):
    spoil(tmp_path / "x.well", folder)
    assert marks(folder) == [str(i) for i in range(8)]
    assert marks(folder, "forgotten") == ["0:2", "2:4", "4:6"]
    assert [episode.metadata["index"] for episode in stepwell.open(tmp_path / "x.well")] == list(range(6))
    source = sources.MarkedEpisodes(folder)
    store = record(tmp_path / "x.well", source)
    assert marks(folder) == [str(i) for i in range(6, 12)]
    assert source.prepared == [[(6, 8), (8, 10), (10, 12)]]
    assert [episode.metadata["index"] for episode in store] == list(range(12))
    assert store.verify(deep=True).is_ok
    record(tmp_path / "whole.well", sources.MarkedEpisodes(folder))
    assert contents(tmp_path / "x.well") == contents(tmp_path / "whole.well")


@pytest.mark.parametrize(("num_read", "workers"), [(0, 0), (1, 2), (2, 0), (5, 2), (5, 0), (9, 2), (12, 0)])
def test_a_kill_at_any_moment_loses_no_finished_chunk(num_read, workers, tmp_path, folder):
    target = tmp_path / "x.well"
    process = warm_children.Popen([sys.executable, PROGRAM, target, folder, str(workers)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        path = folder / "read"
        if (path.read_text().count("\n") if path.exists() else 0) >= num_read and (num_read or target.exists()):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    forgotten = marks(folder, "forgotten")
    marks(folder)
    if not target.exists() or read_plan(target) is None:
        pytest.skip("it was killed before it began, or after it was done")
    store = record(target, sources.MarkedEpisodes(folder))
    again = {int(line) for line in marks(folder)}
    # a worker may have finished a chunk between the look and the kill
    assert not again & {i for line in forgotten for i in range(*map(int, line.split(":")))}
    assert [episode.metadata["index"] for episode in store] == list(range(12))
    assert not (target / IMPORTING).exists()
    record(tmp_path / "whole.well", sources.MarkedEpisodes(folder))
    assert contents(target) == contents(tmp_path / "whole.well")


def test_half_a_segment_that_recovery_sealed_is_made_anew(tmp_path, folder):
    spoil(tmp_path / "x.well", folder)
    plan = resuming.Plan("marked", 12, 2, sources.MARKED)
    writer = stepwell.open(tmp_path / "x.well").writer(ordinal=3, tag=plan.tag(3))
    for index in (6, 7):
        writer.append(action=np.full(2, 99, np.float32), note="half")
        if index == 6:
            writer.end_episode(index=6)
    writer.close()  # as a recovery does: two episodes, of which one is interrupted
    assert len(stepwell.open(tmp_path / "x.well")) == 8
    store = record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    assert [episode.metadata["index"] for episode in store] == list(range(12))
    assert not any(episode.interrupted for episode in store)
    assert store[6]["note"][0] == "6"


def test_a_ctrl_c_keeps_what_is_finished(tmp_path, folder, monkeypatch):
    def interrupt(self, num_items, *_):
        if num_items >= 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RateBar, "show", interrupt)
        with pytest.raises(KeyboardInterrupt):
            record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    assert len(stepwell.open(tmp_path / "x.well")) == 4
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12


def test_when_nothing_is_finished_nothing_is_left(tmp_path, folder):
    spoil(tmp_path / "x.well", folder, at=1)
    assert not (tmp_path / "x.well").exists()


def test_what_a_kill_left_before_anything_was_finished_gives_way_to_another_recording(tmp_path, folder):
    plan = resuming.Plan("another", 5, 1, sources.MARKED, metadata={"from": "elsewhere"})
    unfinished = resuming.Unfinished(tmp_path / "x.well", plan)
    unfinished._lock.release()  # as a kill does
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12


@pytest.mark.parametrize(
    ("options", "length", "message"),
    [
        ({}, 14, r"num_items 12, not 14"),
        ({"chunk_episodes": 3}, 12, r"chunk_items 2, not 3"),
        ({"fps": 10}, 12, r"fps null, not 10.0"),
        ({"metadata": {"from": "b"}}, 12, r'metadata \{\}, not \{"from": "b"\}'),
        (
            {"schema": {"action": stepwell.Array(2), "note": stepwell.Text(codec="zstd")}},
            12,
            'codec "raw", not codec "zstd"',
        ),
    ],
)
def test_other_arguments_are_refused_with_what_is_other(options, length, message, tmp_path, folder):
    pytest.importorskip("zstandard")
    spoil(tmp_path / "x.well", folder)
    with pytest.raises(StoreExistsError, match=message):
        record(tmp_path / "x.well", sources.MarkedEpisodes(folder, length), **options)
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12


def test_another_source_is_refused(tmp_path, folder):
    spoil(tmp_path / "x.well", folder)
    other = sources.MarkedEpisodes(folder)
    other.identity = "other"
    with pytest.raises(StoreExistsError, match='source "marked", not "other"'):
        record(tmp_path / "x.well", other)


def test_a_finished_store_and_any_other_are_refused(tmp_path, folder):
    record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    with pytest.raises(StoreExistsError, match="is there already"):
        record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreExistsError):
        record(tmp_path / "file", sources.MarkedEpisodes(folder))
    spoil(tmp_path / "y.well", folder)
    with pytest.raises(StoreExistsError):
        record(tmp_path / "y.well", sources.MarkedEpisodes(folder), resume=False)


def test_a_store_that_was_changed_meanwhile_is_refused(tmp_path, folder):
    for number, change in enumerate(
        (
            lambda store: store.delete_episodes([0]),
            lambda store: store.compact(),
            lambda store: write_episodes(store, sources.MarkedEpisodes(folder, 1), workers=0, chunk_episodes=1),
        )
    ):
        target = tmp_path / f"{number}.well"
        spoil(target, folder)
        with stepwell.open(target) as store:
            change(store)
        with pytest.raises(StoreExistsError, match="was changed before it was finished"):
            record(target, sources.MarkedEpisodes(folder))


def test_what_was_appended_meanwhile_takes_no_chunk_s_place(tmp_path, folder):
    spoil(tmp_path / "x.well", folder)
    with stepwell.open(tmp_path / "x.well").writer() as writer:
        writer.add_episode({"action": np.zeros((1, 2), np.float32), "note": ["mine"]})
    store = stepwell.open(tmp_path / "x.well")
    assert [segment.ordinal for segment in store.segments] == [0, 1, 2, 6]


def test_a_kill_while_a_half_is_removed_leaves_a_store_that_opens(tmp_path, folder, monkeypatch):
    spoil(tmp_path / "x.well", folder)
    monkeypatch.setattr("shutil.rmtree", lambda *arguments, **named: None)
    resuming.remove_segments(str(tmp_path / "x.well"), {2})
    monkeypatch.undo()
    assert len(stepwell.open(tmp_path / "x.well")) == 4
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12
    assert sorted(path.name[:8] for path in (tmp_path / "x.well" / "segments").iterdir()) == [
        f"{i:08d}" for i in range(6)
    ]


def test_two_at_once_are_refused(tmp_path, folder):
    plan = resuming.Plan("marked", 12, 2, sources.MARKED)
    first = resuming.Unfinished(tmp_path / "x.well", plan)
    with pytest.raises(StoreBusyError, match="is being recorded by another process"):
        resuming.Unfinished(tmp_path / "x.well", plan)
    first.leave()


def test_of_two_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    plan = resuming.Plan("marked", 12, 2, sources.MARKED)
    build, others = resuming.built_store, []

    def build_late(path):
        monkeypatch.setattr(resuming, "built_store", build)
        others.append(resuming.Unfinished(path, plan))
        return build(path)

    monkeypatch.setattr(resuming, "built_store", build_late)
    with pytest.raises(StoreBusyError, match="is being recorded by another process"):
        resuming.Unfinished(tmp_path / "x.well", plan)
    assert others[0].leave() == 0
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_record_that_was_replaced_is_none(tmp_path, monkeypatch):
    plan, lock = resuming.Plan("marked", 12, 2, sources.MARKED), resuming.FileLock
    unfinished = resuming.Unfinished(tmp_path / "x.well", plan)

    def lock_late(descriptor, **options):
        monkeypatch.setattr(resuming, "FileLock", lock)
        unfinished.leave()
        resuming.Unfinished(tmp_path / "x.well", plan)
        return lock(descriptor, **options)

    monkeypatch.setattr(resuming, "FileLock", lock_late)
    with pytest.raises(StoreBusyError, match="was finished or removed by another process"):
        resuming.Unfinished(tmp_path / "x.well", plan)


def test_a_disk_that_fails_once_more_does_not_hide_why(tmp_path, folder, monkeypatch):
    def fail(self):
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(resuming.Unfinished, "_drop_halves", lambda self: frozenset())
        patched.setattr(resuming, "remove_directory", fail)
        spoil(tmp_path / "x.well", folder)
    marks(folder)
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12
    assert marks(folder) == [str(i) for i in range(6, 12)]


def test_a_failure_at_the_very_end_lets_the_next_call_go_on(tmp_path, folder, monkeypatch):
    def fail(path):
        raise OSError("no answer")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no answer"):
        patched.setattr("stepwell.recorders.write.sync_names", fail)
        record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    marks(folder)
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12
    assert marks(folder) == []


@pytest.mark.parametrize("resume", [True, False])
def test_a_kill_while_nothing_is_left_leaves_nothing_in_the_way(resume, tmp_path, folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *arguments, **named: None)
        spoil(tmp_path / "x.well", folder, at=1, resume=resume)
    assert not (tmp_path / "x.well").exists()
    record(tmp_path / "x.well", sources.MarkedEpisodes(folder), resume=resume)
    hidden = list(tmp_path.glob(".*"))
    assert not (resume and hidden)


def test_what_was_forked_meanwhile_does_not_count_as_another(tmp_path, folder, monkeypatch, forked_child):
    spoil(tmp_path / "x.well", folder)
    monkeypatch.setattr(resuming, "ORPHAN_SECONDS", 0.2)
    plan = resuming.Plan("marked", 12, 2, sources.MARKED)
    unfinished = resuming.Unfinished(tmp_path / "x.well", plan)
    with resuming.segment_maker(tmp_path / "x.well"):
        forked_child()
    assert unfinished.leave() == 3
    assert resuming.Unfinished(tmp_path / "x.well", plan).leave() == 3


def test_a_segment_that_somebody_still_writes_is_waited_for(tmp_path, folder, monkeypatch):
    spoil(tmp_path / "x.well", folder)
    monkeypatch.setattr(resuming, "ORPHAN_SECONDS", 0.2)
    tag = resuming.Plan("marked", 12, 2, sources.MARKED).tag(5)
    with stepwell.open(tmp_path / "x.well").writer(ordinal=5, tag=tag) as writer:
        writer.append(action=np.zeros(2, np.float32), note="held")
        with pytest.raises(StoreBusyError, match="is being written by another process"):
            record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    assert len(record(tmp_path / "x.well", sources.MarkedEpisodes(folder))) == 12


def test_a_worker_ends_in_the_middle_of_its_chunk_when_its_parent_is_killed(tmp_path):
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "import parallel_sources as sources\n"
        "from stepwell.recorders import write_episodes\n"
        "folder = pathlib.Path(sys.argv[2])\n"
        "source = sources.SlowEpisodes(folder / 'pids')\n"
        "write_episodes(folder / 'x.well', source, workers=2, start_method='fork', chunk_episodes=200)\n"
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = warm_children.Popen([sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)])
    deadline = time.monotonic() + 60
    while len(list(pids.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [int(path.name) for path in pids.iterdir() if int(path.name) != parent.pid]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    killed = time.monotonic()
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    # a chunk takes 10 s
    assert len(workers) == 2 and time.monotonic() - killed < 8


def test_what_cannot_be_gone_on_with_is_refused(tmp_path, folder):
    store = stepwell.create(tmp_path / "s.well", sources.MARKED)
    with pytest.raises(StepwellError, match="resume= is for new stores"):
        record(store, sources.MarkedEpisodes(folder))
    with pytest.raises(StepwellError, match="metadata= is for new stores"):
        record(store, sources.MarkedEpisodes(folder), resume=False, metadata={"a": 1})
    with pytest.raises(StepError, match="an iterator cannot be gone on with"):
        record(tmp_path / "x.well", iter([{"action": np.zeros((1, 2), np.float32)}]))
    with pytest.raises(SchemaError):
        record(tmp_path / "x.well", sources.MarkedEpisodes(folder), fps=-1)
    assert not (tmp_path / "x.well").exists()


def test_the_plan_says_what_is_under_way(tmp_path, folder):
    spoil(tmp_path / "x.well", folder)
    plan = read_plan(tmp_path / "x.well")
    assert (plan["source"], plan["num_items"], plan["chunk_items"]) == ("marked", 12, 2)
    assert json.loads(json.dumps(plan)) == plan
    assert read_plan(tmp_path / "nowhere.well") is None
    assert multiprocessing.active_children() == []


def test_progress_begins_with_what_is_there(tmp_path, folder, monkeypatch):
    bars = []

    def make_bar(*arguments, **named):
        bars.append(NoBar())
        return bars[-1]

    spoil(tmp_path / "x.well", folder)
    monkeypatch.setattr("stepwell.progress.make_bar", make_bar)
    record(tmp_path / "x.well", sources.MarkedEpisodes(folder))
    assert [bar.n for bar in bars] == [12]


def test_metadata_of_a_new_store_is_kept(tmp_path, folder):
    for resume in (False, True):
        store = record(
            tmp_path / f"{resume}.well", sources.MarkedEpisodes(folder, 2), metadata={"a": [1]}, resume=resume
        )
        assert dict(store.metadata) == {"a": [1]}


EDGES = (0, 3, 4, 9)


def test_segments_begin_at_the_edges_for_any_number_of_workers_and_after_a_failure(tmp_path, folder):
    for workers in (0, 2):
        store = record(tmp_path / f"{workers}.well", sources.MarkedEpisodes(folder), edges=EDGES, workers=workers)
        lengths = [len(segment.records) for segment in store.segments]
        assert lengths == [2, 1, 1, 2, 2, 1, 2, 1]
    assert contents(tmp_path / "0.well") == contents(tmp_path / "2.well")
    with pytest.raises(WorkerError, match="not readable"):
        record(tmp_path / "x.well", sources.MarkedEpisodes(folder, at=7), edges=EDGES)
    marks(folder)
    record(tmp_path / "x.well", sources.MarkedEpisodes(folder), edges=np.array(EDGES))
    assert marks(folder) == [str(i) for i in range(6, 12)]
    assert contents(tmp_path / "x.well") == contents(tmp_path / "0.well")


def test_other_edges_are_another_recording(tmp_path, folder):
    spoil(tmp_path / "x.well", folder)
    with pytest.raises(StoreExistsError, match=r"made of other things: edges null, not \[0, 3, 4, 9\]"):
        record(tmp_path / "x.well", sources.MarkedEpisodes(folder), edges=EDGES)
    with pytest.raises(StepError, match="edges= of an iterator"):
        record(tmp_path / "y.well", iter([{}]), edges=EDGES)
