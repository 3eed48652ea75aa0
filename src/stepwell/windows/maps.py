"""The maps of a reader: base addresses of every column of every segment, filled on first touch and bounded in number.

::

    MapTable.addresses [2 * columns, S]    seg 0    seg 1    seg 2
      action       rows                    0x7f..   0        0x7f..      0: not mapped yet
                   -                       0        0        0
      image        offsets                 0x7f..   0        0x7f..
                   blob                    0x7f..   0        0x7f..      and `sizes`, its bytes

A read holds the table it started with. New maps are added to the current table in place; when there are too many, a
new table takes over without the least recently used ones, and those are unmapped when the last read that holds the old
table ends: never under a running kernel.

Cold files: when all that a view can read fits in half of the memory that is available, a column is read in as a whole
when it is mapped (MADV_POPULATE_READ: 25 ms for 2 GB that are cached; a sequential read of the disk otherwise), so
that no page ever faults. When it does not fit, maps are marked MADV_RANDOM and each batch announces its windows first
(see `stepwell.kernels.spans.announce`): the disk then works on all of them at once, 20,700 rows/s of 27.6 KB instead
of 1,200 by faults one after another.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.schema import Feature

__all__ = ["Column", "MapError", "MapTable", "SegmentMaps", "available_memory"]

MAX_MAPS = 20_000
# after an eviction this share of the maps is left, so that the next comes late
KEEP_SHARE = 0.75
PAGE_BYTES = 4096
MADV_RANDOM, MADV_WILLNEED, MADV_POPULATE_READ = 1, 3, 22

_ALL: weakref.WeakSet[SegmentMaps] = weakref.WeakSet()


class MapError(StepwellError):
    """A segment could not be mapped; says which. Never leaves the reader."""

    def __init__(self, segment: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.segment, self.cause = segment, cause


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a reader maps.

    Args:
        name: of the feature.
        features: the feature in each store of the view: codecs may differ.
    """

    name: str
    features: tuple[Feature, ...]


class MapTable:
    """Addresses and sizes of what is mapped; kernels read the arrays, Python the maps themselves.

    Args:
        num_columns: C.
        num_segments: S, over all stores.

    Attributes:
        addresses: int64 [2C, S], of the rows or offsets (row 2c) and of the blob (row 2c + 1); 0 without one.
        sizes: int64 [2C, S], their bytes.
        is_mapped: uint8 [S], set last.
        last_used: int64 [S], written by reads, by the maps' clock.
        arrays: for each segment its 2C maps (None for one that is not there), or None.
    """

    def __init__(self, num_columns: int, num_segments: int) -> None:
        self.addresses = np.zeros((2 * num_columns, num_segments), dtype=np.int64)
        self.sizes = np.zeros((2 * num_columns, num_segments), dtype=np.int64)
        self.is_mapped = np.zeros(num_segments, dtype=np.uint8)
        self.last_used = np.zeros(num_segments, dtype=np.int64)
        self.arrays: list[list[npt.NDArray[Any] | None] | None] = [None] * num_segments

    def put(self, segment: int, arrays: list[npt.NDArray[Any] | None]) -> None:
        """Add a segment's maps."""
        self.arrays[segment] = arrays
        for slot, array in enumerate(arrays):
            if array is not None:
                self.addresses[slot, segment] = array.__array_interface__["data"][0]
                self.sizes[slot, segment] = array.nbytes
        self.is_mapped[segment] = 1

    @property
    def num_mapped(self) -> int:
        """How many segments are mapped."""
        return int(np.count_nonzero(self.is_mapped))


class SegmentMaps:
    """Map segments on demand, for all reads of one reader.

    Args:
        segments: of all stores, in the view's order.
        stores: int64 [S], number of the store of each.
        need_rows: int64 [S], rows that the view may read; a map must hold them.
        columns: what is mapped of each.
        max_maps: how many maps may live in the current table (the process has 65,530 in all); one batch may exceed it.
        memory_bytes: what cached files may take; default: what is available now.
        known: maps of an older view of the same stores, whose files are not mapped again when they are long enough.

    Attributes:
        table: the current `MapTable`.
        is_announcing: whether the columns do not fit in memory, so that reads announce their windows.

    Notes:
        Thread-safe: mapping happens under a lock, reading needs none. Maps survive a fork.
    """

    def __init__(
        self,
        segments: Sequence[Any],
        stores: npt.NDArray[np.int64],
        need_rows: npt.NDArray[np.int64],
        columns: Sequence[Column],
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
        known: SegmentMaps | None = None,
    ) -> None:
        self.segments, self.columns = list(segments), list(columns)
        self._stores, self._need_rows = stores, need_rows
        self._max_segments = max(1, max_maps // max(1, self._maps_per_segment()))
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._clock = 0
        self.table = MapTable(len(self.columns), len(self.segments))
        if known is not None:
            self._adopt(known)
        _ALL.add(self)

    @functools.cached_property
    def is_announcing(self) -> bool:
        """Whether what the view can read exceeds half of the memory."""
        limit = available_memory() if self._memory_bytes is None else self._memory_bytes
        return self._column_bytes() > limit // 2

    def feature_of(self, name: str, segment: int) -> Feature:
        """Return a column's feature as the store of a segment has it."""
        found = next(column for column in self.columns if column.name == name)
        return found.features[int(self._stores[segment])]

    def file_of(self, name: str, segment: int) -> str:
        """Return the file of a column's rows in a segment, as errors call it: ``image.bin of segment 00000001-...``."""
        suffix = "npy" if self.feature_of(name, segment).is_raw else "bin"
        return f"{name}.{suffix} of segment {self.segments[segment].name}"

    def tick(self) -> int:
        """Return the time of one more read; two reads may share one."""
        self._clock += 1
        return self._clock

    def ensure(self, segments: npt.NDArray[np.int64]) -> MapTable:
        """Return a table in which these segments are mapped.

        Args:
            segments: int64, all that one batch touches.

        Raises:
            MapError: a file is missing or too short for its episodes, or the system refuses a map.
        """
        with self._lock:
            table = self.table
            missing = [int(segment) for segment in segments if not table.is_mapped[segment]]
            if missing and table.num_mapped + len(missing) > self._max_segments:
                table = self._without_oldest(table, segments, len(missing))
            for segment in missing:
                try:
                    table.put(segment, self._map(segment))
                except (StepwellError, OSError) as error:
                    raise MapError(segment, error) from error
            self.table = table
            return table

    def renew_lock(self) -> None:
        """Forget a lock that another thread of the parent held at a fork."""
        self._lock = threading.Lock()

    def _without_oldest(self, table: MapTable, keep: npt.NDArray[np.int64], num_new: int) -> MapTable:
        room = max(int(self._max_segments * KEEP_SHARE) - num_new, 0)
        is_kept = np.zeros(len(self.segments), dtype=np.bool_)
        mapped = np.flatnonzero(table.is_mapped)
        is_kept[mapped[np.argsort(table.last_used[mapped])][len(mapped) - min(room, len(mapped)) :]] = True
        is_kept[keep] = True
        smaller = MapTable(len(self.columns), len(self.segments))
        smaller.last_used[:] = table.last_used
        for segment in np.flatnonzero(is_kept & (table.is_mapped == 1)).tolist():
            smaller.put(segment, table.arrays[segment] or [])
        return smaller

    def _map(self, number: int) -> list[npt.NDArray[Any] | None]:
        """Map all columns of a segment, and check that they hold the rows the view may read."""
        segment, rows = self.segments[number], int(self._need_rows[number])
        arrays: list[npt.NDArray[Any] | None] = []
        for column in self.columns:
            feature = column.features[self._stores[number]]
            if feature.is_raw:
                arrays += [_checked(segment.raw_map(column.name), rows * feature.row_bytes, column.name, segment), None]
                self._advise(arrays[-2], rows * feature.row_bytes)
            else:
                offsets = _checked(segment.offsets_map(column.name), (rows + 1) * 8, column.name, segment)
                num_bytes = int(offsets[rows])
                arrays += [offsets, _checked(segment.blob_map(column.name), num_bytes, column.name, segment)]
                _advise(offsets, (rows + 1) * 8, MADV_POPULATE_READ)
                self._advise(arrays[-1], num_bytes)
        return arrays

    def _advise(self, array: npt.NDArray[Any] | None, num_bytes: int) -> None:
        if array is not None:
            _advise(array, num_bytes, MADV_RANDOM if self.is_announcing else MADV_POPULATE_READ)

    def _adopt(self, known: SegmentMaps) -> None:
        """Take over the maps of segments that did not outgrow them."""
        if known.columns != self.columns:
            return
        with known._lock:
            table = known.table
        numbers = {id(segment): number for number, segment in enumerate(known.segments)}
        for number, segment in enumerate(self.segments):
            old = numbers.get(id(segment))
            arrays = None if old is None or not table.is_mapped[old] else table.arrays[old]
            if old is not None and arrays is not None and self._need_rows[number] <= known._need_rows[old]:
                self.table.put(number, arrays)

    def _maps_per_segment(self) -> int:
        return sum(1 if all(feature.is_raw for feature in column.features) else 2 for column in self.columns)

    def _column_bytes(self) -> int:
        total = 0
        for number, segment in enumerate(self.segments):
            rows = int(self._need_rows[number])
            for column in self.columns:
                feature = column.features[self._stores[number]]
                total += rows * feature.row_bytes if feature.is_raw else rows * 8 + _blob_bytes(segment, column.name)
        return total


def available_memory() -> int:
    """Return the bytes of memory that can be had without swapping, file cache included."""
    if sys.platform == "linux":
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _blob_bytes(segment: Any, name: str) -> int:
    try:
        return int((segment.path / f"{name}.bin").stat().st_size)
    except OSError:
        # what is wrong with the file is said when it is mapped
        return 0


def _checked(array: npt.NDArray[Any], need: int, name: str, segment: Any) -> npt.NDArray[Any]:
    if array.nbytes < need:
        raise CorruptSegmentError(
            f"{name} of segment {segment.name}: {need} bytes are needed by its episodes, {array.nbytes} are there. "
            f'Run "stepwell verify {Path(segment.path).parent.parent}".'
        )
    return array


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _advise(array: npt.NDArray[Any], num_bytes: int, advice: int) -> None:
    """Give advice about the first bytes of a map; a system that does not know it is asked for the next best."""
    if num_bytes <= 0:
        return
    address = int(array.__array_interface__["data"][0])
    first = address & -PAGE_BYTES
    size = address + num_bytes - first
    if _libc().madvise(first, size, advice) != 0 and advice == MADV_POPULATE_READ:
        _libc().madvise(first, size, MADV_WILLNEED)


def _after_fork() -> None:
    for maps in list(_ALL):
        maps.renew_lock()


os.register_at_fork(after_in_child=_after_fork)
