"""Samples become bytes in many processes and get their places in one: the file is the same for every number of them.

::

    parent    lot 0, lot 1, ...  ──────────────> place them in order: PageCursor ──────────────> finish the file
                   │                                ^               │
                  Lot                        Measure: sizes       places
                   v                                │               v
    worker    Lots.encode: bytes are kept  ─────────┘     Lots.write: straight into the file

All bytes of a sample lie on one page. So the cursor places units, a sample's regions or a run of rows that many samples
share; a unit that does not fit into the rest of a page begins the next one.

Until all of it is on the disk the file is hidden beside its target, and no reader takes it for whole::

    data/
      .train.beton.7f3a91bc.partial/
        file           header with table_ptr 0, rows, pages: written by any number of processes
        table          the allocation table, until it is known where the pages end
      train.beton      the file, with the table appended and table_ptr set last; by one rename
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import Encoder
from stepwell.beton.layout import ALLOCATION_DTYPE, BetonLayout, FieldDescriptor, Header, row_dtype
from stepwell.errors import FormatError
from stepwell.files.local_files import sync_file
from stepwell.recorders.chunks import (
    ITEM,
    NUM_BYTES,
    NUM_ITEMS,
    NUM_STEPS,
    StartMethod,
    Workers,
    num_workers,
    run_chunks,
)
from stepwell.sizes import parse_bytes
from stepwell.store.layout import BUILT_FILE, built_file

__all__ = [
    "MAX_PAGE_BYTES",
    "FilePart",
    "Lot",
    "Lots",
    "Measure",
    "PageCursor",
    "Target",
    "UnfinishedFile",
    "aligned",
    "check_alignment",
    "check_page_size",
    "too_large",
    "unfinished_file",
]

MIN_PAGE_BYTES = 1 << 16
MAX_PAGE_BYTES = 1 << 31
COPY_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Lot:
    """Consecutive samples; lots are placed in the order of their numbers."""

    number: int
    start: int
    stop: int
    # lots of one home are encoded by one worker, in order; None: by any
    home: int | None = None


class Measure(Protocol):
    """The sizes of a lot that is encoded."""

    def place(self, cursor: PageCursor) -> Any:
        """Return the places of its parts; called lot after lot, in the parent."""


class Lots(Protocol):
    """The source of a file's samples, sent to each worker once, by pickle."""

    noun: str

    def encode(self, lot: Lot, at: Callable[[int], None]) -> tuple[Any, Measure]:
        """Return a lot's bytes, which stay in the worker, and its measure; ``at`` gets each sample's number."""

    def write(self, lot: Lot, encoded: Any, places: Any, part: FilePart) -> int:
        """Write a lot; returns the bytes."""


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


class Target:
    """The file to write, and how; see `stepwell.beton.write_beton`."""

    def __init__(  # noqa: PLR0917
        self,
        path: str | os.PathLike[str],
        page_size: int,
        align: int = 1,
        workers: Workers = None,
        progress: bool | None = None,
        replaces: bool = False,
        start_method: StartMethod = "spawn",
    ) -> None:
        self.path, self.page_size, self.align = path, page_size, align
        num_workers(workers)
        self.workers, self.progress = workers, progress
        self.replaces, self.start_method = replaces, start_method

    def lay(self, source: Lots, lots: Sequence[Lot], encoders: Mapping[str, Encoder]) -> None:
        """Write lots, which begin with sample 0, into the file."""
        fields = tuple(encoder.descriptor(name) for name, encoder in encoders.items())
        number = max(lot.stop for lot in lots)
        with unfinished_file(self.path, fields, self.page_size, number, replaces=self.replaces) as file:
            cursor = PageCursor(file.layout.pages_start, self.page_size)
            job = _LayingJob(source, file)
            try:
                run_chunks(
                    job,
                    lots,
                    workers=self.workers,
                    total=number,
                    unit="samples",
                    progress=self.progress,
                    start_method=self.start_method,
                    target=Path(self.path).parent,
                    place=lambda measure: measure.place(cursor),
                )
            finally:
                job.close()
            file.finish(cursor.stop if cursor.stop > cursor.start else file.layout.rows_stop)


class PageCursor:
    """Where the next byte of data goes."""

    def __init__(self, start: int, page_size: int) -> None:
        self.start, self.page_size = start, page_size
        self._next = start

    @property
    def room(self) -> int:
        """Bytes left on the page."""
        return -self._next % self.page_size or self.page_size

    @property
    def stop(self) -> int:
        """The end of the last page in use."""
        return -(-self._next // self.page_size) * self.page_size

    def take(self, num_bytes: int) -> int:
        """Return the place of a unit of ``num_bytes``, at most a page: on this page, or at the front of the next."""
        if num_bytes > self.room:
            self.turn()
        place = self._next
        self._next += num_bytes
        return place

    def turn(self) -> None:
        """Go to the front of the next page."""
        self._next += -self._next % self.page_size

    def take_all(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of units that follow each other."""
        ends = np.cumsum(sizes)
        places = ends - sizes
        done = 0
        while done < len(sizes):
            before = int(places[done])
            fitting = int(np.searchsorted(ends, before + self.room, side="right"))
            if fitting <= done:
                self.turn()
                continue
            places[done:fitting] += self._next - before
            self._next += int(ends[fitting - 1]) - before
            done = fitting
        return places


def aligned(sizes: Any, alignment: int) -> Any:
    """Return sizes of regions rounded up to a multiple, at least a byte each, so that no two share a place."""
    return -(-np.maximum(sizes, 1) // alignment) * alignment


def check_page_size(page_size: int | str) -> int:
    """Return a page size in bytes."""
    found = parse_bytes("page_size", page_size, error=FormatError)
    if found & (found - 1) or not MIN_PAGE_BYTES <= found <= MAX_PAGE_BYTES:
        raise FormatError(
            f"page_size={page_size!r} is {found} bytes. Allowed: powers of two from {MIN_PAGE_BYTES} to "
            f"{MAX_PAGE_BYTES}; FFCV's own writer begins at {1 << 21}."
        )
    return found


def check_alignment(align: int, page_size: int) -> int:
    """Return an alignment of regions in bytes; FormatError unless it is a power of two of at most a page."""
    if isinstance(align, bool) or not isinstance(align, int) or align < 1 or align & (align - 1) or align > page_size:
        raise FormatError(f"align={align!r}. Allowed: powers of two from 1 to the page size, {page_size}.")
    return align


def too_large(what: str, parts: str, num_bytes: int, page_size: int) -> FormatError:
    """Return the error for a unit that fits no page."""
    needed = 1 << (num_bytes - 1).bit_length()
    cure = (
        f"Give page_size={needed}, or more."
        if needed <= MAX_PAGE_BYTES
        else f"The largest page has {MAX_PAGE_BYTES} bytes: make it smaller."
    )
    return FormatError(
        f"{what} has {num_bytes} bytes ({parts}), and all that belongs to a sample lies on one page of {page_size} "
        f"bytes. {cure}"
    )


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """The files of a ``.beton`` file that is being written."""

    partial: str
    table: str
    layout: BetonLayout

    def finish(self, stop: int) -> None:
        """Complete the hidden file."""
        header = replace(self.layout.header, table_ptr=stop)
        with Path(self.table).open("rb") as source, Path(self.partial).open("r+b") as target:
            os.ftruncate(target.fileno(), stop)
            target.seek(stop)
            while data := source.read(COPY_BYTES):
                target.write(data)
            target.flush()
            # where the header is on the disk, so is the rest
            sync_file(target.fileno())
            os.pwrite(target.fileno(), header.to_bytes(), 0)
        Path(self.table).unlink()


class FilePart:
    """What one process writes of an `UnfinishedFile`."""

    def __init__(self, file: UnfinishedFile) -> None:
        self._layout = file.layout
        self._data = os.open(file.partial, os.O_WRONLY | os.O_CLOEXEC)
        self._table = os.open(file.table, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, ptr: int, data: Any) -> None:
        """Write bytes at a place of the file."""
        _write_all(self._data, data, ptr)

    def write_samples(self, first: int, rows: npt.NDArray[Any], table: npt.NDArray[Any]) -> None:
        """Write what is kept of samples."""
        _write_all(self._data, rows.tobytes(), self._layout.rows_start + first * rows.itemsize)
        if table.size:
            _write_all(self._table, table.tobytes(), first * table.shape[1] * ALLOCATION_DTYPE.itemsize)

    def close(self) -> None:
        """Close the files."""
        os.close(self._data)
        os.close(self._table)


@contextmanager
def unfinished_file(
    path: str | os.PathLike[str],
    fields: tuple[FieldDescriptor, ...],
    page_size: int,
    num_samples: int,
    *,
    replaces: bool,
    custom: Mapping[str, Any] | None = None,
) -> Iterator[UnfinishedFile]:
    """Yield a file with header and descriptors; it takes its place at the end, if it was finished, or is gone.

    What rows hold of fields that are not built in is in ``custom``, by name; see `row_dtype`.
    """
    layout = BetonLayout(Header(len(fields), page_size, num_samples, 0), fields, row_dtype(fields, custom))
    with built_file(path, replaces=replaces) as hidden:
        file = UnfinishedFile(f"{hidden}/{BUILT_FILE}", f"{hidden}/table", layout)
        Path(file.partial).write_bytes(layout.to_bytes())
        Path(file.table).touch()
        yield file


def _write_all(descriptor: int, data: Any, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
