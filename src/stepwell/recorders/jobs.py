"""The job of one worker: read the items of a chunk and write them as one segment."""

from __future__ import annotations

import traceback
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import Any

from stepwell.errors import FormatError, WorkerError
from stepwell.recorders.resuming import segment_maker
from stepwell.recorders.sources import Chunk, HasOneStepEpisodes, HasSpans, Items
from stepwell.store import Store
from stepwell.store.writer import Writer

__all__ = ["ITEM", "NUM_BYTES", "NUM_COUNTERS", "NUM_ITEMS", "NUM_STEPS", "Failure", "Job", "read_item"]

# what a worker tells while it works, in memory that it shares: the item it is at, and how much it has written
ITEM, NUM_ITEMS, NUM_STEPS, NUM_BYTES = range(4)
NUM_COUNTERS = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one item, in a form that travels between processes."""

    item: int | None
    reason: str
    trace: str
    noun: str = "item"

    @classmethod
    def of(cls, item: int | None, error: BaseException, noun: str = "item") -> Failure:
        """Describe an error that is being handled; what a file has wrong needs no trace."""
        trace = "" if isinstance(error, FormatError) else "".join(traceback.format_exception(error))
        return cls(item, f"{type(error).__name__}: {error}", trace, noun)

    def to_error(self) -> WorkerError:
        """Return the error that the caller gets; it carries the trace."""
        where = "a worker could not begin" if self.item is None else f"{self.noun} {self.item} could not be written"
        return WorkerError(f"{where}: {self.reason}\n\n{self.trace}".rstrip())


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker needs to write any chunk.

    Args:
        store: to write to.
        source: ``source[i]`` gives item i; None when chunks carry their items.
        items: how an item becomes steps.
    """

    store: Store
    source: Any
    items: Items

    def write(self, chunk: Chunk, counters: MutableSequence[int]) -> Failure | None:
        """Write one chunk as one segment; returns what went wrong, if anything did.

        Args:
            chunk: the items and the segment's ordinal.
            counters: int64 [NUM_COUNTERS], kept up to date while it works.
        """
        with (
            segment_maker(self.store.path),
            self.store.writer(ordinal=chunk.ordinal, tag=chunk.tag) as writer,
        ):
            index, has_many = chunk.start, chunk.carried is None and isinstance(self.source, HasOneStepEpisodes)
            while index < chunk.stop:
                counters[ITEM] = index
                try:
                    many, has_many = self._write_many(writer, chunk, index) if has_many else (None, False)
                    num_items, num_steps, num_bytes = many or self._write_one(writer, chunk, index)
                except Exception as error:
                    return Failure.of(index, error)
                index += num_items
                counters[NUM_ITEMS] += num_items
                counters[NUM_STEPS] += num_steps
                counters[NUM_BYTES] += num_bytes
        if isinstance(self.source, HasSpans):
            self.source.forget(chunk.start, chunk.stop)
        return None

    def _write_one(self, writer: Writer, chunk: Chunk, index: int) -> tuple[int, int, int]:
        """Write one item; returns numbers of items, steps and bytes."""
        item = read_item(self.source, index) if chunk.carried is None else chunk.carried[index - chunk.start]
        return 1, *self.items.write(writer, item)

    def _write_many(self, writer: Writer, chunk: Chunk, index: int) -> tuple[tuple[int, int, int] | None, bool]:
        """Write items from one on, where the source gives several.

        Returns:
            Numbers of items, steps and bytes, None where the item is to be read alone; and whether to ask again: not
            when one of several is bad, which one shows when they are written one by one.
        """
        try:
            columns = self.source.one_step_episodes(index, chunk.stop)
            if columns is None:
                return None, True
            count, num_bytes = self.items.write_one_step_episodes(writer, columns)
        except (ValueError, LookupError):
            return None, False
        return (count, count, num_bytes), True


def read_item(source: Any, index: int) -> Any:
    """Return ``source[index]``.

    Raises:
        WorkerError: the source has fewer items than its length says; other errors are the source's own.
    """
    try:
        return source[index]
    except IndexError as error:
        raise WorkerError(
            f"the source has no item {index}, although its len() is {len(source)}. Correct __len__ or __getitem__."
        ) from error
