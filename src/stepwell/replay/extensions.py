"""Extensions: code of the user that a table calls after what it did, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from stepwell.replay.contents import Sample
    from stepwell.replay.tables import Table

__all__ = ["Extension", "Notices"]

Keys = npt.NDArray[np.uint64]


class Extension:
    """What a table calls after an insert, a sample, an update, a removal and a reset; override what is wanted.

    Example:
        >>> class Counting(Extension):
        ...     num = 0
        ...
        ...     def on_insert(self, table, keys, priorities):
        ...         self.num += len(keys)

    Notes:
        Called once a batch, in the thread that did it, after the table has changed and outside its lock: an extension
        may call the table, or another one. An exception reaches who called the table, with a note that says where it
        comes from; the table has done what it was asked, and the other extensions are called.
    """

    def on_insert(self, table: Table, keys: Keys, priorities: npt.NDArray[np.float64]) -> None:
        """Take note of items that were put in; some may have been removed again by the same batch."""

    def on_sample(self, table: Table, sample: Sample) -> None:
        """Take note of items that were drawn."""

    def on_update(self, table: Table, keys: Keys, priorities: npt.NDArray[np.float64]) -> None:
        """Take note of priorities that were set; keys of items that are gone are left out."""

    def on_remove(self, table: Table, keys: Keys) -> None:
        """Take note of items that are gone: deleted, removed to make room, drawn for the last time, or evicted."""

    def on_reset(self, table: Table) -> None:
        """Take note that the table was emptied."""


class Notices:
    """What the extensions of a table have still to be told.

    Notes:
        `add` is called under the table's lock, `deliver` outside it.
    """

    __slots__ = ("_waiting", "extensions")

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self.extensions = tuple(extensions)
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []

    def __bool__(self) -> bool:
        return bool(self.extensions)

    def add(self, event: str, *arguments: Any) -> None:
        """Keep a call for later."""
        if self.extensions:
            self._waiting.append((event, arguments))

    def forget(self) -> None:
        """Tell nothing of what waits."""
        self._waiting.clear()

    def deliver(self, table: Table) -> None:
        """Make the calls that wait, in order; raises the first error when all are made."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        failed: Exception | None = None
        for event, arguments in waiting:
            for extension in self.extensions:
                error = _call(getattr(extension, event), table, arguments)
                if error is not None:
                    error.add_note(
                        f"Raised by {type(extension).__name__}.{event}, an extension of table {table.name!r}. The "
                        "table is whole: it had done what it was asked."
                    )
                    failed = failed or error
        if failed is not None:
            raise failed


def _call(method: Callable[..., None], table: Table, arguments: tuple[Any, ...]) -> Exception | None:
    try:
        method(table, *arguments)
    except Exception as error:
        return error
    return None
