"""Importance weights of rows that were drawn with known probabilities."""

from __future__ import annotations

from typing import Any

from numba import njit

__all__ = ["importance_weights"]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def importance_weights(probabilities: Any, sizes: Any, beta: Any, normalize: Any, weights: Any) -> None:
    """Compute ``(size * probability) ** -beta`` of each row, over the largest of them where ``normalize``.

    Args:
        probabilities: float64 [n].
        sizes: int64 [n].
        beta: 0 or more.
        normalize: whether the largest is to be 1.
        weights: float32 [n], written; computed in float64.
    """
    last, power, largest = -1.0, 1.0, 0.0
    for i in range(len(weights)):
        product = sizes[i] * probabilities[i]
        # rows of a uniform table share it, and a power costs as much as all the rest
        if product != last:
            last = product
            power = product**-beta if product > 0.0 else 0.0
        largest = max(largest, power)
        weights[i] = power
    if not normalize or largest == 0.0:
        return
    last = -1.0
    for i in range(len(weights)):
        product = sizes[i] * probabilities[i]
        if product != last:
            last = product
            power = product**-beta / largest if product > 0.0 else 0.0
        weights[i] = power
