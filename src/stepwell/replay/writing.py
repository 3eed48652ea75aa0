"""Writers that wait for tables: an actor that is coupled to its learner.

::

    append(step) ---- do all tables let an item in? ---- yes --> writer.append(step), tables follow
                              '-- no: wait until the learner has drawn enough, or the time is over: RateLimitError

Without it, what a table's limiter does not let in waits in the table, however much it is, and the actor goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from stepwell.replay.limiters import Changes, Waiting, checked_timeout

if TYPE_CHECKING:
    from stepwell.replay.tables import Table
    from stepwell.schema import Schema
    from stepwell.store import Store, VectorWriter, Writer

__all__ = ["TableTarget", "TableVectorWriter", "TableWriter"]


class _WaitingWriter:
    """A writer of any kind, before each step of which tables let an item in."""

    def __init__(
        self, writer: Writer | VectorWriter, tables: Table | Sequence[Table], *, timeout: float | None = None
    ) -> None:
        self._writer: Any = writer
        self._tables: list[Table] = list(tables) if isinstance(tables, Sequence) else [tables]
        checked_timeout(timeout)
        self._timeout = timeout
        self._changes = Changes(threading.Lock())

    def flush(self) -> None:
        """Wait until all that was appended is on the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the writer. May be called twice."""
        self._writer.close()
        self._follow()

    @property
    def schema(self) -> Schema | None:
        """The store's features."""
        found: Schema | None = self._writer.schema
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._writer!r} for {', '.join(table.name for table in self._tables)}>"

    def _follow(self) -> None:
        for table in self._tables:
            table.follow()

    def _wait(self) -> None:
        for table in self._tables:
            if table.can_insert(1):
                continue
            waiting = Waiting(self._changes, self._timeout, partial(_why_waiting, table))
            while not table.can_insert(1):
                waiting.pause()


class TableWriter(_WaitingWriter):
    """A writer that waits while a table lets nothing in.

    Args:
        writer: that writes the steps.
        tables: over the same store, one or several.
        timeout: seconds to wait before each step; None: without end.

    Raises:
        TableError: a time-out that is no number of 0 or more.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.replay import Table
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> table = Table(store)
        >>> with TableWriter(store.writer(), table) as writer:
        ...     for t in range(3):
        ...         _ = writer.append(position=float(t))
        ...     _ = writer.end_episode(terminated=True)
        >>> table.size
        3

    Notes:
        For an actor in a thread of the process that has the tables; the learner is in another thread, or each waits
        for the other for ever. One thread at a time, as writers are. The steps of one call go in together: a table may
        have more waiting than its limiter lets in by what one call brings.
    """

    def __init__(self, writer: Writer, tables: Table | Sequence[Table], *, timeout: float | None = None) -> None:
        super().__init__(writer, tables, timeout=timeout)

    def append(self, step: Mapping[str, Any] | None = None, /, **features: Any) -> int:
        """Store one step once all tables let an item in; see `stepwell.Writer.append`.

        Raises:
            RateLimitError: a table did not in time; nothing was written.
        """
        self._wait()
        step_id: int = self._writer.append(step, **features)
        self._follow()
        return step_id

    def append_batch(self, columns: Mapping[str, Any]) -> int:
        """Store several steps; see `append` and `stepwell.Writer.append_batch`."""
        self._wait()
        step_id: int = self._writer.append_batch(columns)
        self._follow()
        return step_id

    def add_episode(self, columns: Mapping[str, Any], /, **options: Any) -> int:
        """Store a whole episode; see `append` and `stepwell.Writer.add_episode`."""
        self._wait()
        place: int = self._writer.add_episode(columns, **options)
        self._follow()
        return place

    def end_episode(self, **options: Any) -> int:
        """End the open episode, without waiting; see `stepwell.Writer.end_episode`."""
        place: int = self._writer.end_episode(**options)
        self._follow()
        return place

    def discard_episode(self) -> None:
        """Take back the steps since the last end, and their items; see `stepwell.Writer.discard_episode`."""
        self._writer.discard_episode()
        self._follow()


class TableVectorWriter(_WaitingWriter):
    """A vector writer that waits while a table lets nothing in; made by `TableTarget.vector_writer`.

    Notes:
        See `TableWriter`. A vector step goes in whole: tables may have as many more items waiting as it brings.
    """

    def append(self, step: Mapping[str, Any] | None = None, /, **options: Any) -> npt.NDArray[np.int64]:
        """Store one step of each environment once all tables let an item in; see `stepwell.store.VectorWriter.append`.

        Raises:
            RateLimitError: a table did not in time; nothing was written.
        """
        self._wait()
        ids: npt.NDArray[np.int64] = self._writer.append(step, **options)
        self._follow()
        return ids

    def append_batch(self, steps: Mapping[str, Any], /, **options: Any) -> npt.NDArray[np.int64]:
        """Store several vector steps; see `append` and `stepwell.store.VectorWriter.append_batch`."""
        self._wait()
        ids: npt.NDArray[np.int64] = self._writer.append_batch(steps, **options)
        self._follow()
        return ids

    def end_episodes(self, mask: npt.ArrayLike | None = None, **options: Any) -> None:
        """End open episodes, without waiting; see `stepwell.store.VectorWriter.end_episodes`."""
        self._writer.end_episodes(mask, **options)
        self._follow()

    def discard_episodes(self, mask: npt.ArrayLike | None = None) -> None:
        """Take back open episodes, and their items; see `stepwell.store.VectorWriter.discard_episodes`."""
        self._writer.discard_episodes(mask)
        self._follow()

    @property
    def num_envs(self) -> int:
        """How many environments it records."""
        return int(self._writer.num_envs)


def _why_waiting(table: Table, seconds: float) -> str:
    return (
        f"table {table.name!r} let no item in for {seconds:.3g} s: it waits for samples, and {table.info.num_pending} "
        "items wait for it. Nothing was written. Draw from the table in another thread, or use the store's own "
        "writer, which does not wait."
    )


class TableTarget:
    """A store whose writers wait for tables: what a recorder is given instead of the store.

    Args:
        store: that the writers are of.
        tables: over it, one or several.
        timeout: seconds to wait before each step; None: without end.

    Example:
        One actor for a table, or any number in a vector environment::

            EpisodeRecorder(env, TableTarget(store, table))
            VectorRecorder(envs, TableTarget(store, table))
    """

    def __init__(self, store: Store, tables: Table | Sequence[Table], *, timeout: float | None = None) -> None:
        self._store = store
        self._tables = tables
        self._timeout = timeout

    @property
    def schema(self) -> Schema | None:
        """The store's features."""
        return self._store.schema

    def writer(self, **options: Any) -> TableWriter:
        """Return a new writer; see `stepwell.Store.writer`."""
        return TableWriter(self._store.writer(**options), self._tables, timeout=self._timeout)

    def vector_writer(self, num_envs: int, **options: Any) -> TableVectorWriter:
        """Return a new vector writer; see `stepwell.Store.vector_writer`."""
        return TableVectorWriter(self._store.vector_writer(num_envs, **options), self._tables, timeout=self._timeout)
