"""Mp4 files of a camera: packets of video rows, put one after the other without encoding them again.

::

    episodes of a camera  | 0 0 0 | 1 1 | 2 2 2 2 |      a packet a row, each episode begins with a sync row
    file-000.mp4          | 0 1 2   3 4 |                frame n is shown at n / fps, from 0
    file-001.mp4                        | 0 1 2 3 |      where the first would grow too large, or its stream is another
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepwell.codecs.video_streams import StreamId, VideoRow, parse_row, stream_of
from stepwell.errors import MissingDependencyError, SchemaError
from stepwell.lerobot.data_files import MEGABYTE, FileNumbers

__all__ = ["EpisodePackets", "VideoFiles", "packets_of"]

# names of ffmpeg's readers of elementary streams
READERS = {"h264": "h264", "hevc": "hevc", "av1": "obu"}
# frames from which a reader learns what a stream is
LOOK_ROWS = 4
MAX_RATE_TERMS = 100_000
# the byte that begins one; the next is its size, which is small
AV1_SEQUENCE_HEADER = b"\x0a"


@dataclass(frozen=True, slots=True, eq=False)
class EpisodePackets:
    """The encoded frames of one episode of one camera.

    Args:
        stream: what all its runs are of.
        packets: one a row, in order.
        is_sync: whether decoding may begin at each.
        head: the first rows as an elementary stream.
    """

    stream: StreamId
    packets: tuple[bytes, ...]
    is_sync: tuple[bool, ...]
    head: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all packets."""
        return sum(map(len, self.packets))


def packets_of(rows: Sequence[bytes]) -> EpisodePackets | None:
    """Return the packets of an episode's video rows, or None where they cannot lie in an mp4 file as they are.

    They can where each row has one packet that makes the picture it shows, where no run speaks of pictures before it,
    and where all runs are of one stream, of h264, hevc or av1.

    Args:
        rows: as the codec "video" stores them.

    Raises:
        DecodeError: bytes that are no row of video.
    """
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
    """Whether each row has one packet and shows what it makes, from a sync row on."""
    is_one = all(len(row.packets) == 1 and row.kind == rows[0].kind for row in rows)
    follows = all(row.frame == (0 if row.is_sync else before.frame + 1) for before, row in pairwise(rows))
    return is_one and follows and rows[0].is_sync and rows[0].frame == 0


class VideoFiles:
    """Writes the packets of episodes to a row of mp4 files.

    Args:
        path_of: from (chunk, file) to a file's path.
        fps: frames a second.
        numbers: of the files.
        limit_mb: a file that would become larger is not added to; 0: each episode has its own.
        codec: that the dataset says its videos are of; None: it says nothing yet.

    Attributes:
        facts: what the last stream is: "codec", "pix_fmt", "height", "width"; empty before the first.

    Notes:
        For one thread. A file is readable only when it is complete: when the next is begun, or after `close`.
    """

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
        """Write an episode.

        Returns:
            (chunk, file) it is in, and the seconds at which it begins there.

        Raises:
            SchemaError: it is of another codec than those before: info.json has one for all.
        """
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

    def close(self) -> None:
        """Complete the file that is open, if one is."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def _open(self, episode: EpisodePackets) -> None:
        av = _import_av()
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
        av = _import_av()
        for data, is_sync in zip(episode.packets, episode.is_sync, strict=True):
            packet = av.Packet(data)
            packet.stream, packet.time_base = self._track, self._tick
            packet.pts = packet.dts = self._frames
            packet.duration, packet.is_keyframe = 1, is_sync
            self._container.mux_one(packet)
            self._frames += 1
        self._bytes += episode.num_bytes


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError.of("av", "lerobot") from error
    return av
