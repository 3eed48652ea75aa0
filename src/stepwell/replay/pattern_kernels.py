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
from stepwell.kernels.places import CHAIN, CHAIN_START, CHAIN_STEP

__all__ = ["COMPARISONS", "anchors_of_pieces", "anchors_of_runs", "apply_in_order"]

# columns of the records of a history
_START, _LO, _HI_STEP, _HI_FINAL, _SKIPPED, _FLAGS = range(1, 7)
_IS_CUT, _IS_GONE = 16, 32


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
    return _bounds(
        run[1], run[3], record[_START] - record[_SKIPPED], record[_LO], record[_HI_STEP], record[_HI_FINAL],
        record[_FLAGS] & _IS_CUT, length, every, ahead, behind, keep_ends, at_end,
    )  # fmt: skip


@kernel
def _bounds(  # noqa: PLR0917
    first: Any,
    has_ended: Any,
    zero: Any,
    lo: Any,
    hi_step: Any,
    hi_final: Any,
    is_cut: Any,
    length: Any,
    every: Any,
    ahead: Any,
    behind: Any,
    keep_ends: Any,
    at_end: Any,
) -> Any:
    """Return what `bounds_of_run` does; ``zero`` is the row of the episode's step 0."""
    low = lo if keep_ends else lo + behind
    reach = length - 1 + ahead
    whole = min(hi_final - reach, hi_step - length + 1)
    if at_end:
        if not has_ended or is_cut or lo >= hi_step:
            return 0, 0
        last = min(hi_step - length, hi_final - reach - 1)
        if keep_ends:
            last = max(hi_step - length, lo)
        return max(low, last), last + 1
    low = max(first - reach, low)
    low += (zero - low) % every
    return low, hi_step if has_ended and keep_ends else whole


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


@kernel
def anchors_of_pieces(  # noqa: PLR0917
    runs: Any,
    records: Any,
    base: Any,
    ascending: Any,
    order: Any,
    pieces: Any,
    numbers: Any,
    length: Any,
    every: Any,
    ahead: Any,
    behind: Any,
    keep_ends: Any,
    at_end: Any,
) -> Any:
    """Return what `anchors_of_runs` does where episodes may be pieces: items begin in one and reach into another.

    Args:
        runs: as there.
        records: as there.
        base: as there.
        ascending: int64 [P], see `stepwell.windows.chains.Chains`, as the next three.
        order: int64 [P].
        pieces: int64 [P, 4].
        numbers: int64 [P].
        length: as there, as the rest.
        every: as there.
        ahead: as there.
        behind: as there.
        keep_ends: as there.
        at_end: as there.
    """
    # of each run: first anchor, row after the last, row after the last step, in steps of the whole episode; its piece
    plans = np.empty((runs.shape[0], 4), np.int64)
    num = 0
    for i in range(runs.shape[0]):
        at = np.searchsorted(ascending, runs[i, 0])
        piece = order[at] if at < ascending.size and ascending[at] == runs[i, 0] else -1
        line = runs[i, 0] - base
        low, stop, hi_step = np.int64(0), np.int64(0), np.int64(0)
        if line >= 0 and piece < 0:
            low, stop = bounds_of_run(runs[i], records, base, length, every, ahead, behind, keep_ends, at_end)
            hi_step = records[line, _HI_STEP]
        elif line >= 0:
            shift = pieces[piece, CHAIN_STEP] - pieces[piece, CHAIN_START]
            # what follows a cut comes with the next piece, and the final row there is that piece's first one; where the
            # writer died while it was cut, there is no mark, but a piece after it
            is_cut = records[line, _FLAGS] & _IS_CUT or _goes_on(pieces, piece)
            hi_step = records[line, _HI_STEP] + shift
            hi_final = hi_step if is_cut else records[line, _HI_FINAL] + shift
            low, stop = _bounds(
                runs[i, 1] + shift, runs[i, 3] and not is_cut, 0, _first_shown(pieces, numbers, piece, records, base),
                hi_step, hi_final, is_cut, length, every, ahead, behind, keep_ends, at_end,
            )  # fmt: skip
        plans[i, 0], plans[i, 1], plans[i, 2], plans[i, 3] = low, stop, hi_step, piece
        num += max(0, (stop - low + every - 1) // every)
    found = np.empty((3, num), np.int64)
    at = 0
    for i in range(runs.shape[0]):
        piece = plans[i, 3]
        for step in range(plans[i, 0], plans[i, 1], every):
            found[0, at], found[1, at] = runs[i, 0], step
            if piece >= 0:
                while pieces[piece, CHAIN_STEP] > step and piece > 0 and _goes_on(pieces, piece - 1):
                    piece -= 1
                while _goes_on(pieces, piece) and pieces[piece + 1, CHAIN_STEP] <= step:
                    piece += 1
                found[0, at] = numbers[piece]
                found[1, at] = step - pieces[piece, CHAIN_STEP] + pieces[piece, CHAIN_START]
            found[2, at] = min(length, plans[i, 2] - step)
            at += 1
    return found


@kernel
def _goes_on(pieces: Any, piece: Any) -> Any:
    """Whether the next piece is of the same episode."""
    return piece + 1 < pieces.shape[0] and pieces[piece + 1, CHAIN] == pieces[piece, CHAIN]


@kernel
def _first_shown(pieces: Any, numbers: Any, piece: Any, records: Any, base: Any) -> Any:
    """Return the first step that is there of the episode of a piece, after all pieces that are gone."""
    while piece > 0 and _goes_on(pieces, piece - 1):
        piece -= 1
    low = np.int64(1) << 40
    while True:
        line = numbers[piece] - base
        if line >= 0 and not records[line, _FLAGS] & _IS_GONE:
            low = min(low, records[line, _LO] + pieces[piece, CHAIN_STEP] - pieces[piece, CHAIN_START])
        else:
            low = np.int64(1) << 40
        if not _goes_on(pieces, piece):
            return low
        piece += 1


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
