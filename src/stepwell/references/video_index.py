"""The index of a video file: which frame is shown when, and where in the file the packets lie that make it.

::

    shown      0   1   2   3   4   5         seconds, ascending; a row's time finds the frame
    packet     0   3   1   2   4   6   ...   in the order of decoding; the same where nothing is reordered
    key        0               4             where decoding may begin; frames [0, 4) and [4, ...) are runs
    file       |packet 0|packet 1|....|      position, size

It is made of ffmpeg's own index and of the delays in the file's head, without reading the packets. Where that does not
say everything (other formats than mp4, fragments, edit lists that leave frames out) all packets are read once. Formats
that cut packets up (ts) have their packets read by ffmpeg, which opens the file for every run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_packets import (
    PacketTable,
    Read,
    kind_of,
    opened_video,
    packet_delays,
    packet_table,
    packets_of,
    turn_of,
)
from stepwell.codecs.video_streams import STREAM_KINDS, SampleFormat, turned_size
from stepwell.errors import DecodeError

__all__ = ["VideoIndex", "exact_index", "make_index"]

LOOK_PACKETS = 3
LOOK_LATE_PACKETS = 8
# what mkv has in front of a packet and ffmpeg counts to it
MAX_BLOCK_HEAD_BYTES = 64
PTS = 2
KEY_FLAG, DISCARD_FLAG = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class VideoIndex:
    """The video stream of a file that players show."""

    height: int  # of its frames as they are shown
    width: int  # likewise
    turn: int  # by which they are turned for that
    samples: SampleFormat  # how its packets become those of a decoder
    seconds: npt.NDArray[np.float64]  # float64 [n], when each frame that is shown is, ascending
    packets: npt.NDArray[np.int32] | None  # int32 [n], the packet that makes it; None: packet i makes frame i
    # int64 [m], when each packet's frame is shown, in ticks; None where frame i is packet i
    pts: npt.NDArray[np.int64] | None
    positions: npt.NDArray[np.int64]  # int64 [m], where each packet lies in the file
    sizes: npt.NDArray[np.int32]  # int32 [m], its bytes
    keys: npt.NDArray[np.int32]  # int32 [k], the packets at which decoding may begin, ascending
    key_frames: npt.NDArray[np.int32]  # int32 [k], at which frame each of their runs begins
    is_exact: bool  # whether every key packet was looked at: h264 flags some at which decoding cannot begin
    # where the file does not hold its packets as they are: what ffmpeg needs to find them
    demuxed: PacketTable | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        arrays = (self.seconds, self.packets, self.pts, self.positions, self.sizes, self.keys)
        own = 0 if self.key_frames is self.keys else self.key_frames.nbytes
        if self.demuxed is not None:
            own += sum(array.nbytes for array in vars(self.demuxed).values() if isinstance(array, np.ndarray))
        return own + sum(array.nbytes for array in arrays if array is not None)

    def find(self, seconds: float) -> tuple[int, int, int]:
        """Return the frame nearest to a time, its packet, and the key packet that decoding begins at, -1 without one.

        Of two frames that are as near it is the earlier; see `key_places`.
        """
        times = self.seconds
        frame = min(int(times.searchsorted(seconds)), len(times) - 1)
        if frame and seconds - times.item(frame - 1) <= times.item(frame) - seconds:
            frame -= 1
        packet = frame if self.packets is None else self.packets.item(frame)
        place = int(self.keys.searchsorted(packet, side="right")) - 1
        if self.pts is not None:
            shown = self.pts.item(packet)
            while place >= 0 and self.pts.item(self.keys.item(place)) > shown:
                place -= 1
        return frame, packet, self.keys.item(place) if place >= 0 else -1

    def nearest(self, seconds: float) -> int:
        """Return the frame that is shown nearest to a time, of two the earlier."""
        return self.find(seconds)[0]

    def packet_of(self, frame: int) -> int:
        """Return the packet that makes a frame."""
        return frame if self.packets is None else self.packets.item(frame)

    def frame_of(self, packet: int) -> int:
        """Return the frame that a packet makes."""
        return packet if self.packets is None else int(np.flatnonzero(self.packets == packet)[0])

    def needed(self, key: int, last: int) -> list[int]:
        """Return the packets to decode from a key packet up to another one."""
        # Frames shown before the key packet and decoded after it need the run before, and no later frame needs them.
        if self.pts is None:
            return list(range(key, last + 1))
        found: list[int] = (key + np.flatnonzero(self.pts[key : last + 1] >= self.pts[key])).tolist()
        return found

    def run_around(self, seconds: float) -> tuple[int, float, float]:
        """Return which frames are decoded together with the one at a time: how many, since when and until when."""
        place = int(self.key_frames.searchsorted(self.nearest(seconds), side="right"))
        first = self.key_frames.item(place - 1) if place else 0
        stop = self.key_frames.item(place) if place < len(self.key_frames) else len(self.seconds)
        return stop - first, self._between(first), self._between(stop)

    def _between(self, frame: int) -> float:
        """Return the time between a frame and the one before it."""
        if not 0 < frame < len(self.seconds):
            return math.copysign(math.inf, frame - 1)
        return (self.seconds.item(frame - 1) + self.seconds.item(frame)) / 2


def make_index(path: str, num_bytes: int, read: Read) -> VideoIndex:
    """Return the index of a file."""
    with opened_video(path, None) as (container, video):
        found = _index_of_head(path, container, video, num_bytes, read)
    return found or exact_index(path, read)


def exact_index(path: str, read: Read) -> VideoIndex:
    """Return the index of a file from all of its packets; see `make_index`."""
    table = packet_table(Path(path), None)
    positions = _positions(path, table, read)
    shown = np.argsort(table.pts, kind="stable")
    shown = shown[table.is_shown[shown]]
    if not len(shown):
        raise DecodeError(f"{path}: none of its frames is to be shown; its head is damaged.")
    return _built(
        (table.height, table.width),
        _samples(path, table.kind, table.extradata),
        table.seconds[shown],
        shown,
        table.pts,
        table.positions if positions is None else positions,
        table.sizes,
        table.is_key,
        turn=table.turn,
        is_exact=True,
        demuxed=table if positions is None else None,
    )


def _positions(path: str, table: PacketTable, read: Read) -> npt.NDArray[np.int64] | None:
    """Return where in the file the bytes of each packet lie, int64 [m]; None where those of one lie apart."""
    found: list[int] = []
    with opened_video(path, None) as (container, video):
        for packet in packets_of(container, video):
            if packet.pos is None:
                return None
            data = bytes(packet)
            shift = read(packet.pos, len(data) + MAX_BLOCK_HEAD_BYTES).find(data)
            if shift < 0:
                return None
            found.append(packet.pos + shift)
            if len(found) == LOOK_PACKETS and found == table.positions[:LOOK_PACKETS].tolist():
                return table.positions
    return np.array(found, np.int64)


def _index_of_head(path: str, container: Any, video: Any, num_bytes: int, read: Read) -> VideoIndex | None:
    """Return the index from the file's head, None where the head may be incomplete."""
    kind, context, entries = kind_of(video), video.codec_context, getattr(video, "index_entries", None)
    if "mp4" not in container.format.name or kind not in STREAM_KINDS or not entries:
        return None
    facts = [(entry.pos, entry.size, entry.timestamp, entry.flags) for entry in entries]
    positions, sizes, dts, flags = np.array(facts, np.int64).T
    is_key = flags & KEY_FLAG != 0
    delays = packet_delays(read, num_bytes, video.id, len(facts))
    is_plain = (dts[1:] > dts[:-1]).all() and not (flags & DISCARD_FLAG).any() and sizes.all() and is_key.any()
    if delays is None or not is_plain:
        return None
    pts = dts + delays
    shift = _first_shift(container, video, positions, pts)
    if shift is None:
        return None
    pts += shift
    turn = turn_of(path, None, container, video)
    is_whole = (positions + sizes).max() <= num_bytes
    # the last packets of a truncated file cannot be looked at; reading one of them is an error
    if is_whole and not _is_confirmed(container, video, np.stack([positions, sizes, pts, is_key], axis=1)):
        return None
    shown = np.argsort(pts, kind="stable")
    base = video.time_base
    return _built(
        turned_size((context.height, context.width), turn),
        _samples(path, kind, bytes(context.extradata or b"")),
        pts[shown] * base.numerator / base.denominator,
        shown,
        pts,
        positions,
        sizes,
        is_key,
        turn=turn,
        is_exact=kind != "h264",
    )


def _samples(path: str, kind: str, extradata: bytes) -> SampleFormat:
    try:
        return SampleFormat.of(kind, extradata)
    except DecodeError as error:
        raise DecodeError(f"{path}: {error}.") from error


def _built(
    shape: tuple[int, int],
    samples: SampleFormat,
    seconds: npt.NDArray[np.float64],
    shown: npt.NDArray[np.int64],
    pts: npt.NDArray[np.int64],
    *where: npt.NDArray[Any],
    turn: int,
    is_exact: bool,
    demuxed: PacketTable | None = None,
) -> VideoIndex:
    """Return an index of packets, and of those that are shown, in that order."""
    positions, sizes, is_key = where
    keys = np.flatnonzero(is_key)
    is_plain = len(shown) == len(pts) and bool((shown[1:] > shown[:-1]).all())
    small_keys = keys.astype(np.int32)
    return VideoIndex(
        *shape,
        turn,
        samples,
        seconds,
        None if is_plain else shown.astype(np.int32),
        None if is_plain else pts,
        positions.astype(np.int64),
        sizes.astype(np.int32),
        small_keys,
        small_keys if is_plain else np.sort(np.searchsorted(pts[shown], pts[keys])).astype(np.int32),
        is_exact,
        demuxed,
    )


def _first_shift(
    container: Any, video: Any, positions: npt.NDArray[np.int64], pts: npt.NDArray[np.int64]
) -> int | None:
    """Return by how much the times that ffmpeg gives are later; None where its first packet is not the first."""
    packet = next(packets_of(container, video), None)
    if packet is None or packet.pts is None or packet.pos != positions[0]:
        return None
    return int(packet.pts - pts[0])


def _is_confirmed(container: Any, video: Any, table: npt.NDArray[np.int64]) -> bool:
    """Return whether the first and the last packets that ffmpeg gives are those of a table [m, 4]."""
    packets = list(islice(packets_of(container, video), LOOK_PACKETS))
    container.seek(int(table[:, PTS].max()), stream=video)
    late = list(islice(packets_of(container, video), LOOK_LATE_PACKETS))
    for packet in packets + late:
        place = np.flatnonzero(table[:, 0] == packet.pos)[:1]
        stored = [packet.pos, packet.size, packet.pts, packet.is_keyframe]
        if packet.is_discard or not place.size or table[place[0]].tolist() != stored:
            return False
    return bool(late)
