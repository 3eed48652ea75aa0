"""A heap of slots by rank: the lowest rank on top, of equal ranks the one touched least recently; any slot can leave.

Four children a node: half the levels of a binary heap. What is compared lies by place in the heap, not by slot, so
that a comparison is one look-up::

    ranks, stamps, slots  [place]          places [slot] = place, or ABSENT          state = num, clock

A stamp is the clock at the slot's last touch. All stamps differ, so the order is total, and the heap's answers do not
depend on how it came about.

Notes:
    Nothing here grows: `touch_slots` returns minus the capacity that it needs before it changes anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import inlined, kernel
from stepwell.replay.link_kernels import ABSENT, lowest_capacity

__all__ = ["CLOCK", "NUM", "pop_lowest", "remove_slots", "touch_slots"]

NUM, CLOCK = 0, 1
_CHILDREN = 4


@inlined
def _move(heap: Any, source: Any, target: Any) -> None:
    ranks, stamps, slots, places = heap
    ranks[target] = ranks[source]
    stamps[target] = stamps[source]
    slots[target] = slots[source]
    places[slots[target]] = target


@kernel
def _rise(heap: Any, place: Any, rank: Any, stamp: Any) -> Any:
    ranks, stamps = heap[0], heap[1]
    while place > 0:
        parent = (place - 1) // _CHILDREN
        if ranks[parent] < rank or (ranks[parent] == rank and stamps[parent] < stamp):
            break
        _move(heap, parent, place)
        place = parent
    return place


@kernel
def _sink(heap: Any, place: Any, rank: Any, stamp: Any, num: Any) -> Any:
    ranks, stamps = heap[0], heap[1]
    while _CHILDREN * place + 1 < num:
        child = _CHILDREN * place + 1
        for other in range(child + 1, min(child + _CHILDREN, num)):
            if ranks[other] < ranks[child] or (ranks[other] == ranks[child] and stamps[other] < stamps[child]):
                child = other
        if rank < ranks[child] or (rank == ranks[child] and stamp < stamps[child]):
            break
        _move(heap, child, place)
        place = child
    return place


@kernel
def _settle(heap: Any, place: Any, entry: Any, num: Any) -> None:
    # puts an entry where it belongs; what is at `place` is overwritten
    rank, stamp, slot = entry
    place = _sink(heap, _rise(heap, place, rank, stamp), rank, stamp, num)
    ranks, stamps, slots, places = heap
    ranks[place] = rank
    stamps[place] = stamp
    slots[place] = slot
    places[slot] = place


@kernel
def _leave(heap: Any, slot: Any, state: Any) -> None:
    ranks, stamps, slots, places = heap
    place, last = np.int64(places[slot]), state[NUM] - 1
    places[slot] = ABSENT
    state[NUM] = last
    if place < last:
        _settle(heap, place, (ranks[last], stamps[last], np.int64(slots[last])), last)


@kernel
def touch_slots(wanted: Any, priorities: Any, sign: Any, heap: Any, state: Any) -> Any:
    """Insert slots, or give those that are in the heap other priorities, in this order.

    Args:
        wanted: int64 [n].
        priorities: float64 [n]; a rank is a priority times ``sign``.
        sign: 1.0: the lowest priority on top; -1.0: the highest.
        heap: ranks float64, stamps int64, slots int32, places int32, [capacity] each; written.
        state: int64 [2], written.

    Returns:
        Slots in the heap, or minus the capacity that the arrays need.
    """
    need = lowest_capacity(wanted)
    if need > heap[3].size:
        return -need
    for i in range(wanted.size):
        place = np.int64(heap[3][wanted[i]])
        if place == ABSENT:
            place = state[NUM]
            state[NUM] += 1
        _settle(heap, place, (sign * priorities[i], state[CLOCK], wanted[i]), state[NUM])
        state[CLOCK] += 1
    return state[NUM]


@kernel
def remove_slots(wanted: Any, heap: Any, state: Any) -> Any:
    """Take slots (int64 [n]) out of a heap, those not in it are passed over; return how many are left in it."""
    for i in range(wanted.size):
        slot = wanted[i]
        if slot < heap[3].size and heap[3][slot] != ABSENT:
            _leave(heap, slot, state)
    return state[NUM]


@kernel
def pop_lowest(heap: Any, state: Any, popped: Any) -> None:
    """Fill ``popped`` (int64 [n]) from the top, taking slots out; the heap has at least as many."""
    for i in range(popped.size):
        popped[i] = heap[2][0]
        _leave(heap, popped[i], state)
