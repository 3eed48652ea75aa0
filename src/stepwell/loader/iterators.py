"""One iteration of a loader: what a for loop runs over."""

from __future__ import annotations

import os
import threading
import weakref
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
        cursor: moved with every batch that a consumer gets.

    Notes:
        For the process that made it. Several threads may take from it: each batch goes to one of them, and all of them
        end. Its own threads end at the last batch, at an exception, with `close`, when the iterator is dropped, and
        when the interpreter exits. Works as a context manager that closes.
    """

    __slots__ = ("__weakref__", "_cursor", "_failure", "_is_closed", "_pid", "_source", "_turn")

    def __init__(self, source: Source, cursor: Cursor) -> None:
        self._source = source
        self._cursor = cursor
        self._is_closed = False
        self._pid = os.getpid()
        # of the thread that takes; one that closes in the midst of it, in a signal handler, is the same
        self._turn = threading.RLock()
        # the thread that got the error which ended the iteration, and the error's text
        self._failure: tuple[weakref.ref[threading.Thread], str] | None = None

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            LoaderError: the batch could not be built, or one that another thread asked for; or this is a forked child
                of the process that made the iterator.
        """
        if os.getpid() != self._pid:
            raise LoaderError(
                f"this iterator is of process {self._pid} and was used in process {os.getpid()}, a fork of it. "
                "Call iter(loader) in the process that takes the batches."
            )
        cursor = self._cursor
        with self._turn:
            try:
                ticket, batch = self._source.take()
            except StopIteration:
                if self._failure is not None:
                    self._tell_others(*self._failure)
                cursor.is_done = not self._is_closed
                raise
            except BaseException as error:
                # a batch that failed, or was interrupted by Ctrl-C, is not skipped: the iteration is over
                self._failure = weakref.ref(threading.current_thread()), f"{type(error).__name__}: {error}"
                self.close()
                raise
            cursor.taken = ticket
            return batch

    def close(self) -> None:
        """End the iteration early: threads end, later `next` calls stop, as do those that wait in other threads."""
        if os.getpid() != self._pid:
            # nothing of it runs in a fork, and its lock may have been held
            return
        if not self._cursor.is_done:
            self._is_closed = True
        self._source.interrupt()
        with self._turn:
            self._source.close()

    @staticmethod
    def _tell_others(thread: weakref.ref[threading.Thread], text: str) -> None:
        """Raise in the threads that did not get the error: for them the batches are not at their end, either."""
        if thread() is not threading.current_thread():
            raise LoaderError(f"the iteration ended in another thread that takes from it: {text}")

    def __enter__(self) -> BatchIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
