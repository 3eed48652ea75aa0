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

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.beton.pages import PageCursor
from stepwell.beton.unfinished import FilePart, UnfinishedFile
from stepwell.recorders.chunks import ITEM, NUM_BYTES, NUM_ITEMS, NUM_STEPS, StartMethod, run_chunks

__all__ = ["Lot", "Lots", "Measure", "lay"]


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


class _LayingJob:
    """The work of a worker: lots that wait for their places are kept in its memory."""

    def __init__(self, lots: Lots, file: UnfinishedFile) -> None:
        self.noun = lots.noun
        self._lots, self._file = lots, file
        self._encoded: dict[int, Any] = {}
        self._part: FilePart | None = None

    def write(self, lot: Lot, counters: MutableSequence[int]) -> Measure:
        """Encode a lot; returns its measure."""

        def at(sample: int) -> None:
            counters[ITEM] = sample

        at(lot.start)
        self._encoded[lot.number], measure = self._lots.encode(lot, at)
        return measure

    def put(self, lot: Lot, places: Any, counters: MutableSequence[int]) -> None:
        """Write a lot that was encoded here to its places."""
        if self._part is None:
            self._part = FilePart(self._file)
        counters[ITEM] = lot.start
        counters[NUM_BYTES] += self._lots.write(lot, self._encoded.pop(lot.number), places, self._part)
        counters[NUM_STEPS] += lot.stop - lot.start
        counters[NUM_ITEMS] += lot.stop - lot.start

    def close(self) -> None:
        """Close the files."""
        if self._part is not None:
            self._part.close()


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
        progress: see `stepwell.progress.make_bar`.
        start_method: of the processes.

    Raises:
        WorkerError: a sample that could not be written, or a worker that was killed.
        FormatError: a unit that fits no page.
        DiskFullError: no space.
    """
    cursor = PageCursor(file.layout.pages_start, file.layout.header.page_size)
    job = _LayingJob(source, file)
    try:
        run_chunks(
            job,
            lots,
            workers=workers,
            total=file.layout.header.num_samples,
            unit="samples",
            progress=progress,
            start_method=start_method,
            place=lambda measure: measure.place(cursor),
        )
    finally:
        job.close()
    file.finish(cursor.stop if cursor.stop > cursor.start else file.layout.rows_stop)
