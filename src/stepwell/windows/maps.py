"""The maps of a reader: base addresses of every column of every segment, filled on first touch and bounded in number.

::

    MapTable.addresses [2 * columns, S]    seg 0    seg 1    seg 2
      action       rows                    0x7f..   0        0x7f..      0: not mapped yet
                   -                       0        0        0
      image        offsets                 0x7f..   0        0x7f..
                   blob                    0x7f..   0        0x7f..      and `sizes`, its bytes

A read holds the table it started with. New maps are added to the current table in place; when there are too many, a
new table takes over without the least recently used ones, and those are unmapped when the last read that holds the old
table ends: never under a running kernel. So it is with a segment that is still written and outgrew its maps (files
grow ahead of what is committed, so that this is rare), and with segments that are not read any more.

Cold files: when all that a view can read fits in half of the memory that is available, a column is read in as a whole
when it is mapped (MADV_POPULATE_READ: 25 ms for 2 GB that are cached; a sequential read of the disk otherwise), so
that no page ever faults. When it does not fit, maps are marked MADV_RANDOM and each batch announces its windows first
(see `stepwell.kernels.spans.announce`): the disk then works on all of them at once, 20,700 rows/s of 27.6 KB instead
of 1,200 by faults one after another.

In random order over more files than can be mapped, rows are read for one batch, without a map::

    places     segment 70,312   segment 9   segment 44,108      each anchor of another segment of 10^5
                    |               |            |
                  pread           mapped       pread            one read of the rows that its windows reach, a column
                    v               v            v
    bases      [0] buffer      [1] map      [2] buffer          a column of addresses for each anchor, as of held rows

To map a file takes ten times as long as to read a few rows of it, and the map would be let go before it is used again.
Batches that visit a segment many times map it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.files.local_files import available_memory
from stepwell.schema import Feature
from stepwell.store.beneath import header_size, parse_header_size
from stepwell.store.decode import StoredRows
from stepwell.store.layout import MAX_ROWS
from stepwell.store.snapshot import keys_of
from stepwell.windows.plans import aligned_empty

__all__ = ["MapError", "MapTable", "MappedColumn", "ScatteredRows", "SegmentMaps", "read_scattered"]
LEAST_MAPS = 20_000
# after an eviction this share of the maps is left, so that the next comes late
KEEP_SHARE = 0.75
PAGE_BYTES = 4096
# keys of segments are below 2 ** 50
STORE_SHIFT = 50
MADV_RANDOM, MADV_WILLNEED, MADV_POPULATE_READ = 1, 3, 22
Int64s = npt.NDArray[np.int64]
# with so many anchors in each segment that is not mapped, or one such segment, mapping is worth its time
WORTH_MAPPING = 4
# windows that reach further are read through maps: most of what lies between two offsets may not be wanted
MAX_SPAN_BYTES = 1 << 16
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# bytes of a file's name, the slash before it and the zero after it
MAX_NAME = 256


def _max_maps() -> int:
    """Return how many files a reader may map: a third of what the system allows the process, for several readers."""
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        limit = 0
    return max(LEAST_MAPS, limit // 3)


MAX_MAPS = _max_maps()

_ALL: weakref.WeakSet[SegmentMaps] = weakref.WeakSet()


class MapError(StepwellError):
    """A segment could not be mapped; says which. Never leaves the reader."""

    def __init__(self, segment: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.segment, self.cause = segment, cause


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column that a reader maps."""

    name: str  # of the feature
    features: tuple[Feature, ...]  # the feature in each store of the view: codecs may differ


class MapTable:
    """Addresses and sizes of what is mapped; kernels read the arrays, Python the maps themselves."""

    def __init__(self, num_columns: int, num_segments: int) -> None:
        self.addresses = np.zeros((2 * num_columns, num_segments), dtype=np.int64)
        self.sizes = np.zeros((2 * num_columns, num_segments), dtype=np.int64)
        self.num_rows = np.full(num_segments, -1, dtype=np.int64)
        self.last_used = np.zeros(num_segments, dtype=np.int64)
        self.arrays: list[list[npt.NDArray[Any] | None] | None] = [None] * num_segments
        # encoded columns over these maps, by slot and segment
        self.stored: dict[tuple[int, int], StoredRows] = {}

    def put(self, segment: int, arrays: list[npt.NDArray[Any] | None], num_rows: int) -> None:
        """Add a segment's maps, which hold so many rows."""
        self.arrays[segment] = arrays
        for slot, array in enumerate(arrays):
            if array is not None:
                self.addresses[slot, segment] = array.__array_interface__["data"][0]
                self.sizes[slot, segment] = array.nbytes
        self.num_rows[segment] = num_rows

    def only(self, segments: npt.NDArray[np.int64], num_segments: int) -> MapTable:
        """Return a new table for ``num_segments`` with the maps of some segments."""
        found = MapTable(len(self.addresses) // 2, num_segments)
        size = min(num_segments, len(self.last_used))
        found.last_used[:size] = self.last_used[:size]
        for slots in ("addresses", "sizes"):
            getattr(found, slots)[:, segments] = getattr(self, slots)[:, segments]
        for segment in segments.tolist():
            found.arrays[segment] = self.arrays[segment]
        found.num_rows[segments] = self.num_rows[segments]
        return found

    @property
    def is_mapped(self) -> npt.NDArray[np.bool_]:
        """Which segments are mapped: bool [S]."""
        return self.num_rows >= 0

    @property
    def num_mapped(self) -> int:
        """How many segments are mapped."""
        return int(np.count_nonzero(self.is_mapped))


class SegmentMaps:
    """Map segments on demand, for all reads of one reader.

    Args:
        segments: of all stores, in the reader's order.
        stores: int64 [S], number of the store of each.
        need_rows: int64 [S], rows that may be read; a map must hold them.
        columns: the columns that are mapped of each.
        max_maps: how many maps may live in the current table (the process has 65,530 in all); one batch may exceed it.
        memory_bytes: bytes that cached files may take; default: the memory available now.
        known: maps of an older view of the same stores, whose files are not mapped again when they are long enough.

    Attributes:
        table: the current `MapTable`; it may have room for more segments than there are.
        following: a lock, held while new segments are taken in.
        is_announcing: whether the columns do not fit in memory, so that reads announce their windows.
        clock: time of the latest read, as `MapTable.last_used` has it.

    Notes:
        Thread-safe: mapping happens under a lock, reading needs none. Maps survive a fork.
    """

    def __init__(
        self,
        segments: Sequence[Any],
        stores: npt.NDArray[np.int64],
        need_rows: npt.NDArray[np.int64],
        columns: Sequence[MappedColumn],
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
        known: SegmentMaps | None = None,
    ) -> None:
        self.segments, self.columns = _kept(segments), list(columns)
        self._stores, self._need_rows = stores, need_rows
        self._max_segments = max(1, max_maps // max(1, self._maps_per_segment()))
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self.following = threading.Lock()
        # counted up by every read
        self.clock = 0
        # by names of files: segments of which these were read without a map and found whole, and their directories
        self.visited: dict[tuple[str, ...], dict[int, bytes]] = {}
        self.table = MapTable(len(self.columns), len(self.segments))
        if known is not None:
            self._adopt(known)
        _ALL.add(self)

    @functools.cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        """The segments by key."""
        return keys_of(self.segments)

    @functools.cached_property
    def is_announcing(self) -> bool:
        """Whether what can be read exceeds half of the memory."""
        limit = available_memory() if self._memory_bytes is None else self._memory_bytes
        return self._column_bytes() > limit // 2

    @property
    def need_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each segment that may be read: int64 [S]."""
        return self._need_rows

    @functools.cached_property
    def is_crowded(self) -> bool:
        """Whether there are more files than may be mapped at a time."""
        return int(np.count_nonzero(self._need_rows)) > self._max_segments

    def feature_of(self, name: str, segment: int) -> Feature:
        """Return a column's feature as the store of a segment has it."""
        found = next(column for column in self.columns if column.name == name)
        return found.features[int(self._stores[segment])]

    def file_of(self, name: str, segment: int) -> str:
        """Return the file of a column's rows in a segment, as errors call it: ``image.bin of segment 00000001-...``."""
        suffix = "npy" if self.feature_of(name, segment).is_raw else "bin"
        return f"{name}.{suffix} of segment {self.segments[segment].name}"

    def follow(self, state: Callable[[], tuple[Sequence[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]]) -> None:
        """Take in segments that came after those there were, and rows that may be read by now.

        Args:
            state: returns all segments, the new ones last, the number of the store of each, int64 [S], and the rows
                that may be read of each, int64 [S]; 0 where nothing is read any more: those maps are let go. Called
                under the lock.
        """
        with self._lock:
            segments, self._stores, self._need_rows = state()
            self.__dict__.pop("is_crowded", None)
            self.segments = _kept(segments)
            table = self.table
            mapped = np.flatnonzero(table.is_mapped)
            is_read = self._need_rows[mapped] > 0
            room = len(table.num_rows)
            if len(segments) > room:
                room = 2 * len(segments)
                # what has doubled may fit in memory no more
                self.__dict__.pop("is_announcing", None)
            if room > len(table.num_rows) or not is_read.all():
                self.table = table.only(mapped[is_read], room)

    def ensure(self, segments: npt.NDArray[np.int64]) -> MapTable:
        """Return a table in which all rows that may be read of these segments are mapped.

        Args:
            segments: int64, all that one batch touches.
        """
        with self._lock:
            table = self.table
            missing = [number for number in segments.tolist() if not self._is_held(table, number)]
            num_new = sum(table.num_rows[number] < 0 for number in missing)
            if num_new and table.num_mapped + num_new > self._max_segments:
                table = self._without_oldest(table, segments, num_new)
            if num_new < len(missing):
                # kernels may be reading through the maps that were outgrown
                table = table.only(np.flatnonzero(table.is_mapped), len(table.num_rows))
            for segment in missing:
                try:
                    arrays = self._map(segment)
                except (StepwellError, OSError) as error:
                    raise MapError(segment, error) from error
                table.put(segment, arrays, self._rows_held(segment, arrays))
            self.table = table
            return table

    def renewed(self, segments: npt.NDArray[np.int64]) -> MapTable:
        """Return a table in which segments are mapped anew: their last rows became longer, as of `Samples`."""
        with self._lock:
            is_kept = self.table.is_mapped.copy()
            is_kept[segments] = False
            # kernels may be reading through the maps there were
            self.table = self.table.only(np.flatnonzero(is_kept), len(self.table.num_rows))
        return self.ensure(segments)

    def renew_lock(self) -> None:
        """Forget locks that another thread of the parent held at a fork."""
        self._lock = threading.Lock()
        self.following = threading.Lock()

    def _is_held(self, table: MapTable, segment: int) -> bool:
        """Return whether all rows that may be read are mapped; encoded ones that came may lie in maps there were."""
        need, arrays = int(self._need_rows[segment]), table.arrays[segment]
        if table.num_rows[segment] >= need:
            return True
        if arrays is None:
            return False
        features = [column.features[self._stores[segment]] for column in self.columns]
        for slot, feature in enumerate(features):
            rows, blob = arrays[2 * slot], arrays[2 * slot + 1]
            size = need * feature.row_bytes if feature.is_raw else (need + 1) * 8
            if rows is None or rows.nbytes < size or (blob is not None and int(rows[need]) > blob.nbytes):
                return False
        table.num_rows[segment] = need
        return True

    def _rows_held(self, segment: int, arrays: list[npt.NDArray[Any] | None]) -> int:
        """Return how many rows the maps hold; of encoded ones only what is committed is known."""
        held = []
        for column, rows in zip(self.columns, arrays[::2], strict=True):
            feature = column.features[self._stores[segment]]
            if not feature.is_raw:
                return int(self._need_rows[segment])
            if feature.row_bytes and rows is not None:
                held.append(rows.nbytes // feature.row_bytes)
        return min(held, default=MAX_ROWS)

    def _without_oldest(self, table: MapTable, keep: npt.NDArray[np.int64], num_new: int) -> MapTable:
        room = max(int(self._max_segments * KEEP_SHARE) - num_new, 0)
        is_kept = np.zeros(len(table.num_rows), dtype=np.bool_)
        mapped = np.flatnonzero(table.is_mapped)
        is_kept[mapped[np.argsort(table.last_used[mapped])][len(mapped) - min(room, len(mapped)) :]] = True
        is_kept[keep] = True
        return table.only(np.flatnonzero(is_kept & table.is_mapped), len(table.num_rows))

    def _map(self, number: int) -> list[npt.NDArray[Any] | None]:
        """Map all columns of a segment, and check that they hold the rows the view may read."""
        segment, rows = self.segments[number], int(self._need_rows[number])
        if segment is None:
            raise FileNotFoundError("its segment is gone")
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
        # these maps are of the same stores, where a key names one segment
        own, old = (
            keys | maps._stores[: len(keys)] << STORE_SHIFT for keys, maps in ((self._keys, self), (known._keys, known))
        )
        mapped = np.flatnonzero(table.is_mapped[: len(old)] & (known._keys >= 0))
        order = np.argsort(own, kind="stable")
        at = np.minimum(np.searchsorted(own[order], old[mapped]), max(len(own) - 1, 0))
        for number, before in zip(order[at].tolist() if len(own) else [], mapped.tolist(), strict=False):
            arrays = table.arrays[before]
            is_same = own[number] == old[before]
            if arrays is not None and is_same and self._need_rows[number] <= known._need_rows[before]:
                self.table.put(number, arrays, int(table.num_rows[before]))

    def _maps_per_segment(self) -> int:
        return sum(1 if all(feature.is_raw for feature in column.features) else 2 for column in self.columns)

    def _column_bytes(self) -> int:
        num_rows, total = self._need_rows, 0
        for column in self.columns:
            raw_bytes = np.array([each.row_bytes if each.is_raw else 8 for each in column.features], np.int64)
            total += int((num_rows * raw_bytes[self._stores]).sum())
            is_raw = np.array([feature.is_raw for feature in column.features])
            encoded = np.flatnonzero((num_rows > 0) & ~is_raw[self._stores])
            total += sum(_blob_bytes(self.segments[number], column.name) for number in encoded.tolist())
        return total


def _kept(segments: Sequence[Any]) -> Sequence[Any]:
    """Return segments that stay as they are: a list may grow meanwhile, a snapshot does not."""
    return list(segments) if isinstance(segments, list) else segments


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
    """Give advice about the first bytes of a map, the next best where the system does not know it."""
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


class ScatteredRows(NamedTuple):
    """The inputs of the window kernel for a batch."""

    bases: Int64s  # int64 [2C, n], for each anchor where row 0 of its segment would lie
    places: Int64s  # int64 [*, n], of the anchors, with the number of the anchor as that of its segment
    owner: npt.NDArray[np.uint8]  # the memory that was read into


def read_scattered(maps: SegmentMaps, table: MapTable, places: Int64s, plan: Int64s) -> ScatteredRows | None:
    """Read what the windows of a batch reach in segments that are not mapped."""
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
    files = [
        _ScatteredFile(maps.columns[slot // 2], int(row_bytes[number, 0])) for number, slot in enumerate(slots.tolist())
    ]
    offsets = begins + np.array([[file.header] for file in files])
    try:
        if not _read_all(maps, files, segments[missing].tolist(), offsets.T, sizes.T, targets.T):
            return None
    except (OSError, CorruptSegmentError):
        return None
    moved = places.copy()
    moved[SEGMENT] = np.arange(places.shape[1])
    return ScatteredRows(bases, moved, memory)


class _ScatteredFile:
    """The file of a column in each segment."""

    def __init__(self, column: MappedColumn, row_bytes: int) -> None:
        feature = column.features[0]
        self.name, self.row_bytes = f"{column.name}.npy", row_bytes
        self.header = header_size(feature.np_dtype, feature.fixed_shape)


def _read_all(  # noqa: PLR0917
    maps: SegmentMaps, files: list[_ScatteredFile], segments: list[int], offsets: Int64s, sizes: Int64s, targets: Int64s
) -> bool:
    """Read a piece of each file of some segments; False where one is not as expected."""
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
    directory: str, files: list[_ScatteredFile], rows: int, offsets: Int64s, sizes: Int64s, targets: Int64s
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
