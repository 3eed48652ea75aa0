"""What a loader runs on in one process: the reader, the order bound to it, and how batches are built ahead."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepwell.loader.batch import Batch
from stepwell.loader.builder import BatchBuilder, Prepared
from stepwell.loader.devices import DeviceSource, find_device
from stepwell.loader.handover import import_torch
from stepwell.loader.pipeline import Inline, Pipeline
from stepwell.loader.plans import Ticket, draft
from stepwell.loader.pool import BlockPool
from stepwell.loader.supplies import PoolSupply, Request, requests
from stepwell.loader.transforms import samples_of
from stepwell.order import BoundPooled
from stepwell.windows.layouts import ALIGNMENT

if TYPE_CHECKING:
    from stepwell.loader.settings import LoaderSettings
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import Order
    from stepwell.windows import WindowReader

__all__ = ["Engine", "Source"]

_Source = Inline[Any, Any, tuple[Ticket, Batch]] | Pipeline[Any, Any, tuple[Ticket, Batch]]
Source = _Source | DeviceSource
# the consumer still holds one batch while it asks for the next
HELD_BATCHES = 2
# positions that are worked out at once where there are no threads
INLINE_POSITIONS = 4096
# a thread that has loaded a block finds the next one waiting
BLOCKS_AHEAD = 2


class Engine:
    """The running half of a loader, made anew in every process.

    Args:
        reader: of the windows.
        order: to bind to the reader's anchors.
        settings: of the loader.
        transform: of the whole batch, or None.

    Notes:
        Shared by all iterations of a loader, so that they recycle the same memory, also that of a pool: between two
        iterations its blocks stay. An iteration that is begun while another is under way has a pool of its own. Of the
        process that made it.
    """

    __slots__ = (
        "_builder",
        "_device",
        "_group",
        "_inline_group",
        "_num_ahead",
        "_pooled",
        "_pools",
        "_reads_groups",
        "num_threads",
        "order",
        "pid",
        "reader",
    )

    def __init__(
        self, reader: WindowReader, order: Order, settings: LoaderSettings, transform: WholeTransform | None
    ) -> None:
        self.pid = os.getpid()
        self.reader = reader
        self.order = order.bind(reader.index)
        # plain rows that the page cache holds need no pool: the order alone keeps what is read together
        is_raw = reader.is_raw and reader.page_cache
        has_rows = not is_raw and bool(reader.row_loader.columns)
        self._pooled = self.order if has_rows and isinstance(self.order, BoundPooled) else None
        is_pooled = self._pooled is not None
        self._pools: deque[BlockPool] = deque(maxlen=1)
        batch_bytes = reader.sample_bytes * settings.batch_size
        self.num_threads = settings.num_threads(batch_bytes, is_raw, is_pooled)
        self._group = settings.group(batch_bytes, is_raw or is_pooled)
        if self._pooled is not None:
            self._group = _within_pool(self._group, self._pooled, settings.batch_size)
        self._inline_group = max(1, INLINE_POSITIONS // settings.batch_size)
        self._num_ahead = self.num_threads * settings.prefetch
        # batches that are only copied are read several at once
        self._reads_groups = is_raw and self._group > 1 and _stays_aligned(reader, settings.batch_size)
        group = self._group if self._reads_groups else 1
        # as many blocks of memory as hand-overs that are ahead have, one for each batch or for each group
        max_free = self._num_ahead * (self._group // group) + HELD_BATCHES
        self._builder = BatchBuilder(reader, settings, transform, max_free, group)
        self._device = None if settings.device is None else find_device(settings.device, import_torch())

    def source(self, tickets: Iterator[Ticket]) -> Source:
        """Return the batches of tickets, built in the consumer or ahead of it, where the consumer wants them."""
        source = self._plain_source(tickets) if self._pooled is None else self._pooled_source(tickets, self._pooled)
        return source if self._device is None else DeviceSource(source, self._device, import_torch())

    def _plain_source(self, tickets: Iterator[Ticket]) -> _Source:
        builder = self._builder
        drafting: Any = self._prepare if self._reads_groups else draft
        build: Any = builder.build_prepared if self._reads_groups else builder.build
        if self.num_threads == 0:
            return Inline(drafting, build, tickets, group=self._inline_group)
        return Pipeline(
            drafting,
            build,
            tickets,
            num_threads=self.num_threads,
            num_ahead=self._num_ahead,
            group=self._group,
        )

    def _prepare(self, tickets: Sequence[Ticket]) -> Iterator[Prepared]:
        return self._builder.prepare(draft(tickets))

    def _pooled_source(self, tickets: Iterator[Ticket], order: BoundPooled) -> _Source:
        try:
            pool = self._pools.pop()
        except IndexError:
            num_slots = min(order.num_slots, len(order.blocks))
            pool = BlockPool(order.blocks, self.reader.row_loader, num_slots)
        supply = PoolSupply(pool, BLOCKS_AHEAD * self.num_threads, self._pools.append)
        if self.num_threads == 0:
            drafts = requests(tickets, self._inline_group)
            return Inline(_as_they_are, self._build_held, drafts, group=1, supply=supply)
        return Pipeline(
            _as_they_are,
            self._build_held,
            requests(tickets, self._group),
            num_threads=self.num_threads,
            num_ahead=self._num_ahead,
            group=self._group,
            supply=supply,
        )

    def _build_held(self, request: Request) -> tuple[Ticket, Batch]:
        held = None if request.loan is None else request.loan.wait()
        return self._builder.build(request.draft, held)


def _stays_aligned(reader: WindowReader, batch_size: int) -> bool:
    """Return whether batches that lie one after the other all begin at multiples of `ALIGNMENT` bytes, in any key."""
    samples = [sample for sample in samples_of(reader.fields).values() if sample is not None]
    return all(batch_size * math.prod(shape) * dtype.itemsize % ALIGNMENT == 0 for shape, dtype in samples)


def _within_pool(group: int, order: BoundPooled, batch_size: int) -> int:
    """Return how many batches a job has, ``group`` at most: together they need no more blocks than have room."""
    if order.num_resident == len(order.blocks):
        return group
    # for each block that a job uses up, another enters
    spare = order.num_slots - order.num_resident
    return max(1, min(group, spare * order.num_positions // (len(order.blocks) * batch_size)))


def _as_they_are(requests: Sequence[Request]) -> Sequence[Request]:
    """Return requests, whose anchors are known already."""
    return requests
