"""The positions of an epoch as ranks see them: which rank gets each, and as its how-manieth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stepwell.order.order import check_count
from stepwell.order.partition import even_share

__all__ = ["Dealing", "Run"]


class Run(NamedTuple):
    """Positions that follow each other and all go to one rank.

    Args:
        rank: that gets them.
        number: how many positions of the epoch the rank has got before.
        length: how many there are.
    """

    rank: int
    number: int
    length: int


@dataclass(frozen=True, slots=True)
class Dealing:
    """How `Partition` and `Stream` deal the positions of an epoch out to ranks, seen from a position.

    ::

        10 positions, 2 ranks, batch 3     positions    0 1 2 | 3 4 5 | 6 7 | 8 9
                                           rank         0       1       0     1
                                           number       0 1 2   0 1 2   3 4   3 4

    Args:
        num_positions: positions of an epoch.
        batch_size: rows of one rank's full batch.
        rank: the rank that asks.
        world_size: number of ranks.
        is_stream: whether epochs run into each other (`Stream`), so that a global batch may begin within an epoch.
        offset: of the stream: global batches begin there.

    Raises:
        OrderError: a number is out of range.

    Example:
        >>> list(Dealing(10, 3, world_size=2).runs(0, 4, 4))
        [Run(rank=1, number=1, length=2), Run(rank=0, number=3, length=2)]
    """

    num_positions: int
    batch_size: int = 1
    rank: int = 0
    world_size: int = 1
    is_stream: bool = False
    offset: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num_positions", 0), ("batch_size", 1), ("rank", 0), ("world_size", 1), ("offset", 0)):
            check_count(name, getattr(self, name), least=least)

    def lane_sizes(self, epoch: int) -> list[int]:
        """Return how many positions of an epoch each rank gets."""
        return [self._count_before(rank, epoch, self.num_positions) for rank in range(self.world_size)]

    def runs(self, epoch: int, start: int, count: int) -> Iterator[Run]:
        """Yield the runs that the positions ``[start, start + count)`` of an epoch consist of, in order."""
        if self.world_size == 1:
            if count:
                yield Run(0, start, count)
            return
        end = start + count
        while start < end:
            rank, left = self._dealt(epoch, start)
            taken = min(left, end - start)
            yield Run(rank, self._count_before(rank, epoch, start), taken)
            start += taken

    def _phase(self, epoch: int) -> int:
        """Return how many positions of the global batch under way were dealt when an epoch began."""
        return (epoch * self.num_positions - self.offset) % (self.batch_size * self.world_size) if self.is_stream else 0

    def _dealt(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the rank of a position, and how many from it on go to the same rank without a break."""
        whole = self.batch_size * self.world_size
        begin, place = divmod(self._phase(epoch) + position, whole)
        rest = self.num_positions - begin * whole
        if self.is_stream or rest >= whole:
            rank, within = divmod(place, self.batch_size)
            return rank, self.batch_size - within
        # the last batch is dealt evenly, larger shares first
        size, extra = divmod(rest, self.world_size)
        rank = place // (size + 1) if place < extra * (size + 1) else (place - extra) // size
        first, held = even_share(rest, rank, self.world_size)
        return rank, first + held - place

    def _count_before(self, rank: int, epoch: int, position: int) -> int:
        """Return how many of the positions before one go to a rank."""
        phase = self._phase(epoch)
        if self.is_stream:
            return self._full_before(rank, phase + position) - self._full_before(rank, phase)
        whole = self.batch_size * self.world_size
        full = min(position // whole, self.num_positions // whole)
        rest = self.num_positions - full * whole
        if rest >= whole:
            return self._full_before(rank, position)
        first, held = even_share(rest, rank, self.world_size)
        return full * self.batch_size + min(max(position - full * whole - first, 0), held)

    def _full_before(self, rank: int, slot: int) -> int:
        """Return how many of the first slots go to a rank where all batches are full."""
        full, rest = divmod(slot, self.batch_size * self.world_size)
        return full * self.batch_size + min(max(rest - rank * self.batch_size, 0), self.batch_size)
