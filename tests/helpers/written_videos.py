"""Small videos that move, of every kind that is read, and what a plain decoder makes of them."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from stepwell.codecs.video_encoding import ordinary_threads

HEIGHT, WIDTH, NUM_FRAMES = 48, 64, 40
MILLISECONDS = Fraction(1, 1000)


def write_video(
    path: Path,
    library: str = "libx264",
    params: str = "",
    *,
    pixel_format: str = "yuv420p",
    gop: int = 10,
    b_frames: int | None = None,
    times: Any = None,
    shift: int = 0,
    container_options: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> Path:
    """Write frames that move, with a cut in the middle."""
    height, width = size
    noise = np.random.default_rng(0).integers(0, 255, (20, 24, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    kinds = {"libx264": "x264-params", "libx265": "x265-params", "libsvtav1": "svtav1-params"}
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(library, rate=25)
        stream.height, stream.width, stream.pix_fmt = height, width, pixel_format
        context = stream.codec_context
        context.gop_size, context.thread_count = gop, 1
        context.time_base = stream.time_base = Fraction(1, 25) if library == "mpeg4" else MILLISECONDS
        context.options = (options or {}) | ({kinds[library]: params} if library in kinds and params else {})
        if b_frames is not None:
            context.max_b_frames = b_frames
        with ordinary_threads():
            container.start_encoding()
        for number in range(NUM_FRAMES):
            pixels = np.ascontiguousarray(noise[number : number + height, number : number + width])
            frame = av.VideoFrame.from_ndarray(255 - pixels if number > 25 else pixels, "rgb24")
            tick = number if library == "mpeg4" else 40 * number
            frame.pts, frame.time_base = times(number) if times else tick, context.time_base
            mux(container, stream.encode(frame), shift)
        mux(container, stream.encode(None), shift)
    return path


def mux(container: Any, packets: list[Any], shift: int) -> None:
    for packet in packets:
        if shift:
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
        container.mux(packet)


def colours(frame: Any) -> dict[str, int]:
    """Return arguments by which PyAV before 17 uses a frame's own range and matrix: it does where two ranges differ."""
    is_full = frame.color_range == 2 or frame.format.name.startswith("yuvj")
    return {"src_color_range": 2 if is_full else 1, "dst_color_range": 1 if is_full else 2}


def plain_frames(path: Path, stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return times and pixels of all frames, as a plain decoder gives them one after the other."""
    reformatter, times, frames = VideoReformatter(), [], []
    with av.open(str(path)) as container:
        video = container.streams.video[stream]
        video.thread_count = 1
        for frame in container.decode(video):
            times.append(float(frame.pts * video.time_base))
            frames.append(reformatter.reformat(frame, format="rgb24", **colours(frame)).to_ndarray())
    return np.array(times), np.stack(frames)


# display matrices a, b, c, d and what players make of pixels [..., height, width, 3]: turned clockwise, mirrored
TURNS: dict[str, tuple[tuple[int, int, int, int], Any]] = {
    "as they lie": ((1, 0, 0, 1), lambda pixels: pixels),
    "90 degrees": ((0, 1, -1, 0), lambda pixels: np.rot90(pixels, -1, (-3, -2))),
    "180 degrees": ((-1, 0, 0, -1), lambda pixels: np.rot90(pixels, 2, (-3, -2))),
    "270 degrees": ((0, -1, 1, 0), lambda pixels: np.rot90(pixels, 1, (-3, -2))),
    "mirrored": ((-1, 0, 0, 1), lambda pixels: np.flip(pixels, -2)),
    "upside down": ((1, 0, 0, -1), lambda pixels: np.flip(pixels, -3)),
    "90 degrees, mirrored": ((0, 1, 1, 0), lambda pixels: pixels.swapaxes(-3, -2)),
    "270 degrees, mirrored": ((0, -1, -1, 0), lambda pixels: np.rot90(pixels, 2, (-3, -2)).swapaxes(-3, -2)),
}


def set_matrix(path: Path, matrix: tuple[float, float, float, float], box: bytes = b"tkhd") -> Path:
    """Give an mp4 file that has none a display matrix, of its track or of the film (mvhd)."""
    data = path.read_bytes()
    upright, other = (
        struct.pack(">9i", *(round(65536 * value) for value in (a, b, 0, c, d, 0, 0, 0)), 1 << 30)
        for a, b, c, d in ((1, 0, 0, 1), matrix)
    )
    place = data.index(upright, data.index(box))
    path.write_bytes(data[:place] + other + data[place + len(upright) :])
    return path


def copy_streams(target: Path, *sources: Path, best: int = 0, cover: int | None = None) -> Path:
    """Write a file of the video streams of others, packet by packet; one is the default, one may be a cover picture."""
    with av.open(str(target), "w") as container:
        files = [av.open(str(source)) for source in sources]
        streams = [container.add_stream_from_template(file.streams.video[0]) for file in files]
        streams[best].disposition = av.stream.Disposition.default.value
        if cover is not None:
            streams[cover].disposition = av.stream.Disposition.attached_pic.value
        for file, stream in zip(files, streams, strict=True):
            for packet in file.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    container.mux(packet)
            file.close()
    return target


def write_two_sizes(path: Path, sizes: tuple[tuple[int, int], tuple[int, int]] = ((48, 64), (32, 80))) -> Path:
    """Write a stream whose size changes in the middle, with parameter sets in band."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = *sizes[0], "yuv420p"
        for part, (height, width) in enumerate(sizes):
            context = av.CodecContext.create("libx264", "w")
            context.height, context.width, context.pix_fmt = height, width, "yuv420p"
            context.time_base, context.options = Fraction(1, 25), {"bf": "0"}
            packets = []
            for number in range(10):
                frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 20 * number, np.uint8), "rgb24")
                frame.pts = 10 * part + number
                packets += context.encode(frame)
            for packet in packets + context.encode(None):
                packet.stream = stream
                container.mux(packet)
    return path


READS_HEADS = hasattr(av.VideoStream, "index_entries")
needs_heads = pytest.mark.skipif(not READS_HEADS, reason="PyAV before 17 does not show what the head of a file says")

OPEN_GOP = "open-gop=1:keyint=10:b-adapt=0:bframes=3:b-pyramid="
CASES: dict[str, dict[str, Any]] = {
    "b-frames.mp4": {"params": "bframes=3:b-pyramid=normal:ref=4"},
    "open-gop.mp4": {"params": OPEN_GOP + "normal"},
    "open-gop.mkv": {"params": OPEN_GOP + "strict:ref=5"},
    "refresh.mp4": {"params": "intra-refresh=1:keyint=10:bframes=0"},
    "varying-rate.mp4": {"params": "bframes=3", "times": lambda i: 40 * i + i * i % 17 + 700 * (i > 20)},
    "varying-rate.mkv": {"params": "bframes=3", "times": lambda i: 40 * i + i * i % 17 + 700 * (i > 20)},
    "late.mp4": {"params": "bframes=3", "times": lambda i: 5000 + 40 * i},
    "fragments.mp4": {"container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "transport.ts": {"params": "bframes=3:b-adapt=0"},
    "odd.mov": {"params": "bframes=2", "size": (46, 50)},
    "full-range.mp4": {"pixel_format": "yuvj420p"},
    "full-chroma.mp4": {"pixel_format": "yuv444p"},
    "hevc.mp4": {
        "library": "libx265",
        "params": "log-level=none:open-gop=1:bframes=4:keyint=10:min-keyint=10:b-adapt=0",
    },
    "ten-bit.mkv": {"library": "libx265", "params": "log-level=none", "pixel_format": "yuv420p10le"},
    # one thread at each stage: with its own choice SVT-AV1 4.1 hangs now and then
    "av1.mp4": {"library": "libsvtav1", "params": "lp=1", "options": {"preset": "11"}},
    "av1.mkv": {"library": "libsvtav1", "params": "lp=1", "options": {"preset": "11"}},
    "vp9.webm": {"library": "libvpx-vp9", "options": {"cpu-used": "8", "deadline": "realtime"}},
    "vp9-hidden.webm": {
        "library": "libvpx-vp9",
        "options": {"cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16"},
    },
    "vp9-hidden.mp4": {
        "library": "libvpx-vp9",
        "options": {"cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16"},
    },
    "mpeg4.mp4": {"library": "mpeg4", "b_frames": 2},
    "mpeg4.avi": {"library": "mpeg4", "b_frames": 0},
}
