"""Which item is sampled, and which one has to go: the selectors of a table, over slots.

A selector knows slots and priorities and nothing of items. A table has two, its sampler and its remover.

=============  =========================================  =================================
selector       selects                                    ties
=============  =========================================  =================================
`Fifo`         the one inserted first                     updates do not move an item
`Lifo`         the one inserted last                      updates do not move an item
`MaxHeap`      the one with the highest priority          the one touched least recently
`MinHeap`      the one with the lowest priority           the one touched least recently
`Uniform`      any, each with 1 / n                       -
`Prioritized`  one with ``p ** e`` over the sum of those  -
=============  =========================================  =================================

Source: the selectors of Reverb (A. Cassirer et al., "Reverb: a framework for experience replay", 2021); what differs is
that random numbers belong to a key and a counter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.kernels.links import (
    ABSENT,
    END,
    FIRST,
    LAST,
    add_members,
    append_slots,
    draw_members,
    pop_slots,
    remove_members,
    unlink_slots,
)

__all__ = ["Fifo", "Lifo", "Selector", "Uniform"]

Slots = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
_FIRST_CAPACITY = 1024


class Selector(ABC):
    """Selects slots by a rule; the slots in it are put in and taken out by a table.

    Attributes:
        num: slots in it.

    Example:
        >>> selector = Fifo()
        >>> selector.insert(np.array([4, 2, 7]), np.ones(3))
        >>> selector.select(2, key=0, first=0)
        (array([4, 4]), array([1., 1.]))
        >>> selector.pop(2, key=0, first=0)
        array([4, 2])

    Notes:
        One thread at a time. Arrays are contiguous, slots int64 from 0 on, priorities float64, already checked: finite
        and not negative. Memory goes with the highest slot.
    """

    num: int = 0

    @abstractmethod
    def insert(self, slots: Slots, priorities: Reals) -> None:
        """Put slots in, in this order; the ones that are in it already must not come."""

    @abstractmethod
    def update(self, slots: Slots, priorities: Reals) -> None:
        """Set priorities of slots that are in it, in this order: of a slot that comes twice the last one stays."""

    @abstractmethod
    def remove(self, slots: Slots) -> None:
        """Take slots out; those that are not in it are passed over."""

    @abstractmethod
    def clear(self) -> None:
        """Take all slots out."""

    @abstractmethod
    def select(self, count: int, key: int, first: int) -> tuple[Slots, Reals]:
        """Select slots by the rule, with replacement; none is taken out.

        Args:
            count: how many.
            key: uint64; random numbers are hashes of it and ``first + i``.
            first: number of the first draw.

        Returns:
            slots: int64 [count]; and probabilities: float64 [count], with which each was drawn.

        Raises:
            TableError: nothing is in it.
        """

    @abstractmethod
    def pop(self, count: int, key: int, first: int) -> Slots:
        """Select ``count`` slots one after the other, taking each out before the next; int64 [count].

        Raises:
            TableError: not as many are in it; none was taken out.
        """

    def _need(self, count: int) -> None:
        if self.num < count:
            raise TableError(f"{count} slots of a selector that has {self.num}. Insert items before you select.")


class _InsertionOrder(Selector):
    _end: ClassVar[int]

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def clear(self) -> None:
        self.num = 0
        self._links = np.full((_FIRST_CAPACITY, 2), ABSENT, np.int32)
        self._ends = np.full((1, 2), END, np.int32)

    def insert(self, slots: Slots, priorities: Reals) -> None:
        added = append_slots(slots, self._links, self._ends)
        if added < 0:
            self._links = _lengthened(self._links, -added)
            added = append_slots(slots, self._links, self._ends)
        self.num += added

    def update(self, slots: Slots, priorities: Reals) -> None:
        """Do nothing: priorities are ignored."""

    def remove(self, slots: Slots) -> None:
        self.num -= unlink_slots(slots, self._links, self._ends)

    def select(self, count: int, key: int, first: int) -> tuple[Slots, Reals]:
        self._need(1)
        return np.full(count, self._ends[0, self._end], np.int64), np.ones(count)

    def pop(self, count: int, key: int, first: int) -> Slots:
        self._need(count)
        slots = np.empty(count, np.int64)
        pop_slots(self._links, self._ends, self._end, slots)
        self.num -= count
        return slots


class Fifo(_InsertionOrder):
    """Selects what was inserted first; priorities are ignored."""

    _end = FIRST


class Lifo(_InsertionOrder):
    """Selects what was inserted last; priorities are ignored."""

    _end = LAST


class Uniform(Selector):
    """Selects any slot, all equally likely; priorities are ignored.

    Example:
        >>> selector = Uniform()
        >>> selector.insert(np.arange(4), np.ones(4))
        >>> selector.select(3, key=1, first=0)[1]
        array([0.25, 0.25, 0.25])
    """

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return "Uniform()"

    def clear(self) -> None:
        """Take all slots out."""
        self.num = 0
        self._members = np.empty(_FIRST_CAPACITY, np.int32)
        self._places = np.full(_FIRST_CAPACITY, ABSENT, np.int32)

    def insert(self, slots: Slots, priorities: Reals) -> None:
        """Put slots in."""
        num = add_members(slots, self._members, self._places, self.num)
        if num < 0:
            self._places = _lengthened(self._places, -num)
            self._members = _lengthened(self._members, -num)
            num = add_members(slots, self._members, self._places, self.num)
        self.num = num

    def update(self, slots: Slots, priorities: Reals) -> None:
        """Do nothing: priorities are ignored."""

    def remove(self, slots: Slots) -> None:
        """Take slots out; those that are not in it are passed over."""
        self.num = remove_members(slots, self._members, self._places, self.num)

    def select(self, count: int, key: int, first: int) -> tuple[Slots, Reals]:
        """Draw slots with replacement, as `Selector.select`."""
        self._need(1)
        slots, probabilities = np.empty(count, np.int64), np.empty(count)
        draw_members(self._members, self.num, np.uint64(key), first, slots, probabilities)
        return slots, probabilities

    def pop(self, count: int, key: int, first: int) -> Slots:
        """Draw slots without replacement, as `Selector.pop`."""
        self._need(count)
        return _pop_one_by_one(self, count, key, first)


def _pop_one_by_one(selector: Selector, count: int, key: int, first: int) -> Slots:
    popped = np.empty(count, np.int64)
    for i in range(count):
        popped[i : i + 1] = selector.select(1, key, first + i)[0]
        selector.remove(popped[i : i + 1])
    return popped


def _lengthened(array: npt.NDArray[np.int32], need: int) -> npt.NDArray[np.int32]:
    # what is new is in no list and no set
    longer = np.full((max(need, 2 * len(array)), *array.shape[1:]), ABSENT, np.int32)
    longer[: len(array)] = array
    return longer
