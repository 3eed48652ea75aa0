"""A ``.beton`` file while it is written: hidden beside its target, and no reader takes it for whole.

::

    data/
      .train.beton.7f3a91bc.partial   header with table_ptr 0, rows, pages: written by any number of processes
      .train.beton.7f3a91bc.table     the allocation table, until it is known where the pages end
      train.beton                     the first, with the second appended and table_ptr set last; by one rename
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from stepwell.beton.layout import ALLOCATION_DTYPE, BetonLayout, FieldDescriptor, Header, row_dtype
from stepwell.errors import DiskFullError, StepwellError, StoreExistsError
from stepwell.files.addresses import local_path
from stepwell.files.file_locks import FileLock
from stepwell.store.beneath import FULL
from stepwell.store.layout import new_tag, sync_directory

__all__ = ["FilePart", "UnfinishedFile", "unfinished_file", "write_error"]

PARTIAL, TABLE = ".partial", ".table"
COPY_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """The files of a ``.beton`` file that is being written."""

    path: str
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
            # who finds the header finds all that it speaks of
            os.fsync(target.fileno())
            os.pwrite(target.fileno(), header.to_bytes(), 0)
            os.fsync(target.fileno())


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
    target = Path(local_path(path)).absolute()
    target = target.resolve() if target.is_symlink() else target
    layout = BetonLayout(Header(len(fields), page_size, num_samples, 0), fields, row_dtype(fields))
    _check_free(target, replaces)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target)
    stem = str(target.with_name(f".{target.name}.{new_tag()}{new_tag()}"))
    file = UnfinishedFile(str(target), stem + PARTIAL, stem + TABLE, layout)
    try:
        with _made(file.partial), _made(file.table):
            Path(file.partial).write_bytes(layout.to_bytes())
            yield file
            _check_free(target, replaces)
            Path(file.partial).replace(target)
            sync_directory(str(target.parent))
    except OSError as error:
        raise write_error(error, str(target)) from error
    finally:
        for left in (file.partial, file.table):
            Path(left).unlink(missing_ok=True)


def write_error(error: OSError, path: str) -> OSError:
    """Return DiskFullError for an error of a full disk or quota, any other as it is."""
    if error.errno not in FULL or isinstance(error, StepwellError):
        return error
    full = DiskFullError(f"no space left to write {path}; nothing of it is left. Make room, and write it again.")
    full.errno = error.errno
    return full


def _made(path: str) -> FileLock:
    """Make a file and hold its lock, which tells that its writer lives."""
    return FileLock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _check_free(target: Path, replaces: bool) -> None:
    if target.is_dir() or (target.exists() and not replaces):
        raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")


def _remove_left(target: Path) -> None:
    for entry in list(target.parent.iterdir()):
        if not (entry.name.startswith(f".{target.name}.") and entry.suffix in (PARTIAL, TABLE)):
            continue
        with suppress(FileNotFoundError, IsADirectoryError, BlockingIOError):
            descriptor = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
            with FileLock(descriptor, is_waiting=False):
                entry.unlink()


def _write_all(descriptor: int, data: Any, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
