"""Rows of segments that are not mapped, read for one batch: for random order over more files than can be mapped.

::

    places     segment 70,312   segment 9   segment 44,108      each anchor of another segment of 10^5
                    |               |            |
                  pread           mapped       pread            one read of what its windows reach, a column
                    v               v            v
    bases      [0] buffer      [1] map      [2] buffer          a column of addresses for each anchor, as of held rows

To map a file takes ten times as long as to read a few rows of it, and the map would be let go before it is used again.
Batches that visit a segment many times map it as ever.
"""

from __future__ import annotations

import ctypes
import os
import stat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.store.beneath import header_size, parse_header_size
from stepwell.windows.layouts import aligned_empty
from stepwell.windows.maps import Column, MapTable, SegmentMaps

__all__ = ["ScatteredRows", "read_scattered"]

Int64s = npt.NDArray[np.int64]
# with so many anchors in each segment that is not mapped, or one such segment, mapping is worth its time
WORTH_MAPPING = 4
# windows that reach further are read through maps: most of what lies between two offsets may not be wanted
MAX_SPAN_BYTES = 1 << 16
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# bytes of a file's name, the slash before it and the zero after it
MAX_NAME = 256


class ScatteredRows(NamedTuple):
    """What the window kernel needs of a batch.

    Args:
        bases: int64 [2C, n], for each anchor where row 0 of its segment would lie.
        places: int64 [*, n], of the anchors, with the number of the anchor as that of its segment.
        owner: the memory that was read into.
    """

    bases: Int64s
    places: Int64s
    owner: npt.NDArray[np.uint8]


def read_scattered(maps: SegmentMaps, table: MapTable, places: Int64s, plan: Int64s) -> ScatteredRows | None:
    """Read what the windows of a batch reach in segments that are not mapped.

    Args:
        maps: of the segments.
        table: the current one.
        places: int64 [*, n], of the anchors.
        plan: int64 [sources, PLAN_COLUMNS], what the kernel copies: raw columns around the anchors.

    Returns:
        None where it is better to map the segments, and where a file cannot be read so: mapping it says why.
    """
    if not maps.is_crowded or not hasattr(maps.segments, "directory"):
        return None
    from stepwell.kernels.gather import IS_FINAL, MAX_OFFSET, MIN_OFFSET, ROW_BYTES, SLOT
    from stepwell.kernels.places import HI_FINAL, HI_STEP, LO, ROW, SEGMENT

    segments = places[SEGMENT]
    missing = np.flatnonzero(places[HI_FINAL] > table.num_rows[segments])
    num_segments = len(np.unique(segments[missing]))
    if num_segments < 2 or len(missing) >= WORTH_MAPPING * num_segments:
        return None
    slots = np.unique(plan[:, SLOT])
    firsts, sizes, row_bytes = (np.zeros((len(slots), len(missing)), np.int64) for _ in range(3))
    row, lo, hi_step, hi_final = places[[ROW, LO, HI_STEP, HI_FINAL]][:, missing]
    for number, slot in enumerate(slots.tolist()):
        sources = plan[plan[:, SLOT] == slot]
        last = (hi_final if sources[:, IS_FINAL].any() else hi_step) - 1
        firsts[number] = np.clip(row + sources[:, MIN_OFFSET].min(), lo, last)
        ends = np.clip(row + sources[:, MAX_OFFSET].max(), lo, last) + 1
        row_bytes[number] = sources[0, ROW_BYTES]
        sizes[number] = (ends - firsts[number]) * row_bytes[number]
    if sizes.max(initial=0) > MAX_SPAN_BYTES:
        return None
    starts = np.cumsum(sizes.T).reshape(-1, len(slots)).T - sizes
    memory = aligned_empty(int(sizes.sum()))
    targets = int(memory.__array_interface__["data"][0]) + starts
    bases = np.take(table.addresses, segments, axis=1)
    begins = firsts * row_bytes
    bases[np.ix_(slots, missing)] = targets - begins
    files = [_File(maps.columns[slot // 2], int(row_bytes[number, 0])) for number, slot in enumerate(slots.tolist())]
    offsets = begins + np.array([[file.header] for file in files])
    try:
        if not _read_all(maps, files, segments[missing].tolist(), offsets.T, sizes.T, targets.T):
            return None
    except (OSError, CorruptSegmentError):
        return None
    moved = places.copy()
    moved[SEGMENT] = np.arange(places.shape[1])
    return ScatteredRows(bases, moved, memory)


class _File:
    """The file of a column in each segment."""

    def __init__(self, column: Column, row_bytes: int) -> None:
        feature = column.features[0]
        self.name, self.row_bytes = f"{column.name}.npy", row_bytes
        self.header = header_size(feature.np_dtype, feature.fixed_shape)


def _read_all(  # noqa: PLR0917
    maps: SegmentMaps, files: list[_File], segments: list[int], offsets: Int64s, sizes: Int64s, targets: Int64s
) -> bool:
    """Read a piece of each file of some segments; False where one is not as expected.

    Args:
        maps: of the segments.
        files: k of them.
        segments: n of them.
        offsets: [n, k], of the first byte of each piece.
        sizes: [n, k], their bytes.
        targets: [n, k], addresses of the memory for them.
    """
    from stepwell.kernels.files import MAX_PATH, read_files

    visited = maps.visited.setdefault(tuple(file.name for file in files), {})
    known = []
    for number, segment in enumerate(segments):
        if segment in visited:
            known.append(number)
            continue
        directory = maps.segments.directory(segment)  # type: ignore[attr-defined]
        if not _visit(directory, files, maps.need_rows[segment], offsets[number], sizes[number], targets[number]):
            return False
        path = os.fsencode(directory)
        if len(path) + MAX_NAME < MAX_PATH:
            visited[segment] = path
    if not known:
        return True
    read = read_files(
        *_joined([visited[segments[number]] for number in known]),
        *_joined([os.fsencode(file.name) for file in files]),
        offsets[known],
        sizes[known],
        targets[known],
        np.empty(MAX_PATH, np.uint8),
    )
    if read < len(known):
        # sealed and renamed since, perhaps: looked at again the next time
        visited.pop(segments[known[read]], None)
    return int(read) == len(known)


def _joined(texts: list[bytes]) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """Return texts back to back, and where each ends."""
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))


def _visit(  # noqa: PLR0917
    directory: str, files: list[_File], rows: int, offsets: Int64s, sizes: Int64s, targets: Int64s
) -> bool:
    """Read of a segment for the first time; False where a file has not all rows that may be read."""
    for file, offset, size, target in zip(files, offsets.tolist(), sizes.tolist(), targets.tolist(), strict=True):
        if not size:
            continue
        descriptor = os.open(f"{directory}/{file.name}", FLAGS)
        try:
            found = os.fstat(descriptor)
            header = parse_header_size(os.pread(descriptor, 10, 0), file.name)
            if (
                not stat.S_ISREG(found.st_mode)
                or header != file.header
                or found.st_size - header < rows * file.row_bytes
                or os.preadv(descriptor, [(ctypes.c_char * size).from_address(target)], offset) != size
            ):
                return False
        finally:
            os.close(descriptor)
    return True
