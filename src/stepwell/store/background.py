"""Encoding in the background: who appends copies a value into a queue, and a thread does the rest."""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import EncodeError
from stepwell.schema import Feature
from stepwell.store.run_writing import RunWriter

__all__ = ["BackgroundRows"]

Slot = npt.NDArray[Any]
READY_SLOTS = 2
# a sign of the thread that a Ctrl-C swallows costs no more than this
LOOK_SECONDS = 0.05
# an encoder that is at one row for so long will not come back: libraries have been seen to hang
STUCK_SECONDS = 300.0


class BackgroundRows:
    """A `RunWriter` in a thread of its own, behind a bounded queue.

    ::

        put ── copy ──> slot ──> queue ──> RunWriter.put ──> files, committed()
          ^              |                      |
          └── free slots <──────────────────────┘            none free: put waits

    Args:
        rows: what encodes and stores.
        feature: of fixed shape.
        num_slots: values that may wait; memory is used again, and taken when it is needed.
        committed: called in the thread after each row.

    Notes:
        `put`, `put_encoded`, `end` and `wait` are for one thread. What is raised in the background is raised by the
        next call, and by all later ones; the rows in the queue are dropped then. The thread begins with the first row.
        An encoder that is at one row for `STUCK_SECONDS` of waiting is given up, its thread and memory with it.

        A Ctrl-C may come between any two steps of Python, so nothing here is held while one waits, as a Condition
        would: ``_queue`` alone says what is to be done, each of the two threads changes it by one call, and a sign that
        is given twice, or is lost, does no harm.
    """

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
        self._is_stuck = False
        self.error: BaseException | None = None

    @property
    def num_ready(self) -> int:
        """Rows that are stored."""
        return self.rows.num_ready

    @property
    def is_behind(self) -> bool:
        """Whether the encoder keeps rows back; to be asked when the queue is empty."""
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
        """Wait until the queue is empty.

        Raises:
            BaseException: what was raised in the background.
            EncodeError: the encoder hangs.
        """
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
            self._wait_while(lambda: self._life.locked() and not self._is_stuck)
        if not self._is_stuck:
            self.rows.close()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if self._is_stopped:
            raise EncodeError(f"feature {self.rows.name!r}: its encoder was closed. Make a new writer.")

    def _wait_while(self, is_so: Callable[[], bool]) -> None:
        """Wait for the thread, or give it up; looks are counted, since a stopped process has no part in the time."""
        looks = 0
        while is_so():
            looks = 0 if self._news.acquire(timeout=LOOK_SECONDS) else looks + 1
            if looks * LOOK_SECONDS > STUCK_SECONDS:
                self._give_up()

    def _give_up(self) -> None:
        self._is_stuck = True
        self.rows.abandon()
        self.error = EncodeError(
            f"feature {self.rows.name!r}: its encoder hangs: a row is not done after {STUCK_SECONDS:g} s. "
            "What was committed is kept. Go on in a new process, or record with another encoder."
        )

    def _tell_news(self) -> None:
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
            self._tell_news()

    def _do_first(self) -> None:
        action, slot = self._queue[0]
        try:
            action()
            self._committed()
        except BaseException as error:
            self.error = self.error or error
            self._queue.clear()
        else:
            # in this order: who sees room in the queue finds the slot
            if slot is not None:
                self._free.append(slot)
            self._queue.popleft()
        self._tell_news()


def _copy(slot: Slot, value: Any) -> None:
    """Copy a value without letting go of the GIL, as numpy would: to get it back takes longer than the copy."""
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        slot.reshape(-1).view(np.uint8).data[:] = value.reshape(-1).view(np.uint8).data
    else:
        slot[...] = value
