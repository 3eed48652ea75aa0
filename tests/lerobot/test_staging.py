"""Recording out as a LeRobot v3.0 dataset: every saved episode comes into it exactly once."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.errors import DiskFullError, FormatError, SchemaError, StoreBusyError, StoreExistsError
from stepwell.lerobot import LeRobotRecorder, write_dataset
from stepwell.lerobot import staging as staging_module
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.metadata import Metadata
from stepwell.testing.lerobot import tiny_lerobot

from .recordings import FEATURES, TASKS, VIDEO_FEATURES, add_frames, check_episode, frame

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path_factory.mktemp("cache")))


def create(root: Path, features: Any = FEATURES, **options: Any) -> LeRobotRecorder:
    return LeRobotRecorder.create(root, fps=10, features=features, output="v3.0", **{"sync": "none", **options})


def record(recorder: LeRobotRecorder, lengths: list[int]) -> None:
    with recorder:
        for length in lengths:
            episode = recorder.num_episodes
            add_frames(recorder, episode, length)
            assert recorder.save_episode() == episode


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_dataset(root: Path, lengths: list[int], tolerance: int = 0) -> None:
    """Compare a dataset with the frames that were given."""
    dataset = Metadata.load(root)
    assert dataset.episodes.length.tolist() == lengths
    assert dataset.info.total_frames == sum(lengths)
    assert [list(texts) for texts in dataset.episodes.tasks] == [
        [TASKS[episode % 3]] for episode in range(len(lengths))
    ]
    with stepwell.open(f"lerobot://{root}") as store:
        for number, length in enumerate(lengths):
            check_episode(store[number], number, length, tolerance)
            assert {dataset.tasks[index] for index in store[number]["task_index"].tolist()} == {TASKS[number % 3]}


def test_finalize_makes_a_dataset_and_leaves_nothing_else(tmp_path: Path) -> None:
    recorder = create(tmp_path / "reach", robot_type="so100")
    assert recorder.root == tmp_path / "reach"
    assert names(tmp_path) == [".reach.recording"]
    record(recorder, [3, 1, 4])
    assert names(tmp_path) == ["reach"]
    check_dataset(tmp_path / "reach", [3, 1, 4])
    assert Metadata.load(tmp_path / "reach").info.robot_type == "so100"


def test_resume_appends(tmp_path: Path) -> None:
    record(create(tmp_path / "reach"), [3, 1])
    recorder = LeRobotRecorder.resume(tmp_path / "reach")
    assert (recorder.num_episodes, recorder.num_frames, recorder.tasks) == (2, 4, ["push", "pull"])
    record(recorder, [2, 5])
    assert names(tmp_path) == ["reach"]
    check_dataset(tmp_path / "reach", [3, 1, 2, 5])


def test_video_stays_as_it_was_encoded(tmp_path: Path) -> None:
    pytest.importorskip("av")
    record(create(tmp_path / "reach", VIDEO_FEATURES), [3, 4])
    record(LeRobotRecorder.resume(tmp_path / "reach"), [2])
    check_dataset(tmp_path / "reach", [3, 4, 2], tolerance=6)
    told = Metadata.load(tmp_path / "reach").info.features["observation.images.top"]
    assert told.is_video
    assert told.raw["info"]["video.codec"] == "h264"


def test_a_dataset_of_others_is_extended_by_what_has_its_features(tmp_path: Path) -> None:
    pytest.importorskip("av")
    cameras: Any = {"observation.images.top": ("video", (32, 48)), "observation.images.side": ("png", (16, 16))}
    root = tiny_lerobot(tmp_path / "tiny", episodes=2, cameras=cameras, encoder="av1")
    before = Metadata.load(root)
    with LeRobotRecorder.resume(root) as recorder:
        assert (recorder.num_episodes, recorder.num_frames) == (2, before.info.total_frames)
        assert recorder.tasks == list(before.tasks)
        schema = stepwell.open(tmp_path / ".tiny.recording").schema
        assert schema is not None
        assert schema["observation.images.top"] == stepwell.Video((32, 48, 3), encoder="av1")
        for _ in range(3):
            recorder.add_frame(
                {
                    "observation.images.top": np.full((32, 48, 3), 7, np.uint8),
                    "observation.images.side": np.full((16, 16, 3), 9, np.uint8),
                    "observation.state": np.zeros(4, np.float32),
                    "action": np.ones(2, np.float32),
                    "next.reward": 0.5,
                    "next.done": False,
                    "observation.grid": np.ones((2, 3), np.int64),
                    "observation.note": "by hand",
                    "task": "a new task",
                }
            )
        recorder.save_episode()
    after = Metadata.load(root)
    assert after.episodes.length.tolist() == [*before.episodes.length.tolist(), 3]
    assert after.tasks == (*before.tasks, "a new task")
    with stepwell.open(f"lerobot://{root}") as store:
        assert store[2]["observation.note"] == ["by hand"] * 3
        assert np.abs(np.asarray(store[2]["observation.images.top"]).astype(int) - 7).max() <= 6


def test_only_datasets_of_v3_are_extended(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version="v2.1", episodes=1)
    with pytest.raises(FormatError, match=r"of v2.1. Only v3.0 can be extended"):
        LeRobotRecorder.resume(root)
    assert names(tmp_path) == ["tiny"]


def test_a_dataset_with_more_than_it_counts_is_refused_before_recording(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", episodes=2, cameras={})
    info, first = json.loads((root / "meta/info.json").read_text()), int(Metadata.load(root).episodes.length[0])
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 1, "total_frames": first}))
    with pytest.raises(FormatError, match="counts 1 episodes, its tables have 2"):
        LeRobotRecorder.resume(root)
    assert names(tmp_path) == ["tiny"]


def test_a_recording_without_episodes_can_be_gone_on_with(tmp_path: Path) -> None:
    create(tmp_path / "reach").finalize()
    assert names(tmp_path) == [".reach.recording"]
    record(LeRobotRecorder.resume(tmp_path / "reach"), [2])
    LeRobotRecorder.resume(tmp_path / "reach").finalize()
    assert names(tmp_path) == ["reach"]
    check_dataset(tmp_path / "reach", [2])


def test_what_was_forked_meanwhile_does_not_count_as_another_recorder(
    tmp_path: Path, forked_child: Callable[[], None]
) -> None:
    recorder = create(tmp_path / "reach")
    forked_child()
    recorder.finalize()
    record(LeRobotRecorder.resume(tmp_path / "reach"), [2])
    check_dataset(tmp_path / "reach", [2])


def test_what_was_not_finalized_is_not_overwritten(tmp_path: Path) -> None:
    recorder = create(tmp_path / "reach")
    with pytest.raises(StoreBusyError, match="recorded into by another process"):
        LeRobotRecorder.resume(tmp_path / "reach")
    add_frames(recorder, 0, 2)
    recorder.save_episode()
    abandon(recorder)
    with pytest.raises(StoreExistsError, match=r"earlier recording of .* was not finalized"):
        create(tmp_path / "reach")
    LeRobotRecorder.resume(tmp_path / "reach").finalize()
    check_dataset(tmp_path / "reach", [2])
    with pytest.raises(StoreExistsError, match="is there already"):
        create(tmp_path / "reach")


def test_what_a_dataset_cannot_have_is_refused_before_it_is_recorded(tmp_path: Path) -> None:
    odd = {"a": {"dtype": "video", "shape": (15, 20, 3)}}
    with pytest.raises(SchemaError, match="even sides"):
        create(tmp_path / "reach", odd)
    with pytest.raises(SchemaError, match="gif"):
        create(tmp_path / "reach", image={"codec": "gif"})
    assert names(tmp_path) == []


def abandon(recorder: LeRobotRecorder) -> None:
    """Let go of a recording as a killed process does: nothing is closed, its locks are free."""
    recorder._queue.close()
    recorder._writer.__del__()
    assert recorder._staging is not None
    recorder._staging.close()


@pytest.mark.parametrize("unfinished", ["drop", "keep"])
def test_a_half_episode_does_not_come_into_the_dataset_before_it_is_asked_for(tmp_path: Path, unfinished: Any) -> None:
    with pytest.raises(KeyboardInterrupt), create(tmp_path / "reach") as recorder:
        add_frames(recorder, 0, 3)
        recorder.save_episode()
        add_frames(recorder, 1, 2)
        raise KeyboardInterrupt
    check_dataset(tmp_path / "reach", [3])
    assert names(tmp_path) == [".reach.recording", "reach"]
    with LeRobotRecorder.resume(tmp_path / "reach", unfinished=unfinished) as recorder:
        assert recorder.num_unfinished_frames == 2
        assert recorder.num_episodes == (1 if unfinished == "drop" else 2)
    assert names(tmp_path) == ["reach"]
    check_dataset(tmp_path / "reach", [3] if unfinished == "drop" else [3, 2])


@pytest.mark.parametrize("is_first", [True, False], ids=["new", "append"])
@pytest.mark.parametrize("moment", ["before", "after", "deleted"])
def test_an_export_that_was_killed_happens_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool, moment: str
) -> None:
    root, lengths = tmp_path / "reach", [3, 1]
    record(create(root), lengths[: 2 - is_first])
    recorder = LeRobotRecorder.resume(root)
    add_frames(recorder, len(lengths[: 2 - is_first]), 4)
    recorder.save_episode()

    def killed(*arguments: Any, **options: Any) -> None:
        if moment == "after":
            write_dataset(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if moment == "deleted":
            patch.setattr(staging_module.Staging, "_remove", killed)
        else:
            patch.setattr(staging_module, "write_dataset", killed)
        recorder.finalize()
    again = LeRobotRecorder.resume(root)
    expected = [*lengths[: 2 - is_first], 4]
    assert (again.num_episodes, again.num_frames) == (len(expected), sum(expected))
    record(again, [2])
    assert names(tmp_path) == ["reach"]
    check_dataset(root, [*expected, 2])


def test_episodes_that_others_recorded_after_a_kill_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "reach"
    record(create(root), [3])
    recorder = LeRobotRecorder.resume(root)
    add_frames(recorder, 2, 4)
    recorder.save_episode()

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(staging_module, "write_dataset", killed)
        recorder.finalize()
    with LeRobotRecorder.create(tmp_path / "other.well", fps=10, features=FEATURES, sync="none") as other:
        add_frames(other, 1, 4)
        other.save_episode()
    write_dataset(tmp_path / "other.well", root, append=True)
    LeRobotRecorder.resume(root).finalize()
    check_dataset(root, [3, 4, 4])


def test_a_grey_camera_goes_on_being_recorded(tmp_path: Path) -> None:
    camera = "observation.images.wrist"
    recorder = create(tmp_path / "reach", {camera: {"dtype": "image", "shape": (16, 24, 1), "names": None}})
    for value in (10, 20):
        with recorder:
            recorder.add_frame({camera: np.full((16, 24, 1), value, np.uint8), "task": "reach"})
            recorder.save_episode()
        recorder = LeRobotRecorder.resume(tmp_path / "reach")
    recorder.finalize()
    with stepwell.open(f"lerobot://{tmp_path / 'reach'}") as store:
        assert [episode[camera].mean() for episode in store] == [10, 20]


def test_a_full_disk_at_the_end_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = create(tmp_path / "reach")
    add_frames(recorder, 0, 3)
    recorder.save_episode()

    def full(*_: Any, **__: Any) -> None:
        error = DiskFullError("no space left")
        error.errno = errno.ENOSPC
        raise error

    with (
        monkeypatch.context() as patch,
        pytest.raises(DiskFullError, match=r"make room, then .*resume\(.*finalize") as caught,
    ):
        patch.setattr(staging_module, "write_dataset", full)
        recorder.finalize()
    assert caught.value.errno == errno.ENOSPC
    recorder.finalize()
    assert names(tmp_path) == [".reach.recording"]
    LeRobotRecorder.resume(tmp_path / "reach").finalize()
    check_dataset(tmp_path / "reach", [3])


def record_for_ever(root: Path, told: memoryview) -> None:
    """Record, finalize and resume without end, and write down how many episodes the recording owes us."""
    while True:
        with LeRobotRecorder.resume(root) as recorder:
            for _ in range(3):
                add_frames(recorder, recorder.num_episodes, 1 + recorder.num_episodes % 4)
                recorder.save_episode()
                told[0] = recorder.num_episodes


@pytest.mark.parametrize("kill", range(6))
def test_a_kill_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path: Path, kill: int) -> None:
    root = tmp_path / "reach"
    record(create(root), [1])
    told = memoryview(mmap.mmap(-1, 8)).cast("q")
    child = os.fork()
    if child == 0:
        try:
            record_for_ever(root, told)
        finally:
            os._exit(1)
    while told[0] < 2:
        time.sleep(0.001)
    time.sleep(random.Random(kill).random() / 5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # readable as it is, and made of the first episodes only
    assert (root / INFO_PATH).exists()
    with LeRobotRecorder.resume(root) as recorder:
        assert recorder.num_episodes - told[0] in (0, 1)
        expected = [1 + episode % 4 for episode in range(recorder.num_episodes)]
        add_frames(recorder, len(expected), 1 + len(expected) % 4)
        recorder.save_episode()
    assert names(tmp_path) == ["reach"]
    check_dataset(root, [*expected, 1 + len(expected) % 4])


def test_a_frame_of_a_dataset_of_others_must_have_its_features(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", episodes=1)
    with LeRobotRecorder.resume(root) as recorder, pytest.raises(ValueError, match=r"'observation\.grid'"):
        recorder.add_frame(frame(0, 0))


def codecs_of(root: Path) -> set[str]:
    """Return what the files of videos are really of."""
    av = pytest.importorskip("av")
    found = set()
    for path in root.glob("videos/**/*.mp4"):
        with av.open(str(path)) as container:
            found.add(container.streams.video[0].codec_context.name.replace("libdav1d", "av1"))
    return found


@pytest.mark.parametrize("encoder", ["h264", "hevc"])
@pytest.mark.parametrize(
    "video", [None, {}, {"gop": 4}, {"encoder": "h264"}, {"encoder": "hevc"}, {"encoder": "av1"}], ids=str
)
def test_what_is_resumed_is_of_the_codec_that_info_json_tells_of(tmp_path: Path, encoder: str, video: Any) -> None:
    pytest.importorskip("av")
    root = tmp_path / "reach"
    record(create(root, VIDEO_FEATURES, video={"encoder": encoder}), [3])
    other = (video or {}).get("encoder", encoder) != encoder
    if other:
        with pytest.raises(SchemaError, match=rf"camera 'observation.images.top' are '{encoder}' by .*info\.json"):
            LeRobotRecorder.resume(root, video=video)
        assert names(tmp_path) == ["reach"]
    else:
        recorder = LeRobotRecorder.resume(root, video=video)
        schema = stepwell.open(tmp_path / ".reach.recording").schema
        assert schema is not None
        own = dict(schema["observation.images.top"].options)
        assert own["encoder"] == encoder and own["gop"] == (video or {}).get("gop", 2)
        record(recorder, [2])
        check_dataset(root, [3, 2], tolerance=8)
    told = Metadata.load(root).info.features["observation.images.top"].raw["info"]["video.codec"]
    assert codecs_of(root) == {told} == {encoder}


def test_a_camera_of_a_codec_that_is_not_written_here_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("av")
    root = tmp_path / "reach"
    record(create(root, VIDEO_FEATURES), [2])
    info = json.loads((root / INFO_PATH).read_text())
    info["features"]["observation.images.top"]["info"]["video.codec"] = "vp9"
    (root / INFO_PATH).write_text(json.dumps(info))
    with pytest.raises(SchemaError, match=r"'observation.images.top' has videos of 'vp9', which are not written here"):
        LeRobotRecorder.resume(root)


def test_options_of_a_recording_that_is_gone_on_with_are_its_own(tmp_path: Path) -> None:
    pytest.importorskip("av")
    root = tmp_path / "reach"
    for output in (None, "v3.0"):
        options = {} if output is None else {"output": output}
        path = tmp_path / ("a.well" if output is None else "reach")
        recorder = LeRobotRecorder.create(path, fps=10, features=VIDEO_FEATURES, sync="none", **options)
        add_frames(recorder, 0, 2)
        recorder.save_episode()
        with pytest.raises(KeyboardInterrupt), recorder:
            raise KeyboardInterrupt
        with pytest.raises(SchemaError, match="'h264'"):
            LeRobotRecorder.resume(path, video={"encoder": "hevc"})
        record(LeRobotRecorder.resume(path, video={"encoder": "h264", "gop": 2}), [1])
    check_dataset(root, [2, 1], tolerance=8)


def test_an_append_of_another_codec_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("av")
    root = tmp_path / "reach"
    record(create(root, VIDEO_FEATURES), [2])
    other = LeRobotRecorder.create(
        tmp_path / "other.well", fps=10, features=VIDEO_FEATURES, sync="none", video={"encoder": "hevc"}
    )
    record(other, [3])
    with pytest.raises(SchemaError, match=r"an episode of hevc, where the dataset's others are h264"):
        write_dataset(tmp_path / "other.well", root, append=True)
    check_dataset(root, [2], tolerance=8)
    assert codecs_of(root) == {"h264"}
