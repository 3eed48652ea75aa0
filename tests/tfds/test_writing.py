"""Stores as RLDS and TFDS datasets: what is written reads back equal, whole or not at all, the same bytes each time."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell import Array, Image, Text, View, convert
from stepwell.errors import (
    DiskFullError,
    EpisodeNotFoundError,
    MissingDependencyError,
    SchemaError,
    StepwellError,
    StoreBusyError,
    StoreExistsError,
    WorkerError,
)
from stepwell.testing import tiny_store
from stepwell.tfds import write_rlds, write_tfds, writing

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared RLDS sets are not beside this checkout")
QUIET = {"workers": 1, "progress": False}
SCHEMA = {
    "observation.state": Array(3, final=True),
    "action": Array(2, "float64"),
    "phase": Array((), "int64"),
    "points": Array((None, 2)),
    "task": Text(),
    "pixels": Array((2, 2), "uint8"),
}


@pytest.fixture
def store(tmp_path):
    """Return a store of three episodes, one of them with a final observation."""
    rng = np.random.default_rng(0)
    store = stepwell.create(tmp_path / "source.well", SCHEMA)
    with store.writer() as writer:
        for number, length in enumerate((4, 1, 6)):
            columns = {
                "observation.state": rng.normal(size=(length + (number == 2), 3)).astype("f4"),
                "action": rng.normal(size=(length, 2)),
                "phase": rng.integers(0, 2, length),
                "points": [rng.normal(size=(step % 3, 2)).astype("f4") for step in range(length)],
                "task": ["hé" * step for step in range(length)],
                "pixels": rng.integers(0, 256, (length, 2, 2), "u1"),
            }
            writer.add_episode(columns, terminated=number != 1, seed=number, scale=0.1 * number, name=f"é{number}")
    store.refresh()
    return store


def imported(path, target, **options):
    convert(str(path), target, workers=1, progress=False, **options)
    return stepwell.open(target, mode="r")


def assert_same(found, expected, names=None):
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert (got.length, got.terminated, got.truncated) == (want.length, want.terminated, want.truncated)
        assert got.metadata == want.metadata
        for name in names or want:
            for here, there in zip(got[name], want[name], strict=True):
                np.testing.assert_array_equal(here, there, err_msg=name)
                assert np.asarray(here).dtype == np.asarray(there).dtype


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_episodes_read_back_with_values_ends_and_metadata(store, tmp_path, file_format):
    if file_format == "array_record":
        pytest.importorskip("array_record")
    path = write_rlds(store, tmp_path / "out", name="arm", file_format=file_format, num_shards=2, **QUIET)
    assert path == tmp_path / "out" / "arm" / "1.0.0"
    found = imported(path, tmp_path / "found.well")
    assert len(found) == 3
    for got, want in zip(found, store, strict=True):
        count = want.length + want.has_final
        assert (got.length, got.terminated, got.metadata) == (count, want.terminated, want.metadata)
        np.testing.assert_array_equal(got["observation.state"], want["observation.state"])
        for name in ("action", "phase", "pixels", "task"):
            np.testing.assert_array_equal(got[name][: want.length], want[name])
        for here, there in zip(got["points"], want["points"], strict=False):
            np.testing.assert_array_equal(here, there)
    # the last step of an episode with a final observation has zeros for what it lacks
    last = found[2]
    assert not last["action"][-1].any()
    assert (last["task"][-1], len(last["points"][-1])) == ("", 0)


@needs_data
@pytest.mark.parametrize("name", ["tfrecord/mini_rlds", "array_record/mini_rlds", "tfrecord_3shards/mini_rlds_sharded"])
def test_what_tfds_wrote_is_the_same_after_another_round(name, tmp_path):
    pytest.importorskip("simplejpeg")
    if name.startswith("array"):
        pytest.importorskip("array_record")
    first = imported(DATA / "rlds" / name, tmp_path / "first.well")
    path = write_rlds(first, tmp_path / "out", name="again", num_shards=2, **QUIET)
    second = imported(path, tmp_path / "second.well")
    assert sorted(second.schema.items()) == sorted(first.schema.items())
    assert_same(second, first)
    assert second.metadata["tfds"]["labels"] == first.metadata["tfds"]["labels"]


@needs_data
def test_what_is_read_in_place_is_written_without_being_imported(tmp_path, monkeypatch):
    pytest.importorskip("simplejpeg")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    source = DATA / "rlds" / "tfrecord" / "mini_rlds"
    with stepwell.open(f"tfds://{source}") as placed:
        path = write_rlds(placed, tmp_path / "out", name="again", **QUIET)
    assert_same(imported(path, tmp_path / "found.well"), imported(source, tmp_path / "first.well"))


@needs_data
def test_samples_are_the_same_after_another_round(tmp_path):
    pytest.importorskip("simplejpeg")
    first = imported(DATA / "tfds_images" / "tfrecord" / "mini_images", tmp_path / "first.well")
    path = write_tfds(first, tmp_path / "out", name="again", num_shards=3, **QUIET)
    second = imported(path, tmp_path / "second.well")
    assert_same(second, first)
    assert second.metadata["tfds"]["labels"] == first.metadata["tfds"]["labels"]


def test_files_of_images_go_over_as_they_are(tmp_path):
    pytest.importorskip("simplejpeg")
    schema = {"image": Image((24, 32, 3), codec="jpeg"), "action": Array(2)}
    source = tiny_store(tmp_path / "source.well", schema=schema)
    path = write_rlds(source, tmp_path / "out", name="arm", **QUIET)
    found = imported(path, tmp_path / "found.well")
    assert found.schema["image"].codec == "jpeg"
    blobs = [segment.blob_map("image").tobytes() for one in (source, found) for segment in one.segments]
    assert blobs[0] == blobs[1]


def test_splits_are_written_beside_each_other_of_views(store, tmp_path):
    views = {"train": View(store).select([0, 2]), "val": View(store).select([1])}
    path = write_rlds(views, tmp_path / "out", name="arm", config="wide", version="2.0.0", **QUIET)
    assert path == tmp_path / "out" / "arm" / "wide" / "2.0.0"
    told = {
        split["name"]: split["shardLengths"] for split in json.loads((path / "dataset_info.json").read_text())["splits"]
    }
    assert told == {"train": ["2"], "val": ["1"]}
    both = imported(path, tmp_path / "both.well", split="val+train")
    assert [episode.metadata["seed"] for episode in both] == [1, 0, 2]
    assert {episode.metadata["tfds_split"] for episode in both} == {"train", "val"}
    again = write_rlds(both, tmp_path / "again", name="arm", **QUIET)
    assert "tfds_split" not in (again / "features.json").read_text()


def test_features_names_and_classes_are_chosen(store, tmp_path):
    path = write_rlds(
        store,
        tmp_path / "out",
        name="arm",
        features=["phase", "action"],
        rename={"action": "action.arm"},
        metadata=["seed"],
        labels={"phase": ["open", "closed"], "episode_metadata.seed": ["a", "b", "c"]},
        encodings="zlib",
        description="Two of them.",
        **QUIET,
    )
    found = imported(path, tmp_path / "found.well")
    assert [name for name in found.schema if "is_" not in name] == ["action.arm", "phase"]
    labels = {"steps/phase": ["open", "closed"], "episode_metadata/seed": ["a", "b", "c"]}
    assert found.metadata["tfds"]["labels"] == labels
    assert [episode.metadata for episode in found] == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    assert json.loads((path / "dataset_info.json").read_text())["description"] == "Two of them."


def test_the_size_of_files_is_about_what_is_asked_for(tmp_path):
    source = tiny_store(tmp_path / "source.well", [20] * 40)
    path = write_rlds(source, tmp_path / "out", name="arm", features=["action"], shard_bytes="4 KiB", **QUIET)
    sizes = [file.stat().st_size for file in path.glob("*tfrecord*")]
    assert len(sizes) > 3
    assert 2048 < np.mean(sizes) < 8192


def test_every_number_of_processes_writes_the_same_files(store, tmp_path):
    for workers in (1, 2):
        write_rlds(store, tmp_path / str(workers), name="arm", num_shards=3, workers=workers, progress=False)
    one, two = (sorted((tmp_path / str(workers) / "arm" / "1.0.0").iterdir()) for workers in (1, 2))
    assert [file.name for file in one] == [file.name for file in two]
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_what_is_there_is_not_touched(store, tmp_path):
    path = write_rlds(store, tmp_path, name="arm", **QUIET)
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    with pytest.raises(StoreExistsError, match=r"arm/1\.0\.0 is there already"):
        write_rlds(store, tmp_path, name="arm", **QUIET)
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before
    write_rlds(store, tmp_path, name="arm", version="1.0.1", **QUIET)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "My Arm"}, StepwellError, r"name='My Arm'. Allowed: lower-case"),
        ({"split": "all"}, StepwellError, r"split='all'. Allowed: "),
        ({"split": "train[:3]"}, StepwellError, r"split='train\[:3\]'. Allowed: "),
        ({"file_format": "riegeli"}, StepwellError, r"file_format='riegeli'. Allowed: 'tfrecord', 'array_record'"),
        ({"num_shards": 0}, StepwellError, r"num_shards=0. Allowed: 1 and more"),
        ({"num_shards": 4}, StepwellError, r"num_shards=4 of 3 episodes. Allowed: up to one an episode"),
        ({"shard_bytes": "many"}, StepwellError, r"shard_bytes='many'"),
        ({"workers": -1}, StepwellError, r"workers=-1"),
        ({"rename": {"phase": "action"}}, SchemaError, r"'action' is there twice"),
        ({"rename": {"phase": "action.x"}}, SchemaError, r"lies in 'action', which is a feature itself"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(store, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        write_rlds(store, tmp_path / "out", **{"name": "arm", **QUIET, **options})
    assert not list((tmp_path / "out").rglob("*.*record*"))


def test_without_array_record_the_pip_line_is_told_before_anything_is_written(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[tfds\]"):
        write_rlds(store, tmp_path / "out", name="arm", file_format="array_record", **QUIET)
    assert not (tmp_path / "out").exists()


def test_splits_of_other_features_are_refused_unless_equal_ones_are_chosen(store, tmp_path):
    other = stepwell.create(tmp_path / "other.well", {"action": Array(2, "float64")})
    with other.writer() as writer:
        writer.add_episode({"action": np.zeros((3, 2))})
    other.refresh()
    splits = {"train": store, "val": other}
    with pytest.raises(SchemaError, match=r"split 'val' has other features"):
        write_rlds(splits, tmp_path / "out", name="arm", **QUIET)
    write_rlds(splits, tmp_path / "out", name="arm", features=["action"], **QUIET)


def test_no_episodes_and_open_ones_are_refused(store, tmp_path):
    with pytest.raises(EpisodeNotFoundError, match=r"split 'train' has no episode"):
        write_rlds(View(store).select([]), tmp_path / "out", name="arm", **QUIET)
    with pytest.raises(EpisodeNotFoundError, match=r"no splits"):
        write_rlds({}, tmp_path / "out", name="arm", **QUIET)
    growing = stepwell.create(tmp_path / "growing.well", {"x": Array()})
    with growing.writer() as writer:
        writer.append({"x": 1.0})
        growing.refresh()
        with pytest.raises(StoreBusyError, match=r"episode 0 is still being recorded"):
            write_rlds(growing, tmp_path / "out", name="arm", **QUIET)


def refuse(path, records, file_format):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def on_a_full_disk(state):
    writing.write_records = refuse
    job = object.__new__(writing.ShardJob)
    job.__dict__.update(state)
    return job


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_told_as_such_and_leaves_nothing(store, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(writing, "write_records", refuse)
    # another process has no patches: it makes them when it is sent the job
    monkeypatch.setattr(writing.ShardJob, "__reduce__", lambda job: (on_a_full_disk, (job.__getstate__(),)))
    with pytest.raises(DiskFullError, match=r"no space left"):
        write_rlds(store, tmp_path / "out", name="arm", num_shards=2, workers=workers, progress=False)
    assert not list((tmp_path / "out").rglob("*.*"))


def test_a_damaged_row_is_told_by_a_worker_with_its_episode(tmp_path):
    pytest.importorskip("imagecodecs")
    source = tiny_store(tmp_path / "source.well", schema={"image": Image((16, 16, 3), codec="zstd"), "a": Array()})
    (segment,) = source.segments
    file = segment.path / "image.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    file.write_bytes(data)
    opened = stepwell.open(source.path, mode="r")
    with pytest.raises(WorkerError, match=r"source\.well: episode \d, step"):
        write_rlds(opened, tmp_path / "out", name="arm", num_shards=2, workers=2, progress=False)
    assert not list((tmp_path / "out").rglob("*record*"))


KILLED = """
import sys, time
from stepwell.tfds import writing, write_rlds
write = writing.write_records
def slowly(path, records, file_format):
    print("begun", flush=True)
    time.sleep(30)
    return write(path, records, file_format)
writing.write_records = slowly
write_rlds(sys.argv[1], sys.argv[2], name="arm", workers=1, progress=False)
"""


def test_a_killed_writer_leaves_nothing_that_looks_whole_and_the_next_one_clears_up(store, tmp_path):
    command = [sys.executable, "-c", KILLED, str(store.path), str(tmp_path / "out")]
    with warm_children.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGKILL)
    folder = tmp_path / "out" / "arm"
    assert [file.name.startswith(".1.0.0.") for file in folder.iterdir()] == [True]
    write_rlds(store, tmp_path / "out", name="arm", **QUIET)
    assert [file.name for file in folder.iterdir()] == ["1.0.0"]


def test_a_store_is_given_by_its_path_too(store, tmp_path):
    path = write_rlds(store.path, tmp_path / "out", name="arm", **QUIET)
    assert len(imported(path, tmp_path / "found.well")) == 3
