"""LeRobot datasets as stores in the cache: what they show, and how long they last."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_children

pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")

import stepwell
from stepwell.errors import (
    DatasetNotFoundError,
    DecodeError,
    DiskFullError,
    EpisodeNotFoundError,
    FormatError,
    LeftOutWarning,
    ReadOnlyError,
    StepwellError,
)
from stepwell.formats import cache as cache_module
from stepwell.lerobot import Metadata, mapped_stores, open_in_place, parquet_images, write_dataset
from stepwell.lerobot.parquet_images import RowGroups
from stepwell.references import remote_files
from stepwell.store.info import FilesInPlace
from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot, tiny_lerobot_picture, tiny_lerobot_rows

DATA = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
SETS = ("v30_png", "v30_video", "v21_png", "v21_video")
TOP, SIDE = "observation.images.top", "observation.images.side"
CAMERAS: dict[str, Any] = {TOP: ("png", (32, 48)), SIDE: ("video", (32, 48))}
LENGTHS = [5, 9, 7, 6]
# grey levels of the tiny pictures of neighbouring steps are 17 apart
NEAR = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A dataset without cameras."""
    return tiny_lerobot(tmp_path / "tiny", cameras={}, lengths=LENGTHS)


def stores_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("lerobot/*/*.well"))


# what they show


@pytest.mark.parametrize(("version", "files"), [("v3.0", 1), ("v3.0", 3), ("v2.1", 1), ("v2.0", 1)])
def test_every_feature_of_every_episode_is_shown(tmp_path: Path, version: Any, files: int) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, cameras=CAMERAS, lengths=LENGTHS, files=files)
    store = open_in_place(root)
    assert [episode.length for episode in store] == LENGTHS
    assert list(store.schema or ()) == list(Metadata.load(root).info.features)
    for number, episode in enumerate(store):
        expected = tiny_lerobot_rows(number, LENGTHS[number])
        for name, values in expected.items():
            np.testing.assert_array_equal(episode[name], values)
        for camera, name in enumerate(CAMERAS):
            pictures = [tiny_lerobot_picture(camera, number, step, (32, 48)) for step in range(LENGTHS[number])]
            if name == TOP:
                np.testing.assert_array_equal(episode[name], pictures)
            else:
                assert np.abs(episode[name][:, :, :20].astype(int) - np.array(pictures)[:, :, :20]).max() <= NEAR


@pytest.mark.parametrize("name", ["90 degrees", "mirrored"])
def test_turned_videos_are_shown_as_lerobot_does_converted_and_written(tmp_path: Path, name: str) -> None:
    written = pytest.importorskip("written_videos")
    matrix, turned = written.TURNS[name]
    root = tiny_lerobot(tmp_path / "tiny", cameras={SIDE: ("video", (32, 48))}, lengths=LENGTHS)
    (path,) = root.glob("videos/**/*.mp4")
    frames = turned(written.plain_frames(path)[1])
    written.set_matrix(path, matrix)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][SIDE]["shape"] = list(frames.shape[1:])
    (root / "meta/info.json").write_text(json.dumps(info))
    parts = np.split(frames, np.cumsum(LENGTHS)[:-1])
    store = open_in_place(root)
    stepwell.convert(root, tmp_path / "own.well", workers=1)
    for shown in (store, stepwell.open(tmp_path / "own.well")):
        for episode, expected in zip(shown, parts, strict=True):
            np.testing.assert_array_equal(episode[SIDE], expected)
    # no mp4 file of ours says that frames are turned: they are encoded as they are shown
    write_dataset(tmp_path / "own.well", tmp_path / "again", video={"crf": 5})
    (again,) = (tmp_path / "again").glob("videos/**/*.mp4")
    assert np.abs(written.plain_frames(again)[1].astype(int) - frames).mean() < NEAR


def test_videos_of_other_formats_are_read_in_place(tmp_path: Path) -> None:
    written = pytest.importorskip("written_videos")
    root = tiny_lerobot(tmp_path / "tiny", cameras={SIDE: ("video", (32, 48))}, lengths=LENGTHS)
    (path,) = root.glob("videos/**/*.mp4")
    info = json.loads((root / "meta/info.json").read_text())
    info["video_path"] = info["video_path"].replace(".mp4", ".mkv")
    (root / "meta/info.json").write_text(json.dumps(info))
    frames = written.plain_frames(written.copy_streams(path.with_suffix(".mkv"), path))[1]
    path.unlink()
    np.testing.assert_array_equal(np.concatenate([episode[SIDE] for episode in open_in_place(root)]), frames)


def test_the_store_says_where_it_is_from(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras=CAMERAS, lengths=LENGTHS)
    store = open_in_place(root, tolerance=0.01)
    told = store.metadata["lerobot"]
    assert (store.mode, store.fps) == ("r", 10)
    assert (told["root"], told["repo_id"], told["tolerance"]) == (str(root), None, 0.01)
    assert (told["tasks"], told["info"]) == (list(TINY_TASKS), json.loads((root / "meta/info.json").read_text()))
    assert store[1].metadata == {"lerobot_episode": 1, "tasks": [TINY_TASKS[1], TINY_TASKS[2]]}
    features = store.schema
    assert features is not None
    assert (features[TOP].codec, features[SIDE].codec) == ("parquet-image", "video-file")
    assert features[SIDE].option("tolerance", None) == 0.01


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_a_table_that_is_another_by_the_first_picture_read_is_an_error(tmp_path: Path, version: Any) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, cameras=CAMERAS, lengths=LENGTHS, files=2)
    store = open_in_place(root)
    path = sorted(root.glob("data/**/*.parquet"))[-1]
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert store[0][TOP].shape == (LENGTHS[0], 32, 48, 3)
    with pytest.raises(DecodeError, match=rf"{path.name}: the file is another one than when references"):
        store[len(LENGTHS) - 1][TOP]
    assert open_in_place(root)[len(LENGTHS) - 1][TOP].shape == (LENGTHS[-1], 32, 48, 3)


def test_references_are_as_lerobot_computes_its_queries(tmp_path: Path) -> None:
    from stepwell.references.file_codec import parse_references

    root = tiny_lerobot(tmp_path / "tiny", cameras=CAMERAS, lengths=LENGTHS, files=2)
    metadata, store = Metadata.load(root), open_in_place(root)
    found = parse_references([store.segments[0].blob_map(SIDE)[i * 16 : i * 16 + 16] for i in range(sum(LENGTHS))])
    first = 0
    for number, length in enumerate(LENGTHS):
        spans = metadata.episodes.videos[SIDE]
        for step in range(length):
            seconds = float(np.float32(step) / np.float32(10))
            expected = (spans.chunk[number], spans.file[number], float(spans.start[number]) + seconds)
            assert found[first + step].item() == expected
        first += length


@pytest.mark.parametrize("how", ["a path", "a string", "an address", "metadata", "stepwell.open"])
def test_some_episodes_may_be_asked_for(tiny: Path, how: str) -> None:
    address = f"lerobot://{tiny}"
    store = {
        "a path": lambda: open_in_place(tiny, episodes=[2, slice(0, 1)]),
        "a string": lambda: open_in_place(str(tiny), episodes=iter([0, 2])),
        "an address": lambda: open_in_place(f"{address}?episodes=0:1,2"),
        "metadata": lambda: open_in_place(Metadata.load(tiny, episodes=[0, 2])),
        "stepwell.open": lambda: stepwell.open(address, episodes=[0, 2]),
    }[how]()
    assert [episode.metadata["lerobot_episode"] for episode in store] == [0, 2]
    np.testing.assert_array_equal(store[1]["action"], tiny_lerobot_rows(2, LENGTHS[2])["action"])
    assert store[1]["episode_index"].tolist() == [2] * LENGTHS[2]


def test_one_store_serves_all_ways_to_ask_for_the_same(tiny: Path, cache: Path) -> None:
    for source in (tiny, f"lerobot://{tiny}", Metadata.load(tiny)):
        assert len(open_in_place(source)) == 4
    assert len(open_in_place(tiny, episodes=range(4))) == 4
    assert len(stores_in(cache)) == 1
    open_in_place(tiny, episodes=[1])
    open_in_place(tiny, ignore=["action"])
    open_in_place(tiny, tolerance=1.0)
    assert len(stores_in(cache)) == 4


def test_ignored_features_are_left_out(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras=CAMERAS)
    shutil.rmtree(root / "videos")
    assert SIDE not in (open_in_place(root, ignore=[SIDE, "action"]).schema or ())


def test_what_is_not_there_is_told(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        open_in_place(tmp_path)
    with pytest.raises(EpisodeNotFoundError, match="no episode 4"):
        open_in_place(tiny, episodes=[4])


@pytest.mark.parametrize("episodes", [3, slice(0, 2), "0:2"])
def test_episodes_and_names_to_ignore_are_lists(tiny: Path, episodes: Any) -> None:
    with pytest.raises(EpisodeNotFoundError, match="Allowed: a list of numbers and slices"):
        open_in_place(tiny, episodes=episodes)
    with pytest.raises(StepwellError, match=r"Give a list: \['action'\]"):
        open_in_place(tiny, ignore="action")


def test_a_store_pickles_and_verifies(tiny: Path) -> None:
    import pickle

    store = pickle.loads(pickle.dumps(open_in_place(tiny)))
    assert len(store) == 4
    assert store.verify(deep=True).is_ok
    assert store.statistics(names=["action"])["action"].mean.shape == (2,)


def test_training_goes_on_with_a_copy_of_the_dataset_elsewhere(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "copy")
    stores = [open_in_place(tiny), open_in_place(tmp_path / "copy", cache=tmp_path / "other")]
    loaders = [stepwell.Loader(store, {"index": "index"}, batch_size=4, order="random", threads=0) for store in stores]
    batches = iter(loaders[0])
    next(batches)
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert next(batches)["index"].tolist() == next(iter(loaders[1]))["index"].tolist()
    assert open_in_place(tiny, episodes=[1]).uuid != stores[0].uuid


def test_the_table_tells_no_ratio_of_references(tmp_path: Path) -> None:
    info = open_in_place(tiny_lerobot(tmp_path / "tiny", cameras=CAMERAS)).info()
    for row in info.features:
        if row.name in CAMERAS:
            assert (row.ratio, row.step_bytes) == (None, None)
    files = [*(tmp_path / "tiny").glob("data/**/*.parquet"), *(tmp_path / "tiny").glob("videos/**/*.mp4")]
    videos = sum(file.stat().st_size for file in files if file.suffix == ".mp4")
    assert info.in_place == FilesInPlace(len(files), sum(file.stat().st_size for file in files))
    assert {row.name: row.in_place_bytes for row in info.features if row.is_in_place} == {TOP: None, SIDE: videos}
    told = str(info).splitlines()
    assert [line.split()[-1] for line in told if TOP in line] == ["references"]
    assert [line.split()[-2:] for line in told if SIDE in line] == [["in", "place"]]
    assert info.name == f"lerobot://{tmp_path}/tiny"
    assert info.ratio is None


# through loaders


def expected_windows(root: Path, name: str) -> tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    """Return what the real library gave for the configuration with windows of pictures."""
    told = json.loads((root / f"{name}.expected.json").read_text())["configs"]["images"]
    with np.load(root / f"{name}.expected.npz") as arrays:
        items = []
        for index in told["indexes"]:
            start = f"images/{index}/"
            items.append((index, {key[len(start) :]: arrays[key] for key in arrays.files if key.startswith(start)}))
    return told["delta_timestamps"], items


@needs_data
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("order", "threads", "page_cache"),
    [("sequential", 0, True), ("random", 2, True), ("pooled", 0, True), ("pooled", 2, True), ("pooled", 2, False)],
)
def test_windows_of_the_samples_are_those_of_the_real_library(
    name: str, order: Any, threads: int, page_cache: bool
) -> None:
    deltas, items = expected_windows(DATA, name)
    episodes = sorted({int(item["episode_index"]) for _, item in items})[:2]
    store = open_in_place(DATA / name, episodes=episodes)
    fields: dict[str, Any] = {key: key for key in store.schema or ()}
    fields |= {key: stepwell.Field(key, seconds=seconds) for key, seconds in deltas.items()}
    wanted = {index: item for index, item in items if int(item["episode_index"]) in episodes}
    num_seen = 0
    loader = stepwell.Loader(
        stepwell.View(store), fields, batch_size=16, order=order, threads=threads, page_cache=page_cache
    )
    for batch in loader:
        num_seen += len(batch["index"])
        for place, index in enumerate(batch["index"].tolist()):
            for key, value in wanted.pop(index, {}).items():
                if key != "task":
                    check(np.asarray(batch[key][place]), value, is_picture=key in (TOP, SIDE), is_lossy="video" in name)
    assert num_seen == store.num_steps
    assert not wanted


def check(found: Any, expected: Any, *, is_picture: bool, is_lossy: bool) -> None:
    if is_picture:
        found = np.moveaxis(found, -1, -3)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if is_picture and is_lossy:
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 2
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("order", ["sequential", "pooled"])
@pytest.mark.parametrize("threads", [0, 2])
def test_row_groups_are_read_about_once_in_sequence_and_pooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any, threads: int
) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras={TOP: ("png", (32, 48))}, lengths=[8] * 30, files=3)
    groups = RowGroups(max_bytes=20_000)
    monkeypatch.setattr(parquet_images, "_ROW_GROUPS", groups)
    fields = {TOP: stepwell.Field(TOP, [-2, 0]), "index": "index"}
    for batch in stepwell.Loader(open_in_place(root), fields, batch_size=10, order=order, threads=threads):
        assert batch[TOP].shape[1:] == (2, 32, 48, 3)
    # few of them fit: at random each of 480 rows would read one
    assert groups.kept.size <= 20_000
    # a thread that has to wait finds some of its groups gone: how many depends on the machine
    assert 30 <= groups.num_read <= (45 if threads == 0 else 160)


# the cache


def test_it_is_opened_again_without_reading_the_tables(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = open_in_place(tiny).path
    monkeypatch.setattr(mapped_stores, "write_mapped_store", None)
    monkeypatch.setattr(Metadata, "load", None)
    assert open_in_place(tiny).path == path


def test_opening_it_again_imports_neither_pyarrow_nor_numba(tiny: Path) -> None:
    open_in_place(tiny)
    code = (
        "import sys, stepwell; store = stepwell.open(sys.argv[1]); store[1]['action'];"
        "print(len(store), [name for name in ('pyarrow', 'numba', 'torch', 'tqdm') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code, f"lerobot://{tiny}"], check=True, capture_output=True, text=True)
    assert told.stdout.split(maxsplit=1) == ["4", "[]\n"]


def touch(path: Path) -> None:
    """Change a file's time as who writes it does."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


@pytest.mark.parametrize("file", ["meta/info.json", "meta/tasks.parquet", "data/chunk-000/file-000.parquet"])
def test_a_dataset_that_changed_is_mapped_again(tiny: Path, cache: Path, file: str) -> None:
    before = open_in_place(tiny).path
    touch(tiny / file)
    assert open_in_place(tiny).path != before
    # nobody used the one before
    assert len(stores_in(cache)) == 1


@pytest.mark.parametrize("file", ["meta/stats.json", "meta/.note", "README.md"])
def test_other_files_of_it_do_not_matter(tiny: Path, file: str) -> None:
    before = open_in_place(tiny).path
    (tiny / file).write_text("{}")
    assert open_in_place(tiny).path == before


def test_what_somebody_uses_stays(tiny: Path, cache: Path) -> None:
    used = open_in_place(tiny)
    touch(tiny / "meta/info.json")
    open_in_place(tiny)
    assert len(stores_in(cache)) == 2
    assert used[0]["action"].shape == (5, 2)
    del used
    touch(tiny / "meta/info.json")
    open_in_place(tiny)
    assert len(stores_in(cache)) == 1


def test_other_episodes_of_it_stay(tiny: Path, cache: Path) -> None:
    open_in_place(tiny, episodes=[0])
    open_in_place(tiny, episodes=[1])
    assert len(stores_in(cache)) == 2


def test_threads_that_come_at_once_build_it_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, calls = mapped_stores.write_mapped_store, []

    def slow(*args: Any, **options: Any) -> None:
        calls.append(args)
        time.sleep(0.05)
        build(*args, **options)

    monkeypatch.setattr(mapped_stores, "write_mapped_store", slow)
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: open_in_place(tiny), range(4)))
    assert {store.path for store in stores} == {stores[0].path}
    assert len(calls) == 1


def test_processes_that_come_at_once_all_open_it(tiny: Path, cache: Path) -> None:
    code = "import sys, stepwell; print(stepwell.open(sys.argv[1]).num_steps)"
    command = [sys.executable, "-c", code, f"lerobot://{tiny}"]
    running = [warm_children.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in running] == [f"{sum(LENGTHS)}\n"] * 2
    assert len(stores_in(cache)) == 1


def test_a_build_that_was_killed_leaves_nothing_that_is_taken_for_whole(tiny: Path, cache: Path) -> None:
    code = (
        "import os, sys, stepwell; from stepwell.store import bulk_writing;"
        "bulk_writing.write_manifest = lambda *a, **k: os._exit(9); stepwell.open(sys.argv[1])"
    )
    killed = warm_children.run([sys.executable, "-c", code, f"lerobot://{tiny}"], check=False)
    assert killed.returncode == 9
    assert stores_in(cache) == []
    assert len(list(cache.glob("lerobot/*/.*.partial"))) == 1
    assert open_in_place(tiny).num_steps == sum(LENGTHS)
    assert list(cache.glob("lerobot/*/.*.partial")) == []


@pytest.mark.parametrize(
    "file", ["store.json", "segments/*/action.npy", "segments/*/episodes.npy", "segments/*/*note.bin"]
)
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_store_that_a_loss_of_power_damaged_is_built_anew(tiny: Path, file: str, is_gone: bool) -> None:
    path = open_in_place(tiny).path
    (damaged,) = path.glob(file)
    damaged.unlink() if is_gone else damaged.write_bytes(b"")
    store = open_in_place(tiny)
    assert (store.path, store.verify().is_ok) == (path, True)


def test_names_may_have_any_characters(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "a {chunk} of 100%?" / "äb {file}", cameras=CAMERAS, lengths=[5])
    assert open_in_place(root)[0][TOP].shape == open_in_place(root)[0][SIDE].shape == (5, 32, 48, 3)


def test_a_build_that_failed_leaves_nothing(tiny: Path, cache: Path) -> None:
    (tiny / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"file-000\.parquet"):
        open_in_place(tiny)
    assert [path.name for path in cache.glob("lerobot/*/*")] == ["lock"]


def test_metadata_of_a_dataset_as_it_was_are_refused(tiny: Path) -> None:
    metadata = Metadata.load(tiny)
    info = json.loads((tiny / "meta/info.json").read_text())
    (tiny / "meta/info.json").write_text(json.dumps(info | {"robot_type": "another"}))
    with pytest.raises(FormatError, match="has changed since its metadata were read"):
        open_in_place(metadata)


def test_the_environment_says_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", "/a")
    assert remote_files.cache_directory() == Path("/a")
    monkeypatch.setenv("STEPWELL_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert remote_files.cache_directory() == Path("/b/stepwell")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert remote_files.cache_directory() == Path("/c/.cache/stepwell")


def test_a_directory_of_ones_own_may_be_the_cache(tiny: Path, tmp_path: Path, cache: Path) -> None:
    open_in_place(tiny, cache=tmp_path / "mine")
    assert (len(stores_in(tmp_path / "mine")), stores_in(cache)) == (1, [])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_cache_that_cannot_be_written_is_told_with_its_variable(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cache_module.Path, "mkdir", refuse)
    with pytest.raises(ReadOnlyError, match="Set STEPWELL_CACHE to a directory that can"):
        open_in_place(tiny)


def test_a_file_in_the_caches_place_is_told_with_its_variable(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReadOnlyError, match="Set STEPWELL_CACHE"):
        open_in_place(tiny, cache=tmp_path / "file")


def test_a_full_disk_is_told_with_the_variable(tiny: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mapped_stores, "write_store", refuse)
    with pytest.raises(DiskFullError, match="set STEPWELL_CACHE to another directory"):
        open_in_place(tiny)
    assert stores_in(cache) == []


def test_the_cache_takes_no_more_than_the_numbers_and_24_bytes_a_picture(tmp_path: Path) -> None:
    lengths = [400, 300]
    root = tiny_lerobot(tmp_path / "tiny", cameras={}, lengths=lengths)
    store = open_in_place(root)
    assert store.schema is not None
    rows = sum(feature.row_bytes for feature in store.schema.values() if feature.is_raw)
    notes = sum(len(note) + 8 for episode in store for note in episode["observation.note"])
    size = sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file())
    # headers and manifests do not grow
    assert size <= sum(lengths) * rows + notes + 12_000


def test_images_of_another_size_than_info_says_are_read_as_they_are(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras={TOP: ("png", (32, 48))}, lengths=[3])
    expected = open_in_place(root)[0][TOP]
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"][TOP]["shape"] = [48, 32, 3]
    path.write_text(json.dumps(info))
    # lerobot never compares them
    with pytest.warns(LeftOutWarning, match=r"48x32 there, and 32x48 in the tables"):
        store = open_in_place(root)
    assert store.schema is not None and store.schema[TOP].fixed_shape == (32, 48, 3)
    np.testing.assert_array_equal(store[0][TOP], expected)
    written = stepwell.lerobot.write_dataset(store, tmp_path / "again")
    assert written.info.features[TOP].shape == (32, 48, 3)
