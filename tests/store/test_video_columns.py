"""Video in a store: recorded in the background, killed, copied, checked, and imported from files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import warm_children

from stepwell.errors import DecodeError, StepError, WriterClosedError
from stepwell.schema import Array, Image, Video
from stepwell.store import Store, concatenate, create, open

av = pytest.importorskip("av", reason="video needs PyAV")

HEIGHT, WIDTH = 48, 64
CAMERA = Video((HEIGHT, WIDTH, 3), gop=5, crf=18)


def frame_of(number: int, t: int) -> np.ndarray:
    """Return a smooth frame that tells episode and step: a ramp whose colour and place do."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    shade = 128 + 50 * np.sin((x + 3 * t) / 12) + 40 * np.cos((y - 2 * t + 9 * number) / 9)
    return np.stack([shade, 255 - shade, np.full_like(shade, 20 + 10 * (t % 20))], axis=-1).astype(np.uint8)


def frames_of(number: int, length: int) -> np.ndarray:
    return np.stack([frame_of(number, t) for t in range(length)])


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def assert_frames(found: np.ndarray, number: int, length: int) -> None:
    """Assert that each frame is the one of its step, and not of the step beside it."""
    assert len(found) == length
    for t, frame in enumerate(found):
        right = psnr_db(frame, frame_of(number, t))
        assert right > 30, (number, t, right)
        assert right > psnr_db(frame, frame_of(number, t + 1)) + 3, (number, t)


def record(store: Store, numbers: range, *, length: int = 12) -> None:
    with store.writer() as writer:
        for number in numbers:
            for t in range(length + number):
                writer.append(camera=frame_of(number, t), t=t)
            writer.end_episode(number=number)


def test_video_is_recorded_copied_and_checked(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"camera": CAMERA, "t": Array((), "int64")}, segment_bytes=4000)
    record(store, range(4))
    store.delete_episodes([1])
    store.compact()
    whole = concatenate(tmp_path / "b.well", [store, store])
    for well in (store, whole):
        for episode in well:
            assert_frames(episode["camera"], episode.metadata["number"], 12 + episode.metadata["number"])
        assert well.verify(deep=True).is_ok
    mean = store.statistics()["camera"].mean
    expected = np.concatenate([frames_of(number, 12 + number) for number in (0, 2, 3)]).mean(axis=(0, 1, 2))
    assert np.abs(mean - expected).max() < 3
    assert " a step" in str(store.info())


def test_video_has_final_frames_and_can_be_added(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"camera": CAMERA.with_final(), "t": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"camera": frames_of(1, 8), "t": np.arange(7)})
        writer.append(camera=frame_of(9, 0), t=0)
        writer.discard_episode()
        writer.add_episode({"camera": frames_of(2, 7), "t": np.arange(7)})
    assert_frames(store[0]["camera"], 1, 8)
    assert_frames(store[1]["camera"], 2, 7)
    store.add_column("back", CAMERA, [frames_of(3, 7), frames_of(4, 7)])
    assert_frames(store[1]["back"], 4, 7)
    assert store.verify(deep=True).is_ok


RECORDER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_video_columns import frame_of
from stepwell.store import open
with open(sys.argv[1]).writer(queue_bytes=0) as writer:
    for number in range(10**6):
        for t in range(20):
            writer.append(camera=frame_of(number, t), t=t)
            print("x", flush=True)
        writer.end_episode(number=number)
"""


@pytest.mark.parametrize("steps", [33, 58])
def test_a_kill_loses_only_frames_that_were_not_committed(tmp_path: Path, steps: int) -> None:
    store = create(tmp_path / "a.well", {"camera": CAMERA, "t": Array((), "int64")}, segment_bytes=20_000)
    command = [sys.executable, "-c", RECORDER, str(store.path), str(Path(__file__).parent)]
    child = warm_children.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(steps):
        assert child.stdout.readline() == "x\n"
    seen = open(store.path, mode="r")
    assert_frames(seen[len(seen) - 1]["camera"], len(seen) - 1, seen[len(seen) - 1].length)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    recovered = open(store.path)
    # two steps may wait in the queue, and one be encoded
    assert recovered.num_steps >= max(seen.num_steps, steps - 3)
    for number, episode in enumerate(recovered):
        assert_frames(episode["camera"], number, episode.length)
    assert recovered.verify(deep=True).is_ok


@pytest.mark.parametrize("encoder", ["h264", "hevc", "av1"])
def test_a_forked_child_of_a_recording_process_ends(tmp_path: Path, encoder: str) -> None:
    if f"lib{ {'h264': 'x264', 'hevc': 'x265', 'av1': 'svtav1'}[encoder] }" not in av.codecs_available:
        pytest.skip(f"this PyAV has no {encoder} encoder")
    camera = Video((HEIGHT, WIDTH, 3), encoder=encoder)
    store = create(tmp_path / "a.well", {"camera": camera, "t": Array((), "int64")})
    writer = store.writer()
    writer.append(camera=frame_of(0, 0), t=0)
    writer.append(camera=frame_of(0, 1), t=1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.append(camera=frame_of(0, 2), t=2)
        except WriterClosedError:
            del writer
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with writer:
        writer.append(camera=frame_of(0, 2), t=2)
        writer.end_episode()
    assert_frames(store[0]["camera"], 0, 3)


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"camera": CAMERA, "t": Array((), "int64")})
    record(store, range(2))
    (segment,) = store.segments
    path = segment.path / "camera.bin"
    data = bytearray(path.read_bytes())
    middle = (int(segment.offsets_map("camera")[19]) + int(segment.offsets_map("camera")[20])) // 2
    data[middle] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(
        DecodeError,
        match=rf"a.well: episode 1, steps 5 to 9, feature 'camera' \(camera.bin of segment {segment.name}\)",
    ):
        store[1]["camera"]
    assert_frames(store[0]["camera"], 0, 12)
    (segment.path / "segment.json").unlink()
    problems = [found.problem for found in store.verify(deep=True).findings if found.file.endswith("camera.bin")]
    assert len(problems) == 1
    assert "episode 1 of the segment, steps 5 to 9" in problems[0]


def movie(path: Path, number: int, length: int) -> Path:
    """Write an mp4 with B-frames and one keyframe in 8."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"bf": "2", "crf": "15", "g": "8"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for t in range(length):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame_of(number, t), "rgb24")))
        container.mux(stream.encode())
    return path


def test_movies_are_imported_without_being_encoded_again(tmp_path: Path) -> None:
    from stepwell.codecs.video_files import VideoFile

    store = create(tmp_path / "a.well", {"camera": CAMERA, "t": Array((), "int64")})
    with store.writer() as writer:
        for number in range(2):
            film = VideoFile(movie(tmp_path / f"{number}.mp4", number, 20))
            writer.add_episode({"camera": film, "t": np.arange(20)}, number=number)
        writer.append(camera=frame_of(2, 0), t=0)
        writer.end_episode(number=2)
        with pytest.raises(StepError, match="columns of different lengths"):
            writer.add_episode({"camera": VideoFile(tmp_path / "0.mp4"), "t": np.arange(19)})
    for number, length in enumerate((20, 20, 1)):
        assert_frames(store[number]["camera"], number, length)
    assert store.verify(deep=True).is_ok
    store.delete_episodes([0])
    store.compact()
    assert_frames(store[0]["camera"], 1, 20)


def test_a_movie_of_another_size_is_refused(tmp_path: Path) -> None:
    from stepwell.codecs.video_files import VideoFile

    store = create(tmp_path / "a.well", {"camera": Video((96, 96, 3)), "still": Image((4, 4), codec="png")})
    film = VideoFile(movie(tmp_path / "0.mp4", 0, 4))
    with store.writer() as writer:
        with pytest.raises(StepError, match=r"'camera': .* is 48x64 video"):
            writer.add_episode({"camera": film, "still": np.zeros((4, 4, 4), np.uint8)})
        with pytest.raises(StepError, match="'still': "):
            writer.add_episode({"camera": np.zeros((4, 96, 96, 3), np.uint8), "still": film})
