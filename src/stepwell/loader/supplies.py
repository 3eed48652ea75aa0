"""Batches that need blocks: what each asks the pool for, and what it is going to be asked for next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from stepwell.loader.pipeline import Supplied, Supply
from stepwell.loader.plans import Draft, Place, Ticket, draft
from stepwell.loader.pool import BlockPool, Loan

if TYPE_CHECKING:
    import numpy.typing as npt

    from stepwell.windows.blocks import Blocks

__all__ = ["BlockOrder", "PoolSupply", "Request", "requests"]


@runtime_checkable
class BlockOrder(Protocol):
    """An order that draws from few blocks at a time (`stepwell.order.pooled`).

    Attributes:
        blocks: how the anchors are cut.
        num_slots: blocks that memory is for.
        num_resident: blocks that are drawn from at a time, at most.
    """

    blocks: Blocks
    num_slots: int
    num_resident: int

    def entering(self, epoch: int, position: int, count: int) -> npt.NDArray[np.int64]:
        """Return at most ``count`` blocks, in the order in which positions from ``position`` on first need them."""


class Request(NamedTuple):
    """A batch to be built of held rows.

    Args:
        draft: the batch.
        following: the position with which the next batch begins; None after the last.
        blocks: that it needs, each once; of all batches of its job.
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
        order: that the batches follow.
        num_ahead: blocks to load ahead at a time.
        on_end: is given the pool back.
    """

    def __init__(
        self, pool: BlockPool, order: BlockOrder, num_ahead: int, on_end: Callable[[BlockPool], object]
    ) -> None:
        self._pool, self._order = pool, order
        self._num_ahead = num_ahead
        self._on_end = on_end

    def supply(self, tickets: list[Any], is_oldest: bool) -> Supplied | None:
        """Take the blocks of the requests of a job; see `Supply.supply`."""
        found: Sequence[Request] = tickets
        anchors = np.concatenate([request.draft.anchors for request in found])
        needed = tuple(np.unique(self._order.blocks.block_of(anchors)).tolist())
        before = self._pool.take(needed, self._upcoming(found[-1].following), is_forced=is_oldest)
        if before is None:
            return None
        lent = [
            request._replace(blocks=needed, loan=self._pool.lend(needed, request.draft.anchors)) for request in found
        ]
        return Supplied(lent, before, self._pool.take_ahead(self._num_ahead))

    def release(self, tickets: list[Any]) -> None:
        """Let go of the blocks of a job."""
        self._pool.give_back(tickets[0].blocks)

    def end(self) -> None:
        """Give the pool back."""
        self._pool.settle()
        self._on_end(self._pool)

    def _upcoming(self, following: Place | None) -> list[int]:
        if following is None:
            return []
        count = self._order.num_resident + self._num_ahead
        blocks: list[int] = self._order.entering(following.epoch, following.consumed, count).tolist()
        return blocks
