"""Which positions which batch takes, one epoch after the other, and where a consumer stands.

`stepwell.order.Partition` deals an epoch out to the ranks so that what all of them have got after k batches each is
one run of positions from the front. So (epoch, consumed positions) says where to go on, for any number of ranks and
any batch size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from stepwell.errors import OrderError
from stepwell.order import BoundOrder, Partition, Share, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stepwell.loader.settings import LoaderSettings

__all__ = ["Cursor", "Draft", "Place", "Plan", "Ticket", "draft", "schedule"]


class Place(NamedTuple):
    """What comes next: the epoch, and how many of its positions all ranks together have got."""

    epoch: int
    consumed: int


class Plan(ABC):
    """Batches of one rank, counted from 0.

    Notes:
        Immutable; any thread may ask.
    """

    order: BoundOrder

    @property
    @abstractmethod
    def numbers(self) -> range | count[int]:
        """The numbers of the batches."""

    @abstractmethod
    def share(self, number: int) -> Share:
        """Return what this rank gets of a batch."""

    @abstractmethod
    def index(self, number: int) -> int:
        """Return the number of a batch within its epoch."""

    @abstractmethod
    def place_before(self, number: int) -> Place:
        """Return where the consumer stands before it gets a batch."""


@dataclass(frozen=True, slots=True)
class EpochPlan(Plan):
    """One epoch, or what is left of it."""

    order: BoundOrder
    partition: Partition
    epoch: int

    @property
    def numbers(self) -> range:
        """The numbers of the batches."""
        return range(self.partition.num_batches)

    def share(self, number: int) -> Share:
        """Return what this rank gets of a batch."""
        return self.partition.batch(number, epoch=self.epoch)

    def index(self, number: int) -> int:
        """Return the number of a batch within its epoch."""
        return self.partition.offset // self.partition.global_batch_size + number

    def place_before(self, number: int) -> Place:
        """Return where the consumer stands before it gets a batch."""
        return Place(self.epoch, self.partition.consumed(number))


@dataclass(frozen=True, slots=True)
class StreamPlan(Plan):
    """Epochs without end, of full batches: one may hold the end of an epoch and the beginning of the next."""

    order: BoundOrder
    stream: Stream

    @property
    def numbers(self) -> count[int]:
        """The numbers of the batches."""
        return count()

    def share(self, number: int) -> Share:
        """Return what this rank gets of a batch."""
        return self.stream.batch(number)

    def index(self, number: int) -> int:
        """Return the number of a batch within its epoch."""
        return self.place_before(number).consumed // self.stream.global_batch_size

    def place_before(self, number: int) -> Place:
        """Return where the consumer stands before it gets a batch."""
        return Place(*divmod(self.stream.consumed(number), self.stream.num_positions))


class Ticket(NamedTuple):
    """One batch to build: the plan and the batch's number in it."""

    plan: Plan
    number: int


class Draft(NamedTuple):
    """A ticket with what it stands for: the share, and the anchors, int64 [share.num_rows]."""

    ticket: Ticket
    share: Share
    anchors: npt.NDArray[np.int64]


def draft(tickets: Sequence[Ticket]) -> list[Draft]:
    """Return the anchors of several batches of one order.

    Neighbouring batches are runs of one span, and an order answers one long question faster than many short ones: for
    small batches that is half of what a batch costs outside its kernel.
    """
    shares = [plan.share(number) for plan, number in tickets]
    order = tickets[0].plan.order
    anchors: list[npt.NDArray[np.int64]] = []
    for first, last in _runs(shares):
        begin, end = shares[first].spans[0], shares[last - 1].spans[0]
        if last == first + 1:
            anchors.append(shares[first].anchors(order))
            continue
        together = order.positions(begin.epoch, begin.start, end.start + end.count - begin.start)
        anchors += [together[s.spans[0].start - begin.start :][: s.num_rows] for s in shares[first:last]]
    return [Draft(*each) for each in zip(tickets, shares, anchors, strict=True)]


def _runs(shares: Sequence[Share]) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of shares that follow each other without a gap; a share that is no plain span is alone."""
    first = 0
    for i in range(1, len(shares) + 1):
        if i == len(shares) or not _follows(shares[i - 1], shares[i]):
            yield first, i
            first = i


def _follows(a: Share, b: Share) -> bool:
    if len(a.spans) > 1 or len(b.spans) > 1 or a.spans[0].count != a.num_rows or b.spans[0].count != b.num_rows:
        return False
    return a.epoch == b.epoch and a.spans[0].start + a.num_rows == b.spans[0].start


class Cursor:
    """Where the consumer of one iteration stands.

    Args:
        start: where the iteration begins.
        first_epoch: the epoch with which it began before any interruption.
        last_epoch: the epoch with which it ends; None: endless.

    Notes:
        Written by the consumer's thread alone, once a batch.
    """

    __slots__ = ("first_epoch", "is_done", "last_epoch", "start", "taken")

    def __init__(self, start: Place, first_epoch: int, last_epoch: int | None) -> None:
        self.start = start
        self.first_epoch = first_epoch
        self.last_epoch = last_epoch
        self.taken: Ticket | None = None
        self.is_done = False

    @property
    def place(self) -> Place:
        """What the consumer gets next."""
        if self.is_done and self.last_epoch is not None:
            return Place(self.last_epoch + 1, 0)
        if self.taken is None:
            return self.start
        return self.taken.plan.place_before(self.taken.number + 1)


def schedule(order: BoundOrder, settings: LoaderSettings, cursor: Cursor) -> Iterator[Ticket]:
    """Return the batches of an iteration, epoch after epoch.

    Args:
        order: the bound order.
        settings: of the loader.
        cursor: says where to begin and to end; only read, and only now.

    Raises:
        OrderError: no batches, and no end or ``drop_last``.
    """
    if settings.is_stream:
        offset = cursor.start.epoch * order.num_positions + cursor.start.consumed
        ranked = order.for_ranks(settings.dealing(order.num_positions, offset))
        stream = StreamPlan(ranked, settings.stream(order.num_positions, offset))
        return (Ticket(stream, number) for number in stream.numbers)
    is_empty = settings.partition(order.num_positions).num_batches == 0
    if is_empty and (cursor.last_epoch is None or settings.drop_last):
        epochs = "endless epochs" if cursor.last_epoch is None else "epochs"
        raise OrderError(
            f"{epochs} of no batches: {order.num_positions} positions do not fill one batch of {settings.batch_size} "
            f"on {settings.world_size} ranks. Use a smaller batch_size, or drop_last=False."
        )
    ranked = order.for_ranks(settings.dealing(order.num_positions))
    plans = _epochs(ranked, settings, cursor.start, cursor.last_epoch)
    return (Ticket(plan, number) for plan in plans for number in plan.numbers)


def _epochs(order: BoundOrder, settings: LoaderSettings, start: Place, last_epoch: int | None) -> Iterator[EpochPlan]:
    for epoch in count(start.epoch) if last_epoch is None else range(start.epoch, last_epoch + 1):
        offset = start.consumed if epoch == start.epoch else 0
        yield EpochPlan(order, settings.partition(order.num_positions, offset), epoch)
