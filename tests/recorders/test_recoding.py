import errno
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import conversion_killing
import numpy as np
import pytest
import warm_children
from conversion_stores import LENGTHS, SHAPE, blobs_of, content, files_of, record

import stepwell
from stepwell import convert
from stepwell.codecs.codec import codec_names
from stepwell.errors import (
    DiskFullError,
    EpisodeNotFoundError,
    FeatureNotFoundError,
    SchemaError,
    StepwellError,
    StoreBusyError,
    StoreExistsError,
    WorkerError,
)
from stepwell.progress import NoBar
from stepwell.recorders.recoding import Recoding
from stepwell.store.beneath import disk_error
from stepwell.testing import tiny_store

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
pytest.importorskip("zstandard")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    yield
    assert multiprocessing.active_children() == []


def test_features_that_are_not_named_are_copied_as_they_are_encoded(tmp_path):
    store = record(tmp_path / "a.well", "jpeg", quality=40)
    convert(store, tmp_path / "b.well", {"action": "zstd"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert blobs_of(new, "camera") == blobs_of(store, "camera")
    assert blobs_of(new, "points") == blobs_of(store, "points")
    assert content(new) == content(store)


def test_a_feature_that_is_as_wanted_already_is_copied_not_encoded_once_more(tmp_path):
    store = record(tmp_path / "a.well", "jpeg", quality=40)
    same = stepwell.Image(SHAPE, codec="jpeg", quality=40)
    report = convert(store, tmp_path / "b.well", {"camera": same, "action": "zstd"}, workers=1)
    assert report.features["camera"].distortion is None
    assert blobs_of(stepwell.open(tmp_path / "b.well"), "camera") == blobs_of(store, "camera")


@pytest.mark.parametrize("segment_bytes", [1, 256 << 20])
def test_the_same_bytes_for_every_number_of_workers(tmp_path, segment_bytes):
    store = record(tmp_path / "a.well", segment_bytes=segment_bytes)
    for workers in (0, 1, 3):
        convert(store, tmp_path / f"{workers}.well", {"camera": "jpeg", "action": "zstd"}, workers=workers)
    files = [files_of(stepwell.open(tmp_path / f"{workers}.well")) for workers in (0, 1, 3)]
    assert len(stepwell.open(tmp_path / "3.well").segments) == (4 if segment_bytes == 1 else 1)
    assert files[0] == files[1] == files[2]


def test_reports_are_the_same_for_every_number_of_workers(tmp_path):
    store = record(tmp_path / "a.well")
    reports = [convert(store, tmp_path / f"{n}.well", {"camera": "jpeg"}, workers=n) for n in (1, 3)]
    assert reports[0].features == reports[1].features


def test_a_large_segment_is_cut_between_episodes_and_small_ones_are_joined(tmp_path, monkeypatch):
    store = record(tmp_path / "a.well", segment_bytes=256 << 20)
    for _ in range(2):
        with store.writer() as writer:
            writer.add_episode({name: store[3][name][:3] for name in store.schema})
    assert len(store.segments) == 3
    monkeypatch.setattr("stepwell.recorders.recoding.LEAST_CHUNK_BYTES", 7 * math.prod(SHAPE))
    convert(store, tmp_path / "b.well", {"camera": "png"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    # rows of the episodes: 6 + 1, 9, 3 + 3 + 3
    assert [len(segment.records) for segment in new.segments] == [2, 1, 3]
    assert content(new) == content(store)


def test_deleted_episodes_are_left_behind_and_splits_stay(tmp_path):
    store = record(tmp_path / "a.well", lengths=range(1, 13), segment_bytes=2000)
    store.delete_episodes([0, 5, 11])
    convert(store, tmp_path / "b.well", {"camera": "png"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert content(new) == content(store)
    assert len(new) == 9
    assert np.array_equal(new.episodes.origin, store.episodes.origin)
    assert np.array_equal(new.episodes.time_ns, store.episodes.time_ns)
    assert (new.fps, new.metadata, new.uuid == store.uuid) == (10.0, {"robot": "arm"}, False)


def test_discarded_episodes_are_left_behind_and_interrupted_ones_are_kept(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array(2)})
    with store.writer() as writer:
        writer.append(x=[1, 1])
        writer.discard_episode()
        writer.append(x=[2, 2])
    convert(store, tmp_path / "b.well", {"x": "zstd"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert [(e.interrupted, e["x"].tolist()) for e in new] == [(True, [[2, 2]])]


@pytest.mark.parametrize("episodes", [slice(1, 3), [2, 1, -3], np.array([False, True, True, False])])
def test_some_episodes_are_converted_in_the_order_of_the_store(tmp_path, episodes):
    store = record(tmp_path / "a.well")
    report = convert(store, tmp_path / "b.well", {"camera": "png"}, workers=1, episodes=episodes)
    assert content(stepwell.open(tmp_path / "b.well")) == content(store)[1:3]
    assert (report.num_episodes, report.num_steps) == (2, LENGTHS[1] + LENGTHS[2])


def test_no_episodes_make_an_empty_store(tmp_path):
    store = record(tmp_path / "a.well")
    report = convert(store, tmp_path / "b.well", {"camera": "png"}, workers=2, episodes=[])
    assert len(stepwell.open(tmp_path / "b.well")) == 0
    assert (report.ratio, report.features["camera"].ratio, report.num_steps) == (None, None, 0)


def test_video_is_the_same_for_every_number_of_workers(tmp_path):
    pytest.importorskip("av")
    store = record(tmp_path / "a.well", lengths=(12, 9, 10))
    for workers in (1, 3):
        convert(store, tmp_path / f"{workers}.well", {"camera": "video"}, workers=workers)
    assert files_of(stepwell.open(tmp_path / "1.well")) == files_of(stepwell.open(tmp_path / "3.well"))


def test_video_that_is_not_named_is_copied_as_it_is_encoded(tmp_path):
    pytest.importorskip("av")
    store = record(tmp_path / "a.well", "video", gop=4, lengths=(6, 1, 9, 5))
    store.delete_episodes([1])
    convert(store, tmp_path / "b.well", {"action": "zstd"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert content(new) == content(store)
    assert new.verify(deep=True).is_ok


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ({"wrist": "jpeg"}, FeatureNotFoundError, "no feature 'wrist'"),
        ({}, SchemaError, "no features to convert"),
        ({"camera": "gif"}, SchemaError, "feature 'camera': no codec 'gif'"),
        ({"camera": 7}, SchemaError, "feature 'camera': got a int"),
        ({"action": "jpeg"}, SchemaError, "feature 'action': .*cannot store"),
        ({"points": "png"}, SchemaError, "feature 'points': .*cannot store"),
        ({"task": "jpeg"}, SchemaError, "feature 'task': .*cannot store"),
        ({"camera": stepwell.Image((8, 8, 3), codec="jpeg")}, SchemaError, "changes codec and options only"),
        ({"camera": stepwell.Image(SHAPE, "uint16", codec="png")}, SchemaError, "changes codec and options only"),
        ({"task": stepwell.Bytes(codec="zstd")}, SchemaError, "it is text"),
        ({"camera": stepwell.Image(SHAPE, codec="jpeg", quality=0)}, SchemaError, "feature 'camera': option 'quality'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, features, error, message):
    store = record(tmp_path / "a.well")
    with pytest.raises(error, match=message):
        convert(store, tmp_path / "b.well", features, workers=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.well"]


def test_a_target_that_is_there_and_workers_and_episodes_that_cannot_be_are_refused(tmp_path):
    store = record(tmp_path / "a.well")
    with pytest.raises(StoreExistsError):
        convert(store, store.path, {"camera": "png"})
    with pytest.raises(StepwellError, match="workers=-1"):
        convert(store, tmp_path / "b.well", {"camera": "png"}, workers=-1)
    with pytest.raises(EpisodeNotFoundError, match="no episode 4"):
        convert(store, tmp_path / "b.well", {"camera": "png"}, episodes=[4])
    with pytest.raises(SchemaError, match="no features yet"):
        convert(stepwell.create(tmp_path / "none.well"), tmp_path / "b.well", {"camera": "png"})
    assert not (tmp_path / "b.well").exists()


def test_a_store_that_is_being_recorded_is_refused(tmp_path):
    store = record(tmp_path / "a.well")
    with store.writer() as writer:
        writer.append(camera=np.zeros(SHAPE, "uint8"), action=[0, 0], points=np.zeros((0, 3), "f4"), task="")
        store.refresh()
        with pytest.raises(StoreBusyError, match="still being recorded"):
            convert(store, tmp_path / "b.well", {"camera": "png"})
        assert convert(store, tmp_path / "b.well", {"camera": "png"}, episodes=slice(0, 4), workers=1).num_episodes == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_row_is_named_and_nothing_is_left(tmp_path, workers):
    store = record(tmp_path / "a.well", "png")
    file = store.segments[2].path / "camera.bin"
    file.write_bytes(bytes(200) + file.read_bytes()[200:])
    with pytest.raises(WorkerError, match="episode 2 could not be written: DecodeError: feature 'camera', steps 0 to"):
        convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=workers)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.well"]


def test_a_source_that_was_compacted_is_said_to_be(tmp_path, monkeypatch):
    store = record(tmp_path / "a.well")
    other = stepwell.open(store.path)
    other.delete_episodes([1])
    other.compact()
    with pytest.raises(StoreBusyError, match="compacted meanwhile"):
        convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)
    monkeypatch.setattr("stepwell.recorders.recoding._row_bytes", lambda *_: 1)
    with pytest.raises(WorkerError, match=r"episode 1 could not be written: StoreBusyError: .*compacted meanwhile"):
        convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)


def test_a_worker_finds_codecs_of_ones_own_and_one_that_dies_leaves_nothing(tmp_path):
    store = tiny_store(tmp_path / "a.well", segment_bytes=1)
    assert conversion_killing.DeadlyStored.name in codec_names()
    convert(store, tmp_path / "b.well", {"action": "deadly"}, workers=2, episodes=[0, 2])
    convert(tmp_path / "b.well", tmp_path / "d.well", {"action": "raw"}, workers=1)
    modules = [stepwell.open(tmp_path / name).schema["action"].codec_module for name in ("b.well", "d.well")]
    assert modules == ["conversion_killing", None]
    with pytest.raises(WorkerError, match=r"died at item 1 .*SIGKILL"):
        convert(store, tmp_path / "c.well", {"reward": "deadly"}, workers=2, episodes=[0, 1])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.well", "b.well", "d.well"]


class InterruptedBar(NoBar):
    def update(self, amount=1):
        raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_workers_and_leaves_nothing(tmp_path, monkeypatch, workers):
    store = record(tmp_path / "a.well")
    monkeypatch.setattr("stepwell.progress.make_bar", lambda *_, **__: InterruptedBar())
    with pytest.raises(KeyboardInterrupt):
        convert(store, tmp_path / "b.well", {"camera": "png"}, workers=workers)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.well"]


def test_progress_counts_every_step_of_every_converted_feature(tmp_path, monkeypatch):
    store = record(tmp_path / "a.well")
    totals, bar = [], NoBar()
    monkeypatch.setattr("stepwell.progress.make_bar", lambda total, *_, **__: totals.append(total) or bar)
    convert(store, tmp_path / "b.well", {"camera": "png", "action": "zstd"}, workers=1)
    assert totals == [bar.n] == [2 * sum(LENGTHS)]


def test_what_a_killed_writer_left_is_recovered_and_converted(tmp_path):
    script = (
        "import os, sys, stepwell\n"
        "writer = stepwell.create(sys.argv[1], {'x': stepwell.Array(2)}).writer()\n"
        "for t in range(5):\n"
        "    writer.append(x=[t, t])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    warm_children.run([sys.executable, "-c", script, str(tmp_path / "a.well")], check=False)
    convert(tmp_path / "a.well", tmp_path / "b.well", {"x": "zstd"}, workers=1)
    (episode,) = stepwell.open(tmp_path / "b.well")
    assert episode.interrupted
    assert episode["x"][:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_conversion_leaves_no_store_and_the_next_one_cleans_up(tmp_path, workers):
    folder, marks = tmp_path / "stores", tmp_path / "marks"
    marks.mkdir()
    source = tiny_store(folder / "a.well", (20, 20, 20), segment_bytes=1)
    words = [sys.executable, conversion_killing.__file__, str(source.path), str(folder / "b.well"), str(workers)]
    process = warm_children.Popen(words, env={**os.environ, "CONVERSION_MARKS": str(marks)})
    deadline = time.monotonic() + 120
    while len(list(marks.iterdir())) < workers and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    pids = [int(mark.name) for mark in marks.iterdir()]
    assert len(pids) == workers
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, pids))
    left = {entry.name for entry in folder.iterdir()} - {"a.well"}
    assert len(left) == 1
    assert next(iter(left)).startswith(".b.well.")
    convert(source, folder / "b.well", {"action": "zstd"}, workers=1)
    assert {entry.name for entry in folder.iterdir()} == {"a.well", "b.well"}
    assert content(stepwell.open(folder / "b.well")) == content(source)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_conversion_that_may_be_resumed_goes_on_after_a_kill(tmp_path, monkeypatch, workers):
    source = tiny_store(tmp_path / "a.well", (4, 4, 4, 4, 4, 4), segment_bytes=1)
    target, marks = tmp_path / "b.well", tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("CONVERSION_MARKS", str(marks))
    monkeypatch.setattr("stepwell.recorders.recoding.LEAST_CHUNK_BYTES", 1)
    # of a module that is imported: a store remembers which its codec is in
    code = "import conversion_killing, stepwell, sys\nfrom stepwell.recorders import recoding\n"
    code += "recoding.LEAST_CHUNK_BYTES = 1\n"
    code += f"stepwell.convert(*sys.argv[1:], {{'action': 'slowly'}}, resume=True, workers={workers})"
    words = [sys.executable, "-c", code, str(source.path), str(target)]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])})
    deadline = time.monotonic() + 120
    while len(segments_of(target)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = segments_of(target)
    assert 2 <= len(kept) < 6
    with stepwell.open(target, mode="r") as part:
        assert len(part) == len(kept)
    # another conversion is refused: of other episodes, of other codecs
    with pytest.raises(StoreExistsError, match="made of other things"):
        convert(source, target, {"action": "slowly"}, workers=1, resume=True, episodes=slice(0, 5))
    with pytest.raises(StoreExistsError, match="made of other things: feature 'action'"):
        convert(source, target, {"action": "zstd"}, workers=1, resume=True)
    with pytest.raises(StoreExistsError, match="is there already"):
        convert(source, target, {"action": "slowly"}, workers=1)
    report = convert(source, target, {"action": "slowly"}, workers=workers, resume=True)
    assert report.features == convert(source, tmp_path / "c.well", {"action": "slowly"}, workers=1).features
    assert kept.items() <= segments_of(target).items()
    with stepwell.open(target) as resumed:
        assert content(resumed) == content(source)
        assert np.array_equal(resumed.episodes.origin, source.episodes.origin)
    assert not [path for path in target.iterdir() if path.name.startswith("importing")]


def segments_of(store):
    """Return the files of a store's sealed segments, with their times."""
    return {path: path.stat().st_mtime_ns for path in store.glob("segments/*/segment.json")}


def test_a_failure_of_a_conversion_that_may_be_resumed_keeps_what_is_finished(tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.recorders.recoding.LEAST_CHUNK_BYTES", 1)
    store = record(tmp_path / "a.well", "png", segment_bytes=1)
    file = store.segments[2].path / "camera.bin"
    whole = file.read_bytes()
    file.write_bytes(bytes(200) + whole[200:])
    with pytest.raises(WorkerError, match="episode 2 could not be written"):
        convert(store, tmp_path / "b.well", {"camera": "raw"}, workers=1, resume=True)
    with stepwell.open(tmp_path / "b.well", mode="r") as part:
        assert len(part) == 2
    file.write_bytes(whole)
    report = convert(store, tmp_path / "b.well", {"camera": "raw"}, workers=1, resume=True)
    assert report.features == convert(store, tmp_path / "c.well", {"camera": "raw"}, workers=1).features
    assert content(stepwell.open(tmp_path / "b.well")) == content(store)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_full_disk_is_told_as_such_and_the_next_call_goes_on(tmp_path, monkeypatch, resume, is_known):
    monkeypatch.setattr("stepwell.recorders.recoding.LEAST_CHUNK_BYTES", 1)
    store, merge = record(tmp_path / "a.well", segment_bytes=1), Recoding._merge
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "camera.bin")

    def merge_two(self, made, chunk, advance):
        if chunk.ordinal == 2:
            raise disk_error(full, 0, made) if is_known else full
        return merge(self, made, chunk, advance)

    with monkeypatch.context() as patched:
        patched.setattr(Recoding, "_merge", merge_two)
        with pytest.raises(DiskFullError, match="no space left to write") as caught:
            convert(store, tmp_path / "b.well", {"camera": "png"}, workers=0, resume=resume)
        assert caught.value.errno == errno.ENOSPC
        assert ("nothing of it is left" in str(caught.value)) != resume
        assert (tmp_path / "b.well").exists() == resume
    convert(store, tmp_path / "b.well", {"camera": "png"}, workers=0, resume=resume)
    assert content(stepwell.open(tmp_path / "b.well")) == content(store)


def test_a_ring_whose_first_episode_is_cut_is_resumed_with_what_it_shows(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array((), "int64")}, capacity=20, segment_bytes=64)
    with store.writer() as writer:
        for episode in range(5):
            for step in range(7):
                writer.append(x=10 * episode + step)
            writer.end_episode()
    store.refresh()
    shown = [episode["x"].tolist() for episode in store]
    assert len(shown[0]) < 7
    monkeypatch.setattr("stepwell.recorders.recoding.LEAST_CHUNK_BYTES", 1)
    merge = Recoding._merge

    def merge_two(self, made, chunk, advance):
        return merge(self, made, chunk, advance) if chunk.ordinal < 2 else 1 / 0

    with monkeypatch.context() as patched, pytest.raises(WorkerError, match="ZeroDivisionError"):
        patched.setattr(Recoding, "_merge", merge_two)
        convert(store, tmp_path / "b.well", {"x": "zstd"}, workers=1, resume=True)
    with stepwell.open(tmp_path / "b.well", mode="r") as part:
        assert [episode["x"].tolist() for episode in part] == shown[:2]
    convert(store, tmp_path / "b.well", {"x": "zstd"}, workers=1, resume=True)
    assert [episode["x"].tolist() for episode in stepwell.open(tmp_path / "b.well")] == shown


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a process that ended and that nobody waits for is a zombie
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
