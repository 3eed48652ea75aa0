"""The short way into a table, for the steps that an open episode grew by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.replay.selectors import Fifo, Prioritized, Uniform

if TYPE_CHECKING:
    from stepwell.replay.counts import Counts
    from stepwell.replay.items import Items
    from stepwell.replay.selectors import Selector
    from stepwell.replay.tails import Growth

__all__ = ["Grower"]

Ints = npt.NDArray[np.int64]
NO_WEIGHTS = (None, None)


class Grower:
    """Takes what one episode grew by into a table's items and selectors, in one call.

    Args:
        items: of the table.
        sampler: of the table, `Uniform` or `Prioritized`.
        remover: of the table, a `Fifo`.
        max_size: items that the table keeps.

    Notes:
        Used under its table's lock. It does what `Contents.evict` and `Contents.insert` do, to the bit.
    """

    __slots__ = ("_grow", "_items", "_max_size", "_members", "_remover", "_sampler", "_weights")

    def __init__(self, items: Items, sampler: Uniform | Prioritized, remover: Fifo, max_size: int) -> None:
        from stepwell.replay.growing_kernels import grow_items

        # bound once: an import statement would cost as much as the kernel's call
        self._grow = grow_items
        self._items, self._sampler, self._remover, self._max_size = items, sampler, remover, max_size
        self._weights = sampler if isinstance(sampler, Prioritized) else None
        self._members = sampler.members if isinstance(sampler, Prioritized) else sampler

    @classmethod
    def of(cls, items: Items, sampler: Selector, remover: Selector, max_size: int) -> Grower | None:
        """Return one for these selectors; None where there is no short way."""
        if type(remover) is not Fifo or type(sampler) not in {Uniform, Prioritized}:
            return None
        return cls(items, sampler, remover, max_size)  # type: ignore[arg-type]

    def grow(self, growth: Growth, window: tuple[Ints, int], shape: Ints, priority: float, counts: Counts) -> int:
        """Let items go and insert others; returns how many were inserted.

        Args:
            growth: what came and what went.
            window: the history's records, int64 [E, 8], and the number of the first one's episode.
            shape: int64 [6], of the pattern.
            priority: of new items.
            counts: of the table, written.

        Returns:
            A number below 0 where none was inserted for want of room; those that had to go may be gone by then.
        """
        weights = self._weights
        tree, exponent = (NO_WEIGHTS, 1.0) if weights is None else (weights.tree, weights.exponent)
        evicted, dropped, inserted = self._grow(
            *growth, *window, shape, self._max_size, priority, exponent,
            *self._items.arrays, *self._remover.arrays, *self._members.arrays, *tree,
        )  # fmt: skip
        if evicted < 0:
            return -1
        come = max(inserted, 0)
        gone = evicted + dropped
        change = come - gone
        self._remover.num += change
        self._members.num += change
        if weights is not None:
            weights.num += change
        counts.inserts += come
        if gone:
            counts.deletes += gone
            counts.dropped += dropped
            counts.evicted += evicted
        return int(inserted)
