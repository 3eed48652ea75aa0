"""The packets of a video file, as ffmpeg demuxes them: a table of all, and the bytes of some."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.mp4_boxes import display_matrix
from stepwell.codecs.video_decoding import PictureDecoder
from stepwell.codecs.video_rows import STREAM_KINDS
from stepwell.codecs.video_streams import AV1_CONFIGURATION_BYTES, stream_of, with_sequence_header
from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.files.local_files import check_status

__all__ = ["PacketReader", "PacketTable", "key_places", "kind_of", "opened_video", "packet_table", "packets_of"]

MAX_KEPT_TABLES = 8
# no protocol but that of files, and no demuxer that opens others: playlists, lists of pictures, devices
FORMATS = "mov,matroska,avi,asf,mpegts,mpeg,mpegvideo,flv,ogg,ivf,obu,h264,hevc,m4v,nut,mxf,gxf,rm,wtv,dv"
FILE_ALONE = {"protocol_whitelist": "file", "format_whitelist": FORMATS}
# frames among which a stream that has B-frames shows some
LOOK_FRAMES = 100
NO_TIME = int(np.iinfo(np.int64).min)
# parameter sets go in band, in front of every packet that a decoder may begin with, with start codes
_FILTERS = {
    "h264": "h264_mp4toannexb,dump_extra",
    "hevc": "hevc_mp4toannexb,dump_extra",
    "mpeg4": "dump_extra",
    "vp9": "null",
    "av1": "null",
}


@dataclass(frozen=True, eq=False)
class PacketTable:
    """The packets of one video stream in the file's order, which is that of decoding.

    Args:
        kind: of the stream, one of `STREAM_KINDS`.
        height: of its pictures.
        width: likewise.
        dts: int64, decoding times; `NO_TIME` where the file has none.
        pts: int64, presentation times.
        seconds: float64, presentation times in seconds.
        durations: float64, seconds.
        is_key: bool, whether decoding can begin here.
        is_shown: bool, whether the picture is to be shown: an edit list leaves some out.
        positions: int64, where the packets lie in the file; -1 where ffmpeg does not know. Of formats other than mp4
            something else may lie in front of the packet.
        sizes: int64, bytes of the packets there.
        extradata: what the head of the file says of the stream.
    """

    kind: str
    height: int
    width: int
    dts: npt.NDArray[np.int64]
    pts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    durations: npt.NDArray[np.float64]
    is_key: npt.NDArray[np.bool_]
    is_shown: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    extradata: bytes


def packet_table(path: Path, stream: int) -> PacketTable:
    """Return the packets of the n-th video stream of a file; reads all of the file, once while it stays the same.

    Raises:
        DecodeError: not a video, no such stream, or one that cannot be read at random.
        FileNotFoundError: no such file.
    """
    status = path.stat()
    return _packet_table(str(path), stream, status.st_mtime_ns, status.st_size)


@lru_cache(MAX_KEPT_TABLES)
def _packet_table(path: str, stream: int, mtime_ns: int, size: int) -> PacketTable:
    with opened_video(path, stream) as (container, video):
        base, context, kind = video.time_base, video.codec_context, kind_of(video)
        if kind not in STREAM_KINDS:
            raise DecodeError(f"{path}: video of {kind}. Allowed: {', '.join(STREAM_KINDS)}.")
        begins = _beginning_test(kind, video)
        found = [_facts(packet, begins) for packet in packets_of(container, video)]
        if not found or any(pts is None for _, pts, *_ in found):
            raise DecodeError(f"{path}: packets without presentation times. Copy it into an mp4 or mkv file first.")
        dts, pts, durations, is_key, is_shown, places, sizes = (np.array(column) for column in zip(*found, strict=True))
        if context.has_b_frames and (np.diff(pts) >= 0).all():
            _check_times(path, stream)
        seconds = pts * base.numerator / base.denominator
        durations = durations * base.numerator / base.denominator
        return PacketTable(
            kind,
            context.height,
            context.width,
            dts,
            pts.astype(np.int64),
            seconds,
            durations,
            is_key,
            is_shown,
            places,
            sizes,
            bytes(context.extradata or b""),
        )


def key_places(
    keys: npt.NDArray[np.int64], pts: npt.NDArray[np.int64], packets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return at which key packets decoding begins that shall show what packets make.

    It is the last one that is neither decoded nor shown after it.

    Args:
        keys: int64 [k], the key packets, ascending.
        pts: int64, presentation times of all packets.
        packets: int64 [n].

    Returns:
        int64 [n], places in ``keys``; -1 where there is none.
    """
    place = np.searchsorted(keys, packets, side="right") - 1
    while True:
        is_late = (place >= 0) & (pts[keys[place]] > pts[packets])
        if not is_late.any():
            return place
        place -= is_late


def _check_times(path: str, stream: int) -> None:
    """Refuse a file whose pictures change their order and whose times do not: avi and asf keep those of decoding."""
    with opened_video(path, stream) as (container, video):
        shown = [frame.pts for frame in islice(container.decode(video), LOOK_FRAMES) if frame.pts is not None]
        name = container.format.name
    if any(after < before for before, after in pairwise(shown)):
        raise DecodeError(
            f"{path}: it has B-frames, and a file of this format ({name}) does not keep when they are shown. "
            "Encode it again, into an mp4 or mkv file."
        )


def _facts(packet: Any, begins: Callable[[Any], bool]) -> tuple[int, int | None, int, bool, bool, int, int]:
    pts, duration, is_shown = packet.pts, packet.duration or 0, not packet.is_discard
    # before it is converted, which empties it
    position, size = -1 if packet.pos is None else packet.pos, packet.size
    return _dts_of(packet), pts, duration, begins(packet), is_shown, position, size


def _dts_of(packet: Any) -> int:
    return NO_TIME if packet.dts is None else int(packet.dts)


class PacketReader:
    """The bytes of packets by their number, read forwards.

    Args:
        path: of the file.
        stream: n-th video stream.
        table: of the same file and stream.

    Notes:
        For one thread. Keeps the packets from the last one forgotten to the last one asked for.
    """

    def __init__(self, path: Path, stream: int, table: PacketTable) -> None:
        self._path, self._stream, self._table = str(path), stream, table
        self._packets: Generator[tuple[int, bytes | None]] | None = None
        self._kept: dict[int, bytes] = {}
        self._last = -1

    def packet(self, number: int) -> bytes:
        """Return a packet: with start codes, a key packet with parameter sets.

        Raises:
            DecodeError: the file was changed since its table was made, or its packets are asked for in another order.
        """
        if self._packets is None:
            self._packets = self._from(number)
        while self._last < number:
            self._last, packet = next(self._packets, (self._last, None))
            if packet is None:
                raise DecodeError(f"{self._path}: ends before packet {number}; it was changed while it was read.")
            self._kept[self._last] = packet
        if number not in self._kept:
            raise DecodeError(f"{self._path}: packet {number} is shown after later ones; its times are damaged.")
        return self._kept[number]

    def forget(self, number: int) -> None:
        """Let go of the packets before `number`."""
        self._kept = {kept: packet for kept, packet in self._kept.items() if kept >= number}

    def close(self) -> None:
        """Close the file."""
        if self._packets is not None:
            self._packets.close()
            self._packets = None

    def _from(self, first: int) -> Generator[tuple[int, bytes | None]]:
        """Yield (number, bytes) from a packet at or before `first` on."""
        with opened_video(self._path, self._stream) as (container, video):
            number, packets = self._sought(container, video, first)
            if number >= 0:
                convert = _converter(self._table.kind, video)
                for place, packet in enumerate(packets, start=number):
                    if packet.pts not in self._table.pts[place : place + 1]:
                        raise DecodeError(f"{self._path}: packet {place} is another; the file was changed.")
                    yield place, convert(packet)
                return
        yield from self._from(0)

    def _sought(self, container: Any, video: Any, first: int) -> tuple[int, Iterator[Any]]:
        """Return the number of a packet at or before `first` and those from it on; -1 where seeking gets lost."""
        if first == 0:
            return 0, packets_of(container, video)
        # by which of its times a packet is found is a matter of the file's format
        for time in (self._table.pts[first], self._table.dts[first]):
            if time != NO_TIME:
                container.seek(int(time), stream=video)
                packets = packets_of(container, video)
                begin = list(islice(packets, 1))
                number = self._number_of(begin)
                if 0 <= number <= first:
                    return number, chain(begin, packets)
        return -1, iter(())

    def _number_of(self, begin: list[Any]) -> int:
        """Return the number of the one packet, if there is no other like it; else -1."""
        found = [
            np.flatnonzero((self._table.dts == _dts_of(packet)) & (self._table.pts == packet.pts)) for packet in begin
        ]
        return int(found[0][0]) if found and found[0].size == 1 else -1


def packets_of(container: Any, video: Any) -> Iterator[Any]:
    """Yield packets, without the empty ones with which a demuxer says that it is over."""
    return (packet for packet in container.demux(video) if packet.size)


@contextmanager
def opened_video(path: str, stream: int) -> Iterator[tuple[Any, Any]]:
    """Open a file; yields the container and its n-th video stream.

    A text that names other files, a playlist for instance, is no video here, whatever the file is called.
    """
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError.of("av", "video") from error
    check_status(os.stat(path), path)  # noqa: PTH116  a FIFO would be waited for
    try:
        # names and comments in the file may be of any encoding
        container = av.open(f"file:{path}", metadata_errors="ignore", options=dict(FILE_ALONE))
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except av.error.FFmpegError as error:
        raise DecodeError(f"{path}: ffmpeg finds no video in it ({error}).") from error
    with container:
        videos = container.streams.video
        if not 0 <= stream < len(videos):
            raise DecodeError(f"{path}: no video stream {stream}. It has {len(videos)}, counted from 0.")
        if "mp4" in container.format.name:
            _check_is_upright(path, videos[stream].id)
        try:
            yield container, videos[stream]
        except av.error.FFmpegError as error:
            raise DecodeError(f"{path}: damaged ({error}).") from error


def _check_is_upright(path: str, track: int) -> None:
    """Refuse frames that players show turned or mirrored: rows hold packets, which say nothing of that."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        num_bytes = os.fstat(file.fileno()).st_size
        matrix = display_matrix(lambda place, count: os.pread(file.fileno(), count, place), num_bytes, track)
    if matrix is None or (matrix[1:3] == (0, 0) and matrix[0] >= 0 and matrix[3] >= 0):
        return
    a, b, c, d = matrix
    degrees = round(math.degrees(math.atan2(b, a))) % 360
    mirrored = " and mirrored" if a * d - b * c < 0 else ""
    raise DecodeError(
        f"{path}: players show its frames turned by {degrees} degrees{mirrored} (a display matrix), which rows "
        "cannot say. Turn the frames themselves, ffmpeg -i OLD NEW.mp4; or show them as they lie, ffmpeg "
        "-display_rotation 0 -i OLD -c copy NEW.mp4."
    )


def kind_of(video: Any) -> str:
    """Return what a stream is called, whichever decoder ffmpeg would take."""
    return "an unknown kind" if video.codec_context is None else str(video.codec.canonical_name)


def _converter(kind: str, video: Any) -> Callable[[Any], bytes]:
    """Return what makes the bytes of a row's packet of a demuxed packet."""
    import av.bitstream

    filters = av.bitstream.BitStreamFilterContext(_FILTERS[kind], video)
    extradata = bytes(video.codec_context.extradata or b"")
    header = extradata[AV1_CONFIGURATION_BYTES:] if kind == "av1" else b""

    def convert(packet: Any) -> bytes:
        is_key = packet.is_keyframe
        # the filters make one packet of each; a list of several is no case that they know
        data = b"".join(map(bytes, filters.filter(packet)))
        return with_sequence_header(data, header) if header and is_key else data

    return convert


def _beginning_test(kind: str, video: Any) -> Callable[[Any], bool]:
    """Return what tells, before the packet is converted, whether decoding can begin at it.

    Files flag more as key packets than that: where h264 refreshes a picture bit by bit, no packet shows all of it.
    """
    convert = _converter(kind, video)
    shape = video.codec_context.height, video.codec_context.width

    def begins(packet: Any) -> bool:
        if not packet.is_keyframe or kind != "h264":
            return bool(packet.is_keyframe)
        data = convert(packet)
        stream, head = stream_of(kind, data)
        return stream.is_closed or _shows(PictureDecoder(stream, shape, None), data, head)

    return begins


def _shows(decoder: PictureDecoder, packet: bytes, head: bytes) -> bool:
    """Return whether a picture comes out of a packet alone."""
    try:
        return any(True for _ in decoder.pictures([memoryview(packet)], head))
    except DecodeError:
        return False
