"""Edits of directories: the episodes that are left are what they were, and a kill leaves the old dataset or the new."""

import errno
import json
import os
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from stepwell import View, convert, create, open
from stepwell.cli.main import main
from stepwell.errors import (
    DatasetNotFoundError,
    DecodeError,
    DiskFullError,
    EpisodeNotFoundError,
    FeatureNotFoundError,
    LeftOutWarning,
    SchemaError,
    StoreBusyError,
    StoreFileError,
)
from stepwell.lerobot import LeRobotDatasetMetadata, appending, camera_writing, editing, edits, video_edits
from stepwell.lerobot.auditing import audit
from stepwell.lerobot.in_place import open_in_place
from stepwell.lerobot.meta_files import read_subtasks
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.writing import write_dataset
from stepwell.schema import Array
from stepwell.testing import tiny_lerobot, tiny_store

TOP, SIDE = "observation.images.top", "observation.images.side"
CAMERAS = {TOP: ("png", (16, 24)), SIDE: ("video", (32, 48))}
NUMBERED = ("index", "episode_index", "task_index")
VERSIONS = pytest.mark.parametrize("version", ["v2.1", "v3.0"])


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def _no_encoding(monkeypatch):
    def refuse(*_):
        raise AssertionError("something was encoded")

    monkeypatch.setattr(editing, "encoded_packets", refuse)


def make(path, version="v3.0", **options):
    return tiny_lerobot(path, version=version, **{"cameras": CAMERAS, "lengths": [5, 7, 6, 4], "files": 2, **options})


def contents(root):
    """All values of each episode by name, and the text of each step's task."""
    metadata = Metadata.load(root)
    with open_in_place(root) as store:
        return [
            {name: np.asarray(episode[name]) for name in store.schema if name not in NUMBERED}
            | {"task": [metadata.tasks[number] for number in episode["task_index"]]}
            for episode in store
        ]


def assert_episodes(root, expected):
    found = contents(root)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def faults(root):
    return {finding.code for finding in audit(root).findings} - {"video-several-files", "episode-duplicate"}


@VERSIONS
@pytest.mark.parametrize("gone", [[0], [3], [0, 2]])
@pytest.mark.usefixtures("_no_encoding")
def test_the_episodes_that_are_left_are_what_they_were(version, gone, tmp_path):
    root = make(tmp_path / "a", version)
    before = contents(root)
    edits.delete(root, gone, tmp_path / "b")
    left = [each for number, each in enumerate(before) if number not in gone]
    assert_episodes(tmp_path / "b", left)
    assert faults(tmp_path / "b") == set()
    assert_episodes(root, before)
    edits.delete(root, gone)
    assert_episodes(root, left)
    # meta/ has what an array of rows has
    info = Metadata.load(root).info
    assert info.raw["total_episodes"] == len(left) and info.raw["splits"] == {"train": f"0:{len(left)}"}
    assert info.version == version


@VERSIONS
def test_who_has_a_data_set_open_gets_no_frames_of_the_edited_one(version, tmp_path):
    root = make(tmp_path / "a", version)
    with open_in_place(root) as store:
        np.asarray(store[0][SIDE])
        edits.delete(root, [0])
        for number in (0, 3):
            with pytest.raises(DecodeError, match="edited in place, or replaced, after it was opened"):
                np.asarray(store[number][SIDE])
        assert len(store[3]["action"]) == 4
    assert len(contents(root)) == 3


@VERSIONS
@pytest.mark.usefixtures("_no_encoding")
def test_parts_together_are_the_whole_again(version, tmp_path):
    root = make(tmp_path / "a", version)
    edits.split(root, {"x": [3, 0], "y": [1, 2]}, {"x": tmp_path / "x", "y": tmp_path / "y"})
    edits.merge([tmp_path / "x", tmp_path / "y"], tmp_path / "m")
    before = contents(root)
    assert_episodes(tmp_path / "m", [before[number] for number in (0, 3, 1, 2)])
    for part in ("x", "y", "m"):
        assert faults(tmp_path / part) == set()


def test_statistics_of_what_is_left_are_those_of_its_rows(tmp_path):
    root = make(tmp_path / "a")
    edits.delete(root, [1])
    actions = np.concatenate([each["action"] for each in contents(root)]).astype(np.float64)
    stats = json.loads((root / "meta/stats.json").read_text())["action"]
    np.testing.assert_allclose(stats["mean"], actions.mean(0), rtol=1e-6)
    np.testing.assert_allclose(stats["std"], actions.std(0), rtol=1e-6)
    assert stats["count"] == [len(actions)]


@pytest.mark.usefixtures("_no_encoding")
def test_files_whose_episodes_stay_are_taken_as_they_are(tmp_path):
    root = make(tmp_path / "a", files=4)
    before = {path.name: path.read_bytes() for path in sorted(root.glob(f"videos/{SIDE}/*/*.mp4"))}
    edits.delete(root, [3])
    after = {path.name: path.read_bytes() for path in sorted(root.glob(f"videos/{SIDE}/*/*.mp4"))}
    assert all(before[name] == data for name, data in after.items()) and len(after) == len(before) - 1
    (first, *_) = sorted(root.glob("data/*/*.parquet"))
    inode = first.stat().st_ino
    edits.change_statistics(root)
    assert sorted(root.glob("data/*/*.parquet"))[0].stat().st_ino == inode


def test_an_episode_without_a_key_frame_of_its_own_is_encoded_alone(tmp_path):
    written_videos = pytest.importorskip("written_videos")
    root = tiny_lerobot(tmp_path / "a", cameras={SIDE: ("video", (32, 48))}, lengths=(20, 20), fps=25)
    (path,) = root.glob("videos/**/*.mp4")
    written_videos.write_video(path, size=(32, 48), params="keyint=40:scenecut=0:bframes=0")
    before = contents(root)[1]
    edits.delete(root, [0])
    (after,) = contents(root)
    np.testing.assert_array_equal(after["action"], before["action"])
    # of noise
    assert np.abs(after[SIDE].astype(int) - before[SIDE]).mean() < 16


@VERSIONS
def test_features_come_and_go(version, tmp_path):
    root = make(tmp_path / "a", version)
    before = contents(root)
    values = np.arange(22, dtype=np.float32)
    entry = {"dtype": "float32", "shape": [1], "names": None}
    double = ({"dtype": "float64", "shape": (2,), "names": ["a", "b"]}, lambda row, *_: row["action"] * 2)
    edits.change_features(root, added={"r": (values, entry), "d": double[::-1]}, removed=[SIDE, "next.done"])
    after = contents(root)
    np.testing.assert_array_equal(np.concatenate([each["r"] for each in after]), values)
    np.testing.assert_array_equal(after[2]["d"], before[2]["action"] * 2)
    assert SIDE not in after[0] and "next.done" not in after[0] and not (root / "videos").exists()
    assert faults(root) == set()


@VERSIONS
def test_tasks_are_replaced_step_by_step(version, tmp_path):
    root = make(tmp_path / "a", version)
    before = contents(root)
    edits.change_tasks(root, replaced={"put it down": "a new end"}, episodes={3: "else"})
    after = contents(root)
    assert after[1]["task"] == [{"put it down": "a new end"}.get(text, text) for text in before[1]["task"]]
    assert len(set(after[1]["task"])) == 2 and set(after[3]["task"]) == {"else"}
    assert list(Metadata.load(root).tasks) == sorted({text for each in after for text in each["task"]})
    assert faults(root) == set()


@VERSIONS
def test_videos_are_encoded_anew_and_images_become_videos(version, tmp_path):
    root = make(tmp_path / "a", version, cameras={TOP: ("png", (32, 48)), SIDE: ("video", (32, 48))})
    before = contents(root)
    video_edits.reencode(root, video={"encoder": "h264", "gop": 3, "crf": 18}, workers=0)
    video_edits.encode_images(root, episodes=[0, 2], target=tmp_path / "v", video={"encoder": "h264"}, workers=0)
    assert faults(root) == faults(tmp_path / "v") == set()
    for mine, theirs in zip(contents(tmp_path / "v"), [before[0], before[2]], strict=True):
        for name in (TOP, SIDE):
            assert np.abs(mine[name].astype(int) - theirs[name]).mean() < 8
        np.testing.assert_array_equal(mine["action"], theirs["action"])
    assert Metadata.load(root).info.features[SIDE].raw["info"]["video.g"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "cache", "v"]


@pytest.fixture
def odd(tmp_path):
    """Return a dataset of one mp4 file whose later episodes begin between key frames."""
    import av

    root = make(tmp_path / "odd", lengths=[7, 6, 8, 4], files=1, cameras={SIDE: ("video", (32, 48))})
    file = root / f"videos/{SIDE}/chunk-000/file-000.mp4"
    with av.open(str(file)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    with av.open(str(file), "w") as video:
        stream = video.add_stream("libx264", 10, options={"g": "5", "bf": "0", "sc_threshold": "0"})
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for frame in frames:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        video.mux(stream.encode())
    return root


def test_packets_of_episodes_that_follow_each_other_stay_between_key_frames(odd, tmp_path, monkeypatch):
    before, calls, real = contents(odd), [], editing.encoded_packets

    def counting(episode, *others):
        calls.append(episode.index)
        return real(episode, *others)

    monkeypatch.setattr(editing, "encoded_packets", counting)
    edits.merge([odd, odd], tmp_path / "merged")
    assert calls == []
    assert_episodes(tmp_path / "merged", [*before, *before])
    # the second begins at frame 7, between the key frames 5 and 10; the third at 13, so does the last at 21
    edits.delete(odd, [0], tmp_path / "rest")
    assert calls == [1, 2, 3]
    edits.delete(odd, [3], tmp_path / "first")
    assert calls == [1, 2, 3]
    assert_episodes(tmp_path / "first", before[:3])
    for each in ("merged", "rest", "first"):
        assert faults(tmp_path / each) <= {"video-no-key"}


# range, matrix, primaries and transfer; the last is what yuvj420p is
COLOURS = [(1, 1, 1, 1), (1, 5, 5, 6), (2, 5, 5, 6)]


def film(path, colours, num_frames=12):
    """Encode a moving pattern of coloured blocks, with B-frames, in the place of an mp4 file."""
    av = pytest.importorskip("av")
    blocks = np.random.default_rng(0).integers(0, 255, (4, 6, 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=10, options={"crf": "12", "bf": "2", "g": "6"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        context = stream.codec_context
        context.color_range, context.colorspace, context.color_primaries, context.color_trc = colours
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.roll(blocks, 3 * number, 1), "rgb24")
            file.mux(stream.encode(frame.reformat(format="yuv420p", dst_color_range=colours[0])))
        file.mux(stream.encode(None))
    return path


def colours_of(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as file:
        next(file.decode(video=0))
        context = file.streams.video[0].codec_context
        found = context.color_range, context.colorspace, context.color_primaries, context.color_trc
        return tuple(map(int, found))


@pytest.mark.parametrize("colours", COLOURS)
def test_a_video_encoded_anew_loses_by_the_codec_alone(colours, tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={SIDE: ("video", (32, 48))}, lengths=[5, 7], files=1)
    film(next(root.rglob("*.mp4")), colours)

    def frames(place):
        return np.concatenate([each[SIDE] for each in contents(place)]).astype(float)

    def psnr(name):
        video_edits.reencode(root, video={"encoder": "h264", "gop": 4, "crf": 5}, target=tmp_path / name, workers=1)
        return 10 * np.log10(255**2 / np.mean((frames(tmp_path / name) - before) ** 2))

    before = frames(root)
    by_samples = psnr("b")
    monkeypatch.setattr(camera_writing, "_decoded_frames", lambda *_: None)
    # edges of colours do not survive a second conversion
    assert by_samples > psnr("c") + 10
    assert colours_of(next((tmp_path / "b").rglob("*.mp4"))) == colours
    assert colours_of(next((tmp_path / "c").rglob("*.mp4"))) == COLOURS[0]


@pytest.mark.parametrize(("option", "value"), [("encoder", "foo"), ("gop", 0), ("bar", 1)])
def test_an_option_that_no_encoder_has_is_refused_before_anything_is_begun(option, value, tmp_path):
    root = make(tmp_path / "a", cameras={SIDE: ("video", (32, 48))}, lengths=[3])
    with pytest.raises(SchemaError, match=option):
        video_edits.reencode(root, video={option: value})
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["a"]


def test_an_encoding_that_failed_goes_on_with_what_is_done(tmp_path, monkeypatch):
    root = make(tmp_path / "a", "v2.1", cameras={SIDE: ("video", (32, 48))})
    before, real, calls = contents(root), video_edits.encoded_packets, []

    def failing(*arguments):
        calls.append(arguments[0].index)
        if len(calls) == 3:
            raise OSError("power")
        return real(*arguments)

    monkeypatch.setattr(video_edits, "encoded_packets", failing)
    options = {"video": {"encoder": "h264", "gop": 5}, "workers": 0}
    with pytest.raises(Exception, match="power"):
        video_edits.reencode(root, **options)
    assert_episodes(root, before)
    assert len(list((tmp_path / ".a.videos").glob("*.mp4"))) == 2
    video_edits.reencode(root, **options)
    assert calls == [0, 1, 2, 2, 3]
    assert faults(root) == set() and not (tmp_path / ".a.videos").exists()


def killed_at(call, folder, edit):
    """Edit in a child that dies at a call that touches the folder; returns whether it came to its end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    count = 0

    def hook(event, arguments):
        nonlocal count
        is_call = event == "open" or event.startswith(("os.", "shutil."))
        if is_call and any(isinstance(each, str) and each.startswith(folder) for each in map(_text, arguments)):
            count += 1
            if count == call:
                os._exit(9)

    sys.addaudithook(hook)
    try:
        edit()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _text(value):
    return os.fsdecode(value) if isinstance(value, bytes | os.PathLike) else value


@pytest.mark.parametrize("target", [None, "b"])
def test_killed_at_any_call_the_old_dataset_is_there_and_the_new_one_whole_or_not(target, tmp_path):
    folder = tmp_path / "sets"
    root = make(folder / "a", cameras={SIDE: ("video", (32, 48))})
    old, new = contents(root), contents(edits.delete(root, [1], tmp_path / "expected"))
    place, seen = None if target is None else folder / target, set()
    for call in range(1, 1000, 9):
        is_done = killed_at(call, str(folder), lambda: edits.delete(root, [1], place))
        if place is None:
            state = len(Metadata.load(root).episodes)
            assert_episodes(root, old if state == len(old) else new)
        else:
            state = place.exists()
            assert_episodes(root, old)
            if state:
                assert_episodes(place, new)
        seen.add(state)
        if is_done or state in (len(new), True):
            break
    assert len(seen) == 2
    # what a kill left goes with the next edit
    edits.delete(root, [0], place and folder / "c")
    edits.delete(root, [0])
    names = {path.name for path in folder.iterdir()}
    assert names >= {"a"} and not any(name.startswith(".a.") for name in names)


@pytest.mark.parametrize(
    ("edit", "place", "what"),
    [
        (edits.renumber, "/data", "to write {0}/a; it is as it was"),
        (video_edits.reencode, ".videos", "to encode videos in {0}/.a.videos; those that are done stay there"),
    ],
)
def test_a_full_disk_is_named_and_the_data_set_is_as_it_was(edit, place, what, tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={SIDE: ("video", (32, 48))})
    before, mkdir = contents(root), os.mkdir

    def fill(path, *arguments, **options):
        if place in os.fspath(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        mkdir(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", fill)
        with pytest.raises(DiskFullError, match=re.escape(f"no space left {what.format(tmp_path)}. Make room")):
            edit(root)
    assert_episodes(root, before)
    edit(root)
    assert not [*tmp_path.glob(".a*")]


@pytest.mark.parametrize("target", [None, "b"])
@pytest.mark.parametrize("edit", [edits.rewrite, video_edits.retime])
def test_what_a_kill_leaves_goes_with_the_next_edit(edit, target, tmp_path):
    folder = tmp_path / "sets"
    root = make(folder / "a", cameras={SIDE: ("video", (32, 48))})
    place = None if target is None else folder / target
    left = set()
    for call in range(20, 1000, 40):
        is_done = killed_at(call, str(folder), lambda: edit(root, target=place))
        left |= {path.name for path in folder.iterdir()} - {"a", "b"}
        if is_done or (place is not None and place.exists()):
            break
        edit(root, target=place)
        assert {path.name for path in folder.iterdir()} == {"a", target or "a"}
        if place is not None:
            shutil.rmtree(place)
    assert left


def test_episodes_of_an_append_that_was_killed_are_encoded_too(tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={SIDE: ("video", (32, 48))})
    more = make(tmp_path / "more", cameras={SIDE: ("video", (32, 48))}, lengths=[4], files=1)

    def killed(_):
        raise OSError("power")

    with open_in_place(more) as store, monkeypatch.context() as patched:
        patched.setattr(
            appending, "_finish", lambda root: (root / appending.STAGE / appending.READY).exists() and killed(root)
        )
        with pytest.raises(Exception, match="power"):
            write_dataset(store, root, append=True, cameras="video")
    assert len(Metadata.load(root).episodes) == 4
    video_edits.reencode(root, video={"encoder": "h264"}, workers=0)
    assert len(Metadata.load(root).episodes) == 5


@pytest.mark.parametrize("target", [None, "b"])
def test_a_dataset_that_changes_while_it_is_read_is_not_edited(target, tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={SIDE: ("video", (32, 48))}, lengths=[5, 5, 5, 5])
    place, real = None if target is None else tmp_path / target, video_edits.run_chunks
    lock = edits.locked_dataset

    def changed(*arguments, **options):
        real(*arguments, **options)
        # a program that knows nothing of locks
        monkeypatch.setattr(edits, "locked_dataset", lambda _: nullcontext())
        edits.delete(root, [0])
        monkeypatch.setattr(edits, "locked_dataset", lock)

    monkeypatch.setattr(video_edits, "run_chunks", changed)
    with pytest.raises(StoreBusyError, match="changed meanwhile"):
        video_edits.reencode(root, video={"encoder": "h264"}, target=place, workers=0)
    assert len(Metadata.load(root).episodes) == 3 and (place is None or not place.exists())


def test_parts_of_a_dataset_that_is_edited_meanwhile_are_not_written(tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={}, lengths=[5, 5, 5])
    real = Metadata.load

    def load(path, **options):
        found = real(path, **options)
        monkeypatch.setattr(Metadata, "load", real)
        edits.delete(root, [0])
        return found

    monkeypatch.setattr(Metadata, "load", load)
    with pytest.raises(StoreBusyError, match="changed meanwhile"):
        edits.split(root, {"b": [0]}, {"b": tmp_path / "b"})
    assert not (tmp_path / "b").exists()


def test_the_lock_is_that_of_the_directory_that_took_the_place(tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={})
    real, calls = appending.lock_directory, []

    def opened_before(path, **options):
        if calls:
            return real(path, **options)
        calls.append(path)
        held = real(path, **options)
        root.rename(tmp_path / "before")
        make(root, cameras={})
        return held

    monkeypatch.setattr(appending, "lock_directory", opened_before)
    with appending.locked_dataset(root) as lock:
        assert os.path.samestat(os.fstat(lock.descriptor), root.stat())


def test_files_encoded_before_the_videos_changed_are_not_taken(tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={SIDE: ("video", (32, 48))})
    real, options = video_edits._edit, {"video": {"encoder": "h264"}, "workers": 0}

    def failing(*_, **__):
        raise OSError("power")

    monkeypatch.setattr(video_edits, "_edit", failing)
    with pytest.raises(OSError, match="power"):
        video_edits.reencode(root, **options)
    done = {path.name: path.read_bytes() for path in (tmp_path / ".a.videos").glob("*.mp4")}
    video = next(root.glob("videos/**/*.mp4"))
    shutil.copy(next(make(tmp_path / "b", cameras={SIDE: ("video", (32, 48))}, seed=3).glob("videos/**/*.mp4")), video)
    monkeypatch.setattr(video_edits, "_edit", real)
    written = []
    monkeypatch.setattr(
        video_edits, "encoded_packets", lambda *a: written.append(0) or camera_writing.encoded_packets(*a)
    )
    video_edits.reencode(root, **options)
    assert done and len(written) == 4


@pytest.mark.parametrize("target", [None, "b"])
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EFBIG, StoreFileError)])
def test_a_disk_that_takes_no_more_is_named_and_nothing_is_lost(number, error, target, tmp_path, monkeypatch):
    root = make(tmp_path / "a", cameras={})
    before = contents(root)

    def failing(*_):
        # as pyarrow says it
        raise OSError(number, "Error writing bytes to file")

    monkeypatch.setattr(editing.Edit, "write", failing)
    with pytest.raises(error, match=re.escape(str(tmp_path / (target or "a")))) as caught:
        edits.delete(root, [0], target and tmp_path / target)
    assert number != errno.ENOSPC or ("it is as it was" if target is None else "nothing of it is left") in str(caught)
    assert_episodes(root, before)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"a"}


@VERSIONS
def test_what_else_is_at_a_root_stays(tmp_path, version):
    root = make(tmp_path / "a", version)
    others = ["README.md", "meta/notes.json", "meta/info.json.old", "meta/episodes_by_hand.csv", "data/licence.txt"]
    for name in [*others, "videos/poster.png", "tasks/parts/0.txt"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "data/raw").symlink_to("../../recordings")
    (root / "notes").symlink_to("tasks")
    before = contents(root)
    edits.delete(root, [0])
    edits.delete(root, [0])
    assert all((root / name).read_text() == name for name in [*others, "videos/poster.png", "tasks/parts/0.txt"])
    assert (root / "notes/parts/0.txt").exists()
    assert (root / "data/raw").readlink() == Path("../../recordings") and (root / "notes").is_symlink()
    assert len(contents(root)) == len(before) - 2
    # what an edit writes is not what it was
    edits.change_features(root, removed=[TOP, SIDE])
    assert not list(root.rglob("*.mp4")) and audit(root).is_ok


def test_subtasks_keep_their_texts_also_where_datasets_number_them_otherwise(tmp_path):
    number = Array((), "int64")
    names = {"root": ["reach", "grasp"], "other": ["lift", "reach"]}
    for name, texts in names.items():
        store = create(
            tmp_path / f"{name}.well", {"subtask_index": number}, fps=10, metadata={"lerobot": {"subtasks": texts}}
        )
        with store, store.writer() as writer:
            for _ in range(3):
                writer.add_episode({"subtask_index": np.arange(4) % 2}, task="T")
        write_dataset(tmp_path / f"{name}.well", tmp_path / name)
    root = tmp_path / "root"
    edits.delete(root, [0], tmp_path / "deleted")
    edits.merge([root, tmp_path / "deleted"], tmp_path / "merged")
    edits.change_tasks(root, task="U")
    for each in ("deleted", "merged", "root"):
        assert read_subtasks(tmp_path / each) == ["reach", "grasp"]
    edits.merge([root, tmp_path / "other"], tmp_path / "both")
    assert read_subtasks(tmp_path / "both") == ["reach", "grasp", "lift"]
    rows = [each["subtask_index"].tolist() for each in contents(tmp_path / "both")]
    assert rows == [[0, 1, 0, 1]] * 3 + [[2, 0, 2, 0]] * 3
    assert faults(tmp_path / "both") == set()
    with create(
        tmp_path / "none.well", {"subtask_index": number}, fps=10, metadata={"lerobot": {"subtasks": ["a"]}}
    ) as store:
        with store.writer() as writer:
            writer.add_episode({"subtask_index": [0, -1, -7]}, task="T")
        write_dataset(store, tmp_path / "none")
    edits.merge([root, tmp_path / "none"], tmp_path / "with_none")
    assert contents(tmp_path / "with_none")[-1]["subtask_index"].tolist() == [2, -1, -7]
    (tmp_path / "other/meta/subtasks.parquet").unlink()
    with pytest.raises(SchemaError, match=r"no meta/subtasks.parquet"):
        edits.merge([root, tmp_path / "other"], tmp_path / "neither")
    assert not (tmp_path / "neither").exists()
    edits.rewrite(root)
    assert read_subtasks(root) == ["reach", "grasp"]
    edits.change_features(
        root, removed=["subtask_index"], added={"n": (np.arange(12), {"dtype": "int64", "shape": [1]})}
    )
    assert read_subtasks(root) is None


def test_annotations_are_added_and_kept(tmp_path, capsys):
    root = make(tmp_path / "a", cameras={}, lengths=[3, 2])
    rows = [[{"role": "user", "content": f"what? {n}", "style": "vqa"}] * (n % 2) for n in range(5)]
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["edit", "features", str(root), "--add", f"language_events={file}"]) == 0
    edits.delete(root, [0], tmp_path / "deleted")
    edits.change_features(root, removed=["language_events"], target=tmp_path / "removed")
    with open_in_place(tmp_path / "deleted") as store:
        found = [json.loads(text) for text in store[0]["language_events"]]
    assert [[each["content"] for each in row] for row in found] == [["what? 3"], []]
    assert "language_events" not in Metadata.load(tmp_path / "removed").info.features
    assert faults(root) == faults(tmp_path / "deleted") == set()
    with pytest.raises(SchemaError, match="4 values, where the dataset has 5 rows"):
        edits.change_features(
            tmp_path / "removed", added={"language_events": (rows[:4], {"dtype": "language", "shape": [1]})}
        )
    file.write_text("{}\n")
    assert main(["edit", "features", str(root), "--add", f"language_persistent={file}"]) == 1
    assert "line 1 is no list" in capsys.readouterr().err


OPERATORS = ["by 0", "by 1", "by 2"]


def with_columns(root, **columns):
    """Put further columns, and further entries of info.json, into a dataset."""
    pq = pytest.importorskip("pyarrow.parquet")
    info = json.loads((root / "meta/info.json").read_text())
    info |= {"licence": "mit", "splits": {"train": "0:2", "val": "2:3"}}
    info["features"]["action"]["unit"] = "rad"
    (root / "meta/info.json").write_text(json.dumps(info))
    for path in (root / "meta/episodes").rglob("*.parquet"):
        table = pq.read_table(path)
        for name, values in columns.items():
            table = table.append_column(name, [[values[number] for number in table["episode_index"].to_pylist()]])
        pq.write_table(table, path)
    lines = root / "meta/episodes.jsonl"
    if lines.exists():
        found = [json.loads(line) for line in lines.read_text().splitlines()]
        for line in found:
            line |= {name: values[line["episode_index"]] for name, values in columns.items()}
        lines.write_text("".join(f"{json.dumps(line)}\n" for line in found))
    return root


def columns_of(root, *names):
    episodes = LeRobotDatasetMetadata("me/a", root).episodes
    return [list(episodes[name]) for name in names]


@VERSIONS
def test_further_columns_of_the_table_of_episodes_are_kept_and_read(version, tmp_path):
    root = with_columns(make(tmp_path / "a", version, cameras={}, lengths=[3, 2, 4]), operator=OPERATORS)
    assert columns_of(root, "operator") == [OPERATORS]
    edits.delete(root, [1], tmp_path / "deleted")
    edits.merge([root, tmp_path / "deleted"], tmp_path / "merged")
    assert columns_of(tmp_path / "merged", "operator") == [[*OPERATORS, "by 0", "by 2"]]
    edits.change_tasks(root, task="else")
    assert LeRobotDatasetMetadata("me/a", root).episodes[2]["operator"] == "by 2"


@VERSIONS
@pytest.mark.parametrize("in_place", [True, False])
def test_all_written_anew_keeps_what_the_format_does_not_know(version, in_place, tmp_path):
    columns = {
        "operator": OPERATORS,
        "score": [0.5, None, 2.0],
        "is_good": [True, False, None],
        "notes": [["a"], [], ["b", "c"]],
        "place": [{"x": 1, "y": 2.5}, {"x": 2, "y": 0.5}, None],
    }
    root = with_columns(make(tmp_path / "a", version, lengths=[3, 2, 4]), **columns)
    (root / "README.md").write_text("card")
    before = contents(root)
    with open_in_place(root) as store:
        assert [episode.metadata.get("operator") for episode in store] == OPERATORS
        assert "score" not in store[1].metadata
    target = None if in_place else tmp_path / "b"
    found = edits.rewrite(root, target)
    assert_episodes(found, before)
    assert columns_of(found, *columns) == list(columns.values())
    info = Metadata.load(found).info.raw
    assert info["licence"] == "mit" and info["splits"] == {"train": "0:2", "val": "2:3"}
    assert info["features"]["action"]["unit"] == "rad"
    assert (found / "README.md").read_text() == "card"
    # of other episodes splits would name other ones
    with open_in_place(found) as store:
        write_dataset(View(store, [0, 2]), tmp_path / "c", version=version)
    assert columns_of(tmp_path / "c", "operator") == [["by 0", "by 2"]]
    assert Metadata.load(tmp_path / "c").info.raw["splits"] == {"train": "0:2"}
    assert faults(found) == faults(tmp_path / "c") == set()


def test_metadata_of_any_store_become_columns_and_what_cannot_is_named(tmp_path):
    told = [{"seed": 1, "pose": {"x": 1}, "mixed": 1}, {"seed": 2, "pose": {"y": []}, "mixed": "two", "length": 9}]
    with create(tmp_path / "a.well", {"action": Array((2,))}, fps=10) as store:
        with store.writer() as writer:
            for each in told:
                writer.add_episode({"action": np.zeros((3, 2), np.float32)}, task="T", **each)
        with pytest.warns(LeftOutWarning, match=r"'length': left out, the format has columns"):
            write_dataset(store, tmp_path / "a")
        # a dataset that is appended to keeps its columns: the reader of lerobot wants the same in all files
        with pytest.warns(LeftOutWarning, match=r"'length': left out, the table of episodes has other ones"):
            write_dataset(store, tmp_path / "a", append=True)
    seeds, poses, mixed = columns_of(tmp_path / "a", "seed", "pose", "mixed")
    assert seeds == [1, 2] * 2 and [json.loads(pose) for pose in poses] == [{"x": 1}, {"y": []}] * 2
    assert mixed == ["1", '"two"'] * 2
    with open_in_place(tmp_path / "a") as store:
        assert [episode.metadata["seed"] for episode in store] == [1, 2, 1, 2]
    convert(tmp_path / "a", tmp_path / "b.well", workers=1)
    with open(tmp_path / "b.well") as store:
        assert store[3].metadata["seed"] == 2


def test_what_an_edit_does_not_keep_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    root = make(tmp_path / "a", cameras={}, lengths=[3, 2])
    path = next((root / "data").rglob("*.parquet"))
    table = pa.parquet.read_table(path)
    pa.parquet.write_table(table.append_column("extra", [list(range(len(table)))]), path)
    tasks = pa.parquet.read_table(root / "meta/tasks.parquet")
    pa.parquet.write_table(tasks.append_column("level", [list(range(len(tasks)))]), root / "meta/tasks.parquet")
    for edit in (lambda target: edits.delete(root, [0], target), lambda target: edits.rewrite(root, target)):
        target = tmp_path / ("c" if (tmp_path / "b").exists() else "b")
        with pytest.warns(LeftOutWarning) as caught:
            edit(target)
        texts = " ".join(str(each.message) for each in caught)
        assert "columns of data files: extra: left out" in texts and "columns of tasks: level: left out" in texts
    (tmp_path / "b/README.md").write_text("card")
    with pytest.warns(LeftOutWarning, match=r"files: README.md: left out"):
        edits.merge([tmp_path / "b", tmp_path / "c"], tmp_path / "m")


def test_columns_of_merged_tables_are_joined(tmp_path):
    one = with_columns(make(tmp_path / "a", cameras={}, lengths=[3, 2, 4]), score=[1, 2, 3], operator=OPERATORS)
    two = with_columns(make(tmp_path / "b", cameras={}, lengths=[3, 2, 4]), score=[0.5, 1.5, 2.5], place=["x"] * 3)
    edits.merge([one, two], tmp_path / "m")
    assert columns_of(tmp_path / "m", "score", "operator", "place") == [
        [1, 2, 3, 0.5, 1.5, 2.5],
        [*OPERATORS, None, None, None],
        [None, None, None, "x", "x", "x"],
    ]
    info = json.loads((two / "meta/info.json").read_text())
    (two / "meta/info.json").write_text(json.dumps(info | {"licence": "other"}))
    with pytest.warns(LeftOutWarning, match=r"entries of meta/info.json: licence: left out"):
        edits.merge([one, two], tmp_path / "o")
    assert Metadata.load(tmp_path / "o").info.raw["licence"] == "mit"
    three = with_columns(make(tmp_path / "c", cameras={}, lengths=[3, 2, 4]), score=["a", "b", "c"])
    with pytest.raises(SchemaError, match="a column of another type"):
        edits.merge([one, three], tmp_path / "n")


def test_a_table_of_which_no_episode_has_a_task_is_edited(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    root = make(tmp_path / "a", cameras={}, lengths=[3, 2])
    for path in (root / "meta/episodes").rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.set_column(table.column_names.index("tasks"), "tasks", [[[]] * len(table)]), path)
    before = contents(root)
    edits.renumber(root)
    assert_episodes(root, before)
    # rows name their tasks
    assert all(Metadata.load(root).episodes.tasks)


def test_wrong_requests_say_what_is_allowed_and_change_nothing(tmp_path):
    root = make(tmp_path / "a", cameras={})
    other = make(tmp_path / "o", cameras={}, fps=20)
    before = contents(root)
    with pytest.raises(EpisodeNotFoundError, match=r"no episode 9 .* 0 to 3"):
        edits.delete(root, [9])
    with pytest.raises(Exception, match="Leave at least one"):
        edits.delete(root, range(4))
    with pytest.raises(FeatureNotFoundError, match="'x' not found"):
        edits.change_features(root, removed=["x"])
    with pytest.raises(SchemaError, match="every dataset has"):
        edits.change_features(root, removed=["index"])
    with pytest.raises(SchemaError, match=r"21 values, .* 22 rows"):
        edits.change_features(root, added={"r": (np.zeros(21), {"dtype": "float64", "shape": [1]})})
    with pytest.raises(SchemaError, match="Same fps is expected"):
        edits.merge([root, other], tmp_path / "m")
    info = json.loads((other / "meta/info.json").read_text())
    info["features"]["action"]["names"] = ["v", "u"]
    (other / "meta/info.json").write_text(json.dumps(info | {"fps": 10}))
    with pytest.raises(SchemaError, match=r"'action' with names \['v', 'u'\]"):
        edits.merge([root, other], tmp_path / "m")
    with pytest.raises(ValueError, match="multiple splits"):
        edits.split(root, {"x": [0], "y": [0]}, {"x": tmp_path / "x", "y": tmp_path / "y"})
    (tmp_path / ".a.recording").mkdir()
    (tmp_path / ".a.recording/store.json").write_text("{}")
    with pytest.raises(StoreBusyError, match="Finalize it first"):
        edits.delete(root, [0])
    assert_episodes(root, before)
    assert not (tmp_path / "m").exists() and not (tmp_path / "x").exists()


def test_a_dataset_that_a_kill_left_beside_its_root_is_named(tmp_path):
    make(tmp_path / "a", cameras={}).rename(tmp_path / "a.before-edit")
    with pytest.raises(DatasetNotFoundError, match=r"move .*a.before-edit back"):
        edits.delete(tmp_path / "a", [0])


def test_the_command_edits_datasets_and_stores(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "a", cameras={})
    tiny_store("s.well", lengths=(4, 5, 6)).close()
    np.save("r.npy", np.arange(22, dtype=np.float32))
    for words in (
        "edit delete a 1,2 --out d",
        "edit split a parts x=0.5 y=0.5",
        "edit merge a d --out m",
        "edit features a --add r=r.npy --remove next.done",
        "edit tasks a --task T",
        "edit stats a",
        "edit renumber a",
        "edit rewrite a",
        "edit delete s.well 1 --out s2.well",
        "edit split s.well sp x=0 y=1:",
        "edit merge s.well s2.well --out m.well",
        "edit delete s.well 0",
    ):
        assert main(words.split()) == 0, words
    lines = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == [
        "LeRobot v3.0  2 episodes  9 steps",
        "LeRobot v3.0  2 episodes  12 steps",
        "LeRobot v3.0  2 episodes  10 steps",
        "LeRobot v3.0  6 episodes  31 steps",
    ]
    assert lines[-4:] == ["1 episode  4 steps", "2 episodes  11 steps", "5 episodes  25 steps", "2 episodes  11 steps"]
    assert main(["edit", "stats", "s.well"]) == main(["edit", "merge", "a", "s.well", "--out", "z"]) == 1
    assert "is a store" in capsys.readouterr().err
    assert not Path("z").exists()
