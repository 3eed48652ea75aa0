"""Which rank gets which positions, batch by batch: pure arithmetic.

Positions are cut into **global batches** of ``batch_size * world_size``; each rank takes its share of every one, in the
order of the ranks. The content of a global batch depends on its size only, not on the number of ranks::

    10 positions, 2 ranks, batch 3      global batch 0       global batch 1
                                        0 1 2 | 3 4 5        6 7 | 8 9          shared evenly, sizes differ by at most 1
                                        rank 0  rank 1       rank 0 rank 1
    drop_last=True                      0 1 2 | 3 4 5        dropped            1 batch of 3 each
    pad=True                            0 1 2 | 3 4 5        6 7 7* | 8 9 9*    2 batches of 3 each; * has valid = False
    pad="wrap"                          0 1 2 | 3 4 5        6 7 0* | 8 9 1*    repeats from the beginning of the epoch
    7 positions, neither                0 1 2 | 3 4 5        6 | (none)         rank 1 has one batch less
    7 positions, pad=True               0 1 2 | 3 4 5        6 6* 6* | 6* 6* 6*
    7 positions, pad="wrap"             0 1 2 | 3 4 5        6 0* 1* | 2* 3* 4*
    is_stream=True                      0 1 2 | 3 4 5        6 7 8 | 9 0' 1'    ' of the next epoch; all are full

To go on after an interruption, keep `Partition.consumed`, the number of positions that all ranks together have used up:
a partition with this ``offset`` goes on at the exact next position, under any number of ranks and batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.order.order import BoundOrder, check_count

__all__ = ["Pad", "Partition", "RankSpan", "Run", "Share", "even_share", "stream_spans"]

Pad: TypeAlias = bool | Literal["repeat", "wrap"]


class RankSpan(NamedTuple):
    """Positions ``[start, start + count)`` of one epoch.

    Example:
        >>> span = RankSpan(epoch=0, start=3, count=2)
        >>> list(range(span.start, span.start + span.count))
        [3, 4]
    """

    epoch: int
    start: int
    count: int  # type: ignore[assignment]


class Run(NamedTuple):
    """Consecutive positions of one rank: ``number`` positions of the epoch came to the rank before these."""

    rank: int
    number: int
    length: int


def stream_spans(num_positions: int, offset: int, count: int) -> list[RankSpan]:
    """Return the spans that a range of the stream ``epoch 0 || epoch 1 || ...`` covers, one an epoch that it touches.

    ::

        num_positions = 5        |0 1 2 3 4|0 1 2 3 4|0 1 ...
        offset = 3, count = 4          [3 4 0 1]            -> (0, 3, 2), (1, 0, 2)

    Args:
        num_positions: positions an epoch has, the same in each.
        offset: first position of the range within the stream, 0 or more, of any size.
        count: positions in the range.

    Raises:
        OrderError: an epoch without positions, or a negative range.

    Example:
        >>> stream_spans(5, 3, 4)
        [RankSpan(epoch=0, start=3, count=2), RankSpan(epoch=1, start=0, count=2)]
    """
    if num_positions < 1:
        raise OrderError("an endless stream of epochs that have no positions. Add episodes, or use epochs=1.")
    if offset < 0 or count < 0:
        raise OrderError(f"positions [{offset}, {offset + count}) of a stream. Allowed is a range from 0 on.")
    spans = []
    end = offset + count
    while offset < end:
        epoch, start = divmod(offset, num_positions)
        taken = min(num_positions - start, end - offset)
        spans.append(RankSpan(epoch, start, taken))
        offset += taken
    return spans


def even_share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the start and the size of a rank's part of ``count`` things; sizes differ by at most 1, larger ones first.

    Example:
        >>> [even_share(11, rank, 3) for rank in range(3)]
        [(0, 4), (4, 4), (8, 3)]
    """
    size, extra = divmod(count, world_size)
    return rank * size + min(rank, extra), size + (rank < extra)


class Share(NamedTuple):
    """One rank's part of one global batch.

    Args:
        spans: where its positions are, in order; one span unless the batch crosses into another epoch, or is filled up
            from the epoch's beginning.
        num_rows: rows of the batch, repeats included.
        num_valid: rows that are not repeats; None when the partition does not pad.

    Example:
        >>> share = Partition(10, 4, rank=0, world_size=2, pad=True).batch(1)
        >>> share.spans, share.num_rows, share.valid.tolist()
        ((RankSpan(epoch=0, start=8, count=1),), 4, [True, False, False, False])
    """

    spans: tuple[RankSpan, ...]
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
        """Return the entries of an order at these positions, int64 [num_rows]; rows that fill up repeat the last."""
        parts = [order.positions(span.epoch, span.start, span.count) for span in self.spans]
        missing = self.num_rows - sum(map(len, parts))
        if missing:
            parts.append(np.repeat(parts[-1][-1:], missing))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class Partition:
    """The batches of one rank: of one epoch, or of endless epochs that run into each other.

    Args:
        num_positions: positions of an epoch; at least 1 of a stream.
        batch_size: rows of one rank's full batch.
        rank: this rank, ``0 <= rank < world_size``.
        world_size: number of ranks.
        drop_last: leave out the positions that do not fill a global batch; all ranks have the same number of batches.
        pad: fill the last batches up with repeats, marked in `Share.valid`; all ranks have the same number of batches.
            True or "repeat" repeats a batch's last position, "wrap" those that the epoch begins with, each once before
            one comes again: no position is there more than twice, unless the epoch is shorter than a global batch.
        offset: positions that all ranks together have already used up, in this epoch or since the stream began.
        is_stream: whether epochs run into each other: every batch is full, no position is dropped or doubled.

    Raises:
        OrderError: a number is out of range, no such ``pad``, or both ``drop_last`` and ``pad``.

    Example:
        >>> for share in Partition(10, 3, rank=1, world_size=2):
        ...     print(share.spans)
        (RankSpan(epoch=0, start=3, count=3),)
        (RankSpan(epoch=0, start=8, count=2),)
        >>> Partition(10, 3, rank=1, world_size=2, is_stream=True).batch(1).spans
        (RankSpan(epoch=0, start=9, count=1), RankSpan(epoch=1, start=0, count=2))
    """

    num_positions: int
    batch_size: int = 1
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: Pad = False
    offset: int = 0
    is_stream: bool = False

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, least=1)
        check_count("world_size", self.world_size, least=1)
        check_count("rank", self.rank)
        check_count("num_positions", self.num_positions)
        check_count("offset", self.offset)
        if self.rank >= self.world_size:
            raise OrderError(
                f"rank={self.rank} of world_size={self.world_size}. Ranks count from 0 to {self.world_size - 1}."
            )
        if not any(self.pad == allowed for allowed in (False, True, "repeat", "wrap")):
            raise OrderError(f'pad={self.pad!r}. Allowed: True or False, "repeat" (as True) or "wrap".')
        if self.drop_last and self.pad:
            raise OrderError(f"drop_last=True and pad={self.pad!r}. The last batch is dropped or filled up, not both.")
        if self.is_stream:
            stream_spans(self.num_positions, 0, 0)
        elif self.offset > self.num_positions:
            raise OrderError(f"offset={self.offset} in an epoch of {self.num_positions} positions.")

    # worked out once: both are read with every batch
    @cached_property
    def global_batch_size(self) -> int:
        """Positions that all ranks together use up in one full batch."""
        return self.batch_size * self.world_size

    @cached_property
    def num_batches(self) -> int:
        """The number of this rank's batches in an epoch; equal on all ranks with ``drop_last`` or ``pad``."""
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
            k: 0 or more, counted from ``offset``; below `num_batches` where there is an end.
            epoch: the epoch that the spans name; those of a stream name their own.

        Raises:
            OrderError: no such batch.
        """
        begin = self.offset + k * self.global_batch_size
        if self.is_stream:
            check_count("k", k)
            first = begin + self.rank * self.batch_size
            return Share(tuple(stream_spans(self.num_positions, first, self.batch_size)), self.batch_size)
        if not 0 <= k < self.num_batches:
            raise OrderError(f"batch {k} of rank {self.rank}, which has {self.num_batches}.")
        held = self.num_positions - begin
        if held >= self.global_batch_size:
            own = RankSpan(epoch, begin + self.rank * self.batch_size, self.batch_size)
            return Share((own,), self.batch_size, self.batch_size if self.pad else None)
        start, count = even_share(held, self.rank, self.world_size)
        own = RankSpan(epoch, begin + start, count)
        if not self.pad:
            return Share((own,), count)
        if self.pad == "wrap" and count < self.batch_size:
            # ranks before this one have filled up theirs
            repeats = self._wrapped(epoch, self.rank * self.batch_size - start, self.batch_size - count)
            return Share((own, *repeats) if count else repeats, self.batch_size, count)
        # a rank without a position repeats the last one of the epoch
        return Share((own if count else RankSpan(epoch, self.num_positions - 1, 1),), self.batch_size, count)

    def _wrapped(self, epoch: int, number: int, count: int) -> tuple[RankSpan, ...]:
        """Return the spans of an epoch's repeats from a number on: its positions over and over again."""
        return tuple(
            RankSpan(epoch, span.start, span.count) for span in stream_spans(self.num_positions, number, count)
        )

    def consumed(self, k: int) -> int:
        """Return the positions that all ranks have used up before the k-th batch: the ``offset`` to resume at."""
        end = self.offset + k * self.global_batch_size
        return end if self.is_stream else min(end, self.num_positions)

    # the same, seen from a position: whole epochs, from their first position on

    def rank_sizes(self, epoch: int) -> list[int]:
        """Return how many positions of an epoch each rank gets."""
        return [self._count_before(rank, epoch, self.num_positions) for rank in range(self.world_size)]

    def runs(self, epoch: int, start: int, count: int) -> Iterator[Run]:
        """Yield the runs that the positions ``[start, start + count)`` of an epoch consist of, in order.

        Example:
            >>> list(Partition(10, 3, world_size=2).runs(0, 4, 4))
            [Run(rank=1, number=1, length=2), Run(rank=0, number=3, length=2)]
        """
        if self.world_size == 1:
            if count:
                yield Run(0, start, count)
            return
        end = start + count
        while start < end:
            rank, left = self._rank_at(epoch, start)
            taken = min(left, end - start)
            yield Run(rank, self._count_before(rank, epoch, start), taken)
            start += taken

    def _phase(self, epoch: int) -> int:
        """Return how many positions of a global batch came before an epoch begins."""
        return (epoch * self.num_positions - self.offset) % self.global_batch_size if self.is_stream else 0

    def _rank_at(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the rank of a position, and how many from it on belong to the same rank without a break."""
        whole = self.global_batch_size
        begin, place = divmod(self._phase(epoch) + position, whole)
        rest = self.num_positions - begin * whole
        if self.is_stream or rest >= whole:
            rank, within = divmod(place, self.batch_size)
            return rank, self.batch_size - within
        # the last batch is shared evenly, larger shares first
        size, extra = divmod(rest, self.world_size)
        rank = place // (size + 1) if place < extra * (size + 1) else (place - extra) // size
        first, held = even_share(rest, rank, self.world_size)
        return rank, first + held - place

    def _count_before(self, rank: int, epoch: int, position: int) -> int:
        """Return how many of the positions before one belong to a rank."""
        phase = self._phase(epoch)
        if self.is_stream:
            return self._full_before(rank, phase + position) - self._full_before(rank, phase)
        whole = self.global_batch_size
        full = min(position // whole, self.num_positions // whole)
        rest = self.num_positions - full * whole
        if rest >= whole:
            return self._full_before(rank, position)
        first, held = even_share(rest, rank, self.world_size)
        return full * self.batch_size + min(max(position - full * whole - first, 0), held)

    def _full_before(self, rank: int, slot: int) -> int:
        """Return how many of the first slots belong to a rank where all batches are full."""
        full, rest = divmod(slot, self.global_batch_size)
        return full * self.batch_size + min(max(rest - rank * self.batch_size, 0), self.batch_size)
