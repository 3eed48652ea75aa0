"""A random order for what must be decoded: anchors drawn from a pool of blocks, each of which is loaded once an epoch.

The anchors are cut into M blocks (`stepwell.windows.Blocks`); the blocks are taken in an order that seed and epoch
choose. At any time S of them are resident. An epoch is cut into R **rounds**; in each, anchors are drawn from all
resident blocks, and between two rounds the oldest block leaves and the next enters::

    R = L - S + 1                       rounds of L blocks: block j, counted in the order of the epoch,
    enter(j) = max(0, j - S + 1)        is resident from this round on,
    leave(j) = min(j, R - 1)            to this one;  so the blocks of round r are j = r, ..., r + S - 1

The n anchors of a block are permuted by a key of (seed, epoch, block), and shared by its rounds in proportion to their
weights: of round r it gets ``[edge(r), edge(r + 1))`` of them. A phase, ``0 <= phase < stay`` by the same key, says
where fractions go, or small blocks would all have their anchors in the same place::

    weight(r) = A for the first and the last round, A = S / (e - 1), rounded; else 1
    before(r) = weight(0) + ... + weight(r - 1)
    stay(j)   = before(leave(j) + 1) - before(enter(j))
    edge(r)   = (n * (before(r) - before(enter(j))) + phase) // stay(j)     0 where it enters, n when it has left

All parts of a round are permuted together. The size of each round, and with it the round of any position, follows from
a sum over the blocks: no simulation and no state. 5 blocks of 15 anchors, S = 3, R = 3, A = 2::

    block   0  1  2  3  4
    round 0 15 10 6                 positions  0 .. 30, a random mix of these
    round 1    5  3  5              positions 31 .. 43
    round 2       6  10 15          positions 44 .. 74

The pool is full when an epoch begins, and again when it ends, so these two rounds are long. With equal weights block 0
would be drawn S times as often in the first as block S - 1, and a quarter of the pool would count. With A as it is, no
resident block is drawn more than e times as often as another, and the rounds between still have about a block's
anchors each (``x - ln(1/e + x - x/e)`` for x from 0 to 1, at least 0.87), so that blocks are not needed in bursts.

Ranks: with W ranks the sequence of all anchors, block after block in the order of the epoch, is cut into W parts, each
as long as what its rank gets (`stepwell.order.Partition`). A block at a cut is in two parts, with some of its permuted
anchors in each. A rank draws its positions from its own part, by the rules above, so that it loads no other blocks.

``shards``: blocks do not reach beyond a segment, and an epoch takes all blocks of a segment, in a random order, before
those of the next; segments come in a random order, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.order.order import Anchors, BoundOrder, Order, check_count, check_range, check_seed, derive_key
from stepwell.order.ranks import Partition
from stepwell.sizes import counted, parse_bytes

if TYPE_CHECKING:
    from stepwell.windows import Blocks

__all__ = ["BoundPooled", "Pooled", "pooled"]

Int64s = npt.NDArray[np.int64]

# two to draw from, and two on their way
_LEAST_SLOTS = 4
# how many blocks a pool has room for by default, and with how many times the rows loaded at most. Measured
# (benchmarks/bench_mixing.py): 64 mix as a shuffle buffer of the same size does, 256 nearly as `random` does
_USUAL_BLOCKS = {256: 1.05, 128: 1.05, 64: 1.25}
_FEW_BLOCKS = 32
_EVERYTHING = 1 << 60
# an iteration has one epoch under way, or two where it goes from one to the next
_MAX_KNOWN = 8


@dataclass(frozen=True)
class Pooled(Order):
    """Every anchor once, drawn from a pool; see `pooled`."""

    bytes: int
    seed: int = 0
    blocks: int | None = None
    shards: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_bytes("bytes", self.bytes, error=OrderError))
        object.__setattr__(self, "seed", check_seed(self.seed))
        object.__setattr__(self, "blocks", check_count("blocks", self.blocks, least=_LEAST_SLOTS))

    def bind(self, index: Anchors) -> BoundPooled:
        """Return the order over the anchors of an index."""
        blocks = self._cut(index)
        if self.shards:
            blocks = blocks.within_segments()
        num_slots = self.bytes // blocks.max_bytes if blocks.max_bytes else len(blocks)
        if num_slots < min(_LEAST_SLOTS, len(blocks)):
            needed = _LEAST_SLOTS * blocks.max_bytes
            raise OrderError(
                f"a pool of {self.bytes:,} bytes holds {counted(num_slots, 'block')} of {blocks.max_bytes:,} bytes, "
                f"which the longest windows (or runs of a video) need. Use at least pooled(bytes={needed})."
            )
        segments = blocks.segments if self.shards else None
        return BoundPooled(blocks, num_slots, self.seed, Partition(index.num_anchors), segments)

    def _cut(self, index: Anchors) -> Blocks:
        if self.blocks is not None:
            return index.blocks(max(1, self.bytes // self.blocks))
        once = index.blocks(_EVERYTHING).num_bytes
        for number, most in _USUAL_BLOCKS.items():
            blocks = index.blocks(max(1, self.bytes // number))
            if blocks.num_bytes <= most * once:
                return blocks
        return index.blocks(max(1, self.bytes // _FEW_BLOCKS))


def pooled(bytes: int | str = "512 MiB", *, seed: int = 0, blocks: int | None = None, shards: bool = False) -> Pooled:
    """Return the order that draws at random from a pool of decoded steps, and visits every anchor once an epoch.

    A loader keeps the steps it decodes for one window for the others that show them: each is decoded about once
    an epoch, in memory that is bounded. An epoch is a random order of blocks of steps; anchors are drawn at random from
    all blocks in the pool, and a block that is used up is replaced by the next, which was loaded meanwhile. A view
    that fits into the pool is decoded once for all epochs, and drawn from as `random` does.

    Args:
        bytes: memory for decoded steps: an int, or "512 MiB", "2 GB" (GB is 10**9, GiB 2**30).
        seed: an int, 0 or more.
        blocks: how many blocks the pool has room for, at least 4: more of them mix better, but are read from the disk
            in smaller spans, and steps that lie between two of them are decoded for both. Default: 256 or 128 where
            that is so for less than 5 % of the steps, else 64 where for less than 25 %, else 32.
        shards: read a segment (of shards that are read in place: a shard) to its end before the next is begun, segments
            in a random order: each shard of another machine is fetched once an epoch, however few of them the cache
            has room for. The pool then holds a few shards only: give it room for several of them.

    Raises:
        OrderError: a number is out of range; at bind: the windows need a larger pool.

    Example:
        >>> pooled("64 MiB", seed=3)
        Pooled(bytes=67108864, seed=3, blocks=None)

    Notes:
        A function of (seed, epoch, position) and of how the anchors are cut into blocks, that is of the fields, too;
        with several ranks also of the batch size and their number.
    """
    return Pooled(bytes, seed, blocks, shards)  # type: ignore[arg-type]  # converted by the dataclass


@dataclass(frozen=True, eq=False)
class RankEpoch:
    """The blocks that one rank draws from in one epoch."""

    # int64 [L], in the order of the epoch
    blocks: Int64s
    # int64 [L, columns], of `stepwell.order.pooled_kernels`
    lines: Int64s
    # int64 [R + 1], positions of the rank before each round
    round_starts: Int64s
    # S, blocks of a round
    num_resident: int
    # uint64 [2], of the shuffles inside the rounds
    key: npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class BoundPooled(BoundOrder):
    """A pooled order over one index.

    Args:
        blocks: that the anchors are cut into.
        num_slots: how many of them the pool has memory for.
        seed: of the order.
        partition: which rank gets which positions; one rank until `for_ranks`.
        segments: int64 [M], of each block, where those of a segment are taken together; None: one by one.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.testing import tiny_store
        >>> from stepwell.windows import AnchorIndex
        >>> store = tiny_store(f"{tempfile.mkdtemp()}/a.well", lengths=[30, 50])
        >>> bound = stepwell.pooled("1 MiB", seed=1).bind(AnchorIndex(stepwell.View(store), []))
        >>> type(bound).__name__, bound.num_positions, sorted(bound.positions(0, 0, 80)) == list(range(80))
        ('BoundPooled', 80, True)

    Notes:
        As for `BoundOrder`. Keeps some numbers a block for the last few epochs.
    """

    blocks: Blocks
    num_slots: int
    seed: int
    partition: Partition
    segments: Int64s | None = None

    @property
    def num_positions(self) -> int:
        """The number of anchors that an epoch visits."""
        return self.partition.num_positions

    @property
    def num_resident(self) -> int:
        """The number of blocks that are drawn from at a time: all, where they fit into the pool."""
        return self._num_resident_of(len(self.blocks))

    @property
    def digest(self) -> str:
        """How the anchors are cut, as text."""
        shards = "" if self.segments is None else " by shards"
        return f"{len(self.blocks)} blocks {zlib.crc32(self.blocks.starts.tobytes()):08x}{shards}"

    @property
    def depends_on_ranks(self) -> bool:
        """True: with several ranks the order depends on the batch size and on their number."""
        return True

    def for_ranks(self, partition: Partition) -> BoundPooled:
        """Return the order in which each rank has blocks of its own.

        Raises:
            OrderError: the partition is of another number of positions.
        """
        if partition.num_positions != self.num_positions:
            raise OrderError(
                f"a partition of {partition.num_positions} positions for an order of {self.num_positions}."
            )
        return BoundPooled(self.blocks, self.num_slots, self.seed, partition, self.segments)

    def positions(self, epoch: int, start: int, count: int) -> Int64s:
        """Return the anchors at the positions ``[start, start + count)`` of an epoch; see `BoundOrder.positions`."""
        from stepwell.order.pooled_kernels import deal

        check_range(self, epoch, start, count)
        anchors = np.empty(count, np.int64)
        if count == 0:
            return anchors
        done = 0
        for rank, number, taken in self.partition.runs(epoch, start, count):
            own = self._rank_epoch(epoch, rank)
            out = anchors[done : done + taken]
            deal(own.lines, own.round_starts, own.num_resident, own.key, number, out)
            done += taken
        return anchors

    def entering(self, epoch: int, position: int, count: int) -> Int64s:
        """Return the blocks that a rank needs from a position on, in the order in which it first needs them.

        First come those of the position's round, `num_resident` of them or all where the rank has fewer, of which the
        first leave first; then those that enter with each next round, one each. Positions before the end of a round
        draw from the first `num_resident` only. Where the epoch ends, so does the answer: the next one's blocks are
        ``entering(epoch + 1, first position of the rank there, count)``.

        Args:
            epoch: 0 or more.
            position: of the epoch, 0 to `num_positions`; the blocks are those of the rank that gets it.
            count: how many blocks are wanted at most.

        Returns:
            int64 [<= count], numbers of blocks, none twice.

        Raises:
            OrderError: the epoch or the position is out of bounds.
        """
        check_range(self, epoch, position, 0)
        if position == self.num_positions:
            return np.zeros(0, np.int64)
        run = next(self.partition.runs(epoch, position, 1))
        own = self._rank_epoch(epoch, run.rank)
        current = int(np.searchsorted(own.round_starts, run.number, side="right")) - 1
        return own.blocks[current : current + count].copy()

    @cached_property
    def _rank_epoch(self) -> Callable[[int, int], RankEpoch]:
        return lru_cache(maxsize=_MAX_KNOWN)(self._make_rank_epoch)

    def _num_resident_of(self, num_blocks: int) -> int:
        if num_blocks <= self.num_slots:
            return num_blocks
        return self.num_slots - max(2, self.num_slots // 8)

    def _make_rank_epoch(self, epoch: int, rank: int) -> RankEpoch:
        from stepwell.order.pooled_kernels import key_lines, sum_rounds

        sizes = self.partition.rank_sizes(epoch)
        begin = sum(sizes[:rank])
        blocks, lines = self._sequence(epoch, begin, begin + sizes[rank])
        num_resident = self._num_resident_of(len(blocks))
        round_starts = np.empty(len(blocks) - num_resident + 2, np.int64)
        key_lines(lines, blocks, num_resident, derive_key(self.seed, epoch, "pooled anchors"))
        sum_rounds(lines, num_resident, round_starts)
        return RankEpoch(
            blocks, lines, round_starts, num_resident, derive_key(self.seed, epoch, f"pooled rounds {rank}")
        )

    def _sequence(self, epoch: int, begin: int, end: int) -> tuple[Int64s, Int64s]:
        """Return the blocks that hold the anchors ``[begin, end)`` of an epoch's sequence, and a line for each."""
        from stepwell.kernels.permutation import permute
        from stepwell.order.pooled_kernels import BEGIN, COUNT, FIRST, LINE_COLUMNS, SIZE

        num_blocks = len(self.blocks)
        sequence = permute(np.arange(num_blocks), num_blocks, derive_key(self.seed, epoch, "pooled blocks"))
        if self.segments is not None:
            _, groups = np.unique(self.segments, return_inverse=True)
            num_groups = int(groups.max(initial=0)) + 1
            turns = permute(groups, num_groups, derive_key(self.seed, epoch, "pooled segments"))
            sequence = sequence[np.argsort(turns[sequence], kind="stable")]
        sizes = np.diff(self.blocks.starts)[sequence]
        ends = np.cumsum(sizes)
        held = slice(int(np.searchsorted(ends, begin, side="right")), int(np.searchsorted(ends, end)) + 1)
        sequence, sizes, starts = sequence[held], sizes[held], (ends - sizes)[held]
        lines = np.zeros((len(sequence), LINE_COLUMNS), np.int64)
        lines[:, FIRST], lines[:, SIZE] = self.blocks.starts[sequence], sizes
        lines[:, BEGIN] = np.maximum(begin - starts, 0)
        lines[:, COUNT] = np.minimum(sizes, end - starts) - lines[:, BEGIN]
        return sequence, lines

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundPooled, (self.blocks, self.num_slots, self.seed, self.partition, self.segments)
