"""Video files to measure, and a decoder of them that is kept open: what people write by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from datasets import photo_crops

from stepwell.codecs.video_encoding import ordinary_threads

__all__ = ["FPS", "OpenDecoder", "pan_frames", "write_mp4"]

FPS = 30
# as in research of such clips: a fixed distance of keyframes, no B-frames
ENCODERS = {
    "h264": ("libx264", {"preset": "medium", "crf": "23", "bf": "0", "sc_threshold": "0"}),
    # with its own choice of threads and of frames' order, SVT-AV1 4.1 stopped for ever in one of 30 files
    "av1": ("libsvtav1", {"preset": "12", "crf": "30", "svtav1-params": "pred-struct=1:lp=1:scd=0"}),
}


def pan_frames(num_frames: int, size: int | tuple[int, int], first: int = 0) -> Iterator[np.ndarray]:
    """Yield frames of a camera that pans over a photo, with the noise of a sensor, uint8 [height, width, 3].

    Args:
        num_frames: of them.
        size: height and width, or the side of a square; below 1,000.
        first: where the camera begins on its way, in frames.
    """
    height, width = (size, size) if isinstance(size, int) else size
    (photo,) = photo_crops(1, 1000)
    rng = np.random.default_rng(0)
    spans = 1000 - height, 1000 - width
    noise = rng.normal(0, 1.5, (16, height, width, 3)).astype(np.float32)
    for number in range(first, first + num_frames):
        y, x = (int(s / 2 * (1 + np.sin(number / period))) for s, period in zip(spans, (61.0, 97.0), strict=True))
        yield np.clip(photo[y : y + height, x : x + width] + noise[number % 16], 0, 255).astype(np.uint8)


def write_mp4(path: Path, frames: Iterator[np.ndarray], size: int, kind: str, gop: int) -> None:
    """Encode frames with a keyframe every ``gop``."""
    # svt-av1 would tell its settings on stderr
    os.environ.setdefault("SVT_LOG", "0")
    library, options = ENCODERS[kind]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(library, rate=FPS, options={**options, "g": str(gop)})
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        if kind == "h264":
            stream.options["keyint_min"] = str(gop)
        stream.time_base = Fraction(1, FPS)
        with ordinary_threads():
            container.start_encoding()
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


class OpenDecoder:
    """A file that is kept open, and asked for windows of neighbouring frames: seek, and decode up to there."""

    def __init__(self, path: Path) -> None:
        self._container = av.open(str(path))
        self._stream = self._container.streams.video[0]
        self._stream.thread_count = 1
        self._reformatter = VideoReformatter()
        self._ticks = 1 / (FPS * self._stream.time_base)

    def window(self, first: int, last: int, out: np.ndarray) -> None:
        """Decode frames ``first`` to ``last`` into ``out``, [n, height, width, 3]."""
        self._container.seek(round(first * self._ticks), stream=self._stream, backward=True)
        for frame in self._container.decode(self._stream):
            number = round(frame.pts / self._ticks)
            if number >= first:
                picture = self._reformatter.reformat(frame, format="rgb24", threads=1)
                plane = picture.planes[0]
                pixels = np.frombuffer(plane, np.uint8).reshape(picture.height, plane.line_size)
                out[number - first] = pixels[:, : picture.width * 3].reshape(out.shape[1:])
            if number >= last:
                return

    def close(self) -> None:
        """Close the file."""
        self._container.close()
