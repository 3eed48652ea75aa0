"""FFCV's writer by its name: whole files, from datasets and from WebDataset shards.

::

    fields that are built in    values ──> Field.encoder ──> N processes, one file for every number of them
    any of a class of one's own values ──> Field.encode(row, value, malloc) ──> Allocator, in this process

A class of one's own may keep a ptr and use it for other samples: so its places must be final when it gets them, and
samples are encoded one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import check_names
from stepwell.beton.laying import FilePart, PageCursor, Target, check_page_size, too_large, unfinished_file
from stepwell.beton.layout import ALLOCATION_DTYPE, FieldDescriptor, FieldType
from stepwell.beton.sample_lots import check_not_empty, values_of, write_indexed, write_streams
from stepwell.errors import MissingDependencyError, SchemaError, StepError, WorkerError
from stepwell.ffcv.fields import FIELD_OF_TYPE, Field
from stepwell.files.addresses import local_path
from stepwell.recorders.chunks import Failure, num_workers

__all__ = ["DatasetWriter"]


class DatasetWriter:
    """Write a dataset as a ``.beton`` file, which FFCV's and stepwell's loaders read.

    Args:
        fname: path of the file; one that is there is replaced, when the new one is complete.
        fields: name to field, in the order of a sample's values; names of at most 16 ASCII characters.
        page_size: in bytes, a power of two; no sample is larger.
        num_workers: processes; below 1: one a processor. The file is the same for every number.

    Raises:
        SchemaError: a name or field that a file cannot hold.
        FormatError: a page size that is not allowed.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.ffcv.fields import IntField, NDArrayField
        >>> path = tempfile.mkdtemp() + "/squares.beton"
        >>> writer = DatasetWriter(path, {"number": IntField(), "square": NDArrayField(np.dtype("int64"), (1,))},
        ...                        num_workers=1)
        >>> writer.from_indexed_dataset([(i, np.array([i * i])) for i in range(20)])

    Notes:
        Workers are forked, as FFCV's are, so that a dataset need not be picklable: call it before threads are begun. A
        worker holds some MiB of samples. What goes wrong with a sample is raised here, with its number and the worker's
        traceback; Ctrl-C ends the workers; a writer that is killed leaves no file.
    """

    def __init__(
        self,
        fname: str | os.PathLike[str],
        fields: Mapping[str, Field],
        page_size: int = 8 << 20,
        num_workers: int = -1,
    ) -> None:
        check_names(fields, "another key in fields")
        local_path(fname)
        for name, field in fields.items():
            if not isinstance(field, Field):
                found = f"{type(field).__module__}.{type(field).__qualname__}"
                raise SchemaError(
                    f"field {name!r} is a {found}. Allowed: those of stepwell.ffcv.fields, and subclasses."
                )
        self._fname, self._fields = fname, dict(fields)
        self._own = [name for name, field in fields.items() if _type_of(field) == FieldType.CUSTOM]
        self._encoders = {} if self._own else {name: field.encoder for name, field in fields.items()}
        self._page_size = check_page_size(page_size)
        self._workers = None if num_workers < 1 else num_workers

    def from_indexed_dataset(
        self,
        dataset: Any,
        indices: Sequence[int] | None = None,
        chunksize: int = 100,
        shuffle_indices: bool = False,
    ) -> None:
        """Write a dataset that has ``len()`` and ``dataset[i]``.

        Args:
            dataset: of tuples of values in the fields' order, or mappings by name.
            indices: only these samples, in this order.
            chunksize: samples that a worker encodes at a time; fewer where they are large.
            shuffle_indices: in random order, drawn from numpy's global generator, as FFCV does.

        Raises:
            WorkerError: a sample that could not be read or written, or a worker that was killed.
            StepError: no samples, or no such dataset.
            FormatError: a sample that is larger than a page.
            DiskFullError: no space; nothing is left.
        """
        if chunksize < 1:
            raise StepError(f"chunksize={chunksize}. Allowed: 1 and more.")
        chosen = None if indices is None else _indices(indices)
        if shuffle_indices:
            chosen = np.random.permutation(len(dataset) if chosen is None else chosen)
        if not self._own:
            write_indexed(self._target(), dataset, self._encoders, indices=chosen, lot_samples=chunksize)
            return
        places = range(len(dataset)) if chosen is None else chosen.tolist()
        self._write_allocated((dataset[place] for place in places), len(places))

    def from_webdataset(self, shards: Sequence[str], pipeline: Callable[[Any], Any]) -> None:
        """Write the samples of WebDataset shards; needs the ``webdataset`` package, which the pipeline speaks to.

        Each shard is read twice, as by FFCV: its samples are counted first.

        Args:
            shards: paths or addresses.
            pipeline: what is done to a ``webdataset.WebDataset`` of a shard; gives tuples in the fields' order.

        Raises:
            WorkerError: a sample that could not be read or written, or a worker that was killed.
            StepError: no samples.
            DiskFullError: no space; nothing is left.
            MissingDependencyError: webdataset is not installed.
        """
        source = _Shards([str(shard) for shard in shards], pipeline)
        with ThreadPoolExecutor(min(len(source.names), num_workers(self._workers)) or 1) as pool:
            counts = list(pool.map(source.count, range(len(source.names))))
        if not self._own:
            write_streams(self._target(), source, counts, source.names, self._encoders)
            return
        self._write_allocated((sample for shard in range(len(counts)) for sample in source(shard)), sum(counts))

    def _write_allocated(self, samples: Iterable[Any], number: int) -> None:
        """Write samples whose fields ask for the places of their bytes."""
        check_not_empty(number)
        described = tuple(_descriptor(name, field) for name, field in self._fields.items())
        types = {name: np.dtype(field.metadata_type) for name, field in self._fields.items()}
        target = unfinished_file(self._fname, described, self._page_size, number, replaces=True, custom=types)
        with target as file, closing(FilePart(file)) as part:
            allocator = Allocator(PageCursor(file.layout.pages_start, self._page_size), part)
            rows = np.zeros(number, file.layout.rows)
            names, given = list(self._fields), iter(samples)
            for sample in range(number):
                try:
                    values = dict(zip(names, values_of(next(given), names), strict=True))
                    row = rows[sample : sample + 1]
                    allocator.encode(sample, partial(self._encode, row, values, allocator))
                except Exception as error:
                    raise Failure.of(sample, error, "sample").to_error() from error
            stop = allocator.finish(file.layout.rows_stop)
            part.write_samples(0, rows, np.empty((0, 0)))
            Path(file.table).write_bytes(np.array(allocator.allocations, ALLOCATION_DTYPE).tobytes())
            file.finish(stop)

    def _encode(self, row: npt.NDArray[Any], values: Mapping[str, Any], allocator: Allocator) -> None:
        for name, field in self._fields.items():
            try:
                field.encode(row[name], values[name], allocator.malloc)
            except StepError as error:
                raise StepError(f"field {name!r}: {error}") from error

    def _target(self) -> Target:
        return Target(self._fname, self._page_size, workers=self._workers, replaces=True, start_method="fork")


# what decides of a field's bytes in the file
FORMAT = ("metadata_type", "to_binary", "from_binary", "encode", "encoder")


def _type_of(field: Field) -> int:
    """Return the type that a file says: a custom one where a class of one's own says what bytes there are."""
    found = int(FieldType.CUSTOM)
    for type_id, built_in in FIELD_OF_TYPE.items():
        same = all(getattr(type(field), each) is getattr(built_in, each) for each in FORMAT)
        if isinstance(field, built_in) and same:
            found = int(type_id)
    return found


def _descriptor(name: str, field: Field) -> FieldDescriptor:
    """Return what a file says of a field."""
    return FieldDescriptor(_type_of(field), name, field.to_binary()[0].tobytes())


class _PageIsFull(MemoryError):
    """A sample has regions on a page where the next one does not fit."""


class Allocator:
    """Where regions go, as FFCV's fields ask for it: ``malloc(size)`` is final at once.

    Attributes:
        allocations: (sample, ptr, size) of each region; a field that shares one between samples may append to it.
        current_sample_id: the sample that is encoded.
    """

    def __init__(self, cursor: PageCursor, part: FilePart) -> None:
        self.allocations: list[tuple[int, int, int]] = []
        self.current_sample_id = 0
        self._cursor, self._part = cursor, part
        self._page = np.zeros(cursor.page_size, np.uint8)
        self._page_start = cursor.start
        self._first = 0

    def malloc(self, size: int) -> tuple[int, npt.NDArray[np.uint8]]:
        """Return the place of a region, and its bytes to write to; a region of no bytes has a place of its own, too.

        Raises:
            FormatError: larger than a page.
        """
        size = int(size)
        if size > self._cursor.page_size:
            raise too_large(f"sample {self.current_sample_id}", f"one region of {size}", size, self._cursor.page_size)
        if max(size, 1) > self._cursor.room and any(each[0] == self.current_sample_id for each in self._since_turn):
            raise _PageIsFull
        place = self._cursor.take(max(size, 1))
        if place - self._page_start >= self._cursor.page_size:
            self._flush(place)
        self.allocations.append((self.current_sample_id, place, size))
        start = place - self._page_start
        return place, self._page[start : start + size]

    def encode(self, sample: int, write: Callable[[], None]) -> None:
        """Write a sample, whose regions all lie on one page: on this one, or anew on the next.

        What it has left on this page keeps its place in the table, since a field may have remembered it; it counts for
        the sample before.

        Raises:
            FormatError: its regions do not fit a page together.
        """
        self.current_sample_id = sample
        self._first = len(self.allocations)
        try:
            write()
            return
        except _PageIsFull:
            left = [(max(sample - 1, 0), ptr, size) for _, ptr, size in self._since_turn]
        self.allocations[self._first :] = left
        self._first = len(self.allocations)
        self._cursor.turn()
        try:
            write()
        except _PageIsFull:
            total = self._cursor.page_size + 1
            raise too_large(f"sample {sample}", "all its regions", total, self._cursor.page_size) from None

    def finish(self, rows_stop: int) -> int:
        """Write the last page; returns where the pages end."""
        if self._cursor.stop == self._cursor.start:
            return rows_stop
        self._flush(self._cursor.stop)
        return self._cursor.stop

    @property
    def _since_turn(self) -> list[tuple[int, int, int]]:
        """The regions of the sample."""
        return self.allocations[self._first :]

    def _flush(self, place: int) -> None:
        """Write the page, and begin that of a place."""
        self._part.write(self._page_start, self._page)
        self._page[:] = 0
        self._page_start = place - (place - self._page_start) % self._cursor.page_size


class _Shards:
    """The samples of each shard, by its number."""

    def __init__(self, names: list[str], pipeline: Callable[[Any], Any]) -> None:
        self.names, self._pipeline = names, pipeline

    def __call__(self, number: int) -> Iterator[Any]:
        try:
            webdataset = import_module("webdataset")
        except ImportError as error:
            raise MissingDependencyError.of("webdataset", "webdataset") from error
        return iter(self._pipeline(webdataset.WebDataset(self.names[number], shardshuffle=False)))

    def count(self, number: int) -> int:
        try:
            return sum(1 for _ in self(number))
        except MissingDependencyError:
            raise
        except Exception as error:
            raise WorkerError(f"the samples of {self.names[number]} cannot be counted: {error}") from error


def _indices(indices: Sequence[int]) -> Any:
    found = np.asarray(indices)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise StepError(f"indices of dtype {found.dtype} and shape {found.shape}. Allowed: whole numbers, [n].")
    return found.astype(np.int64)
