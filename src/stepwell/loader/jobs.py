"""Which positions which batch takes, one epoch after the other.

`stepwell.order.Partition` shares an epoch out to the ranks so that what all of them have got after k batches each is
one run of positions from the front. So (epoch, consumed positions) says where to go on, for any number of ranks and
any batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

from stepwell.errors import OrderError
from stepwell.order import BoundOrder, Partition, RankSpan, Share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stepwell.loader.pool import HeldBlocks
    from stepwell.loader.settings import LoaderSettings

__all__ = ["Job", "Position", "find_anchors", "grouped", "schedule", "with_anchors"]


class Position(NamedTuple):
    """What comes next: the epoch, and how many of its positions all ranks together have got."""

    epoch: int
    consumed: int


@dataclass(slots=True, eq=False)
class Job:
    """One batch to build.

    Args:
        order: that its positions are of.
        share: what this rank gets of a batch.
        index: number of the batch within its epoch.
        end: (epoch, consumed), where the consumer stands once it has the batch.
        anchors: int64 [share.num_rows], once `find_anchors` has found them.
        blocks: the decoded rows of a pooled order, or None.
    """

    order: BoundOrder
    share: Share
    index: int
    end: tuple[int, int]
    anchors: npt.NDArray[np.int64] | None = None
    blocks: HeldBlocks | None = None


def schedule(order: BoundOrder, settings: LoaderSettings, start: Position, last_epoch: int | None) -> Iterator[Job]:
    """Return the batches of one rank in an iteration, epoch after epoch."""
    if settings.is_stream:
        offset = start.epoch * order.num_positions + start.consumed
        stream = settings.stream(order.num_positions, offset)
        return _stream(order.for_ranks(stream), stream)
    partition = settings.partition(order.num_positions)
    is_empty = partition.num_batches == 0
    if is_empty and (last_epoch is None or settings.drop_last):
        epochs = "endless epochs" if last_epoch is None else "epochs"
        raise OrderError(
            f"{epochs} of no batches: {order.num_positions} positions do not fill one batch of {settings.batch_size} "
            f"on {settings.world_size} ranks. Use a smaller batch_size, or drop_last=False."
        )
    return _epochs(order.for_ranks(partition), settings, start, last_epoch)


def _epochs(order: BoundOrder, settings: LoaderSettings, start: Position, last_epoch: int | None) -> Iterator[Job]:
    consumed = start.consumed
    size, rank_start = settings.batch_size, settings.rank * settings.batch_size
    for epoch in count(start.epoch) if last_epoch is None else range(start.epoch, last_epoch + 1):
        partition = settings.partition(order.num_positions, consumed)
        whole, num_valid = partition.global_batch_size, size if settings.pad else None
        first = consumed // whole
        for number in range(partition.num_batches):
            begin, end = consumed + number * whole, consumed + (number + 1) * whole
            if end <= order.num_positions:
                # as `Partition.batch`, without its calls
                share = Share((RankSpan(epoch, begin + rank_start, size),), size, num_valid)
            else:
                share, end = partition.batch(number, epoch=epoch), order.num_positions
            yield Job(order, share, first + number, (epoch, end))
        consumed = 0


def _stream(order: BoundOrder, stream: Partition) -> Iterator[Job]:
    """Yield full batches without end: one may hold the end of an epoch and the beginning of the next."""
    num_positions, size, rank_start = stream.num_positions, stream.batch_size, stream.rank * stream.batch_size
    whole = stream.global_batch_size
    epoch, begin = divmod(stream.offset, num_positions)
    for number in count():
        end = begin + whole
        # a batch within an epoch is as that of `Partition.batch`, without its calls
        is_within = end <= num_positions
        share = Share((RankSpan(epoch, begin + rank_start, size),), size) if is_within else stream.batch(number)
        index = begin // whole
        if end >= num_positions:
            epoch, end = epoch + end // num_positions, end % num_positions
        begin = end
        yield Job(order, share, index, (epoch, begin))


def find_anchors(jobs: Sequence[Job]) -> None:
    """Find the anchors of several batches of one order.

    Neighbouring batches are runs of one span, and an order answers one long question faster than many short ones: for
    small batches that is half of what a batch costs outside its kernel.
    """
    order, first = jobs[0].order, 0
    while first < len(jobs):
        share, last = jobs[first].share, first + 1
        begin, size = share.spans[0], share.num_rows
        end = begin.start + size
        # batches of as many positions, each a span that begins where the one before it ends
        while last < len(jobs) and jobs[last].share[:2] == (((begin.epoch, end, size),), size):
            last, end = last + 1, end + size
        if last == first + 1 or share[:2] != ((begin,), begin.count):
            jobs[first].anchors = share.anchors(order)
            first += 1
            continue
        together = order.positions(begin.epoch, begin.start, end - begin.start)
        for job, start in zip(jobs[first:last], range(0, len(together), size), strict=True):
            job.anchors = together[start : start + size]
        first = last


def grouped(jobs: Iterator[Job], size: int) -> Iterator[list[Job]]:
    """Yield jobs in lists of ``size``; the last may be shorter."""
    while group := list(islice(jobs, size)):
        yield group


def with_anchors(jobs: Iterator[Job], size: int) -> Iterator[Job]:
    """Yield jobs with their anchors, found for ``size`` jobs at once."""
    for group in grouped(jobs, size):
        find_anchors(group)
        yield from group
