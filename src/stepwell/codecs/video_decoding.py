"""Decoders that are kept open, one a thread, and the way of a picture into an array."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, MissingDependencyError

__all__ = ["MAX_OPEN_DECODERS", "PictureDecoder", "close_decoder", "coded_size", "open_decoder"]

MAX_OPEN_DECODERS = 8
MIN_CODED_SIDE = 16
# a stream may pad its pictures to whole blocks of up to 64 pixels, and to more than one of them
PADDING = 128
_LIBRARIES = {"av1": "libdav1d"}
_PLANE_BYTES = {"gray": 1, "rgb24": 3}


def coded_size(height: int, width: int) -> tuple[int, int]:
    """Return the size at which own recordings are encoded: even, at least 16; what is more is cut off again.

    Example:
        >>> coded_size(95, 7)
        (96, 16)
    """
    return max(MIN_CODED_SIDE, height + height % 2), max(MIN_CODED_SIDE, width + width % 2)


class PictureDecoder:
    """One open decoder of a kind of stream, for pictures of one size.

    Args:
        kind: of the stream, see `video_rows`.
        shape: of the feature: (height, width), (height, width, 1) or (height, width, 3).
        size: height and width to resize to; None: as they are.

    Raises:
        DecodeError: this build of ffmpeg has no decoder for it.

    Notes:
        For one thread at a time. Decoding, conversion and resizing release the GIL and start no threads.
    """

    def __init__(self, kind: str, shape: tuple[int, ...], size: tuple[int, int] | None) -> None:
        try:
            import av
            from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
        except ImportError as error:
            raise MissingDependencyError.of("av", "video") from error
        library = _LIBRARIES.get(kind, kind)
        try:
            self._context: Any = av.CodecContext.create(library, "r")
        except av.codec.codec.UnknownCodecError as error:
            raise DecodeError(f"this PyAV has no decoder {library!r}, which {kind} video needs.") from error
        height, width = shape[:2]
        self._context.thread_count = 1
        # explode: damage is an error, not a picture made up from its neighbours. strict: where a stream does not say
        # by how much its pictures are reordered, wait for as many as its level allows; else late ones are dropped.
        limit = (height + PADDING) * (width + PADDING)
        self._context.options = {"err_detect": "explode", "strict": "strict", "max_pixels": str(limit)}
        self._new_packet: Any = av.Packet
        self._frame_of: Any = av.VideoFrame.from_numpy_buffer
        self._error: type[Exception] = av.error.FFmpegError
        self._reformatter: Any = VideoReformatter()
        self._resize_flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND
        self._full_range = ColorRange.JPEG
        self._shape, self._size = (height, width), size
        self._format = "rgb24" if shape[2:] == (3,) else "gray"

    def pictures(self, packets: Iterable[memoryview]) -> Iterator[tuple[int, Any]]:
        """Yield (number, frame) of the pictures of a run, in the order in which they are shown.

        Args:
            packets: from the run's first on; picture n is made by the n-th. Taken as pictures are asked for.

        Raises:
            DecodeError: a packet is damaged.
        """
        self._context.flush_buffers()
        for number, data in enumerate(packets):
            # its own memory: decoders read a few bytes past the end
            packet = self._new_packet(len(data))
            packet.update(data)
            packet.pts = number
            yield from self._decode(packet, f"packet {number}")
        yield from self._decode(None, "the last packets")

    def _decode(self, packet: Any, what: str) -> Iterator[tuple[int, Any]]:
        try:
            frames = self._context.decode(packet)
        except self._error as error:
            raise DecodeError(f"video: {what} of the run cannot be decoded ({error}).") from error
        for frame in frames:
            if frame.is_corrupt:
                raise DecodeError(f"video: picture {frame.pts} of the run is damaged.")
            yield frame.pts, frame

    def write(self, frame: Any, out: npt.NDArray[np.uint8]) -> None:
        """Convert a frame to the feature's colours and size.

        Args:
            frame: as `pictures` gave it.
            out: uint8, of the feature's shape, height and width those of ``size``; written.

        Raises:
            DecodeError: the picture has not the feature's size.
        """
        actual = frame.height, frame.width
        if actual not in (self._shape, coded_size(*self._shape)):
            raise DecodeError(
                f"video: a picture of {actual[0]}x{actual[1]}, where the feature is {self._shape[0]}x{self._shape[1]}."
            )
        if self._size is not None and actual != self._shape:
            frame = self._cut(self._converted(frame))
        pixels = _pixels_of(self._converted(frame, self._size), self._format)
        out.reshape(*out.shape[:2], -1)[...] = pixels[: out.shape[0], : out.shape[1]]

    def _cut(self, frame: Any) -> Any:
        """Return a converted frame without what it was padded by."""
        pixels = np.ascontiguousarray(_pixels_of(frame, self._format)[: self._shape[0], : self._shape[1]])
        cut = self._frame_of(pixels if self._format == "rgb24" else pixels[:, :, 0], self._format)
        cut.color_range = self._full_range
        return cut

    def _converted(self, frame: Any, size: tuple[int, int] | None = None) -> Any:
        height, width = size or (None, None)
        # at the same size the default flags take the conversion that ffmpeg itself takes: equal pixels
        flags = None if size is None else self._resize_flags
        return self._reformatter.reformat(
            frame,
            width=width,
            height=height,
            format=self._format,
            interpolation=flags,
            dst_color_range=self._full_range,
            threads=1,
        )


class _OpenDecoders(threading.local):
    """The decoders of one thread, the last used last."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.decoders: OrderedDict[tuple[Any, ...], PictureDecoder] = OrderedDict()


_OPEN = _OpenDecoders()


def open_decoder(kind: str, shape: tuple[int, ...], size: tuple[int, int] | None) -> PictureDecoder:
    """Return this thread's decoder, opened unless it is; at most `MAX_OPEN_DECODERS` stay open in a thread.

    Raises:
        DecodeError: this build of ffmpeg has no decoder for the stream.
    """
    if os.getpid() != _OPEN.pid:  # after a fork: what the parent opened stays the parent's
        _OPEN.__init__()  # type: ignore[misc]
    key = kind, shape, size
    decoder = _OPEN.decoders.pop(key, None) or PictureDecoder(*key)
    _OPEN.decoders[key] = decoder
    if len(_OPEN.decoders) > MAX_OPEN_DECODERS:
        _OPEN.decoders.popitem(last=False)
    return decoder


def close_decoder(kind: str, shape: tuple[int, ...], size: tuple[int, int] | None) -> None:
    """Forget this thread's decoder: one that failed may be in any state."""
    _OPEN.decoders.pop((kind, shape, size), None)


def _pixels_of(frame: Any, pixel_format: str) -> npt.NDArray[np.uint8]:
    """Return a frame's only plane as an array, [height, width, bytes of a pixel]; a view."""
    plane, num_bytes = frame.planes[0], _PLANE_BYTES[pixel_format]
    lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    return lines[: frame.height, : frame.width * num_bytes].reshape(frame.height, frame.width, num_bytes)
