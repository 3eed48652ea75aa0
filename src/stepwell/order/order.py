"""Orders: a config that is bound to an index, and then gives the anchor at each position of an epoch.

To write an order of your own, subclass both classes: the config (a frozen dataclass) has `Order.bind`, the running
object has `BoundOrder.num_positions` and `BoundOrder.positions`::

    @dataclass(frozen=True)
    class Backwards(Order):
        def bind(self, index): return BoundBackwards(index.num_anchors)

    @dataclass(frozen=True)
    class BoundBackwards(BoundOrder):
        num_anchors: int
        @property
        def num_positions(self): return self.num_anchors
        def positions(self, epoch, start, count):
            check_range(self, epoch, start, count)
            return self.num_anchors - 1 - np.arange(start, start + count)
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError

if TYPE_CHECKING:
    from stepwell.order.ranks import Partition
    from stepwell.windows import Blocks

__all__ = [
    "Anchors",
    "BoundOrder",
    "Order",
    "Random",
    "Sequential",
    "check_count",
    "check_range",
    "check_seed",
    "derive_key",
    "derive_seed",
    "make_order",
    "random",
    "sequential",
]


class Anchors(Protocol):
    """The anchors of a view, as an order sees them; `stepwell.windows.AnchorIndex` implements it.

    Anchors are numbered part by part (a part is one store of the view), episode by episode, step by step.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.testing import tiny_store
        >>> from stepwell.windows import AnchorIndex
        >>> index: Anchors = AnchorIndex(stepwell.View(tiny_store(f"{tempfile.mkdtemp()}/a.well", lengths=[3, 5])), [])
        >>> index.num_anchors, index.anchor_starts.tolist(), len(index.read_steps("reward"))
        (8, [0, 3, 8], 8)
    """

    @property
    def num_anchors(self) -> int:
        """The number of anchors."""

    @property
    def anchor_starts(self) -> npt.NDArray[np.int64]:
        """int64 [E + 1], the number of anchors before each episode of the view, and in all."""

    @property
    def part_starts(self) -> npt.NDArray[np.int64]:
        """int64 [P + 1], the number of anchors before each store of the view, and in all."""

    @property
    def episode_starts(self) -> npt.NDArray[np.int64]:
        """int64 [P + 1], the number of episodes before each store of the view, and in all."""

    def read_steps(self, feature: str) -> npt.NDArray[np.float64]:
        """Return float64 [num_anchors], the value of a scalar feature at every anchor.

        Raises:
            FeatureNotFoundError: no such feature.
        """

    def blocks(self, max_bytes: int) -> Blocks:
        """Return the anchors cut into blocks of about as many bytes of decoded rows.

        Raises:
            OrderError: these anchors cannot be cut.
        """


class BoundOrder(ABC):
    """An order over the anchors of one index.

    Notes:
        Immutable; any thread may ask for any range at any time, and the same range is always answered the same.
    """

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """The number of anchors that an epoch visits, the same in every epoch."""

    @abstractmethod
    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the anchors at the positions ``[start, start + count)`` of an epoch.

        Args:
            epoch: 0 or more, without end.
            start: first position, 0 or more.
            count: number of positions; ``start + count`` is at most `num_positions`.

        Returns:
            int64 [count], numbers of anchors; the caller's own memory.

        Raises:
            OrderError: the epoch or the range is out of bounds.
        """

    @property
    def digest(self) -> str:
        """Text of all that it depends on beside the order and the set of anchors; "" (the default) for nothing."""
        return ""

    @property
    def depends_on_ranks(self) -> bool:
        """Whether `for_ranks` makes another order of it; False is the default."""
        return False

    def for_ranks(self, partition: Partition) -> BoundOrder:
        """Return the order to use where several ranks share an epoch; the default is the order itself.

        Args:
            partition: which rank gets which positions.
        """
        return self


class Order(ABC):
    """The description of an order: a frozen dataclass, to print, pickle and compare."""

    @abstractmethod
    def bind(self, index: Anchors) -> BoundOrder:
        """Return the order over the anchors of an index.

        Args:
            index: the anchors; not to be kept where a few numbers of it will do.

        Raises:
            OrderError: this order is not possible over these anchors.
        """


def check_range(order: BoundOrder, epoch: int, start: int, count: int) -> None:
    """Refuse a range of positions that an epoch does not have; for use in `BoundOrder.positions`.

    Raises:
        OrderError: the epoch or the range is out of bounds.
    """
    if epoch < 0:
        raise OrderError(f"epoch {epoch}. Epochs count from 0.")
    if start < 0 or count < 0 or start + count > order.num_positions:
        raise OrderError(
            f"positions [{start}, {start + count}) of an epoch of {order.num_positions}. "
            f"Allowed are ranges within [0, {order.num_positions})."
        )


def check_seed(seed: int) -> int:
    """Return a seed as a Python int: numpy's print differently and are not JSON."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise OrderError(f"seed {seed!r}. A seed is an int, 0 or more, of any size.")
    return int(seed)


def check_count(name: str, value: int | None, *, least: int = 0) -> int | None:
    """Return a number of things as a Python int, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise OrderError(f"{name}={value!r}. Allowed is an int of at least {least}.")
    return int(value)


def derive_key(seed: int, epoch: int, purpose: str) -> npt.NDArray[np.uint64]:
    """Return the 128-bit key of one stream of random numbers.

    The three arguments are hashed as separate words (BLAKE2b), so that seed 0 epoch 1 has nothing to do with seed 1
    epoch 0, at any size of either, on any machine and Python version.

    Args:
        seed: an int, 0 or more, of any size.
        epoch: an int, 0 or more, of any size.
        purpose: the use of the numbers, so that two draws of one epoch are independent; no "/" in it.

    Returns:
        uint64 [2].

    Example:
        >>> bool((derive_key(0, 1, "random") == derive_key(1, 0, "random")).any())
        False
    """
    digest = _digest(seed, epoch, purpose)
    return np.array([int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")], np.uint64)


def derive_seed(seed: int, purpose: str) -> int:
    """Return a seed of 128 bits for a part of something that has a seed itself."""
    return int.from_bytes(_digest(seed, 0, f"seed of {purpose}"), "little")


def _digest(seed: int, epoch: int, purpose: str) -> bytes:
    return hashlib.blake2b(f"stepwell/{purpose}/{seed}/{epoch}".encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Sequential(Order):
    """Every anchor once, as stored; see `sequential`."""

    def bind(self, index: Anchors) -> BoundOrder:
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

    def bind(self, index: Anchors) -> BoundOrder:
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


def make_order(order: str | Order, *, seed: int = 0) -> Order:
    """Return the order that a name stands for; an `Order` is passed through.

    Args:
        order: "sequential", "random", "pooled" (of 512 MiB), or an order of any kind.
        seed: for an order given by name; an `Order` has its own.

    Raises:
        OrderError: no such name, or not an order.

    Example:
        >>> make_order("random", seed=7)
        Random(seed=7)
    """
    # it builds on this module
    from stepwell.order.pooled import pooled

    named: dict[str, Callable[[], Order]] = {
        "sequential": sequential,
        "random": lambda: random(seed),
        "pooled": lambda: pooled(seed=seed),
    }
    if isinstance(order, Order):
        return order
    if isinstance(order, str) and order in named:
        return named[order]()
    name = getattr(order, "__name__", "")
    advice = f" (call it: {name}())" if callable(order) and name else ""
    raise OrderError(
        f"order {order!r}{advice}. Allowed are {', '.join(map(repr, named))}, or an Order: "
        "stepwell.order.pooled(...), stepwell.order.weighted(...), stepwell.order.mixed(...) or your own subclass."
    )
