"""Several stores mixed with given shares; each is walked by an order of its own, pass after pass.

A mixture never ends: epoch e holds its slots ``[e * M, (e + 1) * M)`` for M positions an epoch, so that a new epoch
goes on with each part where the last one stopped. Slots are dealt in spans and blocks::

    slots    |---------------- span 0 ----------------|---------------- span 1 --------------- ...
    blocks   | 64 | 64 | 64 | ...                     | 64 | 64 | ...
             | B A A A B A A ... shuffled inside a block, walked in order: A0 B0 A1 A2 ...

By the end of n spans of P slots a part of share w has had a number of slots less than 1 from ``n * P * w``: the
difference of two running sums of the shares, each exact and rounded down. P is at least ``1 / w`` for every part: with
less, a span's quota could come out negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.order.keys import derive_key, derive_seed
from stepwell.order.order import AnchorIndex, BoundOrder, Order, check_count, check_range, check_seed
from stepwell.order.passes import random
from stepwell.order.stream import stream_spans
from stepwell.order.weights import Weights, check_weights

if TYPE_CHECKING:
    from stepwell.windows import Blocks

__all__ = ["Mixed", "mixed"]

# a block may cross a pass, a span should cover many batches: its quotas are worked out in Python
_MIN_SPAN = 4096
# slots times quotas stay below 2**62, and every part has its turn within a span
_MAX_SPAN = 1 << 30


@dataclass(frozen=True)
class Mixed(Order):
    """Several stores mixed with given shares; see `mixed`."""

    weights: tuple[float, ...]
    order: Order | tuple[Order, ...] | None = None
    seed: int = 0
    num_samples: int | None = None

    def __post_init__(self) -> None:
        weights = check_weights("weights", self.weights)
        if len(weights) == 0:
            raise OrderError("a mixture without weights. One is needed for each store of the view.")
        scaled = weights / weights.max()
        if (scaled[weights > 0] * _MAX_SPAN < scaled.sum()).any():
            raise OrderError("a weight is less than 2**-30 of the sum. Set it to 0, or raise it.")
        object.__setattr__(self, "seed", check_seed(self.seed))
        object.__setattr__(self, "num_samples", check_count("num_samples", self.num_samples))
        object.__setattr__(self, "weights", tuple(weights.tolist()))
        if self.order is not None and not isinstance(self.order, Order):
            object.__setattr__(self, "order", _check_orders(self.order, len(weights)))

    def bind(self, index: AnchorIndex) -> BoundOrder:
        """Return the order over the anchors of an index.

        Raises:
            OrderError: there are not as many weights as stores, a store of positive weight has no anchor, or its order
                is not possible there.
        """
        num_parts = len(index.part_starts) - 1
        if len(self.weights) != num_parts:
            raise OrderError(f"{len(self.weights)} weights for a view of {num_parts} stores. One is needed for each.")
        num_samples = int(index.num_anchors if self.num_samples is None else self.num_samples)
        parts = tuple(self._bind_part(p, PartIndex(index, p)) for p in range(num_parts)) if num_samples else ()
        return _BoundMixed(parts, index.part_starts, _Shares.of(self.weights), self.seed, num_samples)

    def _bind_part(self, part: int, index: PartIndex) -> BoundOrder | None:
        if self.weights[part] == 0:
            return None
        if self.order is None:
            order: Order = random(derive_seed(self.seed, f"mixed part {part}"))
        else:
            order = self.order if isinstance(self.order, Order) else self.order[part]
        bound = order.bind(index)
        if bound.num_positions == 0:
            raise OrderError(f"store {part} of the mixture has weight {self.weights[part]} but no anchor. Set it to 0.")
        return bound


def mixed(
    weights: Weights,
    *,
    order: Order | Sequence[Order] | None = None,
    seed: int = 0,
    num_samples: int | None = None,
) -> Mixed:
    """Return the order that mixes the stores of a view with given shares.

    Each store is walked pass after pass by its own order: with `random` or `sequential` no anchor comes again before
    its store's pass is over, and passes go on over the ends of epochs. The shares are exact in the long run and close
    in every batch.

    Args:
        weights: float [P], one for each store of the view, in proportion to its share of positions; 0 leaves it out.
        order: how each store is walked, one for all or one each; when left out, `random` with a seed of
            its own for each. An order is told only the anchors of its store; `pooled` is refused.
        seed: an int, 0 or more.
        num_samples: positions an epoch; as many as the view has anchors when left out.

    Raises:
        OrderError: a weight is negative, infinite, NaN, or positive and below 2**-30 of their sum, or all are 0. At
            bind: there are not as many weights as stores, a store of positive weight has no anchor, or an order is
            pooled.

    Example:
        >>> mixed([3, 1], seed=5)
        Mixed(weights=(3.0, 1.0), order=None, seed=5, num_samples=None)
    """
    return Mixed(weights, order, seed, num_samples)  # type: ignore[arg-type]  # converted by the dataclass


@dataclass(frozen=True, eq=False)
class PartIndex:
    """The anchors of one store of a view, numbered from 0: an `AnchorIndex` for the order that walks it."""

    whole: AnchorIndex
    part: int

    @property
    def _range(self) -> tuple[int, int]:
        return int(self.whole.part_starts[self.part]), int(self.whole.part_starts[self.part + 1])

    @property
    def num_anchors(self) -> int:
        """The number of anchors of the store."""
        begin, end = self._range
        return end - begin

    @property
    def anchor_starts(self) -> npt.NDArray[np.int64]:
        """int64 [E + 1], the number of anchors before each episode of the store, and in all."""
        first, last = self.whole.episode_starts[self.part : self.part + 2]
        return self.whole.anchor_starts[first : last + 1] - self._range[0]

    @property
    def part_starts(self) -> npt.NDArray[np.int64]:
        """int64 [2]: 0, and the number of anchors."""
        return np.array([0, self.num_anchors], np.int64)

    @property
    def episode_starts(self) -> npt.NDArray[np.int64]:
        """int64 [2]: 0, and the number of episodes, those without anchors too."""
        return np.array([0, len(self.anchor_starts) - 1], np.int64)

    def read_steps(self, feature: str) -> npt.NDArray[np.float64]:
        """Return float64 [num_anchors], the value of a scalar feature at every anchor of the store."""
        begin, end = self._range
        return self.whole.read_steps(feature)[begin:end]

    def blocks(self, max_bytes: int) -> Blocks:
        """Refuse: the parts of a mixture would need a pool each."""
        raise OrderError(
            "a pooled order within mixed(...). Mix with random(...) or sequential(), or use pooled(...) over the whole "
            "view: it draws from all stores at once, each in proportion to its anchors."
        )


@dataclass(frozen=True)
class _Shares:
    # the shares as exact fractions bounds[p + 1] - bounds[p] of bounds[-1]; and the length of a span
    bounds: tuple[int, ...]
    span: int

    @classmethod
    def of(cls, weights: Sequence[float]) -> _Shares:
        from stepwell.order.mixture_kernels import BLOCK

        fractions = [Fraction(weight) for weight in weights]
        scale = lcm(*(fraction.denominator for fraction in fractions))
        whole = [int(fraction * scale) for fraction in fractions]
        shortest = max(_MIN_SPAN, -(-sum(whole) // min(w for w in whole if w)))
        return cls((0, *accumulate(whole)), -(-shortest // BLOCK) * BLOCK)

    def dealt(self, num_spans: int) -> list[int]:
        """Return the slots that each part has had by the end of a number of spans: exact at any size."""
        ends = [num_spans * self.span * bound // self.bounds[-1] for bound in self.bounds]
        return [end - begin for begin, end in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class _BoundMixed(BoundOrder):
    parts: tuple[BoundOrder | None, ...]
    part_starts: npt.NDArray[np.int64]
    shares: _Shares
    seed: int
    num_samples: int

    @property
    def num_positions(self) -> int:
        return self.num_samples

    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        check_range(self, epoch, start, count)
        pieces = [self._span_anchors(*piece) for piece in self._pieces(epoch * self.num_samples + start, count)]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def _pieces(self, slot: int, count: int) -> Iterator[tuple[int, int, int]]:
        end = slot + count
        while slot < end:
            span, begin = divmod(slot, self.shares.span)
            taken = min(self.shares.span - begin, end - slot)
            yield span, begin, begin + taken
            slot += taken

    def _span_anchors(self, span: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        from stepwell.order.mixture_kernels import BLOCK, deal_blocks

        layout = _layout_of(self.shares, self.seed, span)
        first = begin // BLOCK
        labels, ranks = deal_blocks(first, -(-end // BLOCK) - first, layout.quotas, layout.phases, layout.key)
        wanted = slice(begin - first * BLOCK, end - first * BLOCK)
        labels, ranks = labels[wanted], ranks[wanted]
        anchors = np.empty(end - begin, np.int64)
        for part, order in enumerate(self.parts):
            chosen = np.flatnonzero(labels == part)
            if order is not None and len(chosen):
                walked = _walk(order, layout.before[part] + int(ranks[chosen[0]]), len(chosen))
                anchors[chosen] = walked + self.part_starts[part]
        return anchors


@dataclass(frozen=True, eq=False, slots=True)
class _Layout:
    # of one span: the slots each part had before it and has in it, and what deals them
    before: list[int]
    quotas: npt.NDArray[np.int64]
    phases: npt.NDArray[np.int64]
    key: npt.NDArray[np.uint64]


# the batches of an epoch ask for the same few spans again and again, from several threads
@lru_cache(maxsize=64)
def _layout_of(shares: _Shares, seed: int, span: int) -> _Layout:
    from stepwell.kernels.permutation import uniforms

    before, after = shares.dealt(span), shares.dealt(span + 1)
    quotas = np.array([end - begin for begin, end in zip(before, after, strict=True)], np.int64)
    # a random phase each, or rare parts would all have their turns in the same block
    rests = np.cumsum(quotas[::-1])[::-1]
    phases = uniforms(np.arange(len(quotas)), derive_key(seed, span, "mixed phases")) * rests
    return _Layout(before, quotas, phases.astype(np.int64), derive_key(seed, span, "mixed blocks"))


def _walk(order: BoundOrder, offset: int, count: int) -> npt.NDArray[np.int64]:
    spans = stream_spans(order.num_positions, offset, count)
    walked = [order.positions(span.epoch, span.start, span.count) for span in spans]
    return walked[0] if len(walked) == 1 else np.concatenate(walked)


def _check_orders(orders: Sequence[Order], num_parts: int) -> tuple[Order, ...]:
    if not isinstance(orders, Sequence) or not all(isinstance(order, Order) for order in orders):
        raise OrderError(f"order={orders!r}. Allowed is one Order for all stores, or a sequence with one for each.")
    if len(orders) != num_parts:
        raise OrderError(f"{len(orders)} orders for {num_parts} weights. One is needed for each.")
    return tuple(orders)
