"""Rows taken from a video file as they are: nothing is decoded or encoded again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_packets import PacketReader, PacketTable, key_places, packet_table
from stepwell.codecs.video_streams import pack_row
from stepwell.errors import SchemaError, StepError
from stepwell.schema import Feature, Video

__all__ = ["FRAME_DTYPE", "VideoFile"]

FRAME_DTYPE = np.dtype([("seconds", "f8"), ("duration", "f8"), ("is_keyframe", "?")])
# times in a file are rounded, in mkv to milliseconds
DEFAULT_TOLERANCE = 1e-3


class VideoFile:
    """The frames of a video file as rows of a feature, without encoding them again.

    Each step shows one frame: by default step i the i-th frame of the range. B-frames, open GOPs, varying rates, a
    first time other than zero and edit lists are followed::

        decoded    I0 P3 B1 B2 | I6 B4 B5 P7        the packets of the file
        shown      0  1  2  3  4  5  6  7           steps
        blobs      I0  P3 B1  B2  -  I6 B4  B5 | I6  P7
                                                  a run: I6 is stored twice, so that 6 and 7 need nothing before

    Args:
        path: of the file; anything that ffmpeg demuxes.
        stream: n-th video stream, from 0. None: the one that players show, of several the best, never a cover.
        start: seconds; frames before it are left out. Times are those of the file, whose first frame may not be at 0.
        stop: seconds; frames from it on are left out. None: to the end.
        timestamps: float [steps], seconds, not descending: the time of each step, which shows the frame nearest to it;
            a frame may be shown by many steps, or by none. None: every frame, once.
        tolerance: seconds by which a frame may be off from a step's time, or lie outside of start and stop.

    Raises:
        FileNotFoundError: no such file.
        DecodeError: not a video; no such stream; an encoding that is not h264, hevc, av1, vp9 or mpeg4; B-frames in a
            format that does not keep when they are shown (avi, asf); frames of several sizes, or that are to be shown
            aslant.
        StepError: a step at whose time there is no frame, times that descend, no frame between start and stop, or
            what is no number of a stream or of seconds.
        MissingDependencyError: PyAV is not installed.

    Example::

        episode = VideoFile("episode_000017.mp4")
        store = stepwell.create("robot.well", {"front": episode.feature})
        with store.writer() as writer:
            writer.add_episode({"front": episode})

    Notes:
        Reading the table of packets reads the file once; tables of the last few files are kept. A file is open only
        while an iterator of `rows` is. Frames that are to be shown turned or mirrored (a phone's: a display matrix) are
        shown so: their rows say it. A writer holds the bytes of an episode's rows in memory until they are stored: take
        a file of many GB in several episodes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        stream: int | None = None,
        start: float = 0.0,
        stop: float | None = None,
        timestamps: npt.ArrayLike | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
    ) -> None:
        self.path = Path(path)
        _check_settings(self.path, stream, start, stop, tolerance)
        self._stream, self._tolerance = None if stream is None else int(stream), tolerance
        self._table = packet_table(self.path, self._stream)
        shown = _shown_packets(self._table, start - tolerance, np.inf if stop is None else stop - tolerance)
        if not shown.size:
            raise StepError(
                f"{self.path}: no frame between start={start} and stop={stop}. It has frames from "
                f"{self._table.seconds.min():.6f} to {self._table.seconds.max():.6f} s."
            )
        self._packets = shown if timestamps is None else self._nearest(shown, _times(self.path, timestamps))

    @property
    def num_rows(self) -> int:
        """How many steps there are."""
        return len(self._packets)

    @property
    def frames(self) -> npt.NDArray[Any]:
        """The frame of each step, `FRAME_DTYPE` [steps]: seconds, duration in seconds, is_keyframe."""
        table, frames = self._table, np.empty(self.num_rows, FRAME_DTYPE)
        frames["seconds"] = table.seconds[self._packets]
        frames["duration"] = table.durations[self._packets]
        frames["is_keyframe"] = table.is_key[self._packets]
        return frames

    @property
    def feature(self) -> Feature:
        """The feature, in colour, that stores this video."""
        return Video((self._table.height, self._table.width, 3))

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the bytes of each step; see `stepwell.codecs.video_streams`.

        Args:
            feature: which is to store them.

        Raises:
            SchemaError: the feature is not video of this size.
            DecodeError: the file was changed, or is damaged.
        """
        table, size = self._table, (self._table.height, self._table.width)
        if feature.codec != "video" or feature.fixed_shape[:2] != size:
            raise SchemaError(
                f"{self.path} is {size[0]}x{size[1]} video, the feature {feature!r}. Use {self.feature!r}: "
                "stepwell.convert() makes another codec of it afterwards."
            )
        reader = PacketReader(self.path, self._stream, table)
        try:
            for key, packets in _runs(self.path, table, self._packets):
                reader.forget(key)
                yield from _run_rows(table, reader, key, packets)
        finally:
            reader.close()

    def _nearest(self, shown: npt.NDArray[np.int64], timestamps: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the packet whose frame each time shows."""
        seconds = self._table.seconds[shown]
        after = np.searchsorted(seconds, timestamps).clip(0, len(seconds) - 1)
        before = np.maximum(after - 1, 0)
        is_before = np.abs(timestamps - seconds[before]) <= np.abs(seconds[after] - timestamps)
        nearest = np.where(is_before, before, after)
        off = np.abs(seconds[nearest] - timestamps)
        # written so that a time that is not a number is refused, too
        wrong = np.flatnonzero(~(off <= self._tolerance))
        if wrong.size:
            step = int(wrong[0])
            is_last = timestamps[step] > self._table.seconds.max()
            raise StepError(
                f"{self.path}: step {step} asks for {timestamps[step]:.6f} s, the "
                f"{'last frame, behind which the file ends or is cut off,' if is_last else 'nearest frame'} is at "
                f"{seconds[nearest[step]]:.6f} s. Allowed: {self._tolerance} s apart; see tolerance."
            )
        return shown[nearest]

    def __repr__(self) -> str:
        table = self._table
        size, steps = f"{table.height}x{table.width}", f"{self.num_rows:,} step{'' if self.num_rows == 1 else 's'}"
        return f"<VideoFile {self.path.name}  {table.kind} {size}  {steps}>"


def _check_settings(path: Path, stream: Any, start: Any, stop: Any, tolerance: Any) -> None:
    if stream is not None and (not isinstance(stream, Integral) or isinstance(stream, bool) or stream < 0):
        raise StepError(f"{path}: stream={stream!r}. Allowed: the number of a video stream, from 0; None for the best.")
    if not _is_real(tolerance) or not tolerance >= 0:
        raise StepError(f"{path}: tolerance={tolerance!r}. Allowed: seconds, 0 or more.")
    if not _is_real(start):
        raise StepError(f"{path}: start={start!r}. Allowed: seconds; 0 for all from the beginning on.")
    if stop is not None and not _is_real(stop):
        raise StepError(f"{path}: stop={stop!r}. Allowed: seconds, or None for all to the end.")


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _times(path: Path, timestamps: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the times of steps, which do not descend."""
    try:
        times = np.asarray(timestamps, np.float64)
    except (TypeError, ValueError) as error:
        raise StepError(f"{path}: timestamps: {error}. Allowed: numbers, seconds.") from error
    if times.ndim != 1:
        raise StepError(f"{path}: timestamps of shape {times.shape}. Allowed: one number a step.")
    before = np.flatnonzero(np.diff(times) < 0)
    if before.size:
        step = int(before[0]) + 1
        raise StepError(
            f"{path}: timestamps: step {step} is at {times[step]:.6f} s, the one before at {times[step - 1]:.6f} s. "
            "Allowed: not descending."
        )
    return times


def _shown_packets(table: PacketTable, start: float, stop: float) -> npt.NDArray[np.int64]:
    """Return the packets whose frames are shown in a range of time, in the order of showing."""
    order = np.argsort(table.pts, kind="stable")
    seconds = table.seconds[order]
    return order[table.is_shown[order] & (seconds >= start) & (seconds < stop)]


def _runs(path: Path, table: PacketTable, packets: npt.NDArray[np.int64]) -> Iterator[tuple[int, list[int]]]:
    """Yield (key packet to begin with, packets shown) of runs of steps."""
    # A step's run begins where decoding does, see `key_places`.
    keys = np.flatnonzero(table.is_key)
    place = key_places(keys, table.pts, packets)
    if (place < 0).any():
        first = table.seconds[packets[place < 0][0]]
        raise StepError(
            f"{path}: the frame at {first:.6f} s has no keyframe before it and cannot be decoded. Set start."
        )
    bounds = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(packets)]
    for begin, end in pairwise(bounds):
        if begin < end:
            yield int(keys[place[begin]]), packets[begin:end].tolist()


def _run_rows(table: PacketTable, reader: PacketReader, key: int, packets: list[int]) -> Iterator[bytes]:
    """Yield the rows of one run."""
    # Frames shown before the key packet and decoded after it need the run before, and no later frame needs them.
    numbers: dict[int, int] = {}
    following = key
    for place, packet in enumerate(packets):
        new = [number for number in range(following, packet + 1) if table.pts[number] >= table.pts[key]]
        numbers.update(zip(new, range(len(numbers), len(numbers) + len(new)), strict=True))
        following = max(following, packet + 1)
        data = [reader.packet(number) for number in new]
        yield pack_row(table.kind, data, numbers[packet], is_sync=place == 0, turn=table.turn)
