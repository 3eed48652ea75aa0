"""The orders that have a name, for arguments that take a string."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.errors import OrderError
from stepwell.order.order import Order, random, sequential
from stepwell.order.pooled import pooled

__all__ = ["make_order"]

_NAMED: dict[str, Callable[[int], Order]] = {
    "sequential": lambda seed: sequential(),
    "random": random,
    "pooled": lambda seed: pooled(seed=seed),
}


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
    if isinstance(order, Order):
        return order
    if isinstance(order, str) and order in _NAMED:
        return _NAMED[order](seed)
    name = getattr(order, "__name__", "")
    advice = f" (call it: {name}())" if callable(order) and name else ""
    raise OrderError(
        f"order {order!r}{advice}. Allowed are {', '.join(map(repr, _NAMED))}, or an Order: "
        "stepwell.order.pooled(...), stepwell.order.weighted(...), stepwell.order.mixed(...) or your own subclass."
    )
