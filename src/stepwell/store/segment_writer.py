"""One open segment: rows go into its columns, episodes into its table, and the commit record says how far it got."""

from __future__ import annotations

import atexit
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from stepwell.errors import StepError
from stepwell.schema import Schema
from stepwell.store.beneath import raise_from, system_error
from stepwell.store.column_file import EncodedColumn, RawColumn, SegmentFiles
from stepwell.store.commit import CommitRecord, Committer, attend, forget, is_shared, warn_if_shared
from stepwell.store.encoding import QUEUE_BYTES, SequentialColumns
from stepwell.store.episodes import EPISODE_DTYPE, GOES_ON, MAX_SKIPPED
from stepwell.store.layout import (
    MAX_ROWS,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENTS,
    locked_store,
    new_tag,
    reserve_ordinals,
    step_id,
)
from stepwell.store.manifests import KeyNote, write_note
from stepwell.store.ring import RingClock, growing_segments
from stepwell.store.snapshot import drop_table
from stepwell.store.values import EncodedRows

__all__ = ["Presence", "SegmentWriter", "writes_alone"]

FIRST_BYTES = 1 << 20
STEP_BYTES = 64 << 20
# the lock, the commit record, the episodes and their metadata
OWN_FILES = 4

_LIVE: weakref.WeakSet[SegmentWriter] = weakref.WeakSet()
_LEFT: list[SequentialColumns] = []


class Presence:
    """That a writer of this process is open, and which thread writes with it; 0 while none has."""

    __slots__ = ("__weakref__", "store", "thread")

    def __init__(self, store: str) -> None:
        self.store, self.thread = store, 0
        _PRESENT.add(self)

    def note_thread(self) -> None:
        """Say that the calling thread writes."""
        self.thread = threading.get_native_id()

    def end(self) -> None:
        """Say that the writer is closed."""
        _PRESENT.discard(self)


_PRESENT: weakref.WeakSet[Presence] = weakref.WeakSet()


def writes_alone(store: str) -> bool:
    """Return whether the calling thread writes to a store, and no other thread and no living process has a writer."""
    present = [each for each in list(_PRESENT) if each.store == store]
    if not present or any(each.thread != threading.get_native_id() for each in present):
        return False
    own = {writer.name for writer in list(_LIVE)}
    return not any(_has_living_writer(store, name) for name in growing_segments(store) - own)


def _has_living_writer(store: str, name: str) -> bool:
    try:
        found = CommitRecord.take_over(f"{store}/{SEGMENTS}/{name}{OPEN_SUFFIX}/{PROGRESS}")
    except FileNotFoundError:
        # sealed meanwhile, by a process that lives
        return True
    if found is not None:
        found.close()
    return found is None


class SegmentWriter:
    """Write one segment's rows and episodes, in one thread, and after a fork only in the parent."""

    # A row is committed when it is stored in every column; those of slow codecs are stored by threads, which commit,
    # too.

    # how many, and the rows of each, see lanes.py
    lanes = (0, 0)

    def __init__(
        self,
        store: str,
        schema: Schema,
        *,
        sync: str,
        ordinal: int | None = None,
        tag: str | None = None,
        confirm: Callable[[], None] | None = None,
        queue_bytes: int = QUEUE_BYTES,
        carried: tuple[int, int] = (0, 0),
        clock: RingClock | None = None,
        note: KeyNote | None = None,
        on_made: Callable[[str], None] | None = None,
    ) -> None:
        self.schema = schema
        self.sync = sync
        self.row = 0
        self.episode_start = 0
        self.num_episodes = 0
        fixed = sum(feature.row_bytes for feature in schema.values() if feature.is_raw)
        self._fixed_bytes = fixed + 8 * sum(not feature.is_raw for feature in schema.values())
        self.capacity = self._first_rows()
        self._metadata_end = 0
        self._queue_bytes = queue_bytes
        self._carried = carried
        self.note = note
        # episodes that were not taken back
        self.num_kept = 0
        # held while it is sealed
        self.sealing = threading.Lock()
        # the last one that a row got
        self._clock, self._stamp = clock, 0
        try:
            with locked_store(store) as lock:
                if confirm is not None:
                    confirm()
                if ordinal is not None:
                    drop_table(store)
                self.ordinal = reserve_ordinals(store, lock) if ordinal is None else ordinal
                self.name = f"{self.ordinal:08d}-{tag or new_tag()}"
                self.path = f"{store}/{SEGMENTS}/{self.name}{OPEN_SUFFIX}"
                if on_made is not None:
                    on_made(self.name)
                self._create(f"{store}/{SEGMENTS}/{NEW_PREFIX}{self.name}")
        except OSError as error:
            advice = _files_needed(schema)
            raise_from(
                system_error(error, store, is_writing=True, num_bytes=FIRST_BYTES, advice=advice),
                error,
            )
        _LIVE.add(self)
        attend(self)

    def _create(self, directory: str) -> None:
        os.mkdir(directory)
        with ExitStack() as undo:
            undo.callback(_remove, directory)
            self._record = CommitRecord.create(f"{directory}/{PROGRESS}", lanes=self.lanes)
            undo.callback(self._record.close)
            self._record.carry(*self._carried)
            if self.note is not None:
                # before the segment is there, so that every reader sees it in its place
                write_note(directory, self.note)
            self._files = self._make_files(directory)
            undo.callback(self._files.close)
            self._sequential = SequentialColumns.of(self._files.columns, self.schema, self._record, self._queue_bytes)
            self._bind_columns()
            os.rename(directory, self.path)
            undo.callback(_remove, self.path)
            self._committer = Committer(self._record, self._files, self.path)
            self._is_shared = is_shared(self.path)
            if self.sync != "none" or self._is_shared:
                self._committer.sync_names()
            undo.pop_all()
        if self._is_shared:
            warn_if_shared(self.path)
        self._files.moved(directory, self.path)

    def _first_rows(self) -> int:
        """Return for how many rows there is room at first."""
        return _first_capacity(self._fixed_bytes)

    def _make_files(self, directory: str) -> SegmentFiles:
        has_clock = self._clock is not None
        return SegmentFiles(directory, self.schema, num_rows=self.capacity, has_clock=has_clock, is_mapped=True)

    def _bind_columns(self) -> None:
        """Keep what the hot path needs at hand: (place in the schema, rows or column)."""
        stamps, columns = self._files.stamps, list(enumerate(self._files.columns.values()))
        raw = [(place, column.rows) for place, column in columns if isinstance(column, RawColumn)]
        encoded = [
            (place, column)
            for place, column in columns
            if isinstance(column, EncodedColumn) and not column.codec.is_sequential
        ]
        self._stamp_rows: Any = None if stamps is None else stamps.rows.data
        # at once: a Ctrl-C in between leaves what was bound before
        self._raw, self._encoded = raw, encoded

    def _num_blob_bytes(self, rows: int) -> int:
        columns = self._files.columns.values()
        return sum(column.num_bytes(rows) for column in columns if isinstance(column, EncodedColumn))

    @property
    def num_bytes(self) -> int:
        """Bytes of the committed rows on the disk."""
        return self.row * self._fixed_bytes + self._num_blob_bytes(self.row)

    @property
    def size(self) -> tuple[int, int]:
        """Rows that were appended, and their bytes; about, while a codec is behind."""
        ready = self._record.rows
        blobs = self._num_blob_bytes(ready)
        return self.row, self.row * self._fixed_bytes + blobs * self.row // max(1, ready)

    @property
    def carried(self) -> tuple[int, int]:
        """Steps that the open episode has in earlier segments, and its origin."""
        steps, origin = self._carried if self.episode_start == 0 else (0, 0)
        if self.note is not None:
            return 0, self.note.origin(self.num_kept)
        return steps, origin if steps else step_id(self.ordinal, self.episode_start)

    @property
    def carry_on(self) -> tuple[int, int]:
        """The `carried` of the segment in which the open episode goes on."""
        steps, origin = self.carried
        return min(steps + self.row - self.episode_start, MAX_SKIPPED), origin

    @property
    def has_open_episode(self) -> bool:
        """Whether steps were written since the last end of an episode."""
        return self.row > self.episode_start

    @property
    def is_failed(self) -> bool:
        """Whether steps that were appended are lost: nothing can be done but `cut_to_committed`, and to close it."""
        return self._sequential is not None and self._sequential.is_failed

    def append(self, values: Sequence[Any]) -> int:
        """Store and commit one step of accepted values, in the schema's order; returns its id."""
        # Where a codec is slow, or keeps rows back, the step is committed later.
        row = self.row
        if row >= self.capacity:
            self._grow(row + 1)
        self._store(row, values)
        self.row = row + 1
        self._commit_rows()
        return (self.ordinal << 32) | row

    def _store(self, row: int, values: Sequence[Any]) -> None:
        if self._clock is not None:
            self._stamp_rows[row] = self._stamp = self._clock.next(self._stamp)
        for place, rows in self._raw:
            rows[row] = values[place]
        for place, column in self._encoded:
            column.write(row, column.encode(values[place]))
        # last: a value that an encoder took cannot be taken back
        if self._sequential is not None:
            self._sequential.put(row, values)

    def append_rows(self, columns: Sequence[Any], count: int) -> int:
        """Store and commit ``count`` steps of accepted columns, in the schema's order; returns the first one's id."""
        row = self.row
        self._store_rows(columns, count)
        if self._sequential is not None:
            self._sequential.put_rows(row, columns, count)
        self.row = row + count
        self._commit_rows()
        return step_id(self.ordinal, row)

    def _store_rows(self, columns: Sequence[Any], count: int) -> None:
        """Store accepted columns of codecs that take a row alone."""
        row = self.row
        if row + count > self.capacity:
            self._grow(row + count)
        stamps = self._files.stamps
        if stamps is not None and self._clock is not None and count:
            first = self._clock.next(self._stamp, count)
            stamps.write_rows(row, np.arange(first, first + count, dtype=np.int64))
            self._stamp = first + count - 1
        for column, values in zip(self._files.columns.values(), columns, strict=True):
            if isinstance(column, RawColumn):
                column.write_rows(row, values)
        for place, column in self._encoded:
            values = columns[place]
            column.write_rows(row, values.buffers if isinstance(values, EncodedRows) else map(column.encode, values))

    def extend_last(self, entries: Mapping[str, Any]) -> None:
        """Store entries of ragged features behind those of the last row, of the open episode; all of them or none."""
        row = self.row - 1
        columns: dict[str, Any] = {name: self._files.columns[name] for name in entries}
        before = {name: column.offsets.rows[row + 1] for name, column in columns.items()}
        try:
            for name, column in columns.items():
                column.extend(row, column.encode(entries[name]))
        except BaseException:
            for name, column in columns.items():
                column.offsets.rows[row + 1] = before[name]
            raise

    def append_one_step_episodes(self, columns: Sequence[Any], count: int) -> int:
        """Store and commit ``count`` episodes of one step each from accepted columns; returns the first one's place."""
        # They have no metadata, and no final row.
        first, row, lines = self.num_episodes, self.row, b"{}\n" * count
        if self._sequential is not None:
            sync, self.sync = self.sync, "none"
            try:
                for k in range(count):
                    self.append_rows([values[k : k + 1] for values in columns], 1)
                    self.end_episode(metadata=b"{}\n")
            finally:
                self.sync = sync
            if self.sync != "none":
                self.sync_committed()
            return first
        self._store_rows(columns, count)
        records = np.zeros(count, EPISODE_DTYPE)
        records["length"] = records["rows"] = 1
        records["start"] = np.arange(row, row + count)
        records["origin"] = step_id(self.ordinal, 0) + records["start"]
        if self.note is not None:
            records["origin"] = self.note.origins(self.num_kept, count)
        records["time_ns"] = time.time_ns()
        self._end_episodes(records, lines, count, end=row + count, num_kept=self.num_kept + count)
        return first

    def end_episode(
        self,
        *,
        metadata: bytes,
        final: Mapping[str, Any] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        interrupted: bool = False,
        discarded: bool = False,
        goes_on: bool = False,
        time_ns: int | None = None,
    ) -> int:
        """Close the open episode and commit its record, with accepted values of its final row; returns its place."""
        start, length = self.episode_start, self.row - self.episode_start
        end, (skipped, origin) = self.row, self.carried
        if final is not None:
            self._store_final(final)
            end += 1
        if self._sequential is not None:
            self._sequential.end_run(self.row, final)
        # in the order of EPISODE_DTYPE; one assignment costs a fifth of ten
        record = (
            start,
            length,
            end - start,
            origin,
            time.time_ns() if time_ns is None else time_ns,
            terminated,
            truncated,
            interrupted,
            discarded,
            skipped | GOES_ON * goes_on,
        )
        self._end_episodes(record, metadata, 1, end=end, num_kept=self.num_kept + (not discarded))
        return self.num_episodes - 1

    def _end_episodes(self, records: Any, lines: bytes, count: int, *, end: int, num_kept: int) -> None:
        """Store records of episodes that end, the last one before row ``end``, and their metadata; commit them."""
        episodes, first, end_of_lines = self._files.episodes, self.num_episodes, self._metadata_end + len(lines)
        if first + count > len(episodes.rows):
            episodes.reserve(max(first + count, 2 * len(episodes.rows)))
        self._files.metadata.write(lines, self._metadata_end)
        episodes.rows[first if count == 1 else slice(first, first + count)] = records
        # at once: a Ctrl-C comes before all of it, or after
        self.num_episodes, self.num_kept, self._metadata_end = first + count, num_kept, end_of_lines
        self.row = self.episode_start = end
        try:
            self._committer.commit(end, self.num_episodes, is_synced=self.sync != "none")
        except BaseException:
            # they are ended for this writer, so also for readers
            self._record.commit_episode(self.num_episodes, end)
            raise
        if self._sequential is not None:
            self._sequential.commit(end)

    def _store_final(self, final: Mapping[str, Any]) -> None:
        row = self.row
        if row >= self.capacity:
            self._grow(row + 1)
        if self._files.stamps is not None:
            self._files.stamps.rows[row] = self._stamp
        for name, column in self._files.columns.items():
            if isinstance(column, RawColumn):
                column.rows[row] = final[name] if name in final else np.zeros((), column.dtype)
            elif not column.codec.is_sequential:
                column.write(row, _encoded_final(column, final[name]) if name in final else b"")

    def _grow(self, rows: int) -> None:
        if rows > MAX_ROWS - 1:
            raise StepError(f"a segment holds at most {MAX_ROWS - 1} rows. End episodes more often.")
        step = max(1, STEP_BYTES // max(1, self._fixed_bytes))
        capacity = max(rows, min(2 * self.capacity, self.capacity + step))
        self._files.reserve(capacity)
        self._bind_columns()
        # last: interrupted before, it is done again
        self.capacity = capacity

    def cut_to_committed(self) -> None:
        """Take back the steps of the open episode that were not committed; no more can follow in this segment."""
        self._close_encoders()
        self._sequential = None
        self.row = max(self.episode_start, self._record.rows)

    def settle(self) -> None:
        """Wait until every step that was appended is committed."""
        if self._sequential is not None:
            self._sequential.settle()

    def flush(self) -> None:
        """Wait until all steps that were appended are committed and on the disk, whatever `sync` says."""
        self.settle()
        self.sync_committed()

    def sync_committed(self) -> None:
        """Wait until all that is committed now is on the disk, and its commit record says so."""
        self._committer.sync()

    def attend(self) -> None:
        """Say that the writer lives, and sync what it committed; called by the thread that goes round all segments."""
        # Rings that wait for no disk are left alone: their rows may be evicted before they must be on the disk.
        if self._is_shared and self._committer.is_open:
            os.utime(f"{self.path}/{PROGRESS}")
        if self._clock is None or self.sync != "none":
            self._committer.sync_in_background()

    def check_synced(self) -> None:
        """Raise what the disk said when the files were synced in the background: rows may be lost."""
        self._committer.check()

    def _commit_rows(self) -> None:
        """Commit the rows of the open episode, those of slow codecs when they are ready."""
        if self._sequential is not None:
            self._sequential.commit(self.row)
            if self.sync == "step":
                self.flush()
        elif self.sync == "step":
            self._committer.commit(self.row, self.num_episodes, is_synced=True)
        else:
            self._record.commit_rows(self.row)

    @property
    def checksums(self) -> dict[str, tuple[int, int]]:
        """Bytes and CRC-32 of the files of which they are known already, by name."""
        return self._files.checksums

    def mark_full(self) -> None:
        """Tell readers that nothing more comes."""
        with self.sealing:
            if self.is_open:
                self._record.mark_full()

    @property
    def is_open(self) -> bool:
        """Whether its files are open."""
        return self._committer.is_open

    def close(self) -> CommitRecord:
        """Close the files and return the commit record, still locked, which is closed when the segment is sealed."""
        # A child that is forked until then gives up its copy of the lock, too.
        self._close_encoders()
        forget(self)
        self._committer.close()
        # a view of a map keeps all of it
        self._stamp_rows = None
        return self._record

    def leave(self) -> None:
        """Commit what was appended, if that can be, and let go of the files; nothing where it is being sealed, or was.

        No process could recover the segment otherwise while this one lives.
        """
        # without waiting: the garbage collector may call this in the thread that seals
        if self.sealing.acquire(blocking=False):
            try:
                if self.is_open:
                    self.finish()
                    self.close().close()
            finally:
                self.sealing.release()

    def finish(self) -> None:
        """Commit what was appended, if that can be, and end the threads: for a writer that was never closed."""
        with suppress(Exception):
            self.settle()
        self._close_encoders()

    def _close_encoders(self) -> None:
        if self._sequential is not None:
            self._sequential.close()

    def leave_after_fork(self) -> None:
        """Give up the parent's lock and blobs in a forked child."""
        self._record.close()
        # an encoder that is freed here would wait for threads that only the parent has
        if self._sequential is not None:
            _LEFT.append(self._sequential)


def _remove(directory: str) -> None:
    # whatever it raises: what is left is removed when the store is opened, and a Ctrl-C makes shutil close a file twice
    with suppress(OSError):
        shutil.rmtree(directory, ignore_errors=True)


def _encoded_final(column: EncodedColumn, value: Any) -> bytes:
    return value[0] if isinstance(value, EncodedRows) else column.encode(value)


def _files_needed(schema: Schema) -> str:
    num_files = OWN_FILES + sum(1 if feature.is_raw else 2 for feature in schema.values())
    return f"A writer of {len(schema)} features has {num_files} files open. "


def _first_capacity(row_bytes: int) -> int:
    """Return the first capacity in rows: 1 MiB, 16 at least, up to 64 MiB, but one at least."""
    row_bytes = max(1, row_bytes)
    return max(1, min(max(16, FIRST_BYTES // row_bytes), 4096, STEP_BYTES // row_bytes))


def _leave_all() -> None:
    for writer in list(_LIVE):
        writer.leave_after_fork()
    _LIVE.clear()
    _PRESENT.clear()


def _finish_all() -> None:
    """Commit what waits in queues when the process ends, and end their threads before the interpreter does."""
    for writer in list(_LIVE):
        writer.finish()


atexit.register(_finish_all)
os.register_at_fork(after_in_child=_leave_all)
