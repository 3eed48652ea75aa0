"""What PyAV does not say of an mp4 file: how much later than decoded frames are shown, and turned by how much.

::

    moov ── trak ── tkhd                        number of the track, display matrix
               └─── mdia ── minf ── stbl ── stsz        how many packets
                                       └─── ctts        runs of packets that are shown equally late; none: not late

Source:
    ISO/IEC 14496-12, sections 4.2, 8.3, 8.6.1.3 and 8.7.3; of matrices section 6.2.2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["display_matrix", "packet_delays"]

HEAD = struct.Struct(">I4s")
LARGE_HEAD = struct.Struct(">I4sQ")
FULL_BOX_BYTES = 4
# after version and flags of a track's header: two times of 32 or 64 bits
TRACK_PLACES = {0: 8, 1: 16}
# after version and flags: times, number, duration, layer, group and volume
MATRIX_PLACES = {0: 36, 1: 48}
MATRIX = struct.Struct(">iiiiiiiii")
STSZ_COUNT_PLACE = FULL_BOX_BYTES + 4
CTTS_ENTRY = np.dtype([("count", ">u4"), ("offset", ">i4")])
MAX_MOOV_BYTES = 1 << 30

Read = Callable[[int, int], bytes]


def packet_delays(read: Read, num_bytes: int, track: int, num_packets: int) -> npt.NDArray[np.int64] | None:
    """Return how much later than decoded each packet of a track is shown.

    Args:
        read: (place, count) to bytes of the file.
        num_bytes: of the file.
        track: number of the track, ffmpeg's id of the stream.
        num_packets: that ffmpeg has of it.

    Returns:
        int64 [num_packets] in ticks of the track, but for a constant; None where this file does not say it so: it is
        fragmented, no mp4, or cut off.
    """
    try:
        data, trak = _track(read, num_bytes, track)
        return _delays(data, _child(data, trak, b"mdia", b"minf", b"stbl"), num_packets)
    except (StopIteration, struct.error, ValueError, KeyError):
        return None


def display_matrix(read: Read, num_bytes: int, track: int) -> tuple[float, float, float, float] | None:
    """Return how players turn and mirror the frames of a track: x is shown at (a, b), y at (c, d).

    Args:
        read: (place, count) to bytes of the file.
        num_bytes: of the file.
        track: number of the track, ffmpeg's id of the stream.

    Returns:
        (a, b, c, d), (1, 0, 0, 1) where frames are shown as they are; None where this file does not say it.
    """
    try:
        data, trak = _track(read, num_bytes, track)
        header = _child(data, trak, b"tkhd")
        matrix = MATRIX.unpack_from(data, header.start + FULL_BOX_BYTES + MATRIX_PLACES[data[header.start]])
    except (StopIteration, struct.error, ValueError, KeyError):
        return None
    a, b, _, c, d = (value / 65536 for value in matrix[:5])
    return a, b, c, d


def _track(read: Read, num_bytes: int, track: int) -> tuple[bytes, range]:
    """Return the bytes of a file's head, and where in them a track is described."""
    moov = next(_boxes(read, 0, num_bytes, b"moov"))
    data = read(moov.start, len(moov)) if len(moov) <= MAX_MOOV_BYTES else b""
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
