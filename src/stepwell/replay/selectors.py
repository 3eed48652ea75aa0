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

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.replay.heap_kernels import CLOCK, pop_lowest, remove_slots, touch_slots
from stepwell.replay.link_kernels import (
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
from stepwell.replay.sum_tree_kernels import clear_weights, draw_weighted, make_tree, set_weights, sum_all, total_weight

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]

Slots = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Links = npt.NDArray[np.int32]
_FIRST_CAPACITY = 1024


class Selector(ABC):
    """Selects slots by a rule; the slots in it are put in and taken out by a table.

    Attributes:
        num: slots in it.
        is_taken: whether a table has it.
        kernels: dotted names of kernels that a table calls to insert and draw, and loads when it is made.

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
    is_taken: bool = False
    kernels: ClassVar[tuple[str, ...]] = ()

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

    @property
    def total_weight(self) -> float:
        """The sum of the weights by which it selects; the number of slots where it has no weights."""
        return float(self.num)

    def order(self) -> Slots:
        """Return the slots in the order that random draws depend on, int64 [num]; empty where they depend on none."""
        return np.empty(0, np.int64)

    def _need(self, count: int) -> None:
        if self.num < count:
            raise TableError(f"{count} slots of a selector that has {self.num}. Insert items before you select.")


class _InsertionOrder(Selector):
    kernels = ("stepwell.replay.link_kernels.append_slots",)
    _end: ClassVar[int]

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def clear(self) -> None:
        self.num = 0
        links, self._ends = np.full((_FIRST_CAPACITY, 2), ABSENT, np.int32), np.full((1, 2), END, np.int32)
        self._set_links(links)

    def insert(self, slots: Slots, priorities: Reals) -> None:
        added = append_slots(slots, self._links, self._ends)
        if added < 0:
            self._set_links(_lengthened(self._links, -added))
            added = append_slots(slots, self._links, self._ends)
        self.num += added

    def _set_links(self, links: Links) -> None:
        self._links = links
        # as `stepwell.replay.link_kernels.append_slots` takes them: int32 [capacity, 2] and [1, 2]
        self.arrays = links, self._ends

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

    kernels = ("stepwell.replay.link_kernels.add_members", "stepwell.replay.link_kernels.draw_members")

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return "Uniform()"

    def clear(self) -> None:
        """Take all slots out."""
        self.num = 0
        self._set_arrays(np.empty(_FIRST_CAPACITY, np.int32), np.full(_FIRST_CAPACITY, ABSENT, np.int32))

    def _set_arrays(self, members: Links, places: Links) -> None:
        # as `stepwell.replay.link_kernels.add_members` takes them: int32 [capacity] each
        self._members, self._places = self.arrays = members, places

    def insert(self, slots: Slots, priorities: Reals) -> None:
        """Put slots in."""
        num = add_members(slots, self._members, self._places, self.num)
        if num < 0:
            self._set_arrays(_lengthened(self._members, -num), _lengthened(self._places, -num))
            num = add_members(slots, self._members, self._places, self.num)
        self.num = num

    def update(self, slots: Slots, priorities: Reals) -> None:
        """Do nothing: priorities are ignored."""

    def remove(self, slots: Slots) -> None:
        """Take slots out; those that are not in it are passed over."""
        self.num = remove_members(slots, self._members, self._places, self.num)

    def select(self, count: int, key: int, first: int) -> tuple[Slots, Reals]:
        """Draw slots with replacement, as `Selector.select`."""
        if self.num < 1:
            self._need(1)
        slots, probabilities = np.empty(count, np.int64), np.empty(count)
        draw_members(self._members, self.num, np.uint64(key), first, slots, probabilities)
        return slots, probabilities

    def pop(self, count: int, key: int, first: int) -> Slots:
        """Draw slots without replacement, as `Selector.pop`."""
        self._need(count)
        return _pop_one_by_one(self, count, key, first)

    def order(self) -> Slots:
        """Return its slots; inserted in this order into another one, they are drawn alike."""
        return self._members[: self.num].astype(np.int64)


class _Heap(Selector):
    kernels = ("stepwell.replay.heap_kernels.touch_slots",)
    _sign: ClassVar[float]

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def clear(self) -> None:
        self.num = 0
        self._state = np.zeros(CLOCK + 1, np.int64)
        self._heap = _heap_of(_FIRST_CAPACITY)

    def insert(self, slots: Slots, priorities: Reals) -> None:
        num = touch_slots(slots, priorities, self._sign, self._heap, self._state)
        if num < 0:
            self._grow(-num)
            num = touch_slots(slots, priorities, self._sign, self._heap, self._state)
        self.num = num

    def update(self, slots: Slots, priorities: Reals) -> None:
        self.insert(slots, priorities)

    def remove(self, slots: Slots) -> None:
        self.num = remove_slots(slots, self._heap, self._state)

    def select(self, count: int, key: int, first: int) -> tuple[Slots, Reals]:
        self._need(1)
        return np.full(count, self._heap[2][0], np.int64), np.ones(count)

    def pop(self, count: int, key: int, first: int) -> Slots:
        self._need(count)
        slots = np.empty(count, np.int64)
        pop_lowest(self._heap, self._state, slots)
        self.num -= count
        return slots

    def _grow(self, need: int) -> None:
        size = len(self._heap[0])
        longer = _heap_of(max(need, 2 * size))
        for i in range(len(longer)):
            longer[i][:size] = self._heap[i]
        self._heap = longer


class MaxHeap(_Heap):
    """Selects the highest priority; of equal ones the one inserted or updated least recently."""

    _sign = -1.0


class MinHeap(_Heap):
    """Selects the lowest priority; of equal ones the one inserted or updated least recently."""

    _sign = 1.0


class Prioritized(Selector):
    """Selects slots with probability ``priority ** exponent``, over the sum of all.

    A priority of 0 is never selected, whatever the exponent, unless all are 0: then all are equally likely.

    Args:
        exponent: 0 and above; 0: all priorities but 0 count the same.

    Raises:
        TableError: the exponent is negative or not finite.

    Example:
        >>> selector = Prioritized(0.5)
        >>> selector.insert(np.arange(3), np.array([1.0, 4.0, 9.0]))
        >>> slots, probabilities = selector.select(1000, key=1, first=0)
        >>> bool(np.allclose(probabilities, (slots + 1) / 6))
        True

    Notes:
        Changes and draws of a batch cost a few cache lines a slot, see `stepwell.replay.sum_tree_kernels`. Powers above
        1e290 count as 1e290.
    """

    kernels = (
        "stepwell.replay.link_kernels.add_members",
        "stepwell.replay.sum_tree_kernels.set_weights",
        "stepwell.replay.sum_tree_kernels.draw_weighted",
    )

    def __init__(self, exponent: float) -> None:
        self.exponent = float(exponent)
        if not 0 <= self.exponent < math.inf:
            raise TableError(f"an exponent of {exponent} for priorities. Allowed are 0 and above; 0.6 is usual.")
        self.clear()

    def __repr__(self) -> str:
        return f"Prioritized({self.exponent:g})"

    def clear(self) -> None:
        """Take all slots out."""
        self.num = 0
        # the slots in it: where all priorities are 0, any of those is drawn
        self._members = Uniform()
        self._tree = make_tree(_FIRST_CAPACITY)

    @property
    def members(self) -> Uniform:
        """The slots in it."""
        return self._members

    @property
    def tree(self) -> tuple[Reals, Slots]:
        """Sums of the weights and their levels, of `stepwell.replay.sum_tree_kernels.make_tree`."""
        return self._tree

    @property
    def total_weight(self) -> float:
        """The sum of ``priority ** exponent``."""
        return float(total_weight(self._tree[0]))

    def insert(self, slots: Slots, priorities: Reals) -> None:
        """Put slots in."""
        self._members.insert(slots, priorities)
        self.num = self._members.num
        need = -set_weights(slots, priorities, self.exponent, *self._tree)
        if need > 0:
            self._grow(need)
            set_weights(slots, priorities, self.exponent, *self._tree)

    def update(self, slots: Slots, priorities: Reals) -> None:
        """Set priorities; of a slot that comes twice the last one stays."""
        set_weights(slots, priorities, self.exponent, *self._tree)

    def remove(self, slots: Slots) -> None:
        """Take slots out; those that are not in it are passed over."""
        self._members.remove(slots)
        self.num = self._members.num
        clear_weights(slots, *self._tree)

    def select(self, count: int, key: int, first: int) -> tuple[Slots, Reals]:
        """Draw slots with replacement, as `Selector.select`."""
        if self.num < 1:
            self._need(1)
        slots, probabilities = np.empty(count, np.int64), np.empty(count)
        if not draw_weighted(*self._tree, np.uint64(key), first, slots, probabilities):
            return self._members.select(count, key, first)
        return slots, probabilities

    def pop(self, count: int, key: int, first: int) -> Slots:
        """Draw slots without replacement, as `Selector.pop`."""
        self._need(count)
        return _pop_one_by_one(self, count, key, first)

    def order(self) -> Slots:
        """Return its slots, as `Uniform.order`."""
        return self._members.order()

    def _grow(self, need: int) -> None:
        num_lines = self._tree[1][1]
        sums, levels = make_tree(max(need, 16 * int(num_lines)))
        sums[:num_lines] = self._tree[0][:num_lines]
        sum_all(sums, levels)
        self._tree = sums, levels


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


def _heap_of(capacity: int) -> tuple[npt.NDArray[Any], ...]:
    return (
        np.empty(capacity),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int32),
        np.full(capacity, ABSENT, np.int32),
    )
