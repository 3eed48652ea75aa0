"""The weights of FFCV's mixup, by numba's generator: its numbers for a seed are those that FFCV's code draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["beta_weights"]


@kernel
def beta_weights(seed: Any, alpha: Any, number: Any, size: Any) -> Any:
    """Return weights of a beta distribution, float64 [size]: ``number`` draws, one for all or one for each.

    Args:
        seed: int64.
        alpha: float64, both parameters.
        number: int64, 1 or ``size``.
        size: int64.
    """
    np.random.seed(seed)
    weights = np.empty(size, np.float64)
    for i in range(number):
        weights[i] = np.random.beta(alpha, alpha)
    for i in range(number, size):
        weights[i] = weights[0]
    return weights
