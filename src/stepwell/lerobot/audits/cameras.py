"""Checks of cameras: mp4 files, which frames of them are whose, images in data files; deep: all of them, decoded.

::

    file-000.mp4   |0    episode 0    |1.2  episode 1   |2.5           file-001.mp4   |0   episode 2   |0.9
    episodes       from 0.0 to 1.2     from 1.2 to 2.5                                  from 0.0: counted again

A reader takes frame ``round((from_timestamp + timestamp) * fps)``: a span that is wrong shows another episode. Without
``deep`` of each mp4 file the index is read, and packets where h264 may begin with a frame that needs others.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_decoding import DEEP
from stepwell.codecs.video_packets import claimed_bytes, opened_video, turn_of
from stepwell.codecs.video_streams import turned
from stepwell.errors import DecodeError, MissingDependencyError, StepwellError
from stepwell.files.local_files import open_regular
from stepwell.lerobot.audits.absence import Absences
from stepwell.lerobot.audits.episodes import NOWHERE, RATE, TOLERANCE_SECONDS, Places
from stepwell.lerobot.audits.meta import StoredStatistics, check_camera_statistics
from stepwell.lerobot.audits.report import ENCODE_AGAIN, RENUMBER, RETIME, WRITE_AGAIN, Rule, Subject, Tally
from stepwell.lerobot.audits.rows import DataFile, data_paths, read_data_files
from stepwell.lerobot.depth import Depth, depth_of
from stepwell.lerobot.parquet_images import PILLOW_FORMATS
from stepwell.lerobot.statistics import StatisticsSum, depth_summary, image_summary, sampled_steps
from stepwell.progress import make_bar
from stepwell.references.video_index import VideoIndex, make_index

__all__ = ["UNREADABLE", "check_first_images", "check_images", "check_videos", "video_members"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Advance = Callable[[int], object]
H264_SLICES, H264_IDR = range(1, 6), 5
# parameter sets and messages of the encoder may come before the first slice of a packet
HEAD_BYTES = 4096
HALF_FRAME = 0.5
BATCH_ROWS = 64
BLOCK = 8
# levels of 255 by which means of blocks differ though nothing moved: lossy video and sensors' noise leave so much
STILL_LEVELS, BLACK_LEVEL = 4.0, 8.0
SHORTEST_STEPS = 3
SAMPLED_IMAGES = 16
LFS_HEAD = b"version https://git-lfs.github.com/spec/"
# names of encoders, and others, that stand in info.json
CODEC_NAMES = {"libsvtav1": "av1", "libaom-av1": "av1", "libdav1d": "av1", "libx264": "h264", "avc1": "h264"} | {
    "libx265": "hevc",
    "h265": "hevc",
    "libvpx-vp9": "vp9",
}
AGAIN = "Correct from_timestamp and file_index in meta/episodes: these steps show"

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
ROTATION = Rule(
    "video-rotation",
    "warning",
    "Encode the video again as it is shown: stepwell, torchcodec and players follow the file's display matrix, other "
    "decoders (PyAV, OpenCV by its version) show the frames as they lie.",
    ENCODE_AGAIN,
)
CODEC = Rule(
    "video-codec",
    "warning",
    "Correct video.codec in info.json: recorders that go on encode by it, and decoders are chosen by it.",
    WRITE_AGAIN,
)
POINTER = Rule(
    "video-pointer", "error", "Fetch the contents: these files are what git leaves where Git LFS is not installed."
)
SEVERAL = Rule(
    "video-several-files",
    "warning",
    "Do not read it with StreamingLeRobotDataset (lerobot 0.4.4 to 0.6), which takes index / fps for the time in the "
    "file: it shows wrong frames from the second file on, silently. LeRobotDataset and stepwell are right.",
)
RESTART = Rule(
    "span-restart", "error", "Count from_timestamp from 0 again in each file: these steps show no or other frames."
)
BEYOND = Rule("span-beyond-end", "error", f"{AGAIN} no frames, or the last one over and over.")
OVERLAP = Rule("span-overlap", "error", f"{AGAIN} another episode.")
LENGTH = Rule("span-length", "error", "Look which is right: steps and frames drift apart if some were dropped.")
END = Rule(
    "span-end",
    "warning",
    "Write to_timestamp = from_timestamp + length / fps. Readers take from_timestamp alone and show the right frames; "
    "tools that cut videos at to_timestamp lose some, or take those of the next episode.",
    RENUMBER,
)
OFF_GRID = Rule(
    "span-grid",
    "error",
    "Write from_timestamp = (frames before) / fps: LeRobot raises FrameTimestampError, or takes a neighbouring frame.",
)
FRAMES = Rule("video-frames", "error", "Look which is right: steps and frames drift apart if some were dropped.")
UNUSED = Rule("video-unused", "warning", "If episodes were deleted, nothing; else look whether spans are shifted.")
NO_KEY = Rule(
    "video-no-key",
    "warning",
    "Encode with a key frame at each episode's beginning: cutting without encoding again takes wrong frames.",
    ENCODE_AGAIN,
)
OPEN_GROUP = Rule(
    "video-open-gop",
    "warning",
    "Encode with closed groups of pictures: frames at these episodes' beginning are made of those of the one before.",
    ENCODE_AGAIN,
)
IMAGE_MISSING = Rule(
    "image-missing", "error", "Write the bytes of the pictures into the data files: the paths there lead nowhere else."
)
IMAGE_UNREADABLE = Rule("image-unreadable", "error", "Write these pictures again, or leave the steps' episodes out.")
IMAGE_SIZE = Rule("image-size", "error", "Correct the shape in info.json, or write the pictures at that size.")
FROZEN = Rule("camera-frozen", "warning", "Look at the episode: the camera hung, or nothing moved. Leave it out if so.")
BLACK = Rule("camera-black", "warning", "Look at the episode: the camera was off or covered. Leave it out if so.")
DAMAGED = Rule("video-damaged", "error", "Download the file again, or leave these episodes out.")


@dataclass(frozen=True, slots=True, eq=False)
class VideoFile:
    """One mp4 file and its index."""

    path: Path
    index: VideoIndex
    is_regular: bool  # whether frame n is shown at n / fps
    num_bytes: int
    claimed_bytes: int  # by the file's own account

    @property
    def num_frames(self) -> int:
        """Frames that are shown."""
        return len(self.index.seconds)

    def nearest(self, seconds: Floats) -> Integers:
        """Return the frame that is shown nearest to each time, int64, as many."""
        return np.array([self.index.nearest(time) for time in seconds.tolist()], np.int64)

    @property
    def indexed_bytes(self) -> int:
        """Where the last packet ends: beyond the file, when it was cut off and its index lies at its head."""
        return int((self.index.positions + self.index.sizes).max(initial=0))

    def is_cut(self, frame: int, count: int) -> bool:
        """Whether one of some frames lies beyond the end of the file; PyAV before 17 only knows those before it."""
        if frame + count > self.num_frames:
            return True
        packets = [self.index.packet_of(at) for at in range(frame, min(frame + count, self.num_frames))]
        return bool((self.index.positions[packets] + self.index.sizes[packets] > self.num_bytes).any())

    def begins_run(self, frame: int) -> bool:
        """Whether decoding may begin at a frame."""
        packet = self.index.packet_of(frame)
        at = int(self.index.keys.searchsorted(packet))
        return at < len(self.index.keys) and self.index.keys.item(at) == packet

    def needs_before(self, frame: int) -> bool:
        """Whether what follows the key frame, or the frame itself, needs frames before it: an open group."""
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


def open_video_file(absences: Absences, camera: str, path: str, episodes: Integers) -> VideoFile | None:
    """Look at one file; None where it cannot be read."""
    subject, about = absences.subject, f"{camera}: {path}"
    try:
        with os.fdopen(open_regular(subject.root / path), "rb", buffering=0) as file:
            descriptor = file.fileno()

            def read(place: int, count: int) -> bytes:
                return os.pread(descriptor, count, place)

            size = os.fstat(descriptor).st_size
            if read(0, len(LFS_HEAD)) == LFS_HEAD:
                command = shlex.join(["git", "-C", str(subject.root), "lfs", "pull"])
                subject.tally.add(POINTER, camera, f"{path}: a pointer of Git LFS", episodes, command=command)
                return None
            index, claimed = make_index(str(subject.root / path), size, read), claimed_bytes(read, size)
    except FileNotFoundError:
        absences.add(path, episodes.tolist(), camera)
    except MissingDependencyError as error:
        subject.tally.skip(f"videos: {error}")
    except Exception as error:  # nothing on the disk may end the audit
        problem = str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
        subject.tally.add(UNREADABLE, about, problem, episodes)
    else:
        _check_form(subject, camera, path, index, episodes)
        is_regular = _check_times(subject, camera, path, index, episodes)
        return VideoFile(subject.root / path, index, is_regular, size, claimed)
    return None


def _check_form(subject: Subject, camera: str, path: str, index: VideoIndex, episodes: Integers) -> None:
    """Check size and encoding of a file against info.json, and that its frames lie as they are shown."""
    raw = subject.info.features[camera].raw
    about = raw.get("info") or raw.get("video_info")
    codec = about.get("video.codec") if isinstance(about, dict) else None
    if isinstance(codec, str) and CODEC_NAMES.get(codec, codec) != index.samples.kind:
        detail = f"{path} is {index.samples.kind}, {codec} in info.json"
        subject.tally.add(CODEC, camera, detail, episodes)
    if index.turn:
        detail = f"players show the frames of {path} turned or mirrored: its display matrix says so"
        subject.tally.add(ROTATION, camera, detail, episodes)
    height, width = subject.info.features[camera].feature.fixed_shape[:2]
    if (index.height, index.width) != (height, width):
        detail = f"videos of {index.height} x {index.width}, {height} x {width} in info.json"
        subject.tally.add(SIZE, camera, detail, episodes)


def _check_times(subject: Subject, camera: str, path: str, index: VideoIndex, episodes: Integers) -> bool:
    """Check that frame n is shown at n / fps; returns whether it is."""
    fps, seconds = subject.info.fps, index.seconds
    if not len(seconds):
        subject.tally.add(UNREADABLE, f"{camera}: {path}", "no frames", episodes)
        return False
    is_regular = True
    # of files with as many frames as steps it is known which is of which
    num_steps = int(subject.episodes.length[np.isin(subject.episodes.index, episodes)].sum())
    # where fps is wrong the frames may be right
    command = RETIME if num_steps == len(seconds) and not subject.tally.has(RATE) else ""
    if abs(seconds[0]) > TOLERANCE_SECONDS:
        subject.tally.add(START, camera, f"{path} begins at {seconds[0]:.6g} s", episodes, command=command)
        is_regular = False
    numbers, since = np.arange(len(seconds)), seconds - seconds[0]
    beside = np.abs(since - numbers / fps)
    if beside.max() > TOLERANCE_SECONDS:
        is_regular = False
        rate = (len(seconds) - 1) / since[-1]
        if np.abs(since - numbers / rate).max() < TOLERANCE_SECONDS:
            detail = f"{path} has {rate:.5g} frames a second, the dataset {fps:g}"
            subject.tally.add(FPS, camera, detail, episodes, command=command)
        else:
            at = int(np.argmax(beside > TOLERANCE_SECONDS))
            detail = f"frame {at} of {path} is shown at {since[at]:.6g} s, not at {at / fps:.6g} s"
            subject.tally.add(TIMES, camera, detail, episodes, command=command)
    return is_regular


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """The episodes in one file of a camera, by the time at which they begin."""

    subject: Subject
    camera: str
    number: Integers
    start: Floats
    stop: Floats
    after: Floats  # where the next one in the file begins, of whichever episode; infinite for the last
    length: Integers

    def report(self, rule: Rule, wrong: npt.ArrayLike, detail: Callable[[int], str]) -> None:
        """Report the episodes whose spans are wrong, with the detail of the first."""
        found = np.flatnonzero(wrong)
        if len(found):
            self.subject.tally.add(rule, self.camera, detail(int(found[0])), self.number[found])


def video_members(subject: Subject, camera: str) -> dict[str, Integers]:
    """Return the places of the episodes that are looked at by the path of their mp4 file."""
    return subject.members(subject.places, lambda place: subject.video_path(camera, place))


def check_videos(subject: Subject, places: Places, advance: Callable[[], None]) -> None:
    """Look at the index of every video file, and at the spans of the episodes in it."""
    absences, num_files = Absences(subject, MISSING), 0
    for camera in subject.info.video_keys:
        members = video_members(subject, camera)
        num_files += len(members)
        if subject.info.is_v3 and len(members) > 1:
            later = np.concatenate(list(members.values())[1:])
            detail = f"{len(members)} mp4 files"
            subject.tally.add(SEVERAL, camera, detail, subject.episodes.index[later])
        before = 0
        for path, found in members.items():
            spans = _spans_of(subject, camera, found, places)
            file = open_video_file(absences, camera, path, spans.number)
            if file is not None and len(spans.number) and _check_bytes(f"{camera}: {path}", file, spans):
                _check_spans(file, spans, before)
            before += int(spans.length.sum())
            advance()
    absences.report(num_files)


def _spans_of(subject: Subject, camera: str, members: Integers, places: Places) -> _Spans:
    episodes, spans = subject.episodes, subject.episodes.videos[camera]
    length = np.where(places.length > 0, places.length, episodes.table_length)
    known = members[np.isfinite(spans.start[members]) & (length[members] > 0)]
    order = known[np.argsort(spans.start[known], kind="stable")]
    start = spans.start[order]
    is_here = (spans.chunk == spans.chunk[members[0]]) & (spans.file == spans.file[members[0]])
    begins = np.append(np.sort(spans.start[is_here & np.isfinite(spans.start)]), np.inf)
    after = begins[np.searchsorted(begins, start, side="right")]
    return _Spans(subject, camera, episodes.index[order], start, spans.stop[order], after, length[order])


def _check_bytes(about: str, file: VideoFile, spans: _Spans) -> bool:
    """Check that the file was not cut off; returns whether all of its frames are known."""
    needed = max(file.indexed_bytes, file.claimed_bytes)
    if needed <= file.num_bytes:
        return True
    first = file.nearest(spans.start).tolist()
    is_cut = [file.is_cut(frame, count) for frame, count in zip(first, spans.length.tolist(), strict=True)]
    detail = f"cut off: it has {file.num_bytes:,} of {needed:,} bytes"
    spans.subject.tally.add(UNREADABLE, about, detail, spans.number[is_cut])
    return file.indexed_bytes > file.num_bytes


def _check_spans(file: VideoFile, spans: _Spans, before: int) -> None:
    if not spans.subject.info.is_v3:
        if file.num_frames != spans.length[0]:
            detail = f"{file.path.name} has {file.num_frames} frames, its episode {spans.length[0]} rows"
            spans.subject.tally.add(FRAMES, spans.camera, detail, spans.number)
            return
        is_sound = np.ones(len(spans.number), np.bool_)
    else:
        spans = _restarted(file, spans, before)
        _check_lengths(file, spans)
        is_sound = _check_ends(file, spans)
        is_sound &= _check_grid(file, spans, is_sound)
    # of frames that are not at their times none is known to be the first
    if file.is_regular:
        _check_beginnings(file, spans, is_sound)


def _restarted(file: VideoFile, spans: _Spans, before: int) -> _Spans:
    """Return the spans as they would be if times began at 0 in this file, where the dataset counted on."""
    fps, shift = spans.subject.info.fps, float(spans.start[0])
    goes_on = before > 0 and abs(shift * fps - before) < HALF_FRAME
    if not goes_on or (spans.start[-1] * fps + spans.length[-1]) < file.num_frames + HALF_FRAME:
        return spans
    detail = f"the first span in {file.path.name} is from {shift:.6g} s: counted on from the files before"
    spans.subject.tally.add(RESTART, spans.camera, detail, spans.number)
    return replace(spans, start=spans.start - shift, stop=spans.stop - shift, after=spans.after - shift)


def _check_lengths(file: VideoFile, spans: _Spans) -> None:
    """Compare spans with the rows; of those that differ the frames up to the next span say whether it matters."""
    fps = spans.subject.info.fps
    frames = (spans.stop - spans.start) * fps
    room = np.minimum(spans.after * fps, file.num_frames) - spans.start * fps
    is_other = np.isfinite(spans.stop) & (np.abs(frames - spans.length) > HALF_FRAME)
    # table and file both speak of as many frames, and the rows are more or fewer
    is_drift = is_other & (np.abs(frames - room) < HALF_FRAME)

    def detail(at: int) -> str:
        return f"the span of episode {spans.number[at]} is {frames[at]:.4g} frames, it has {spans.length[at]} rows"

    def end_detail(at: int) -> str:
        return f"{detail(at)} and {room[at]:.4g} frames up to the next span or the end"

    spans.report(LENGTH, is_drift, detail)
    # where fps is wrong the spans may be right, and its command would write them by the wrong one
    if not spans.subject.tally.has(RATE):
        spans.report(END, is_other & ~is_drift, end_detail)


def _check_ends(file: VideoFile, spans: _Spans) -> Mask:
    """Look for spans that overlap or leave the file; returns which do neither."""
    name, begin = file.path.name, spans.start * spans.subject.info.fps
    end = begin + spans.length
    beyond = (end > file.num_frames + HALF_FRAME) | (begin < -HALF_FRAME)

    def beyond_detail(at: int) -> str:
        span = f"frames [{begin[at]:.0f}, {end[at]:.0f})"
        return f"episode {spans.number[at]} should be {span} of {name}, which has {file.num_frames}"

    spans.report(BEYOND, beyond, beyond_detail)
    overlaps = np.zeros(len(begin), np.bool_)
    is_over = np.maximum.accumulate(end)[:-1] > begin[1:] + HALF_FRAME
    overlaps[:-1] |= is_over
    overlaps[1:] |= is_over

    def overlap_detail(at: int) -> str:
        return f"episodes {spans.number[at]} and {spans.number[at + 1]} have frames of {name} in common"

    spans.report(OVERLAP, overlaps, overlap_detail)
    rest = file.num_frames - int(spans.length.sum())
    if rest > 0 and not (overlaps | beyond).any() and spans.subject.chosen is None:
        spans.subject.tally.add(UNUSED, spans.camera, f"{rest} of {file.num_frames} frames of {name} are in no episode")
    return ~(beyond | overlaps)


def _check_grid(file: VideoFile, spans: _Spans, is_inside: Mask) -> Mask:
    """Check that a frame is shown at each span's start; returns where."""
    shown = file.index.seconds[file.nearest(spans.start)]
    wrong = is_inside & (np.abs(shown - spans.start) > TOLERANCE_SECONDS)

    def detail(at: int) -> str:
        return (
            f"from_timestamp of episode {spans.number[at]} is {spans.start[at]:.9g} s, the nearest frame of "
            f"{file.path.name} is shown at {shown[at]:.9g} s (tolerance {TOLERANCE_SECONDS:g} s)"
        )

    spans.report(OFF_GRID, wrong & file.is_regular, detail)
    return ~wrong


def _check_beginnings(file: VideoFile, spans: _Spans, is_sound: Mask) -> None:
    """Check that each episode can be decoded without the one before it."""
    frames, name = file.nearest(spans.start).tolist(), file.path.name
    no_key = [bool(sound) and not file.begins_run(frame) for sound, frame in zip(is_sound, frames, strict=True)]
    others = is_sound & ~np.array(no_key, np.bool_)
    is_open = [bool(other) and file.needs_before(frame) for other, frame in zip(others, frames, strict=True)]

    def no_key_detail(at: int) -> str:
        return f"episode {spans.number[at]} does not begin with a key frame of {name}"

    def open_detail(at: int) -> str:
        return f"episode {spans.number[at]} begins in an open group of pictures of {name}"

    spans.report(NO_KEY, no_key, no_key_detail)
    spans.report(OPEN_GROUP, is_open, open_detail)


def check_first_images(subject: Subject, data: DataFile) -> None:
    """Look at the head of the first image of each camera in a file."""
    for camera in subject.info.image_keys:
        for blob in _blobs(subject, data, camera, 1):
            _checked(subject, camera, blob, data.episodes[:1].tolist(), f"{data.path}, row 0", decode=False)
            break


def watch_images(
    subject: Subject, data: DataFile, owners: npt.NDArray[np.int64], watches: dict[str, CameraWatch]
) -> None:
    """Decode every image of a file."""
    steps: dict[int, int] = {}
    for camera, watch in watches.items():
        steps.clear()
        for row, blob in enumerate(_blobs(subject, data, camera, BATCH_ROWS)):
            place = int(owners[row])
            number = [] if place < 0 else [int(subject.episodes.index[place])]
            pixels = _checked(subject, camera, blob, number, f"{data.path}, row {row}", decode=True)
            if pixels is not None and place >= 0:
                step = steps[place] = steps.get(place, -1) + 1
                watch.see(place, step, pixels)


def _blobs(subject: Subject, data: DataFile, camera: str, rows: int) -> Iterator[bytes | None]:
    """Yield the bytes of each row's image, None where they are missing, as far as the column can be read."""
    if camera not in data.file.schema_arrow.names:
        return
    try:
        for batch in data.file.iter_batches(batch_size=rows, columns=[camera], use_threads=False):
            for value in batch.column(0).to_pylist():
                blob = value.get("bytes") if isinstance(value, dict) else value
                yield blob if isinstance(blob, bytes) else None
    except Exception as error:  # damage may raise anything
        subject.tally.add(IMAGE_UNREADABLE, camera, f"{data.path}: {type(error).__name__}: {error}", data.episodes)


def _checked(
    subject: Subject, camera: str, blob: bytes | None, episodes: list[int], where: str, *, decode: bool
) -> Any:
    """Check an image by its head; return its pixels [H, W, C] where it is decoded and can be, else None."""
    try:
        from PIL import Image
    except ImportError:
        subject.tally.skip("pictures in data files: Pillow is not installed")
        return None
    if blob is None:
        subject.tally.add(IMAGE_MISSING, camera, f"{where}: no bytes", episodes)
        return None
    try:
        image = Image.open(io.BytesIO(blob), formats=PILLOW_FORMATS)
        height, width = subject.info.features[camera].feature.fixed_shape[:2]
        if (image.height, image.width) != (height, width):
            detail = f"{where}: {image.height} x {image.width}, {height} x {width} in info.json"
            subject.tally.add(IMAGE_SIZE, camera, detail, episodes)
        if not decode:
            return None
        depth = depth_of(subject.info.features[camera].raw)
        return np.asarray(image.convert("RGB")) if depth is None else depth.values(np.asarray(image)[..., None])
    except Exception as error:  # a decoder may raise anything
        subject.tally.add(IMAGE_UNREADABLE, camera, f"{where}: {type(error).__name__}: {error}", episodes)
        return None


@dataclass(slots=True)
class _Episode:
    """The facts about one episode's images."""

    first: npt.NDArray[np.float64]
    num_steps: int = 0
    change: float = 0.0
    highest: float = 0.0


class CameraWatch:
    """Looks at the images of one camera, in any order."""

    def __init__(self, subject: Subject, camera: str, places: Places, stored: StoredStatistics) -> None:
        self.subject, self.camera, self.places, self._stored = subject, camera, places, stored
        self._episodes: dict[int, _Episode] = {}
        self._kept: dict[int, list[npt.NDArray[Any]]] = {}
        self._sums = StatisticsSum()
        self.depth = depth_of(subject.info.features[camera].raw)
        self._still, self._black = STILL_LEVELS, BLACK_LEVEL
        if self.depth is not None:
            # depths have no levels; where nothing was measured they are the least
            self._still, self._black = 0.0, float(self.depth.values(np.zeros(1, np.uint16))[0])

    def see(self, place: int, step: int, pixels: npt.NDArray[Any]) -> None:
        """Look at one image: uint8 [H, W, 3], or depths, float32 [H, W, 1]."""
        small = _thumbnail(pixels)
        episode = self._episodes.setdefault(place, _Episode(small))
        episode.num_steps += 1
        if small.shape == episode.first.shape:
            episode.change = max(episode.change, float(np.abs(small - episode.first).max()))
        episode.highest = max(episode.highest, float(small.max()))
        length = max(1, int(self.places.length[place]))
        if step in sampled_steps(length, -(-length // SAMPLED_IMAGES)):
            self._kept.setdefault(place, []).append(pixels)
        if episode.num_steps == length:
            self._sum_up(place)

    def _sum_up(self, place: int) -> None:
        """Make statistics of the images that were kept of an episode."""
        images = self._kept.pop(place, [])
        feature = self.subject.info.features[self.camera]
        fitting = [pixels for pixels in images if pixels.shape == feature.feature.fixed_shape]
        if not fitting:
            return
        if self.depth is None:
            found = image_summary(fitting, feature.feature)
        else:
            found = depth_summary(fitting, Depth(self.depth.unit))
        self._sums.add({self.camera: found})
        number = int(self.subject.episodes.index[place])
        if number in self._stored.by_episode:
            check_camera_statistics(self.subject, self.camera, self._stored.by_episode[number], found, (number,))

    def report(self) -> None:
        """Report findings, after the last image."""
        for place in list(self._kept):
            self._sum_up(place)
        numbers = self.subject.episodes.index
        long = {place: episode for place, episode in self._episodes.items() if episode.num_steps >= SHORTEST_STEPS}
        black = [place for place, episode in long.items() if episode.highest <= self._black]
        if black:
            self.subject.tally.add(BLACK, self.camera, "black from the first step to the last", numbers[black])
        still = [place for place, episode in long.items() if episode.change <= self._still and place not in black]
        if still:
            self.subject.tally.add(FROZEN, self.camera, "the same picture in every step", numbers[still])
        found = self._sums.result().get(self.camera)
        if self._stored.whole is not None and found is not None and self.subject.chosen is None:
            check_camera_statistics(self.subject, self.camera, self._stored.whole, found)


def _thumbnail(pixels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the means of blocks, float64 [H / 8, W / 8, C]."""
    height, width = (max(1, size // BLOCK) for size in pixels.shape[:2])
    rows, columns = pixels.shape[0] // height, pixels.shape[1] // width
    channels, total = pixels.shape[2], np.uint32 if pixels.dtype == np.uint8 else np.float64
    cut = pixels[: height * rows, : width * columns].reshape(height, rows, width * columns, channels)
    sums = cut.sum(axis=1, dtype=total).reshape(height, width, columns, channels).sum(axis=2)
    means: npt.NDArray[np.float64] = sums / (rows * columns)
    return means


def watch_frames(watch: CameraWatch, path: str, members: Integers, advance: Callable[[], None]) -> None:
    """Decode every frame of a file."""
    subject, numbers = watch.subject, watch.subject.episodes.index
    start = np.round(subject.episodes.videos[watch.camera].start[members] * subject.info.fps)
    known = members[np.isfinite(start)]
    order = np.argsort(start[np.isfinite(start)], kind="stable")
    known, first = known[order], start[np.isfinite(start)][order].astype(np.int64)
    stop = first + watch.places.length[known]
    shown = 0
    size: tuple[int, int] | None = None
    try:
        for frame, turn in _frames(subject.root / path):
            at = int(np.searchsorted(first, shown, "right")) - 1
            if frame.is_corrupt:
                subject.tally.add(
                    DAMAGED, watch.camera, f"frame {shown} of {path} is damaged", numbers[known[at : at + 1]]
                )
            elif at >= 0 and shown < stop[at]:
                watch.see(int(known[at]), shown - int(first[at]), _pixels(frame, turn, watch.depth))
            size = size or (frame.height, frame.width)
            if at >= 0 and (frame.height, frame.width) != size:
                detail = f"frame {shown} of {path} is {frame.height} x {frame.width}, the first {size[0]} x {size[1]}"
                subject.tally.add(SIZE, watch.camera, detail, numbers[known[at : at + 1]])
            shown += 1
            advance()
    except FileNotFoundError:
        return  # is a finding already
    except MissingDependencyError as error:
        subject.tally.skip(f"videos: {error}")
        return
    except DecodeError as error:
        subject.tally.add(DAMAGED, watch.camera, f"after frame {shown}: {error}", numbers[known[stop > shown]])
        return
    if (stop > shown).any():
        detail = f"{path} ends after frame {shown} when it is decoded"
        subject.tally.add(DAMAGED, watch.camera, detail, numbers[known[stop > shown]])


def _pixels(frame: Any, turn: int, depth: Depth | None) -> npt.NDArray[Any]:
    """Return a frame as it is shown: colours, or depths."""
    if depth is None:
        return turned(frame.to_ndarray(format="rgb24"), turn)
    return depth.values(turned(frame.to_ndarray(format=DEEP)[..., None], turn))


def _frames(path: Any) -> Iterator[tuple[Any, int]]:
    """Yield the frames of a file, and how each is turned."""
    with opened_video(str(path), None) as (container, video):
        turn = turn_of(str(path), None, container, video)
        for frame in container.decode(video):
            yield frame, turn


def check_images(subject: Subject, places: Places, stored: StoredStatistics, progress: bool | None) -> None:
    """Decode every image and frame."""
    info = subject.info
    watches = {camera: CameraWatch(subject, camera, places, stored) for camera in info.cameras}
    total = int(places.length[subject.places].sum()) * len(watches)
    with make_bar(total, "pictures", "decoding", wanted=progress) as bar:
        if info.image_keys:
            _watch_data_files(subject, places, {camera: watches[camera] for camera in info.image_keys}, bar.update)
        for camera in info.video_keys:
            for path, members in video_members(subject, camera).items():
                watch_frames(watches[camera], path, members, bar.update)
    for watch in watches.values():
        watch.report()


def _watch_data_files(subject: Subject, places: Places, watches: dict[str, CameraWatch], advance: Advance) -> None:
    # files that cannot be opened are findings already
    silent = replace(subject, tally=Tally())
    for data in read_data_files(silent, data_paths(subject)):
        owners = _owners(places, data.first, data.num_rows)
        watch_images(subject, data, owners, watches)
        advance(data.num_rows * len(watches))


def _owners(places: Places, first: int, num_rows: int) -> Integers:
    """Return the place in the table of each row's episode; -1: none."""
    owners = np.full(num_rows, NOWHERE, np.int64)
    is_here = (places.stop > first) & (places.first >= 0) & (places.first < first + num_rows)
    for place in np.flatnonzero(is_here).tolist():
        owners[max(0, int(places.first[place]) - first) : int(places.stop[place]) - first] = place
    return owners
