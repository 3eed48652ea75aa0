"""Encoding in the background: who appends copies a value into a queue, and a thread does the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import EncodeError
from stepwell.schema import Feature
from stepwell.store.run_writing import RunWriter

__all__ = ["BackgroundRows"]

Slot = npt.NDArray[Any]
READY_SLOTS = 2


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
    """

    def __init__(self, rows: RunWriter, feature: Feature, num_slots: int, committed: Callable[[], None]) -> None:
        self.rows = rows
        self._committed = committed
        self._shape, self._dtype = feature.fixed_shape, feature.np_dtype
        self._free: list[Slot] = [np.empty(self._shape, self._dtype) for _ in range(min(READY_SLOTS, num_slots))]
        for slot in self._free:
            # touched before it is needed: the pages of fresh memory cost a control loop more than the copy
            slot.reshape(-1).view(np.uint8)[:] = 0
        self._num_unmade = num_slots - len(self._free)
        self._queue: deque[tuple[Callable[[], None], Slot | None]] = deque()
        # taken as it is: a Ctrl-C between a Condition's own __enter__ and its caller would leave it taken for ever
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._is_stopped = False
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
        """
        # the garbage collector may end a forgotten writer in this very thread
        if threading.current_thread() is self._thread:
            return
        with self._lock:
            while self._queue and self.error is None:
                self._changed.wait()
        self._check()

    def close(self) -> None:
        """Drop what is in the queue, wait for the row that is being encoded, and let go of the encoder."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.rows.close()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if self._is_stopped:
            raise EncodeError(f"feature {self.rows.name!r}: its encoder was closed. Make a new writer.")

    def _take_slot(self) -> Slot:
        with self._lock:
            while not self._free and not self._num_unmade and self.error is None:
                self._changed.wait()
            self._check()
            if self._free:
                return self._free.pop()
            self._num_unmade -= 1
        return np.empty(self._shape, self._dtype)

    def _enqueue(self, action: Callable[[], None], slot: Slot | None = None) -> None:
        with self._lock:
            self._check()
            self._queue.append((action, slot))
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"stepwell-encode-{self.rows.name}", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._is_stopped:
                    self._changed.wait()
                if self._is_stopped:
                    return
                action, slot = self._queue[0]
            try:
                action()
                self._committed()
            except BaseException as error:
                self.error = error
            with self._lock:
                if self.error is None:
                    self._queue.popleft()
                    if slot is not None:
                        self._free.append(slot)
                else:
                    self._queue.clear()
                self._changed.notify_all()
                if self.error is not None:
                    return


def _copy(slot: Slot, value: Any) -> None:
    """Copy a value without letting go of the GIL, as numpy would: to get it back takes longer than the copy."""
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        slot.reshape(-1).view(np.uint8).data[:] = value.reshape(-1).view(np.uint8).data
    else:
        slot[...] = value
