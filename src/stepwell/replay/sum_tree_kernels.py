"""A sum tree over slots: a weight each, changed in any number at a time, drawn in proportion.

A binary tree of which every third level is kept. Eight sums lie in one line of the cache; the two levels between a line
and its parent's entry are added up again whenever they are needed::

    level 2     [ s s . . . . . . ]                                        the root's line
    level 1     [ s s s s s s s s ][ s s s s s s s s ]                     each sum is that of a line below
    level 0     [ w w w w w w w w ][ w w w w w w w w ] ... 16 lines        weights by slot

A sum is always added up from the eight below it, in the same order, never corrected by a difference. So the tree is a
function of its weights: nothing drifts, and nothing is ever rebuilt.

All draws of a batch walk down one level at a time, and all changes one level up, each asking for the lines of the next
level early: cache misses overlap, where one path after the other would wait for each.

A draw goes right in a pair only where its number is beyond the left sum **and** the right sum is not zero: rounding
never leads it to a weight of zero.

Source: prioritised replay's sum tree (T. Schaul et al., "Prioritized experience replay", 2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.memory import prefetch
from stepwell.kernels.permutation import mix64
from stepwell.replay.link_kernels import aligned_empty, lowest_capacity, random_unit

__all__ = ["LARGEST_WEIGHT", "clear_weights", "draw_weighted", "make_tree", "set_weights", "sum_all", "total_weight"]

LARGEST_WEIGHT = 1e290
"""Weights above this one count as this one: the sum of any number of slots stays finite."""

_U1, _U2, _U3 = np.uintp(1), np.uintp(2), np.uintp(3)


def make_tree(capacity: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return a tree of zeros.

    Args:
        capacity: slots, at least 1; rounded up to lines of eight.

    Returns:
        sums: float64 [lines, 8], level 0 first; and levels: int64 [levels + 1], the first line of each, and their end.

    Example:
        >>> sums, levels = make_tree(100)
        >>> levels.tolist()
        [0, 13, 15, 16]
    """
    lines = [-(-capacity // 8)]
    while lines[-1] > 1:
        lines.append(-(-lines[-1] // 8))
    sums = aligned_empty((sum(lines), 8), np.float64)
    sums[...] = 0
    return sums, np.cumsum([0, *lines])


@inlined
def _line_sum(sums: Any, line: Any) -> Any:
    left = (sums[line, 0] + sums[line, 1]) + (sums[line, 2] + sums[line, 3])
    return left + ((sums[line, 4] + sums[line, 5]) + (sums[line, 6] + sums[line, 7]))


@kernel
def _sum_level(sums: Any, levels: Any, level: Any) -> None:
    # level + 1 from all of `level`
    above = levels[level + 1]
    for line in range(above - levels[level]):
        sums[above + (line >> 3), line & 7] = _line_sum(sums, levels[level] + line)


@kernel
def sum_all(sums: Any, levels: Any) -> None:
    """Add up every level, from the weights."""
    for level in range(levels.size - 2):
        _sum_level(sums, levels, level)


@kernel
def total_weight(sums: Any) -> Any:
    """Return the sum of all weights."""
    return _line_sum(sums, sums.shape[0] - 1)


@kernel
def _sum_above(lines: Any, sums: Any, levels: Any) -> None:
    # adds up what lies above some lines of level 0; `lines` uintp [n] is used up
    num = lines.size
    for level in range(levels.size - 2):
        here, above = np.uintp(levels[level]), np.uintp(levels[level + 1])
        if num >= above - here:
            _sum_level(sums, levels, level)
            num = levels[level + 2] - levels[level + 1]
            continue
        kept = 0
        for i in range(num):
            line = lines[i]
            sums[above + (line >> _U3), line & np.uintp(7)] = _line_sum(sums, here + line)
            # neighbours share what is above them
            if kept == 0 or lines[kept - 1] != line >> _U3:
                lines[kept] = line >> _U3
                kept += 1
        num = kept


@inlined
def _weight(priority: Any, exponent: Any) -> Any:
    if priority <= 0.0:
        return 0.0
    if exponent == 1.0:
        weight = priority
    elif exponent == 0.5:
        weight = np.sqrt(priority)
    else:
        weight = priority**exponent
    return min(weight, LARGEST_WEIGHT)


@kernel
def set_weights(slots: Any, priorities: Any, exponent: Any, sums: Any, levels: Any) -> Any:
    """Set weights to powers of priorities; that of a priority of 0 is 0, whatever the exponent.

    Args:
        slots: int64 [n]; of one that comes twice the last one stays.
        priorities: float64 [n], finite and not negative.
        exponent: float64, not negative.
        sums: float64 [lines, 8], of `make_tree`, written.
        levels: int64, of `make_tree`.

    Returns:
        0, or minus the capacity that the tree needs; nothing was changed.
    """
    need = lowest_capacity(slots)
    if need > 8 * levels[1]:
        return -need
    num = slots.size
    lines = np.empty(num, np.uintp)
    address = sums.ctypes.data
    for i in range(num):
        slot = np.uintp(slots[i])
        lines[i] = slot >> _U3
        prefetch(address + 8 * slots[i])
        prefetch(address + 8 * (8 * levels[1] + (slots[i] >> 3)))
    for i in range(num):
        sums[lines[i], np.uintp(slots[i]) & np.uintp(7)] = _weight(priorities[i], exponent)
    _sum_above(lines, sums, levels)
    return 0


@kernel
def clear_weights(slots: Any, sums: Any, levels: Any) -> None:
    """Set the weights of slots (int64 [n]) to 0; what lies beyond the tree is passed over."""
    num = 0
    lines = np.empty(slots.size, np.uintp)
    for i in range(slots.size):
        if slots[i] < 8 * levels[1]:
            sums[slots[i] >> 3, slots[i] & 7] = 0.0
            lines[num] = slots[i] >> 3
            num += 1
    _sum_above(lines[:num], sums, levels)


@inlined
def _walk(sums: Any, line: Any, number: Any) -> Any:
    # from a line to one of its eight, by three choices between two, without a branch that could be guessed wrong
    left = (sums[line, 0] + sums[line, 1]) + (sums[line, 2] + sums[line, 3])
    right = (sums[line, 4] + sums[line, 5]) + (sums[line, 6] + sums[line, 7])
    is_right = np.uintp((number >= left) & (right > 0.0))
    number -= left * is_right
    child = is_right << _U2
    left = sums[line, child] + sums[line, child | _U1]
    right = sums[line, child | _U2] + sums[line, child | _U3]
    is_right = np.uintp((number >= left) & (right > 0.0))
    number -= left * is_right
    child |= is_right << _U1
    left = sums[line, child]
    is_right = np.uintp((number >= left) & (sums[line, child | _U1] > 0.0))
    return child | is_right, number - left * is_right


@kernel
def draw_weighted(  # noqa: PLR0917
    sums: Any, levels: Any, key: Any, first: Any, slots: Any, probabilities: Any
) -> Any:
    """Draw slots with replacement, in proportion to their weights.

    Args:
        sums: float64 [lines, 8], of `make_tree`.
        levels: int64, of `make_tree`.
        key: uint64; draw i depends on the key and ``first + i`` alone.
        first: int64.
        slots: int64 [n], written.
        probabilities: float64 [n], written: weight over the sum of all.

    Returns:
        False where all weights are 0; nothing is written then.
    """
    total = total_weight(sums)
    if total <= 0.0:
        return False
    hashed = mix64(key)
    address = sums.ctypes.data
    nodes = np.zeros(slots.size, np.uintp)
    for i in range(slots.size):
        probabilities[i] = random_unit(hashed, first + i) * total
    for level in range(levels.size - 2, -1, -1):
        here = np.uintp(levels[level])
        below = levels[max(level - 1, 0)]
        for i in range(slots.size):
            child, number = _walk(sums, here + nodes[i], probabilities[i])
            nodes[i] = nodes[i] << _U3 | child
            probabilities[i] = number
            prefetch(address + 64 * (below + np.int64(nodes[i])))
    for i in range(slots.size):
        slots[i] = nodes[i]
        probabilities[i] = sums[nodes[i] >> _U3, nodes[i] & np.uintp(7)] / total
    return True
