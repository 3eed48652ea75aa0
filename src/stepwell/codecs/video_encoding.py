"""The encoder of one column."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import RowEncoder
from stepwell.codecs.stalling import PatientCaller, StalledError
from stepwell.codecs.video_decoding import coded_size
from stepwell.codecs.video_pixels import BT709, FULL_RANGE, LIMITED_RANGE, SMOOTH, FrameReformatter
from stepwell.codecs.video_rows import pack_row
from stepwell.codecs.video_settings import ENCODERS, MAX_GOP, EncoderSettings, built_in_encoders
from stepwell.errors import EncodeError, MissingDependencyError, SchemaError

__all__ = ["VideoEncoder", "ordinary_threads"]

# only so that there is one: rows have no times, and no rate is aimed at
FRAMES_PER_SECOND = 30
INTRA_PICTURE = 1
SVT_LOG_FATAL = "0"
SVT_PRIORITY = 99
SVT = "libsvtav1"
# for a picture, and for each of its pixels: slow presets take seconds for large ones
STALL_SECONDS, STALL_SECONDS_A_PIXEL = 30.0, 2e-5
MAX_STALLS = 3
TASKS = Path("/proc/self/task")


class VideoEncoder(RowEncoder):
    """One open encoder: a picture in, a row out.

    Args:
        settings: of the feature.

    Raises:
        SchemaError: this build of ffmpeg has no such encoder, or it refuses the settings.

    Notes:
        For one thread at a time; not to be used after a fork. Equal pictures from the start give equal bytes. x264 and
        x265 start no threads; SVT-AV1 has a few of its own, scheduled as the one that opens it, and prints to stderr
        as the environment's ``SVT_LOG`` says, which is set to fatal errors only unless it is set. It may stand still
        for ever: after half a minute it is left behind, with its threads, and another one goes on with the run.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        self._settings = settings
        self._context: Any = None
        self._reformatter: Any = None
        self._error: type[Exception] = Exception
        self._num_put = 0  # since the encoder was opened
        self._is_sync: deque[bool] = deque()  # of the rows that were put and have not come out
        self._place = 0  # of the next row to put, from the last sync row
        self._picture = -1  # the last one that came out, in its run
        self._caller: PatientCaller | None = None  # of an encoder that may stall
        self._run: list[Any] = []  # for such a one: pictures since the sync row of the oldest that has not come out
        self._open()

    def _open(self) -> None:
        try:
            import av
        except ImportError as error:
            raise MissingDependencyError.of("av", "video") from error
        settings, kind = self._settings, ENCODERS[self._settings.name]
        if settings.name not in built_in_encoders():
            raise SchemaError(
                f"this PyAV has no {kind.library}, which encodes {settings.name!r}. "
                f"It can encode: {', '.join(map(repr, built_in_encoders())) or 'nothing that is allowed'}."
            )
        os.environ.setdefault("SVT_LOG", SVT_LOG_FATAL)
        context: Any = av.CodecContext.create(kind.library, "w")
        context.height, context.width = coded_size(*settings.shape[:2])
        context.pix_fmt = settings.pixel_format
        context.time_base, context.framerate = Fraction(1, FRAMES_PER_SECOND), FRAMES_PER_SECOND
        context.thread_count, context.gop_size = 1, MAX_GOP  # runs begin where `put` says
        _set_colours(context, is_grey=settings.shape[2:] != (3,))
        context.options = {"preset": settings.preset, "crf": str(settings.crf), **kind.options}
        try:
            with ordinary_threads():
                context.open()
        except av.error.FFmpegError as error:
            raise SchemaError(f"{kind.library} refuses {settings}: {error}.") from error
        self._context, self._reformatter, self._error = context, FrameReformatter(), av.error.FFmpegError
        self._num_put = 0
        if kind.library == SVT:
            height, width = settings.shape[:2]
            self._caller = PatientCaller(STALL_SECONDS + STALL_SECONDS_A_PIXEL * height * width)

    def put(self, value: Any) -> list[bytes]:
        """Take the next picture; see `RowEncoder.put`."""
        if self._context is None:
            self._open()
        frame = self._frame(value)
        is_sync = self._place == 0
        if is_sync:
            frame.pict_type = INTRA_PICTURE
            if not self._is_sync:
                self._run.clear()
        self._is_sync.append(is_sync)
        packets = self._encode(frame)
        self._place = (self._place + 1) % self._settings.gop
        return self._rows(packets)

    def end(self) -> list[bytes]:
        """End the episode; see `RowEncoder.end`."""
        self._place = 0
        if not self._is_sync:
            return []
        # none of the encoders does so with these options; one that did would have to be opened anew
        rows = self._rows(self._encode(None))
        self._let_go()
        return rows

    def close(self) -> None:
        """Let go of the encoder; see `RowEncoder.close`."""
        if self._context is not None:
            with suppress(self._error, StalledError):
                self._call(None)  # SVT-AV1 wants to be told that it is over
            self._let_go()

    def _encode(self, frame: Any) -> list[Any]:
        """Give the encoder a picture, or None at the end; where it stalls another one gets the run again."""
        if self._caller is None:
            return self._call(frame)
        if frame is not None:
            self._run.append(frame)
        with suppress(StalledError):
            return self._call(frame)
        for _ in range(MAX_STALLS):
            with suppress(StalledError):
                return self._encode_again(is_end=frame is None)
        raise EncodeError(
            f"{SVT} did not come back from pictures of {self._settings.shape}, {MAX_STALLS + 1} times. Use another "
            'encoder: encoder="h264".'
        )

    def _encode_again(self, *, is_end: bool) -> list[Any]:
        """Open an encoder anew, leaving the one that stalled behind, and give it the run; return what is missing."""
        num_out = len(self._run) - len(self._is_sync)
        self._open()
        packets = [packet for frame in self._run for packet in self._call(frame)]
        if is_end:
            packets += self._call(None)
        return packets[num_out:]

    def _call(self, frame: Any) -> list[Any]:
        context = self._context
        if frame is not None:
            frame.pts = self._num_put
            self._num_put += 1
        packets: list[Any] = (
            context.encode(frame) if self._caller is None else self._caller.call(lambda: context.encode(frame))
        )
        return packets

    def _let_go(self) -> None:
        self._context = None
        self._run.clear()
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def _rows(self, packets: list[Any]) -> list[bytes]:
        rows = []
        for packet in packets:
            is_sync = bool(packet.is_keyframe)
            if self._is_sync.popleft() and not is_sync:
                raise SchemaError(
                    f"this PyAV's {ENCODERS[self._settings.name].library} does not begin runs where it must. "
                    "Use another encoder, or a newer PyAV."
                )
            self._picture = 0 if is_sync else self._picture + 1
            rows.append(pack_row(self._settings.name, [bytes(packet)], self._picture, is_sync=is_sync))
        return rows

    def _frame(self, value: Any) -> Any:
        """Return a picture as the encoder takes it, in memory of its own."""
        import av

        pixels = _padded(np.asarray(value, np.uint8).reshape(*self._settings.shape[:2], -1))
        if pixels.shape[2] == 1:
            grey = av.VideoFrame.from_ndarray(pixels[:, :, 0], "gray")
            grey.color_range = FULL_RANGE
            return self._reformatter.reformat(grey, self._settings.pixel_format, dst_color_range=FULL_RANGE)
        return self._reformatter.reformat(
            av.VideoFrame.from_numpy_buffer(pixels, "rgb24"),
            self._settings.pixel_format,
            dst_colorspace=BT709,
            dst_color_range=LIMITED_RANGE,
            interpolation=SMOOTH,
        )


@contextmanager
def ordinary_threads() -> Iterator[None]:
    """Have this thread, and those that begin meanwhile, scheduled as this one was.

    Where it may, as root, SVT-AV1 makes a real-time thread of the highest priority of whoever opens it, and its own
    threads inherit that: a control loop on the same core then stands still while a picture is encoded.
    """
    if not TASKS.is_dir():
        yield
        return
    policy, parameters, before = os.sched_getscheduler(0), os.sched_getparam(0), _threads()
    try:
        yield
    finally:
        for thread in {0, *_threads() - before}:
            # it may have ended, or be another library's
            with suppress(OSError):
                if os.sched_getparam(thread).sched_priority == SVT_PRIORITY:
                    os.sched_setscheduler(thread, policy, parameters)


def _threads() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()}


def _set_colours(context: Any, *, is_grey: bool) -> None:
    """Say in the stream what its numbers mean: BT.709 of limited range, which players expect; grey of full range."""
    context.colorspace = context.color_primaries = context.color_trc = BT709
    context.color_range = FULL_RANGE if is_grey else LIMITED_RANGE


def _padded(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return a picture at the size at which it is encoded, C-contiguous, its edges repeated."""
    height, width = coded_size(*pixels.shape[:2])
    if (height, width) != pixels.shape[:2]:
        pixels = np.pad(pixels, ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)), mode="edge")
    return np.ascontiguousarray(pixels)
