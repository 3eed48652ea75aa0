"""Which rank gets which positions, batch by batch: pure arithmetic.

Positions are cut into **global batches** of ``batch_size * world_size``; each rank takes its share of every one, in the
order of the ranks. What a global batch holds depends on its size only, not on how many ranks share it::

    10 positions, 2 ranks, batch 3      global batch 0       global batch 1
                                        0 1 2 | 3 4 5        6 7 | 8 9          dealt evenly, sizes differ by at most 1
                                        rank 0  rank 1       rank 0 rank 1
    drop_last=True                      0 1 2 | 3 4 5        dropped            1 batch of 3 each
    pad=True                            0 1 2 | 3 4 5        6 7 7* | 8 9 9*    2 batches of 3 each; * has valid = False
    pad="wrap"                          0 1 2 | 3 4 5        6 7 0* | 8 9 1*    repeats from the beginning of the epoch
    7 positions, neither                0 1 2 | 3 4 5        6 | (none)         rank 1 has one batch less
    7 positions, pad=True               0 1 2 | 3 4 5        6 6* 6* | 6* 6* 6*
    7 positions, pad="wrap"             0 1 2 | 3 4 5        6 0* 1* | 2* 3* 4*
    epochs without end (`Stream`)       0 1 2 | 3 4 5        6 7 8 | 9 0' 1'    ' of the next epoch; all are full

To go on after an interruption, keep `consumed`, the number of positions that all ranks together have used up: a
partition that starts at this ``offset`` goes on at the exact next position, under any number of ranks and batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.order.order import BoundOrder, check_count
from stepwell.order.stream import Span, stream_spans

__all__ = ["Pad", "Partition", "Share", "Stream", "even_share"]

Pad: TypeAlias = bool | Literal["repeat", "wrap"]


class Share(NamedTuple):
    """One rank's part of one global batch.

    Args:
        spans: where its positions are, in order; one span unless the batch crosses into another epoch, or is filled up
            from the epoch's beginning.
        num_rows: rows of the batch, repeats included.
        num_valid: rows that are not repeats; None when the partition does not pad.
    """

    spans: tuple[Span, ...]
    num_rows: int
    num_valid: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the first row."""
        return self.spans[0].epoch

    @property
    def valid(self) -> npt.NDArray[np.bool_] | None:
        """Mask: bool [num_rows], False where a row only repeats another; None when the partition does not pad."""
        return None if self.num_valid is None else np.arange(self.num_rows) < self.num_valid

    def anchors(self, order: BoundOrder) -> npt.NDArray[np.int64]:
        """Return int64 [num_rows], what an order has at these positions; rows that fill up repeat the last."""
        parts = [order.positions(span.epoch, span.start, span.count) for span in self.spans]
        missing = self.num_rows - sum(map(len, parts))
        if missing:
            parts.append(np.repeat(parts[-1][-1:], missing))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def even_share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the start and the size of a rank's part of ``count`` things; sizes differ by at most 1, larger ones first.

    Example:
        >>> [even_share(11, rank, 3) for rank in range(3)]
        [(0, 4), (4, 4), (8, 3)]
    """
    size, extra = divmod(count, world_size)
    return rank * size + min(rank, extra), size + (rank < extra)


@dataclass(frozen=True)
class Partition:
    """The batches of one rank in one epoch.

    Args:
        num_positions: positions of the epoch.
        batch_size: rows of one rank's full batch.
        rank: this rank, ``0 <= rank < world_size``.
        world_size: number of ranks.
        drop_last: leave out the positions that do not fill a global batch; all ranks have the same number of batches.
        pad: fill the last batches up with repeats, marked in `Share.valid`; all ranks have the same number of batches.
            True or "repeat" repeats a batch's last position, "wrap" those that the epoch begins with, each once before
            one comes again: no position is there more than twice, unless the epoch is shorter than a global batch.
        offset: positions that all ranks together have already used up in this epoch.

    Raises:
        OrderError: a number is out of range, no such ``pad``, or both ``drop_last`` and ``pad``.

    Example:
        >>> for share in Partition(10, 3, rank=1, world_size=2):
        ...     print(share.spans)
        (Span(epoch=0, start=3, count=3),)
        (Span(epoch=0, start=8, count=2),)
    """

    num_positions: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: Pad = False
    offset: int = 0

    def __post_init__(self) -> None:
        _check_ranks(self.batch_size, self.rank, self.world_size)
        check_count("num_positions", self.num_positions)
        check_count("offset", self.offset)
        if self.offset > self.num_positions:
            raise OrderError(f"offset={self.offset} in an epoch of {self.num_positions} positions.")
        if not any(self.pad == allowed for allowed in (False, True, "repeat", "wrap")):
            raise OrderError(f'pad={self.pad!r}. Allowed: True or False, "repeat" (as True) or "wrap".')
        if self.drop_last and self.pad:
            raise OrderError(f"drop_last=True and pad={self.pad!r}. The last batch is dropped or filled up, not both.")

    # worked out once: both are asked for with every batch
    @cached_property
    def global_batch_size(self) -> int:
        """Positions that all ranks together use up in one full batch."""
        return self.batch_size * self.world_size

    @cached_property
    def num_batches(self) -> int:
        """The number of this rank's batches; ranks may differ by one only with neither ``drop_last`` nor ``pad``."""
        full, rest = divmod(self.num_positions - self.offset, self.global_batch_size)
        if self.drop_last or rest == 0:
            return full
        return full + (bool(self.pad) or even_share(rest, self.rank, self.world_size)[1] > 0)

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, k: int) -> Share:
        # makes a Partition a sequence: IndexError ends a for loop over it
        if not 0 <= k < self.num_batches:
            raise IndexError(k)
        return self.batch(k)

    def batch(self, k: int, *, epoch: int = 0) -> Share:
        """Return this rank's share of the k-th global batch.

        Args:
            k: ``0 <= k < num_batches``, counted from ``offset``.
            epoch: the epoch that the spans shall name.

        Raises:
            OrderError: no such batch.
        """
        if not 0 <= k < self.num_batches:
            raise OrderError(f"batch {k} of rank {self.rank}, which has {self.num_batches}.")
        begin = self.offset + k * self.global_batch_size
        held = self.num_positions - begin
        if held >= self.global_batch_size:
            own = Span(epoch, begin + self.rank * self.batch_size, self.batch_size)
            return Share((own,), self.batch_size, self.batch_size if self.pad else None)
        start, count = even_share(held, self.rank, self.world_size)
        own = Span(epoch, begin + start, count)
        if not self.pad:
            return Share((own,), count)
        if self.pad == "wrap" and count < self.batch_size:
            # ranks before this one have filled up theirs
            repeats = self._wrapped(epoch, self.rank * self.batch_size - start, self.batch_size - count)
            return Share((own, *repeats) if count else repeats, self.batch_size, count)
        # a rank without a position repeats the last one of the epoch
        return Share((own if count else Span(epoch, self.num_positions - 1, 1),), self.batch_size, count)

    def _wrapped(self, epoch: int, number: int, count: int) -> tuple[Span, ...]:
        """Return the spans of an epoch's repeats from a number on: its positions over and over again."""
        return tuple(Span(epoch, span.start, span.count) for span in stream_spans(self.num_positions, number, count))

    def consumed(self, k: int) -> int:
        """Return the positions that all ranks have used up before the k-th batch: the ``offset`` to resume at."""
        return min(self.offset + k * self.global_batch_size, self.num_positions)


@dataclass(frozen=True)
class Stream:
    """The batches of one rank in epochs without end: every batch is full, no position is dropped or doubled.

    Args:
        num_positions: positions of an epoch, at least 1.
        batch_size: rows of one rank's batch.
        rank: this rank, ``0 <= rank < world_size``.
        world_size: number of ranks.
        offset: positions that all ranks together have used up since the first epoch began, of any size.

    Raises:
        OrderError: a number is out of range.

    Example:
        >>> Stream(10, 3, rank=1, world_size=2).batch(1).spans
        (Span(epoch=0, start=9, count=1), Span(epoch=1, start=0, count=2))
    """

    num_positions: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    offset: int = 0

    def __post_init__(self) -> None:
        _check_ranks(self.batch_size, self.rank, self.world_size)
        check_count("offset", self.offset)
        stream_spans(self.num_positions, 0, 0)

    @property
    def global_batch_size(self) -> int:
        """Positions that all ranks together use up in one batch."""
        return self.batch_size * self.world_size

    def batch(self, k: int) -> Share:
        """Return this rank's share of the k-th global batch, counted from ``offset``.

        Raises:
            OrderError: k is negative.
        """
        check_count("k", k)
        begin = self.consumed(k) + self.rank * self.batch_size
        return Share(tuple(stream_spans(self.num_positions, begin, self.batch_size)), self.batch_size)

    def consumed(self, k: int) -> int:
        """Return the positions that all ranks have used up before the k-th batch: the ``offset`` to resume at."""
        return self.offset + k * self.global_batch_size


def _check_ranks(batch_size: int, rank: int, world_size: int) -> None:
    check_count("batch_size", batch_size, least=1)
    check_count("world_size", world_size, least=1)
    check_count("rank", rank)
    if rank >= world_size:
        raise OrderError(f"rank={rank} of world_size={world_size}. Ranks count from 0 to {world_size - 1}.")
