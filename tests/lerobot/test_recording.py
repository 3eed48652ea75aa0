"""Recording with LeRobot's verbs into a store."""

from __future__ import annotations

import errno
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
from stepwell.errors import (
    DatasetNotFoundError,
    DiskFullError,
    EncodeError,
    FormatError,
    ReadOnlyError,
    SchemaError,
    StepError,
    StepwellError,
    StoreExistsError,
    WriterClosedError,
)
from stepwell.lerobot import LeRobotRecorder
from stepwell.lerobot.tasks import tasks_of
from stepwell.store.encoding import RunWriter

from .recordings import FEATURES, VIDEO_FEATURES, add_frames, check_episode, frame


def create(root: Path, features: Any = FEATURES, **options: Any) -> LeRobotRecorder:
    return LeRobotRecorder.create(root, fps=10, features=features, **{"sync": "none", **options})


def record(root: Path, lengths: list[int], **options: Any) -> None:
    with create(root, **options) as recorder:
        for episode, length in enumerate(lengths):
            add_frames(recorder, episode, length)
            assert recorder.save_episode() == episode


def crash(recorder: LeRobotRecorder) -> None:
    """Leave a recording as a kill would."""
    with pytest.raises(KeyboardInterrupt), recorder:
        raise KeyboardInterrupt


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    record(tmp_path / "a.well", [3, 1, 5])
    store = stepwell.open(tmp_path / "a.well")
    assert list(store.schema or ()) == [*FEATURES, "task_index"]
    assert store.fps == 10
    for number, length in enumerate([3, 1, 5]):
        check_episode(store[number], number, length)
    assert [episode.metadata for episode in store] == [{"tasks": [task]} for task in ("push", "pull", "lift")]
    assert [episode["task_index"].tolist() for episode in store] == [[0] * 3, [1], [2] * 5]
    assert tasks_of(store) == ["push", "pull", "lift"]
    assert not store.episodes.interrupted.any()


def test_cameras_of_dtype_video_are_recorded_as_video(tmp_path: Path) -> None:
    pytest.importorskip("av")
    record(tmp_path / "a.well", [3, 5], features=VIDEO_FEATURES, video={"gop": 3})
    store = stepwell.open(tmp_path / "a.well")
    assert store.schema is not None
    assert store.schema["observation.images.top"] == stepwell.Video((16, 24, 3), gop=3)
    for number, length in enumerate([3, 5]):
        check_episode(store[number], number, length, tolerance=6)


def test_the_recorder_tells_what_it_has(tmp_path: Path) -> None:
    with create(tmp_path / "a.well", robot_type="so100") as recorder:
        add_frames(recorder, 0, 3)
        assert (recorder.num_episodes, recorder.num_frames, recorder.num_unsaved_frames) == (0, 0, 3)
        recorder.save_episode()
        assert "  1 episode, 3 frames  " in repr(recorder)
        add_frames(recorder, 1, 2)
        recorder.save_episode()
        assert (recorder.num_episodes, recorder.num_frames, recorder.num_unsaved_frames) == (2, 5, 0)
        assert recorder.tasks == ["push", "pull"]
        assert recorder.fps == 10
        assert recorder.info.robot_type == "so100"
        assert recorder.info.cameras == ("observation.images.top",)
        assert recorder.features["observation.state"] == FEATURES["observation.state"]
        assert recorder.features["timestamp"] == {"dtype": "float32", "shape": (1,), "names": None}
        assert repr(recorder) == f"<LeRobotRecorder {tmp_path / 'a.well'}  2 episodes, 5 frames  0 frames unsaved>"
    assert "finalized" in repr(recorder)


def test_an_episode_may_have_several_tasks(tmp_path: Path) -> None:
    with create(tmp_path / "a.well") as recorder:
        for step, task in enumerate(["push", "pull", "push"]):
            recorder.add_frame(frame(0, step, task))
        recorder.save_episode()
        recorder.add_frame(frame(1, 0, "pull"))
        recorder.save_episode()
    store = stepwell.open(tmp_path / "a.well")
    assert [episode["task_index"].tolist() for episode in store] == [[0, 1, 0], [1]]
    assert [episode.metadata["tasks"] for episode in store] == [["push", "pull"], ["pull"]]


def test_a_frame_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with create(tmp_path / "a.well") as recorder:
        recorder.add_frame(frame(0, 0))
        with pytest.raises(StepError, match=r"'observation\.state': got shape"):
            recorder.add_frame({**frame(0, 1, "dance"), "observation.state": np.zeros(2, np.float32)})
        with pytest.raises(StepError, match="'frame_index' computed"):
            recorder.add_frame({**frame(0, 1, "dance"), "frame_index": 1})
        assert recorder.num_unsaved_frames == 1
        recorder.add_frame(frame(0, 1))
        recorder.save_episode()
    store = stepwell.open(tmp_path / "a.well")
    check_episode(store[0], 0, 2)
    assert tasks_of(store) == ["push"]


def test_a_cleared_buffer_is_forgotten(tmp_path: Path) -> None:
    with create(tmp_path / "a.well") as recorder:
        recorder.clear_episode_buffer()
        add_frames(recorder, 1, 4)
        recorder.clear_episode_buffer()
        assert recorder.num_unsaved_frames == 0
        with pytest.raises(StepError, match="no frames to save"):
            recorder.save_episode()
        add_frames(recorder, 0, 2)
        assert recorder.save_episode() == 0
    store = stepwell.open(tmp_path / "a.well")
    assert len(store) == 1
    check_episode(store[0], 0, 2)
    assert store[0].metadata == {"tasks": ["push"]}


def test_finalize_takes_back_what_was_not_saved(tmp_path: Path) -> None:
    recorder = create(tmp_path / "a.well")
    add_frames(recorder, 0, 2)
    recorder.save_episode()
    add_frames(recorder, 1, 3)
    recorder.finalize()
    recorder.finalize()
    for call in (lambda: recorder.add_frame(frame(1, 0)), recorder.save_episode, recorder.clear_episode_buffer):
        with pytest.raises(WriterClosedError, match=r"finalized. Go on with LeRobotRecorder.resume"):
            call()
    store = stepwell.open(tmp_path / "a.well")
    assert len(store) == 1
    with LeRobotRecorder.resume(tmp_path / "a.well") as again:
        assert again.num_unfinished_frames == 0


def test_resume_goes_on_where_the_recording_was(tmp_path: Path) -> None:
    record(tmp_path / "a.well", [3, 1])
    with LeRobotRecorder.resume(tmp_path / "a.well") as recorder:
        assert (recorder.num_episodes, recorder.num_frames, recorder.tasks) == (2, 4, ["push", "pull"])
        recorder.add_frame(frame(2, 0, "pull"))
        recorder.add_frame(frame(2, 1, "lift"))
        assert recorder.save_episode() == 2
    store = stepwell.open(tmp_path / "a.well")
    check_episode(store[2], 2, 2)
    assert store[2]["task_index"].tolist() == [1, 2]
    assert tasks_of(store) == ["push", "pull", "lift"]


@pytest.mark.parametrize("features", [FEATURES, VIDEO_FEATURES], ids=["png", "video"])
@pytest.mark.parametrize("unfinished", ["drop", "keep"])
def test_a_half_episode_is_dropped_or_kept(tmp_path: Path, features: Any, unfinished: Any) -> None:
    if features is VIDEO_FEATURES:
        pytest.importorskip("av")
    recorder = create(tmp_path / "a.well", features)
    add_frames(recorder, 0, 2)
    recorder.save_episode()
    add_frames(recorder, 1, 4)
    crash(recorder)
    tolerance = 6 if features is VIDEO_FEATURES else 0
    with LeRobotRecorder.resume(tmp_path / "a.well", unfinished=unfinished) as recorder:
        assert recorder.num_unfinished_frames == 4
        kept = int(unfinished == "keep")
        assert (recorder.num_episodes, recorder.num_frames) == (1 + kept, 2 + 4 * kept)
        add_frames(recorder, 2, 3)
        assert recorder.save_episode() == 1 + kept
    with LeRobotRecorder.resume(tmp_path / "a.well", unfinished="drop") as recorder:
        assert (recorder.num_unfinished_frames, recorder.num_episodes) == (0, 2 + kept)
    store = stepwell.open(tmp_path / "a.well")
    numbers = [0, 1, 2] if kept else [0, 2]
    for episode, number in zip(store, numbers, strict=True):
        check_episode(episode, number, {0: 2, 1: 4, 2: 3}[number], tolerance)
        assert episode.metadata["tasks"] == [("push", "pull", "lift")[number]]
        assert not episode.interrupted
    assert store.verify(deep=True).is_ok


def test_a_crash_while_a_half_episode_is_kept_keeps_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = create(tmp_path / "a.well")
    add_frames(recorder, 0, 4)
    crash(recorder)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stepwell.Store, "delete_episodes", killed)
        LeRobotRecorder.resume(tmp_path / "a.well", unfinished="keep")
    with LeRobotRecorder.resume(tmp_path / "a.well", unfinished="keep") as recorder:
        assert (recorder.num_episodes, recorder.num_frames) == (1, 4)
    check_episode(stepwell.open(tmp_path / "a.well")[0], 0, 4)


def test_a_store_that_has_index_features_gets_them_filled(tmp_path: Path) -> None:
    with create(tmp_path / "a.well") as recorder:
        metadata = {"info": dict(recorder.info.raw)}
    features = dict(stepwell.open(tmp_path / "a.well").schema or {})
    indices = {name: stepwell.Array((), "int64") for name in ("frame_index", "episode_index", "index")}
    stepwell.create(
        tmp_path / "b.well",
        {**features, "timestamp": stepwell.Array(), **indices},
        fps=10,
        metadata={"lerobot": {**metadata, "tasks": ["push"]}},
    )
    with LeRobotRecorder.resume(tmp_path / "b.well") as recorder:
        for episode, length in enumerate([2, 3]):
            add_frames(recorder, episode, length)
            recorder.save_episode()
    store = stepwell.open(tmp_path / "b.well")
    last = store[1]
    assert np.array_equal(last["timestamp"], (np.arange(3) / 10).astype(np.float32))
    assert last["frame_index"].tolist() == [0, 1, 2]
    assert last["episode_index"].tolist() == [1, 1, 1]
    assert last["index"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"output": "v2.1"}, StepwellError, "output='v2.1' is not one of 'store', 'v3.0'"),
        ({"features": VIDEO_FEATURES, "use_videos": False}, SchemaError, "is of dtype 'video'"),
        ({"features": {"task": FEATURES["next.reward"]}}, SchemaError, "cannot be named 'task'"),
        ({"features": {"a/b": FEATURES["next.reward"]}}, FormatError, "'a/b'"),
        ({"features": {"a": {"dtype": "complex64", "shape": (1,)}}}, FormatError, "dtype is 'complex64'"),
        ({"features": {"a": {"dtype": np.float32, "shape": (1,)}}}, SchemaError, "dtypes by name"),
        ({"features": {"a": {"dtype": "image", "shape": (4, 4)}}}, FormatError, "feature 'a': shape is"),
        ({"image": {"codec": "gif"}}, SchemaError, "gif"),
        ({"image": {"quality": [3]}}, SchemaError, "quality"),
        ({"fps": 0}, FormatError, "fps is 0"),
        ({"queue_bytes": "many"}, StepwellError, "queue_bytes"),
        ({"sync": "always"}, StepwellError, "sync"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path: Path, options: Any, error: Any, told: str) -> None:
    with pytest.raises(error) as caught:
        LeRobotRecorder.create(tmp_path / "a.well", **{"fps": 10, "features": FEATURES, **options})
    assert told in str(caught.value)


def test_index_features_may_be_given_and_cameras_may_be_channels_first(tmp_path: Path) -> None:
    with create(tmp_path / "a.well") as recorder:
        features = recorder.features
    features["observation.images.top"] = {
        "dtype": "image",
        "shape": (3, 16, 24),
        "names": ["channels", "height", "width"],
    }
    record(tmp_path / "b.well", [2], features=features)
    check_episode(stepwell.open(tmp_path / "b.well")[0], 0, 2)


def test_a_root_that_is_taken_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a.well", [1])
    with pytest.raises(StoreExistsError, match=r"a.well is a store already.*resume"):
        create(tmp_path / "a.well")


def test_resume_needs_a_recording(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="neither a recording nor a LeRobot dataset"):
        LeRobotRecorder.resume(tmp_path / "a.well")
    assert list(tmp_path.iterdir()) == []
    stepwell.create(tmp_path / "b.well", {"action": stepwell.Array(2)})
    with pytest.raises(FormatError, match="not recorded with LeRobot's features"):
        LeRobotRecorder.resume(tmp_path / "b.well")
    with pytest.raises(StepwellError, match="unfinished='forget' is not one of 'drop', 'keep'"):
        LeRobotRecorder.resume(tmp_path / "b.well", unfinished="forget")  # type: ignore[arg-type]


def test_a_disk_that_cannot_be_written_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a.well", [1])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for begin in (lambda: create(tmp_path / "deep/b.well"), lambda: LeRobotRecorder.resume(tmp_path / "a.well")):
        with pytest.raises(ReadOnlyError, match="cannot be written to"):
            begin()


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("posix_fallocate", "pwrite", "write"):
        patch.setattr(os, name, full)


def record_until(call: Callable[[], Any]) -> None:
    for _ in range(100_000):
        call()


def test_a_full_disk_is_an_error_and_loses_nothing_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = create(tmp_path / "a.well")
    add_frames(recorder, 0, 2)
    recorder.save_episode()
    with monkeypatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(DiskFullError, match="no space left"):
            record_until(lambda: recorder.add_frame(frame(1, 0)))
    recorder.clear_episode_buffer()
    add_frames(recorder, 1, 3)
    recorder.save_episode()
    recorder.finalize()
    store = stepwell.open(tmp_path / "a.well")
    check_episode(store[0], 0, 2)
    check_episode(store[1], 1, 3)


def test_an_error_of_the_encoder_ends_the_recording_and_keeps_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    recorder = create(tmp_path / "a.well", VIDEO_FEATURES)
    add_frames(recorder, 0, 2)
    recorder.save_episode()

    def broken(*_: Any) -> None:
        raise EncodeError("the encoder is broken")

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "put", broken)
        add_frames(recorder, 1, 1)
        with pytest.raises(EncodeError, match="broken"):
            recorder.save_episode()
    for call in (lambda: recorder.add_frame(frame(1, 0)), recorder.clear_episode_buffer):
        with pytest.raises(WriterClosedError, match="an error ended the recording before"):
            call()
    recorder.finalize()
    with LeRobotRecorder.resume(tmp_path / "a.well") as recorder:
        assert recorder.num_episodes == 1


def test_arrays_of_a_frame_may_be_used_again(tmp_path: Path) -> None:
    reused = frame(0, 0)
    with create(tmp_path / "a.well") as recorder:
        for step in range(5):
            for name, value in frame(0, step).items():
                if name != "task":
                    reused[name][...] = value
            recorder.add_frame(reused)
        recorder.save_episode()
    check_episode(stepwell.open(tmp_path / "a.well")[0], 0, 5)


def test_a_child_process_leaves_the_recording_alone(tmp_path: Path) -> None:
    recorder = create(tmp_path / "a.well")
    add_frames(recorder, 0, 2)
    child = os.fork()
    if child == 0:
        try:
            recorder.add_frame(frame(0, 2))
        except WriterClosedError as error:
            recorder.finalize()
            os._exit(0 if "belongs to process" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    recorder.save_episode()
    recorder.finalize()
    check_episode(stepwell.open(tmp_path / "a.well")[0], 0, 2)


def test_what_was_found_unfinished_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = create(tmp_path / "a.well")
    add_frames(recorder, 0, 3)
    crash(recorder)
    LeRobotRecorder.resume(tmp_path / "a.well").finalize()
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'a.well'}: 3 frames of an episode that was not saved are dropped"
    ]


def record_forever(root: str, told: memoryview) -> None:
    """Record without end, and write down how many episodes and frames the recording owes us."""
    rng = random.Random(len(root))
    with LeRobotRecorder.resume(root) as recorder:
        for episode in range(10**6):
            length = rng.randrange(1, 9)
            add_frames(recorder, episode, length)
            told[1] = 1
            recorder.save_episode()
            told[0] += 1
            told[1] = 0


def killed_recording(root: Path, wait_seconds: float) -> tuple[int, bool]:
    """Record in a child that is killed; returns how many episodes it had saved, and whether it was saving another."""
    told = memoryview(mmap.mmap(-1, 16)).cast("q")
    child = os.fork()
    if child == 0:
        try:
            record_forever(str(root), told)
        finally:
            os._exit(1)
    while told[0] < 1:
        time.sleep(0.001)
    time.sleep(wait_seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return told[0], bool(told[1])


@pytest.mark.parametrize("features", [FEATURES, VIDEO_FEATURES], ids=["png", "video"])
@pytest.mark.parametrize("kill", range(4))
def test_a_kill_loses_no_saved_episode(tmp_path: Path, features: Any, kill: int) -> None:
    if features is VIDEO_FEATURES:
        pytest.importorskip("av")
    root = tmp_path / "a.well"
    create(root, features).finalize()
    owed, was_saving = killed_recording(root, random.Random(kill).random() / 20)
    with LeRobotRecorder.resume(root, unfinished="drop") as recorder:
        assert owed <= recorder.num_episodes <= owed + was_saving
        found = recorder.num_episodes
    store = stepwell.open(root)
    assert len(store) == found
    rng = random.Random(len(str(root)))
    for number, episode in enumerate(store):
        check_episode(episode, number, rng.randrange(1, 9), tolerance=6 if features is VIDEO_FEATURES else 0)
        assert [tasks_of(store)[index] for index in set(episode["task_index"].tolist())] == episode.metadata["tasks"]
    assert store.verify().is_ok
