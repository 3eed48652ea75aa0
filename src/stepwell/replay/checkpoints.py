"""Checkpoints: a store and its tables as they are now, in another directory.

::

    run.ckpt/
      store.json, segments/ ...     a store of its own: hard links of what is sealed, a copy of what is recorded now
      tables/
        replay.npz                  a table: its arguments, counts, items, and what it had seen of the store

It appears whole, under a name that nothing had, or not at all; no other file is touched. Sealed segments cost a link
each, whatever their size; tables a few dozen bytes an item.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
import threading
import warnings
import weakref
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError, StoreExistsError, StoreNotFoundError, TableError
from stepwell.files.addresses import local_path
from stepwell.replay.table_states import json_of, text_array
from stepwell.replay.tables import Table
from stepwell.store import open as open_store
from stepwell.store.beneath import read_again
from stepwell.store.layout import link_file, replace_file
from stepwell.store.rewrite import checkpoint_store

if TYPE_CHECKING:
    from stepwell.replay.tables import Table
    from stepwell.store import Store
    from stepwell.store.store import Mode

__all__ = ["StateSaver", "checkpoint", "load", "read_arrays", "restore", "resume", "save", "save_state"]

TABLES = "tables"
SUFFIX = ".npz"
Arrays = dict[str, npt.NDArray[Any]]


def checkpoint(path: str | os.PathLike[str], tables: Sequence[Table]) -> Path:
    """Write a store and its tables as they are now; writers and learners may go on meanwhile.

    Args:
        path: of a directory to make; nothing may be there.
        tables: of one store, with different names.

    Returns:
        The absolute path: of a store that `stepwell.open` opens, and of tables that `restore` brings back.

    Raises:
        TableError: no tables, tables of several stores, or two of one name.
        StoreExistsError: something is at the path.

    Notes:
        Tables stand still while their items are copied (a few milliseconds for 100,000), not while the store is.
    """
    _check(tables)
    states = _states(tables)

    def add(target: str) -> None:
        os.mkdir(f"{target}/{TABLES}")  # noqa: PTH102
        for name, arrays in states.items():
            np.savez(f"{target}/{TABLES}/{name}{SUFFIX}", allow_pickle=False, **arrays)

    return checkpoint_store(tables[0].store, path, add=add)


def restore(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    mode: Mode = "a",
    names: Iterable[str] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Table]:
    """Return the tables of a checkpoint by name, over the checkpoint's store or a copy of it.

    Keys, items, their order, priorities and times sampled, counts, limiters and what waited are as they were. Steps
    that the tables had not seen by then become items when they first follow the store.

    Args:
        path: of the checkpoint.
        to: a directory to make, a checkpoint of the checkpoint: writers and tables go on in it, and the one at ``path``
            stays as it is. Default: they go on in the checkpoint, which changes as they do.
        mode: how the store is opened.
        names: of the tables; default all.
        changes: by table, arguments of `Table` that shall be others than they were; extensions are in no checkpoint.

    Raises:
        StoreNotFoundError: no checkpoint there.
        StoreExistsError: something is at ``to``.
        TableError: no table of such a name, or arguments that cannot be.
        CorruptSegmentError: a damaged file.
    """
    directory = Path(path) / TABLES
    if not directory.is_dir():
        raise StoreNotFoundError(f"no tables at {path}: there is no {directory}. Make them with table.checkpoint().")
    there = {file.name.removesuffix(SUFFIX): file for file in sorted(directory.glob(f"*{SUFFIX}"))}
    changes = changes or {}
    for name in [*(names or ()), *changes]:
        if name not in there:
            raise TableError(f"no table {name!r} in {path}. It has {', '.join(map(repr, there)) or 'none'}.")
    store = open_store(path if to is None else _copied(path, to), mode=mode)
    return {
        name: Table.from_state(store, read_arrays(there[name]), **changes.get(name, {}))
        for name in (there if names is None else names)
    }


def save(path: str | os.PathLike[str], tables: Sequence[Table]) -> Path:
    """Write a store and its tables to a directory, as `checkpoint`, or to one file when ``path`` ends with ``.tar``.

    Raises:
        StoreExistsError: something is at the path.
    """
    target = Path(local_path(path)).absolute()
    if target.suffix != ".tar":
        return checkpoint(target, tables)
    if target.exists():
        raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        whole = checkpoint(Path(scratch, "checkpoint"), tables)
        file = Path(scratch, "file")
        with tarfile.open(file, "w") as archive:
            archive.add(whole, arcname=".")
        # unlike a rename, a link never replaces what has come there meanwhile
        try:
            os.link(file, target)
        except FileExistsError:
            raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.") from None
    return target


def load(path: str | os.PathLike[str], to: str | os.PathLike[str] | None = None, **options: Any) -> dict[str, Table]:
    """Return the tables that `save` wrote.

    Args:
        path: a directory or a ``.tar`` file.
        to: a directory to make, for what is in a ``.tar`` file; default its path without the suffix. Of a directory:
            as of `restore`.
        options: as of `restore`.
    """
    source = Path(path).absolute()
    if source.suffix != ".tar":
        return restore(source, to=to, **options)
    target = source.with_suffix("") if to is None else Path(local_path(to)).absolute()
    if target.exists():
        raise StoreExistsError(f"{target} is there already. Give another directory: load({str(path)!r}, to=...).")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        whole = Path(scratch, "whole")
        try:
            with tarfile.open(source) as archive:
                archive.extractall(whole, filter="data")
        except tarfile.TarError as error:
            raise CorruptSegmentError(f"{source} is not a whole tar file: {error}.") from error
        whole.rename(target)
    return restore(target, **options)


def _check(tables: Sequence[Table]) -> None:
    if not tables:
        raise TableError("no tables. Use store.checkpoint(path) for a store alone.")
    if len({table.store.path for table in tables}) > 1:
        raise TableError("the tables are of several stores. Make a checkpoint of each store.")
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise TableError(f"two tables of one name among {names}. Give each its own: Table(store, name=...).")


def _copied(path: str | os.PathLike[str], to: str | os.PathLike[str]) -> Path:
    def add(target: str) -> None:
        os.mkdir(f"{target}/{TABLES}")  # noqa: PTH102
        for file in sorted((Path(path) / TABLES).glob(f"*{SUFFIX}")):
            link_file(str(file), f"{target}/{TABLES}/{file.name}")

    return checkpoint_store(open_store(path), to, add=add)


def _states(tables: Sequence[Table]) -> dict[str, Arrays]:
    """Return the states of tables at one moment."""
    with contextlib.ExitStack() as stack:
        # in one order, so that two checkpoints at once do not wait for each other for ever
        for table in sorted(set(tables), key=id):
            stack.enter_context(table.lock)
        return {table.name: table.state_arrays() for table in tables}


def read_arrays(file: Path) -> Arrays:
    """Return the arrays of a file that ``np.savez`` wrote; CorruptSegmentError when it is damaged."""

    def read() -> Arrays:
        with file.open("rb") as data, np.load(data, allow_pickle=False) as arrays:
            return dict(arrays)

    try:
        return read_again(read)
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise CorruptSegmentError(f"{file} is damaged: {error}.") from error


STORE = "store"


def save_state(table: Table, path: str | os.PathLike[str]) -> Path:
    """Write the state of a table; see `Table.save_state`."""
    target = Path(local_path(path)).absolute()
    with table.lock:
        arrays = table.state_arrays()
    buffer = io.BytesIO()
    arrays[STORE] = text_array(table.store.uuid)
    np.savez(buffer, allow_pickle=False, **arrays)
    replace_file(str(target), buffer.getvalue())
    return target


def resume(store: Store, path: str | os.PathLike[str], **changes: Any) -> Table:
    """Return the table whose state is in a file; see `Table.resume`."""
    from stepwell.replay.tables import Table

    file = Path(path)
    if not file.is_file():
        raise StoreNotFoundError(f"no state of a table at {path}. Make the table by Table(store), and save_state it.")
    arrays = read_arrays(file)
    uuid = json_of(arrays.pop(STORE)) if STORE in arrays else None
    if uuid != store.uuid:
        raise TableError(
            f"{path} is not the state of a table over {store.path}. Open the store that it was saved with, or use "
            "Table.restore for a checkpoint."
        )
    return Table.from_state(store, arrays, **changes)


class StateSaver:
    """Save the state of a table every so many seconds, from a thread; made by `Table.save_state_every`.

    Args:
        table: saved for as long as somebody else holds it.
        path: of the file, replaced whole each time.
        seconds: between the end of one saving and the begin of the next.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.replay import Table
        >>> directory = tempfile.mkdtemp()
        >>> store = stepwell.create(f"{directory}/walk.well", {"action": stepwell.Array()})
        >>> with Table(store).save_state_every(f"{directory}/table.npz", seconds=10.0):
        ...     pass  # train
        >>> Table.resume(store, f"{directory}/table.npz").size
        0

    Notes:
        A saving that fails (a full disk) is a warning, and the file of the one before stays. A forked child saves
        nothing.
    """

    def __init__(self, table: Table, path: str | os.PathLike[str], seconds: float) -> None:
        if not 0 < seconds <= threading.TIMEOUT_MAX:
            raise TableError(f"seconds={seconds!r} must be a number above 0, and at most {threading.TIMEOUT_MAX:.0f}.")
        self._table, self._path = weakref.ref(table), Path(path).absolute()
        self._ends = threading.Event()
        save_state(table, self._path)
        arguments = (self._table, self._path, self._ends, seconds)
        self._thread = threading.Thread(target=_save_again, args=arguments, name="stepwell-table-state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Save a last time, and end the thread. May be called twice."""
        if self._ends.is_set():
            return
        self._ends.set()
        self._thread.join()
        if (table := self._table()) is not None:
            save_state(table, self._path)

    def __enter__(self) -> StateSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _save_again(reference: weakref.ref[Table], path: Path, ends: threading.Event, seconds: float) -> None:
    while not ends.wait(seconds):
        table = reference()
        if table is None:
            return
        try:
            save_state(table, path)
        except StepwellError as error:
            warnings.warn(f"the state of table {table.name!r} was not saved: {error}", RuntimeWarning, stacklevel=2)
        # not kept over the wait: the table goes when nobody else has it
        del table
