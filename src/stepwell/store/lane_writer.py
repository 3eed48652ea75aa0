"""One open segment with lanes: a vector step of n environments goes into it by one call of a kernel."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepError
from stepwell.store.column_file import RawColumn, SegmentFiles
from stepwell.store.lane_kernels import (
    CAPACITY,
    CLOCK,
    COLUMN_WORDS,
    COLUMNS,
    COMMIT,
    ENDS_ALL,
    EPISODES,
    FINALS,
    FIRST_COLUMN,
    FIRST_ID,
    HAS_FINAL,
    HAS_NEXT_AS_FINAL,
    HAS_ROWS,
    IDS,
    IS_FULL,
    IS_PREPARED,
    LANES,
    MARKS,
    METADATA_BYTES,
    METADATA_END,
    NEEDS_STEPS,
    NEXT_ROWS,
    NUM_CALLS,
    NUM_EPISODES,
    NUM_ROWS,
    NUM_STEPS,
    ORIGINS,
    ROW_BYTES,
    SKIPPED,
    STARTS,
    STEPS,
    STEPS_ROOM,
    TAKES_PART,
    TARGET,
    TERMINATED,
    TRUNCATED,
    VALUES,
    append_lane_steps,
    append_lanes,
)
from stepwell.store.lanes import IS_SYNCED, LANE_CARRIED, LANE_FILES, LANE_MARKS, LANE_STEPS
from stepwell.store.layout import step_id
from stepwell.store.sealing import Done
from stepwell.store.segment_writer import SegmentWriter

__all__ = [
    "HAS_FINAL",
    "HAS_ROWS",
    "INTERRUPTED",
    "IS_DISCARDED",
    "IS_PIECE",
    "LaneValues",
    "LaneWriter",
    "NextSegment",
]

Int64s = npt.NDArray[np.int64]
# how episodes end that nothing is said of, as the last eight bytes of a record
INTERRUPTED, IS_DISCARDED, IS_PIECE = 1 << 16, 1 << 24, -(1 << 63)
FIRST_STEPS = 1024
ROWS_OF_COMMIT = 2
# the line of an episode without metadata, and how many of them are written at once
NO_METADATA, LINES_AHEAD = b"{}\n", 1024
MADV_POPULATE_WRITE = 23
WRITE_BYTES = 1 << 20


class LaneValues:
    """The values of one vector step, in memory of its own: what the kernel copies from."""

    def __init__(self, schema: Any, num_lanes: int) -> None:
        self.takes_part = np.ones(num_lanes, np.bool_)
        self.terminated = np.zeros(num_lanes, np.bool_)
        self.truncated = np.zeros(num_lanes, np.bool_)
        self.columns = [np.zeros((num_lanes, *feature.fixed_shape), feature.np_dtype) for feature in schema.values()]
        self.finals = [
            np.zeros((num_lanes, *feature.fixed_shape), feature.np_dtype) if feature.final else None
            for feature in schema.values()
        ]
        self.ids = np.full(num_lanes, -1, np.int64)
        self.addresses = [column.ctypes.data for column in self.columns]
        self.final_addresses = [0 if column is None else column.ctypes.data for column in self.finals]


class LaneWriter(SegmentWriter):
    """Write one segment of n environments, in one thread, and after a fork only in the parent."""

    def __init__(
        self,
        store: str,
        schema: Any,
        *,
        values: LaneValues,
        lane_rows: int,
        sync: str,
        **options: Any,
    ) -> None:
        num_lanes = len(values.takes_part)
        self.lanes = (num_lanes, lane_rows)
        self._values = values
        self.starts: Int64s = np.arange(num_lanes) * lane_rows
        self.next_rows = self.starts.copy()
        self.skipped, self.origins = np.zeros((2, num_lanes), np.int64)
        self._scratch = np.zeros(1, np.int64)
        self._is_abandoned = False
        # up to which byte empty lines of metadata are written
        self._empty_until = 0
        self._control = np.zeros(FIRST_COLUMN + COLUMN_WORDS * len(schema), np.int64)
        super().__init__(store, schema, sync=sync, **options)

    def _first_rows(self) -> int:
        return self.lanes[0] * self.lanes[1]

    def _make_files(self, directory: str) -> SegmentFiles:
        files = SegmentFiles(directory, self.schema, num_rows=self.capacity, is_mapped=True, lanes=LANE_FILES)
        try:
            files.lanes[LANE_MARKS].reserve(self.capacity)
            files.lanes[LANE_STEPS].reserve(FIRST_STEPS)
            files.lanes[LANE_CARRIED].reserve(self.lanes[0])
        except BaseException:
            files.close()
            raise
        return files

    def _bind_columns(self) -> None:
        """Write into the control block what does not change from step to step."""
        control, values, files = self._control, self._values, self._files
        control[LANES], control[CAPACITY], control[COLUMNS] = *self.lanes, len(self.schema)
        control[NEXT_ROWS], control[STARTS] = self.next_rows.ctypes.data, self.starts.ctypes.data
        control[SKIPPED], control[ORIGINS] = self.skipped.ctypes.data, self.origins.ctypes.data
        control[TAKES_PART], control[IDS] = values.takes_part.ctypes.data, values.ids.ctypes.data
        control[TERMINATED], control[TRUNCATED] = values.terminated.ctypes.data, values.truncated.ctypes.data
        control[FIRST_ID] = step_id(self.ordinal, 0)
        assert self._clock is not None
        control[CLOCK] = self._clock.address
        control[MARKS] = files.lanes[LANE_MARKS].rows.ctypes.data
        self._bind_growing()
        # what waits for the disk is committed when it is there
        words = np.frombuffer(self._record.words, np.int64)
        is_direct = self.sync == "none"
        control[COMMIT] = words.ctypes.data + 8 * ROWS_OF_COMMIT if is_direct else self._scratch.ctypes.data
        for number, column in enumerate(files.columns.values()):
            assert isinstance(column, RawColumn)
            block = control[FIRST_COLUMN + COLUMN_WORDS * number :][:COLUMN_WORDS]
            block[TARGET], block[ROW_BYTES] = column.rows.ctypes.data, column.row_bytes
            block[VALUES], block[FINALS] = values.addresses[number], values.final_addresses[number]

    def _bind_growing(self) -> None:
        control, steps, episodes = self._control, self._files.lanes[LANE_STEPS].rows, self._files.episodes.rows
        steps_at, room, episodes_at = steps.ctypes.data, len(steps), episodes.ctypes.data
        # at once: a Ctrl-C after files grew leaves the maps, and the room, of which the kernel knows
        control[STEPS], control[STEPS_ROOM], control[EPISODES] = steps_at, room, episodes_at
        self._steps, self._episodes = steps, episodes

    def _reserve_steps(self, count: int) -> None:
        """Make room for ``count`` vector steps, and for twice those that there is room for."""
        self._files.lanes[LANE_STEPS].reserve(max(2 * len(self._steps), count))
        self._bind_growing()

    def populate(self) -> None:
        """Have all pages of the rows mapped, of a segment that nothing was written to."""
        for column in (*self._files.columns.values(), self._files.lanes[LANE_MARKS]):
            assert isinstance(column, RawColumn)
            populate(column)

    def carry_in(self, mask: npt.NDArray[np.bool_], skipped: Int64s, origins: Int64s) -> None:
        """Say that the next rows of some lanes, their first ones, go on with episodes of earlier segments."""
        self.skipped[mask], self.origins[mask] = skipped[mask], origins[mask]
        self._files.lanes[LANE_CARRIED].rows[mask] = np.stack([skipped[mask], origins[mask]], axis=1)

    def carry_no_more(self, mask: npt.NDArray[np.bool_]) -> None:
        """Let what comes next of some lanes be new episodes, where nothing came since `carry_in`."""
        is_left = mask & ~self.is_open_in & (self.skipped > 0)
        self._files.lanes[LANE_CARRIED].rows[is_left] = 0
        self.skipped[is_left] = self.origins[is_left] = 0

    @property
    def num_calls(self) -> int:
        """Vector steps that were appended."""
        return int(self._control[NUM_CALLS])

    @property
    def num_steps(self) -> int:
        """Steps of all environments that were appended."""
        return int(self._control[NUM_STEPS])

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows on the disk."""
        return int(self._control[NUM_ROWS]) * self._fixed_bytes

    @property
    def is_open_in(self) -> npt.NDArray[np.bool_]:
        """Which lanes have an open episode, bool [lanes]."""
        found: npt.NDArray[np.bool_] = self.next_rows > self.starts
        return found

    @property
    def has_open_episode(self) -> bool:
        """Whether any lane has an open episode."""
        return bool(self.is_open_in.any())

    def carry_lanes(self) -> tuple[Int64s, Int64s]:
        """Return of each lane what `LANE_CARRIED` says of a segment in which its episode goes on; zeros without one."""
        skipped = self.skipped + self.next_rows - self.starts
        origins = np.where(self.skipped > 0, self.origins, step_id(self.ordinal, 0) + self.starts)
        return skipped, np.where(skipped > 0, origins, 0)

    def prepare_pieces(self, mask: npt.NDArray[np.bool_]) -> None:
        """Have room for the ends of the open episodes of some lanes where a ring cuts them: what fails, fails here."""
        if self.num_calls + 1 > len(self._steps):
            self._reserve_steps(self.num_calls + 1)
        self._prepare(int((mask & self.is_open_in).sum()), None)

    def take_back(self) -> None:
        """Forget what was prepared."""
        self._control[METADATA_BYTES] = 0

    def end_pieces(self, mask: npt.NDArray[np.bool_], *, has_final: bool, flags: int = IS_PIECE) -> None:
        """End the open episodes of some lanes where a ring cuts them, which is prepared.

        Their final rows are those of the step that is stored in another segment.
        """
        has_final = has_final and any(self._values.final_addresses)
        kind = flags | ENDS_ALL | IS_PREPARED | (HAS_FINAL | HAS_NEXT_AS_FINAL) * has_final
        takes_part = self._values.takes_part.copy()
        self._values.takes_part[...] = mask & self.is_open_in
        try:
            append_lanes(self._control, time_ns(), kind)
        finally:
            self._values.takes_part[...] = takes_part
        if self.sync != "none":
            self._committer.commit(int(self._scratch[0]), 0, is_synced=True)

    def abandon(self) -> None:
        """Let the segment be removed when it is sealed."""
        self._is_abandoned = True

    def append_step(self, kind: int) -> int:
        """Store and commit the vector step that `LaneValues` hold; what is not 0 is for `finish_step`."""
        found: int = append_lanes(self._control, time_ns(), kind)
        return IS_SYNCED if not found and self.sync != "none" else found

    def append_steps(self, batch: Int64s, kind: int, num_steps: int, num_ends: int) -> int:
        """Store and commit vector steps at addresses, see the kernel; returns how many, before a lane was full."""
        if self.num_calls + num_steps > len(self._steps):
            self._reserve_steps(self.num_calls + num_steps)
        if num_ends:
            self._store_lines(num_ends, None)
        done: int = append_lane_steps(self._control, batch, time_ns(), kind, num_steps, len(NO_METADATA))
        if done and self.sync != "none":
            self._committer.commit(int(self._scratch[0]), 0, is_synced=self.sync == "step" or num_ends > 0)
        return done

    def finish_step(self, found: int, kind: int, lines: Sequence[bytes] | None) -> bool:
        """Do what `append_step` returned, and store the step; False, with nothing stored, where a lane is full."""
        return self._commit(found, kind, lines)

    def end_all(self, flags: int, *, has_final: bool, lines: Sequence[bytes] | None = None) -> None:
        """End the open episodes of the environments that take part."""
        if not (self._values.takes_part & self.is_open_in).any():
            return
        kind = flags | ENDS_ALL | HAS_FINAL * has_final
        self._commit(append_lanes(self._control, time_ns(), kind), kind, lines)

    def _commit(self, found: int, kind: int, lines: Sequence[bytes] | None) -> bool:
        """Do what the kernel asked for, and call it again; False where a lane is full."""
        num_ended = 0
        if found == IS_SYNCED:
            found = 0
        if found == NEEDS_STEPS:
            self._reserve_steps(self.num_calls + 1)
            found = append_lanes(self._control, time_ns(), kind)
        if found == IS_FULL:
            return False
        if found:
            num_ended = found
            self._prepare(found, lines)
            append_lanes(self._control, time_ns(), kind | IS_PREPARED)
        if self.sync != "none":
            self._committer.commit(int(self._scratch[0]), 0, is_synced=self.sync == "step" or num_ended > 0)
        return True

    def _prepare(self, count: int, lines: Sequence[bytes] | None) -> None:
        """Let the next commit end so many episodes, with these lines of metadata, or empty ones."""
        # taken over by the kernel's commit: no signal comes in between
        self._control[METADATA_BYTES] = self._store_lines(count, lines)

    def _store_lines(self, count: int, lines: Sequence[bytes] | None) -> int:
        """Make room for records of so many episodes, and store their metadata; returns its bytes."""
        control, room = self._control, len(self._episodes)
        first, end = int(control[NUM_EPISODES]), int(control[METADATA_END])
        if first + count > room:
            self._files.episodes.reserve(max(first + count, 2 * room))
            self._bind_growing()
        if lines is not None:
            text = b"".join(lines)
            self._files.metadata.write(text, end)
            # what lies behind may begin in the middle of a line now
            self._empty_until = 0
            return len(text)
        num_bytes = len(NO_METADATA) * count
        if end + num_bytes > self._empty_until:
            # ahead of what is committed: a write for each end would cost more than all else of it
            text = NO_METADATA * max(count, LINES_AHEAD)
            self._files.metadata.write(text, end)
            self._empty_until = end + len(text)
        return num_bytes

    def close(self) -> Any:
        """Close the files and return the commit record, still locked, which is closed when the segment is sealed."""
        self.row = self.capacity
        self.num_episodes = 0 if self._is_abandoned else int(self._control[NUM_EPISODES])
        self._control[...] = 0
        # a view of a map keeps all of it
        self._steps = self._episodes = np.empty(0)
        return super().close()

    def _grow(self, rows: int) -> None:
        raise StepError(f"{rows} rows in a segment of {self.capacity}")


def populate(column: RawColumn) -> None:
    """Map all pages of a file's rows, in a thread: each costs the writer microseconds when it is first written to."""
    if sys.platform != "linux" or not column.rows.nbytes:
        return
    # what a call writes lies in large pages, of which a file system such as ext4 maps 8 MB in a fifth of the time
    rows, zeros = column.rows, np.zeros_like(column.rows[: max(1, WRITE_BYTES // column.row_bytes)])
    for row in range(0, len(rows), len(zeros)):
        column.write_rows(row, zeros[: len(rows) - row])
    first = rows.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    # what an older kernel, which knows no such advice, says does not matter
    _madvise()(first, rows.ctypes.data + rows.nbytes - first, MADV_POPULATE_WRITE)


@functools.cache
def _madvise() -> Any:
    found: Any = ctypes.CDLL(None).madvise
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


class NextSegment:
    """Makes, in a thread, the segment that comes after the one that is written now."""

    def __init__(self, make: Callable[[], LaneWriter]) -> None:
        self._make = make
        self._made: LaneWriter | None = None
        self._done = Done()
        self._thread = threading.Thread(target=self._run, name="stepwell-lanes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # what fails here is tried again, and raised, by the call that needs the segment
        try:
            with suppress(Exception):
                with _MAKING:
                    made = self._make()
                self._made = made
                made.populate()
            # else it and the writer whose method it is would keep each other
            del self._make
        finally:
            self._done.set()

    def take(self) -> LaneWriter | None:
        """Return the segment, once; None where it could not be made."""
        # the writer may be let go of by this very thread, which has made the segment then
        if threading.current_thread() is not self._thread:
            self._done.wait()
        made, self._made = self._made, None
        return made


# no fork while a segment is made: the child would hold the lock of one that it does not know
_MAKING = threading.Lock()
os.register_at_fork(before=_MAKING.acquire, after_in_parent=_MAKING.release, after_in_child=_MAKING.release)
