"""The sequential columns of a segment while it is written: rows on their way from values through encoders to the files.

::

    SequentialColumns ── put ──> RunWriter ──> files, commit
                      └─ put ──> BackgroundRows: copy ─> queue ─> thread: RunWriter ──> files, commit

A row is **ready** when it is stored, and all rows before it are; it is committed when it is ready in every column.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.codecs import RowEncoder, SequentialCodec
from stepwell.errors import EncodeError
from stepwell.schema import Feature, Schema
from stepwell.store.column_file import Column, EncodedColumn
from stepwell.store.commit import CommitRecord
from stepwell.store.values import EncodedRows

__all__ = ["QUEUE_BYTES", "BackgroundRows", "RunWriter", "SequentialColumns"]

Slot = npt.NDArray[Any]
QUEUE_BYTES = 256 << 20
MIN_SLOTS = 2
READY_SLOTS = 2
# a sign of the thread that a Ctrl-C swallows costs no more than this
LOOK_SECONDS = 0.05


class RunWriter:
    """Encode the rows of one sequential column and store what the encoder gives back; one thread at a time."""

    # A row that is put again, because another column failed to take it, replaces the first one and begins a run.

    def __init__(self, name: str, column: EncodedColumn) -> None:
        self.name = name
        # any thread may read it
        self.num_ready = 0
        self._column = column
        self._num_put = 0
        # made by the thread that puts the first row
        self._encoder: RowEncoder | None = None
        self._is_in_run = False

    @property
    def is_behind(self) -> bool:
        """Whether the encoder keeps rows back."""
        return self.num_ready < self._num_put

    @property
    def is_failed(self) -> bool:
        """Whether rows that were put are lost."""
        return self._encoder is None and self.is_behind

    def put(self, row: int, value: Any) -> None:
        """Encode a value as row number ``row``; after an error it is not stored, and the next row begins a run."""
        self._go_to(row)
        try:
            encoder = self._open()
            self._is_in_run = True
            self._store(encoder.put(value))
        except BaseException as error:
            raise self._restarted(error, row) from error
        self._num_put = row + 1

    def put_encoded(self, row: int, blobs: Iterable[bytes]) -> None:
        """Store rows that are encoded already, from number ``row`` on: whole runs, or what goes on with the last."""
        self._go_to(row)
        self.end()
        try:
            self._store(blobs)
        finally:
            self._num_put = self.num_ready

    def end(self) -> None:
        """End the run: every row put is ready, and the next one begins a run."""
        if not self._is_in_run:
            return
        try:
            self._store(self._open().end())
            if self.is_behind:
                raise EncodeError(f"feature {self.name!r}: its encoder gave back fewer rows than it took.")
        except BaseException as error:
            raise self._restarted(error, self.num_ready) from error
        self._is_in_run = False

    def wait(self) -> None:
        """Do nothing: rows are done when they are put."""

    def close(self) -> None:
        """Let go of the encoder; rows that it kept back are lost."""
        encoder, self._encoder, self._is_in_run = self._encoder, None, False
        if encoder is not None:
            encoder.close()

    def _open(self) -> RowEncoder:
        if self._encoder is None:
            self._encoder = cast(SequentialCodec, self._column.codec).encoder()
        return self._encoder

    def _go_to(self, row: int) -> None:
        """Take back the rows from number ``row`` on, if there are any."""
        if row < max(self._num_put, self.num_ready):
            self.end()
            self._num_put = self.num_ready = row

    def _store(self, blobs: Iterable[bytes]) -> None:
        for blob in blobs:
            self._column.write(self.num_ready, blob)
            self.num_ready += 1

    def _restarted(self, error: BaseException, row: int) -> BaseException:
        """Save what the encoder kept back, let go of it, and return the error to raise."""
        if self._encoder is not None:
            with suppress(Exception):
                self._store(self._encoder.end()[: max(0, self._num_put - self.num_ready)])
            with suppress(Exception):
                self.close()
        if isinstance(error, EncodeError | OSError) or not isinstance(error, Exception):
            return error
        return EncodeError(f"feature {self.name!r}: row {row} of the segment could not be encoded: {error}")


class BackgroundRows:
    """A `RunWriter` in a thread of its own, behind a bounded queue; its methods are for one thread, the writer's."""

    # An error in the background is raised by the next call, and by all later ones; the rows in the queue are
    # dropped then. The thread begins with the first row.
    # A Ctrl-C may come between any two steps of Python, so nothing here is held while one waits, as a Condition would:
    # ``_queue`` alone says what is to be done, each of the two threads changes it by one call, and a sign that is given
    # twice, or is lost, does no harm.

    def __init__(self, rows: RunWriter, feature: Feature, num_slots: int, committed: Callable[[], None]) -> None:
        self.rows = rows
        self._committed = committed
        self._shape, self._dtype = feature.fixed_shape, feature.np_dtype
        self._num_slots = num_slots
        self._free: list[Slot] = [np.empty(self._shape, self._dtype) for _ in range(min(READY_SLOTS, num_slots))]
        for slot in self._free:
            # touched before it is needed: the pages of fresh memory cost a control loop more than the copy
            slot.reshape(-1).view(np.uint8)[:] = 0
        # the first is the one being done; it leaves when it is stored
        self._queue: deque[tuple[Callable[[], None], Slot | None]] = deque()
        self._calls: SimpleQueue[None] = SimpleQueue()
        # open when the thread has done something since it was last looked at
        self._news = threading.Lock()
        # taken by the thread for as long as it lives
        self._life = threading.Lock()
        self._is_started = False
        self._thread_id = 0
        self._is_stopped = False
        self.error: BaseException | None = None

    @property
    def num_ready(self) -> int:
        """Rows that are stored."""
        return self.rows.num_ready

    @property
    def is_behind(self) -> bool:
        """Whether the encoder keeps rows back, when the queue is empty."""
        return self.rows.is_behind

    @property
    def is_failed(self) -> bool:
        """Whether rows that were put are lost."""
        return self.error is not None

    def put(self, row: int, value: Any) -> None:
        """Copy a value into the queue; waits while it is full."""
        slot = self._take_slot()
        try:
            _copy(slot, value)
        except BaseException:
            self._free.append(slot)
            raise
        self._enqueue(lambda: self.rows.put(row, slot), slot)

    def put_encoded(self, row: int, blobs: Iterable[bytes]) -> None:
        """Have encoded rows stored, after those in the queue."""
        self._enqueue(lambda: self.rows.put_encoded(row, blobs))

    def end(self) -> None:
        """Have the run ended when the rows in the queue are encoded; `wait` waits for it."""
        self._enqueue(self.rows.end)

    def wait(self) -> None:
        """Wait until the queue is empty; raises what was raised in the background."""
        # the garbage collector may end a forgotten writer in this very thread
        if threading.get_ident() == self._thread_id:
            return
        self._wait_while(lambda: bool(self._queue) and self.error is None)
        self._check()

    def close(self) -> None:
        """Drop what is in the queue, wait for the row that is being encoded, and let go of the encoder."""
        self._is_stopped = True
        self._calls.put(None)
        if threading.get_ident() != self._thread_id:
            self._wait_while(self._life.locked)
        self.rows.close()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if self._is_stopped:
            raise EncodeError(f"feature {self.rows.name!r}: its encoder was closed. Make a new writer.")

    def _wait_while(self, is_so: Callable[[], bool]) -> None:
        while is_so():
            self._news.acquire(timeout=LOOK_SECONDS)

    def _signal(self) -> None:
        if self._news.locked():
            self._news.release()

    def _take_slot(self) -> Slot:
        self._wait_while(lambda: len(self._queue) >= self._num_slots and self.error is None)
        self._check()
        return self._free.pop() if self._free else np.empty(self._shape, self._dtype)

    def _enqueue(self, action: Callable[[], None], slot: Slot | None = None) -> None:
        self._check()
        if not self._is_started:
            # not Thread.start, which waits with a Condition; begun twice, the second one ends at once
            start_new_thread(self._work, ())
            self._is_started = True
        try:
            self._queue.append((action, slot))
        finally:
            self._calls.put(None)

    def _work(self) -> None:
        if not self._life.acquire(blocking=False):
            return
        self._thread_id = threading.get_ident()
        try:
            while self.error is None and not self._is_stopped:
                self._calls.get()
                if self._queue and not self._is_stopped:
                    self._do_first()
        finally:
            # numbers of threads are used again
            self._thread_id = 0
            self._life.release()
            self._signal()

    def _do_first(self) -> None:
        action, slot = self._queue[0]
        try:
            action()
            self._committed()
        except BaseException as error:
            self.error = error
            self._queue.clear()
        else:
            # in this order: the thread that sees room in the queue finds the slot
            if slot is not None:
                self._free.append(slot)
            self._queue.popleft()
        self._signal()


class SequentialColumns:
    """Hand rows to the encoders of a segment's sequential columns and commit those that are ready in all of them."""

    # For one thread, the writer's. Slow codecs have a thread each, which commits what it has stored; their queues hold
    # ``queue_bytes`` together, at most, but two rows each.

    def __init__(self, columns: Mapping[str, Column], schema: Schema, record: CommitRecord, queue_bytes: int) -> None:
        self._record = record
        # a commit is a minimum over columns that several threads take
        self._lock = threading.Lock()
        self._limit = 0
        self._num_tried = 0
        self._places: list[tuple[int, str, RunWriter | BackgroundRows]] = []
        slow = sum(schema[name].row_bytes for name, column in columns.items() if _is_slow(column))
        num_slots = max(MIN_SLOTS, queue_bytes // max(1, slow))
        for place, (name, column) in enumerate(columns.items()):
            if isinstance(column, EncodedColumn) and column.codec.is_sequential:
                rows: RunWriter | BackgroundRows = RunWriter(name, column)
                if _is_slow(column):
                    rows = BackgroundRows(cast(RunWriter, rows), schema[name], num_slots, self._commit_ready)
                self._places.append((place, name, rows))

    @classmethod
    def of(
        cls, columns: Mapping[str, Column], schema: Schema, record: CommitRecord, queue_bytes: int
    ) -> SequentialColumns | None:
        """Return those of a segment, or None when it has none."""
        found = cls(columns, schema, record, queue_bytes)
        return found if found._places else None

    @property
    def is_failed(self) -> bool:
        """Whether steps that were appended are lost: the segment can only be closed."""
        return any(rows.is_failed for _, _, rows in self._places)

    def put(self, row: int, values: Sequence[Any]) -> None:
        """Take a step, in the schema's order; waits while a queue is full."""
        is_again = self._try(row + 1) > row
        for place, _, rows in self._places:
            rows.put(row, values[place])
        if is_again:
            self._replace(row + 1)

    def put_rows(self, row: int, columns: Sequence[Any], count: int) -> None:
        """Take ``count`` steps by columns, in the schema's order."""
        is_again = self._try(row + count) > row
        decoded = []
        for place, _, rows in self._places:
            if isinstance(columns[place], EncodedRows):
                rows.put_encoded(row, columns[place])
            else:
                decoded.append((columns[place], rows))
        for i in range(count):
            for values, rows in decoded:
                rows.put(row + i, values[i])
        if is_again:
            self._replace(row + count)

    def commit(self, rows: int) -> None:
        """Let the first ``rows`` rows be committed as soon as they are ready."""
        with self._lock:
            self._limit = rows
        self._commit_ready()

    def end_run(self, row: int, final: Mapping[str, Any] | None) -> None:
        """End the episode before row number ``row``, which is its final row if there is one; waits for all rows."""
        self._try(row + (final is not None))
        for _, name, rows in self._places:
            value = None if final is None else final.get(name)
            if isinstance(value, EncodedRows):
                rows.put_encoded(row, value)
            elif value is not None:
                rows.put(row, value)
            rows.end()
            if final is not None and value is None:
                rows.put_encoded(row, [b""])
        self._wait()

    def settle(self) -> None:
        """Wait until every step is stored; where an encoder keeps rows back, end its run for that."""
        for _, _, rows in self._places:
            rows.wait()
            if rows.is_behind:
                rows.end()
        self._wait()
        self._commit_ready()

    def close(self) -> None:
        """Let go of the encoders and their threads; what they have not stored is lost."""
        for _, _, rows in self._places:
            rows.close()

    def _try(self, stop: int) -> int:
        """Take note that rows before ``stop`` are put; return the row before which some columns may have rows."""
        before, self._num_tried = self._num_tried, max(self._num_tried, stop)
        return before

    def _replace(self, stop: int) -> None:
        """Wait until rows that were put again are stored: the rows they replace must not be committed for them."""
        self._wait()
        self._num_tried = stop

    def _wait(self) -> None:
        for _, _, rows in self._places:
            rows.wait()

    def _commit_ready(self) -> None:
        with self._lock:
            ready = min(rows.num_ready for _, _, rows in self._places)
            self._record.commit_rows(min(self._limit, ready))


def _is_slow(column: Column) -> bool:
    return isinstance(column, EncodedColumn) and isinstance(column.codec, SequentialCodec) and column.codec.is_slow


def _copy(slot: Slot, value: Any) -> None:
    """Copy a value without letting go of the GIL, as numpy would: to get it back takes longer than the copy."""
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        slot.reshape(-1).view(np.uint8).data[:] = value.reshape(-1).view(np.uint8).data
    else:
        slot[...] = value
