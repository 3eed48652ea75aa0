"""Lists and sets of slots, kept in arrays: any slot leaves either in constant time.

A **list** is doubly linked; several lists share one array of links, each with a line of its own in ``ends``::

    ends  [line] = first, last            links [slot] = next, previous     END at both ends, ABSENT: in no list

A **set** is dense: `members` has its slots in any order, `places` says where each slot is. A slot that leaves is
replaced by the last one, so that the n-th member, for a random n, is one look-up.

Notes:
    Nothing here grows. What puts slots in returns minus the capacity that it needs before it changes anything where
    the arrays are too short.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.permutation import mix64

__all__ = [
    "ABSENT",
    "END",
    "FIRST",
    "LAST",
    "NEXT",
    "PREVIOUS",
    "add_members",
    "aligned_empty",
    "append_slots",
    "draw_members",
    "link_after",
    "lowest_capacity",
    "pop_slots",
    "random_unit",
    "remove_members",
    "unlink",
    "unlink_slots",
]

# bytes of a cache line
LINE_BYTES = 64
END, ABSENT = -1, -2
NEXT, PREVIOUS = 0, 1
FIRST, LAST = 0, 1
_U11 = np.uint64(11)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def aligned_empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array with any contents whose first byte lies on a cache line.

    Args:
        shape: as of `numpy.empty`.
        dtype: as of `numpy.empty`.

    Example:
        >>> aligned_empty((3, 8), np.float64).ctypes.data % 64
        0
    """
    dimensions = (shape,) if isinstance(shape, int) else shape
    num_bytes = math.prod(dimensions) * np.dtype(dtype).itemsize
    block = np.empty(num_bytes + LINE_BYTES, np.uint8)
    start = -block.ctypes.data % LINE_BYTES
    return block[start : start + num_bytes].view(dtype).reshape(dimensions)


@inlined
def random_unit(key: Any, counter: Any) -> Any:
    """Return the number of [0, 1) that belongs to a hashed key (uint64) and a counter (int64).

    Source: the ``counter + 1``-th number of splitmix64 with the seed ``key`` (Steele, Lea, Flood 2014).
    """
    return np.float64(mix64(key + _GOLDEN * np.uint64(counter + 1)) >> _U11) * (1.0 / 9007199254740992.0)


@inlined
def lowest_capacity(slots: Any) -> Any:
    """Return the length that an array by slot needs at least: the largest slot and one."""
    highest = np.int64(-1)
    for i in range(slots.size):
        highest = max(highest, slots[i])
    return highest + 1


@inlined
def link_after(links: Any, ends: Any, line: Any, slot: Any, before: Any) -> None:
    """Put a slot that is in no list behind ``before``, or at the head where that is `END`."""
    after = ends[line, FIRST] if before < 0 else links[before, NEXT]
    links[slot, NEXT] = after
    links[slot, PREVIOUS] = before
    if before < 0:
        ends[line, FIRST] = slot
    else:
        links[before, NEXT] = slot
    if after < 0:
        ends[line, LAST] = slot
    else:
        links[after, PREVIOUS] = slot


@inlined
def unlink(links: Any, ends: Any, line: Any, slot: Any) -> None:
    """Take a slot out of the list that it is in."""
    after, before = links[slot, NEXT], links[slot, PREVIOUS]
    if before < 0:
        ends[line, FIRST] = after
    else:
        links[before, NEXT] = after
    if after < 0:
        ends[line, LAST] = before
    else:
        links[after, PREVIOUS] = before
    links[slot, NEXT] = ABSENT


@kernel
def append_slots(slots: Any, links: Any, ends: Any) -> Any:
    """Append slots to list 0; those that are in it stay where they are.

    Args:
        slots: int64 [n].
        links: int32 [capacity, 2], written.
        ends: int32 [1, 2], written.

    Returns:
        How many came new, or minus the capacity that ``links`` needs.
    """
    need = lowest_capacity(slots)
    if need > links.shape[0]:
        return -need
    added = np.int64(0)
    for i in range(slots.size):
        if links[slots[i], NEXT] == ABSENT:
            link_after(links, ends, 0, slots[i], np.int64(ends[0, LAST]))
            added += 1
    return added


@kernel
def unlink_slots(slots: Any, links: Any, ends: Any) -> Any:
    """Take slots out of list 0, arrays as of `append_slots`; return how many were in it."""
    removed = np.int64(0)
    for i in range(slots.size):
        slot = slots[i]
        if slot < links.shape[0] and links[slot, NEXT] != ABSENT:
            unlink(links, ends, 0, slot)
            removed += 1
    return removed


@kernel
def pop_slots(links: Any, ends: Any, end: Any, slots: Any) -> None:
    """Fill ``slots`` from one end of list 0 (`FIRST` or `LAST`), taking them out; the list is at least as long."""
    for i in range(slots.size):
        slots[i] = ends[0, end]
        unlink(links, ends, 0, slots[i])


@kernel
def add_members(slots: Any, members: Any, places: Any, num: Any) -> Any:
    """Add slots to a set; those that are in it stay.

    Args:
        slots: int64 [n].
        members: int32 [capacity], the first ``num`` hold; written.
        places: int32 [capacity], `ABSENT` where a slot is not in the set; written.
        num: members before.

    Returns:
        Members after, or minus the capacity that the arrays need.
    """
    need = lowest_capacity(slots)
    if need > places.size:
        return -need
    for i in range(slots.size):
        if places[slots[i]] == ABSENT:
            members[num] = slots[i]
            places[slots[i]] = num
            num += 1
    return num


@kernel
def remove_members(slots: Any, members: Any, places: Any, num: Any) -> Any:
    """Take slots out of a set, arguments as of `add_members`; return how many members are left."""
    for i in range(slots.size):
        slot = slots[i]
        if slot < places.size and places[slot] != ABSENT:
            num -= 1
            last, place = members[num], places[slot]
            members[place] = last
            places[last] = place
            places[slot] = ABSENT
    return num


@kernel
def draw_members(  # noqa: PLR0917
    members: Any, num: Any, key: Any, first: Any, slots: Any, probabilities: Any
) -> None:
    """Draw members with replacement, all equally likely.

    Args:
        members: int32, of which the first ``num`` count.
        num: members, at least 1.
        key: uint64; draw i depends on the key and ``first + i`` alone.
        first: int64.
        slots: int64 [n], written.
        probabilities: float64 [n], written.
    """
    hashed = mix64(key)
    # two loops: the first one has no look-up that could miss the cache, so the second one's overlap
    for i in range(slots.size):
        # the product can be rounded up to num
        slots[i] = min(np.int64(random_unit(hashed, first + i) * num), num - 1)
    for i in range(slots.size):
        slots[i] = members[slots[i]]
        probabilities[i] = 1.0 / num
