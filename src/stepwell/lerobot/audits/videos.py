"""Checks of which frames of which mp4 file are whose: the spans of the episodes in each camera's files.

::

    file-000.mp4   |0    episode 0    |1.2  episode 1   |2.5           file-001.mp4   |0   episode 2   |0.9
    episodes       from 0.0 to 1.2     from 1.2 to 2.5                                  from 0.0: it begins anew

A reader takes frame ``round((from_timestamp + timestamp) * fps)``: a span that is wrong shows another episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.places import Places
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.audits.tables import TOLERANCE_SECONDS
from stepwell.lerobot.audits.video_files import UNREADABLE, VideoFile, open_video_file

__all__ = ["check_videos", "video_members"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
HALF_FRAME = 0.5
AGAIN = "Correct from_timestamp and file_index in meta/episodes: these steps show"

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
)
OPEN_GROUP = Rule(
    "video-open-gop",
    "warning",
    "Encode with closed groups of pictures: frames at these episodes' beginning are made of those of the one before.",
)


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """The episodes of one file by the time at which they begin."""

    number: Integers
    start: Floats
    stop: Floats
    length: Integers


def video_members(subject: Subject, camera: str) -> dict[str, Integers]:
    """Return the places of the episodes that are looked at by the video file that they are in, by path."""
    members: dict[str, list[int]] = {}
    for place in subject.places.tolist():
        path = subject.episodes.video_path(subject.info, camera, place)
        if path is not None:
            members.setdefault(path, []).append(place)
    return {path: np.array(members[path], np.int64) for path in sorted(members)}


def check_videos(subject: Subject, places: Places, advance: Callable[[], None]) -> None:
    """Look at the index of every video file, and at the spans of the episodes in it.

    Args:
        subject: what is audited.
        places: rows of the episodes.
        advance: called after each file.
    """
    for camera in subject.info.video_keys:
        members = video_members(subject, camera)
        if subject.info.is_v3 and len(members) > 1:
            later = np.concatenate(list(members.values())[1:])
            detail = f"{len(members)} mp4 files"
            subject.tally.add(SEVERAL, camera, detail, subject.episodes.number[later])
        before = 0
        for path, found in members.items():
            spans = _spans_of(subject, camera, found, places)
            file = open_video_file(subject, camera, path, spans.number)
            if file is not None and len(spans.number):
                _check_bytes(subject, f"{camera}: {path}", file, spans)
                _check_spans(subject, camera, file, spans, before)
            before += int(spans.length.sum())
            advance()


def _spans_of(subject: Subject, camera: str, members: Integers, places: Places) -> _Spans:
    episodes, spans = subject.episodes, subject.episodes.videos[camera]
    length = np.where(places.length > 0, places.length, episodes.length)
    known = members[np.isfinite(spans.start[members]) & (length[members] > 0)]
    order = known[np.argsort(spans.start[known], kind="stable")]
    return _Spans(episodes.number[order], spans.start[order], spans.stop[order], length[order])


def _check_bytes(subject: Subject, about: str, file: VideoFile, spans: _Spans) -> None:
    """Look whether the file is as long as its index says; one that was cut off ends in mid-episode."""
    if file.needed_bytes <= file.num_bytes:
        return
    first = file.nearest(spans.start).tolist()
    is_cut = [file.is_cut(frame, count) for frame, count in zip(first, spans.length.tolist(), strict=True)]
    detail = f"cut off: it has {file.num_bytes:,} of {file.needed_bytes:,} bytes"
    subject.tally.add(UNREADABLE, about, detail, spans.number[is_cut])


def _check_spans(subject: Subject, camera: str, file: VideoFile, spans: _Spans, before: int) -> None:
    if not subject.info.is_v3:
        if file.num_frames != spans.length[0]:
            detail = f"{file.path.name} has {file.num_frames} frames, its episode {spans.length[0]} rows"
            subject.tally.add(FRAMES, camera, detail, spans.number)
            return
        is_sound = np.ones(1, np.bool_)
    else:
        spans = _restarted(subject, camera, file, spans, before)
        _check_lengths(subject, camera, spans)
        is_sound = _check_ends(subject, camera, file, spans)
        is_sound &= _check_grid(subject, camera, file, spans, is_sound)
    # where frames are not at their times, nobody can say which one is the first
    if file.is_regular:
        _check_beginnings(subject, camera, file, spans, is_sound)


def _restarted(subject: Subject, camera: str, file: VideoFile, spans: _Spans, before: int) -> _Spans:
    """Return the spans as they would be if they began anew in this file, where the dataset counted on."""
    fps, shift = subject.info.fps, float(spans.start[0])
    goes_on = before > 0 and abs(shift * fps - before) < HALF_FRAME
    if not goes_on or (spans.start[-1] * fps + spans.length[-1]) < file.num_frames + HALF_FRAME:
        return spans
    detail = f"the first span in {file.path.name} is from {shift:.6g} s: counted on from the files before"
    subject.tally.add(RESTART, camera, detail, spans.number)
    return _Spans(spans.number, spans.start - shift, spans.stop - shift, spans.length)


def _check_lengths(subject: Subject, camera: str, spans: _Spans) -> None:
    fps = subject.info.fps
    wrong = np.isfinite(spans.stop) & (np.abs((spans.stop - spans.start) * fps - spans.length) > HALF_FRAME)
    if wrong.any():
        at = int(np.argmax(wrong))
        frames = (spans.stop[at] - spans.start[at]) * fps
        detail = f"the span of episode {spans.number[at]} is {frames:.4g} frames, it has {spans.length[at]} rows"
        subject.tally.add(LENGTH, camera, detail, spans.number[wrong])


def _check_ends(subject: Subject, camera: str, file: VideoFile, spans: _Spans) -> Mask:
    """Look for spans that overlap or leave the file; returns which do neither."""
    fps, name = subject.info.fps, file.path.name
    begin = spans.start * fps
    end = begin + spans.length
    beyond = (end > file.num_frames + HALF_FRAME) | (begin < -HALF_FRAME)
    if beyond.any():
        at = int(np.argmax(beyond))
        span = f"frames [{begin[at]:.0f}, {end[at]:.0f})"
        detail = f"episode {spans.number[at]} should be {span} of {name}, which has {file.num_frames}"
        subject.tally.add(BEYOND, camera, detail, spans.number[beyond])
    last = np.maximum.accumulate(end)[:-1]
    overlaps = np.flatnonzero(last > begin[1:] + HALF_FRAME)
    if len(overlaps):
        at = int(overlaps[0])
        detail = f"episodes {spans.number[at]} and {spans.number[at + 1]} have frames of {name} in common"
        subject.tally.add(OVERLAP, camera, detail, spans.number[np.union1d(overlaps, overlaps + 1)])
    elif not beyond.any() and file.num_frames > spans.length.sum() and subject.chosen is None:
        rest = file.num_frames - int(spans.length.sum())
        subject.tally.add(UNUSED, camera, f"{rest} of {file.num_frames} frames of {name} are in no episode")
    is_sound = ~beyond
    is_sound[overlaps] = is_sound[overlaps + 1] = False
    return is_sound


def _check_grid(subject: Subject, camera: str, file: VideoFile, spans: _Spans, is_inside: Mask) -> Mask:
    """Look whether a frame is shown at each span's start; returns where."""
    shown = file.index.seconds[file.nearest(spans.start)]
    wrong = is_inside & (np.abs(shown - spans.start) > TOLERANCE_SECONDS)
    if wrong.any() and file.is_regular:
        at = int(np.argmax(wrong))
        detail = (
            f"from_timestamp of episode {spans.number[at]} is {spans.start[at]:.9g} s, the nearest frame of "
            f"{file.path.name} is shown at {shown[at]:.9g} s (tolerance {TOLERANCE_SECONDS:g} s)"
        )
        subject.tally.add(OFF_GRID, camera, detail, spans.number[wrong])
    return ~wrong


def _check_beginnings(subject: Subject, camera: str, file: VideoFile, spans: _Spans, is_sound: Mask) -> None:
    """Look whether each episode can be decoded without the one before it."""
    frames = file.nearest(spans.start).tolist()
    places = np.flatnonzero(is_sound).tolist()
    no_key = [at for at in places if not file.begins_run(frames[at])]
    if no_key:
        detail = f"episode {spans.number[no_key[0]]} does not begin with a key frame of {file.path.name}"
        subject.tally.add(NO_KEY, camera, detail, spans.number[no_key])
    is_open = [at for at in places if at not in no_key and file.needs_before(frames[at])]
    if is_open:
        detail = f"episode {spans.number[is_open[0]]} begins in an open group of pictures of {file.path.name}"
        subject.tally.add(OPEN_GROUP, camera, detail, spans.number[is_open])
