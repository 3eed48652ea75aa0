"""The encoder of one column.

Encoders run in a thread that is left behind when a call does not return: threads of SVT-AV1 4.1 wait for each
other for ever about once in a few hundred openings on a loaded machine.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import RowEncoder, choice_option, int_option
from stepwell.codecs.video_decoding import (
    BT709,
    DEEP,
    FULL_RANGE,
    LIMITED_RANGE,
    SMOOTH,
    FrameReformatter,
    coded_size,
    deep_frame,
)
from stepwell.codecs.video_streams import pack_row
from stepwell.errors import EncodeError, MissingDependencyError, SchemaError
from stepwell.schema import Feature

__all__ = [
    "ENCODERS",
    "MAX_GOP",
    "EncoderKind",
    "EncoderSettings",
    "PatientCaller",
    "StalledError",
    "VideoEncoder",
    "built_in_encoders",
    "check_is_video",
    "ordinary_threads",
]
# any value does: rows have no times, and no rate is aimed at
FRAMES_PER_SECOND = 30
NO_PICTURE, INTRA_PICTURE = 0, 1
SVT_LOG_FATAL = "0"
SVT_PRIORITY = 99
SVT = "libsvtav1"
# for a frame, and for each of its pixels: slow presets take seconds for large ones
STALL_SECONDS, STALL_SECONDS_A_PIXEL = 30.0, 2e-5
MAX_STALLS = 3
TASKS = Path("/proc/self/task")
DEFAULT_ENCODER = "h264"
# the only one here that encodes 12 bits of grey
DEEP_ENCODER = "hevc"
MAX_SAMPLE = 4095
DEFAULT_GOP = 2
MAX_GOP = 10_000
MAX_SIDE = 8192
X26_PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
    "placebo",
)
SVT_PRESETS = tuple(map(str, range(14)))


class StalledError(Exception):
    """A call did not come back in time; never leaves the codecs."""


class PatientCaller:
    """Make calls one after the other in a thread of its own, with a time limit for each."""

    # For one thread at a time, and not after a fork. A `StalledError` leaves the thread behind: no call can follow it.

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls, self._answers), name="stepwell-patient", daemon=True).start()
        self._finalizer = weakref.finalize(self, self._calls.put, None)

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns, and raise what it raises."""
        self._calls.put(function)
        try:
            result, error = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            raise StalledError from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the thread end; may be called twice."""
        self._finalizer()


def _serve(calls: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (function := calls.get()) is not None:
        try:
            answer = function(), None
        except BaseException as error:
            answer = None, error  # type: ignore[assignment]
        # what it was called with is not kept until the next call
        del function
        answers.put(answer)
        del answer


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """Properties of an encoder."""

    library: str  # its name in ffmpeg
    crf: int  # the default quality
    most_crf: int  # the lowest quality that is allowed
    preset: str  # the default one
    presets: tuple[str, ...]  # that are allowed
    pixel_formats: tuple[str, ...]  # of colour frames, the default one first
    grey_format: str  # of grey frames
    # deterministic, silent and without delay; runs are cut only where the writer cuts them
    options: dict[str, str]


ENCODERS = {
    "h264": EncoderKind(
        library="libx264",
        crf=23,
        most_crf=51,
        preset="veryfast",
        presets=X26_PRESETS,
        pixel_formats=("yuv420p", "yuv444p"),
        grey_format="gray",
        options={
            "tune": "fastdecode,zerolatency",
            "forced-idr": "1",
            "x264-params": "scenecut=0:bframes=0:open-gop=0:threads=1",
        },
    ),
    "hevc": EncoderKind(
        library="libx265",
        crf=26,
        most_crf=51,
        preset="ultrafast",
        presets=X26_PRESETS,
        pixel_formats=("yuv420p", "yuv444p"),
        grey_format="gray",
        options={
            "tune": "zerolatency",
            "forced-idr": "1",
            "x265-params": "log-level=none:info=0:scenecut=0:bframes=0:open-gop=0:repeat-headers=1:"
            "pools=none:frame-threads=1:wpp=0",
        },
    ),
    "av1": EncoderKind(
        library="libsvtav1",
        crf=30,
        most_crf=63,
        preset="10",
        presets=SVT_PRESETS,
        pixel_formats=("yuv420p",),
        grey_format="yuv420p",
        options={"svtav1-params": "pred-struct=1:lp=1:scd=0"},
    ),
}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """The options of a feature, checked."""

    name: str  # of the encoder, a key of `ENCODERS`; also the kind of its stream
    gop: int  # rows from one sync row to the next
    crf: int | None  # constant rate factor: 0 is best, the higher the smaller; None, of uint16: without loss
    preset: str  # how hard the encoder tries
    pixel_format: str  # in which frames are encoded
    shape: tuple[int, ...]  # of the feature
    is_deep: bool = False  # uint16, of which 12 bits are used

    @classmethod
    def of(cls, feature: Feature) -> EncoderSettings:
        """Return a feature's settings."""
        is_deep = feature.np_dtype == np.uint16
        name = feature.option("encoder", DEEP_ENCODER if is_deep else DEFAULT_ENCODER)
        if is_deep and name != DEEP_ENCODER:
            raise SchemaError(f"option 'encoder' of uint16 video is {name!r}. Allowed: {DEEP_ENCODER!r}.")
        if name not in ENCODERS:
            raise SchemaError(
                f"option 'encoder' of codec 'video' is {name!r}. Allowed: {', '.join(map(repr, ENCODERS))}; "
                f"this PyAV can encode: {', '.join(map(repr, built_in_encoders())) or 'none of them'}."
            )
        kind = ENCODERS[name]
        grey = DEEP if is_deep else kind.grey_format
        formats = kind.pixel_formats if feature.fixed_shape[2:] == (3,) else (grey,)
        is_lossless = is_deep and feature.option("crf", None) is None
        return cls(
            name,
            int_option(feature, "gop", DEFAULT_GOP, least=1, most=MAX_GOP),
            None if is_lossless else int_option(feature, "crf", kind.crf, least=0, most=kind.most_crf),
            choice_option(feature, "preset", kind.preset, kind.presets),
            choice_option(feature, "pixel_format", formats[0], formats),
            feature.fixed_shape,
            is_deep,
        )


def built_in_encoders() -> tuple[str, ...]:
    """Return those of `ENCODERS` that this build of ffmpeg has."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError.of("av", "video") from error
    return tuple(name for name, kind in ENCODERS.items() if kind.library in av.codecs_available)


def check_is_video(feature: Feature) -> None:
    """Refuse a feature whose steps cannot be frames of a video."""
    shape, codec = feature.shape, feature.codec
    channels = {"uint8": (1, 3), "uint16": (1,)}.get(feature.np_dtype.name)
    is_image = not feature.is_ragged and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (channels or ())))
    if feature.kind not in ("image", "array") or channels is None or not is_image:
        raise SchemaError(
            f'codec "{codec}" cannot store {feature.np_dtype.name} {shape}. Allowed: uint8 (height, width) or '
            "(height, width, 1 | 3), and uint16 (height, width) or (height, width, 1) of at most 4095. Use "
            '"png" or "zstd" for other dtypes and for 4 channels.'
        )
    if not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "{codec}" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')


class VideoEncoder(RowEncoder):
    """One open encoder: a frame in, a row out."""

    # For one thread at a time; not to be used after a fork. Equal frames from the start give equal bytes. x264 and x265
    # start no threads; SVT-AV1 has a few of its own, scheduled as the one that opens it, and prints to stderr as the
    # environment's ``SVT_LOG`` says, which is set to fatal errors only unless it is set. It may stand still for ever:
    # after half a minute it is left behind, with its threads, and another one goes on with the run.

    def __init__(self, settings: EncoderSettings, colours: tuple[int, int, int, int] | None = None) -> None:
        # colours: range, matrix, primaries and transfer of PyAV's frames that are put; None: arrays are
        self._settings, self._colours = settings, colours
        self._context: Any = None
        self._reformatter: Any = None
        self._error: type[Exception] = Exception
        self._num_put = 0  # since the encoder was opened
        self._is_sync: deque[bool] = deque()  # of the rows that were put and have not come out
        self._place = 0  # of the next row to put, from the last sync row
        self._shown = -1  # the last one that came out, in its run
        self._caller: PatientCaller | None = None  # of an encoder that may stall
        self._run: list[Any] = []  # for such a one: frames since the sync row of the oldest that has not come out
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
        is_grey = settings.shape[2:] != (3,)
        _set_colours(context, self._colours or (FULL_RANGE if is_grey else LIMITED_RANGE, BT709, BT709, BT709))
        context.options = _options(settings, kind)
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
        """Take the next frame; see `RowEncoder.put`."""
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
        # none of the encoders delays rows with these options; one that did would have to be opened again
        rows = self._rows(self._encode(None))
        self._let_go()
        return rows

    def close(self) -> None:
        """Let go of the encoder; see `RowEncoder.close`."""
        if self._context is not None:
            with suppress(self._error, StalledError):
                self._call(None)  # SVT-AV1 expects the end of its input
            self._let_go()

    def _encode(self, frame: Any) -> list[Any]:
        """Give the encoder a frame, or None at the end; where it stalls another one gets the run again."""
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
            f"{SVT} did not come back from frames of {self._settings.shape}, {MAX_STALLS + 1} times. Use another "
            'encoder: encoder="h264".'
        )

    def _encode_again(self, *, is_end: bool) -> list[Any]:
        """Open a second encoder in place of the one that stalled, feed it the run, and return the missing packets."""
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
            self._shown = 0 if is_sync else self._shown + 1
            rows.append(pack_row(self._settings.name, [bytes(packet)], self._shown, is_sync=is_sync))
        return rows

    def _frame(self, value: Any) -> Any:
        """Return a frame as the encoder takes it, in memory of its own."""
        import av

        if self._colours is not None:
            return self._as_decoded(value)
        if self._settings.is_deep:
            return _deep(np.asarray(value).reshape(*self._settings.shape[:2], 1))
        pixels = _padded(np.asarray(value, np.uint8).reshape(*self._settings.shape[:2], -1))
        if pixels.shape[2] == 1:
            grey = av.VideoFrame.from_ndarray(pixels[:, :, 0], "gray")
            grey.color_range = FULL_RANGE
            return self._reformatter.reformat(grey, format=self._settings.pixel_format, dst_color_range=FULL_RANGE)
        return self._reformatter.reformat(
            av.VideoFrame.from_numpy_buffer(pixels, "rgb24"),
            format=self._settings.pixel_format,
            dst_colorspace=BT709,
            dst_color_range=LIMITED_RANGE,
            interpolation=SMOOTH,
        )

    def _as_decoded(self, frame: Any) -> Any:
        """Return a decoded frame to be encoded again: its samples stay, its type is the new encoder's choice."""
        if frame.format.name != self._settings.pixel_format:
            # yuvj420p is yuv420p of full range by its older name
            frame = self._reformatter.reformat(
                frame, format=self._settings.pixel_format, src_color_range=FULL_RANGE, dst_color_range=FULL_RANGE
            )
        frame.pict_type = NO_PICTURE
        frame.time_base = Fraction(1, FRAMES_PER_SECOND)
        return frame


@contextmanager
def ordinary_threads() -> Iterator[None]:
    """Have this thread, and those that begin meanwhile, scheduled as this one was."""
    # As root, SVT-AV1 makes the opening thread a real-time thread of the highest priority, and its own
    # threads inherit that: a control loop on the same core then stands still while a frame is encoded.
    if not TASKS.is_dir() or not hasattr(os, "sched_getscheduler"):
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


def _set_colours(context: Any, colours: tuple[int, int, int, int]) -> None:
    """Say in the stream what its numbers mean: BT.709 of limited range, which players expect; grey of full range."""
    context.color_range, context.colorspace, context.color_primaries, context.color_trc = colours


def _options(settings: EncoderSettings, kind: EncoderKind) -> dict[str, str]:
    """Return the options that ffmpeg's encoder is opened with."""
    if settings.crf is not None:
        return {"preset": settings.preset, "crf": str(settings.crf), **kind.options}
    return {"preset": settings.preset, "x265-params": f"{kind.options['x265-params']}:lossless=1"} | {
        name: value for name, value in kind.options.items() if name != "x265-params"
    }


def _deep(pixels: npt.NDArray[np.uint16]) -> Any:
    """Return the frame of uint16 pixels of at most 12 bits."""
    if pixels.max() > MAX_SAMPLE:
        raise EncodeError(
            f"uint16 video holds 12 bits, 0 to {MAX_SAMPLE}, and there is a pixel of {pixels.max()}. Use codec "
            '"png" or "zstd", or make the values smaller.'
        )
    return deep_frame(_padded(pixels)[:, :, 0])


def _padded(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a frame at the size at which it is encoded, C-contiguous, its edges repeated."""
    height, width = coded_size(*pixels.shape[:2])
    if (height, width) != pixels.shape[:2]:
        pixels = np.pad(pixels, ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)), mode="edge")
    return np.ascontiguousarray(pixels)
