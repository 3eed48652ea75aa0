"""The state of a table in one file, so that a learner that died goes on over the live ring.

Unlike a checkpoint it holds no steps: those are in the store, which actors go on writing meanwhile. ::

    ring     | . . . e e e e e e n n n n        saved: items of e, and what went (.) or came (n) since is found
                                                when the table is resumed
"""

from __future__ import annotations

import io
import os
import threading
import warnings
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import StepwellError, StoreNotFoundError, TableError
from stepwell.files.addresses import local_path
from stepwell.replay.checkpoints import read_arrays
from stepwell.replay.table_states import json_of, text_array
from stepwell.store.layout import replace_file

if TYPE_CHECKING:
    from stepwell.replay.tables import Table
    from stepwell.store import Store

__all__ = ["StateSaver", "resume", "save_state"]

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
