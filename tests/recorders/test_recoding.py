import itertools
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

import stepwell
from stepwell.codecs.codec import codec_names, register_codec
from stepwell.errors import (
    EpisodeNotFoundError,
    FeatureNotFoundError,
    SchemaError,
    StepwellError,
    StoreBusyError,
    StoreExistsError,
    WorkerError,
)
from stepwell.recorders.distortion import Distortion
from stepwell.recorders.recoding import convert
from stepwell.schema import Video
from stepwell.testing import tiny_store
from stepwell.testing.codecs import RunningCodec

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
pytest.importorskip("zstandard")

SHAPE = (16, 24, 3)
LOSSLESS = ("raw", "png", "zstd", "delta")
LENGTHS = (5, 1, 8, 3)


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    yield
    assert multiprocessing.active_children() == []


def smooth_images(count, seed):
    """Images that move a little from step to step: [count, 16, 24, 3]."""
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    base = np.stack([y * 8, x * 5, x + y], axis=-1)
    return np.stack([((base + 2 * t + 20 * seed) // 2 % 128 + 40).astype(np.uint8) for t in range(count)])


def record(path, codec="raw", *, segment_bytes=1, lengths=LENGTHS, **options):
    """Return a store with an image, a fixed, a ragged and a text feature; some episodes have a final row."""
    schema = {
        "camera": stepwell.Image(SHAPE, codec=codec, final=True, names=["r", "g", "b"], **options),
        "action": stepwell.Array(2),
        "points": stepwell.Array((None, 3), codec="zstd", final=True),
        "task": stepwell.Text(),
    }
    store = stepwell.create(path, schema, fps=10, metadata={"robot": "arm"}, segment_bytes=segment_bytes)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            rows = length + (number % 2 == 0)
            columns = {
                "camera": smooth_images(rows, number),
                "action": rng.random((length, 2), np.float32),
                "points": [rng.random((t % 3, 3), np.float32) for t in range(rows)],
                "task": [f"task {t}" for t in range(length)],
            }
            writer.add_episode(columns, terminated=number == 0, truncated=number == 1, number=number)
    return store


def content(store, *, without=()):
    """Return all that a person can see of a store's episodes, as bytes and plain values."""
    return [
        {
            "ends": (episode.length, episode.has_final, episode.terminated, episode.truncated, episode.interrupted),
            "metadata": episode.metadata,
            **{name: plain(episode[name]) for name in store.schema if name not in without},
        }
        for episode in store
    ]


def plain(column):
    if isinstance(column, np.ndarray):
        return column.shape, column.tobytes()
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in column]


def files_of(store):
    """Every byte of the store's segments, by the file's path."""
    return {
        str(file.relative_to(store.path)): file.read_bytes()
        for segment in store.segments
        for file in sorted(segment.path.iterdir())
    }


def blobs_of(store, name):
    """Return a feature's encoded rows, segment after segment."""
    return b"".join((segment.path / f"{name}.bin").read_bytes() for segment in store.segments)


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations((*LOSSLESS, "jpeg"), 2)))
def test_a_feature_is_converted_between_any_two_codecs(tmp_path, before, after):
    store = record(tmp_path / "a.well", before)
    report = convert(store, tmp_path / "b.well", {"camera": after}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert new.schema["camera"] == stepwell.Image(SHAPE, codec=after, final=True, names=["r", "g", "b"])
    assert content(new, without=["camera"]) == content(store, without=["camera"])
    distortion = report.features["camera"].distortion
    assert distortion.num_rows == sum(LENGTHS) + 2
    if after in LOSSLESS:
        assert content(new) == content(store)
        assert report.features["camera"].psnr_db == math.inf
    else:
        assert [plain(e["camera"])[0] for e in new] == [plain(e["camera"])[0] for e in store]
        assert report.features["camera"].psnr_db > 30
    assert new.verify(deep=True).is_ok


def test_psnr_is_that_of_the_decoded_rows_and_the_worst_one_is_named(tmp_path):
    store = record(tmp_path / "a.well", lengths=(4, 3))
    noisy = np.random.default_rng(0).integers(0, 256, (3, *SHAPE), dtype=np.uint8)
    with store.writer() as writer:
        images = smooth_images(3, 9)
        images[1] = noisy[1]
        points = [np.zeros((0, 3), np.float32)] * 3
        writer.add_episode({"camera": images, "action": np.zeros((3, 2), "f4"), "points": points, "task": [""] * 3})
    wanted = stepwell.Image(SHAPE, codec="jpeg", quality=60)
    report = convert(store, tmp_path / "b.well", {"camera": wanted}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    pairs = [(e["camera"].astype(float), n["camera"].astype(float)) for e, n in zip(store, new, strict=True)]
    errors = [np.square(before - after).mean(axis=(1, 2, 3)) for before, after in pairs]
    found = report.features["camera"]
    assert found.psnr_db == pytest.approx(10 * np.log10(255**2 / np.concatenate(errors).mean()))
    assert found.worst_psnr_db == pytest.approx(10 * np.log10(255**2 / np.concatenate(errors).max()))
    assert found.worst_at == (2, 1)


def test_bytes_before_and_after_are_those_of_the_rows(tmp_path):
    store = record(tmp_path / "a.well")
    report = convert(store, tmp_path / "b.well", {"camera": "png"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    num_rows = sum(LENGTHS) + 2
    camera, action = report.features["camera"], report.features["action"]
    assert camera.bytes_before == num_rows * math.prod(SHAPE)
    assert camera.bytes_after == 8 * num_rows + len(blobs_of(new, "camera"))
    assert camera.ratio == camera.bytes_before / camera.bytes_after
    assert (action.bytes_before, action.bytes_after, action.psnr_db) == (8 * num_rows, 8 * num_rows, None)
    assert report.bytes_before == sum(feature.bytes_before for feature in report.features.values())


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


def test_text_and_ragged_features_are_converted_too(tmp_path):
    store = record(tmp_path / "a.well")
    report = convert(store, tmp_path / "b.well", {"task": "zstd", "points": "raw"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert content(new) == content(store)
    assert (new.schema["task"].codec, new.schema["points"].codec) == ("zstd", "raw")
    assert report.features["task"].psnr_db == math.inf


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
    monkeypatch.setattr("stepwell.recorders.recoding_chunks.LEAST_CHUNK_BYTES", 7 * math.prod(SHAPE))
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


def test_long_episodes_are_read_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", 4 * math.prod(SHAPE))
    monkeypatch.setattr("stepwell.recorders.row_sinks.BATCH_BYTES", 4 * math.prod(SHAPE))
    reads = []
    read = stepwell.store.Segment.read_rows
    monkeypatch.setattr(
        stepwell.store.Segment,
        "read_rows",
        lambda self, name, start, stop: reads.append(stop - start) or read(self, name, start, stop),
    )
    store = record(tmp_path / "a.well", lengths=(30, 7))
    convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)
    assert max(reads) == 4
    assert sum(reads) == 30 + 1 + 7
    monkeypatch.undo()
    convert(store, tmp_path / "c.well", {"camera": "jpeg"}, workers=1)
    assert files_of(stepwell.open(tmp_path / "b.well")) == files_of(stepwell.open(tmp_path / "c.well"))


@pytest.mark.parametrize("gop", [1, 3, 50])
@pytest.mark.parametrize("final", ["raw", "jpeg", "delta"])
def test_images_become_video_and_video_becomes_images(tmp_path, gop, final):
    pytest.importorskip("av")
    store = record(tmp_path / "a.well", segment_bytes=256 << 20)
    video = Video(SHAPE, crf=10, gop=gop)
    report = convert(store, tmp_path / "b.well", {"camera": video}, workers=1)
    videos = stepwell.open(tmp_path / "b.well")
    assert content(videos, without=["camera"]) == content(store, without=["camera"])
    assert report.features["camera"].distortion.num_rows == sum(LENGTHS) + 2
    assert report.features["camera"].psnr_db == pytest.approx(psnr_of(store, videos), abs=0.01)
    assert report.features["camera"].psnr_db > 30
    report = convert(videos, tmp_path / "c.well", {"camera": final}, workers=1)
    images = stepwell.open(tmp_path / "c.well")
    assert images.schema["camera"].codec == final
    if final == "jpeg":
        assert report.features["camera"].psnr_db == pytest.approx(psnr_of(videos, images), abs=0.01)
    else:
        assert content(images) == content(videos)


def psnr_of(store, other):
    """PSNR over all images of two stores."""
    pairs = zip(store, other, strict=True)
    errors = [np.square(np.subtract(a["camera"], b["camera"], dtype=float)).reshape(-1) for a, b in pairs]
    return 10 * np.log10(255**2 / np.concatenate(errors).mean())


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


def test_damaged_video_is_named_by_its_steps(tmp_path):
    pytest.importorskip("av")
    store = record(tmp_path / "a.well", "video", gop=4, lengths=(6, 9))
    segment = store.segments[1]
    offsets = segment.offsets_map("camera").astype(int)
    file = segment.path / "camera.bin"
    data = bytearray(file.read_bytes())
    data[offsets[5] : offsets[6]] = bytes(offsets[6] - offsets[5])
    file.write_bytes(data)
    with pytest.raises(
        WorkerError, match=r"episode 1 could not be written: DecodeError: feature 'camera', steps 0 to 8"
    ):
        convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)
    assert not (tmp_path / "b.well").exists()


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("run", [1, 4, 1000])
@pytest.mark.parametrize("batch_rows", [3, 1000])
def test_rows_that_need_rows_before_them_come_back_and_are_compared(tmp_path, monkeypatch, lag, run, batch_rows):
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", batch_rows * math.prod(SHAPE))
    monkeypatch.setattr("stepwell.recorders.row_sinks.BATCH_BYTES", batch_rows * math.prod(SHAPE))
    store = record(tmp_path / "a.well", segment_bytes=256 << 20, lengths=(5, 1, 21))
    running = stepwell.Image(SHAPE, codec="running", run=run, lag=lag)
    report = convert(store, tmp_path / "b.well", {"camera": running}, workers=1)
    assert content(stepwell.open(tmp_path / "b.well")) == content(store)
    assert report.features["camera"].distortion == Distortion(5 + 1 + 1 + 21 + 1)
    convert(tmp_path / "b.well", tmp_path / "c.well", {"camera": "raw"}, workers=1)
    assert content(stepwell.open(tmp_path / "c.well")) == content(store)


class LossyCodec(RunningCodec):
    """Loses the lowest bit of every row after the first of a run."""

    name = "lossy-running"

    def decode_run(self, blobs, wanted, outs, size=None):
        super().decode_run(blobs, wanted, outs, size)
        for place, out in zip(wanted, outs, strict=True):
            if place:
                np.bitwise_xor(out, 1, out=out)


register_codec(LossyCodec)


@pytest.mark.parametrize("lag", [0, 2])
def test_what_a_run_loses_is_told_of_the_right_steps(tmp_path, lag):
    store = record(tmp_path / "a.well", lengths=(1, 4, 1), segment_bytes=256 << 20)
    lossy = stepwell.Image(SHAPE, codec="lossy-running", run=3, lag=lag)
    found = convert(store, tmp_path / "b.well", {"camera": lossy}, workers=1).features["camera"]
    # of eight rows four are not the first of a run: two final ones, and steps 1 and 2 of episode 1
    assert found.psnr_db == pytest.approx(10 * np.log10(255**2 / (4 / 8)))
    assert found.worst_at == (0, 1)


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
    monkeypatch.setattr("stepwell.recorders.recoding_chunks._row_bytes", lambda *_: 1)
    with pytest.raises(WorkerError, match=r"episode 1 could not be written: StoreBusyError: .*compacted meanwhile"):
        convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)


def test_a_worker_finds_codecs_of_ones_own_and_one_that_dies_leaves_nothing(tmp_path):
    store = tiny_store(tmp_path / "a.well", segment_bytes=1)
    assert conversion_killing.DeadlyStored.name in codec_names()
    convert(store, tmp_path / "b.well", {"action": "deadly"}, workers=2, episodes=[0, 2])
    with pytest.raises(WorkerError, match=r"died at item 1 .*SIGKILL"):
        convert(store, tmp_path / "c.well", {"reward": "deadly"}, workers=2, episodes=[0, 1])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.well", "b.well"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_conversion_leaves_no_store_and_the_next_one_cleans_up(tmp_path, workers):
    folder, marks = tmp_path / "stores", tmp_path / "marks"
    marks.mkdir()
    source = tiny_store(folder / "a.well", (20, 20, 20), segment_bytes=1)
    words = [sys.executable, conversion_killing.__file__, str(source.path), str(folder / "b.well"), str(workers)]
    process = subprocess.Popen(words, env={**os.environ, "CONVERSION_MARKS": str(marks)})
    deadline = time.monotonic() + 60
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


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a process that ended and that nobody waits for is a zombie
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
