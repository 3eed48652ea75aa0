"""Episodes appended to a dataset of v3.0, by whomever it was written; and what a kill leaves of it."""

import json
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import warm_children

pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")

from stepwell.errors import FormatError, SchemaError, StoreBusyError
from stepwell.lerobot import appending, statistics_of, write_dataset
from stepwell.lerobot.appending import finish_append, staged_append
from stepwell.lerobot.metadata import Metadata
from stepwell.testing.lerobot import tiny_lerobot
from stepwell.windows import View

from .written import H264, make_store, read_frames, read_info, read_tables

NAMES = ["action", "next.done", "grid", "note", "camera.png", "camera.video"]
EPISODES = "meta/episodes/*/*.parquet"
STAGE = ".stepwell-append"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("store") / "a.well", (5, 3, 8, 4), names=NAMES)


@pytest.fixture(scope="module")
def half(store, tmp_path_factory):
    root = tmp_path_factory.mktemp("half") / "set"
    write_dataset(View(store).select([0, 1]), root, video=H264)
    return root


@pytest.fixture
def root(half, tmp_path):
    return Path(shutil.copytree(half, tmp_path / "set"))


def rest_of(store):
    return View(store).select([2, 3])


def assert_whole(root, store):
    """Check that a dataset holds all episodes of the store."""
    table = read_tables(root)
    assert table["index"].to_pylist() == list(range(20))
    expected = np.concatenate([store[e]["action"] for e in range(4)])
    assert np.array_equal(np.array(table["action"].to_pylist(), np.float32), expected)
    rows = read_tables(root, EPISODES).to_pylist()
    assert [row["episode_index"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert np.array_equal(read_frames(root, "camera.video", row), store[row["episode_index"]]["camera.video"])


def test_appended_episodes_follow_in_files_of_their_own(store, root):
    before = {path: path.read_bytes() for path in [*root.glob("data/*/*"), *root.glob("videos/*/*/*")]}
    metadata = write_dataset(rest_of(store), root, append=True)
    assert metadata.episodes.data_file.tolist() == [0, 0, 1, 1]
    assert metadata.episodes.videos["camera.video"].file.tolist() == [0, 0, 1, 1]
    assert (metadata.info.total_episodes, metadata.info.total_frames) == (4, 20)
    assert metadata.info.raw["splits"] == {"train": "0:4"}
    assert {path: path.read_bytes() for path in before} == before
    assert_whole(root, store)
    assert not (root / STAGE).exists()


def test_appended_statistics_are_those_of_the_whole(store, root):
    write_dataset(rest_of(store), root, append=True)
    stored = Metadata.load(root).stats
    for name, stats in statistics_of(store).items():
        for key, value in stats.items():
            np.testing.assert_allclose(stored[name][key], value, rtol=1e-9, err_msg=f"{name} {key}")


@pytest.mark.parametrize("change", ["gone", "other counts", "other means"])
def test_statistics_that_others_changed_since_are_computed_again(store, root, change):
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    if change == "gone":
        (root / "meta/statistics.npz").unlink()
    elif change == "other counts":
        stats["action"]["count"] = [7]
    else:
        stats["camera.video"]["mean"] = [[[0.5]], [[0.5]], [[0.5]]]
    path.write_text(json.dumps(stats))
    write_dataset(rest_of(store), root, append=True)
    stored = Metadata.load(root).stats
    for name, expected in statistics_of(store).items():
        np.testing.assert_allclose(stored[name]["std"], expected["std"], rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(stored[name]["q90"], expected["q90"], rtol=1e-9, err_msg=name)


def test_tasks_keep_their_numbers_and_new_ones_follow(store, root, tmp_path):
    other = make_store(tmp_path / "b.well", (2, 2), names=NAMES, first=7, task="a new task")
    metadata = write_dataset(other, root, append=True)
    assert metadata.tasks == ("task 0", "task 1", "a new task")
    assert read_tables(root)["task_index"].to_pylist()[8:] == [2, 2, 2, 2]
    assert write_dataset(rest_of(store), root, append=True).tasks == metadata.tasks


def test_files_go_on_in_the_next_directory(store, tmp_path):
    write_dataset(View(store).select([0]), tmp_path / "set", video=H264)
    info = read_info(tmp_path / "set") | {"chunks_size": 1}
    (tmp_path / "set/meta/info.json").write_text(json.dumps(info))
    metadata = write_dataset(View(store).select([1, 2]), tmp_path / "set", append=True)
    assert metadata.episodes.data_chunk.tolist() == [0, 1, 1]
    assert metadata.episodes.data_file.tolist() == [0, 0, 0]


def test_a_dataset_of_another_writer_is_appended_to(tmp_path):
    from stepwell.lerobot.in_place import open_in_place

    cameras = {"observation.images.top": ("png", (32, 48)), "observation.images.side": ("video", (32, 48))}
    root = tiny_lerobot(tmp_path / "set", cameras=cameras, lengths=[4, 5])
    other = tiny_lerobot(tmp_path / "other", cameras=cameras, lengths=[3, 6], seed=1)
    with open_in_place(other, cache=tmp_path / "cache") as source:
        write_dataset(source, root, append=True)
        with open_in_place(root, cache=tmp_path / "cache") as whole:
            assert [episode.length for episode in whole] == [4, 5, 3, 6]
            for episode in (0, 1):
                for name in ("action", "observation.images.top", "observation.images.side", "observation.grid"):
                    assert np.array_equal(whole[2 + episode][name], source[episode][name])
            stored = Metadata.load(root).stats
            for name, stats in statistics_of(whole, per_element=True).items():
                for key in ("mean", "std", "count", "q50"):
                    np.testing.assert_allclose(np.ravel(stored[name][key]), stats[key].ravel(), rtol=1e-6)


def test_what_is_not_there_is_made(store, tmp_path):
    assert len(write_dataset(store, tmp_path / "set", append=True, video=H264).episodes) == 4


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"features": NAMES[:-1]}, r"'camera.video' is video \[48, 64, 3\] .* and nothing in"),
        ({"rename": {"action": "control"}}, r"'action' is float32 \[2\].*and nothing in"),
        ({"fps": 20}, "has 10 fps, what is to be appended 20"),
    ],
)
def test_other_features_and_rates_are_refused_and_leave_nothing(store, root, options, what):
    with pytest.raises(SchemaError, match=what):
        write_dataset(rest_of(store), root, append=True, **options)
    assert not (root / STAGE).exists()
    assert len(Metadata.load(root).episodes) == 2


def test_v21_is_not_appended_to(store, tmp_path):
    write_dataset(View(store).select([0]), tmp_path / "set", version="v2.1", video=H264)
    with pytest.raises(FormatError, match=r"is a LeRobot dataset of v2\.1"):
        write_dataset(rest_of(store), tmp_path / "set", append=True)


def _forget_an_episode(root, info):
    return info | {"total_episodes": 1, "total_frames": 5}


def _miscount(root, info):
    return info | {"total_frames": 9}


def _lose_a_file(root, info):
    (root / "data/chunk-000/file-000.parquet").unlink()
    return info


def _move_the_files(root, info):
    (root / "data").rename(root / "rows")
    return info | {"data_path": info["data_path"].replace("data/", "rows/")}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_forget_an_episode, "counts 1 episodes, its tables have 2"),
        (_miscount, "counts 9 frames, its tables have 8"),
        (_lose_a_file, "counts 8 frames, its tables have 0"),
        (_move_the_files, "has files 'rows/"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*counts 9 frames")
def test_a_dataset_whose_new_episodes_would_not_be_found_is_refused_and_stays(store, root, change, what):
    told = json.dumps(change(root, read_info(root)))
    (root / "meta/info.json").write_text(told)
    with pytest.raises(FormatError, match=f"{what}.*stepwell export"):
        write_dataset(rest_of(store), root, append=True)
    assert (root / "meta/info.json").read_text() == told and not (root / STAGE).exists()


def test_one_process_appends_at_a_time(store, root):
    with staged_append(root), pytest.raises(StoreBusyError, match="another process writes"):
        write_dataset(rest_of(store), root, append=True)


def killed_append(store, root, calls):
    """Append in a process that kills itself before the n-th file is moved, or when it would begin to."""
    code = f"""
import os, signal, pathlib
import stepwell
from stepwell.lerobot import appending, write_dataset
left = {calls}
move = pathlib.Path.replace
def replace(self, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return move(self, target)
pathlib.Path.replace = replace
if left < 0:
    appending.replace_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_dataset(stepwell.View(stepwell.open({str(store.path)!r})).select([2, 3]), {str(root)!r}, append=True, workers=0)
"""
    done = warm_children.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_a_kill_leaves_nothing_at_a_new_root_and_the_next_write_cleans_up(store, tmp_path):
    code = f"""
import os, signal
import stepwell
from stepwell.lerobot import dataset_files, write_dataset
add = dataset_files.DatasetFiles.add
def add_and_die(self, episode):
    add(self, episode)
    if episode.place.index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
dataset_files.DatasetFiles.add = add_and_die
write_dataset(stepwell.open({str(store.path)!r}), {str(tmp_path / "set")!r}, workers=0)
"""
    done = warm_children.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    write_dataset(store, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert_whole(tmp_path / "set", store)


@pytest.mark.parametrize("calls", [-1, 0, 1, 2, 3, 4, 5, 6])
def test_a_kill_leaves_the_old_episodes_readable_and_the_next_append_sees_to_the_rest(store, root, calls):
    old = {path: path.read_bytes() for path in [*root.glob("data/*/*"), *root.glob("videos/*/*/*")]}
    killed_append(store, root, calls)
    assert {path: path.read_bytes() for path in old} == old
    metadata = Metadata.load(root)
    assert metadata.episodes.length.tolist()[:2] == [5, 3]
    assert metadata.tasks[:2] == ("task 0", "task 1")
    rows = read_tables(root, EPISODES).to_pylist()[:2]
    for row in rows:
        assert np.array_equal(read_frames(root, "camera.video", row), store[row["episode_index"]]["camera.video"])
    # what was complete comes now, what was not is gone
    assert finish_append(root) == (calls >= 0)
    if calls < 0:
        assert len(Metadata.load(root).episodes) == 2
        write_dataset(rest_of(store), root, append=True)
    assert_whole(root, store)
    assert not (root / STAGE).exists()


def test_episodes_are_told_of_after_their_rows_and_counted_last(store, root, monkeypatch):
    moved = []
    move = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (moved.append(Path(target)), move(self, target))[1])
    write_dataset(rest_of(store), root, append=True)
    names = [path.relative_to(root).parts[:2] for path in moved if path.is_relative_to(root)]
    assert [name[0] if name[0] != "meta" else name[1] for name in names] == [
        "videos",
        "tasks.parquet",
        "data",
        "episodes",
        "statistics.npz",
        "stats.json",
        "info.json",
    ]


def test_an_append_that_others_went_past_is_not_completed(store, root):
    killed_append(store, root, 1)
    info = read_info(root)
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 3}))
    with pytest.raises(FormatError, match=r"an append was killed, and others have written.*Remove"):
        finish_append(root)
    assert (root / STAGE / appending.READY).exists()


def test_there_is_nothing_to_finish_of_an_ordinary_dataset(root):
    assert finish_append(root) is False
