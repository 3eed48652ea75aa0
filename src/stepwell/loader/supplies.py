"""Batches that need blocks: what each asks the pool for, and what it is going to be asked for next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from stepwell.loader.pipeline import Supplied, Supply
from stepwell.loader.plans import Draft, Place, Ticket, draft
from stepwell.loader.pool import BlockPool, Loan
from stepwell.order import BoundPooled

__all__ = ["PoolSupply", "Request", "requests"]


class Request(NamedTuple):
    """A batch to be built of held rows.

    Args:
        draft: the batch.
        following: the position with which the next batch begins; None after the last.
        blocks: that the batches of its job need together.
        loan: its rows.
    """

    draft: Draft
    following: Place | None
    blocks: tuple[int, ...] = ()
    loan: Loan | None = None


def requests(tickets: Iterator[Ticket], group: int) -> Iterator[Request]:
    """Yield batches, each with the place where the next begins.

    Args:
        tickets: of one order, in order.
        group: batches to draft together.
    """
    last: Draft | None = None
    while together := list(islice(tickets, group)):
        for each in draft(together):
            if last is not None:
                span = each.share.spans[0]
                yield Request(last, Place(span.epoch, span.start))
            last = each
    if last is not None:
        yield Request(last, None)


class PoolSupply(Supply):
    """Hold the blocks of batches under way in a pool, and load ahead those of the next.

    Args:
        pool: for this supply alone until `end`.
        num_ahead: blocks to load ahead at a time.
        on_end: is given the pool back.
    """

    def __init__(self, pool: BlockPool, num_ahead: int, on_end: Callable[[BlockPool], object]) -> None:
        self._pool = pool
        self._num_ahead = num_ahead
        self._on_end = on_end

    def supply(self, tickets: list[Any], is_oldest: bool) -> Supplied | None:
        """Take the blocks of the requests of a job; see `Supply.supply`."""
        found: Sequence[Request] = tickets
        # each waits for its own: an error belongs to the batch that needs the block
        each = [np.unique(self._pool.blocks.block_of(request.draft.anchors)).tolist() for request in found]
        together = tuple(sorted({block for blocks in each for block in blocks}))
        tasks = self._pool.take(together, self._upcoming(found[-1]), is_forced=is_oldest)
        if tasks is None:
            return None
        lent = [
            request._replace(blocks=together, loan=self._pool.lend(blocks, request.draft.anchors))
            for request, blocks in zip(found, each, strict=True)
        ]
        tasks += self._pool.take_ahead(self._num_ahead)
        return Supplied(lent, tasks, partial(self._pool.when_loaded, together))

    def release(self, tickets: list[Any]) -> None:
        """Let go of the blocks of a job."""
        self._pool.give_back(tickets[0].blocks)

    def end(self) -> None:
        """Give the pool back."""
        self._pool.settle()
        self._on_end(self._pool)

    def _upcoming(self, request: Request) -> list[int]:
        """Return the blocks that will be needed after a request, soonest first."""
        order, place = request.draft.ticket.plan.order, request.following
        if place is None or not isinstance(order, BoundPooled):
            return []
        blocks: list[int] = order.entering(*place, order.num_resident + self._num_ahead).tolist()
        return blocks
