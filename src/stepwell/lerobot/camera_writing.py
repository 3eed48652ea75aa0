"""Rows of a camera as LeRobot has them: packets in mp4 files, or files of images; as they are stored where that can be.

::

    episodes of a camera  | 0 0 0 | 1 1 | 2 2 2 2 |      a packet a row, each episode begins with a sync row
    file-000.mp4          | 0 1 2   3 4 |                frame n is shown at n / fps, from 0
    file-001.mp4                        | 0 1 2 3 |      where the first would grow too large, or its stream is another
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.image_files import read_image_head
from stepwell.codecs.video_decoding import FrameDecoder, coded_size, open_decoder
from stepwell.codecs.video_streams import StreamId, VideoRow, parse_row, stream_of
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.lerobot.depth import DepthUnit, depth_of
from stepwell.lerobot.parquet_writing import MEGABYTE, FileNumbers, place_file
from stepwell.lerobot.schema_mapping import Column, stored_feature
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Image, Video

__all__ = [
    "MAX_RATE_TERMS",
    "EpisodePackets",
    "VideoFiles",
    "encoded_packets",
    "encoding_of",
    "image_files",
    "import_av",
    "packets_of",
    "stored_packets",
    "video_packets",
]

# names of ffmpeg's readers of elementary streams
READERS = {"h264": "h264", "hevc": "hevc", "av1": "obu"}
# frames from which a reader learns the form of a stream
LOOK_ROWS = 4
MAX_RATE_TERMS = 100_000
# the byte that begins one; the next is its size, which is small
AV1_SEQUENCE_HEADER = b"\x0a"
# options that lerobot encodes with; the preset is that of its newest version
DEFAULT_VIDEO = {"encoder": "av1", "gop": 2}
AV1_VIDEO = {"crf": 30, "preset": "12"}
FILE_CODECS = ("png", "jpeg")
MAX_UINT16 = 65535


@dataclass(frozen=True, slots=True, eq=False)
class EpisodePackets:
    """The encoded frames of one episode of one camera."""

    stream: StreamId
    packets: tuple[bytes, ...]
    is_sync: tuple[bool, ...]
    head: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all packets."""
        return sum(map(len, self.packets))


def packets_of(rows: Sequence[bytes]) -> EpisodePackets | None:
    """Return the packets of an episode's video rows, or None where they cannot lie in an mp4 file as they are."""
    parsed = [parse_row(row) for row in rows]
    if not parsed or parsed[0].kind not in READERS or not _is_plain(parsed):
        return None
    streams = {_stream(row.kind, bytes(row.packets[0])) for row in parsed if row.is_sync}
    if len(streams) != 1 or not all(stream.is_closed for stream in streams):
        return None
    packets = tuple(bytes(row.packets[0]) for row in parsed)
    return EpisodePackets(streams.pop(), packets, tuple(row.is_sync for row in parsed), b"".join(rows[:LOOK_ROWS]))


def _stream(kind: str, packet: bytes) -> StreamId:
    """Return the stream of a run by its first packet; of AV1 with its sequence header, which the file tells of once."""
    stream, _ = stream_of(kind, packet)
    if kind == "av1" and packet[:1] == AV1_SEQUENCE_HEADER:
        return replace(stream, parameters=packet[: 2 + packet[1]])
    return stream


def _is_plain(rows: Sequence[VideoRow]) -> bool:
    """Return whether each row has one packet and shows the frame of that packet as it lies, from a sync row on."""
    is_one = all(len(row.packets) == 1 and row.kind == rows[0].kind and not row.turn for row in rows)
    follows = all(row.frame == (0 if row.is_sync else before.frame + 1) for before, row in pairwise(rows))
    return is_one and follows and rows[0].is_sync and rows[0].frame == 0


class VideoFiles:
    """Writes the packets of episodes to a row of mp4 files."""

    def __init__(
        self,
        path_of: Callable[[int, int], Path],
        fps: float,
        numbers: FileNumbers,
        limit_mb: float,
        codec: str | None = None,
    ) -> None:
        self._path_of, self._fps, self._numbers = path_of, fps, numbers
        self._tick = 1 / Fraction(fps).limit_denominator(MAX_RATE_TERMS)
        self._limit_bytes = limit_mb * MEGABYTE
        self._container: Any = None
        self._track: Any = None
        self._stream: StreamId | None = None
        self._frames = self._bytes = 0
        self._place = (0, 0)
        self._codec = codec
        self.facts: dict[str, Any] = {}

    def add(self, episode: EpisodePackets) -> tuple[int, int, float]:
        """Write an episode."""
        codec = episode.stream.kind
        if self._codec not in (None, codec):
            raise SchemaError(
                f"an episode of {codec}, where the dataset's others are {self._codec}: info.json tells of one codec a "
                f'camera. Store it by that one first: stepwell convert, with Video(..., encoder="{self._codec}").'
            )
        self._codec = codec
        is_full = self._bytes + episode.num_bytes >= self._limit_bytes
        if self._container is not None and (is_full or episode.stream != self._stream):
            self.close()
        if self._container is None:
            self._open(episode)
        start = self._frames / self._fps
        self._mux(episode)
        return *self._place, start

    def place(self, source: Path, *, link: bool) -> tuple[int, int]:
        """Let a file of another dataset be the next one, as it is; returns its numbers."""
        self.close()
        place = self._numbers.take()
        place_file(source, self._path_of(*place), link=link)
        return place

    def close(self) -> None:
        """Complete the file that is open, if one is."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def _open(self, episode: EpisodePackets) -> None:
        av = import_av()
        self._place = self._numbers.take()
        path = self._path_of(*self._place)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w", format="mp4")
        with av.open(io.BytesIO(episode.head), format=READERS[episode.stream.kind]) as sample:
            video = sample.streams.video[0]
            context = video.codec_context
            # without a codec of its own: nothing is encoded
            self._track = self._container.add_stream_from_template(video, opaque=True)
            self.facts = {
                "codec": episode.stream.kind,
                "pix_fmt": context.pix_fmt,
                "height": context.height,
                "width": context.width,
            }
        self._track.time_base = self._tick
        self._stream, self._frames, self._bytes = episode.stream, 0, 0

    def _mux(self, episode: EpisodePackets) -> None:
        av = import_av()
        for data, is_sync in zip(episode.packets, episode.is_sync, strict=True):
            packet = av.Packet(data)
            packet.stream, packet.time_base = self._track, self._tick
            packet.pts = packet.dts = self._frames
            packet.duration, packet.is_keyframe = 1, is_sync
            self._container.mux_one(packet)
            self._frames += 1
        self._bytes += episode.num_bytes


def import_av() -> Any:
    """Return PyAV."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError.of("av", "lerobot") from error
    return av


def encoding_of(column: Column, options: Mapping[str, Any] | None = None) -> Feature:
    """Return how the images of a camera are encoded, where they are not stored as video."""
    given = {**DEFAULT_VIDEO, **(options or {})}
    if column.depth is not None:
        return Video(column.info.shape, "uint16", gop=given["gop"])
    if given["encoder"] == "av1":
        given = {**AV1_VIDEO, **given}
    # grey as colours, too: players take its full range for a limited one
    feature = Video(column.info.shape, **given)
    make_codec(feature)
    return feature


def video_packets(episode: SourceEpisode, column: Column, encoding: Feature) -> EpisodePackets:
    """Return the frames of an episode: the stored packets where an mp4 file can hold them, else new ones."""
    found = stored_packets([episode], column)
    return encoded_packets(episode, column, encoding) if found is None else found


def stored_packets(episodes: Sequence[SourceEpisode], column: Column) -> EpisodePackets | None:
    """Return the packets of an episode as they are stored; None where an mp4 file cannot hold them.

    Of several that follow each other in a file, only the first has to begin with a key frame.
    """
    if stored_feature(column.feature).codec != "video" or not _can_stay(column):
        return None
    with _named(episodes[0], column):
        return packets_of(_stored_rows(episodes, column))


def image_files(episode: SourceEpisode, column: Column) -> list[bytes]:
    """Return the PNG or JPEG files of an episode's images: the stored ones, or PNG files that are made of them."""
    feature = column.feature
    if column.depth is not None:
        return _depth_files(episode, column)
    if stored_feature(feature).codec in FILE_CODECS and feature.shape[2:] == (3,):
        with _named(episode, column):
            return [_as_colours(file, feature) for file in _stored_rows([episode], column)]
    codec = make_codec(Image(column.info.shape, codec="png"))
    return [codec.encode(_in_colour(image)) for image in episode.images(column.source, feature)]


def _depth_files(episode: SourceEpisode, column: Column) -> list[bytes]:
    """Return the files of a depth map's images: PNG of whole numbers, TIFF of floats."""
    source, target = column.depth, depth_of(column.info.raw)
    assert source is not None
    assert target is not None
    is_same = source.quantization is None and source.unit in (None, target.unit)
    if is_same and stored_feature(column.feature).codec == "png":
        with _named(episode, column):
            return _stored_rows([episode], column)
    images = episode.images(column.source, column.feature)
    return [_depth_file(image if is_same else source.values(image, target.unit), target.unit) for image in images]


def _depth_file(depth: npt.NDArray[Any], unit: DepthUnit | None) -> bytes:
    """Return a file of depths that Pillow opens with the same values."""
    depth = depth.reshape(depth.shape[:2])
    # a recording holds floats until its first frame has told the unit
    if depth.dtype == np.uint16 or (unit == "mm" and _is_whole(depth)):
        return make_codec(Image(depth.shape, "uint16", codec="png")).encode(np.array(depth, np.uint16, order="C"))
    try:
        from PIL import Image as PillowImage
    except ImportError as error:
        raise MissingDependencyError("images of floats are written by Pillow. Type: pip install pillow") from error
    file = io.BytesIO()
    PillowImage.fromarray(np.ascontiguousarray(depth, np.float32)).save(file, "TIFF", compression="raw")
    return file.getvalue()


def _is_whole(depth: npt.NDArray[np.floating[Any]]) -> bool:
    return bool(depth.min() >= 0 and depth.max() <= MAX_UINT16 and (depth == np.rint(depth)).all())


def _as_colours(file: bytes, feature: Feature) -> bytes:
    """Return the file where Pillow opens it as RGB, else a PNG file of its colours."""
    head = read_image_head(file)
    if head is None or (head.is_plain and head.channels == 3 and head.dtype == feature.np_dtype.name):
        return file
    pixels = make_codec(stored_feature(feature)).decode(np.frombuffer(file, np.uint8))
    return make_codec(Image(feature.shape, feature.dtype, codec="png")).encode(pixels)


def _stored_rows(episodes: Sequence[SourceEpisode], column: Column) -> list[bytes]:
    codec = make_codec(column.feature)
    blobs = [blob for episode in episodes for blob in episode.blobs(column.source)]
    if not isinstance(codec, FileCodec):
        return [blob.tobytes() for blob in blobs]
    return list(codec.embed(blobs).rows(codec.embedded()))


@contextmanager
def _named(episode: SourceEpisode, column: Column) -> Iterator[None]:
    """Make errors of rows say whose they are."""
    try:
        yield
    except DecodeError as error:
        raise DecodeError(f"{episode.store.path}: episode {episode.index}, {column.source!r}: {error}") from error


def encoded_packets(episode: SourceEpisode, column: Column, encoding: Feature) -> EpisodePackets:
    """Return the frames of an episode, encoded anew; samples of a video go to the encoder as they are decoded."""
    from stepwell.codecs.video_encoding import EncoderSettings, VideoEncoder

    settings = EncoderSettings.of(encoding)
    decoded = _decoded_frames(episode, column, settings.pixel_format)
    colours, frames = (None, _encoded_images(episode, column)) if decoded is None else decoded
    # one for each episode: bytes then depend neither on earlier episodes nor on the number of threads
    encoder, rows = VideoEncoder(settings, colours), []
    try:
        for frame in frames:
            rows += encoder.put(frame)
        rows += encoder.end()
    finally:
        encoder.close()
    found = packets_of(rows)
    if found is None or len(rows) != episode.length:
        raise SchemaError(f"camera {column.name!r}: {encoding!r} gave {len(rows)} frames of {episode.length} images.")
    return found


def _encoded_images(episode: SourceEpisode, column: Column) -> Iterator[npt.NDArray[Any]]:
    """Yield the images of an episode as an encoder takes them: RGB, or the codes of a depth map."""
    for image in episode.images(column.source, column.feature):
        yield _in_colour(image) if column.depth is None else _codes(image, column)


def _decoded_frames(
    episode: SourceEpisode, column: Column, pixel_format: str
) -> tuple[tuple[int, int, int, int], Iterator[Any]] | None:
    """Return the colours of a video and PyAV's frames of an episode; None where they are to be converted.

    Samples then stay what they are: RGB on the way would cost chroma, and what rounding takes.
    """
    if stored_feature(column.feature).codec != "video" or column.depth is not None or not _can_stay(column):
        return None
    frames = _frames_of(episode, column)
    found = next(frames, None)
    if found is None:
        return None
    first, colours = found
    size = first.height, first.width
    if first.format.name.replace("yuvj", "yuv") != pixel_format or size != tuple(column.feature.fixed_shape[:2]):
        return None
    return colours, chain([first], (frame for frame, _ in frames))


def _frames_of(episode: SourceEpisode, column: Column) -> Iterator[tuple[Any, tuple[int, int, int, int]]]:
    """Yield the frame of each row of a video, and its colours; few are held. None of a video of several streams."""
    with _named(episode, column):
        rows = [parse_row(row) for row in _stored_rows([episode], column)]
        starts = [number for number, row in enumerate(rows) if row.is_sync]
        streams = [stream_of(rows[start].kind, bytes(rows[start].packets[0])) for start in starts]
        if len({(stream.kind, stream.parameters) for stream, _ in streams}) != 1 or any(row.turn for row in rows):
            return
        for (start, stop), (stream, head) in zip(pairwise([*starts, len(rows)]), streams, strict=True):
            decoder = open_decoder(stream, column.feature.fixed_shape, None)
            for frame in _frames_of_run(decoder, head, rows[start:stop]):
                yield frame, decoder.colours


def _frames_of_run(decoder: FrameDecoder, head: bytes, rows: Sequence[VideoRow]) -> Iterator[Any]:
    """Yield the frames that the rows of a run show, in order."""
    waiting, held = deque(row.frame for row in rows), {}
    shown = set(waiting)
    for frame in decoder.frames([packet for row in rows for packet in row.packets], head):
        if frame.pts in shown:
            held[frame.pts] = frame
        while waiting and waiting[0] in held:
            number = waiting.popleft()
            yield held[number]
            if not waiting or waiting[0] != number:
                del held[number]
    if waiting:
        raise DecodeError(f"video: no frame {waiting[0]} came out of the packets of the run.")


def _can_stay(column: Column) -> bool:
    """Whether frames are RGB and have the feature's size: odd ones, and very small ones, are encoded with an edge."""
    height, width, *channels = column.feature.fixed_shape
    is_right = channels == [3] if column.depth is None else _has_same_codes(column)
    return is_right and coded_size(height, width) == (height, width)


def _has_same_codes(column: Column) -> bool:
    """Whether a depth map's rows are the codes that the dataset has."""
    target = depth_of(column.info.raw)
    return column.depth is not None and target is not None and column.depth.quantization == target.quantization


def _codes(image: npt.NDArray[Any], column: Column) -> npt.NDArray[np.uint16]:
    """Return the codes of a depth map's row as the dataset has them."""
    if _has_same_codes(column):
        return image
    source, target = column.depth, depth_of(column.info.raw)
    assert source is not None
    assert target is not None
    assert target.quantization is not None
    if source.quantization is None:
        return target.quantization.codes(image, source.unit)
    return target.quantization.codes(source.values(image, "m"), "m")


def _in_colour(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return an image of three channels; those of a grey one are equal."""
    height, width = image.shape[:2]
    # a copy of one row or column would otherwise keep strides that encoders of images refuse
    return np.array(np.broadcast_to(image.reshape(height, width, -1), (height, width, 3)), order="C")
