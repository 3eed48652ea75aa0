"""A ``.beton`` file while it is written: hidden beside its target, and no reader takes it for whole.

::

    data/
      .train.beton.7f3a91bc.partial/
        file           header with table_ptr 0, rows, pages: written by any number of processes
        table          the allocation table, until it is known where the pages end
      train.beton      the file, with the table appended and table_ptr set last; by one rename
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from stepwell.beton.layout import ALLOCATION_DTYPE, BetonLayout, FieldDescriptor, Header, row_dtype
from stepwell.store.layout import BUILT_FILE, built_file

__all__ = ["FilePart", "UnfinishedFile", "unfinished_file"]

COPY_BYTES = 1 << 24


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
            os.fsync(target.fileno())
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
) -> Iterator[UnfinishedFile]:
    """Yield a file with header and descriptors; it takes its place at the end, if it was finished, or is gone."""
    layout = BetonLayout(Header(len(fields), page_size, num_samples, 0), fields, row_dtype(fields))
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
