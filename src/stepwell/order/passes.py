"""The orders that visit every anchor exactly once an epoch: in storage order, or permuted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.order.keys import derive_key
from stepwell.order.order import AnchorIndex, BoundOrder, Order, check_range, check_seed

__all__ = ["Random", "Sequential", "random", "sequential"]


@dataclass(frozen=True)
class Sequential(Order):
    """Every anchor once, as stored; see `sequential`."""

    def bind(self, index: AnchorIndex) -> BoundOrder:
        """Return the order over the anchors of an index."""
        return _BoundSequential(index.num_anchors)


@dataclass(frozen=True)
class _BoundSequential(BoundOrder):
    num_anchors: int

    @property
    def num_positions(self) -> int:
        return self.num_anchors

    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        check_range(self, epoch, start, count)
        return np.arange(start, start + count, dtype=np.int64)


@dataclass(frozen=True)
class Random(Order):
    """Every anchor once, in an order that the seed and the epoch choose; see `random`."""

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))

    def bind(self, index: AnchorIndex) -> BoundOrder:
        """Return the order over the anchors of an index."""
        return _BoundRandom(index.num_anchors, self.seed)


@dataclass(frozen=True)
class _BoundRandom(BoundOrder):
    num_anchors: int
    seed: int

    @property
    def num_positions(self) -> int:
        return self.num_anchors

    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        from stepwell.kernels.permutation import permute

        check_range(self, epoch, start, count)
        places = np.arange(start, start + count, dtype=np.int64)
        if count == 0:
            return places
        return permute(places, self.num_anchors, derive_key(self.seed, epoch, "random"))


def sequential() -> Sequential:
    """Return the order that visits every anchor once, as stored: part by part, episode by episode, step by step."""
    return Sequential()


def random(seed: int = 0) -> Random:
    """Return the order that visits every anchor exactly once an epoch, each epoch in another random order.

    A keyed permutation computed by position: constant memory for 10**9 anchors, and no work to start anywhere.

    Args:
        seed: an int, 0 or more, of any size. Two pairs of seed and epoch have unrelated orders.

    Raises:
        OrderError: the seed is not one.
    """
    return Random(seed)
