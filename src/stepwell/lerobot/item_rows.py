"""The items of one read: dicts of views into one batch, and how torch's DataLoader gets that batch back whole.

::

    DataLoader  --> __getitems__([7, 3, ...]) --> Items         columns [B, ...], nothing of an item made yet
                --> default_collate(items)    --> items[0]      is an `Item`: torch asks its table for that type
                --> collate_items             --> the columns   where nobody has touched an item meanwhile

Stacking 256 items of 12 keys costs torch 3,000 small copies; handing over the batch that they are views of costs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, overload

from stepwell.loader.memory import import_torch

__all__ = ["Item", "Items", "collate_items"]


class Item(dict[str, Any]):
    """One item, a plain dict; its type is what torch's ``default_collate`` is told of."""

    __slots__ = ()


class Items(Sequence[Item]):
    """The items of one read.

    Args:
        columns: key to tensor [B, ...] or list of B, in the order of an item.
        size: B.

    Notes:
        Items are made when they are asked for, and are views: who keeps one keeps the memory of the read.
    """

    __slots__ = ("_first", "_rows", "_size", "columns")

    def __init__(self, columns: dict[str, Any], size: int) -> None:
        _register()
        self.columns = columns
        self._size = size
        self._rows: list[Item] | None = None
        self._first: tuple[Item, Item] | None = None

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> Item: ...
    @overload
    def __getitem__(self, i: slice) -> list[Item]: ...
    def __getitem__(self, i: int | slice) -> Item | list[Item]:
        if self._rows is None and i == 0 and self._size:
            if self._first is None:
                item = Item((key, column[0]) for key, column in self.columns.items())
                self._first = item, Item(item)
            return self._first[0]
        return self._all()[i]

    @property
    def is_untouched(self) -> bool:
        """Whether no item but the first was looked at, and nobody put other values into that."""
        if self._rows is not None or self._first is None:
            return self._rows is None
        item, made = self._first
        return len(item) == len(made) and all(item.get(key) is value for key, value in made.items())

    def _all(self) -> list[Item]:
        if self._rows is None:
            columns = [c.unbind(0) if hasattr(c, "unbind") else c for c in self.columns.values()]
            self._rows = [Item(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]
            if self._first is not None:
                self._rows[0] = self._first[0]
        return self._rows


def collate_items(batch: Sequence[Mapping[str, Any]], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """Return items as a batch, as ``default_collate`` would; the batch that they are views of where that is it.

    Args:
        batch: the items of one read as they came, or any list of items.
        collate_fn_map: torch's table of types.
    """
    from torch.utils.data._utils.collate import collate

    if not isinstance(batch, Items) or not batch.is_untouched:
        return {key: collate([item[key] for item in batch], collate_fn_map=collate_fn_map) for key in batch[0]}
    return {
        key: collate(column, collate_fn_map=collate_fn_map) if isinstance(column, list) else column
        for key, column in batch.columns.items()
    }


@cache
def _register() -> None:
    """Tell torch's default_collate of items; in each process, since a spawned worker has a table of its own."""
    import_torch()
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map.setdefault(Item, collate_items)
