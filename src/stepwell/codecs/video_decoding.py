"""Decoders that are kept open, one a thread, and the way of a frame into an array.

Frames are converted between pixel formats, colour ranges and sizes with the same pixels in every PyAV from 15 on. PyAV
names libswscale's flags and libavutil's colour constants only in parts, and in which release differs; the numbers are
those of FFmpeg's public headers (libswscale/swscale.h, libavutil/pixfmt.h) and never change.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_streams import START_CODE, StreamId, turned, turned_size
from stepwell.errors import DecodeError, MissingDependencyError

__all__ = [
    "BT709",
    "DEEP",
    "FULL_RANGE",
    "LIMITED_RANGE",
    "MAX_OPEN_DECODERS",
    "SMOOTH",
    "FrameDecoder",
    "FrameReformatter",
    "coded_size",
    "deep_frame",
    "new_context",
    "open_decoder",
]

# AVCOL_PRI_BT709, AVCOL_TRC_BT709, AVCOL_SPC_BT709 and SWS_CS_ITU709
BT709 = 1
# AVCOL_RANGE_MPEG and AVCOL_RANGE_JPEG
LIMITED_RANGE, FULL_RANGE = 1, 2
# SWS_BILINEAR | SWS_ACCURATE_RND
SMOOTH = 0x2 | 0x40000
# SWS_CS_ITU601 and SWS_CS_SMPTE170M: two numbers of one table of coefficients
BT601, BT601_TOO = 5, 6
MAX_OPEN_DECODERS = 8
MIN_CODED_SIDE = 16
SLICE_START_BYTES = len(START_CODE) + 1
# decoders pad frames to whole blocks and leave a margin that motion may point to
PADDING = 256
DecoderKey = tuple[StreamId, tuple[int, ...], tuple[int, int] | None, int, bool]
# of uint16 rows: the samples of 12 bits as they are
DEEP = "gray12le"
_LIBRARIES = {"av1": "libdav1d"}


class FrameReformatter:
    """libswscale through PyAV, on the calling thread."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformat: Any = VideoReformatter().reformat
        self.reformat: Any = self._with_colours if _is_before_17() else partial(self._reformat, threads=1)

    def _with_colours(self, frame: Any, **changes: Any) -> Any:
        return self._reformat(frame, **{**_source_colours(frame, changes["format"]), **changes})


@cache
def _is_before_17() -> bool:
    """Return whether PyAV reads no colours from frames, and converts on one thread only."""
    import av

    return int(av.__version__.split(".")[0]) < 17


def _source_colours(frame: Any, pixel_format: str) -> dict[str, int]:
    """Return what PyAV 17 reads from a frame. Older ones use BT.601 of limited range unless two arguments differ."""
    is_full = frame.color_range == FULL_RANGE or frame.format.name.startswith("yuvj")
    is_grey = "gray" in (pixel_format, frame.format.name)
    source = BT601 if is_grey else int(frame.colorspace)
    colours = {"src_color_range": FULL_RANGE if is_full else LIMITED_RANGE, "src_colorspace": source}
    # of the destination's table only conversions to YUV make use, and those name it
    return colours | {"dst_colorspace": BT601 if source == BT601_TOO else BT601_TOO}


def deep_frame(pixels: npt.NDArray[np.uint16]) -> Any:
    """Return a frame of 12 bits with pixels [height, width]."""
    from av import VideoFrame

    frame = VideoFrame(pixels.shape[1], pixels.shape[0], DEEP)
    # PyAV's own way from an array leaves the padding of lines out of account
    lines = np.frombuffer(frame.planes[0], "<u2").reshape(len(pixels), -1)
    lines[:, : pixels.shape[1]] = pixels
    frame.color_range = FULL_RANGE
    return frame


def _deep_reformat(frame: Any, **changes: Any) -> Any:
    """Return a frame with samples of 12 bits; those of 12 bits stay as they are, whatever range the stream tells of."""
    is_grey = frame.format.name.startswith("gray")
    if is_grey and frame.format.name == changes["format"] and changes.get("width") is None:
        return frame
    # as lerobot's PyAV does, which reads no range from the stream
    source = FULL_RANGE if is_grey else LIMITED_RANGE
    return FrameReformatter().reformat(frame, **{**changes, "src_color_range": source})


def new_context(kind: str) -> Any:
    """Return PyAV's decoder of a kind of stream, not yet open."""
    import av

    library = _LIBRARIES.get(kind, kind)
    try:
        return av.CodecContext.create(library, "r")
    except av.codec.codec.UnknownCodecError as error:
        raise DecodeError(f"this PyAV has no decoder {library!r}, which {kind} video needs.") from error


def coded_size(height: int, width: int) -> tuple[int, int]:
    """Return the size at which own recordings are encoded: even, at least 16; what is more is cut off again."""
    return max(MIN_CODED_SIDE, height + height % 2), max(MIN_CODED_SIDE, width + width % 2)


class FrameDecoder:
    """One open decoder of one stream, whose frames are shown turned; shape and size are those that are shown."""

    def __init__(
        self,
        stream: StreamId,
        shape: tuple[int, ...],
        size: tuple[int, int] | None,
        turn: int = 0,
        is_deep: bool = False,
    ) -> None:
        try:
            import av
        except ImportError as error:
            raise MissingDependencyError.of("av", "video") from error
        self._context: Any = new_context(stream.kind)
        # stays True where decoding failed: such a decoder may be in any state
        self.is_decoding = False
        height, width = turned_size((shape[0], shape[1]), turn)
        self._context.thread_count = 1
        # explode: damage is an error, not a frame made up from its neighbours; but an open GOP may speak of frames
        # before it. strict: where a stream does not say by how much its frames are reordered, wait for as many as
        # its level allows; else late ones are dropped.
        self._context.options = {
            "err_detect": "explode" if stream.is_closed else "crccheck",
            "strict": "strict",
            "max_pixels": str((height + PADDING) * (width + PADDING)),
        }
        self._new_packet: Any = av.Packet
        self._frame_of: Any = av.VideoFrame.from_numpy_buffer
        self._error: type[Exception] = av.error.FFmpegError
        self._reformat = _deep_reformat if is_deep else FrameReformatter().reformat
        self._shape, self._turn = (height, width), turn
        self._size = None if size is None else turned_size(size, turn)
        self._coded_size = coded_size(height, width)
        self._is_closed, self._head = stream.is_closed, b""
        self._has_known_sets = self._can_skip = stream.kind in ("h264", "hevc")
        self._is_skipping = False
        self._format = DEEP if is_deep else "rgb24" if shape[2:] == (3,) else "gray"
        self._channels = (3,) if shape[2:] == (3,) else ()
        self._dtype: Any = np.dtype("<u2") if is_deep else np.dtype(np.uint8)

    @property
    def colours(self) -> tuple[int, int, int, int]:
        """Range, matrix, primaries and transfer of the stream, as libavutil numbers them; of a frame that came."""
        context = self._context
        is_full = str(context.pix_fmt).startswith("yuvj")
        found = (context.color_range, context.colorspace, context.color_primaries, context.color_trc)
        return FULL_RANGE if is_full else int(found[0]), int(found[1]), int(found[2]), int(found[3])

    def decode(
        self,
        packets: Sequence[bytes | memoryview],
        head: bytes,
        wanted: Mapping[int, Sequence[npt.NDArray[Any]]],
        kept: dict[int, Any] | None = None,
    ) -> set[int]:
        """Decode a run's front, write the wanted frames, by number, and return the numbers of all that came.

        Args:
            packets: of the run's front.
            head: of the stream.
            wanted: where to write which frames.
            kept: gets all frames that came, by number, as `write` takes them later.
        """
        came: set[int] = set()
        for frame in self.frames(packets, head, wanted):
            outs = () if frame.pts in came else wanted.get(frame.pts, ())
            if kept is not None:
                kept[frame.pts] = frame
            came.add(frame.pts)
            if outs:
                self.write(frame, outs)
        if not came.issuperset(wanted):
            # those that nobody wants may have been left out
            left = [number for number, outs in wanted.items() if outs and number not in came]
            if left:
                self.is_decoding = True
                raise DecodeError(f"video: no frame {min(left)} came out of the {len(packets)} packets of the run.")
        return came

    def frames(
        self,
        packets: Sequence[bytes | memoryview],
        head: bytes,
        wanted: Mapping[int, Sequence[npt.NDArray[Any]]] | None = None,
    ) -> Iterator[Any]:
        """Yield PyAV's frames of a run's front as they come, by ``pts`` numbered as their packets.

        Args:
            packets: of the run's front.
            head: of the stream.
            wanted: by number; those that nobody wants may be left out. None: all are wanted.
        """
        self.is_decoding = True
        self._context.flush_buffers()
        # the parameter sets are known; to take them in again costs a tenth of a small frame
        is_known = self._has_known_sets and head and head == self._head
        known = len(head) - SLICE_START_BYTES if is_known else 0
        came: set[int] = set()
        for number, data in enumerate([memoryview(packets[0])[known:], *packets[1:], None]):
            packet = None
            if data is None:
                if self._is_closed:
                    self._head = head
                if len(came) >= len(packets):
                    break
            else:
                # with memory of its own: decoders read a few bytes past the end
                packet = self._new_packet(len(data))
                packet.update(data)
                packet.pts = number
                # a frame that no other needs, nor anybody, is not decoded: of H.264 with B-frames half of them. Other
                # decoders leave out more, or look at this only when they are opened
                is_skipped = self._can_skip and bool(wanted) and not (wanted or {}).get(number)
                if is_skipped != self._is_skipping:
                    self._context.skip_frame = "NONREF" if is_skipped else "DEFAULT"
                    self._is_skipping = is_skipped
            try:
                frames = self._context.decode(packet)
            except self._error as error:
                what = "the end" if packet is None else f"packet {number}"
                raise DecodeError(f"video: {what} of the run cannot be decoded ({error}).") from error
            for frame in frames:
                if frame.is_corrupt:
                    raise DecodeError(f"video: frame {frame.pts} of the run is damaged.")
                came.add(frame.pts)
                yield frame
        self.is_decoding = False

    def write(self, frame: Any, outs: Sequence[npt.NDArray[Any]]) -> None:
        """Convert a frame to the feature's colours and size, into each of some arrays."""
        out, *others = outs
        actual = frame.height, frame.width
        if actual not in (self._shape, self._coded_size):
            found, wanted = (turned_size(size, self._turn) for size in (actual, self._shape))
            raise DecodeError(f"video: a frame of {found[0]}x{found[1]}, where the feature is {wanted[0]}x{wanted[1]}.")
        if self._size is not None and actual != self._shape:
            frame = self._cut(self._reformat(frame, format=self._format, dst_color_range=FULL_RANGE))
        height, width = self._size or (None, None)
        # at the same size the default flags take the conversion that ffmpeg itself takes: equal pixels
        flags = None if self._size is None else SMOOTH
        plane = self._reformat(
            frame,
            format=self._format,
            width=width,
            height=height,
            interpolation=flags,
            dst_color_range=FULL_RANGE,
        ).planes[0]
        if self._turn:
            pixels = turned(self._pixels(plane, self._size or self._shape), self._turn)
            out.reshape(pixels.shape)[...] = pixels
        elif plane.buffer_size == out.nbytes:
            out.reshape(-1)[...] = np.frombuffer(plane, self._dtype)
        else:
            lines = np.frombuffer(plane, self._dtype).reshape(plane.height, -1)
            out.reshape(len(out), -1)[...] = lines[: len(out), : out.size // len(out)]
        for other in others:
            other[...] = out

    def _cut(self, frame: Any) -> Any:
        """Return a converted frame without what it was padded by."""
        pixels = self._pixels(frame.planes[0], self._shape)
        if self._format == DEEP:
            return deep_frame(pixels)
        cut = self._frame_of(np.ascontiguousarray(pixels), self._format)
        cut.color_range = FULL_RANGE
        return cut

    def _pixels(self, plane: Any, size: tuple[int, int]) -> npt.NDArray[Any]:
        """Return the pixels of a converted frame, without what its lines are padded by."""
        lines = np.frombuffer(plane, self._dtype).reshape(plane.height, -1)
        return lines[: size[0], : size[1] * math.prod(self._channels)].reshape(*size, *self._channels)


class _OpenDecoders(threading.local):
    """The decoders of one thread, the last used last."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.decoders: OrderedDict[DecoderKey, FrameDecoder] = OrderedDict()


_OPEN = _OpenDecoders()


def open_decoder(
    stream: StreamId, shape: tuple[int, ...], size: tuple[int, int] | None, turn: int = 0, is_deep: bool = False
) -> FrameDecoder:
    """Return this thread's decoder, opened unless it is; at most `MAX_OPEN_DECODERS` stay open in a thread."""
    # resizing has its own conversion of colours: what keeps its size keeps its pixels
    key = stream, shape, None if size == shape[:2] else size, turn, is_deep
    if os.getpid() != _OPEN.pid:  # after a fork: what the parent opened stays the parent's
        _OPEN.pid = os.getpid()
        _OPEN.decoders.clear()
    decoder = _OPEN.decoders.get(key)
    if decoder is not None and not decoder.is_decoding:
        _OPEN.decoders.move_to_end(key)
        return decoder
    decoder = _OPEN.decoders[key] = FrameDecoder(*key)
    if len(_OPEN.decoders) > MAX_OPEN_DECODERS:
        _OPEN.decoders.popitem(last=False)
    return decoder
