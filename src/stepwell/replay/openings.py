"""From what a user gives a replay loader to sources of rows, and one reader over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.errors import OrderError
from stepwell.order import Order, random
from stepwell.order.order import derive_seed
from stepwell.replay.sources import RowSource, TableRows, ViewRows
from stepwell.store import Store
from stepwell.windows import View
from stepwell.windows.reader import PlaceReader
from stepwell.windows.resolved import resolve_fields
from stepwell.windows.sources import ViewSource

__all__ = ["open_sources"]


def open_sources(
    given: Any, fields: Mapping[str, Any] | None, *, seed: int, is_clipped: bool
) -> tuple[list[RowSource], PlaceReader]:
    """Return what rows are drawn from, and what reads them.

    Args:
        given: see `stepwell.replay.ReplayLoader`.
        fields: of the batch.
        seed: of the orders of views.
        is_clipped: whether windows stay within the steps of their items.

    Raises:
        OrderError: something that is no source.
        WindowError: fields that do not fit the sources.
    """
    each = [_parsed(one) for one in _listed(given)]
    stores = [store for source, _ in each for store in (source.stores if isinstance(source, View) else [source.store])]
    resolved = resolve_fields(fields, stores)
    rows: list[RowSource] = []
    places: list[Any] = []
    for number, (source, order) in enumerate(each):
        if isinstance(source, View):
            anchors = ViewSource(source, fields)
            chosen = random(derive_seed(seed, f"replay source {number}")) if order is None else order
            rows.append(ViewRows(anchors.index, chosen))
            places.append(anchors)
        else:
            table = TableRows(source, is_clipped=is_clipped)
            table.check_fields(resolved)
            rows.append(table)
            places.append(source.history)
    return rows, PlaceReader(places, fields)


def _listed(given: Any) -> Sequence[Any]:
    is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Order)
    if is_pair or not isinstance(given, list | tuple):
        return [given]
    if not given:
        raise OrderError("no sources. Give a table, a view, or a list of several.")
    return given


def _parsed(one: Any) -> tuple[Any, Order | None]:
    """Return a table or view, and the order of the view if it was given."""
    order: Order | None = None
    if isinstance(one, tuple) and len(one) == 2:
        one, order = one
        if not isinstance(order, Order) or hasattr(one, "sample"):
            raise OrderError(f"({one!r}, {order!r}) is no pair of a view and an order. A table has a sampler instead.")
    if isinstance(one, Store):
        one = View(one)
    if not isinstance(one, View) and not hasattr(one, "sample"):
        raise OrderError(f"a {type(one).__name__} is no source. Give a Table, a View, a store, or (view, order).")
    return one, order
