"""Importance weights of rows that were drawn with known probabilities."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel

__all__ = ["importance_weights"]


@kernel
def importance_weights(probabilities: Any, sizes: Any, betas: Any, normalize: Any, weights: Any) -> None:
    """Compute ``(size * probability) ** -beta`` of each row, over the largest of its batch where ``normalize``.

    Args:
        probabilities: float64 [n], of ``len(betas)`` batches of equal size, one after the other.
        sizes: int64 [n].
        betas: float64, of each batch; 0 or more.
        normalize: whether the largest of a batch is to be 1.
        weights: float32 [n], written; computed in float64.
    """
    size = len(weights) // len(betas)
    for batch in range(len(betas)):
        rows = slice(batch * size, batch * size + size)
        _weigh_batch(probabilities[rows], sizes[rows], betas[batch], normalize, weights[rows])


@kernel
def _weigh_batch(probabilities: Any, sizes: Any, beta: Any, normalize: Any, weights: Any) -> None:
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
