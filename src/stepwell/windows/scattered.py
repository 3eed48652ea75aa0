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

import os
import stat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.store.npy import parse_header_size
from stepwell.windows.layouts import aligned_empty
from stepwell.windows.maps import MapTable, SegmentMaps

__all__ = ["ScatteredRows", "read_scattered"]

Int64s = npt.NDArray[np.int64]
# with so many anchors in each segment that is not mapped, or one such segment, mapping is worth its time
WORTH_MAPPING = 4
# windows that reach further are read through maps: most of what lies between two offsets may not be wanted
MAX_SPAN_BYTES = 1 << 16


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
    if not maps.is_crowded or not hasattr(maps.segments, "open_file"):
        return None
    from stepwell.kernels.gather import IS_FINAL, MAX_OFFSET, MIN_OFFSET, ROW_BYTES, SLOT
    from stepwell.kernels.locate import HI_FINAL, HI_STEP, LO, ROW, SEGMENT

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
    bases = np.take(table.addresses, segments, axis=1)
    begins = firsts * row_bytes
    bases[np.ix_(slots, missing)] = int(memory.__array_interface__["data"][0]) + starts - begins
    names = [f"{maps.columns[slot // 2].name}.npy" for slot in slots.tolist()]
    spans: Any = zip(segments[missing].tolist(), begins.T.tolist(), starts.T.tolist(), sizes.T.tolist(), strict=True)
    target = memoryview(memory.data)
    try:
        for segment, begin, start, size in spans:
            for number, name in enumerate(names):
                out = target[start[number] : start[number] + size[number]]
                if len(out) and not _read(maps, segment, name, begin[number], out, int(row_bytes[number, 0])):
                    return None
    except (OSError, CorruptSegmentError):
        return None
    moved = places.copy()
    moved[SEGMENT] = np.arange(places.shape[1])
    return ScatteredRows(bases, moved, memory)


def _read(  # noqa: PLR0917
    maps: SegmentMaps, segment: int, file: str, begin: int, out: memoryview, row_bytes: int
) -> bool:
    """Read rows of one file; False where it has not all rows that may be read."""
    descriptor = maps.segments.open_file(segment, file)  # type: ignore[attr-defined]
    try:
        header = maps.headers.get((segment, file))
        if header is None:
            # looked at once: later reads see for themselves whether it ends
            found = os.fstat(descriptor)
            header = parse_header_size(os.pread(descriptor, 10, 0), file)
            if not stat.S_ISREG(found.st_mode) or found.st_size - header < maps.need_rows[segment] * row_bytes:
                return False
            maps.headers[segment, file] = header
        return os.preadv(descriptor, [out], header + begin) == len(out)
    finally:
        os.close(descriptor)
