"""Draws in proportion to weights, and mixtures of several stores with given shares.

Each store of a mixture is walked by an order of its own, pass after pass.

A mixture never ends: epoch e holds its slots ``[e * M, (e + 1) * M)`` for M positions an epoch, so that a new epoch
goes on with each part where the last one stopped. Slots are assigned in spans and blocks::

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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.order.order import (
    Anchors,
    BoundOrder,
    Order,
    check_count,
    check_range,
    check_seed,
    derive_key,
    derive_seed,
    random,
)
from stepwell.order.ranks import stream_spans

if TYPE_CHECKING:
    from stepwell.windows import Blocks

__all__ = ["Mixed", "Weighted", "Weights", "mixed", "weighted"]

Weights: TypeAlias = Sequence[float] | npt.NDArray[Any]
Per = Literal["step", "episode"]
_Floats: TypeAlias = npt.NDArray[np.float64]
# a block may cross a pass, a span should cover many batches: its quotas are worked out in Python
_MIN_SPAN = 4096
# slots times quotas stay below 2**62, and every part has its turn within a span
_MAX_SPAN = 1 << 30


@dataclass(frozen=True, eq=False, repr=False)
class Weighted(Order):
    """Anchors drawn with replacement, in proportion to weights; see `weighted`."""

    episodes: _Floats | None = None
    steps: str | _Floats | None = None
    per: Per = "step"
    seed: int = 0
    num_samples: int | None = None
    drop_last_steps: int = 0

    def __post_init__(self) -> None:
        if self.per not in get_args(Per):
            raise OrderError(f'per={self.per!r}. Allowed are "step" and "episode".')
        object.__setattr__(self, "seed", check_seed(self.seed))
        object.__setattr__(self, "num_samples", check_count("num_samples", self.num_samples))
        object.__setattr__(self, "drop_last_steps", check_count("drop_last_steps", self.drop_last_steps) or 0)
        if self.episodes is not None:
            object.__setattr__(self, "episodes", check_weights("episodes", self.episodes))
        if self.steps is not None and not isinstance(self.steps, str):
            object.__setattr__(self, "steps", check_weights("steps", self.steps))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weighted):
            return NotImplemented
        pairs = ((self.episodes, other.episodes), (self.steps, other.steps))
        return self._scalars == other._scalars and all(_same(a, b) for a, b in pairs)

    @property
    def _scalars(self) -> tuple[Per, int, int | None, int]:
        return self.per, self.seed, self.num_samples, self.drop_last_steps

    __hash__ = None  # type: ignore[assignment]  # as an array has none

    def __repr__(self) -> str:
        episodes, steps = (
            f"float64{list(w.shape)}" if isinstance(w, np.ndarray) else repr(w) for w in (self.episodes, self.steps)
        )
        dropped = f", drop_last_steps={self.drop_last_steps}" if self.drop_last_steps else ""
        return (
            f"Weighted(episodes={episodes}, steps={steps}, per={self.per!r}, seed={self.seed}, "
            f"num_samples={self.num_samples}{dropped})"
        )

    def bind(self, index: Anchors) -> BoundOrder:
        """Return the order over the anchors of an index."""
        num_samples = int(index.num_anchors if self.num_samples is None else self.num_samples)
        if index.num_anchors == 0:
            if num_samples:
                raise OrderError(
                    f"num_samples={num_samples} of a view without anchors. Select episodes that have some."
                )
            return _BoundWeighted(index.anchor_starts, index.anchor_starts[1:], np.zeros(0), None, self.seed, 0)
        starts = index.anchor_starts
        # where an episode's anchors that may be drawn end
        ends = np.maximum(starts[1:] - self.drop_last_steps, starts[:-1])
        steps = _step_weights(self.steps, index)
        if steps is not None and self.drop_last_steps:
            steps = _without_ends(steps, starts, ends)
        inner = (ends - starts[:-1]).astype(np.float64) if steps is None else _sum_by_episode(steps, starts)
        masses = _episode_masses(self.episodes, inner, per_episode=self.per == "episode")
        cumulative_steps = None if steps is None else _cumulate_within(steps, inner, index.anchor_starts)
        return _BoundWeighted(starts, ends, np.cumsum(masses), cumulative_steps, self.seed, num_samples)


@dataclass(frozen=True, eq=False)
class _BoundWeighted(BoundOrder):
    anchor_starts: npt.NDArray[np.int64]
    anchor_ends: npt.NDArray[np.int64]
    cumulative_episodes: _Floats
    cumulative_steps: _Floats | None
    seed: int
    num_samples: int

    @property
    def num_positions(self) -> int:
        return self.num_samples

    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        from stepwell.kernels.permutation import uniforms

        check_range(self, epoch, start, count)
        if count == 0:
            return np.zeros(0, np.int64)
        places = np.arange(start, start + count, dtype=np.int64)
        episodes = _draw(self.cumulative_episodes, uniforms(places, derive_key(self.seed, epoch, "weighted episodes")))
        return self._draw_within(episodes, uniforms(places, derive_key(self.seed, epoch, "weighted steps")))

    def _draw_within(self, episodes: npt.NDArray[np.int64], uniform: _Floats) -> npt.NDArray[np.int64]:
        begin, end = self.anchor_starts[episodes], self.anchor_ends[episodes]
        if self.cumulative_steps is None:
            return np.minimum(begin + (uniform * (end - begin)).astype(np.int64), end - 1)
        before = np.where(begin > 0, self.cumulative_steps[begin - 1], 0.0)
        targets = before + uniform * (self.cumulative_steps[end - 1] - before)
        return _search(self.cumulative_steps, targets, self.cumulative_steps[end - 1])


def weighted(
    *,
    episodes: Weights | None = None,
    steps: str | Weights | None = None,
    per: Per = "step",
    seed: int = 0,
    num_samples: int | None = None,
    drop_last_steps: int = 0,
) -> Weighted:
    """Return the order that draws anchors with replacement, in proportion to weights.

    With two episodes of 2 and 6 anchors, and ``episodes=[3, 1]``::

        per="step"       each anchor has its episode's weight       3 3 | 1 1 1 1 1 1      episodes drawn 6 : 6
        per="episode"    each episode has its weight, whatever it   3/2 3/2 | 1/6 ...      episodes drawn 3 : 1
                         holds, shared by its anchors

    Where there are ``steps`` too, they multiply: with "step" an anchor's weight is its episode's times its own, with
    "episode" an episode's weight is shared by its anchors in proportion to theirs. `weighted(per="episode")` alone
    draws all episodes alike, `weighted()` all anchors alike.

    Args:
        episodes: float [E], one weight for each episode of the view; all 1 when left out.
        steps: the name of a scalar feature that holds the weight of every step, or float [num_anchors]; all 1 when left
            out. Takes 8 bytes of memory for each anchor; ``episodes`` alone takes 8 for each episode.
        per: the unit that an episode's weight applies to.
        seed: an int, 0 or more.
        num_samples: draws an epoch; as many as there are anchors when left out.
        drop_last_steps: anchors at the end of every episode that are never drawn: where windows of future actions are
            mostly padding. Before weights are shared: with "episode" an episode keeps its weight.

    Raises:
        OrderError: a weight is negative, infinite or NaN, all are 0, or there are not as many as episodes or anchors.

    Example:
        >>> weighted(episodes=[3, 1], per="episode", seed=1)
        Weighted(episodes=float64[2], steps=None, per='episode', seed=1, num_samples=None)

    Notes:
        An episode without anchors (all its windows dropped), or whose steps all weigh 0, is never drawn; the others
        share its mass.
    """
    # converted by the dataclass
    return Weighted(episodes, steps, per, seed, num_samples, drop_last_steps)  # type: ignore[arg-type]


def check_weights(name: str, weights: Any) -> _Floats:
    """Return weights as a read-only float64 copy."""
    try:
        array = np.array(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise OrderError(f"{name} of type {type(weights).__name__}. Allowed are numbers, one weight each.") from error
    if array.ndim != 1:
        raise OrderError(f"{name} of shape {array.shape}. Allowed is one dimension, one weight each.")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise OrderError(f"{name}[{bad[0]}] is {array[bad[0]]}. Allowed are finite weights of 0 and more.")
    if len(array) and not array.any():
        raise OrderError(f"{name} are all 0. At least one must be above 0.")
    array.flags.writeable = False
    return array


def _step_weights(steps: str | _Floats | None, index: Anchors) -> _Floats | None:
    if steps is None:
        return None
    weights = (
        check_weights(f"weights in feature {steps!r}", index.read_steps(steps)) if isinstance(steps, str) else steps
    )
    if len(weights) != index.num_anchors:
        raise OrderError(f"{len(weights)} weights of steps for {index.num_anchors} anchors. One is needed for each.")
    # scaled, so that weights near the end of what a float can hold do not overflow when summed
    scaled: _Floats = weights / weights.max()
    return scaled


def _without_ends(steps: _Floats, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Floats:
    is_kept = np.arange(len(steps)) < np.repeat(ends, np.diff(starts))
    kept: _Floats = np.where(is_kept, steps, 0.0)
    return kept


def _sum_by_episode(steps: _Floats, starts: npt.NDArray[np.int64]) -> _Floats:
    counts = np.diff(starts)
    sums = np.zeros(len(counts))
    # reduceat knows no empty group, but skipping them leaves the others' ends where they are
    sums[counts > 0] = np.add.reduceat(steps, starts[:-1][counts > 0])
    return sums


def _episode_masses(episodes: _Floats | None, inner: _Floats, *, per_episode: bool) -> _Floats:
    if episodes is not None and len(episodes) != len(inner):
        raise OrderError(f"{len(episodes)} weights of episodes for {len(inner)} episodes. One is needed for each.")
    weights = np.ones(len(inner)) if episodes is None else episodes / episodes.max()
    masses: _Floats = np.where(inner > 0, weights, 0.0) if per_episode else weights * inner
    if not masses.any():
        raise OrderError(
            "no anchor can be drawn: each episode of positive weight has no anchors, or only steps of weight 0."
        )
    return masses


def _cumulate_within(steps: _Floats, inner: _Floats, starts: npt.NDArray[np.int64]) -> _Floats:
    # each episode sums to 1, so that one of small weights keeps its digits behind many of large ones
    divisors = np.repeat(np.where(inner > 0, inner, 1.0), np.diff(starts))
    cumulative: _Floats = np.cumsum(steps / divisors)
    return cumulative


def _draw(cumulative: _Floats, uniform: _Floats) -> npt.NDArray[np.int64]:
    return _search(cumulative, uniform * cumulative[-1], cumulative[-1])


def _search(cumulative: _Floats, targets: _Floats, totals: Any) -> npt.NDArray[np.int64]:
    # rounding may lift a target to its total, which lies behind the last weight: the number just below is inside it.
    # side="right" steps over weights of 0, which add nothing to the sum.
    inside = np.minimum(targets, np.nextafter(totals, 0.0))
    found: npt.NDArray[np.int64] = np.searchsorted(cumulative, inside, side="right").astype(np.int64, copy=False)
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


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

    def bind(self, index: Anchors) -> BoundOrder:
        """Return the order over the anchors of an index."""
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
            its own for each. An order sees only the anchors of its store; `pooled` is refused.
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
    """The anchors of one store of a view, numbered from 0: an `Anchors` for the order that walks it."""

    whole: Anchors
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

    def slots_before(self, num_spans: int) -> list[int]:
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
    # of one span: the slots each part had before it and has in it, and what assigns them
    before: list[int]
    quotas: npt.NDArray[np.int64]
    phases: npt.NDArray[np.int64]
    key: npt.NDArray[np.uint64]


# the batches of an epoch ask for the same few spans again and again, from several threads
@lru_cache(maxsize=64)
def _layout_of(shares: _Shares, seed: int, span: int) -> _Layout:
    from stepwell.kernels.permutation import uniforms

    before, after = shares.slots_before(span), shares.slots_before(span + 1)
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
