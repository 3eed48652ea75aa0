"""Samples become bytes in many processes, and get their places in one: the file is the same for every number of them.

::

    parent    lot 0, lot 1, ...  ──────────────> place them in order: PageCursor ──────────────> finish the file
                   │                                ^               │
                 Lot                          Measure: sizes      Placed: where
                   v                                │               v
    worker    Lots.encode: bytes are kept  ─────────┘     Lots.write: straight into the file

A worker encodes the next lots while one waits for those before it; how many it keeps is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.beton.pages import PageCursor
from stepwell.beton.unfinished import FilePart, UnfinishedFile
from stepwell.recorders.chunks import (
    ITEM,
    NUM_BYTES,
    NUM_COUNTERS,
    NUM_ITEMS,
    NUM_STEPS,
    ProgressBar,
    StartMethod,
    WorkerPool,
    answer_of,
    checked_answer,
)

__all__ = ["Lot", "Lots", "Measure", "lay"]

# lots that a worker has encoded, or has still to encode
LOTS_A_WORKER = 3


@dataclass(frozen=True, slots=True)
class Lot:
    """Consecutive samples.

    Args:
        number: from 0, in the order in which lots are placed.
        start: first sample.
        stop: one past the last.
        home: lots of one home are encoded by one worker, in order; None: by any.
    """

    number: int
    start: int
    stop: int
    home: int | None = None


class Measure(Protocol):
    """What is known of a lot once it is encoded."""

    def place(self, cursor: PageCursor) -> Any:
        """Return where all of it goes; called lot after lot, in the parent."""


class Lots(Protocol):
    """What is written: sent to each worker once, by pickle.

    Notes:
        A worker calls both methods from one thread.
    """

    noun: str

    def encode(self, lot: Lot, at: Callable[[int], None]) -> tuple[Any, Measure]:
        """Return what is to be written of a lot, which stays in the worker, and its measure.

        Args:
            lot: which samples.
            at: told which sample is next.
        """

    def write(self, lot: Lot, encoded: Any, places: Any, part: FilePart) -> int:
        """Write a lot; returns the bytes.

        Args:
            lot: which samples.
            encoded: of `encode`.
            places: of ``Measure.place``.
            part: of the file.
        """


@dataclass(frozen=True, slots=True)
class _Placed:
    """Tells a worker where a lot goes that it has encoded."""

    lot: Lot
    places: Any

    @property
    def start(self) -> int:
        return self.lot.start

    @property
    def stop(self) -> int:
        return self.lot.stop


class _LayingJob:
    """The work of a worker, see `stepwell.recorders.chunks.Work`."""

    def __init__(self, lots: Lots, file: UnfinishedFile) -> None:
        self._lots, self._file = lots, file
        self._encoded: dict[int, Any] = {}
        self._part: FilePart | None = None

    @property
    def noun(self) -> str:
        """What errors call a sample."""
        return self._lots.noun

    def write(self, message: Lot | _Placed, counters: MutableSequence[int]) -> Measure | None:
        """Do what a message says; returns the measure of a lot that was encoded."""
        if isinstance(message, Lot):
            return self._encode(message, counters)
        self._write(message, counters)
        return None

    def close(self) -> None:
        """Close the files."""
        if self._part is not None:
            self._part.close()

    def _encode(self, lot: Lot, counters: MutableSequence[int]) -> Measure:
        def at(sample: int) -> None:
            counters[ITEM] = sample

        at(lot.start)
        self._encoded[lot.number], measure = self._lots.encode(lot, at)
        return measure

    def _write(self, placed: _Placed, counters: MutableSequence[int]) -> None:
        if self._part is None:
            self._part = FilePart(self._file)
        lot = placed.lot
        counters[ITEM] = lot.start
        counters[NUM_BYTES] += self._lots.write(lot, self._encoded.pop(lot.number), placed.places, self._part)
        counters[NUM_ITEMS] += lot.stop - lot.start
        counters[NUM_STEPS] += lot.stop - lot.start


def lay(
    lots: Sequence[Lot],
    source: Lots,
    file: UnfinishedFile,
    *,
    workers: int,
    progress: bool | None,
    start_method: StartMethod = "spawn",
) -> None:
    """Write all lots and complete the file.

    Args:
        lots: by number, together all samples.
        source: what makes bytes of them.
        file: to be written.
        workers: processes; 0 or 1: this one.
        progress: see `stepwell.recorders.chunks.ProgressBar`.
        start_method: of the processes.

    Raises:
        WorkerError: a sample that could not be written, or a worker that was killed.
        FormatError: a unit that fits no page.
        DiskFullError: no space.
    """
    cursor = PageCursor(file.layout.pages_start, file.layout.header.page_size)
    bar = ProgressBar(sum(lot.stop - lot.start for lot in lots), "samples", progress)
    job = _LayingJob(source, file)
    try:
        if min(workers, len(lots)) > 1:
            with WorkerPool(job, min(workers, len(lots)), start_method) as pool:
                _Placing(lots, cursor, pool, bar).run()
        else:
            _lay_here(lots, job, cursor, bar)
    finally:
        job.close()
        bar.close()
    file.finish(cursor.stop if cursor.stop > cursor.start else file.layout.rows_stop)


class _Placing:
    """The parent's side: hands lots out, places them in order, tells workers."""

    def __init__(self, lots: Sequence[Lot], cursor: PageCursor, pool: WorkerPool, bar: ProgressBar) -> None:
        self._lots, self._cursor, self._pool, self._bar = lots, cursor, pool, bar
        number = len(pool.counters)
        self._anyones = deque(lot for lot in lots if lot.home is None)
        self._homes: list[deque[Lot]] = [deque() for _ in range(number)]
        for lot in lots:
            if lot.home is not None:
                self._homes[lot.home % number].append(lot)
        # what each worker was sent and has not answered for, in that order, and how many lots it has in hand
        self._sent: list[deque[Lot | _Placed]] = [deque() for _ in range(number)]
        self._in_hand = [0] * number
        self._measured: dict[int, tuple[int, Measure]] = {}
        self._next = 0
        self._num_written = 0

    def run(self) -> None:
        while self._num_written < len(self._lots):
            self._hand_out()
            for worker, answer in self._pool.answers():
                self._take(worker, answer)
            self._bar.update(self._pool.counters)

    def _hand_out(self) -> None:
        # one a turn for each, so that neighbours are encoded at the same time
        for _ in range(LOTS_A_WORKER):
            for worker in range(len(self._in_hand)):
                queue = self._homes[worker] or self._anyones
                if queue and self._in_hand[worker] < LOTS_A_WORKER:
                    self._in_hand[worker] += 1
                    self._send(worker, queue.popleft())

    def _take(self, worker: int, answer: Any) -> None:
        done = self._sent[worker].popleft()
        if isinstance(done, _Placed):
            self._in_hand[worker] -= 1
            self._num_written += 1
            return
        self._measured[done.number] = worker, answer
        while self._next in self._measured:
            owner, measure = self._measured.pop(self._next)
            self._send(owner, _Placed(self._lots[self._next], measure.place(self._cursor)))
            self._next += 1

    def _send(self, worker: int, message: Lot | _Placed) -> None:
        self._sent[worker].append(message)
        self._pool.send(worker, message)


def _lay_here(lots: Sequence[Lot], job: _LayingJob, cursor: PageCursor, bar: ProgressBar) -> None:
    counters = [0] * NUM_COUNTERS
    for lot in lots:
        measure = checked_answer(answer_of(job, lot, counters))
        checked_answer(answer_of(job, _Placed(lot, measure.place(cursor)), counters))
        bar.update([counters])
