"""What a loader runs on in one process: the reader, the order bound to it, and how batches are built ahead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepwell.loader.batch import Batch
from stepwell.loader.builder import BatchBuilder
from stepwell.loader.pipeline import Inline, Pipeline
from stepwell.loader.plans import Draft, Ticket, draft

if TYPE_CHECKING:
    from stepwell.loader.settings import LoaderSettings
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import Order
    from stepwell.windows import WindowReader

__all__ = ["Engine", "Source"]

Source = Inline[Ticket, Draft, tuple[Ticket, Batch]] | Pipeline[Ticket, Draft, tuple[Ticket, Batch]]
# the consumer still holds one batch while it asks for the next
HELD_BATCHES = 2
# positions that are worked out at once where there are no threads
INLINE_POSITIONS = 4096


class Engine:
    """The running half of a loader, made anew in every process.

    Args:
        reader: of the windows.
        order: to bind to the reader's anchors.
        settings: of the loader.
        transform: of the whole batch, or None.

    Notes:
        Shared by all iterations of a loader, so that they recycle the same memory. Of the process that made it.
    """

    __slots__ = ("_builder", "_group", "_inline_group", "_num_ahead", "num_threads", "order", "pid", "reader")

    def __init__(
        self, reader: WindowReader, order: Order, settings: LoaderSettings, transform: WholeTransform | None
    ) -> None:
        self.pid = os.getpid()
        self.reader = reader
        self.order = order.bind(reader.index)
        batch_bytes = reader.sample_bytes * settings.batch_size
        self.num_threads = settings.num_threads(batch_bytes, reader.is_raw)
        self._group = settings.group(batch_bytes, reader.is_raw)
        self._inline_group = max(1, INLINE_POSITIONS // settings.batch_size)
        self._num_ahead = self.num_threads * settings.prefetch
        max_free = self._num_ahead * self._group + HELD_BATCHES
        self._builder = BatchBuilder(reader, settings, transform, max_free)

    def source(self, tickets: Iterator[Ticket]) -> Source:
        """Return the batches of tickets, built in the consumer or ahead of it."""
        if self.num_threads == 0:
            return Inline(draft, self._builder.build, tickets, group=self._inline_group)
        return Pipeline(
            draft,
            self._builder.build,
            tickets,
            num_threads=self.num_threads,
            num_ahead=self._num_ahead,
            group=self._group,
        )
