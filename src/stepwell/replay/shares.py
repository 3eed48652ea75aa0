"""How the rows of a batch are shared between several sources, exactly over time.

::

    batch of 10, shares 1 : 2             rows      3 7 | 3 7 | 4 6 | 3 7 | ...
                                          owed     +.3-.3|+.7-.7| 0  0 | ...

Each batch a source is owed its share of the rows; it gets what is owed rounded, and the rest is carried on. So after
any number of batches it has had at most one row more or less than its share of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepwell.errors import OrderError
from stepwell.order.mixture import check_weights

__all__ = ["checked_shares", "deal_rows"]


def checked_shares(shares: Sequence[float] | None, num_sources: int) -> tuple[float, ...]:
    """Return shares that sum to 1.

    Args:
        shares: one a source, in any unit; None: all alike.
        num_sources: how many there must be.

    Raises:
        OrderError: another number of shares, one that is negative or not finite, or none above 0.
    """
    found = check_weights("shares", np.ones(num_sources) if shares is None else shares)
    if len(found) != num_sources:
        raise OrderError(f"{len(found)} shares for {num_sources} sources. One is needed for each.")
    total = math.fsum(found.tolist())
    return tuple(share / total for share in found.tolist())


def deal_rows(shares: Sequence[float], owed: Sequence[float], batch_size: int) -> tuple[list[int], list[float]]:
    """Return the rows that each source has in the next batch, and what each is owed afterwards.

    Args:
        shares: of the sources; they sum to 1.
        owed: rows that each has had too few of (negative: too many); they sum to 0.
        batch_size: rows to deal.

    Example:
        >>> deal_rows([0.5, 0.5], [0.0, 0.0], 256)
        ([128, 128], [0.0, 0.0])
    """
    due = [before + share * batch_size for share, before in zip(shares, owed, strict=True)]
    # what rounding has left of a whole number is one
    rows = [max(0, math.floor(each + 1e-9)) for each in due]
    rest = batch_size - sum(rows)
    while rest:
        step = 1 if rest > 0 else -1
        # the one that is owed most has one more; or of those that have any, the one that is owed least one less
        candidates = [s for s in range(len(rows)) if step > 0 or rows[s] > 0]
        chosen = max(candidates, key=lambda s: step * (due[s] - rows[s]))
        rows[chosen] += step
        rest -= step
    return rows, [each - count for each, count in zip(due, rows, strict=True)]
