"""Which candidates a pattern takes when it looks at how long ago it last took one."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["COMPARISONS", "apply_in_order"]

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
