"""From newly committed rows to the anchors of items that are complete by them.

::

    rows       |0 1 2 3 4|5 6 7|    length=2 ahead=1: an item at a needs rows a, a + 1 and a + 2
    the run              |5 6 7|    what was committed now
    anchors        |3 4 5|          complete by it; 6 and 7 when the episode ends, if `keep_ends`

So what is new follows from a run and the bounds of its episode alone: nothing is remembered between two runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["COMPARISONS", "anchors_of_runs", "apply_in_order"]

# columns of the records of a history
_START, _LO, _HI_STEP, _HI_FINAL, _SKIPPED, _FLAGS = range(1, 7)
_IS_CUT = 16


@kernel
def bounds_of_run(  # noqa: PLR0917
    run: Any, records: Any, base: Any, length: Any, every: Any, ahead: Any, behind: Any, keep_ends: Any, at_end: Any
) -> Any:
    """Return (first anchor, row after the last) of the items that a run completes."""
    line = run[0] - base
    if line < 0:
        # it came and went between two looks
        return 0, 0
    record = records[line]
    low = record[_LO] if keep_ends else record[_LO] + behind
    reach = length - 1 + ahead
    whole = min(record[_HI_FINAL] - reach, record[_HI_STEP] - length + 1)
    if at_end:
        if not run[3] or record[_FLAGS] & _IS_CUT or record[_LO] >= record[_HI_STEP]:
            return 0, 0
        last = min(record[_HI_STEP] - length, record[_HI_FINAL] - reach - 1)
        if keep_ends:
            last = max(record[_HI_STEP] - length, record[_LO])
        return max(low, last), last + 1
    low = max(run[1] - reach, low)
    low += (record[_START] - record[_SKIPPED] - low) % every
    return low, record[_HI_STEP] if run[3] and keep_ends else whole


@kernel
def anchors_of_runs(  # noqa: PLR0917
    runs: Any, records: Any, base: Any, length: Any, every: Any, ahead: Any, behind: Any, keep_ends: Any, at_end: Any
) -> Any:
    """Return the items that runs of rows complete, int64 [3, n]: episode, row and number of steps of each.

    Args:
        runs: int64 [r, 4]: episode, first row, stop row, whether the episode has ended.
        records: int64 [E, 8], of a history, by episode - ``base``.
        length: steps of an item; at the end of an episode it may have fewer.
        every: steps between two items, counted from the true beginning of an episode.
        ahead: rows that must be committed after an item's last step, unless the episode ended and ``keep_ends``.
        behind: steps that must be there before an item's first one, unless ``keep_ends``.
        at_end: one item at the end of each episode, and no other.
    """
    num = 0
    for i in range(runs.shape[0]):
        low, stop = bounds_of_run(runs[i], records, base, length, every, ahead, behind, keep_ends, at_end)
        num += max(0, (stop - low + every - 1) // every)
    found = np.empty((3, num), np.int64)
    at = 0
    for i in range(runs.shape[0]):
        low, stop = bounds_of_run(runs[i], records, base, length, every, ahead, behind, keep_ends, at_end)
        for row in range(low, stop, every):
            found[0, at] = runs[i, 0]
            found[1, at] = row
            found[2, at] = min(length, records[runs[i, 0] - base, _HI_STEP] - row)
            at += 1
    return found


COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


@kernel
def compares(value: Any, comparison: Any, number: Any) -> Any:
    """Return whether a value compares so with a number; ``comparison`` counts into `COMPARISONS`."""
    if comparison == 0:
        return value == number
    if comparison == 1:
        return value != number
    if comparison == 2:
        return value < number
    if comparison == 3:
        return value <= number
    if comparison == 4:
        return value > number
    return value >= number


@kernel
def apply_in_order(steps: Any, groups: Any, applied: Any, tests: Any, numbers: Any, takes: Any) -> Any:  # noqa: PLR0917
    """Write which candidates are taken, one after the other; ``applied`` follows.

    Args:
        steps: int64 [n], the step of each candidate in its episode, ascending in an episode.
        groups: int64 [n], which entry of ``applied`` is its episode's.
        applied: int64 [E], the step at which the pattern was last applied in each episode; -1 before; written.
        tests: int64 [k, 2]: modulus (0 for none) and comparison.
        numbers: float64 [k], what is compared with.
        takes: bool [n], which candidates the other conditions let through; written.
    """
    for i in range(steps.size):
        if not takes[i]:
            continue
        since = steps[i] - applied[groups[i]]
        for k in range(numbers.size):
            value = since % tests[k, 0] if tests[k, 0] else since
            if not compares(np.float64(value), tests[k, 1], numbers[k]):
                takes[i] = False
        if takes[i]:
            applied[groups[i]] = steps[i]
