"""The packets of a video file, as ffmpeg demuxes them: a table of all, and the bytes of some.

PyAV does not say how much later than decoded frames are shown; boxes of an mp4 file do, and how frames are turned::

    moov ── mvhd                                display matrix of the film, applied after the track's
       └─── trak ── tkhd                        number of the track, display matrix
               └─── mdia ── minf ── stbl ── stsz        number of packets
                                       └─── ctts        runs of packets that are shown equally late; none: not late

Source:
    ISO/IEC 14496-12, sections 4.2, 8.2, 8.3, 8.6.1.3 and 8.7.3; of matrices section 6.2.2.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_decoding import FrameDecoder, new_context
from stepwell.codecs.video_streams import (
    AV1_CONFIGURATION_BYTES,
    MIRRORED,
    STREAM_KINDS,
    SWAPPED_SIDES,
    UPSIDE_DOWN,
    stream_of,
    turned_size,
    with_sequence_header,
)
from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.files.local_files import check_status

__all__ = [
    "PacketReader",
    "PacketTable",
    "claimed_bytes",
    "display_matrix",
    "key_places",
    "kind_of",
    "opened_video",
    "packet_delays",
    "packet_table",
    "packets_of",
    "turn_of",
]

HEAD = struct.Struct(">I4s")
LARGE_HEAD = struct.Struct(">I4sQ")
FULL_BOX_BYTES = 4
# after version and flags of a track's header: two times of 32 or 64 bits
TRACK_PLACES = {0: 8, 1: 16}
# after version and flags: times, number, duration, layer, group and volume
MATRIX_PLACES = {b"tkhd": {0: 36, 1: 48}, b"mvhd": {0: 32, 1: 44}}
# of what a matrix says of x and y: below it is rounding, beyond it frames lie aslant; about a degree
MATRIX_SLACK = 0.02
MATRIX = struct.Struct(">iiiiiiiii")
STSZ_COUNT_PLACE = FULL_BOX_BYTES + 4
CTTS_ENTRY = np.dtype([("count", ">u4"), ("offset", ">i4")])
MAX_MOOV_BYTES = 1 << 30
MAX_KEPT_TABLES = 8
# no protocol but that of files, and no demuxer that opens others: playlists, lists of frames, devices
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

# the bytes of a key packet of vp9 that say how large its frame is
VP9_SIZE_BYTES = 9

Matrix = tuple[float, float, float, float]
Read = Callable[[int, int], bytes]


def packet_delays(read: Read, num_bytes: int, track: int, num_packets: int) -> npt.NDArray[np.int64] | None:
    """Return the ticks from decoding to showing each packet of a track, up to a constant; None if unknown."""
    try:
        data, trak = _track(_head(read, num_bytes), track)
        return _delays(data, _child(data, trak, b"mdia", b"minf", b"stbl"), num_packets)
    except (StopIteration, struct.error, ValueError, KeyError):
        return None


def display_matrix(read: Read, num_bytes: int, track: int) -> Matrix | None:
    """Return how players turn and mirror the frames of a track: x is shown at (a, b), y at (c, d)."""
    try:
        data, trak = _track(_head(read, num_bytes), track)
        a, b, c, d = _matrix(data, trak, b"tkhd")
        e, f, g, h = _matrix(data, range(len(data)), b"mvhd")
    except (StopIteration, struct.error, ValueError, KeyError):
        return None
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def claimed_bytes(read: Read, num_bytes: int) -> int:
    """Return how long an mp4 file is by the heads of its boxes: more than it has where it was cut off."""
    end = 0
    while end + LARGE_HEAD.size <= num_bytes:
        size, kind, large = LARGE_HEAD.unpack(read(end, LARGE_HEAD.size))
        if end == 0 and kind != b"ftyp":
            return num_bytes
        size = large if size == 1 else size
        if size < HEAD.size:  # 0: up to the end of the file
            return num_bytes
        end += size
    return max(end, num_bytes)


def _matrix(data: bytes, box: range, kind: bytes) -> Matrix:
    """Return the matrix of the header of a film or track."""
    header = _child(data, box, kind)
    place = header.start + FULL_BOX_BYTES + MATRIX_PLACES[kind][data[header.start]]
    a, b, _, c, d = (value / 65536 for value in MATRIX.unpack_from(data, place)[:5])
    return a, b, c, d


def _head(read: Read, num_bytes: int) -> bytes:
    """Return the boxes of a file's head; none where it is larger than any film's."""
    moov = next(_boxes(read, 0, num_bytes, b"moov"))
    return read(moov.start, len(moov)) if len(moov) <= MAX_MOOV_BYTES else b""


def _track(data: bytes, track: int) -> tuple[bytes, range]:
    """Return the bytes of a file's head, and the place of a track's description in them."""
    for trak in _boxes(_reader(data), 0, len(data), b"trak"):
        if _track_of(data, trak) == track:
            return data, trak
    raise ValueError


def _delays(data: bytes, table: range, num_packets: int) -> npt.NDArray[np.int64] | None:
    sizes = _child(data, table, b"stsz")
    (count,) = struct.unpack_from(">I", data, sizes.start + STSZ_COUNT_PLACE)
    if count != num_packets:
        return None
    shifts = next(_boxes(_reader(data), table.start, table.stop, b"ctts"), None)
    if shifts is None:
        return np.zeros(num_packets, np.int64)
    (num_entries,) = struct.unpack_from(">I", data, shifts.start + FULL_BOX_BYTES)
    entries = np.frombuffer(data, CTTS_ENTRY, num_entries, shifts.start + FULL_BOX_BYTES + 4)
    if int(entries["count"].sum(dtype=np.int64)) != num_packets:
        return None
    return np.repeat(entries["offset"].astype(np.int64), entries["count"])


def _track_of(data: bytes, trak: range) -> int:
    header = _child(data, trak, b"tkhd")
    (number,) = struct.unpack_from(">I", data, header.start + FULL_BOX_BYTES + TRACK_PLACES[data[header.start]])
    return int(number)


def _child(data: bytes, box: range, *kinds: bytes) -> range:
    """Return the first box of a kind in a box, and so on downwards."""
    for kind in kinds:
        box = next(_boxes(_reader(data), box.start, box.stop, kind))
    return box


def _reader(data: bytes) -> Read:
    return lambda place, count: data[place : place + count]


def _boxes(read: Read, start: int, stop: int, wanted: bytes) -> Iterator[range]:
    """Yield where the contents of boxes of a kind lie in a range that is full of boxes."""
    while start + HEAD.size <= stop:
        head = read(start, LARGE_HEAD.size)
        size, kind = HEAD.unpack_from(head)
        begin = start + HEAD.size
        if size == 1:
            size, begin = LARGE_HEAD.unpack(head)[2], start + LARGE_HEAD.size
        end = stop if size == 0 else start + size
        if not begin <= end <= stop:
            raise ValueError
        if kind == wanted:
            yield range(begin, end)
        start = end


@dataclass(frozen=True, eq=False)
class PacketTable:
    """The packets of one video stream in the file's order, which is that of decoding."""

    kind: str  # of the stream, one of `STREAM_KINDS`
    height: int  # of its frames as they are shown
    width: int  # likewise
    turn: int  # by which they are turned for that
    dts: npt.NDArray[np.int64]  # int64, decoding times; `NO_TIME` where the file has none
    pts: npt.NDArray[np.int64]  # int64, presentation times
    seconds: npt.NDArray[np.float64]  # float64, presentation times in seconds
    durations: npt.NDArray[np.float64]  # float64, seconds
    is_key: npt.NDArray[np.bool_]  # bool, whether decoding can begin here
    is_shown: npt.NDArray[np.bool_]  # bool, whether the frame is to be shown: an edit list leaves some out
    # int64, where the packets lie in the file; -1 where ffmpeg does not know. Of formats other than mp4 something else
    # may lie in front of the packet
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # int64, bytes of the packets there
    extradata: bytes  # the stream's description in the head of the file


def packet_table(path: Path, stream: int | None) -> PacketTable:
    """Return the packets of a video stream, see `opened_video`; reads all of the file, once while it stays the same."""
    status = path.stat()
    return _packet_table(str(path), stream, status.st_mtime_ns, status.st_size)


@lru_cache(MAX_KEPT_TABLES)
def _packet_table(path: str, stream: int | None, mtime_ns: int, size: int) -> PacketTable:
    with opened_video(path, stream) as (container, video):
        base, context, kind = video.time_base, video.codec_context, kind_of(video)
        if kind not in STREAM_KINDS:
            raise DecodeError(f"{path}: video of {kind}. Allowed: {', '.join(STREAM_KINDS)}.")
        turn = turn_of(path, stream, container, video)
        begins = _beginning_test(path, kind, video)
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
            *turned_size((context.height, context.width), turn),
            turn,
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
    """Return the key packet at which decoding begins to show each packet's frame."""
    # the last one that is neither decoded nor shown after the packet
    place = np.searchsorted(keys, packets, side="right") - 1
    while True:
        is_late = (place >= 0) & (pts[keys[place]] > pts[packets])
        if not is_late.any():
            return place
        place -= is_late


def _check_times(path: str, stream: int | None) -> None:
    """Refuse a file whose frames change their order and whose times do not: avi and asf keep those of decoding."""
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
    """The bytes of packets by their number, read forwards."""

    # For one thread. Keeps the packets from the last one forgotten to the last one returned.

    def __init__(self, path: Path, stream: int | None, table: PacketTable) -> None:
        self._path, self._stream, self._table = str(path), stream, table
        self._packets: Generator[tuple[int, bytes | None]] | None = None
        self._kept: dict[int, bytes] = {}
        self._last = -1

    def packet(self, number: int) -> bytes:
        """Return a packet: with start codes, a key packet with parameter sets."""
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
def opened_video(path: str, stream: int | None) -> Iterator[tuple[Any, Any]]:
    """Open a file; yields the container and its n-th video stream, or with None the one that players show."""
    # A text that names other files, a playlist for instance, is refused, whatever the suffix of the file.
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
        if not 0 <= (stream or 0) < len(videos):
            raise DecodeError(f"{path}: no video stream {stream or 0}. It has {len(videos)}, counted from 0.")
        try:
            yield container, _best(container) if stream is None else videos[stream]
        except av.error.FFmpegError as error:
            raise DecodeError(f"{path}: damaged ({error}).") from error


def _best(container: Any) -> Any:
    """Return the stream that ffmpeg takes where none is named, and no cover that is attached beside another."""
    from av.stream import Disposition

    best, videos = container.streams.best("video"), container.streams.video
    films = [video for video in videos if not video.disposition & Disposition.attached_pic] or videos
    return best if best in films else films[0]


def turn_of(path: str, stream: int | None, container: Any, video: Any) -> int:
    """Return how players turn and mirror the frames of a stream of an open file; see `turned`."""
    if "mp4" in container.format.name:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            num_bytes = os.fstat(file.fileno()).st_size
            matrix = display_matrix(lambda place, count: os.pread(file.fileno(), count, place), num_bytes, video.id)
    else:
        matrix = _first_matrix(path, stream) if "matroska" in container.format.name else None
    a, b, c, d = matrix or (1, 0, 0, 1)
    if abs(b) <= MATRIX_SLACK * abs(a) and abs(c) <= MATRIX_SLACK * abs(d):
        return UPSIDE_DOWN * (d < 0) | MIRRORED * (a < 0)
    if abs(a) <= MATRIX_SLACK * abs(b) and abs(d) <= MATRIX_SLACK * abs(c):
        return SWAPPED_SIDES | UPSIDE_DOWN * (b < 0) | MIRRORED * (c < 0)
    degrees = round(math.degrees(math.atan2(b, a))) % 360
    raise DecodeError(
        f"{path}: players show its frames turned by {degrees} degrees (a display matrix). Allowed: 0, 90, 180 and 270, "
        "mirrored or not. Turn the frames themselves, ffmpeg -i OLD NEW.mp4; or show them as they lie, ffmpeg "
        "-display_rotation 0 -i OLD -c copy NEW.mp4."
    )


def _first_matrix(path: str, stream: int | None) -> Matrix | None:
    """Return the matrix that a decoder gives with the first frame of a file."""
    with opened_video(path, stream) as (container, video):
        frame = next(container.decode(video), None)
        data = None if frame is None else frame.side_data.get("DISPLAYMATRIX")
        if data is None:
            return None
        a, b, _, c, d = (value / 65536 for value in np.frombuffer(bytes(data), np.int32).tolist()[:5])
        return a, b, c, d


def kind_of(video: Any) -> str:
    """Return the name of a stream's encoding, whichever decoder ffmpeg would take."""
    return "an unknown kind" if video.codec_context is None else str(video.codec.canonical_name)


def _converter(kind: str, video: Any) -> Callable[[Any], bytes]:
    """Return the function that converts a demuxed packet to the bytes of a row's packet."""
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


def _beginning_test(path: str, kind: str, video: Any) -> Callable[[Any], bool]:
    """Return a function of a packet, not yet converted: whether decoding can begin at it. Refuses other sizes."""
    # Files flag more as key packets than that: where h264 refreshes a frame bit by bit, no packet shows all of it.
    convert = _converter(kind, video)
    shape = video.codec_context.height, video.codec_context.width
    headers: set[bytes] = set()

    def begins(packet: Any) -> bool:
        if not packet.is_keyframe:
            return False
        at, base = packet.pts, packet.time_base
        data = convert(packet)
        stream, head = stream_of(kind, data)
        header = data[:VP9_SIZE_BYTES] if kind == "vp9" else stream.parameters
        if headers and header not in headers:
            _check_size(path, kind, data, shape, math.nan if at is None else float(at * base))
        headers.add(header)
        return kind != "h264" or stream.is_closed or _shows(FrameDecoder(stream, shape, None), data, head)

    return begins


def _check_size(path: str, kind: str, data: bytes, shape: tuple[int, int], seconds: float) -> None:
    """Refuse a key packet, whose header is another than those before, when its frame has another size."""
    import av

    context = new_context(kind)
    # with memory of its own: decoders read a few bytes past the end
    packet = av.Packet(len(data))
    packet.update(data)
    # what cannot be decoded is an error of the row that shows it
    with suppress(av.error.FFmpegError):
        context.decode(packet)
        context.decode(None)
    found = context.height, context.width
    if all(found) and found != shape:
        raise DecodeError(
            f"{path}: its frames are {shape[0]}x{shape[1]}, from {seconds:.3f} s on {found[0]}x{found[1]}. Rows of a "
            "feature have one size: cut the file there, or scale it, ffmpeg -i OLD NEW.mp4."
        )


def _shows(decoder: FrameDecoder, packet: bytes, head: bytes) -> bool:
    """Return whether a frame comes out of a packet alone."""
    try:
        return bool(decoder.decode([packet], head, {}))
    except DecodeError:
        return False
