"""Checks of single mp4 files: whether they can be read, and whether frame n is shown at n / fps.

The index of a file is read, no packet, but for where h264 might begin with a picture that needs others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError, StepwellError
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.audits.tables import TOLERANCE_SECONDS
from stepwell.references.video_index import VideoIndex, make_index

__all__ = ["UNREADABLE", "VideoFile", "open_video_file"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
H264_SLICES, H264_IDR = range(1, 6), 5
# what may be in front of the first slice of a packet: parameter sets, what the encoder says of itself
HEAD_BYTES = 4096

MISSING = Rule("video-missing", "error", "Download it again, or leave these episodes out.")
UNREADABLE = Rule(
    "video-unreadable",
    "error",
    "Download it again. A recorder that was killed leaves videos without their index (moov).",
)
START = Rule(
    "video-start",
    "error",
    "Write the video again so that its first frame is shown at 0 s: LeRobot finds no frame at its times "
    "(FrameTimestampError), with a large tolerance_s another one.",
)
FPS = Rule(
    "video-fps",
    "error",
    "Encode the video again with the dataset's fps, or correct fps: LeRobot finds no frame at its times "
    "(FrameTimestampError), with a large tolerance_s another one.",
)
TIMES = Rule(
    "video-times",
    "error",
    "Encode the video again at a constant rate: LeRobot counts frames by the mean rate, so it finds none (IndexError, "
    "FrameTimestampError) or another one.",
)
SIZE = Rule("video-size", "error", "Correct the shape in info.json, or encode the video again.")


@dataclass(frozen=True, slots=True, eq=False)
class VideoFile:
    """One mp4 file that was looked at.

    Args:
        path: of the file.
        index: of its frames.
        is_regular: whether frame n is shown at n / fps.
        num_bytes: of the file.
    """

    path: Path
    index: VideoIndex
    is_regular: bool
    num_bytes: int

    @property
    def num_frames(self) -> int:
        """Frames that are shown."""
        return len(self.index.seconds)

    def nearest(self, seconds: Floats) -> Integers:
        """Return the frame that is shown nearest to each time, int64, as many."""
        return np.array([self.index.nearest(time) for time in seconds.tolist()], np.int64)

    @property
    def needed_bytes(self) -> int:
        """Where the last packet ends: beyond the file, when it was cut off and its index lies at its head."""
        return int((self.index.positions + self.index.sizes).max(initial=0))

    def is_cut(self, frame: int, count: int) -> bool:
        """Whether one of some frames lies beyond the end of the file."""
        packets = [self.index.packet_of(at) for at in range(frame, min(frame + count, self.num_frames))]
        return bool((self.index.positions[packets] + self.index.sizes[packets] > self.num_bytes).any())

    def begins_run(self, frame: int) -> bool:
        """Whether decoding may begin at a frame."""
        packet = self.index.packet_of(frame)
        at = int(self.index.keys.searchsorted(packet))
        return at < len(self.index.keys) and self.index.keys.item(at) == packet

    def needs_before(self, frame: int) -> bool:
        """Whether what follows the key frame, or the frame itself, needs pictures before it: an open group."""
        packet = self.index.packet_of(frame)
        if self.index.samples.kind == "h264" and not self._is_idr(packet):
            return True
        if self.index.pts is None:
            return False
        at = int(self.index.keys.searchsorted(packet, side="right"))
        stop = self.index.keys.item(at) if at < len(self.index.keys) else len(self.index.pts)
        return bool((self.index.pts[packet + 1 : stop] < self.index.pts[packet]).any())

    def _is_idr(self, packet: int) -> bool:
        num_bytes = min(int(self.index.sizes[packet]), HEAD_BYTES)
        with self.path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), num_bytes, int(self.index.positions[packet]))
        return _first_slice(data, self.index.samples.length_bytes) in (None, H264_IDR)


def _first_slice(data: bytes, length_bytes: int) -> int | None:
    """Return the type of the first slice of a packet of h264; None where there is none in these bytes."""
    place = 0
    while length_bytes and place + length_bytes < len(data):
        kind = data[place + length_bytes] & 0x1F
        if kind in H264_SLICES:
            return kind
        place += length_bytes + int.from_bytes(data[place : place + length_bytes], "big")
    return None


def open_video_file(subject: Subject, camera: str, path: str, episodes: Integers) -> VideoFile | None:
    """Look at one file; None where it cannot be read.

    Args:
        subject: what is audited.
        camera: name of the feature.
        path: below the root.
        episodes: numbers of those that should be in it.
    """
    about = f"{camera}: {path}"
    try:
        with (subject.root / path).open("rb", buffering=0) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            index = make_index(str(subject.root / path), size, lambda place, count: os.pread(descriptor, count, place))
    except FileNotFoundError:
        subject.tally.add(MISSING, about, "no such file", episodes)
    except MissingDependencyError as error:
        subject.tally.skip(f"videos: {error}")
    except Exception as error:  # whatever is on the disk must not end the audit
        problem = str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
        subject.tally.add(UNREADABLE, about, problem, episodes)
    else:
        _check_size(subject, camera, index, episodes)
        return VideoFile(subject.root / path, index, _check_times(subject, camera, path, index, episodes), size)
    return None


def _check_size(subject: Subject, camera: str, index: VideoIndex, episodes: Integers) -> None:
    height, width = subject.info.features[camera].feature.fixed_shape[:2]
    if (index.height, index.width) != (height, width):
        detail = f"videos of {index.height} x {index.width}, {height} x {width} in info.json"
        subject.tally.add(SIZE, camera, detail, episodes)


def _check_times(subject: Subject, camera: str, path: str, index: VideoIndex, episodes: Integers) -> bool:
    """Look whether frame n is shown at n / fps; returns whether it is."""
    fps, seconds = subject.info.fps, index.seconds
    if not len(seconds):
        subject.tally.add(UNREADABLE, f"{camera}: {path}", "no frames", episodes)
        return False
    is_regular = True
    if abs(seconds[0]) > TOLERANCE_SECONDS:
        subject.tally.add(START, camera, f"{path} begins at {seconds[0]:.6g} s", episodes)
        is_regular = False
    numbers, since = np.arange(len(seconds)), seconds - seconds[0]
    beside = np.abs(since - numbers / fps)
    if beside.max() > TOLERANCE_SECONDS:
        is_regular = False
        rate = (len(seconds) - 1) / since[-1]
        if np.abs(since - numbers / rate).max() < TOLERANCE_SECONDS:
            detail = f"{path} has {rate:.5g} frames a second, the dataset {fps:g}"
            subject.tally.add(FPS, camera, detail, episodes)
        else:
            at = int(np.argmax(beside > TOLERANCE_SECONDS))
            detail = f"frame {at} of {path} is shown at {since[at]:.6g} s, not at {at / fps:.6g} s"
            subject.tally.add(TIMES, camera, detail, episodes)
    return is_regular
