"""LeRobot datasets of the hub become stores while they are fetched: no file is there for longer than it is needed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import warm_children

pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")
pytest.importorskip("imagecodecs")
pytest.importorskip("av")

import stepwell
from stepwell import convert
from stepwell.errors import DatasetNotFoundError, WorkerError
from stepwell.formats import open_reader
from stepwell.lerobot.reader import FetchedFiles
from stepwell.recorders.resuming import read_plan
from stepwell.testing.hub import HubServer
from stepwell.testing.lerobot import tiny_lerobot

CAMERAS = {"observation.images.top": ("png", (32, 48)), "observation.images.side": ("video", (16, 16))}
ADDRESS = "lerobot://me/tiny"


@pytest.fixture
def root(tmp_path):
    return tiny_lerobot(tmp_path / "set", cameras=CAMERAS, episodes=8, files=4)


@pytest.fixture
def hub(root, tmp_path, monkeypatch):
    with HubServer({"me/tiny": {"main": root, "v3.0": root}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def blobs(store):
    return {(s.name, f.name): f.read_bytes() for s in store.segments for f in s.path.iterdir() if f.suffix == ".bin"}


def converted(source, target, **options):
    convert(source, target, **{"workers": 0, **options})
    return stepwell.open(target)


def file_names(server):
    return [name for name in server.files if not name.startswith("meta/")]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_the_same_store_as_of_the_directory(workers, hub, root, tmp_path):
    store = converted(ADDRESS, tmp_path / "x.well", workers=workers, cache_dir=str(tmp_path / "cache"))
    local = converted(root, tmp_path / "y.well")
    assert blobs(store) == blobs(local)
    for ours, theirs in zip(store, local, strict=True):
        np.testing.assert_array_equal(ours["action"], theirs["action"])
        assert ours.metadata == theirs.metadata
    told = store.metadata["lerobot"]
    assert (told["repo_id"], told["revision"]) == ("me/tiny", "v3.0")
    names = file_names(hub)
    assert len(names) == len(set(names)) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "set", "x.well", "y.well"]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".mp4"]


def test_no_more_than_the_files_of_an_episode_are_there_at_once(hub, root, tmp_path, monkeypatch):
    most = []
    need = FetchedFiles.need

    def measured(self, name):
        need(self, name)
        names = [path.relative_to(self._directory).as_posix() for path in self._directory.rglob("*.*")]
        most.append(len([name for name in names if not name.startswith(".") and "file-" in name]))

    monkeypatch.setattr(FetchedFiles, "need", measured)
    converted(ADDRESS, tmp_path / "x.well", cache_dir=str(tmp_path / "cache"))
    assert len(most) >= 8
    # a parquet file and an mp4 file; they are not cut at the same episodes
    assert max(most) <= 2


def test_only_the_files_of_chosen_episodes_are_fetched(hub, root, tmp_path):
    store = converted(f"{ADDRESS}?episodes=2:4", tmp_path / "x.well", cache_dir=str(tmp_path / "cache"))
    assert [episode.metadata["lerobot_episode"] for episode in store] == [2, 3]
    names = set(file_names(hub))
    assert names and names < {path.relative_to(root).as_posix() for path in root.rglob("*.*") if path.is_file()}
    assert len(names) <= 3


def test_what_the_cache_has_is_not_fetched_and_stays(hub, root, tmp_path):
    reader = open_reader(ADDRESS, options={"cache_dir": str(tmp_path / "cache")})
    # without an import beside a target files go to the cache of the hub
    assert sum(len(episode.columns["action"]) for episode in reader.episodes()) > 0
    hub.requests.clear()
    store = converted(ADDRESS, tmp_path / "x.well", cache_dir=str(tmp_path / "cache"))
    assert file_names(hub) == [] and len(store) == 8
    assert len([path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".mp4"]) == 4


def test_a_reader_can_be_used_again_after_an_import(hub, root, tmp_path):
    reader = open_reader(ADDRESS, options={"cache_dir": str(tmp_path / "cache")})
    first = blobs(converted(reader, tmp_path / "x.well"))
    assert blobs(converted(reader, tmp_path / "y.well")) == first
    assert reader.scratch is None
    assert len(reader[7].columns["action"]) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "set", "x.well", "y.well"]


def test_a_hub_that_fails_leaves_what_is_finished(hub, root, tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.lerobot.hub.ANSWER_SECONDS", 1.0)
    need = FetchedFiles.need

    def failing(self, name):
        if name == "data/chunk-000/file-002.parquet":
            raise OSError("connection lost")
        need(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(FetchedFiles, "need", failing)
        with pytest.raises(WorkerError, match="episode 4 of lerobot://me/tiny cannot be read: connection lost"):
            converted(ADDRESS, tmp_path / "x.well", cache_dir=str(tmp_path / "cache"))
    assert len(stepwell.open(tmp_path / "x.well")) == 4
    assert not list(tmp_path.glob(".*"))
    hub.requests.clear()
    store = converted(ADDRESS, tmp_path / "x.well", cache_dir=str(tmp_path / "cache"))
    assert blobs(store) == blobs(converted(root, tmp_path / "y.well"))
    assert not any("file-000" in name for name in file_names(hub) if name.endswith(".mp4"))


@pytest.mark.parametrize("num_done", [1, 3])
def test_a_kill_and_the_same_command_again_make_the_same_store(num_done, hub, root, tmp_path):
    target = tmp_path / "x.well"
    words = [sys.executable, "-m", "stepwell", "convert", ADDRESS, str(target), "--workers", "1"]
    # read before huggingface_hub is imported, unlike HF_ENDPOINT
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    process = warm_children.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and len(list(target.glob("segments/*-????"))) < num_done:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if read_plan(target) is None:
        pytest.skip("it was done before it was killed")
    hub.requests.clear()
    assert warm_children.run(words, env=environment, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert blobs(stepwell.open(target)) == blobs(converted(root, tmp_path / "y.well"))
    assert len(file_names(hub)) <= 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "set", "x.well", "y.well"]


def test_what_is_not_on_the_hub_is_said(hub, tmp_path):
    with pytest.raises(DatasetNotFoundError):
        converted("lerobot://me/nothing", tmp_path / "x.well", cache_dir=str(tmp_path / "cache"))
    assert not (tmp_path / "x.well").exists()
