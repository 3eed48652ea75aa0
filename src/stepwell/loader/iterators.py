"""One iteration of a loader: what a for loop runs over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType

from stepwell.errors import LoaderError
from stepwell.loader.batch import Batch
from stepwell.loader.engine import Source
from stepwell.loader.plans import Cursor

__all__ = ["BatchIterator"]


class BatchIterator(Iterator[Batch]):
    """One iteration of a loader.

    Args:
        source: gives tickets with their batches, in order.
        cursor: moved with every batch that the consumer gets.

    Notes:
        For one consumer in the process that made it. Its threads end at the last batch, at an exception, with `close`,
        when the iterator is dropped, and when the interpreter exits. Works as a context manager that closes.
    """

    __slots__ = ("__weakref__", "_cursor", "_is_closed", "_pid", "_source")

    def __init__(self, source: Source, cursor: Cursor) -> None:
        self._source = source
        self._cursor = cursor
        self._is_closed = False
        self._pid = os.getpid()

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            LoaderError: the batch could not be built; or this is a forked child of the process that made the iterator.
        """
        if os.getpid() != self._pid:
            raise LoaderError(
                f"this iterator is of process {self._pid} and was used in process {os.getpid()}, a fork of it. "
                "Call iter(loader) in the process that takes the batches."
            )
        cursor = self._cursor
        try:
            ticket, batch = self._source.take()
        except StopIteration:
            cursor.is_done = not self._is_closed
            raise
        except BaseException:
            # a batch that failed, or was interrupted by Ctrl-C, is not skipped: the iteration is over
            self.close()
            raise
        cursor.taken = ticket
        return batch

    def close(self) -> None:
        """End the iteration early: threads end, later `next` calls stop."""
        if not self._cursor.is_done:
            self._is_closed = True
        self._source.close()

    def __enter__(self) -> BatchIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
