"""The sequential columns of a segment that is being written, and how many of its rows they let be committed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

from stepwell.codecs import SequentialCodec
from stepwell.schema import Schema
from stepwell.store.background import BackgroundRows
from stepwell.store.column_file import Column, EncodedColumn
from stepwell.store.commit import CommitRecord
from stepwell.store.encoded_rows import EncodedRows
from stepwell.store.run_writing import RunWriter

__all__ = ["QUEUE_BYTES", "SequentialColumns"]

QUEUE_BYTES = 256 << 20
MIN_SLOTS = 2


class SequentialColumns:
    """Hand rows to the columns' encoders and commit those that are ready in all of them.

    Args:
        columns: all of a segment, by name.
        schema: the features.
        progress: the commit record.
        queue_bytes: what the queues of slow codecs hold together, at most (but two rows each).

    Notes:
        For one thread, the writer's; slow codecs have one each, which commits what it has stored. A commit is a
        minimum over columns that several threads take, so it is made under a lock.
    """

    def __init__(self, columns: Mapping[str, Column], schema: Schema, progress: CommitRecord, queue_bytes: int) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._limit = 0
        self._num_tried = 0
        self._places: list[tuple[int, str, RunWriter | BackgroundRows]] = []
        slow = sum(schema[name].row_bytes for name, column in columns.items() if _is_slow(column))
        num_slots = max(MIN_SLOTS, queue_bytes // max(1, slow))
        for place, (name, column) in enumerate(columns.items()):
            if isinstance(column, EncodedColumn) and column.codec.is_sequential:
                rows: RunWriter | BackgroundRows = RunWriter(name, column)
                if _is_slow(column):
                    rows = BackgroundRows(cast(RunWriter, rows), schema[name], num_slots, self._commit_ready)
                self._places.append((place, name, rows))

    @classmethod
    def of(
        cls, columns: Mapping[str, Column], schema: Schema, progress: CommitRecord, queue_bytes: int
    ) -> SequentialColumns | None:
        """Return those of a segment, or None when it has none."""
        found = cls(columns, schema, progress, queue_bytes)
        return found if found._places else None

    @property
    def is_failed(self) -> bool:
        """Whether steps that were appended are lost: the segment can only be closed."""
        return any(rows.is_failed for _, _, rows in self._places)

    def put(self, row: int, values: Sequence[Any]) -> None:
        """Take a step, in the schema's order; waits while a queue is full."""
        is_again = self._try(row + 1) > row
        for place, _, rows in self._places:
            rows.put(row, values[place])
        if is_again:
            self._replace(row + 1)

    def put_rows(self, row: int, columns: Sequence[Any], count: int) -> None:
        """Take ``count`` steps by columns, in the schema's order."""
        is_again = self._try(row + count) > row
        given = []
        for place, _, rows in self._places:
            if isinstance(columns[place], EncodedRows):
                rows.put_encoded(row, columns[place])
            else:
                given.append((columns[place], rows))
        for i in range(count):
            for values, rows in given:
                rows.put(row + i, values[i])
        if is_again:
            self._replace(row + count)

    def commit(self, rows: int) -> None:
        """Let the first ``rows`` rows be committed as soon as they are ready."""
        with self._lock:
            self._limit = rows
        self._commit_ready()

    def end_run(self, row: int, final: Mapping[str, Any] | None) -> None:
        """End the episode before row number ``row``, which is its final row if there is one; waits for all rows."""
        self._try(row + (final is not None))
        for _, name, rows in self._places:
            value = None if final is None else final.get(name)
            if isinstance(value, EncodedRows):
                rows.put_encoded(row, value)
            elif value is not None:
                rows.put(row, value)
            rows.end()
            if final is not None and value is None:
                rows.put_encoded(row, [b""])
        self._wait()

    def settle(self) -> None:
        """Wait until every step is stored; where an encoder keeps rows back, end its run for that."""
        for _, _, rows in self._places:
            rows.wait()
            if rows.is_behind:
                rows.end()
        self._wait()
        self._commit_ready()

    def close(self) -> None:
        """Let go of the encoders and their threads; what they have not stored is lost."""
        for _, _, rows in self._places:
            rows.close()

    def _try(self, stop: int) -> int:
        """Take note that rows before ``stop`` are put; return the row before which some columns may have rows."""
        before, self._num_tried = self._num_tried, max(self._num_tried, stop)
        return before

    def _replace(self, stop: int) -> None:
        """Wait until rows that were put again are stored: what they replace must not be committed for them."""
        self._wait()
        self._num_tried = stop

    def _wait(self) -> None:
        for _, _, rows in self._places:
            rows.wait()

    def _commit_ready(self) -> None:
        with self._lock:
            ready = min(rows.num_ready for _, _, rows in self._places)
            self._progress.commit_rows(min(self._limit, ready))


def _is_slow(column: Column) -> bool:
    return isinstance(column, EncodedColumn) and isinstance(column.codec, SequentialCodec) and column.codec.is_slow
